"""Objects of SQLAlchemy that are stored already, and scopes that are expressions."""

from __future__ import annotations

import pathlib

import pytest

import pgspate

sa = pytest.importorskip("sqlalchemy")
pytest.importorskip("psycopg")

import pgspate.sqlalchemy  # noqa: E402
from sqlalchemy import orm  # noqa: E402
from sqlalchemy.dialects import postgresql  # noqa: E402


class Base(orm.DeclarativeBase):
    pass


class Site(Base):
    __tablename__ = "sites"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    city = orm.mapped_column(sa.Text)


class Meter(Base):
    __tablename__ = "meters"

    id = orm.mapped_column(sa.Integer, sa.Identity(), primary_key=True)
    site_id = orm.mapped_column(sa.ForeignKey("sites.id"))
    unit = orm.mapped_column(sa.Text)
    note = orm.mapped_column(sa.Text, deferred=True)
    site = orm.relationship(Site)


class OtherBase(orm.DeclarativeBase):
    pass


class Twin(OtherBase):
    __table__ = sa.Table("twins", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
                         sa.Column("city", sa.Text))


@pytest.fixture
def session(server, dsn):
    name = dsn.rsplit("dbname=", 1)[1].split()[0]
    url = server.url.rsplit("/", 1)[0] + "/" + name
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add_all([Site(id=1, city="Bern"), Site(id=2, city="Bonn")])
        session.flush()
        session.add_all([Meter(id=n, site_id=1, unit="kWh", note="kept") for n in (1, 2)])
        session.commit()
        yield session
    engine.dispose()


def stored(session):
    session.rollback()
    columns = [Meter.id, Meter.site_id, Meter.unit, Meter.note]
    return [tuple(row) for row in session.execute(sa.select(*columns).order_by(Meter.id))]


BERN = sa.select(Site.id).where(Site.city == "Bern")


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "scope",
    [
        Meter.site.has(Site.city == "Bern"),
        Meter.site_id.in_(BERN),
        Meter.site_id == BERN.scalar_subquery(),
        sa.exists().where(Site.id == Meter.site_id),
        sa.and_(Meter.id > 0, ~Meter.site_id.in_(BERN)),
    ],
)
def test_a_scope_with_a_subquery_is_refused(session, scope, within):
    before = stored(session)
    more = {"within": session} if within else {}
    with pytest.raises(pgspate.UsageError, match="`scope=` has a subquery") as caught:
        pgspate.sqlalchemy.sync(session, Meter, [], scope=scope, **more)
    assert "in_" in caught.value.hint
    assert stored(session) == before
    ids = session.scalars(BERN).all()
    rows = [{"id": 1, "site_id": 1, "unit": "MWh"}]
    report = pgspate.sqlalchemy.sync(session, Meter, rows, scope=Meter.site_id.in_(ids),
                                     max_delete="50%", **more)
    assert (report.updated, report.deleted) == (1, 1)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "scope",
    [
        Site.id == 1,
        orm.aliased(Meter).id == 1,
        sa.and_(Meter.site_id == Site.id, Meter.id > 0),
    ],
)
def test_a_scope_over_another_table_is_refused(session, scope, within):
    before = stored(session)
    more = {"within": session} if within else {}
    with pytest.raises(pgspate.UsageError, match="`scope=` has columns of another table"):
        pgspate.sqlalchemy.sync(session, Meter, [], scope=scope, allow_empty=True,
                                max_delete="100%", **more)
    assert stored(session) == before


class Tagged(Base):
    __tablename__ = "tagged"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    tags = orm.mapped_column(postgresql.ARRAY(sa.String(9)))


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "scope", [Tagged.tags == ["a", "b"], Tagged.tags == [], Tagged.tags.contains(["a"])]
)
def test_a_scope_compares_arrays_as_their_type(session, scope, within):
    session.add_all([Tagged(id=1, tags=["a", "b"]), Tagged(id=2, tags=[])])
    session.commit()
    in_scope = session.scalars(sa.select(Tagged.id).where(scope)).all()
    more = {"within": session} if within else {}
    report = pgspate.sqlalchemy.sync(session, Tagged, [], scope=scope, allow_empty=True, **more)
    assert report.deleted == len(in_scope) == 1
    session.commit()
    assert set(session.scalars(sa.select(Tagged.id))) == {1, 2} - set(in_scope)


