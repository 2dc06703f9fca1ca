"""What calls did, and what they would do."""

from __future__ import annotations

import html
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R", bound="Report")


def of_facts(cls: type[_T], facts: dict[str, Any]) -> _T:
    """An object of a dataclass, of those facts that it has fields for."""
    known = {one.name for one in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: facts[name] for name in known & facts.keys()})


@dataclass(frozen=True, repr=False)
class Report:
    """What was done, or would be."""

    _facts: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def _of(cls: type[_R], facts: dict[str, Any]) -> _R:
        return of_facts(cls, {**facts, "_facts": facts})

    def to_dict(self) -> dict[str, Any]:
        """All of it, as the command prints it with ``--json``.

        Returns:
            Names and values that can be written as JSON.

        Example:
            >>> import pgspate
            >>> with pgspate.server(temporary=True) as server:
            ...     report = pgspate.load([{"a": 1}], "t", create=True, to=server)
            >>> report.to_dict()["rows_written"]
            1
        """
        return dict(self._facts)

    def _summary(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._summary()}>"

    def _repr_html_(self) -> str:
        rows = []
        for name, value in self._facts.items():
            text = _words(value)
            if text:
                side = "left" if isinstance(value, list) and len(text) > 40 else "right"
                label = html.escape(name.replace("_", " "))
                rows.append(
                    f'<tr><th style="text-align:left;white-space:nowrap">{label}</th>'
                    f'<td style="text-align:{side}">{html.escape(text)}</td></tr>'
                )
        caption = html.escape(self._summary())
        style = "text-align:left;white-space:nowrap;font-weight:bold"
        return f'<table><caption style="{style}">{caption}</caption>{"".join(rows)}</table>'


def _words(value: Any) -> str:
    """A fact for people. Nothing for what is empty, and for what is a table of its own."""
    if value is None or value is False:
        return ""
    if isinstance(value, int) and value is not True:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return "; ".join(filter(None, map(_words, value)))
    if isinstance(value, dict):
        if any(isinstance(part, dict) for part in value.values()):
            return ""
        parts = [(name, _words(part)) for name, part in value.items()]
        return ", ".join(f"{name.replace('_', ' ')} {part}" for name, part in parts if part)
    return "yes" if value is True else str(value)


@dataclass(frozen=True, repr=False)
class LoadReport(Report):
    """What a load did.

    Attributes:
        table: The table, as SQL writes it.
        created: Whether the table was made for it.
        inputs: Inputs.
        rows_in: Rows read.
        rows_written: Rows written.
        rows_kept_out: Rows read but not written, as triggers kept them out.
        rows_as_text: Rows written that were left to the server as text.
        rows_rejected: Rows that were set aside.
        rows_before: Rows that earlier runs of the same load have written.
        rejects: The file that has the rows set aside.
        stored_bytes: Bytes of the inputs as stored, where known.
        bytes: Decompressed bytes of the inputs.
        bytes_sent: Bytes sent to the server.
        path: ``binary`` or ``text``.
        lanes: Connections that carried rows.
        chunks: Chunks of the input.
        job: Its job in the ledger, if it has one.
        seconds: From the first byte to the last commit.
        stages: Seconds of the lanes together, by stage.
        wal_bytes: WAL that the server wrote meanwhile, for whomever.
        rebuilt: What was put back after the load, by kind and name.
        counted: ``analyze`` or ``vacuum (freeze, analyze)``, if the table was.
        sequences: Sequences that were moved past what was loaded.
        widened: Columns that had to become wider.
        at_once: How rows became visible at once, where they did.
        warnings: What slowed it down.
    """

    table: str = ""
    created: bool = False
    inputs: int = 0
    rows_in: int = 0
    rows_written: int = 0
    rows_kept_out: int = 0
    rows_as_text: int = 0
    rows_rejected: int = 0
    rows_before: int = 0
    rejects: str | None = None
    stored_bytes: int | None = None
    bytes: int = 0
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
    at_once: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    def _summary(self) -> str:
        text = f"{self.table}: {self.rows_written:,} rows in {self.seconds:.2f} s"
        if self.rows_before:
            text += f", {self.rows_before:,} before"
        if self.rows_rejected:
            text += f", {self.rows_rejected:,} set aside"
        return text


