"""Objects of SQLAlchemy with relationships: related objects are saved or refused."""

from __future__ import annotations

import uuid

import pytest

import pgspate

sa = pytest.importorskip("sqlalchemy")
pytest.importorskip("psycopg")

import pgspate.sqlalchemy  # noqa: E402
from sqlalchemy import orm  # noqa: E402


class Base(orm.DeclarativeBase):
    pass


labels = sa.Table(
    "labels_of_authors", Base.metadata,
    sa.Column("author", sa.ForeignKey("authors.id")),
    sa.Column("label", sa.ForeignKey("labels.id")),
)


class Author(Base):
    __tablename__ = "authors"

    id = orm.mapped_column(sa.Integer, primary_key=True)
    name = orm.mapped_column(sa.Text)
    books = orm.relationship("Book", back_populates="author")
    labels = orm.relationship("Label", secondary=labels)


class Book(Base):
    __tablename__ = "books"

    id = orm.mapped_column(sa.Uuid, primary_key=True, server_default=sa.text("gen_random_uuid()"))
    title = orm.mapped_column(sa.Text)
    author_id = orm.mapped_column("author", sa.ForeignKey("authors.id"), nullable=False)
    author = orm.relationship("Author", back_populates="books")
    pages = orm.relationship("Page", collection_class=set)


class Page(Base):
    __tablename__ = "pages"

    id = orm.mapped_column(sa.Integer, sa.Identity(always=True), primary_key=True)
    book_id = orm.mapped_column(sa.ForeignKey("books.id"))
    number = orm.mapped_column(sa.Integer)


class Label(Base):
    __tablename__ = "labels"

    id = orm.mapped_column(sa.Integer, primary_key=True)


class Node(Base):
    __tablename__ = "nodes"

    id = orm.mapped_column(sa.Uuid, primary_key=True, default=uuid.uuid4)
    name = orm.mapped_column(sa.Text)
    parent_id = orm.mapped_column(sa.ForeignKey("nodes.id"))
    children = orm.relationship("Node", backref=orm.backref("parent", remote_side=id))


@pytest.fixture
def session(server, dsn):
    name = dsn.rsplit("dbname=", 1)[1].split()[0]
    url = server.url.rsplit("/", 1)[0] + "/" + name
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        yield session
    engine.dispose()


def library():
    books = [Book(title="A", pages={Page(number=1), Page(number=2)}), Book(title="B")]
    return [Author(name="Ada", books=books), Author(name="Bob"), Author(id=70, name="Cy")]


def test_children_are_saved_with_the_keys_that_the_server_gives_their_parents(session):
    authors = library()
    report = pgspate.sqlalchemy.load(session, Author, authors, within=session)
    assert report.rows_written == 3
    assert report.related == [{"table": "books", "rows": 2}, {"table": "pages", "rows": 2}]
    session.commit()
    found = session.scalars(sa.select(Author).order_by(Author.id)).all()
    assert [(one.name, sorted(book.title for book in one.books)) for one in found] == [
        ("Ada", ["A", "B"]), ("Bob", []), ("Cy", [])
    ]
    numbers = {page.number for book in found[0].books for page in book.pages}
    assert numbers == {1, 2}
    assert [one.id for one in authors] == [one.id for one in found] and authors[2].id == 70
    # The sequence has passed the keys that were given.
    session.add(Author(name="Dee"))
    session.commit()


def test_parents_are_saved_before_the_rows_that_refer_to_them(session):
    author = Author(name="Ada")
    books = [Book(title=title, author=author) for title in "AB"]
    report = pgspate.sqlalchemy.load(session, Book, books, within=session)
    assert report.rows_written == 2 and report.related == [{"table": "authors", "rows": 1}]
    assert session.scalar(sa.select(sa.func.count(sa.distinct(Book.author_id)))) == 1


def test_a_tree_of_one_table_is_saved(session):
    root = Node(name="root", children=[Node(name="a", children=[Node(name="b")]), Node(name="c")])
    assert pgspate.sqlalchemy.load(session, Node, [root], within=session).rows_written == 4
    session.commit()
    parents = {node.name: node.parent and node.parent.name
               for node in session.scalars(sa.select(Node))}
    assert parents == {"root": None, "a": "root", "b": "a", "c": "root"}


def test_related_objects_are_part_of_the_transaction(session):
    pgspate.sqlalchemy.load(session, Author, library(), within=session)
    session.rollback()
    for cls in (Author, Book, Page):
        assert session.scalar(sa.select(sa.func.count()).select_from(cls)) == 0
    with pytest.raises(Exception, match="Key|key"):
        bad = Author(id=1, books=[Book(id=uuid.UUID(int=1)), Book(id=uuid.UUID(int=1))])
        pgspate.sqlalchemy.load(session, Author, [bad], within=session)
    session.rollback()
    assert session.scalar(sa.select(sa.func.count()).select_from(Author)) == 0


@pytest.mark.parametrize("kind", [list, iter])
def test_children_are_refused_where_they_cannot_be_saved(session, kind):
    with pytest.raises(pgspate.UsageError, match="Author has a related Book") as caught:
        pgspate.sqlalchemy.load(session, Author, kind(library()))
    assert "within=session" in caught.value.hint
    with pytest.raises(pgspate.UsageError, match="Author has a related Book"):
        pgspate.sqlalchemy.sync(session, Author, kind(library()), scope="all")
    with pytest.raises(pgspate.UsageError, match="Author has a related Book"):
        pgspate.sqlalchemy.sync(session, Author, kind(library()), scope="all", within=session)
    with pytest.raises(pgspate.UsageError, match="Book has a related Author"):
        pgspate.sqlalchemy.load(session, Book, kind([Book(author=Author(name="x"))]))
    if kind is iter:
        with pytest.raises(pgspate.UsageError, match="Author has a related Book") as caught:
            pgspate.sqlalchemy.load(session, Author, kind(library()), within=session)
        assert "Pass a list" in caught.value.hint
    assert session.scalar(sa.select(sa.func.count()).select_from(Author)) == 0


