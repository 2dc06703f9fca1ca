"""Finds the connection string of the server that a call writes to."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any, Protocol, Union

from ._errors import ConnectError, UsageError


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


# The role and the search path that a session has set. NULL stands for the path of its database.
_SESSION_SQL = """
select pg_catalog.current_setting('role'),
       (select setting from pg_catalog.pg_settings
        where name = 'search_path' and source in ('client', 'session'))
"""

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
        return conninfo_of_connection(to)
    url = getattr(to, "url", to)
    if hasattr(url, "render_as_string"):
        return _conninfo_of_engine(to) if hasattr(to, "pool") else _url_of_sqlalchemy(url)
    dsn = getattr(to, "dsn", None)
    # A connection of psycopg2 has a `dsn`, too, but without the password.
    if _is_psycopg(to):
        # The status 0 is "idle" for both.
        _refuse_transaction(int(to.info.transaction_status) != 0)
        return _conninfo_of_psycopg(to)
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


def conninfo_of_connection(connection: Any) -> str:
    """Returns the connection string of a connection of SQLAlchemy, with its role and search path.

    Raises `UsageError` if the engine's options lead elsewhere than its URL, and the driver does not
    say where.
    """
    engine = connection.engine
    if engine.url.get_backend_name() in ("postgresql", "postgres"):
        driver_connection = connection.connection.driver_connection
        if _is_psycopg(driver_connection):
            return _conninfo_of_psycopg(driver_connection)
        _refuse_unlike_url(engine)
    return _url_of_sqlalchemy(engine.url)


def _conninfo_of_engine(engine: Any) -> str:
    """Returns the connection string of the engine's connections, with their role and search path.

    Options of the engine and listeners of its events may lead elsewhere than its URL, so the string
    is that of a connection. The connection is not one of the engine's pool, which may have none.
    """
    url = _url_of_sqlalchemy(engine.url)
    if engine.dialect.is_async or engine.dialect.driver not in ("psycopg", "psycopg2"):
        _refuse_unlike_url(engine)
        return url
    pool = engine.pool.recreate()
    try:
        proxy = pool.connect()
        try:
            return _conninfo_of_psycopg(proxy.driver_connection)
        finally:
            proxy.close()
    except _driver_error(engine) as error:
        if _is_like_url(engine):
            # pgspate says why it cannot connect, too.
            return url
        raise ConnectError("could not connect by the engine", reasons=[str(error)]) from error
    finally:
        pool.dispose()


def _driver_error(engine: Any) -> type[Exception]:
    """Returns the class of the exceptions of an engine's driver."""
    dbapi = getattr(engine.dialect, "loaded_dbapi", None) or engine.dialect.dbapi
    error: type[Exception] = dbapi.Error
    return error


def _is_like_url(engine: Any) -> bool:
    """Returns whether the engine connects by the parameters of its URL alone."""
    try:
        made = inspect.getclosurevars(engine.pool._creator).nonlocals
        return bool(made["cparams"] == engine.dialect.create_connect_args(engine.url)[1])
    except (AttributeError, KeyError, TypeError):
        return False


def _refuse_unlike_url(engine: Any) -> None:
    """Refuses an engine whose `connect_args` or `creator` lead elsewhere than its URL."""
    if not _is_like_url(engine):
        message = "the engine has `connect_args`, `creator` or `async_creator`, which its driver "
        message += "does not show"
        hint = "Give a connection string as `to=`, or write with `within=`."
        raise UsageError(message, hint=hint)


def _is_psycopg(connection: Any) -> bool:
    """Returns whether this is a connection of psycopg or psycopg2."""
    return hasattr(getattr(connection, "info", None), "transaction_status")


def _conninfo_of_psycopg(connection: Any) -> str:
    """Returns the connection string of a connection of psycopg or psycopg2, with its password.

    New connections by this string have the role and the search path of the connection.
    """
    info = connection.info
    if hasattr(info, "get_parameters"):
        parameters = dict(info.get_parameters())
    else:
        parameters = dict(info.dsn_parameters)
    if info.password:
        parameters["password"] = info.password
    role, search_path = _session_settings(connection)
    options = [parameters["options"]] if parameters.get("options") else []
    if search_path is not None:
        options.append(f"-c search_path={_escaped(search_path)}")
    if role != "none":
        options.append(f"-c role={_escaped(role)}")
    if options:
        parameters["options"] = " ".join(options)
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in parameters.items())


def _session_settings(connection: Any) -> tuple[str, str | None]:
    """Returns the role of a connection, or "none", and the search path that it has set."""
    if hasattr(connection, "pgconn"):
        # This begins no transaction, and connections for asyncio can do it, too.
        result = connection.pgconn.exec_(_SESSION_SQL.encode())
        if result.ntuples != 1:
            message = "could not read the settings of the connection that `to=` names"
            raise ConnectError(message, reasons=[result.error_message.decode(errors="replace")])
        role, path = result.get_value(0, 0), result.get_value(0, 1)
        encoding = connection.info.encoding
        return role.decode(encoding), None if path is None else path.decode(encoding)
    plain_cursor = importlib.import_module("psycopg2.extensions").cursor
    is_idle = int(connection.info.transaction_status) == 0
    with connection.cursor(cursor_factory=plain_cursor) as cursor:
        cursor.execute(_SESSION_SQL)
        role, path = cursor.fetchone()
    if is_idle and not connection.autocommit:
        connection.rollback()
    return role, path


def _escaped(value: str) -> str:
    """Returns a value as in the parameter `options`."""
    return re.sub(r"([\\\s])", r"\\\1", value)


def _quoted(value: str) -> str:
    """Returns a value as in a `key=value` connection string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
