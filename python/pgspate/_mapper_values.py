"""The values that a mapper of SQLAlchemy writes into each new row by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import NoInspectionAvailable

from ._errors import UsageError


class MapperValue(NamedTuple):
    """A value for rows that do not have it.

    Attributes:
        make: Function that returns the value.
        replaces_none: Whether a row with None gets the value, too.
        is_left_to_table: Whether the table makes the values if no row has one.
    """

    make: Callable[[], Any]
    replaces_none: bool = False
    is_left_to_table: bool = False


def mapper_of(model: Any) -> Any:
    """Returns the mapper of a model. Raises `UsageError` for another object."""
    try:
        mapper = sa.inspect(model)
    except NoInspectionAvailable:
        mapper = None
    if hasattr(mapper, "local_table"):
        return mapper
    message = f"an object of class {type(model).__name__} is neither a model nor a table"
    hint = "Pass a mapped class or a `Table`. `pgspate.load` and `sync` take the name of a table."
    raise UsageError(message, hint=hint)


def mapper_values(mapper: Any, *, changes_rows: bool) -> dict[str, MapperValue]:
    """Returns the identity of a polymorphic class and the first version, by attribute.

    Args:
        mapper: The mapper.
        changes_rows: Whether rows of the table are changed, to which these values do not belong.
            Then each row must have its own values, or the table makes all versions.
    """
    found: dict[str, MapperValue] = {}
    name = mapper.class_.__name__
    column, identity = mapper.polymorphic_on, mapper.polymorphic_identity
    if identity is not None and _is_own_column(mapper, column):
        attribute = mapper.get_property_by_column(column).key
        make: Callable[[], Any] = lambda: identity
        if changes_rows and len(list(mapper.base_mapper.self_and_descendants)) > 1:
            message = f'a row has no "{attribute}", which tells the classes of {name} apart'
            make = _refuse(message, "Give each dict its class in this attribute, or pass objects.")
        found[attribute] = MapperValue(make)
    column, generator = mapper.version_id_col, mapper.version_id_generator
    if generator is not False and _is_own_column(mapper, column):
        attribute = mapper.get_property_by_column(column).key
        make = lambda: generator(None)
        if changes_rows:
            message = f'a row has no "{attribute}", and a sync cannot count the versions of {name}'
            hint = "Give each row its version, or leave all to a `server_default` of the column."
            make = _refuse(message, hint)
        is_left = changes_rows and column.server_default is not None
        found[attribute] = MapperValue(make, replaces_none=True, is_left_to_table=is_left)
    return found


def update_values(columns: Mapping[str, sa.Column[Any]]) -> dict[str, MapperValue]:
    """Returns the values of the columns with `onupdate=`, for a call that changes rows.

    A sync finds out on the server which rows it updates. So it cannot make these values, and each
    row must have its own.
    """
    hint = "Give each row a value, and name the attribute in `ignore_columns=`: then no row is "
    hint += "written for this value alone. Or call `pgspate.sync`, which does not know the model."
    return {
        name: MapperValue(_refuse(f'a row has no "{name}", and a sync runs no `onupdate=`', hint))
        for name, column in columns.items()
        if column.onupdate is not None
    }


def _is_own_column(mapper: Any, column: Any) -> bool:
    return isinstance(column, sa.Column) and column.table is mapper.local_table


def _refuse(message: str, hint: str) -> Callable[[], Any]:
    """Returns a function that raises an error."""

    def refuse() -> Any:
        raise UsageError(message, hint=hint)

    return refuse


def refuse_shared_table(mapper: Any) -> None:
    """Raises an error for a class without a table of its own, for a call that changes rows."""
    if mapper is None or not mapper.single:
        return
    name, parent = mapper.class_.__name__, mapper.inherits.class_.__name__
    message = f"class {name} shares its table with class {parent}, whose rows could change"
    hint = f"Load new rows of {name} without `replace=`. "
    hint += "To change rows, pass the table as the model, and dicts."
    raise UsageError(message, hint=hint)
