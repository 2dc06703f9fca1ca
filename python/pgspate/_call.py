"""Passes the data and options of a call to the engine, and returns the engine's report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from . import _pgspate
from ._errors import UsageError
from ._options import command_arguments, constants_by_column, refuse_file_options
from ._progress import progress_callback
from ._report import Report
from ._running import running
from ._target import conninfo, warn_of_default
from ._words import refuse_foreign_words, refuse_table_object

R_co = TypeVar("R_co", bound=Report, covariant=True)

# The first item is the engine's view of the data: kind, data, and name for messages. The second
# item holds the column names if the engine cannot read the names from the data; else None.
ClassifiedData = tuple[tuple[str, Any, str], "list[str] | None"]


@dataclass(frozen=True)
class Command(Generic[R_co]):
    """A command of the engine.

    Attributes:
        engine_function: Function of the engine that runs the command.
        report_class: Class of the report.
        activity: First word of the progress line, such as "loading".
        classify: Finds out the kind of the data; None for a command without data.
        check_options: Checks the options. Its errors name the argument in Python; errors of the
            engine would name the command's flag.
    """

    engine_function: Callable[..., str]
    report_class: type[R_co]
    activity: str = ""
    classify: Callable[..., ClassifiedData] | None = None
    check_options: Callable[[Mapping[str, Any]], None] | None = None

    def __call__(
        self, data: Any, options: Mapping[str, Any], stop: _pgspate.Stop | None = None
    ) -> R_co:
        """Runs the command and returns its report."""
        return self.report_class._from_dict(self.run_to_dict(data, options, stop))

    def run_to_dict(
        self, data: Any, options: Mapping[str, Any], stop: _pgspate.Stop | None = None
    ) -> Any:
        """Runs the command and returns its report as a dict."""
        refuse_foreign_words(options)
        refuse_table_object(options.get("table"))
        if self.classify is not None and options.get("table", "") is None:
            hint = "Give its name as in SQL. Perhaps a variable is not set."
            raise UsageError("the table is None", hint=hint)
        if self.check_options is not None:
            self.check_options(options)
        rest = dict(options)
        to = conninfo(rest.pop("to", None))
        if self.classify is not None:
            warn_of_default(to)
        progress = rest.pop("progress", False)
        constants = constants_by_column(rest.pop("set", None))
        data_arguments: tuple[Any, ...] = ()
        total_rows = None
        if self.classify is not None:
            data_options = {name: rest.pop(name) for name in ("index",) if name in rest}
            if rest.get("columns") is not None:
                data_options["columns"] = rest["columns"]
            classified, columns = self.classify(data, **data_options)
            data_arguments = (classified,)
            if columns is not None and rest.get("columns") is None:
                rest["columns"] = columns
            is_files = classified[0] == "sources"
            if not is_files and classified[0] != "events":
                refuse_file_options(rest, classified[2])
            total_rows = len(data) if hasattr(data, "__len__") and not is_files else None
        arguments = command_arguments(rest, has_source=self.classify is not None)
        target = rest.get("table") or rest.get("stream") or "events"
        activity = f"{self.activity} {target}"
        with progress_callback(progress, activity, total_rows) as callback, running(stop) as stop:
            call_options = (arguments, to, callback, stop, constants)
            return json.loads(self.engine_function(*data_arguments, call_options))
