"""Prints generated files, made from the package's docstrings and signatures.

    python reference.py             prints docs/reference/python.md
    python reference.py options     prints python/pgspate/_typed.py

`make reference-python` writes both files.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import pgspate
import pgspate.aio
from pgspate import fleetjob

# The page has these functions and classes, in this order.
CALLS = ["load", "sync", "write", "apply", "fleet", "plan", "doctor", "tune", "server",
         "pandas_method"]
WRITER_CALLS = ["insert", "insert_many", "insert_each", "report", "close"]
RESULTS = ["LoadReport", "SyncReport", "ApplyReport", "WriterReport", "FleetReport", "Plan",
           "Examination", "Finding", "Tuning", "Report", "Progress", "Server"]
# Sections of a docstring in Google's style.
SECTIONS = {"Args", *pgspate._calls.OPTION_GROUPS, "Returns", "Raises", "Attributes", "Example"}

# Types of the signatures that Python's library does not define.
SIGNATURE_TYPES = {
    "Data": "a path or URL, Arrow data, or an iterable of rows; see `data` of `pgspate.load`",
    "Events": "a path or URL, or an iterable of events; see `events` of `pgspate.apply`",
    "Names": "one name as a `str`, or a sequence of names",
    "Path": "a path as a `str` or an `os.PathLike`",
    "Format": '`"csv"`, `"tsv"`, `"text"`, `"json"`, `"parquet"` or `"arrow"`',
    "When": '`"auto"` (if it makes the call faster), `"always"` (where possible) or `"never"`',
    "Show": "True, False, or a function that takes a `Progress`",
    "Target": "a connection string, a `Server`, a connection of psycopg, or an engine, connection "
    "or session of SQLAlchemy",
}


def reference_page() -> Iterator[str]:
    """Yields the lines of docs/reference/python.md."""
    yield "# Python: calls, reports and errors"
    yield ""
    yield "Generated from the docstrings by `make reference-python`; the guide is in"
    yield "[python.md](../how-to/python.md)."
    yield ""
    yield "Types of the signatures:"
    yield ""
    for name, meaning in SIGNATURE_TYPES.items():
        yield f"- `{name}`: {meaning}"
    for name in CALLS:
        yield from entry(f"pgspate.{name}", getattr(pgspate, name))
    for module, writer in (("pgspate", pgspate.Writer), ("pgspate.aio", pgspate.aio.Writer)):
        yield from entry(f"{module}.Writer", writer)
        for name in WRITER_CALLS:
            yield from entry(f"{module}.Writer.{name}", getattr(writer, name))
    for module in ("aio", "sqlalchemy", "spark"):
        namespace = __import__(f"pgspate.{module}", fromlist=["load"])
        for name in namespace.__all__:
            if name == "Writer":
                continue
            yield from entry(f"pgspate.{module}.{name}", getattr(namespace, name))
    for name in fleetjob.__all__:
        yield from entry(f"pgspate.fleetjob.{name}", getattr(fleetjob, name))
    for name in ("write", "complete", "abort"):
        yield from entry(f"pgspate.fleetjob.Ticket.{name}", getattr(fleetjob.Ticket, name))
    for name in RESULTS:
        yield from entry(f"pgspate.{name}", getattr(pgspate, name))
    yield from entry("pgspate.Error", pgspate.Error)
    yield ""
    yield "Its subclasses:"
    yield ""
    for cls in pgspate.Error.__subclasses__():
        yield f"- `{cls.__name__}`: {inspect.getdoc(cls)}"
    yield from entry("pgspate.Place", pgspate.Place)


def entry(name: str, value: Any) -> Iterator[str]:
    """Yields the page's entry for a function or a class."""
    yield ""
    yield f"## {name}"
    # A class with arguments is made by its callers.
    if inspect.isfunction(value) or "\nArgs:\n" in (inspect.getdoc(value) or ""):
        yield ""
        yield "```python"
        yield from signature_lines(name.rsplit(".", 1)[1], value)
        yield "```"
    yield from docstring_as_markdown(inspect.getdoc(value) or "")


