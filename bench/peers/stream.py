"""Apply a stream of changes with psycopg, as other tools do: HOW FILE EVENTS.

HOW is `rows`, `rows-1000` or `batches`. FILE has the events, of which the first EVENTS are applied.
Prints the seconds. The events are decoded before the measured time begins.
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
COLUMN_NAMES = ", ".join(COLUMNS)
EXCLUDED_ASSIGNMENTS = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
ROW_PLACEHOLDERS = "(" + ", ".join(["%s"] * len(COLUMNS)) + ")"
UPSERT = (
    f"insert into orders ({COLUMN_NAMES}) values {ROW_PLACEHOLDERS} "
    f"on conflict (id) do update set {EXCLUDED_ASSIGNMENTS}"
)
UPDATE = f"update orders set {', '.join(f'{name} = %s' for name in COLUMNS[1:])} where id = %s"
DELETE = "delete from orders where id = %s"
BATCH_EVENTS = 10_000


def split_into_batches(items: list, size: int) -> Iterator[list]:
    """Splits `items` into lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def write_event(cursor: psycopg.Cursor, event: dict) -> None:
    """Writes one event with a prepared statement."""
    if event["op"] == "delete":
        cursor.execute(DELETE, [event["key"]["id"]], prepare=True)
        return
    row = [event["row"][name] for name in COLUMNS]
    if event["op"] == "insert":
        cursor.execute(UPSERT, row, prepare=True)
    else:
        cursor.execute(UPDATE, [*row[1:], row[0]], prepare=True)


def apply_by_rows(conn: psycopg.Connection, events: list[dict], transaction_events: int) -> None:
    """Writes event by event, with `transaction_events` events in each transaction."""
    for batch in split_into_batches(events, transaction_events):
        # A single event needs no `begin` and `commit`, so it costs one round trip.
        transaction = conn.transaction() if transaction_events > 1 else nullcontext()
        with transaction, conn.cursor() as cursor:
            for event in batch:
                write_event(cursor, event)


def apply_by_batches(conn: psycopg.Connection, events: list[dict]) -> None:
    """Writes the last event of each key of a batch: one multi-row upsert and one delete."""
    for batch in split_into_batches(events, BATCH_EVENTS):
        last_by_key = {(event.get("row") or event["key"])["id"]: event for event in batch}
        rows = [event["row"] for event in last_by_key.values() if event["op"] != "delete"]
        keys = [key for key, event in last_by_key.items() if event["op"] == "delete"]
        with conn.transaction(), psycopg.ClientCursor(conn) as cursor:
            sql = UPSERT.replace(ROW_PLACEHOLDERS, ", ".join([ROW_PLACEHOLDERS] * len(rows)))
            cursor.execute(sql, [row[name] for row in rows for name in COLUMNS])
            cursor.execute("delete from orders where id = any(%s)", [keys])


def main() -> int:
    """Applies the events, and prints the seconds."""
    how, source, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with source.open() as lines:
        events = [json.loads(line) for line in islice(lines, count)]
    with psycopg.connect("", autocommit=True) as conn:
        start_time = time.monotonic()
        if how == "batches":
            apply_by_batches(conn, events)
        else:
            apply_by_rows(conn, events, {"rows": 1, "rows-1000": 1000}[how])
        print(time.monotonic() - start_time)
    return 0


if __name__ == "__main__":
    sys.exit(main())
