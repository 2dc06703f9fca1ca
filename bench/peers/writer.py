"""Writes single records by many callers with a driver or pgspate's writer.

`python bench/peers/writer.py CONTENDER CALLERS TABLE ROWS DSN SERVER POSTMASTER SECONDS` prints the
result as JSON. Each caller waits until its record is durable, and sends the next one then. Records
of the first quarter of the time are written, too, but not measured.
"""

import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import asyncpg
import psycopg
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))
from measure import child_pids  # noqa: E402

COLUMNS = {
    "account": ["id", "number", "holder", "email", "opened", "status", "currency", "balance",
                "profile"],
    "transaction": ["id", "account", "booked", "amount", "currency", "kind", "counterparty",
                    "reference", "memo"],
}
IDS_OF_CALLER = 1_000_000_000
"""Each caller has keys of its own, from its number times this on."""
BATCH_INTERVAL_S = 0.005
WORDS = ("rent", "wages", "invoice", "refund", "deposit", "transfer", "order", "goods", "fee")
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)

Insert = Callable[[int, tuple], Awaitable[object]]
"""Writes a record of a caller. Returns when the record is durable."""


class Records:
    """Generates records of a table."""

    def __init__(self, table: str, rows: int):
        self.table, self.rows = table, rows
        self.random = random.Random(11)
        length = 830 if table == "account" else 964
        self.remarks = [self.remark(length) for _ in range(256)]

    def remark(self, length: int) -> str:
        """Returns a text of about this length."""
        text = ""
        while len(text) < length:
            text += self.random.choice(WORDS) + f" {self.random.randrange(10_000)} "
        return text[:length]

    def next(self, key: int) -> tuple:
        """Returns a record with this key. The indexed columns are random."""
        pick, remark = self.random, self.remarks[key % len(self.remarks)]
        moment = BEGIN + timedelta(seconds=int(pick.random() * 63_000_000))
        money = Decimal(int(pick.random() * 100_000_000)).scaleb(-2)
        number = f"XX{pick.getrandbits(64):020}"
        if self.table == "account":
            email = f"{pick.getrandbits(64):016x}@example.org"
            return (key, number, "Ada Jensen", email, moment, "open", "EUR", money, remark)
        account = 1 + int(pick.random() * self.rows)
        reference = f"{pick.getrandbits(96):024X}"
        return (key, account, moment, money, "EUR", "card", f"{number} Ada Jensen", reference,
                remark)


class Batcher:
    """What people write by hand: collects records, and writes them every 5 ms."""

    def __init__(self, connection: asyncpg.Connection, sql: str):
        self.connection, self.sql = connection, sql
        self.waiting: list[tuple[tuple, asyncio.Future]] = []
        self.task = asyncio.create_task(self.flush())

    async def insert(self, _caller: int, record: tuple) -> None:
        """Waits until the batch with the record is written."""
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((record, done))
        await done

    async def flush(self) -> None:
        """Writes what waits, forever."""
        while True:
            await asyncio.sleep(BATCH_INTERVAL_S)
            batch, self.waiting = self.waiting, []
            if batch:
                await self.connection.executemany(self.sql, [record for record, _ in batch])
            for _, done in batch:
                done.set_result(None)


async def open_contender(contender: str, callers: int, table: str, dsn: str) -> Insert:
    """Opens the connections of a contender, and returns its way to write a record."""
    columns = COLUMNS[table]
    parameters = dict(pair.split("=", 1) for pair in dsn.split())
    parameters["database"] = parameters.pop("dbname")
    numbered = ", ".join(f"${place + 1}" for place in range(len(columns)))
    sql = f"insert into {table} ({', '.join(columns)}) values ({numbered})"
    if contender == "writer":
        import pgspate.aio

        writer = await pgspate.aio.Writer(table, to=dsn).__aenter__()
        return lambda _, record: writer.insert(dict(zip(columns, record, strict=True)))
    if contender == "batcher":
        return Batcher(await asyncpg.connect(**parameters), sql).insert
    if contender == "psycopg":
        sql = f"insert into {table} ({', '.join(columns)}) values ({', '.join(['%s'] * 9)})"
        connect = psycopg.AsyncConnection.connect
        sessions = [await connect(dsn, autocommit=True, prepare_threshold=0)
                    for _ in range(callers)]
        return lambda caller, record: sessions[caller].execute(sql, record)
    if contender == "pgbouncer":
        # A pooler of transactions has no prepared statements, so asyncpg must keep none. Without a
        # transaction, its messages for one statement could reach different sessions.
        connections = [await asyncpg.connect(**parameters, statement_cache_size=0)
                       for _ in range(callers)]

        async def insert(caller: int, record: tuple) -> None:
            async with connections[caller].transaction():
                await connections[caller].execute(sql, *record)

        return insert
    connections = [await asyncpg.connect(**parameters) for _ in range(callers)]
    return lambda caller, record: connections[caller].execute(sql, *record)


def server_cpu_s(postmaster: int) -> float:
    """Returns the CPU seconds of a server's live processes.

    Many backends use less than a tick of /proc/PID/stat each, so nanoseconds are read.
    """
    processes = [postmaster, *child_pids(postmaster)]
    texts = [Path(f"/proc/{pid}/schedstat").read_text() for pid in processes]
    return sum(int(text.split()[0]) for text in texts) / 1e9


async def run(contender: str, callers: int, records: Records, dsn: str, watch: Callable,
              seconds: float) -> dict:
    """Lets the callers write, and returns what was measured."""
    insert = await open_contender(contender, callers, records.table, dsn)
    calls: list[tuple[float, float]] = []
    is_over = False

    async def call(caller: int) -> None:
        key = (caller + 1) * IDS_OF_CALLER
        while not is_over:
            record = records.next(key)
            begin = time.perf_counter()
            await insert(caller, record)
            end = time.perf_counter()
            calls.append((end, end - begin))
            key += 1

    async with asyncio.TaskGroup() as tasks:
        for caller in range(callers):
            tasks.create_task(call(caller))
        await asyncio.sleep(seconds / 4)
        before, begin = watch(), time.perf_counter()
        await asyncio.sleep(seconds)
        end, after = time.perf_counter(), watch()
        is_over = True
    waits = sorted(wait for ended, wait in calls if begin <= ended < end)
    count = max(len(waits), 1)
    used = [now - then for now, then in zip(after, before, strict=True)]
    return {
        "acknowledged": len(calls),
        "records_per_second": round(len(waits) / (end - begin)),
        "p50_ms": round(waits[len(waits) // 2] * 1000, 2),
        "p99_ms": round(waits[len(waits) * 99 // 100] * 1000, 2),
        "server_cpu_us": round(used[0] / count * 1e6, 1),
        "client_cpu_us": round(used[1] / count * 1e6, 1),
        "wal_bytes": round(used[2] / count),
    }


def main() -> None:
    """Runs one trial, and prints its result."""
    contender, callers, table, rows, dsn, observed, postmaster, seconds = sys.argv[1:]
    observer = psycopg.connect(observed, autocommit=True)

    def watch() -> tuple[float, float, float]:
        """Returns CPU seconds of the server and of this process, and the WAL's position."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        lsn = observer.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        return server_cpu_s(int(postmaster)), usage.ru_utime + usage.ru_stime, float(lsn[0])

    records = Records(table, int(rows))
    measured = run(contender, int(callers), records, dsn, watch, float(seconds))
    print(json.dumps(uvloop.run(measured)), flush=True)
    # Connections and tasks end with the process.
    sys.exit(0)


if __name__ == "__main__":
    main()
