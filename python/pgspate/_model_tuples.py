"""Makes tuples of the values of objects and dicts, for the columns of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import count
from os import PathLike
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm.attributes import instance_dict, instance_state
from sqlalchemy.orm.exc import DetachedInstanceError
from sqlalchemy.sql import visitors
from sqlalchemy.sql.expression import ColumnClause

from ._errors import ConversionError, UsageError
from ._mapper_values import MapperValue


class WrittenColumn(NamedTuple):
    """A column to write.

    Attributes:
        name: Name of the attribute.
        key: Name of the column in statements of SQLAlchemy.
        convert: Function of the column's type that converts a value for the driver, if any.
        make_default: Function that returns the value of a row without one, if there is one.
        replaces_none: Whether a row with None gets the default, too.
        is_left_out: Whether a session leaves the column out of an INSERT without a value. Then the
            type does not convert the None of such a row.
    """

    name: str
    key: str
    convert: Callable[[Any], Any] | None
    make_default: Callable[[_RowContext], Any] | None
    replaces_none: bool = False
    is_left_out: bool = False


def refuse_other_tables(expression: Any, table: sa.FromClause) -> None:
    """Refuses a scope with columns of other tables, as it is written without names of tables."""
    parts = list(visitors.iterate(expression))
    tables = [it.table for it in parts if isinstance(it, ColumnClause)]
    if any(isinstance(it, sa.SelectBase) for it in parts):
        found = "a subquery, whose columns would lose the names of their tables"
    elif any(it is not None and it != table for it in tables):
        found = "columns of another table, which would lose its name"
    else:
        return
    hint = "Give the scope as SQL in a text, or the values: `Model.id.in_([...])`."
    raise UsageError(f"`scope=` has {found}", hint=hint)


def with_array_casts(expression: Any) -> Any:
    """Returns the expression with arrays cast to their types. A literal has no type of its own."""
    def cast_array(element: Any, **_: Any) -> Any:
        is_array = isinstance(element, sa.BindParameter) and isinstance(element.type, sa.ARRAY)
        return sa.cast(element, element.type) if is_array and not element.expanding else None

    return visitors.replacement_traverse(expression, {}, cast_array)


class _RowContext:
    """A row that is being written, in place of the context of SQLAlchemy's INSERT.

    Attributes:
        current_parameters: The row's values so far, by the names of their columns.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.current_parameters = parameters

    def get_current_parameters(self, isolate_multiinsert_params: bool = True) -> dict[str, Any]:
        """Returns the row's values so far, by the names of their columns."""
        return self.current_parameters

    def __getattr__(self, name: str) -> Any:
        message = f"a default uses `{name}` of the context of an INSERT, but there is no INSERT"
        hint = "Let the default use `get_current_parameters()` alone, or give each row a value."
        raise UsageError(message, hint=hint)


def value_dialect(json_serializer: Callable[[Any], str] | None = None) -> PGDialect:
    """Returns the dialect by which types convert values: exact numbers, and texts as they are."""
    # With the default `paramstyle`, SQL would have each `%` twice.
    dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]
    # Otherwise values of `Numeric` would be converted to floats.
    dialect.supports_native_decimal = True
    dialect._json_serializer = json_serializer
    # Types of users ask for it. pgspate takes values as psycopg does.
    dialect.driver = "psycopg"
    return dialect


def written_column(
    name: str,
    column: sa.Column[Any],
    dialect: PGDialect,
    mapper_value: MapperValue | None,
    *,
    changes_rows: bool = False,
) -> WrittenColumn:
    """Returns the column of an attribute, with its functions.

    With `changes_rows`, a default would replace a value that is stored. So a row without a value is
    an error if the column has a default.
    """
    if column.type.bind_expression(sa.bindparam(column.key)) is not None:
        message = f'values of column "{column.name}" are written by an SQL expression of its type'
        hint = "Save such rows by `session.add_all(...)`: COPY takes values, and no expressions."
        raise UsageError(message, hint=hint)
    convert = column.type.dialect_impl(dialect).bind_processor(dialect)
    if mapper_value is not None:
        make: Callable[[_RowContext], Any] = lambda _: mapper_value.make()
        return WrittenColumn(name, column.key, convert, make, mapper_value.replaces_none)
    default = _default_maker(column, changes_rows)
    is_left_out = column.type.should_evaluate_none
    return WrittenColumn(name, column.key, convert, default, is_left_out=is_left_out)


