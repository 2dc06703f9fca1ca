"""Defaults of models, and types that write values in a way of their own."""

from __future__ import annotations

import datetime as dt

import pytest

import pgspate

sa = pytest.importorskip("sqlalchemy")
pytest.importorskip("psycopg")

import pgspate.sqlalchemy  # noqa: E402
from sqlalchemy import orm  # noqa: E402
from test_sqlalchemy import url_of  # noqa: E402

DAY = dt.date(2024, 1, 2)


@pytest.fixture
def engine(server, dsn):
    engine = sa.create_engine(url_of(server, dsn, "psycopg"))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("is_within", [False, True])
def test_rows_that_a_trigger_keeps_out_are_counted(engine, is_within):
    class Base(orm.DeclarativeBase):
        pass

    class Visit(Base):
        __tablename__ = "visits"
        id = orm.mapped_column(sa.Integer, primary_key=True)

    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.execute(sa.text(
            "create function keep_out() returns trigger language plpgsql as "
            "$$ begin if new.id = 2 then return null; end if; return new; end $$; "
            "create trigger keeps_out before insert on visits for each row "
            "execute function keep_out()"))
        session.commit()
        report = pgspate.sqlalchemy.load(
            session, Visit, [{"id": 1}, {"id": 2}], **({"within": session} if is_within else {}))
        session.commit()
        assert (report.rows_in, report.rows_written, report.rows_kept_out) == (2, 1, 1)
        assert session.scalars(sa.select(Visit.id)).all() == [1]


@pytest.mark.parametrize("call", ["load", "within", "insert_only"])
def test_a_default_that_is_an_sql_expression_is_never_null_instead(engine, call):
    class Base(orm.DeclarativeBase):
        pass

    class Visit(Base):
        __tablename__ = "visits"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        made = orm.mapped_column(sa.Date, default=sa.func.current_date())
        seen = orm.mapped_column(
            sa.Date, default=sa.func.current_date(), server_default=sa.func.current_date()
        )

    Base.metadata.create_all(engine)

    def write(rows):
        with orm.Session(engine) as session:
            if call == "insert_only":
                pgspate.sqlalchemy.sync(session, Visit, rows, insert_only=True)
            else:
                within = {"within": session} if call == "within" else {}
                pgspate.sqlalchemy.load(session, Visit, rows, **within)
            session.commit()

    with pytest.raises(pgspate.UsageError, match='"made", whose default is an SQL expression'):
        write([Visit(id=1)])
    with pytest.raises(pgspate.UsageError, match='"seen", whose default is an SQL expression'):
        write([{"id": 1, "made": DAY, "seen": None}, {"id": 2, "made": DAY}])
    write([{"id": 1, "made": DAY}, {"id": 2, "made": None}])
    with orm.Session(engine) as session:
        first, second = session.scalars(sa.select(Visit).order_by(Visit.id)).all()
    assert (first.made, second.made) == (DAY, None)
    assert None not in (first.seen, second.seen)


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_none_of_an_object_is_left_to_defaults_as_by_a_session(engine, kind):
    class Base(orm.DeclarativeBase):
        pass

    class Part(Base):
        __tablename__ = "parts"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        a = orm.mapped_column("A", sa.Integer, default=5)
        b = orm.mapped_column(sa.Integer, server_default="7")
        twice = orm.mapped_column(
            sa.Integer, default=lambda context: context.get_current_parameters()["A"] * 2
        )
        facts = orm.mapped_column(sa.JSON, default={"x": 1})

    Base.metadata.create_all(engine)
    values = [{"id": None}, {}, {"id": None, "a": None, "b": None, "twice": None, "facts": None},
              {"a": 6, "b": None}, {"a": 1, "twice": 9, "facts": []}]
    sql = "select id % 5, \"A\", b, twice, facts::text from parts order by id"
    with orm.Session(engine) as session:
        session.add_all(Part(**one) for one in values)
        session.commit()
        made = [Part(**one) for one in values]
        pgspate.sqlalchemy.load(session, Part, made if kind == "list" else iter(made))
        stored = session.execute(sa.text(sql)).all()
        assert stored[:5] == stored[5:] and stored[1] == (2, 5, 7, 10, '{"x": 1}')
        for name, value in [("b", 1), ("id", 99)]:
            for rows in ([Part(**{name: value}), Part(a=1)], [{name: value}, {"a": 1}]):
                message = f'"{name}", whose default the server makes, but another row has one'
                with pytest.raises(pgspate.UsageError, match=message):
                    pgspate.sqlalchemy.load(session, Part, rows)
        # None of a stored object is NULL, so a copy of a table is exact.
        session.execute(sa.text("delete from parts"))
        session.execute(sa.text("insert into parts (id, b) values (40, null)"))
        session.commit()
        copies = session.scalars(sa.select(Part)).all()
        session.execute(sa.text("delete from parts"))
        session.expunge_all()
        session.commit()
        pgspate.sqlalchemy.load(session, Part, copies if kind == "list" else iter(copies))
        assert session.execute(sa.text(sql)).all() == [(0, None, None, None, None)]
        # A dict with None has a value, as in an INSERT of dicts.
        pgspate.sqlalchemy.load(session, Part, [{"id": 50, "a": None, "b": None, "twice": 0}])
        written = session.execute(sa.text("select \"A\", b from parts where id = 50")).one()
        assert written == (None, None)


