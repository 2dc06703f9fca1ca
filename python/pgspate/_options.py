"""Converts the options of a call into arguments of the command, which has the same options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union

from ._python_words import FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._progress import Progress

When = Literal["auto", "always", "never"]
Format = Literal["csv", "tsv", "text", "json", "parquet", "arrow"]
Path = Union[str, "os.PathLike[str]"]
Names = Union[str, Sequence[str]]
Show = Union[bool, "Callable[[Progress], object]"]

# Options with an item for each key.
KEYED = {"map", "source_option", "date_format", *FLAGS}


def command_arguments(options: Mapping[str, Any], *, has_source: bool) -> list[str]:
    """Returns the command's arguments for the options of a call.

    An option with several items becomes several flags, because an item may contain a comma.
    """
    arguments: list[str] = []
    for name, value in options.items():
        flag = "--" + FLAGS.get(name, name).replace("_", "-")
        if name == "header":
            value = {True: "yes", False: "no"}.get(value, value)
        if value is True:
            arguments.append(flag)
        elif isinstance(value, Mapping) and name == "set":
            arguments += [f"{flag}={key}={_constant(item)}" for key, item in value.items()]
        elif isinstance(value, Mapping) and name in KEYED:
            arguments += [f"{flag}={key}={setting}" for key, setting in value.items()]
        elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            arguments += [flag + "=" + item for item in value]
        elif value is not None and value is not False:
            text = os.fspath(value) if isinstance(value, os.PathLike) else value
            arguments.append(flag + "=" + (text if isinstance(text, str) else str(text)))
    # The command requires a source. The engine replaces `-` with the data of the call.
    return arguments + ["-"] * has_source


def _constant(value: object) -> str:
    """Returns the text of a value for all rows, as COPY would read it."""
    if value is None:
        return "\\N"
    if isinstance(value, (bytes, bytearray)):
        return "\\x" + value.hex()
    return str(value)
