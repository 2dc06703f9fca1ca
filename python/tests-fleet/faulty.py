"""Faults of attempts. Executors import this module, and find in marker files what has happened."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, fields
from pathlib import Path

from pyspark import TaskContext

from pgspate._spark_source import DefaultSource
from pgspate.fleetjob import Ticket

# The limit is for hangs only.
SECONDS_MAX = 60


@dataclass(frozen=True)
class FaultyTicket(Ticket):
    """A ticket whose first attempts of some parts meet a fault."""

    fault: str = ""
    parts: tuple[int, ...] = ()
    marks: str = ""

    @classmethod
    def of(cls, ticket: Ticket, fault: str, parts: tuple[int, ...], marks: str) -> FaultyTicket:
        values = {one.name: getattr(ticket, one.name) for one in fields(Ticket)}
        return cls(**values, fault=fault, parts=parts, marks=marks)

    def write(self, part, data, **options):
        attempt = TaskContext.get().attemptNumber()
        if part in self.parts:
            if self.fault in ("loser seals first", "loser seals last"):
                return self._race(part, attempt, data, options)
            # A stage that Spark repeats has an attempt 0 again.
            if attempt == 0 and not Path(self.marks, f"{part}.0").exists():
                return self._fail(part, data, options)
        return super().write(part, data, **options)

    def _fail(self, part, data, options):
        what, _, when = self.fault.partition(" ")
        if when == "before":
            self._mark(part, 0)
            end_task(what)
        if when == "in":
            data = data.from_batches(data.schema, self._batches(part, data, what))
        receipt = super().write(part, data, **options)
        self._mark(part, 0)
        end_task(what)
        return receipt

    def _batches(self, part, data, what):
        for nth, batch in enumerate(data):
            yield batch
            if nth == 1:
                self._mark(part, 0)
                end_task(what)

    def _race(self, part, attempt, data, options):
        """Lets both attempts seal, in the order of the fault. Attempt 0 never returns."""
        is_first = (attempt == 0) == (self.fault == "loser seals first")
        if not is_first:
            self._wait(part, 1 - attempt)
        receipt = super().write(part, data, **options)
        self._mark(part, attempt)
        self._wait(part, 1 - attempt)
        if attempt == 0:
            # Spark ends the process when the other attempt has returned.
            time.sleep(SECONDS_MAX)
        return receipt

    def _mark(self, part, attempt):
        Path(self.marks, f"{part}.{attempt}").touch()

    def _wait(self, part, attempt):
        for _ in range(20 * SECONDS_MAX):
            if Path(self.marks, f"{part}.{attempt}").exists():
                return
            time.sleep(0.05)
        raise TimeoutError("the other attempt has not sealed")


def end_task(what: str) -> None:
    """Ends a task by an exception, by the end of its process, or by the end of its executor."""
    if what == "raise":
        raise RuntimeError("a fault of the test")
    if what == "exit":
        os._exit(1)
    if what == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "executor":
        os.kill(_executor(), signal.SIGKILL)
        time.sleep(SECONDS_MAX)
    raise ValueError(what)


def _executor() -> int:
    """Returns the process of the executor whose task this is."""
    process = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


class FaultySource(DefaultSource):
    """The data source of the package, with a fault that its options name."""

    @classmethod
    def name(cls):
        return "faulty"

    def writer(self, schema, overwrite):
        fault, marks = self.options.pop("fault"), self.options.pop("marks")
        parts = tuple(map(int, self.options.pop("parts").split(",")))
        writer = super().writer(schema, overwrite)
        writer.ticket = FaultyTicket.of(writer.ticket, fault, parts, marks)
        return writer
