"""Shows pgspate in Python: a plan, loads, a sync and an error, with flights of 2013.

Starts a temporary PostgreSQL server of its own. Run it with `python examples/python.py`.
"""

from pathlib import Path

import pgspate

DATA = Path(__file__).parent

with pgspate.server(temporary=True) as server:
    flights = DATA / "flights-2013-01.csv.gz"
    print(pgspate.plan(flights, "flights", create=True, to=server))
    report = pgspate.load(flights, "flights", create=True, progress=True, to=server)
    print(report)

    # Load the same file again: the ledger shows that its rows are already in the table.
    report = pgspate.load(flights, "flights", to=server)
    print(f"rows written now: {report.rows_written}, before: {report.rows_before}")

    # Load rows from a generator, without a list of all rows in memory.
    squares = ({"n": n, "square": n * n} for n in range(100_000))
    print(pgspate.load(squares, "squares", create=True, to=server))

    # Sync the rows with n < 100. Only the row that differs is written.
    rows = [{"n": n, "square": n * n if n != 7 else 0} for n in range(100)]
    report = pgspate.sync(rows, "squares", key="n", scope="n < 100", to=server)
    print(report)
    assert (report.updated, report.unchanged) == (1, 99)

    try:
        pgspate.load([(1, 1), ("two", 4)], "squares", to=server)
    except pgspate.Error as error:
        print(error)
