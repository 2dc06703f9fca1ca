"""Data frames of pandas: the index, object columns, and columns that cannot be loaded."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

import pytest

import pgspate
from pgspate import _frame

numpy = pytest.importorskip("numpy")
pandas = pytest.importorskip("pandas")


@pytest.fixture(params=["pyarrow", "rows"])
def way(request, monkeypatch):
    """Runs a test with pyarrow and without."""
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setattr(_frame, "_import_pyarrow", lambda: None)
    return request.param


def stored(db, sql="select * from t order by 1"):
    return db.execute(sql).fetchall()


def test_missing_values_are_null(db, dsn, way):
    moment = dt.datetime(2024, 2, 29, 13, 14, 15, 123456)
    db.execute("create table t (a int, b text, c timestamp, d float8)")
    frame = pandas.DataFrame({
        "a": pandas.array([1, None], dtype="Int64"), "b": ["x", None],
        "c": [pandas.Timestamp(moment), pandas.NaT], "d": [1.5, float("nan")],
    })
    assert pgspate.load(frame, "t", to=dsn).rows_written == 2
    assert stored(db) == [(1, "x", moment, 1.5), (None,) * 4]


INDEXES = {
    "integers": pandas.Index([3, 4], name="id"),
    "other integers": pandas.Index([4, 3], name="id"),
    "range": pandas.RangeIndex(3, 5, name="id"),
    "range from 0": pandas.RangeIndex(2, name="id"),
    "nullable": pandas.Index([3, 4], dtype="Int64", name="id"),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_with_a_name_is_loaded_as_a_column(db, dsn, way, kind):
    index = INDEXES[kind]
    db.execute("create table t (id int, v text)")
    frame = pandas.DataFrame({"v": ["x", "y"]}, index=index)
    pgspate.load(frame, "t", to=dsn)
    assert sorted(stored(db)) == sorted(zip(index.tolist(), ["x", "y"]))
    pgspate.load(frame, "made", create=True, to=dsn)
    assert sorted(stored(db, "select * from made")) == sorted(zip(index.tolist(), ["x", "y"]))


@pytest.mark.parametrize("index", [None, [3, 4], ["p", "q"], pandas.RangeIndex(3, 5),
                                   pandas.MultiIndex.from_tuples([(1, 2), (3, 4)])])
@pytest.mark.filterwarnings("ignore:the index has no name")
def test_an_index_without_a_name_is_left_out(db, dsn, way, index):
    db.execute("create table t (id int default 7, v text)")
    pgspate.load(pandas.DataFrame({"v": ["x", "y"]}, index=index), "t", to=dsn)
    assert stored(db) == [(7, "x"), (7, "y")]


def test_the_argument_columns_chooses_columns_by_name(db, dsn, way):
    db.execute("create table t (a text, b text)")
    frame = pandas.DataFrame({"b": ["B"], "x": [1], "a": ["A"]})
    report = pgspate.load(frame, "t", columns=["a", "b"], to=dsn)
    assert stored(db) == [("A", "B")] and report.warnings == []
    pgspate.load(frame, "made", columns=["a", "x"], create=True, to=dsn)
    assert stored(db, "select * from made") == [("A", 1)]
    assert pgspate.sync(frame, "t", columns=["a", "b"], key="a", scope="all", to=dsn).unchanged == 1
    # Other names rename the columns in their order.
    renamed = frame[["b", "a"]].rename(columns={"b": "z"})
    pgspate.load(renamed, "t", columns=["a", "b"], to=dsn)
    assert stored(db)[-1] == ("B", "A")
    with pytest.raises(pgspate.UsageError, match="but `columns=` names 2"):
        pgspate.load(frame, "t", columns=["a", "y"], to=dsn)


def test_an_index_of_data_without_a_name_is_left_out_with_a_warning(db, dsn, way):
    days = pandas.date_range("2024-01-01", periods=2)
    frame = pandas.DataFrame({"v": ["x", "y"]}, index=days)
    with pytest.warns(UserWarning, match="the index has no name"):
        pgspate.load(frame, "t", create=True, to=dsn)
    assert stored(db) == [("x",), ("y",)]


def test_the_argument_index_decides(db, dsn, way):
    frame = pandas.DataFrame({"v": ["x"]}, index=[3])
    pgspate.load(frame, "unnamed", index=True, create=True, to=dsn)
    assert stored(db, "select index, v from unnamed") == [(3, "x")]
    named = frame.rename_axis("id")
    pgspate.load(named, "named", index=True, create=True, to=dsn)
    assert stored(db, "select id, v from named") == [(3, "x")]
    pgspate.load(named, "without", index=False, create=True, to=dsn)
    assert stored(db, "select * from without") == [("x",)]
    levels = pandas.MultiIndex.from_tuples([(1, "p")], names=["a", None])
    frame = pandas.DataFrame({"v": ["x"]}, index=levels)
    with pytest.warns(UserWarning, match="the index has no name"):
        pgspate.load(frame, "levels", create=True, to=dsn)
    assert stored(db, "select * from levels") == [(1, "x")]
    pgspate.load(frame, "all_levels", index=True, create=True, to=dsn)
    assert stored(db, "select a, level_1, v from all_levels") == [(1, "p", "x")]
    with pytest.raises(pgspate.UsageError, match="has no index"):
        pgspate.load([{"a": 1}], "t", index=True, to=dsn)


def test_pandas_own_export_does_not_decide_about_the_index(db, dsn, monkeypatch):
    # pandas 2 and 3 export different indexes, so pgspate does not use the export.
    def refuse(self, requested_schema=None):
        raise AssertionError("pandas' export was used")

    monkeypatch.setattr(pandas.DataFrame, "__arrow_c_stream__", refuse, raising=False)
    db.execute("create table t (id int primary key, v text)")
    frame = pandas.DataFrame({"id": [3, 4], "v": ["x", "y"]}).set_index("id")
    pgspate.load(frame, "t", to=dsn)
    assert stored(db) == [(3, "x"), (4, "y")]
    report = pgspate.sync(frame.loc[[4]], "t", scope="all", to=dsn)
    assert (report.deleted, report.unchanged) == (1, 1)


def test_json_of_an_object_column_is_stored_as_it_is(db, dsn, way):
    values = [{"a": 1}, {"b": [1, {"c": None}]}, None, {}]
    lists = [[{"a": 1}], [{"b": 1}, 2], [], None]
    frame = pandas.DataFrame({"id": range(4), "j": values, "k": lists})
    pgspate.load(frame, "t", create=True, to=dsn)
    types = "select string_agg(format_type(atttypid, null), ' ' order by attnum) from pg_attribute"
    assert stored(db, types + " where attrelid = 't'::regclass and attnum > 0") == [
        ("bigint jsonb jsonb",)
    ]
    assert [row[1:] for row in stored(db)] == list(zip(values, lists))


def test_a_frame_of_json_columns_alone_is_loaded(db, dsn, way):
    frame = pandas.DataFrame({"j": [{"a": 1}, None], "k": [[{"b": 2}], []]})
    pgspate.load(frame, "t", create=True, to=dsn)
    assert stored(db) == [({"a": 1}, [{"b": 2}]), (None, [])]


def test_a_series_is_told_to_become_a_frame(dsn):
    with pytest.raises(pgspate.UsageError, match="a Series has no columns") as caught:
        pgspate.load(pandas.Series([1, 2], name="a"), "t", create=True, to=dsn)
    assert ".to_frame()" in caught.value.hint


def test_lists_of_scalars_are_arrays(db, dsn, way):
    frame = pandas.DataFrame({"id": [1, 2], "a": [[1, 2], []], "s": [["x"], None]})
    pgspate.load(frame, "t", create=True, to=dsn)
    assert stored(db) == [(1, [1, 2], ["x"]), (2, [], None)]


def test_nan_in_a_list_stays_nan(db, dsn, way):
    vectors = [[1.5, float("nan"), None], numpy.array([float("nan"), 2.5])]
    frame = pandas.DataFrame({"id": [1, 2], "v": vectors, "w": [None, vectors[0]]})
    pgspate.load(frame, "t", create=True, to=dsn)
    assert stored(db, "select v::text, w::text from t order by id") == [
        ("{1.5,NaN,NULL}", None), ("{NaN,2.5}", "{1.5,NaN,NULL}")
    ]


def test_objects_of_one_class_are_stored_exactly(db, dsn, way):
    frame = pandas.DataFrame({
        "id": [1, 2],
        "u": [uuid.UUID(int=7), None],
        "d": [dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 13)],
        "i": [2**70, 1],
        "n": [Decimal("1.5"), Decimal("1.25")],
    }, dtype=object)
    pgspate.load(frame, "t", create=True, to=dsn)
    assert stored(db, "select id::int, u, d, i, n::text from t order by 1") == [
        (1, uuid.UUID(int=7), dt.datetime(2024, 2, 29), 2**70, "1.5"),
        (2, None, dt.datetime(2024, 2, 29, 13), 1, "1.25"),
    ]


def arrow_frame():
    """Returns a frame whose columns Python's objects would not hold as Arrow does."""
    pyarrow = pytest.importorskip("pyarrow")

    def arrow(values, type_):
        return pandas.array(values, dtype=pandas.ArrowDtype(type_))

    utc = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
    return pandas.DataFrame({
        "id": numpy.array([1, 2], dtype="int16"),
        "big": numpy.array([2**64 - 1, 1], dtype="uint64"),
        "f32": numpy.array([0.1, 1e10], dtype="float32"),
        "span": pandas.to_timedelta(["1D", "-25h"]),
        "nanos": pandas.to_timedelta([1500, 2500], unit="ns"),
        "moment": pandas.to_datetime([1500, 2500], unit="ns"),
        "zone": pandas.to_datetime([utc, utc]).tz_convert("Europe/Berlin"),
        "ints": arrow([[2**53 + 1, None], None], pyarrow.list_(pyarrow.int64())),
        "floats": arrow([[1.5, None, float("nan")], None], pyarrow.list_(pyarrow.float64())),
        "map": arrow([[("k", 2**53 + 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "struct": arrow([{"a": 1, "b": None}, None],
                        pyarrow.struct([("a", pyarrow.int64()), ("b", pyarrow.int64())])),
        "bytes": [b"x", None],
        "json": [{"a": 1}, None],
    })


OBJECTS = {
    "Decimal": Decimal("1.10"), "date": dt.date(2024, 2, 29), "time": dt.time(1, 2),
    "UUID": uuid.UUID(int=7), "set": {1}, "int": 2**70, "timedelta": dt.timedelta(days=1),
}


def contents(db):
    """Returns the types and the texts of the columns of `t`, except those of `obj`."""
    types = db.execute(
        "select attname::text, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = 't'::regclass and attnum > 0 and attname <> 'obj' order by attnum"
    ).fetchall()
    names = ", ".join(f'"{name}"::text' for name, _ in types)
    return types, db.execute(f"select {names} from t order by id").fetchall()


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_column_does_not_change_the_other_columns(db, dsn, kind):
    frame = arrow_frame()
    pgspate.load(frame, "t", create=True, to=dsn)
    before = contents(db)
    assert dict(before[0])["ints"] == "bigint[]" and "{9007199254740993,NULL}" in before[1][0]
    # The object column is the first, a middle or the last one.
    for place in (0, 5, len(frame.columns)):
        db.execute("drop table t")
        other = frame.copy()
        other.insert(place, "obj", pandas.Series([OBJECTS[kind], None], dtype=object))
        pgspate.load(other, "t", create=True, to=dsn)
        assert contents(db) == before
        report = pgspate.sync(other, "t", key="id", scope="all", check=True, to=dsn)
        assert report.unchanged == 2
    value = db.execute("select obj from t order by id").fetchall()
    assert value == [([1] if kind == "set" else OBJECTS[kind],), (None,)]


def test_text_of_the_other_columns_stays_as_it_is(db, dsn):
    frame = arrow_frame()
    columns = ", ".join(f'"{column}" text' for column in frame.columns)
    db.execute(f"create table t ({columns}, obj numeric)")
    pgspate.load(frame, "t", to=dsn)
    before = contents(db)
    db.execute("truncate t")
    pgspate.load(frame.assign(obj=[Decimal("1.10"), None]), "t", to=dsn)
    assert contents(db) == before


def test_rows_beside_arrow_stay_together(db, dsn):
    pyarrow = pytest.importorskip("pyarrow")
    rows = 20_000
    chunks = pyarrow.chunked_array([range(3), range(3, 9000), [], range(9000, rows)],
                                   type=pyarrow.int64())
    frame = pandas.DataFrame({
        "n": [Decimal(n) for n in range(rows)],
        "a": pandas.Series(pandas.arrays.ArrowExtensionArray(chunks)),
        "f": numpy.arange(rows, dtype="float32"),
    })
    pgspate.load(frame, "t", create=True, lanes=2, to=dsn)
    assert stored(db, "select count(*), count(distinct a), bool_and(n = a and a = f) from t") == [
        (rows, rows, True)
    ]
    pgspate.load(frame[5000:5010], "part", create=True, columns=["x", "y", "z"], to=dsn)
    assert stored(db, "select min(x), max(y), count(*) filter (where x = z) from part") == [
        (5000, 5009, 10)
    ]
    frame.iloc[12_000, 0] = Decimal("12000.5")
    db.execute("create table i (n int, a int, f int)")
    with pytest.raises(pgspate.Error) as caught:
        pgspate.load(frame, "i", to=dsn)
    assert (caught.value.place.row, caught.value.place.column) == (12_001, "n")
    with pytest.raises(pgspate.UsageError, match="has 3 columns, but .* names 1 column"):
        pgspate.load(frame, "i", columns=["m"], to=dsn)


def test_nan_of_decimals_stays_nan_and_nan_of_floats_is_missing(db, dsn, way):
    nan = float("nan")
    frame = pandas.DataFrame({
        "id": [1, 2, 3], "n": [Decimal("NaN")] * 3, "m": [Decimal("NaN"), None, Decimal("1.5")],
        "x": [Decimal("NaN"), 0.5, nan], "f": [nan, 0.5, None],
    }, dtype=object)
    pgspate.load(frame, "t", create=True, to=dsn)
    assert stored(db, "select n::text, m::text, x::text, f::text from t order by id") == [
        ("NaN", "NaN", "NaN", None), ("NaN", None, "0.5", "0.5"), ("NaN", "1.5", None, None)
    ]


def test_a_created_column_of_decimals_holds_larger_and_finer_ones(db, dsn, way):
    today = pandas.DataFrame({"n": [Decimal("1.50"), Decimal("2.25")]}, dtype=object)
    pgspate.load(today, "t", create=True, to=dsn)
    tomorrow = pandas.DataFrame({"n": [Decimal("123456789.123456789")]}, dtype=object)
    pgspate.load(tomorrow, "t", to=dsn)
    assert stored(db, "select n::text from t order by t.n") == [
        ("1.50",), ("2.25",), ("123456789.123456789",)
    ]


@pytest.mark.parametrize("values, classes", [
    ([1, "a"], "int and str"), (["a", {"b": 1}], "dict and str"), ([1, True], "bool and int"),
    ([b"x", "x"], "bytes and str"), (["a", uuid.UUID(int=1)], "UUID and str"),
])
def test_a_column_of_different_types_is_refused_with_its_name(dsn, way, values, classes):
    frame = pandas.DataFrame({"a": [1, 2], "the column": pandas.Series(values, dtype=object)})
    with pytest.raises(pgspate.ConversionError, match=f'"the column".*{classes}') as caught:
        pgspate.load(frame, "t", create=True, to=dsn)
    assert caught.value.place.column == "the column" and "astype(str)" in caught.value.hint


def test_columns_that_occur_twice_are_refused_with_their_name(dsn, way):
    frame = pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])
    with pytest.raises(pgspate.UsageError, match='two columns "a"'):
        pgspate.load(frame, "t", create=True, to=dsn)
    with pytest.raises(pgspate.UsageError, match='two columns "1"'):
        pgspate.load(pandas.DataFrame([[1, 2]], columns=[1, "1"]), "t", create=True, to=dsn)
    frame = pandas.DataFrame({"id": [1]}, index=pandas.Index([2], name="id"))
    with pytest.raises(pgspate.UsageError, match='two columns "id"') as caught:
        pgspate.load(frame, "t", create=True, to=dsn)
    assert "index=False" in caught.value.hint


def test_a_frame_without_columns_and_a_list_without_rows_say_so(db, dsn, way):
    # Without pyarrow, a frame is a list of rows.
    missing = "columns" if way == "pyarrow" else "rows"
    with pytest.raises(pgspate.PlanError, match=f"the input has no {missing}"):
        pgspate.load(pandas.DataFrame(), "t", create=True, to=dsn)
    with pytest.raises(pgspate.PlanError, match="the input has no rows"):
        pgspate.load([], "t", create=True, to=dsn)


def test_a_lone_surrogate_is_refused_with_its_place(dsn, way):
    frame = pandas.DataFrame({"n": [1, 2], "s": pandas.Series(["a", "\ud800"], dtype=object)})
    with pytest.raises(pgspate.ConversionError, match="lone surrogate") as refused:
        pgspate.load(frame, "t", create=True, to=dsn)
    assert (refused.value.place.row, refused.value.place.column) == (2, "s")


PERIODS = pandas.period_range("2024-01", periods=2, freq="M")


@pytest.mark.parametrize("values", [PERIODS, pandas.interval_range(0, 2), [1 + 2j, 3j],
                                    pandas.Categorical(PERIODS), pandas.cut([1, 5], 2)])
def test_a_dtype_without_a_type_in_postgresql_is_refused(dsn, way, values):
    with pytest.raises(pgspate.ConversionError, match='"p" has the dtype'):
        pgspate.load(pandas.DataFrame({"p": values}), "t", create=True, to=dsn)


def test_categories_are_loaded_as_their_values(db, dsn, way):
    days = pandas.to_datetime(["2024-01-02", None])
    frame = pandas.DataFrame({
        "t": pandas.Categorical(["a", None]), "n": pandas.Categorical([7, None]),
        "d": pandas.Categorical(days), "x": pandas.Categorical([Decimal("1.10"), None]),
    })
    pgspate.load(frame, "t", create=True, to=dsn)
    found = stored(db, "select t, n, d::text, x::text from t order by t")
    assert found == [("a", 7, "2024-01-02 00:00:00", "1.10"), (None,) * 4]


def test_a_value_that_is_no_json_is_refused_with_its_place(dsn):
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"j": [{"a": 1}, {"a": object()}]})
    with pytest.raises(pgspate.ConversionError, match="not JSON serializable") as caught:
        pgspate.load(frame, "t", create=True, to=dsn)
    assert (caught.value.place.row, caught.value.place.column) == (2, "j")


