"""Answers to commits of tasks are lost: each row is written once, and by JDBC twice."""

from __future__ import annotations

import os
from dataclasses import replace

import psycopg
import pytest

import pgspate.spark
from pgspate import _engine
from proxy import CommitSwallower

ROWS, PARTS, LOST = 8000, 8, 3


@pytest.fixture
def table(db):
    db.execute("create table t (id bigint)")
    return db


@pytest.fixture
def swallow(dsn):
    """Returns a function that starts a proxy, and gives the proxy and a function for its string."""
    proxies = []

    def start(marker: bytes):
        given = psycopg.conninfo.conninfo_to_dict(dsn)
        proxies.append(CommitSwallower(given["host"], int(given.get("port", 5432)), marker, LOST))
        proxied = {**given, "host": "127.0.0.1", "port": proxies[-1].port}
        return proxies[-1], proxied

    yield start
    for proxy in proxies:
        proxy.close()


def counts(db):
    return db.execute("select count(*), count(distinct id) from t").fetchone()


@pytest.mark.parametrize("commit", ["job", "task"])
@pytest.mark.parametrize("has_view", [False, True])
def test_a_lost_answer_doubles_nothing(
    spark, table, dsn, swallow, monkeypatch, commit, has_view
):
    if has_view:
        # Nothing can take the place of a table with a view. So the job has a stage and no shadow.
        table.execute("create view v as select * from t")
    proxy, proxied = swallow(rb"insert into pgspate\.part")
    make = _engine.begin_write

    def begin_with_proxy(*arguments, **options):
        """The tasks write over the proxy, and the driver completes over it, too."""
        return replace(make(*arguments, **options), _to=psycopg.conninfo.make_conninfo(**proxied))

    monkeypatch.setattr(_engine, "begin_write", begin_with_proxy)
    report = pgspate.spark.load(spark.range(0, ROWS, 1, PARTS), "t", to=dsn, commit=commit)
    assert (report.rows_written, report.parts) == (ROWS, PARTS)
    assert proxy.swallowed == LOST
    assert counts(table) == (ROWS, ROWS)


@pytest.mark.skipif("PGSPATE_TEST_JDBC" not in os.environ, reason="the JDBC driver is not given")
def test_a_lost_answer_doubles_rows_that_spark_writes_by_jdbc(spark, table, swallow):
    """Shows what pgspate is compared with: the same fault, by Spark's own writer."""
    proxy, given = swallow(rb"insert into")
    url = f"jdbc:postgresql://127.0.0.1:{proxy.port}/{given['dbname']}?gssEncMode=disable"
    options = {"url": url, "dbtable": "t", "user": given["user"], "sslmode": "disable",
               "password": table.info.password, "driver": "org.postgresql.Driver"}
    rows = spark.range(0, ROWS, 1, PARTS)
    rows.write.format("jdbc").options(**options).mode("append").save()
    assert proxy.swallowed == LOST
    written, distinct = counts(table)
    print(f"JDBC: {ROWS} rows in {PARTS} tasks, {LOST} answers lost, {written} rows in the table")
    assert (written, distinct) == (ROWS + LOST * ROWS // PARTS, ROWS)
