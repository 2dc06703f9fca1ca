"""Answers to commits of tasks are lost: each row is written once. JDBC writes some rows twice."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import psycopg
import pytest

import pgspate.spark
from conftest import HERE
from pgspate import _engine
from proxy import CommitSwallower

ROWS, PARTS, LOST = 8000, 8, 3
JARS = sorted((HERE.parents[1] / "target/jdbc").glob("postgresql-*.jar"))


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


@pytest.mark.skipif(not JARS, reason="the JDBC driver is missing: make test-fleet fetches it")
def test_jdbc_doubles_the_rows_of_a_lost_answer(table, swallow):
    """This is what the page on Spark compares with. The table has no key."""
    proxy, proxied = swallow(rb"insert into")
    url = f"jdbc:postgresql://127.0.0.1:{proxy.port}/{proxied['dbname']}"
    program = [sys.executable, str(HERE / "jdbc_driver.py"), str(JARS[-1]), url, proxied["user"]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert proxy.swallowed == LOST
    part = ROWS // PARTS
    assert counts(table) == (ROWS + LOST * part, ROWS)
