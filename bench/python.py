"""Compare the Python package with other ways to write from Python: `python bench/python.py --help`.

Needs an environment with pgspate and the packages of bench/requirements-python.txt. Data is in
memory before each clock starts. Slow ways write fewer rows, and are compared by rows per second;
each printed line says how many rows were written.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import adbc_driver_postgresql.dbapi
import pgspate.sqlalchemy
import polars
import psycopg
import pyarrow
import pyarrow.csv
import sqlalchemy
from datasets import LINEITEM, create_table
from places import Places, find_pg_bin
from server import Server
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

# bench/peers holds separate programs and is not a package, so its path is added.
sys.path.append(str(Path(__file__).parent / "peers"))
from copy_adbc import arrow_type  # noqa: E402

TUPLES = 600_000
TO_SQL_ROWS = 20_000
MERGED_METERS = 12
MERGED_ROWS = 3_000
PREDICTIONS = "use_prediction"
CREATE_PREDICTIONS = (
    f"create table {PREDICTIONS} (meter int, occurred timestamp, prediction numeric(12, 3), "
    "primary key (meter, occurred))"
)


class Base(DeclarativeBase):
    """The base class of SQLAlchemy's mapped classes."""


class Prediction(Base):
    """A row of the predictions' table, as a mapped class."""

    __tablename__ = PREDICTIONS
    meter: Mapped[int] = mapped_column(primary_key=True)
    occurred: Mapped[datetime] = mapped_column(primary_key=True)
    prediction: Mapped[Decimal]


