"""Measure the Python package beside what people use from Python: `python bench/python.py --help`.

Runs in an environment with the package and with bench/requirements-python.txt. Data is in memory
before each clock starts. What would take too long is measured on fewer rows, and compared by its
rows a second; the lines say how many there were.
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

# The peers are programs of their own, in a folder that is no package.
sys.path.append(str(Path(__file__).parent / "peers"))
from copy_adbc import arrow_type  # noqa: E402

TUPLES = 600_000
TO_SQL_ROWS = 20_000
MERGED_METERS = 12
MERGED_ROWS = 3_000
METERS = "use_prediction"
CREATE_METERS = (
    f"create table {METERS} (meter int, occurred timestamp, prediction numeric(12, 3), "
    "primary key (meter, occurred))"
)


class Base(DeclarativeBase):
    """What SQLAlchemy's mappings are made from."""


class Prediction(Base):
    """A row of the meters' table, as an ORM has it."""

    __tablename__ = METERS
    meter: Mapped[int] = mapped_column(primary_key=True)
    occurred: Mapped[datetime] = mapped_column(primary_key=True)
    prediction: Mapped[Decimal]


class Bench:
    """One run: its server, and what has been measured."""

    def __init__(self, server: Server, rounds: int):
        self.server = server
        self.rounds = rounds
        self.to = server.conninfo()
        self.uri = "postgresql:///?" + "&".join(self.to.split()).replace("/", "%2F")
        where = dict(part.split("=", 1) for part in self.to.split())
        url = sqlalchemy.URL.create(
            "postgresql+psycopg", where["user"], database=where["dbname"],
            query={"host": where["host"], "port": where["port"]})
        self.engine = sqlalchemy.create_engine(url, hide_parameters=True)
        self.lines: list[dict] = []
        self.trials: dict[str, list[dict]] = {}

    def load(self, name: str, rows: int, work: Callable[[], object]) -> None:
        """One load into an empty table, which must have all rows afterwards."""
        self.server.sql(f"drop table if exists lineitem; {create_table('lineitem')}; checkpoint")
        with self.timed(name, rows):
            work()
        [[found]] = self.server.sql("select count(*) from lineitem")
        if int(found) != rows:
            raise SystemExit(f"error: {name} wrote {found} of {rows} rows")

    @contextmanager
    def timed(self, name: str, rows: int) -> Iterator[None]:
        """Takes the time of what is done within, and our own CPU."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        line = {"name": name, "rows": rows, "wall": round(wall, 4), "cpu": round(cpu, 4)}
        self.trials.setdefault(name, []).append(line)
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def table(self, against: str) -> str:
        """Medians as Markdown, with rows a second as multiples of those of `against`."""
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
    """The table, from a CSV file with a header."""
    types = {column.name: arrow_type(column.arrow) for column in LINEITEM}
    return pyarrow.csv.read_csv(
        path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))


def measure_tables(bench: Bench, table: pyarrow.Table, path: Path) -> None:
    """Tables that are in memory as Arrow."""
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
        return lambda: pgspate.load(data, "lineitem", to=bench.to, analyze="never")

    def by_to_sql() -> None:
        few.to_sql("lineitem", bench.engine, index=False, if_exists="append", method="multi",
                   chunksize=1000, dtype=dtype)

    def by_our_method() -> None:
        few.to_sql("lineitem", bench.engine, index=False, if_exists="append",
                   method=pgspate.pandas_method)

    rows = table.num_rows
    for nth in range(bench.rounds):
        bench.load("psql \\copy of csv", rows, by_psql)
        bench.load("pgspate.load, pyarrow table", rows, by_pgspate(table))
        bench.load("pgspate.load, polars frame", rows, by_pgspate(frame))
        bench.load("pgspate.load, pyarrow reader", rows, by_pgspate(table.to_reader(100_000)))
        bench.load("ADBC ingest, pyarrow table", rows, by_adbc)
        if nth == 0:
            bench.load('to_sql(method="multi")', len(few), by_to_sql)
            bench.load("to_sql(method=pgspate.pandas_method)", len(few), by_our_method)


def measure_tuples(bench: Bench, table: pyarrow.Table) -> None:
    """Tuples of Python's own objects."""
    rows = list(zip(*(column.to_pylist() for column in table.slice(0, TUPLES).columns),
                    strict=True))
    types = [column.sql.partition("(")[0].strip() for column in LINEITEM]

    def by_psycopg(binary: bool) -> None:
        how = " (format binary)" if binary else ""
        with psycopg.connect(bench.to) as conn, conn.cursor() as cursor:
            with cursor.copy(f"copy lineitem from stdin{how}") as copy:
                if binary:
                    copy.set_types(types)
                for row in rows:
                    copy.write_row(row)

    def by_pgspate(data: object) -> None:
        pgspate.load(data, "lineitem", to=bench.to, analyze="never")

    for _ in range(bench.rounds):
        bench.load("psycopg write_row, text", len(rows), lambda: by_psycopg(False))
        bench.load("psycopg write_row, binary", len(rows), lambda: by_psycopg(True))
        bench.load("pgspate.load, list of tuples", len(rows), lambda: by_pgspate(rows))
        bench.load("pgspate.load, iterator of tuples", len(rows), lambda: by_pgspate(iter(rows)))