def test_the_frame_is_not_changed(db, dsn, way):
    index = pandas.Index([5, 6], name="i")
    frame = pandas.DataFrame({1: [1, 2], "j": [{"a": 1}, None]}, index=index)
    before = frame.copy(deep=True)
    pgspate.load(frame, "t", create=True, to=dsn)
    pandas.testing.assert_frame_equal(frame, before)
    assert stored(db, 'select i, "1", j from t order by i') == [(5, 1, {"a": 1}), (6, 2, None)]


CATEGORIES = {
    "texts": ["a", "b", None], "integers": [2**60 + 1, 2, 3], "bools": [True, False, True],
    "floats": [0.1, None, 1e300], "float32": numpy.array([0.1, 2, 3], dtype="float32"),
    "small": numpy.array([1, 2, 3], dtype="int8"), "bytes": [b"x", b"\x00", None],
    "spans": pandas.to_timedelta(["1D", "-25h", None]),
    "moments": pandas.to_datetime(["2024-01-02 03:04:05.123456789", None, "1900-01-01 00:00:00.0"]),
    "zones": pandas.to_datetime(["2024-01-02", None, "1900-01-01"]).tz_localize("Europe/Berlin"),
    "UUIDs": [uuid.UUID(int=7), None, uuid.UUID(int=8)],
    "Decimals": [Decimal("1.50"), None, Decimal("12345678901234567890.5")],
    "dates": [dt.date(2024, 2, 29), None, dt.date(1, 1, 1)],
    "times": [dt.time(1, 2), None, dt.time(3)],
    "long": [2**70, None, 2**71], "lists": [(1, 2), None, (3, 4)],
}


