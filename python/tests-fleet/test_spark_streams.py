"""Streams of Spark by `writeStream.format("pgspate")`: each epoch is written once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import HERE, stages_left, wait_until

DRIVER = str(HERE / "stream_driver.py")
KILLS = int(os.environ.get("PGSPATE_TEST_FAULTS", "3"))
ROWS = 10
# How long a stream may go without an epoch. The limit is for hangs only.
PROGRESS_SECONDS = 600


@pytest.fixture
def table(db):
    db.execute("create table t (id bigint)")
    return db


@pytest.fixture
def stream(spark, dsn, tmp_path):
    """Returns a function that writes what is in the folder, as a query with this checkpoint."""
    (tmp_path / "in").mkdir()

    def run(checkpoint="check", mode="append", **options):
        frame = spark.readStream.schema("id long").csv(str(tmp_path / "in"))
        if mode == "complete":
            frame = frame.groupBy().sum("id").withColumnRenamed("sum(id)", "id")
        options = {"url": dsn, "dbtable": "t", "checkpointLocation": str(tmp_path / checkpoint),
                   **options}
        query = frame.writeStream.format("pgspate").options(**options).outputMode(mode).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    return run


def put(folder: Path, nth: int, *ids: int) -> None:
    # A file appears with its rows.
    text = "".join(f"{one}\n" for one in ids)
    (folder / f"{nth}.part").write_text(text)
    (folder / f"{nth}.part").rename(folder / "in" / f"{nth}.csv")


def forget_commit(folder: Path, epoch: int) -> None:
    """Lets Spark forget that an epoch was committed, so that it repeats the epoch."""
    for name in (str(epoch), f".{epoch}.crc"):
        (folder / "check/commits" / name).unlink()


def ids(db) -> list[int]:
    return [row[0] for row in db.execute("select id from t order by id")]


def jobs(db) -> list[tuple]:
    return db.execute("select finished is not null, options->'epoch'->>'number' from pgspate.job "
                      "where command = 'fleet' order by job").fetchall()


def test_an_epoch_is_written_once(stream, table, tmp_path):
    for epoch in range(3):
        put(tmp_path, epoch, epoch)
        stream()
        assert ids(table) == list(range(epoch + 1))
        forget_commit(tmp_path, epoch)
        stream()
        assert ids(table) == list(range(epoch + 1))
    # The ledger keeps the latest epoch alone.
    assert jobs(table) == [(True, "2")]
    assert stages_left(table) == []


def test_an_epoch_without_rows_is_an_epoch(stream, table, tmp_path):
    put(tmp_path, 0)
    stream()
    put(tmp_path, 1, 7)
    stream()
    assert ids(table) == [7]


def test_a_table_is_created_and_upserted(stream, db, tmp_path):
    put(tmp_path, 0, 1, 2)
    stream(create="true", write="upsert", key="id")
    put(tmp_path, 1, 2, 3)
    stream(create="true", write="upsert", key="id")
    assert ids(db) == [1, 2, 3]


def test_the_output_mode_complete_replaces_all_rows(stream, table, tmp_path):
    put(tmp_path, 0, 1, 2)
    stream(mode="complete")
    put(tmp_path, 1, 4)
    stream(mode="complete")
    assert ids(table) == [7]


def test_a_refused_epoch_is_written_after_the_cause_is_gone(stream, table, tmp_path):
    table.execute("alter table t add check (id <> 2)")
    put(tmp_path, 0, 1, 2, 3)
    with pytest.raises(Exception, match="t_id_check"):
        stream()
    assert (ids(table), stages_left(table)) == ([], [])
    table.execute("alter table t drop constraint t_id_check")
    stream()
    assert ids(table) == [1, 2, 3]


def test_a_query_with_another_checkpoint_is_another_stream(stream, table, tmp_path):
    put(tmp_path, 0, 1)
    stream(stream="orders")
    with pytest.raises(Exception, match="stream orders is written by the query"):
        stream(stream="orders", checkpoint="other")
    assert ids(table) == [1]
    # Without a name, each checkpoint is a stream of its own.
    stream(checkpoint="third")
    assert ids(table) == [1, 1]


def test_options_of_streams_and_of_jobs(spark, stream, table, dsn, tmp_path):
    put(tmp_path, 0, 1)
    with pytest.raises(Exception, match="a stream has no option job"):
        stream(job="nightly")
    with pytest.raises(Exception, match="no task can commit"):
        stream(checkpoint="second", commit="task")
    with pytest.raises(Exception, match="is for `writeStream`"):
        spark.range(1).write.format("pgspate").mode("append").options(
            url=dsn, dbtable="t", stream="orders").save()
    assert ids(table) == []


def test_a_stream_that_is_killed_loses_and_doubles_nothing(table, dsn, tmp_path):
    """Kills the query's driver soon after it has written an epoch, and starts it again."""
    chance = random.Random(7)
    (tmp_path / "in").mkdir()

    def start() -> subprocess.Popen:
        with (tmp_path / "log").open("w") as log:
            return subprocess.Popen([sys.executable, DRIVER, dsn, str(tmp_path)], stdout=log,
                                    stderr=log, start_new_session=True)

    def wait_for_epochs(driver: subprocess.Popen, epochs: int) -> None:
        """Waits until so many epochs are written. The limit is for each of them."""
        while (written := len(ids(table)) // ROWS) < epochs:
            wait_until(lambda written=written: driver.poll() is not None
                       or len(ids(table)) // ROWS > written,
                       "no epoch is written", PROGRESS_SECONDS)
            if driver.poll() is not None and len(ids(table)) // ROWS < epochs:
                pytest.fail((tmp_path / "log").read_text()[-3000:])

    def put_files(epochs: int) -> None:
        for nth in range(len(list((tmp_path / "in").iterdir())), epochs):
            put(tmp_path, nth, *range(nth * ROWS, (nth + 1) * ROWS))

    for nth in range(KILLS):
        epochs = len(ids(table)) // ROWS + chance.randrange(1, 4)
        put_files(epochs + 3)
        driver = start()
        wait_for_epochs(driver, epochs)
        # The kill hits one of the epoch's last steps, or a step of the next epoch.
        time.sleep(chance.choice([0, chance.uniform(0, 0.5)]))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(60)
        found = ids(table)
        assert len(found) == len(set(found))
        print(f"kill {nth + 1} after {len(found) // ROWS} epochs", flush=True)
    epochs = len(list((tmp_path / "in").iterdir()))
    driver = start()
    wait_for_epochs(driver, epochs)
    assert driver.wait(PROGRESS_SECONDS) == 0, (tmp_path / "log").read_text()[-3000:]
    assert ids(table) == list(range(epochs * ROWS))
    assert [done for done, _ in jobs(table)] == [True]
    assert stages_left(table) == []
