"""A PostgreSQL server for one run, in a temporary folder that is removed afterwards.

If this program runs as root, the server runs as an unprivileged user. The server listens on a Unix
socket. `stop` ends the server; if this program is killed, the kernel signals the server to end.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from places import Places

USER = "bench"
DATABASE = "bench"
PORT = "5432"
LOOPBACK = "127.0.0.1"
PREFIX = "pgspate-bench-"

# Settings of a server tuned for loading. None of them risks data: fsync, full_page_writes
# and synchronous_commit keep their defaults. Autovacuum is off, because it would slow some
# trials and not others. For the same reason, min_wal_size keeps recycled WAL files.
SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "min_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "fsync": "on",
    "autovacuum": "off",
}


def free_port() -> str:
    """Returns a free TCP port of the loopback address."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return str(probe.getsockname()[1])


class Server:
    """A server that runs within a `with` block.

    With `listens_on_tcp`, the server also listens on the loopback address.
    """

    def __init__(self, places: Places, listens_on_tcp: bool = False, **settings: str):
        self.places = places
        self.listen_addresses = LOOPBACK if listens_on_tcp else ""
        self.port = free_port() if listens_on_tcp else PORT
        self.settings = SETTINGS | settings
        remove_stale_folders()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> "Server":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Makes the data folder, starts the server and waits until it answers."""
        shutil.chown(self.folder, *unprivileged_owner())
        data, log = self.folder / "data", self.folder / "initdb.log"
        initdb = [self.places.pg_bin / "initdb", "--pgdata", data, "--username", USER]
        initdb += ["--auth", "trust", "--no-locale", "--encoding", "UTF8"]
        with log.open("w") as out:
            done = subprocess.run(owner_prefix() + initdb, stdout=out, stderr=out, cwd="/")
        if done.returncode != 0:
            raise SystemExit(f"error: could not make a database cluster\n{log.read_text()}")
        command = [self.places.pg_bin / "postgres", "-D", data, "-k", self.folder]
        command += ["-p", self.port, "-c", f"listen_addresses={self.listen_addresses}"]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "server.log").open("w") as out:
            # A session of its own, so that Ctrl-C reaches only this program.
            self.process = subprocess.Popen(
                owner_prefix(ends_with_parent=True) + command,
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,
            )
        self.wait_until_ready()
        self.sql(f"create database {DATABASE}", database="postgres")

    def wait_until_ready(self) -> None:
        """Waits until the server accepts connections.

        Raises SystemExit if the server exits or does not accept one within 60 seconds.
        """
        deadline = time.monotonic() + 60
        command = [self.places.psql, "-XAtqc", "select 1", "postgres"]
        while time.monotonic() < deadline and self.process.poll() is None:
            if subprocess.run(command, env=self.environment(), capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        log = (self.folder / "server.log").read_text()
        raise SystemExit(f"error: could not start PostgreSQL\n{log}")

    def stop(self) -> None:
        """Stops the server without a checkpoint, and removes its folder with all data."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """Returns this process's environment, with libpq's variables set for this server."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        env |= {"PGHOST": str(self.folder), "PGPORT": self.port, "PGUSER": USER}
        return env | {"PGDATABASE": DATABASE}

    def conninfo(self) -> str:
        """Returns the connection string of libpq."""
        return f"host={self.folder} port={self.port} user={USER} dbname={DATABASE}"

    def pgloader_url(self) -> str:
        """Returns the connection URL as pgloader spells a Unix socket."""
        return f"postgresql://{USER}@unix:{self.folder}:{self.port}/{DATABASE}"

    def sql(self, statement: str, database: str = DATABASE) -> list[list[str]]:
        """Runs statements, each in its own transaction, and returns the rows of all of them."""
        command = [self.places.psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database]
        done = subprocess.run(
            command, input=statement, env=self.environment(), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"error: {done.stderr.strip()}")
        return [line.split("|") for line in done.stdout.splitlines()]

    @property
    def pid(self) -> int:
        """Returns the process id of the postmaster."""
        return self.process.pid


def remove_stale_folders() -> None:
    """Removes the folders of earlier runs that were killed: their process no longer exists."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def unprivileged_owner() -> tuple[int, int]:
    """Returns user and group id for the server: those of this process, unless it runs as root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return user.pw_uid, user.pw_gid
    return 65534, 65534


def owner_prefix(ends_with_parent: bool = False) -> list[str]:
    """Returns a command prefix that runs a command as the server's user.

    With `ends_with_parent`, the kernel also signals the command when this process ends.
    """
    if not shutil.which("setpriv"):
        if os.geteuid() == 0:
            raise SystemExit("error: could not find setpriv, which root needs to run PostgreSQL")
        return []
    command = ["setpriv"]
    if os.geteuid() == 0:
        user, group = unprivileged_owner()
        command += [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    if ends_with_parent:
        command += ["--pdeathsig", "QUIT"]
    return command + ["--"] if len(command) > 1 else []