def _default_maker(
    column: sa.Column[Any], changes_rows: bool
) -> Callable[[_RowContext], Any] | None:
    """Returns the function that makes the default of a column, if it has one."""
    default: Any = column.default
    if changes_rows and default is not None:
        message = f'a row has no value for column "{column.name}", but another row has one'
        hint = "Give each row a value, or sync the rows that have none by a call of their own. "
        hint += "A default would replace the values that are stored."
        return _refuse(message, hint)
    if default is not None and default.is_scalar:
        return lambda _: default.arg
    if default is not None and default.is_callable:
        call: Callable[[_RowContext], Any] = default.arg
        return call
    message = f'a row has no value for column "{column.name}", '
    if default is not None:
        hint = "Give each row a value. Or leave it to the table, by `server_default=` alone."
        return _refuse(message + "whose default is an SQL expression", hint)
    if is_made_by_server(column):
        hint = "Give each row a value, or write the rows that have none by a call of their own."
        return _refuse(message + "whose default the server makes, but another row has one", hint)
    return None


def has_value(column: sa.Column[Any], dialect: PGDialect, *, of_objects: bool) -> bool:
    """Returns whether the model has a value that the table does not have itself.

    This is for a column that no row has. `of_objects` means that some rows are objects.
    """
    default: Any = column.default
    if default is None:
        return of_objects and _replaces_null(column, dialect)
    if default.is_scalar or default.is_callable:
        return True
    stored: Any = getattr(column.server_default, "arg", None)
    if column.server_default is None or default.is_sequence:
        return column.server_default is None
    return not hasattr(stored, "compile") or str(default.arg.compile(dialect=dialect)) != str(
        stored.compile(dialect=dialect)
    )


def _replaces_null(column: sa.Column[Any], dialect: PGDialect) -> bool:
    """Returns whether a column's type makes a value of the None that a session sends.

    A session sends None for an attribute of a new object that is not set and has no default.
    """
    if column.primary_key or column.server_default is not None or column.type.should_evaluate_none:
        return False
    convert = column.type.dialect_impl(dialect).bind_processor(dialect)
    if convert is None:
        return False
    try:
        return convert(None) is not None
    except Exception:
        # The first row raises the error again, with its place.
        return True


def is_made_by_server(column: sa.Column[Any]) -> bool:
    """Returns whether the server gives a value to a row that has none."""
    if column.server_default is not None:
        return True
    return column.table is not None and column is column.table.autoincrement_column


def _refuse(message: str, hint: str) -> Callable[[_RowContext], Any]:
    """Returns a function that raises an error for a row without a value."""

    def refuse(_: _RowContext) -> Any:
        raise UsageError(message, hint=hint)

    return refuse


