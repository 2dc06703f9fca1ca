"""A proxy that withholds the server's answers to commits."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress


class CommitSwallower:
    """Passes everything on, but for the answers to the first commits of sessions that match.

    Such a commit is passed on, its answer is read, and then the connection is closed.

    Attributes:
        swallowed: Number of answers that were withheld.
        port: The port on which the proxy listens.
    """

    def __init__(self, host: str, port: int, marker: bytes, commits: int) -> None:
        """Withholds the answers to `commits` commits of sessions that have sent `marker`."""
        self._server = (host, port)
        self._marker = re.compile(marker, re.IGNORECASE)
        self._left = commits
        self._lock = threading.Lock()
        self.swallowed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, port = self._server
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
        else:
            server = socket.create_connection((host, port))
        swallow = threading.Event()
        answers = threading.Thread(target=self._pass_answers, args=(server, client, swallow),
                                   daemon=True)
        answers.start()
        is_marked = False
        with suppress(OSError), client, server:
            while data := client.recv(1 << 16):
                is_marked = is_marked or self._marker.search(data) is not None
                if is_marked and re.search(rb"\bcommit\b", data, re.IGNORECASE) and self._take():
                    swallow.set()
                server.sendall(data)
        answers.join(60)

    def _take(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def _pass_answers(self, server: socket.socket, client: socket.socket, swallow) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if swallow.is_set():
                    # The transaction is committed when its answer arrives.
                    with self._lock:
                        self.swallowed += 1
                    break
                client.sendall(data)
        for side in (client, server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
