"""The calls for asyncio: each call runs on a separate thread and does not block the event loop.

`Writer` needs no thread for a call. Data may also be an asynchronous iterable, which pgspate
iterates on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

from . import _pgspate
from ._aio_writer import Writer
from ._call import Command
from ._calls import APPLY, LOAD, SYNC
from ._doctor import DOCTOR, TUNE, Examination, Tuning
from ._row_queue import RowQueue
from ._report import ApplyReport, LoadReport, Report, SyncReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import _data
    from ._typed import ApplyOptions, DoctorOptions, LoadOptions, SyncOptions, TuneOptions

    Data = Union[_data.Data, AsyncIterable[Any]]
    Events = Union[_data.Events, AsyncIterable[Any]]

__all__ = ["Writer", "apply", "doctor", "load", "sync", "tune"]

_R = TypeVar("_R", bound=Report)


async def load(data: Data, table: str, **options: Unpack[LoadOptions]) -> LoadReport:
    """Loads data into a table, as `pgspate.load` does, on a separate thread.

    When the task is cancelled, pgspate rolls back the open transactions before the task ends. If
    the last commit has begun by then, the rows may be written.

    Args:
        data: As for `pgspate.load`, or an asynchronous iterable. pgspate iterates an asynchronous
            iterable on the event loop, and any other iterable on the call's thread.
        table: As for `pgspate.load`.
        **options: As for `pgspate.load`.

    Returns:
        What the load did.

    Raises:
        Error: As `pgspate.load`.

    Example:
        >>> import asyncio, pgspate, pgspate.aio
        >>> async def rows():
        ...     for a in range(3):
        ...         yield {"a": a}
        >>> with pgspate.server(temporary=True) as server:
        ...     report = asyncio.run(pgspate.aio.load(rows(), "t", create=True, to=server))
        >>> report.rows_written
        3
    """
    return await _run(LOAD, data, {**options, "table": table})


async def sync(data: Data, table: str, **options: Unpack[SyncOptions]) -> SyncReport:
    """Makes a table's rows equal to the data, as `pgspate.sync` does, on a separate thread.

    When the task is cancelled, pgspate rolls back the open transactions before the task ends. If
    the last commit has begun by then, the rows may be written.

    Args:
        data: As for `load`.
        table: As for `pgspate.sync`.
        **options: As for `pgspate.sync`.

    Returns:
        What the sync did.

    Raises:
        Error: As `pgspate.sync`.

    Example:
        >>> import asyncio, pgspate, pgspate.aio
        >>> async def night(server):
        ...     await pgspate.aio.load([{"id": 1, "v": "x"}], "t", create=True, to=server)
        ...     return await pgspate.aio.sync([{"id": 1, "v": "y"}], "t", key="id",
        ...                                   scope="all", to=server)
        >>> with pgspate.server(temporary=True) as server:
        ...     report = asyncio.run(night(server))
        >>> report.updated
        1
    """
    return await _run(SYNC, data, {**options, "table": table})


async def apply(events: Events, **options: Unpack[ApplyOptions]) -> ApplyReport:
    """Applies a stream of changes, as `pgspate.apply` does, on a separate thread.

    When the task is cancelled, the call ends after the current batch.

    Args:
        events: As for `pgspate.apply`, or an asynchronous iterable.
        **options: As for `pgspate.apply`.

    Returns:
        What the call did.

    Raises:
        Error: As `pgspate.apply`.

    Example:
        >>> import asyncio, pgspate, pgspate.aio
        >>> async def changes():
        ...     yield {"op": "insert", "table": "t", "row": {"id": 2}}
        ...     yield {"op": "delete", "table": "t", "key": {"id": 2}}
        >>> with pgspate.server(temporary=True) as server:
        ...     _ = pgspate.load([{"id": 1}], "t", create=True, to=server)
        ...     report = asyncio.run(pgspate.aio.apply(changes(), to=server))
        >>> report.events
        2
    """
    return await _run(APPLY, events, dict(options))


async def doctor(**options: Unpack[DoctorOptions]) -> Examination:
    """Finds what slows writes, as `pgspate.doctor` does, on a separate thread.

    Args:
        **options: As for `pgspate.doctor`.

    Returns:
        The findings.

    Raises:
        Error: As `pgspate.doctor`.

    Example:
        >>> import asyncio, pgspate, pgspate.aio
        >>> with pgspate.server(temporary=True) as server:
        ...     found = asyncio.run(pgspate.aio.doctor(to=server, watch=0))
        >>> found.database
        'postgres'
    """
    return await _run(DOCTOR, None, dict(options))


async def tune(**options: Unpack[TuneOptions]) -> Tuning:
    """Proposes, applies or reverts settings, as `pgspate.tune` does, on a separate thread.

    Args:
        **options: As for `pgspate.tune`.

    Returns:
        What `tune` proposes or did.

    Raises:
        Error: As `pgspate.tune`.

    Example:
        >>> import asyncio, pgspate, pgspate.aio
        >>> with pgspate.server(temporary=True) as server:
        ...     tuning = asyncio.run(pgspate.aio.tune(to=server, emit="sql", memory="16GiB"))
        >>> "alter system set" in tuning.text
        True
    """
    return await _run(TUNE, None, dict(options))


async def _outlast(call: asyncio.Future[_R]) -> None:
    """Waits until the call has ended, even if the task is cancelled once more."""
    while not call.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([call])


async def _run(command: Command[_R], data: Any, options: Mapping[str, Any]) -> _R:
    """Runs a command on a separate thread. If the task is cancelled, stops the command first."""
    stop = _pgspate.Stop()
    queue = None
    # An iterable that also has `__iter__` is read on the call's thread.
    if isinstance(data, AsyncIterable) and not hasattr(data, "__iter__"):
        data = queue = RowQueue(data, asyncio.get_running_loop(), stop)
    call = asyncio.ensure_future(asyncio.to_thread(command, data, options, stop))
    filling = None if queue is None else asyncio.ensure_future(queue.fill())
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        stop.set()
        if queue is not None:
            queue.close()
        await _outlast(call)
        # asyncio logs an exception that nothing has retrieved.
        if not call.cancelled():
            call.exception()
        raise
    finally:
        if filling is not None:
            filling.cancel()
            await asyncio.wait([filling])
