"""Describes and begins jobs with the user's options, for the modules of Spark, Ray and dlt."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import _calls
from ._errors import Error, UsageError
from .fleetjob import Epoch, JobReport, Receipt, Ticket, begin_write

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self


class JobOptions(TypedDict, total=False):
    """Options of a job of an engine.

    Attributes:
        job: Name by which a rerun of the driver finds the job. A complete job is not written again.
            The name may be the `pgspate.fleetjob.Epoch` of a stream.
        columns: As for `pgspate.load`.
        ignore_unknown: As for `pgspate.load`.
        max_rejects: As for `pgspate.fleetjob.begin_write`, like all that follow.
        connections: The most connections of all tasks together.
        buffer: MiB that a task reads before it connects.
    """

    job: str | Epoch | None
    columns: Sequence[str] | None
    ignore_unknown: bool
    max_rejects: int | None
    connections: int | None
    buffer: int | None


class LoadJobOptions(JobOptions, total=False):
    """Options of a job that loads rows.

    Attributes:
        mode: ``"append"`` adds rows, ``"overwrite"`` replaces all rows of the table, and
            ``"upsert"`` updates rows of the same key and inserts the others.
        key: For ``"upsert"``: columns that identify a row. Default: the primary key.
        commit: As for `pgspate.fleetjob.begin_write`.
    """

    mode: Literal["append", "overwrite", "upsert"]
    key: Sequence[str]
    commit: Literal["job", "task"] | None


# Write modes by the names that Spark, Ray and dlt use, as options of `begin_write`.
_MODES: dict[str, dict[str, Any]] = {
    "append": {},
    # As other sinks of these engines do, no rows overwrite all rows.
    "overwrite": {"mode": "replace", "allow_empty": True},
    "upsert": {"mode": "sync", "no_delete": True},
    "sync": {"mode": "sync"},
}


def mode_options(mode: str) -> dict[str, Any]:
    """Returns the arguments of `begin_write` for a mode.

    Raises:
        UsageError: There is no such mode.
    """
    if mode not in _MODES:
        raise UsageError(f'unknown mode "{mode}"', hint=f"The modes are {', '.join(_MODES)}.")
    return _MODES[mode]


@dataclass(frozen=True)
class EngineJob:
    """A job as the user of an engine describes it. It can be pickled.

    Attributes:
        table: Name of the table, written as in SQL.
        to: Connection string. None stands for the environment of each process.
        job: Name of the job.
        begin_options: Arguments of `begin_write`, without those that have no value.
        columns: Columns of the table that are written.
        ignore_unknown: Whether columns that the table lacks are left out.
    """

    table: str
    to: str | None
    job: str | Epoch | None = None
    begin_options: dict[str, Any] = field(default_factory=dict)
    columns: Sequence[str] | None = None
    ignore_unknown: bool = False

    @classmethod
    def of(
        cls, table: str, to: str | None, options: LoadJobOptions | JobOptions,
        mode: str | None = None, **more: Any,
    ) -> Self:
        """Returns a job with these options, and with more arguments of `begin_write`.

        Raises:
            TypeError: There is no such option.
        """
        known = JobOptions if mode else LoadJobOptions
        for name in options:
            if name not in known.__optional_keys__:
                raise TypeError(f"got an unexpected keyword argument '{name}'")
        begin: dict[str, Any] = {**options, **more}
        job, columns = begin.pop("job", None), begin.pop("columns", None)
        ignore_unknown = begin.pop("ignore_unknown", False)
        chosen: str = mode or begin.pop("mode", "append")
        given = {name: value for name, value in begin.items()
                 if value not in (None, [], ()) and value is not False}
        return cls(table, to, job, {**mode_options(chosen), **given}, columns, ignore_unknown)

    def begin(self) -> Ticket:
        """Begins the job, and shows what the user should know."""
        ticket = begin_write(self.table, to=self.to, job=self.job, **self.begin_options)
        for warning in ticket.warnings:
            warnings.warn(warning, stacklevel=4)
        return ticket

    def create_table(self, schema: pa.Schema) -> None:
        """Creates the table for rows of a schema, if it does not exist.

        Raises:
            UsageError: A column has no type, because all of its values are NULL.
        """
        for one in schema:
            if str(one.type) == "null":
                raise UsageError(f'the column "{one.name}" has only NULLs, and no type',
                                 hint="Cast it to the type that the new column should have.")
        _calls.load(schema.empty_table(), self.table, to=self.to, create=True,
                    primary_key=self.begin_options.get("key", []), ignore_unknown=True)


def complete_or_abort(ticket: Ticket, receipts: Iterable[Receipt]) -> JobReport:
    """Completes a job. After an error, aborts the job.

    Returns the report also if only the answer to the commit was lost.
    """
    try:
        return ticket.complete(receipts)
    except BaseException as error:
        # `pgspate status` shows a job that could not be aborted.
        with suppress(Error):
            if not ticket.abort() and isinstance(error, Error):
                return ticket.complete([])
        raise