@pytest.mark.parametrize("kind", CATEGORIES)
def test_categories_are_stored_as_the_column_of_the_same_values(db, dsn, way, kind):
    is_object = kind in ("bytes", "UUIDs", "Decimals", "dates", "times", "long", "lists")
    plain = pandas.Series(CATEGORIES[kind], dtype=object if is_object else None)
    frame = pandas.DataFrame({"id": range(3), "c": plain.astype("category")})
    before = frame.copy(deep=True)
    type_of = "select format_type(atttypid, atttypmod) from pg_attribute where attname = 'c'" \
        " and attrelid = '{}'::regclass"
    found = []
    for name, column in (("plain", plain), ("made", frame["c"])):
        pgspate.load(frame.assign(c=column), name, create=True, to=dsn)
        texts = stored(db, f"select id, c::text from {name} order by id")
        found.append((stored(db, type_of.format(name)), texts))
    assert found[0] == found[1]
    pgspate.load(frame.set_index("c"), "indexed", create=True, to=dsn)
    assert stored(db, "select id, c::text from indexed order by id") == found[0][1]
    pandas.testing.assert_frame_equal(frame, before)


def test_categories_of_different_types_are_judged_by_their_values(db, dsn, way):
    mixed = pandas.Series(pandas.Categorical([1, "x", 1]))
    with pytest.raises(pgspate.ConversionError, match='"c" has values of different types'):
        pgspate.load(pandas.DataFrame({"c": mixed}), "t", create=True, to=dsn)
    db.execute("create table t (c int)")
    pgspate.load(pandas.DataFrame({"c": mixed[mixed == 1]}), "t", to=dsn)
    assert stored(db) == [(1,), (1,)]


