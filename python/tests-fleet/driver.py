"""A driver of Spark that is killed at a moment: `python driver.py DSN MARKS MOMENT [JOB]`."""

from __future__ import annotations

import os
import signal
import sys

from conftest import SPARK_SETTINGS
from faulty import FaultyTicket
from pyspark.sql import SparkSession

import pgspate.spark
from pgspate._engine import EngineJob
from pgspate.fleetjob import Ticket


def kill_driver(process: int = os.getpid()) -> None:
    os.kill(process, signal.SIGKILL)


def kill_at(moment: str, df, marks: str):
    """Arranges that this process is killed at a moment of the write. Returns the frame."""
    complete, begin, driver = Ticket.complete, EngineJob.begin, os.getpid()

    def begin_and_die(job):
        begin(job)
        kill_driver()

    def complete_and_die(ticket, receipts):
        complete(ticket, receipts)
        kill_driver()

    def pass_on_and_die(batches):
        for batch in batches:
            if 50 in batch.column("id").to_pylist():
                kill_driver(driver)
            yield batch

    if moment == "after begin":
        EngineJob.begin = begin_and_die
    elif moment == "while a task stops":
        EngineJob.begin = lambda job: FaultyTicket.of(begin(job), "stop last", (1,), marks)
    elif moment == "in a task":
        return df.mapInArrow(pass_on_and_die, df.schema)
    elif moment == "before complete":
        Ticket.complete = lambda ticket, receipts: kill_driver()
    elif moment == "after complete":
        Ticket.complete = complete_and_die
    return df


if __name__ == "__main__":
    dsn, marks, moment, *job = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = kill_at(moment, spark.range(0, 100, 1, 4), marks)
    pgspate.spark.load(frame, "t", to=dsn, job=job[0] if job else None)
