"""Jobs of engines over PgBouncer: session pooling works, and transaction pooling is refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import pgspate
import pgspate.spark
from conftest import stages_left, wait_until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed")


@pytest.fixture(params=["session", "transaction"])
def pooler(request, dsn, db, tmp_path) -> Iterator[tuple[str, str]]:
    """Yields the pooling mode, and the connection string of a PgBouncer with three sessions."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path / "pooler"
    folder.mkdir()
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n{given['dbname']} = host={given['host']} port={given.get('port', 5432)} "
        f"user={given['user']} password='{db.info.password}'\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {request.param}\ndefault_pool_size = 3\n")
    # PgBouncer refuses to run as root. The owner of the server's socket can open it.
    owner = Path(given["host"]).stat().st_uid if given["host"].startswith("/") else None
    for path in (folder, *folder.iterdir()) if os.getuid() == 0 else ():
        os.chown(path, owner if owner is not None else -1, -1)
    with (folder / "pgbouncer.ini").open() as config:
        process = subprocess.Popen(
            [PROGRAM, f"/dev/fd/{config.fileno()}"], pass_fds=[config.fileno()],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            user=owner if os.getuid() == 0 else None)
    pooled = psycopg.conninfo.make_conninfo(
        host="127.0.0.1", port=port, user=given["user"], dbname=given["dbname"])

    def answers() -> bool:
        assert process.poll() is None, "PgBouncer has ended"
        with suppress(psycopg.OperationalError), psycopg.connect(pooled):
            return True
        return False

    try:
        wait_until(answers, "PgBouncer does not answer")
        yield request.param, pooled
    finally:
        process.kill()
        process.wait(60)


def test_a_frame_is_written_by_session_pooling_alone(spark, db, pooler):
    """More tasks than sessions of the pooler write, but not at the same time."""
    mode, pooled = pooler
    db.execute("create table t (id bigint)")
    df = spark.range(0, 8000, 1, 8)
    if mode == "transaction":
        with pytest.raises(pgspate.UsageError, match="gives each transaction another session"):
            pgspate.spark.load(df, "t", to=pooled)
        assert db.execute("select to_regnamespace('pgspate')").fetchone() == (None,)
        expected = 0
    else:
        report = pgspate.spark.load(df, "t", to=pooled, connections=2)
        assert (report.rows_written, report.parts) == (8000, 8)
        expected = 8000
    assert db.execute("select count(*), count(distinct id) from t").fetchone() == (
        expected, expected)
    assert stages_left(db) == []
