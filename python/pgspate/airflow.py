"""An operator and a hook of Airflow that write files and rows into PostgreSQL.

A retry of a task that loads files is safe: the ledger knows the files that are loaded. A sync that
is repeated finds nothing to do. Rows that `PgspateHook.load` has added are added again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal

from airflow.providers.postgres.hooks.postgres import PostgresHook

from . import _calls
from ._data import Data
from ._errors import UsageError
from ._report import LoadReport, SyncReport
from ._target import conninfo

try:
    from airflow.sdk import BaseOperator
except ImportError:  # Airflow 2
    from airflow.models import BaseOperator

__all__ = ["PgspateHook", "PgspateOperator"]


class PgspateHook(PostgresHook):
    """Airflow's hook for PostgreSQL, with `load` and `sync`."""

    def load(self, data: Data, table: str, **options: Any) -> LoadReport:
        """Calls `pgspate.load` with the server of the hook's connection."""
        return _calls.load(data, table, to=self._conninfo(), **options)

    def sync(self, data: Data, table: str, **options: Any) -> SyncReport:
        """Calls `pgspate.sync` with the server of the hook's connection."""
        return _calls.sync(data, table, to=self._conninfo(), **options)

    def _conninfo(self) -> str | None:
        """Returns the connection string, with what the connection's extras ask for."""
        # The hook fetches tokens and reads its extras when it connects.
        with closing(self.get_conn()) as connection:
            return conninfo(connection)


class PgspateOperator(BaseOperator):
    """Loads or syncs a source into a table. Returns the report, which Airflow keeps as XCom.

    Attributes:
        source: Paths or URLs, as for `pgspate.load`. A template.
        table: Name of the table, written as in SQL. A template.
        command: ``"load"`` or ``"sync"``.
        options: Arguments of `pgspate.load` or `pgspate.sync`. Strings in it are templates.
        conn_id: Airflow's connection.
    """

    template_fields: Sequence[str] = ("source", "table", "options")

    def __init__(
        self,
        *,
        source: str | Sequence[str],
        table: str,
        command: Literal["load", "sync"] = "load",
        options: dict[str, Any] | None = None,
        conn_id: str = "postgres_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if command not in ("load", "sync"):
            raise UsageError(f'unknown command "{command}"', hint="Use load or sync.")
        self.source = source
        self.table = table
        self.command = command
        self.options = options or {}
        self.conn_id = conn_id

    def execute(self, context: Any) -> dict[str, Any]:
        """Runs the command. Airflow calls this."""
        hook = PgspateHook(postgres_conn_id=self.conn_id)
        call = hook.load if self.command == "load" else hook.sync
        report = call(self.source, self.table, **self.options)
        self.log.info("%r", report)
        return report.to_dict()
