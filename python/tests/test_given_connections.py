"""Rows go where the given engine, connection or session would write, or nowhere."""

from __future__ import annotations

import asyncio

import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column

import pgspate
import pgspate.sqlalchemy


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "things"
    id = mapped_column(sa.Integer, primary_key=True)


ROWS = [{"id": 1}]
PLACES = "select (select count(*) from public.things), (select count(*) from other.things)"


@pytest.fixture
def places(db):
    db.execute("create schema other")
    for schema in ("public", "other"):
        db.execute(f"create table {schema}.things (id int)")

    def counts():
        found = db.execute(PLACES).fetchone()
        db.execute("truncate public.things, other.things")
        return found

    return counts


@pytest.fixture
def url(dsn):
    """An URL that leads nowhere by itself: only the options say where the server is."""
    return "postgresql+psycopg://"


def parameters(dsn):
    return psycopg.conninfo.conninfo_to_dict(dsn)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_options_of_an_engine_are_followed(dsn, places, driver):
    options = {**parameters(dsn), "options": "-c search_path=other"}
    engine = sa.create_engine(f"postgresql+{driver}://", connect_args=options)
    pgspate.load(ROWS, "things", to=engine)
    assert places() == (0, 1)
    pgspate.sqlalchemy.load(engine, Thing, ROWS)
    assert places() == (0, 1)
    engine.dispose()
    module = {"psycopg": psycopg, "psycopg2": psycopg2}[driver]
    engine = sa.create_engine(f"postgresql+{driver}://", creator=lambda: module.connect(dsn))
    pgspate.load(ROWS, "things", to=engine)
    assert places() == (1, 0)
    engine.dispose()


def test_listeners_of_an_engine_are_followed(dsn, places):
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))

    @event.listens_for(engine, "connect")
    def set_path(connection, _):
        connection.execute('set search_path to "other"')
        connection.commit()

    pgspate.load(ROWS, "things", to=engine)
    assert places() == (0, 1)
    engine.dispose()


def test_the_settings_of_an_open_connection_are_followed(dsn, db, places):
    db.execute("create role writer; grant usage on schema other to writer")
    db.execute("create schema writer authorization writer")
    db.execute("create table writer.things (id int, who text default current_user)")
    db.execute("grant insert, select on writer.things to writer")
    try:
        check_settings_of_connections(dsn, db, places)
    finally:
        db.execute("drop schema writer cascade; drop owned by writer; drop role writer")


def check_settings_of_connections(dsn, db, places):
    def who():
        found = db.execute("select array_agg(distinct who), count(*) from writer.things").fetchone()
        db.execute("truncate writer.things")
        return found

    for module in (psycopg, psycopg2):
        connection = module.connect(dsn)
        with connection.cursor() as cursor:
            cursor.execute("set search_path to other, public")
        connection.commit()
        pgspate.load(ROWS, "things", to=connection, no_ledger=True)
        assert places() == (0, 1)
        with connection.cursor() as cursor:
            cursor.execute('set search_path to "$user"; set role writer')
        connection.commit()
        pgspate.load(ROWS, "things", to=connection, no_ledger=True)
        assert who() == (["writer"], 1)
        connection.close()
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))
    with engine.connect() as connection:
        connection.exec_driver_sql("set search_path to other")
        connection.commit()
        pgspate.load(ROWS, "things", to=connection)
        assert places() == (0, 1)
        with Session(connection) as session:
            pgspate.sqlalchemy.load(session, Thing, ROWS)
        assert places() == (0, 1)
    with Session(engine) as session:
        session.execute(sa.text("set search_path to other"))
        pgspate.sqlalchemy.load(session, Thing, ROWS)
        session.rollback()
    assert places() == (0, 1)
    engine.dispose()


def test_the_settings_of_a_session_of_asyncio_are_followed(dsn, places):
    async def load():
        engine = create_async_engine("postgresql+psycopg://", connect_args=parameters(dsn))
        async with AsyncSession(engine) as session:
            await session.execute(sa.text("set search_path to other"))
            pgspate.sqlalchemy.load(session, Thing, ROWS)
        await engine.dispose()

    asyncio.run(load())
    assert places() == (0, 1)


def test_an_engine_that_cannot_connect_is_an_error_of_pgspate(tmp_path):
    for options in ({}, {"connect_args": {"dbname": "other"}}):
        url = sa.URL.create("postgresql+psycopg", query={"host": str(tmp_path)})
        with pytest.raises(pgspate.ConnectError, match="could not connect"):
            pgspate.load(ROWS, "things", to=sa.create_engine(url, **options))


def test_an_engine_whose_driver_does_not_show_its_options_is_refused(dsn, places):
    engine = create_async_engine("postgresql+asyncpg://h/d", connect_args={"database": "other"})
    for call in (
        lambda: pgspate.load(ROWS, "things", to=engine),
        lambda: pgspate.sqlalchemy.load(engine, Thing, ROWS),
    ):
        with pytest.raises(pgspate.UsageError, match="`connect_args`") as refused:
            call()
        assert "within=" in refused.value.hint
    assert places() == (0, 0)


def test_an_engine_without_other_options_is_its_url():
    from pgspate._target import conninfo

    engine = create_async_engine("postgresql+asyncpg://someone@h/d")
    assert conninfo(engine) == "postgresql://someone@h/d"


@pytest.mark.parametrize("kind", [list, iter])
def test_objects_that_a_session_will_save_are_refused(dsn, db, kind):
    db.execute("create table things (id int)")
    engine = sa.create_engine(dsn_url(dsn))
    with Session(engine) as session:
        things = [Thing(id=1), Thing(id=2)]
        session.add_all(things)
        for call in (pgspate.sqlalchemy.load, pgspate.sqlalchemy.sync):
            scope = {"scope": "true"} if call is pgspate.sqlalchemy.sync else {}
            with pytest.raises(pgspate.UsageError, match="in the session already"):
                call(engine, Thing, kind(things), **scope)
        session.expunge_all()
        pgspate.sqlalchemy.load(session, Thing, kind(things))
        session.commit()
    engine.dispose()
    assert db.execute("select id from things order by id").fetchall() == [(1,), (2,)]


def dsn_url(dsn):
    parts = parameters(dsn)
    password = open(parts["passfile"]).read().strip().rpartition(":")[2]
    return sa.URL.create("postgresql+psycopg", "postgres", password, None, None, parts["dbname"],
                         query={"host": parts["host"], "port": parts["port"]})


def test_columns_of_polars_objects_are_refused(db, dsn):
    import polars

    db.execute("create table t (a text, b text)")
    for values in (
        polars.Series("b", [object(), {1}], dtype=polars.Object),
    ):
        frame = polars.DataFrame({"a": ["x", "y"]}).with_columns(values)
        with pytest.raises(pgspate.Error, match='column "b" has the type Object') as refused:
            pgspate.load(frame, "t", to=dsn)
        assert refused.value.place.column == "b" and "map_elements" in refused.value.hint
    assert db.execute("select * from t").fetchall() == []
