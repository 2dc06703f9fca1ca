"""The options of `df.write.format("pgspate")`, spelled as those of Spark's JDBC writer.

No option is ignored silently. A warning names options of JDBC that have no effect. An option of
JDBC that would change what is written is refused, and an unknown option is an error.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from ._engine import EngineJob, mode_options
from ._errors import UsageError

# Options in the case in which they are documented. Spark's options are case-insensitive.
_TARGET = ("url", "dbtable", "user", "password", "service", "passfile")
_TEXTS = {"commit": "commit", "scope": "scope", "maxDelete": "max_delete"}
_LISTS = {"key": "key", "scopeBy": "scope_by", "ignoreColumns": "ignore_columns"}
_FLAGS = {"noDelete": "no_delete", "insertOnly": "insert_only", "allowEmpty": "allow_empty",
          "stableParts": "stable_parts"}
_NUMBERS = {"connections": "connections", "buffer": "buffer", "maxRejects": "max_rejects"}
_OTHERS = ("write", "job", "stream", "columns", "ignoreUnknown", "create")
OPTIONS = (*_TARGET, *_TEXTS, *_LISTS, *_FLAGS, *_NUMBERS, *_OTHERS)

# Options of JDBC that say how it writes, or how it reads. Here they have no effect.
_WITHOUT_EFFECT = {
    "batchsize": "pgspate writes by COPY",
    "isolationlevel": "the rows of a job, or of a task, are committed at once",
    "numpartitions": "use `connections`",
    "truncate": "`.mode(\"overwrite\")` keeps the table's definition",
    "cascadetruncate": "a table that others refer to is not overwritten",
    "driver": "pgspate needs no driver",
    "connectionprovider": "pgspate needs no driver",
    "fetchsize": "it is for reading",
    "querytimeout": "pgspate sets no time limit for statements",
    "partitioncolumn": "it is for reading",
    "lowerbound": "it is for reading",
    "upperbound": "it is for reading",
    "customschema": "it is for reading",
    "prefertimestampntz": "it is for reading",
    "hint": "it is for reading",
    "pushdownpredicate": "it is for reading",
    "pushdownaggregate": "it is for reading",
    "pushdownlimit": "it is for reading",
    "pushdownoffset": "it is for reading",
    "pushdowntablesample": "it is for reading",
    "refreshkrb5config": "pgspate does not use Kerberos",
}
# Options of JDBC that change what is written, or where.
_REFUSED = {
    "query": "Use `dbtable`: a query cannot be written to.",
    "preparequery": "Leave it out: it is for reading.",
    "sessioninitstatement": "Set it for the role, with `alter role ... set`.",
    "createtableoptions": "Create the table first.",
    "createtablecolumntypes": "Create the table first.",
    "keytab": "Use a password, a certificate or a service file: Kerberos is not supported.",
    "principal": "Use a password, a certificate or a service file: Kerberos is not supported.",
    "path": "Use `.option(\"dbtable\", ...).save()`: a table has no path.",
}

# Parameters of a JDBC URL that libpq has under another name, and those that it has as well.
_URL_RENAMED = {
    "applicationname": "application_name",
    "connecttimeout": "connect_timeout",
    "logintimeout": "connect_timeout",
    "sslnegotiation": "sslnegotiation",
    "channelbinding": "channel_binding",
    "gssencmode": "gssencmode",
}
_URL_WITHOUT_EFFECT = {
    "adaptivefetch", "adaptivefetchmaximum", "adaptivefetchminimum", "assumeminserverversion",
    "autosave", "binarytransfer", "binarytransferdisable", "binarytransferenable",
    "cleanupsavepoints", "databasemetadatacachefields", "databasemetadatacachefieldsmib",
    "defaultrowfetchsize", "disablecolumnsanitiser", "escapesyntaxcallmode",
    "hostrecheckseconds", "loggerfile", "loggerlevel", "logserverrordetail",
    "logunclosedconnections", "maxresultbuffer", "prefersimplequery", "preferquerymode",
    "preparedstatementcachequeries", "preparedstatementcachesizemib", "preparethreshold",
    "protocolversion", "quotereturningidentifiers", "readonly", "readonlymode",
    "receivebuffersize", "rewritebatchedinserts", "sendbuffersize", "sockettimeout",
    "cancelsignaltimeout", "stringtype", "tcpkeepalive", "tcpnodelay",
    "unknownlength",
}


@dataclass(frozen=True)
class SparkOptions(EngineJob):
    """The options of a write.

    Attributes:
        stream: Name of the stream.
        create: Whether to create the table if it does not exist.
        notes: What the user should know about options without effect.
    """

    stream: str | None = None
    create: bool = False
    notes: list[str] = field(default_factory=list)


def parse_options(
    options: Mapping[str, str], *, overwrite: bool, is_stream: bool = False
) -> SparkOptions:
    """Returns the options of a write.

    Args:
        options: The options as Spark passes them.
        overwrite: Whether the write has the mode `overwrite`; a stream: the output mode `complete`.
        is_stream: Whether a stream is written.

    Raises:
        UsageError: An option is unknown, contradicts another, or has a wrong value.
    """
    given = {name.lower(): value for name, value in options.items()}
    if is_stream:
        # The engine's, not the sink's.
        given.pop("checkpointlocation", None)
    notes = _check_names(given)
    if is_stream and "job" in given:
        raise UsageError("a stream has no option job", hint="Name the stream by `stream`.")
    if not is_stream and "stream" in given:
        raise UsageError("the option stream is for `writeStream`", hint="Name the job by `job`.")
    to = _target(given, notes)
    if "dbtable" not in given:
        raise UsageError("the option dbtable is missing", hint="Name the table with `dbtable`.")
    begin = _mode(given.get("write", "append").lower(), overwrite)
    for name, argument in _TEXTS.items():
        if name.lower() in given:
            begin[argument] = given[name.lower()]
    for name, argument in _LISTS.items():
        if name.lower() in given:
            begin[argument] = _names(given[name.lower()])
    for name, argument in _FLAGS.items():
        if _flag(given, name):
            begin[argument] = True
    for name, argument in _NUMBERS.items():
        if name.lower() in given:
            begin[argument] = _number(name, given[name.lower()])
    columns = _names(given["columns"]) if "columns" in given else None
    return SparkOptions(given["dbtable"], to, given.get("job"), begin, columns,
                        _flag(given, "ignoreUnknown"), given.get("stream"),
                        _flag(given, "create"), notes)


def _check_names(given: dict[str, str]) -> list[str]:
    """Refuses options that are not known. Returns notes on options without effect."""
    known = {name.lower(): name for name in OPTIONS}
    notes = []
    for name in given.keys() - known.keys():
        if name in _REFUSED:
            message = f"the option {name} of JDBC is not supported"
            raise UsageError(message, hint=_REFUSED[name])
        if name not in _WITHOUT_EFFECT:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean `{known[near[0]]}`?" if near else None
            raise UsageError(f"unknown option {name}",
                             hint=hint or f"The options are {', '.join(OPTIONS)}.")
        notes.append(f"the option {name} has no effect: {_WITHOUT_EFFECT[name]}")
    return notes


def _mode(write: str, overwrite: bool) -> dict[str, Any]:
    """Returns the arguments of `begin_write` for the option `write` and Spark's mode."""
    if write not in ("append", "upsert", "sync"):
        raise UsageError(f'the option write is "{write}"',
                         hint="Use append, upsert or sync; or `.mode(\"overwrite\")`.")
    if overwrite and write != "append":
        raise UsageError(f'`.mode("overwrite")` and write={write} contradict each other',
                         hint="Use `.mode(\"append\")`.")
    return dict(mode_options("overwrite" if overwrite else write))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _flag(given: dict[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f'the option {name} is "{text}"', hint="Use true or false.")
    return text == "true"


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f'the option {name} is "{text}"', hint="Use a whole number.")
    return int(text)


