"""Finds out the kind of a call's data: files, Arrow data, rows or events."""

from __future__ import annotations

import io
import os
import re
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

from . import _pgspate
from ._errors import ConversionError, UsageError
from ._row_queue import RowQueue

if TYPE_CHECKING:
    from ._options import Names


class ArrowStream(Protocol):
    """An object that exports its rows as an Arrow stream: a table, a data frame, a reader."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """An object that exports its rows as one Arrow array: a record batch."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


Path = Union[str, "os.PathLike[str]"]
Data = Union[Path, Iterable[Any], ArrowStream, ArrowArray]

Events = Union[Path, Iterable[Any]]

# The begin of a JSON object, which no path has.
_JSON_OBJECT = re.compile(r'\s*\{\s*"')

# Classes whose rows are all in memory. pgspate can read such rows again after a lost connection.
_IN_MEMORY_CLASSES = {
    "pyarrow": {"Table", "RecordBatch"},
    "polars": {"DataFrame"},
    "pandas": {"DataFrame"},
}

# Types of DuckDB whose values its Arrow data loses or writes in a form of its own. `varint` is the
# earlier name of `bignum`.
_LOSSY_TYPES = {"uhugeint", "time with time zone", "bit", "bignum", "varint"}


def classify_data(
    data: Data, *, index: bool | None = None, columns: Names | None = None
) -> tuple[tuple[str, Any, str], list[str] | None]:
    """Finds out the kind of the data of a load or a sync.

    Args:
        data: The data.
        index: Whether the index of a data frame of pandas is loaded.
        columns: The columns that the caller names. They may choose columns of a data frame.

    Returns:
        The engine's view of the data: kind, data, and name for messages; and the column names, for
        data from which the engine cannot read them.
    """
    name = _name_of(data)
    if _is_in_memory_class("pandas", data):
        from ._frame import frame_data

        return frame_data(data, index, columns, name)
    if index is not None:
        hint = "Leave `index=` out: only a data frame of pandas has an index."
        raise UsageError(f"an object of class {name} has no index", hint=hint)
    if isinstance(data, (str, os.PathLike)):
        return ("sources", [os.fspath(data)], name), None
    if isinstance(data, (list, tuple)) and data:
        if all(isinstance(item, (str, os.PathLike)) for item in data):
            return ("sources", [os.fspath(item) for item in data], name), None
    if name == "LazyFrame":
        hint = "Give the rows: `.collect()` runs the query of a LazyFrame."
        raise UsageError("a LazyFrame has no rows yet", hint=hint)
    if name == "Series":
        hint = "Make a data frame of the Series: `.to_frame()`."
        raise UsageError("a Series has no columns", hint=hint)
    data = _reader_of(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        _refuse_unreadable(data, name)
        if name == "DuckDBPyRelation":
            _refuse_lossy_types(data)
        if _is_in_memory_class("polars", data):
            data = _without_null_types(_without_unknown_types(data))
        is_in_memory = any(_is_in_memory_class(package, data) for package in _IN_MEMORY_CLASSES)
        return ("in_memory" if is_in_memory else "stream", data, name), None
    if _is_open_file(data):
        message = f"an object of class {name} is an open file, which cannot be loaded"
        hint = "Give the path of the file. Or give a data frame or an Arrow reader, for example "
        hint += "`pandas.read_csv(file)` or `pyarrow.csv.open_csv(file)`."
        raise UsageError(message, hint=hint)
    if isinstance(data, Mapping):
        hint = "Give a list with the row: `[row]`. For a mapping of columns, give "
        hint += "`pandas.DataFrame(data)` or `pyarrow.table(data)`."
        raise UsageError(f"an object of class {name} is one row, or columns", hint=hint)
    if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray, memoryview)):
        return ("rows", data, name), None
    hint = (
        "Give paths or URLs, Arrow data, a data frame, or an iterable of dicts, tuples or "
        "dataclasses."
    )
    message = f"an object of class {name} cannot be loaded"
    raise UsageError(message, hint=_async_hint(data) or hint)


