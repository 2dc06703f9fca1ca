"""Jobs of distributed engines such as Spark: one write by many processes, visible at once.

The driver calls `begin_write` and gets a `Ticket`. Each task calls `Ticket.write` for its part and
returns the `Receipt` to the driver. The driver calls `Ticket.complete` with the receipts of the
attempts that count. A task may run several times: only rows of these attempts are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import _pgspate
from ._calls import check_scope
from ._data import classify_data
from ._errors import UsageError
from ._options import command_arguments
from ._python_words import in_python
from ._report import Report, counted
from ._running import running
from ._target import Target, conninfo
from ._write import refuse_foreign_mode

if TYPE_CHECKING:
    from ._options import Names

__all__ = ["Epoch", "JobReport", "Receipt", "Ticket", "begin_write"]


@dataclass(frozen=True)
class Epoch:
    """An epoch of a stream, as the name of a job. An epoch that was completed is complete.

    Each call of `begin_write` joins the job of the epoch, in any process. The driver completes it
    with the receipts that count, and so leaves out attempts of an earlier run.

    Attributes:
        stream: Name of the stream. Each table has streams of its own.
        number: Number of the epoch. Numbers grow, and an epoch is repeated until it is complete.
        query: Id of the query that counts the epochs. A stream of another query is refused.
        is_gapless: Whether the query completes every epoch, also one without rows. Then a missing
            epoch is refused. Otherwise ``Ticket.warnings`` has it.
    """

    stream: str
    number: int
    query: str | None = None
    is_gapless: bool = False


@dataclass(frozen=True)
class Receipt:
    """What an attempt has written. It can be pickled.

    Attributes:
        job: Number of the job.
        part: Number of the part.
        xid: Number of the attempt's transaction.
        rows: Rows written.
        rows_kept_out: Rows that triggers kept out.
    """

    job: int
    part: int
    xid: int
    rows: int
    rows_kept_out: int = 0


@dataclass(frozen=True, repr=False)
class JobReport(Report):
    """What a completed job has written.

    Attributes:
        job: Number of the job in the ledger.
        table: Name of the table, written as in SQL.
        rows_in: Rows of all parts, with those that were rejected.
        rows_written: Rows written to the table: inserted or updated.
        rows_kept_out: Rows that triggers of the table kept out. They are not known of a part whose
            receipt was lost.
        inserted: Rows inserted.
        updated: Rows updated.
        deleted: Rows deleted by a sync. Rows that a job replaces are not counted.
        rejected: Rows rejected. ``pgspate.reject`` has them under the number of the job.
        parts: Number of parts.
        losers: Attempts that wrote all their rows, but whose rows were left out.
        warnings: What the user should know.
    """

    job: int = 0
    table: str = ""
    rows_in: int = 0
    rows_written: int = 0
    rows_kept_out: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rejected: int = 0
    parts: int = 0
    losers: int = 0
    warnings: list[str] = field(default_factory=list)

    def _summary(self) -> str:
        rows = counted(self.rows_in, "row")
        changes = ""
        if self.updated or self.deleted or self.inserted != self.rows_in:
            changes = f": {self.inserted} inserted, {self.updated} updated, {self.deleted} deleted"
        rejected = f", {self.rejected} rejected" if self.rejected else ""
        return f"{rows} in {counted(self.parts, 'part')} to {self.table}{changes}{rejected}"


@dataclass(frozen=True)
class Ticket:
    """What tasks need to write parts of a job. It can be pickled, with the password of the server.

    Attributes:
        job: Number of the job in the ledger.
        table: Name of the table, written as in SQL.
        is_complete: Whether an earlier run of the driver has completed the job. Then no part can be
            written, and `complete` returns the report.
        warnings: What the user should know, such as other jobs that are not complete.
    """

    job: int
    table: str
    is_complete: bool
    warnings: tuple[str, ...]
    _engine_ticket: str = field(repr=False)
    _to: str | None = field(repr=False)

    def write(
        self,
        part: int,
        data: Any,
        *,
        columns: Sequence[str] | None = None,
        ignore_unknown: bool = False,
    ) -> Receipt:
        """Writes the rows of a part, and returns the receipt for the driver.

        Args:
            part: Number of the part. Attempts of the same part have the same number.
            data: Anything that `pgspate.load` takes.
            columns: As for `pgspate.load`.
            ignore_unknown: As for `pgspate.load`.

        Raises:
            LedgerError: The job was begun again, completed or aborted.
        """
        classified, known_columns = classify_data(data)
        options = {"columns": columns or known_columns, "ignore_unknown": ignore_unknown}
        arguments = command_arguments(options, has_source=True)
        with running() as stop:
            call = (arguments, self._to, None, stop, None)
            text = _pgspate.fleet_write(classified, call, self._engine_ticket, part)
        return Receipt(**json.loads(text))

    def complete(self, receipts: Iterable[Receipt]) -> JobReport:
        """Writes the rows of these attempts into the table, all at once.

        A job that is complete returns the report of its completion. So the call can be repeated.
        After a lost connection, the call tries for ten minutes to complete the job.

        Raises:
            UsageError: There is no receipt of a part that is written, or of two attempts of it.
            PlanError: No rows would replace those of the table, without ``allow_empty=``.
            LedgerError: A receipt is not known, or the server crashed and rows are missing.

        The table is unchanged after an error, unless the connection was lost: then call `complete`
        again.
        """
        text = json.dumps([vars(receipt) for receipt in receipts])
        with running() as stop:
            call: _pgspate._CallOptions = ([], self._to, None, stop, None)
            found = _pgspate.fleet_complete(call, self._engine_ticket, text)
        return JobReport._from_dict(json.loads(found))

    def abort(self) -> bool:
        """Removes all that the job has written, except parts that are visible already.

        A named job with such parts stays in the ledger, so that a rerun does not write them again.
        Returns false, and changes nothing, if the job is complete or was begun again.
        """
        with running() as stop:
            call: _pgspate._CallOptions = ([], self._to, None, stop, None)
            outcome: str = json.loads(_pgspate.fleet_abort(call, self._engine_ticket))
        return outcome == "aborted"


def begin_write(
    table: str,
    *,
    to: Target | None = None,
    job: str | Epoch | None = None,
    mode: Literal["append", "replace", "sync"] = "append",
    commit: Literal["job", "task"] = "job",
    stable_parts: bool = False,
    connections: int | None = None,
    buffer: int = 64,
    max_rejects: int | None = None,
    key: Names = (),
    scope_by: Names = (),
    scope: str | None = None,
    no_delete: bool = False,
    insert_only: bool = False,
    ignore_columns: Names = (),
    max_delete: float | str | None = None,
    allow_empty: bool = False,
) -> Ticket:
    """Begins a job that writes a table, and returns the ticket for its tasks.

    Args:
        table: Name of the table, written as in SQL.
        to: As for `pgspate.load`. Without it, each task finds the server by its own environment.
        job: Name by which a rerun of the driver finds the job. A complete job is not written again,
            and an unfinished one is begun again. Without a name, each call begins a job of its own.
            An `Epoch` of a stream is written once, and its tasks may begin the job, too.
        mode: ``"append"`` adds the rows. ``"replace"`` puts them in the place of the table's rows.
            ``"sync"`` writes those that differ, as `pgspate.sync` does.
        commit: When rows become visible. ``"job"``: all at once, by `Ticket.complete`. ``"task"``:
            the rows of each part as soon as they are written, without a stage; for
            ``mode="append"``.
        stable_parts: Each run of the driver gives a part the same rows. Then a rerun of a job with
            ``commit="task"`` keeps the parts that are written, and otherwise it is refused.
        connections: Number of connections that all tasks may have at the same time.
        buffer: MiB of an Arrow stream that a task reads before it connects.
        max_rejects: Reject up to this number of bad rows, in all parts that count. The table
            ``pgspate.reject`` gets them when the job completes. Default: a bad row fails its task.
            Tasks check types alone, unless they commit: rows that a constraint refuses fail the
            job.
        key: As for `pgspate.sync`, like all that follow. Only for ``mode="sync"``.
        scope_by: As for `pgspate.sync`.
        scope: As for `pgspate.sync`.
        no_delete: As for `pgspate.sync`.
        insert_only: As for `pgspate.sync`.
        ignore_columns: As for `pgspate.sync`.
        max_delete: As for `pgspate.sync`.
        allow_empty: Allow a job without rows, which empties the table or the scope. Also for
            ``mode="replace"``.

    Raises:
        PlanError: The table does not exist.
        LedgerError: The job of this name writes another table, or was begun with other options.

    Example:
        >>> import pgspate
        >>> from pgspate.fleetjob import begin_write
        >>> with pgspate.server(temporary=True) as server:
        ...     _ = pgspate.load([{"id": 0}], "t", create=True, to=server)
        ...     ticket = begin_write("t", to=server, job="nightly")
        ...     receipts = [ticket.write(part, [{"id": part}]) for part in (1, 2)]
        ...     report = ticket.complete(receipts)
        >>> report.rows_written, report.parts
        (2, 2)
    """
    sync = {
        "key": key,
        "scope_by": scope_by,
        "scope": scope,
        "no_delete": no_delete,
        "insert_only": insert_only,
        "ignore_columns": ignore_columns,
        "max_delete": max_delete,
    }
    refuse_foreign_mode(mode)
    if mode == "sync":
        sync["allow_empty"] = allow_empty
        check_scope(sync)
    elif allow_empty and mode != "replace":
        raise UsageError('`allow_empty=` is for a job with `mode="replace"` or `mode="sync"`')
    elif given := [name for name, value in sync.items() if value]:
        raise UsageError(f'`{given[0]}=` is for a job with `mode="sync"`')
    options: dict[str, Any] = {
        "mode": mode,
        "commit": commit,
        "stable_parts": stable_parts,
        "connections": connections,
        "buffer": buffer,
        "allow_empty": allow_empty and mode == "replace",
        "sync": command_arguments(sync, has_source=True) if mode == "sync" else [],
    }
    if max_rejects is not None:
        options["max_rejects"] = max_rejects
    if isinstance(job, Epoch):
        options["epoch"] = asdict(job)
        job = None
    server = conninfo(to)
    with running() as stop:
        call: _pgspate._CallOptions = ([], server, None, stop, None)
        found = json.loads(_pgspate.fleet_begin(call, table, job, json.dumps(options)))
    warnings = tuple(in_python(one) for one in found["warnings"])
    return Ticket(found["job"], found["table"], found["is_complete"], warnings,
                  json.dumps(found), server)
