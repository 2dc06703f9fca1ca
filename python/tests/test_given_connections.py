"""Rows go where the given engine, connection or session would write, or nowhere."""

from __future__ import annotations

import asyncio
import contextlib

import pgspate
import pytest
from pgspate._target import conninfo

psycopg = pytest.importorskip("psycopg")
psycopg2 = pytest.importorskip("psycopg2")
sa = pytest.importorskip("sqlalchemy")

import pgspate.sqlalchemy  # noqa: E402
from sqlalchemy import event  # noqa: E402
from sqlalchemy.ext.asyncio import (  # noqa: E402
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (  # noqa: E402
    DeclarativeBase,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "things"
    id = mapped_column(sa.Integer, primary_key=True)


ROWS = [{"id": 1}]
SCOPE = {"scope": "all"}
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
    engine = create_async_engine("postgresql+asyncpg://someone@h/d")
    assert conninfo(engine) == "postgresql://someone@h/d"


@pytest.mark.parametrize("module", [psycopg, psycopg2])
def test_parameters_with_the_default_of_libpq_are_followed(dsn, module):
    given = parameters(dsn)
    hosts = {"host": f"/nowhere,{given['host']}", "port": f"1,{given['port']}"}
    for options in ({}, hosts):
        with contextlib.closing(module.connect(**{**given, **options})) as connection:
            found = parameters(conninfo(connection))
        assert found["sslmode"] == "prefer" and found["user"] == "postgres"
        assert (found["host"], found["port"]) == (given["host"], given["port"])


@pytest.mark.parametrize("pool", [None, sa.StaticPool, sa.NullPool])
@pytest.mark.parametrize("module", [psycopg, psycopg2])
def test_a_transaction_of_a_shared_connection_is_left_alone(dsn, places, module, pool):
    connection = module.connect(dsn)
    name = module.__name__
    engine = sa.create_engine(f"postgresql+{name}://", creator=lambda: connection, poolclass=pool)
    connection.cursor().execute("insert into public.things values (7)")
    with pytest.raises(pgspate.UsageError, match="open transaction"):
        pgspate.load(ROWS, "things", to=engine)
    connection.commit()
    assert places() == (1, 0)
    if pool is not sa.NullPool:
        # A pool without connections closes what the creator gives.
        pgspate.load(ROWS, "things", to=engine)
        assert places() == (1, 0)
        connection.cursor().execute("select 1")
    connection.close()


@pytest.mark.parametrize("module", [psycopg, psycopg2])
def test_a_closed_connection_is_named(dsn, module):
    connection = module.connect(dsn)
    connection.close()
    message = "the connection that `to=` names is closed"
    with pytest.raises(pgspate.UsageError, match=message) as refused:
        pgspate.load(ROWS, "things", to=connection)
    assert refused.value.hint == "Give an open connection or a connection string."


def test_a_transaction_in_a_pool_of_one_connection_is_left_alone(dsn, places):
    engine = sa.create_engine(
        "postgresql+psycopg://", connect_args=parameters(dsn), poolclass=sa.StaticPool
    )
    with engine.connect() as connection:
        connection.execute(sa.text("insert into public.things values (7)"))
        with pytest.raises(pgspate.UsageError, match="open transaction"):
            pgspate.load(ROWS, "things", to=engine)
        connection.commit()
    assert places() == (1, 0)
    engine.dispose()


@pytest.mark.parametrize("name", ["engine_connect", "begin"])
def test_listeners_of_connections_are_followed(dsn, places, name):
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))

    @event.listens_for(engine, name)
    def set_path(connection):
        connection.exec_driver_sql("set search_path to other")

    pgspate.load(ROWS, "things", to=engine)
    assert places() == (0, 1)
    engine.dispose()


def test_listeners_that_cannot_be_followed_are_refused(dsn, places):
    engine = create_async_engine("postgresql+asyncpg://h/d")
    event.listen(engine.sync_engine, "connect", lambda *_: None, once=True)
    for call in (
        lambda: pgspate.load(ROWS, "things", to=engine),
        lambda: pgspate.sqlalchemy.load(AsyncSession(engine), Thing, ROWS),
    ):
        with pytest.raises(pgspate.UsageError, match="listeners of its connections") as refused:
            call()
        assert "connection string" in refused.value.hint
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))
    maker = sessionmaker(engine)
    event.listen(maker, "after_begin", lambda *_: None)
    for call in (
        lambda: pgspate.load(ROWS, "things", to=maker()),
        lambda: pgspate.sqlalchemy.load(maker(), Thing, ROWS),
    ):
        with pytest.raises(pgspate.UsageError, match="after_begin"):
            call()
    with maker() as session:
        session.connection().exec_driver_sql("set local search_path to other")
        pgspate.sqlalchemy.load(session, Thing, ROWS)
    assert places() == (0, 1)
    engine.dispose()


