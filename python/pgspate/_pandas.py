"""The function for the argument ``method=`` of pandas' ``DataFrame.to_sql``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["pandas_method"]

# The oids of PostgreSQL's types of numbers: int8, int2, int4, oid, float4, float8 and numeric.
_NUMBERS = {20, 21, 23, 26, 700, 701, 1700}

# The parts of a second for the units of pandas' timedeltas.
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

# The integer that pandas has for a missing timedelta.
_NAT = -(2**63)


def pandas_method(
    table: Any, conn: Any, keys: Sequence[str], data_iter: Iterable[tuple[Any, ...]]
) -> int:
    """Writes the rows of ``DataFrame.to_sql`` by COPY, in the connection's own transaction.

    Pass this function as ``method=pgspate.pandas_method``. pandas creates the table first, in a
    transaction that is not committed yet. Only this connection sees the table, so the rows are sent
    over this connection.

    pandas gives timedeltas as integers, and creates columns of type bigint for them. In columns
    that are not of numbers, such as interval, they are written as intervals.

    The types of ``dtype=`` convert the values, as they do without ``method=``.

    Args:
        table: The table as an object of pandas.
        conn: SQLAlchemy's connection.
        keys: Names of the columns.
        data_iter: The rows.

    Returns:
        The number of rows written.

    Example:
        >>> import pandas, pgspate, sqlalchemy
        >>> frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None]})
        >>> with pgspate.server(temporary=True) as server:
        ...     url = server.url.replace("postgresql:", "postgresql+psycopg:")
        ...     engine = sqlalchemy.create_engine(url)
        ...     _ = frame.to_sql("t", engine, index=False, method=pgspate.pandas_method)
        ...     with engine.connect() as connection:
        ...         rows = connection.exec_driver_sql("select * from t order by a").fetchall()
        ...     engine.dispose()
        >>> rows
        [(1, 'x'), (2, None)]
    """
    from ._caller_transaction import copy_rows, quote_ident, type_oids
    from ._model_tuples import converted_rows

    parts = [table.name] if table.schema is None else [table.schema, table.name]
    name = ".".join(map(quote_ident, parts))
    units = _timedelta_units(table)
    if units:
        oids = type_oids(conn, name)
        intervals = {nth: it for nth, it in units.items() if oids.get(keys[nth]) not in _NUMBERS}
        data_iter = _with_intervals(data_iter, intervals)
    columns = [table.table.columns[key] for key in keys]
    data_iter = converted_rows(data_iter, columns, getattr(conn.dialect, "_json_serializer", None))
    return copy_rows(conn, name, list(keys), data_iter).written


def _timedelta_units(table: Any) -> dict[int, int]:
    """Returns the parts of a second of each column of timedeltas, by the column's position."""
    dtypes = list(table.frame.dtypes)
    if table.index is not None:
        index = table.frame.index
        levels = [index.get_level_values(nth) for nth in range(index.nlevels)]
        dtypes = [level.dtype for level in levels] + dtypes
    # pandas converts timedeltas of Arrow to nanoseconds.
    return {
        nth: _UNITS[str(dtype)[len("timedelta64[") : -1] if hasattr(dtype, "str") else "ns"]
        for nth, dtype in enumerate(dtypes)
        if dtype.kind == "m"
    }


def _with_intervals(
    rows: Iterable[tuple[Any, ...]], units: dict[int, int]
) -> Iterator[tuple[Any, ...]]:
    """Returns the rows with the texts of intervals in place of some integers."""
    for row in rows:
        values = list(row)
        for nth, unit in units.items():
            values[nth] = _interval_text(values[nth], unit)
        yield tuple(values)


def _interval_text(value: int | None, unit: int) -> str | None:
    """Returns an integer as an interval with nine digits of a second, which the server rounds."""
    if value is None or value == _NAT:
        return None
    seconds, rest = divmod(abs(value), unit)
    sign = "-" if value < 0 else ""
    fraction = f"{rest * 10**9 // unit:09}"
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction}"
