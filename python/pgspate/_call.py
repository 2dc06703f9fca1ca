"""From a call to the engine and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from . import _pgspate
from ._data import sort
from ._options import conninfo, words
from ._progress import shown

_Engine = Callable[[Any, Any], str]


def call(
    engine: _Engine,
    data: Any,
    table: str,
    options: Mapping[str, Any],
    stop: _pgspate.Stop | None = None,
) -> dict[str, Any]:
    """Has the engine do it; gives the report."""
    rest = dict(options)
    to = conninfo(rest.pop("to", None))
    progress = rest.pop("progress", False)
    given, columns = sort(data)
    if columns is not None and rest.get("columns") is None:
        rest["columns"] = columns
    arguments, lists = words(table, rest)
    with shown(progress, table, data) as told:
        report = engine(given, (arguments, lists, to, told, stop))
    facts: dict[str, Any] = json.loads(report)
    return facts
