"""pgspate: the fastest safe way to write into PostgreSQL.

`load` takes files, Arrow tables, data frames and rows into a table; `sync` makes rows of a table
like them, writing only what differs. `pgspate.aio` has both for asyncio, `pgspate.sqlalchemy` for
models and sessions.
"""

from __future__ import annotations

from ._errors import (
    BugError,
    Cancelled,
    ConnectError,
    ConversionError,
    Error,
    FormatError,
    LedgerError,
    Place,
    PlanError,
    ServerError,
    SourceError,
    UsageError,
)
from ._load import load, plan
from ._pandas import pandas_method
from ._pgspate import __version__
from ._progress import Progress
from ._report import LoadReport, Plan, Report, SyncReport
from ._server import Server, server
from ._sync import sync

__all__ = [
    "BugError",
    "Cancelled",
    "ConnectError",
    "ConversionError",
    "Error",
    "FormatError",
    "LedgerError",
    "LoadReport",
    "Place",
    "Plan",
    "PlanError",
    "Progress",
    "Report",
    "Server",
    "ServerError",
    "SourceError",
    "SyncReport",
    "UsageError",
    "__version__",
    "load",
    "pandas_method",
    "plan",
    "server",
    "sync",
]
