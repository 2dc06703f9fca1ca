"""A queue of rows from an asynchronous iterable to the thread that loads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from . import _pgspate
from ._errors import Cancelled

# The most rows in the queue.
_ROWS_MAX = 2000
# How often, in seconds, the reader checks whether the call still needs rows.
_POLL = 0.05


class _EndOfRows:
    """Marks the end of the rows in the queue, with the error that ended the rows, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class RowQueue:
    """A queue of rows from an event loop to another thread.

    An exception of the asynchronous iterable is raised in the thread that takes the rows.

    Attributes:
        name: Name of the rows in messages.
    """

    def __init__(
        self, rows: AsyncIterable[Any], loop: asyncio.AbstractEventLoop, stop: _pgspate.Stop
    ) -> None:
        self.name = type(rows).__name__
        self._source = rows
        self._loop = loop
        self._stop = stop
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._has_room = asyncio.Event()
        self._is_full = False

    async def fill(self) -> None:
        """Fills the queue, on the event loop, until the rows end or this task is cancelled."""
        rows: Any = None
        error: BaseException | None = None
        try:
            rows = aiter(self._source)
            async for row in rows:
                # The caller may change the row and yield it again before it is taken.
                self._queue.put(_pgspate.copy_row(row))
                if self._queue.qsize() >= _ROWS_MAX:
                    await self._wait_for_room()
        except asyncio.CancelledError:
            error = Cancelled("the task that makes the rows was cancelled")
            raise
        except BaseException as raised:  # noqa: BLE001
            error = raised
        finally:
            self._queue.put(_EndOfRows(error))
            close = getattr(rows, "aclose", None)
            if close is not None:
                await close()

    async def _wait_for_room(self) -> None:
        """Waits until the reader has emptied half of the queue."""
        self._has_room.clear()
        self._is_full = True
        # If the reader emptied half of the queue before `_is_full` was set, it sets no event.
        if self._queue.qsize() > _ROWS_MAX // 2:
            await self._has_room.wait()
        self._is_full = False

    def close(self) -> None:
        """Ends the rows with `Cancelled`, so that the reader does not wait."""
        self._queue.put(_EndOfRows(Cancelled("stopped by the user")))

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                row = self._queue.get(timeout=_POLL)
            except Empty:
                if self._stop.has_ended:
                    return
                continue
            if isinstance(row, _EndOfRows):
                if row.error is not None:
                    raise row.error
                return
            if self._is_full and self._queue.qsize() <= _ROWS_MAX // 2:
                self._is_full = False
                self._loop.call_soon_threadsafe(self._has_room.set)
            yield row
