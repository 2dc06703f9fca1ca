"""Converts returned columns, which the server sends as JSON, into values of Python.

The rows are written when this module sees them. So no value may be an error: a value that Python's
class cannot hold stays as it is, such as the date "infinity".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

# Name; oid of the type, or of an array's elements; whether it is an array; and whether the type is
# composite, so that its JSON value is an object.
ReturnedColumn = tuple[str, int, bool, bool]
Row = dict[str, Any]
Converter = Callable[[Any], Any]

_FRACTION = re.compile(r"\.\d+")
_SHORT_ZONE = re.compile(r"[+-]\d\d$")
_INTERVAL = re.compile(
    r"(?:(?P<days>-?\d+) days?)? ?"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d(?:\.\d+)?))?"
)
_OCTAL = re.compile(rb"\\(\\|[0-7]{3})")


def make_reader(columns: list[ReturnedColumn]) -> Callable[[str], Row]:
    """Returns a function that converts the JSON object of a row into a dict."""
    # Decimals keep all digits, and the sign of -0. Without columns that need them, the numbers that
    # `json.loads` makes do.
    is_exact = any(oid in _EXACT or is_composite for _, oid, _, is_composite in columns)
    converters: list[tuple[str, Converter]] = []
    for name, oid, is_array, is_composite in columns:
        converter = _composite if is_composite else _CONVERTERS.get(oid)
        if converter is None and is_exact:
            converter = _EXACT_CONVERTERS.get(oid)
        if converter is not None:
            converters.append((name, _elements(converter) if is_array else converter))

    def read(text: str) -> Row:
        row: Row
        try:
            row = json.loads(text, **(_EXACT_NUMBERS if is_exact else {}))
        except ValueError:
            # Python refuses to read an int of more than 4,300 digits.
            row = json.loads(text, **_EXACT_NUMBERS)
        for name, converter in converters:
            value = row[name]
            if value is not None:
                try:
                    row[name] = converter(value)
                except (ValueError, OverflowError, ArithmeticError, TypeError):
                    pass
        return row

    return read


def _elements(converter: Converter) -> Converter:
    """Returns a converter of arrays, which may be nested. Converts all elements or none."""

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(item) for item in value]
        return None if value is None else converter(value)

    return convert


def _composite(value: Any) -> Any:
    """Makes whole numbers of a row's fields ints. Others stay decimals, with all digits."""
    if isinstance(value, list):
        return [_composite(item) for item in value]
    if isinstance(value, dict):
        return {key: _composite(item) for key, item in value.items()}
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return value


def _json_value(value: Any) -> Any:
    """Converts the decimals of a JSON value into the numbers that `json.loads` returns."""
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, Decimal):
        return int(value) if re.fullmatch(r"-?\d+", str(value)) else float(value)
    return value


def _bytes(value: str) -> bytes:
    if value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    # The format "escape" of the setting bytea_output.
    def unescape(found: re.Match[bytes]) -> bytes:
        return b"\\" if found[1] == b"\\" else bytes([int(found[1], 8)])

    return _OCTAL.sub(unescape, value.encode("ascii"))


def _iso(value: str) -> str:
    """Returns a time in the form that Python 3.10 reads: with six digits of the second."""
    return _FRACTION.sub(lambda found: found[0].ljust(7, "0"), value) if "." in value else value


def _timestamp(value: str) -> datetime:
    return datetime.fromisoformat(_iso(value))


def _time(value: str) -> time:
    if value.startswith("24"):
        raise ValueError("Python has no time 24:00:00")
    value = _iso(value)
    return time.fromisoformat(value + ":00" if _SHORT_ZONE.search(value) else value)


def _interval(value: str) -> timedelta:
    """Converts an interval without months. A month has no fixed number of days."""
    found = _INTERVAL.fullmatch(value)
    if found is None or not value:
        raise ValueError("an interval with months, or in another format")
    span = timedelta(
        hours=int(found["hours"] or 0),
        minutes=int(found["minutes"] or 0),
        microseconds=int(Decimal(found["seconds"] or 0) * 1_000_000),
    )
    return timedelta(days=int(found["days"] or 0)) + (-span if found["sign"] == "-" else span)


_EXACT_NUMBERS: dict[str, Any] = {"parse_int": Decimal, "parse_float": Decimal}
_NUMERIC = 1700
_FLOATS = (700, 701)
_EXACT = (_NUMERIC, *_FLOATS)
# Converters by the oid of the type.
_CONVERTERS: dict[int, Converter] = {
    17: _bytes,
    26: int,
    **dict.fromkeys(_FLOATS, float),
    1082: date.fromisoformat,
    1083: _time,
    1114: _timestamp,
    1184: _timestamp,
    1186: _interval,
    1266: _time,
    _NUMERIC: Decimal,
    2950: UUID,
}
# Converters that are needed if all numbers are decimals.
_EXACT_CONVERTERS: dict[int, Converter] = {
    20: int,
    21: int,
    23: int,
    114: _json_value,
    3802: _json_value,
}
