"""Writes rows over the caller's SQLAlchemy connection, in the caller's transaction.

Used by `pgspate.sqlalchemy` with ``within=``, and by `pgspate.pandas_method`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from . import _pgspate
from ._errors import BugError, PlanError, ServerError, UsageError
from ._options import constants_by_column
from ._report import counted

# The columns of a table that are not generated: name, type, and for an array the type of its
# elements. The type of a domain is its base type, also for elements.
_COLUMNS_SQL = """
with recursive base(name, nth, oid, typtype, typbasetype) as (
    select a.attname, a.attnum, t.oid, t.typtype, t.typbasetype
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = cast(:oid as oid) and a.attnum > 0 and not a.attisdropped
      and a.attgenerated = ''
    union all
    select b.name, b.nth, t.oid, t.typtype, t.typbasetype
    from base b join pg_type t on t.oid = b.typbasetype where b.typtype = 'd'
), element(name, oid, typtype, typbasetype) as (
    select b.name, e.oid, e.typtype, e.typbasetype
    from base b join pg_type t on t.oid = b.oid join pg_type e on e.oid = t.typelem
    where t.typcategory = 'A'
    union all
    select d.name, t.oid, t.typtype, t.typbasetype
    from element d join pg_type t on t.oid = d.typbasetype where d.typtype = 'd'
)
select cast(b.name as text), cast(b.oid as bigint), format_type(b.oid, null),
       cast(e.oid as bigint), format_type(e.oid, null), cast(t.typdelim as text)
from base b
left join element e on e.name = b.name and e.typtype <> 'd' left join pg_type t on t.oid = e.oid
where b.typtype <> 'd' order by b.nth
"""

# Schema, name and oid of the table that a name means on the connection; and the client encoding.
_TABLE_SQL = """
select cast(n.nspname as text), cast(c.relname as text), cast(c.oid as bigint),
       current_setting('client_encoding')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = cast(to_regclass(:name) as oid)
"""


# Whether triggers of a table, or foreign keys of the table to itself, may change or keep out rows.
_MAY_CHANGE_ROWS_SQL = """
select exists (
    select from pg_trigger where tgtype & 1 = 1 and tgenabled <> 'D'
      and (not tgisinternal or tgconstrrelid = tgrelid)
      and tgrelid in (select :oid union select relid from pg_partition_tree(:oid)))
