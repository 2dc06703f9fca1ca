"""Faults of tasks of Ray. Marker files tell the workers what has happened."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, fields
from pathlib import Path

from pgspate.fleetjob import Ticket
from pgspate.ray import Datasink

# The limit is for hangs only.
SECONDS_MAX = 60


@dataclass(frozen=True)
class FaultyTicket(Ticket):
    """A ticket with which the first attempt of some parts dies, or waits after its seal."""

    fault: str = ""
    parts: tuple[int, ...] = ()
    marks: str = ""

    def write(self, part, data, **options):
        if part not in self.parts or not mark_first(self.marks, f"{part}.begun"):
            return super().write(part, data, **options)
        if self.fault == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        receipt = super().write(part, data, **options)
        mark_first(self.marks, f"{part}.sealed")
        if self.fault == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(20 * SECONDS_MAX):
            if Path(self.marks, "removed").exists():
                break
            time.sleep(0.05)
        return receipt


class FaultySink(Datasink):
    """The sink of the package, with a fault."""

    def __init__(self, table, fault, parts, marks, **options):
        super().__init__(table, **options)
        self._fault = {"fault": fault, "parts": tuple(parts), "marks": str(marks)}

    def on_write_start(self, schema=None):
        super().on_write_start(schema)
        values = {one.name: getattr(self._ticket, one.name) for one in fields(Ticket)}
        self._ticket = FaultyTicket(**values, **self._fault)


def mark_first(folder, name: str) -> bool:
    """Makes a marker file. Returns whether there was none."""
    try:
        os.close(os.open(Path(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