def test_open_connections_of_asyncpg_are_refused(dsn, places):
    given = parameters(dsn)
    password = open(given["passfile"]).read().strip().rpartition(":")[2]

    async def load():
        url = sa.URL.create(
            "postgresql+asyncpg", "postgres", password, None, None, given["dbname"],
            query={"host": given["host"], "port": given["port"]},
        )  # fmt: skip
        engine = create_async_engine(url, connect_args={"timeout": 30, "statement_cache_size": 0})
        async with engine.connect() as connection:
            await connection.exec_driver_sql("set search_path to other")
            await connection.commit()
            with pytest.raises(pgspate.UsageError, match="asyncpg does not show the role"):
                pgspate.load(ROWS, "things", to=connection)
        pgspate.load(ROWS, "things", to=engine)
        await engine.dispose()

    asyncio.run(load())
    assert places() == (1, 0)


def test_a_sync_within_needs_no_settings_of_asyncpg(dsn, db, places):
    db.execute("alter table public.things add primary key (id)")
    given = parameters(dsn)
    password = open(given["passfile"]).read().strip().rpartition(":")[2]
    url = sa.URL.create(
        "postgresql+asyncpg", "postgres", password, None, None, given["dbname"],
        query={"host": given["host"], "port": given["port"]},
    )  # fmt: skip

    def sync(session):
        return pgspate.sqlalchemy.sync(session, Thing, ROWS, scope="all", within=session)

    async def run(is_open, **options):
        engine = create_async_engine(url, connect_args=options)
        async with AsyncSession(engine) as session:
            if is_open:
                await session.execute(sa.text("select 1"))
            report = await session.run_sync(sync)
            await session.commit()
        await engine.dispose()
        return report.inserted

    settings = {"application_name": "mine", "search_path": "public"}
    assert asyncio.run(run(False, server_settings=settings)) == 1
    assert asyncio.run(run(True, server_settings=settings)) == 0
    with pytest.raises(pgspate.UsageError, match="`connect_args`"):
        asyncio.run(run(False, database="postgres"))
    assert places() == (1, 0)


def test_urls_of_sqlalchemy_may_have_parameters_of_its_dialects(dsn, places):
    given = parameters(dsn)
    password = open(given["passfile"]).read().strip().rpartition(":")[2]
    place = {"host": given["host"], "port": given["port"]}
    url = sa.URL.create(
        "postgresql+asyncpg", "postgres", password, None, None, given["dbname"],
        query={**place, "prepared_statement_cache_size": "0"},
    )  # fmt: skip
    pgspate.load(ROWS, "things", to=url.render_as_string(hide_password=False))
    pgspate.load(ROWS, "things", to=url)
    pgspate.load(ROWS, "things", to=create_async_engine(url))
    assert places() == (3, 0)


@pytest.mark.parametrize("module", [psycopg, psycopg2])
def test_the_styles_of_a_connection_are_followed(dsn, db, module):
    db.execute("create table stamps (at timestamptz, day date)")
    connection = module.connect(dsn)
    connection.cursor().execute("set timezone to 'Asia/Tokyo'; set datestyle to 'ISO, DMY'")
    connection.commit()
    pgspate.load([{"at": "2024-01-01 09:00", "day": "03/02/2024"}], "stamps", to=connection)
    found = db.execute("select at = '2024-01-01 00:00Z', day = '2024-02-03' from stamps")
    assert found.fetchone() == (True, True)
    db.execute("create role other_user")
    try:
        connection.cursor().execute("set session authorization other_user")
        connection.commit()
        with pytest.raises(pgspate.UsageError, match="session_user"):
            pgspate.load(ROWS, "stamps", to=connection)
    finally:
        connection.close()
        db.execute("drop role other_user")


