"""The data source of Spark with faults. Spark makes its writer in a process of its own."""

from __future__ import annotations

from faulty import FaultyTicket

from pgspate._spark_source import DefaultSource


class FaultySource(DefaultSource):
    """The data source of the package, with a fault that its options name."""

    @classmethod
    def name(cls):
        return "faulty"

    def writer(self, schema, overwrite):
        fault, marks = self.options.pop("fault"), self.options.pop("marks")
        parts = tuple(map(int, self.options.pop("parts").split(",")))
        writer = super().writer(schema, overwrite)
        writer.ticket = FaultyTicket.of(writer.ticket, fault, parts, marks)
        return writer
