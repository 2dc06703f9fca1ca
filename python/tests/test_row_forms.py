"""Data that looks like rows: open files, bytes, records of numpy, and tables in a list."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import gzip
import io
import json
import sqlite3
import types
import typing
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


def changed_again(row, change, count=3000):
    for n in range(count):
        change(row, n)
        yield row


def test_a_row_that_a_generator_changes_and_yields_again_is_stored_each_time(db, dsn):
    @dataclasses.dataclass
    class Point:
        a: int = 0

    def set_item(row, n):
        row["a"] = n

    def set_first(row, n):
        row[0] = n

    def set_attribute(row, n):
        row.a = n

    db.execute("create table t (a int)")
    for row, change in [({}, set_item), ([0], set_first), (Point(), set_attribute),
                        (collections.OrderedDict(), set_item), (collections.UserDict(), set_item)]:
        pgspate.load(changed_again(row, change), "t", to=dsn)
        assert stored(db, "select count(distinct a), min(a), max(a) from t") == [(3000, 0, 2999)]
        db.execute("truncate t")


def test_a_row_that_is_changed_and_yielded_again_is_written_and_applied_each_time(db, dsn):
    def set_item(row, n):
        row["a"] = n

    def set_nested(event, n):
        event["row"]["a"] = n

    async def asynchronous(rows):
        for row in rows:
            yield row

    async def write():
        rows = asynchronous(changed_again({}, set_item))
        await pgspate.aio.load(rows, "t", to=dsn)
        async with pgspate.aio.Writer("t", to=dsn) as writer:
            await writer.insert_many(changed_again({}, set_item, 5))
        event = {"op": "insert", "table": "t", "row": {}}
        events = asynchronous(changed_again(event, set_nested, 5))
        await pgspate.aio.apply(events, stream="s", to=dsn)

    db.execute("create table t (a int)")
    asyncio.run(write())
    with pgspate.Writer("t", to=dsn) as writer:
        writer.insert_many(changed_again({}, set_item, 5))
        writer.insert_each(changed_again({}, set_item, 5))
    counts = stored(db, "select a, count(*) from t group by 1 order by 1 limit 6")
    assert counts == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5), (5, 1)]


def test_a_value_that_a_generator_changes_and_yields_again_is_stored_each_time(db, dsn):
    def rows(value, change):
        for n in range(3000):
            change(value, n)
            yield (n, value)

    def set_first(value, n):
        value[0] = n % 256

    def set_item(value, n):
        value["x"] = n % 256

    for kind, value, change, read in [("int[]", [0], set_first, "v[1]"),
                                      ("jsonb", {}, set_item, "(v->'x')::int"),
                                      ("bytea", bytearray(1), set_first, "get_byte(v, 0)")]:
        db.execute(f"create table changing (n int, v {kind})")
        pgspate.load(rows(value, change), "changing", to=dsn)
        right = f"select count(*) from changing where {read} = n % 256"
        assert stored(db, right) == [(3000,)], kind
        db.execute("drop table changing")


def test_mappings_are_taken_as_dicts_are(db, dsn):
    db.execute("create table t (a int default 7, b int)")
    for make in (collections.UserDict, types.MappingProxyType, collections.ChainMap):
        pgspate.load([make({"a": 1, "b": 2}), make({"a": 3})], "t", to=dsn)
        assert stored(db) == [(1, 2), (3, None)]
        late = [make({"a": n}) for n in range(1000)] + [make({"a": 1000, "b": 7})]
        with pytest.raises(pgspate.ConversionError, match="none of the first 1000"):
            pgspate.load(late, "t", to=dsn)
        db.execute("truncate t")
        with pgspate.Writer("t", to=dsn) as writer:
            for late in [{"a": 2, "b": 3, "z": 1}, {"a": 2}]:
                with pytest.raises(pgspate.UsageError, match="record 2 has other columns"):
                    writer.insert_many([make({"a": 1, "b": 2}), make(late)])
            # Each record has its own columns, and the others get their defaults.
            writer.insert(make({"a": 1, "b": 2}))
            writer.insert(make({"b": 5}))
        assert stored(db) == [(1, 2), (7, 5)]
        db.execute("truncate t")


def test_a_late_key_is_never_ignored_as_it_may_be_a_column(db, dsn):
    db.execute("create table t (a int, b int)")
    rows = [{"a": n} for n in range(1000)] + [{"a": 1000, "b": 5}]
    with pytest.raises(pgspate.ConversionError, match="none of the first 1000"):
        pgspate.load(rows, "t", ignore_unknown=True, to=dsn)
    pgspate.load(rows, "t", columns=["a", "b"], to=dsn)
    assert stored(db, "select count(*), max(b) from t") == [(1001, 5)]


def test_dataclasses_and_named_tuples_of_other_fields_are_refused(db, dsn):
    @dataclasses.dataclass
    class Point:
        x: int
        y: int
        kind: typing.ClassVar[str] = "point"

    @dataclasses.dataclass
    class Named(Point):
        name: str = "n"

    @dataclasses.dataclass
    class Keys:
        keys: int

    db.execute("create table t (x int, y int)")
    pair, swapped = collections.namedtuple("P", "x y"), collections.namedtuple("S", "y x")
    again = collections.namedtuple("Again", "x y")
    pgspate.load([Point(1, 2), Point(3, 4)], "t", to=dsn)
    pgspate.load([pair(5, 6), again(7, 8), (9, 10)], "t", to=dsn)
    for rows in ([Point(1, 2), Named(1, 2)], [pair(1, 2), swapped(1, 2)]):
        with pytest.raises(pgspate.ConversionError, match="has other fields than the first row's"):
            pgspate.load(rows, "t", to=dsn)
    assert stored(db) == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]
    pgspate.load([Keys(1)], "made", create=True, to=dsn)
    assert stored(db, "select keys from made") == [(1,)]
    with pytest.raises(pgspate.UsageError, match="a row of class set has no columns"):
        pgspate.load([{1, 2}], "t", to=dsn)


def test_many_values_that_only_the_server_reads_are_loaded(db, dsn, tmp_path):
    """A chunk's rows for the server are sent after its other rows, and may be many."""
    text = "2024-01-01 00:00:00 Europe/Berlin"
    db.execute("create table t (a timestamptz)")
    lines = tmp_path / "t.ndjson"
    lines.write_text((json.dumps({"a": text}) + "\n") * 20_000)
    csv = tmp_path / "t.csv"
    csv.write_text("a\n" + f'"{text}"\n' * 20_000)
    data = [[(text,)] * 20_000, lines, csv]
    try:
        import pyarrow

        data.append(pyarrow.table({"a": [text] * 20_000}))
    except ImportError:
        pass
    for rows in data:
        assert pgspate.load(rows, "t", to=dsn).rows_written == 20_000
    db.execute("create table n (a int)")
    with pytest.raises(pgspate.ServerError, match="invalid input syntax for type integer"):
        pgspate.load([("x" * 1000,)] * 500, "n", to=dsn)


