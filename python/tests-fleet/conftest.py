"""Fixtures: those of the package's tests, and Spark and Ray with several processes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# What executors and workers import: the package, and the faults of these tests.
PYTHONPATH = f"{HERE.parent}{os.pathsep}{HERE}"

# A variable by which processes of this run are known.
RUN = "PGSPATE_TEST_FLEET_RUN"

SPARK_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # Speculates tasks that wait, and few that are only slow.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "3s",
    "spark.speculation.interval": "200ms",
    # Rows of a lost executor are asked for once more, and not for 15 seconds.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    # An executor that is killed is replaced.
    "spark.deploy.maxExecutorRetries": "-1",
}

_spec = importlib.util.spec_from_file_location(
    "package_conftest", HERE.parent / "tests/conftest.py")
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
no_default_server, server, dsn, db = (
    _shared.no_default_server, _shared.server, _shared.dsn, _shared.db)


def processes_left() -> list[str]:
    """Returns the command lines of processes that this run has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if f"{RUN}={os.getpid()}".encode() in variables and int(folder.name) != os.getpid():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def wait_until(is_true, what: str, seconds: float = 60) -> None:
    """Waits for a condition, and fails if it does not come true. The limit is for hangs only."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def stages_left(db) -> list[str]:
    """Returns the stages that jobs have left."""
    query = ("select oid::regclass::text from pg_class where relkind in ('r', 'p') "
             "and relname like 'stage%'")
    return [name for name, in db.execute(query)]


def others(db) -> list[tuple]:
    """Returns what other sessions of the test's database do."""
    return db.execute("select query from pg_stat_activity where datname = current_database() "
                      "and pid <> pg_backend_pid() and backend_type = 'client backend'").fetchall()


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Sets variables for the child processes of Spark and Ray, and checks that none is left."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_HOSTNAME", "localhost")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # A socket's path is short, so pytest's folder is too long.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray"))
        patch.setenv("RAY_TMPDIR", folder)
        patch.syspath_prepend(str(HERE))
        patch.setenv(RUN, str(os.getpid()))
        yield
        with suppress(AssertionError):
            wait_until(lambda: not processes_left(), "processes are left")
        assert processes_left() == []


@pytest.fixture(scope="session")
def spark_master(environment, tmp_path_factory) -> Iterator[str]:
    """Yields the URL of a cluster with two executors of one core.

    Spark speculates a task only on another host. So each worker has an address of its own.
    """
    import pyspark

    folder = tmp_path_factory.mktemp("spark")
    program = Path(pyspark.__file__).parent / "bin/spark-class"
    running = []

    def start(name: str, host: str, *arguments: str) -> Path:
        log = folder / f"{name.rsplit('.', 1)[1]}-{host}.log"
        with log.open("w") as output:
            running.append(subprocess.Popen(
                [program, f"org.apache.spark.deploy.{name}", "--host", host, *arguments],
                stdout=output, stderr=output, env={**os.environ, "SPARK_LOCAL_IP": host}))
        return log

    try:
        log = start("master.Master", "127.0.0.1", "--port", "0", "--webui-port", "0")
        found = re.compile(r"Starting Spark master at (spark://\S+)")
        wait_until(lambda: found.search(log.read_text()), "the master does not start")
        master = found.search(log.read_text())[1]
        for nth in (1, 2):
            start("worker.Worker", f"127.0.0.{nth}", "--cores", "1", "--memory", "1024M",
                  "--webui-port", "0", "--work-dir", str(folder / f"work-{nth}"), master)
        yield master
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="session")
def spark(spark_master) -> Iterator[object]:
    """Yields a session on the cluster, which tries again and speculates."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(spark_master)
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    if jar := os.environ.get("PGSPATE_TEST_JDBC"):
        builder = builder.config("spark.jars", jar)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    stop_spark(session)


def stop_spark(session) -> None:
    """Stops a session and its JVM, which otherwise ends with this process."""
    from pyspark import SparkContext

    session.stop()
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
