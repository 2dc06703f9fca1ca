"""`load` and `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from . import _pgspate
from ._call import Command
from ._data import sort
from ._report import LoadReport, Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._data import Data
    from ._options import Format, HasDsn, Names, Path, Show, When
    from ._typed import LoadOptions

__all__ = ["load", "plan"]

LOAD = Command(_pgspate.load, LoadReport, "loading", sort)
PLAN = Command(_pgspate.plan, Plan, "planning", sort)


def load(
    data: Data,
    table: str,
    *,
    to: str | HasDsn | None = None,
    columns: Names | None = None,
    create: bool = False,
    replace: bool | Literal["auto", "truncate", "swap"] = False,
    atomic: bool = False,
    lanes: int | Literal["auto"] = "auto",
    commit: Literal["auto", "end", "chunk"] = "auto",
    rejects: Path | None = None,
    max_rejects: int | str | None = None,
    restart: bool = False,
    no_ledger: bool = False,
    retry_for: int = 60,
    stall_timeout: int = 60,
    lock_timeout: int = 300,
    rebuild_indexes: When = "auto",
    pause_autovacuum: When = "auto",
    analyze: When = "auto",
    vacuum: bool = False,
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
) -> LoadReport:
    """Loads data into a table, by several connections at once, exactly as ``\\copy`` would.

    Options are those of the command ``pgspate load``, with the same defaults.

    Args:
        data: A path or URL, or a list of them; anything that speaks Arrow (``pyarrow``, ``polars``,
            ``pandas``, a reader that streams); or an iterable of dicts, tuples or dataclasses.
        table: The table, as SQL writes it.
        to: Where to: a URL or ``key=value``, a `Server`, or an engine of SQLAlchemy's. By default
            the PG* variables, else the embedded PostgreSQL.
        columns: The columns that the fields go to, in the fields' order. For dicts and dataclasses
            the keys to take.
        create: Make the table when it is missing, with the types that the data needs.
        replace: The data instead of the rows that the table has, which stay until all is there.
        atomic: All rows become visible at once.
        lanes: Connections that load at the same time.
        commit: When to commit: at the end, with each chunk, or by the size of the input.
        rejects: Set rows that are refused aside in this file, and load the rest.
        max_rejects: Stop when more rows are refused than this: a number, or a share like "0.5%".
        restart: Begin anew, whatever the ledger says of earlier runs.
        no_ledger: Keep no ledger. Data that is no file has none unless rows are set aside.
        retry_for: Seconds to go on trying when the server is away.
        stall_timeout: Seconds to wait for a connection over which nothing comes any more.
        lock_timeout: Seconds to wait for a lock that another session holds; 0 for ever.
        rebuild_indexes: Drop indexes and foreign keys for the load and make them again.
        pause_autovacuum: Switch autovacuum off for the table meanwhile.
        analyze: Run ANALYZE afterwards.
        vacuum: Run VACUUM (FREEZE, ANALYZE) afterwards.
        ignore_unknown: Pass over fields and keys that no column is named after.
        format: Of files; found out by default.
        header: Whether the first record of files names the columns.
        delimiter: Between two fields of files.
        quote: Around a field; "none" for none.
        escape: Before a quote that is data.
        null: The unquoted field that means NULL.
        force_null: Columns in which a quoted NULL string is NULL too.
        force_not_null: Columns in which an unquoted NULL string is itself.
        comment: Pass over lines that begin with this.
        skip_blank_lines: Pass over empty lines.
        encoding: Of files, as PostgreSQL names it.
        source_option: Settings for object stores and web servers, and headers; `@FILE` and
            `env:NAME` give a secret.
        progress: True for a line in a terminal or a bar in a notebook; or a function that is given
            a `Progress` ten times a second.

    Returns:
        What was done.

    Raises:
        Error: One of the classes below it. The table is as it was, but for chunks that were
            committed, as ``commit=`` says.

    Example:
        >>> import pgspate
        >>> rows = [{"id": 1, "name": "bolt"}, {"id": 2, "name": "nut"}]
        >>> with pgspate.server(temporary=True) as server:
        ...     report = pgspate.load(rows, "parts", create=True, to=server)
        >>> report.rows_written
        2
    """
    options = {**locals()}
    return LOAD(options.pop("data"), options)


def plan(data: Data, table: str, **options: Unpack[LoadOptions]) -> Plan:
    """Says what `load` would do with the same arguments, and why. Changes nothing.

    The first rows of an iterator are taken from it to look at them.

    Args:
        data: As for `load`.
        table: As for `load`.
        **options: As for `load`.

    Returns:
        The plan; ``print`` shows it as the command does.

    Raises:
        Error: As `load` for what is wrong before the first row is written.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     plan = pgspate.plan([(1, "bolt")], "parts", columns=["id", "name"],
        ...                         create=True, to=server)
        >>> [column["type"] for column in plan.columns]
        ['bigint', 'text']
    """
    return PLAN(data, {**options, "table": table})
