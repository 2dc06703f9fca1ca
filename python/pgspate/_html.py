"""HTML tables for notebooks. Long texts wrap, so that a table is never wider than its page."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

_CELL = "vertical-align:top;white-space:normal;overflow-wrap:anywhere"
_LEFT = f"text-align:left;{_CELL}"
_RIGHT = f"text-align:right;{_CELL}"
_CAPTION = "text-align:left;white-space:normal;overflow-wrap:anywhere;font-weight:bold"
_PRE = "white-space:pre-wrap;overflow-wrap:anywhere;text-align:left;margin:0"


def escape(text: object) -> str:
    """Returns a text as HTML."""
    return html.escape(str(text))


def table(caption: str, rows: Iterable[str]) -> str:
    """Returns a table of rows, which are HTML."""
    head = f'<caption style="{_CAPTION}">{escape(caption)}</caption>' if caption else ""
    return f'<table style="max-width:100%">{head}{"".join(rows)}</table>'


def row(*cells: str, is_head: bool = False) -> str:
    """Returns a row of cells, which are HTML."""
    tag = "th" if is_head else "td"
    return "<tr>" + "".join(f'<{tag} style="{_LEFT}">{cell}</{tag}>' for cell in cells) + "</tr>"


def preformatted(text: str) -> str:
    """Returns a text with lines, such as SQL, as HTML."""
    return f'<pre style="{_PRE}">{escape(text)}</pre>'


def report_rows(values: dict[str, Any]) -> Iterable[str]:
    """Yields a row with name and value for each value that is not empty."""
    for name, value in values.items():
        text = value_as_html(value)
        if text:
            label = escape(name.replace("_", " "))
            style = _RIGHT if isinstance(value, (int, float)) else _LEFT
            yield f'<tr><th style="{_LEFT}">{label}</th><td style="{style}">{text}</td></tr>'


def records(
    items: list[dict[str, Any]], names: Iterable[str] | None = None, caption: str = ""
) -> str:
    """Returns dicts as a table with a column for each key. Keys without any value are left out."""
    known = dict.fromkeys(name for item in items for name in item) if names is None else names
    used = [name for name in known if any(value_as_html(item.get(name)) for item in items)]
    head = row(*(escape(name.replace("_", " ")) for name in used), is_head=True)
    body = (row(*(value_as_html(item.get(name)) for name in used)) for item in items)
    return table(caption, [head, *body])


def value_as_html(value: Any) -> str:
    """Returns a value as HTML for people: "" for empty values."""
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        if any(isinstance(part, dict) for part in value.values()):
            return ""
        parts = [(name, value_as_html(part)) for name, part in value.items()]
        return ", ".join(f"{escape(name.replace('_', ' '))} {part}" for name, part in parts if part)
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, dict) for item in value):
            return records(list(value))
        return "<br>".join(filter(None, map(value_as_html, value)))
    text = str(value)
    return preformatted(text) if "\n" in text else escape(text)
