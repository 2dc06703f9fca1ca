"""Drivers of Spark that are killed and run again, and input that differs in a retry."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pgspate.spark
from faulty import FaultyTicket

DRIVER = str(Path(__file__).parent / "driver.py")


@pytest.fixture
def table(db):
    db.execute("create table t (id bigint)")
    return db


def run_driver(*arguments) -> None:
    """Runs a driver, which is killed."""
    program = [sys.executable, DRIVER, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


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


def test_without_a_name_a_driver_that_is_run_again_writes_again(spark, table, dsn):
    run_driver(dsn, "after complete")
    pgspate.spark.load(spark.range(0, 100, 1, 4), "t", to=dsn)
    assert counts(table) == (200, 100)


@pytest.mark.parametrize("nth", range(3))
def test_indeterminate_input_is_right_or_refused(spark, table, dsn, tmp_path, monkeypatch, nth):
    """An executor is lost with its shuffled rows, so that Spark shuffles them again."""
    make = pgspate.spark.begin
    monkeypatch.setattr(pgspate.spark, "begin", lambda *arguments: FaultyTicket.of(
        make(*arguments), "executor after", (nth + 2,), str(tmp_path)))
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
