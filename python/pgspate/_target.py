"""Finds the connection string of the server that a call writes to."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any, Protocol, Union

from . import _pgspate
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


# The settings of a session that its statements have made, with the role and the search path. The
# first row is the user who the session is, which `set session authorization` changes.
_SESSION_SQL = """
select 'session_user', session_user::text collate "C"
union all
select 'role', pg_catalog.current_setting('role')
where pg_catalog.current_setting('role') <> 'none'
union all
select name, setting from pg_catalog.pg_settings
where name = 'search_path' and source in ('client', 'session')
   or (name in ('TimeZone', 'DateStyle', 'IntervalStyle') or name like '%.%')
      and source = 'session'
"""

# A transaction has a number once it has changed or locked a row.
_CHANGES_SQL = """
select 'number', number::text from pg_catalog.txid_current_if_assigned() as number
where number is not null
"""

# Parameters of asyncpg that do not say where it connects.
_ASYNCPG_PARAMETERS = {
    "statement_cache_size", "prepared_statement_cache_size", "prepared_statement_name_func",
    "max_cached_statement_lifetime", "max_cacheable_statement_size", "timeout", "command_timeout",
    "ssl",
}  # fmt: skip

_DSN_HINT = "Give a connection string as `to=`, or write with `within=`."
_IDLE, _CLOSED = 0, 4
_TRANSACTION_MESSAGE = "the connection that `to=` names has an open transaction"
_COMMIT_HINT = (
    "pgspate opens connections of its own, which do not see uncommitted changes and wait for its "
    "locks. Commit or roll back first. "
)
_TRANSACTION_HINT = (
    _COMMIT_HINT + "Or write in this transaction: `pgspate.sqlalchemy.load` and `sync` with "
    "`within=`, or `pgspate.pandas_method`."
)
_PSYCOPG_HINT = (
    _COMMIT_HINT + "pgspate writes in a transaction of yours only if the session or the "
    "connection is of SQLAlchemy."
)


def warn_of_default(to: str | None) -> None:
    """Warns that the rows go to the embedded server, if neither `to` nor a variable names one."""
    if to is None and not _pgspate.is_server_named():
        message = "no server is named, so the rows go to the embedded PostgreSQL, which "
        message += "`pgspate server status` shows. Name a server by `to=`, or by `PGHOST`."
        warnings.warn(message, stacklevel=_levels_in_package() + 1)


def _levels_in_package() -> int:
    """Returns how many of the innermost calls are of this package, without this one."""
    frame, levels = inspect.currentframe(), -1
    while frame is not None and frame.f_globals["__name__"].partition(".")[0] == "pgspate":
        frame, levels = frame.f_back, levels + 1
    return levels


def conninfo(to: Any) -> str | None:
    """Returns the connection string of an argument `to`; None stands for the default server.

    `to` is a `Target`, or a URL of SQLAlchemy.
    """
    if to is None or isinstance(to, str):
        return to
    to = session_of(to)
    to = getattr(to, "sync_connection", None) or getattr(to, "sync_engine", to)
    if hasattr(to, "get_bind"):
        _refuse_transaction(to.in_transaction())
        refuse_listeners_of_session(to)
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
        _refuse_busy(to, _PSYCOPG_HINT)
        return _conninfo_of_psycopg(to)
    if isinstance(dsn, str):
        return dsn
    message = f"an object of class {type(to).__name__} has no connection string"
    hint = (
        "Give a URL or a connection string, a `Server`, a connection of psycopg, or an engine of "
        "SQLAlchemy."
    )
    raise UsageError(message, hint=hint)


def _refuse_transaction(is_open: bool, hint: str = _TRANSACTION_HINT) -> None:
    if is_open:
        raise UsageError(_TRANSACTION_MESSAGE, hint=hint)


def _url_of_sqlalchemy(url: Any) -> str:
    """Returns a URL of SQLAlchemy, whose driver does not matter to pgspate."""
    backend = url.get_backend_name()
    if backend not in ("postgresql", "postgres"):
        hint = "Give an engine of a PostgreSQL server."
        raise UsageError(f"the engine is of {backend}, not of PostgreSQL", hint=hint)
    # A URL that names a driver may have parameters of SQLAlchemy.
    drivername = "postgresql+psycopg2" if url.query else "postgresql"
    return str(url.set(drivername=drivername).render_as_string(hide_password=False))


def session_of(bind: Any) -> Any:
    """Returns the session of a `scoped_session` or of an `AsyncSession`; other objects as is."""
    if callable(getattr(bind, "registry", None)) and hasattr(bind, "remove"):
        bind = bind.registry()
    return getattr(bind, "sync_session", bind)


def refuse_listeners_of_session(session: Any) -> None:
    """Refuses a session that is not in a transaction, and changes the settings when it begins."""
    if list(session.dispatch.after_begin):
        message = "the session has listeners of `after_begin`, which pgspate cannot follow"
        raise UsageError(message, hint=_DSN_HINT)


def refuse_uncommitted(connection: Any) -> None:
    """Refuses a connection of SQLAlchemy whose transaction has changes or locks of rows."""
    driver_connection = connection.connection.driver_connection
    if _is_psycopg(driver_connection) and _select(driver_connection, _CHANGES_SQL):
        message = "the transaction of the session or connection has changes that are not committed"
        raise UsageError(message, hint=_TRANSACTION_HINT)


def conninfo_of_connection(connection: Any, *, without_settings: bool = False) -> str:
    """Returns the connection string of a connection of SQLAlchemy, with its settings.

    Raises `UsageError` if the driver does not show where the connection leads. `without_settings`:
    the role and the search path do not matter, so the URL of the engine is enough.
    """
    engine = connection.engine
    if engine.url.get_backend_name() in ("postgresql", "postgres"):
        driver_connection = connection.connection.driver_connection
        if _is_psycopg(driver_connection):
            return _conninfo_of_psycopg(driver_connection)
        if without_settings:
            return url_of_place(engine)
        message = f"{engine.dialect.driver} does not show the role and the search path of a "
        raise UsageError(message + "connection that is open", hint=_DSN_HINT)
    return _url_of_sqlalchemy(engine.url)


def url_of_place(engine: Any) -> str:
    """Returns the URL of the database of an engine's connections, without their settings.

    Raises `UsageError` if the engine may connect elsewhere than its URL says.
    """
    if not _is_like_url(engine, ignored={"server_settings"}):
        _refuse_unlike_url(engine)
    if not all(map(_is_of_sqlalchemy, engine.dialect.dispatch.do_connect)):
        _refuse_listeners(engine)
    return _url_of_sqlalchemy(engine.url)


def _conninfo_of_engine(engine: Any) -> str:
    """Returns the connection string of the engine's connections, with their settings.

    Options of the engine and listeners of its events may lead elsewhere than its URL, so the string
    is that of a connection.
    """
    url = _url_of_sqlalchemy(engine.url)
    if engine.dialect.is_async or engine.dialect.driver not in ("psycopg", "psycopg2"):
        _refuse_unlike_url(engine)
        _refuse_listeners(engine)
        return url
    exceptions = importlib.import_module("sqlalchemy.exc")
    dbapi = getattr(engine.dialect, "loaded_dbapi", None) or engine.dialect.dbapi
    try:
        with _new_connections_are_idle(engine), engine.connect() as connection:
            if not connection.in_transaction():
                # This calls the listeners of `begin`.
                connection.begin()
            return _conninfo_of_psycopg(connection.connection.driver_connection)
    except exceptions.TimeoutError as error:
        message = "the pool of the engine has no connection left"
        raise ConnectError(message, reasons=[str(error)]) from error
    except (exceptions.DBAPIError, dbapi.Error) as error:
        if _is_like_url(engine) and not _has_listeners(engine):
            # pgspate says why it cannot connect, too.
            return url
        reasons = [str(getattr(error, "orig", error))]
        raise ConnectError("could not connect by the engine", reasons=reasons) from error


@contextmanager
def _new_connections_are_idle(engine: Any) -> Iterator[None]:
    """Refuses a connection that the pool shares with a transaction, before anything rolls it back.

    `creator=lambda: connection` gives such a connection, and pools that have only one.
    """
    pool = engine.pool
    current = getattr(getattr(pool, "_conn", None), "current", None)
    record = vars(pool).get("connection") or (current() if callable(current) else None)
    _refuse_busy(getattr(record, "dbapi_connection", None))
    if _creator_parameters(engine) is not None:
        yield
        return
    first = pool._invoke_creator(None)
    _refuse_busy(first)
    second = pool._invoke_creator(None)
    if first is not second:
        first.close()
        _refuse_busy(second)
        second.close()
    yield


def _refuse_busy(driver_connection: Any, transaction_hint: str = _TRANSACTION_HINT) -> None:
    """Refuses a connection of the driver that is closed or in a transaction."""
    if driver_connection is None or not _is_psycopg(driver_connection):
        return
    # The numbers are the same for psycopg and psycopg2.
    status = int(driver_connection.info.transaction_status)
    if status == _CLOSED:
        hint = "Give an open connection or a connection string."
        raise UsageError("the connection that `to=` names is closed", hint=hint)
    _refuse_transaction(status != _IDLE, transaction_hint)


def _creator_parameters(engine: Any) -> dict[str, Any] | None:
    """Returns the parameters by which the engine connects, or None if it has a `creator`."""
    try:
        made = inspect.getclosurevars(engine.pool._creator).nonlocals
    except (AttributeError, TypeError):
        return None
    parameters: dict[str, Any] | None = made.get("cparams")
    return parameters


def _is_like_url(engine: Any, *, ignored: Set[str] = frozenset()) -> bool:
    """Returns whether the engine connects by the parameters of its URL alone.

    `ignored` are parameters of asyncpg that do not matter to the caller.
    """
    made = _creator_parameters(engine)
    if made is None:
        return False
    url = engine.dialect.create_connect_args(engine.url)[1]
    names = {*made, *url}
    if engine.dialect.driver == "asyncpg":
        names -= _ASYNCPG_PARAMETERS | ignored
    return all(made.get(name) == url.get(name) for name in names)


def _refuse_unlike_url(engine: Any) -> None:
    """Refuses an engine whose `connect_args` or `creator` lead elsewhere than its URL."""
    if not _is_like_url(engine):
        message = "the engine has `connect_args`, `creator` or `async_creator`, which its driver "
        message += "does not show"
        raise UsageError(message, hint=_DSN_HINT)


def _has_listeners(engine: Any) -> bool:
    """Returns whether code that is not of SQLAlchemy may change the engine's new connections."""
    listeners = [
        *engine.dialect.dispatch.do_connect, *engine.pool.dispatch.connect,
        *engine.pool.dispatch.first_connect, *engine.pool.dispatch.checkout,
        *engine.dispatch.engine_connect, *engine.dispatch.begin,
    ]  # fmt: skip
    return not all(map(_is_of_sqlalchemy, listeners))


