"""Values of Python's types are stored as psycopg 3 would store them."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import uuid
import zoneinfo
from decimal import Decimal

import pytest
from psycopg.types.json import Json, Jsonb

import pgspate

UTC = dt.timezone.utc
EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))


class Mood(enum.Enum):
    sad = 1
    happy = 2


class Colour(str, enum.Enum):
    red = "r"


class Level(enum.IntEnum):
    high = 3


VALUES = [
    ("bool", [True, False]),
    ("text", [True, "", "a\tb\\c\nd\r", "ä€😀", "\\N", "null", Level.high, Colour.red, Mood.sad]),
    ("varchar(3)", ["abc", "ab "]),
    ("char(3)", ["a", "ab "]),
    ("smallint", [0, -32768, 32767, True and 7]),
    ("int", [0, -(2**31), 2**31 - 1, Level.high]),
    ("bigint", [-(2**63), 2**63 - 1, 0]),
    ("oid", [0, 2**32 - 1]),
    ("numeric", [0, 10**40, -(10**40), Decimal("1.50"), Decimal("-0.00"), Decimal("1E+3"),
                 Decimal("1E-30"), Decimal("NaN"), Decimal("-Infinity"), 1.5, float("nan"), 2**70]),
    ("numeric(10,2)", [Decimal("1.005"), 7, 2.5]),
    ("float4", [0.1, 1e30, float("inf"), float("-inf"), float("nan"), 3, -0.0]),
    ("float8", [0.1, 1e300, 5e-324, float("inf"), float("nan"), 2**53, -0.0, Decimal("0.1")]),
    ("bytea", [b"", b"\x00\xff\\x", bytearray(b"abc"), memoryview(b"xyz")]),
    ("uuid", [uuid.UUID(int=0), uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")]),
    ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29),
              dt.datetime(2024, 1, 2, 23, 59)]),
    ("time", [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(1, 2, 3)]),
    ("time[]", [[dt.time(0), None, dt.time(1, 2, 3, 4)]]),
    ("interval[]", [[dt.timedelta(days=-1, seconds=5), None]]),
    ("mood[]", [["sad", None]]),
    ("timetz", [dt.time(1, 2, 3, 4, tzinfo=UTC), dt.time(1, 2, tzinfo=EAST)]),
    ("timestamp", [dt.datetime(2024, 1, 2, 3, 4, 5, 6), dt.datetime(1, 1, 1),
                   dt.datetime(2024, 1, 2, 23, 0, tzinfo=EAST), dt.date(2024, 1, 2)]),
    ("timestamptz", [dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
                     dt.datetime(2024, 1, 2, 3, tzinfo=EAST), dt.datetime(2024, 1, 2, 3)]),
    ("interval", [dt.timedelta(0), dt.timedelta(days=-1, seconds=5), dt.timedelta(days=3),
                  dt.timedelta(microseconds=1), dt.timedelta(days=400, hours=25),
                  dt.timedelta(seconds=-1)]),
    ("varchar(40)", [dt.datetime(2024, 1, 2, 3, 4, 5, 600_000), dt.time(1, 2, 3, 450_000),
                     dt.timedelta(seconds=1, microseconds=500_000)]),
    ("json", [Json({"a": [1, None, "ä"]}), Json([1.5, True]), '{"b":  2}']),
    ("jsonb", [Jsonb({"a": [1, None, "ä"]}), Jsonb("text"), '{"b":  2}']),
    ("int[]", [[], [1, None, -3], [[1, 2], [3, 4]]]),
    ("text[]", [["a", 'q"\\', "", "NULL", None, "x,y", "{z}"], [Mood.happy]]),
    ("numeric[]", [[Decimal("1.50"), Decimal("NaN")]]),
    ("float8[]", [[1.5, float("inf")]]),
    ("date[]", [[dt.date(2024, 1, 2), None]]),
    ("timestamptz[]", [[dt.datetime(2024, 1, 2, 3, tzinfo=EAST)]]),
    ("bytea[]", [[b"\x00a", b""]]),
    ("uuid[]", [[uuid.UUID(int=5)]]),
    ("bool[]", [[True, False]]),
    ("jsonb[]", [[Jsonb({"a": 1})]]),
    ("mood", [Mood.sad, "happy"]),
    ("inet", [ipaddress.ip_address("10.0.0.1"), ipaddress.ip_interface("10.0.0.1/8"),
              ipaddress.ip_address("::1")]),
    ("cidr", [ipaddress.ip_network("10.0.0.0/8")]),
    ("positive", [1, 5]),
    ("int4range", ["[1,5)"]),
    ("xml", ["<a>b</a>"]),
]


@pytest.mark.parametrize("ty, values", VALUES, ids=[ty for ty, _ in VALUES])
def test_values_are_stored_as_psycopg_stores_them(db, dsn, ty, values):
    db.execute("create type mood as enum ('sad', 'happy')")
    db.execute("create domain positive as int check (value > 0)")
    db.execute(f"create table theirs (nth int, c {ty}); create table ours (nth int, c {ty})")
    rows = [(nth, value) for nth, value in enumerate([*values, None])]
    for row in rows:
        db.execute("insert into theirs values (%s, %s)", row)
    assert pgspate.load(rows, "ours", to=dsn).rows_written == len(rows)
    compare = ("select o.nth, o.c::text, t.c::text from ours o full join theirs t using (nth) "
               "where o.c::text is distinct from t.c::text")
    assert db.execute(compare).fetchall() == []
    # The COPY text for a connection of the caller stores the same values.
    from pgspate import _pgspate

    ours = db.execute("select a.atttypid::regtype::oid::bigint, format_type(a.atttypid, null), "
                      "t.typelem::bigint, format_type(t.typelem, null), t.typcategory::text "
                      "from pg_attribute a join pg_type t on t.oid = a.atttypid "
                      "where attrelid = 'ours'::regclass and attname = 'c'").fetchone()
    element = (ours[2], ours[3], ",") if ours[4] == "A" else None
    types = [(23, "integer", None), (ours[0], ours[1], element)]
    db.execute("truncate ours")
    text = _pgspate.CopyText(iter(rows), ["nth", "c"], types)
    with db.cursor() as cursor, cursor.copy("copy ours from stdin") as copy:
        for piece in text:
            copy.write(piece)
    assert db.execute(compare).fetchall() == [] and text.count == len(rows)


def test_dates_of_all_years_are_written_correctly(db, dsn):
    db.execute("create table t (a text)")
    step = [dt.date.fromordinal(n) for n in range(1, dt.date.max.toordinal() + 1, 37)]
    around = [dt.date(year, month, day) for year in (1, 4, 100, 400, 1900, 2000, 2024, 9999)
              for month, day in ((1, 1), (2, 28), (3, 1), (12, 31))]
    days = step + around + [dt.date(2000, 2, 29), dt.date(4, 2, 29)]
    pgspate.load([(day,) for day in days], "t", to=dsn)
    found = {day for (day,) in db.execute("select a from t")}
    assert found == {day.isoformat() for day in days}


def test_dicts_and_lists_are_stored_as_json(db, dsn):
    value = {"a": [1, 2.5, None, {"b": "ä"}], "c": True}
    for ty in ("json", "jsonb"):
        db.execute(f"create table t_{ty} (a {ty}, b {ty})")
        pgspate.load([(value, [1, "x"]), (b'{"raw": 1}', [])], f"t_{ty}", to=dsn)
        assert db.execute(f"select * from t_{ty}").fetchall() == [
            (value, [1, "x"]),
            ({"raw": 1}, []),
        ]
        # psycopg stores the same text for values that are marked as JSON.
        db.execute(f"insert into t_{ty} values (%s, %s)", (Json(value), Json([1, "x"])))
        texts = db.execute(f"select a::text, b::text from t_{ty} where a::text like '%c%'")
        assert len(set(texts.fetchall())) == 1


def test_an_integer_column_takes_floats_and_decimals_that_are_whole(db, dsn):
    db.execute("create table t (a int)")
    pgspate.load([(3.0,), (Decimal("4.00"),), ("5",)], "t", to=dsn)
    assert db.execute("select a from t order by a").fetchall() == [(3,), (4,), (5,)]
    db.execute("create table large (a bigint, b bigint[])")
    large = [1e15, -9007199254740994.0, 2.0**62, -0.0]
    pgspate.load([(value, [value]) for value in large], "large", to=dsn)
    found = db.execute("select a, b from large order by a").fetchall()
    assert found == [(int(value), [int(value)]) for value in sorted(large)]
    for value in (3.5, Decimal("3.5"), 2**31):
        with pytest.raises(pgspate.ServerError):
            pgspate.load([(value,)], "t", to=dsn)


def test_columns_without_time_zone_store_utc(db, dsn):
    db.execute("create table t (a date, b timestamp, c time)")
    late = dt.datetime(2024, 1, 2, 2, 0, tzinfo=EAST)
    pgspate.load([(late, late, late)], "t", to=dsn)
    assert db.execute("select * from t").fetchall() == [
        (dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 20, 30), dt.time(20, 30))
    ]


@pytest.mark.parametrize("style", ["postgres", "sql_standard", "iso_8601", "postgres_verbose"])
def test_intervals_do_not_depend_on_intervalstyle(db, dsn, style):
    db.execute("create table t (nth int, a interval)")
    spans = [dt.timedelta(days=-2, seconds=1), dt.timedelta(seconds=-1), dt.timedelta(days=5)]
    to = f"{dsn} options='-c IntervalStyle={style}'"
    pgspate.load(list(enumerate(spans)), "t", to=to)
    assert [a for (a,) in db.execute("select a from t order by nth")] == spans


def test_a_new_table_has_types_that_fit_the_values(db, dsn):
    row = {
        "b": True, "i": 1, "f": 1.5, "n": Decimal("1.5"), "s": "x", "y": b"x",
        "d": dt.date(2024, 1, 2), "t": dt.time(1), "tz": dt.time(1, tzinfo=UTC),
        "ts": dt.datetime(2024, 1, 2), "tsz": dt.datetime(2024, 1, 2, tzinfo=UTC),
        "iv": dt.timedelta(1), "u": uuid.UUID(int=1), "j": {"a": 1}, "l": [1, 2],
        "ll": [[1]], "e": Mood.sad, "ip": ipaddress.ip_address("::1"), "none": None,
        "big": 2**64, "mixed": 1, "wide": 1, "le": ["x", None],
    }
    pgspate.load([row, {**row, "mixed": "x", "wide": 2.5}], "t", create=True, to=dsn)
    found = db.execute("select attname::text, format_type(atttypid, atttypmod) from pg_attribute "
                       "where attrelid = 't'::regclass and attnum > 0").fetchall()
    assert dict(found) == {
        "b": "boolean", "i": "bigint", "f": "double precision", "n": "numeric", "s": "text",
        "y": "bytea", "d": "date", "t": "time without time zone",
        "tz": "time with time zone", "ts": "timestamp without time zone",
        "tsz": "timestamp with time zone", "iv": "interval", "u": "uuid", "j": "jsonb",
        "l": "bigint[]", "ll": "jsonb", "e": "text", "ip": "inet", "none": "text",
        "big": "numeric", "mixed": "text", "wide": "double precision", "le": "text[]",
    }


def test_a_later_value_widens_a_new_column(db, dsn):
    rows = [{"a": 1} for _ in range(2000)] + [{"a": "x"}]
    report = pgspate.load(rows, "t", create=True, to=dsn)
    assert report.widened and db.execute("select count(*) from t").fetchone() == (2001,)


def test_values_of_numpy_and_pandas_are_loaded(db, dsn):
    numpy = pytest.importorskip("numpy")
    pandas = pytest.importorskip("pandas")
    db.execute("create table t (a int, b float4, c bool, d timestamp, e interval, f int[], "
               "g timestamptz, h text)")
    rows = [
        (numpy.int64(1), numpy.float32(0.1), numpy.bool_(True),
         numpy.datetime64("2024-01-02T03:04:05.123456"), numpy.timedelta64(1500, "ms"),
         numpy.array([1, 2]), pandas.Timestamp("2024-01-02", tz="UTC"), numpy.str_("x")),
        (pandas.NA, None, None, numpy.datetime64("NaT"), pandas.NaT, None, pandas.NaT, None),
    ]
    pgspate.load(rows, "t", to=dsn)
    first, second = db.execute("select * from t").fetchall()
    assert first[0] == 1 and abs(first[1] - 0.1) < 1e-6 and first[2] is True
    assert first[3] == dt.datetime(2024, 1, 2, 3, 4, 5, 123456)
    assert first[4] == dt.timedelta(seconds=1.5) and first[5] == [1, 2] and first[7] == "x"
    assert first[6] == dt.datetime(2024, 1, 2, tzinfo=UTC) and second == (None,) * 8


def test_a_masked_value_of_numpy_is_null(db, dsn):
    numpy = pytest.importorskip("numpy")
    masked = numpy.ma.array([1.5, 2.5], mask=[False, True])
    db.execute("create table t (a float8, b float8[])")
    pgspate.load([(value, masked) for value in masked], "t", to=dsn)
    found = db.execute("select * from t").fetchall()
    assert found == [(1.5, [1.5, None]), (None, [1.5, None])]
    pgspate.load([{"a": value} for value in masked[::-1]], "made", create=True, to=dsn)
    assert db.execute("select a, pg_typeof(a)::text from made").fetchall() == [
        (None, "double precision"), (1.5, "double precision")
    ]


def test_a_numpy_value_without_a_python_class_is_refused(db, dsn):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (a float8)")
    long = numpy.longdouble(1)
    for value in (long, numpy.array(long)):
        for table, more in (("t", {}), ("made", {"create": True})):
            with pytest.raises(pgspate.ConversionError, match="longdouble has no counterpart"):
                pgspate.load([{"a": value}], table, to=dsn, **more)
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_values_whose_meaning_is_open_are_refused(db, dsn):
    numpy = pytest.importorskip("numpy")
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    db.execute("create table t (a timetz, b interval)")
    for row, message in [((dt.time(1, 2, tzinfo=zone), None), "offset depends on the date"),
                         ((None, numpy.timedelta64(2, "M")), "of months or years"),
                         ((None, numpy.timedelta64(1, "Y")), "of months or years")]:
        with pytest.raises(pgspate.ConversionError, match=message):
            pgspate.load([row], "t", to=dsn)
    pgspate.load([(dt.time(1, 2, tzinfo=EAST), numpy.timedelta64(2, "D"))], "t", to=dsn)
    assert db.execute("select * from t").fetchall() == [
        (dt.time(1, 2, tzinfo=EAST), dt.timedelta(days=2))
    ]


def test_a_list_that_contains_itself_is_refused(db, dsn):
    db.execute("create table t (a int[], b jsonb)")
    recursive = [1]
    recursive.append(recursive)
    deep = 1
    for _ in range(6):
        deep = [deep]
    pgspate.load([(deep, [deep])], "t", to=dsn)
    for value in ([deep], recursive, [recursive] * 1000):
        with pytest.raises(pgspate.ConversionError, match="more than 6 deep") as error:
            pgspate.load([{"a": value}], "t", to=dsn)
        assert error.value.place.row == 1 and error.value.place.column == "a"
    with pytest.raises(pgspate.ConversionError, match="Circular"):
        pgspate.load([(None, recursive)], "t", to=dsn)
    rings = [[], []]
    for ring in rings:
        ring.append(rings)
    with pytest.raises(pgspate.ConversionError, match="Circular"):
        pgspate.load([{"a": rings}], "made", create=True, to=dsn)
    found = db.execute("select array_ndims(a), b from t").fetchall()
    assert found == [(6, [deep])]


def test_a_timedelta_of_numpy_is_exact_or_refused(db, dsn):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (nth int, a interval)")
    span = numpy.timedelta64
    exact = [
        (span(300_000_000, "D"), "300000000 days"), (span(-1, "W"), "-7 days"),
        (span(2, "25s"), "00:00:50"), (span(-1, "ms"), "-1 days +23:59:59.999"),
        (span(2**62, "us"), "53375995 days 14:00:27.387904"), (span(-3, "h"), "-1 days +21:00:00"),
        # As Arrow's durations, nanoseconds are rounded to the even microsecond.
        (span(1999, "ns"), "00:00:00.000002"), (span(2500, "ns"), "00:00:00.000002"),
        (span(-1500, "ns"), "-1 days +23:59:59.999998"), (span(1_500_001, "ps"), "00:00:00.000002"),
        (span("NaT"), None), (span("NaT", "ns"), None),
    ]
    pgspate.load([(nth, value) for nth, (value, _) in enumerate(exact)], "t", to=dsn)
    assert [a for (a,) in db.execute("select a::text from t order by nth")] == [
        text for _, text in exact
    ]
    with pytest.raises(pgspate.ServerError, match="out of range"):
        pgspate.load([(1, span(2**62, "s"))], "t", to=dsn)
    with pytest.raises(pgspate.ConversionError, match="without a unit"):
        pgspate.load([(1, span(5))], "t", to=dsn)


def test_spans_in_an_array_and_of_pandas_are_rounded_as_by_arrow(db, dsn):
    numpy = pytest.importorskip("numpy")
    pandas = pytest.importorskip("pandas")
    db.execute("create table t (a interval[], b interval, c timestamp[])")
    spans = numpy.array([1999, -86_400_000_000_500], dtype="timedelta64[ns]")
    moments = numpy.array(["2024-01-02T03:04:05.123456789"], dtype="datetime64[ns]")
    pgspate.load([(spans, pandas.Timedelta(1999, "ns"), moments)], "t", to=dsn)
    assert db.execute("select a::text, b::text, c::text from t").fetchall() == [
        ('{00:00:00.000002,"-1 days"}', "00:00:00.000002", '{"2024-01-02 03:04:05.123457"}')
    ]


def test_narrow_floats_of_numpy_have_their_own_digits(db, dsn):
    numpy = pytest.importorskip("numpy")
    pyarrow = pytest.importorskip("pyarrow")
    types = {"n": "numeric", "t": "text", "j": "jsonb", "f": "float8", "r": "float4",
             "i": "bigint", "na": "numeric[]", "fa": "float8[]", "ja": "jsonb"}
    columns = ", ".join(f"{name} {ty}" for name, ty in types.items())
    db.execute(f"create table t ({columns})")
    db.execute(f"create table arrow ({columns})")
    for width in ("float32", "float16"):
        value, whole = numpy.dtype(width).type(0.1), numpy.dtype(width).type(60_000)
        array = numpy.array([0.1, 2.5], dtype=width)
        row = (value, value, value, value, value, whole, array, array, {"x": [value, array]})
        pgspate.load([row], "t", to=dsn)
        kind = pyarrow.from_numpy_dtype(array.dtype)
        made = [pyarrow.array([it], kind) for it in row[:6]]
        made += [pyarrow.array([array.tolist()], pyarrow.list_(kind))] * 2
        made.append(pyarrow.array(["null"]))
        pgspate.load(pyarrow.table(made, names=list(types)), "arrow", to=dsn)
    same = ", ".join(f"{name}::text" for name in list(types)[:-1])
    ours = db.execute(f"select {same} from t").fetchall()
    assert ours == db.execute(f"select {same} from arrow").fetchall()
    assert ours[0][:6] == ("0.1", "0.1", "0.1", "0.10000000149011612", "0.1", "60000")
    assert db.execute("select ja from t").fetchone() == ({"x": [0.1, [0.1, 2.5]]},)


def test_a_function_that_makes_json_is_used(db, dsn):
    extras = pytest.importorskip("psycopg2.extras")
    numpy = pytest.importorskip("numpy")

    def dumps(value):
        return f'{{"made": {value}}}'

    class Sorted(extras.Json):
        def dumps(self, value):
            return '"by a subclass"'

    values = [Json(1, dumps=dumps), Jsonb(2, dumps=lambda value: dumps(value).encode()),
              extras.Json({"x": 1}), extras.Json(3, dumps=dumps), Sorted(4),
              Json({"n": numpy.int64(5)}), Jsonb("text"), None]
    stored = [{"made": 1}, {"made": 2}, {"x": 1}, {"made": 3}, "by a subclass", {"n": 5}, "text",
              None]
    db.execute("create table t (id int primary key, j jsonb)")
    pgspate.load(list(enumerate(values)), "t", to=dsn)
    assert [j for (j,) in db.execute("select j from t order by id")] == stored
    db.execute("truncate t")
    rows = [{"id": nth, "j": value} for nth, value in enumerate(values)]
    pgspate.apply([{"op": "insert", "table": "t", "row": row} for row in rows], to=dsn)
    assert [j for (j,) in db.execute("select j from t order by id")] == stored
    for wrong in (Json(1, dumps=lambda value: 5), extras.Json(object())):
        with pytest.raises(pgspate.ConversionError, match="cannot be written as JSON"):
            pgspate.load([(9, wrong)], "t", to=dsn)


def test_a_value_that_is_no_json_is_refused_as_such(dsn, db):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (j jsonb)")
    for value in (numpy.dtype("i4"), numpy.sin, numpy.timedelta64(1, "s")):
        with pytest.raises(pgspate.ConversionError, match="not JSON serializable"):
            pgspate.load([({"t": value},)], "t", to=dsn)


@pytest.mark.parametrize("call", ["load", "writer", "array"])
@pytest.mark.parametrize("value", [
    1, 1.5, dt.date(2024, 1, 2), uuid.UUID(int=1), True, Decimal(1), dt.datetime(2024, 1, 2),
    dt.time(1), dt.timedelta(1),
    ipaddress.ip_address("::1"), Json(1),
])
def test_bytea_takes_bytes_alone(db, dsn, value, call):
    db.execute("create table t (a bytea, b bytea[])")
    with pytest.raises(pgspate.ConversionError, match="the column is of type bytea"):
        if call == "writer":
            with pgspate.Writer("t", to=dsn) as writer:
                writer.insert({"a": value})
        else:
            pgspate.load([(None, [value]) if call == "array" else (value, None)], "t", to=dsn)
    pgspate.load([(b"x", ["\\x00"])], "t", to=dsn)
    assert db.execute("select * from t").fetchall() == [(b"x", [b"\0"])]


@pytest.mark.parametrize("width", ["float16", "float32", "float64"])
def test_bytea_takes_no_floats_of_numpy(db, dsn, width):
    value = pytest.importorskip("numpy").dtype(width).type(0.5)
    db.execute("create table t (a bytea, b bytea[])")
    for row in ((value, None), (None, [value])):
        with pytest.raises(pgspate.ConversionError, match="the column is of type bytea"):
            pgspate.load([row], "t", to=dsn)


@pytest.mark.parametrize("minutes", [-1439, -960, -959, 959, 960, 1439])
def test_any_offset_is_stored(db, dsn, minutes):
    from psycopg.types.range import Range

    db.execute("create table t (a timestamptz, b timestamptz[], c tstzrange)")
    moment = dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(minutes=minutes)))
    bounds = Range(moment, None)
    pgspate.load([(moment, [moment], bounds)], "t", to=dsn)
    with pgspate.Writer("t", to=dsn) as writer:
        writer.insert({"a": moment, "b": [moment], "c": bounds})
    assert db.execute("select * from t").fetchall() == [(moment, [moment], bounds)] * 2


def ranges_of(kind):
    """Returns rows of ranges, which the classes `kind` of a library make."""
    day, moment = dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, 3, 4, 5, 6)
    return {
        "int4range": [kind(1, 5), kind(None, 5, bounds="(]"), kind(1, None), kind(None, None),
                      kind(5, 5), kind(empty=True)],
        "int8range": [kind(2**40, 2**41, bounds="()")],
        "numrange": [kind(Decimal("1.50"), Decimal("2.25"), bounds="[]")],
        "daterange": [kind(day, dt.date(2024, 3, 1))],
        "tsrange": [kind(moment, None)],
        "tstzrange": [kind(moment.replace(tzinfo=EAST), moment.replace(year=2025, tzinfo=UTC))],
        "int4range[]": [[kind(1, 5), None, kind(7, 9)], []],
        "textrange": [kind('a"\\ b', "b,)"), kind("", "z", bounds="[]")],
    }


def test_ranges_are_stored_as_psycopg_stores_them(db, dsn):
    from psycopg.types.multirange import Multirange
    from psycopg.types.range import Range, RangeInfo, register_range

    db.execute("create type textrange as range (subtype = text)")
    register_range(RangeInfo.fetch(db, "textrange"), db)
    cases = ranges_of(Range)
    multiranges = [Multirange([Range(1, 5), Range(7, None)]), Multirange([])]
    cases["int4multirange"] = multiranges
    lists = {"int4multirange": [list(it) for it in multiranges]}
    others = []
    if alchemy := pytest.importorskip("sqlalchemy.dialects.postgresql"):
        others.append(ranges_of(alchemy.Range))
        lists["int4multirange"] += [alchemy.MultiRange([alchemy.Range(1, 5)])]
    for ty, values in cases.items():
        db.execute(f"create table theirs (nth int, c {ty}); create table ours (nth int, c {ty})")
        for row in enumerate(values):
            db.execute("insert into theirs values (%s, %s)", row)
        for made in [values, *(it[ty] for it in others if ty in it)]:
            pgspate.load(list(enumerate(made)), "ours", to=dsn)
            with pgspate.Writer("ours", to=dsn) as writer:
                writer.insert_many([{"nth": nth, "c": value} for nth, value in enumerate(made)])
        differences = db.execute("select c::text from ours where (nth, c::text) not in "
                                 "(select nth, c::text from theirs)").fetchall()
        assert (ty, differences) == (ty, [])
        for made in lists.get(ty, []):
            pgspate.load([(1, made)], "ours", to=dsn)
        db.execute("drop table theirs, ours")
    db.execute("create type textspan as range (subtype = text, multirange_type_name = textspans)")
    db.execute("create table t (a textspans, b tsrange, c text)")
    late = dt.datetime(2024, 1, 2, 2, tzinfo=EAST)
    pgspate.load([([Range("a", "b")], Range(late, None), Range(1, 2))], "t", to=dsn)
    assert db.execute("select a::text, b::text, c from t").fetchall() == [
        ("{[a,b)}", '["2024-01-01 20:30:00",)', "[1,2)")
    ]
    db.execute("create table m (a int4multirange)")
    endless = []
    endless.append(endless)
    with pytest.raises(pgspate.ConversionError, match="a list of lists"):
        pgspate.load([(endless,)], "m", to=dsn)


class Permission(enum.Flag):
    read = 1
    write = 2


def test_a_flag_without_a_name_is_refused(db, dsn):
    db.execute("create table t (a text)")
    assert Permission(0).name is None
    for value in (Permission(0), [Permission(0)]):
        with pytest.raises(pgspate.ConversionError, match="flag") as caught:
            pgspate.load([(None,), (value,)], "t", to=dsn)
        assert caught.value.place.column == "a"
        db.execute("alter table t alter a type text[] using array[a]")
    with pytest.raises(pgspate.ConversionError, match="flag"):
        pgspate.apply([{"op": "insert", "table": "t", "row": {"a": Permission(0)}}], to=dsn)
    assert db.execute("select count(*) from t").fetchone() == (0,)


class Price(Decimal):
    def __str__(self):
        return f"CHF {super().__str__()}"

    __format__ = None


class Day(dt.datetime):
    def __str__(self):
        return "some day"


class Noon(dt.time):
    def __str__(self):
        return "noon"


class Big(int):
    def __str__(self):
        return "big"


class Months(dt.timedelta):
    """A duration as of pendulum: a year has 365 days and a month 30 days, and both are kept."""

    def __new__(cls, years=0, months=0, days=0, hours=0):
        self = super().__new__(cls, days=years * 365 + months * 30 + days, hours=hours)
        self.years, self.months = years, months
        return self


class Difference(Months):
    """The difference of two times as of pendulum, whose days are exact."""

    start = end = None


def test_subclasses_that_write_their_own_text_are_stored_by_their_value(db, dsn):
    db.execute("create table t (id int primary key, n numeric, w int, at timestamp, "
               "zoned timestamptz, day date, noon time, big numeric, span interval, "
               "exact interval)")
    day = (2024, 1, 2, 3, 4, 5, 6)
    row = {"id": 1, "n": Price("1E+3"), "w": Price("7.00"), "at": Day(*day, tzinfo=EAST),
           "zoned": Day(*day, tzinfo=EAST), "day": Day(*day), "noon": Noon(12), "big": Big(10**30),
           "span": Months(1, -2, 3, -5), "exact": Difference(0, 1)}
    plain = dt.datetime(*day, tzinfo=EAST)
    right = (1, 1000, 7, plain.astimezone(UTC).replace(tzinfo=None), plain, dt.date(2024, 1, 2),
             dt.time(12), 10**30, "10 mons 2 days 19:00:00", "30 days")
    sql = f"select {', '.join(row)} from t".replace("span, exact", "span::text, exact::text")
    pgspate.load([row], "t", to=dsn)
    assert db.execute(sql).fetchall() == [right]
    db.execute("truncate t")
    pgspate.apply([{"op": "insert", "table": "t", "row": {**row, "w": 7}}], to=dsn)
    assert db.execute(sql).fetchall() == [right]


def test_arrays_of_numpy_in_a_list_are_dimensions_of_an_array(db, dsn):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (id int, a int[], f numeric[], j jsonb[])")
    a = [numpy.array([1, 2]), numpy.array([3, 4])]
    f = [numpy.array([0.1], dtype="float32")]
    rows = [(1, a, f, a), (2, [numpy.array([[1], [2]])], None, None)]
    pgspate.load(rows, "t", to=dsn)
    found = db.execute("select a::text, f::text, j::text from t order by id").fetchall()
    assert found == [("{{1,2},{3,4}}", "{{0.1}}", '{"[1, 2]","[3, 4]"}'),
                     ("{{{1},{2}}}", None, None)]


MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=EAST)


@pytest.mark.parametrize("value, column, ours, theirs", [
    (MOMENT, "text", "2024-01-02 03:04:05+05:30", "2024-01-01 21:34:05+00"),
    (MOMENT, "timetz", "03:04:05+05:30", "21:34:05+00"),
    (dt.timedelta(hours=30), "text", "1 days 06:00:00", "1 day 06:00:00"),
    (dt.timedelta(hours=30), "time", None, "06:00:00"),
    (dt.timedelta(hours=-1), "time", None, "23:00:00"),
    (ipaddress.ip_address("10.0.0.1"), "text", "10.0.0.1", "10.0.0.1/32"),
    (ipaddress.ip_interface("10.0.0.1/8"), "cidr", None, "10.0.0.0/8"),
])
def test_values_that_psycopg_stores_in_another_way(db, dsn, value, column, ours, theirs):
    """These are the exceptions that the page on Python names."""
    db.execute(f"create table t (a {column}); set timezone = 'UTC'")
    db.execute("insert into t values (%s)", [value])
    assert db.execute("delete from t returning a::text").fetchall() == [(theirs,)]
    if ours is None:
        with pytest.raises(pgspate.ServerError, match="invalid"):
            pgspate.load([(value,)], "t", to=dsn)
    else:
        pgspate.load([(value,)], "t", to=dsn)
        assert db.execute("select a::text from t").fetchall() == [(ours,)]
