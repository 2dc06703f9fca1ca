"""The calls that move rows: `load`, `plan`, `sync` and `apply`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import _pgspate
from ._call import Command
from ._data import sort, sort_events
from ._errors import UsageError
from ._report import ApplyReport, LoadReport, Plan, SyncReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._data import Data, Events
    from ._options import Format, HasDsn, Names, Path, Show, When
    from ._typed import LoadOptions

__all__ = ["apply", "load", "plan", "sync"]


def load(
    data: Data,
    table: str,
    *,
    to: str | HasDsn | None = None,
    columns: Names | None = None,
    create: bool = False,
    replace: bool | Literal["auto", "truncate", "swap"] = False,
    atomic: bool = False,
    lanes: int | Literal["auto"] = "auto",
    commit: Literal["auto", "end", "chunk"] = "auto",
    rejects: Path | None = None,
    max_rejects: int | str | None = None,
    restart: bool = False,
    no_ledger: bool = False,
    retry_for: int = 60,
    stall_timeout: int = 60,
    lock_timeout: int = 300,
    rebuild_indexes: When = "auto",
    pause_autovacuum: When = "auto",
    analyze: When = "auto",
    vacuum: bool = False,
    ignore_unknown: bool = False,
    format: Format | None = None,
    header: bool | Literal["auto"] = "auto",
    delimiter: str | None = None,
    quote: str | None = None,
    escape: str | None = None,
    null: str | None = None,
    force_null: Names = (),
    force_not_null: Names = (),
    comment: str | None = None,
    skip_blank_lines: bool = False,
    encoding: str | None = None,
    source_option: Mapping[str, str] | None = None,
    progress: Show = False,
) -> LoadReport:
    """Loads data into a table, by several connections at once, exactly as ``\\copy`` would.

    Options are those of the command ``pgspate load``, with the same defaults.

    Args:
        data: A path or URL, or a list of them; anything that speaks Arrow (``pyarrow``, ``polars``,
            ``pandas``, a reader that streams); or an iterable of dicts, tuples or dataclasses.
        table: The table, as SQL writes it.
        to: Where to: a URL or ``key=value``, a `Server`, or an engine of SQLAlchemy's. By default
            the PG* variables, else the embedded PostgreSQL.
        columns: The columns that the fields go to, in the fields' order. For dicts and dataclasses
            the keys to take.
        create: Make the table when it is missing, with the types that the data needs.
        replace: The data instead of the rows that the table has, which stay until all is there.
        atomic: All rows become visible at once.
        lanes: Connections that load at the same time.
        commit: When to commit: at the end, with each chunk, or by the size of the input.
        rejects: Set rows that are refused aside in this file, and load the rest.
        max_rejects: Stop when more rows are refused than this: a number, or a share like "0.5%".
        restart: Begin anew, whatever the ledger says of earlier runs.
        no_ledger: Keep no ledger. Data that is no file has none unless rows are set aside.
        retry_for: Seconds to go on trying when the server is away.
        stall_timeout: Seconds to wait for a connection over which nothing comes any more.
        lock_timeout: Seconds to wait for a lock that another session holds; 0 for ever.
        rebuild_indexes: Drop indexes and foreign keys for the load and make them again.
        pause_autovacuum: Switch autovacuum off for the table meanwhile.
        analyze: Run ANALYZE afterwards.
        vacuum: Run VACUUM (FREEZE, ANALYZE) afterwards.
        ignore_unknown: Pass over fields and keys that no column is named after.
        format: Of files; found out by default.
        header: Whether the first record of files names the columns.
        delimiter: Between two fields of files.
        quote: Around a field; "none" for none.
        escape: Before a quote that is data.
        null: The unquoted field that means NULL.
        force_null: Columns in which a quoted NULL string is NULL too.
        force_not_null: Columns in which an unquoted NULL string is itself.
        comment: Pass over lines that begin with this.
        skip_blank_lines: Pass over empty lines.
        encoding: Of files, as PostgreSQL names it.
        source_option: Settings for object stores and web servers, and headers; `@FILE` and
            `env:NAME` give a secret.
        progress: True for a line in a terminal or a bar in a notebook; or a function that is given
            a `Progress` ten times a second.

    Returns:
        What was done.

    Raises:
        Error: One of the classes below it. The table is as it was, but for chunks that were
            committed, as ``commit=`` says.

    Example:
        >>> import pgspate
        >>> rows = [{"id": 1, "name": "bolt"}, {"id": 2, "name": "nut"}]
        >>> with pgspate.server(temporary=True) as server:
        ...     report = pgspate.load(rows, "parts", create=True, to=server)
        >>> report.rows_written
        2
    """
    options = {**locals()}
    return LOAD(options.pop("data"), options)


def plan(data: Data, table: str, **options: Unpack[LoadOptions]) -> Plan:
    """Says what `load` would do with the same arguments, and why. Changes nothing.

    The first rows of an iterator are taken from it to look at them.

    Args:
        data: As for `load`.
        table: As for `load`.
        **options: As for `load`.

    Returns:
        The plan; ``print`` shows it as the command does.

    Raises:
        Error: As `load` for what is wrong before the first row is written.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     plan = pgspate.plan([(1, "bolt")], "parts", columns=["id", "name"],
        ...                         create=True, to=server)
        >>> [column["type"] for column in plan.columns]
        ['bigint', 'text']
    """
    return PLAN(data, {**options, "table": table})


def sync(
    data: Data,
    table: str,
    *,
    to: str | HasDsn | None = None,
    key: Names = (),
    scope_by: Names = (),
    scope: str | None = None,
    no_delete: bool = False,
    insert_only: bool = False,
    columns: Names | None = None,
    ignore_columns: Names = (),
    keep: Literal["last"] | None = None,
    check: bool = False,
    lanes: int = 1,
    vacuum: bool = False,
    transactions: int = 1,
    read_ahead: When = "auto",
    max_delete: float | str = "50%",
    allow_empty: bool = False,
    retry_for: int = 60,
    stall_timeout: int = 60,
    lock_timeout: int = 300,
    price_per_million_io: float | None = None,
    ignore_unknown: bool = False,
    format: Format | None = None,
    header: bool | Literal["auto"] = "auto",
    delimiter: str | None = None,
    quote: str | None = None,
    escape: str | None = None,
    null: str | None = None,
    force_null: Names = (),
    force_not_null: Names = (),
    comment: str | None = None,
    skip_blank_lines: bool = False,
    encoding: str | None = None,
    source_option: Mapping[str, str] | None = None,
    progress: Show = False,
) -> SyncReport:
    """Makes rows of a table like the data: only what differs is written, in one transaction.

    Options are those of the command ``pgspate sync``, with the same defaults. Exactly one of
    ``scope_by``, ``scope``, ``no_delete`` and ``insert_only`` says which rows are meant.

    Args:
        data: As for `pgspate.load`.
        table: The table, as SQL writes it.
        to: As for `pgspate.load`.
        key: The columns that identify a row; the primary key's by default.
        scope_by: Rows whose values in these columns occur in the data.
        scope: "all" for the whole table, or an SQL predicate over its columns.
        no_delete: Update and insert, and delete nothing.
        insert_only: Insert only.
        columns: As for `pgspate.load`.
        ignore_columns: Not compared, and written only when something else differs.
        keep: Which of rows with the same key counts; they are refused otherwise.
        check: Change nothing: count what differs, with examples.
        lanes: Sessions that share the scopes of ``scope_by``, each with a transaction of its own.
        vacuum: Vacuum the table afterwards, so that the next sync writes where rows died.
        transactions: Write the scopes of ``scope_by`` in so many transactions, one after the other:
            with ``vacuum`` each one writes where rows of the one before died.
        read_ahead: Read the table first and stage only rows that it does not have.
        max_delete: Refuse to delete more of the scope than this, in percent.
        allow_empty: Let data without rows empty the scope.
        retry_for: Seconds to go on trying when another session is in the way.
        stall_timeout: Seconds to wait for a connection over which nothing comes any more.
        lock_timeout: Seconds to wait for a lock that another session holds; 0 for ever.
        price_per_million_io: What a million I/Os cost, for the estimate in the report.
        ignore_unknown: As for `pgspate.load`; so are all that follow.
        format: Of files.
        header: Whether the first record of files names the columns.
        delimiter: Between two fields.
        quote: Around a field.
        escape: Before a quote that is data.
        null: The unquoted field that means NULL.
        force_null: Columns in which a quoted NULL string is NULL too.
        force_not_null: Columns in which an unquoted NULL string is itself.
        comment: Pass over lines that begin with this.
        skip_blank_lines: Pass over empty lines.
        encoding: Of files.
        source_option: Settings for object stores and web servers, and headers; `@FILE` and
            `env:NAME` give a secret.
        progress: As for `pgspate.load`.

    Returns:
        What was done, or with ``check=True`` would be.

    Raises:
        Error: One of the classes below it. The table is as it was.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     old = [{"meter": 42, "day": day, "use": 1.5} for day in range(1, 4)]
        ...     _ = pgspate.load(old, "use_prediction", create=True, to=server)
        ...     new = [{"meter": 42, "day": day, "use": 1.5} for day in range(2, 5)]
        ...     report = pgspate.sync(new, "use_prediction", key=["meter", "day"],
        ...                           scope_by="meter", to=server)
        >>> report.inserted, report.deleted, report.unchanged
        (1, 1, 2)
    """
    options = {**locals()}
    return SYNC(options.pop("data"), options)


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


def check_scope(options: Mapping[str, Any]) -> None:
    """Exactly one scope is asked for."""
    names = ("scope_by", "scope", "no_delete", "insert_only")
    said = [name for name in names if options.get(name)]
    if len(said) != 1:
        message = "no scope is given" if not said else f"{said[0]} and {said[1]} exclude each other"
        hint = "Give one of `scope_by=`, `scope=`, `no_delete=True` and `insert_only=True`."
        raise UsageError(message, hint=hint)


LOAD = Command(_pgspate.load, LoadReport, "loading", sort)
PLAN = Command(_pgspate.plan, Plan, "planning", sort)
SYNC = Command(_pgspate.sync, SyncReport, "syncing", sort, check_scope)
SCRIPT = Command(_pgspate.sync_script, SyncReport, "", sort, check_scope)
APPLY = Command(_pgspate.apply, ApplyReport, "applying", sort_events)
