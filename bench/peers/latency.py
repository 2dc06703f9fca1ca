"""Measure the latency of single events: COUNT (FILE | CONNINFO).

Writes a first row and then COUNT rows to the source, 0.1 s apart. The source is FILE, which gets a
line per row, or the database of CONNINFO, where each row is a commit. The latency of a row is the
time from its write until a query finds the row in the target. Prints the latencies of the COUNT
rows as a JSON list of milliseconds.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

FIRST_KEY = 10_000_000
PAUSE_S = 0.1
WAIT_S_MAX = 10
INSERT_ROW = "insert into orders (id, note) values (%s, 'lone')"
FIND_ROW = "select 1 from orders where id = %s"


def make_row_writer(source: str) -> Callable[[int], object]:
    """Returns a function that writes the row of a key to the source."""
    path = Path(source)
    if not path.is_file():
        conn = psycopg.connect(source, autocommit=True)
        return lambda key: conn.execute(INSERT_ROW, [key])

    def append_event(key: int) -> None:
        event = {"op": "insert", "table": "public.orders", "row": {"id": key, "note": "lone"}}
        with path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    return append_event


def main() -> int:
    """Writes rows, waits for each in the target, and prints the latencies."""
    count, source = int(sys.argv[1]), sys.argv[2]
    write_row, latencies_ms = make_row_writer(source), []
    with psycopg.connect("", autocommit=True) as target:
        for key in range(FIRST_KEY, FIRST_KEY + count + 1):
            write_row(key)
            start_time = time.monotonic()
            while not target.execute(FIND_ROW, [key], prepare=True).fetchone():
                if time.monotonic() > start_time + WAIT_S_MAX:
                    raise SystemExit(f"error: row {key} is not in the target after {WAIT_S_MAX} s")
                time.sleep(0.0002)
            latencies_ms.append((time.monotonic() - start_time) * 1000)
            time.sleep(PAUSE_S)
    # The first latency is left out: it includes the preparation of the statements.
    print(json.dumps(latencies_ms[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
