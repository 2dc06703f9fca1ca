"""The reports of the calls."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from ._html import report_rows, table
from ._python_words import in_python, report_in_python

_T = TypeVar("_T")
_R = TypeVar("_R", bound="Report")


def dataclass_from_dict(cls: type[_T], values: dict[str, Any]) -> _T:
    """Returns an object of a dataclass. Ignores values for which the class has no field."""
    names = {one.name for one in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: values[name] for name in names & values.keys()})


@dataclass(frozen=True, repr=False)
class Report:
    """What a call did, or would do."""

    _engine_report: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def _from_dict(cls: type[_R], report: dict[str, Any]) -> _R:
        values = {**report_in_python(report), "_engine_report": report}
        return dataclass_from_dict(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the whole report, as the command prints it with ``--json``.

        The report of a call with ``within=`` has only the table and the counts of rows.

        Returns:
            The keys and values of the JSON object.

        Example:
            >>> import pgspate
            >>> with pgspate.server(temporary=True) as server:
            ...     report = pgspate.load([{"a": 1}], "t", create=True, to=server)
            >>> report.to_dict()["rows_written"]
            1
        """
        return dict(self._engine_report)

    def _summary(self) -> str:
        """Returns the report in one line."""
        return ""

    def __repr__(self) -> str:
        warnings = getattr(self, "warnings", [])
        warned = f", {counted(len(warnings), 'warning')}" if warnings else ""
        return f"<{type(self).__name__} {self._summary()}{warned}>"

    def _repr_html_(self) -> str:
        return table(self._summary(), report_rows(self._html_values()))

    def _html_values(self) -> dict[str, Any]:
        """Returns the values that a notebook shows."""
        return report_in_python(self._engine_report)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 row``, ``2,000 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


@dataclass(frozen=True, repr=False)
class LoadReport(Report):
    """What a load did.

    Attributes:
        table: Name of the table, written as in SQL.
        created: Whether the load created the table.
        inputs: Number of inputs.
        files: How many files were ``new``, ``skipped`` because they are in the table, and
            ``changed`` since they were loaded.
        rows_in: Rows read.
        rows_written: Rows written.
        rows_kept_out: Rows that were read but not written, because a trigger skipped them.
        rows_as_text: Rows that were written as text, because pgspate could not encode them.
        rows_rejected: Rows that were rejected, including those of earlier runs of the same load.
        rows_rejected_before: The part of ``rows_rejected`` that earlier runs have rejected.
        rows_before: Rows that earlier runs of the same load have written.
        rejects: File with the rejected rows.
        stored_bytes: Size of the inputs as stored, in bytes, if known.
        bytes: Size of the inputs after decompression, in bytes.
        bytes_before: The part of ``bytes`` that earlier runs of the same load have written.
        bytes_sent: Bytes sent to the server.
        path: ``binary`` or ``text``: the format of COPY.
        lanes: Connections that sent rows.
        chunks: Chunks of the input.
        job: Number of the load's job in the ledger, if it has one.
        seconds: Seconds from the begin of reading to the last commit.
        stages: Busy seconds of all lanes together, by stage.
        wal_bytes: WAL that the whole server wrote during the load, other sessions included.
        rebuilt: Indexes, foreign keys and table options that were restored after the load, by kind
            and name.
        counted: ``analyze`` or ``vacuum (freeze, analyze)``, if that ran after the load.
        sequences: Sequences that were advanced past the loaded values.
        widened: Columns that the load gave a wider type.
        added_columns: Columns that ``add_columns=`` added to the table: ``name`` and ``type``.
        at_once: How all rows became visible at the same time, with ``replace=`` or ``atomic=``.
        fleet: Which member of a fleet the load was, with ``fleet=``.
        warnings: Warnings, such as what slowed the load down.
        input: Facts that were found about the input, such as its format and whether it has a
            header.
        related: Other tables with rows of related objects: ``table`` and ``rows``. Only from
            `pgspate.sqlalchemy.load`.
    """

    table: str = ""
    created: bool = False
    inputs: int = 0
    files: dict[str, int] = field(default_factory=dict)
    rows_in: int = 0
    rows_written: int = 0
    rows_kept_out: int = 0
    rows_as_text: int = 0
    rows_rejected: int = 0
    rows_rejected_before: int = 0
    rows_before: int = 0
    rejects: str | None = None
    stored_bytes: int | None = None
    bytes: int = 0
    bytes_before: int = 0
    bytes_sent: int = 0
    path: str = ""
    lanes: int = 0
    chunks: int = 0
    job: int | None = None
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    wal_bytes: int | None = None
    rebuilt: list[str] = field(default_factory=list)
    counted: str | None = None
    sequences: list[dict[str, Any]] = field(default_factory=list)
    widened: list[dict[str, Any]] = field(default_factory=list)
    added_columns: list[dict[str, str]] = field(default_factory=list)
    at_once: dict[str, Any] | None = None
    fleet: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    input: list[str] = field(default_factory=list)
    related: list[dict[str, Any]] = field(default_factory=list)

    def _summary(self) -> str:
        text = f"{self.table}: {counted(self.rows_written, 'row')} in {self.seconds:.2f} s"
        if self.rows_before:
            text += f", {self.rows_before:,} before"
        if self.rows_rejected:
            text += f", {self.rows_rejected:,} rejected"
        return text


