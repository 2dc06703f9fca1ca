"""Finds the connection string of the server that a call writes to."""

from __future__ import annotations

from typing import Any, Protocol, Union

from ._errors import UsageError


class HasDsn(Protocol):
    """An object with a connection string, such as a `Server`."""

    @property
    def dsn(self) -> str: ...


class HasUrl(Protocol):
    """An engine of SQLAlchemy."""

    @property
    def url(self) -> Any: ...


class HasInfo(Protocol):
    """A connection of psycopg, or a connection or session of SQLAlchemy."""

    @property
    def info(self) -> Any: ...


Target = Union[str, HasDsn, HasUrl, HasInfo]


_TRANSACTION_MESSAGE = "the connection that `to=` names has an open transaction"
_TRANSACTION_HINT = (
    "pgspate opens connections of its own, which do not see uncommitted changes and wait for its "
    "locks. Commit or roll back first. Or write in this transaction: `pgspate.sqlalchemy.load` and "
    "`sync` with `within=`, or `pgspate.pandas_method`."
)


def conninfo(to: Any) -> str | None:
    """Returns the connection string of an argument `to`; None stands for the default server.

    `to` is a `Target`, or a URL of SQLAlchemy.
    """
    if to is None or isinstance(to, str):
        return to
    to = getattr(to, "sync_session", to)
    to = getattr(to, "sync_connection", None) or getattr(to, "sync_engine", to)
    if hasattr(to, "get_bind"):
        _refuse_transaction(to.in_transaction())
        to = to.get_bind()
    if hasattr(to, "engine") and hasattr(to, "in_transaction"):
        _refuse_transaction(to.in_transaction())
        to = to.engine
    url = getattr(to, "url", to)
    if hasattr(url, "render_as_string"):
        return _url_of_sqlalchemy(url)
    dsn = getattr(to, "dsn", None)
    # A connection of psycopg2 has a `dsn`, too, but without the password.
    info = getattr(to, "info", None)
    if info is not None and hasattr(info, "transaction_status"):
        return _conninfo_of_psycopg(info)
    if isinstance(dsn, str):
        return dsn
    message = f"an object of class {type(to).__name__} has no connection string"
    hint = (
        "Give a URL or a connection string, a `Server`, a connection of psycopg, or an engine of "
        "SQLAlchemy."
    )
    raise UsageError(message, hint=hint)


def _refuse_transaction(is_open: bool) -> None:
    if is_open:
        raise UsageError(_TRANSACTION_MESSAGE, hint=_TRANSACTION_HINT)


def _url_of_sqlalchemy(url: Any) -> str:
    """Returns a URL of SQLAlchemy, which names a driver, as a URL of libpq."""
    backend = url.get_backend_name()
    if backend not in ("postgresql", "postgres"):
        hint = "Give an engine of a PostgreSQL server."
        raise UsageError(f"the engine is of {backend}, not of PostgreSQL", hint=hint)
    return str(url.set(drivername="postgresql").render_as_string(hide_password=False))


def _conninfo_of_psycopg(info: Any) -> str:
    """Returns the connection string of a connection of psycopg or psycopg2, with its password."""
    # The status 0 is "idle" for both.
    _refuse_transaction(int(info.transaction_status) != 0)
    if hasattr(info, "get_parameters"):
        parameters = dict(info.get_parameters())
    else:
        parameters = dict(info.dsn_parameters)
    if info.password:
        parameters["password"] = info.password
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in parameters.items())


def _quoted(value: str) -> str:
    """Returns a value as in a `key=value` connection string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
