"""Faults of attempts. Workers import this module, and find in marker files what has happened."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, fields
from pathlib import Path

from pgspate import _engine
from pgspate.fleetjob import Ticket

# The limit is for hangs only.
SECONDS_MAX = 60


@dataclass(frozen=True)
class FaultyTicket(Ticket):
    """A ticket whose first attempts of some parts meet a fault.

    A fault is what happens and when: `raise before`, `exit in`, `worker after` and so on. Or it is
    the order in which two attempts seal.
    """

    fault: str = ""
    parts: tuple[int, ...] = ()
    marks: str = ""

    @classmethod
    def of(cls, ticket: Ticket, fault: str, parts: tuple[int, ...], marks: str) -> FaultyTicket:
        values = {one.name: getattr(ticket, one.name) for one in fields(Ticket)}
        return cls(**values, fault=fault, parts=parts, marks=marks)

    def write(self, part, data, **options):
        if part in self.parts:
            if self.fault.startswith("loser"):
                return self._race(part, data, options)
            # A stage that Spark repeats has an attempt 0 again, so a marker tells the first one.
            if mark_first(self.marks, f"{part}.0"):
                return self._fail(part, data, options)
        return super().write(part, data, **options)

    def _fail(self, part, data, options):
        what, _, when = self.fault.partition(" ")
        if when == "before":
            end_task(what, self.marks)
        if when in ("in", "last"):
            last = None if when == "last" else 1
            data = data.from_batches(data.schema, self._batches(data, what, last))
        receipt = super().write(part, data, **options)
        mark_first(self.marks, f"{part}.sealed")
        end_task(what, self.marks)
        return receipt

    def _batches(self, data, what, last):
        for nth, batch in enumerate(data):
            yield batch
            if nth == last:
                end_task(what, self.marks)
        if last is None:
            end_task(what, self.marks)

    def _race(self, part, data, options):
        """Lets both attempts seal, in the order of the fault. Attempt 0 never returns."""
        from pyspark import TaskContext

        attempt = TaskContext.get().attemptNumber()
        is_first = (attempt == 0) == (self.fault == "loser seals first")
        if not is_first:
            wait_for(self.marks, f"{part}.{1 - attempt}")
        receipt = super().write(part, data, **options)
        mark_first(self.marks, f"{part}.{attempt}")
        wait_for(self.marks, f"{part}.{1 - attempt}")
        if attempt == 0:
            # Spark ends the process when the other attempt has returned.
            time.sleep(SECONDS_MAX)
        return receipt


def with_faults(monkeypatch, fault: str, parts, marks) -> None:
    """Lets the jobs of engines have faulty tickets."""
    make = _engine.begin_write
    monkeypatch.setattr(_engine, "begin_write", lambda *arguments, **options: FaultyTicket.of(
        make(*arguments, **options), fault, tuple(parts), str(marks)))


def mark_first(folder, name: str) -> bool:
    """Makes a marker file. Returns whether there was none."""
    try:
        os.close(os.open(Path(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def wait_for(folder, name: str) -> None:
    """Waits for a marker file."""
    for _ in range(20 * SECONDS_MAX):
        if Path(folder, name).exists():
            return
        time.sleep(0.05)
    raise TimeoutError(f"there is no {name}")


def end_task(what: str, marks: str) -> None:
    """Ends a task by an exception, or by the end of its process or of its executor; or delays it.

    A task that stops continues after the signal CONT. A task that waits continues when a node is
    removed.
    """
    if what == "raise":
        raise RuntimeError("a fault of the test")
    if what == "exit":
        os._exit(1)
    if what == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "executor":
        os.kill(_executor(), signal.SIGKILL)
        time.sleep(SECONDS_MAX)
    if what == "stop":
        # The end of the other processes does not end this one.
        os.setpgid(0, 0)
        Path(marks, "stopping").write_text(str(os.getpid()))
        Path(marks, "stopping").rename(Path(marks, "stopped"))
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if what == "wait":
        wait_for(marks, "removed")
        return
    raise ValueError(what)


def _executor() -> int:
    """Returns the process of the executor whose task this is."""
    process = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process
