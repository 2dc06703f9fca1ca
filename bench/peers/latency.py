"""How long a lone event takes: COUNT (FILE | CONNINFO). Prints the milliseconds of each as JSON.

A row is written to the source while the source is idle, by a commit or as a line of the file. The
latency is the time from then until a query finds the row on the target.
"""

import json
import sys
import time
from pathlib import Path

import psycopg

FIRST = 10_000_000
PAUSE_S = 0.1
LIMIT_S = 10
INSERT = "insert into orders (id, note) values (%s, 'lone')"
FIND = "select 1 from orders where id = %s"


def write_to(source: str):
    """What writes a row to the source."""
    path = Path(source)
    if not path.is_file():
        conn = psycopg.connect(source, autocommit=True)
        return lambda key: conn.execute(INSERT, [key])

    def append(key: int) -> None:
        event = {"op": "insert", "table": "public.orders", "row": {"id": key, "note": "lone"}}
        with path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    return append


def main() -> int:
    """Write, look, say."""
    count, source = int(sys.argv[1]), sys.argv[2]
    write, millis = write_to(source), []
    with psycopg.connect("", autocommit=True) as target:
        for key in range(FIRST, FIRST + count + 1):
            write(key)
            begun = time.monotonic()
            while not target.execute(FIND, [key], prepare=True).fetchone():
                if time.monotonic() > begun + LIMIT_S:
                    raise SystemExit("error: the row does not come")
                time.sleep(0.0002)
            millis.append((time.monotonic() - begun) * 1000)
            time.sleep(PAUSE_S)
    # The first one finds nothing prepared.
    print(json.dumps(millis[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
