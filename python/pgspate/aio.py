"""The same for asyncio: calls that do not hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import _pgspate
from ._call import call
from ._report import LoadReport, SyncReport
from ._sync import check_scope

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._data import Data
    from ._options import LoadOptions, SyncOptions

__all__ = ["load", "sync"]


async def load(data: Data, table: str, **options: Unpack[LoadOptions]) -> LoadReport:
    """Loads data into a table, as `pgspate.load` does, on a thread of its own.

    When the task is cancelled, the load is rolled back before the task ends.

    Args:
        data: As for `pgspate.load`. Rows of an iterable are made on that thread.
        table: As for `pgspate.load`.
        **options: As for `pgspate.load`.

    Returns:
        What was done.

    Raises:
        Error: As `pgspate.load`.

    Example:
        >>> import asyncio, pgspate, pgspate.aio
        >>> with pgspate.server(temporary=True) as server:
        ...     report = asyncio.run(pgspate.aio.load([{"a": 1}], "t", create=True, to=server))
        >>> report.rows_written
        1
    """
    return LoadReport._of(await _call(_pgspate.load, data, table, options))


async def sync(data: Data, table: str, **options: Unpack[SyncOptions]) -> SyncReport:
    """Makes rows of a table like the data, as `pgspate.sync` does, on a thread of its own.

    When the task is cancelled, the sync is rolled back before the task ends.

    Args:
        data: As for `load`.
        table: As for `pgspate.sync`.
        **options: As for `pgspate.sync`.

    Returns:
        What was done.

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
    check_scope(options)
    return SyncReport._of(await _call(_pgspate.sync, data, table, options))


async def _call(
    engine: Callable[[Any, Any], str], data: Any, table: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    stop = _pgspate.Stop()
    work = asyncio.ensure_future(asyncio.to_thread(call, engine, data, table, options, stop))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        # Whatever it ended with, nobody asks for it any more.
        work.cancelled() or work.exception()
        raise
