"""Flights of 2013 into PostgreSQL, from Python: a plan, loads, a sync, and an error.

Runs on a temporary PostgreSQL: `python examples/python.py`.
"""

from pathlib import Path

import pgspate

DATA = Path(__file__).parent

with pgspate.server(temporary=True) as server:
    flights = DATA / "flights-2013-01.csv.gz"
    print(pgspate.plan(flights, "flights", create=True, to=server))
    report = pgspate.load(flights, "flights", create=True, progress=True, to=server)
    print(report)

    # The same file again: the ledger knows it.
    report = pgspate.load(flights, "flights", to=server)
    print(f"written again: {report.rows_written}, before: {report.rows_before}")

    # Rows that are made as they are loaded.
    squares = ({"n": n, "square": n * n} for n in range(100_000))
    print(pgspate.load(squares, "squares", create=True, to=server))

    # Only what differs is written.
    rows = [{"n": n, "square": n * n if n != 7 else 0} for n in range(100)]
    report = pgspate.sync(rows, "squares", key="n", scope="n < 100", to=server)
    print(report)
    assert (report.updated, report.unchanged) == (1, 99)

    try:
        pgspate.load([(1, 1), ("two", 4)], "squares", to=server)
    except pgspate.Error as error:
        print(error)