def tuple_maker(
    columns: list[WrittenColumn], numbers: Iterator[int], unset: Iterable[str] = ()
) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Returns a function that makes a tuple from a row's values, in the order of `columns`.

    Each call takes the row's number from `numbers`, for errors. Defaults see the columns `unset`,
    which are not written, as None.
    """
    names = [column.name for column in columns]
    keys = [column.key for column in columns]
    unset_parameters = dict.fromkeys(unset)
    special = [
        (nth, column)
        for nth, column in enumerate(columns)
        if column.convert is not None or column.make_default is not None
    ]
    if not special:
        return lambda values: tuple(map(values.get, names))

    def make_tuple(values: dict[str, Any]) -> tuple[Any, ...]:
        number = next(numbers)
        row = list(map(values.get, names))
        context: _RowContext | None = None
        for nth, (name, key, convert, make_default, replaces_none, is_left_out) in special:
            if name not in values or (replaces_none and row[nth] is None):
                if make_default is not None:
                    if context is None:
                        parameters = dict(zip(keys, map(values.get, names)))
                        context = _RowContext({**unset_parameters, **parameters})
                    row[nth] = context.current_parameters[key] = make_default(context)
                elif is_left_out:
                    continue
            if convert is not None:
                # Some types convert None to another value.
                try:
                    row[nth] = convert(row[nth])
                except Exception as error:
                    raise _conversion_error(name, number, error) from error
        return tuple(row)

    return make_tuple


def converted_rows(
    rows: Iterable[tuple[Any, ...]],
    columns: list[sa.Column[Any]],
    json_serializer: Callable[[Any], str] | None,
) -> Iterable[tuple[Any, ...]]:
    """Returns rows of all columns, with their values as the types of the columns convert them."""
    dialect = value_dialect(json_serializer)
    written = [written_column(column.key, column, dialect, None) for column in columns]
    if not any(column.convert for column in written):
        return rows
    make_tuple = tuple_maker(written, count(1))
    names = [column.name for column in written]
    return (make_tuple(dict(zip(names, row))) for row in rows)


def _conversion_error(name: str, row: int, error: Exception) -> ConversionError:
    """Returns the error for a value that the type of its column refuses."""
    reason = str(error)
    if not isinstance(error, ValueError):
        reason = f"{type(error).__name__}: {reason}"
    return ConversionError(
        f'could not convert the value of "{name}"',
        place={"row": row, "column": name},
        place_text=f'row {row}, column "{name}"',
        reasons=[reason],
    )


def refuse_other_input(rows: Any, options: Mapping[str, Any]) -> None:
    """Raises an error for files, data frames, `columns=` and `to=`.

    Calls for models do not have them.
    """
    if isinstance(rows, (str, bytes, PathLike)) or hasattr(rows, "__arrow_c_stream__"):
        message = f"the rows are an object of class {type(rows).__name__}"
        hint = "Give objects of the model or dicts. Load files and data frames with `pgspate.load`."
        raise UsageError(message, hint=hint)
    if "columns" in options:
        message = "the columns are those of the model, and not those of `columns=`"
        raise UsageError(message, hint="Give each row only the attributes to write.")
    if "to" in options:
        hint = "Leave out `to=`, or give an engine of that server as `bind`."
        raise UsageError("`bind` names the server, and `to=` names one, too", hint=hint)


def refuse_repeated(rows: Sequence[Any]) -> None:
    """Raises an error if an object occurs twice: a session would save it once."""
    objects = [row for row in rows if not isinstance(row, dict)]
    if len(set(map(id, objects))) < len(objects):
        message = "the rows have the same object more than once"
        raise UsageError(message, hint="Give each row as an object of its own, or as a dict.")


def unwritable_error(
    name: str, row: Any, columns: Mapping[str, sa.Column[Any]], table_sql: str
) -> UsageError:
    """Returns the error for an attribute of a row that is no column, or a generated one."""
    if name in columns:
        message = f'a row has a value for "{name}", which the server computes'
        return UsageError(message, hint="Leave this attribute out of the rows.")
    if isinstance(row, dict):
        of_column = [it for it, column in columns.items() if column.name == name]
        # Keys of dicts need not be texts.
        alike = of_column or (get_close_matches(name, columns, n=1) if type(name) is str else [])
        hint = f'Did you mean the attribute "{alike[0]}"?' if alike else None
        return UsageError(f'"{name}" is no attribute of {table_sql}', hint=hint)
    message = f'an object of class {type(row).__name__} has "{name}", which the model lacks'
    return UsageError(message, hint="Write the objects of each class by their own call.")


def is_new(row: Any) -> bool:
    """Returns whether a row is an object that no session has stored or loaded.

    None of such an object stands for no value. None of a stored object is NULL.
    """
    return not isinstance(row, dict) and instance_state(row).key is None


def with_loaded_nulls(row: Any, values: dict[str, Any], json: Collection[str]) -> dict[str, Any]:
    """Returns the values of an object, with the None of the attributes `json` as SQL NULL.

    Types of JSON write None as the null of JSON. A session does that for a None that the program
    has set, but leaves a None as it is that it has loaded.
    """
    if not json or isinstance(row, dict):
        return values
    state = instance_state(row)
    if state.key is None:
        return values
    loaded = (it for it in json if values.get(it) is None and it not in state.committed_state)
    return {**values, **dict.fromkeys(loaded, sa.null())}


def is_set_by_program(row: Any, name: str) -> bool:
    """Returns whether an object has a value that a session would send, other than a loaded one."""
    state = instance_state(row)
    if state.key is None:
        return instance_dict(row).get(name) is not None
    return name in state.committed_state


@lru_cache(maxsize=64)
def column_attributes(cls: Any, table: sa.Table) -> tuple[str, ...]:
    """Returns the names of the attributes of a mapped class that are columns.

    Raises an error for a class whose objects are no rows of the table.
    """
    try:
        mapper: Any = sa.inspect(cls)
        # An attribute may also be an SQL expression, by `column_property`.
        attributes = tuple(
            one.key for one in mapper.column_attrs if isinstance(one.columns[0], sa.Column)
        )
    except (NoInspectionAvailable, AttributeError):
        message = f"a row of class {cls.__name__} is neither a dict nor a mapped object"
        raise UsageError(message) from None
    if mapper.local_table is not table:
        message = f"an object of class {cls.__name__} is no row of {table.name}"
        raise UsageError(message, hint="Write the objects of each class by their own call.")
    return attributes


def is_loaded(row: Any, names: Collection[str]) -> bool:
    """Returns whether the dict of an object has all values that the object has.

    The values of a stored object may be in the database alone, in attributes that are expired or
    were not selected.
    """
    state = instance_state(row)
    if state.expired_attributes:
        return False
    return state.key is None or all(map(instance_dict(row).__contains__, names))


def stored_values(row: Any, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of an object by attribute. Its session selects the missing values."""
    try:
        return {name: getattr(row, name) for name in names}
    except DetachedInstanceError as error:
        message = f"an object of class {type(row).__name__} has values that were not selected"
        hint = "Select all columns of the object, or pass it while its session is open."
        raise UsageError(message, hint=hint) from error
