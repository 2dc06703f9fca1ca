"""Makes tuples of the values of objects and dicts, for the columns of a model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import PGDialect

from ._errors import ConversionError, UsageError
from ._mapper_values import MapperValue


class WrittenColumn(NamedTuple):
    """A column to write.

    Attributes:
        name: Name of the attribute.
        convert: Function of the column's type that converts a value for the driver, if any.
        make_default: Function that returns the model's default, if the model has one.
        replaces_none: Whether a row with None gets the default, too.
    """

    name: str
    convert: Callable[[Any], Any] | None
    make_default: Callable[[], Any] | None
    replaces_none: bool = False


def written_column(
    name: str, column: sa.Column[Any], dialect: PGDialect, mapper_value: MapperValue | None
) -> WrittenColumn:
    """Returns the column of an attribute, with its functions."""
    convert = column.type.dialect_impl(dialect).bind_processor(dialect)
    if mapper_value is not None:
        return WrittenColumn(name, convert, mapper_value.make, mapper_value.replaces_none)
    default: Any = column.default
    make_default: Callable[[], Any] | None = None
    if default is not None and default.is_scalar:
        make_default = lambda: default.arg
    elif default is not None and default.is_callable:
        make_default = lambda: default.arg(None)
    elif default is not None:
        make_default = lambda: _refuse_default(column)
    return WrittenColumn(name, convert, make_default)


def _refuse_default(column: sa.Column[Any]) -> None:
    """Raises an error for a row without a value, where the model's default is an SQL expression."""
    message = f'a row has no value for column "{column.name}", whose default is an SQL expression'
    hint = "Give each row a value. Or leave it to the table, by `server_default=` alone."
    raise UsageError(message, hint=hint)


def tuple_maker(
    columns: list[WrittenColumn],
) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Returns a function that makes a tuple from a row's values, in the order of `columns`.

    The function counts the rows, for its errors.
    """
    names = [column.name for column in columns]
    numbers = count(1)
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
        for nth, (name, convert, make_default, replaces_none) in special:
            if name not in values or (replaces_none and row[nth] is None):
                if make_default is None:
                    continue
                row[nth] = make_default()
            if convert is not None:
                # Some types convert None to another value.
                try:
                    row[nth] = convert(row[nth])
                except (TypeError, ValueError, RecursionError) as error:
                    raise _conversion_error(name, number, error) from error
        return tuple(row)

    return make_tuple


def _conversion_error(name: str, row: int, error: Exception) -> ConversionError:
    """Returns the error for a value that the type of its column refuses."""
    return ConversionError(
        f'could not convert the value of "{name}"',
        place={"row": row, "column": name},
        place_text=f'row {row}, column "{name}"',
        reasons=[str(error)],
    )
