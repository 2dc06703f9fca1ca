"""Ray's datasets and tasks, with workers and nodes that die: each row is written once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from decimal import Decimal
from types import SimpleNamespace

import pytest

import pgspate
from conftest import HERE, stages_left

pa = pytest.importorskip("pyarrow")
ray = pytest.importorskip("ray")

import pgspate.ray  # noqa: E402
from faulty import mark_first, with_faults  # noqa: E402

ROWS, PARTS = 40_000, 8


@pytest.fixture(scope="module")
def workers(environment):
    ray.init(address="local", num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False,
             log_to_driver=False, configure_logging=False, object_store_memory=200 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture
def table(db):
    db.execute("create table t (id bigint)")
    return db


def rows(count=ROWS):
    return ray.data.range(count, override_num_blocks=PARTS)


def check(db, count=ROWS):
    query = "select count(*), count(distinct id), coalesce(sum(id), 0) from t"
    assert db.execute(query).fetchone() == (count, count, count * (count - 1) // 2)
    assert stages_left(db) == []


def test_a_dataset_is_appended_at_once(workers, db, dsn):
    report = pgspate.ray.write_postgres(rows(), "t", to=dsn, create=True, concurrency=2)
    assert (report.rows_written, report.losers) == (ROWS, 0)
    check(db)


def test_empty_datasets_and_blocks(workers, table, dsn):
    empty = rows().filter(lambda row: row["id"] < 0)
    assert pgspate.ray.write_postgres(empty, "t", to=dsn).rows_written == 0
    nothing = ray.data.from_items([])
    assert pgspate.ray.write_postgres(nothing, "t", to=dsn).rows_written == 0
    one = rows().filter(lambda row: row["id"] == 0)
    assert pgspate.ray.write_postgres(one, "t", to=dsn).rows_written == 1
    check(table, 1)


def test_blocks_of_pandas_and_of_other_types_fit_together(workers, db, dsn):
    db.execute("create table t (id bigint, name text)")
    data = ray.data.from_items([{"id": nth} for nth in range(100)], override_num_blocks=4)
    data = data.map_batches(lambda df: df.assign(name=None if df["id"].min() < 50 else "x"),
                            batch_format="pandas", batch_size=None)
    pgspate.ray.write_postgres(data, "t", to=dsn)
    assert db.execute("select count(*), count(name) from t").fetchone() == (100, 50)


def test_blocks_of_a_task_whose_types_lose_digits_are_refused(db, dsn):
    db.execute("create table t (v numeric)")
    sink = pgspate.ray.Datasink("t", to=dsn)
    sink.on_write_start()
    blocks = [pa.table({"v": [value]}) for value in (Decimal("1.12345678901234567890"), 0.5)]
    with pytest.raises(pgspate.UsageError, match='column "v" have different types'):
        sink.write(blocks, SimpleNamespace(task_idx=0))
    sink.on_write_failed(RuntimeError())
    assert stages_left(db) == []


def test_a_named_job_is_written_once(workers, table, dsn):
    first = pgspate.ray.write_postgres(rows(), "t", to=dsn, job="nightly")
    assert pgspate.ray.write_postgres(rows(10), "t", to=dsn, job="nightly") == first
    check(table)


def test_overwrite_by_nothing_empties(workers, table, dsn):
    table.execute("insert into t values (1)")
    pgspate.ray.write_postgres(rows(), "t", to=dsn, mode="overwrite")
    check(table)
    empty = rows().filter(lambda row: row["id"] < 0)
    pgspate.ray.write_postgres(empty, "t", to=dsn, mode="overwrite")
    check(table, 0)


def test_upsert_updates_rows_of_the_same_key(workers, db, dsn):
    db.execute("create table t (id bigint primary key)")
    db.execute("insert into t values (1), (2)")
    report = pgspate.ray.write_postgres(rows(), "t", to=dsn, mode="upsert", key=["id"])
    assert report.rows_in == ROWS
    check(db)


def test_the_server_refuses_rows(workers, db, dsn):
    db.execute("create table t (id int primary key)")
    data = rows(100).map(lambda row: {"id": row["id"] // 2})
    with pytest.raises(pgspate.ServerError, match="is duplicated"):
        pgspate.ray.write_postgres(data, "t", to=dsn)
    check(db, 0)


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_killed_worker_is_written_once(workers, table, dsn, tmp_path, monkeypatch, fault):
    with_faults(monkeypatch, f"worker {fault}", (2, 5), tmp_path)
    report = pgspate.ray.write_postgres(rows(), "t", to=dsn)
    assert {path.name for path in tmp_path.glob("*.0")} == {"2.0", "5.0"}
    assert report.losers == (2 if fault == "after" else 0)
    check(table)


def test_a_killed_map_before_the_write_is_written_once(workers, table, dsn, tmp_path):
    def slow_map(batch):
        if 20_000 in batch["id"] and mark_first(tmp_path, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    pgspate.ray.write_postgres(rows().map_batches(slow_map), "t", to=dsn)
    assert (tmp_path / "killed").exists()
    check(table)


def test_each_scope_is_synced_by_a_task(workers, db, dsn, tmp_path):
    db.execute("create table use (meter int, day int, kwh float8, primary key (meter, day))")

    def make_rows(meter):
        if meter == 3 and mark_first(tmp_path, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"meter": meter, "day": day, "kwh": meter + day} for day in range(5)]

    report = pgspate.ray.sync_each(range(20), make_rows, "use", to=dsn, scope_by="meter",
                                   connections=4)
    assert (report.done, report.inserted, report.is_complete) == (20, 100, True)
    report = pgspate.ray.sync_each(range(20), make_rows, "use", to=dsn, scope_by="meter")
    assert (report.done, report.inserted, report.unchanged) == (20, 0, 100)

    def fail(meter):
        return [{"meter": meter, "day": "no day", "kwh": 1}]

    with pytest.raises(pgspate.Error, match="no day"):
        pgspate.ray.sync_each(range(2), fail, "use", to=dsn, scope_by="meter")


def test_a_removed_node_is_written_once(table, dsn, tmp_path):
    """A node is removed after tasks on it have sealed, so their results are lost."""
    # A process can begin one cluster only.
    program = [sys.executable, str(HERE / "ray_node.py"), dsn, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.splitlines()[-1]) >= 2
    check(table)


def test_no_scopes_are_no_error(dsn):
    report = pgspate.ray.sync_each([], lambda _: [], "use", to=dsn, scope_by="meter")
    assert report.is_complete and report.members == 0
