"""Compare writes from Spark and Ray into PostgreSQL: `python bench/fleet.py --help`.

Needs the environment of `make test-fleet`, Java 17, and lineitem as Parquet. Client and server
share the machine's processors, so the server's CPU time is measured, too. Slow ways write fewer
rows, so ways are compared by rows per second. Rounds run every way of a group once, in turn.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pgspate.ray
import pgspate.spark
import psycopg
import pyarrow.parquet
import ray
from datasets import LINEITEM_COLUMNS, create_table_sql
from fleet_nights import Nights
from measure import child_pids, server_cpu_s, wait_for_process_count
from places import Places, find_pg_bin
from pyspark.sql import DataFrame, SparkSession
from server import DATABASE, USER, Server

TABLE = "lineitem"
PARTITIONS = 8
TASKS = 1000
WRITE_SQL_ROWS = 20_000
SAMPLE_INTERVAL_S = 0.05
TASK_TABLE = f"create table {TABLE} (id bigint)"
COLUMN_NAMES = ", ".join(column.name for column in LINEITEM_COLUMNS)


class Trials:
    """Trials of ways to write, all on one server."""

    def __init__(self, server: Server, out: Path | None):
        self.server, self.out = server, out
        self.dsn = f"postgresql://{USER}@127.0.0.1:{server.port}/{DATABASE}"
        self.done: list[dict] = []

    def measure(
        self, group: str, way: str, rows: int, write: Callable[[], object],
        create: str = create_table_sql(TABLE), found_rows: int | None = None,
    ) -> None:
        """Measures `write`, and checks the table's number of rows.

        `create` creates the table, and `rows` are written. The table then has `found_rows`.
        """
        self.server.sql("drop schema if exists pgspate cascade")
        self.server.sql(f"drop table if exists {TABLE}; {create}; checkpoint")
        idle = len(child_pids(self.server.pid))
        with self._sampled_connections() as sampled:
            [[lsn]] = self.server.sql("select pg_current_wal_lsn()")
            cpu, wall = server_cpu_s(self.server.pid), time.perf_counter()
            write()
            wall = time.perf_counter() - wall
            cpu = server_cpu_s(self.server.pid) - cpu
            [[wal]] = self.server.sql(f"select pg_current_wal_lsn() - '{lsn}'")
        wait_for_process_count(self.server.pid, idle)
        [[found]] = self.server.sql(f"select count(*) from {TABLE}")
        expected = rows if found_rows is None else found_rows
        if int(found) != expected:
            raise SystemExit(f"error: {way}: found {found} rows, expected {expected}")
        load = round(os.getloadavg()[0], 1)
        trial = {"group": group, "way": way, "rows": rows, "wall": round(wall, 3),
                 "server_cpu": round(cpu, 3), "wal_bytes": int(wal), "connections": max(sampled),
                 "load": load}
        self.done.append(trial)
        print(json.dumps(trial), flush=True)
        if self.out:
            with self.out.open("a") as file:
                file.write(json.dumps(trial) + "\n")

    @contextmanager
    def _sampled_connections(self) -> Iterator[list[int]]:
        """Yields a list that grows by the number of the clients' connections, until the end."""
        counts, ended = [0], threading.Event()
        query = ("select count(*) from pg_stat_activity where backend_type = 'client backend' "
                 "and pid <> pg_backend_pid() and application_name not in ('psql')")

        def sample() -> None:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not ended.wait(SAMPLE_INTERVAL_S):
                    counts.append(connection.execute(query).fetchone()[0])

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield counts
        finally:
            ended.set()
            thread.join()

    def tables(self) -> str:
        """Returns a Markdown table of medians for each group, relative to its first way.

        Ways that write no rows are compared by their time alone.
        """
        lines = []
        for group in dict.fromkeys(trial["group"] for trial in self.done):
            lines += ["", group, "", "| way | rows | wall, s | rows/s | times | server CPU, µs/row "
                      "| WAL, B/row | connections |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
            trials = [trial for trial in self.done if trial["group"] == group]
            first = None
            for way in dict.fromkeys(trial["way"] for trial in trials):
                ours = [trial for trial in trials if trial["way"] == way]
                rows = ours[0]["rows"]
                wall = statistics.median(trial["wall"] for trial in ours)
                cpu = statistics.median(trial["server_cpu"] for trial in ours)
                wal = statistics.median(trial["wal_bytes"] for trial in ours)
                first = first or rows / wall
                figures = "– | – | – | –" if not first else (
                    f"{rows / wall:,.0f} | {rows / wall / first:.2f} | {cpu / rows * 1e6:.2f} "
                    f"| {wal / rows:.0f}")
                lines.append(f"| {way} | {rows:,} | {wall:.2f} | {figures} "
                             f"| {max(trial['connections'] for trial in ours)} |")
        return "\n".join(lines)


def spark_ways(spark: SparkSession, trials: Trials, path: Path) -> dict[str, Callable[[], object]]:
    """Returns the ways to write lineitem with Spark, by name."""
    frame = spark.read.parquet(str(path)).repartition(PARTITIONS).cache()
    frame.count()
    url = trials.dsn
    jdbc = f"jdbc:postgresql://127.0.0.1:{trials.server.port}/{DATABASE}"

    def by_jdbc(suffix: str, **options: object) -> None:
        given = {"url": jdbc + suffix, "dbtable": TABLE, "user": USER,
                 "driver": "org.postgresql.Driver", **options}
        frame.write.format("jdbc").options(**given).mode("append").save()

    def by_source(**options: object) -> None:
        given = {"url": jdbc, "dbtable": TABLE, "user": USER, **options}
        frame.write.format("pgspate").options(**given).mode("append").save()

    return {
        "JDBC as it comes": lambda: by_jdbc(""),
        "JDBC, reWriteBatchedInserts, batchsize 10,000":
            lambda: by_jdbc("?reWriteBatchedInserts=true", batchsize=10_000),
        "psycopg COPY, a partition each": lambda: copy_partitions(frame, url),
        "pgspate, commit=job": by_source,
        "pgspate, commit=task": lambda: by_source(commit="task"),
        "pgspate, mapInArrow": lambda: pgspate.spark.load(frame, TABLE, to=url),
        "pgspate, overwrite": lambda: pgspate.spark.load(frame, TABLE, to=url, mode="overwrite"),
        "pgspate, upsert": lambda: pgspate.spark.load(
            frame, TABLE, to=url, mode="upsert", key=["l_orderkey", "l_linenumber"]),
    }


def make_copy(url: str) -> Callable[[Iterable], pyarrow.Table]:
    """Returns a function that writes batches by a COPY, as people write it by hand."""
    types = [column.sql.partition("(")[0] for column in LINEITEM_COLUMNS]
    statement = f"copy {TABLE} ({COLUMN_NAMES}) from stdin (format binary)"

    def copy(batches):
        with psycopg.connect(url) as connection, connection.cursor().copy(statement) as copying:
            copying.set_types(types)
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copying.write_row(row)
        return pyarrow.table({"done": [True]})

    return copy


def copy_partitions(frame: DataFrame, url: str) -> None:
    """Writes each partition by a COPY of its own."""
    copy = make_copy(url)
    frame.mapInArrow(lambda batches: copy(batches).to_batches(), "done boolean").collect()


def task_ways(spark: SparkSession, url: str) -> dict[str, tuple[int, Callable[[], object]]]:
    """Returns ways to run many small tasks, by name, and the rows that each writes."""
    rows = spark.range(0, TASKS * 1000, 1, TASKS)
    empty = spark.range(0, TASKS, 1, TASKS).filter("id < 0")

    def load(frame: DataFrame) -> None:
        pgspate.spark.load(frame, TABLE, to=url)

    return {
        "Spark alone, 1,000 empty partitions through Python":
            (0, lambda: empty.mapInArrow(lambda batches: batches, "id long").collect()),
        "pgspate, 1,000 empty partitions": (0, lambda: load(empty)),
        "pgspate, 1,000 partitions of 1,000 rows": (TASKS * 1000, lambda: load(rows)),
    }


def ray_ways(trials: Trials, path: Path) -> dict[str, tuple[int, Callable[[], object]]]:
    """Returns the ways to write lineitem with Ray, by name, and the rows that each writes."""
    data = ray.data.read_parquet(str(path)).repartition(PARTITIONS).materialize()
    few = data.limit(WRITE_SQL_ROWS).repartition(PARTITIONS).materialize()
    url = trials.dsn
    marks = ", ".join(["%s"] * len(LINEITEM_COLUMNS))
    insert = f"insert into {TABLE} ({COLUMN_NAMES}) values ({marks})"

    def connect():
        return psycopg.connect(url)

    def copy_by_hand() -> None:
        copy = make_copy(url)
        data.map_batches(lambda table: copy([table]), batch_format="pyarrow",
                         batch_size=None).materialize()

    def load(**options: object) -> None:
        pgspate.ray.write_postgres(data, TABLE, to=url, concurrency=2, **options)

    return {
        "write_sql, psycopg": (few.count(), lambda: few.write_sql(insert, connect)),
        "psycopg COPY, a block each": (data.count(), copy_by_hand),
        "pgspate, commit=job": (data.count(), load),
        "pgspate, commit=task": (data.count(), lambda: load(commit="task")),
    }


def main() -> None:
    """Runs all trials, and prints a line per trial and tables of medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lineitem", type=Path, help="lineitem as Parquet")
    parser.add_argument("--jar", type=Path, help="the JDBC driver; without it, JDBC is left out")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default 3)")
    parser.add_argument("--cache", type=Path, default=Path("target/bench-fleet"))
    parser.add_argument("--pg-bin", help="folder that contains postgres and initdb")
    parser.add_argument("--out", type=Path, help="file to which each trial adds a line of JSON")
    args = parser.parse_args()
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    rows = pyarrow.parquet.read_metadata(args.lineitem).num_rows
    places = Places(args.cache, find_pg_bin(args.pg_bin), Path(sys.executable))
    with Server(places, listens_on_tcp=True) as server:
        print(f"PostgreSQL {server.sql('show server_version')[0][0]}", flush=True)
        trials = Trials(server, args.out)
        measure_spark(trials, args, rows)
        measure_ray(trials, args)
    print(trials.tables())


def measure_spark(trials: Trials, args: argparse.Namespace, rows: int) -> None:
    """Measures all ways with Spark. The first round warms up and does not count."""
    builder = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "2g")
    if args.jar:
        builder = builder.config("spark.jars", str(args.jar))
    spark = builder.getOrCreate()
    ways = spark_ways(spark, trials, args.lineitem)
    for round_ in range(args.rounds + 1):
        for way, write in ways.items():
            if args.jar or not way.startswith("JDBC"):
                trials.measure("Spark, lineitem", way, rows, write)
        if round_ == 0:
            trials.done.clear()
    for _ in range(args.rounds):
        for way, (rows, write) in task_ways(spark, trials.dsn).items():
            trials.measure("Spark, small tasks", way, rows, write, TASK_TABLE)
    nights = Nights(args.cache, trials.dsn)
    for _ in range(args.rounds):
        for way, write in nights.spark_ways(spark, has_jdbc=bool(args.jar)).items():
            measure_night(trials, nights, way, write)
    spark.stop()


def measure_night(trials: Trials, nights: Nights, way: str, write: Callable[[], object]) -> None:
    """Measures a night, from the same table each time."""
    rows = nights.rows
    trials.measure("Nights of 100 meters", way, rows, write, nights.create_sql(TABLE), rows)


def measure_ray(trials: Trials, args: argparse.Namespace) -> None:
    """Measures all ways with Ray."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ways = ray_ways(trials, args.lineitem)
    nights = Nights(args.cache, trials.dsn)
    for _ in range(args.rounds):
        for way, (rows, write) in ways.items():
            trials.measure("Ray, lineitem", way, rows, write)
    for _ in range(args.rounds):
        for way, write in nights.ray_ways().items():
            measure_night(trials, nights, way, write)
    ray.shutdown()


if __name__ == "__main__":
    main()
