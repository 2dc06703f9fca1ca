"""Rows of an asynchronous iterable, for the thread that loads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from queue import SimpleQueue
from typing import Any

from ._errors import Cancelled

# Rows that wait, at most.
_AHEAD = 2000


class _End:
    """There are no more rows, or this is why."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Passage:
    """Rows that are made on an event loop and taken on another thread.

    What making them raises is raised where they are taken.

    Attributes:
        name: What messages call them.
    """

    def __init__(self, rows: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.name = type(rows).__name__
        self._source = rows
        self._loop = loop
        self._rows: SimpleQueue[Any] = SimpleQueue()
        self._room = asyncio.Event()
        self._is_full = False

    async def fill(self) -> None:
        """Makes rows, on the event loop, until there are no more or it is cancelled."""
        rows = aiter(self._source)
        error: BaseException | None = None
        try:
            async for row in rows:
                self._rows.put(row)
                if self._rows.qsize() >= _AHEAD:
                    await self._wait()
        except asyncio.CancelledError:
            error = Cancelled("nobody makes rows any more")
            raise
        except BaseException as raised:  # noqa: BLE001
            error = raised
        finally:
            self._rows.put(_End(error))
            close = getattr(rows, "aclose", None)
            if close is not None:
                await close()

    async def _wait(self) -> None:
        self._room.clear()
        self._is_full = True
        # Whoever took the last ones before it was full says nothing.
        if self._rows.qsize() > _AHEAD // 2:
            await self._room.wait()
        self._is_full = False

    def close(self) -> None:
        """Lets nobody wait for rows any more."""
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
                self._loop.call_soon_threadsafe(self._room.set)
            yield row
