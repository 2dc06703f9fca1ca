"""Shows the progress of a call: in a terminal, in a notebook, or through a function."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """The progress of a call. A ``progress=`` function gets one ten times a second.

    Attributes:
        rows: Rows sent to the server; for `apply`, events committed.
        bytes: Decompressed bytes of the input read.
        rejected: Rows or events rejected.
        lanes: Connections that work.
        waiting: What most lanes wait for: ``source``, ``encode``, ``network``, ``server (...)``.
        phase: Work on the table while no rows are written, such as building an index.
        stored_bytes: Stored bytes of the files read.
        total_bytes: Stored bytes of all files, if known.
        total_rows: Number of all rows, if known.

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
def shown(
    progress: bool | Callable[[Progress], object], doing: str, total: int | None
) -> Iterator[ProgressCallback | None]:
    """Yields the function that the engine calls with its progress, or None if nothing shows it."""
    if progress is False:
        yield None
        return
    display: _Line | _Bar | None = None
    show: Callable[[Progress], object]
    if callable(progress):
        show = progress
    elif _in_notebook():
        show = display = _Bar(doing)
    elif sys.stderr.isatty():
        show = display = _Line(doing)
    else:
        yield None
        return

    def tell(
        rows: int,
        bytes: int,
        rejected: int,
        lanes: int,
        waiting: str | None,
        phase: str | None,
        stored_bytes: int,
        total_bytes: int | None,
    ) -> None:
        facts = (rows, bytes, rejected, lanes, waiting, phase, stored_bytes, total_bytes)
        show(Progress(*facts, total))

    is_done = False
    try:
        yield tell
        is_done = True
    finally:
        if display is not None:
            display.close(is_done)


def _in_notebook() -> bool:
    """Returns whether this is a notebook. Does not import IPython if nothing else has."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class _RateText:
    def __init__(self, doing: str) -> None:
        self.doing = doing
        self.started = time.monotonic()

    def words(self, now: Progress) -> str:
        if now.phase:
            return f"{self.doing}  {now.rows:,} rows  {now.phase}"
        seconds = max(time.monotonic() - self.started, 1e-3)
        text = f"{self.doing}  {now.rows:,} rows  {now.rows / seconds:,.0f} rows/s"
        if now.lanes:
            text += f"  {now.lanes} lanes"
        if now.waiting:
            text += f"  waiting on: {now.waiting}"
        return text


class _Line(_RateText):
    """One line on a terminal, which is redrawn."""

    def __call__(self, now: Progress) -> None:
        share = now.share
        text = self.words(now) + (f"  {share:.0%}" if share is not None else "")
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def close(self, is_done: bool) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class _Bar(_RateText):
    """A bar in a notebook."""

    def __init__(self, doing: str) -> None:
        super().__init__(doing)
        self.handle: Any = None
        self.last: Progress | None = None

    def __call__(self, now: Progress) -> None:
        self.last = now
        self.draw(now.share, self.words(now))

    def draw(self, share: float | None, words: str) -> None:
        display = sys.modules["IPython"].display
        value = "" if share is None else f" value='{share:.4f}'"
        page = display.HTML(f"<progress{value}></progress> {html.escape(words)}")
        if self.handle is None:
            self.handle = display.display(page, display_id=True)
        else:
            self.handle.update(page)

    def close(self, is_done: bool) -> None:
        """Draws the bar for the last time: full, or where the call stopped."""
        if self.last is not None:
            seconds = time.monotonic() - self.started
            end = "done" if is_done else "stopped"
            self.draw(1.0 if is_done else self.last.share or 0.0,
                      f"{self.doing}  {end} after {seconds:.1f} s")
