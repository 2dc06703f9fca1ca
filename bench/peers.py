"""The programs pgspate is compared with: getting them, and saying which are missing and why.

A peer that cannot be had is named with its reason in every report; none is left out in
silence.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from places import BENCH, Places

MODULES = {
    "duckdb": "duckdb_extension_postgres_scanner",
    "adbc": "adbc_driver_postgresql",
    "psycopg": "psycopg",
}


@dataclass
class Peers:
    """Who takes part."""

    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Reason by name."""


def gather(places: Places, install: bool) -> Peers:
    """Find or install all peers; what fails is missing, not fatal."""
    peers = Peers()
    problem = make_venv(places) if install or places.python.exists() else "not installed"
    for name, module in MODULES.items():
        note(peers, name, module_version(places, module), problem)
    note(peers, "psql", program_version([str(places.psql), "--version"]))
    problem = install_pgloader() if install else ""
    note(peers, "pgloader", program_version(["pgloader", "--version"]), problem)
    note(peers, "pgspate", program_version([str(places.pgspate), "--version"]))
    return peers


def note(peers: Peers, name: str, version: str, problem: str = "") -> None:
    """Put a peer on one list or the other."""
    if version:
        peers.versions[name] = version
    else:
        peers.missing[name] = problem or "not found"


def make_venv(places: Places) -> str:
    """Install the pinned packages into the cache; the reason when that fails."""
    stamp = places.cache / "venv" / "requirements.txt"
    wanted = (BENCH / "requirements.txt").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    say("installing the Python peers")
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
    """Install pgloader from the system's packages if we may; the reason when that fails."""
    if shutil.which("pgloader"):
        return ""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "not installed, and only root with apt-get can install it here"
    say("installing pgloader")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "pgloader"]):
        command = ["apt-get", "-qq", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    return "" if done.returncode == 0 else last_line(done.stderr)


def module_version(places: Places, module: str) -> str:
    """Version of an installed package, after importing it; empty when that fails."""
    code = f"import {module}, importlib.metadata as m; print(m.version('{module}'))"
    return program_version([str(places.python), "-c", code])


def program_version(command: list[str]) -> str:
    """The version number in what a program says of itself; empty when it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError:
        return ""
    found = re.search(r"\d+\.\d[\w.~+-]*", done.stdout)
    return found.group() if done.returncode == 0 and found else ""


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it failed without a word"


def say(words: str) -> None:
    """Tell the person who waits."""
    print(words, file=sys.stderr, flush=True)
