"""Tables made from the first rows: later values keep their content, or are refused."""

from __future__ import annotations

import enum
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address

import pytest

import pgspate

numpy = pytest.importorskip("numpy")


class Code(str, enum.Enum):
    ZIP = "01234"


ZONE = timezone(timedelta(hours=2))
NOON = datetime(2024, 1, 1, 12)
CASES = [
    (1, "01234", "text", "01234"),
    (1, 1.5, "numeric", "1.5"),
    (1, float("nan"), "numeric", "NaN"),
    (1.5, Decimal("0.123456789012345678"), "numeric", "0.123456789012345678"),
    (1.5, 2**60 + 1, "numeric", str(2**60 + 1)),
    (date(2024, 1, 1), NOON, "timestamp without time zone", "2024-01-01 12:00:00"),
    (datetime(2024, 1, 1), NOON.replace(tzinfo=ZONE), "text", "2024-01-01 12:00:00+02:00"),
    (date(2024, 1, 1), "01/02/2024", "text", "01/02/2024"),
    (True, 1, "text", "1"),
    (1, numpy.str_("01234"), "text", "01234"),
    (1, Code.ZIP, "text", "01234"),
    (date(2024, 1, 1), numpy.datetime64("2024-01-01T10:00"), "timestamp without time zone",
     "2024-01-01 10:00:00"),
    (timedelta(1), "24:00", "text", "24:00"),
    (time(12, tzinfo=ZONE), "12:00", "text", "12:00"),
    (IPv4Address("10.0.0.1"), "10.0.0.1/32", "text", "10.0.0.1/32"),
    (NOON, numpy.datetime64("2024-01-01T10:00:00.123456789"), "text",
     "2024-01-01T10:00:00.123456789"),
]


@pytest.mark.parametrize(("first", "later", "kind", "text"), CASES)
def test_later_values_keep_their_content(db, dsn, first, later, kind, text):
    rows = [{"a": first}] * 5000 + [{"a": later}]
    pgspate.load(rows, "t", create=True, to=dsn)
    assert db.execute("select pg_typeof(a)::text from t limit 1").fetchone() == (kind,)
    found = db.execute("select count(*) from t where a::text = %s", (text,)).fetchone()
    assert found == (1,)
    db.execute("drop table t")
    with pytest.raises(pgspate.Error, match="guessed from the first rows") as refused:
        pgspate.load(iter(rows), "t", create=True, to=dsn)
    assert (refused.value.place.column, refused.value.place.row) == ("a", 5001)


@pytest.mark.parametrize("form", ["list", "generator", "frame"])
def test_a_later_element_of_an_array_has_a_hint(dsn, form):
    rows = [{"a": [1]}] * 3000 + [{"a": [1.5]}]
    if form == "frame":
        rows = pytest.importorskip("pandas").DataFrame(rows)
    with pytest.raises(pgspate.Error, match="guessed from the first rows") as refused:
        pgspate.load(iter(rows) if form == "generator" else rows, "t", create=True, to=dsn)
    assert '`types={"a": "numeric[]"}`' in refused.value.hint


def test_values_of_the_guessed_type_stay(db, dsn):
    local_mean_time = timezone(timedelta(minutes=53, seconds=28))
    at = datetime(1850, 1, 1, tzinfo=local_mean_time)
    rows = [{"a": NOON.replace(tzinfo=ZONE), "b": NOON}] * 5000
    rows.append({"a": at, "b": numpy.datetime64("2024-01-01T10:00")})
    pgspate.load(iter(rows), "t", create=True, to=dsn)
    assert db.execute("select a from t where a < '1900-01-01'").fetchone() == (at,)


def test_long_integers_among_floats_keep_their_digits(db, dsn):
    for values in ([1.5, 2**60 + 1], [2**60 + 1, 1, 1.5]):
        pgspate.load([{"a": value} for value in values], "t", create=True, to=dsn)
        found = db.execute("select count(*) from t where a::text = %s", (str(2**60 + 1),))
        assert found.fetchone() == (1,)
        db.execute("drop table t")


def test_elements_of_guessed_arrays_keep_their_content(db, dsn):
    for first, later in (([1], ["01"]), ([1], "{1}"), ([date(2024, 1, 1)], [NOON]), (b"x", "y")):
        rows = [{"a": first}] * 5000 + [{"a": later}]
        with pytest.raises(pgspate.Error, match="guessed from the first rows") as refused:
            pgspate.load(iter(rows), "t", create=True, to=dsn)
        assert (refused.value.place.column, refused.value.place.row) == ("a", 5001)
    rows = [{"a": [1]}] * 5000 + [{"a": [2, None]}, {"a": None}, {"a": numpy.array([3, 4])}]
    pgspate.load(iter(rows), "t", create=True, to=dsn)
    assert db.execute("select sum(cardinality(a)) from t").fetchone() == (5004,)


@pytest.mark.parametrize("form", ["list", "generator", "frame"])
def test_an_object_with_nan_is_no_json(db, dsn, form):
    rows = [{"a": {"f": 1.5}}] * 5 + [{"a": {"f": float("nan")}}]
    if form == "frame":
        rows = pytest.importorskip("pandas").DataFrame(rows)
    with pytest.raises(pgspate.ServerError, match="NaN") as refused:
        pgspate.load(iter(rows) if form == "generator" else rows, "t", create=True, to=dsn)
    assert refused.value.place.row == 6
    assert refused.value.hint.startswith("JSON has neither NaN nor Infinity.")
    assert db.execute("select to_regclass('t')").fetchone() == (None,)