def _reader_of(data: Any) -> Any:
    """Returns a reader of the rows of a dataset, scanner or `ParquetFile` of pyarrow.

    Other data is returned as it is.
    """
    if not type(data).__module__.startswith("pyarrow"):
        return data
    if hasattr(data, "scanner"):
        data = data.scanner()
    if hasattr(data, "iter_batches"):
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(data.schema_arrow, data.iter_batches())
    is_stream = hasattr(data, "__arrow_c_stream__")
    return data.to_reader() if hasattr(data, "to_reader") and not is_stream else data


def _refuse_unreadable(data: Any, name: str) -> None:
    """Refuses data of pyarrow without columns, and columns of types that only pandas can read."""
    if not type(data).__module__.startswith("pyarrow"):
        return
    schema = getattr(data, "schema", None)
    if schema is None and not str(getattr(data, "type", "struct")).startswith("struct"):
        hint = 'Make a table of it: `pyarrow.table({"name": values})`.'
        raise UsageError(f"an object of class {name} has no columns", hint=hint)
    if schema is None and getattr(data, "null_count", None):
        hint = "Make a table without these rows, for example by `array.drop_null()`."
        raise UsageError("the Arrow data has rows that are NULL as a whole", hint=hint)
    for field in schema or []:
        extension = getattr(field.type, "extension_name", "")
        if extension == "arrow.fixed_shape_tensor" and len(field.type.shape) > 1:
            message = f'column "{field.name}" has tensors of several dimensions, which cannot be '
            hint = "Convert the column first, for example to lists of lists."
            raise ConversionError(message + "loaded", hint=hint, place={"column": field.name})
        if extension in ("pandas.period", "pandas.interval"):
            message = f'column "{field.name}" has the type {extension}, which cannot be loaded'
            hint = "Convert the column first, for example to its start, or to text."
            raise ConversionError(message, hint=hint, place={"column": field.name})


def _refuse_lossy_types(relation: Any) -> None:
    """Refuses columns of a relation of DuckDB whose values its Arrow data does not have.

    Numbers have lost bits there, times have lost their zone, and bits and long numbers are bytes
    of a form of DuckDB's own.
    """
    for name, dtype in zip(relation.columns, relation.types):
        lossy = _lossy_type(dtype)
        if lossy is not None:
            message = f'column "{name}" has the type {lossy}, which Arrow data of DuckDB changes'
            hint = f'Cast the column in the query: `"{name}"::varchar`.'
            raise ConversionError(message, hint=hint, place={"column": name})


def _lossy_type(dtype: Any) -> str | None:
    """Returns the name of a lossy type of DuckDB, if the type is one or contains one."""
    if dtype.id in _LOSSY_TYPES:
        return str(dtype)
    if dtype.id not in ("list", "array", "struct", "map", "union"):
        return None
    # The children of an array have its size among them.
    inner = [child for _, child in dtype.children if hasattr(child, "id")]
    return next((lossy for lossy in map(_lossy_type, inner) if lossy is not None), None)


def _is_open_file(data: object) -> bool:
    """Returns whether the data is an open file, or an object that reads like one."""
    return isinstance(data, io.IOBase) or (hasattr(data, "read") and hasattr(data, "readline"))


def _without_unknown_types(frame: Any) -> Any:
    """Returns a data frame of polars. Refuses columns of types that Arrow does not have.

    polars exports the addresses of values of type Object in place of the values.
    """
    for name, dtype in frame.schema.items():
        if _has_type(dtype, "Int128", "UInt128"):
            message = f'column "{name}" has the type {dtype}, which Arrow does not have'
            hint = "Cast the column first, for example by "
            hint += f'`frame.with_columns(polars.col("{name}").cast(polars.Decimal(38, 0)))`. '
            hint += "`polars.String` holds any number."
            raise ConversionError(message, hint=hint, place={"column": name})
        if _has_type(dtype, "Object"):
            message = f'column "{name}" has the type Object, whose values polars does not export'
            hint = "Convert the column first, for example by "
            hint += f'`frame.with_columns(polars.col("{name}")'
            hint += ".map_elements(str, return_dtype=polars.String))`. "
            hint += "Or pass `frame.rows(named=True)`."
            raise ConversionError(message, hint=hint, place={"column": name})
    return frame


