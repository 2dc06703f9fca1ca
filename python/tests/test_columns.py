"""Columns that the data or the table lacks, and dates in formats other than ISO."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid

import pytest
from psycopg.types.range import Range

import pgspate


def rows(db):
    return db.execute("select * from t order by 1").fetchall()


@pytest.mark.parametrize("way", ["dicts", "tuples", "arrow", "file", "generator"])
def test_all_data_gets_constants(db, dsn, tmp_path, way):
    db.execute("create table t (id int, name text, tenant int, note text default 'n', b bytea)")
    data = [{"id": 1, "name": "x"}, {"id": 2, "name": None}]
    if way == "tuples":
        data = [(1, "x"), (2, None)]
    elif way == "generator":
        data = (row for row in data)
    elif way == "arrow":
        pyarrow = pytest.importorskip("pyarrow")
        data = pyarrow.table({"id": [1, 2], "name": ["x", None]})
    elif way == "file":
        data = tmp_path / "t.csv"
        data.write_text("id,name\n1,x\n2,\n")
    constants = {"tenant": 7, "note": None, "b": b"\0\xff"}
    pgspate.load(data, "t", to=dsn, set=constants)
    assert rows(db) == [(1, "x", 7, None, b"\0\xff"), (2, None, 7, None, b"\0\xff")]


def test_constants_have_the_types_of_their_columns(db, dsn):
    db.execute("create table t (id int, d date, t timestamptz, f float8, b bool, s text)")
    at = datetime.datetime(2024, 2, 29, 1, 2, 3, 456, datetime.timezone.utc)
    constants = {"d": at.date(), "t": at, "f": 0.1, "b": False, "s": "a,b=c"}
    pgspate.load([(1,)], "t", to=dsn, set=constants)
    assert rows(db) == [(1, at.date(), at, 0.1, False, "a,b=c")]


class Priority(str, enum.Enum):
    HIGH = "high"


class Colour(enum.Enum):
    RED = 1


ZONE = datetime.timezone(datetime.timedelta(hours=5))
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=ZONE)


@pytest.mark.parametrize("column_type, value", [
    ("text", Priority.HIGH), ("text", Colour.RED), ("text", "\\N"), ("text", ""),
    ("text", None), ("text", True), ("text", float("nan")), ("text", NOON), ("text", 1e15),
    ("timestamp", NOON), ("timestamptz", NOON), ("date", NOON), ("timetz", NOON.timetz()),
    ("timestamp", NOON.replace(tzinfo=None)), ("date", NOON.date()),
    pytest.param("bytea", memoryview(b"xy"), id="bytea-memoryview"),
    ("bytea", bytearray(b"\0")), ("bytea", "xy"),
    ("int", 3.0), ("bigint", 1e15), ("int", decimal.Decimal("3.00")),
    ("numeric", decimal.Decimal("1E+3")), ("numeric", decimal.Decimal("1.50")),
    ("int[]", [1, None, 2]), ("text[]", ["a,b", "\\N", None, ""]), ("timestamp[]", [NOON]),
    ("jsonb", {"x": [1, None]}), ("jsonb", [1, {"y": "z"}]), ("uuid", uuid.UUID(int=7)),
    ("interval", datetime.timedelta(days=1, seconds=2)), ("bool", False),
    ("int4range", Range(1, 5)), ("tsrange", Range(NOON, None)), ("tsrange[]", [Range(NOON, None)]),
], ids=str)
def test_a_constant_is_what_it_is_in_a_row(db, dsn, column_type, value):
    db.execute(f"create table t (id int, v {column_type})")
    pgspate.load([(1, value)], "t", to=dsn)
    pgspate.load([(2,)], "t", to=dsn, set={"v": value})
    stored = db.execute("select v::text from t order by id").fetchall()
    assert stored[0] == stored[1]
    pgspate.sync([{"id": 3}], "t", to=dsn, key="id", no_delete=True, set={"v": value})
    assert db.execute("select v::text from t where id = 3").fetchone() == stored[0]


def test_missing_values_of_pandas_are_null(db, dsn):
    pandas = pytest.importorskip("pandas")
    db.execute("create table t (id int, v text)")
    for value in (pandas.NA, pandas.NaT):
        pgspate.load([(1,)], "t", to=dsn, set={"v": value})
    assert rows(db) == [(1, None), (1, None)]


@pytest.mark.parametrize("column_type, value, message", [
    ("text", b"xy", "the value is bytes"), ("text", {"x": 1}, "the value is a dict"),
    ("int", [1], "the value is a list"), ("text", object(), "has no counterpart"),
])
def test_constants_that_a_column_would_read_as_other_values_are_refused(
    db, dsn, column_type, value, message
):
    db.execute(f"create table t (id int, v {column_type})")
    with pytest.raises(pgspate.ConversionError, match=message) as refusal:
        pgspate.load([(1,)], "t", to=dsn, set={"v": value})
    assert refusal.value.place.column == "v"
    assert rows(db) == []


def test_a_load_with_constants_is_continued(db, dsn, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id\n1\n")
    db.execute("create table t (id int, at timestamptz)")
    for _ in range(2):
        pgspate.load(path, "t", to=dsn, set={"at": NOON})
    assert rows(db) == [(1, NOON)]


def test_one_tenant_is_synced(db, dsn):
    db.execute("create table t (id int, tenant text, primary key (tenant, id))")
    db.execute("insert into t values (1, 'a'), (5, 'b')")
    report = pgspate.sync([{"id": 2}], "t", to=dsn, scope_by="tenant", set={"tenant": "b"},
                          max_delete=100)
    assert (report.inserted, report.deleted) == (1, 1)
    assert rows(db) == [(1, "a"), (2, "b")]


def test_rows_have_the_names_of_their_files(db, dsn, tmp_path):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_text("id\n1\n")
    pgspate.load(paths, "t", to=dsn, create=True, file_name_column="source")
    assert sorted(row[1] for row in rows(db)) == [str(path) for path in paths]
    with pytest.raises(pgspate.UsageError, match="no file name"):
        pgspate.load([{"id": 1}], "t", to=dsn, file_name_column="source")


def test_dates_are_read_in_a_format(db, dsn, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("day,at\n31.12.2024,1/2/24 3:04 PM\n")
    formats = {"day": "%d.%m.%Y", "at": "%m/%d/%y %I:%M %p"}
    pgspate.load(path, "t", to=dsn, create=True, date_format=formats)
    assert rows(db) == [(datetime.date(2024, 12, 31), datetime.datetime(2024, 1, 2, 15, 4))]
    path.write_text("day\n12/31/2024\n")
    with pytest.raises(pgspate.Error, match="does not have the date format") as refusal:
        pgspate.load(path, "t", to=dsn, changed="reload", date_format="%d.%m.%Y")
    assert refusal.value.sqlstate == "22007"
    with pytest.raises(pgspate.UsageError, match="which has types"):
        pgspate.load([{"day": "31.12.2024"}], "t", to=dsn, date_format="%d.%m.%Y")


@pytest.mark.parametrize("way", ["load", "sync"])
def test_missing_columns_are_added(db, dsn, way):
    db.execute("create table t (id int primary key)")
    data = [{"id": 1, "price": 1.5, "day": datetime.date(2024, 2, 29)}]
    if way == "load":
        sql = pgspate.plan(data, "t", to=dsn, add_columns=True).add_columns
        assert sql.startswith("alter table public.t")
        report = pgspate.load(data, "t", to=dsn, add_columns=True)
    else:
        report = pgspate.sync(data, "t", to=dsn, no_delete=True, add_columns=True)
    assert [column["name"] for column in report.added_columns] == ["price", "day"]
    assert rows(db) == [(1, 1.5, datetime.date(2024, 2, 29))]
