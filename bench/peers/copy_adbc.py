"""Load a CSV or Parquet file with ADBC: FILE TABLE [COLUMNS].

COLUMNS is a JSON object of Arrow types by column name, needed for CSV. ADBC writes Arrow values
unchanged, so each Arrow type must fit the type of the table's column.
"""

import json
import re
import sys

import adbc_driver_postgresql.dbapi
import pyarrow
import pyarrow.csv
import pyarrow.parquet


def main() -> None:
    """Streams the file's record batches into the table."""
    path, table, *columns = sys.argv[1:]
    reader = csv_reader(path, json.loads(columns[0])) if columns else parquet_reader(path)
    with adbc_driver_postgresql.dbapi.connect("postgresql://") as conn:
        with conn.cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append")
        conn.commit()


def csv_reader(path: str, columns: dict[str, str]) -> pyarrow.RecordBatchReader:
    """Returns a reader of the record batches of a CSV file with a header."""
    types = {name: arrow_type(type_name) for name, type_name in columns.items()}
    convert = pyarrow.csv.ConvertOptions(column_types=types)
    return pyarrow.csv.open_csv(path, convert_options=convert)


def parquet_reader(path: str) -> pyarrow.RecordBatchReader:
    """Returns a reader of the record batches of a Parquet file."""
    file = pyarrow.parquet.ParquetFile(path)
    return pyarrow.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())


def arrow_type(type_name: str) -> pyarrow.DataType:
    """Returns the type for a name such as `int64`, `date32` or `decimal128(15, 2)`."""
    name, arguments = re.fullmatch(r"(\w+)(?:\((.*)\))?", type_name).groups()
    numbers = [int(number) for number in arguments.split(",")] if arguments else []
    return getattr(pyarrow, name)(*numbers)


if __name__ == "__main__":
    main()