def test_sessions_of_a_registry_are_followed(dsn, places):
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))
    sessions = scoped_session(sessionmaker(engine))
    pgspate.load(ROWS, "things", to=sessions)
    pgspate.sqlalchemy.load(sessions, Thing, ROWS)
    sessions.remove()
    engine.dispose()
    assert places() == (2, 0)

    async def load():
        engine = create_async_engine(dsn_url(dsn))
        maker = async_sessionmaker(engine)
        sessions = async_scoped_session(maker, scopefunc=asyncio.current_task)
        pgspate.load(ROWS, "things", to=sessions)
        await sessions.remove()
        async with AsyncSession(engine) as session, session.begin():
            pgspate.sqlalchemy.load(session, Thing, ROWS)
        await engine.dispose()

    asyncio.run(load())
    assert places() == (2, 0)


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
    values = polars.Series("b", [object(), {1}], dtype=polars.Object)
    for frame in (polars.DataFrame({"a": ["x", "y"]}).with_columns(values),):
        with pytest.raises(pgspate.Error, match='column "b" has the type Object') as refused:
            pgspate.load(frame, "t", to=dsn)
        assert refused.value.place.column == "b" and "map_elements" in refused.value.hint
    assert db.execute("select * from t").fetchall() == []
    frame = polars.DataFrame(
        {"a": ["Object"], "b": [{"Object": 1}]},
        schema_overrides={"a": polars.Enum(["Object"])},
    )
    db.execute("alter table t alter b type jsonb using b::jsonb")
    pgspate.load(frame, "t", to=dsn)
    assert db.execute("select * from t").fetchall() == [("Object", {"Object": 1})]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_transaction_with_changes_is_refused(dsn, db, driver):
    db.execute("create table things (id int primary key)")
    engine = sa.create_engine(f"postgresql+{driver}://", connect_args=parameters(dsn))
    calls = [(pgspate.sqlalchemy.load, {}), (pgspate.sqlalchemy.sync, {"no_delete": True})]
    with Session(engine) as session, engine.connect() as connection:
        for bind in (session, connection):
            # A transaction that only reads disturbs nothing.
            bind.execute(sa.text("select count(*) from things"))
            pgspate.sqlalchemy.load(bind, Thing, [{"id": 1 + (bind is session)}])
            bind.execute(sa.text("insert into things values (7)"))
            for call, options in calls:
                with pytest.raises(pgspate.UsageError, match="are not committed") as refused:
                    call(bind, Thing, [{"id": 7}], **options)
                assert "within=" in refused.value.hint
                call(bind, Thing, [{"id": 8}], within=bind, **options)
                bind.execute(sa.text("delete from things where id = 8"))
            bind.rollback()
    engine.dispose()
    assert db.execute("select id from things order by id").fetchall() == [(1,), (2,)]


def test_within_a_session_locks_and_checks_are_those_of_a_sync(dsn):
    """`lock_timeout=` counts, a shorter one of the session stays, and a check may find deletes."""
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))
    Base.metadata.create_all(engine)
    pgspate.sqlalchemy.load(engine, Thing, [{"id": 1}, {"id": 2}])
    with Session(engine) as session, psycopg.connect(dsn) as other:
        check = pgspate.sqlalchemy.sync(
            session, Thing, [{"id": 3}], scope="all", check=True, within=session
        )
        assert (check.inserted, check.deleted) == (1, 2)
        other.execute("select from things where id = 1 for update")
        for own, given in (("0", 1), ("200ms", 300)):
            session.execute(sa.text(f"set lock_timeout = '{own}'"))
            with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                pgspate.sqlalchemy.sync(
                    session, Thing, [{"id": 2}], scope="all", within=session, lock_timeout=given
                )
            assert session.scalar(sa.text("show lock_timeout")) == own
    engine.dispose()


def test_other_objects_than_those_of_sqlalchemy_are_refused(dsn):
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))
    with psycopg.connect(dsn) as connection, Session(engine) as session:
        for bind, within, expected in [
            (dsn, None, "`bind` is a URL"),
            (engine.url, None, "`bind` is a URL"),
            (connection, None, "`bind` is an object of psycopg"),
            (Thing, None, "`bind` is a model or a table"),
            (Thing.__table__, None, "`bind` is a model or a table"),
            (session, engine, "`within=` is an engine"),
            (session, connection, "`within` is an object of psycopg"),
        ]:
            with pytest.raises(pgspate.UsageError, match=expected) as refused:
                pgspate.sqlalchemy.load(bind, Thing, ROWS, within=within)
            assert within is None or "`to=`" not in refused.value.hint
    engine.dispose()


def test_only_one_server_is_named(dsn, places):
    engine = sa.create_engine("postgresql+psycopg://", connect_args=parameters(dsn))
    for call, options in [(pgspate.sqlalchemy.load, {}), (pgspate.sqlalchemy.sync, SCOPE)]:
        with pytest.raises(pgspate.UsageError, match="`to=` names one, too"):
            call(engine, Thing, ROWS, to=dsn, **options)
    engine.dispose()
    assert places() == (0, 0)
