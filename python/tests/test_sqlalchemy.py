"""Models and sessions of SQLAlchemy, over pgspate's connections and over the session's."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
import uuid
from decimal import Decimal

import pytest

import pgspate

sa = pytest.importorskip("sqlalchemy")

import pgspate.sqlalchemy  # noqa: E402
from sqlalchemy import orm  # noqa: E402
from sqlalchemy.dialects import postgresql as pg  # noqa: E402


class Mood(enum.Enum):
    sad = "S"
    happy = "H"


class Cents(sa.types.TypeDecorator):
    """Money as whole cents in the database."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else int(value * 100)

    def process_result_value(self, value, dialect):
        return None if value is None else Decimal(value) / 100


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "Order lines"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    note = orm.mapped_column("a note", sa.Text)
    price = orm.mapped_column(Cents)
    mood = orm.mapped_column(sa.Enum(Mood, name="mood"))
    made = orm.mapped_column(sa.DateTime(timezone=True))
    facts = orm.mapped_column(pg.JSONB)
    tags = orm.mapped_column(pg.ARRAY(sa.Text))
    code = orm.mapped_column(sa.Uuid)
    status = orm.mapped_column(sa.Text, default="new")
    token = orm.mapped_column(sa.Text, default=lambda: "made")
    stored = orm.mapped_column(sa.Text, server_default="by the server")