@pytest.mark.parametrize("form", [list, iter])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("left_out", ["deferred", "load_only", "expired", "one expired"])
def test_attributes_that_are_not_loaded_are_read(session, left_out, within, form):
    before = stored(session)
    query = sa.select(Meter)
    if left_out == "load_only":
        query = query.options(orm.load_only(Meter.id))
    meters = session.scalars(query).all()
    if left_out == "expired":
        session.expire_all()
    if left_out == "one expired":
        session.expire(meters[1], ["unit"])
    more = {"within": session} if within else {}
    report = pgspate.sqlalchemy.sync(session, Meter, form(meters), scope="all", **more)
    assert report.unchanged == 2
    session.commit()
    assert stored(session) == before


@pytest.mark.parametrize("form", [list, iter])
def test_a_detached_object_without_all_values_is_refused(session, form):
    before = stored(session)
    meters = session.scalars(sa.select(Meter)).all()
    session.expunge_all()
    with pytest.raises(pgspate.UsageError, match="values that were not selected"):
        pgspate.sqlalchemy.sync(session, Meter, form(meters), scope="all")
    assert stored(session) == before
    meters = session.scalars(sa.select(Meter).options(orm.undefer(Meter.note))).all()
    session.expunge_all()
    assert pgspate.sqlalchemy.sync(session, Meter, form(meters), scope="all").unchanged == 2


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("form", [list, iter])
def test_none_of_json_stays_as_it_was_loaded(session, within, form):
    class JsonBase(orm.DeclarativeBase):
        pass

    class Doc(JsonBase):
        __tablename__ = "docs"
        id = orm.mapped_column(sa.Integer, primary_key=True)
        j = orm.mapped_column(sa.JSON)

    JsonBase.metadata.create_all(session.connection())
    session.add_all([Doc(id=1), Doc(id=2, j={"a": 1}), Doc(id=3)])
    session.commit()
    docs = session.scalars(sa.select(Doc).order_by(Doc.id)).all()
    more = {"within": session} if within else {}
    report = pgspate.sqlalchemy.sync(session, Doc, form(docs), scope="all", **more)
    assert report.unchanged == 3
    # A pending change to None is the null of JSON, as a session writes it. A flush ends it.
    docs[1].j = None
    if not within:
        session.expunge_all()
    pgspate.sqlalchemy.sync(session, Doc, form(docs), scope="all", **more)
    session.commit()
    texts = session.execute(sa.text("select j::text from docs order by id")).scalars().all()
    assert texts == [None, None if within else "null", None]


def test_a_sync_reads_objects_after_the_flush_that_gives_them_keys(session):
    meters = [Meter(site=Site(id=3 + n, city="Basel"), unit="kWh") for n in range(2)]
    session.execute(sa.text("select setval(pg_get_serial_sequence('meters', 'id'), 7)"))
    session.add_all(meters)
    session.flush()
    meters += [Meter(site_id=2, unit="l")]
    session.add(meters[-1])
    report = pgspate.sqlalchemy.sync(session, Meter, meters, scope=Meter.site_id > 1,
                                     within=session)
    assert report.unchanged == 3
    session.commit()
    assert [row[:3] for row in stored(session)][2:] == [(8, 3, "kWh"), (9, 4, "kWh"), (10, 2, "l")]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("form", [list, iter])
