"""A stream of changes, applied as sinks do it: HOW FILE EVENTS. Prints the seconds that it took.

The events are decoded before the clock starts.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import psycopg

COLUMNS = ("id", "customer", "status", "amount", "updated", "note")
NAMES = ", ".join(COLUMNS)
SETS = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
VALUES = "(" + ", ".join(["%s"] * len(COLUMNS)) + ")"
INSERT = f"insert into orders ({NAMES}) values {VALUES} on conflict (id) do update set {SETS}"
UPDATE = f"update orders set {', '.join(f'{name} = %s' for name in COLUMNS[1:])} where id = %s"
DELETE = "delete from orders where id = %s"
BATCH = 10_000


def batched(items: list, size: int) -> Iterator[list]:
    """Split `items` into lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def write(cursor: psycopg.Cursor, event: dict) -> None:
    """One event, by a prepared statement."""
    if event["op"] == "delete":
        cursor.execute(DELETE, [event["key"]["id"]], prepare=True)
        return
    row = [event["row"][name] for name in COLUMNS]
    if event["op"] == "insert":
        cursor.execute(INSERT, row, prepare=True)
    else:
        cursor.execute(UPDATE, [*row[1:], row[0]], prepare=True)


def by_rows(conn: psycopg.Connection, events: list[dict], together: int) -> None:
    """Event by event, so many of them in a transaction."""
    for some in batched(events, together):
        # One alone is its own transaction, and costs one round trip.
        block = conn.transaction() if together > 1 else nullcontext()
        with block, conn.cursor() as cursor:
            for event in some:
                write(cursor, event)


def by_batches(conn: psycopg.Connection, events: list[dict]) -> None:
    """The last event of each key of a batch: one upsert of many rows, and one delete."""
    for some in batched(events, BATCH):
        last = {(event.get("row") or event["key"])["id"]: event for event in some}
        rows = [event["row"] for event in last.values() if event["op"] != "delete"]
        keys = [key for key, event in last.items() if event["op"] == "delete"]
        with conn.transaction(), psycopg.ClientCursor(conn) as cursor:
            sql = INSERT.replace(VALUES, ", ".join([VALUES] * len(rows)))
            cursor.execute(sql, [row[name] for row in rows for name in COLUMNS])
            cursor.execute("delete from orders where id = any(%s)", [keys])


def main() -> int:
    """Apply, and say how long it took."""
    how, source, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with source.open() as lines:
        events = [json.loads(line) for line in islice(lines, count)]
    with psycopg.connect("", autocommit=True) as conn:
        begun = time.monotonic()
        if how == "batches":
            by_batches(conn, events)
        else:
            by_rows(conn, events, {"rows": 1, "rows-1000": 1000}[how])
        print(time.monotonic() - begun)
    return 0


if __name__ == "__main__":
    sys.exit(main())
