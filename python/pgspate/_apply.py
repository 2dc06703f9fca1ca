"""`apply`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from . import _pgspate
from ._call import Command
from ._data import sort_events
from ._report import ApplyReport

if TYPE_CHECKING:
    from ._data import Events
    from ._options import HasDsn, Names, Show

__all__ = ["apply"]

APPLY = Command(_pgspate.apply, ApplyReport, "applying", sort_events)


def apply(
    events: Events,
    *,
    to: str | HasDsn | None = None,
    stream: str | None = None,
    format: str | None = None,
    map: Mapping[str, str] | None = None,
    tables: Names = (),
    unknown_columns: Literal["fail", "ignore", "add"] = "fail",
    max_dead_letters: int = 0,
    retry_for: int = 60,
    lock_timeout: int = 300,
    batch_rows: int = 500_000,
    batch_bytes: int = 64,
    batch_delay: int = 10,
    follow: bool = False,
    source_option: Mapping[str, str] | None = None,
    progress: Show = False,
) -> ApplyReport:
    """Applies a stream of changes to its tables, each event exactly once.

    Options are those of the command ``pgspate apply``, with the same defaults.

    Events of an iterable are applied as they come: a generator that reads from a queue may go on
    for ever. Without ``stream=`` nobody remembers that they were applied, and the same events again
    are applied again. With it they are the stream from its beginning, and what was applied before
    is passed over.

    Args:
        events: A path or URL, or a list of them; or an iterable of events: dicts, or JSON as
            ``str`` or ``bytes``.
        to: As for `load`.
        stream: The name by which the ledger knows the stream. Files have that of the first one.
        format: Of the events, as ``pgspate apply --help`` names them; found out by default.
        map: Tables to whose events belong to others: ``{"shop.orders": "public.o"}``; ``*`` on
            both sides stands for the same.
        tables: Apply the events of these tables only, as the stream names them.
        unknown_columns: What to do about columns that the table does not have.
        max_dead_letters: Set up to so many bad events aside in ``pgspate.dead_letter``.
        retry_for: Seconds to go on trying when the server is away or another session in the way.
        lock_timeout: Seconds to wait for a lock that another session holds; 0 for ever.
        batch_rows: Events that are committed together, at most.
        batch_bytes: MiB of events that are committed together, at most.
        batch_delay: Milliseconds that an event waits for others when nothing is being written.
        follow: Go on when the last file ends, and apply what is appended to it, until interrupted.
        source_option: Settings for the object store.
        progress: As for `load`.

    Returns:
        What was done.

    Raises:
        Error: One of the classes below it. Batches before it are committed.

    Example:
        >>> import pgspate
        >>> events = [
        ...     {"op": "insert", "table": "parts", "row": {"id": 1, "name": "bolt"}},
        ...     {"op": "insert", "table": "parts", "row": {"id": 2, "name": "nut"}},
        ... ]
        >>> with pgspate.server(temporary=True) as server:
        ...     _ = pgspate.load([{"id": 0, "name": ""}], "parts", create=True, to=server)
        ...     report = pgspate.apply(events, to=server)
        >>> report.events, report.inserted
        (2, 2)
    """
    options = {**locals()}
    return APPLY(options.pop("events"), options)
