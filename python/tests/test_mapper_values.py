"""The values that a mapper writes by itself: the class of a row, and its version."""

from __future__ import annotations

import pytest

import pgspate

sa = pytest.importorskip("sqlalchemy")
pytest.importorskip("psycopg")

import pgspate.sqlalchemy  # noqa: E402
from sqlalchemy import orm  # noqa: E402


class Base(orm.DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "docs"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    kind = orm.mapped_column("class", sa.Text)
    ver = orm.mapped_column("version", sa.Integer)
    text = orm.mapped_column(sa.Text)
    __mapper_args__ = {"polymorphic_on": kind, "polymorphic_identity": "doc",
                       "version_id_col": ver}


class Pdf(Doc):
    pages = orm.mapped_column(sa.Integer)
    __mapper_args__ = {"polymorphic_identity": "pdf"}


class Note(Base):
    __tablename__ = "notes"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    ver = orm.mapped_column(sa.Integer, server_default="1")
    text = orm.mapped_column(sa.Text)
    __mapper_args__ = {"version_id_col": ver}


class Task(Base):
    __tablename__ = "tasks"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    text = orm.mapped_column(sa.Text)
    edits = orm.mapped_column(sa.Integer, onupdate=7)


class Sheet(Base):
    __tablename__ = "sheets"

    id = orm.mapped_column(sa.Integer, primary_key=True)


class Draft(Sheet):
    __tablename__ = "drafts"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    text = orm.mapped_column(sa.Text)
    __mapper_args__ = {"concrete": True}


class Page(Base):
    __tablename__ = "pages"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    kind = orm.mapped_column(sa.Text)
    __mapper_args__ = {"polymorphic_on": kind, "polymorphic_identity": "page"}


class Chart(Page):
    __tablename__ = "charts"

    id = orm.mapped_column(sa.ForeignKey("pages.id"), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "chart"}


class BarChart(Chart):
    __mapper_args__ = {"polymorphic_identity": "bars"}


@pytest.fixture
def session(server, dsn):
    name = dsn.rsplit("dbname=", 1)[1].split()[0]
    url = server.url.rsplit("/", 1)[0] + "/" + name
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        yield session
    engine.dispose()


def load(session, model, rows, is_within):
    within = {"within": session} if is_within else {}
    pgspate.sqlalchemy.load(session, model, rows, **within)
    session.commit()


def docs(session):
    found = session.execute(sa.select(Doc.__table__).order_by(Doc.__table__.c.id)).all()
    session.rollback()
    return [tuple(row) for row in found]


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("kind", [list, iter])
def test_dicts_and_objects_get_their_class_and_the_first_version(session, kind, is_within):
    rows = [Doc(id=1, text="a"), Doc(id=2, text="b")]
    load(session, Doc, kind(rows), is_within)
    load(session, Doc, kind([{"id": 3}, {"id": 4, "ver": None}]), is_within)
    load(session, Doc, kind([{"id": 5, "kind": "pdf", "ver": 7}]), is_within)
    # What SQLAlchemy writes by itself.
    session.add(Doc(id=6))
    session.commit()
    assert [row[1:3] for row in docs(session)] == [
        ("doc", 1), ("doc", 1), ("doc", 1), ("doc", 1), ("pdf", 7), ("doc", 1),
    ]
    doc = session.get(Doc, 3)
    doc.text = "changed"
    session.commit()
    assert docs(session)[2] == (3, "doc", 2, "changed", None)


@pytest.mark.parametrize("is_within", [False, True])
def test_a_subclass_in_the_same_table_is_loaded(session, is_within):
    load(session, Pdf, [Pdf(id=1, text="a", pages=3)], is_within)
    load(session, Pdf, [{"id": 2, "pages": 4}], is_within)
    assert docs(session) == [(1, "pdf", 1, "a", 3), (2, "pdf", 1, None, 4)]
    assert [type(doc) for doc in session.scalars(sa.select(Doc))] == [Pdf, Pdf]


def test_a_subclass_does_not_change_rows_of_other_classes(session):
    load(session, Doc, [{"id": 1}], False)
    with pytest.raises(pgspate.UsageError, match="Pdf shares its table with class Doc"):
        pgspate.sqlalchemy.sync(session, Pdf, [Pdf(id=2, ver=1)])
    with pytest.raises(pgspate.UsageError, match="Pdf shares its table with class Doc"):
        pgspate.sqlalchemy.load(session, Pdf, [Pdf(id=2)], replace=True)
    assert docs(session) == [(1, "doc", 1, None, None)]


def test_objects_of_a_subclass_are_refused_if_the_model_lacks_an_attribute(session):
    for rows in ([Doc(id=1), Pdf(id=2, pages=3)], iter([Doc(id=1), Pdf(id=2, pages=3)])):
        with pytest.raises(pgspate.UsageError, match='class Pdf has "pages"') as error:
            load(session, Doc, rows, False)
        assert "their own call" in str(error.value)
    assert docs(session) == []


@pytest.mark.parametrize("is_within", [False, True])
def test_a_concrete_subclass_has_its_own_table(session, is_within):
    load(session, Draft, [Draft(id=1, text="a")], is_within)
    assert session.execute(sa.text("select * from drafts")).all() == [(1, "a")]
    assert session.execute(sa.text("select * from sheets")).all() == []


@pytest.mark.parametrize("model", [Chart, BarChart])
def test_a_subclass_of_two_tables_is_refused(session, model):
    with pytest.raises(pgspate.UsageError, match="is not mapped to one table"):
        pgspate.sqlalchemy.load(session, model, [model(id=1)])


@pytest.mark.parametrize("is_within", [False, True])
def test_a_sync_neither_resets_versions_nor_changes_classes(session, is_within):
    within = {"within": session} if is_within else {}
    load(session, Doc, [{"id": 1, "ver": 5, "kind": "pdf"}], False)
    for rows, message in [([Doc(id=1)], 'a row has no "ver"'),
                          ([Doc(id=1, ver=5), Doc(id=2)], 'a row has no "ver"'),
                          ([{"id": 1, "ver": 5}], 'a row has no "kind"')]:
        with pytest.raises(pgspate.UsageError, match=message):
            pgspate.sqlalchemy.sync(session, Doc, rows, no_delete=True, **within)
        session.rollback()
    rows = [{"id": 1, "ver": 6, "kind": "pdf"}, {"id": 2, "ver": 1, "kind": "doc"}]
    pgspate.sqlalchemy.sync(session, Doc, rows, no_delete=True, **within)
    pgspate.sqlalchemy.sync(session, Doc, [{"id": 1}, {"id": 3}], insert_only=True, **within)
    session.commit()
    assert [row[:3] for row in docs(session)] == [(1, "pdf", 6), (2, "doc", 1), (3, "doc", 1)]


def test_a_sync_leaves_versions_to_the_table(session):
    load(session, Note, [{"id": 1, "ver": 5}], False)
    pgspate.sqlalchemy.sync(session, Note, [Note(id=1, text="a"), Note(id=2)], no_delete=True)
    with pytest.raises(pgspate.UsageError, match='a row has no "ver"'):
        pgspate.sqlalchemy.sync(session, Note, [Note(id=1, ver=5), Note(id=2)], no_delete=True)
    found = session.execute(sa.select(Note.id, Note.ver, Note.text).order_by(Note.id)).all()
    assert [tuple(row) for row in found] == [(1, 5, "a"), (2, 1, None)]


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("model", [Task, Task.__table__])
def test_a_sync_does_not_leave_out_an_update_of_the_model(session, model, is_within):
    within = {"within": session} if is_within else {}
    load(session, Task, [{"id": 1, "text": "a", "edits": 1}], False)
    for rows in ([{"id": 1, "text": "b"}], [{"id": 1, "text": "b"}, {"id": 2, "edits": 1}]):
        with pytest.raises(pgspate.UsageError, match='a row has no "edits"') as refused:
            pgspate.sqlalchemy.sync(session, model, rows, no_delete=True, **within)
        assert "ignore_columns=" in refused.value.hint
        session.rollback()
    rows = [{"id": 1, "text": "a", "edits": 7}, {"id": 2, "text": "b", "edits": 7}]
    report = pgspate.sqlalchemy.sync(session, model, rows, no_delete=True,
                                     ignore_columns="edits", **within)
    assert (report.inserted, report.updated, report.unchanged) == (1, 0, 1)
    pgspate.sqlalchemy.sync(session, model, [{"id": 3}], insert_only=True, **within)
    session.commit()
    found = session.execute(sa.select(Task.__table__).order_by(Task.id)).all()
    assert [tuple(row) for row in found] == [(1, "a", 1), (2, "b", 7), (3, None, None)]
