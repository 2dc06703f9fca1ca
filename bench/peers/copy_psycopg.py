"""Load a CSV file with psycopg 3: FILE TABLE."""

import sys

import psycopg


def main() -> None:
    """Streams the file through one COPY, as psycopg's manual shows."""
    path, table = sys.argv[1:]
    statement = f"copy {table} from stdin (format csv, header)"
    with (
        open(path, "rb") as file,
        psycopg.connect() as conn,
        conn.cursor().copy(statement) as copy,
    ):
        while block := file.read(1 << 20):
            copy.write(block)


if __name__ == "__main__":
    main()
