"""The folders and programs of a benchmark run.

The benchmark writes only results into the repository. The cache of data and tools can be deleted
at any time.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BENCH = REPOSITORY / "bench"


@dataclass(frozen=True)
class Places:
    """The folders and programs of one run."""

    cache: Path
    """Data and the virtual environment, kept between runs."""
    pg_bin: Path
    """The folder of `postgres`, `initdb` and `psql`."""
    pgspate: Path
    """The program under test; the file may be missing."""

    @property
    def python(self) -> Path:
        """Returns the Python of the virtual environment, which has the peers' packages."""
        return self.cache / "venv" / "bin" / "python"

    @property
    def psql(self) -> Path:
        """Returns the psql of the server's folder, or else the first psql on PATH."""
        server_psql = self.pg_bin / "psql"
        return server_psql if server_psql.exists() else Path(shutil.which("psql") or "psql")


def cache_folder(chosen_path: str | None) -> Path:
    """Returns the given folder, or a folder in the user's cache."""
    if chosen_path:
        return Path(chosen_path).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "pgspate-bench")


def find_pg_bin(chosen_path: str | None) -> Path:
    """Returns the folder of the server's programs.

    Raises SystemExit if no folder holds postgres and initdb. If `chosen_path` is
    given, no other folder is tried.
    """
    for folder in [Path(chosen_path)] if chosen_path else pg_bin_candidates():
        if all((folder / name).exists() for name in ("postgres", "initdb")):
            return folder
    searched = chosen_path or "pg_config, PATH and /usr/lib/postgresql"
    raise SystemExit(
        f"error: could not find postgres and initdb in {searched}\n\n"
        "hint: Install a PostgreSQL server, or name its folder with `--pg-bin`."
    )


def pg_bin_candidates() -> list[Path]:
    """Returns the folders that may hold a server's programs, best first."""
    folders = []
    if shutil.which("pg_config"):
        pg_config = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True)
        folders.append(Path(pg_config.stdout.strip()))
    if postgres := shutil.which("postgres"):
        folders.append(Path(postgres).parent)
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    numbered = [path for path in versions if path.parent.name.isdigit()]
    return folders + sorted(numbered, key=lambda path: -int(path.parent.name))


def find_pgspate(chosen_path: str | None, build: bool) -> Path:
    """Returns the program under test; with `build`, builds a missing one with cargo."""
    if chosen_path:
        return Path(chosen_path).resolve()
    path = REPOSITORY / "target" / "release" / "pgspate"
    if not path.exists() and build and shutil.which("cargo"):
        command = ["cargo", "build", "--release", "--package", "pgspate-cli"]
        subprocess.run(command, cwd=REPOSITORY)
    return path
