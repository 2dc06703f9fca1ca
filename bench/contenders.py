"""Who loads what, and how: one entry per contender and input.

A contender is the command line a user would type, with each peer's own best settings and
nothing hidden: each time includes the start of the program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import TABLES, Dataset, types_for
from measure import Pipeline
from places import BENCH, Places
from server import Server

BASELINE = "psql"
LIMIT = "limit"
LANES = (1, 3)
# No peer counts after a load, so that is measured by itself.
PLAIN = ["--analyze", "never"]


@dataclass(frozen=True)
class Stage:
    """All that a contender's commands are made from."""

    places: Places
    server: Server
    dataset: Dataset

    @property
    def table(self) -> str:
        """The table to fill."""
        return self.dataset.table

    @property
    def path(self) -> str:
        """The input."""
        return str(self.dataset.path)

    def binary_halves(self) -> list[Path]:
        """The table's rows in COPY's binary format, in two files the server can read."""
        return [self.server.folder / f"{self.table}-{n}.bin" for n in (1, 2)]


@dataclass(frozen=True)
class Contender:
    """One way to load one input."""

    name: str
    peer: str
    """Which of the peers it needs."""
    title: str
    commands: Callable[[Stage], list[Pipeline]]
    slow: bool = False
    """Run in the first round only."""


def of(dataset: str) -> list[Contender]:
    """The contenders for an input."""
    return BY_DATASET[dataset]


def psql(stage: Stage, statement: str) -> list[str]:
    """A psql that runs one statement and fails with it."""
    return [str(stage.places.psql), "-Xq", "-v", "ON_ERROR_STOP=1", "-c", statement]


def psql_copy(stage: Stage) -> list[Pipeline]:
    """What everyone does."""
    return [[psql(stage, f"\\copy {stage.table} from '{stage.path}' (format csv, header)")]]


def psql_copy_halves(stage: Stage) -> list[Pipeline]:
    """What one does with a file split by hand."""
    copies = [f"\\copy {stage.table} from '{half}' (format csv)" for half in stage.dataset.halves]
    return [[psql(stage, copy)] for copy in copies]


def server_copy_binary(stage: Stage) -> list[Pipeline]:
    """Nothing to parse, nothing to send: what the server itself can take in."""
    halves = stage.binary_halves()
    return [[psql(stage, f"copy {stage.table} from '{half}' (format binary)")] for half in halves]


def python_peer(script: str, types: str = "") -> Callable[[Stage], list[Pipeline]]:
    """A peer driven by a script in peers/, told the column types as `types` names them."""

    def commands(stage: Stage) -> list[Pipeline]:
        command = [str(stage.places.python), str(BENCH / "peers" / script)]
        command += [stage.path, stage.table]
        return [[command + ([types_for(stage.table, types)] if types else [])]]

    return commands


def pgloader(stage: Stage) -> list[Pipeline]:
    """pgloader takes its orders from a file."""
    names = ", ".join(column.name for column in TABLES[stage.table])
    orders = stage.server.folder / "orders.load"
    orders.write_text(
        f"load csv from '{stage.path}' ({names})\n"
        f"into {stage.server.pgloader_url()}\n"
        f"target table public.{stage.table} ({names})\n"
        "with skip header = 1, fields optionally enclosed by '\"', fields terminated by ',';\n"
    )
    root = str(stage.server.folder / "pgloader")
    return [[["pgloader", "--quiet", "--on-error-stop", "--root-dir", root, str(orders)]]]


def pgspate(*options: str) -> Callable[[Stage], list[Pipeline]]:
    """The program under test."""

    def commands(stage: Stage) -> list[Pipeline]:
        return [[pgspate_load(stage, stage.path, *options)]]

    return commands


def pgspate_load(stage: Stage, source: str, *options: str) -> list[str]:
    """The command that loads a source into the table."""
    command = [str(stage.places.pgspate), "load", source, "--table", stage.table]
    return [*command, "--to", stage.server.conninfo(), "--json", "--quiet", *options]


LIMIT_CONTENDER = Contender(
    LIMIT,
    "psql",
    "physical limit: server-side `COPY BINARY` of ready-made files, two connections",
    server_copy_binary,
)

BY_DATASET = {
    "lineitem-csv": [
        Contender(BASELINE, "psql", "psql `\\copy`", psql_copy),
        LIMIT_CONTENDER,
        Contender(
            "psql-2", "psql", "two psql `\\copy`, file split by hand before", psql_copy_halves
        ),
        Contender("pgspate", "pgspate", "**pgspate load**", pgspate(*PLAIN)),
        Contender(
            "pgspate-chunk",
            "pgspate",
            "pgspate load `--commit chunk`",
            pgspate("--commit", "chunk", *PLAIN),
        ),
        Contender(
            "pgspate-no-ledger",
            "pgspate",
            "pgspate load `--no-ledger`",
            pgspate("--no-ledger", *PLAIN),
        ),
        Contender(
            "pgspate-analyze",
            "pgspate",
            "pgspate load `--analyze always`",
            pgspate("--analyze", "always"),
        ),
        *[
            Contender(
                f"pgspate-lanes-{lanes}",
                "pgspate",
                f"pgspate load `--lanes {lanes}`",
                pgspate("--lanes", str(lanes), *PLAIN),
            )
            for lanes in LANES
        ],
        Contender("duckdb", "duckdb", "DuckDB", python_peer("copy_duckdb.py", "duckdb")),
        Contender("adbc", "adbc", "ADBC", python_peer("copy_adbc.py", "arrow")),
        Contender("psycopg", "psycopg", "psycopg 3 copy", python_peer("copy_psycopg.py")),
        Contender("pgloader", "pgloader", "pgloader", pgloader, slow=True),
    ],
    "lineitem-keyed": [
        Contender(BASELINE, "psql", "psql `\\copy`", psql_copy),
        Contender(
            "psql-2", "psql", "two psql `\\copy`, file split by hand before", psql_copy_halves
        ),
        Contender("pgspate", "pgspate", "**pgspate load**", pgspate(*PLAIN)),
        Contender(
            "pgspate-row-by-row",
            "pgspate",
            "pgspate load `--rebuild-indexes never`",
            pgspate("--rebuild-indexes", "never", *PLAIN),
        ),
    ],
    "lineitem-parquet": [
        Contender("pgspate", "pgspate", "**pgspate load**", pgspate(*PLAIN)),
        Contender("duckdb", "duckdb", "DuckDB", python_peer("copy_duckdb.py")),
        Contender("adbc", "adbc", "ADBC", python_peer("copy_adbc.py")),
    ],
}
