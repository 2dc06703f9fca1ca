"""Writes rows over SQLAlchemy's connection, within the caller's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from . import _pgspate
from ._errors import BugError, PlanError, ServerError, UsageError

# Names and types of a table's columns. A domain counts as its base type; an array has also the type
# of its elements.
_COLUMNS = """
with recursive base(name, nth, oid, typtype, typbasetype) as (
    select a.attname, a.attnum, t.oid, t.typtype, t.typbasetype
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = cast(:oid as oid) and a.attnum > 0 and not a.attisdropped
      and a.attgenerated = ''
    union all
    select b.name, b.nth, t.oid, t.typtype, t.typbasetype
    from base b join pg_type t on t.oid = b.typbasetype where b.typtype = 'd'
)
select cast(b.name as text), cast(b.oid as bigint), format_type(b.oid, null),
       cast(e.oid as bigint), format_type(e.oid, null), cast(e.typdelim as text)
from base b join pg_type t on t.oid = b.oid
left join pg_type e on e.oid = t.typelem and t.typcategory = 'A'
where b.typtype <> 'd' order by b.nth
"""

_TABLE = """
select cast(n.nspname as text), cast(c.relname as text), cast(c.oid as bigint),
       current_setting('client_encoding')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = cast(to_regclass(:name) as oid)
"""


def copy_rows(
    connection: Any, table: str, columns: Sequence[str] | None, rows: Iterable[Any]
) -> int:
    """Writes rows by COPY and returns their number. `table` is a name written as in SQL."""
    from sqlalchemy import text

    schema, name, oid, encoding = _found(connection, table)
    if encoding.upper() not in ("UTF8", "UNICODE"):
        message = f"client_encoding of the connection must be UTF8, but is {encoding}"
        raise UsageError(message, hint="Run `set client_encoding = 'UTF8'` on the connection.")
    types = {
        column: (oid, of, None if element is None else (element, element_name, delimiter))
        for column, oid, of, element, element_name, delimiter in connection.execute(
            text(_COLUMNS), {"oid": oid}
        )
    }
    columns = list(types) if columns is None else list(columns)
    for column in columns:
        if column not in types:
            message = f'column "{column}" of relation "{name}" does not exist'
            raise PlanError(message, sqlstate="42703")
    pieces = _pgspate.CopyText(rows, columns, [types[column] for column in columns])
    names = ", ".join(quoted(column) for column in columns)
    sql = f"copy {quoted(schema)}.{quoted(name)} ({names}) from stdin"
    driver, raw = connection.dialect.driver, connection.connection.driver_connection
    if connection.dialect.is_async and driver.startswith("psycopg"):
        _wait(_by_psycopg_async(raw, sql, pieces))
    elif driver == "psycopg":
        with raw.cursor() as cursor, cursor.copy(sql) as copy:
            for piece in pieces:
                copy.write(piece)
    elif driver == "psycopg2":
        with raw.cursor() as cursor:
            cursor.copy_expert(sql, _File(pieces))
    elif driver == "asyncpg":
        source = _pieces(pieces)
        _wait(raw.copy_to_table(name, source=source, columns=columns, schema_name=schema))
    else:
        message = f"could not write rows in a transaction of the driver {driver}: it has no COPY"
        raise UsageError(message, hint="Use psycopg, psycopg2 or asyncpg.")
    return pieces.count


def table_there(connection: Any, table: str) -> tuple[str, int]:
    """Returns the table that a name means on this connection: its qualified name and its oid."""
    schema, name, oid, _ = _found(connection, table)
    return f"{quoted(schema)}.{quoted(name)}", oid


def _found(connection: Any, table: str) -> Any:
    from sqlalchemy import text

    found = connection.execute(text(_TABLE), {"name": table}).first()
    if found is None:
        raise PlanError(f"relation {table} does not exist", sqlstate="42P01")
    return found


def run_script(connection: Any, script: dict[str, Any], rows: Iterable[Any]) -> dict[str, Any]:
    """Runs the engine's script of a sync and returns the facts of its report.

    The script runs under a savepoint. An error undoes its writes, settings and temporary tables,
    and the caller's transaction continues.
    """

    def run(sql: str) -> Any:
        return connection.exec_driver_sql(sql, execution_options={"no_parameters": True})

    with connection.begin_nested():
        for sql in script["begin"]:
            run(sql)
        before = [run(f"select current_setting('{name}')").scalar() for name in
                  script["setting_names"]]
        copy_rows(connection, script["stage"], script["columns"], rows)
        for sql in [*script["settings"], *script["staged"]]:
            run(sql)
        facts = _compare(run, script)
        if not script["is_check"]:
            _write(run, script, facts)
        for sql in script["end"]:
            run(sql)
        for name, value in zip(script["setting_names"], before):
            run(f"set local {name} = '{value}'")
    return facts


def _compare(run: Any, script: dict[str, Any]) -> dict[str, Any]:
    """Compares stage and table and returns the counts. Raises errors for doubtful input."""
    rows = run(script["count_staged"]).scalar()
    if rows == 0 and script["must_have_rows"]:
        _pgspate.sync_doubt("empty", [])
    if script["strays"]:
        _pgspate.sync_doubt("strays", list(run(script["strays"]).one()))
    if script["movers"]:
        _pgspate.sync_doubt("movers", [run(script["movers"]).scalar()])
    for what in ("duplicates", "table_duplicates"):
        doubles = run(script[what]).all() if script[what] else []
        if doubles:
            examples = [(key, times) for _, key, times in doubles]
            _pgspate.sync_doubt(what, [doubles[0][0]], examples)
    for sql in script["compare"]:
        run(sql)
    deleted, updated, inserted = run(script["count"]).one()
    kept = rows - inserted
    _pgspate.sync_doubt("deletes", [deleted, deleted + kept], may=script["max_delete"])
    return {
        "table": script["table"],
        "rows_in": rows,
        "deleted": deleted,
        "updated": updated,
        "inserted": inserted,
        "unchanged": kept - updated,
        "is_check": script["is_check"],
    }


def _write(run: Any, script: dict[str, Any], facts: dict[str, Any]) -> None:
    """Deletes, updates and inserts. In this order unique values can move between rows."""
    for what, name in (("delete", "deleted"), ("update", "updated"), ("insert", "inserted")):
        if not facts[name]:
            continue
        if script[what] is None:
            raise BugError(f"the script has rows to {what}, but no statement for them")
        written = run(script[what]).rowcount
        if written != facts[name]:
            message = f"{written} of {facts[name]} rows could be {name}"
            hint = "Another session changed some of these rows. Run the sync again."
            raise ServerError(message, sqlstate="40001", hint=hint, is_retryable=True)


def quoted(name: str) -> str:
    """Returns a name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def _wait(coroutine: Any) -> None:
    """Awaits a coroutine within the greenlet in which SQLAlchemy runs asynchronous drivers."""
    from sqlalchemy.util import await_only

    await_only(coroutine)


async def _by_psycopg_async(raw: Any, sql: str, pieces: Iterator[bytes]) -> None:
    async with raw.cursor() as cursor, cursor.copy(sql) as copy:
        for piece in pieces:
            await copy.write(piece)


async def _pieces(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class _File:
    """A file object that reads from an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._rest += piece
        size = len(self._rest) if size < 0 else size
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken
