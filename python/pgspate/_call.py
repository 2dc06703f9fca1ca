"""Runs a call: passes its data and options to the engine, and returns the engine's report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from . import _pgspate
from ._options import conninfo, words
from ._progress import shown
from ._report import Report

R_co = TypeVar("R_co", bound=Report, covariant=True)

# Data as the engine takes it, and its columns if the data cannot tell the engine its columns.
Sorted = tuple[tuple[str, Any, str], "list[str] | None"]


@dataclass(frozen=True)
class Command(Generic[R_co]):
    """A command of the engine.

    Attributes:
        engine: Function of the engine that runs the command.
        report: Class of the report.
        does: Word for the progress line, such as "loading".
        sort: Turns data into what the engine takes; None for a command without data.
        check: Raises errors about options in Python's words, before the engine does.
    """

    engine: Callable[..., str]
    report: type[R_co]
    does: str = ""
    sort: Callable[[Any], Sorted] | None = None
    check: Callable[[Mapping[str, Any]], None] | None = None

    def __call__(
        self, data: Any, options: Mapping[str, Any], stop: _pgspate.Stop | None = None
    ) -> R_co:
        """Runs the command and returns its report."""
        if self.check is not None:
            self.check(options)
        return self.report._of(self.facts(data, options, stop))

    def facts(
        self, data: Any, options: Mapping[str, Any], stop: _pgspate.Stop | None = None
    ) -> Any:
        """Runs the command and returns its report as a dict."""
        rest = dict(options)
        to = conninfo(rest.pop("to", None))
        progress = rest.pop("progress", False)
        given: tuple[Any, ...] = ()
        if self.sort is not None:
            thing, columns = self.sort(data)
            given = (thing,)
            if columns is not None and rest.get("columns") is None:
                rest["columns"] = columns
        arguments = words(rest, has_source=self.sort is not None)
        what = rest.get("table") or rest.get("stream") or "events"
        is_files = bool(given) and given[0][0] == "sources"
        total = len(data) if hasattr(data, "__len__") and not is_files else None
        with shown(progress, f"{self.does} {what}", total) as callback:
            return json.loads(self.engine(*given, (arguments, to, callback, stop)))