def test_lists_of_lists_go_into_arrays_and_json(db, dsn):
    pytest.importorskip("pyarrow")
    nan = float("nan")
    values = {
        "i": [[[1, 2], [3, None]], None, []], "f": [[[0.1, 1.0]], [[nan, 2.5]], None],
        "t": [[["a", "b"]], [['"'], [","]], []], "d": [[[[1]], [[2]]], None, [[[3]]]],
    }
    frame = pandas.DataFrame({"id": range(3), **values})
    db.execute("create table t (id int, i int[], f float8[], t text[], d int[])")
    pgspate.load(frame, "t", to=dsn)
    assert stored(db, "select i, f::text, t, d from t order by id") == [
        ([[1, 2], [3, None]], "{{0.1,1}}", [["a", "b"]], [[[1]], [[2]]]),
        (None, "{{NaN,2.5}}", [['"'], [","]], None), ([], None, [], [[[3]]]),
    ]
    del values["f"][1][0][0]
    ragged = {"r": [[[1], [2, 3]], None, [[], []]], "m": [[1, [2]], [], None],
              "x": [[[1, "a"]]] * 3}
    frame = pandas.DataFrame({"id": range(3), **values, **ragged})
    pgspate.load(frame, "made", create=True, to=dsn)
    assert stored(db, "select pg_typeof(i), pg_typeof(d), pg_typeof(r), pg_typeof(m) from made "
                      "limit 1") == [("jsonb",) * 4]
    columns = [*values, *ragged]
    assert stored(db, f"select {', '.join(columns)} from made order by id") == list(
        zip(*(frame[column] for column in columns))
    )
    endless = [[1]]
    endless.append(endless)
    with pytest.raises(pgspate.ConversionError, match="Circular"):
        pgspate.load(pandas.DataFrame({"a": [endless, None]}), "new", create=True, to=dsn)


