"""Values of models are stored as SQLAlchemy's own session stores them."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import uuid
from decimal import Decimal

import pytest

import pgspate

sa = pytest.importorskip("sqlalchemy")

import pgspate.sqlalchemy  # noqa: E402
from sqlalchemy import orm  # noqa: E402
from sqlalchemy.dialects import postgresql as pg  # noqa: E402
from test_sqlalchemy import url_of  # noqa: E402


class Color(enum.Enum):
    RED = "r%d"
    BLUE = "it's blue"


class Reversed(sa.types.TypeDecorator):
    """Text that is stored from its end to its start."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else value[::-1]


EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))
UTC_MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.timezone.utc)
LONG = Decimal("12345678901234567890.123456789")
VALUES = [
    (sa.Numeric, [LONG, Decimal("1.10"), Decimal("-0.0"), Decimal("1E+3"), 7]),
    (sa.Numeric(40, 5), [LONG, Decimal("1.1")]),
    (sa.Numeric(asdecimal=False), [1.5, Decimal("0.1")]),
    (sa.Float, [0.1, Decimal("0.1"), float("inf"), 3]),
    (sa.Double, [1e-308, Decimal("2.50")]),
    (pg.REAL, [0.1, 16777217.0]),
    (sa.BigInteger, [2**63 - 1, -(2**63)]),
    (sa.SmallInteger, [-5]),
    (sa.Boolean, [True, False]),
    (sa.String(10), ["a%s", "it's", "\\N", "", "ü\t\n"]),
    (sa.Text, ["%(x)s :y", "NULL"]),
    (sa.LargeBinary, [b"\x00\xff%s", b""]),
    (sa.Date, [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (sa.Time, [dt.time(23, 59, 59, 999999)]),
    (sa.Time(timezone=True), [dt.time(1, 2, tzinfo=EAST)]),
    (sa.DateTime, [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 12, 0, 0, 1)]),
    (sa.DateTime(timezone=True), [UTC_MOMENT, UTC_MOMENT.astimezone(EAST)]),
    (sa.Interval, [dt.timedelta(days=-1, microseconds=1), dt.timedelta(days=400)]),
    (pg.INTERVAL, [dt.timedelta(hours=30)]),
    (sa.Uuid, [uuid.UUID(int=2**127 + 1)]),
    (sa.Uuid(as_uuid=False), ["00000000-0000-0000-0000-000000000007"]),
    (sa.Uuid(native_uuid=False), [uuid.UUID(int=5)]),
    (sa.Enum(Color, name="color"), [Color.RED, Color.BLUE]),
    (sa.Enum(Color, name="c2", native_enum=False), [Color.RED]),
    (sa.Enum(Color, name="c3", values_callable=lambda e: [m.value for m in e]),
     [Color.RED, Color.BLUE]),
    (sa.Enum("x", "y", name="letter"), ["x"]),
    (sa.JSON, [{"a": [1, None, "%"]}, [], 0, "text", False, 1e300]),
    (pg.JSONB, [{"ü": {"b": 1.5}}, [1, [2]], None]),
    (pg.JSONB(none_as_null=True), [None, {}]),
    (sa.PickleType, [{"a": (1, 2)}, None]),
    (pg.ARRAY(sa.Integer), [[1, None], [], [[1, 2], [3, 4]]]),
    (pg.ARRAY(sa.Numeric), [[LONG, Decimal("1.10"), None]]),
    (pg.ARRAY(sa.Text), [["a,b", 'q"', "NULL", "", None, "\\"]]),
    (pg.ARRAY(sa.Text, dimensions=2), [[["a", "b"], ["c", None]]]),
    (pg.ARRAY(sa.DateTime(timezone=True)), [[UTC_MOMENT]]),
    (pg.ARRAY(sa.Enum(Color, name="c4")), [[Color.RED, None]]),
    (pg.ARRAY(sa.Uuid), [[uuid.UUID(int=9)]]),
    (pg.ARRAY(sa.LargeBinary), [[b"\x01"]]),
    (pg.ARRAY(pg.JSONB), [[{"a": 1}, None]]),
    (pg.ARRAY(sa.Interval), [[dt.timedelta(seconds=1)]]),
    (pg.INET, [ipaddress.ip_address("10.0.0.1"), "fe80::1/64"]),
    (pg.CIDR, [ipaddress.ip_network("10.0.0.0/8")]),
    (pg.MACADDR, ["08:00:2b:01:02:03"]),
    (pg.BIT(3), ["101"]),
    (pg.TSVECTOR, ["a:1 b"]),
    (pg.MONEY, ["12.34"]),
    (Reversed, ["a%b", None]),
    (pg.INT4RANGE, [pg.Range(1, 5), pg.Range(None, 7, bounds="(]"), pg.Range(empty=True), None]),
    (pg.TSTZRANGE, [pg.Range(UTC_MOMENT, None)]),
    (pg.NUMRANGE, [pg.Range(Decimal("1.50"), LONG, bounds="[]")]),
    (pg.DATEMULTIRANGE, [pg.MultiRange([pg.Range(dt.date(2024, 1, 1), dt.date(2024, 2, 1))]), []]),
    (pg.ARRAY(pg.INT8RANGE), [[pg.Range(1, 5), None]]),
]


@pytest.mark.parametrize("within", [False, True])
def test_values_are_stored_as_the_session_stores_them(server, dsn, within):
    pytest.importorskip("psycopg")
    engine = sa.create_engine(url_of(server, dsn, "psycopg"))

    class Base(orm.DeclarativeBase):
        pass

    models = []
    for n, (kind, values) in enumerate(VALUES):
        columns = {"id": orm.mapped_column(sa.Integer, primary_key=True),
                   "v": orm.mapped_column(kind)}
        models.append((type(f"T{n}", (Base,), {"__tablename__": f"t{n}", **columns}), values))
    Base.metadata.create_all(engine)
    differences = []
    with orm.Session(engine) as session:
        for model, values in models:
            session.add_all(model(id=n, v=value) for n, value in enumerate(values))
            session.commit()
            rows = [model(id=100 + n, v=value) for n, value in enumerate(values)]
            options = {"within": session} if within else {}
            pgspate.sqlalchemy.load(session, model, rows, **options)
            session.commit()
            stored = sa.text(f"select id % 100, v::text from {model.__tablename__} order by id")
            found = session.execute(stored).all()
            half = len(found) // 2
            if found[:half] != found[half:]:
                differences.append((model.v.type, found[:half], found[half:]))
    engine.dispose()
    assert differences == []


@pytest.mark.filterwarnings("ignore:the 'timedelta' type is not supported")
def test_pandas_method_converts_values_by_the_types_of_dtype(server, dsn):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("psycopg")
    engine = sa.create_engine(url_of(server, dsn, "psycopg"))
    frame = pandas.DataFrame({
        "s": ["abc", None, "d"], "j": ["1", "true", None], "e": [Color.RED, Color.BLUE, None],
        "n": [LONG, Decimal("1.10"), None], "t": ["x", "y%", None],
    })
    kinds = {"s": Reversed, "j": pg.JSONB, "n": sa.Numeric, "t": sa.Text,
             "e": sa.Enum(Color, name="color", values_callable=lambda e: [m.value for m in e])}
    for name, more in [("theirs", {}), ("ours", {"method": pgspate.pandas_method})]:
        frame.to_sql(name, engine, index=False, dtype=kinds, **more)
    with engine.connect() as connection:
        theirs, ours = (
            connection.exec_driver_sql(f"select r::text from {name} r order by t").all()
            for name in ("theirs", "ours")
        )
    engine.dispose()
    assert ours == theirs


def test_arrays_of_domains_are_written_as_arrays_of_their_types(server, dsn, db):
    pytest.importorskip("psycopg")
    db.execute("create domain raw as bytea; create domain rawer as raw; create domain doc as jsonb;"
               "create domain moment as timestamp; create domain docs as doc[];"
               "create table t (id int primary key, a rawer[], b doc[], c moment[], d docs, "
               "e int[], f raw)")
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
                     *(sa.Column(name, sa.types.NullType) for name in "abcdef"))
    row = {"id": 1, "a": [b"\xff\\", None], "b": [{"x": [1]}],
           "c": [dt.datetime(2024, 1, 2, tzinfo=EAST)], "d": [{"y": 2}], "e": [1, None], "f": b"z"}
    pgspate.load([row], "t", to=dsn)
    right = db.execute("select t::text from t").fetchall()
    db.execute("truncate t")
    engine = sa.create_engine(url_of(server, dsn, "psycopg"))
    with orm.Session(engine) as session:
        pgspate.sqlalchemy.load(session, table, [row], within=session)
        session.commit()
    engine.dispose()
    assert db.execute("select t::text from t").fetchall() == right
