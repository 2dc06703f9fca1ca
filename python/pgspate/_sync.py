"""`sync`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import _pgspate
from ._call import Command
from ._data import sort
from ._errors import UsageError
from ._report import SyncReport

if TYPE_CHECKING:
    from ._data import Data
    from ._options import Format, HasDsn, Names, Show, When

__all__ = ["sync"]


def sync(
    data: Data,
    table: str,
    *,
    to: str | HasDsn | None = None,
    key: Names = (),
    scope_by: Names = (),
    scope: str | None = None,
    no_delete: bool = False,
    insert_only: bool = False,
    columns: Names | None = None,
    ignore_columns: Names = (),
    keep: Literal["last"] | None = None,
    check: bool = False,
    lanes: int = 1,
    vacuum: bool = False,
    transactions: int = 1,
    read_ahead: When = "auto",
    max_delete: float | str = "50%",
    allow_empty: bool = False,
    retry_for: int = 60,
    stall_timeout: int = 60,
    lock_timeout: int = 300,
    price_per_million_io: float | None = None,
    ignore_unknown: bool = False,
    format: Format | None = None,
    header: bool | Literal["auto"] = "auto",
    delimiter: str | None = None,
    quote: str | None = None,
    escape: str | None = None,
    null: str | None = None,
    force_null: Names = (),
    force_not_null: Names = (),
    comment: str | None = None,
    skip_blank_lines: bool = False,
    encoding: str | None = None,
    source_option: Mapping[str, str] | None = None,
    progress: Show = False,
) -> SyncReport:
    """Makes rows of a table like the data: only what differs is written, in one transaction.

    Options are those of the command ``pgspate sync``, with the same defaults. Exactly one of
    ``scope_by``, ``scope``, ``no_delete`` and ``insert_only`` says which rows are meant.

    Args:
        data: As for `pgspate.load`.
        table: The table, as SQL writes it.
        to: As for `pgspate.load`.
        key: The columns that identify a row; the primary key's by default.
        scope_by: Rows whose values in these columns occur in the data.
        scope: "all" for the whole table, or an SQL predicate over its columns.
        no_delete: Update and insert, and delete nothing.
        insert_only: Insert only.
        columns: As for `pgspate.load`.
        ignore_columns: Not compared, and written only when something else differs.
        keep: Which of rows with the same key counts; they are refused otherwise.
        check: Change nothing: count what differs, with examples.
        lanes: Sessions that share the scopes of ``scope_by``, each with a transaction of its own.
        vacuum: Vacuum the table afterwards, so that the next sync writes where rows died.
        transactions: Write the scopes of ``scope_by`` in so many transactions, one after the other:
            with ``vacuum`` each one writes where rows of the one before died.
        read_ahead: Read the table first and stage only rows that it does not have.
        max_delete: Refuse to delete more of the scope than this, in percent.
        allow_empty: Let data without rows empty the scope.
        retry_for: Seconds to go on trying when another session is in the way.
        stall_timeout: Seconds to wait for a connection over which nothing comes any more.
        lock_timeout: Seconds to wait for a lock that another session holds; 0 for ever.
        price_per_million_io: What a million I/Os cost, for the estimate in the report.
        ignore_unknown: As for `pgspate.load`; so are all that follow.
        format: Of files.
        header: Whether the first record of files names the columns.
        delimiter: Between two fields.
        quote: Around a field.
        escape: Before a quote that is data.
        null: The unquoted field that means NULL.
        force_null: Columns in which a quoted NULL string is NULL too.
        force_not_null: Columns in which an unquoted NULL string is itself.
        comment: Pass over lines that begin with this.
        skip_blank_lines: Pass over empty lines.
        encoding: Of files.
        source_option: Settings for object stores and web servers, and headers; `@FILE` and
            `env:NAME` give a secret.
        progress: As for `pgspate.load`.

    Returns:
        What was done, or with ``check=True`` would be.

    Raises:
        Error: One of the classes below it. The table is as it was.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     old = [{"meter": 42, "day": day, "use": 1.5} for day in range(1, 4)]
        ...     _ = pgspate.load(old, "use_prediction", create=True, to=server)
        ...     new = [{"meter": 42, "day": day, "use": 1.5} for day in range(2, 5)]
        ...     report = pgspate.sync(new, "use_prediction", key=["meter", "day"],
        ...                           scope_by="meter", to=server)
        >>> report.inserted, report.deleted, report.unchanged
        (1, 1, 2)
    """
    options = {**locals()}
    return SYNC(options.pop("data"), options)


def check_scope(options: Mapping[str, Any]) -> None:
    """Exactly one scope is asked for."""
    names = ("scope_by", "scope", "no_delete", "insert_only")
    said = [name for name in names if options.get(name)]
    if len(said) != 1:
        message = "no scope is given" if not said else f"{said[0]} and {said[1]} exclude each other"
        hint = "Give one of `scope_by=`, `scope=`, `no_delete=True` and `insert_only=True`."
        raise UsageError(message, hint=hint)


SYNC = Command(_pgspate.sync, SyncReport, "syncing", sort, check_scope)
SCRIPT = Command(_pgspate.sync_script, SyncReport, "", sort, check_scope)
