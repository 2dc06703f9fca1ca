"""The inputs: TPC-H lineitem as CSV and Parquet.

Each file is made once into the cache, under a name that says its size, and appears there
only when it is complete.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from peers import say
from places import Places

LINEITEM_SCALE = 0.4


@dataclass(frozen=True)
class Column:
    """A column and its types for those who have to be told."""

    name: str
    sql: str
    arrow: str
    duckdb: str


def columns(names: str, sql: str, arrow: str, duckdb: str) -> list[Column]:
    """Columns of one type."""
    return [Column(name, sql, arrow, duckdb) for name in names.split()]


# Strings are text, not char(n), which would send DuckDB down its slow path.
LINEITEM = [
    *columns("l_orderkey l_partkey l_suppkey", "bigint", "int64", "bigint"),
    *columns("l_linenumber", "integer", "int32", "integer"),
    *columns(
        "l_quantity l_extendedprice l_discount l_tax",
        "numeric(15, 2)",
        "decimal128(15, 2)",
        "decimal(15, 2)",
    ),
    *columns("l_returnflag l_linestatus", "text", "string", "varchar"),
    *columns("l_shipdate l_commitdate l_receiptdate", "date", "date32", "date"),
    *columns("l_shipinstruct l_shipmode l_comment", "text", "string", "varchar"),
]

TABLES = {"lineitem": LINEITEM, "lineitem_keyed": LINEITEM}

INDEXES = {
    "lineitem_keyed": [
        "alter table lineitem_keyed add primary key (l_orderkey, l_linenumber)",
        "create index on lineitem_keyed (l_partkey)",
        "create index on lineitem_keyed (l_shipdate)",
    ],
}


@dataclass(frozen=True)
class Dataset:
    """One input for one table."""

    name: str
    table: str
    path: Path
    title: str
    """What it is, for the report."""

    @property
    def halves(self) -> list[Path]:
        """The hand-split file, where there is one."""
        return [self.path.with_suffix(f".half{n}.csv") for n in (1, 2)]


def create_table(table: str) -> str:
    """The statements that make a table, not null nowhere, with keys where that is the point."""
    body = ", ".join(f"{column.name} {column.sql}" for column in TABLES[table])
    return ";\n".join([f"create table {table} ({body})", *INDEXES.get(table, [])])


def types_for(table: str, system: str) -> str:
    """JSON object of a table's types by column name; `system` is arrow or duckdb."""
    return json.dumps({column.name: getattr(column, system) for column in TABLES[table]})


def make_all(places: Places, scale: float) -> list[Dataset]:
    """The inputs, made where they are not there yet; the first one is the CSV."""
    places.cache.mkdir(parents=True, exist_ok=True)
    factor = f"{LINEITEM_SCALE * scale:g}"
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
    split(csv)
    return [csv, keyed, parquet]


def make_lineitem(places: Places, path: Path, factor: str) -> None:
    """Let tpchgen-cli write lineitem in the format of the file's name."""
    if path.exists():
        return
    say(f"making {path.name}")
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


def split(dataset: Dataset) -> None:
    """Cut a CSV file without quoted newlines in two at a line end, leaving out the header."""
    if all(half.exists() for half in dataset.halves):
        return
    say(f"splitting {dataset.path.name}")
    with dataset.path.open("rb") as file:
        file.seek(dataset.path.stat().st_size // 2)
        file.readline()
        middle = file.tell()
        file.seek(0)
        file.readline()
        for half in dataset.halves:
            end = middle if half == dataset.halves[0] else dataset.path.stat().st_size
            partial = half.with_suffix(".partial")
            with partial.open("wb") as out:
                copy_bytes(file, out, end - file.tell())
            os.replace(partial, half)


def copy_bytes(source, target, count: int) -> None:
    """Copy that many bytes."""
    while count > 0:
        block = source.read(min(count, 1 << 20))
        target.write(block)
        count -= len(block)


def warm(path: Path) -> None:
    """Read a file once, so that no contender pays for the disk and another does not."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
