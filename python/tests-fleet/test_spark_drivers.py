"""Drivers of Spark that are killed and run again, and input that differs in a retry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import pgspate
import pgspate.spark
from pgspate.fleetjob import Ticket
from conftest import others, stages_left, wait_until
from faulty import with_faults

DRIVER = str(Path(__file__).parent / "driver.py")


@pytest.fixture
def table(db):
    db.execute("create table t (id bigint)")
    return db


def run_driver(dsn, *arguments) -> None:
    """Runs a driver, which is killed."""
    program = [sys.executable, DRIVER, dsn, "", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def is_up(dsn) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(dsn):
        return True
    return False


def counts(db):
    return db.execute("select count(*), count(distinct id) from t").fetchone()


@pytest.mark.parametrize("moment, before", [
    ("after begin", 0), ("in a task", 0), ("before complete", 0), ("after complete", 100)])
def test_a_driver_that_is_killed_and_run_again_writes_once(spark, table, dsn, moment, before):
    run_driver(dsn, moment, "nightly")
    assert counts(table) == (before, before)
    report = pgspate.spark.load(spark.range(0, 100, 1, 4), "t", to=dsn, job="nightly")
    assert (report.rows_written, report.parts) == (100, 4)
    assert counts(table) == (100, 100)


def test_a_task_that_wakes_up_late_writes_nothing(spark, table, dsn, tmp_path):
    """A worker stops before its seal. Its driver is killed and run again, then it continues."""
    table.execute("create view v as select * from t")
    driver = subprocess.Popen(
        [sys.executable, DRIVER, dsn, str(tmp_path), "while a task stops", "nightly"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "stopped").exists, "no task stops", 180)
    finally:
        driver.kill()
        driver.wait(60)
    zombie = int((tmp_path / "stopped").read_text())
    report = pgspate.spark.load(spark.range(0, 100, 1, 4), "t", to=dsn, job="nightly")
    assert (report.rows_written, report.parts) == (100, 4)
    os.kill(zombie, signal.SIGCONT)
    wait_until(lambda: not Path(f"/proc/{zombie}").exists(), "the task goes on")
    wait_until(lambda: not others(table), "a session is left")
    assert counts(table) == (100, 100)
    assert (stages_left(table), table.execute("table pgspate.part").fetchall()) == ([], [])


def test_a_server_that_crashes_before_the_completion_is_noticed(spark, monkeypatch):
    """The stage is empty after the crash, while the sealed parts stay."""
    with pgspate.server(temporary=True) as server:
        with psycopg.connect(server.dsn, autocommit=True) as db:
            db.execute("create table t (id bigint)")
            db.execute("insert into t values (-1)")
        complete = Ticket.complete

        def crash_and_complete(ticket, receipts):
            # A task's commit does not wait for the disk. This makes it durable, but not the stage.
            with psycopg.connect(server.dsn, autocommit=True) as db:
                db.execute("checkpoint")
                os.kill(db.info.backend_pid, signal.SIGKILL)
            wait_until(lambda: is_up(server.dsn), "the server does not recover")
            return complete(ticket, receipts)

        df = spark.range(0, 100, 1, 4)
        with monkeypatch.context() as patch:
            patch.setattr(Ticket, "complete", crash_and_complete)
            with pytest.raises(pgspate.LedgerError, match="has 0 of 100 rows"):
                pgspate.spark.load(df, "t", to=server.dsn, job="nightly")
        report = pgspate.spark.load(df, "t", to=server.dsn, job="nightly")
        assert report.rows_written == 100
        with psycopg.connect(server.dsn) as db:
            assert counts(db) == (101, 101)


def test_without_a_name_a_driver_that_is_run_again_writes_again(spark, table, dsn):
    run_driver(dsn, "after complete")
    pgspate.spark.load(spark.range(0, 100, 1, 4), "t", to=dsn)
    assert counts(table) == (200, 100)


@pytest.mark.parametrize("nth", range(3))
def test_indeterminate_input_is_right_or_refused(spark, table, dsn, tmp_path, monkeypatch, nth):
    """An executor is lost with its shuffled rows, so that Spark shuffles them again."""
    with_faults(monkeypatch, "executor after", (nth + 2,), tmp_path)
    spark.conf.set("spark.sql.execution.sortBeforeRepartition", "false")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        df = spark.range(0, 5000, 1, 4).repartition(5, "id").repartition(6)
        pgspate.spark.load(df, "t", to=dsn)
        expected = (5000, 5000)
    except Exception as error:
        assert "indeterminate" in str(error), error
        expected = (0, 0)
    finally:
        spark.conf.unset("spark.sql.execution.sortBeforeRepartition")
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert (tmp_path / f"{nth + 2}.0").exists()
    assert counts(table) == expected
