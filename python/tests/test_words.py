"""Modes, words of other libraries, types and keys of new tables, and what `to=` takes."""

from __future__ import annotations

import inspect
import pydoc

import psycopg
import pytest

import pgspate


def stored(db, sql="select * from t order by 1"):
    return db.execute(sql).fetchall()


def test_the_mode_of_write_chooses_the_verb(db, dsn):
    write = lambda rows, **options: pgspate.write(rows, "t", to=dsn, **options)
    write([{"id": 1}], create=True)
    write([{"id": 2}], mode="append")
    assert stored(db) == [(1,), (2,)]
    write([{"id": 3}, {"id": 4}], mode="replace")
    assert stored(db) == [(3,), (4,)]
    report = write([{"id": 4}, {"id": 5}], mode="sync", key="id", scope="all")
    assert (report.inserted, report.deleted, report.unchanged) == (1, 1, 1)
    assert stored(db) == [(4,), (5,)]
    for mode, hint in {"overwrite": "replace", "upsert": "no_delete=True", "x": "append"}.items():
        with pytest.raises(pgspate.UsageError, match=f'no mode "{mode}"') as caught:
            write([{"id": 1}], mode=mode)
        assert hint in caught.value.hint
    with pytest.raises(pgspate.UsageError, match="exclude each other"):
        write([{"id": 1}], mode="append", replace=True)
    with pytest.raises(pgspate.UsageError, match="no scope is given"):
        write([{"id": 1}], mode="sync")


@pytest.mark.parametrize("word, hint", [
    ("if_exists", "replace=True"), ("if_table_exists", "replace=True"), ("con", "`to=`"),
    ("dtype", "types="), ("schema", '"schema.table"'), ("chunksize", "Leave it out"),
])
def test_words_of_other_libraries_are_explained(dsn, word, hint):
    for call in (pgspate.load, pgspate.plan, pgspate.sync, pgspate.write):
        with pytest.raises(pgspate.UsageError, match=f"no option `{word}=`") as caught:
            call([{"a": 1}], "t", to=dsn, **{word: "replace"})
        assert hint in caught.value.hint
    with pytest.raises(TypeError, match="nonsense"):
        pgspate.load([{"a": 1}], "t", to=dsn, nonsense=1)


def test_a_new_table_gets_the_types_and_the_key(db, dsn):
    rows = [{"id": 1, "Price": "1.5"}]
    pgspate.load(rows, "t", create=True, types={"id": "int", "price": "numeric(10,2)"},
                 primary_key="id", to=dsn)
    assert stored(db, "select pg_typeof(id)::text, \"Price\"::text from t") == [("integer", "1.50")]
    with pytest.raises(pgspate.ServerError) as caught:
        pgspate.load(rows, "t", to=dsn)
    assert caught.value.sqlstate == "23505"
    with pytest.raises(pgspate.UsageError, match="`types=` names") as caught:
        pgspate.load(rows, "other", create=True, types={"prize": "int"}, to=dsn)
    assert "Did you mean" in caught.value.hint


def test_a_sync_creates_the_table(db, dsn):
    rows = [{"OrderId": 1, "n": 5}]
    options = {"key": "order_id", "scope": "all", "snake_case": True, "create": True, "to": dsn}
    report = pgspate.sync(rows, "t", **options)
    assert report.created and report.inserted == 1
    report = pgspate.sync(rows, "t", **options)
    assert not report.created and report.unchanged == 1
    with pytest.raises(pgspate.Error):
        pgspate.sync(rows * 2, "other", **options)
    assert stored(db, "select to_regclass('other')") == [(None,)]


def test_a_connection_of_psycopg_names_the_server(db, dsn):
    db.execute("create table t (a int)")
    pgspate.load([(1,)], "t", to=db)
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1")
        with pytest.raises(pgspate.UsageError, match="open transaction") as caught:
            pgspate.load([(2,)], "t", to=connection)
        assert "Commit or roll back" in caught.value.hint
        # Calls of `pgspate.sqlalchemy` refuse a connection of psycopg, too.
        assert "within=" not in caught.value.hint
        connection.commit()
        pgspate.load([(3,)], "t", to=connection)
    assert stored(db) == [(1,), (3,)]


def test_a_connection_of_psycopg2_names_the_server(db, dsn):
    psycopg2 = pytest.importorskip("psycopg2")
    db.execute("create table t (a int)")
    connection = psycopg2.connect(dsn)
    pgspate.load([(1,)], "t", to=connection)
    connection.cursor().execute("select 1")
    with pytest.raises(pgspate.UsageError, match="open transaction"):
        pgspate.load([(2,)], "t", to=connection)
    connection.close()
    assert stored(db) == [(1,)]


def test_the_password_of_a_connection_is_used(db, server, dsn):
    db.execute("create table t (a int); create role keeper login password 'a b''\\c'; "
               "grant all on t to keeper; alter role keeper in database "
               f"{db.info.dbname} set search_path = public")
    db.execute(f"grant create on database {db.info.dbname} to keeper")
    try:
        url = psycopg.conninfo.conninfo_to_dict(server.url)
        info = psycopg.conninfo.make_conninfo(
            **{**url, "dbname": db.info.dbname, "user": "keeper", "password": "a b'\\c"}
        )
        with psycopg.connect(info, autocommit=True) as connection:
            pgspate.load([(1,)], "t", to=connection)
        assert stored(db) == [(1,)]
    finally:
        db.execute("drop owned by keeper cascade; drop role keeper")


def test_a_lazy_frame_is_told_to_collect(dsn):
    polars = pytest.importorskip("polars")
    with pytest.raises(pgspate.UsageError, match="LazyFrame") as caught:
        pgspate.load(polars.LazyFrame({"a": [1]}), "t", to=dsn)
    assert ".collect()" in caught.value.hint


def test_a_decimal_of_polars_becomes_numeric_without_precision(db, dsn):
    from decimal import Decimal

    polars = pytest.importorskip("polars")
    pgspate.load(polars.DataFrame({"a": [Decimal("1.5")]}), "t", create=True, to=dsn)
    pgspate.load([(Decimal("1.23456"),)], "t", to=dsn)
    assert stored(db, "select a::text from t order by a") == [("1.23456",), ("1.5",)]


def test_help_groups_the_options():
    for call in (pgspate.load, pgspate.sync):
        text = pydoc.render_doc(call, renderer=pydoc.plaintext)
        places = [text.index(f"\n    {head}:\n") for head in ("Args", "Safety", "Reading")]
        assert places == sorted(places)
        assert "lanes" in inspect.signature(call).parameters


def test_settings_need_a_temporary_server():
    with pytest.raises(pgspate.UsageError, match="needs a temporary server"):
        pgspate.server(settings={"fsync": "off"})
