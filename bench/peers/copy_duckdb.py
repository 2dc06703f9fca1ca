"""Load a CSV or Parquet file with DuckDB and its postgres extension: FILE TABLE [COLUMNS].

COLUMNS is a JSON object of DuckDB types by column name, needed for CSV. With these types, DuckDB
guesses no type and reads no decimal as a double.
"""

import sys
from pathlib import Path

import duckdb
import duckdb_extension_postgres_scanner as extension


def main() -> None:
    """Inserts the whole file into the table."""
    path, table, *columns = sys.argv[1:]
    conn = duckdb.connect()
    folder = Path(extension.__file__).parent
    conn.load_extension(str(next(folder.rglob("*.duckdb_extension"))))
    conn.execute("attach '' as pg (type postgres)")
    reader = f"read_parquet('{path}')"
    if columns:
        types = columns[0].replace('"', "'")
        reader = f"read_csv('{path}', header = true, auto_detect = false, columns = {types})"
    conn.execute(f"insert into pg.public.{table} select * from {reader}")


if __name__ == "__main__":
    main()
