"""Words of other libraries for options of the calls, with the words of pgspate."""

from __future__ import annotations

from collections.abc import Iterable

from ._errors import UsageError

_SERVER = "Pass the server as `to=`: a connection string, an engine or a connection."
_IF_EXISTS = (
    'Rows are appended to a table that exists. `replace=True` or `pgspate.write(mode="replace")` '
    "replaces its rows, `create=True` creates a missing table, and `pgspate.sync` changes only "
    "rows that differ."
)
_UPSERT = (
    "`pgspate.sync(..., no_delete=True)` updates rows and inserts new ones. With "
    "`insert_only=True` it leaves rows that exist as they are."
)
_CHUNKS = "Leave it out: pgspate divides the rows itself."

# Hints by the names of the arguments of pandas, polars, dlt, SQLAlchemy and psycopg.
_HINTS = {
    "if_exists": _IF_EXISTS,
    "if_table_exists": _IF_EXISTS,
    "write_disposition": _IF_EXISTS,
    "con": _SERVER,
    "conn": _SERVER,
    "connection": _SERVER,
    "engine": _SERVER,
    "uri": _SERVER,
    "dsn": _SERVER,
    "schema": 'Write the schema in the name of the table: `"schema.table"`.',
    "name": "Pass the name of the table as `table`.",
    "table_name": "Pass the name of the table as `table`.",
    "dtype": 'Pass the types of a new table as `types={"column": "type"}`.',
    "dtypes": 'Pass the types of a new table as `types={"column": "type"}`.',
    "index_label": "Name the levels of the index by `frame.rename_axis(...)`.",
    "merge_key": "Pass the columns that identify a row to `pgspate.sync` as `key=`.",
    "chunksize": _CHUNKS,
    "chunk_size": _CHUNKS,
    "batch_size": _CHUNKS,
    "method": "Leave it out: pgspate always writes by COPY.",
    "on_conflict": _UPSERT,
    "upsert": _UPSERT,
    "overwrite": "Pass `replace=True`.",
    "truncate": "Pass `replace=True`.",
    "mode": 'Call `pgspate.write`, which has `mode="append"`, `"replace"` and `"sync"`.',
}


def refuse_foreign_words(names: Iterable[str]) -> None:
    """Raises `UsageError` for an option that has another name in pgspate."""
    for name in names:
        if name in _HINTS:
            raise UsageError(f"pgspate has no option `{name}=`", hint=_HINTS[name])


def refuse_table_object(table: object) -> None:
    """Raises `UsageError` for a table that is not given by its name."""
    if table is None or isinstance(table, str):
        return
    message = f"the table is an object of class {type(table).__name__}, not a name"
    hint = "Give the name of the table as in SQL. `pgspate.sqlalchemy` has a `load` and a `sync` "
    hint += "for tables and models of SQLAlchemy."
    raise UsageError(message, hint=hint)