@dataclass(frozen=True, repr=False)
class SyncReport(Report):
    """What a sync did, or with ``check=True`` would do.

    Attributes:
        table: Name of the table, written as in SQL.
        created: Whether the sync created the table.
        added_columns: Columns that ``add_columns=`` added to the table: ``name`` and ``type``.
        rows_in: Rows of the source. With ``keep="last"``, one for each key.
        inserted: Rows inserted.
        updated: Rows updated.
        updated_hot: Updated rows whose update was HOT: no index was written. ``None`` if other
            servers store the rows.
        deleted: Rows of the scope that were deleted, because the source does not have them.
        changes_kept_out: Inserts, updates and deletes that triggers kept out.
        unchanged: Rows that were equal already and were not written; with `insert_only`, rows whose
            keys the table had, which were not compared.
        rows_known: Unchanged rows that were not staged, because the table was read ahead.
        sessions: Sessions that shared the scopes, each with its own transaction.
        transactions: Number of transactions of a session, one after another.
        is_check: Whether the sync was a check, which writes nothing.
        insert_only: Whether rows were only inserted, with ``insert_only=``.
        examples: Keys of rows to insert, to update and to delete; only for a check.
        stage_seconds: Seconds for copying the source into the stage.
        write_seconds: Seconds for comparing and writing.
        vacuum_seconds: Seconds of the VACUUM after the sync, if it ran.
        wal_bytes: WAL of the statements that wrote, in bytes. ``None`` if other servers store the
            rows.
        blocks_dirtied: Clean pages that these statements changed. ``None`` if other servers store
            the rows.
        blocks_hit: Pages of the table and its indexes that were found in the server's cache, if
            known.
        blocks_read: Pages of the table and its indexes that were read from outside the server's
            cache, if known.
        table_bytes: Size of the table before and after, in bytes.
        index_bytes: Size of the table's indexes before and after, in bytes.
        dead_rows: Dead tuples that the sync left.
        table_dead_rows: Dead tuples of the table before and after, by the server's estimate.
        bill: Estimated price of the sync's reads and writes on a server that bills I/Os.
        measured: Everything that the server counted during the sync, other sessions included.
        advice: What would make the next sync cheaper.
        warnings: Work that failed after the rows were committed, and what was guessed of the
            source.
        input: Facts that were found about the source, such as its format and whether it has a
            header.
        fleet: Which member of a fleet the sync was, with ``fleet=``.
    """

    table: str = ""
    created: bool = False
    added_columns: list[dict[str, str]] = field(default_factory=list)
    rows_in: int = 0
    inserted: int = 0
    updated: int = 0
    updated_hot: int | None = None
    deleted: int = 0
    changes_kept_out: int = 0
    unchanged: int = 0
    rows_known: int | None = None
    sessions: int = 1
    transactions: int = 1
    is_check: bool = False
    insert_only: bool = False
    examples: dict[str, list[str]] = field(default_factory=dict)
    stage_seconds: float = 0.0
    write_seconds: float = 0.0
    vacuum_seconds: float | None = None
    wal_bytes: int | None = None
    blocks_dirtied: int | None = None
    blocks_hit: int | None = None
    blocks_read: int | None = None
    table_bytes: list[int | None] = field(default_factory=lambda: [None, None])
    index_bytes: list[int | None] = field(default_factory=lambda: [None, None])
    dead_rows: int = 0
    table_dead_rows: list[int | None] = field(default_factory=lambda: [None, None])
    bill: dict[str, Any] | None = None
    measured: dict[str, Any] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    input: list[str] = field(default_factory=list)
    fleet: dict[str, Any] | None = None

    @property
    def is_same(self) -> bool:
        """Whether the scope of the table was equal to the source already."""
        return self.inserted + self.updated + self.deleted == 0

    def _summary(self) -> str:
        inserted = "to insert" if self.is_check else "inserted"
        updated = "to update" if self.is_check else "updated"
        deleted = "to delete" if self.is_check else "deleted"
        if self.insert_only:
            return f"{self.table}: {self.inserted:,} {inserted}, {self.unchanged:,} not compared"
        return (
            f"{self.table}: {self.inserted:,} {inserted}, {self.updated:,} {updated}, "
            f"{self.deleted:,} {deleted}, {self.unchanged:,} unchanged"
        )


