"""Runs commands, and measures their wall time, CPU time and memory, and the server's CPU time.

The server's CPU time is that of all its processes. It includes backends that have exited: the
kernel adds their CPU time to the postmaster's counters.
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

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SAMPLE_INTERVAL_S = 0.02

Pipeline = list[list[str]]
"""Commands of a shell pipeline: each command reads the output of the command before it."""


@dataclass
class ResourceUsage:
    """Time, CPU and memory that the commands used, and how they ended."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    rss_bytes: int = 0
    """Sum of the peak resident memory of all counted processes."""
    failure: str = ""
    """Error message of a failed command, or an empty string."""
    output: str = ""
    """Standard output of the last command of every pipeline."""


@dataclass
class MeasuredProcess:
    """A started command, and the measurements of its process."""

    popen: subprocess.Popen
    is_counted: bool
    """Whether the contender's memory and CPU include this process."""
    ended_at: float = 0.0
    cpu_s: float = 0.0
    kernel_peak_bytes: int = 0
    sampled_peak_bytes: int = 0
    thread: threading.Thread = field(default=None)

    def wait(self) -> None:
        """Waits until the process ends, and records the CPU time and memory that it used."""
        _, status, rusage = os.wait4(self.popen.pid, 0)
        self.ended_at = time.monotonic()
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = rusage.ru_utime + rusage.ru_stime
        self.kernel_peak_bytes = rusage.ru_maxrss * 1024

    def rss_bytes(self, own_peak_bytes: int) -> int:
        """Returns the peak resident memory of the process, in bytes.

        The kernel's figure of a forked process is at least `own_peak_bytes`, the peak of the
        benchmark's own process. If the figure is not higher, the sampled peak is returned.
        """
        if self.kernel_peak_bytes > own_peak_bytes:
            return self.kernel_peak_bytes
        return self.sampled_peak_bytes


def run_pipelines(
    pipelines: list[Pipeline],
    env: dict[str, str],
    log_folder: Path,
    timeout_s: float,
    feeder_count: int = 0,
) -> ResourceUsage:
    """Runs pipelines at the same time until all end, and returns what they used.

    The first `feeder_count` commands of each pipeline only supply the data. Their CPU and memory
    are not counted.
    """
    own_peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    processes: list[MeasuredProcess] = []
    log, output = log_folder / "client.err", log_folder / "client.out"
    start_time = time.monotonic()
    try:
        with log.open("w") as err, output.open("w") as out:
            for pipeline in pipelines:
                processes += start_pipeline(pipeline, env, out, err, feeder_count)
        for process in processes:
            process.thread = threading.Thread(target=process.wait, daemon=True)
            process.thread.start()
        timed_out = wait_and_sample_memory(processes, start_time + timeout_s)
    finally:
        kill_running(processes)
    usage = ResourceUsage(wall_s=max(process.ended_at for process in processes) - start_time)
    for process in processes:
        if process.is_counted:
            usage.cpu_s += process.cpu_s
            usage.rss_bytes += process.rss_bytes(own_peak_bytes)
    usage.output = output.read_text(errors="replace")
    if any(process.popen.returncode != 0 for process in processes):
        error_output = log.read_text(errors="replace").strip() or usage.output.strip()
        usage.failure = f"timed out after {timeout_s:.0f} s" if timed_out else error_output[-2000:]
        usage.failure = usage.failure or "the command failed without an error message"
    return usage


def start_pipeline(
    pipeline: Pipeline, env: dict[str, str], out, err, feeder_count: int
) -> list[MeasuredProcess]:
    """Starts the commands of one pipeline."""
    processes = []
    previous_stdout = subprocess.DEVNULL
    for index, command in enumerate(pipeline):
        is_last = index == len(pipeline) - 1
        popen = subprocess.Popen(
            command,
            stdin=previous_stdout,
            stdout=out if is_last else subprocess.PIPE,
            stderr=err,
            env=env,
        )
        if previous_stdout is not subprocess.DEVNULL:
            previous_stdout.close()
        previous_stdout = popen.stdout
        processes.append(MeasuredProcess(popen, is_counted=index >= feeder_count))
    return processes


def wait_and_sample_memory(processes: list[MeasuredProcess], deadline: float) -> bool:
    """Samples the processes' memory until all have ended; returns whether the deadline passed.

    At the deadline, the processes that still run are killed.
    """
    timed_out = False
    while running := [process for process in processes if process.thread.is_alive()]:
        for process in running:
            process.sampled_peak_bytes = max(
                process.sampled_peak_bytes, peak_rss_bytes(process.popen.pid)
            )
        if time.monotonic() > deadline:
            timed_out = True
            kill_running(running)
        # The sleep does not distort the wall time: each thread records when its process ended.
        time.sleep(SAMPLE_INTERVAL_S)
    return timed_out


def kill_running(processes: list[MeasuredProcess]) -> None:
    """Kills the processes that still run.

    `Popen.kill` is not used: it may reap the process, and then `os.wait4` of the thread in
    `wait` would fail.
    """
    for process in processes:
        if process.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.popen.pid, signal.SIGKILL)


def peak_rss_bytes(pid: int) -> int:
    """Returns the peak resident memory of a running process in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def server_cpu_s(postmaster: int) -> float:
    """Returns the CPU seconds that all processes of a server have used since it started."""
    while True:
        before = cpu_ticks(postmaster)
        living = [cpu_ticks(pid) for pid in child_pids(postmaster)]
        # A child that ended meanwhile would be counted twice or not at all, so read again.
        if cpu_ticks(postmaster)[2:] == before[2:]:
            ticks = sum(before) + sum(sum(times[:2]) for times in living if times)
            return ticks / TICKS_PER_SECOND


def wait_for_process_count(postmaster: int, process_count: int, timeout_s: float = 10.0) -> None:
    """Waits until the postmaster has at most `process_count` children, or until the timeout."""
    deadline = time.monotonic() + timeout_s
    while len(child_pids(postmaster)) > process_count and time.monotonic() < deadline:
        time.sleep(0.01)


def child_pids(parent: int) -> list[int]:
    """Returns the process ids of the direct children of `parent`."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = proc_stat_fields(int(entry.name))
            if fields and int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def cpu_ticks(pid: int) -> tuple[int, int, int, int] | None:
    """Returns user and system ticks: of the process, then of its ended children.

    Returns None if the process has ended.
    """
    fields = proc_stat_fields(pid)
    return tuple(int(value) for value in fields[11:15]) if fields else None


def proc_stat_fields(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat after the process name; None if the process has ended.

    The name is in parentheses and may itself contain spaces and parentheses.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
