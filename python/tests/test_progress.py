"""The line of progress in a terminal."""

from __future__ import annotations

import io
import os

import pytest

from pgspate._progress import progress_callback


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


@pytest.mark.parametrize("columns", [20, 80, 200])
@pytest.mark.parametrize("phase", [None, "building index parts_name_idx on parts (name)"])
def test_the_line_fits_the_terminal(monkeypatch, columns, phase):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr("os.get_terminal_size", lambda *_: size)
    with progress_callback(True, "loading warehouse.parts", 40_000_000) as show:
        assert show is not None
        show(12_345_678, 1 << 30, 0, 8, "server (WALWrite, for now)", phase, 0, None)
    line = terminal.getvalue().split("\r")[1].removesuffix("\x1b[K")
    assert len(line) < columns
    whole = "loading warehouse.parts  12,345,678 rows"
    assert line.startswith(whole[:columns - 1])
    if columns == 80 and phase is None:
        assert "31%" in line and "8 lanes" in line
    if columns == 200:
        assert line.endswith(phase or "waiting on: server (WALWrite, for now)")


def test_the_width_is_known_without_a_terminal(monkeypatch):
    def refuse(*_: object) -> os.terminal_size:
        raise OSError("no terminal")

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("os.get_terminal_size", refuse)
    monkeypatch.setenv("COLUMNS", "40")
    with progress_callback(True, "loading " + "x" * 100, None) as show:
        assert show is not None
        show(1, 1, 0, 1, None, None, 0, None)
    assert terminal.getvalue().startswith("\rloading " + "x" * 31 + "\x1b[K")
