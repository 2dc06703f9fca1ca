"""Calls that are stopped or run in forks and threads, their memory, and the command."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psycopg
import pytest

import pgspate
import pgspate.aio


def run(code, *args, **options):
    """Runs a program that handles SIGINT, even if these tests run in the background."""
    program = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.run(program, capture_output=True, text=True, timeout=600,
                          preexec_fn=enable_interrupts, **options)


def enable_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


INTERRUPTED_CALL = """
    import os, signal, socket, sys, threading, time, pgspate

    def interrupt():
        moments.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    moments = []

    def rows():
        n = 0
        while True:
            yield (n,)
            n += 1
            if n == 50_000:
                interrupt()

    call, dsn = sys.argv[1:]
    if call == "file":
        # A file that never ends.
        read, write = os.pipe()
        os.write(write, b"1\\n2\\n")
        threading.Timer(0.5, interrupt).start()
        data = f"/dev/fd/{read}"
    else:
        data = rows()
    events = ({"op": "insert", "table": "t", "row": {"a": a}} for a, in rows())
    try:
        if call == "doctor":
            threading.Timer(0.5, interrupt).start()
            # Longer than the time limit of this program.
            pgspate.doctor(to=dsn, watch=600)
        elif call == "tune":
            # A server that accepts connections and sends nothing.
            server = socket.create_server(("127.0.0.1", 0))
            threading.Timer(0.5, interrupt).start()
            to = f"host=127.0.0.1 port={server.getsockname()[1]} connect_timeout=600"
            pgspate.tune(to=to, apply=True, stall_timeout=600)
        elif call == "events":
            pgspate.apply(events, to=dsn, batch_rows=10**9, batch_bytes=1024)
        else:
            as_csv = {"header": False, "format": "csv"} if call == "file" else {}
            pgspate.load(data, "t", to=dsn, **as_csv)
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - moments[0])
"""


@pytest.mark.parametrize("call", ["rows", "file", "doctor", "tune"])
def test_an_interrupt_rolls_back(db, dsn, call):
    db.execute("create table t (a int)")
    done = run(INTERRUPTED_CALL, call, dsn)
    assert done.stdout.startswith("interrupted"), done.stdout + done.stderr
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_an_interrupted_apply_has_written_only_complete_batches(db, dsn):
    db.execute("create table t (a int)")
    done = run(INTERRUPTED_CALL, "events", dsn)
    assert done.stdout.startswith("interrupted"), done.stdout + done.stderr
    count, first, last = db.execute("select count(*), min(a), max(a) from t").fetchone()
    assert count == 0 or (first, last) == (0, count - 1)
    assert db.execute("select count(*) from pgspate.stream").fetchone() == (0,)


def test_an_interrupt_while_connecting_ends_the_call_at_once():
    # A server that accepts the connection and does not answer.
    code = """
        import os, signal, socket, threading, pgspate
        with socket.create_server(("127.0.0.1", 0)) as server:
            try:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                pgspate.load([(1,)], "t", to=f"host=127.0.0.1 port={server.getsockname()[1]}")
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                os._exit(0)
    """
    assert run(code).stdout == "interrupted\n"


def test_a_forked_process_can_load(db, dsn):
    db.execute("create table t (a int)")
    pgspate.load([(1,)], "t", to=dsn)
    children = []
    for nth in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                pgspate.load([(nth,)], "t", to=dsn)
                pgspate.apply([{"op": "insert", "table": "t", "row": {"a": nth}}], to=dsn)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 3
    pgspate.load([(9,)], "t", to=dsn)
    assert db.execute("select count(*) from t").fetchone() == (8,)


def test_a_forked_process_does_not_stop_the_server_of_its_parent():
    with pgspate.server(temporary=True) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("select 1").fetchone() == (1,)


def test_a_call_without_to_reaches_no_server_in_these_tests():
    with pytest.raises(pgspate.ConnectError, match="could not connect"):
        pgspate.load([(1,)], "t")


def test_threads_load_at_the_same_time(db, dsn):
    db.execute("create table t (a int, b int)")
    failed = []

    def load(nth):
        try:
            pgspate.load([(nth, n) for n in range(5000)], "t", to=dsn)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=load, args=(nth,)) for nth in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert db.execute("select count(distinct (a, b)) from t").fetchone() == (20_000,)


def test_other_python_threads_run_during_a_load(db, dsn, tmp_path):
    db.execute("create table t (a int)")
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{n}\n" for n in range(300_000)))
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    pgspate.load(path, "t", to=dsn, header=False)
    done.set()
    thread.join()
    assert len(ticks) > 5


def test_memory_does_not_grow_with_the_rows(db, dsn):
    code = """
        import resource, sys, pgspate
        def rows(count):
            return ((n, "a text of some bytes, as rows have them") for n in range(count))
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        pgspate.load(rows(400_000), "t", to=sys.argv[1], lanes=1)
        before = peak()
        pgspate.load(rows(1_600_000), "t", to=sys.argv[1], lanes=1)
        print(before, peak())
    """
    db.execute("create unlogged table t (a int, b text)")
    done = run(code, dsn)
    before, after = map(int, done.stdout.split())
    assert after < before * 1.5, done.stdout + done.stderr
    assert db.execute("select count(*) from t").fetchone() == (2_000_000,)


def test_asyncio_calls_run_at_the_same_time_and_can_be_cancelled(db, dsn):
    db.execute("create table t (a int)")

    async def run_calls():
        first, second = await asyncio.gather(
            pgspate.aio.load([(1,)], "t", to=dsn),
            pgspate.aio.load(((n,) for n in range(1000)), "t", to=dsn),
        )
        assert (first.rows_written, second.rows_written) == (1, 1000)
        begun = threading.Event()

        def endless():
            n = 0
            while True:
                yield (n,)
                n += 1
                if n == 20_000:
                    begun.set()

        task = asyncio.create_task(pgspate.aio.load(endless(), "t", to=dsn))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = await pgspate.aio.sync([(2,)], "t", key="a", no_delete=True, to=dsn)
        assert report.is_same

    asyncio.run(run_calls())
    assert db.execute("select count(*) from t").fetchone() == (1001,)


def test_a_task_outlasts_its_call_although_it_is_cancelled_again():
    async def wait_for_call():
        release = threading.Event()
        call = asyncio.ensure_future(asyncio.to_thread(release.wait))
        waiting = asyncio.ensure_future(pgspate.aio._outlast(call))
        for _ in range(5):
            await asyncio.sleep(0)
            waiting.cancel()
        assert not waiting.done()
        release.set()
        await waiting
        assert call.done()

    asyncio.run(wait_for_call())


def test_the_package_contains_the_command(db, dsn, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\n")
    module = [sys.executable, "-m", "pgspate"]
    script = os.path.join(os.path.dirname(sys.executable), "pgspate")
    # The script exists only if the package is installed, and not if `PYTHONPATH` names its folder.
    scripts = [[script]] if os.path.exists(script) else []
    for command in [module, *scripts]:
        done = subprocess.run([*command, "load", str(path), "-t", "t", "--create", "--to", dsn,
                               "--restart", "--json"], capture_output=True, text=True)
        assert done.returncode == 0 and '"rows_written": 1' in done.stdout, done.stderr
    command = [*module, "load", "nowhere.csv", "--to", dsn]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "nowhere.csv" in done.stderr
    done = subprocess.run([*module, "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("pgspate ") and done.returncode == 0


INTERRUPTED_READER = """
    import gc, os, signal, sys, time, pgspate, pyarrow as pa

    schema = pa.schema([("a", pa.int64())])
    closed = []

    def batches():
        made = 0
        try:
            while True:
                made += 1
                if made == 5:
                    os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
                yield pa.record_batch([pa.array(range(100))], schema=schema)
        finally:
            closed.append(True)

    try:
        pgspate.load(pa.RecordBatchReader.from_batches(schema, batches()), "t", to=sys.argv[1])
    except KeyboardInterrupt:
        pass
    gc.collect()
    print("interrupted", closed, flush=True)
    sys.exit(5)
