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


@pytest.mark.parametrize("call", ["load", "within", "sync"])
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
            if call == "sync":
                pgspate.sqlalchemy.sync(session, Visit, rows, no_delete=True)
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
        # None in a column of JSON is the null of JSON, unless the type has `none_as_null`.
        assert session.execute(sa.text(sql)).all() == [(0, None, None, None, "null")]
        # A dict with None has a value, as in an INSERT of dicts.
        pgspate.sqlalchemy.load(session, Part, [{"id": 50, "a": None, "b": None, "twice": 0}])
        assert session.execute(sa.text("select \"A\", b from parts where id = 50")).one() == (None, None)


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
