"""The writer: single records of many threads, written together."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, Union
from weakref import WeakSet

from . import _pgspate
from ._data import kept_rows
from ._errors import Error, PlanError, UsageError
from ._options import refuse_unordered
from ._report import Report, counted
from ._returned import Row, make_reader
from ._target import conninfo, warn_of_default
from ._words import refuse_table_object

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._options import Names
    from ._target import Target

__all__ = ["Writer", "WriterReport"]

OnConflict = Literal["error", "ignore", "update"]
# A dict, another mapping, a dataclass, a named tuple, or with `columns=` a tuple or list.
Record = Any
Outcome = Union[Row, None, Error]
_PlanKey = tuple[Union[str, None], tuple[str, ...], str, tuple[str, ...],
                 Union[tuple[str, ...], None]]

# The most plans that a writer remembers.
_PLANS_MAX = 1000
# How often records are encoded again whose columns got other types meanwhile.
ENCODED_AGAIN_MAX = 3


@dataclass(frozen=True, repr=False)
class WriterReport(Report):
    """What a writer has done so far, and what it does now.

    Attributes:
        rows: Rows written, or updated on conflict. A repeated call with an idempotency key adds
            none.
        refused: Calls that the server refused.
        unknown: Calls whose outcome is unknown, because the connection was lost.
        sets: Statements that wrote the records of several calls, by the number of records: at most
            1, 2, 5, 10, 50, 100, 500, 1000, and more.
        set_rows: Records written by those statements.
        statements: Statements that wrote the records of one call.
        refused_sets: Sets that were refused and written again in parts.
        lock_waits: Calls that waited for a lock of another session.
        lanes: Lanes that write now.
        lanes_allowed: Lanes that may write at the same time.
        waiting: Records that wait for a lane.
    """

    rows: int = 0
    refused: int = 0
    unknown: int = 0
    sets: list[int] = field(default_factory=list)
    set_rows: int = 0
    statements: int = 0
    refused_sets: int = 0
    lock_waits: int = 0
    lanes: int = 0
    lanes_allowed: int = 0
    waiting: int = 0

    def _summary(self) -> str:
        statements = counted(sum(self.sets) + self.statements, "statement")
        return f"{counted(self.rows, 'row')} in {statements}, {self.refused:,} refused"


class WriterBase:
    """What both kinds of writers have: the settings, and what they ask of a call's records."""

    def __init__(
        self,
        table: str | None = None,
        *,
        to: Target | None = None,
        returning: Names = (),
        on_conflict: OnConflict = "error",
        key: Names = (),
        columns: Names | None = None,
        connections: int = 32,
        when_full: Literal["wait", "refuse"] = "wait",
        queue_bytes: int = 64 << 20,
        share_triggers: bool = False,
        retry_for: float = 60,
        stall_timeout: float = 60,
        lock_timeout: float = 300,
        keep_keys: float = 24 * 60 * 60,
    ) -> None:
        if when_full not in ("wait", "refuse"):
            raise UsageError(f'unknown value "{when_full}" of `when_full=`',
                             hint="Use `wait` or `refuse`.")
        refuse_table_object(table)
        self._to = conninfo(to)
        warn_of_default(self._to)
        self._settings = {
            "connections": _count("connections", connections),
            "queue_bytes": _count("queue_bytes", queue_bytes),
            "refuses_when_full": when_full == "refuse",
            "shares_triggers": bool(share_triggers),
            "retry_for": _seconds("retry_for", retry_for),
            "stall_timeout": _seconds("stall_timeout", stall_timeout),
            "lock_timeout": _seconds("lock_timeout", lock_timeout),
            "keep_keys": _seconds("keep_keys", keep_keys),
        }
        self._defaults = (table, _names(returning), on_conflict, _names(key),
                          None if columns is None else _columns(columns))
        self._plans: dict[_PlanKey, _pgspate.InsertPlan] = {}
        self._is_closed = False
        self._forget_engine()
        _writers.add(self)

    def _forget_engine(self) -> None:
        """Forgets the connections. A forked process opens its own."""
        self._engine: _pgspate.RecordWriter | None = None
        self._last_report = WriterReport()

    def _new_engine(self) -> _pgspate.RecordWriter:
        return _pgspate.RecordWriter(self._to, self._settings, make_reader)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the writer is closed")

    def _plan(
        self,
        table: str | None,
        returning: Names | None,
        on_conflict: OnConflict | None,
        key: Names | None,
        columns: Names | None,
    ) -> _pgspate.InsertPlan:
        """Returns what a call asks of its records."""
        default = self._defaults
        wanted: _PlanKey = (
            default[0] if table is None else table,
            default[1] if returning is None else _names(returning),
            default[2] if on_conflict is None else on_conflict,
            default[3] if key is None else _names(key),
            default[4] if columns is None else _columns(columns),
        )
        try:
            plan = self._plans.get(wanted)
        except TypeError:
            # A dict as the table is not hashable.
            refuse_table_object(table)
            raise
        if plan is not None:
            return plan
        name, returned, conflict, conflict_key, named = wanted
        refuse_table_object(name)
        if name is None:
            raise UsageError("no table is given", hint="Pass `table=` to the call or the writer.")
        plan = _pgspate.InsertPlan(name, list(returned), conflict, list(conflict_key),
                                   None if named is None else list(named))
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        self._plans[wanted] = plan
        return plan

    def report(self) -> WriterReport:
        """Returns what the writer has done so far.

        Returns:
            The report. After the end of the writer, its last report.
        """
        engine = self._engine
        if engine is None:
            return self._last_report
        return WriterReport._from_dict(json.loads(engine.report()))


