"""Where things are: the repository, the cache of data and tools, and the programs.

Nothing is written inside the repository but results, and the cache can be thrown away
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
    """The program under test; it may not be there."""

    @property
    def python(self) -> Path:
        """The Python that has the peers."""
        return self.cache / "venv" / "bin" / "python"

    @property
    def psql(self) -> Path:
        """The client of the server's own version."""
        beside = self.pg_bin / "psql"
        return beside if beside.exists() else Path(shutil.which("psql") or "psql")


def cache_folder(given: str | None) -> Path:
    """The given folder, or the user's cache."""
    if given:
        return Path(given).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "pgspate-bench")


def find_pg_bin(given: str | None) -> Path:
    """The folder of the server's programs.

    Raises SystemExit when there is none, or the given one is not it.
    """
    for folder in [Path(given)] if given else candidates():
        if all((folder / name).exists() for name in ("postgres", "initdb")):
            return folder
    where = given or "pg_config, PATH and /usr/lib/postgresql"
    raise SystemExit(
        f"error: could not find postgres and initdb in {where}\n\n"
        "hint: Install a PostgreSQL server, or name its folder with `--pg-bin`."
    )


def candidates() -> list[Path]:
    """Where a server's programs may be, best first."""
    found = []
    if shutil.which("pg_config"):
        told = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True)
        found.append(Path(told.stdout.strip()))
    if postgres := shutil.which("postgres"):
        found.append(Path(postgres).parent)
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    numbered = [path for path in versions if path.parent.name.isdigit()]
    return found + sorted(numbered, key=lambda path: -int(path.parent.name))


def find_pgspate(given: str | None, build: bool) -> Path:
    """The program under test, built when it is not there and may be built."""
    if given:
        return Path(given).resolve()
    path = REPOSITORY / "target" / "release" / "pgspate"
    if not path.exists() and build and shutil.which("cargo"):
        command = ["cargo", "build", "--release", "--package", "pgspate-cli"]
        subprocess.run(command, cwd=REPOSITORY)
    return path