"""


class RowCounts(NamedTuple):
    """The rows that were sent to the server, and the rows that it has written."""

    sent: int
    written: int


def refuse_other_objects(bind: Any, within: Any) -> None:
    """Raises `UsageError` for objects that are no session, connection or engine of SQLAlchemy, and
    for a session or connection of asyncio in `within`, whose calls must be awaited.
    """
    name, given = ("bind", bind) if within is None else ("within", within)
    driver = type(given).__module__.partition(".")[0]
    if isinstance(given, type) or hasattr(given, "c"):
        hint = "The order of the arguments is `bind, model, rows`."
        raise UsageError(f"`{name}` is a model or a table", hint=hint)
    if isinstance(given, str) or hasattr(given, "render_as_string"):
        hint = "Give an engine: `sqlalchemy.create_engine(url)`."
        raise UsageError(f"`{name}` is a URL", hint=hint)
    if driver in ("psycopg", "psycopg2", "psycopg_pool", "asyncpg"):
        hint = "Give a session, a connection or an engine of SQLAlchemy. `pgspate.load` takes "
        hint += "a connection of psycopg as `to=`."
        if within is not None:
            hint = "Give a session or a connection of SQLAlchemy. pgspate does not write in a "
            hint += "transaction of the driver alone."
        raise UsageError(f"`{name}` is an object of {driver}", hint=hint)
    if hasattr(within, "dialect") and not hasattr(within, "in_transaction"):
        hint = "Give the session or the connection whose transaction is to have the rows."
        raise UsageError("`within=` is an engine, which has no transaction", hint=hint)
    if hasattr(within, "sync_session") or hasattr(within, "sync_connection"):
        message = f"`within=` is an object of class {type(within).__name__}, which must be awaited"
        hint = "Call pgspate in `await session.run_sync(...)`, whose session is for `within=`."
        raise UsageError(message, hint=hint)


def copy_rows(
    connection: Any, table: str, columns: Sequence[str] | None, rows: Iterable[Any]
) -> RowCounts:
    """Writes rows by COPY and returns their numbers. Triggers may keep rows out of the table.

    `table` is a name written as in SQL. Without `columns`, the rows have values for all columns
    that are not generated.
    """
    schema, name, oid, encoding = _find_table(connection, table)
    if encoding.upper() not in ("UTF8", "UNICODE"):
        message = f"client_encoding of the connection must be UTF8, but is {encoding}"
        raise UsageError(message, hint="Run `set client_encoding = 'UTF8'` on the connection.")
    types = _column_types(connection, oid)
    columns = list(types) if columns is None else list(columns)
    for column in columns:
        if column not in types:
            message = f'column "{column}" of relation "{name}" does not exist'
            raise PlanError(message, sqlstate="42703")
    pieces = _pgspate.CopyText(rows, columns, [types[column] for column in columns])
    names = ", ".join(quote_ident(column) for column in columns)
    sql = f"copy {quote_ident(schema)}.{quote_ident(name)} ({names}) from stdin"
    driver = connection.dialect.driver
    driver_connection = connection.connection.driver_connection
    if connection.dialect.is_async and driver.startswith("psycopg"):
        written = _await_in_greenlet(_copy_by_async_psycopg(driver_connection, sql, pieces))
    elif driver == "psycopg":
        with driver_connection.cursor() as cursor:
            with cursor.copy(sql) as copy:
                for piece in pieces:
                    copy.write(piece)
            written = cursor.rowcount
    elif driver == "psycopg2":
        with driver_connection.cursor() as cursor:
            cursor.copy_expert(sql, _IteratorFile(pieces))
            written = cursor.rowcount
    elif driver == "asyncpg":
        status = _await_in_greenlet(
            driver_connection.copy_to_table(
                name, source=_async_iterator(pieces), columns=columns, schema_name=schema
            )
        )
        written = int(status.rpartition(" ")[2])
    else:
        message = f"could not write rows over a connection of the driver {driver}"
        raise UsageError(message, hint="Use psycopg, psycopg2 or asyncpg, which support COPY.")
    return RowCounts(pieces.count, written)


def type_oids(connection: Any, table: str) -> dict[str, int]:
    """Returns the oid of each column's type, for a table's name written as in SQL."""
    oid = _find_table(connection, table)[2]
    return {column: it[0] for column, it in _column_types(connection, oid).items()}


def _column_types(connection: Any, oid: int) -> dict[str, Any]:
    """Returns the rows of `_COLUMNS_SQL` by column, as `CopyText` takes them."""
    from sqlalchemy import text

    return {
        column: (type_oid, type_name, None if element is None else (element, *element_rest))
        for column, type_oid, type_name, element, *element_rest in connection.execute(
            text(_COLUMNS_SQL), {"oid": oid}
        )
    }


def qualified_name_and_oid(connection: Any, table: str) -> tuple[str, int]:
    """Returns the qualified name and the oid of the table that a name means on the connection."""
    schema, name, oid, _ = _find_table(connection, table)
    return f"{quote_ident(schema)}.{quote_ident(name)}", oid


def _find_table(connection: Any, table: str) -> Any:
    """Returns the row of `_TABLE_SQL` for a name written as in SQL."""
    from sqlalchemy import text

    row = connection.execute(text(_TABLE_SQL), {"name": table}).first()
    if row is None:
        raise PlanError(f"relation {table} does not exist", sqlstate="42P01")
    return row


def sync_in_transaction(
    connection: Any,
    table: str,
    columns: Sequence[str],
    rows: Iterable[Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Syncs rows on the caller's connection, and returns the report. `options` are those of a sync.

    Raises `PlanError` if the name means another table in the database that `options` name.
    """
    from ._calls import SYNC_SCRIPT

    constants = constants_by_column(options.pop("set", None)) or {}
    for column in constants:
        if column in columns:
            message = f'the rows have column "{column}", which `set=` names'
            raise UsageError(message, hint="Leave it out of the rows, or out of `set=`.")
    values = tuple(constants.values())
    # Without rows there are no columns, and the engine takes those of the table.
    if columns and values:
        columns, rows = [*columns, *constants], ((*row, *values) for row in rows)
    # The engine makes the script over another connection, where the name may mean another table.
    table, oid = qualified_name_and_oid(connection, table)
    script = SYNC_SCRIPT.run_to_dict([], {**options, "table": table, "columns": columns})
    if script["oid"] != oid:
        message = f"{table} is not the same table in the transaction and in the database of `bind`"
        raise PlanError(message, hint="Give the same session as `bind` and as `within=`.")
    others = set(_column_types(connection, oid)).difference(columns)
    report = _run_sync_script(connection, script, rows, others)
    return {**report, "insert_only": bool(options.get("insert_only"))}


def _run_sync_script(
    connection: Any, script: dict[str, Any], rows: Iterable[Any], others: set[str]
) -> dict[str, Any]:
    """Runs the statements of a sync on the caller's connection, and returns the report.

    `script` is the result of the engine's `sync_script`. Its statements run after a savepoint. An
    error undoes their writes, settings and temporary tables, and the caller's transaction can
    continue. `others` are the table's columns that the rows do not have.
    """

    def run(sql: str) -> Any:
        return connection.exec_driver_sql(sql, execution_options={"no_parameters": True})

    with connection.begin_nested():
        old_values = [run(f"select current_setting('{name}')").scalar() for name in
                      script["setting_names"]]
        for sql in [*script["settings"], *script["begin"]]:
            run(sql)
        copy_rows(connection, script["stage"], script["columns"], rows)
        for sql in script["staged"]:
            run(sql)
        report = _compare(run, script, others)
        if not script["is_check"]:
            _write_differences(run, script, report)
        for sql in script["end"]:
            run(sql)
        for name, value in zip(script["setting_names"], old_values):
            run(f"set local {name} = '{value}'")
    return report