def _is_of_sqlalchemy(listener: Any) -> bool:
    """Returns whether a listener is of SQLAlchemy, and does not only call another's."""
    if not str(getattr(listener, "__module__", "")).startswith("sqlalchemy."):
        return False
    inner = inspect.getclosurevars(listener).nonlocals.get("fn")
    return inner is None or _is_of_sqlalchemy(inner)


def _refuse_listeners(engine: Any) -> None:
    """Refuses an engine whose listeners may change its new connections."""
    if _has_listeners(engine):
        message = "the engine has listeners of its connections, which pgspate cannot follow with "
        raise UsageError(message + engine.dialect.driver, hint=_DSN_HINT)


def _is_psycopg(connection: Any) -> bool:
    """Returns whether this is a connection of psycopg or psycopg2."""
    return hasattr(getattr(connection, "info", None), "transaction_status")


def _conninfo_of_psycopg(connection: Any) -> str:
    """Returns the connection string of a connection of psycopg or psycopg2, with its password.

    New connections by this string have the settings of the connection: its role, its search path
    and its time zone, for example. All parameters are written, even those with libpq's default:
    variables such as PGPORT would stand for parameters that are left out.
    """
    info = connection.info
    if hasattr(connection, "pgconn"):
        encoding = info.encoding
        parameters = {
            option.keyword.decode(): option.val.decode(encoding)
            for option in connection.pgconn.info
            if option.val is not None
        }
    else:
        parameters = dict(info.dsn_parameters)
    parameters.update(_place_of(info, parameters))
    if info.password:
        parameters["password"] = info.password
    options = [parameters["options"]] if parameters.get("options") else []
    settings = dict(_select(connection, _SESSION_SQL))
    if settings.pop("session_user") != info.user:
        message = "the connection that `to=` names has another session_user than it logged in as"
        raise UsageError(message, hint="Run `reset session authorization` first.")
    # The server takes the role last: another role may not be allowed to change a setting.
    role = settings.pop("role", None)
    options += [f"-c {name}={_escaped(value)}" for name, value in settings.items()]
    if role is not None:
        options.append(f"-c role={_escaped(role)}")
    if options:
        parameters["options"] = " ".join(options)
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in parameters.items())


