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
    """What a check has found, about one thing.

    Attributes:
        id: The check's name, such as ``dead-rows``.
        question: What it wanted to know.
        verdict: ``warning``, ``note``, ``cannot_see`` or ``ok``.
        object: The table, index or setting that it is about, as SQL writes it.
        evidence: What was seen, in words.
        numbers: What was seen, in numbers.
        advice: What to do, in words.
        remedy: What to run, one statement or setting each.
        rule: Where the rule is from.
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
        """Whether something should be done about it."""
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
    """What `doctor` has found on a server.

    Attributes:
        server_version: The server's version.
        flavour: Which kind of PostgreSQL it is.
        peculiarities: What is different there.
        database: The database.
        role: The role that looked.
        sampled_seconds: For how many seconds sessions were sampled.
        findings: What was found, the worst first; checks that found nothing are among them.
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
        """The findings about which something should be done."""
        return [one for one in self.findings if one.is_trouble]

    def _summary(self) -> str:
        ids = ", ".join(dict.fromkeys(one.id for one in self.trouble)) or "nothing"
        return f"{self.database}: {ids} found by {len(self.findings)} checks"

    def _repr_html_(self) -> str:
        silent = [one.id for one in self.findings if one.verdict == "ok"]
        rows = "".join(one._row() for one in self.findings if one.verdict != "ok")
        caption = f"PostgreSQL {self.server_version}, database {self.database}, role {self.role}"
        said = f"<p>nothing found by {html.escape(', '.join(silent))}</p>" if silent else ""
        style = "text-align:left;white-space:nowrap;font-weight:bold"
        head = f'<caption style="{style}">{html.escape(caption)}</caption>'
        return f"<table>{head}{rows}</table>{said}"


@dataclass(frozen=True, repr=False)
class Tuning(Report):
    """What `tune` proposes, or has done.

    Attributes:
        machine: The machine for which settings are proposed.
        proposals: Settings that should be others: ``name``, ``now``, ``value``, ``reason``,
            ``risk``, and whether it ``needs_restart``.
        outstanding: Settings that were changed before and not put back.
        changed: Settings that were changed or put back, each with its value now.
        left: Settings that were left alone, as they would need a restart.
        overruled: Settings that did not follow, as a role or a database says otherwise.
        kept: Settings that somebody else has changed since, and that stay as they are.
        text: What ``emit=`` has asked for.
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
    """Looks for what slows writes on a server, and says what to do. Changes nothing.

    Options are those of the command ``pgspate doctor``, with the same defaults.

    Args:
        to: As for `load`.
        table: Look at this table only.
        watch: Sample what sessions wait for, for so long: seconds, or a time such as "5min".
        storage: The server's volume, such as "gp2:250GiB".
        large_table: From which size on a table should be partitioned.
        stall_timeout: Seconds to wait for a connection over which nothing comes any more.
        picture: Draw the table's pages into this file, as SVG.

    Returns:
        What was found, with evidence, and the SQL or setting that mends it.

    Raises:
        Error: The server cannot be reached, or there is no such table.

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
    """Proposes settings for a bulk load, sets them, or puts them back.

    Options are those of the command ``pgspate tune``. Without ``apply=`` and ``revert=`` nothing is
    changed.

    Args:
        to: As for `load`.
        memory: Memory of the server's machine, such as "16GiB"; found out where it is this one.
        cpus: Processors of the server's machine; found out where it is this one.
        emit: Give the settings as `text`, for whoever applies them.
        parameter_group: The parameter group that ``emit=`` is for.
        apply: Apply them by ALTER SYSTEM; the way back is in the ledger first.
        revert: Put back what ``apply=True`` has changed.
        stall_timeout: Seconds to wait for a connection over which nothing comes any more.

    Returns:
        What is proposed, or was done.

    Raises:
        Error: The server cannot be reached, or refuses.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     tuning = pgspate.tune(to=server, memory="16GiB", cpus=4)
        >>> "max_wal_size" in [one["name"] for one in tuning.proposals]
        True
    """
    return TUNE(None, {**locals()})