def test_a_default_sees_columns_that_no_object_has_as_none(engine):
    class Base(orm.DeclarativeBase):
        pass

    class Part(Base):
        __tablename__ = "parts"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        a = orm.mapped_column("A", sa.Integer)
        b = orm.mapped_column(
            sa.Text, default=lambda context: str(context.get_current_parameters()["A"])
        )

    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(Part(id=1))
        session.commit()
        pgspate.sqlalchemy.load(session, Part, [Part(id=2), Part(id=3)])
        assert session.execute(sa.text("select b from parts")).scalars().all() == ["None"] * 3


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_the_same_object_twice_is_refused(engine, kind):
    class Base(orm.DeclarativeBase):
        pass

    class Part(Base):
        __tablename__ = "parts"
        id = orm.mapped_column(sa.Integer, primary_key=True)

    Base.metadata.create_all(engine)
    part = Part()
    rows = [part, Part(), part]
    with pytest.raises(pgspate.UsageError, match="the same object more than once"):
        pgspate.sqlalchemy.load(engine, Part, rows if kind == "list" else iter(rows))


def test_a_default_that_needs_an_insert_is_refused(engine):
    class Base(orm.DeclarativeBase):
        pass

    class Part(Base):
        __tablename__ = "parts"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        a = orm.mapped_column(sa.Integer, default=lambda context: context.connection.scalar("1"))

    Base.metadata.create_all(engine)
    with pytest.raises(pgspate.UsageError, match="a default uses `connection`"):
        pgspate.sqlalchemy.load(engine, Part, [Part(id=1)])


def test_an_error_of_a_type_names_the_place(engine):
    class Strict(sa.types.TypeDecorator):
        impl = sa.Text
        cache_ok = True

        def process_bind_param(self, value, dialect):
            return {"x": dialect.driver}[value]

    class Base(orm.DeclarativeBase):
        pass

    class Thing(Base):
        __tablename__ = "things"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        word = orm.mapped_column(Strict)

    Base.metadata.create_all(engine)
    with pytest.raises(pgspate.ConversionError, match="KeyError: 'boom'") as refused:
        pgspate.sqlalchemy.load(engine, Thing, [Thing(id=1, word="x"), Thing(id=2, word="boom")])
    assert (refused.value.place.row, refused.value.place.column) == (2, "word")
    pgspate.sqlalchemy.load(engine, Thing, [Thing(id=1, word="x")])
    with engine.connect() as connection:
        assert connection.exec_driver_sql("select * from things").all() == [(1, "psycopg")]
    with pytest.raises(pgspate.UsageError, match="`scope=` is an object of class bool"):
        pgspate.sqlalchemy.sync(engine, Thing, [], scope=True)


