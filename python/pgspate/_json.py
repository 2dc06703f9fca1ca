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
    is_numpy = type(value).__module__.partition(".")[0] == "numpy"
    if is_numpy and getattr(dtype, "kind", None) in set("biufUO"):
        if dtype.char in "ef":
            # A float of 32 bits has fewer digits than the double of the same value.
            value = value.astype("float32").astype(str).astype(float)
        plain = value.tolist()
        if type(plain) is not type(value):
            return plain
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


encode = json.JSONEncoder(default=_plain).encode


def encode_wrapped(value: Any) -> str:
    """Returns the JSON of a `Json` or `Jsonb` of psycopg, or of a `Json` of psycopg2.

    A function `dumps=` of the object makes the JSON.
    """
    if hasattr(value, "adapted"):
        text = value.dumps(value.adapted)
    elif value.dumps is None:
        return encode(value.obj)
    else:
        text = value.dumps(value.obj)
    return text.decode() if isinstance(text, bytes) else text
