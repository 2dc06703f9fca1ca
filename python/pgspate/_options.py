"""Options of calls as arguments of the command, which has the same ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Union

from ._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._progress import Progress

When = Literal["auto", "always", "never"]
Format = Literal["csv", "tsv", "text", "json", "parquet", "arrow"]
Path = Union[str, "os.PathLike[str]"]
Names = Union[str, Sequence[str]]
Show = Union[bool, "Callable[[Progress], object]"]


class HasDsn(Protocol):
    """Something that knows its connection string, such as what `server` gives."""

    @property
    def dsn(self) -> str: ...


class ReadOptions(TypedDict, total=False):
    """How files are read; as of the command."""

    format: Format | None
    header: bool | Literal["auto"]
    delimiter: str | None
    quote: str | None
    escape: str | None
    null: str | None
    force_null: Names
    force_not_null: Names
    comment: str | None
    skip_blank_lines: bool
    encoding: str | None
    ignore_unknown: bool
    source_option: Mapping[str, str] | None


class ModelLoadOptions(ReadOptions, total=False):
    """The options of `load` where a model says what the columns are."""

    to: str | HasDsn | None
    create: bool
    replace: bool | Literal["auto", "truncate", "swap"]
    atomic: bool
    lanes: int | Literal["auto"]
    commit: Literal["auto", "end", "chunk"]
    rejects: Path | None
    max_rejects: int | str | None
    restart: bool
    no_ledger: bool
    retry_for: int
    stall_timeout: int
    lock_timeout: int
    rebuild_indexes: When
    pause_autovacuum: When
    analyze: When
    vacuum: bool
    progress: Show


class LoadOptions(ModelLoadOptions, total=False):
    """The options of `load`, which has them in its docstring."""

    columns: Names | None


class ModelSyncOptions(ReadOptions, total=False):
    """The options of `sync` where a model says what the columns are."""

    to: str | HasDsn | None
    no_delete: bool
    insert_only: bool
    keep: Literal["last"] | None
    check: bool
    lanes: int
    vacuum: bool
    transactions: int
    read_ahead: When
    max_delete: float | str
    allow_empty: bool
    retry_for: int
    stall_timeout: int
    lock_timeout: int
    price_per_million_io: float | None
    progress: Show


class SyncOptions(ModelSyncOptions, total=False):
    """The options of `sync`, which has them in its docstring."""

    columns: Names | None
    key: Names
    scope_by: Names
    scope: str | None
    ignore_columns: Names


class ApplyOptions(TypedDict, total=False):
    """The options of `apply`, which has them in its docstring."""

    to: str | HasDsn | None
    stream: str | None
    format: str | None
    map: Mapping[str, str] | None
    tables: Names
    unknown_columns: Literal["fail", "ignore", "add"]
    at_end: Literal["hold", "apply"]
    max_dead_letters: int
    retry_for: int
    stall_timeout: int
    lock_timeout: int
    batch_rows: int
    batch_bytes: int
    direct_rows: int
    batch_delay: int
    follow: bool
    create_slot: bool
    snapshot: bool
    source_table: str | None
    debezium_placeholder: str | None
    debezium_time: Literal["ms", "us", "ns"] | None
    debezium_decimals: Literal["bytes", "text"] | None
    debezium_bytes: Literal["base64", "hex"] | None
    dms_columns: Names
    dms_header: bool
    dms_null: str
    dms_absent: str | None
    dms_delimiter: str
    source_option: Mapping[str, str] | None
    metrics: str | None
    progress: Show


class DoctorOptions(TypedDict, total=False):
    """The options of `doctor`, which has them in its docstring."""

    to: str | HasDsn | None
    table: str | None
    watch: float | str
    storage: str | None
    large_table: str
    stall_timeout: int
    picture: Path | None


class TuneOptions(TypedDict, total=False):
    """The options of `tune`, which has them in its docstring."""

    to: str | HasDsn | None
    memory: str | None
    cpus: int | None
    emit: Literal["sql", "rds", "terraform"] | None
    parameter_group: str | None
    apply: bool
    revert: bool
    stall_timeout: int


# Lists of names. The command has commas between them, which names may have in them.
_LISTS = {
    "columns", "force_null", "force_not_null", "key", "scope_by", "ignore_columns", "tables",
    "dms_columns",
}
# What the command takes once for each pair.
_PAIRS = {"source_option", "map"}


def words(
    options: Mapping[str, Any], *, has_source: bool
) -> tuple[list[str], dict[str, list[str]]]:
    """The command's arguments for a call, and its lists of names by themselves."""
    arguments: list[str] = []
    lists: dict[str, list[str]] = {}
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if name in _LISTS:
            names = [value] if isinstance(value, str) else list(value)
            if names:
                lists[name] = names
            if names and name == "scope_by":
                # Which of the scopes it is, is for the command to know.
                arguments.append(f"{flag}=-")
        elif name == "header":
            arguments.append(f"{flag}={ {True: 'yes', False: 'no'}.get(value, value) }")
        elif name in _PAIRS:
            arguments += [f"{flag}={key}={setting}" for key, setting in value.items()]
        elif value is True:
            arguments.append(flag)
        elif value is not False:
            text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
            arguments.append(f"{flag}={text}")
    # The command wants a source; what there is to load is handed over beside it.
    return arguments + ["-"] * has_source, lists


def conninfo(to: Any) -> str | None:
    """A connection string: one, something that has one, or an engine or a URL of SQLAlchemy's."""
    if to is None or isinstance(to, str):
        return to
    url = getattr(to, "url", to)
    if hasattr(url, "render_as_string"):
        return str(url.set(drivername="postgresql").render_as_string(hide_password=False))
    dsn = getattr(to, "dsn", None)
    if isinstance(dsn, str):
        return dsn
    message = f"an object of class {type(to).__name__} does not say where to connect to"
    raise UsageError(message, hint="Give a URL or a connection string.")