def measure_meters(bench: Bench, count: int) -> None:
    """A night's results, meter by meter, as mapped objects."""
    before, night = make_night(count, MERGED_ROWS)

    def fresh() -> None:
        bench.server.sql(f"drop table if exists {METERS}; {CREATE_METERS}")
        rows = [row for of_meter in before.values() for row in of_meter]
        pgspate.load(rows, METERS, to=bench.to)
        bench.server.sql("checkpoint")

    def objects(rows: list) -> list[Prediction]:
        return [Prediction(meter=row[0], occurred=row[1], prediction=row[2]) for row in rows]

    def is_as_meant(some: list[int]) -> None:
        meant = sum(row[2] for meter in some for row in night[meter])
        [[found]] = bench.server.sql(
            f"select sum(prediction) from {METERS} where meter <= {max(some)}")
        if Decimal(found) != meant:
            raise SystemExit("error: the table is not as the night's results are")

    fresh()
    made = {meter: objects(rows) for meter, rows in night.items()}
    with bench.timed("pgspate.sqlalchemy.sync", sum(map(len, made.values()))):
        with Session(bench.engine) as session:
            for meter, rows in made.items():
                pgspate.sqlalchemy.sync(session, Prediction, rows,
                                        scope=Prediction.meter == meter)
    is_as_meant(list(night))
    some = list(night)[:MERGED_METERS]
    fresh()
    with bench.timed("the scope read, then merge", sum(len(night[it]) for it in some)):
        for meter in some:
            merge_known(bench.engine, meter, night[meter])
    is_as_meant(some)
    fresh()
    some = some[: max(1, len(some) // 3)]
    with bench.timed("merge of each object", sum(len(night[it]) for it in some)):
        for meter in some:
            merge_each(bench.engine, meter, objects(night[meter]))
    is_as_meant(some)


def merge_each(engine: sqlalchemy.Engine, meter: int, rows: list[Prediction]) -> None:
    """As the manual has it: the session looks each object up by itself."""
    with Session(engine) as session:
        for row in rows:
            session.merge(row)
        kept = [row.occurred for row in rows]
        session.execute(sqlalchemy.delete(Prediction).where(
            Prediction.meter == meter, Prediction.occurred.not_in(kept)))
        session.commit()


def merge_known(engine: sqlalchemy.Engine, meter: int, rows: list) -> None:
    """The meter's rows are read at once, so that merging an object asks nothing more."""
    with Session(engine) as session:
        found = session.scalars(sqlalchemy.select(Prediction).where(Prediction.meter == meter))
        old = {row.occurred: row for row in found}
        for row in rows:
            of_night = Prediction(meter=row[0], occurred=row[1], prediction=row[2])
            if row[1] in old:
                session.merge(of_night)
            else:
                session.add(of_night)
        for gone in old.keys() - {row[1] for row in rows}:
            session.delete(old[gone])
        session.commit()


def make_night(meters: int, rows: int) -> tuple[dict[int, list], dict[int, list]]:
    """Each meter's rows before and after a night: 15 % dropped, as many added, 43 % changed."""
    chance = random.Random(41)
    before, after = {}, {}

    def row(meter: int, occurred: datetime) -> tuple[int, datetime, Decimal]:
        return meter, occurred, Decimal(chance.randrange(10_000_000)) / 1000

    for meter in range(1, meters + 1):
        dropped, changed = rows * 15 // 100, rows * 43 // 100
        times = [datetime(2026, 1, 1) + at * timedelta(minutes=15) for at in range(rows + dropped)]
        before[meter] = [row(meter, at) for at in times[:rows]]
        kept = chance.sample(before[meter], rows - dropped)
        new = [row(meter, at) for at in [old[1] for old in kept[:changed]] + times[rows:]]
        after[meter] = sorted(kept[changed:] + new)
    return before, after


def main() -> None:
    """Measure, and write the trials and the tables."""
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
