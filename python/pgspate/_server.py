"""The embedded PostgreSQL as a context manager."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from . import _pgspate

__all__ = ["Server", "server"]


class Server:
    """A running PostgreSQL server.

    Attributes:
        dsn: Connection string in ``key=value`` form, for psycopg and for ``to=``.
        url: Connection string as a URL over TCP, with the password, for SQLAlchemy.
    """

    def __init__(self, *, temporary: bool, settings: str) -> None:
        self._throwaway = _pgspate.Throwaway(settings) if temporary else None
        self._was_started_here = False
        if self._throwaway is not None:
            self.dsn, self.url = self._throwaway.dsn, self._throwaway.url
        else:
            self.dsn, self.url, self._was_started_here = _pgspate.start_server()

    def stop(self) -> None:
        """Stops the server. A temporary server loses its data; any other server is stopped only
        if this object started it."""
        if self._throwaway is not None:
            self._throwaway.stop()
        elif self._was_started_here:
            self._was_started_here = False
            _pgspate.stop_server()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server {self.dsn!r}>"


def server(*, temporary: bool = False, settings: Mapping[str, object] | None = None) -> Server:
    """Starts a PostgreSQL server: the one installed on this machine, or one that it downloads.

    Without arguments this is the embedded server, which ``pgspate server`` also starts and which
    calls without ``to=`` use. Its data is kept. Leaving the ``with`` block stops the server, unless
    it ran before.

    Args:
        temporary: Start an empty server for this block alone, and delete its data at the end.
        settings: Settings of a temporary server, as in ``postgresql.conf``.

    Returns:
        The server, a context manager.

    Raises:
        ConnectError: PostgreSQL could not be found, downloaded or started.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     report = pgspate.load([{"a": 1}, {"a": 2}], "numbers", create=True, to=server)
        >>> report.rows_written
        2
    """
    lines = "".join(
        "{} = '{}'\n".format(name, str(value).replace("'", "''"))
        for name, value in (settings or {}).items()
    )
    return Server(temporary=temporary, settings=lines)
