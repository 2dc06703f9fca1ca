"""Finds or installs the programs (peers) that pgspate is compared with.

Every report lists each peer that is missing, with the reason.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from places import BENCH, Places

MODULE_BY_PEER = {
    "duckdb": "duckdb_extension_postgres_scanner",
    "adbc": "adbc_driver_postgresql",
    "psycopg": "psycopg",
}


@dataclass
class PeerInventory:
    """The versions of the peers that can run, and the peers that are missing."""

    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Reason by name of peer."""


def find_or_install_peers(places: Places, install: bool) -> PeerInventory:
    """Finds all peers; with `install`, first installs those that can be installed.

    A peer that cannot be installed is recorded as missing.
    """
    peers = PeerInventory()
    problem = install_python_peers(places) if install or places.python.exists() else "not installed"
    for name, module in MODULE_BY_PEER.items():
        record_peer(peers, name, module_version(places, module), problem)
    record_peer(peers, "psql", program_version([str(places.psql), "--version"]))
    problem = install_pgloader() if install else ""
    record_peer(peers, "pgloader", program_version(["pgloader", "--version"]), problem)
    record_peer(peers, "pgspate", program_version([str(places.pgspate), "--version"]))
    return peers


def record_peer(peers: PeerInventory, name: str, version: str, problem: str = "") -> None:
    """Records the peer's version. If `version` is empty, records the peer as missing."""
    if version:
        peers.versions[name] = version
    else:
        peers.missing[name] = problem or "not found"


def install_python_peers(places: Places) -> str:
    """Installs the pinned packages into the cache; returns an error message or an empty string."""
    stamp = places.cache / "venv" / "requirements.txt"
    wanted = (BENCH / "requirements.txt").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    print_progress("installing the Python peers")
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(places.cache / "venv")],
        [str(places.python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        + ["install", "--requirement", str(BENCH / "requirements.txt")],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return last_line(done.stderr)
    stamp.write_text(wanted)
    return ""


def install_pgloader() -> str:
    """Installs pgloader with apt-get; returns an error message or an empty string."""
    if shutil.which("pgloader"):
        return ""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "not installed; installing it needs root and apt-get"
    print_progress("installing pgloader")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "pgloader"]):
        command = ["apt-get", "-qq", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    return "" if done.returncode == 0 else last_line(done.stderr)


def module_version(places: Places, module: str) -> str:
    """Returns the version of a package that can be imported, or an empty string."""
    code = f"import {module}, importlib.metadata as m; print(m.version('{module}'))"
    return program_version([str(places.python), "-c", code])


def program_version(command: list[str]) -> str:
    """Returns the first version number in a command's output; empty if the command fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError:
        return ""
    found = re.search(r"\d+\.\d[\w.~+-]*", done.stdout)
    return found.group() if done.returncode == 0 and found else ""


def last_line(text: str) -> str:
    """Returns the last line that is not blank."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "the command failed without an error message"


def print_progress(message: str) -> None:
    """Prints a progress message to stderr."""
    print(message, file=sys.stderr, flush=True)
