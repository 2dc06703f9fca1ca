"""The line of progress in a terminal."""

from __future__ import annotations

import io
import os
import time

import pytest

import pgspate
from pgspate._progress import progress_callback


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


@pytest.mark.parametrize("columns", [20, 80, 200])
@pytest.mark.parametrize("phase", [None, "building index parts_name_idx on parts (name)"])
def test_the_line_fits_the_terminal(monkeypatch, columns, phase):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr("os.get_terminal_size", lambda *_: size)
    with progress_callback(True, "loading warehouse.parts", 40_000_000) as show:
        assert show is not None
        show(12_345_678, 1 << 30, 0, 8, "server (WALWrite, for now)", phase, 0, None)
    line = terminal.getvalue().split("\r")[1].removesuffix("\x1b[K")
    assert len(line) < columns
    whole = "loading warehouse.parts  12,345,678 rows"
    assert line.startswith(whole[:columns - 1])
    if columns == 80 and phase is None:
        assert "31%" in line and "8 lanes" in line
    if columns == 200:
        assert line.endswith(phase or "waiting on: server (WALWrite, for now)")


def test_the_width_is_known_without_a_terminal(monkeypatch):
    def refuse(*_: object) -> os.terminal_size:
        raise OSError("no terminal")

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("os.get_terminal_size", refuse)
    monkeypatch.setenv("COLUMNS", "40")
    with progress_callback(True, "loading " + "x" * 100, None) as show:
        assert show is not None
        show(1, 1, 0, 1, None, None, 0, None)
    assert terminal.getvalue().startswith("\rloading " + "x" * 31 + "\x1b[K")


@pytest.mark.parametrize("count", [4, 1004])
def test_progress_is_shown_while_an_iterable_waits(db, dsn, count):
    def slow_rows():
        for number in range(count):
            if number < 2 or number >= 1002:
                time.sleep(0.3)
            yield {"a": number}

    seen: list[pgspate.Progress] = []
    report = pgspate.load(slow_rows(), "t", create=True, to=dsn, progress=seen.append)
    assert report.rows_written == count
    assert report.seconds > 0.6
    assert len(seen) >= 2 and seen[0].waiting == "source"


def test_the_source_is_what_a_slow_reader_is_waited_for(dsn):
    pa = pytest.importorskip("pyarrow")

    def batches():
        for number in range(3):
            time.sleep(1)
            yield pa.record_batch({"a": [number]})

    seen: list[pgspate.Progress] = []
    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    pgspate.load(reader, "t", create=True, to=dsn, progress=seen.append)
    assert "source" in {progress.waiting for progress in seen}


def test_the_holder_of_a_lock_is_named(db, dsn):
    import psycopg

    db.execute("create table t (a int)")
    waiting: list[str] = []
    with psycopg.connect(dsn) as holder:
        holder.execute("lock table t in access exclusive mode")

        def see(progress: pgspate.Progress) -> None:
            if progress.waiting and progress.waiting.startswith("a lock of "):
                waiting.append(progress.waiting)
                holder.rollback()

        pgspate.load([{"a": 1}], "t", to=dsn, progress=see)
        assert waiting[0].startswith(f"a lock of session {holder.info.backend_pid} (")


def test_a_word_is_no_way_to_show_progress(dsn):
    with pytest.raises(pgspate.UsageError, match="`progress=` is of class str"):
        pgspate.load([{"a": 1}], "t", to=dsn, progress="yes")  # type: ignore[arg-type]
