"""Facts about the machine and server that explain the results. No host name is recorded."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from places import REPOSITORY
from server import Server


def collect_facts(server: Server, versions: dict[str, str], scale: float, repeats: int) -> dict:
    """Returns the fields of the first line of a results file."""
    return {
        "kind": "facts",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": measured_commit(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem_type(server.folder),
        "load_average": os.getloadavg()[0],
        "postgresql": server.sql("show server_version")[0][0].split()[0],
        "settings": server.settings,
        "peers": versions,
        "scale": scale,
        "repeats": repeats,
    }


def cpu_model() -> str:
    """Returns the processor's name from /proc/cpuinfo, or else its architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def filesystem_type(folder: Path) -> str:
    """Returns the type of the file system that holds the server's data."""
    command = ["df", "--output=fstype", str(folder)]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()[-1]


def measured_commit() -> str:
    """Returns the commit of the repository, with `-dirty` if the work tree has changes."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