# The writers of this process. A forked process has none of their threads.
_writers: WeakSet[WriterBase] = WeakSet()


def _forget_engines() -> None:
    for writer in _writers:
        writer._forget_engine()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_engines)


class Writer(WriterBase):
    """Writes single records of many threads, and returns when they are durable.

    Records that arrive while all connections are busy are written together: one statement, one
    commit. A refused record raises its own error, and does not harm the records beside it. A thread
    that waits for each record gains nothing; many threads do. `pgspate.aio.Writer` is for asyncio.

    The writer connects at its first use. It may be used by all threads. A process that is forked,
    such as a worker of Celery or gunicorn, opens connections of its own at its first use.

    Args:
        table: Name of the table, written as in SQL. Each call may name another.
        to: The server, as for `pgspate.load`.
        returning: Columns that calls return: names, or ``"*"`` for all.
        on_conflict: What to do if a row with the same key exists: refuse the record, ignore the
            record, or update the row with the record's values.
        key: Columns of the unique index that ``on_conflict`` is about. ``"ignore"`` without
            ``key`` counts all unique indexes.
        columns: Columns of the records, in the order of the values of tuples. For dicts: the keys
            to write; a missing key is NULL, and another key is an error. Default: the keys of each
            record, and all other columns get their defaults.
        connections: The most connections that write at the same time.
        when_full: What a call does if the queue is full: ``"wait"`` until there is room, or
            ``"refuse"``, which raises `QueueFull`.
        queue_bytes: The most bytes of records that wait or are being written. A record counts at
            least 1 KiB.
        share_triggers: Write records together, in one transaction, although the table has triggers.
        retry_for: Seconds to retry while the server cannot be reached.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.
        lock_timeout: Seconds to wait for a lock of another session; 0 waits without limit.
        keep_keys: Seconds for which the server remembers an idempotency key.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     _ = pgspate.load([{"id": 1, "name": "Ann"}], "users", create=True, to=server,
        ...                      primary_key="id")
        ...     with pgspate.Writer("users", to=server) as writer:
        ...         writer.insert({"id": 2, "name": "Bob"}, returning="id")
        ...         writer.insert({"id": 2, "name": "Eve"}, on_conflict="ignore") is None
        {'id': 2}
        True
    """

    def _forget_engine(self) -> None:
        super()._forget_engine()
        self._lock = threading.Lock()

    def _open(self) -> _pgspate.RecordWriter:
        with self._lock:
            self._check_open()
            if self._engine is None:
                self._engine = self._new_engine()
            return self._engine

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def insert(
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
        """Writes a record. Returns when the record is durable.

        Args:
            record: A dict, another mapping, a dataclass, a named tuple, or with ``columns`` a tuple
                or list. Values are converted as by `pgspate.load`.
            table: As for the writer, which has the default of this and the next arguments.
            returning: As for the writer.
            on_conflict: As for the writer.
            key: As for the writer.
            columns: As for the writer.
            idempotency_key: A text of the caller, at most 255 bytes, that names this call. A call
                with a key that the server has seen writes nothing, and returns what the first call
                returned. The key is kept in the ledger, in the transaction of the record.

        Returns:
            The returned columns of the row, or ``None`` if no row was written: the record was
            ignored, or a trigger kept it out. Without ``returning``, the dict is empty.

        Raises:
            ServerError: The server refused the record; ``sqlstate`` says why.
            ConversionError: A value has no counterpart in PostgreSQL.
            OutcomeUnknown: The connection was lost before the server answered. The record may be
                written or not.
            LedgerError: A load has dropped keys of the table (``sqlstate`` is 55006). Nothing was
                written. Call again when the load is done.
            QueueFull: The queue is full, with ``when_full="refuse"``.
        """
        plan = self._plan(table, returning, on_conflict, key, columns)
        return one_row(*self._write(plan, [record], call_parts(idempotency_key)))

    def insert_many(
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
        """Writes records: all of them, or none if the server refuses one.

        Args:
            records: Records as for `insert`, all with the same columns.
            table: As for `insert`.
            returning: As for `insert`.
            on_conflict: As for `insert`.
            key: As for `insert`.
            columns: As for `insert`.
            idempotency_key: As for `insert`.

        Returns:
            The returned columns of each written row. Without ``returning``, the dicts are empty.

        Raises:
            Error: As `insert`.
        """
        plan = self._plan(table, returning, on_conflict, key, columns)
        return all_rows(*self._write(plan, kept_rows(records), call_parts(idempotency_key)))

    def insert_each(
        self,
        records: Iterable[Record],
        table: str | None = None,
        *,
        returning: Names | None = None,
        on_conflict: OnConflict | None = None,
        key: Names | None = None,
        columns: Names | None = None,
    ) -> list[Outcome]:
        """Writes records independently of each other, as if each had its own call.

        Args:
            records: Records as for `insert`, all with the same columns.
            table: As for `insert`.
            returning: As for `insert`.
            on_conflict: As for `insert`.
            key: As for `insert`.
            columns: As for `insert`.

        Returns:
            For each record what `insert` returns, or the error that `insert` raises.

        Raises:
            Error: A value of a record cannot be converted, or the queue is full. No record is
                written then.
        """
        plan = self._plan(table, returning, on_conflict, key, columns)
        return each_row(*self._write(plan, kept_rows(records), True))

    def _write(self, plan: _pgspate.InsertPlan, records: list[Record],
               parts: bool | str) -> tuple[Callable[[str], Row], list[Any]]:
        if not records:
            return make_reader([]), []
        engine = self._engine or self._open()
        reader, outcomes = engine.write(plan, records, parts)
        for _ in range(ENCODED_AGAIN_MAX):
            places = outdated_places(outcomes)
            if not places:
                break
            again = outdated_records(records, parts, places)
            try:
                reader, more = engine.write(plan, again, parts)
            except Error:
                if parts is True:
                    break  # Other records are written. These have errors that say: send again.
                raise
            keep_outcomes(outcomes, places, more)
        return reader, outcomes

    def close(self) -> WriterReport:
        """Writes what other threads have sent, and ends the connections. Later calls fail.

        Returns:
            The last report.
        """
        with self._lock:
            self._is_closed = True
            engine = self._engine
        if engine is not None:
            engine.close()
            self._last_report = self.report()
            self._engine = None
        return self._last_report


def call_parts(idempotency_key: str | None) -> bool | str:
    """Returns how the records of a call belong together, for a call that writes all or none.

    Raises `UsageError` if the key is not a text.
    """
    if idempotency_key is None:
        return False
    if isinstance(idempotency_key, str):
        return idempotency_key
    name = type(idempotency_key).__name__
    raise UsageError(f"`idempotency_key=` is of class {name}, not a text")


def outdated_places(outcomes: Sequence[Any]) -> list[int]:
    """Returns the places of outcomes that say: the columns' types have changed.

    Such records were encoded for the old types, and were not written.
    """
    return [place for place, outcome in enumerate(outcomes)
            if isinstance(outcome, PlanError) and outcome.sqlstate == "40001"]


def outdated_records(records: list[Record], parts: bool | str, places: list[int]) -> list[Record]:
    """Returns the records of outdated outcomes. Without ``parts=True`` the call has one outcome."""
    return [records[place] for place in places] if parts is True else records


def keep_outcomes(outcomes: list[Any], places: list[int], more: list[Any]) -> None:
    """Puts the outcomes of records that were sent again into their places."""
    for place, outcome in zip(places, more):
        outcomes[place] = outcome


def one_row(reader: Callable[[str], Row], outcomes: Sequence[Any]) -> Row | None:
    """Returns the row of a call with one record."""
    rows = all_rows(reader, outcomes)
    return rows[0] if rows else None


def all_rows(reader: Callable[[str], Row], outcomes: Sequence[Any]) -> list[Row]:
    """Returns the rows of a call whose records are written together."""
    if not outcomes:
        return []
    outcome = outcomes[0]
    if isinstance(outcome, int):
        return [{} for _ in range(outcome)]
    if isinstance(outcome, BaseException):
        raise outcome
    return [reader(text) for text in outcome]


def each_row(reader: Callable[[str], Row], outcomes: Sequence[Any]) -> list[Outcome]:
    """Returns the outcomes of records that are written independently of each other."""
    return [outcome if isinstance(outcome, Error) else one_row(reader, [outcome])
            for outcome in outcomes]


def _columns(columns: Names) -> tuple[str, ...]:
    refuse_unordered("columns", columns)
    return _names(columns)


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _count(name: str, value: Any) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 < int(value) < 1 << 63:
        return int(value)
    raise UsageError(f"`{name}=` must be a whole number above 0, not {value!r}")


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool) and float(value) >= 0:
        return float(value)
    raise UsageError(f"`{name}=` must be a number of seconds, not {value!r}")
