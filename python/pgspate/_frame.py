"""Converts a data frame of pandas into data for the engine.

Levels of the index with a name are columns, and levels without a name are left out. Every version
of pandas and every kind of index has this rule. Values of object columns are stored as they are. A
column whose values have no common type is an error.

A column of objects that Arrow does not hold exactly is loaded as rows of Python. The other columns
are loaded through Arrow.
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from ._errors import ConversionError, UsageError
from ._json import encode

if TYPE_CHECKING:
    from ._options import Names

# Object columns whose values are all of such a kind are converted by pyarrow as they are. The names
# are those of pandas' `infer_dtype`.
_PLAIN_KINDS = {"string", "bytes", "boolean", "floating", "integer", "empty"}

# Number of rows that are converted to Python's objects at a time.
_BLOCK_ROWS = 8192

_NESTED = (dict, list, tuple, set, frozenset)

# The most dimensions of an array of PostgreSQL. A list may also contain itself.
_ARRAY_DIMENSIONS_MAX = 6


def frame_data(
    frame: Any, index: bool | None, chosen: Names | None, name: str
) -> tuple[tuple[str, Any, str], list[str] | None]:
    """Returns the engine's view of a data frame and the column names, as `classify_data` does.

    Args:
        frame: The data frame.
        index: Whether the index is loaded. None loads the levels that have a name.
        chosen: The columns that the caller names. If all are columns of the frame, only they are
            loaded; otherwise they are other names.
        name: Name of the data for messages.
    """
    frame = _with_index_columns(frame, index)
    columns = [str(column) for column in frame.columns]
    for nth, column in enumerate(columns):
        if column in columns[:nth]:
            hint = "Rename one of the columns. For a level of the index, pass `index=False`."
            raise UsageError(f'the data frame has two columns "{column}"', hint=hint)
    if columns != list(frame.columns):
        frame = frame.set_axis(columns, axis=1)
    if chosen is not None and not isinstance(chosen, str) and set(chosen) <= set(columns):
        columns = list(chosen)
        frame = frame.loc[:, columns]
    frame = _with_plain_values(frame)
    is_plain = [_is_plain(frame.iloc[:, nth], column) for nth, column in enumerate(columns)]
    arrow = _arrow_columns(frame, is_plain)
    is_arrow = [column is not None for column in arrow or columns]
    if arrow is None or (columns and not any(is_arrow)):
        return ("memory_rows", _Rows(frame), name), columns
    table = _table_of([column for column in arrow if column is not None])
    if all(is_arrow):
        return ("in_memory", table, name), None
    rows = _Rows(frame.loc[:, [not it for it in is_arrow]])
    return ("frame", (table, rows, is_arrow), name), columns


def _warn_of_lost_levels(index: Any, unnamed: list[int]) -> None:
    """Warns if a level without a name is left out and has other values than numbers of rows."""
    for nth in unnamed:
        level = index.get_level_values(nth)
        if len(level) and level.dtype.kind not in "iu":
            message = (
                "the index has no name, so it is not loaded; name it by "
                "`frame.rename_axis(\"name\")`, or pass `index=True` or `index=False`"
            )
            warnings.warn(message, stacklevel=2)
            return


def _with_index_columns(frame: Any, index: bool | None) -> Any:
    """Returns the frame with the levels of its index that are loaded as its first columns."""
    names = list(frame.index.names)
    if index is None:
        unnamed = [nth for nth, name in enumerate(names) if name is None]
        _warn_of_lost_levels(frame.index, unnamed)
        if len(unnamed) == len(names):
            return frame
        if unnamed:
            frame = frame.reset_index(level=unnamed, drop=True)
            names = list(frame.index.names)
    elif not index:
        return frame
    elif len(names) == 1:
        # The names of levels without a name are those of `to_sql` and `reset_index`.
        names = ["index" if name is None else name for name in names]
    else:
        names = [f"level_{nth}" if it is None else it for nth, it in enumerate(names)]
    return frame.reset_index(names=names, allow_duplicates=True)


def _with_plain_values(frame: Any) -> Any:
    """Returns the frame with plain columns in place of sparse ones and of some categories.

    pyarrow refuses sparse columns. It would change some categories that are objects, such as `UUID`
    and `Decimal`. pandas does not compare a signaling NaN of `Decimal`.
    """
    from pandas import SparseDtype

    made = None
    for nth in range(frame.shape[1]):
        values = frame.iloc[:, nth]
        categories = getattr(values.dtype, "categories", None)
        if isinstance(values.dtype, SparseDtype):
            plain = values.sparse.to_dense()
        elif (categories is not None and categories.dtype == object
                and not _are_plain_objects(categories)):
            plain = values.astype(object)
        else:
            plain = values
        if plain.dtype == object and _has_signaling_nan(plain):
            plain = _with_quiet_nans(plain)
        if plain is values:
            continue
        made = frame.copy(deep=False) if made is None else made
        made.isetitem(nth, plain)
    return frame if made is None else made


def _has_signaling_nan(values: Any) -> bool:
    try:
        values.isna()
    except InvalidOperation:
        return True
    return False


def _with_quiet_nans(values: Any) -> Any:
    """Returns a column of objects with NaN in place of signaling NaNs, as rows are stored."""
    from pandas import Series

    quiet = [Decimal("NaN") if isinstance(value, Decimal) and value.is_snan() else value
             for value in values]
    return Series(quiet, index=values.index, name=values.name, dtype=object)


def _is_plain(values: Any, column: str) -> bool:
    """Returns whether pyarrow converts a column exactly.

    Raises `ConversionError` if the column's values have no common type.
    """
    categories = getattr(values.dtype, "categories", None)
    dtype = values.dtype if categories is None else categories.dtype
    if categories is not None or dtype != object:
        kind = str(dtype).partition("[")[0].lower()
        if kind in ("period", "interval", "complex64", "complex128"):
            message = f'column "{column}" has the dtype {dtype}, which cannot be loaded'
            raise ConversionError(message, hint=_convert_hint(column), place={"column": column})
        return True
    present = values[_has_value(values)]
    if _are_plain_objects(present):
        return True
    classes = {type(value) for value in present}
    families = {_family(cls) for cls in classes}
    if len(families) > 1:
        names = " and ".join(sorted({cls.__name__ for cls in classes})[:3])
        message = f'column "{column}" has values of different types: {names}'
        raise ConversionError(message, hint=_convert_hint(column), place={"column": column})
    return families == {"nested"} and _are_arrays_of_one_class(values)


def _are_plain_objects(values: Any) -> bool:
    """Returns whether pyarrow converts objects as they are, of which none is missing."""
    from pandas.api.types import infer_dtype

    kind = infer_dtype(values, skipna=False)
    # pyarrow would widen floats of 32 bits among others, and so change their digits.
    return kind in _PLAIN_KINDS and (kind != "floating" or len(set(map(type, values))) == 1)


def _has_value(values: Any) -> Any:
    """Returns which values of a column are not missing.

    pandas counts NaN of `Decimal` as missing, which `numeric` can hold.
    """
    has_value = values.notna()
    if values.dtype == object and not has_value.all():
        has_value |= values.map(lambda value: isinstance(value, Decimal)).astype(bool)
    return has_value


def _are_arrays_of_one_class(values: Any) -> bool:
    """Returns whether all values are lists or arrays whose items have one simple class.

    The items may also be lists of such items, all nested equally deep.
    """
    found: list[set[type]] = []
    for value in values[values.notna()]:
        if isinstance(value, (dict, set, frozenset)):
            return False
        if hasattr(value, "ndim") and value.ndim != 1:
            return False
        items = value
        if hasattr(value, "ravel"):
            # An array of numpy has one class for all items, unless they are objects.
            items = (value if value.dtype == object else value.ravel()[:1]).tolist()
        if not _add_classes(items, 0, found):
            return False
    # The lists of each depth have items of one class.
    return all(len(classes) <= 1 for classes in found)


def _add_classes(items: Any, depth: int, found: list[set[type]]) -> bool:
    """Adds the classes of a list's items to those of each depth. Returns whether all are simple."""
    if depth == _ARRAY_DIMENSIONS_MAX:
        return False
    if depth == len(found):
        found.append(set())
    classes = set(map(type, items))
    classes.discard(type(None))
    found[depth] |= classes
    if classes == {list}:
        return all(_add_classes(item, depth + 1, found) for item in items if item is not None)
    return classes <= {bool, int, float, str}


