"""The writer of `df.writeStream.format("pgspate")`, for Spark 4.1 and newer.

Spark makes a writer for the tasks of an epoch, and another for `commit`. Neither can act before the
tasks. So tasks begin the job of the epoch or join it, and `commit` completes it. The query's id
comes from the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from ._errors import Error, LedgerError
from ._spark_options import SparkOptions
from ._spark_source import PartMessage, complete
from ._spark_types import arrow_schema
from .fleetjob import Epoch, Ticket
from .spark import write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class EpochMessage(PartMessage):
    """What a task of an epoch tells the driver.

    Attributes:
        query: Id of the streaming query, which the checkpoint keeps.
    """

    query: str


class EpochWriter(DataSourceStreamArrowWriter):
    """Writes the epochs of a stream, each as a job. Spark pickles it to the tasks."""

    def __init__(self, schema: StructType, options: SparkOptions) -> None:
        arrow = arrow_schema(schema)
        if options.create:
            options.create_table(arrow)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> EpochMessage:
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        number = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or not number:
            raise LedgerError("Spark does not tell the number of the epoch",
                              hint="Write by `.foreachBatch(pgspate.spark.sink(table, to=...))`.")
        # There is no connection before the first row.
        rows = (batch for batch in iterator if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return EpochMessage(None, query)
        ticket = self._begin(query, int(number))
        if ticket.is_complete:
            return EpochMessage(None, query)
        return EpochMessage(write_batches(self.options, ticket, chain([first], rows)), query)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        query = next((message.query for message in messages if message is not None), None)
        if query is None:
            raise LedgerError("an epoch has ended without a task",
                              hint="Start the query again, which repeats the epoch.")
        ticket = self._begin(query, batchId)
        if not ticket.is_complete:
            complete(ticket, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        for message in messages:
            if message is not None and message.receipt is not None:
                # Does nothing if the job is complete, as after a commit whose answer was lost.
                with suppress(Error):
                    self._begin(message.query, batchId).abort()
                return

    def _begin(self, query: str, number: int) -> Ticket:
        # Spark commits every epoch, also one without rows.
        epoch = Epoch(self.options.stream or query, number, query, is_gapless=True)
        return replace(self.options, job=epoch).begin()