@pytest.mark.parametrize("dtype", ["float32", "Float32", "float16"])
def test_narrow_floats_have_their_own_digits_with_and_without_pyarrow(db, dsn, way, dtype):
    db.execute("create table t (n numeric, v text, f float4)")
    number = 0.25 if dtype == "float16" else 0.1
    values = pandas.Series([number, None]).astype(dtype)
    pgspate.load(pandas.DataFrame({"n": values, "v": values, "f": values}), "t", to=dsn)
    found = stored(db, "select n::text, v, f::text from t order by n")
    assert found == [(str(number),) * 3, (None,) * 3]


def test_sparse_columns_are_loaded_as_their_values(db, dsn, way):
    db.execute("create table t (id int, a int, b float8, c bool)")
    pgspate.load(pandas.DataFrame({
        "id": range(3),
        "a": pandas.arrays.SparseArray([0, 5, 0]),
        "b": pandas.arrays.SparseArray([None, 1.5, None]),
        "c": pandas.arrays.SparseArray([True, False, False]),
    }), "t", to=dsn)
    assert stored(db) == [(0, 0, None, True), (1, 5, 1.5, False), (2, 0, None, False)]


@pytest.mark.parametrize("others", [[0.5], [numpy.float64(0.5)], [numpy.float16(0.5), None]])
def test_floats_of_different_widths_keep_their_digits(db, dsn, way, others):
    db.execute("create table t (id int, n numeric, v text)")
    values = pandas.Series([numpy.float32(0.1), *others], dtype=object)
    for column in (values, pandas.Series(pandas.Categorical(
            values, pandas.Index(values.dropna(), dtype=object)))):
        pgspate.load(pandas.DataFrame({"id": range(len(values)), "n": column, "v": column}), "t",
                     to=dsn)
        found = db.execute("delete from t returning id, n::text, v").fetchall()
        assert sorted(found)[:2] == [(0, "0.1", "0.1"), (1, "0.5", "0.5")]