def _convert_hint(column: str) -> str:
    return f'Convert the column first, for example by `frame["{column}"].astype(str)`.'


def _family(cls: type) -> str:
    """Returns a name for the classes that one type of PostgreSQL can hold."""
    module = cls.__module__.partition(".")[0]
    families: list[tuple[Any, str]] = [
        (bool, "bool"), ((int, float, Decimal), "number"), (str, "string"),
        ((bytes, bytearray, memoryview), "bytes"), (dt.date, "date"), (_NESTED, "nested"),
    ]
    for classes, family in families:
        if issubclass(cls, classes):
            return family
    if module == "numpy":
        if cls.__name__ in ("bool", "bool_"):
            return "bool"
        return "nested" if cls.__name__ == "ndarray" else "number"
    return "other"


def _arrow_columns(frame: Any, is_plain: list[bool]) -> list[tuple[Any, Any] | None] | None:
    """Returns field and array of each column, or None without pyarrow.

    A column is None if pyarrow would change or refuse one of its values. These values are converted
    one by one.
    """
    if _import_pyarrow() is None:
        return None
    arrow: list[tuple[Any, Any] | None] = [None] * len(is_plain)
    plain = []
    for nth, column in enumerate(frame.columns):
        values = frame.iloc[:, nth]
        if not is_plain[nth]:
            arrow[nth] = _json_column(values, column)
        elif _is_nested(values):
            arrow[nth] = _array_column(values, column)
        else:
            plain.append(nth)
    try:
        # pyarrow converts several columns at a time, on several threads.
        columns = _plain_columns(frame.iloc[:, plain])
    except _arrow_refusals():
        columns = [_plain_column(frame.iloc[:, [nth]]) for nth in plain]
    for nth, converted in zip(plain, columns):
        arrow[nth] = converted
    return arrow


