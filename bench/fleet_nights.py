"""A night of 100 meters, written by one process, by 100 processes, by Spark and by Ray.

Each meter has 3,000 rows. A night drops 15 % of them, changes 43 % and adds 15 %. Each meter's rows
of the night are a file.
"""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pgspate.ray
import pgspate.spark
import psycopg
import pyarrow
import pyarrow.parquet
from pyspark.sql import SparkSession

METERS = 100
ROWS_PER_METER = 3000
CONNECTIONS = 2
TABLE = "lineitem"

Ways = dict[str, Callable[[], object]]


class Nights:
    """Ways to write a night's rows into a table that has those of the night before."""

    rows = METERS * ROWS_PER_METER

    def __init__(self, cache: Path, dsn: str) -> None:
        self.folder = cache.absolute() / "night"
        self.dsn = dsn
        if self.folder.exists():
            return
        partial = self.folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        dropped = ROWS_PER_METER * 15 // 100
        hours = range(dropped, ROWS_PER_METER + dropped)
        for meter in range(METERS):
            uses = [hour + (0.5 if hour % 100 < 50 else 0) for hour in hours]
            table = pyarrow.table({
                "meter": pyarrow.array([meter] * len(hours), pyarrow.int32()),
                "hour": pyarrow.array(hours, pyarrow.int32()), "use": uses})
            pyarrow.parquet.write_table(table, partial / f"{meter}.parquet")
        partial.rename(self.folder)

    def create_sql(self, table: str) -> str:
        """Returns the SQL that creates the table with the rows of the night before."""
        return (
            f"create table {table} (meter int, hour int, use float8, primary key (meter, hour)); "
            f"insert into {table} select meter, hour, hour from generate_series(0, {METERS - 1}) "
            f"meter, generate_series(0, {ROWS_PER_METER - 1}) hour; vacuum analyze {table}")

    def spark_ways(self, spark: SparkSession, has_jdbc: bool) -> Ways:
        """Returns the ways without an engine and those with Spark, by name."""
        frame = spark.read.parquet(str(self.folder))

        def by_jdbc() -> None:
            with psycopg.connect(self.dsn) as connection:
                connection.execute(f"delete from {TABLE} where meter between 0 and {METERS - 1}")
            user = psycopg.conninfo.conninfo_to_dict(self.dsn)["user"]
            url = "jdbc:postgresql://" + self.dsn.rpartition("@")[2] + "?reWriteBatchedInserts=true"
            options = {"url": url, "dbtable": TABLE, "user": user, "batchsize": 10_000,
                       "driver": "org.postgresql.Driver"}
            frame.write.format("jdbc").options(**options).mode("append").save()

        ways: Ways = {
            "pgspate sync, one process": lambda: self._sync(f"{self.folder}/*.parquet"),
            "pgspate sync --fleet, 100 processes, 2 at once": self._sync_each_by_a_process,
            "Spark, pgspate by scope": lambda: pgspate.spark.sync(
                frame, TABLE, to=self.dsn, scope_by="meter"),
        }
        if has_jdbc:
            ways["Spark, delete and JDBC append with rewriting"] = by_jdbc
        return ways

    def ray_ways(self) -> Ways:
        """Returns the ways with Ray, by name."""
        folder = self.folder

        def read(meter: int) -> pyarrow.Table:
            return pyarrow.parquet.read_table(folder / f"{meter}.parquet")

        return {"Ray, a task for each meter": lambda: pgspate.ray.sync_each(
            range(METERS), read, TABLE, to=self.dsn, scope_by="meter", connections=CONNECTIONS)}

    def _sync(self, source: str, *options: str) -> None:
        program = [sys.executable, "-m", "pgspate", "sync", source, "--table", TABLE,
                   "--scope-by", "meter", "--to", self.dsn, "--quiet", *options]
        subprocess.run(program, check=True)

    def _sync_each_by_a_process(self) -> None:
        def run_member(member: int) -> None:
            self._sync(f"{self.folder}/{{member}}.parquet", "--fleet", "nights", "--generation",
                       "1", "--members", str(METERS), "--member", str(member))

        with ThreadPoolExecutor(CONNECTIONS) as workers:
            list(workers.map(run_member, range(METERS)))