def _place_of(info: Any, parameters: dict[str, str]) -> dict[str, str]:
    """Returns the parameters of the server, database and user of a connection.

    They are those of the host that the driver has chosen, if its parameters name several.
    """
    place = {"port": str(info.port), "dbname": info.dbname, "user": info.user}
    if info.host:
        place["host"] = info.host
    addresses = parameters.get("hostaddr", "").split(",")
    if len(addresses) > 1:
        hosts = parameters.get("host", "").split(",")
        ports = parameters.get("port", "").split(",") * len(addresses)
        tried = zip(hosts if len(hosts) > 1 else addresses, ports, addresses)
        chosen = (str(info.host), str(info.port))
        place["hostaddr"] = next(
            (address for host, port, address in tried if (host, port) == chosen), addresses[0]
        )
    return place


def _select(connection: Any, sql: str) -> list[tuple[str, str]]:
    """Returns what a query of two columns selects on a connection of psycopg or psycopg2."""
    if hasattr(connection, "pgconn"):
        # This begins no transaction, and connections for asyncio can do it, too.
        result = connection.pgconn.exec_(sql.encode())
        if result.error_message:
            message = "could not read the settings of the connection that `to=` names"
            raise ConnectError(message, reasons=[result.error_message.decode(errors="replace")])
        encoding = connection.info.encoding
        return [
            (result.get_value(row, 0).decode(encoding), result.get_value(row, 1).decode(encoding))
            for row in range(result.ntuples)
        ]
    plain_cursor = importlib.import_module("psycopg2.extensions").cursor
    is_idle = int(connection.info.transaction_status) == 0
    with connection.cursor(cursor_factory=plain_cursor) as cursor:
        cursor.execute(sql)
        found: list[tuple[str, str]] = cursor.fetchall()
    if is_idle and not connection.autocommit:
        connection.rollback()
    return found


def _escaped(value: str) -> str:
    """Returns a value as in the parameter `options`."""
    return re.sub(r"([\\\s])", r"\\\1", value)


def _quoted(value: str) -> str:
    """Returns a value as in a `key=value` connection string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
