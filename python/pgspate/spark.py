"""Writes the rows of Spark's data frames into PostgreSQL, each row once.

`load` and `sync` run on Spark 3.5 and 4, with Spark Connect, too. `sink` makes a function for
`foreachBatch` of a stream. On Spark 4, `df.write.format("pgspate")` needs none of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from queue import Empty, Full, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from ._engine import EngineJob, JobOptions, LoadJobOptions, complete_or_abort
from ._errors import Error, UsageError
from ._spark_types import arrow_schema
from ._target import Target, conninfo
from .fleetjob import Epoch, JobReport, Receipt, Ticket

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

__all__ = ["load", "sink", "sync"]

# Record batches between Spark's thread and the thread that writes. A batch has 10,000 rows.
_BATCHES_MAX = 2
# Seconds after which Spark's thread looks whether the other thread has failed.
_LOOK_SECONDS = 0.5


def load(
    df: DataFrame,
    table: str,
    *,
    to: Target | None = None,
    create: bool = False,
    partitions: int | None = None,
    stable_parts: bool = False,
    **options: Unpack[LoadJobOptions],
) -> JobReport:
    """Writes the rows of a data frame into a table, each row once.

    Args:
        df: The data frame.
        table: Name of the table, written as in SQL.
        to: As for `pgspate.load`. Without it, driver and executors find the server by their own
            environment.
        create: Create the table if it does not exist, with types that fit the data frame.
        partitions: The most tasks that write. Spark coalesces the partitions.
        stable_parts: As for `pgspate.fleetjob.begin_write`.
        options: ``job=`` is a name by which a rerun of the driver finds the job: a complete job is
            not written again. ``mode=`` is ``"append"``, ``"overwrite"`` for new rows in the place
            of all old ones, or ``"upsert"``, whose ``key=`` is the primary key by default.
            ``columns=`` and ``ignore_unknown=`` are those of `pgspate.load`. ``commit=``,
            ``max_rejects=``, ``connections=`` and ``buffer=`` are those of
            `pgspate.fleetjob.begin_write`.

    Returns:
        What was written.

    Raises:
        Error: The job could not be begun or completed. The table is unchanged, unless the
            connection was lost: `pgspate status` shows then whether the job is complete.
        PySparkException: A task failed too often. The job is aborted, and the table is unchanged.
            With ``commit="task"``, parts that are written stay in the table.
    """
    job = EngineJob.of(table, conninfo(to), options, stable_parts=stable_parts)
    return _write(job, df, create, partitions)


def sync(
    df: DataFrame,
    table: str,
    *,
    to: Target | None = None,
    key: Sequence[str] = (),
    scope_by: str | Sequence[str] = (),
    scope: str | None = None,
    no_delete: bool = False,
    insert_only: bool = False,
    ignore_columns: Sequence[str] = (),
    max_delete: float | str | None = None,
    allow_empty: bool = False,
    create: bool = False,
    partitions: int | None = None,
    **options: Unpack[JobOptions],
) -> JobReport:
    """Makes a table's rows equal to those of a data frame, and writes only rows that differ.

    Args:
        df: The data frame.
        table: Name of the table, written as in SQL.
        to: As for `load`.
        key: Columns that identify a row. Default: the primary key.
        scope_by: Columns. The scope is all rows whose values in these columns occur in the data.
        scope: "all" for the whole table, or an SQL predicate over its columns.
        no_delete: Insert and update rows, and delete none.
        insert_only: Insert rows, and neither update nor delete any.
        ignore_columns: Columns that are not compared. They are written when another column differs.
        max_delete: Fail if the sync would delete a larger share of the scope, in percent.
        allow_empty: Allow a data frame without rows, which empties the scope.
        create: As for `load`.
        partitions: As for `load`.
        options: ``job=``, ``columns=``, ``ignore_unknown=``, ``max_rejects=``, ``connections=`` and
            ``buffer=``, as for `load`.

    Returns:
        What was written.

    Raises:
        Error: The job could not be begun or completed. The table is unchanged, unless the
            connection was lost: `pgspate status` shows then whether the job is complete.
        PySparkException: A task failed too often. The job is aborted, and the table is unchanged.
    """
    scopes = [scope_by] if isinstance(scope_by, str) else list(scope_by)
    job = EngineJob.of(
        table, conninfo(to), options, "sync", key=list(key), scope_by=scopes, scope=scope,
        no_delete=no_delete, insert_only=insert_only, ignore_columns=list(ignore_columns),
        max_delete=max_delete, allow_empty=allow_empty)
    return _write(job, df, create, partitions)


def sink(
    table: str, *, to: Target | None = None, stream: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """Returns a function for ``foreachBatch``, which writes each epoch of a stream once.

    The ledger has the latest epoch. So an epoch that Spark repeats after a restart is not written
    again.

    Args:
        table: Name of the table, written as in SQL.
        to: As for `load`.
        stream: Name of the stream. Default: the query's id, which the checkpoint keeps. A query
            with a new checkpoint counts its epochs from 0 again, and is refused as a stream of a
            name that another query has. Spark Connect does not tell the id: there, give each
            checkpoint another name.
        options: As for `load`.

    Returns:
        A function of a data frame and the number of its epoch.
    """
    server = conninfo(to)
    if "job" in options:
        raise UsageError("a stream has no `job=`", hint="Name the stream by `stream=`.")

    def write_epoch(df: DataFrame, epoch: int) -> None:
        query = _query_id(df)
        if stream is None and query is None:
            # Spark Connect tells no properties of the query.
            raise UsageError("the id of the streaming query is not known",
                             hint="Name the stream by `stream=`, another for each checkpoint.")
        load(df, table, to=server, job=Epoch(stream or str(query), epoch, query), **options)

    return write_epoch


def _query_id(df: DataFrame) -> str | None:
    """Returns the id of the streaming query, which stays when the query is restarted."""
    with suppress(Exception):
        context = df.sparkSession.sparkContext
        return context.getLocalProperty("sql.streaming.queryId") or None
    return None


def begin_frame(job: EngineJob, schema: Any, create: bool) -> Ticket:
    """Begins a job that writes rows of Spark's schema."""
    arrow = arrow_schema(schema)
    if create:
        job.create_table(arrow)
    return job.begin()


