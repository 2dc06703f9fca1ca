"""Converts the options of a call into arguments of the command, which has the same options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union

from ._errors import UsageError
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


# Options about how files are read, with the values that are their defaults.
_FILE_OPTIONS = {
    "format": None, "header": "auto", "delimiter": None, "quote": None, "escape": None,
    "comment": None, "skip_blank_lines": False,
}

# Options that are always, never or automatically done.
_WHEN = {"analyze", "pause_autovacuum", "read_ahead", "rebuild_indexes"}


def command_arguments(options: Mapping[str, Any], *, has_source: bool) -> list[str]:
    """Returns the command's arguments for the options of a call.

    An option with several items becomes several flags, because an item may contain a comma.

    Raises `UsageError` if an item is not a text.
    """
    arguments: list[str] = []
    for name, value in options.items():
        if name in ("columns", "dms_columns"):
            refuse_unordered(name, value)
        flag = "--" + FLAGS.get(name, name).replace("_", "-")
        if isinstance(value, bool):
            value = _switched(name, value)
        if value is True:
            arguments.append(flag)
        elif isinstance(value, Mapping) and name in KEYED:
            arguments += [f"{flag}={key}={setting}" for key, setting in value.items()]
        elif isinstance(value, Mapping):
            raise UsageError(f"`{name}=` is a dict", hint="Give a list, or one value.")
        elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            arguments += [f"{flag}={_item(name, item)}" for item in value]
        elif value is not None and value is not False:
            text = os.fspath(value) if isinstance(value, os.PathLike) else value
            arguments.append(flag + "=" + (text if isinstance(text, str) else str(text)))
    # The command requires a source. The engine replaces `-` with the data of the call.
    return arguments + ["-"] * has_source


def refuse_unordered(name: str, names: object) -> None:
    """Raises `UsageError` for a set or dict of names that need an order."""
    if isinstance(names, Mapping):
        hint = "Give the names of the table as a list, in the order of the data. Frames are "
        hint += "renamed by `frame.rename(columns=...)` (pandas) and `frame.rename(...)` (polars)."
        raise UsageError(f"`{name}=` is a dict, and pgspate renames no columns", hint=hint)
    if isinstance(names, (set, frozenset)):
        message = f"`{name}=` is a set, whose items have no order"
        raise UsageError(message, hint="Give a list.")


def refuse_file_options(options: Mapping[str, Any], data_name: str) -> None:
    """Raises `UsageError` for an option about files, if the data are no files."""
    for name, default in _FILE_OPTIONS.items():
        if options.get(name, default) != default:
            message = f"`{name}=` is about files, and an object of class {data_name} is no file"
            raise UsageError(message, hint="Leave it out.")


def constants_by_column(constants: object) -> dict[str, object] | None:
    """Returns the values of `set=` by column.

    Raises `UsageError` if `set=` is not a mapping, or if a column is not named by a text.
    """
    if constants is None:
        return None
    hint = 'Give the values by column: `set={"tenant": 7}`.'
    if not isinstance(constants, Mapping):
        message = f"`set=` is of class {type(constants).__name__}, not a dict"
        raise UsageError(message, hint=hint)
    return {_item("set", column, hint): value for column, value in constants.items()}


def _switched(name: str, value: bool) -> bool | str:
    """Returns the command's word for True or False, if the option has other values, too."""
    if name == "header":
        return "yes" if value else "no"
    if name in _WHEN:
        return "always" if value else "never"
    return value


def _item(name: str, item: object, hint: str | None = None) -> str:
    if isinstance(item, str):
        return item
    message = f"`{name}=` has an item of class {type(item).__name__}, not a text"
    raise UsageError(message, hint=hint)
