"""The inputs: TPC-H lineitem as CSV and Parquet.

Each file is made once and kept in the cache. Its name contains the scale factor. A file gets its
final name only when it is complete.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from peers import print_progress
from places import Places

LINEITEM_SCALE_FACTOR = 0.4


@dataclass(frozen=True)
class Column:
    """A column, and its type as PostgreSQL, Arrow and DuckDB spell it."""

    name: str
    sql: str
    arrow: str
    duckdb: str


def columns_of_type(names: str, sql: str, arrow: str, duckdb: str) -> list[Column]:
    """Returns columns of one type; `names` are separated by spaces."""
    return [Column(name, sql, arrow, duckdb) for name in names.split()]


# Strings are text: with char(n), DuckDB would take a slower path.
LINEITEM_COLUMNS = [
    *columns_of_type("l_orderkey l_partkey l_suppkey", "bigint", "int64", "bigint"),
    *columns_of_type("l_linenumber", "integer", "int32", "integer"),
    *columns_of_type(
        "l_quantity l_extendedprice l_discount l_tax",
        "numeric(15, 2)",
        "decimal128(15, 2)",
        "decimal(15, 2)",
    ),
    *columns_of_type("l_returnflag l_linestatus", "text", "string", "varchar"),
    *columns_of_type("l_shipdate l_commitdate l_receiptdate", "date", "date32", "date"),
    *columns_of_type("l_shipinstruct l_shipmode l_comment", "text", "string", "varchar"),
]

COLUMNS_BY_TABLE = {"lineitem": LINEITEM_COLUMNS, "lineitem_keyed": LINEITEM_COLUMNS}

INDEXES_BY_TABLE = {
    "lineitem_keyed": [
        "alter table lineitem_keyed add primary key (l_orderkey, l_linenumber)",
        "create index on lineitem_keyed (l_partkey)",
        "create index on lineitem_keyed (l_shipdate)",
    ],
}


@dataclass(frozen=True)
class Dataset:
    """An input file, and the table it is loaded into."""

    name: str
    table: str
    path: Path
    title: str
    """Description of the input in the report."""

    @property
    def half_paths(self) -> list[Path]:
        """Returns the paths of the two halves of the file, which only a CSV file has."""
        return [self.path.with_suffix(f".half{n}.csv") for n in (1, 2)]


def create_table_sql(table: str) -> str:
    """Returns the SQL that creates a table and its indexes; no column is `not null`."""
    body = ", ".join(f"{column.name} {column.sql}" for column in COLUMNS_BY_TABLE[table])
    return ";\n".join([f"create table {table} ({body})", *INDEXES_BY_TABLE.get(table, [])])


def column_types_json(table: str, system: str) -> str:
    """Returns a JSON object of types by column name; `system` is `arrow` or `duckdb`."""
    return json.dumps({column.name: getattr(column, system) for column in COLUMNS_BY_TABLE[table]})


def make_datasets(places: Places, scale: float) -> list[Dataset]:
    """Makes the input files that are missing, and returns all inputs; the first is the CSV."""
    places.cache.mkdir(parents=True, exist_ok=True)
    factor = f"{LINEITEM_SCALE_FACTOR * scale:g}"
    csv = Dataset(
        "lineitem-csv",
        "lineitem",
        places.cache / f"lineitem-{factor}.csv",
        f"TPC-H lineitem at scale factor {factor}, CSV",
    )
    keyed = Dataset(
        "lineitem-keyed",
        "lineitem_keyed",
        csv.path,
        f"{csv.title}, into a table with indexes",
    )
    parquet = Dataset(
        "lineitem-parquet",
        "lineitem",
        places.cache / f"lineitem-{factor}.parquet",
        f"TPC-H lineitem at scale factor {factor}, Parquet (Snappy)",
    )
    make_lineitem(places, csv.path, factor)
    make_lineitem(places, parquet.path, factor)
    split_into_halves(csv)
    return [csv, keyed, parquet]


def make_lineitem(places: Places, path: Path, factor: str) -> None:
    """Generates lineitem with tpchgen-cli; the suffix of `path` is the format."""
    if path.exists():
        return
    print_progress(f"making {path.name}")
    folder = places.cache / "making"
    shutil.rmtree(folder, ignore_errors=True)
    program = places.python.parent / "tpchgen-cli"
    command = [program, path.suffix[1:], "-q", "-s", factor, "-T", "lineitem", "-o", folder]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"error: could not make {path.name} with tpchgen-cli: {error}") from None
    os.replace(folder / f"lineitem{path.suffix}", path)
    shutil.rmtree(folder)


def split_into_halves(dataset: Dataset) -> None:
    """Splits a CSV file into two halves without header.

    The split is at the first newline after the middle; lineitem has no quoted newlines.
    """
    if all(half_path.exists() for half_path in dataset.half_paths):
        return
    print_progress(f"splitting {dataset.path.name}")
    with dataset.path.open("rb") as file:
        file.seek(dataset.path.stat().st_size // 2)
        file.readline()
        middle = file.tell()
        file.seek(0)
        file.readline()
        for half_path in dataset.half_paths:
            end = middle if half_path == dataset.half_paths[0] else dataset.path.stat().st_size
            partial = half_path.with_suffix(".partial")
            with partial.open("wb") as out:
                copy_bytes(file, out, end - file.tell())
            os.replace(partial, half_path)


def copy_bytes(source, target, count: int) -> None:
    """Copies `count` bytes from `source` to `target`."""
    while count > 0:
        block = source.read(min(count, 1 << 20))
        target.write(block)
        count -= len(block)


def read_into_page_cache(path: Path) -> None:
    """Reads a file once, so that all contenders find it in the operating system's page cache."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
