"""The function for the argument ``method=`` of pandas' ``DataFrame.to_sql``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["pandas_method"]


def pandas_method(
    table: Any, conn: Any, keys: Sequence[str], data_iter: Iterable[tuple[Any, ...]]
) -> int:
    """Writes the rows of ``DataFrame.to_sql`` by COPY, in the connection's own transaction.

    Pass this function as ``method=pgspate.pandas_method``. pandas creates the table first, in a
    transaction that is not committed yet. Only this connection sees the table, so the rows are sent
    over this connection.

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
    from ._caller_transaction import copy_rows, quote_ident

    parts = [table.name] if table.schema is None else [table.schema, table.name]
    return copy_rows(conn, ".".join(map(quote_ident, parts)), list(keys), data_iter)
