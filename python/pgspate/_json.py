"""Writes values of Python as JSON."""

from __future__ import annotations

import json
from typing import Any


def _plain(value: Any) -> Any:
    """Returns a number, a text or an array of numpy as a value that JSON has.

    Raises `TypeError` for all other values.
    """
    dtype: Any = getattr(value, "dtype", None)
    # Numpy would turn times of nanoseconds into numbers.
    if type(value).__module__.partition(".")[0] == "numpy" and dtype.kind in "biufUO":
        plain = value.tolist()
        if type(plain) is not type(value):
            return plain
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


encode = json.JSONEncoder(default=_plain).encode
