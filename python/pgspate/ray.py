"""Writes datasets of Ray into PostgreSQL, each row once; and many small syncs as tasks of Ray.

Ray repeats a task without limit when its worker or node dies. So only rows of attempts whose
receipt reaches the driver are written.
"""

# Without Ray installed, pyright takes this file for the module `ray`.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.data import Datasink as _RayDatasink
from ray.data.block import BlockAccessor

from . import _calls
from ._blocks import concat_blocks
from ._engine import EngineJob, LoadJobOptions, complete_or_abort
from ._errors import Error, LedgerError, UsageError
from ._fleet import FleetReport, fleet
from ._target import Target, conninfo
from .fleetjob import JobReport, Receipt, Ticket

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset
    from ray.data._internal.execution.interfaces import TaskContext
    from ray.data.block import Block
    from ray.data.datasource import WriteResult
    from typing_extensions import Unpack

__all__ = ["Datasink", "sync_each", "write_postgres"]

_Scope = TypeVar("_Scope")

# Attempts of a task of `sync_each` that fails in a way that a retry may cure.
_RETRIES = 5


class Datasink(_RayDatasink["Receipt | None"]):
    """A table as a sink of ``ds.write_datasink``. All rows become visible at once.

    Attributes:
        report: What was written, after the write.
    """

    def __init__(
        self, table: str, *, to: Target | None = None, **options: Unpack[LoadJobOptions]
    ) -> None:
        """Describes the write. The arguments are those of `write_postgres`. The table exists."""
        self.report: JobReport | None = None
        self._job = EngineJob.of(table, conninfo(to), options)
        self._ticket: Ticket | None = None

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Begins the job. Ray calls this in the driver, and not for a dataset without rows."""
        self._ticket = self._job.begin()

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> Receipt | None:
        """Writes the blocks of a task as a part of the job."""
        ticket = self._begun()
        if ticket.is_complete:
            return None
        # The blocks are made before the server is asked for a connection. Ray keeps them anyway.
        tables = [BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [table for table in tables if table.num_rows]
        if not tables:
            return None
        return ticket.write(ctx.task_idx, concat_blocks(tables), columns=self._job.columns,
                            ignore_unknown=self._job.ignore_unknown)

    def on_write_complete(self, write_result: WriteResult[Receipt | None]) -> None:
        """Completes the job with the receipts of the attempts that count."""
        if self._ticket is None:
            self.on_write_start()
        receipts = [receipt for receipt in write_result.write_returns if receipt is not None]
        self.report = complete_or_abort(self._begun(), receipts)

    def on_write_failed(self, error: Exception) -> None:
        """Aborts the job, unless it is complete."""
        if self._ticket is not None:
            # `pgspate status` shows a job that could not be aborted.
            with suppress(Error):
                self._ticket.abort()

    def get_name(self) -> str:
        """Returns the name of the write's tasks."""
        return "pgspate"

    def _begun(self) -> Ticket:
        if self._ticket is None:
            raise LedgerError("the write has not begun", hint="Use `ds.write_datasink`.")
        return self._ticket


def write_postgres(
    ds: Dataset,
    table: str,
    *,
    to: Target | None = None,
    create: bool = False,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
    **options: Unpack[LoadJobOptions],
) -> JobReport:
    """Writes the rows of a dataset into a table, each row once.

    Args:
        ds: The dataset.
        table: Name of the table, written as in SQL.
        to: As for `pgspate.load`. Without it, driver and tasks find the server by their own
            environment.
        create: Create the table if it does not exist, with types that fit the dataset.
        concurrency: The most tasks that write at once.
        ray_remote_args: Arguments of ``ray.remote`` for the tasks.
        options: As for `pgspate.spark.load`.

    Returns:
        What was written.

    Raises:
        Error: The job could not be begun or completed. The table is unchanged, unless the
            connection was lost: `pgspate status` shows then whether the job is complete.
        RayError: A task failed. The job is aborted, and the table is unchanged. With
            ``commit="task"``, parts that are written stay in the table.
    """
    if create:
        _create_table(ds, EngineJob.of(table, conninfo(to), options))
    sink = Datasink(table, to=to, **options)
    ds.write_datasink(sink, concurrency=concurrency, ray_remote_args=ray_remote_args or {})
    if sink.report is None:
        raise LedgerError("Ray has not completed the write", hint="Run the write again.")
    return sink.report


def _create_table(ds: Dataset, job: EngineJob) -> None:
    """Creates the table if it does not exist. A dataset without rows has no types."""
    import pyarrow

    # The schema that a sink gets may be that of the rows before a fused map.
    schema = ds.schema()
    if schema is not None:
        fields = list(zip(schema.names, schema.types, strict=True))
        for name, data_type in fields:
            if not isinstance(data_type, pyarrow.DataType):
                raise UsageError(f'the type of the column "{name}" is not known',
                                 hint="Create the table first.")
        job.create_table(pyarrow.schema(fields))


class _MayRetry(Exception):
    """An error that a retry may cure. Ray retries this class alone."""


def sync_each(
    scopes: Iterable[_Scope],
    make_rows: Callable[[_Scope], Any],
    table: str,
    *,
    to: Target | None = None,
    fleet_name: str | None = None,
    generation: str | None = None,
    connections: int = 8,
    ray_remote_args: dict[str, Any] | None = None,
    **options: Any,
) -> FleetReport:
    """Syncs many small scopes, each by a task of its own. Each scope is one transaction.

    The tasks are members of a fleet. `pgspate fleet` shows them, also while they run.

    Args:
        scopes: What the tasks get, one item for each task.
        make_rows: Function that a task calls with its item. It returns data as `pgspate.sync` takes
            it: rows, Arrow data, a data frame or a path.
        table: Name of the table, written as in SQL. It must exist.
        to: As for `pgspate.load`. Without it, each task finds the server by its own environment.
        fleet_name: Name of the fleet. Default: the table's name.
        generation: Name of this run, which must grow with each run. Default: the time in UTC.
        connections: The most connections of all tasks together. A sync takes two.
        ray_remote_args: Arguments of ``ray.remote`` for the tasks.
        options: As for `pgspate.sync`: ``scope_by``, ``key`` and so on.

    Returns:
        The report of all members together.

    Raises:
        Error: A task failed. Tasks that are done stay done. With the same generation, a second
            call does the rest.
    """
    server = conninfo(to)
    items = list(scopes)
    now = datetime.datetime.now(datetime.timezone.utc)
    generation = generation or now.strftime("%Y-%m-%dT%H:%M:%S.%f")
    if not items:
        return FleetReport(fleet=fleet_name or table, generation=generation, command="sync",
                           table=table)
    common = {**options, "to": server, "fleet": fleet_name or table, "generation": generation,
              "members": len(items), "connections": connections}

    def sync_scope(item: _Scope, member: int) -> None:
        try:
            _calls.sync(make_rows(item), table, member=member, **common)
        except Error as error:
            if error.is_retryable:
                raise _MayRetry(str(error)) from error
            raise

    as_remote: Any = ray.remote
    settings = {"max_retries": _RETRIES, **(ray_remote_args or {}), "retry_exceptions": [_MayRetry]}
    remote = as_remote(**settings)(sync_scope)
    waiting = [remote.remote(item, member) for member, item in enumerate(items)]
    try:
        ray.get(waiting)
    except ray.exceptions.RayError as error:
        for task in waiting:
            ray.cancel(task, force=False)
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, Error) else error from None
    return fleet(fleet_name or table, generation=generation, to=server)