def _count_outside_scope(run: Any, sql: str, others: set[str]) -> list[int]:
    """Counts rows outside the scope. Raises `UsageError` for a column that the rows do not have."""
    from sqlalchemy.exc import DBAPIError

    try:
        return list(run(sql).one())
    except DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        missing = sorted(name for name in others if f'"{name}"' in str(error.orig))
        if code != "42703" or not missing:
            raise
        message = f'column "{missing[0]}" of the scope is not in the source'
        hint = f'Give the rows of the source a value with `set={{"{missing[0]}": ...}}`.'
        raise UsageError(message, hint=hint) from error


def _compare(run: Any, script: dict[str, Any], others: set[str]) -> dict[str, Any]:
    """Compares the stage with the table, and returns the counts of rows as a report.

    Raises `PlanError` for rows that the sync must refuse, such as rows outside the scope.
    """
    rows = run(script["count_staged"]).scalar()
    if rows == 0 and script["must_have_rows"] and not script["is_check"]:
        _pgspate.refuse_sync("empty", [])
    # Later queries join the stage and the table, and might match each row with many others.
    for reason in ("duplicates", "table_duplicates"):
        duplicates = run(script[reason]).all() if script[reason] else []
        if duplicates:
            examples = [(key, times) for _, key, times in duplicates]
            _pgspate.refuse_sync(reason, [duplicates[0][0]], examples)
    if script["rows_outside_scope"]:
        counts = _count_outside_scope(run, script["rows_outside_scope"], others)
        _pgspate.refuse_sync("rows_outside_scope", counts)
    if script["keys_in_other_scopes"]:
        count, example = run(script["keys_in_other_scopes"]).one()
        if count:
            _pgspate.refuse_sync("keys_in_other_scopes", [count], [(example, 1)])
    for sql in script["compare"]:
        run(sql)
    deleted, updated, inserted = run(script["count"]).one()
    kept = rows - inserted
    warnings = []
    try:
        if rows > 0:
            percent = script["max_delete"]
            _pgspate.refuse_sync("deletes", [deleted, deleted + kept], max_delete_percent=percent)
        elif script["must_have_rows"]:
            _pgspate.refuse_sync("empty", [])
    except PlanError as refusal:
        if not script["is_check"]:
            raise
        warnings = [f"without `check=True`, this sync is refused: {refusal.message}"]
    return {
        "table": script["table"],
        "warnings": warnings,
        "rows_in": rows,
        "deleted": deleted,
        "updated": updated,
        "inserted": inserted,
        "unchanged": kept - updated,
        "is_check": script["is_check"],
    }


def _write_differences(run: Any, script: dict[str, Any], report: dict[str, Any]) -> None:
    """Deletes, updates and inserts rows, in this order.

    A delete releases unique values, which an update or an insert may give to another row.
    """
    changed_before = run(script["count_changed"]).scalar()
    for verb, done in (("delete", "deleted"), ("update", "updated"), ("insert", "inserted")):
        if not report[done]:
            continue
        if script[verb] is None:
            raise BugError(f"there are rows to {verb}, but the script has no statement for them")
        written = run(script[verb]).rowcount
        if written != report[done]:
            message = f"{written} of {counted(report[done], 'row')} could be {done}"
            sql = _MAY_CHANGE_ROWS_SQL.replace(":oid", str(int(script["oid"])))
            if run(sql).scalar():
                hint = "A trigger of the table, or a foreign key of the table to itself, changed "
                hint += "some of these rows or kept them out. Sync without `within=`."
                raise ServerError(message, hint=hint)
            hint = "Another session changed some of these rows. Run the sync again."
            raise ServerError(message, sqlstate="40001", hint=hint, is_retryable=True)
    changed = run(script["count_changed"]).scalar() - changed_before
    # An insert fires no action of a foreign key.
    if changed > report["deleted"] + report["updated"] > 0:
        keys = [(name, 0) for name in run(script["cascading_keys"]).scalars()]
        _pgspate.refuse_sync("cascades", [], keys)


def quote_ident(name: str) -> str:
    """Returns a name as a quoted identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _await_in_greenlet(coroutine: Any) -> Any:
    """Awaits a coroutine in the greenlet in which SQLAlchemy runs asynchronous drivers."""
    from sqlalchemy.util import await_only

    return await_only(coroutine)


async def _copy_by_async_psycopg(
    driver_connection: Any, sql: str, pieces: Iterator[bytes]
) -> int:
    async with driver_connection.cursor() as cursor:
        async with cursor.copy(sql) as copy:
            for piece in pieces:
                await copy.write(piece)
        return int(cursor.rowcount)


async def _async_iterator(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class _IteratorFile:
    """A file object whose content comes from an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._start = 0

    def read(self, size: int = -1) -> bytes:
        """Returns at most `size` bytes, but at most the rest of a piece; and none at the end."""
        if size < 0:
            return b"".join([self._piece[self._start :], *self._pieces])
        # A piece has megabytes, and psycopg2 reads 8 KiB at a time. So no rest is copied.
        while self._start >= len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece, self._start = piece, 0
        taken = self._piece[self._start : self._start + size]
        self._start += len(taken)
        return taken
