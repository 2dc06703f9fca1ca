"""The call `fleet`, and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _pgspate
from ._call import Command
from ._report import Report, counted

if TYPE_CHECKING:
    from ._target import Target

__all__ = ["FleetReport", "fleet"]


@dataclass(frozen=True, repr=False)
class FleetReport(Report):
    """What the members of a fleet have done.

    Attributes:
        fleet: Name of the fleet.
        generation: Name of the generation, which is one run of the whole fleet.
        command: ``load`` or ``sync``.
        table: Name of the table, written as in SQL.
        members: Number of members.
        done: Number of members that are done.
        running: Members on which a session works.
        failed: Members that failed, each with ``member``, ``attempts`` and ``failure``.
        missing: Members that have not begun.
        rows_in: Rows of all sources.
        inserted: Rows inserted, or loaded.
        updated: Rows updated.
        deleted: Rows deleted.
        unchanged: Rows that were already equal.
        rejected: Rows rejected.
        wal_bytes: WAL of the writing statements, as far as it is known.
        attempts: Attempts of all members.
        begun: When the first member began.
        ended: When the last member was done.
        seconds: Seconds from the first begin to the last end.
        busy_seconds: Seconds of work, added up over the members.
        waited_seconds: Seconds of waiting for ``connections=``, added up over the members.
        slowest: The member that took longest, with its ``member`` and ``seconds``.
        tended: Whether the work on the whole table that comes last, such as ANALYZE, is done.
    """

    fleet: str = ""
    generation: str = ""
    command: str = ""
    table: str = ""
    members: int = 0
    done: int = 0
    running: list[int] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    rows_in: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: int = 0
    wal_bytes: int = 0
    attempts: int = 0
    begun: str = ""
    ended: str | None = None
    seconds: float = 0.0
    busy_seconds: float = 0.0
    waited_seconds: float = 0.0
    slowest: dict[str, Any] | None = None
    tended: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all members are done."""
        return self.done == self.members

    def _summary(self) -> str:
        done = f"{self.done:,} of {counted(self.members, 'member')} done"
        return f"{self.fleet}, generation {self.generation}: {done}"


def fleet(
    name: str,
    *,
    to: Target | None = None,
    generation: str | None = None,
    stall_timeout: int = 60,
) -> FleetReport:
    """Returns what the members of a fleet have done, and which members are missing.

    A member is a `load` or a `sync` with ``fleet=``. Options are those of the command ``pgspate
    fleet``.

    Args:
        name: Name of the fleet.
        to: As for `load`.
        generation: Name of the generation. Default: the newest one.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.

    Returns:
        The report of all members together.

    Raises:
        Error: The server cannot be reached, or there is no such fleet.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     rows = [{"meter": 1, "day": day, "use": 1.5} for day in range(3)]
        ...     _ = pgspate.load(rows, "use", create=True, to=server)
        ...     _ = pgspate.sync(rows, "use", key=["meter", "day"], scope_by="meter", to=server,
        ...                      fleet="nights", generation="2026-11-22", members=2, member=0)
        ...     report = pgspate.fleet("nights", to=server)
        >>> report.done, report.missing
        (1, [1])
    """
    options = {**locals()}
    return Command(partial(_pgspate.fleet, options.pop("name")), FleetReport)(None, options)
