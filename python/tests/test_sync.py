"""Syncs: rows of a table are made equal to data."""

from __future__ import annotations

import dataclasses

import pytest

import pgspate


@pytest.fixture
def meters(db):
    db.execute("create table use (meter int, day int, kwh float8, primary key (meter, day))")
    db.execute("insert into use select m, d, m * d from generate_series(1, 3) m, "
               "generate_series(1, 4) d")
    return db


def test_a_scope_is_made_equal_to_rows(meters, dsn):
    new = [{"meter": 2, "day": day, "kwh": 2.0 * day} for day in (2, 3, 4, 5)]
    new[0]["kwh"] = 99.0
    report = pgspate.sync(new, "use", scope_by=["meter"], to=dsn)
    counts = (report.inserted, report.updated, report.deleted, report.unchanged)
    assert counts == (1, 1, 1, 2) and not report.is_same
    left = meters.execute("select day, kwh from use where meter = 2 order by 1").fetchall()
    assert left == [(2, 99.0), (3, 6.0), (4, 8.0), (5, 10.0)]
    assert meters.execute("select count(*) from use").fetchone() == (12,)
    again = pgspate.sync(iter(new), "use", scope_by="meter", to=dsn)
    assert again.is_same and again.unchanged == 4


def test_several_sessions_or_transactions_write_the_scopes(meters, dsn):
    rows = [{"meter": m, "day": d, "kwh": float(d)} for m in (1, 2, 3) for d in (1, 2, 3, 4)]
    report = pgspate.sync(rows, "use", scope_by="meter", lanes=2, vacuum=True, to=dsn)
    assert (report.sessions, report.updated) == (2, 8) and report.vacuum_seconds is not None
    changed = [row | {"kwh": -1.0} for row in rows]
    report_of_two = pgspate.sync(changed, "use", scope_by="meter", transactions=2, to=dsn)
    assert (report_of_two.sessions, report_of_two.transactions) == (1, 2)
    assert report_of_two.updated == 12
    # Every key of the engine's report is a field of `SyncReport`.
    assert set(report.to_dict()) <= {one.name for one in dataclasses.fields(report)}


def test_a_check_changes_nothing(meters, dsn):
    report = pgspate.sync([(1, 1, 7.0)], "use", scope="meter = 1", check=True, to=dsn)
    assert report.is_check and (report.updated, report.deleted) == (1, 3)
    assert report.examples["update"] and "to update" in repr(report)
    assert meters.execute("select sum(kwh) from use").fetchone() == (60.0,)


def test_a_scope_must_be_given(dsn):
    with pytest.raises(pgspate.UsageError, match="no scope is given"):
        pgspate.sync([(1,)], "use", to=dsn)
    with pytest.raises(pgspate.UsageError, match="exclude each other"):
        pgspate.sync([(1,)], "use", scope="all", no_delete=True, to=dsn)


def test_a_scope_is_a_text(dsn):
    sa = pytest.importorskip("sqlalchemy")
    column = sa.column("id")
    for scope in (column == 1, column > 1, sa.text("id = 1")):
        with pytest.raises(pgspate.UsageError, match="`scope=` is an object of class ") as error:
            pgspate.sync([(1,)], "use", scope=scope, to=dsn)
        assert "pgspate.sqlalchemy.sync" in error.value.hint


def test_a_sync_with_too_many_deletes_is_refused(meters, dsn):
    with pytest.raises(pgspate.Error) as error:
        pgspate.sync([(1, 1, 1.0)], "use", scope="all", to=dsn)
    assert "max_delete=" in (error.value.hint or "")
    with pytest.raises(pgspate.Error):
        pgspate.sync([], "use", scope="all", max_delete=100, to=dsn)
    report = pgspate.sync([], "use", scope="all", max_delete=100, allow_empty=True, to=dsn)
    assert report.deleted == 12


def test_no_delete_keeps_rows_and_insert_only_updates_none(meters, dsn):
    rows = [(1, 1, 5.0), (9, 9, 9.0)]
    report = pgspate.sync(rows, "use", insert_only=True, to=dsn)
    assert (report.inserted, report.updated, report.deleted) == (1, 0, 0)
    report = pgspate.sync(rows, "use", no_delete=True, to=dsn)
    assert (report.inserted, report.updated, report.deleted) == (0, 1, 0)


def test_rows_that_are_only_inserted_are_not_called_unchanged(meters, dsn):
    report = pgspate.sync([(1, 1, 7.0), (9, 1, 1.0)], "use", insert_only=True, to=dsn)
    assert report.insert_only and "1 inserted, 1 not compared" in repr(report)


def test_a_table_is_not_named_by_chance(dsn):
    for call in (pgspate.load, pgspate.plan):
        with pytest.raises(pgspate.UsageError, match="the table is None"):
            call([{"a": 1}], None, create=True, to=dsn)
    with pytest.raises(pgspate.UsageError, match="the table is None"):
        pgspate.sync([{"a": 1}], None, scope="all", to=dsn)
