"""The data source of `df.write.format("pgspate")`, for Spark 4.

Spark asks its commit coordinator after `write` has returned, and a losing attempt gets no call. So
an attempt's rows count only if its receipt reaches `commit`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ._engine import complete_or_abort
from ._errors import LedgerError, UsageError
from ._spark_options import SparkOptions, parse_options
from .fleetjob import Receipt, Ticket
from .spark import begin_frame, write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter
    from pyspark.sql.types import StructType

_READ_HINT = 'Read with `spark.read.format("jdbc")`.'


class DefaultSource(DataSource):
    """Spark's data source `pgspate`. Spark finds it in any module named `pyspark_...`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "pgspate"

    def schema(self) -> NoReturn:
        raise UsageError("pgspate reads no tables into Spark", hint=_READ_HINT)

    def reader(self, schema: StructType) -> DataSourceReader:
        raise UsageError("pgspate reads no tables into Spark", hint=_READ_HINT)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802
        raise UsageError("pgspate reads no streams into Spark")

    def writer(self, schema: StructType, overwrite: bool) -> PartWriter:
        """Begins the job. Spark calls this once, when the write is executed."""
        options = parse_options(self.options, overwrite=overwrite)
        for note in options.notes:
            warnings.warn(note, stacklevel=2)
        ticket = begin_frame(options, schema, options.create)
        return PartWriter(ticket, options)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Checks the options. Spark calls this twice for each epoch."""
        options = parse_options(self.options, overwrite=overwrite, is_stream=True)
        try:
            from ._spark_stream import EpochWriter
        except ImportError:
            hint = "Write each epoch by `.foreachBatch(pgspate.spark.sink(table, to=...))`."
            message = "`writeStream.format(\"pgspate\")` needs Spark 4.1 or newer"
            raise UsageError(message, hint=hint) from None
        return EpochWriter(schema, options)


@dataclass
class PartMessage(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        receipt: The receipt of the attempt, or None if the partition had no rows or the job was
            complete already.
    """

    receipt: Receipt | None


class PartWriter(DataSourceArrowWriter):
    """Writes partitions as parts of a job, and completes it. Spark pickles it to the tasks."""

    def __init__(self, ticket: Ticket, options: SparkOptions) -> None:
        self.ticket = ticket
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        if self.ticket.is_complete:
            return PartMessage(None)
        receipt = write_batches(self.options, self.ticket, iterator)
        return PartMessage(receipt)

    def commit(self, messages: list[Any]) -> None:
        complete(self.ticket, messages)

    def abort(self, messages: list[Any]) -> None:
        self.ticket.abort()


def complete(ticket: Ticket, messages: list[Any]) -> None:
    """Completes a job with the receipts of its tasks' messages, and shows the report."""
    if not all(isinstance(message, PartMessage) for message in messages):
        raise LedgerError("a task has ended without a message",
                          hint="Run the job again. Nothing was written.")
    receipts = [message.receipt for message in messages if message.receipt is not None]
    report = complete_or_abort(ticket, receipts)
    for warning in report.warnings:
        warnings.warn(warning, stacklevel=3)
    print(f"pgspate: {report._summary()}", file=sys.stderr)
