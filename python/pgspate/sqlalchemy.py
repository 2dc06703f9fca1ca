"""Models, tables and sessions of SQLAlchemy 2.

Rows are objects of a mapped class, or dicts whose keys are its attributes. The mapper gives
columns, types and defaults. pgspate opens its own connections to the session's server. With
``within=`` it writes over the session's connection, in the session's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm.attributes import instance_dict, instance_state

from . import _calls
from ._errors import PlanError, UsageError
from ._report import LoadReport, SyncReport
from ._within import copy_rows, run_script, table_there

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._typed import ModelLoadOptions, ModelSyncOptions

__all__ = ["load", "sync"]

# How many rows of an iterator are read to find out which columns the rows have.
_ROWS_AHEAD = 1000
_LEAVE_OUT = "Remove this option or `within=`."


def load(
    bind: Any,
    model: Any,
    rows: Iterable[Any],
    *,
    within: Any = None,
    **options: Unpack[ModelLoadOptions],
) -> LoadReport:
    """Loads objects or dicts into the table of a model.

    A column that no row has gets the model's default, or else the table's default.

    Args:
        bind: A session, a connection or an engine of the target server.
        model: A mapped class or a table.
        rows: Objects of the class, or dicts whose keys are its attributes.
        within: A session or connection. The rows are written in its transaction, and committed or
            rolled back with it. A session is flushed first. No other options are allowed then.
        **options: As for `pgspate.load`.

    Returns:
        What the load did.

    Raises:
        Error: As `pgspate.load`. With ``within=``, also exceptions of the driver.

    Example:
        >>> import pgspate, pgspate.sqlalchemy, sqlalchemy
        >>> from sqlalchemy.orm import DeclarativeBase, Session, mapped_column
        >>> class Base(DeclarativeBase):
        ...     pass
        >>> class Part(Base):
        ...     __tablename__ = "parts"
        ...     id = mapped_column(sqlalchemy.Integer, primary_key=True)
        ...     label = mapped_column("name", sqlalchemy.Text)
        >>> with pgspate.server(temporary=True) as server:
        ...     url = server.url.replace("postgresql:", "postgresql+psycopg:")
        ...     engine = sqlalchemy.create_engine(url)
        ...     Base.metadata.create_all(engine)
        ...     with Session(engine) as session:
        ...         parts = [Part(id=1, label="bolt"), Part(id=2, label="nut")]
        ...         _ = pgspate.sqlalchemy.load(session, Part, parts)
        ...         _ = pgspate.sqlalchemy.load(session, Part, [{"label": "washer", "id": 3}],
        ...                                     within=session)
        ...         session.commit()
        ...         names = session.scalars(sqlalchemy.select(Part.label).order_by(Part.id)).all()
        ...     engine.dispose()
        >>> names
        ['bolt', 'nut', 'washer']
    """
    shape = _Shape(model)
    names, tuples = shape.rows(rows)
    if within is None:
        to, table = _where(bind, shape)
        asked: dict[str, Any] = {"to": to, **options}
        return _calls.load(tuples, table, columns=names or None, **asked)
    if options:
        message = f"{next(iter(options))} has no effect within a transaction"
        raise UsageError(message, hint=_LEAVE_OUT)
    connection, table = _within(within, shape)
    count = copy_rows(connection, table, names, tuples) if names else 0
    return LoadReport._of({"table": table, "rows_in": count, "rows_written": count})


def sync(
    bind: Any,
    model: Any,
    rows: Iterable[Any],
    *,
    scope: Any = None,
    key: Any = (),
    scope_by: Any = (),
    ignore_columns: Any = (),
    within: Any = None,
    **options: Unpack[ModelSyncOptions],
) -> SyncReport:
    """Makes a model's table equal to objects or dicts, and writes only rows that differ.

    Args:
        bind: As for `load`.
        model: As for `load`.
        rows: As for `load`.
        scope: The rows that may change: an expression such as ``Model.meter == 42``, or as for
            `pgspate.sync`.
        key: Attributes or column names that identify a row. Default: the primary key.
        scope_by: Attributes. The scope is all rows whose values in these occur in `rows`.
        ignore_columns: Attributes that are not compared.
        within: A session or connection. The rows are written in its transaction, and committed or
            rolled back with it. The transaction that created the table must be committed. The
            session's objects are expired after the sync, so that it loads them again.
        **options: As for `pgspate.sync`.

    Returns:
        What the sync did.

    Raises:
        Error: As `pgspate.sync`.

    Example:
        >>> import pgspate, pgspate.sqlalchemy, sqlalchemy
        >>> from sqlalchemy.orm import DeclarativeBase, Session, mapped_column
        >>> class Base(DeclarativeBase):
        ...     pass
        >>> class Use(Base):
        ...     __tablename__ = "use_prediction"
        ...     meter = mapped_column(sqlalchemy.Integer, primary_key=True)
        ...     day = mapped_column(sqlalchemy.Integer, primary_key=True)
        ...     kwh = mapped_column(sqlalchemy.Float)
        >>> with pgspate.server(temporary=True) as server:
        ...     url = server.url.replace("postgresql:", "postgresql+psycopg:")
        ...     engine = sqlalchemy.create_engine(url)
        ...     Base.metadata.create_all(engine)
        ...     with Session(engine) as session:
        ...         tonight = [Use(meter=42, day=day, kwh=1.5) for day in (1, 2, 3)]
        ...         report = pgspate.sqlalchemy.sync(session, Use, tonight, scope=Use.meter == 42)
        ...     engine.dispose()
        >>> report.inserted
        3
    """
    shape = _Shape(model)
    names, tuples = shape.rows(rows)
    to, table = _where(bind, shape)
    asked: dict[str, Any] = {"to": to, **options}
    if scope is not None:
        asked["scope"] = scope if isinstance(scope, str) else shape.predicate(scope)
    asked["key"] = shape.names(key) or [column.name for column in shape.table.primary_key]
    asked["scope_by"] = shape.names(scope_by)
    asked["ignore_columns"] = shape.names(ignore_columns)
    if within is None:
        return _calls.sync(tuples, table, columns=names or None, **asked)
    for name in ("lanes", "transactions", "vacuum"):
        if name in options:
            raise UsageError(f"{name} has no effect within a transaction", hint=_LEAVE_OUT)
    asked["columns"] = names
    connection, called = _within(within, shape)
    # The script is made on another connection, where the name may mean another table.
    table, oid = table_there(connection, called)
    script = _calls.SCRIPT.facts([], {**asked, "table": table})
    if script["oid"] != oid:
        message = f"{table} is not the same table in the transaction and in the database of `bind`"
        raise PlanError(message, hint="Give the same session as `bind` and as `within=`.")
    facts = run_script(connection, script, tuples)
    if hasattr(within, "expire_all"):
        within.expire_all()
    return SyncReport._of(facts)


def _within(within: Any, shape: _Shape) -> tuple[Any, str]:
    """Returns the connection of a session, after a flush, or the given connection; and the name of
    the table on it."""
    connection = within
    if hasattr(within, "get_bind"):
        within.flush()
        connection = within.connection(bind_arguments=shape.bind_arguments)
    return connection, shape.called(connection, within)


def _where(bind: Any, shape: _Shape) -> tuple[Any, str]:
    """Returns the engine of a connection or session, and the name of the table on it."""
    bind = asked = getattr(bind, "sync_session", bind)
    if hasattr(bind, "get_bind"):
        bind = bind.get_bind(**shape.bind_arguments)
    bind = getattr(bind, "sync_connection", None) or getattr(bind, "sync_engine", bind)
    return getattr(bind, "engine", bind), shape.called(bind, asked)


class _Shape:
    """The table of a model: maps attributes to columns."""

    def __init__(self, model: Any) -> None:
        self.dialect = PGDialect()  # type: ignore[no-untyped-call]
        if isinstance(model, sa.Table):
            self.table = model
            self.bind_arguments: dict[str, Any] = {"clause": model}
            self.columns = {column.key: column for column in model.columns}
            self.cls: Any = None
        else:
            mapper = sa.inspect(model)
            if not isinstance(mapper.local_table, sa.Table) or mapper.inherits is not None:
                message = f"class {mapper.class_.__name__} is not mapped to one table"
                raise UsageError(message, hint="Give the table, and dicts.")
            self.table = mapper.local_table
            self.bind_arguments = {"mapper": mapper}
            self.columns = {
                attribute.key: attribute.columns[0]
                for attribute in mapper.column_attrs
                if attribute.columns[0].table is self.table
            }
            # Set only if the class has exactly these attributes.
            self.cls = mapper.class_ if {*_names(mapper.class_)} == {*self.columns} else None
        self.table_sql = self.dialect.identifier_preparer.format_table(self.table)

    def called(self, *binds: Any) -> str:
        """Returns the table's name as in SQL, after the `schema_translate_map` of the binds."""
        schema = self.table.schema
        for bind in binds:
            options: Any = getattr(bind, "execution_options", {})
            if callable(options):
                options = bind.get_execution_options()
            map_of = options.get("schema_translate_map")
            if map_of:
                schema = map_of.get(self.table.schema, self.table.schema)
        preparer = self.dialect.identifier_preparer
        name = preparer.quote(self.table.name)
        return name if schema is None else f"{preparer.quote_schema(schema)}.{name}"

    def names(self, attributes: Any) -> list[str]:
        """Returns column names for attributes or names."""
        if isinstance(attributes, str) or not isinstance(attributes, Sequence):
            attributes = [attributes]
        names = []
        for attribute in attributes:
            name = attribute if isinstance(attribute, str) else attribute.key
            column = self.columns.get(name)
            names.append(name if column is None else column.name)
        return names

    def predicate(self, expression: Any) -> str:
        """Returns an expression over the table's columns as SQL."""
        literal = {"literal_binds": True, "include_table": False}
        return str(expression.compile(dialect=self.dialect, compile_kwargs=literal))

    def rows(self, rows: Iterable[Any]) -> tuple[list[str], Iterable[tuple[Any, ...]]]:
        """Returns the columns of the rows, and the rows as tuples in that order."""
        held = rows if isinstance(rows, (list, tuple)) else None
        rest: Iterator[Any] = iter(()) if held is not None else iter(rows)
        first = list(islice(rest, _ROWS_AHEAD)) if held is None else held
        if not first:
            # Without rows all columns are possible.
            return [], []
        said: set[str] = set()
        for row in first:
            # Once all columns are known, an object has no further attributes.
            if isinstance(row, dict) or not self.columns.keys() <= said:
                self._add_attributes(said, _facts(row))
        taken = [
            (name, column)
            for name, column in self.columns.items()
            if column.computed is None and (name in said or _has_default(column))
        ]
        values_of = _values_of([(name, *_value(column, self.dialect)) for name, column in taken])
        # Generated columns are not written, even if a row has a value for them.
        known = said.union(name for name, _ in taken)
        known.update(name for name, column in self.columns.items() if column.computed is not None)

        # All rows of a list were looked at above, so each object fits.
        plain = self.cls if held is not None else None

        def values(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
            for row in rows:
                if type(row) is plain and not instance_state(row).expired_attributes:
                    yield values_of(instance_dict(row))
                    continue
                facts = _facts(row)
                if not facts.keys() <= known:
                    self._fail_on_new_attributes(facts.keys() - known)
                yield values_of(facts)

        names = [column.name for _, column in taken]
        if held is not None:
            # pgspate can read a list again after a lost connection.
            return names, list(values(held))
        return names, values(chain(first, rest))

    def _add_attributes(self, said: set[str], facts: dict[str, Any]) -> None:
        """Adds the attributes of a row to the attributes that rows have."""
        if facts.keys() <= said:
            return
        said.update(facts)
        for name in facts:
            if name not in self.columns:
                raise UsageError(f'"{name}" is no attribute of {self.table_sql}')

    def _fail_on_new_attributes(self, names: Set[str]) -> None:
        """Raises an error for attributes that the first rows of an iterator did not have."""
        self._add_attributes(set(), dict.fromkeys(names))
        message = f'a row has "{min(names)}", but none of the first {_ROWS_AHEAD} rows has it'
        raise UsageError(message, hint="Give one of these rows this key as None, or pass a list.")


def _facts(row: Any) -> dict[str, Any]:
    """Returns the values of a row: a dict, or the attributes that are set on an object."""
    if isinstance(row, dict):
        return row
    cls: Any = type(row)
    names = _names(cls)
    if instance_state(row).expired_attributes:
        return {name: getattr(row, name) for name in names}
    held = instance_dict(row)
    return {name: held[name] for name in names if name in held}


@lru_cache(maxsize=64)
def _names(cls: Any) -> tuple[str, ...]:
    """Returns the attributes of a mapped class that are columns."""
    try:
        mapper: Any = sa.inspect(cls)
        return tuple(one.key for one in mapper.column_attrs)
    except (NoInspectionAvailable, AttributeError):
        message = f"a row of class {cls.__name__} is neither a dict nor a mapped object"
        raise UsageError(message) from None


def _has_default(column: sa.Column[Any]) -> bool:
    """Returns whether the model has a default for the column."""
    default = column.default
    return default is not None and (default.is_scalar or default.is_callable)


_Process = Callable[[Any], Any]


def _value(
    column: sa.Column[Any], dialect: PGDialect
) -> tuple[_Process | None, Callable[[], Any] | None]:
    """Returns two functions of a column: one converts its values, one makes its default."""
    process = column.type.dialect_impl(dialect).bind_processor(dialect)
    default: Any = column.default
    make: Callable[[], Any] | None = None
    if default is not None and default.is_scalar:
        make = lambda: default.arg
    elif default is not None and default.is_callable:
        make = lambda: default.arg(None)
    return process, make


def _values_of(
    columns: list[tuple[str, _Process | None, Callable[[], Any] | None]],
) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Returns a function that takes a row's values and returns them in the order of `columns`."""
    names = [name for name, _, _ in columns]
    if all(process is None and make is None for _, process, make in columns):
        return lambda facts: tuple(map(facts.get, names))

    special = [(nth, *column) for nth, column in enumerate(columns) if any(column[1:])]

    def values(facts: dict[str, Any]) -> tuple[Any, ...]:
        row = list(map(facts.get, names))
        for nth, name, process, make in special:
            if name not in facts:
                if make is None:
                    continue
                row[nth] = make()
            if process is not None:
                # A type may convert None, too.
                row[nth] = process(row[nth])
        return tuple(row)

    return values