"""


def test_an_interrupted_call_leaves_the_reader(db, dsn):
    pytest.importorskip("pyarrow")
    db.execute("create table t (a int)")
    done = run(INTERRUPTED_READER, dsn)
    # No thread holds the generator any more, so Python has closed it.
    assert (done.stdout, done.returncode) == ("interrupted [True]\n", 5), done.stderr
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_a_failed_call_leaves_the_reader(db, dsn):
    pyarrow = pytest.importorskip("pyarrow")
    db.execute("create table t (a int primary key, b text)")
    schema = pyarrow.schema([("a", pyarrow.int64()), ("b", pyarrow.string())])
    closed = []

    def batches():
        try:
            while True:
                rows = [[1] * 3000, ["x" * 2000] * 3000]
                yield pyarrow.record_batch(rows, schema=schema)
        finally:
            closed.append(True)

    with pytest.raises(pgspate.ServerError, match="duplicate key"):
        pgspate.load(pyarrow.RecordBatchReader.from_batches(schema, batches()), "t", to=dsn)
    gc.collect()
    assert closed == [True]


ENDING_PROCESS = """
    import sys, threading, time, pgspate

    kind, dsn = sys.argv[1:]
    begun = threading.Event()

    def numbers():
        n = 0
        while True:
            n += 1
            if n == 3000:
                begun.set()
            if kind == "slow rows" and n > 3000:
                time.sleep(0.01)
            yield n

    def batches():
        for n in numbers():
            if n % 100 == 0:
                yield pa.record_batch([pa.array(range(n))], schema=schema)

    if kind == "reader":
        import pyarrow as pa
        schema = pa.schema([("a", pa.int64())])
        data = pa.RecordBatchReader.from_batches(schema, batches())
    elif kind == "list":
        data = [(n,) for n in range(2_000_000)]
        begun.set()
    else:
        data = ((n,) for n in numbers())

    def load():
        try:
            pgspate.load(data, "t", to=dsn)
        except pgspate.Cancelled:
            pass
        while True:
            try:
                pgspate.load([(1,)], "t", to=dsn)
            except pgspate.Cancelled:
                pass

    threading.Thread(target=load, daemon=True).start()
    begun.wait()
    sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["rows", "slow rows", "list", "reader"])
