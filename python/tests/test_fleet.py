"""Fleets: members of one write by many processes."""

from __future__ import annotations

import dataclasses

import pytest

import pgspate


@pytest.fixture
def use(db):
    db.execute("create table use (meter int, day int, kwh float8, primary key (meter, day))")
    return db


def rows(meter, kwh=1.0):
    return [{"meter": meter, "day": day, "kwh": kwh} for day in range(5)]


def member(data, dsn, generation, index):
    return pgspate.sync(data, "use", scope_by="meter", to=dsn, fleet="nights", members=3,
                        generation=generation, member=index, connections=4)


def test_members_are_reported_and_an_older_generation_is_refused(use, dsn):
    reports = [member(rows(index), dsn, "2026-11-22", index) for index in (2, 0)]
    assert [report.fleet["completed"] for report in reports] == [False, False]
    found = pgspate.fleet("nights", to=dsn)
    assert (found.done, found.missing, found.is_complete) == (2, [1], False)
    assert "2 of 3 members done" in repr(found)
    # Every key of the engine's report is a field of `FleetReport`.
    assert set(found.to_dict()) == {one.name for one in dataclasses.fields(found)
                                    if not one.name.startswith("_")}
    assert member(rows(1), dsn, "2026-11-22", 1).fleet["completed"]
    with pytest.raises(pgspate.LedgerError, match="generation 2026-11-21 is older") as late:
        member(rows(1, kwh=9.0), dsn, "2026-11-21", 1)
    assert not late.value.is_retryable
    assert use.execute("select count(*), sum(kwh) from use").fetchone() == (15, 15.0)
    found = pgspate.fleet("nights", generation="2026-11-22", to=dsn)
    assert found.is_complete and found.inserted == 15


def test_the_index_is_read_from_the_environment(use, dsn, monkeypatch, tmp_path):
    (tmp_path / "1.csv").write_text("meter,day,kwh\n1,1,1\n")
    with pytest.raises(pgspate.UsageError, match="no environment variable has the member's index"):
        member(rows(1), dsn, "1", "auto")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    report = pgspate.load(f"{tmp_path}/{{member}}.csv", "use", to=dsn, fleet="files",
                          generation="1", members=2)
    assert (report.rows_written, report.fleet["member"]) == (1, 1)
    with pytest.raises(pgspate.UsageError, match="loads sources that can be read again"):
        pgspate.load(rows(1), "use", to=dsn, fleet="files", generation="1", members=2)
