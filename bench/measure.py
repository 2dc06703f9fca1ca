"""What a load costs: time, CPU on both sides, the clients' memory, WAL.

CPU of the server counts all its processes, also backends that have ended: the postmaster keeps
the sum of its children's CPU.
"""

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.02

Pipeline = list[list[str]]
"""Commands, the output of each being the input of the next."""


@dataclass
class Usage:
    """What some commands used."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    rss_bytes: int = 0
    """Peak resident memory, added up over processes that ran at the same time."""
    failure: str = ""
    """Why a command failed, in its own words; empty when none did."""
    output: str = ""
    """What the last command of the last pipeline wrote to stdout."""


@dataclass
class Child:
    """A process being watched."""

    process: subprocess.Popen
    counts: bool
    """Whether its memory and CPU belong to the contender."""
    ended: float = 0.0
    cpu_s: float = 0.0
    maxrss: int = 0
    sampled: int = 0
    thread: threading.Thread = field(default=None)

    def wait(self) -> None:
        """Wait for its end, and keep what the kernel says it used."""
        _, status, used = os.wait4(self.process.pid, 0)
        self.ended = time.monotonic()
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = used.ru_utime + used.ru_stime
        self.maxrss = used.ru_maxrss * 1024

    def rss_bytes(self, floor: int) -> int:
        """Peak memory of the process, in bytes.

        The kernel's figure starts at the memory of this program, so smaller peaks are sampled.
        """
        return self.maxrss if self.maxrss > floor else self.sampled


def run(
    pipelines: list[Pipeline],
    env: dict[str, str],
    logs: Path,
    timeout_s: float,
    feeders: int = 0,
) -> Usage:
    """Run pipelines side by side to their end and say what they used.

    The first `feeders` commands of each pipeline only bring the data and are not counted.
    """
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    children: list[Child] = []
    log, output = logs / "client.err", logs / "client.out"
    started = time.monotonic()
    try:
        with log.open("w") as err, output.open("w") as out:
            for pipeline in pipelines:
                children += spawn(pipeline, env, out, err, feeders)
        for child in children:
            child.thread = threading.Thread(target=child.wait, daemon=True)
            child.thread.start()
        late = watch(children, started + timeout_s)
    finally:
        kill(children)
    usage = Usage(wall_s=max(child.ended for child in children) - started)
    for child in children:
        if child.counts:
            usage.cpu_s += child.cpu_s
            usage.rss_bytes += child.rss_bytes(floor)
    usage.output = output.read_text(errors="replace")
    if any(child.process.returncode != 0 for child in children):
        words = log.read_text(errors="replace").strip() or usage.output.strip()
        usage.failure = f"no end after {timeout_s:.0f} s" if late else words[-2000:]
        usage.failure = usage.failure or "it failed without a word"
    return usage


def spawn(pipeline: Pipeline, env: dict[str, str], out, err, feeders: int) -> list[Child]:
    """Start the commands of one pipeline."""
    children = []
    previous = subprocess.DEVNULL
    for at, command in enumerate(pipeline):
        last = at == len(pipeline) - 1
        process = subprocess.Popen(
            command, stdin=previous, stdout=out if last else subprocess.PIPE, stderr=err, env=env
        )
        if previous is not subprocess.DEVNULL:
            previous.close()
        previous = process.stdout
        children.append(Child(process, counts=at >= feeders))
    return children


def watch(children: list[Child], deadline: float) -> bool:
    """Sample memory until all have ended; true when they had to be killed."""
    late = False
    while running := [child for child in children if child.thread.is_alive()]:
        for child in running:
            child.sampled = max(child.sampled, high_water(child.process.pid))
        if time.monotonic() > deadline:
            late = True
            kill(running)
        # How long we sleep does not show in the result: each thread notes its own end.
        time.sleep(SAMPLE_SECONDS)
    return late


def kill(children: list[Child]) -> None:
    """End those that still run. Popen's own `kill` would reap them under our threads."""
    for child in children:
        if child.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid, signal.SIGKILL)


def high_water(pid: int) -> int:
    """The most memory that a running process has had resident, in bytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def server_cpu(postmaster: int) -> float:
    """Seconds of CPU that a server has used since it started, in all its processes."""
    while True:
        before = stat(postmaster)
        living = [stat(pid) for pid in children_of(postmaster)]
        # A child reaped meanwhile would count twice, or not at all: look again.
        if stat(postmaster)[2:] == before[2:]:
            return (sum(before) + sum(sum(times[:2]) for times in living if times)) / TICKS


def settle(postmaster: int, processes: int, timeout_s: float = 10.0) -> None:
    """Wait until the server is down to this many processes: the backends have gone."""
    deadline = time.monotonic() + timeout_s
    while len(children_of(postmaster)) > processes and time.monotonic() < deadline:
        time.sleep(0.01)


def children_of(parent: int) -> list[int]:
    """Process ids of the direct children."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields and int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def stat(pid: int) -> tuple[int, int, int, int] | None:
    """User and system ticks: of the process, then of its ended children."""
    fields = stat_fields(pid)
    return tuple(int(value) for value in fields[11:15]) if fields else None


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
