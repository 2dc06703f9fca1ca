"""Writes a month of flights with Spark on this machine: `python spark_job.py [CONNECTION STRING]`.

Needs `pgspate[spark]` and Java 17. Without a connection string, pgspate starts a temporary server.
Run it twice with one server: the job of this name is written once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import pgspate.spark

FLIGHTS = str(Path(__file__).parent / "flights-2013-03.parquet")


def write(spark: SparkSession, url: str) -> None:
    flights = spark.read.parquet(FLIGHTS).repartition(4)
    report = pgspate.spark.load(
        flights, "spark_flights", to=url, create=True, job="flights 2013-03")
    print(report)
    sync_delays(flights, url)


def sync_delays(flights: DataFrame, url: str) -> None:
    delays = flights.groupBy("carrier").avg("dep_delay").toDF("carrier", "delay")
    report = pgspate.spark.sync(
        delays, "spark_delays", to=url, create=True, key=["carrier"], scope="all")
    print(report)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        if len(sys.argv) > 1:
            write(session, sys.argv[1])
        else:
            with pgspate.server(temporary=True) as server:
                write(session, server.url)
    finally:
        session.stop()