def _arrow_refusals() -> tuple[type[Exception], ...]:
    """Returns what pyarrow raises for a value that it cannot convert."""
    import pyarrow

    return (pyarrow.ArrowException, OverflowError, TypeError, ValueError)


def _plain_columns(frame: Any) -> list[tuple[Any, Any] | None]:
    import pyarrow

    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    return list(zip(table.schema, table.columns))


def _plain_column(frame: Any) -> tuple[Any, Any] | None:
    """Returns the column of a frame of one column, or None if pyarrow refuses a value."""
    try:
        return _plain_columns(frame)[0]
    except _arrow_refusals():
        # For example, an integer has more than 64 bits. The engine's own error names the value.
        return None


def _table_of(columns: list[tuple[Any, Any]]) -> Any:
    """Returns the Arrow table of these fields and arrays."""
    import pyarrow

    schema = pyarrow.schema([field for field, _ in columns])
    return pyarrow.Table.from_arrays([array for _, array in columns], schema=schema)


def _import_pyarrow() -> Any:
    """Returns pyarrow, or None if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        return None
    return pyarrow


def _is_nested(values: Any) -> bool:
    """Returns whether a column has lists or arrays as objects."""
    if values.dtype != object:
        return False
    present = values[values.notna()]
    return len(present) > 0 and _family(type(present.iloc[0])) == "nested"


def _array_column(values: Any, column: str) -> tuple[Any, Any] | None:
    """Returns a column of lists or arrays as Arrow, or None if pyarrow refuses a value.

    `Table.from_pandas` would make NULL of NaN in the lists.
    """
    import pyarrow

    items = values.where(values.notna(), None).tolist()
    try:
        array = pyarrow.array(items, from_pandas=False)
    except _arrow_refusals():
        return None
    return pyarrow.field(column, array.type), array


def _json_column(values: Any, column: str) -> tuple[Any, Any] | None:
    """Returns a column of JSON as Arrow, or None if the column is not JSON."""
    import pyarrow

    texts = _json_texts(values, column)
    if texts is None:
        return None
    try:
        array = pyarrow.array(texts, type=pyarrow.string())
    except _arrow_refusals():
        return None
    metadata = {"ARROW:extension:name": "arrow.json"}
    return pyarrow.field(column, array.type, metadata=metadata), array


def _json_texts(values: Any, column: str) -> list[str | None] | None:
    """Returns the values of a column as JSON, or None if the column is not JSON.

    A column is JSON if one of its values is a dict, or a list that contains dicts or lists. pyarrow
    would give all dicts the keys of all other dicts.
    """
    is_value = values.notna()
    present = values[is_value]
    if not all(isinstance(value, (dict, list, tuple)) for value in present):
        return None
    if not any(_is_json(value) for value in present):
        return None
    texts: list[str | None] = []
    for row, (value, has_value) in enumerate(zip(values, is_value), start=1):
        try:
            texts.append(encode(value) if has_value else None)
        except (TypeError, ValueError, RecursionError) as error:
            place = {"row": row, "column": column}
            raise ConversionError(
                f'could not write a value of column "{column}" as JSON',
                place=place,
                place_text=f'row {row}, column "{column}"',
                reasons=[str(error)],
            ) from error
    return texts


def _is_json(value: Any) -> bool:
    return isinstance(value, dict) or any(isinstance(item, _NESTED) for item in value)


class _Rows:
    """The rows of a frame as tuples, which can be read several times. Missing values are None."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __len__(self) -> int:
        return len(self._frame)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(self._frame), _BLOCK_ROWS):
            block = self._frame.iloc[start : start + _BLOCK_ROWS]
            has_value = block.apply(_has_value)
            objects = block.astype(object)
            for nth, dtype in enumerate(block.dtypes):
                if str(dtype).lower() in ("float32", "float16"):
                    # These have fewer digits than the doubles that pandas makes of them.
                    objects.isetitem(nth, _narrow_floats(block.iloc[:, nth]))
            yield from objects.where(has_value, None).itertuples(index=False, name=None)


def _narrow_floats(values: Any) -> Any:
    """Returns a column of floats of less than 64 bits as objects of numpy."""
    import numpy

    floats = numpy.empty(len(values), dtype=object)
    floats[:] = list(values.to_numpy(dtype="float32", na_value=numpy.nan))
    return floats
