"""The calls `load` and `sync` for models, tables and sessions of SQLAlchemy 2.

Rows are objects of a mapped class, or dicts whose keys are the attributes of the class. The
columns, types and defaults are those of the model. By default pgspate opens its own connections to
the session's server. With ``within=`` pgspate writes over the session's connection, in the
session's transaction. Objects that relationships lead to are saved with ``within=``, and otherwise
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm.attributes import instance_dict

from . import _calls, _pgspate
from ._caller_transaction import (
    RowCounts,
    copy_rows,
    refuse_other_objects,
    sync_in_transaction,
)
from ._errors import PlanError, UsageError
from ._mapper_values import (
    MapperValue,
    mapper_of,
    mapper_values,
    refuse_shared_table,
    update_values,
)
from ._model_tuples import (
    column_attributes,
    has_value,
    is_loaded,
    is_made_by_server,
    is_new,
    is_set_by_program,
    refuse_other_input,
    refuse_other_tables,
    refuse_repeated,
    stored_values,
    tuple_maker,
    unwritable_error,
    value_dialect,
    with_array_casts,
    with_loaded_nulls,
    written_column,
)
from ._related import (
    check_related,
    classes_have_relationships,
    has_related,
    save_graph,
    without_pending,
    without_warnings_of,
)
from ._report import LoadReport, SyncReport
from ._target import (
    conninfo_of_connection,
    refuse_listeners_of_session,
    refuse_uncommitted,
    session_of,
    url_of_place,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._typed import ModelLoadOptions, ModelSyncOptions

__all__ = ["load", "sync"]

# Number of rows of an iterator that are read to find out which columns the rows have.
_ROWS_AHEAD = 1000
_OPTION_HINT = "Remove this option or `within=`."
# Options of a sync that the caller's session decides.
_NOT_WITHIN = ("create", "lanes", "transactions", "vacuum", "read_ahead", "retry_for", "progress",
               "price_per_million_io", "fleet")
_RELATED_HINTS = {
    "load": "Pass `within=session`, which saves related objects in the session's transaction. Or "
    "pass dicts, which have no relationships.",
    "load within": "Pass a list of objects, so that related objects can be saved first.",
    "sync": "Save related objects by `pgspate.sqlalchemy.load` with `within=`. Or pass dicts, "
    "which have no relationships.",
}


def load(
    bind: Any,
    model: Any,
    rows: Iterable[Any],
    *,
    within: Any = None,
    **options: Unpack[ModelLoadOptions],
) -> LoadReport:
    """Loads objects or dicts into the table of a model.

    If a row does not have an attribute, its column gets the default of the model. A default that is
    an SQL expression is an error, unless it is also the table's and no row has the attribute.
    Without a default, the column is NULL if other rows have the attribute; if no row has it, the
    column gets the default of the table. A type that stores None as a value replaces such a NULL.
    A value for a generated column is an error.

    A foreign key gets the key of the object to which its relationship leads. With ``within=``, a
    list of objects is saved with all new objects that their relationships lead to: parents first.
    Keys that the server generates are set on objects to which other objects refer, and on no
    others. Without ``within=``, such an object is an error. A many-to-many relationship is always
    an error.

    Args:
        bind: A session, a connection or an engine of the target server. pgspate's connections have
            its role and its search path. Without ``within=``, its transaction may have no changes
            that are not committed.
        model: A mapped class or a table.
        rows: Objects of the class, or dicts whose keys are the attributes of the class. For a
            table: dicts whose keys are its columns. An object that a session saves itself, after
            `session.add`, is an error.
        within: A session or connection. The rows are written in its transaction, and committed or
            rolled back with it. A session is flushed first. Sequences are not advanced past given
            keys. With ``within=`` no other options are allowed.
        **options: As for `pgspate.load`.

    Returns:
        What the load did; with ``within=``, only the tables and the numbers of rows.

    Raises:
        Error: As `pgspate.load`. With ``within=``, exceptions of the driver are raised, too.

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
    refuse_other_objects(bind, within)
    refuse_other_input(rows, options)
    model_table = _ModelTable(model)
    model_table.write_json_as(bind if within is None else within)
    if options.get("replace"):
        refuse_shared_table(model_table.bind_arguments.get("mapper"))
    if within is None:
        rows = without_pending(rows)
        with without_warnings_of(rows):
            columns, tuples = model_table.columns_and_tuples(_checked_rows(rows, "load"))
        target, table = _target_and_table(bind, model_table)
        load_options: dict[str, Any] = {"to": target, **options}
        return _calls.load(tuples, table, columns=columns or None, **load_options)
    if options:
        message = f"{next(iter(options))} has no effect within a transaction"
        raise UsageError(message, hint=_OPTION_HINT)
    # This is before the flush, which would save these objects.
    rows = without_pending(rows)
    with without_warnings_of(rows):
        connection, table = _connection_and_table(within, model_table)
    related: list[dict[str, Any]] = []
    counts = RowCounts(0, 0)
    if isinstance(rows, (list, tuple)) and has_related(rows):
        for cls, more in _save_with_related(connection, within, model_table, rows).items():
            name = _ModelTable(cls).sql_name(connection, within)
            if name == table:
                counts = RowCounts(counts.sent + more.sent, counts.written + more.written)
            else:
                related.append({"table": name, "rows": more.written})
    else:
        columns, tuples = model_table.columns_and_tuples(_checked_rows(rows, "load within"))
        if columns:
            counts = copy_rows(connection, table, columns, tuples)
    report: dict[str, Any] = {
        "table": table, "rows_in": counts.sent, "rows_written": counts.written,
        "rows_kept_out": counts.sent - counts.written,
    }
    return LoadReport._from_dict({**report, **({"related": related} if related else {})})


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
    """Makes rows of a model's table equal to objects or dicts, and writes only rows that differ.

    Defaults of the model are written with ``insert_only`` alone, as they would replace values that
    are stored. Otherwise a column that no row has is not written: rows that exist keep its value,
    and new rows get the default of the table, or NULL. If only some rows have a column with a
    default, the call is an error. So is a row without a column that has ``onupdate=``, unless the
    call has ``insert_only``.

    Args:
        bind: As for `load`.
        model: As for `load`.
        rows: As for `load`.
        scope: The table rows that may change: an expression without subqueries, such as
            ``Model.meter == 42``, or as for `pgspate.sync`.
        key: Attributes or column names that identify a row. Default: the primary key.
        scope_by: Attributes. The scope is all table rows whose values in these attributes occur in
            `rows`.
        ignore_columns: Attributes that are not compared.
        within: A session or connection. The rows are written in its transaction, and committed or
            rolled back with it. A session is flushed first. The transaction that created the table
            must be committed. After the sync, the session's objects are expired, so that the
            session loads them again.
        **options: As for `pgspate.sync`; with ``within=`` not ``create``, ``lanes``,
            ``transactions``, ``vacuum``, ``read_ahead``, ``retry_for``, ``progress``,
            ``price_per_million_io`` and ``fleet``.

    Returns:
        What the sync did; with ``within=``, only the table and the counts of rows.

    Raises:
        Error: As `pgspate.sync`. With ``within=``, exceptions of the driver are raised, too.

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
    if within is not None:
        for name in _NOT_WITHIN:
            if name in options:
                raise UsageError(f"{name} has no effect within a transaction", hint=_OPTION_HINT)
    refuse_other_objects(bind, within)
    refuse_other_input(rows, options)
    model_table = _ModelTable(model, changes_rows=not options.get("insert_only"))
    model_table.write_json_as(bind if within is None else within)
    refuse_shared_table(model_table.bind_arguments.get("mapper"))
    if options.get("check"):
        model_table.mapper_values.clear()
    target, table = _target_and_table(bind, model_table, is_within=within is not None)
    sync_options: dict[str, Any] = {"to": target, **options}
    if scope is not None:
        sync_options["scope"] = scope if isinstance(scope, str) else model_table.predicate(scope)
    primary_key = [column.name for column in model_table.table.primary_key]
    sync_options["key"] = model_table.column_names(key) or primary_key
    sync_options["scope_by"] = model_table.column_names(scope_by)
    sync_options["ignore_columns"] = model_table.column_names(ignore_columns)
    if within is None:
        rows = without_pending(rows)
    connection = None
    with without_warnings_of(rows):
        if within is not None:
            # The flush gives keys to new objects of the session, so they are read after it.
            connection, table = _connection_and_table(within, model_table)
        columns, tuples = model_table.columns_and_tuples(_checked_rows(rows, "sync"))
    if within is None or connection is None:
        return _calls.sync(tuples, table, columns=columns or None, **sync_options)
    report = sync_in_transaction(connection, table, columns, tuples, sync_options)
    if hasattr(within, "expire_all"):
        within.expire_all()
    return SyncReport._from_dict(report)


def _checked_rows(rows: Iterable[Any], call: str) -> Iterable[Any]:
    """Returns the rows, with foreign keys from relationships. Refuses new related objects."""
    checked = check_related(rows, _RELATED_HINTS[call])
    if not isinstance(rows, (list, tuple)):
        return checked
    # pgspate can read a list again after a lost connection.
    return list(checked) if classes_have_relationships(rows) else rows


def _save_with_related(
    connection: Any, within: Any, model_table: _ModelTable, rows: Sequence[Any]
) -> dict[Any, RowCounts]:
    """Saves objects and the new objects they are related to. Returns the counts by class."""

    def table_name(cls: Any) -> str:
        return _ModelTable(cls).sql_name(connection, within)

    def write(cls: Any, group: list[Any]) -> RowCounts:
        group_table = _ModelTable(cls)
        group_table.write_json_as(within)
        columns, tuples = group_table.columns_and_tuples(group)
        return copy_rows(connection, table_name(cls), columns, tuples)

    classes: set[Any] = {type(row) for row in rows}
    for cls in classes:
        if issubclass(cls, dict):
            message = "rows with related objects must all be objects, but one is a dict"
            raise UsageError(message, hint="Pass the dicts to a call of their own.")
        column_attributes(cls, model_table.table)
    return save_graph(connection, list(rows), table_name, write)


def _connection_and_table(within: Any, model_table: _ModelTable) -> tuple[Any, str]:
    """Returns the connection of `within`, and the table's name in SQL on this connection.

    `within` is a session, which is flushed, or a connection.
    """
    connection = within
    if hasattr(within, "get_bind"):
        within.flush()
        connection = within.connection(bind_arguments=model_table.bind_arguments)
    return connection, model_table.sql_name(connection, within)


def _target_and_table(
    bind: Any, model_table: _ModelTable, *, is_within: bool = False
) -> tuple[Any, str]:
    """Returns the target of a session, connection or engine, and the table's name in SQL.

    The target has the role and the search path of a connection that is open. Unless the rows are
    written within its transaction (`is_within`), the transaction may have no changes. With
    `is_within`, a driver that does not show them gives the place alone: the caller knows the table
    by its qualified name and oid.
    """
    session = session_of(bind)
    bind = session
    if hasattr(session, "get_bind"):
        bind = session.get_bind(**model_table.bind_arguments)
    bind = getattr(bind, "sync_connection", None) or getattr(bind, "sync_engine", bind)
    name = model_table.sql_name(bind, session)
    engine = getattr(bind, "engine", bind)
    is_open = bind is not engine
    if hasattr(session, "get_bind"):
        transaction = session.get_transaction()
        # A session of asyncio that has begun may have no connection yet, and cannot open one here.
        is_connected = transaction is not None and (
            not engine.dialect.is_async or bool(getattr(transaction, "_connections", True))
        )
        if is_connected:
            is_open = True
            bind = session.connection(bind_arguments=model_table.bind_arguments)
        else:
            refuse_listeners_of_session(session)
    if not is_open:
        is_asyncpg = engine.dialect.driver == "asyncpg"
        return (url_of_place(engine) if is_within and is_asyncpg else engine), name
    if not is_within:
        refuse_uncommitted(bind)
    return conninfo_of_connection(bind, without_settings=is_within), name


class _ModelTable:
    """The table of a model, and the columns of the model's attributes.

    Attributes:
        table: Table of the model.
        columns: Columns of the table, by the names of their attributes.
        bind_arguments: Arguments with which a session finds its engine or connection for the model.
        cls: Mapped class, if the class has exactly the attributes of `columns`; otherwise None.
        table_sql: Name of the table, written as in SQL.
        mapper_values: Values that the mapper gives to new rows, by the names of attributes.
        left_out: Attributes that a session leaves out of an INSERT where they are None.
        changes_rows: Whether rows of the table are changed, to which defaults do not belong.
    """

    def __init__(self, model: Any, *, changes_rows: bool = False) -> None:
        self.mapper_values: dict[str, MapperValue] = {}
        self.left_out: set[str] = set()
        self.changes_rows = changes_rows
        self.dialect = value_dialect()
        if isinstance(model, sa.Table):
            self.table = model
            self.bind_arguments: dict[str, Any] = {"clause": model}
            self.columns = {column.key: column for column in model.columns}
            self.cls: Any = None
        else:
            mapper = mapper_of(model)
            has_own_rows = mapper.single or mapper.concrete
            has_parent_table = mapper.inherits is not None and not has_own_rows
            is_one_table = isinstance(mapper.local_table, sa.Table) and len(mapper.tables) == 1
            if has_parent_table or not is_one_table:
                message = f"class {mapper.class_.__name__} is not mapped to one table"
                raise UsageError(message, hint="Pass the table as the model, and dicts as rows.")
            self.table = mapper.local_table
            self.mapper_values = mapper_values(mapper, changes_rows=changes_rows)
            self.bind_arguments = {"mapper": mapper}
            self.columns = {
                attribute.key: attribute.columns[0]
                for attribute in mapper.column_attrs
                if getattr(attribute.columns[0], "table", None) is self.table
            }
            if not changes_rows:
                self.left_out = {
                    name
                    for name, column in self.columns.items()
                    if (column.default is not None or is_made_by_server(column))
                    and not column.type.should_evaluate_none
                }
            attributes = set(column_attributes(mapper.class_, self.table))
            self.cls = mapper.class_ if attributes == self.columns.keys() else None
        if changes_rows:
            self.mapper_values = {**update_values(self.columns), **self.mapper_values}
        self.table_sql = self.dialect.identifier_preparer.format_table(self.table)

    def write_json_as(self, bind: Any) -> None:
        """Lets values of JSON be written by the function of a bind's engine, if it has one."""
        bind = session_of(bind)
        if hasattr(bind, "get_bind"):
            bind = bind.get_bind(**self.bind_arguments)
        bind = getattr(bind, "sync_connection", None) or getattr(bind, "sync_engine", bind)
        dialect: Any = getattr(bind, "dialect", None)
        self.dialect._json_serializer = getattr(dialect, "_json_serializer", None)

    def sql_name(self, *binds: Any) -> str:
        """Returns the table's name as in SQL, with the schema that the binds translate it to.

        The last bind with a `schema_translate_map` decides.
        """
        schema = self.table.schema
        for bind in binds:
            options: Any = getattr(bind, "execution_options", {})
            if callable(options):
                options = bind.get_execution_options()
            translate_map = options.get("schema_translate_map")
            if translate_map:
                schema = translate_map.get(self.table.schema, self.table.schema)
        preparer = self.dialect.identifier_preparer
        name = preparer.quote(self.table.name)
        return name if schema is None else f"{preparer.quote_schema(schema)}.{name}"

    def column_names(self, attributes: Any) -> list[str]:
        """Returns the column names of attributes, which are given as objects or by name."""
        if isinstance(attributes, str) or not isinstance(attributes, Sequence):
            attributes = [attributes]
        names = []
        for attribute in attributes:
            name = attribute if isinstance(attribute, str) else attribute.key
            column = self.columns.get(name)
            names.append(name if column is None else column.name)
        return names

    def predicate(self, expression: Any) -> str:
        """Returns an expression over the table's columns as SQL, with values as literals."""
        if not hasattr(expression, "compile"):
            message = f"`scope=` is an object of class {type(expression).__name__}"
            hint = "Give an expression over the model's columns, SQL as text, or \"all\"."
            raise UsageError(message, hint=hint)
        refuse_other_tables(expression, self.table)
        literal = {"literal_binds": True, "include_table": False}
        cast = with_array_casts(expression)
        return str(cast.compile(dialect=self.dialect, compile_kwargs=literal))

    def columns_and_tuples(
        self, rows: Iterable[Any]
    ) -> tuple[list[str], Iterable[tuple[Any, ...]]]:
        """Returns the names of the columns to write, and the rows as tuples of these columns."""
        row_list = rows if isinstance(rows, (list, tuple)) else None
        rest: Iterator[Any] = iter(()) if row_list is not None else iter(rows)
        first_rows = row_list
        if first_rows is None:
            # A generator may change a dict and yield it again.
            first_rows = [
                _pgspate.copy_row(row) if isinstance(row, dict) else row
                for row in islice(rest, _ROWS_AHEAD)
            ]
        if not first_rows:
            # The columns do not matter, because no row is written.
            return [], []
        refuse_repeated(first_rows)
        classes: set[Any] = {type(row) for row in first_rows if not isinstance(row, dict)}
        for cls in classes:
            column_attributes(cls, self.table)
        attributes: set[str] = set()
        for row in first_rows:
            # An object has no attributes but columns. So it is not read once all columns are known.
            if isinstance(row, dict) or not self.columns.keys() <= attributes:
                self._add_attributes(attributes, self._row_values(row), row)
        written = [
            (name, column)
            for name, column in self.columns.items()
            if name in attributes
            or self._has_value_without_row(name, column, bool(classes))
        ]
        if not written:
            hint = "Give each row at least one value, which may be None."
            raise UsageError("the rows have no values", hint=hint)
        columns = [
            written_column(
                name, column, self.dialect, self.mapper_values.get(name),
                changes_rows=self.changes_rows,
            )
            for name, column in written
        ]
        numbers = count(1)
        of_dict = tuple_maker(columns, numbers)
        without_none = [
            it._replace(replaces_none=it.replaces_none or it.name in self.left_out)
            for it in columns
        ]
        # A session sends None for them.
        unset = [it.key for it in self.columns.values() if it.server_default is None]
        of_object = tuple_maker(without_none, numbers, unset)
        known = attributes.union(name for name, _ in written)

        # The loop above has read all rows of a list, so an object of this class needs no check.
        unchecked_class = self.cls if row_list is not None else None
        json = [name for name, column in written if isinstance(column.type, sa.JSON)]

        def tuples(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
            for row in rows:
                if type(row) is unchecked_class and is_loaded(row, self.columns):
                    values = instance_dict(row)
                else:
                    values = self._row_values(row)
                    if not values.keys() <= known:
                        self._fail_on_new_attributes(values.keys() - known, row)
                values = with_loaded_nulls(row, values, json)
                yield (of_object if is_new(row) else of_dict)(values)

        names = [column.name for _, column in written]
        if row_list is not None:
            # pgspate can read a list again after a lost connection.
            return names, list(tuples(row_list))
        return names, tuples(chain(first_rows, rest))

    @cached_property
    def generated(self) -> frozenset[str]:
        """The attributes of columns whose values the server computes."""
        return frozenset(name for name, it in self.columns.items() if it.computed is not None)

    def _has_value_without_row(self, name: str, column: sa.Column[Any], of_objects: bool) -> bool:
        """Returns whether the model has a value that the table does not have itself."""
        if name in self.mapper_values:
            return not self.mapper_values[name].is_left_to_table
        return not self.changes_rows and has_value(column, self.dialect, of_objects=of_objects)

    def _add_attributes(self, attributes: set[str], values: dict[str, Any], row: Any) -> None:
        """Adds the attributes of a row to `attributes`. Raises an error for unwritable ones."""
        if values.keys() <= attributes:
            return
        attributes.update(values)
        for name in values:
            if name not in self.columns or name in self.generated:
                raise unwritable_error(name, row, self.columns, self.table_sql)

    def _fail_on_new_attributes(self, names: Set[str], row: Any) -> None:
        """Raises an error for attributes that none of the first rows of an iterator has."""
        self._add_attributes(set(), dict.fromkeys(names), row)
        message = f'a row has "{min(names)}", but none of the first {_ROWS_AHEAD} rows has it'
        hint = "Set this attribute to None in one of the first rows, or pass a list."
        raise UsageError(message, hint=hint)

    def _row_values(self, row: Any) -> dict[str, Any]:
        """Returns the values of a row by attribute: the dict, or the object's set attributes."""
        if isinstance(row, dict):
            return row
        cls: Any = type(row)
        names = column_attributes(cls, self.table)
        values = instance_dict(row) if is_loaded(row, names) else stored_values(row, names)
        left_out = self.left_out if is_new(row) else set()
        return {
            name: values[name]
            for name in names
            if name in values and (values[name] is not None or name not in left_out)
            and (name not in self.generated or is_set_by_program(row, name))
        }
