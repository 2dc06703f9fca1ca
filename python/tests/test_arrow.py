"""Arrow data of pyarrow, polars, pandas and other objects."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal

import pytest

import pgspate
from pgspate._blocks import concat_blocks

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

UTC = dt.timezone.utc
MOMENT = dt.datetime(2024, 2, 29, 13, 14, 15, 123456)
COLUMNS = {
    "b": (pa.bool_(), "bool", [True, False]),
    "i1": (pa.int8(), "smallint", [-128, 127]),
    "i2": (pa.int16(), "smallint", [-32768, 32767]),
    "i4": (pa.int32(), "int", [-(2**31), 2**31 - 1]),
    "i8": (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    "u1": (pa.uint8(), "int", [0, 255]),
    "u4": (pa.uint32(), "bigint", [0, 2**32 - 1]),
    "u8": (pa.uint64(), "numeric", [0, 2**64 - 1]),
    "f4": (pa.float32(), "real", [0.5, float("inf")]),
    "f8": (pa.float64(), "float8", [0.1, 1e300]),
    "n": (pa.decimal128(20, 4), "numeric", [Decimal("1.5000"), Decimal("-0.0001")]),
    "n2": (pa.decimal256(50, 0), "numeric", [Decimal(10**49), Decimal(-1)]),
    "s": (pa.string(), "text", ["", "ä€\t"]),
    "ls": (pa.large_string(), "text", ["x", "\\N"]),
    "sv": (pa.string_view(), "text", ["short", "longer than twelve bytes"]),
    "y": (pa.binary(), "bytea", [b"", b"\x00\xff"]),
    "fy": (pa.binary(3), "bytea", [b"abc", b"\x00\x01\x02"]),
    "d": (pa.date32(), "date", [dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
    "d8": (pa.date64(), "date", [dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    "t": (pa.time64("us"), "time", [dt.time(0), dt.time(23, 59, 59, 999999)]),
    "ts": (pa.timestamp("us"), "timestamp", [MOMENT, dt.datetime(1, 1, 1)]),
    "tsz": (pa.timestamp("us", "UTC"), "timestamptz", [MOMENT.replace(tzinfo=UTC)] * 2),
    # Shorter than a day: the interval of an Arrow duration has hours, and that of psycopg has days.
    "iv": (pa.duration("us"), "interval", [dt.timedelta(hours=5), dt.timedelta(seconds=-1)]),
    "l": (pa.list_(pa.int32()), "int[]", [[1, None], []]),
    "ll": (pa.list_(pa.string()), "text[]", [["a", "NULL", ""], [None]]),
    "j": (pa.struct([("a", pa.int32()), ("b", pa.string())]), "jsonb", [{"a": 1, "b": "x"}] * 2),
    "dict": (pa.dictionary(pa.int8(), pa.string()), "text", ["x", "y"]),
    "nil": (pa.null(), "int", [None, None]),
}


@pytest.fixture
def tables(db):
    """Returns an Arrow table with a column of every type.

    Creates two tables: `theirs` with these rows, inserted by psycopg, and `ours` without rows.
    """
    from psycopg.types.json import Jsonb

    columns = ", ".join(f'"{name}" {ty}' for name, (_, ty, _) in COLUMNS.items())
    db.execute(f"create table theirs ({columns}); create table ours (like theirs)")
    rows = list(zip(*(values + [None] for _, _, values in COLUMNS.values())))
    marks = ", ".join(["%s"] * len(COLUMNS))
    for row in rows:
        row = [Jsonb(value) if isinstance(value, dict) else value for value in row]
        db.execute(f"insert into theirs values ({marks})", row)
    return pa.table({name: pa.array(values + [None], type=ty)
                     for name, (ty, _, values) in COLUMNS.items()})


def are_tables_equal(db):
    ours = db.execute("select * from ours order by i4 nulls last").fetchall()
    return ours == db.execute("select * from theirs order by i4 nulls last").fetchall()


def test_every_type_is_stored_as_psycopg_stores_it(db, dsn, tables):
    for data in (tables, tables.to_reader(), tables.to_batches()[0]):
        assert pgspate.load(data, "ours", to=dsn).rows_written == 3
        assert are_tables_equal(db)
        db.execute("truncate ours")


def test_every_object_that_exports_arrow_data_is_loaded(db, dsn, tables):
    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return tables.__arrow_c_stream__(requested_schema)

    class Array:
        def __arrow_c_array__(self, requested_schema=None):
            return tables.to_batches()[0].__arrow_c_array__(requested_schema)

    for data in (Stream(), Array()):
        pgspate.load(data, "ours", to=dsn)
        assert are_tables_equal(db)
        db.execute("truncate ours")


def test_a_table_is_created_from_an_arrow_schema(db, dsn, tables):
    # A dictionary of strings becomes text, and so does a column of Arrow's type null.
    report = pgspate.load(tables, "made", create=True, to=dsn)
    assert report.created and report.rows_written == 3
    assert db.execute("select count(*), max(i8) from made").fetchone() == (3, 2**63 - 1)


def test_a_plan_takes_no_batch_of_a_stream(db, dsn):
    db.execute("create table t (a bigint)")
    taken = []

    def batches():
        for nth in range(50):
            taken.append(nth)
            yield pa.record_batch({"a": pa.array(range(nth * 1000, (nth + 1) * 1000))})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    plan = pgspate.plan(reader, "t", to=dsn)
    assert taken == [] and plan.lanes >= 1
    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    assert pgspate.load(reader, "t", to=dsn).rows_written == 50_000
    assert db.execute("select count(distinct a) from t").fetchone() == (50_000,)


def test_a_load_of_a_stream_that_fails_is_rolled_back(db, dsn):
    db.execute("create table t (a bigint)")

    def batches():
        yield pa.record_batch({"a": pa.array(range(1000))})
        raise ValueError("the source failed")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    with pytest.raises(pgspate.SourceError, match="the source failed"):
        pgspate.load(reader, "t", to=dsn)
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_columns_are_matched_by_name_or_by_the_argument_columns(db, dsn):
    db.execute("create table t (b text, a int)")
    data = pa.table({"a": [1], "b": ["x"]})
    pgspate.load(data, "t", to=dsn)
    pgspate.load(data.rename_columns(["p", "q"]), "t", columns=["a", "b"], to=dsn)
    assert db.execute("select * from t").fetchall() == [("x", 1)] * 2
    with pytest.raises(pgspate.PlanError, match='column "p"') as error:
        pgspate.load(data.rename_columns(["p", "b"]), "t", to=dsn)
    assert "columns=" in str(error.value) and error.value.sqlstate == "42703"


def test_a_large_batch_is_split_and_loaded_by_all_lanes(db, dsn):
    db.execute("create table t (a bigint, b text)")
    data = pa.table({"a": range(400_000), "b": ["x" * 20] * 400_000})
    report = pgspate.load(data, "t", lanes=2, to=dsn)
    assert report.chunks == 13 and report.lanes == 2
    total = db.execute("select count(distinct a), sum(a) from t").fetchone()
    assert total == (400_000, sum(range(400_000)))


def test_the_error_for_a_value_that_does_not_fit_names_its_place(db, dsn):
    db.execute("create table t (a smallint)")
    data = pa.table({"a": [1] * 10 + [70_000]})
    with pytest.raises(pgspate.ServerError) as error:
        pgspate.load(data, "t", to=dsn)
    assert error.value.sqlstate == "22003"
    assert error.value.place.row == 11 and error.value.place.source == "Table"


def test_an_arrow_array_is_refused(dsn):
    for data, name in [(pa.array([1, 2]), "Int64Array"),
                       (pa.chunked_array([[1], [2]]), "ChunkedArray")]:
        with pytest.raises(pgspate.UsageError, match=f"class {name} has no columns") as refused:
            pgspate.load(data, "t", to=dsn)
        assert "pyarrow.table" in refused.value.hint


def test_rows_that_are_null_as_a_whole_are_refused(dsn):
    values = pa.array([1, 777, 3])
    structs = pa.StructArray.from_arrays([values], ["a"], mask=pa.array([False, True, False]))
    for data in (structs, pa.chunked_array([structs])):
        with pytest.raises(pgspate.Error, match="NULL as a whole"):
            pgspate.load(data, "t", create=True, to=dsn)


def test_types_that_only_pandas_reads_are_refused(dsn):
    pandas = pytest.importorskip("pandas")
    periods = pandas.period_range("2024-01", periods=2, freq="M")
    for values in (periods, pandas.interval_range(0, 2)):
        table = pa.table({"p": pa.array(values)})
        for data in (table, table.to_batches()[0], table.to_reader()):
            with pytest.raises(pgspate.ConversionError, match='column "p" has the type pandas'):
                pgspate.load(data, "t", create=True, to=dsn)


def test_a_negative_time_has_a_sign(db, dsn):
    table = pa.table({"a": pa.array([-1, 3661], pa.time32("s")),
                      "b": pa.array([-1_500_000_000, 0], pa.time64("ns"))})
    db.execute("create table t (a text, b text)")
    pgspate.load(table, "t", to=dsn)
    assert db.execute("select * from t order by a").fetchall() == [
        ("-00:00:01", "-00:00:01.5"), ("01:01:01", "00:00:00"),
    ]
    with pytest.raises(pgspate.ServerError, match="invalid input syntax for type time"):
        pgspate.load(table, "made", create=True, to=dsn, types={"a": "time", "b": "time"})


def test_columns_of_polars_that_are_all_null_are_loaded(db, dsn):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"id": [1, 2], "n": [None, None]})
    db.execute("create table t (id int, n int)")
    assert pgspate.load(frame, "t", to=dsn).rows_written == 2
    assert db.execute("select count(*), count(n) from t").fetchone() == (2, 0)
    pgspate.load(frame, "made", create=True, to=dsn)
    assert db.execute("select pg_typeof(n)::text from made limit 1").fetchone() == ("text",)
    db.execute("create table nested (n jsonb)")
    for values in ([[None], [], None], [{"x": 1, "y": None}, None], [[{"y": [None]}]]):
        pgspate.load(polars.DataFrame({"n": values}), "nested", replace=True, to=dsn)
        assert [row[0] for row in db.execute("select n from nested")] == values


def test_a_data_frame_of_polars_is_loaded(db, dsn):
    polars = pytest.importorskip("polars")
    db.execute("create table t (a int, b text, c timestamp, d numeric(10,2), e text[])")
    frame = polars.DataFrame({
        "a": [1, None], "b": ["a long enough string", None], "c": [MOMENT, None],
        "d": [Decimal("1.25"), None], "e": [["x"], None],
    })
    assert pgspate.load(frame, "t", to=dsn).rows_written == 2
    first = (1, "a long enough string", MOMENT, Decimal("1.25"), ["x"])
    assert db.execute("select * from t order by a").fetchall() == [first, (None,) * 5]


def test_columns_of_polars_integers_of_128_bits_are_refused(dsn):
    polars = pytest.importorskip("polars")

    for dtype in (polars.Int128, polars.List(polars.Int128)):
        values = [1] if dtype == polars.Int128 else [[1]]
        frame = polars.DataFrame({"a": [1], "b": polars.Series(values, dtype=dtype)})
        with pytest.raises(pgspate.ConversionError, match='column "b" has the type') as refused:
            pgspate.load(frame, "t", create=True, to=dsn)
        assert refused.value.place.column == "b" and "Decimal(38, 0)" in refused.value.hint


@pytest.mark.parametrize("ty", ["timestamp", "timestamptz", "date", "timestamp[]"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_the_largest_timestamp_is_no_time(db, dsn, ty, zone):
    """DuckDB exports `infinity` as this number. PostgreSQL could store it as a time."""
    def table(value):
        values = pa.array([value], pa.timestamp("us", zone))
        return pa.table({"x": pa.array([[value]], pa.list_(values.type)) if "[]" in ty else values})

    db.execute(f"create table t (x {ty})")
    with pytest.raises(pgspate.ServerError, match="out of range"):
        pgspate.load(table(2**63 - 1), "t", to=dsn)
    pgspate.load(table(2**63 - 2), "t", to=dsn)
    assert "294247-01-10" in db.execute("select x::text from t").fetchone()[0]


def test_files_of_other_columns_are_refused_with_the_difference(dsn, tmp_path):
    import pyarrow.parquet

    first, second = str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")
    pyarrow.parquet.write_table(pa.table({"a": [1], "b": ["x"]}), first)
    for other, message in [
        ({"a": ["1"], "b": ["x"]}, 'column "a" has type Utf8View, not Int64'),
        ({"a": [1], "b": ["x"], "c": [1]}, 'column "c" is not among them'),
        ({"a": [1]}, 'column "b" is missing'),
    ]:
        pyarrow.parquet.write_table(pa.table(other), second)
        with pytest.raises(pgspate.Error) as refused:
            pgspate.load([first, second], "t", create=True, to=dsn)
        assert message in str(refused.value)


def test_a_table_with_two_columns_of_one_name_is_not_created(dsn):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(pgspate.UsageError, match='the input has two columns "a"') as refused:
        pgspate.load(table, "t", create=True, to=dsn)
    assert "Rename" in refused.value.hint


def test_tensors_of_several_dimensions_are_refused(db, dsn):
    db.execute("create table t (id int, v float8[])")
    for shape, count in (((2, 2), 0), ((4,), 1)):
        tensor = pa.fixed_shape_tensor(pa.float64(), shape)
        storage = pa.array([[1.0, 2.0, 3.0, 4.0]], pa.list_(pa.float64(), 4))
        values = pa.ExtensionArray.from_storage(tensor, storage)
        table = pa.table({"id": [1], "v": values})
        if count == 0:
            with pytest.raises(pgspate.ConversionError, match='column "v" has tensors'):
                pgspate.load(table, "t", to=dsn)
        else:
            pgspate.load(table, "t", to=dsn)
    assert db.execute("select v from t").fetchall() == [([1.0, 2.0, 3.0, 4.0],)]


def test_columns_choose_fields_by_name_or_rename_all_of_them(db, dsn, tmp_path):
    db.execute("create table t (id text, name text, note text)")
    data = pa.table({"id": ["1"], "name": ["x"], "other": ["y"]})
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(data, path)
    for given in (data, data.to_reader(), path, data.to_pylist()):
        ignore = isinstance(given, list)
        report = pgspate.load(
            given, "t", columns=["name", "id"], ignore_unknown=ignore, to=dsn
        )
        assert report.warnings == []
    assert db.execute("select distinct * from t").fetchall() == [("1", "x", None)]
    db.execute("truncate t")
    report = pgspate.sync(data, "t", columns=["name", "id"], key="id", scope="all", to=dsn)
    assert (report.inserted, report.warnings) == (1, [])
    db.execute("truncate t")
    warning = 'field "id" is loaded into column "name", because `columns=` goes by the order'
    for given in (data, data.to_reader()):
        report = pgspate.load(given, "t", columns=["name", "note", "id"], to=dsn)
        assert report.warnings[0].startswith(warning)
    assert db.execute("select distinct * from t").fetchall() == [("y", "1", "x")]


@pytest.mark.parametrize("kind", ["table", "frame", "mixed frame", "dicts", "parquet", "json"])
def test_names_that_are_too_long_are_those_that_the_server_keeps(db, dsn, tmp_path, kind):
    def given(names):
        rows = [dict(zip(names, (1, uuid.UUID(int=5)))), dict(zip(names, (2, None)))]
        texts = [{name: value and str(value) for name, value in row.items()} for row in rows]
        if kind == "dicts":
            return rows
        if "frame" in kind:
            pandas = pytest.importorskip("pandas")
            return pandas.DataFrame(rows if kind == "mixed frame" else texts)
        table = pa.Table.from_pylist(texts)
        path = tmp_path / f"t.{kind}"
        if kind == "parquet":
            pa.parquet.write_table(table, path)
        elif kind == "json":
            path.write_text("\n".join(map(json.dumps, texts)))
        return table if kind == "table" else path

    names = ["id", "x" * 70]
    for _ in range(2):
        report = pgspate.load(given(names), "t", create=True, types={names[1]: "uuid", "id": "int"},
                              to=dsn, changed="reload", restart=True)
        assert report.rows_written == 2
    db.execute("delete from t")
    pgspate.sync(given(names), "t", key="id", scope="all", to=dsn)
    assert db.execute("select * from t order by 1").fetchall() == [(1, uuid.UUID(int=5)), (2, None)]
    assert [column.name for column in db.execute("select * from t").description] == ["id", "x" * 63]
    names = [f"{names[1]}1", f"{names[1]}2"]
    with pytest.raises(pgspate.UsageError, match="the input has two columns"):
        pgspate.load(given(names), "other", create=True, to=dsn, changed="reload")
    with pytest.raises(pgspate.PlanError, match="is named more than once"):
        pgspate.load(given(names), "t", to=dsn, changed="reload")


FLOAT = pa.array([0.5])


@pytest.mark.parametrize(("values", "others"), [
    (pa.array([Decimal("1.12345678901234567890")]), FLOAT),
    (pa.array([0.1], pa.float32()), FLOAT),
    (pa.array(["ä"]), pa.array([b"\xff"])),
    (pa.array([["ä"]]), pa.array([[b"\xff"]])),
    (pa.array([{"a": Decimal("1.5")}]), pa.array([{"a": 0.5}])),
])
def test_blocks_whose_types_lose_digits_are_not_merged(values, others):
    for pair in [(values, others), (others, values)]:
        tables = [pa.table({"id": [1], "v": block}) for block in pair]
        with pytest.raises(pgspate.UsageError, match='column "v" have different types'):
            concat_blocks(tables)


def test_blocks_of_types_that_fit_are_merged():
    for values, others, expected in [
        (pa.array([1], pa.int8()), pa.array([2**40]), [1, 2**40]),
        (pa.nulls(1), pa.array([Decimal("1.50")]), [None, Decimal("1.50")]),
        (pa.array([1]), FLOAT, [1.0, 0.5]),
        (pa.array(["a"]), pa.array(["b"], pa.large_string()), ["a", "b"]),
        (pa.array([Decimal(1)]), pa.array([Decimal("0.25")]), [Decimal(1), Decimal("0.25")]),
    ]:
        tables = [pa.table({"v": values}), pa.table({"v": others})]
        assert concat_blocks(tables)["v"].to_pylist() == expected
    partial = concat_blocks([pa.table({"v": [1]}), pa.table({"w": [2]})])
    assert partial.to_pylist() == [{"v": 1, "w": None}, {"v": None, "w": 2}]


def test_datasets_and_open_parquet_files_are_read_as_streams(db, dsn, tmp_path):
    dataset = pytest.importorskip("pyarrow.dataset")
    pa.parquet.write_table(pa.table({"a": range(1000)}), tmp_path / "rows.parquet")
    rows = dataset.dataset(tmp_path, format="parquet")
    few = rows.scanner(filter=dataset.field("a") < 10)
    with pa.parquet.ParquetFile(tmp_path / "rows.parquet") as file:
        for data, count in [(rows, 1000), (few, 10), (file, 1000)]:
            db.execute("drop table if exists t")
            assert pgspate.load(data, "t", create=True, to=dsn).rows_written == count
            found = db.execute("select count(*), max(a) from t").fetchone()
            assert found == (count, count - 1)
