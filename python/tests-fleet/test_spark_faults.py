"""Spark with attempts that fail, die or race: each row is written once."""

from __future__ import annotations

import pytest

import pgspate.spark
from conftest import others, stages_left, wait_until
from faulty import with_faults
from faulty_source import FaultySource

ROWS, PARTS = 80_000, 8


@pytest.fixture
def table(db):
    db.execute("create table t (id bigint)")
    return db


def write_by_load(spark, df, dsn, fault, parts, marks, monkeypatch, **options):
    with_faults(monkeypatch, fault, parts, marks)
    return pgspate.spark.load(df, "t", to=dsn, **options)


def write_by_task(*arguments):
    return write_by_load(*arguments, commit="task")


def write_by_source(spark, df, dsn, fault, parts, marks, monkeypatch):
    spark.dataSource.register(FaultySource)
    options = {"url": dsn, "dbtable": "t", "fault": fault, "marks": str(marks),
               "parts": ",".join(map(str, parts))}
    df.write.format("faulty").options(**options).mode("append").save()


@pytest.fixture(params=[write_by_load, write_by_task, write_by_source])
def write(request, spark, table, dsn, tmp_path, monkeypatch):
    if request.param is write_by_load:
        # Nothing can take the place of a table with a view. So the job has a stage and no shadow.
        table.execute("create view v as select * from t")

    def run(df, fault, parts, losers):
        report = request.param(spark, df, dsn, fault, parts, tmp_path, monkeypatch)
        if report is not None:
            assert (report.rows_written, report.parts) == (ROWS, PARTS)
            # On a busy machine, Spark speculates other tasks, too. Of attempts that commit by
            # themselves, the first is the only one.
            assert report.losers >= (0 if request.param is write_by_task else losers)

    return run


def check(db, count=ROWS):
    found = db.execute("select count(*), count(distinct id), sum(id) from t").fetchone()
    assert found == (count, count, count * (count - 1) // 2)
    assert stages_left(db) == []
    wait_until(lambda: not others(db), "a session is left")


@pytest.mark.parametrize("when", ["before", "in", "after"])
@pytest.mark.parametrize("what", ["raise", "exit", "worker", "executor"])
def test_an_attempt_that_fails_is_written_once(spark, table, write, tmp_path, what, when):
    parts = (2, 5)
    losers = len(parts) if when == "after" else 0
    write(spark.range(0, ROWS, 1, PARTS), f"{what} {when}", parts, losers)
    assert {path.name for path in tmp_path.glob("*.0")} == {f"{part}.0" for part in parts}
    check(table)


@pytest.mark.parametrize("fault", ["loser seals first", "loser seals last"])
def test_a_speculated_attempt_is_written_once(spark, table, write, tmp_path, fault):
    write(spark.range(0, ROWS, 1, PARTS), fault, (PARTS - 1,), 1)
    assert {path.name for path in tmp_path.iterdir()} == {f"{PARTS - 1}.{nth}" for nth in (0, 1)}
    check(table)