def test_a_type_that_writes_values_by_an_expression_is_refused(engine):
    class Hashed(sa.types.TypeDecorator):
        impl = sa.Text
        cache_ok = True

        def bind_expression(self, bindvalue):
            return sa.func.md5(bindvalue)

    class Base(orm.DeclarativeBase):
        pass

    class Login(Base):
        __tablename__ = "logins"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        secret = orm.mapped_column(Hashed)

    Base.metadata.create_all(engine)
    with pytest.raises(pgspate.UsageError, match='column "secret" are written by an SQL'):
        pgspate.sqlalchemy.load(engine, Login, [Login(id=1, secret="x")])
    pgspate.sqlalchemy.load(engine, Login, [Login(id=1)])


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("kind", ["dicts", "objects", "stream", "table"])
def test_a_sync_does_not_replace_values_by_defaults(engine, kind, is_within):
    class Base(orm.DeclarativeBase):
        pass

    class User(Base):
        __tablename__ = "users"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        v = orm.mapped_column(sa.Text)
        status = orm.mapped_column(sa.Text, default="new")
        token = orm.mapped_column(sa.Text, default=lambda: "made")
        made = orm.mapped_column(sa.Date, default=sa.func.current_date())
        seen = orm.mapped_column(sa.Integer, default=1, server_default="7")

    Base.metadata.create_all(engine)
    model = User.__table__ if kind == "table" else User

    def sync(values, **options):
        rows = [User(**one) for one in values] if kind == "objects" else values
        with orm.Session(engine) as session:
            more = {"within": session} if is_within else {}
            report = pgspate.sqlalchemy.sync(
                session, model, iter(rows) if kind == "stream" else rows, **options, **more
            )
            session.commit()
            found = session.execute(sa.text("select * from users order by id")).all()
        return report, [tuple(row) for row in found]

    with engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into users values (1, 'v1', 'done', 'x', '2024-01-02', 3)"
        )
    kept = ("done", "x", DAY, 3)
    report, found = sync([{"id": 1, "v": "v2"}, {"id": 2, "v": "b"}], no_delete=True)
    assert (report.updated, report.inserted) == (1, 1)
    assert found == [(1, "v2", *kept), (2, "b", None, None, None, 7)]
    assert sync([{"id": 1, "v": "v2"}], scope="all", max_delete="100%")[0].unchanged == 1
    for name, value in [("status", "s"), ("made", DAY), ("seen", 5)]:
        message = f'a row has no value for column "{name}", but another row has one'
        with pytest.raises(pgspate.UsageError, match=message) as refused:
            sync([{"id": 1, name: value}, {"id": 2}], no_delete=True)
        assert "by a call of their own" in refused.value.hint
    # Rows that are only inserted replace nothing.
    _, found = sync([{"id": 1, "made": DAY}, {"id": 3, "made": DAY}], insert_only=True)
    assert found == [(1, "v2", *kept), (3, None, "new", "made", DAY, 1)]
    _, found = sync([{"id": 1, "status": None}, {"id": 3, "status": "t"}], no_delete=True)
    assert found == [(1, "v2", None, *kept[1:]), (3, None, "t", "made", DAY, 1)]


@pytest.fixture(params=["load", "within", "stream", "sync", "sync within"])
def write(request, engine):
    """A function that writes rows of a model in a transaction of its own."""

    def write(model, rows):
        with orm.Session(engine) as session:
            within = {"within": session} if "within" in request.param else {}
            if "sync" in request.param:
                pgspate.sqlalchemy.sync(session, model, rows, no_delete=True, **within)
            else:
                given = iter(rows) if request.param == "stream" else rows
                pgspate.sqlalchemy.load(session, model, given, **within)
            session.commit()

    return write