def test_objects_of_another_table_are_refused(session, within, form):
    more = {"within": session} if within else {}
    for call, scope in ((pgspate.sqlalchemy.load, {}), (pgspate.sqlalchemy.sync, {"scope": "all"})):
        with pytest.raises(pgspate.UsageError, match="class Twin is no row of sites"):
            call(session, Site, form([Site(id=8), Twin(id=9, city="x")]), **scope, **more)
    rows = [Meter(site=Site(id=3)), Twin(id=9, city="x")]
    with pytest.raises(pgspate.UsageError, match="class Twin is no row of meters"):
        pgspate.sqlalchemy.load(session, Meter, rows, within=session)
    session.rollback()
    assert session.scalar(sa.select(sa.func.count()).select_from(Site)) == 2


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("rows", [[Meter(), Meter()], [{}]])
def test_rows_without_values_are_refused(session, within, rows):
    more = {"within": session} if within else {}
    with pytest.raises(pgspate.UsageError, match="the rows have no values"):
        pgspate.sqlalchemy.load(session, Meter, rows, **more)


KEEP_OUT = """
create function keep_out() returns trigger language plpgsql as $$
begin
    if new.unit = 'bad' then return null; end if;
    return new;
end $$;
create trigger keep_out before insert or update on meters
    for each row execute function keep_out();
"""


def test_rows_that_triggers_keep_out_are_not_counted(session):
    session.execute(sa.text(KEEP_OUT))
    session.commit()
    units = ["kWh", "bad", "bad"]
    rows = [{"id": 10 + nth, "unit": unit} for nth, unit in enumerate(units)]
    report = pgspate.sqlalchemy.load(session, Meter, rows, within=session)
    assert (report.rows_in, report.rows_written) == (3, 1)
    meters = [Meter(id=20 + nth, unit=units[nth], site=Site(id=5 + nth)) for nth in range(3)]
    report = pgspate.sqlalchemy.load(session, Meter, meters, within=session)
    assert (report.rows_in, report.rows_written) == (3, 1)
    session.commit()
    with pytest.raises(pgspate.ServerError, match="0 of 1 row could be updated") as caught:
        pgspate.sqlalchemy.sync(session, Meter, [{"id": 1, "unit": "bad"}], no_delete=True,
                                within=session)
    # Another attempt has the same result.
    assert caught.value.sqlstate is None and not caught.value.is_retryable
    assert "trigger" in caught.value.hint


class Box(Base):
    __tablename__ = "boxes"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    width = orm.mapped_column(sa.Integer)
    twice = orm.column_property(width * 2)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("form", [list, iter])
def test_an_attribute_that_is_an_expression_is_not_written(session, within, form):
    more = {"within": session} if within else {}
    pgspate.sqlalchemy.load(session, Box, form([Box(id=1, width=2)]), **more)
    session.commit()
    boxes = session.scalars(sa.select(Box)).all()
    assert boxes[0].twice == 4
    boxes[0].width = 3
    report = pgspate.sqlalchemy.sync(session, Box, form(boxes), scope="all", **more)
    assert report.updated + report.unchanged == 1
    session.commit()
    session.expire_all()
    assert boxes[0].twice == 6


def test_columns_and_sessions_of_asyncio_are_refused(session):
    asynchronous = type("AsyncSession", (), {"sync_session": session})()
    with pytest.raises(pgspate.UsageError, match="must be awaited"):
        pgspate.sqlalchemy.load(session, Site, [{"id": 7}], within=asynchronous)
    with pytest.raises(pgspate.UsageError, match="must be awaited"):
        pgspate.sqlalchemy.sync(session, Site, [{"id": 7}], scope="all", within=asynchronous)
    with pytest.raises(pgspate.UsageError, match="those of the model"):
        pgspate.sqlalchemy.load(session, Site, [{"id": 7}], columns=["id"])


def test_results_of_queries_and_frames_are_no_rows_of_a_model(session):
    pandas = pytest.importorskip("pandas")
    mappings = session.execute(sa.select(Site.id, Site.city)).mappings().all()
    frame = pandas.DataFrame({"id": [7]})
    for rows in (mappings, [frame]):
        with pytest.raises(pgspate.UsageError, match="neither a dict nor a mapped object"):
            pgspate.sqlalchemy.load(session, Site, rows)
    for rows in (frame, "sites.csv", pathlib.Path("sites.csv")):
        with pytest.raises(pgspate.UsageError, match="an object of class") as caught:
            pgspate.sqlalchemy.sync(session, Site, rows, scope="all")
        assert "`pgspate.load`" in caught.value.hint
