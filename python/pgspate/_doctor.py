"""The calls `doctor` and `tune`, and their reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import _pgspate
from ._call import Command
from ._html import escape, preformatted, records, report_rows, row, table
from ._python_words import report_in_python
from ._report import Report, counted, dataclass_from_dict

if TYPE_CHECKING:
    from ._options import Path
    from ._target import Target

__all__ = ["Examination", "Finding", "Tuning", "doctor", "tune"]

# Colours of the verdicts in a notebook.
_COLOURS = {"warning": "#c0392b", "note": "#b07d00", "cannot_see": "#888", "ok": "#2e7d32"}


@dataclass(frozen=True)
class Finding:
    """What one check found about one table, index or setting.

    Attributes:
        id: Name of the check, such as ``dead-rows``.
        question: Question that the check answers.
        verdict: ``warning``, ``note``, ``cannot_see`` (the check could not be made) or ``ok``.
        object: Name of the table, index or setting, written as in SQL; None if the finding is not
            about a single object.
        evidence: Evidence of the check, in words.
        numbers: Evidence of the check, in numbers.
        advice: What to do, in words.
        remedy: Statements, commands or settings that help. Each item is complete.
        rule: Rule by which the check judges, with the source of the rule.
    """

    id: str = ""
    question: str = ""
    verdict: str = ""
    object: str | None = None
    evidence: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    advice: str | None = None
    remedy: list[str] = field(default_factory=list)
    rule: str = ""

    @property
    def is_trouble(self) -> bool:
        """Whether the finding is a warning or a note."""
        return self.verdict in ("warning", "note")

    def _repr_html_(self) -> str:
        return table("", [self._html_row()])

    def _html_row(self) -> str:
        """Returns the finding as a row of an HTML table."""
        colour = _COLOURS.get(self.verdict, "inherit")
        parts = [escape(self.evidence)]
        if self.advice:
            parts.append(f"<em>{escape(self.advice)}</em>")
        if self.remedy:
            parts.append(preformatted("\n".join(self.remedy)))
        verdict = escape(self.verdict.replace("_", " "))
        name = escape(self.id) + (f"<br>{escape(self.object)}" if self.object else "")
        return row(f'<span style="color:{colour}">{verdict}</span>', name, "<br>".join(parts))


@dataclass(frozen=True, repr=False)
class Examination(Report):
    """What `doctor` found on a server.

    Attributes:
        server_version: Version of the server.
        flavour: Kind of PostgreSQL, such as RDS or Aurora.
        peculiarities: How this kind differs from plain PostgreSQL.
        database: Name of the database.
        role: Name of the role that ran the checks.
        sampled_seconds: How long sessions were sampled, in seconds.
        findings: All findings, the worst first. A check that found no problem has a finding with
            the verdict ``ok``.
    """

    server_version: str = ""
    flavour: str = ""
    peculiarities: list[str] = field(default_factory=list)
    database: str = ""
    role: str = ""
    sampled_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def _from_dict(cls, report: dict[str, Any]) -> Examination:
        values = report_in_python(report)
        findings = [dataclass_from_dict(Finding, one) for one in values["findings"]]
        return dataclass_from_dict(cls, {**values, "findings": findings, "_engine_report": report})

    @property
    def trouble(self) -> list[Finding]:
        """The findings that are warnings or notes."""
        return [one for one in self.findings if one.is_trouble]

    def _summary(self) -> str:
        problems = ", ".join(dict.fromkeys(one.id for one in self.trouble)) or "no problem"
        checks = {one.id for one in self.findings}
        return f"{self.database}: {problems} found by {counted(len(checks), 'check')}"

    def _repr_html_(self) -> str:
        ok_ids = [one.id for one in self.findings if one.verdict == "ok"]
        rows = [one._html_row() for one in self.findings if one.verdict != "ok"]
        caption = f"PostgreSQL {self.server_version}, database {self.database}, role {self.role}"
        ok_line = f"<p>no problem found by {escape(', '.join(ok_ids))}</p>" if ok_ids else ""
        return table(caption, rows) + ok_line


@dataclass(frozen=True, repr=False)
class Tuning(Report):
    """What `tune` proposes or did.

    Attributes:
        machine: Memory and CPUs of the server's machine, and how pgspate knows them.
        proposals: Settings to change: ``name``, the current value ``now``, the proposed ``value``
            (``bare_value`` in the server's unit), ``reason``, ``risk``, and whether the change
            ``needs_restart``.
        unseen: Settings of which the role or the database has a value of its own, and the server's
            value cannot be read. Nothing is proposed for them.
        outstanding: Settings that an earlier call changed and that were not reverted.
        changed: Settings that were changed or reverted, each with its new value.
        left: Settings that were not changed, because they need a restart.
        overruled: Settings that were changed without effect, because the server's command line, a
            role or a database sets another value.
        kept: Settings that were not reverted, because another session has changed them since.
        text: Text that ``emit=`` asked for.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    proposals: list[dict[str, Any]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    outstanding: list[str] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    overruled: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    text: str = ""

    @classmethod
    def _from_dict(cls, report: Any) -> Tuning:
        return super()._from_dict({"text": report} if isinstance(report, str) else report)

    def _summary(self) -> str:
        if self.changed:
            return "changed " + ", ".join(f"{name} = {value}" for name, value in self.changed)
        names = ", ".join(f"{it['name']} = {it['value']}" for it in self.proposals)
        return f"proposes {names or 'nothing'}"

    def _repr_html_(self) -> str:
        if self.text:
            return preformatted(self.text)
        if self.changed or not self.proposals:
            return super()._repr_html_()
        count = counted(len(self.proposals), "setting")
        columns = ("name", "now", "value", "needs_restart", "reason", "risk")
        rest = report_rows({"machine": self.machine, "outstanding": self.outstanding})
        return records(self.proposals, columns, f"{count} to change") + table("", rest)


DOCTOR = Command(_pgspate.doctor, Examination)
TUNE = Command(_pgspate.tune, Tuning)


def doctor(
    *,
    to: Target | None = None,
    table: str | None = None,
    watch: float | str = "2s",
    storage: str | None = None,
    large_table: str = "100GiB",
    stall_timeout: int = 60,
    picture: Path | None = None,
) -> Examination:
    """Finds what slows writes on a server, and what to do about it. Changes nothing.

    Options are those of the command ``pgspate doctor``, with the same defaults.

    Args:
        to: As for `load`.
        table: Check only this table, and what sessions wait for.
        watch: How long to sample what sessions wait for: seconds, or a time such as "5min".
        storage: Type and size of the server's volume, such as "gp2:250GiB".
        large_table: Propose to partition tables of at least this size.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.
        picture: Draw the pages of the table into this SVG file. Needs ``table=``.

    Returns:
        The findings, with evidence, and the SQL or setting that helps.

    Raises:
        Error: The server cannot be reached, or the table does not exist.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True, settings={"fsync": "off"}) as server:
        ...     found = pgspate.doctor(to=server, watch=0.1)
        >>> [one.verdict for one in found.findings if one.object == "fsync"]
        ['warning']
    """
    return DOCTOR(None, {**locals()})


def tune(
    *,
    to: Target | None = None,
    memory: str | None = None,
    cpus: int | None = None,
    emit: Literal["sql", "rds", "terraform"] | None = None,
    parameter_group: str | None = None,
    apply: bool = False,
    revert: bool = False,
    stall_timeout: int = 60,
) -> Tuning:
    """Proposes settings for a bulk load, applies them, or reverts them.

    Options are those of the command ``pgspate tune``. Without ``apply=`` and ``revert=`` the server
    is not changed.

    Args:
        to: As for `load`.
        memory: Memory of the server's machine, such as "16GiB". Default: this machine's memory if
            the server runs on this machine, or else an estimate from ``shared_buffers`` or 4 GiB.
        cpus: Number of CPUs of the server's machine. Default: this machine's number if the server
            runs on this machine, or else 2.
        emit: Return the settings in this form, as `text` of the report.
        parameter_group: Name of the parameter group for ``emit=``. Default: ``bulk-load``.
        apply: Apply the settings by ALTER SYSTEM. The ledger gets the old values first.
        revert: Restore the old values of the settings that ``apply=True`` changed.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.

    Returns:
        What `tune` proposes or did.

    Raises:
        Error: The server cannot be reached, or it refuses a setting.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     tuning = pgspate.tune(to=server, memory="16GiB", cpus=4)
        >>> "max_wal_size" in [one["name"] for one in tuning.proposals]
        True
    """
    return TUNE(None, {**locals()})
