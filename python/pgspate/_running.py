"""Ends the calls of daemon threads before the interpreter ends.

While the interpreter ends, Python kills each thread that runs Python code. Within a call, this
would crash the process. So a hook stops all calls first, and waits until they have returned.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from . import _pgspate
from ._errors import Cancelled

# How long, in seconds, the hook waits. A generator may sleep longer between two rows.
_WAIT = 5.0
_POLL = 0.005

# The calls that run.
_running: set[_pgspate.Stop] = set()
# Calls that have returned after a second interrupt, while the engine read a batch.
_unreleased: set[_pgspate.Stop] = set()
# The thread that ends the interpreter. Only this thread may begin calls then.
_ending_thread: int | None = None


@contextmanager
def running(stop: _pgspate.Stop | None = None) -> Iterator[_pgspate.Stop]:
    """Registers a call while it runs. Yields the object with which the call can be stopped.

    Raises:
        Cancelled: The interpreter ends.
    """
    stop = stop or _pgspate.Stop()
    try:
        _running.add(stop)
        _unreleased.difference_update([one for one in list(_unreleased) if one.release()])
        if _ending_thread not in (None, get_ident()):
            raise Cancelled("the interpreter ends")
        yield stop
    finally:
        if not stop.release():
            _unreleased.add(stop)
        _running.discard(stop)


def _end_calls() -> None:
    """Stops all calls and waits for them. Other threads run meanwhile."""
    global _ending_thread
    _ending_thread = get_ident()
    for stop in list(_running):
        stop.set()
    until = time.monotonic() + _WAIT
    while _running or not all([stop.release() for stop in list(_unreleased)]):
        if time.monotonic() > until:
            return
        time.sleep(_POLL)


def _forget_calls() -> None:
    """Forgets the calls of the parent's threads, which a forked process does not have."""
    _running.clear()
    _unreleased.clear()


# Python has joined all other threads when it calls this.
atexit.register(_end_calls)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_calls)
