"""pgspate: the fastest safe way to write into PostgreSQL.

`load` takes files, Arrow tables, data frames and rows into a table; `sync` makes rows of a table
like them, writing only what differs; `apply` takes a stream of changes. `doctor` says what slows
writes on a server. `pgspate.aio` has them for asyncio, `pgspate.sqlalchemy` for models and
sessions.
"""

from __future__ import annotations

from ._calls import apply, load, plan, sync
from ._doctor import Examination, Finding, Tuning, doctor, tune
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
from ._pandas import pandas_method
from ._pgspate import __version__
from ._progress import Progress
from ._report import ApplyReport, LoadReport, Plan, Report, SyncReport
from ._server import Server, server

__all__ = [
    "ApplyReport",
    "BugError",
    "Cancelled",
    "ConnectError",
    "ConversionError",
    "Error",
    "Examination",
    "Finding",
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
    "Tuning",
    "UsageError",
    "__version__",
    "apply",
    "doctor",
    "load",
    "pandas_method",
    "plan",
    "server",
    "sync",
    "tune",
]
