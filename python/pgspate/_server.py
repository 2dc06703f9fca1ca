"""PostgreSQL servers that pgspate starts, as context managers."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from . import _pgspate
from ._errors import UsageError

__all__ = ["Server", "server"]


class Server:
    """A running PostgreSQL server.

    Attributes:
        dsn: Connection string in ``key=value`` form, for psycopg and for ``to=``. It names a
            password file.
        url: Connection string as a URL over TCP, for SQLAlchemy. It contains the password.
    """

    def __init__(self, *, temporary: bool, settings: str) -> None:
        self._temporary = _pgspate.TemporaryServer(settings) if temporary else None
        # Whether this object started the embedded server.
        self._started_embedded = False
        if self._temporary is not None:
            self.dsn, self.url = self._temporary.dsn, self._temporary.url
        else:
            self.dsn, self.url, self._started_embedded = _pgspate.start_server()

    def stop(self) -> None:
        """Stops the server.

        The data of a temporary server is deleted. The embedded server is stopped only if this
        object started it.
        """
        if self._temporary is not None:
            self._temporary.stop()
        elif self._started_embedded:
            self._started_embedded = False
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
    """Starts a PostgreSQL server, with the PostgreSQL of this machine or a downloaded one.

    By default this is the embedded server, which ``pgspate server`` also starts. Calls without
    ``to=`` use it if no PG* variable names a server. Its data is kept. The end of the ``with``
    block stops the server, unless it was running before.

    Args:
        temporary: Start an empty server, and delete its data when it stops.
        settings: Settings of a temporary server, as in ``postgresql.conf``.

    Returns:
        The server, a context manager.

    Raises:
        UsageError: There are settings, but the server is not temporary.
        ConnectError: PostgreSQL could not be found, downloaded or started.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     report = pgspate.load([{"a": 1}, {"a": 2}], "numbers", create=True, to=server)
        >>> report.rows_written
        2
    """
    if settings and not temporary:
        hint = "Pass `temporary=True`, or change the embedded server's settings by ALTER SYSTEM."
        raise UsageError("`settings=` needs a temporary server", hint=hint)
    conf = "".join(
        "{} = '{}'\n".format(name, str(value).replace("'", "''"))
        for name, value in (settings or {}).items()
    )
    return Server(temporary=temporary, settings=conf)
