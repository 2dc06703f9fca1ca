"""The call `write`: `load` and `sync` by the words of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ._calls import LOAD, SYNC
from ._errors import UsageError
from ._report import LoadReport, SyncReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._data import Data
    from ._typed import LoadOptions, SyncOptions

__all__ = ["write"]

_MODE_HINTS = {
    "overwrite": 'Pass `mode="replace"`.',
    "truncate": 'Pass `mode="replace"`.',
    "create": "Pass `create=True` together with the mode.",
    "fail": "There is no mode that refuses a table that exists. Without `create=True`, a missing "
    "table is an error.",
    "insert": 'Pass `mode="append"`.',
    "merge": 'Pass `mode="sync"` with `no_delete=True`.',
    "upsert": 'Pass `mode="sync"` with `no_delete=True`.',
}


@overload
def write(
    data: Data,
    table: str,
    *,
    mode: Literal["append", "replace"] = "append",
    **options: Unpack[LoadOptions],
) -> LoadReport: ...


@overload
def write(
    data: Data, table: str, *, mode: Literal["sync"], **options: Unpack[SyncOptions]
) -> SyncReport: ...


def write(
    data: Data,
    table: str,
    *,
    mode: str = "append",
    **options: Any,
) -> LoadReport | SyncReport:
    """Writes data into a table, as the mode says.

    Args:
        data: As for `load`.
        table: As for `load`.
        mode: ``"append"`` adds the rows, as `load` does. ``"replace"`` replaces the table's rows,
            as `load` does with ``replace=True``. ``"sync"`` writes only rows that differ, as `sync`
            does.
        **options: As for `load`, or with ``mode="sync"`` as for `sync`.

    Returns:
        What the call did: a `LoadReport`, or with ``mode="sync"`` a `SyncReport`.

    Raises:
        Error: As `load` and `sync`.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     _ = pgspate.write([{"id": 1}], "t", create=True, to=server)
        ...     _ = pgspate.write([{"id": 2}], "t", mode="replace", to=server)
        ...     report = pgspate.write([{"id": 2}, {"id": 3}], "t", mode="sync", key="id",
        ...                            scope="all", to=server)
        >>> report.inserted, report.unchanged
        (1, 1)
    """
    if mode == "sync":
        return SYNC(data, {**options, "table": table})
    refuse_foreign_mode(mode)
    replace = options.get("replace", False)
    if mode == "append" and replace:
        hint = 'Leave `replace=` out, or pass `mode="replace"`.'
        raise UsageError('`replace=` and `mode="append"` exclude each other', hint=hint)
    if mode == "replace":
        options["replace"] = replace or True
    return LOAD(data, {**options, "table": table})


def refuse_foreign_mode(mode: str) -> None:
    """Raises `UsageError` for a mode that pgspate does not have."""
    if mode not in ("append", "replace", "sync"):
        hint = _MODE_HINTS.get(mode, "The modes are append, replace and sync.")
        raise UsageError(f'there is no mode "{mode}"', hint=hint)