def test_arrays_of_objects_keep_all_their_items(db, dsn, way):
    db.execute("create table t (id int, j jsonb, t timestamp[])")
    moment = dt.datetime(2020, 1, 1, 5, 6)
    cells = {"j": [[None, {"a": 1}], [None, {"b": 2}]],
             "t": [[None, dt.date(2020, 1, 1), moment], [None, moment]]}
    arrays = {}
    for name, lists in cells.items():
        arrays[name] = pandas.Series([None] * 2, dtype=object)
        for row, items in enumerate(lists):
            arrays[name][row] = numpy.array(items, dtype=object)
    pgspate.load(pandas.DataFrame({"id": range(2), **arrays}), "t", to=dsn)
    midnight = dt.datetime(2020, 1, 1)
    assert stored(db) == [(0, cells["j"][0], [None, midnight, moment]),
                          (1, cells["j"][1], [None, moment])]


def test_a_signaling_nan_is_stored_as_in_rows(db, dsn, way):
    values = [Decimal("sNaN"), Decimal("1.5"), None, Decimal("-sNaN")]
    given = pandas.Series(values, dtype=object)
    pgspate.load(pandas.DataFrame({"id": range(4), "n": given}), "t", create=True, to=dsn)
    rows = [{"id": nth, "n": value} for nth, value in enumerate(values)]
    pgspate.load(rows, "by_rows", create=True, to=dsn)
    found = stored(db, "select n::text from t order by id")
    assert found == [("NaN",), ("1.5",), (None,), ("NaN",)]
    assert stored(db, "select n::text from by_rows order by id") == found
    assert given[0].is_snan()
