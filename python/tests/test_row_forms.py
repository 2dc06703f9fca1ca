"""Data that looks like rows, such as open files, and tables that are no names."""

from __future__ import annotations

import gzip
import io

import pytest

import pgspate
import pgspate.aio


def stored(db, sql="select * from t order by 1"):
    return db.execute(sql).fetchall()


def open_files(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,b\n1,2\n")
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    return [path.open("rb"), path.open(), gzip.open(packed), io.BytesIO(b"a,b\n1,2\n"),
            io.StringIO("a,b\n1,2\n")]


def test_an_open_file_is_refused_and_changes_nothing(db, dsn, tmp_path):
    db.execute("create table t (a int, b int)")
    db.execute("insert into t values (1, 2)")
    for file in open_files(tmp_path):
        for call in [
            lambda file: pgspate.load(file, "t", to=dsn),
            lambda file: pgspate.load(file, "new", create=True, to=dsn),
            lambda file: pgspate.sync(file, "t", key="a", scope="all", to=dsn),
            lambda file: pgspate.write(file, "t", mode="replace", to=dsn),
            lambda file: pgspate.plan(file, "t", to=dsn),
        ]:
            with pytest.raises(pgspate.UsageError, match="is an open file") as caught:
                call(file)
            assert "Give the path of the file." in caught.value.hint
        file.close()
    assert stored(db) == [(1, 2)]
    assert stored(db, "select to_regclass('new')") == [(None,)]


def test_memory_is_no_rows(dsn):
    for data in [b"ab", bytearray(b"ab"), memoryview(b"ab")]:
        with pytest.raises(pgspate.UsageError, match="cannot be loaded"):
            pgspate.load(data, "t", create=True, to=dsn)


def test_a_table_that_is_no_name_is_refused(dsn):
    for call in [
        lambda: pgspate.load([(1,)], object(), to=dsn),
        lambda: pgspate.sync([(1,)], object(), to=dsn, scope="all"),
        lambda: pgspate.plan([(1,)], object(), to=dsn),
        lambda: pgspate.Writer(object(), to=dsn),
        lambda: pgspate.aio.Writer(object(), to=dsn),
        lambda: pgspate.Writer(to=dsn).insert({"a": 1}, object()),
    ]:
        with pytest.raises(pgspate.UsageError, match="is an object of class object, not a name"):
            call()
