"""Compare the Python package with other ways to write from Python: `python bench/python.py --help`.

Needs an environment with pgspate and the packages of bench/requirements-python.txt. All data is in
memory before the measured time begins. Slow ways write fewer rows, so the ways are compared by rows
per second. Each printed line has the number of written rows.
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
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from datasets import LINEITEM_COLUMNS, create_table_sql
from places import Places, find_pg_bin
from server import Server

# bench/peers holds separate programs and is not a package, so its path is added.
sys.path.append(str(Path(__file__).parent / "peers"))
from copy_adbc import arrow_type  # noqa: E402

TUPLE_ROWS = 600_000
TO_SQL_ROWS = 20_000
MERGED_METERS = 12
ROWS_PER_METER = 3_000
PREDICTION_TABLE = "use_prediction"
CREATE_PREDICTION_TABLE = (
    f"create table {PREDICTION_TABLE} (meter int, occurred timestamp, prediction numeric(12, 3), "
    "primary key (meter, occurred))"
)


class MappedBase(DeclarativeBase):
    """The base class that SQLAlchemy needs for mapped classes."""


class Prediction(MappedBase):
    """A row of the table of predictions."""

    __tablename__ = PREDICTION_TABLE
    meter: Mapped[int] = mapped_column(primary_key=True)
    occurred: Mapped[datetime] = mapped_column(primary_key=True)
    prediction: Mapped[Decimal]


class TrialGroup:
    """Trials of ways to write that are compared with each other, all on one server."""

    def __init__(self, server: Server, rounds: int):
        self.server = server
        self.rounds = rounds
        self.conninfo = server.conninfo()
        self.uri = "postgresql:///?" + "&".join(self.conninfo.split()).replace("/", "%2F")
        parameters = dict(part.split("=", 1) for part in self.conninfo.split())
        url = sqlalchemy.URL.create(
            "postgresql+psycopg",
            parameters["user"],
            database=parameters["dbname"],
            query={"host": parameters["host"], "port": parameters["port"]},
        )
        self.engine = sqlalchemy.create_engine(url, hide_parameters=True)
        self.trials: list[dict] = []
        """All trials, in the order in which they ran."""
        self.trials_by_name: dict[str, list[dict]] = {}

    def measure_load(self, name: str, rows: int, load: Callable[[], object]) -> None:
        """Measures `load`, which fills an empty table, and checks the number of rows."""
        self.server.sql(
            f"drop table if exists lineitem; {create_table_sql('lineitem')}; checkpoint"
        )
        with self.measure_time(name, rows):
            load()
        [[found]] = self.server.sql("select count(*) from lineitem")
        if int(found) != rows:
            raise SystemExit(f"error: {name}: wrote {found} rows, expected {rows}")

    @contextmanager
    def measure_time(self, name: str, rows: int) -> Iterator[None]:
        """Measures wall time and this process's CPU time of the `with` block, and prints them."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        trial = {"name": name, "rows": rows, "wall": round(wall, 4), "cpu": round(cpu, 4)}
        self.trials_by_name.setdefault(name, []).append(trial)
        self.trials.append(trial)
        print(json.dumps(trial), flush=True)

    def median_table(self, baseline: str) -> str:
        """Returns a Markdown table of medians; the last column is relative to `baseline`."""
        rate = {
            name: statistics.median(trial["rows"] / trial["wall"] for trial in trials)
            for name, trials in self.trials_by_name.items()
        }
        lines = [
            "| way | rows | wall, s | client CPU, s | rows/s | times |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for name, trials in self.trials_by_name.items():
            wall = statistics.median(trial["wall"] for trial in trials)
            cpu = statistics.median(trial["cpu"] for trial in trials)
            lines.append(
                f"| {name} | {trials[0]['rows']:,} | {wall:.2f} | {cpu:.2f} "
                f"| {rate[name]:,.0f} | {rate[name] / rate[baseline]:.2f} |"
            )
        return "\n".join(lines)


def read_lineitem(path: Path) -> pyarrow.Table:
    """Reads lineitem from a CSV file with a header."""
    types = {column.name: arrow_type(column.arrow) for column in LINEITEM_COLUMNS}
    return pyarrow.csv.read_csv(
        path, convert_options=pyarrow.csv.ConvertOptions(column_types=types)
    )


def measure_tables(group: TrialGroup, table: pyarrow.Table, path: Path) -> None:
    """Measures loads of Arrow tables and data frames."""
    frame = polars.from_arrow(table)
    few_rows = table.slice(0, TO_SQL_ROWS).to_pandas()
    # Without these types, pandas would send the numeric columns as text.
    column_types = {
        column.name: sqlalchemy.Numeric(15, 2)
        for column in LINEITEM_COLUMNS
        if column.sql.startswith("numeric")
    }

    def by_psql() -> None:
        command = f"\\copy lineitem from '{path}' (format csv, header)"
        subprocess.run(
            [group.server.places.psql, "-Xqc", command], env=group.server.environment(), check=True
        )

    def by_adbc() -> None:
        with adbc_driver_postgresql.dbapi.connect(group.uri) as conn:
            with conn.cursor() as cursor:
                cursor.adbc_ingest("lineitem", table, mode="append")
            conn.commit()

    def by_pgspate(data: object) -> Callable[[], object]:
        return lambda: pgspate.load(data, "lineitem", to=group.conninfo, analyze="never")

    def by_to_sql() -> None:
        few_rows.to_sql(
            "lineitem",
            group.engine,
            index=False,
            if_exists="append",
            method="multi",
            chunksize=1000,
            dtype=column_types,
        )

    def by_pandas_method() -> None:
        few_rows.to_sql(
            "lineitem", group.engine, index=False, if_exists="append", method=pgspate.pandas_method
        )

    rows = table.num_rows
    for round_index in range(group.rounds):
        group.measure_load("psql \\copy of csv", rows, by_psql)
        group.measure_load("pgspate.load, pyarrow table", rows, by_pgspate(table))
        group.measure_load("pgspate.load, polars frame", rows, by_pgspate(frame))
        group.measure_load(
            "pgspate.load, pyarrow reader", rows, by_pgspate(table.to_reader(100_000))
        )
        group.measure_load("ADBC ingest, pyarrow table", rows, by_adbc)
        if round_index == 0:
            group.measure_load('to_sql(method="multi")', len(few_rows), by_to_sql)
            group.measure_load(
                "to_sql(method=pgspate.pandas_method)", len(few_rows), by_pandas_method
            )


def measure_tuples(group: TrialGroup, table: pyarrow.Table) -> None:
    """Measures loads of rows that are tuples of Python objects."""
    rows = list(
        zip(*(column.to_pylist() for column in table.slice(0, TUPLE_ROWS).columns), strict=True)
    )
    types = [column.sql.partition("(")[0].strip() for column in LINEITEM_COLUMNS]

    def by_psycopg(binary: bool) -> None:
        options = " (format binary)" if binary else ""
        with (
            psycopg.connect(group.conninfo) as conn,
            conn.cursor() as cursor,
            cursor.copy(f"copy lineitem from stdin{options}") as copy,
        ):
            if binary:
                copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def by_pgspate(data: object) -> None:
        pgspate.load(data, "lineitem", to=group.conninfo, analyze="never")

    for _ in range(group.rounds):
        group.measure_load("psycopg write_row, text", len(rows), lambda: by_psycopg(False))
        group.measure_load("psycopg write_row, binary", len(rows), lambda: by_psycopg(True))
        group.measure_load("pgspate.load, list of tuples", len(rows), lambda: by_pgspate(rows))
        group.measure_load(
            "pgspate.load, iterator of tuples", len(rows), lambda: by_pgspate(iter(rows))
        )


def measure_mapped_objects(group: TrialGroup, meter_count: int) -> None:
    """Measures three ways to replace each meter's predictions with mapped objects."""
    before, after = make_predictions(meter_count, ROWS_PER_METER)

    def reset_predictions() -> None:
        group.server.sql(f"drop table if exists {PREDICTION_TABLE}; {CREATE_PREDICTION_TABLE}")
        rows = [row for meter_rows in before.values() for row in meter_rows]
        pgspate.load(rows, PREDICTION_TABLE, to=group.conninfo)
        group.server.sql("checkpoint")

    def objects(rows: list) -> list[Prediction]:
        return [Prediction(meter=row[0], occurred=row[1], prediction=row[2]) for row in rows]

    def check_prediction_sum(meters: list[int]) -> None:
        expected = sum(row[2] for meter in meters for row in after[meter])
        [[found]] = group.server.sql(
            f"select sum(prediction) from {PREDICTION_TABLE} where meter <= {max(meters)}"
        )
        if Decimal(found) != expected:
            raise SystemExit(f"error: sum of predictions is {found}, expected {expected}")

    reset_predictions()
    objects_by_meter = {meter: objects(rows) for meter, rows in after.items()}
    with group.measure_time("pgspate.sqlalchemy.sync", sum(map(len, objects_by_meter.values()))):
        with Session(group.engine) as session:
            for meter, rows in objects_by_meter.items():
                pgspate.sqlalchemy.sync(session, Prediction, rows, scope=Prediction.meter == meter)
    check_prediction_sum(list(after))
    merged_meters = list(after)[:MERGED_METERS]
    reset_predictions()
    with group.measure_time(
        "the scope read, then merge", sum(len(after[it]) for it in merged_meters)
    ):
        for meter in merged_meters:
            merge_with_one_query(group.engine, meter, after[meter])
    check_prediction_sum(merged_meters)
    reset_predictions()
    merged_meters = merged_meters[: max(1, len(merged_meters) // 3)]
    with group.measure_time("merge of each object", sum(len(after[it]) for it in merged_meters)):
        for meter in merged_meters:
            merge_each(group.engine, meter, objects(after[meter]))
    check_prediction_sum(merged_meters)


def merge_each(engine: sqlalchemy.Engine, meter: int, rows: list[Prediction]) -> None:
    """Replaces the meter's rows as SQLAlchemy's manual shows: a query for each object."""
    with Session(engine) as session:
        for row in rows:
            session.merge(row)
        kept = [row.occurred for row in rows]
        session.execute(
            sqlalchemy.delete(Prediction).where(
                Prediction.meter == meter, Prediction.occurred.not_in(kept)
            )
        )
        session.commit()


def merge_with_one_query(engine: sqlalchemy.Engine, meter: int, rows: list) -> None:
    """Replaces the meter's rows after one query that reads all of them.

    The session then knows the old rows, and needs no query to merge an object.
    """
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


def make_predictions(meters: int, rows: int) -> tuple[dict[int, list], dict[int, list]]:
    """Returns rows by meter: the old predictions, and the new ones that replace them.

    The new predictions lack 15 % of the old rows, have as many other rows, and change 43 %.
    """
    generator = random.Random(41)
    before, after = {}, {}

    def random_row(meter: int, occurred: datetime) -> tuple[int, datetime, Decimal]:
        return meter, occurred, Decimal(generator.randrange(10_000_000)) / 1000

    for meter in range(1, meters + 1):
        dropped, changed = rows * 15 // 100, rows * 43 // 100
        times = [
            datetime(2026, 1, 1) + step * timedelta(minutes=15) for step in range(rows + dropped)
        ]
        before[meter] = [random_row(meter, time_) for time_ in times[:rows]]
        kept = generator.sample(before[meter], rows - dropped)
        new_times = [old[1] for old in kept[:changed]] + times[rows:]
        new = [random_row(meter, time_) for time_ in new_times]
        after[meter] = sorted(kept[changed:] + new)
    return before, after


def main() -> None:
    """Runs all trials, and prints a line per trial and tables of medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lineitem", type=Path, help="lineitem as CSV with a header")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default 3)")
    parser.add_argument(
        "--meters", type=int, default=300, help="number of meters with predictions (default 300)"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("target/bench-python"),
        help="cache folder (default target/bench-python)",
    )
    parser.add_argument("--pg-bin", help="folder that contains postgres and initdb")
    parser.add_argument("--out", type=Path, help="file for the trials, one JSON line each")
    args = parser.parse_args()
    places = Places(args.cache, find_pg_bin(args.pg_bin), Path(sys.executable))
    table = read_lineitem(args.lineitem)
    groups = []
    with Server(places) as server:
        print(f"PostgreSQL {server.sql('show server_version')[0][0]}", flush=True)
        for baseline, measure in (
            ("psql \\copy of csv", lambda group: measure_tables(group, table, args.lineitem)),
            ("psycopg write_row, text", lambda group: measure_tuples(group, table)),
            ("merge of each object", lambda group: measure_mapped_objects(group, args.meters)),
        ):
            group = TrialGroup(server, args.rounds)
            measure(group)
            group.engine.dispose()
            groups.append((baseline, group))
    for baseline, group in groups:
        print(f"\n{group.median_table(baseline)}")
    if args.out:
        lines = [json.dumps(trial) for _, group in groups for trial in group.trials]
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
