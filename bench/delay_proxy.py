"""A proxy that adds the delay of a network between client and server.

The proxy listens on its own Unix socket. It delays the bytes of both directions by half a round
trip, and does not limit bytes per second.
"""

import queue
import socket
import sys
import threading
import time
from pathlib import Path

PIECE_BYTES_MAX = 256 << 10
QUEUED_PIECES_MAX = 1024
"""Pieces that wait in one direction. A millisecond's delay needs far fewer."""


class DelayProxy:
    """A proxy that runs within a `with` block. Clients connect to `folder` as host.

    `server_folder` has the server's socket. `port` is the port in the names of both sockets.
    """

    def __init__(self, server_folder: Path, folder: Path, port: str, round_trip_s: float):
        self.server_folder, self.folder, self.port = server_folder, folder, port
        self.one_way_s = round_trip_s / 2
        self.listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> "DelayProxy":
        # Switch threads after 0.2 ms, not 5 ms: the default interval would add to the delay.
        sys.setswitchinterval(0.0002)
        self.folder.mkdir()
        self.listener.bind(str(self.folder / f".s.PGSQL.{self.port}"))
        self.listener.listen()
        threading.Thread(target=self.accept_clients, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def accept_clients(self) -> None:
        """Accepts clients and starts their threads, until the listener is closed."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.server_folder / f".s.PGSQL.{self.port}"))
            for source, sink in ((client, server), (server, client)):
                due_pieces: queue.Queue = queue.Queue(QUEUED_PIECES_MAX)
                threading.Thread(
                    target=self.queue_pieces, args=(source, due_pieces), daemon=True
                ).start()
                threading.Thread(
                    target=send_due_pieces, args=(sink, due_pieces), daemon=True
                ).start()

    def queue_pieces(self, source: socket.socket, due_pieces: queue.Queue) -> None:
        """Reads pieces, and queues each with the time at which it is due to be sent."""
        while True:
            try:
                piece = source.recv(PIECE_BYTES_MAX)
            except OSError:
                piece = b""
            due_pieces.put((time.monotonic() + self.one_way_s, piece))
            if not piece:
                return


def send_due_pieces(sink: socket.socket, due_pieces: queue.Queue) -> None:
    """Sends each piece when it is due; an empty piece ends this direction."""
    while True:
        due_time, piece = due_pieces.get()
        wait = due_time - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        try:
            if not piece:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(piece)
        except OSError:
            return