def test_a_process_ends_during_the_call_of_a_daemon_thread(db, dsn, kind):
    if kind == "reader":
        pytest.importorskip("pyarrow")
    db.execute("create table t (a int)")
    done = run(ENDING_PROCESS, kind, dsn)
    assert (done.stderr, done.returncode) == ("", 3)
    assert db.execute("select count(*) from t").fetchone() == (0,)


@pytest.mark.parametrize("last", [500, 1500])
def test_a_cancelled_task_leaves_a_slow_generator(db, dsn, last):
    db.execute("create table t (a int)")
    begun, cancelled = threading.Event(), threading.Event()
    made = 0

    def slow():
        nonlocal made
        for made in range(8000):
            if made == last:
                begun.set()
                cancelled.wait()
            yield (made,)

    async def cancel():
        task = asyncio.create_task(pgspate.aio.load(slow(), "t", to=dsn))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        # In these turns of the loop, the task asks the call to stop.
        for _ in range(5):
            await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert made == last
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_a_failed_call_leaves_a_slow_generator(db, dsn):
    from pgspate import _pgspate
    from pgspate._calls import LOAD

    db.execute("create table t (a int primary key, b text)")
    stop, late = _pgspate.Stop(), 0

    def rows():
        nonlocal late
        for n in range(6000):
            yield 0 if n == 1500 else n, "x" * 2000
        while not stop.has_ended:
            time.sleep(0.01)
        for late in range(1, 5000):
            yield -late, ""

    with pytest.raises(pgspate.ServerError, match="duplicate key"):
        LOAD(rows(), {"table": "t", "to": dsn}, stop)
    assert late == 1
