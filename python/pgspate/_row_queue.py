"""Rows of an asynchronous iterable, for the thread that loads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from queue import SimpleQueue
from typing import Any

from ._errors import Cancelled

# The queue's limit, in rows.
_AHEAD = 2000


class _End:
    """Marks the end of the rows, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class RowQueue:
    """A queue of rows from an event loop to another thread.

    An exception of the asynchronous iterable is raised in the thread that takes the rows.

    Attributes:
        name: Name of the rows in messages.
    """

    def __init__(self, rows: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.name = type(rows).__name__
        self._source = rows
        self._loop = loop
        self._rows: SimpleQueue[Any] = SimpleQueue()
        self._has_room = asyncio.Event()
        self._is_full = False

    async def fill(self) -> None:
        """Fills the queue, on the event loop, until the rows end or this task is cancelled."""
        rows = aiter(self._source)
        error: BaseException | None = None
        try:
            async for row in rows:
                self._rows.put(row)
                if self._rows.qsize() >= _AHEAD:
                    await self._wait()
        except asyncio.CancelledError:
            error = Cancelled("the task that makes the rows was cancelled")
            raise
        except BaseException as raised:  # noqa: BLE001
            error = raised
        finally:
            self._rows.put(_End(error))
            close = getattr(rows, "aclose", None)
            if close is not None:
                await close()

    async def _wait(self) -> None:
        self._has_room.clear()
        self._is_full = True
        # The reader may have emptied half of the queue before `_is_full` was set: then no wake-up
        # follows.
        if self._rows.qsize() > _AHEAD // 2:
            await self._has_room.wait()
        self._is_full = False

    def close(self) -> None:
        """Ends the rows with `Cancelled`, so that the reader does not wait."""
        self._rows.put(_End(Cancelled("stopped by the user")))

    def __iter__(self) -> Iterator[Any]:
        while True:
            row = self._rows.get()
            if isinstance(row, _End):
                if row.error is not None:
                    raise row.error
                return
            if self._is_full and self._rows.qsize() <= _AHEAD // 2:
                self._is_full = False
                self._loop.call_soon_threadsafe(self._has_room.set)
            yield row
