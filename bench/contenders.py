"""The contenders: for each input, the ways to load it that are measured.

A contender runs the command line that a user would type, with the best settings of its program.
The measured time includes the start of the program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import COLUMNS_BY_TABLE, Dataset, column_types_json
from measure import Pipeline
from places import BENCH, Places
from server import Server

BASELINE = "psql"
PHYSICAL_LIMIT = "limit"
LANE_COUNTS = (1, 3)
# No other contender runs ANALYZE after its load. `pgspate-analyze` measures a load with ANALYZE.
NO_ANALYZE = ["--analyze", "never"]


@dataclass(frozen=True)
class LoadSetup:
    """The programs, server and input from which a contender makes its commands."""

    places: Places
    server: Server
    dataset: Dataset

    @property
    def table(self) -> str:
        """Returns the name of the table to load."""
        return self.dataset.table

    @property
    def path(self) -> str:
        """Returns the path of the input file."""
        return str(self.dataset.path)

    def binary_half_paths(self) -> list[Path]:
        """Returns the paths of two files in the server's folder, each for half of the rows.

        `TrialRunner.make_reference` writes the files in COPY's binary format.
        """
        return [self.server.folder / f"{self.table}-{n}.bin" for n in (1, 2)]


@dataclass(frozen=True)
class Contender:
    """One way to load one input."""

    name: str
    peer: str
    """Name of the peer whose program the contender runs."""
    title: str
    commands: Callable[[LoadSetup], list[Pipeline]]
    first_round_only: bool = False
    """Whether the contender, being slow, runs in the first round only."""


def contenders_for(dataset: str) -> list[Contender]:
    """Returns the contenders for an input."""
    return CONTENDERS_BY_DATASET[dataset]


def psql_command(setup: LoadSetup, statement: str) -> list[str]:
    """Returns the psql command that runs one statement, and fails if the statement fails."""
    return [str(setup.places.psql), "-Xq", "-v", "ON_ERROR_STOP=1", "-c", statement]


def psql_copy_commands(setup: LoadSetup) -> list[Pipeline]:
    """Returns the usual way: one `\\copy` by psql."""
    return [[psql_command(setup, f"\\copy {setup.table} from '{setup.path}' (format csv, header)")]]


def psql_copy_halves_commands(setup: LoadSetup) -> list[Pipeline]:
    """Returns two `\\copy` commands at the same time, one for each half of a file split by hand."""
    copies = [
        f"\\copy {setup.table} from '{half}' (format csv)" for half in setup.dataset.half_paths
    ]
    return [[psql_command(setup, copy)] for copy in copies]


def server_copy_binary_commands(setup: LoadSetup) -> list[Pipeline]:
    """Returns two server-side COPY commands at the same time, of ready-made binary files.

    No client sends data and the server parses no text, so this is the physical limit.
    """
    halves = setup.binary_half_paths()
    return [
        [psql_command(setup, f"copy {setup.table} from '{half}' (format binary)")]
        for half in halves
    ]


def python_peer_commands(script: str, types: str = "") -> Callable[[LoadSetup], list[Pipeline]]:
    """Returns a function that makes the command of a script in bench/peers/.

    If `types` is set, the command gets the column types as `arrow` or `duckdb` spells them.
    """

    def commands(setup: LoadSetup) -> list[Pipeline]:
        command = [str(setup.places.python), str(BENCH / "peers" / script)]
        command += [setup.path, setup.table]
        return [[command + ([column_types_json(setup.table, types)] if types else [])]]

    return commands


def pgloader_commands(setup: LoadSetup) -> list[Pipeline]:
    """Writes pgloader's command file, and returns the command that runs it."""
    names = ", ".join(column.name for column in COLUMNS_BY_TABLE[setup.table])
    load_file = setup.server.folder / "pgloader.load"
    load_file.write_text(
        f"load csv from '{setup.path}' ({names})\n"
        f"into {setup.server.pgloader_url()}\n"
        f"target table public.{setup.table} ({names})\n"
        "with skip header = 1, fields optionally enclosed by '\"', fields terminated by ',';\n"
    )
    root = str(setup.server.folder / "pgloader")
    return [[["pgloader", "--quiet", "--on-error-stop", "--root-dir", root, str(load_file)]]]