def signature_lines(name: str, function: Any) -> Iterator[str]:
    """Yields the signature of a function, with one parameter per line."""
    signature = inspect.signature(function)
    keyword = "async def" if inspect.iscoroutinefunction(function) else "def"
    keyword = "class" if inspect.isclass(function) else keyword
    yield f"{keyword} {name}("
    is_keyword = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "    *,"
        stars = {inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        suffix = "" if default is inspect.Parameter.empty else f" = {default!r}"
        yield f"    {stars}{parameter.name}: {parameter.annotation}{suffix},"
    yield ")" if inspect.isclass(function) else f") -> {signature.return_annotation}"


def docstring_as_markdown(doc: str) -> Iterator[str]:
    """Yields the lines of a docstring in Google's style as Markdown."""
    section = None
    for block in re.split(r"\n(?=\S+:\n)", doc):
        head, _, body = block.partition(":\n")
        section = head if head in SECTIONS else None
        yield ""
        if section is None:
            yield block.strip().replace("``", "`")
        elif section == "Example":
            yield "```python"
            yield textwrap.dedent(body).strip()
            yield "```"
        else:
            yield f"**{section}**"
            yield ""
            yield from list_items(textwrap.dedent(body).strip())


def list_items(body: str) -> Iterator[str]:
    """Yields a list item for each line `name: description` of a section, and other lines as is."""
    text = re.sub(r"\n\s{2,}", " ", body).replace("``", "`")
    for line in text.splitlines():
        name, colon, rest = line.partition(": ")
        is_named = colon and re.fullmatch(r"[*\w]+", name)
        yield f"- `{name}`: {rest}" if is_named else line


class OptionsClass(NamedTuple):
    """A class of `_typed.py`: the options of a call, as a TypedDict.

    A class with another base class than TypedDict adds the options that its base class leaves out.
    """

    call: str
    base: str = "TypedDict"
    # Options that `pgspate.sqlalchemy` takes from the model, or as arguments of its own.
    left_out: frozenset[str] = frozenset()


OPTIONS_CLASSES = {
    "ModelLoadOptions": OptionsClass("load", left_out=frozenset({"columns", "index"})),
    "LoadOptions": OptionsClass("load", base="ModelLoadOptions"),
    "ModelSyncOptions": OptionsClass(
        "sync",
        left_out=frozenset({"columns", "index", "key", "scope_by", "scope", "ignore_columns"}),
    ),
    "SyncOptions": OptionsClass("sync", base="ModelSyncOptions"),
    "ApplyOptions": OptionsClass("apply"),
    "DoctorOptions": OptionsClass("doctor"),
    "TuneOptions": OptionsClass("tune"),
}


def options_module() -> Iterator[str]:
    """Yields the lines of python/pgspate/_typed.py."""
    yield '"""Options of the calls. Generated by `make reference-python`; do not edit."""\n'
    yield "from __future__ import annotations\n"
    yield "from typing import TYPE_CHECKING, Literal, TypedDict\n"
    yield "if TYPE_CHECKING:"
    yield "    from collections.abc import Mapping\n"
    yield "    from ._options import Format, Names, Path, Show, When"
    yield "    from ._target import Target"
    for name, (call, base, left_out) in OPTIONS_CLASSES.items():
        module = "sqlalchemy." if left_out else ""
        summary = f"Options of `pgspate.{module}{call}`."
        yield f'\n\nclass {name}({base}, total=False):\n    """{summary}"""\n'
        for option in inspect.signature(getattr(pgspate, call)).parameters.values():
            if base in OPTIONS_CLASSES:
                is_own = option.name in OPTIONS_CLASSES[base].left_out
            else:
                is_own = option.name not in left_out
            if option.kind is option.KEYWORD_ONLY and is_own:
                yield f"    {option.name}: {option.annotation}"


if __name__ == "__main__":
    lines = options_module() if sys.argv[1:] == ["options"] else reference_page()
    sys.stdout.write("\n".join(line.rstrip(" ") for line in lines) + "\n")
