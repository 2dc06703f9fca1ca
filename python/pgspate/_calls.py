"""The calls that move rows: `load`, `plan`, `sync` and `apply`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from . import _pgspate
from ._call import Command
from ._data import classify_data, classify_events
from ._errors import UsageError
from ._report import ApplyReport, LoadReport, Plan, SyncReport
from ._words import refuse_foreign_words

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Unpack

    from ._data import Data, Events
    from ._options import Format, Names, Path, Show, When
    from ._target import Target
    from ._typed import LoadOptions

    P = ParamSpec("P")

R = TypeVar("R")

__all__ = ["apply", "load", "plan", "sync"]

# Sections of a docstring, after "Args", that describe arguments.
OPTION_GROUPS = ["Safety", "Table", "Fleet", "Reading"]


def understands_foreign_words(call: Callable[P, R]) -> Callable[P, R]:
    """Lets a call explain the options that have other names in other libraries."""

    @wraps(call)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        refuse_foreign_words(options)
        return call(*args, **options)

    return checked


@understands_foreign_words
def load(
    data: Data,
    table: str,
    *,
    to: Target | None = None,
    columns: Names | None = None,
    index: bool | None = None,
    create: bool = False,
    types: Mapping[str, str] | None = None,
    primary_key: Names = (),
    replace: bool | Literal["auto", "truncate", "swap"] = False,
    atomic: bool = False,
    lanes: int | Literal["auto"] = "auto",
    progress: Show = False,
    commit: Literal["auto", "end", "chunk"] = "auto",
    rejects: Path | None = None,
    max_rejects: int | str | None = None,
    changed: Literal["error", "skip", "reload"] = "error",
    allow_empty: bool = False,
    restart: bool = False,
    no_ledger: bool = False,
    into_shards: bool = False,
    retry_for: int = 60,
    stall_timeout: int = 60,
    lock_timeout: int = 300,
    rebuild_indexes: When = "auto",
    pause_autovacuum: When = "auto",
    analyze: When = "auto",
    vacuum: bool = False,
    fleet: str | None = None,
    generation: str | None = None,
    members: int | None = None,
    member: int | Literal["auto"] = "auto",
    connections: int | None = None,
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
    date_format: str | Mapping[str, str] | None = None,
    encoding: str | None = None,
    set: Mapping[str, object] | None = None,
    file_name_column: str | None = None,
    snake_case: bool = False,
    ignore_unknown: bool = False,
    add_columns: bool = False,
    source_option: Mapping[str, str] | None = None,
) -> LoadReport:
    """Loads data into a table over several connections, exactly as ``\\copy`` would.

    Options are those of the command ``pgspate load``, with the same defaults.

    Args:
        data: A path or URL, or a list of them; anything that speaks Arrow (``pyarrow``, ``polars``,
            ``pandas``, a reader that streams); or an iterable of dicts, tuples or dataclasses.
        table: Name of the table, written as in SQL.
        to: The server: a URL, a ``key=value`` connection string, a `Server`, a connection of
            psycopg, or an engine, connection or session of SQLAlchemy. pgspate opens connections
            of its own, so a connection must not be in a transaction. Default: the PG* variables,
            or else the embedded PostgreSQL.
        columns: The table's columns, in the order of the fields. For dicts: their keys; another key
            is an error, unless ``ignore_unknown=`` is given. For dataclasses: the attributes to
            load. For named tuples, data frames and Arrow data: the fields to load, if all are names
            of fields. For a data frame of pandas, the levels of the index come first.
        index: Load the index of a data frame of pandas as columns. True loads all levels, with the
            names that ``to_sql`` gives them; False loads none. Default: levels with a name.
        create: Create the table if it does not exist, with types that fit the data.
        types: Types of created or added columns, by column: ``{"price": "numeric(10,2)"}``.
        primary_key: Columns of the created table's primary key.
        replace: Replace the table's rows with the data. ``"truncate"`` empties and fills the table
            in one transaction, and readers wait until it ends. ``"swap"`` fills a shadow table and
            exchanges both tables at the end. ``True`` and ``"auto"`` choose between these two.
        atomic: Make all rows visible at the same time.
        lanes: How many connections load at the same time.
        progress: True shows a line on a terminal or a bar in a notebook. A function is called with
            a `Progress`, at most ten times a second.

    Safety:
        commit: When to commit: ``"end"``, ``"chunk"`` for each chunk, or ``"auto"`` by input size.
        rejects: Write rejected rows to this file, and load the rest. Those of frames and rows are
            written as JSON, so the name should end in ``.ndjson``.
        max_rejects: Stop after more rejected rows than this: a number, or a share like "0.5%".
        changed: What to do with files that have changed since they were loaded: refuse the load,
            leave them out, or load them again. Then the table has the rows of both versions.
        allow_empty: With ``replace=``, allow data without rows to empty the table.
        restart: Load from the beginning, even if the ledger has chunks of an earlier run. The rows
            of that run stay in the table.
        no_ledger: Do not use the ledger. Data other than files uses it only with ``rejects=``.
        into_shards: Write to the nodes of a distributed table of Citus, past the coordinator.
        retry_for: Seconds to retry while the server cannot be reached.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.
        lock_timeout: Seconds to wait for a lock of another session; 0 waits without limit.

    Table:
        rebuild_indexes: Drop indexes and foreign keys before the load, and create them again after
            the load.
        pause_autovacuum: Switch autovacuum off for the table during the load.
        analyze: Run ANALYZE after the load.
        vacuum: Run VACUUM (FREEZE, ANALYZE) after the load.

    Fleet:
        fleet: Run as a member of this fleet: one write by an array of jobs.
        generation: Name of this run of the fleet, such as a date. Older generations cannot undo
            newer ones.
        members: Number of members. Default: the size of the array of jobs.
        member: Number of this member, from 0. ``"auto"`` reads it from the variables of AWS Batch,
            Kubernetes, Cloud Run or Slurm. ``{member}`` in a source stands for it.
        connections: Most connections of all members together.

    Reading:
        format: Format of the files. Default: by name and content.
        header: Whether the first record of each file names the columns.
        delimiter: Character between two fields of a file, of one byte.
        quote: Quote character of a file, of one byte; "none" for no quoting.
        escape: Escape character within quoted fields. Default: the quote character.
        null: Unquoted field that means NULL.
        force_null: Columns in which the NULL string means NULL even if it is quoted.
        force_not_null: Columns in which no field means NULL.
        comment: Skip lines that begin with this character, of one byte.
        skip_blank_lines: Skip empty lines.
        date_format: Format of the files' dates, such as ``"%d.%m.%Y"``, or formats by column.
        encoding: Encoding of the files, by PostgreSQL's name.
        set: Values for columns that the data lacks, by column: ``{"tenant": 7}``. None is NULL.
        file_name_column: Column for the name of each row's file.
        snake_case: Read the names of fields and keys in snake case: ``OrderId`` as ``order_id``.
        ignore_unknown: Ignore fields and keys that name no column, or a generated column. For dicts
            with ``columns=``: keys that are not in it.
        add_columns: Add columns that the table lacks, with types that fit the data.
        source_option: Settings of object stores and web servers, and HTTP headers. The values
            ``@FILE`` and ``env:NAME`` read a secret from a file or an environment variable.

    Returns:
        What the load did.

    Raises:
        Error: The load failed; the subclass says how. The table keeps only chunks that were
            committed (see ``commit=``).

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
    """Returns what `load` would do with the same arguments, and why. Changes nothing.

    `plan` reads the first rows to find out their types. So an iterator does not have these rows
    any more afterwards.

    Args:
        data: As for `load`.
        table: As for `load`.
        **options: As for `load`.

    Returns:
        The plan. ``print`` shows it as ``pgspate load --plan`` does.

    Raises:
        Error: An error of `load` that occurs before the first row is written.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     plan = pgspate.plan([(1, "bolt")], "parts", columns=["id", "name"],
        ...                         create=True, to=server)
        >>> [column["type"] for column in plan.columns]
        ['bigint', 'text']
    """
    return PLAN(data, {**options, "table": table})


