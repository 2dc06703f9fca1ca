"""Tables made from the first rows: later values keep their content, or are refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

import pgspate

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
