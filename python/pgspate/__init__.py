"""pgspate: the fastest safe way to write into PostgreSQL.

`load` writes files, Arrow tables, data frames and rows into a table. `sync` makes rows of a table
equal to such data, and writes only rows that differ. `apply` applies a stream of changes. `doctor`
finds what slows writes on a server, and `tune` proposes settings for a bulk load. `Writer` writes
single records of many callers. `pgspate.aio` has these calls for asyncio, and `pgspate.sqlalchemy`
has `load` and `sync` for models and sessions.
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
    OutcomeUnknown,
    Place,
    PlanError,
    QueueFull,
    ServerError,
    SourceError,
    UsageError,
)
from ._fleet import FleetReport, fleet
from ._pandas import pandas_method
from ._pgspate import __version__
from ._progress import Progress
from ._report import ApplyReport, LoadReport, Plan, Report, SyncReport
from ._server import Server, server
from ._write import write
from ._writer import Writer, WriterReport

__all__ = [
    "ApplyReport",
    "BugError",
    "Cancelled",
    "ConnectError",
    "ConversionError",
    "Error",
    "Examination",
    "Finding",
    "FleetReport",
    "FormatError",
    "LedgerError",
    "LoadReport",
    "OutcomeUnknown",
    "Place",
    "Plan",
    "PlanError",
    "Progress",
    "QueueFull",
    "Report",
    "Server",
    "ServerError",
    "SourceError",
    "SyncReport",
    "Tuning",
    "UsageError",
    "Writer",
    "WriterReport",
    "__version__",
    "apply",
    "doctor",
    "fleet",
    "load",
    "pandas_method",
    "plan",
    "server",
    "sync",
    "tune",
    "write",
]