def test_a_value_for_a_generated_column_is_refused_unless_it_was_loaded(engine, write):
    class Base(orm.DeclarativeBase):
        pass

    class Part(Base):
        __tablename__ = "parts"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        n = orm.mapped_column(sa.Integer)
        twice = orm.mapped_column("g", sa.Integer, sa.Computed("n * 2", persisted=True))

    Base.metadata.create_all(engine)
    reflected = sa.Table("parts", sa.MetaData(), autoload_with=engine)
    with orm.Session(engine) as session:
        session.add(Part(id=7, n=70))
        session.commit()
        session.scalars(sa.select(Part)).one().twice = 1
        changed = session.scalars(sa.select(Part).execution_options(autoflush=False)).one()
        session.expunge(changed)
    for model, name, row in [
        (Part, "twice", {"id": 1, "n": 5, "twice": 3}),
        (Part, "twice", {"id": 1, "n": 5, "twice": None}),
        (Part, "twice", Part(id=1, n=5, twice=3)),
        (Part, "twice", changed),
        (reflected, "g", {"id": 1, "n": 5, "g": 10}),
    ]:
        message = f'a row has a value for "{name}", which the server computes'
        with pytest.raises(pgspate.UsageError, match=message) as refused:
            write(model, [row])
        assert "Leave this attribute out" in refused.value.hint
        if isinstance(row, dict):
            first = {key: value for key, value in row.items() if key != name}
            with pytest.raises(pgspate.UsageError, match=message):
                write(model, [*({**first, "id": nth} for nth in range(1100)), row])

    # A session does not send these either.
    with orm.Session(engine) as session:
        loaded = session.scalars(sa.select(Part)).one()
        assert loaded.twice == 140
        session.expunge(loaded)
        session.execute(sa.delete(Part))
        session.commit()
    write(Part, [Part(id=1, n=5, twice=None), loaded, Part(id=2, n=6)])
    write(reflected, [{"id": 3, "n": 8}])
    with orm.Session(engine) as session:
        assert session.execute(sa.select(Part.__table__).order_by(Part.id)).all() == [
            (1, 5, 10), (2, 6, 12), (3, 8, 16), (7, 70, 140)]


def test_a_type_writes_the_none_of_attributes_that_are_not_set(engine):
    class Known(sa.types.TypeDecorator):
        impl = sa.Text
        cache_ok = True

        def process_bind_param(self, value, dialect):
            return "unknown" if value is None else value

    class Base(orm.DeclarativeBase):
        pass

    class Part(Base):
        __tablename__ = "parts"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        name = orm.mapped_column(Known)
        kind = orm.mapped_column(Known, server_default="bolt")
        facts = orm.mapped_column(sa.JSON)

    Base.metadata.create_all(engine)
    values = [[{}], [{"name": "x", "facts": 1}, {}], [{"name": None}]]
    stored = sa.select(Part.name, Part.kind, sa.cast(Part.facts, sa.Text)).order_by(Part.id)
    with orm.Session(engine) as session:
        def written(write, as_rows):
            session.execute(sa.delete(Part))
            session.commit()
            for group in values:
                write([as_rows(**row) for row in group])
                session.commit()
            return session.execute(stored).all()

        def load(rows):
            pgspate.sqlalchemy.load(session, Part, rows)

        def load_within(rows):
            pgspate.sqlalchemy.load(session, Part, iter(rows), within=session)

        by_session = written(session.add_all, Part)
        assert by_session == [("unknown", "bolt", None), ("x", "bolt", "1"),
                              ("unknown", "bolt", None), ("unknown", "bolt", None)]
        assert written(load, Part) == written(load_within, Part) == by_session
        # The first dict has no names at all, so this column is left to the table.
        values[0] = [{"id": 0}]
        assert written(load, dict) == [(None, "bolt", None), *by_session[1:]]


@pytest.mark.parametrize("is_within", [False, True])
def test_a_sync_gives_all_rows_a_value_for_the_scope(engine, is_within):
    class Base(orm.DeclarativeBase):
        pass

    class Item(Base):
        __tablename__ = "items"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        tenant = orm.mapped_column(sa.Integer)

    Base.metadata.create_all(engine)
    rows = [{"id": 1}, {"id": 2}]
    with orm.Session(engine) as session:
        session.add_all([Item(id=1, tenant=5), Item(id=3, tenant=5), Item(id=4, tenant=6)])
        session.commit()
        options = {"scope": Item.tenant == 5, "within": session if is_within else None}
        with pytest.raises(pgspate.UsageError, match='column "tenant" of the scope is not in'):
            pgspate.sqlalchemy.sync(session, Item, rows, **options)
        report = pgspate.sqlalchemy.sync(session, Item, rows, set={"tenant": 5}, **options)
        assert (report.inserted, report.deleted, report.unchanged) == (1, 1, 1)
        session.commit()
        stored = session.execute(sa.select(Item.id, Item.tenant).order_by(Item.id)).all()
        assert stored == [(1, 5), (2, 5), (4, 6)]
        with pytest.raises(pgspate.UsageError, match='has column "tenant"|have column "tenant"'):
            tenants = [{"id": 1, "tenant": 5}]
            pgspate.sqlalchemy.sync(session, Item, tenants, set={"tenant": 5}, **options)
