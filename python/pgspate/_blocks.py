"""Blocks of a dataset as one table, if their types can be merged exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def concat_blocks(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the rows of all tables. A column that a table lacks is null there.

    Raises:
        UsageError: A column's types cannot be merged without a loss of digits or of its encoding.
    """
    import pyarrow

    merged = pyarrow.concat_tables(tables, promote_options="permissive")
    for schema in dict.fromkeys(table.schema for table in tables):
        if schema.equals(merged.schema):
            continue
        for field in schema:
            target = merged.schema.field(field.name).type
            if not _is_exact(field.type, target):
                message = (f'the blocks of the column "{field.name}" have different types: '
                           f"{field.type} would be converted to {target}")
                raise UsageError(message, hint="Give the column one type before the write.")
    return merged


def _is_exact(source: pa.DataType, target: pa.DataType) -> bool:
    """Returns whether Arrow's cast keeps all values, among the casts that merge types.

    Arrow refuses an integer that a float cannot hold. It rounds decimals, and gives a float more
    digits that its text does not have.
    """
    from pyarrow import types

    if source.equals(target):
        return True
    if types.is_floating(target):
        return not (types.is_decimal(source) or types.is_floating(source))
    if types.is_binary(target) or types.is_large_binary(target):
        return not (types.is_string(source) or types.is_large_string(source))
    if types.is_struct(source) and types.is_struct(target):
        return all(_is_exact(field.type, target.field(field.name).type) for field in source)
    if types.is_map(source) and types.is_map(target):
        return (_is_exact(source.key_type, target.key_type)
                and _is_exact(source.item_type, target.item_type))
    # Lists of all kinds, and dictionaries.
    inner = [getattr(it, "value_type", None) for it in (source, target)]
    return None in inner or _is_exact(*inner)