@dataclass(frozen=True, repr=False)
class SyncReport(Report):
    """What a sync did, or with ``check=True`` would do.

    Attributes:
        table: The table, as SQL writes it.
        rows_in: Rows of the source.
        inserted: Rows that were new.
        updated: Rows that differed.
        updated_hot: Of these, those written beside the old ones without touching an index.
        deleted: Rows of the scope that the source does not have.
        unchanged: Rows that were right already.
        rows_known: Of these, those that were not staged, where the table was read ahead.
        sessions: Sessions that shared the scopes, each with a transaction of its own.
        transactions: Transactions that a session had for the scopes, one after the other.
        is_check: Whether nothing was written.
        examples: Keys of rows to insert, to update and to delete; for a check.
        stage_seconds: Seconds for staging the source.
        write_seconds: Seconds for comparing and writing.
        vacuum_seconds: Seconds for vacuuming afterwards, where that was done.
        wal_bytes: WAL of the statements that wrote.
        blocks_dirtied: Pages that they changed first.
        blocks_hit: Pages found in the server's cache, where that is known.
        blocks_read: Pages that had to be read, where that is known.
        table_bytes: Bytes of the table, before and after.
        index_bytes: Bytes of its indexes, before and after.
        dead_rows: Dead row versions that it left behind.
        table_dead_rows: Those in the table, before and after, as the server estimates them.
        bill: What its reads and its WAL would cost where I/Os are billed.
        measured: Everything that the server counted meanwhile, for everybody.
        advice: What would make the next one cheaper.
        warnings: What could not be done although everything is written.
    """

    table: str = ""
    rows_in: int = 0
    inserted: int = 0
    updated: int = 0
    updated_hot: int = 0
    deleted: int = 0
    unchanged: int = 0
    rows_known: int | None = None
    sessions: int = 1
    transactions: int = 1
    is_check: bool = False
    examples: dict[str, list[str]] = field(default_factory=dict)
    stage_seconds: float = 0.0
    write_seconds: float = 0.0
    vacuum_seconds: float | None = None
    wal_bytes: int = 0
    blocks_dirtied: int = 0
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

    @property
    def is_same(self) -> bool:
        """Whether the table was like the source already."""
        return self.inserted + self.updated + self.deleted == 0

    def _summary(self) -> str:
        done = "to insert" if self.is_check else "inserted"
        updated = "to update" if self.is_check else "updated"
        deleted = "to delete" if self.is_check else "deleted"
        return (
            f"{self.table}: {self.inserted:,} {done}, {self.updated:,} {updated}, "
            f"{self.deleted:,} {deleted}, {self.unchanged:,} unchanged"
        )


@dataclass(frozen=True, repr=False)
class ApplyReport(Report):
    """What an apply did.

    Attributes:
        stream: The stream's name, by which the ledger knows its position.
        events_before: Events that had been applied before.
        events: Events of this call.
        left_out: Those of tables that are left out.
        bytes: Bytes that the events were.
        inserted: Rows inserted.
        updated: Rows updated: those that were not as they should be.
        deleted: Rows deleted.
        truncated: Tables emptied.
        missing: Updates and deletes for which there was no row.
        dead_letters: Events that were set aside in ``pgspate.dead_letter``.
        batches: Transactions.
        tables: The tables, as SQL writes them.
        position: Up to where the stream is applied, in the source's words.
        copied: Tables whose rows were copied before the stream began.
        uncounted: Batches that are committed and may have done more than is counted, as answers
            were lost with a connection.
        seconds: From the first byte to the last commit.
        is_stopped: It was stopped after a whole batch.
        warnings: What you should know.
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
            f"{', '.join(self.tables) or self.stream}: {self.events:,} events, "
            f"{self.inserted:,} inserted, {self.updated:,} updated, {self.deleted:,} deleted"
        )


@dataclass(frozen=True, repr=False)
class Plan(Report):
    """What a load would do, and why. ``str()`` gives it as the command prints it.

    Attributes:
        table: The table, as SQL writes it.
        create: The statement that makes the table first, if there is none yet.
        path: ``binary`` or ``text``.
        path_reason: Why.
        lanes: Connections at first.
        lanes_max: Connections at most.
        lanes_reason: Why.
        columns: The columns that are written: ``name``, ``type`` and the ``way`` of their values.
        omitted: Columns that the input does not have: ``name``, and what it ``becomes``.
        indexes: Indexes and foreign keys, and what becomes of them.
        warnings: What will make it slow, and other things to know.
    """

    table: str = ""
    create: str | None = None
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
    def _of(cls, facts: dict[str, Any]) -> Plan:
        return replace(super()._of(facts["report"]), _text=facts["text"])

    def __str__(self) -> str:
        return self._text

    def _summary(self) -> str:
        return f"{self.table}: {len(self.columns)} columns, {self.path}, {self.lanes} lanes"