def pgspate_commands(*options: str) -> Callable[[LoadSetup], list[Pipeline]]:
    """Returns a function that makes the `pgspate load` command with `options`."""

    def commands(setup: LoadSetup) -> list[Pipeline]:
        return [[pgspate_load_command(setup, setup.path, *options)]]

    return commands


def pgspate_load_command(setup: LoadSetup, source: str, *options: str) -> list[str]:
    """Returns the `pgspate load` command for `source`."""
    command = [str(setup.places.pgspate), "load", source, "--table", setup.table]
    return [*command, "--to", setup.server.conninfo(), "--json", "--quiet", *options]


PHYSICAL_LIMIT_CONTENDER = Contender(
    PHYSICAL_LIMIT,
    "psql",
    "physical limit: server-side `COPY BINARY` of ready-made files, two connections",
    server_copy_binary_commands,
)

CONTENDERS_BY_DATASET = {
    "lineitem-csv": [
        Contender(BASELINE, "psql", "psql `\\copy`", psql_copy_commands),
        PHYSICAL_LIMIT_CONTENDER,
        Contender(
            "psql-2",
            "psql",
            "two psql `\\copy`, file split by hand before",
            psql_copy_halves_commands,
        ),
        Contender("pgspate", "pgspate", "**pgspate load**", pgspate_commands(*NO_ANALYZE)),
        Contender(
            "pgspate-chunk",
            "pgspate",
            "pgspate load `--commit chunk`",
            pgspate_commands("--commit", "chunk", *NO_ANALYZE),
        ),
        Contender(
            "pgspate-no-ledger",
            "pgspate",
            "pgspate load `--no-ledger`",
            pgspate_commands("--no-ledger", *NO_ANALYZE),
        ),
        Contender(
            "pgspate-analyze",
            "pgspate",
            "pgspate load `--analyze always`",
            pgspate_commands("--analyze", "always"),
        ),
        *[
            Contender(
                f"pgspate-lanes-{lanes}",
                "pgspate",
                f"pgspate load `--lanes {lanes}`",
                pgspate_commands("--lanes", str(lanes), *NO_ANALYZE),
            )
            for lanes in LANE_COUNTS
        ],
        Contender("duckdb", "duckdb", "DuckDB", python_peer_commands("copy_duckdb.py", "duckdb")),
        Contender("adbc", "adbc", "ADBC", python_peer_commands("copy_adbc.py", "arrow")),
        Contender("psycopg", "psycopg", "psycopg 3 copy", python_peer_commands("copy_psycopg.py")),
        Contender("pgloader", "pgloader", "pgloader", pgloader_commands, first_round_only=True),
    ],
    "lineitem-keyed": [
        Contender(BASELINE, "psql", "psql `\\copy`", psql_copy_commands),
        Contender(
            "psql-2",
            "psql",
            "two psql `\\copy`, file split by hand before",
            psql_copy_halves_commands,
        ),
        Contender("pgspate", "pgspate", "**pgspate load**", pgspate_commands(*NO_ANALYZE)),
        Contender(
            "pgspate-row-by-row",
            "pgspate",
            "pgspate load `--rebuild-indexes never`",
            pgspate_commands("--rebuild-indexes", "never", *NO_ANALYZE),
        ),
    ],
    "lineitem-parquet": [
        Contender("pgspate", "pgspate", "**pgspate load**", pgspate_commands(*NO_ANALYZE)),
        Contender("duckdb", "duckdb", "DuckDB", python_peer_commands("copy_duckdb.py")),
        Contender("adbc", "adbc", "ADBC", python_peer_commands("copy_adbc.py")),
    ],
}
