"""Data that looks like rows: open files, bytes, records of numpy, and tables in a list."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import uuid
from decimal import Decimal

import pytest

import pgspate
import pgspate.aio


def stored(db, sql="select * from t order by 1"):
    return db.execute(sql).fetchall()


def open_files(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,b\n1,2\n")
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    return [path.open("rb"), path.open(), gzip.open(packed), io.BytesIO(b"a,b\n1,2\n"),
            io.StringIO("a,b\n1,2\n")]


def test_an_open_file_is_refused_and_changes_nothing(db, dsn, tmp_path):
    db.execute("create table t (a int, b int)")
    db.execute("insert into t values (1, 2)")
    for file in open_files(tmp_path):
        for call in [
            lambda file: pgspate.load(file, "t", to=dsn),
            lambda file: pgspate.load(file, "new", create=True, to=dsn),
            lambda file: pgspate.sync(file, "t", key="a", scope="all", to=dsn),
            lambda file: pgspate.write(file, "t", mode="replace", to=dsn),
            lambda file: pgspate.plan(file, "t", to=dsn),
        ]:
            with pytest.raises(pgspate.UsageError, match="is an open file") as caught:
                call(file)
            assert "Give the path of the file." in caught.value.hint
        file.close()
    assert stored(db) == [(1, 2)]
    assert stored(db, "select to_regclass('new')") == [(None,)]


@pytest.mark.parametrize("row", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"])
def test_bytes_and_texts_are_no_rows(db, dsn, row):
    db.execute("create table t (a text, b text)")
    for rows in [iter([row]), [row] if not isinstance(row, str) else iter([row, row])]:
        with pytest.raises(pgspate.UsageError, match="has no columns") as caught:
            pgspate.load(rows, "t", to=dsn)
        assert "give the file's path" in caught.value.hint
    with pgspate.Writer("t", to=dsn, columns=["a", "b"]) as writer:
        with pytest.raises(pgspate.UsageError, match="has no columns"):
            writer.insert(row)
        with pytest.raises(pgspate.UsageError, match="has no columns"):
            writer.insert_many([row])
        with pytest.raises(pgspate.Error, match="the row is of class"):
            writer.insert_many([("a", "b"), row])
    assert stored(db) == []


def test_memory_is_no_rows(dsn):
    for data in [b"ab", bytearray(b"ab"), memoryview(b"ab")]:
        with pytest.raises(pgspate.UsageError, match="cannot be loaded"):
            pgspate.load(data, "t", create=True, to=dsn)


def test_records_of_numpy_go_by_name(db, dsn):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (b text, a int, c timestamp)")
    dtype = [("a", "i8"), ("b", "U5"), ("c", "M8[us]")]
    array = numpy.array([(1, "x", "2024-01-02"), (2, "y", "NaT")], dtype=dtype)
    for records in [array, array.view(numpy.recarray), list(array)]:
        db.execute("truncate t")
        pgspate.load(records, "t", to=dsn)
        assert stored(db, "select a, b, c::text from t order by a") == [
            (1, "x", "2024-01-02 00:00:00"), (2, "y", None)]
    db.execute("truncate t")
    pgspate.load(array, "t", columns=["b"], to=dsn)
    assert stored(db, "select a, b from t order by b") == [(None, "x"), (None, "y")]
    pgspate.load(array, "made", create=True, to=dsn)
    assert stored(db, "select a, b from made order by a") == [(1, "x"), (2, "y")]
    with pytest.raises(pgspate.UsageError, match='the rows have no field "z"'):
        pgspate.load(array, "t", columns=["z"], to=dsn)
    with pgspate.Writer("t", to=dsn) as writer:
        writer.insert(array[0])
    assert (1, "x") in stored(db, "select a, b from t")


def test_a_list_of_tables_is_refused_with_what_to_do(dsn):
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    frame, table = pandas.DataFrame({"a": [1, 2]}), pyarrow.table({"a": [1, 2]})
    chunks = pandas.read_csv(io.StringIO("a\n1\n2\n"), chunksize=1)
    for data, hint in [([frame, frame], "pandas.concat"), (chunks, "pandas.concat"),
                       ([table], "pyarrow.concat_tables"),
                       (table.to_batches(), "pyarrow.Table.from_batches"),
                       (iter(table.to_batches()), "pyarrow.RecordBatchReader.from_batches")]:
        with pytest.raises(pgspate.UsageError, match="consists of several tables") as caught:
            pgspate.load(data, "t", create=True, to=dsn)
        assert hint in caught.value.hint


@dataclasses.dataclass
class Part:
    a: int
    b: str


@pytest.mark.parametrize("first, other", [
    ((1, "x"), {"a": 1, "b": "x"}), ({"a": 1, "b": "x"}, (1, "x")), (Part(1, "x"), (1, "x")),
    (Part(1, "x"), {"a": 1, "b": "x"}), ({"a": 1, "b": "x"}, "xy"), ((1, "x"), 7),
])
@pytest.mark.parametrize("count", [1, 1500])
def test_a_row_of_another_form_is_named(db, dsn, first, other, count):
    db.execute("create table t (a int, b text)")
    with pytest.raises(pgspate.ConversionError, match="the row is of class") as caught:
        pgspate.load([first] * count + [other], "t", to=dsn)
    assert type(other).__name__ in str(caught.value)
    assert caught.value.place.row == count + 1
    assert stored(db) == []


@pytest.mark.parametrize("value", [Decimal("1.1"), uuid.UUID(int=1), b"x"])
@pytest.mark.parametrize("make", [dict, list])
def test_a_value_that_json_does_not_have_is_refused_with_its_place(db, dsn, value, make):
    db.execute("create table t (id int, j jsonb)")
    inner = {"a": value} if make is dict else [{"a": value}]
    rows = [{"id": 1, "j": None}, {"id": 2, "j": inner}]
    with pytest.raises(pgspate.ConversionError, match="not JSON serializable") as caught:
        pgspate.load(rows, "t", to=dsn)
    assert (caught.value.place.row, caught.value.place.column) == (2, "j")
    assert "json.dumps" in caught.value.hint
    circle = []
    circle.append(circle)
    with pytest.raises(pgspate.ConversionError, match="Circular"):
        pgspate.load([(1, circle)], "t", to=dsn)
    with pgspate.Writer("t", to=dsn) as writer:
        with pytest.raises(pgspate.ConversionError, match="not JSON serializable") as caught:
            writer.insert({"id": 1, "j": inner})
        assert caught.value.place.column == "j"
    assert stored(db) == []


def test_values_of_numpy_in_json_are_what_python_has(db, dsn):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (j jsonb)")
    nested = numpy.empty(2, dtype=object)
    nested[:] = [numpy.array([1, 2]), numpy.array(["x"])]
    value = {"n": numpy.int64(2**53 + 1), "f": numpy.float64(0.1), "b": numpy.bool_(True),
             "l": nested}
    pgspate.load([(value,), (nested,)], "t", to=dsn)
    found = [json.loads(text) for text, in db.execute("select j::text from t order by j")]
    assert found == [[[1, 2], ["x"]],
                     {"n": 2**53 + 1, "f": 0.1, "b": True, "l": [[1, 2], ["x"]]}]
    with pytest.raises(pgspate.ConversionError, match="not JSON serializable"):
        pgspate.load([({"a": numpy.array(["2024-01-01"], "M8[ns]")},)], "t", to=dsn)


def test_a_table_that_is_no_name_is_refused(dsn):
    for call in [
        lambda: pgspate.load([(1,)], object(), to=dsn),
        lambda: pgspate.sync([(1,)], object(), to=dsn, scope="all"),
        lambda: pgspate.plan([(1,)], object(), to=dsn),
        lambda: pgspate.Writer(object(), to=dsn),
        lambda: pgspate.aio.Writer(object(), to=dsn),
        lambda: pgspate.Writer(to=dsn).insert({"a": 1}, object()),
    ]:
        with pytest.raises(pgspate.UsageError, match="is an object of class object, not a name"):
            call()
