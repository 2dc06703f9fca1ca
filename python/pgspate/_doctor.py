"""`doctor` and `tune`."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import _pgspate
from ._call import Command
from ._report import Report, of_facts

if TYPE_CHECKING:
    from ._options import HasDsn, Path

__all__ = ["Examination", "Finding", "Tuning", "doctor", "tune"]

_COLOURS = {"warning": "#c0392b", "note": "#b07d00", "cannot_see": "#888", "ok": "#2e7d32"}


@dataclass(frozen=True)
class Finding:
    """What one check found about one table, index or setting.

    Attributes:
        id: Name of the check, such as ``dead-rows``.
        question: Question that the check answers.
        verdict: ``warning``, ``note``, ``cannot_see`` or ``ok``.
        object: Name of the table, index or setting, written as in SQL.
        evidence: What the check saw, in words.
        numbers: What the check saw, in numbers.
        advice: What to do, in words.
        remedy: What to run: statements or settings, one an item.
        rule: Source of the rule.
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
        """Whether the finding asks for action."""
        return self.verdict in ("warning", "note")

    def _repr_html_(self) -> str:
        return f"<table>{self._row()}</table>"

    def _row(self) -> str:
        text = html.escape
        colour = _COLOURS.get(self.verdict, "inherit")
        parts = [text(self.evidence)]
        if self.advice:
            parts.append(f"<em>{text(self.advice)}</em>")
        if self.remedy:
            parts.append(f"<pre>{text(chr(10).join(self.remedy))}</pre>")
        name = text(self.id) + (f"<br>{text(self.object)}" if self.object else "")
        left = "vertical-align:top;text-align:left"
        return (
            f'<tr><td style="{left};color:{colour}">{text(self.verdict.replace("_", " "))}</td>'
            f'<td style="{left}">{name}</td><td style="{left}">{"<br>".join(parts)}</td></tr>'
        )


@dataclass(frozen=True, repr=False)
class Examination(Report):
    """What `doctor` found on a server.

    Attributes:
        server_version: Version of the server.
        flavour: Kind of PostgreSQL, such as RDS or Aurora.
        peculiarities: How this kind differs from a self-hosted PostgreSQL.
        database: Name of the database.
        role: Name of the role that ran the checks.
        sampled_seconds: How long sessions were sampled, in seconds.
        findings: All findings, the worst first, with those of checks that found nothing.
    """

    server_version: str = ""
    flavour: str = ""
    peculiarities: list[str] = field(default_factory=list)
    database: str = ""
    role: str = ""
    sampled_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def _of(cls, facts: dict[str, Any]) -> Examination:
        findings = [of_facts(Finding, one) for one in facts["findings"]]
        return of_facts(cls, {**facts, "findings": findings, "_facts": facts})

    @property
    def trouble(self) -> list[Finding]:
        """The findings that ask for action."""
        return [one for one in self.findings if one.is_trouble]

    def _summary(self) -> str:
        ids = ", ".join(dict.fromkeys(one.id for one in self.trouble)) or "nothing"
        return f"{self.database}: {ids} found by {len(self.findings)} checks"

    def _repr_html_(self) -> str:
        silent = [one.id for one in self.findings if one.verdict == "ok"]
        rows = "".join(one._row() for one in self.findings if one.verdict != "ok")
        caption = f"PostgreSQL {self.server_version}, database {self.database}, role {self.role}"
        said = f"<p>no problem found by {html.escape(', '.join(silent))}</p>" if silent else ""
        style = "text-align:left;white-space:nowrap;font-weight:bold"
        head = f'<caption style="{style}">{html.escape(caption)}</caption>'
        return f"<table>{head}{rows}</table>{said}"


@dataclass(frozen=True, repr=False)
class Tuning(Report):
    """What `tune` proposes or did.

    Attributes:
        machine: Machine that the settings are proposed for.
        proposals: Settings to change: ``name``, ``now``, ``value``, ``reason``, ``risk``, and
            whether the change ``needs_restart``.
        outstanding: Settings that an earlier call changed and that were not reverted.
        changed: Settings that were changed or reverted, each with its new value.
        left: Settings that were not changed, because they need a restart.
        overruled: Settings without effect, because a role or a database sets another value.
        kept: Settings that were not reverted, because another session has changed them since.
        text: Text that ``emit=`` asked for.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    proposals: list[dict[str, Any]] = field(default_factory=list)
    outstanding: list[str] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    overruled: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    text: str = ""

    @classmethod
    def _of(cls, facts: Any) -> Tuning:
        return super()._of({"text": facts} if isinstance(facts, str) else facts)

    def _summary(self) -> str:
        if self.changed:
            return "changed " + ", ".join(f"{name} = {value}" for name, value in self.changed)
        names = ", ".join(f"{it['name']} = {it['value']}" for it in self.proposals)
        return f"proposes {names or 'nothing'}"


DOCTOR = Command(_pgspate.doctor, Examination)
TUNE = Command(_pgspate.tune, Tuning)


def doctor(
    *,
    to: str | HasDsn | None = None,
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
        table: Check only this table.
        watch: How long to sample what sessions wait for: seconds, or a time such as "5min".
        storage: Type and size of the server's volume, such as "gp2:250GiB".
        large_table: Size from which a table should be partitioned.
        stall_timeout: Seconds without data from the server before a connection counts as stalled.
        picture: Draw the table's pages into this SVG file.

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
    to: str | HasDsn | None = None,
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
        memory: Memory of the server's machine, such as "16GiB". Default, if the server runs on this
            machine: its memory.
        cpus: Number of the server's processors. Default, if the server runs on this machine: its
            processors.
        emit: Return the settings as `text`, in this form.
        parameter_group: Name of the parameter group for ``emit=``.
        apply: Apply the settings by ALTER SYSTEM. The ledger gets the old values first.
        revert: Restore the settings that ``apply=True`` changed.
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
