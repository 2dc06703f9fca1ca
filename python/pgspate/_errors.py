"""The exceptions: one class for each way in which a caller can react."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ._python_words import in_python

__all__ = [
    "BugError",
    "Cancelled",
    "ConnectError",
    "ConversionError",
    "Error",
    "FormatError",
    "LedgerError",
    "OutcomeUnknown",
    "Place",
    "PlanError",
    "QueueFull",
    "ServerError",
    "SourceError",
    "UsageError",
]


@dataclass(frozen=True)
class Place:
    """A place in the input.

    Attributes:
        source: Name of the input: a path or URL as the caller gave it, or the class of the data.
        line: Line, counted from 1, for formats with lines. For events of an iterable: number of the
            event, counted from 1.
        row: Row, counted from 1, for formats without lines.
        byte: Offset into the decompressed input, in bytes.
        column: Name of the column.
    """

    source: str | None = None
    line: int | None = None
    row: int | None = None
    byte: int | None = None
    column: str | None = None


class Error(Exception):
    """Base class of all errors. Its subclasses say how a caller can react.

    ``str()`` returns the message with its causes, its place and its hint. ``__cause__`` is the
    cause as an exception, which may have a cause itself.

    Attributes:
        message: What could not be done, in one line, without causes.
        kind: Kind of error: ``usage``, ``source``, ``format``, ``type``, ``connect``, ``server``,
            ``plan``, ``ledger``, ``outcome unknown``, ``queue full``, ``cancelled`` or ``bug``.
        place: Place in the input, if the input caused the error.
        hint: What to do about the error, if known.
        sqlstate: SQLSTATE of the server's error, if the server reported one.
        is_retryable: Whether the same call may succeed when it is repeated.

    Example:
        >>> import pgspate
        >>> with pgspate.server(temporary=True) as server:
        ...     try:
        ...         pgspate.load([(1,)], "nowhere", to=server)
        ...     except pgspate.Error as error:
        ...         print(error.kind, error.sqlstate)
        plan 42P01
    """

    kind: ClassVar[str] = "bug"

    def __init__(
        self,
        message: str,
        *,
        place: dict[str, Any] | None = None,
        place_text: str | None = None,
        hint: str | None = None,
        sqlstate: str | None = None,
        is_retryable: bool = False,
        reasons: list[str] | None = None,
    ) -> None:
        self.message = in_python(message)
        super().__init__(self.message)
        self.place = Place(**place) if place else None
        self.hint = in_python(hint) if hint else None
        self.sqlstate = sqlstate
        self.is_retryable = is_retryable
        self._place_text = place_text
        self._reasons = [in_python(reason) for reason in reasons or ()]

    def __str__(self) -> str:
        text = ": ".join([self.message, *self._reasons])
        if self._place_text:
            text += f" ({self._place_text})"
        if self.hint:
            text += f"\nhint: {self.hint}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle, (type(self), self.args[0], self.__dict__))


def _unpickle(cls: type[Error], message: str, state: dict[str, Any]) -> Error:
    error = cls(message)
    error.__dict__.update(state)
    return error


class UsageError(Error, ValueError):
    """The call itself is wrong, such as a wrong option or options that exclude each other."""

    kind = "usage"


class SourceError(Error):
    """The input could not be found or read."""

    kind = "source"


class FormatError(Error):
    """The input is not valid in its format."""

    kind = "format"


class ConversionError(Error):
    """A value cannot be converted to the type of its column."""

    kind = "type"


class ConnectError(Error):
    """The server cannot be reached, or the connection was lost."""

    kind = "connect"


class ServerError(Error):
    """The server reported an error; ``sqlstate`` has its code."""

    kind = "server"


class PlanError(Error):
    """The call is not possible with this table, or with these data."""

    kind = "plan"


class LedgerError(Error):
    """The ledger contradicts the call, or cannot be used."""

    kind = "ledger"


class OutcomeUnknown(Error):
    """The connection was lost before the server answered: the records are written or not."""

    kind = "outcome unknown"


class QueueFull(Error):
    """The queue of a writer is full, and the writer does not wait for room."""

    kind = "queue full"


class Cancelled(Error):
    """The call was stopped, and its open transactions were rolled back."""

    kind = "cancelled"


class BugError(Error):
    """pgspate has a bug."""

    kind = "bug"
