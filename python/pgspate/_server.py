"""The embedded PostgreSQL as a context manager."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from . import _pgspate

__all__ = ["Server", "server"]


class Server:
    """A running PostgreSQL.

    Attributes:
        dsn: How to connect to it, as ``key=value``; psycopg takes it, and so does ``to=``.
        url: The same as a URL over TCP, with the password, as SQLAlchemy takes it.
    """

    def __init__(self, *, temporary: bool, settings: str) -> None:
        self._throwaway = _pgspate.Throwaway(settings) if temporary else None
        self._is_ours = False
        if self._throwaway is not None:
            self.dsn, self.url = self._throwaway.dsn, self._throwaway.url
        else:
            self.dsn, self.url, self._is_ours = _pgspate.start_server()

    def stop(self) -> None:
        """Stops it: a temporary one for good, the other one if it was started by this object."""
        if self._throwaway is not None:
            self._throwaway.stop()
        elif self._is_ours:
            self._is_ours = False
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
    """Starts a PostgreSQL: one that is found on the machine, or fetched.

    Without arguments it is the one that `pgspate server` starts and that calls without ``to=``
    load into: its data stays. Leaving the block stops it, unless it was running before.

    Args:
        temporary: An empty server for this block alone, gone with its data at the end; for tests.
        settings: Settings for a temporary server, as in ``postgresql.conf``.

    Returns:
        The server, which is also a context manager.

    Raises:
        ConnectError: No PostgreSQL was found or fetched, or it does not start.

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
