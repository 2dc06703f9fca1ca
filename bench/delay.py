"""A proxy that holds every byte back for a while, as a network between two places does.

It listens on a Unix socket of its own and adds the same time in both directions; how much is sent
at once is not limited.
"""

import queue
import socket
import sys
import threading
import time
from pathlib import Path

CHUNK_BYTES = 256 << 10
AHEAD = 1024
"""Chunks under way in one direction: far more than are in a millisecond."""


class Delay:
    """A running proxy. Use it with `with`; connect to `folder` instead of the server's."""

    def __init__(self, server: Path, folder: Path, port: str, round_trip_s: float):
        self.server, self.folder, self.port = server, folder, port
        self.one_way_s = round_trip_s / 2
        self.listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> "Delay":
        # A thread that moves bytes must not wait for one that sleeps.
        sys.setswitchinterval(0.0002)
        self.folder.mkdir()
        self.listener.bind(str(self.folder / f".s.PGSQL.{self.port}"))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def accept(self) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.server / f".s.PGSQL.{self.port}"))
            for source, sink in ((client, server), (server, client)):
                held: queue.Queue = queue.Queue(AHEAD)
                threading.Thread(target=self.take, args=(source, held), daemon=True).start()
                threading.Thread(target=give, args=(sink, held), daemon=True).start()

    def take(self, source: socket.socket, held: queue.Queue) -> None:
        """Note for each piece when it may be sent."""
        while True:
            try:
                piece = source.recv(CHUNK_BYTES)
            except OSError:
                piece = b""
            held.put((time.monotonic() + self.one_way_s, piece))
            if not piece:
                return


def give(sink: socket.socket, held: queue.Queue) -> None:
    """Send each piece when its time has come."""
    while True:
        due, piece = held.get()
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        try:
            if not piece:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(piece)
        except OSError:
            return
