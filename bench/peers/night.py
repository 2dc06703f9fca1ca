"""One night's results, written as people write them: HOW FILE. Prints the seconds that it took.

Each meter is a job with a transaction of its own, as the results come meter by meter. The rows are
in memory before the clock starts.
"""

import csv
import sys
import time
from datetime import datetime
from decimal import Decimal

import psycopg
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

TABLE = "use_prediction"
COLUMNS = "meter, occurred, prediction"
Rows = list[tuple[int, datetime, Decimal]]


class Base(DeclarativeBase):
    """What SQLAlchemy's mappings are made from."""


class Prediction(Base):
    """A row, as an ORM has it."""

    __tablename__ = TABLE
    meter: Mapped[int] = mapped_column(primary_key=True)
    occurred: Mapped[datetime] = mapped_column(primary_key=True)
    prediction: Mapped[Decimal]


def delete_insert(conn: psycopg.Connection, meter: int, rows: Rows) -> None:
    """Yesterday's rows go, today's come."""
    with conn.transaction(), conn.cursor() as cursor:
        cursor.execute(f"delete from {TABLE} where meter = %s", [meter])
        cursor.executemany(f"insert into {TABLE} ({COLUMNS}) values (%s, %s, %s)", rows)


def upsert(conn: psycopg.Connection, meter: int, rows: Rows) -> None:
    """Every row is written, whether it differs or not; what is gone is deleted."""
    with conn.transaction(), conn.cursor() as cursor:
        cursor.executemany(
            f"insert into {TABLE} ({COLUMNS}) values (%s, %s, %s) "
            "on conflict (meter, occurred) do update set prediction = excluded.prediction",
            rows,
        )
        cursor.execute(
            f"delete from {TABLE} where meter = %s and not occurred = any(%s)",
            [meter, [row[1] for row in rows]],
        )


def merge(conn: psycopg.Connection, meter: int, rows: Rows) -> None:
    """COPY into a temporary table, then MERGE what differs, and delete what is gone."""
    with conn.transaction(), conn.cursor() as cursor:
        cursor.execute(f"create temp table stage (like {TABLE}) on commit drop")
        with cursor.copy(f"copy stage ({COLUMNS}) from stdin") as copy:
            for row in rows:
                copy.write_row(row)
        cursor.execute("analyze stage")
        cursor.execute(
            f"merge into {TABLE} t using stage s "
            "on t.meter = s.meter and t.occurred = s.occurred "
            "when matched and t.prediction is distinct from s.prediction "
            "then update set prediction = s.prediction "
            "when not matched then insert values (s.meter, s.occurred, s.prediction)"
        )
        cursor.execute(
            f"delete from {TABLE} t where t.meter = %s and not exists "
            "(select from stage s where s.meter = t.meter and s.occurred = t.occurred)",
            [meter],
        )


def orm(engine, meter: int, rows: Rows) -> None:
    """The meter's rows are read at once, so that merging an object asks nothing more."""
    with Session(engine) as session:
        found = session.scalars(select(Prediction).where(Prediction.meter == meter))
        old = {row.occurred: row for row in found}
        for row in rows:
            of_night = Prediction(meter=row[0], occurred=row[1], prediction=row[2])
            if row[1] in old:
                session.merge(of_night)
            else:
                session.add(of_night)
        for gone in old.keys() - {row[1] for row in rows}:
            session.delete(old[gone])
        session.commit()


def main() -> None:
    """Read the file, write the night."""
    how, path = sys.argv[1:]
    by_meter: dict[int, Rows] = {}
    with open(path, newline="") as file:
        for meter, occurred, prediction in list(csv.reader(file))[1:]:
            row = (int(meter), datetime.fromisoformat(occurred), Decimal(prediction))
            by_meter.setdefault(int(meter), []).append(row)
    ways = {"delete-insert": delete_insert, "upsert": upsert, "merge": merge, "orm": orm}
    if how == "orm":
        target = create_engine("postgresql+psycopg://")
        target.connect().close()
    else:
        target = psycopg.connect(autocommit=True)
    started = time.monotonic()
    for meter, rows in by_meter.items():
        ways[how](target, meter, rows)
    print(time.monotonic() - started)


if __name__ == "__main__":
    main()