class Bench:
    """The server, and the measured trials of one group of ways to write."""

    def __init__(self, server: Server, rounds: int):
        self.server = server
        self.rounds = rounds
        self.conninfo = server.conninfo()
        self.uri = "postgresql:///?" + "&".join(self.conninfo.split()).replace("/", "%2F")
        parameters = dict(part.split("=", 1) for part in self.conninfo.split())
        url = sqlalchemy.URL.create(
            "postgresql+psycopg", parameters["user"], database=parameters["dbname"],
            query={"host": parameters["host"], "port": parameters["port"]})
        self.engine = sqlalchemy.create_engine(url, hide_parameters=True)
        self.lines: list[dict] = []
        self.trials: dict[str, list[dict]] = {}

    def load(self, name: str, rows: int, work: Callable[[], object]) -> None:
        """Loads an empty table with `work`, and checks the number of rows afterwards."""
        self.server.sql(f"drop table if exists lineitem; {create_table('lineitem')}; checkpoint")
        with self.timed(name, rows):
            work()
        [[found]] = self.server.sql("select count(*) from lineitem")
        if int(found) != rows:
            raise SystemExit(f"error: {name} wrote {found} of {rows} rows")

    @contextmanager
    def timed(self, name: str, rows: int) -> Iterator[None]:
        """Records the wall time and this process's CPU time of the `with` block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        line = {"name": name, "rows": rows, "wall": round(wall, 4), "cpu": round(cpu, 4)}
        self.trials.setdefault(name, []).append(line)
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def table(self, against: str) -> str:
        """Returns the medians in Markdown; the last column is the speed relative to `against`."""
        rate = {name: statistics.median(it["rows"] / it["wall"] for it in trials)
                for name, trials in self.trials.items()}
        lines = ["| way | rows | wall, s | client CPU, s | rows/s | times |",
                 "|---|---:|---:|---:|---:|---:|"]
        for name, trials in self.trials.items():
            wall, cpu = (statistics.median(it[key] for it in trials) for key in ("wall", "cpu"))
            lines.append(f"| {name} | {trials[0]['rows']:,} | {wall:.2f} | {cpu:.2f} "
                         f"| {rate[name]:,.0f} | {rate[name] / rate[against]:.2f} |")
        return "\n".join(lines)


def read_lineitem(path: Path) -> pyarrow.Table:
    """Reads lineitem from a CSV file with a header."""
    types = {column.name: arrow_type(column.arrow) for column in LINEITEM}
    return pyarrow.csv.read_csv(
        path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))


def measure_tables(bench: Bench, table: pyarrow.Table, path: Path) -> None:
    """Measures loads of Arrow tables and of data frames, which are in memory."""
    frame = polars.from_arrow(table)
    few = table.slice(0, TO_SQL_ROWS).to_pandas()
    # pandas would send these columns as text.
    dtype = {column.name: sqlalchemy.Numeric(15, 2) for column in LINEITEM
             if column.sql.startswith("numeric")}

    def by_psql() -> None:
        command = f"\\copy lineitem from '{path}' (format csv, header)"
        subprocess.run([bench.server.places.psql, "-Xqc", command],
                       env=bench.server.environment(), check=True)

    def by_adbc() -> None:
        with adbc_driver_postgresql.dbapi.connect(bench.uri) as conn:
            with conn.cursor() as cursor:
                cursor.adbc_ingest("lineitem", table, mode="append")
            conn.commit()

    def by_pgspate(data: object) -> Callable[[], object]:
        return lambda: pgspate.load(data, "lineitem", to=bench.conninfo, analyze="never")

    def by_to_sql() -> None:
        few.to_sql("lineitem", bench.engine, index=False, if_exists="append", method="multi",
                   chunksize=1000, dtype=dtype)

    def by_our_method() -> None:
        few.to_sql("lineitem", bench.engine, index=False, if_exists="append",
                   method=pgspate.pandas_method)

    rows = table.num_rows
    for round_index in range(bench.rounds):
        bench.load("psql \\copy of csv", rows, by_psql)
        bench.load("pgspate.load, pyarrow table", rows, by_pgspate(table))
        bench.load("pgspate.load, polars frame", rows, by_pgspate(frame))
        bench.load("pgspate.load, pyarrow reader", rows, by_pgspate(table.to_reader(100_000)))
        bench.load("ADBC ingest, pyarrow table", rows, by_adbc)
        if round_index == 0:
            bench.load('to_sql(method="multi")', len(few), by_to_sql)
            bench.load("to_sql(method=pgspate.pandas_method)", len(few), by_our_method)


def measure_tuples(bench: Bench, table: pyarrow.Table) -> None:
    """Measures loads of rows that are tuples of Python objects."""
    rows = list(zip(*(column.to_pylist() for column in table.slice(0, TUPLES).columns),
                    strict=True))
    types = [column.sql.partition("(")[0].strip() for column in LINEITEM]

    def by_psycopg(binary: bool) -> None:
        how = " (format binary)" if binary else ""
        with psycopg.connect(bench.conninfo) as conn, conn.cursor() as cursor:
            with cursor.copy(f"copy lineitem from stdin{how}") as copy:
                if binary:
                    copy.set_types(types)
                for row in rows:
                    copy.write_row(row)

    def by_pgspate(data: object) -> None:
        pgspate.load(data, "lineitem", to=bench.conninfo, analyze="never")

    for _ in range(bench.rounds):
        bench.load("psycopg write_row, text", len(rows), lambda: by_psycopg(False))
        bench.load("psycopg write_row, binary", len(rows), lambda: by_psycopg(True))
        bench.load("pgspate.load, list of tuples", len(rows), lambda: by_pgspate(rows))
        bench.load("pgspate.load, iterator of tuples", len(rows), lambda: by_pgspate(iter(rows)))


def measure_meters(bench: Bench, count: int) -> None:
    """Measures three ways to replace each meter's predictions with mapped objects."""
    before, night = make_night(count, MERGED_ROWS)

    def reset_predictions() -> None:
        bench.server.sql(f"drop table if exists {PREDICTIONS}; {CREATE_PREDICTIONS}")
        rows = [row for meter_rows in before.values() for row in meter_rows]
        pgspate.load(rows, PREDICTIONS, to=bench.conninfo)
        bench.server.sql("checkpoint")

    def objects(rows: list) -> list[Prediction]:
        return [Prediction(meter=row[0], occurred=row[1], prediction=row[2]) for row in rows]

    def check_sum(meters: list[int]) -> None:
        expected = sum(row[2] for meter in meters for row in night[meter])
        [[found]] = bench.server.sql(
            f"select sum(prediction) from {PREDICTIONS} where meter <= {max(meters)}")
        if Decimal(found) != expected:
            raise SystemExit(f"error: sum of predictions is {found}, expected {expected}")

    reset_predictions()
    objects_by_meter = {meter: objects(rows) for meter, rows in night.items()}
    with bench.timed("pgspate.sqlalchemy.sync", sum(map(len, objects_by_meter.values()))):
        with Session(bench.engine) as session:
            for meter, rows in objects_by_meter.items():
                pgspate.sqlalchemy.sync(session, Prediction, rows,
                                        scope=Prediction.meter == meter)
    check_sum(list(night))
    merged_meters = list(night)[:MERGED_METERS]
    reset_predictions()
    with bench.timed("the scope read, then merge", sum(len(night[it]) for it in merged_meters)):
        for meter in merged_meters:
            merge_known(bench.engine, meter, night[meter])
    check_sum(merged_meters)
    reset_predictions()
    merged_meters = merged_meters[: max(1, len(merged_meters) // 3)]
    with bench.timed("merge of each object", sum(len(night[it]) for it in merged_meters)):
        for meter in merged_meters:
            merge_each(bench.engine, meter, objects(night[meter]))
    check_sum(merged_meters)


def merge_each(engine: sqlalchemy.Engine, meter: int, rows: list[Prediction]) -> None:
    """Merges as SQLAlchemy's manual shows: one query for each object."""
    with Session(engine) as session:
        for row in rows:
            session.merge(row)
        kept = [row.occurred for row in rows]
        session.execute(sqlalchemy.delete(Prediction).where(
            Prediction.meter == meter, Prediction.occurred.not_in(kept)))
        session.commit()


def merge_known(engine: sqlalchemy.Engine, meter: int, rows: list) -> None:
    """Reads the meter's rows with one query, so that merging an object needs no query."""
    with Session(engine) as session:
        found = session.scalars(sqlalchemy.select(Prediction).where(Prediction.meter == meter))
        old = {row.occurred: row for row in found}
        for row in rows:
            new_object = Prediction(meter=row[0], occurred=row[1], prediction=row[2])
            if row[1] in old:
                session.merge(new_object)
            else:
                session.add(new_object)
        for dropped_time in old.keys() - {row[1] for row in rows}:
            session.delete(old[dropped_time])
        session.commit()


def make_night(meters: int, rows: int) -> tuple[dict[int, list], dict[int, list]]:
    """Returns each meter's rows before and after a night.

    In the night, 15 % of the rows are dropped, as many are added, and 43 % are changed.
    """
    generator = random.Random(41)
    before, after = {}, {}

    def row(meter: int, occurred: datetime) -> tuple[int, datetime, Decimal]:
        return meter, occurred, Decimal(generator.randrange(10_000_000)) / 1000

    for meter in range(1, meters + 1):
        dropped, changed = rows * 15 // 100, rows * 43 // 100
        times = [datetime(2026, 1, 1) + step * timedelta(minutes=15)
                 for step in range(rows + dropped)]
        before[meter] = [row(meter, time_) for time_ in times[:rows]]
        kept = generator.sample(before[meter], rows - dropped)
        new = [row(meter, time_) for time_ in [old[1] for old in kept[:changed]] + times[rows:]]
        after[meter] = sorted(kept[changed:] + new)
    return before, after


def main() -> None:
    """Runs all trials, and writes their lines and the tables of medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lineitem", type=Path, help="lineitem as CSV with a header")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--meters", type=int, default=300)
    parser.add_argument("--cache", type=Path, default=Path("target/bench-python"))
    parser.add_argument("--pg-bin", help="folder of PostgreSQL's programs")
    parser.add_argument("--out", type=Path, help="write the trials here, a line each")
    args = parser.parse_args()
    places = Places(args.cache, find_pg_bin(args.pg_bin), Path(sys.executable))
    table = read_lineitem(args.lineitem)
    measured = []
    with Server(places) as server:
        print(f"PostgreSQL {server.sql('show server_version')[0][0]}", flush=True)
        for against, work in (
            ("psql \\copy of csv", lambda bench: measure_tables(bench, table, args.lineitem)),
            ("psycopg write_row, text", lambda bench: measure_tuples(bench, table)),
            ("merge of each object", lambda bench: measure_meters(bench, args.meters)),
        ):
            bench = Bench(server, args.rounds)
            work(bench)
            bench.engine.dispose()
            measured.append((against, bench))
    for against, bench in measured:
        print(f"\n{bench.table(against)}")
    if args.out:
        lines = [json.dumps(line) for _, bench in measured for line in bench.lines]
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
