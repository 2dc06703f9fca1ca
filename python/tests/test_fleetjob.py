"""Jobs of distributed engines such as Spark."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle

import pytest

import pgspate
from pgspate._engine import complete_or_abort
from pgspate.fleetjob import Epoch, Ticket, begin_write


@pytest.fixture
def table(db):
    db.execute("create table t (id int primary key, name text)")
    return db


def write_part(ticket_bytes, part):
    """Runs in another process, as a task of Spark does."""
    ticket = pickle.loads(ticket_bytes)
    rows = [{"id": 10 * part + nth, "name": f"part {part}"} for nth in range(part)]
    return pickle.dumps(ticket.write(part, rows, columns=["id", "name"]))


def test_processes_write_parts_of_one_job(table, dsn):
    ticket = begin_write("t", to=dsn)
    tasks = [(pickle.dumps(ticket), part) for part in (0, 1, 2, 3, 3)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        receipts = [pickle.loads(it) for it in pool.starmap(write_part, tasks)]
    assert table.execute("select count(*) from t").fetchone() == (0,)
    with pytest.raises(pgspate.UsageError, match="receipts of two attempts of part 3"):
        ticket.complete(receipts)
    report = ticket.complete(receipts[:-1])
    assert (report.rows_written, report.parts, report.losers) == (6, 4, 1)
    assert repr(report).count("6 rows in 4 parts")
    assert table.execute("select count(*), count(distinct id) from t").fetchone() == (6, 6)
    assert set(report.to_dict()) == {one.name for one in dataclasses.fields(report)
                                     if not one.name.startswith("_")}
    assert ticket.complete([]) == report
    assert ticket.abort() is False


@pytest.mark.parametrize("options", [{}, {"commit": "task"}, {"mode": "replace"}])
def test_rows_that_a_trigger_keeps_out_are_counted(table, dsn, options):
    table.execute(
        "create function keep_out() returns trigger language plpgsql as "
        "$$ begin if new.id = 2 then return null; end if; return new; end $$; "
        "create trigger keeps_out before insert on t for each row execute function keep_out()")
    ticket = begin_write("t", to=dsn, **options)
    parts = [{"id": 1}, {"id": 2}], [{"id": 3}]
    report = ticket.complete([ticket.write(nth, rows) for nth, rows in enumerate(parts)])
    assert (report.rows_in, report.rows_written, report.rows_kept_out) == (3, 2, 1)
    assert report.warnings == ["triggers of public.t kept out 1 row"]
    assert table.execute("select array_agg(id order by id) from t").fetchone() == ([1, 3],)


def test_a_named_job_is_written_once(table, dsn):
    first = begin_write("t", to=dsn, job="nightly")
    stale = first.write(0, [{"id": 1}])
    again = begin_write("t", to=dsn, job="nightly")
    with pytest.raises(pgspate.LedgerError, match="is not of job"):
        again.complete([stale])
    assert again.complete([again.write(0, [{"id": 2}])]).rows_written == 1
    third = begin_write("t", to=dsn, job="nightly")
    assert third.is_complete and third.complete([]).rows_written == 1
    with pytest.raises(pgspate.LedgerError, match="is complete"):
        third.write(0, [{"id": 3}])
    assert table.execute("select array_agg(id) from t").fetchone() == ([2],)


def test_a_job_replaces_and_syncs(table, dsn):
    table.execute("insert into t values (1, 'old'), (9, 'old')")
    ticket = begin_write("t", to=dsn, mode="replace")
    receipts = [ticket.write(part, [{"id": part, "name": "new"}]) for part in (1, 2)]
    assert ticket.complete(receipts).inserted == 2
    ticket = begin_write("t", to=dsn, mode="sync", key="id", scope="all", max_delete="100%")
    rows = [{"id": 2, "name": "new"}, {"id": 3, "name": "newer"}]
    report = ticket.complete([ticket.write(0, rows)])
    assert (report.rows_in, report.inserted, report.updated, report.deleted) == (2, 1, 0, 1)
    assert "1 inserted, 0 updated, 1 deleted" in repr(report)
    assert table.execute("select array_agg(id order by id) from t").fetchone() == ([2, 3],)
    with pytest.raises(pgspate.UsageError, match="no scope"):
        begin_write("t", to=dsn, mode="sync")
    with pytest.raises(pgspate.UsageError, match='`key=` is for a job with `mode="sync"`'):
        begin_write("t", to=dsn, key="id")
    with pytest.raises(pgspate.UsageError, match='no mode "overwrite"'):
        begin_write("t", to=dsn, mode="overwrite")


def test_tasks_that_commit_write_each_part_once(table, dsn):
    ticket = begin_write("t", to=dsn, job="files", commit="task", stable_parts=True)
    first = ticket.write(0, [{"id": 1}])
    assert table.execute("select count(*) from t").fetchone() == (1,)
    assert ticket.write(0, [{"id": 1}, {"id": 2}]) == first
    again = begin_write("t", to=dsn, job="files", commit="task", stable_parts=True)
    assert again.complete([again.write(0, [{"id": 7}])]).rows_written == 1
    assert table.execute("select array_agg(id) from t").fetchone() == ([1],)


@pytest.mark.parametrize("buffer", [0, 64])
def test_a_task_reads_a_stream_before_it_connects(table, dsn, buffer):
    pyarrow = pytest.importorskip("pyarrow")
    ticket = begin_write("t", to=dsn, buffer=buffer)
    sessions = ("select count(*) from pg_stat_activity where datname = current_database() "
                "and backend_start > %s")
    seen = []
    began = table.execute("select clock_timestamp()").fetchone()

    def batches():
        for nth in range(3):
            seen.append(table.execute(sessions, began).fetchone()[0])
            yield pyarrow.record_batch({"id": [nth]})

    schema = pyarrow.schema([("id", pyarrow.int64())])
    stream = pyarrow.RecordBatchReader.from_batches(schema, batches())
    receipt = ticket.write(0, stream)
    assert seen == [int(buffer == 0)] * 3
    assert ticket.complete([receipt]).rows_written == 3


def test_a_job_is_aborted_and_a_ticket_shows_no_password(table, dsn):
    ticket = begin_write("t", to=dsn)
    ticket.write(0, [{"id": 1}])
    assert "password" not in repr(ticket) and dsn not in repr(ticket)
    other = begin_write("t", to=dsn)
    assert f"--forget {ticket.job}" in "".join(other.warnings)
    assert ticket.abort() and not ticket.abort()
    assert other.abort()
    with pytest.raises(pgspate.PlanError, match="does not exist"):
        begin_write("nowhere", to=dsn)
    assert table.execute("select count(*) from t").fetchone() == (0,)


def test_a_lost_receipt_and_a_replacement_by_nothing_are_refused(table, dsn):
    table.execute("insert into t values (9, 'old')")
    ticket = begin_write("t", to=dsn)
    receipts = [ticket.write(part, [{"id": part}]) for part in (1, 2)]
    with pytest.raises(pgspate.UsageError, match="part 2 of job .* is written, but there is no"):
        ticket.complete(receipts[:1])
    assert ticket.complete(receipts).rows_written == 2
    with pytest.raises(pgspate.PlanError, match="there are no rows to put") as caught:
        begin_write("t", to=dsn, mode="replace").complete([])
    assert "`allow_empty=True`" in caught.value.hint
    assert table.execute("select count(*) from t").fetchone() == (3,)
    begin_write("t", to=dsn, mode="replace", allow_empty=True).complete([])
    assert table.execute("select count(*) from t").fetchone() == (0,)
    with pytest.raises(pgspate.UsageError, match="`allow_empty=` is for a job"):
        begin_write("t", to=dsn, allow_empty=True)


def test_bad_rows_are_rejected(table, dsn):
    ticket = begin_write("t", to=dsn, max_rejects=2)
    receipt = ticket.write(3, [{"id": 1}, {"id": "x"}, {"id": 2}])
    assert receipt.rows == 2
    report = ticket.complete([receipt])
    assert (report.rows_in, report.inserted, report.rejected) == (3, 2, 1)
    assert repr(report).count("1 rejected")
    found = table.execute("select job, chunk, row, column_name from pgspate.reject").fetchall()
    assert found == [(report.job, 3, 1, "id")]
    with pytest.raises(pgspate.Error, match="could not write part 0 of"):
        begin_write("t", to=dsn, max_rejects=0).write(0, [{"id": "x"}])


def test_an_epoch_of_a_stream_is_written_once(table, dsn):
    for _ in range(2):
        tasks = [begin_write("t", to=dsn, job=Epoch("orders", 0, "a")) for _ in range(2)]
        receipts = [ticket.write(part, [{"id": part}])
                    for part, ticket in enumerate(tasks) if not ticket.is_complete]
        driver = begin_write("t", to=dsn, job=Epoch("orders", 0, "a"))
        assert driver.complete(receipts).rows_written == 2
    with pytest.raises(pgspate.LedgerError, match="is written by the query a"):
        begin_write("t", to=dsn, job=Epoch("orders", 0, "b"))
    assert table.execute("select array_agg(id order by id) from t").fetchone() == ([0, 1],)


def test_a_missing_epoch_is_refused_or_a_warning(table, dsn):
    begin_write("t", to=dsn, job=Epoch("orders", 0, "a", is_gapless=True)).complete([])
    with pytest.raises(pgspate.LedgerError, match="does not follow epoch 0"):
        begin_write("t", to=dsn, job=Epoch("orders", 2, "a", is_gapless=True))
    ticket = begin_write("t", to=dsn, job=Epoch("orders", 2, "a"))
    assert "does not follow epoch 0" in "".join(ticket.warnings)


def test_a_completion_whose_answer_was_lost_returns_the_report(table, dsn, monkeypatch):
    ticket = begin_write("t", to=dsn)
    receipts = [ticket.write(0, [{"id": 1}])]
    complete, lost = Ticket.complete, [True]

    def lose_the_first_answer(*arguments):
        report = complete(*arguments)
        if lost.pop():
            lost.append(False)
            raise pgspate.ConnectError("the answer was lost", is_retryable=True)
        return report

    monkeypatch.setattr(Ticket, "complete", lose_the_first_answer)
    assert complete_or_abort(ticket, receipts).rows_written == 1
    # A job that is not complete is aborted.
    monkeypatch.undo()
    ticket = begin_write("t", to=dsn)
    with pytest.raises(pgspate.Error):
        complete_or_abort(ticket, [ticket.write(0, [{"id": 1}])])
    assert ticket.abort() is False