@pytest.mark.parametrize("data", [{(1, 2): 99}, {"a": [1, 2]}, types.MappingProxyType({"a": 1})])
def test_a_mapping_is_neither_rows_nor_columns(db, dsn, data):
    db.execute("create table t (a int, b int)")
    for call in [lambda: pgspate.load(data, "t", to=dsn),
                 lambda: pgspate.sync(data, "t", key="a", scope="all", to=dsn)]:
        with pytest.raises(pgspate.UsageError, match="is one row, or columns") as caught:
            call()
        assert "`[row]`" in caught.value.hint and "pandas.DataFrame" in caught.value.hint
    assert stored(db) == []


def test_a_wrapper_or_view_that_a_generator_changes_is_stored_each_time(db, dsn):
    from psycopg.types.json import Json, Jsonb

    inner, array = {}, bytearray(1)
    wrapper, view = Jsonb(inner), memoryview(array)
    values = [wrapper, (Json(inner),), view, [view]]
    reads = ["(v::jsonb->>'x')::int", "(v[1]->>'x')::int", "get_byte(v, 0)", "get_byte(v[1], 0)"]
    kinds = ["text", "jsonb[]", "bytea", "bytea[]"]

    def rows(value, make):
        for n in range(1300):
            inner["x"] = array[0] = n % 256
            yield make(n, value)

    for value, read, kind in zip(values, reads, kinds):
        db.execute(f"create table changing (n int, v {kind})")
        for make in (lambda n, value: (n, value), lambda n, value: {"n": n, "v": value},
                     lambda n, value: [n, value]):
            pgspate.load(rows(value, make), "changing", to=dsn)
        right = f"select count(*) from changing where {read} = n % 256"
        assert stored(db, right) == [(3900,)], kind
        db.execute("drop table changing")


def test_a_wrapper_that_only_late_rows_have_is_stored_each_time(db, dsn):
    from psycopg.types.json import Json

    inner = {}

    def rows():
        for n in range(3000):
            inner["x"] = n
            yield (n, str(n) if n < 2000 else Json(inner))

    db.execute("create table t (n int, v text)")
    pgspate.load(rows(), "t", to=dsn)
    wrong = "select count(*) from t where n >= 2000 and (v::jsonb->>'x')::int <> n"
    assert stored(db, wrong) == [(0,)]