class TextNotNull(sa.types.TypeDecorator):
    """Text that stores None as `unknown`."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return "unknown" if value is None else value


class Fact(Base):
    __tablename__ = "facts"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    flag = orm.mapped_column(TextNotNull)
    either = orm.mapped_column(sa.JSON)
    plain = orm.mapped_column(pg.JSONB(none_as_null=True))
    kept = orm.mapped_column(TextNotNull, default=lambda: None)


MADE = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc)
FULL = dict(id=1, note="a\tb\\", price=Decimal("1.25"), mood=Mood.happy, made=MADE,
            facts={"a": [1, None]}, tags=["x", 'y"', None], code=uuid.UUID(int=7))


def url_of(server, dsn, driver):
    name = dsn.rsplit("dbname=", 1)[1].split()[0]
    url = server.url.rsplit("/", 1)[0] + "/" + name
    return url.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture
def engine(server, dsn):
    pytest.importorskip("psycopg")
    engine = sa.create_engine(url_of(server, dsn, "psycopg"))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def orders(engine):
    with orm.Session(engine) as session:
        return session.scalars(sa.select(Order).order_by(Order.id)).all()


@pytest.mark.parametrize("within", [False, True])
def test_names_types_and_defaults_are_those_of_the_model(engine, within):
    rows = [Order(**FULL), Order(id=2), Order(id=3, status=None, stored=None)]
    with orm.Session(engine) as session:
        report = pgspate.sqlalchemy.load(
            session, Order, rows, **({"within": session} if within else {})
        )
        session.commit()
    assert report.rows_written == 3
    first, *others = orders(engine)
    for name, value in FULL.items():
        assert getattr(first, name) == value, name
    for other in others:
        assert (other.status, other.token, other.stored) == ("new", "made", "by the server")
        assert other.note is None


def test_dicts_and_tables_are_taken_too(engine):
    rows = [{"id": n, "note": str(n)} for n in range(5)]
    pgspate.sqlalchemy.load(engine, Order, iter(rows))
    with engine.connect() as connection:
        table = Order.__table__
        named = [{"id": 9, "a note": "by the table's names"}]
        pgspate.sqlalchemy.load(connection, table, named)
    assert [one.note for one in orders(engine)] == ["0", "1", "2", "3", "4", named[0]["a note"]]
    with pytest.raises(pgspate.UsageError, match='"a note" is no attribute') as refused:
        pgspate.sqlalchemy.load(engine, Order, [{"a note": 1}])
    assert 'the attribute "note"' in refused.value.hint
    with pytest.raises(pgspate.UsageError, match="neither a dict nor a mapped object"):
        pgspate.sqlalchemy.load(engine, Order, [(1,)])
    assert pgspate.sqlalchemy.load(engine, Order, []).rows_written == 0


@pytest.mark.parametrize("within", [False, True])
def test_none_is_stored_as_its_type_converts_it(engine, within):
    none = dict.fromkeys(["flag", "either", "plain", "kept"])
    with orm.Session(engine) as session:
        session.add(Fact(id=0, **none))
        session.add(Fact(id=-1, either=sa.JSON.NULL, plain=sa.JSON.NULL))
        rows = [Fact(id=1, **none), Fact(id=2, flag="yes", either=[], plain=[])]
        rows.append(Fact(id=3, either=sa.JSON.NULL, plain=sa.JSON.NULL))
        more = {"within": session} if within else {}
        pgspate.sqlalchemy.load(session, Fact, rows, **more)
        session.commit()
        pgspate.sqlalchemy.load(session, Order, [{**dict.fromkeys(FULL), "id": 1}], **more)
        session.commit()
    with engine.connect() as connection:
        sql = "select flag, either::text, plain::text, kept from facts order by id"
        unset, theirs, *ours = connection.exec_driver_sql(sql).fetchall()
    assert theirs == ("unknown", "null", None, "unknown")
    assert unset == ("unknown", "null", "null", "unknown")
    assert ours == [theirs, ("yes", "[]", "[]", "unknown"), unset]
    (order,) = orders(engine)
    assert [getattr(order, name) for name in FULL] == [1, None, None, None, None, None, None, None]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("kind", ["dicts", "objects"])
def test_an_attribute_that_only_later_rows_have_is_refused_or_stored(engine, within, kind):
    def rows(late):
        for n in range(1500):
            values = {"id": n, **(late if n == 1400 else {})}
            yield Order(**values) if kind == "objects" else values

    def load(rows):
        with orm.Session(engine) as session:
            more = {"within": session} if within else {}
            pgspate.sqlalchemy.load(session, Order, rows, **more)
            session.commit()

    with pytest.raises(pgspate.UsageError, match='"note", but none of the first 1000'):
        load(rows({"note": "late"}))
    assert orders(engine) == []
    # A column with a default of the model is written anyway.
    load(rows({"status": "late"}))
    assert orders(engine)[1400].status == "late"
    load([Order(id=n + 5000) for n in range(1000)] + [Order(id=9000, note="late")])
    assert orders(engine)[-1].note == "late"
    if kind == "dicts":
        for some_rows in (rows({"nope": 1}), list(rows({"nope": 1}))):
            with pytest.raises(pgspate.UsageError, match='"nope" is no attribute'):
                load(some_rows)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_within_a_session_a_load_is_part_of_its_transaction(server, dsn, engine, driver):
    pytest.importorskip(driver)
    other = sa.create_engine(url_of(server, dsn, driver))
    rows = [{**FULL, "id": n} for n in range(20_000)]
    with orm.Session(other) as session:
        session.add(Order(id=-1))
        report = pgspate.sqlalchemy.load(session, Order, rows, within=session)
        assert report.rows_written == 20_000
        assert session.scalar(sa.select(sa.func.count()).select_from(Order)) == 20_001
        assert orders(engine) == []
        session.rollback()
        assert session.scalar(sa.select(sa.func.count()).select_from(Order)) == 0
        pgspate.sqlalchemy.load(session, Order, rows[:3], within=session)
        session.commit()
    with other.begin() as connection:
        pgspate.sqlalchemy.load(connection, Order, [{"id": -2}], within=connection)
    other.dispose()
    assert [one.id for one in orders(engine)] == [-2, 0, 1, 2]
    assert orders(engine)[1].facts == FULL["facts"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_within_an_asynchronous_session_rows_are_written(server, dsn, engine, driver):
    pytest.importorskip(driver)
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def work():
        other = create_async_engine(url_of(server, dsn, driver))
        rows = [{**FULL, "id": n} for n in range(10_000)]
        async with AsyncSession(other) as session:
            write = lambda within: pgspate.sqlalchemy.load(within, Order, rows, within=within)
            await session.run_sync(write)
            await session.rollback()
            assert (await session.run_sync(write)).rows_written == 10_000
            await session.commit()
            changed = [{**rows[7], "note": "new"}]
            sync = lambda within: pgspate.sqlalchemy.sync(
                within, Order, changed, no_delete=True, within=within
            )
            report = await session.run_sync(sync)
            assert (report.inserted, report.updated) == (0, 1)
            await session.commit()
        await other.dispose()

    asyncio.run(work())
    found = orders(engine)
    assert found[7].note == "new"
    assert len(found) == 10_000 and found[7].tags == FULL["tags"]


def test_within_a_transaction_other_options_are_refused(engine):
    with orm.Session(engine) as session:
        with pytest.raises(pgspate.UsageError, match="no effect within a transaction"):
            pgspate.sqlalchemy.load(session, Order, [{"id": 1}], within=session, lanes=2)
        for name, value in {"transactions": 2, "read_ahead": "always", "retry_for": 5}.items():
            with pytest.raises(pgspate.UsageError, match=f"{name} has no effect within"):
                pgspate.sqlalchemy.sync(
                    session, Order, [{"id": 1}], scope="all", within=session, **{name: value}
                )
        with pytest.raises(pgspate.ConversionError) as error:
            rows = [{"id": 1}, {"id": object()}]
            pgspate.sqlalchemy.load(session, Order, rows, within=session)
        assert error.value.place.row == 2 and error.value.place.column == "id"


def test_a_scope_is_made_equal_to_objects(engine):
    with orm.Session(engine) as session:
        old = [Order(id=n, note="a" if n < 5 else "b", status="old") for n in range(10)]
        pgspate.sqlalchemy.load(session, Order, old)
        new = [Order(id=n, note="b", status="old") for n in range(6, 12)]
        report = pgspate.sqlalchemy.sync(session, Order, new, scope=Order.note == "b")
        assert (report.inserted, report.updated, report.deleted, report.unchanged) == (2, 0, 1, 4)
        new[0].status = "changed"
        rows = [{"id": 6, "note": "b", "status": "changed"}]
        report = pgspate.sqlalchemy.sync(session, Order, rows, key=Order.id, no_delete=True)
        assert (report.inserted, report.updated) == (0, 1)
        report = pgspate.sqlalchemy.sync(
            session, Order, new, scope_by=[Order.note], ignore_columns=["status"]
        )
        assert report.is_same
    assert [one.id for one in orders(engine)] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "scope, ids",
    [
        (Order.note != "keep%", [2, 3]),
        (Order.note.in_(["keep%", "a:b"]), [1, 3]),
        (Order.note.startswith("keep"), [1]),
        (Order.id % 2 == 1, [1, 3]),
    ],
)
def test_a_scope_may_have_percent_signs(engine, scope, ids, within):
    with orm.Session(engine) as session:
        notes = ["keep%", "x", "a:b"]
        session.add_all(Order(id=n, note=note) for n, note in enumerate(notes, 1))
        session.commit()
        options = {"within": session} if within else {}
        report = pgspate.sqlalchemy.sync(
            session, Order, [], scope=scope, allow_empty=True, max_delete="100%", **options
        )
        session.commit()
    assert report.deleted == len(ids)
    assert [one.id for one in orders(engine)] == [n for n in (1, 2, 3) if n not in ids]


@pytest.mark.parametrize(
    "ids, options, message",
    [
        ([], {"scope": Order.note == "b"}, "the source has no rows"),
        ([0, 5], {"scope": Order.note == "b"},
         "the source has 1 row with the key of a table row that is outside"),
        ([0, 5], {"scope": Order.note == "c"}, "the source has 2 rows outside the scope"),
        ([0, 5], {"scope_by": "note"},
         "the source has 1 row with the key of a table row in a scope"),
        ([5, 5, 6], {"scope": "all"}, "the source has 1 key more than once: (5) 2 times"),
        ([5], {"scope": Order.note == "b"}, "4 of 5 rows of the scope (80.0%) would be deleted"),
    ],
)
def test_a_doubtful_sync_is_refused_with_the_same_message_within_a_session(
    engine, ids, options, message
):
    with orm.Session(engine) as session:
        old = [Order(id=n, note="a" if n < 5 else "b") for n in range(10)]
        pgspate.sqlalchemy.load(session, Order, old)
        new = [{"id": n, "note": "b"} for n in ids]
        errors = []
        for within in (None, session):
            with pytest.raises(pgspate.PlanError) as caught:
                pgspate.sqlalchemy.sync(session, Order, new, within=within, **options)
            reasons = [caught.value.message, *caught.value._reasons]
            errors.append((reasons[-1], caught.value.hint))
    assert errors[0] == errors[1]
    assert message in errors[0][0]
    assert len(orders(engine)) == 10


@pytest.mark.parametrize("within", [False, True])
def test_a_delete_that_cascades_to_a_row_of_the_source_is_refused(db, engine, within):
    db.execute("create table node (id int primary key, up int references node on delete cascade)")
    db.execute("insert into node values (1, null), (2, 1), (3, null)")
    node = sa.Table("node", sa.MetaData(), autoload_with=engine)
    rows = [{"id": 2, "up": 1}, {"id": 3, "up": None}]
    with orm.Session(engine) as session:
        with pytest.raises(pgspate.PlanError, match='by foreign key "node_up_fkey"'):
            pgspate.sqlalchemy.sync(
                session, node, rows, scope="all", within=session if within else None)
        session.commit()
    assert len(db.execute("select from node").fetchall()) == 3


@pytest.fixture
def tenants(db, engine):
    """Yields a function that returns the ids of the table `facts` in three schemas.

    One of the schemas is `public`, in which unqualified names are looked up by default.
    """
    with engine.begin() as connection:
        for schema in ("public", "tenant_42", "Tenant 43"):
            connection.exec_driver_sql(f'create schema if not exists "{schema}"')
            translated = connection.execution_options(schema_translate_map={None: schema})
            Fact.__table__.create(translated, checkfirst=True)
            rows = [{"id": n, "flag": schema} for n in range(3)]
            translated.execute(sa.insert(Fact.__table__), rows)

    def ids():
        find = 'select array(select id from "{}".facts order by id)'
        schemas = ("public", "tenant_42", "Tenant 43")
        return [db.execute(find.format(schema)).fetchone()[0] for schema in schemas]

    yield ids


def test_within_a_session_its_search_path_decides_on_the_table(engine, tenants):
    with orm.Session(engine) as session:
        for schema in ("tenant_42", '"Tenant 43"'):
            session.execute(sa.text(f"set local search_path to {schema}"))
            rows = [Fact(id=0, flag="new"), Fact(id=7)]
            report = pgspate.sqlalchemy.sync(
                session, Fact, rows, scope="all", max_delete=100, within=session
            )
            assert (report.inserted, report.updated, report.deleted) == (1, 1, 2)
            pgspate.sqlalchemy.load(session, Fact, [Fact(id=8)], within=session)
            session.commit()
    assert tenants() == [[0, 1, 2], [0, 7, 8], [0, 7, 8]]


@pytest.mark.parametrize("by", ["engine", "connection", "session"])
@pytest.mark.parametrize("within", [False, True])
def test_schema_translate_map_decides_on_the_table(engine, tenants, by, within):
    options = {"schema_translate_map": {None: "Tenant 43"}}
    bind = engine.execution_options(**options) if by == "engine" else engine
    with bind.connect() as connection:
        if by == "connection":
            connection = connection.execution_options(**options)
        try:
            more = {"execution_options": options} if by == "session" else {}
            session = orm.Session(connection, **more)
        except TypeError:
            pytest.skip("sessions of this SQLAlchemy have no options")
        with session:
            more = {"within": session} if within else {}
            pgspate.sqlalchemy.load(session, Fact, [Fact(id=8)], **more)
            report = pgspate.sqlalchemy.sync(
                session, Fact, [Fact(id=0), Fact(id=7)], scope="all", max_delete=100, **more
            )
            assert (report.inserted, report.deleted) == (1, 3)
            session.commit()
        connection.commit()
    assert tenants() == [[0, 1, 2], [0, 1, 2], [0, 7]]


def test_a_sync_within_a_transaction_of_another_database_is_refused(server, engine, tenants):
    other = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    with other.connect() as connection:
        Fact.__table__.create(connection)
        with pytest.raises(pgspate.PlanError, match="is not the same table in the transaction"):
            pgspate.sqlalchemy.sync(engine, Fact, [Fact(id=7)], no_delete=True, within=connection)
        connection.rollback()
    other.dispose()
    assert tenants() == [[0, 1, 2]] * 3


def test_a_session_decides_on_the_engine_of_each_model(server, dsn, engine):
    other = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    rows = [{"id": 1, "note": "b"}]
    for within in (False, True):
        for model in (Order, Order.__table__):
            with orm.Session(other, binds={Order: engine}) as session:
                more = {"within": session} if within else {}
                named = rows if model is Order else [{"id": 1, "a note": "b"}]
                pgspate.sqlalchemy.load(session, model, named, **more)
                report = pgspate.sqlalchemy.sync(session, model, named, no_delete=True, **more)
                assert report.is_same
                session.commit()
            assert [one.note for one in orders(engine)] == ["b"]
            with engine.begin() as connection:
                connection.execute(sa.delete(Order))
    other.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_within_a_session_a_sync_is_part_of_its_transaction(server, dsn, engine, driver):
    pytest.importorskip(driver)
    other = sa.create_engine(url_of(server, dsn, driver))
    old = [{"id": n, "note": "a" if n < 5 else "b", "status": "100% %s"} for n in range(10)]
    pgspate.sqlalchemy.load(engine, Order, old)
    new = [Order(id=n, note="b", status="100% %s") for n in range(6, 12)]
    new[0].status = "changed"
    with orm.Session(other) as session:
        mine = session.get(Order, 6)
        settings = session.execute(sa.text("show enable_nestloop")).scalar()
        for end in (session.rollback, session.commit):
            session.add(Order(id=-1, note="mine"))
            report = pgspate.sqlalchemy.sync(
                session, Order, new, scope=Order.note == "b", within=session
            )
            counts = (report.inserted, report.updated, report.deleted, report.unchanged)
            assert counts == (2, 1, 1, 3)
            assert session.get(Order, 6).status == "changed" and session.get(Order, 5) is None
            assert mine.status == "changed"
            assert session.execute(sa.text("show enable_nestloop")).scalar() == settings
            assert len(orders(engine)) == 10
            end()
        assert [one.id for one in orders(engine)] == [-1, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        # An error undoes the sync, and the transaction continues.
        session.add(Order(id=-2, note="mine"))
        for rows, more in [
            ([], {"scope": "all"}),
            ([{"id": 50, "note": "a"}], {"scope": Order.note == "b"}),
            ([{"id": 50, "note": "b"}] * 2, {"no_delete": True}),
            ([{"id": 50, "note": "b"}], {"scope": Order.note == "b"}),
            ([{"id": 0, "note": "b"}], {"scope_by": "note"}),
        ]:
            with pytest.raises(pgspate.PlanError):
                pgspate.sqlalchemy.sync(session, Order, rows, within=session, **more)
        session.commit()
    assert [one.id for one in orders(engine)][:2] == [-2, -1] and len(orders(engine)) == 13
    check = pgspate.sqlalchemy.sync(engine, Order, new, no_delete=True, check=True)
    assert check.is_same
    other.dispose()


@pytest.mark.parametrize("ids", [[1], [5]])
def test_within_a_session_no_row_is_taken_for_another(engine, dsn, ids):
    """Others change a row and vacuum between the comparison and the write of a sync."""
    psycopg = pytest.importorskip("psycopg")
    other, older = (psycopg.connect(dsn, autocommit=auto) for auto in (True, False))
    with orm.Session(engine) as session:
        session.add_all([Order(id=1, note="a"), Order(id=2, note="b")])
        session.commit()
    other.execute("update \"Order lines\" set status = 'old' where id = 1")
    other.execute('vacuum "Order lines"')
    older.execute("update \"Order lines\" set status = 'newer' where id = 1")
    writes = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def change_meanwhile(connection, cursor, statement, *rest):
        if statement.startswith(("delete from public", "update public")) and not writes:
            writes.append(statement)
            older.commit()
            other.execute('vacuum "Order lines"')
            other.execute("insert into \"Order lines\" (id, \"a note\") values (999, 'b')")

    rows = [Order(id=n, note="a", status="synced") for n in ids]
    with orm.Session(engine) as session:
        with pytest.raises(pgspate.ServerError) as refused:
            pgspate.sqlalchemy.sync(session, Order, rows, scope=Order.note == "a", within=session,
                                    max_delete="100%")
        assert refused.value.sqlstate == "40001" and writes
    assert [(one.id, one.note) for one in orders(engine)] == [(1, "a"), (2, "b"), (999, "b")]
    other.close()
    older.close()


def test_to_sql_of_pandas_takes_pandas_method(server, dsn, engine):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "a": [1, 2, None], "b": ["x\t", None, "z"],
        "c": [pandas.Timestamp("2024-01-02"), None,
              pandas.Timestamp("2024-01-03 04:05:06.123456")],
    })
    for driver in ("psycopg", "psycopg2"):
        other = sa.create_engine(url_of(server, dsn, driver))
        for when in ("replace", "append"):
            frame.to_sql('A "frame"', other, index=False, if_exists=when,
                         method=pgspate.pandas_method, chunksize=2)
        with other.connect() as connection:
            found = connection.exec_driver_sql('select * from "A ""frame""" order by b').fetchall()
        other.dispose()
        last = dt.datetime(2024, 1, 3, 4, 5, 6, 123456)
        assert found[::2] == [(1.0, "x\t", dt.datetime(2024, 1, 2)), (None, "z", last),
                              (2.0, None, None)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_pandas_method_writes_timedeltas_as_intervals(engine, db, unit):
    pandas = pytest.importorskip("pandas")
    times = pandas.to_timedelta(["1s", "-25h", "1D", None]).astype(f"timedelta64[{unit}]")
    frame = pandas.DataFrame({"n": range(4), "d": times, "e": times}, index=times)
    frame.index.name = "i"
    db.execute("create table t (i interval, n int, d interval, e bigint)")
    frame.to_sql("t", engine, if_exists="append", method=pgspate.pandas_method, chunksize=3)
    found = db.execute("select i::text, d::text, e from t order by n").fetchall()
    texts = ["00:00:01", "-25:00:00", "24:00:00", None]
    # Integers are pandas' own form of timedeltas.
    assert found == list(zip(texts, texts, times.view("i8").tolist()))
    frame.to_sql("made", engine, index=False, dtype={"d": sa.Interval},
                 method=pgspate.pandas_method)
    assert db.execute("select d::text from made order by n").fetchall() == [(it,) for it in texts]


def test_pandas_method_rounds_timedeltas_as_load_does(engine, dsn, db):
    pandas = pytest.importorskip("pandas")
    nanos = [1499, 1500, 2500, -1500, -2500, 2**63 - 1]
    frame = pandas.DataFrame({"d": pandas.to_timedelta(nanos, unit="ns")})
    for table in ("a", "b"):
        db.execute(f"create table {table} (d interval)")
    frame.to_sql("a", engine, index=False, if_exists="append", method=pgspate.pandas_method)
    pgspate.load(frame, "b", to=dsn)
    assert [db.execute(f"select d::text from {table}").fetchall() for table in "ab"] == [
        db.execute("select d::text from b").fetchall()
    ] * 2


def test_the_argument_to_may_be_an_engine_or_a_url(engine, db):
    pgspate.load([(1,)], '"Order lines"', columns="id", to=engine)
    pgspate.load([(2,)], '"Order lines"', columns="id", to=engine.url)
    assert len(orders(engine)) == 2
    with engine.connect() as connection, orm.Session(engine) as session:
        for to in (connection, session):
            pgspate.load([(3 + (to is session),)], '"Order lines"', columns="id", to=to)
            to.execute(sa.text("select 1"))
            with pytest.raises(pgspate.UsageError, match="open transaction") as caught:
                pgspate.load([(9,)], '"Order lines"', columns="id", to=to)
            assert "within=" in caught.value.hint
    assert len(orders(engine)) == 4
    lite = sa.create_engine("sqlite://")
    with pytest.raises(pgspate.UsageError, match="of sqlite, not of PostgreSQL"):
        pgspate.load([(1,)], "t", to=lite)
    with pytest.raises(pgspate.UsageError, match="has no connection string"):
        pgspate.load([(1,)], "t", to=5)


def test_a_model_that_is_no_model_is_refused(engine):
    for model in ["orders", 7]:
        with orm.Session(engine) as session:
            with pytest.raises(pgspate.UsageError, match="neither a model nor a table"):
                pgspate.sqlalchemy.load(session, model, [])


@pytest.mark.parametrize("is_within", [False, True])
def test_json_is_written_by_the_function_of_the_engine(server, dsn, engine, is_within):
    url = url_of(server, dsn, "psycopg")
    as_text = sa.create_engine(url, json_serializer=lambda value: json.dumps(value, default=str))
    for used, is_refused in [(engine, True), (as_text, False)]:
        with orm.Session(used) as session:
            within = {"within": session} if is_within else {}
            rows = [{"id": 1, "facts": {}}, {"id": 2, "facts": {"price": Decimal("1.10")}}]
            if not is_refused:
                pgspate.sqlalchemy.load(session, Order, rows, **within)
                session.commit()
                continue
            with pytest.raises(pgspate.ConversionError, match="not JSON serializable") as caught:
                pgspate.sqlalchemy.load(session, Order, rows, **within)
            assert (caught.value.place.row, caught.value.place.column) == (2, "facts")
    assert [order.facts for order in orders(engine)] == [{}, {"price": "1.10"}]
    as_text.dispose()
