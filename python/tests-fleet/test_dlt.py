"""The destination of dlt."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

dlt = pytest.importorskip("dlt")

import pgspate.dlt  # noqa: E402
from pgspate.fleetjob import Ticket  # noqa: E402

MOMENT = dt.datetime(2024, 2, 29, 13, 14, 15, 123456, tzinfo=dt.timezone.utc)


@pytest.fixture
def run(dsn, server, db, tmp_path, monkeypatch):
    """Yields a function that loads rows into the table `items` of the schema `shop`."""
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    url = server.url.rpartition("/")[0] + "/" + db.info.dbname
    pipeline = dlt.pipeline("shop", destination=pgspate.dlt.pgspate(credentials=url),
                            dataset_name="shop", pipelines_dir=str(tmp_path))

    def load(rows, **options):
        info = pipeline.run(rows, table_name="items", **options)
        info.raise_on_failed_jobs()
        formats = {job.job_file_info.file_format for package in info.load_packages
                   for job in package.jobs["completed_jobs"]
                   if job.job_file_info.table_name == "items"}
        assert "parquet" in formats

    return load


def items(db):
    return db.execute("select id, name from shop.items order by id, name").fetchall()


def test_rows_are_appended_replaced_and_merged(run, db):
    run([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], write_disposition="append")
    run([{"id": 2, "name": "b"}], write_disposition="append")
    assert items(db) == [(1, "a"), (2, "b"), (2, "b")]
    run([{"id": 3, "name": "c"}], write_disposition="replace")
    run([{"id": 3, "name": "c"}, {"id": 4, "name": "d"}], write_disposition="replace")
    assert items(db) == [(3, "c"), (4, "d")]
    run([{"id": 4, "name": "e"}, {"id": 5, "name": "f"}], write_disposition="merge",
        primary_key="id")
    assert items(db) == [(3, "c"), (4, "e"), (5, "f")]


def test_types_are_those_of_dlt(run, db):
    row = {"id": 1, "name": "ä", "flag": True, "ratio": 0.5, "price": Decimal("1.50"),
           "moment": MOMENT, "day": MOMENT.date(), "hour": dt.time(1, 2, 3), "data": b"\x00\xff",
           "more": {"a": [1]}}
    run([row], columns={"more": {"data_type": "json"}})
    found = db.execute("select flag, ratio, price, moment, day, hour, data, more, "
                       "pg_typeof(more)::text from shop.items").fetchone()
    assert found == (True, 0.5, Decimal("1.50"), MOMENT, MOMENT.date(), dt.time(1, 2, 3),
                     b"\x00\xff", {"a": [1]}, "jsonb")


@pytest.mark.parametrize("lost", ["write", "complete"])
@pytest.mark.parametrize("kind", ["rows", "arrow"])
@pytest.mark.parametrize(
    "options",
    [{"write_disposition": "append"}, {"write_disposition": "replace"},
     {"write_disposition": "merge", "primary_key": "id"}],
    ids=["append", "replace", "merge"])
def test_a_file_whose_answer_was_lost_is_loaded_once(run, db, monkeypatch, options, kind, lost):
    call, calls = getattr(Ticket, lost), []

    def lose_the_first_answer(*arguments):
        answer = call(*arguments)
        calls.append(answer)
        if len(calls) == 1:
            raise pgspate.ConnectError("the answer was lost", is_retryable=True)
        return answer

    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    if kind == "arrow":
        rows = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    monkeypatch.setattr(Ticket, lost, lose_the_first_answer)
    run(rows, **options)
    assert calls and items(db) == [(1, "a"), (2, "b")]
