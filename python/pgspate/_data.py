"""Kinds of data that can be loaded: files, Arrow data or rows."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, Protocol, Union

from ._errors import UsageError
from ._row_queue import RowQueue


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

# Classes whose rows are all in memory, so that pgspate can read them twice.
_HELD = {
    "pyarrow": {"Table", "RecordBatch"},
    "polars": {"DataFrame"},
    "pandas": {"DataFrame"},
}


def sort(data: Data) -> tuple[tuple[str, Any, str], list[str] | None]:
    """Returns the data as the engine takes it: its kind, the data, and the name of its class.

    Returns also the columns, for data that cannot tell the engine its columns.
    """
    name = _name_of(data)
    if isinstance(data, (str, os.PathLike)):
        return ("sources", [os.fspath(data)], name), None
    if isinstance(data, (list, tuple)) and data:
        if all(isinstance(one, (str, os.PathLike)) for one in data):
            return ("sources", [os.fspath(one) for one in data], name), None
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        if _is("pandas", data) and not _has_pyarrow():
            return _rows_of_pandas(data, name)
        is_held = any(_is(package, data) for package in _HELD)
        return ("held" if is_held else "stream", data, name), None
    if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray)):
        return ("rows", data, name), None
    hint = "Give paths or URLs, Arrow data, a data frame, or an iterable of dicts, tuples or "
    raise UsageError(
        f"an object of class {name} cannot be loaded", hint=_for_async(data, hint + "dataclasses.")
    )


def sort_events(events: Events) -> tuple[tuple[str, Any, str], None]:
    """Returns events as the engine takes them. A string that begins like JSON is an event."""
    name = _name_of(events)
    if isinstance(events, (str, os.PathLike)):
        return ("sources", [os.fspath(events)], name), None
    if isinstance(events, (list, tuple)) and events and all(map(_is_path, events)):
        return ("sources", [os.fspath(one) for one in events], name), None
    if isinstance(events, Iterable) and not isinstance(events, (bytes, bytearray, Mapping)):
        return ("events", events, name), None
    hint = "Give paths or URLs, or an iterable of dicts or JSON."
    raise UsageError(f"an object of class {name} has no events", hint=_for_async(events, hint))


def _name_of(data: object) -> str:
    """Returns the name of the data in messages."""
    return data.name if isinstance(data, RowQueue) else type(data).__name__


def _for_async(data: object, hint: str) -> str:
    is_async = isinstance(data, AsyncIterable)
    return "The calls of `pgspate.aio` take asynchronous iterables." if is_async else hint


def _is_path(thing: object) -> bool:
    if isinstance(thing, str):
        return not thing.lstrip().startswith(("{", "["))
    return isinstance(thing, os.PathLike)


def _is(package: str, data: object) -> bool:
    return any(
        cls.__module__.split(".")[0] == package and cls.__name__ in _HELD[package]
        for cls in type(data).__mro__
    )


def _has_pyarrow() -> bool:
    """Returns whether pandas can export Arrow data, which needs pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def _rows_of_pandas(frame: Any, name: str) -> tuple[tuple[str, Any, str], list[str]]:
    """Returns the frame's rows, with None for missing values, as pyarrow has them."""
    objects = frame.astype(object).where(frame.notna(), None)
    columns = [str(column) for column in frame.columns]
    return ("rows", objects.itertuples(index=False, name=None), name), columns