def _target(given: dict[str, str], notes: list[str]) -> str | None:
    """Returns the connection string of the options."""
    names = ("user", "password", "passfile")
    parameters: dict[str, str] = {name: given[name] for name in names if name in given}
    url, service = given.get("url"), given.get("service")
    if url is not None and service is not None:
        raise UsageError("the options url and service are both given", hint="Use one of them.")
    if url is not None:
        return _with_parameters(_without_jdbc(url, notes), parameters)
    if service is not None:
        parameters["service"] = service
    elif not any(name in os.environ for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE")):
        hint = "Give `url`, as in jdbc:postgresql://host/database, or `service`."
        raise UsageError("the option url is missing", hint=hint)
    pairs = [f"{name}={_quoted(value)}" for name, value in parameters.items()]
    return " ".join(pairs) or None


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _with_parameters(to: str, parameters: dict[str, str]) -> str:
    """Returns the connection string with parameters that take precedence over its own."""
    if not parameters:
        return to
    if "://" not in to:
        pairs = [f"{name}={_quoted(value)}" for name, value in parameters.items()]
        return " ".join([to, *pairs])
    pairs = [f"{name}={quote(value, safe='')}" for name, value in parameters.items()]
    return to + ("&" if "?" in to else "?") + "&".join(pairs)


def _without_jdbc(url: str, notes: list[str]) -> str:
    """Returns a JDBC URL as a URL of libpq, and other connection strings as they are."""
    if not url.startswith("jdbc:"):
        return url
    url = url.removeprefix("jdbc:")
    if not url.startswith("postgresql:"):
        scheme = url.partition(":")[0]
        raise UsageError(f"the URL is of {scheme}, not of PostgreSQL",
                         hint="Give a URL such as jdbc:postgresql://host/database.")
    if not url.startswith("postgresql://"):
        # `jdbc:postgresql:database` and `jdbc:postgresql:/` mean the server of this machine.
        url = "postgresql://localhost/" + url.removeprefix("postgresql:").lstrip("/")
    parts = urlsplit(url)
    pairs = [pair for name, value in parse_qsl(parts.query, keep_blank_values=True)
             for pair in _url_parameter(name, value, notes)]
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
    return urlunsplit(parts._replace(query=query))


def _url_parameter(name: str, value: str, notes: list[str]) -> list[tuple[str, str]]:
    """Returns a parameter of a JDBC URL as parameters of libpq."""
    low = name.lower()
    if low in _URL_RENAMED:
        return [(_URL_RENAMED[low], value)]
    if low == "ssl":
        # The driver verifies certificate and host name, unless sslmode says otherwise.
        return [("sslmode", "verify-full")] if value.lower() in ("", "true") else []
    if low == "currentschema":
        return [("options", f"-c search_path={value.replace(' ', '')}")]
    if low == "targetservertype":
        attributes = {"master": "primary", "secondary": "standby", "slave": "standby",
                      "preferslave": "prefer-standby", "prefersecondary": "prefer-standby"}
        return [("target_session_attrs", attributes.get(value.lower(), value.lower()))]
    if low in _URL_WITHOUT_EFFECT:
        notes.append(f"the parameter {name} of the URL has no effect")
        return []
    # What libpq does not know either is refused when connecting.
    return [(name, value)]