def _write(job: EngineJob, df: DataFrame, create: bool, partitions: int | None) -> JobReport:
    """Begins a job, writes the data frame's partitions as its parts, and completes it."""
    ticket = begin_frame(job, df.schema, create)
    if ticket.is_complete:
        return ticket.complete([])
    if partitions is not None:
        df = df.coalesce(partitions)

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        receipt = write_batches(job, ticket, batches)
        texts = [] if receipt is None else [json.dumps(asdict(receipt))]
        yield pyarrow.record_batch([pyarrow.array(texts, pyarrow.string())], ["receipt"])

    try:
        found = df.mapInArrow(write_partition, "receipt string").collect()
    except BaseException:
        # A complete job stays as it is. `pgspate status` shows a job that could not be aborted.
        with suppress(Error):
            ticket.abort()
        raise
    return complete_or_abort(ticket, [Receipt(**json.loads(row[0])) for row in found])


def write_batches(
    job: EngineJob, ticket: Ticket, batches: Iterable[pa.RecordBatch]
) -> Receipt | None:
    """Writes a partition within its task. Returns None if the partition has no rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise UsageError("a part is written outside of a task of Spark")
    # Spark's iterator stays in this thread. There is no connection before the first row.
    rows = (batch for batch in batches if batch.num_rows)
    first = next(rows, None)
    if first is None:
        return None
    pump = _BatchPump(first)
    receipts: list[Receipt] = []
    errors: list[BaseException] = []

    def write() -> None:
        try:
            receipts.append(ticket.write(context.partitionId(), pump.reader(),
                                         columns=job.columns, ignore_unknown=job.ignore_unknown))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = Thread(target=write, name="pgspate writes a part", daemon=True)
    thread.start()
    try:
        pump.feed(rows, thread)
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return receipts[0]


class _SourceFailed(Exception):
    """Ends the rows of a part whose task failed, so that its transaction is rolled back."""


class _BatchPump:
    """Record batches on the way from Spark's thread to the thread that writes."""

    def __init__(self, first: pa.RecordBatch) -> None:
        self._first = first
        self._queue: Queue[pa.RecordBatch | _SourceFailed | None] = Queue(_BATCHES_MAX)

    def reader(self) -> pa.RecordBatchReader:
        """Returns the batches as a stream, for the thread that writes."""
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(
            self._first.schema, chain([self._first], self._taken()))

    def _taken(self) -> Iterator[pa.RecordBatch]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, _SourceFailed):
                raise item
            yield item

    def feed(self, batches: Iterable[pa.RecordBatch], reader: Thread) -> None:
        """Passes batches on until they end, or until the thread that writes has ended."""
        end: _SourceFailed | None = _SourceFailed("the task failed")
        try:
            for batch in batches:
                if not self._put(batch, reader):
                    break
            end = None
        finally:
            self._put(end, reader)

    def _put(self, item: pa.RecordBatch | _SourceFailed | None, reader: Thread) -> bool:
        while reader.is_alive():
            with suppress(Full):
                self._queue.put(item, timeout=_LOOK_SECONDS)
                return True
        with suppress(Empty):
            self._queue.get_nowait()
        return False
