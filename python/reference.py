"""Writes docs/reference/python.md from the docstrings: `make reference-python`."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pgspate
import pgspate.aio

CALLS = ["load", "sync", "apply", "plan", "doctor", "tune", "server", "pandas_method"]
RESULTS = ["LoadReport", "SyncReport", "ApplyReport", "Plan", "Examination", "Finding", "Tuning",
           "Report", "Progress", "Server"]
SECTIONS = {"Args", "Returns", "Raises", "Attributes", "Example"}


def page() -> Iterator[str]:
    """The page's lines."""
    yield "# Python: calls, reports and errors"
    yield ""
    yield "Generated from the docstrings by `make reference-python`; the guide is in"
    yield "[python.md](../guide/python.md)."
    for name in CALLS:
        yield from thing(f"pgspate.{name}", getattr(pgspate, name))
    for module in ("aio", "sqlalchemy"):
        namespace = __import__(f"pgspate.{module}", fromlist=["load"])
        for name in namespace.__all__:
            yield from thing(f"pgspate.{module}.{name}", getattr(namespace, name))
    for name in RESULTS:
        yield from thing(f"pgspate.{name}", getattr(pgspate, name))
    yield from thing("pgspate.Error", pgspate.Error)
    yield ""
    yield "The classes below it:"
    yield ""
    for cls in pgspate.Error.__subclasses__():
        yield f"- `{cls.__name__}`: {inspect.getdoc(cls)}"
    yield from thing("pgspate.Place", pgspate.Place)


def thing(name: str, value: Any) -> Iterator[str]:
    """A function or a class."""
    yield ""
    yield f"## {name}"
    if inspect.isfunction(value):
        yield ""
        yield "```python"
        yield from signature(name.rsplit(".", 1)[1], value)
        yield "```"
    yield from described(inspect.getdoc(value) or "")


def signature(name: str, function: Any) -> Iterator[str]:
    """How it is called, an argument a line."""
    found = inspect.signature(function)
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    yield f"{word} {name}("
    is_keyword = False
    for parameter in found.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "    *,"
        mark = {inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        given = "" if default is inspect.Parameter.empty else f" = {default!r}"
        yield f"    {mark}{parameter.name}: {parameter.annotation}{given},"
    yield f") -> {found.return_annotation}"


def described(doc: str) -> Iterator[str]:
    """A docstring of Google's style as Markdown."""
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
            yield from items(textwrap.dedent(body).strip())


def items(body: str) -> Iterator[str]:
    """Names and what they are."""
    text = re.sub(r"\n\s{2,}", " ", body).replace("``", "`")
    for line in text.splitlines():
        name, colon, rest = line.partition(": ")
        is_named = colon and re.fullmatch(r"[*\w]+", name)
        yield f"- `{name}`: {rest}" if is_named else line


if __name__ == "__main__":
    sys.stdout.write("\n".join(line.rstrip() for line in page()) + "\n")
