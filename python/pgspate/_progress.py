"""Shows the progress of a call: in a terminal, in a notebook, or through a function."""

from __future__ import annotations

import html
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._errors import UsageError
from ._report import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """The progress of a call: the argument of the function that you pass as ``progress=``.

    Attributes:
        rows: Rows sent to the server; for `apply`, events committed.
        bytes: Bytes of the input read, after decompression; for `apply`, bytes of the events
            committed.
        rejected: Rows rejected; for `apply`, events written to ``pgspate.dead_letter``.
        lanes: Number of lanes (connections that write rows) that were started.
        waiting: What the call mostly waits for: ``source``, ``encode``, ``network``, ``server
            (...)`` with a wait event, or ``a lock of session ...``. None if unknown.
        phase: Work on the table while no rows are written, such as building an index, or None.
        stored_bytes: Bytes of the files read, as stored (perhaps compressed).
        total_bytes: Size of all files as stored, in bytes, if known.
        total_rows: Number of rows of the data, if known.

    Example:
        >>> import pgspate
        >>> seen = []
        >>> with pgspate.server(temporary=True) as server:
        ...     rows = ({"a": n} for n in range(1000))
        ...     report = pgspate.load(rows, "t", create=True, to=server, progress=seen.append)
        >>> all(isinstance(progress.rows, int) for progress in seen)
        True
    """

    rows: int
    bytes: int
    rejected: int
    lanes: int
    waiting: str | None
    phase: str | None
    stored_bytes: int
    total_bytes: int | None
    total_rows: int | None

    @property
    def share(self) -> float | None:
        """The share of the input that is done, from 0 to 1, if known."""
        if self.total_rows:
            return min(self.rows / self.total_rows, 1.0)
        if self.total_bytes:
            return min(self.stored_bytes / self.total_bytes, 1.0)
        return None


ProgressCallback = Callable[..., object]


@contextmanager
def progress_callback(
    progress: bool | Callable[[Progress], object], activity: str, total_rows: int | None
) -> Iterator[ProgressCallback | None]:
    """Yields the function that the engine calls with its progress, or None to show no progress."""
    if progress is False or progress is None:
        yield None
        return
    display: _TerminalLine | _NotebookBar | None = None
    show: Callable[[Progress], object]
    if callable(progress):
        show = progress
    elif progress is not True:
        message = f"`progress=` is of class {type(progress).__name__}"
        raise UsageError(message, hint="Give True, or a function of a `Progress`.")
    elif _in_notebook():
        show = display = _NotebookBar(activity)
    elif sys.stderr.isatty():
        show = display = _TerminalLine(activity)
    else:
        yield None
        return

    def show_progress(
        rows: int,
        bytes: int,
        rejected: int,
        lanes: int,
        waiting: str | None,
        phase: str | None,
        stored_bytes: int,
        total_bytes: int | None,
    ) -> None:
        counters = (rows, bytes, rejected, lanes, waiting, phase, stored_bytes, total_bytes)
        show(Progress(*counters, total_rows))

    is_done = False
    try:
        yield show_progress
        is_done = True
    finally:
        if display is not None:
            display.close(is_done)


def _in_notebook() -> bool:
    """Returns whether the program runs in a notebook. Does not import IPython for that."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class _ProgressText:
    """Formats a call's progress as a line of text."""

    def __init__(self, activity: str) -> None:
        self.activity = activity
        self.started = time.monotonic()

    def format(self, now: Progress, share: float | None = None) -> str:
        """Returns the line: what matters most comes first."""
        parts = [self.activity, counted(now.rows, "row")]
        if now.waiting and now.waiting.startswith("a lock of "):
            # Rates and times have no meaning now.
            return "  ".join([*parts, f"waits for {now.waiting}"])
        if now.phase:
            return "  ".join([*parts, now.phase])
        seconds = max(time.monotonic() - self.started, 1e-3)
        parts.append(f"{now.rows / seconds:,.0f} rows/s")
        if share is not None:
            parts.append(f"{share:.0%}")
        if now.lanes:
            parts.append(counted(now.lanes, "lane"))
        if now.waiting:
            parts.append(f"waiting on: {now.waiting}")
        return "  ".join(parts)


class _TerminalLine(_ProgressText):
    """A line on a terminal, which is overwritten with each progress."""

    def __call__(self, now: Progress) -> None:
        # A longer line would continue on the next one, where it cannot be overwritten.
        text = self.format(now, now.share)[:_terminal_width() - 1]
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def close(self, is_done: bool) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _terminal_width() -> int:
    """Returns the number of columns of the terminal. The terminal's window may be resized."""
    with suppress(OSError, ValueError):
        # The standard output, at which `shutil` looks, may be a file.
        if columns := os.get_terminal_size(sys.stderr.fileno()).columns:
            return columns
    return shutil.get_terminal_size().columns


class _NotebookBar(_ProgressText):
    """A progress bar in a notebook."""

    def __init__(self, activity: str) -> None:
        super().__init__(activity)
        self.handle: Any = None
        self.last: Progress | None = None

    def __call__(self, now: Progress) -> None:
        self.last = now
        self.draw(now.share, self.format(now))

    def draw(self, share: float | None, text: str) -> None:
        display = sys.modules["IPython"].display
        value = "" if share is None else f" value='{share:.4f}'"
        page = display.HTML(f"<progress{value}></progress> {html.escape(text)}")
        if self.handle is None:
            self.handle = display.display(page, display_id=True)
        else:
            self.handle.update(page)

    def close(self, is_done: bool) -> None:
        """Draws the bar at the end of the call: full, or at the share where the call stopped."""
        if self.last is not None:
            seconds = time.monotonic() - self.started
            end = "done" if is_done else "stopped"
            self.draw(1.0 if is_done else self.last.share or 0.0,
                      f"{self.activity}  {end} after {seconds:.1f} s")