@pytest.mark.parametrize("within", [False, True])
def test_a_many_to_many_relationship_is_refused(session, within):
    more = {"within": session} if within else {}
    with pytest.raises(pgspate.UsageError, match="Author.labels is a many-to-many"):
        rows = [Author(id=1, labels=[Label(id=2)])]
        pgspate.sqlalchemy.load(session, Author, rows, **more)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("kind", [list, iter])
def test_a_foreign_key_gets_the_key_of_a_stored_object(session, within, kind):
    author = Author(name="Ada")
    session.add(author)
    session.commit()
    assert author.id
    session.expunge_all()
    books = [Book(title="A", author=author)]
    more = {"within": session} if within else {}
    assert pgspate.sqlalchemy.load(session, Book, kind(books), **more).rows_written == 1
    session.commit()
    assert session.scalar(sa.select(sa.func.count()).select_from(Book).join(Author)) == 1


def test_objects_without_related_objects_are_loaded_over_several_connections(session):
    report = pgspate.sqlalchemy.load(session, Author, [Author(name="Ada"), Author(name="Bob")])
    assert report.rows_written == 2 and report.lanes >= 1
    # A stored object and its stored children are rows of their own.
    stored = session.scalars(sa.select(Author).options(orm.selectinload(Author.books))).all()
    for one in stored:
        one.id += 100
        session.expunge(one)
    assert pgspate.sqlalchemy.load(session, Author, stored).rows_written == 2


@pytest.mark.filterwarnings("error::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("call", ["load", "sync"])
def test_the_key_of_a_stored_object_is_read_again_without_a_warning(session, call):
    author = Author(name="Ada")
    session.add(author)
    # The commit expires the author, so that its key is read from the database.
    session.commit()
    books = [Book(id=uuid.UUID(int=1), title="A", author=author)]
    if call == "load":
        assert pgspate.sqlalchemy.load(session, Book, books).rows_written == 1
    else:
        assert pgspate.sqlalchemy.sync(session, Book, books, scope="all").inserted == 1


@pytest.mark.filterwarnings("error::sqlalchemy.exc.SAWarning")
def test_children_of_a_stored_object_are_saved_once_and_without_a_warning(session):
    author = Author(name="Ada")
    session.add(author)
    session.commit()
    # The reference adds the book to `author.books`, but not to the session.
    books = [Book(title="A", author=author)]
    assert pgspate.sqlalchemy.load(session, Book, books, within=session).rows_written == 1
    session.commit()
    # A book that is added to the collection is in the session, which would save it, too.
    author.books.append(Book(title="B"))
    with pytest.raises(pgspate.UsageError, match="Book is in the session already"):
        pgspate.sqlalchemy.load(session, Book, author.books, within=session)
    session.commit()
    assert session.scalar(sa.select(sa.func.count()).select_from(Book)) == 2


def test_children_are_saved_in_the_order_of_their_parents(session):
    authors = [
        Author(id=nth, books=[Book(title=f"{nth}.{book}") for book in range(5)]) for nth in (1, 2)
    ]
    pgspate.sqlalchemy.load(session, Author, authors, within=session)
    titles = list(session.scalars(sa.text("select title from books order by ctid")))
    assert titles == [f"{nth}.{book}" for nth in (1, 2) for book in range(5)]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("kind", [list, iter])
def test_a_relationship_that_was_set_to_none_clears_the_foreign_key(session, within, kind):
    roots = [Node(id=uuid.UUID(int=nth), name="root") for nth in range(2)]
    session.add_all(roots)
    session.flush()
    nodes = [Node(id=uuid.UUID(int=5 + nth), parent=roots[0]) for nth in range(2)]
    session.add_all(nodes)
    session.commit()
    more = {"within": session} if within else {}
    for node in nodes:
        session.refresh(node)
        node.name = "free"
        session.expunge(node)
        node.parent = None
    report = pgspate.sqlalchemy.sync(session, Node, kind(nodes), no_delete=True, **more)
    assert report.updated == 2
    session.commit()
    # A session stores the same for a new object.
    both = [Node(id=uuid.UUID(int=nth), parent_id=roots[0].id, parent=None) for nth in (8, 9)]
    pgspate.sqlalchemy.load(session, Node, kind(both[:1]), **more)
    session.add(both[1])
    session.commit()
    assert session.scalar(sa.select(sa.func.count(Node.parent_id))) == 0


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("kind", [list, iter])
def test_a_stored_child_of_a_new_parent_is_refused(session, within, kind):
    session.add(Author(id=1, books=[Book(title="A")]))
    session.commit()
    book = session.scalars(sa.select(Book)).one()
    more = {"within": session} if within else {}
    with pytest.raises(pgspate.UsageError, match="Author.books has a stored Book"):
        pgspate.sqlalchemy.load(session, Author, kind([Author(id=2, books=[book])]), **more)
    session.rollback()
    assert session.scalar(sa.select(sa.func.max(Author.id))) == 1
