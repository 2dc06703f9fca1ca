"""The writer for asyncio: single records of many tasks, written together."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import _pgspate
from ._data import kept_rows
from ._errors import Error, UsageError
from ._returned import Row, make_reader
from ._writer import (
    ENCODED_AGAIN_MAX,
    Outcome,
    WriterBase,
    WriterReport,
    all_rows,
    call_parts,
    each_row,
    keep_outcomes,
    one_row,
    outdated_places,
    outdated_records,
)

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._options import Names
    from ._writer import OnConflict, Record


class Writer(WriterBase):
    """Writes single records of many tasks, as `pgspate.Writer` writes those of many threads.

    A call needs no thread. Answers that arrive together wake the event loop once. uvloop works as
    well. All tasks that use a writer run on one event loop. The writer connects at its first use.

    When a task that waits for a call is cancelled, the call continues. Its record may be written or
    not, as if the answer was lost. It is never written twice, and no other record is harmed.

    Args:
        table: As for `pgspate.Writer`, like all other arguments.

    Example:
        >>> import asyncio, pgspate, pgspate.aio
        >>> async def main(server):
        ...     async with pgspate.aio.Writer("users", to=server, returning="id") as writer:
        ...         calls = [writer.insert({"id": n, "name": "Ann"}) for n in range(100)]
        ...         rows = await asyncio.gather(*calls)
        ...     return sum(row["id"] for row in rows)
        >>> with pgspate.server(temporary=True) as server:
        ...     _ = pgspate.load([{"id": -1, "name": "Bob"}], "users", create=True, to=server)
        ...     asyncio.run(main(server))
        4950
    """

    def _forget_engine(self) -> None:
        super()._forget_engine()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._closing: asyncio.Task[WriterReport] | None = None
        self._waiting: dict[int, asyncio.Future[list[Any]]] = {}
        self._is_send_due = False
        self._numbers = itertools.count()

    async def _open(self) -> _pgspate.RecordWriter:
        async with self._opening:
            self._check_open()
            if self._engine is None:
                engine = await asyncio.to_thread(self._new_engine)
                self._loop = asyncio.get_running_loop()
                self._loop.add_reader(engine.fileno(), self._take_answers)
                self._engine = engine
            return self._engine

    def _take_answers(self) -> None:
        """Gives the answers that have arrived to the tasks that wait for them."""
        if self._engine is None:
            return
        for number, error, outcomes in self._engine.take():
            future = self._waiting.pop(number, None)
            # The task may be cancelled.
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(outcomes)
            else:
                future.set_exception(error)

    def _send(self) -> None:
        """Sends the calls of all tasks that have run in this turn of the event loop."""
        self._is_send_due = False
        if self._engine is not None:
            self._engine.send()

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the writer's event loop, which must be the running one."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise UsageError("the writer belongs to another event loop",
                             hint="Open a writer in each event loop.")
        return loop

    def _expect_answer(self) -> tuple[int, asyncio.Future[list[Any]]]:
        """Returns the number of a call, and the future that gets the call's answer."""
        loop = self._check_loop()
        number, future = next(self._numbers), loop.create_future()
        self._waiting[number] = future
        return number, future

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def insert(
        self,
        record: Record,
        table: str | None = None,
        *,
        returning: Names | None = None,
        on_conflict: OnConflict | None = None,
        key: Names | None = None,
        columns: Names | None = None,
        idempotency_key: str | None = None,
    ) -> Row | None:
        """Writes a record, as `pgspate.Writer.insert` does.

        Args:
            record: As for `pgspate.Writer.insert`.
            table: As for `pgspate.Writer.insert`.
            returning: As for `pgspate.Writer.insert`.
            on_conflict: As for `pgspate.Writer.insert`.
            key: As for `pgspate.Writer.insert`.
            columns: As for `pgspate.Writer.insert`.
            idempotency_key: As for `pgspate.Writer.insert`.

        Returns:
            As `pgspate.Writer.insert`.

        Raises:
            Error: As `pgspate.Writer.insert`.
        """
        plan = self._plan(table, returning, on_conflict, key, columns)
        return one_row(*await self._write(plan, [record], call_parts(idempotency_key)))

    async def insert_many(
        self,
        records: Iterable[Record],
        table: str | None = None,
        *,
        returning: Names | None = None,
        on_conflict: OnConflict | None = None,
        key: Names | None = None,
        columns: Names | None = None,
        idempotency_key: str | None = None,
    ) -> list[Row]:
        """Writes records, all or none, as `pgspate.Writer.insert_many` does.

        Args:
            records: As for `pgspate.Writer.insert_many`.
            table: As for `pgspate.Writer.insert`.
            returning: As for `pgspate.Writer.insert`.
            on_conflict: As for `pgspate.Writer.insert`.
            key: As for `pgspate.Writer.insert`.
            columns: As for `pgspate.Writer.insert`.
            idempotency_key: As for `pgspate.Writer.insert`.

        Returns:
            As `pgspate.Writer.insert_many`.

        Raises:
            Error: As `pgspate.Writer.insert_many`.
        """
        plan = self._plan(table, returning, on_conflict, key, columns)
        return all_rows(*await self._write(plan, kept_rows(records), call_parts(idempotency_key)))

    async def insert_each(
        self,
        records: Iterable[Record],
        table: str | None = None,
        *,
        returning: Names | None = None,
        on_conflict: OnConflict | None = None,
        key: Names | None = None,
        columns: Names | None = None,
    ) -> list[Outcome]:
        """Writes records independently of each other, as `pgspate.Writer.insert_each` does.

        Args:
            records: As for `pgspate.Writer.insert_each`.
            table: As for `pgspate.Writer.insert`.
            returning: As for `pgspate.Writer.insert`.
            on_conflict: As for `pgspate.Writer.insert`.
            key: As for `pgspate.Writer.insert`.
            columns: As for `pgspate.Writer.insert`.

        Returns:
            As `pgspate.Writer.insert_each`.

        Raises:
            Error: As `pgspate.Writer.insert_each`.
        """
        plan = self._plan(table, returning, on_conflict, key, columns)
        return each_row(*await self._write(plan, kept_rows(records), True))

    async def _write(self, plan: _pgspate.InsertPlan, records: list[Record],
                     parts: bool | str) -> tuple[Callable[[str], Row], list[Any]]:
        if not records:
            return make_reader([]), []
        engine = self._engine or await self._open()
        reader, outcomes = await self._write_once(engine, plan, records, parts)
        for _ in range(ENCODED_AGAIN_MAX):
            places = outdated_places(outcomes)
            if not places:
                break
            again = outdated_records(records, parts, places)
            try:
                reader, more = await self._write_once(engine, plan, again, parts)
            except Error:
                if parts is True:
                    break  # Other records are written. These have errors that say: send again.
                raise
            keep_outcomes(outcomes, places, more)
        return reader, outcomes

    async def _write_once(
        self, engine: _pgspate.RecordWriter, plan: _pgspate.InsertPlan, records: list[Record],
        parts: bool | str,
    ) -> tuple[Callable[[str], Row], list[Any]]:
        while True:
            number, future = self._expect_answer()
            try:
                reader = engine.start(plan, records, parts, number)
            except BaseException:
                del self._waiting[number]
                raise
            if reader is not None and not self._is_send_due:
                self._is_send_due = True
                future.get_loop().call_soon(self._send)
            outcomes = await future
            # Without a reader, the table was not known yet, and nothing was written.
            if reader is not None:
                return reader, outcomes

    async def close(self) -> WriterReport:
        """Writes what tasks have sent, and ends the connections. Later calls fail.

        Returns:
            The last report.

        Raises:
            UsageError: The writer belongs to another event loop.
        """
        if self._engine is not None:
            self._check_loop()
        if self._closing is None or self._closing.cancelled():
            self._closing = asyncio.ensure_future(self._close())
        # A cancellation must not leave tasks waiting for answers.
        return await asyncio.shield(self._closing)

    async def _close(self) -> WriterReport:
        async with self._opening:
            self._is_closed = True
            engine = self._engine
            if engine is None or self._loop is None:
                return self._last_report
            # The engine refuses what it has not taken over yet. A task whose answer has arrived may
            # ask for one more.
            while waiting := [one for one in self._waiting.values() if not one.done()]:
                await asyncio.wait(waiting)
            number, future = self._expect_answer()
            engine.start_close(number)
            await future
            self._last_report = self.report()
            self._loop.remove_reader(engine.fileno())
            self._engine = None
            return self._last_report