@dataclass(frozen=True, repr=False)
class ApplyReport(Report):
    """What an apply did.

    Attributes:
        stream: Name of the stream in the ledger.
        events_before: Events that earlier calls have applied.
        events: Events of this call.
        left_out: Events of tables that ``tables=`` does not name.
        bytes: Size of the events, in bytes.
        inserted: Rows inserted.
        updated: Rows updated. Rows that were equal already do not count.
        deleted: Rows deleted.
        truncated: Tables truncated.
        missing: Updates whose row did not exist. Deletes count only in tables without a key.
        changes_kept_out: Changes that triggers of the target tables kept out.
        dead_letters: Events that were written to ``pgspate.dead_letter``.
        batches: Transactions committed.
        tables: Names of the target tables, written as in SQL.
        position: Position of the last applied event, in the source's terms (such as an LSN).
        copied: Tables whose rows were copied before the stream began.
        uncounted: Committed batches whose counts may be too low, because replies of the server
            were lost with a connection.
        seconds: Seconds from the first byte to the last commit.
        is_stopped: Whether the call was stopped; the last batch is complete.
        warnings: Warnings, such as updates and deletes that found no row.
    """

    stream: str = ""
    events_before: int = 0
    events: int = 0
    left_out: int = 0
    bytes: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    truncated: int = 0
    missing: int = 0
    changes_kept_out: int = 0
    dead_letters: int = 0
    batches: int = 0
    tables: list[str] = field(default_factory=list)
    position: str = ""
    copied: list[dict[str, Any]] = field(default_factory=list)
    uncounted: int = 0
    seconds: float = 0.0
    is_stopped: bool = False
    warnings: list[str] = field(default_factory=list)

    def _summary(self) -> str:
        return (
            f"{', '.join(self.tables) or self.stream}: {counted(self.events, 'event')}, "
            f"{self.inserted:,} inserted, {self.updated:,} updated, {self.deleted:,} deleted"
        )


@dataclass(frozen=True, repr=False)
class Plan(Report):
    """What a load would do, and why. ``str()`` returns the text that the command prints, with the
    arguments of Python.

    Attributes:
        table: Name of the table, written as in SQL.
        create: Statement that creates the table, if it does not exist.
        add_columns: Statement that adds columns to the table, with ``add_columns=``.
        storage: Where an extension stores the rows, and what follows. ``None`` without one.
        path: ``binary`` or ``text``: the format of COPY.
        path_reason: Reason for the path.
        lanes: Number of connections at the start.
        lanes_max: Maximum number of connections.
        lanes_reason: Reason for the number of connections.
        columns: Columns that the load writes: ``name``, ``type``, and ``way``: how values are sent.
        omitted: Columns that the input does not have: ``name``, and ``becomes``: their value.
        indexes: Indexes and foreign keys: ``name``, ``kind``, ``dropped``: whether the load drops
            the index and creates it again, and ``stays``: the reason for keeping it.
        warnings: Warnings, such as what will make the load slow.
    """

    table: str = ""
    create: str | None = None
    add_columns: str | None = None
    storage: str | None = None
    path: str = ""
    path_reason: str = ""
    lanes: int = 0
    lanes_max: int = 0
    lanes_reason: str = ""
    columns: list[dict[str, str]] = field(default_factory=list)
    omitted: list[dict[str, str]] = field(default_factory=list)
    indexes: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _text: str = ""

    @classmethod
    def _from_dict(cls, report: dict[str, Any]) -> Plan:
        return replace(super()._from_dict(report["report"]), _text=in_python(report["text"]))

    def __str__(self) -> str:
        return self._text

    def _html_values(self) -> dict[str, Any]:
        # The summary has the table, the path and the lanes, and these are beside their reasons.
        values = super()._html_values()
        for name in ("path", "lanes"):
            values[name] = f"{values[name]}: {values.pop(f'{name}_reason', '')}"
        return values

    def _summary(self) -> str:
        columns, lanes = counted(len(self.columns), "column"), counted(self.lanes, "lane")
        return f"{self.table}: {columns}, {self.path}, {lanes}"
