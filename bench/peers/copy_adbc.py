"""Load a CSV or Parquet file with ADBC: FILE TABLE [COLUMNS].

COLUMNS is a JSON object of Arrow types by column name, for CSV: ADBC writes what Arrow
holds, so the types have to be those of the table.
"""

import json
import re
import sys

import adbc_driver_postgresql.dbapi
import pyarrow
import pyarrow.csv
import pyarrow.parquet


def main() -> None:
    """Stream record batches into the table."""
    path, table, *columns = sys.argv[1:]
    reader = csv_reader(path, json.loads(columns[0])) if columns else parquet_reader(path)
    with adbc_driver_postgresql.dbapi.connect("postgresql://") as conn:
        with conn.cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append")
        conn.commit()


def csv_reader(path: str, columns: dict[str, str]) -> pyarrow.RecordBatchReader:
    """Batches of a CSV file with a header."""
    types = {name: arrow_type(spelling) for name, spelling in columns.items()}
    convert = pyarrow.csv.ConvertOptions(column_types=types)
    return pyarrow.csv.open_csv(path, convert_options=convert)


def parquet_reader(path: str) -> pyarrow.RecordBatchReader:
    """Batches of a Parquet file."""
    file = pyarrow.parquet.ParquetFile(path)
    return pyarrow.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())


def arrow_type(spelling: str) -> pyarrow.DataType:
    """The type of a name such as `int64`, `date32` or `decimal128(15, 2)`."""
    name, arguments = re.fullmatch(r"(\w+)(?:\((.*)\))?", spelling).groups()
    numbers = [int(number) for number in arguments.split(",")] if arguments else []
    return getattr(pyarrow, name)(*numbers)


if __name__ == "__main__":
    main()