@understands_foreign_words
def sync(
    data: Data,
    table: str,
    *,
    to: Target | None = None,
    key: Names = (),
    scope_by: Names = (),
    scope: str | None = None,
    no_delete: bool = False,
    insert_only: bool = False,
    columns: Names | None = None,
    index: bool | None = None,
    create: bool = False,
    types: Mapping[str, str] | None = None,
    primary_key: Names = (),
    ignore_columns: Names = (),
    keep: Literal["last"] | None = None,
    check: bool = False,
    lanes: int = 1,
    transactions: int = 1,
    read_ahead: When = "auto",
    vacuum: bool = False,
    price_per_million_io: float | None = None,
    progress: Show = False,
    max_delete: float | str = "50%",
    allow_empty: bool = False,
    retry_for: int = 60,
    stall_timeout: int = 60,
    lock_timeout: int = 300,
    fleet: str | None = None,
    generation: str | None = None,
    members: int | None = None,
    member: int | Literal["auto"] = "auto",
    connections: int | None = None,
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
    date_format: str | Mapping[str, str] | None = None,
    encoding: str | None = None,
    set: Mapping[str, object] | None = None,
    file_name_column: str | None = None,
    snake_case: bool = False,
    ignore_unknown: bool = False,
    add_columns: bool = False,
    source_option: Mapping[str, str] | None = None,
) -> SyncReport:
    """Makes a table's rows equal to the data, and writes only rows that differ.

    The scope is the set of table rows that may change. Give exactly one of ``scope_by``, ``scope``,
    ``no_delete`` and ``insert_only``. The sync is one transaction, unless ``lanes=`` or
    ``transactions=`` asks for more. Options are those of the command ``pgspate sync``, with the
    same defaults.

    Args:
        data: As for `pgspate.load`.
        table: Name of the table, written as in SQL.
        to: As for `pgspate.load`.
        key: Columns that identify a row. Default: the primary key.
        scope_by: Columns. The scope is all rows whose values in these columns occur in the data.
        scope: "all" for the whole table, or an SQL predicate over its columns.
        no_delete: Insert and update rows, and delete none.
        insert_only: Insert rows, and neither update nor delete any.
        columns: As for `pgspate.load`.
        index: As for `pgspate.load`.
        create: Create the table if it does not exist, with types that fit the data.
        types: As for `pgspate.load`.
        primary_key: Columns of the created table's primary key. Default: `key`.
        ignore_columns: Columns that are not compared. They are written when another column differs.
        keep: ``"last"`` keeps the last of several rows with one key. Default: such rows are an
            error.
        check: Change nothing. Count the rows that differ, and return examples.
        lanes: Sessions that share the scopes of ``scope_by``, each with its own transaction.
        transactions: Number of transactions that write the scopes of ``scope_by``, one after
            another. With ``vacuum``, each transaction can use the space of rows that died in the
            previous transaction.
        read_ahead: Read the table first, and stage only rows that it does not have.
        vacuum: Run VACUUM after the sync, so that the next sync can use the space of dead rows.
        price_per_million_io: Price of a million I/Os in dollars, for the estimate in the report.
        progress: As for `pgspate.load`.

    Safety:
        max_delete: Fail if the sync would delete a larger share of the scope, in percent.
        allow_empty: Allow data without rows, which empties the scope whatever `max_delete=` says.
        retry_for: Seconds to retry after a deadlock, a serialization failure or a lost connection.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.
        lock_timeout: Seconds to wait for a lock of another session; 0 waits without limit.

    Fleet:
        fleet: As for `pgspate.load`.
        generation: As for `pgspate.load`.
        members: As for `pgspate.load`.
        member: As for `pgspate.load`.
        connections: As for `pgspate.load`.

    Reading:
        format: Format of the files. Default: by name and content.
        header: Whether the first record of each file names the columns.
        delimiter: Character between two fields of a file, of one byte.
        quote: Quote character of a file, of one byte; "none" for no quoting.
        escape: Escape character within quoted fields. Default: the quote character.
        null: Unquoted field that means NULL.
        force_null: Columns in which the NULL string means NULL even if it is quoted.
        force_not_null: Columns in which no field means NULL.
        comment: Skip lines that begin with this character, of one byte.
        skip_blank_lines: Skip empty lines.
        date_format: Format of the files' dates, such as ``"%d.%m.%Y"``, or formats by column.
        encoding: Encoding of the files, by PostgreSQL's name.
        set: Values for columns that the data lacks, by column: ``{"tenant": 7}``. None is NULL.
        file_name_column: Column for the name of each row's file.
        snake_case: Read the names of fields and keys in snake case: ``OrderId`` as ``order_id``.
        ignore_unknown: Ignore fields and keys that name no column, or a generated column. For dicts
            with ``columns=``: keys that are not in it.
        add_columns: Add columns that the table lacks, with types that fit the data.
        source_option: Settings of object stores and web servers, and HTTP headers. The values
            ``@FILE`` and ``env:NAME`` read a secret from a file or an environment variable.

    Returns:
        What the sync did, or with ``check=True`` would do.

    Raises:
        Error: The sync failed; the subclass says how. Nothing was changed, except by transactions
            of ``lanes=`` and ``transactions=`` that were committed.

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
    to: Target | None = None,
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
    """Applies a stream of inserts, updates and deletes to its tables, each event exactly once.

    Options are those of the command ``pgspate apply``, with the same defaults.

    An iterable may be endless, such as a generator that reads from a queue: its events are applied
    as they arrive. With ``stream=`` the iterable must yield the stream from its first event, and
    `apply` skips the events that earlier calls applied. Without ``stream=`` the ledger keeps no
    position of an iterable, and a second call applies the same events again.

    Args:
        events: A path or URL, or a list of them; a replication slot, as
            ``postgres://user@host/dbname?slot=NAME&publication=NAME``; or an iterable of events:
            dicts, or JSON as ``str`` or ``bytes``.
        to: As for `load`.
        stream: Name of the stream in the ledger. Default for files: the full path of the first
            file.
        format: Format of the events, by a name that ``pgspate apply --help`` lists. Default: by
            content.
        map: Source tables, each with the table to which its events are applied:
            ``{"shop.orders": "public.o"}``. A ``*`` in both names stands for the same text.
        tables: Apply the events of these tables only, by their names in the stream. A ``*`` in a
            name stands for any text.
        unknown_columns: What to do with columns that the table does not have: fail, ignore them,
            or add them to the table.
        at_end: What to do when the input ends within a source transaction. ``"hold"`` does not
            apply the events of that transaction and raises `FormatError`. ``"apply"`` applies them.
        max_dead_letters: Write up to this many bad events to the table ``pgspate.dead_letter``, and
            apply the others.
        retry_for: Seconds to retry while the server cannot be reached, or after a deadlock.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.
        lock_timeout: Seconds to wait for a lock of another session; 0 waits without limit.
        batch_rows: Commit at most this many events together.
        batch_bytes: Commit at most this many MiB of events together.
        direct_rows: Do not use a temporary table for batches of at most this many rows.
        batch_delay: Milliseconds that an event waits for further events while no batch is written.
        follow: Continue at the end of the input until interrupted: with lines that are appended to
            the last file, or with transactions that the source commits.
        create_slot: Create the replication slot if it does not exist.
        snapshot: Create the replication slot if it does not exist, and copy the rows of its tables
            before the changes are applied.
        source_table: Table for events that do not name their table.
        debezium_placeholder: Value of ``unavailable.value.placeholder``, if Debezium's connector
            sets one.
        debezium_time: Unit of times in Debezium's messages without a schema.
        debezium_decimals: Encoding of decimals in Debezium's messages without a schema.
        debezium_bytes: Encoding of bytes in Debezium's messages without a schema.
        dms_columns: Columns of DMS csv files without a header.
        dms_header: Read the first line of DMS csv files as column names, even if the first name is
            not ``Op``.
        dms_null: Unquoted field of DMS csv files that means NULL.
        dms_absent: Unquoted field of DMS csv files that means "this column was not sent".
        dms_delimiter: Character between two fields of DMS csv files.
        source_option: Settings of object stores and web servers, and HTTP headers. The values
            ``@FILE`` and ``env:NAME`` read a secret from a file or an environment variable.
        metrics: Serve metrics for Prometheus at this address, such as "127.0.0.1:9187".
        progress: As for `load`.

    Returns:
        What the call did.

    Raises:
        Error: The call failed; the subclass says how. Batches that were committed before the error
            stay.

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
    """Raises `UsageError` unless exactly one scope is given."""
    scope = options.get("scope")
    if not isinstance(scope, (str, type(None))):
        message = f"`scope=` is an object of class {type(scope).__name__}"
        hint = "Give SQL as a text. `pgspate.sqlalchemy.sync` takes expressions of a model."
        raise UsageError(message, hint=hint)
    names = ("scope_by", "scope", "no_delete", "insert_only")
    given = [name for name in names if options.get(name)]
    if len(given) != 1:
        message = "no scope is given"
        if given:
            message = f"{given[0]} and {given[1]} exclude each other"
        hint = "Give one of `scope_by=`, `scope=`, `no_delete=True` and `insert_only=True`."
        raise UsageError(message, hint=hint)


LOAD = Command(_pgspate.load, LoadReport, "loading", classify_data)
PLAN = Command(_pgspate.plan, Plan, "planning", classify_data)
SYNC = Command(_pgspate.sync, SyncReport, "syncing", classify_data, check_scope)
SYNC_SCRIPT = Command(_pgspate.sync_script, SyncReport, "", classify_data, check_scope)
APPLY = Command(_pgspate.apply, ApplyReport, "applying", classify_events)
