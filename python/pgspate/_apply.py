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
    at_end: Literal["hold", "apply"] = "hold",
    max_dead_letters: int = 0,
    retry_for: int = 60,
    stall_timeout: int = 60,
    lock_timeout: int = 300,
    batch_rows: int = 500_000,
    batch_bytes: int = 64,
    direct_rows: int = 1000,
    batch_delay: int = 2,
    follow: bool = False,
    create_slot: bool = False,
    snapshot: bool = False,
    source_table: str | None = None,
    debezium_placeholder: str | None = None,
    debezium_time: Literal["ms", "us", "ns"] | None = None,
    debezium_decimals: Literal["bytes", "text"] | None = None,
    debezium_bytes: Literal["base64", "hex"] | None = None,
    dms_columns: Names = (),
    dms_header: bool = False,
    dms_null: str = "NULL",
    dms_absent: str | None = None,
    dms_delimiter: str = ",",
    source_option: Mapping[str, str] | None = None,
    metrics: str | None = None,
    progress: Show = False,
) -> ApplyReport:
    """Applies a stream of changes to its tables, each event exactly once.

    Options are those of the command ``pgspate apply``, with the same defaults.

    Events of an iterable are applied as they come: a generator that reads from a queue may go on
    for ever. Without ``stream=`` nobody remembers that they were applied, and the same events again
    are applied again. With it they are the stream from its beginning, and what was applied before
    is passed over.

    Args:
        events: A path or URL, or a list of them; a replication slot, as
            ``postgres://user@host/dbname?slot=NAME&publication=NAME``; or an iterable of events: dicts, or JSON as
            ``str`` or ``bytes``.
        to: As for `load`.
        stream: The name by which the ledger knows the stream. Files have that of the first one.
        format: Of the events, as ``pgspate apply --help`` names them; found out by default.
        map: Tables to whose events belong to others: ``{"shop.orders": "public.o"}``; ``*`` on
            both sides stands for the same.
        tables: Apply the events of these tables only, as the stream names them.
        unknown_columns: What to do about columns that the table does not have.
        at_end: What to do when the input ends within a transaction of the source.
        max_dead_letters: Set up to so many bad events aside in ``pgspate.dead_letter``.
        retry_for: Seconds to go on trying when the server is away or another session in the way.
        stall_timeout: Seconds to wait for a connection over which nothing comes any more.
        lock_timeout: Seconds to wait for a lock that another session holds; 0 for ever.
        batch_rows: Events that are committed together, at most.
        batch_bytes: MiB of events that are committed together, at most.
        direct_rows: Batches of up to so many rows are written without a temporary table.
        batch_delay: Milliseconds that an event waits for others when nothing is being written.
        follow: Go on when the input ends, until interrupted: with what is appended to the last
            file, or what is committed on the source.
        create_slot: Make the replication slot when it is not there.
        snapshot: Make it, and copy the rows of its tables first.
        source_table: The table of rows that do not name theirs.
        debezium_placeholder: ``unavailable.value.placeholder``, where the connector sets it.
        debezium_time: What times are counted in, where no schema says it.
        debezium_decimals: What decimals are, where no schema says it.
        debezium_bytes: What bytes are, where no schema says it.
        dms_columns: The columns of DMS's csv, where no header names them.
        dms_header: The first line of DMS's csv names the columns.
        dms_null: The unquoted field of DMS's csv that means NULL.
        dms_absent: The unquoted field of DMS's csv for a column that is not told.
        dms_delimiter: Between two fields of DMS's csv.
        source_option: Settings for object stores and web servers, and headers; `@FILE` and
            `env:NAME` give a secret.
        metrics: Serve metrics for Prometheus at this address, such as "127.0.0.1:9187".
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
