"""Relations of DuckDB, whose Arrow data does not have all of their values."""

from __future__ import annotations

import pytest

import pgspate

duckdb = pytest.importorskip("duckdb")


@pytest.mark.parametrize(
    ("expression", "ty"),
    [
        ("340282366920938463463374607431768211455::uhugeint", "UHUGEINT"),
        ("'10:00:00+02'::timetz", "TIME WITH TIME ZONE"),
        ("'101'::bit", "BIT"),
        ("123::bignum", "BIGNUM"),
        ("[1::uhugeint]", "UHUGEINT"),
        ("[['101'::bit]]::bit[1][]", "BIT"),
        ("{'a': 1, 'b': ['101'::bit]}", "BIT"),
        ("map {'k': '10:00:00+02'::timetz}", "TIME WITH TIME ZONE"),
    ],
)
def test_types_that_arrow_changes_are_refused(db, dsn, expression, ty):
    relation = duckdb.sql(f"select 1 as id, {expression} as x")
    with pytest.raises(pgspate.ConversionError, match=f'column "x" has the type {ty}') as refused:
        pgspate.load(relation, "t", create=True, to=dsn)
    assert refused.value.place.column == "x" and '"x"::varchar' in refused.value.hint
    assert db.execute("select to_regclass('t')").fetchone() == (None,)


def test_other_types_and_casts_are_loaded(db, dsn):
    query = """
        select '101'::bit::varchar as bits, 1::hugeint as big, 1.50::decimal(5,2) as price,
               'a'::enum('a', 'b') as kind, [1, 2] as list, {'bit': 1} as struct, uuid() as id
    """
    assert pgspate.load(duckdb.sql(query), "t", create=True, to=dsn).rows_written == 1
    found = db.execute("select bits, big, price::text, kind, list, struct from t").fetchone()
    assert found == ("101", 1, "1.50", "a", [1, 2], {"bit": 1})


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("ty", ["timestamp", "timestamptz", "date"])
def test_infinite_times_are_refused(db, dsn, ty, sign):
    relation = duckdb.sql(f"select '{sign}infinity'::{ty} as x")
    with pytest.raises(pgspate.ServerError, match="out of range") as raised:
        pgspate.load(relation, "t", create=True, to=dsn)
    assert "COLUMN::varchar" in raised.value.hint
    assert "types=" not in raised.value.hint
    assert db.execute("select to_regclass('t')").fetchone() == (None,)
