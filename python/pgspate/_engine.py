"""Begins a job with the user's options, for the modules of Spark, Ray and dlt."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _calls
from ._errors import UsageError
from .fleetjob import Ticket, begin_write

if TYPE_CHECKING:
    import pyarrow as pa


def given(**arguments: Any) -> dict[str, Any]:
    """Returns the arguments that were given."""
    return {name: value for name, value in arguments.items() if value not in (None, False, [])}


# Write modes by the names that Spark, Ray and dlt use, as options of `begin_write`.
_MODES: dict[str, dict[str, Any]] = {
    "append": {},
    # As other sinks of these engines do, no rows overwrite all rows.
    "overwrite": {"mode": "replace", "allow_empty": True},
    "upsert": {"mode": "sync", "no_delete": True},
    "sync": {"mode": "sync"},
}


def mode_options(mode: str) -> dict[str, Any]:
    """Returns the arguments of `begin_write` for a mode.

    Raises:
        UsageError: There is no such mode.
    """
    if mode not in _MODES:
        raise UsageError(f'unknown mode "{mode}"', hint=f"The modes are {', '.join(_MODES)}.")
    return _MODES[mode]


def begin(table: str, to: str | None, job: str | None, options: dict[str, Any]) -> Ticket:
    """Begins a job, and shows what the user should know."""
    ticket = begin_write(table, to=to, job=job, **options)
    for warning in ticket.warnings:
        warnings.warn(warning, stacklevel=4)
    return ticket


def create_table(schema: pa.Schema, table: str, to: str | None, key: Sequence[str]) -> None:
    """Creates a table for rows of a schema, if it does not exist.

    Raises:
        UsageError: A column has no type, because all of its values are NULL.
    """
    for one in schema:
        if str(one.type) == "null":
            raise UsageError(f'the column "{one.name}" has only NULLs, and no type',
                             hint="Cast it to the type that the new column should have.")
    _calls.load(schema.empty_table(), table, to=to, create=True, primary_key=key,
                ignore_unknown=True)