def test_records_of_numpy_with_more_fields_are_refused(db, dsn):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (a int, b int)")
    few = numpy.array([(1,)], dtype=[("a", "i8")])
    more = numpy.array([(2, 3)], dtype=[("a", "i8"), ("b", "i8")])
    with pytest.raises(pgspate.ConversionError, match="other fields than the first row"):
        pgspate.load([*few, *more], "t", to=dsn)
    with pgspate.Writer("t", to=dsn) as writer:
        with pytest.raises(pgspate.ConversionError, match="other fields"):
            writer.insert_many([*few, *more])
    pgspate.load([*few, *more], "t", columns=["a"], to=dsn)
    assert stored(db) == [(1, None), (2, None)]


def test_rows_with_two_values_of_one_name_are_refused(db, dsn):
    db.execute("create table t (a int)")
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    rows = connection.execute("select 1 as a, 2 as a").fetchall()
    with pytest.raises(pgspate.UsageError, match="row 1 has two values with the name 'a'"):
        pgspate.load(rows, "t", to=dsn)
    with pgspate.Writer("t", to=dsn) as writer:
        with pytest.raises(pgspate.UsageError, match="two values with the name 'a'"):
            writer.insert(rows[0])
    connection.close()
    assert stored(db) == []


@pytest.mark.parametrize("columns", [{"a", "b"}, frozenset("ab")])
def test_a_set_of_columns_is_refused(dsn, columns):
    for call in (
        lambda: pgspate.load([(1, 2)], "t", columns=columns, to=dsn),
        lambda: pgspate.Writer("t", columns=columns, to=dsn),
        lambda: pgspate.Writer("t", to=dsn).insert((1, 2), columns=columns),
    ):
        with pytest.raises(pgspate.UsageError, match="`columns=` is a set"):
            call()


ODD_KEYS = [
    ({"ID": 1, "Name": "x"}, "'ID'", 'Did you mean "id"?'),
    ({"id": 1, "nmae": "x"}, "'nmae'", 'Did you mean "name"?'),
    ({"id": 1, "name": "x", "late": None}, "'late'", "Name the key in `columns=`"),
    ({"id": 1, 7: "x"}, "7", "Name the key in `columns=`"),
]


@pytest.mark.parametrize("make", [dict, collections.UserDict, collections.OrderedDict,
                                  lambda row: collections.defaultdict(str, row)])
@pytest.mark.parametrize("row, key, hint", ODD_KEYS)
def test_a_key_that_columns_does_not_name_is_refused(db, dsn, make, row, key, hint):
    db.execute("create table t (id int primary key, name text, late text)")
    db.execute("insert into t values (1, 'kept')")
    message = f"the row has a key {key} that `columns=` does not name"
    columns = ["id", "name"]
    # Rows that lack keys are read in another way than those before.
    for before in ([], [{"id": n, "name": "y"} for n in range(2, 1500)], [{"id": 2}]):
        rows = [make(it) for it in [*before, row]]
        for call, options in [(pgspate.load, {}), (pgspate.sync, {"no_delete": True})]:
            for given in (rows, iter(rows)):
                with pytest.raises(pgspate.ConversionError, match=message) as refused:
                    call(given, "t", columns=columns, to=dsn, **options)
                assert refused.value.place.row == len(rows)
                assert hint in refused.value.hint and "ignore_unknown=True" in refused.value.hint
    with pgspate.Writer("t", to=dsn, columns=columns) as writer:
        with pytest.raises(pgspate.ConversionError, match=message) as refused:
            writer.insert(make(row))
        assert hint in refused.value.hint and "ignore_unknown" not in refused.value.hint
        with pytest.raises(pgspate.ConversionError, match=message):
            writer.insert_many([make({"id": 2, "name": "y"}), make(row)])
    assert stored(db) == [(1, "kept", None)]


def test_other_keys_may_be_ignored(db, dsn):
    db.execute("create table t (id int primary key, name text default 'none', late text)")
    rows = [{"id": 1, "late": "x"}, {"id": 2, "name": "y", "late": "x"}]
    for given in (rows, iter(rows)):
        pgspate.load(given, "t", columns=["id", "name"], ignore_unknown=True, to=dsn)
        assert stored(db, "delete from t returning *") == [(1, None, None), (2, "y", None)]
    pgspate.sync(rows, "t", columns=["id"], ignore_unknown=True, scope="all", to=dsn)
    assert stored(db) == [(1, "none", None), (2, "none", None)]
    with pytest.raises(pgspate.PlanError, match='column "nmae"'):
        pgspate.load(rows, "t", columns=["id", "nmae"], ignore_unknown=True, to=dsn)