def _has_type(dtype: Any, *names: str) -> bool:
    """Returns whether a type of polars, or of its elements or fields, has one of the names."""
    inner = [field.dtype for field in getattr(dtype, "fields", [])]
    if getattr(dtype, "inner", None) is not None:
        inner.append(dtype.inner)
    return str(dtype) in names or any(_has_type(it, *names) for it in inner)


def _without_null_types(frame: Any) -> Any:
    """Returns a data frame of polars in which values of type Null are text, also within columns.

    polars exports such values with a buffer that Arrow does not have. The NULLs are the same.
    """
    types = {name: _without_null_type(dtype) for name, dtype in frame.schema.items()
             if _has_type(dtype, "Null")}
    return frame.cast(types) if types else frame


def _without_null_type(dtype: Any) -> Any:
    """Returns a type of polars with text in place of Null."""
    import polars

    if dtype == polars.Null:
        return polars.String
    if isinstance(dtype, polars.List):
        return polars.List(_without_null_type(dtype.inner))
    if isinstance(dtype, polars.Array):
        return polars.Array(_without_null_type(dtype.inner), dtype.size)
    if isinstance(dtype, polars.Struct):
        return polars.Struct({it.name: _without_null_type(it.dtype) for it in dtype.fields})
    return dtype


def classify_events(events: Events) -> tuple[tuple[str, Any, str], None]:
    """Finds out the kind of the events of an apply, as `classify_data` does for rows.

    An item of a list that begins like JSON is an event and no path.
    """
    name = _name_of(events)
    if isinstance(events, str) and _JSON_OBJECT.match(events):
        raise UsageError("the text is an event and not a path", hint="Give a list of events.")
    if isinstance(events, (str, os.PathLike)):
        return ("sources", [os.fspath(events)], name), None
    if isinstance(events, (list, tuple)) and events and all(map(_is_path, events)):
        return ("sources", [os.fspath(item) for item in events], name), None
    if isinstance(events, Iterable) and not isinstance(events, (bytes, bytearray, Mapping)):
        return ("events", events, name), None
    hint = "Give paths or URLs, or an iterable of dicts or JSON."
    message = f"an object of class {name} has no events"
    raise UsageError(message, hint=_async_hint(events) or hint)


def kept_rows(rows: Iterable[Any]) -> list[Any]:
    """Returns the rows as a list. A generator may change a row and yield it again.

    Raises:
        UsageError: The rows are a data frame, whose iteration gives no rows.
    """
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__dataframe__"):
        hint = "`pgspate.load` and `pgspate.sync` take it. A writer takes dicts, as those of "
        hint += '`frame.to_dict("records")` in pandas, `.to_dicts()` in polars and `.to_pylist()` '
        hint += "in pyarrow."
        raise UsageError(f"an object of class {_name_of(rows)} has columns, not records", hint=hint)
    if isinstance(rows, (list, tuple)):
        return list(rows)
    return [_pgspate.copy_row(row) for row in rows]


def _name_of(data: object) -> str:
    """Returns the name of the data for messages."""
    return data.name if isinstance(data, RowQueue) else type(data).__name__


def _async_hint(data: object) -> str | None:
    """Returns the hint for an asynchronous iterable, and None for other data."""
    is_async = isinstance(data, AsyncIterable)
    return "The calls of `pgspate.aio` take asynchronous iterables." if is_async else None


def _is_path(value: object) -> bool:
    """Returns whether an item of a list is a path or URL, and not an event as JSON."""
    if isinstance(value, str):
        return not value.lstrip().startswith(("{", "["))
    return isinstance(value, os.PathLike)


def _is_in_memory_class(package: str, data: object) -> bool:
    """Returns whether the data is of one of the package's `_IN_MEMORY_CLASSES`."""
    return any(
        cls.__module__.split(".")[0] == package and cls.__name__ in _IN_MEMORY_CLASSES[package]
        for cls in type(data).__mro__
    )
