"""Turns texts of the engine, which name the command's flags, into texts about Python's arguments.

Only names that are options of a call are replaced. So flags of other programs stay, and so do
commands that have no call, such as ``pgspate status``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from . import _typed

# Options whose flag has another name: a flag is given once for each item.
FLAGS = {"types": "type"}

_CALLS = (
    _typed.LoadOptions,
    _typed.SyncOptions,
    _typed.ApplyOptions,
    _typed.DoctorOptions,
    _typed.TuneOptions,
)
# Arguments whose flag has another name.
_ARGUMENTS = {flag: name for name, flag in FLAGS.items()}
# Options whose values may look like placeholders.
_VERBATIM = {"encoding", "null", "dms_null", "dms_absent"}

# Code in backquotes.
_CODE = re.compile(r"`([^`]+)`")
# A flag with its value, up to the next flag.
_FLAG = re.compile(r" ?--([a-z][a-z-]*)(?:[ =](?!--)(.*?))?(?= --[a-z]|$)", re.DOTALL)
# A command that is a call in Python, with its flags.
_COMMAND = re.compile(r"(pgspate )?(load|sync|apply|doctor|tune)((?: --[a-z].*)?)", re.DOTALL)
# The end of a text after which an option is left out.
_LEFT_OUT = re.compile(
    r"(?:\bleav(?:e|ing)(?: out)?|\bwithout) (?:`[^`]*`(?:,? (?:or|and) |, ))*`?$", re.IGNORECASE
)
# A flag outside of backquotes, or a quoted text, which is not examined.
_BARE = re.compile(r"\"[^\"]*\"|`[^`]*`|(?<![^\s(])--([a-z][a-z-]*[a-z])(?![\w-])")
# A flag as the parser of the command's arguments names it.
_PARSED = re.compile(r"'--([a-z][a-z-]*)((?:[ =]|\[=)<[^']*)?'")
_UNKNOWN = re.compile(r"unexpected argument '--([^' =]+)' found")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|.*\.\.\.", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# Words for what a shell does and a program does not.
_SHELL_WORDS = [
    (re.compile(r"\b([Tt])he same command( without `[^`]+`)?, run again"),
     r"\1he same call\2, made again"),
    (re.compile(r"\bThe same command\b"), "The same call"),
    (re.compile(r"\bRun the (same )?command\b"), r"Make the \1call"),
    (re.compile(r"\brun the (same )?command\b"), r"make the \1call"),
]

# Fields of reports that are texts for people. Names, keys and SQL of a report stay as they are.
_TEXT_FIELDS = {
    "advice", "becomes", "counted_reason", "evidence", "failure", "indexes_reason", "input",
    "kept", "lanes_reason", "left", "machine", "outstanding", "overruled", "path_reason",
    "peculiarities", "reason", "remedy", "risk", "stays", "storage", "warnings", "way",
}


def in_python(text: str) -> str:
    """Replaces the command's flags with Python's arguments: `--lanes 5` becomes `lanes=5`."""
    if "--" in text:
        text = _CODE.sub(_replace_code, text)
        text = _UNKNOWN.sub(lambda it: f"unexpected argument `{_name(it[1])}=` found", text)
        text = _PARSED.sub(_replace_parsed, text)
        text = _BARE.sub(_replace_bare, text)
    elif "`pgspate " in text:
        text = _CODE.sub(_replace_code, text)
    for words, replacement in _SHELL_WORDS:
        text = words.sub(replacement, text)
    return text


def report_in_python(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report with all its texts for people in Python's words."""
    return {name: _all_in_python(value) if name in _TEXT_FIELDS else _nested(value)
            for name, value in report.items()}


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return report_in_python(value)
    return [_nested(item) for item in value] if isinstance(value, list) else value


def _all_in_python(value: Any) -> Any:
    if isinstance(value, str):
        # Statements and commands that help have no backquotes.
        command = _COMMAND.fullmatch(value)
        return (command and _call(command)) or in_python(value)
    if isinstance(value, dict):
        return {name: _all_in_python(item) for name, item in value.items()}
    return [_all_in_python(item) for item in value] if isinstance(value, list) else value


def _replace_code(found: re.Match[str]) -> str:
    code = found[1]
    if code.startswith("--"):
        arguments = _arguments(code, _is_left_out(found))
        return f"`{arguments}`" if arguments else found[0]
    command = _COMMAND.fullmatch(code)
    call = command and _call(command)
    return f"`{call}`" if call else found[0]


def _replace_parsed(found: re.Match[str]) -> str:
    name = _name(found[1])
    if name not in _annotations():
        return found[0]
    return f"`{name}=`" if found[2] else f"`{_argument(name, None, False)}`"


def _replace_bare(found: re.Match[str]) -> str:
    name = _name(found[1] or "")
    return _argument(name, None, _is_left_out(found)) if name in _annotations() else found[0]


def _is_left_out(found: re.Match[str]) -> bool:
    """Returns whether the words before a flag say that the flag is not given."""
    return _LEFT_OUT.search(found.string, 0, found.start()) is not None


def _call(command: re.Match[str]) -> str | None:
    """Returns a command as a call, or None if a flag is no option of a call."""
    is_named, verb, flags = command.groups()
    if not flags:
        return f"pgspate.{verb}" if is_named else None
    arguments = _arguments(flags, False)
    data = "" if verb in ("doctor", "tune") else "..., "
    return f"pgspate.{verb}({data}{_with_value(arguments)})" if arguments else None


def _arguments(flags: str, is_left_out: bool) -> str | None:
    """Returns flags as arguments, or None if a flag is no option of a call."""
    given = [(_name(name), value) for name, value in _FLAG.findall(flags)]
    if any(name not in _annotations() for name, _ in given):
        return None
    found = [_argument(name, value or None, is_left_out) for name, value in given]
    return found[0] if len(found) == 1 else ", ".join(_with_value(it) for it in found)


def _with_value(argument: str) -> str:
    return argument + "..." if argument.endswith("=") else argument


def _name(flag: str) -> str:
    name = flag.replace("-", "_")
    return _ARGUMENTS.get(name, name)


def _argument(name: str, value: str | None, is_left_out: bool) -> str:
    """Returns a flag as an argument. `is_left_out`: the text is about calls without the flag."""
    kinds = _annotations()[name]
    if value is None:
        is_switch = "bool" in kinds and name != "header"
        return f"{name}=True" if is_switch and not is_left_out else f"{name}="
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    text = value[1:-1] if is_quoted else value
    if name == "header" and text in ("yes", "no"):
        return f"header={text == 'yes'}"
    key, separator, item = text.partition("=")
    if separator and any(kind.startswith("Mapping[") for kind in kinds):
        return f"{name}={{{_quoted(key)}: {'...' if item == '...' else _quoted(item)}}}"
    is_list = "," in text and not is_quoted
    if is_list or (_PLACEHOLDER.fullmatch(text) and name not in _VERBATIM):
        return f"{name}=..."
    if _NUMBER.fullmatch(text) and {"int", "float"} & set(kinds):
        return f"{name}={text}"
    return f"{name}={_quoted(text)}"


def _quoted(text: str) -> str:
    return repr(text) if '"' in text or not text.isprintable() or "\\" in text else f'"{text}"'


@cache
def _annotations() -> dict[str, list[str]]:
    """Returns the classes of each option's values, as the calls annotate them."""
    found: dict[str, list[str]] = {}
    for call in _CALLS:
        for name, annotation in call.__annotations__.items():
            text = str(getattr(annotation, "__forward_arg__", annotation))
            found.setdefault(name, []).extend(re.split(r" \| (?![^\[]*\])", text))
    return found
