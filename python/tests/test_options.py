"""Options of calls and settings of writers that have a wrong class, and always and never."""

from __future__ import annotations

import pytest

import pgspate
from pgspate._options import command_arguments


@pytest.mark.parametrize("name", ["analyze", "rebuild_indexes", "pause_autovacuum"])
def test_false_is_never_and_true_is_always(db, dsn, name):
    flag = "--" + name.replace("_", "-")
    assert command_arguments({name: False}, has_source=False) == [flag + "=never"]
    assert command_arguments({name: True}, has_source=False) == [flag + "=always"]
    assert command_arguments({name: "auto"}, has_source=False) == [flag + "=auto"]
    db.execute("create table t (id int)")
    report = pgspate.load([(1,)] * 5000, "t", to=dsn, **{name: False})
    if name == "analyze":
        assert report.counted is None


def test_items_that_are_no_texts_are_refused(dsn):
    with pytest.raises(pgspate.UsageError, match="`columns=` has an item of class int"):
        pgspate.load([(1,)], "t", to=dsn, columns=[1])
    with pytest.raises(pgspate.UsageError, match="`set=` is of class list"):
        pgspate.load([(1,)], "t", to=dsn, set=["a"])
    with pytest.raises(pgspate.UsageError, match="`set=` has an item of class int"):
        pgspate.load([(1,)], "t", to=dsn, set={1: 2})


@pytest.mark.parametrize("name, value", [
    ("connections", -1), ("connections", 0), ("connections", "x"), ("connections", 2**70),
    ("queue_bytes", 1.5), ("retry_for", "x"), ("stall_timeout", None), ("lock_timeout", -1),
    ("keep_keys", float("nan")),
])
def test_settings_of_a_writer_are_checked(dsn, name, value):
    with pytest.raises(pgspate.UsageError, match=f"`{name}=` must be a"):
        pgspate.Writer("t", to=dsn, **{name: value})


def test_an_idempotency_key_is_a_text(db, dsn):
    db.execute("create table t (id int)")
    with pgspate.Writer("t", to=dsn) as writer:
        for insert in (writer.insert, lambda row, **key: writer.insert_many([row], **key)):
            with pytest.raises(pgspate.UsageError, match="`idempotency_key=` is of class int"):
                insert({"id": 1}, idempotency_key=5)
    assert db.execute("select count(*) from t").fetchone() == (0,)


@pytest.mark.parametrize("option", [
    {"header": True}, {"header": False}, {"delimiter": ";"}, {"quote": "'"}, {"escape": "\\"},
    {"comment": "#"}, {"skip_blank_lines": True}, {"format": "csv"},
])
def test_options_about_files_are_refused_for_rows(dsn, option):
    name = next(iter(option))
    for call in (pgspate.load, pgspate.plan):
        with pytest.raises(pgspate.UsageError, match=f"`{name}=` is about files"):
            call([(1,)], "t", to=dsn, **option)
    with pytest.raises(pgspate.UsageError, match="an object of class list is no file"):
        pgspate.sync([(1,)], "t", key="id", scope="all", to=dsn, **option)


def test_names_are_no_dict(db, dsn):
    db.execute("create table t (id int, label text)")
    renamed = {"id": "id", "name": "label"}
    with pytest.raises(pgspate.UsageError, match="`columns=` is a dict") as refused:
        pgspate.load([{"id": 1, "name": "a"}], "t", columns=renamed, to=dsn)
    assert "frame.rename" in refused.value.hint
    with pgspate.Writer("t", to=dsn) as writer:
        with pytest.raises(pgspate.UsageError, match="`columns=` is a dict"):
            writer.insert({"id": 1, "name": "a"}, columns=renamed)
    with pytest.raises(pgspate.UsageError, match="`key=` is a dict"):
        pgspate.sync([{"id": 1}], "t", key={"id": True}, scope="all", to=dsn)
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_hints_fit_rows(db, dsn):
    db.execute("create table t (id int, day date)")
    rows = [{"id": 1, "day": "31/12/2026"}]
    with pytest.raises(pgspate.Error) as refused:
        pgspate.load(rows, "t", to=dsn)
    assert "Convert such texts to dates" in refused.value.hint
    assert "date_format" not in refused.value.hint
    with pytest.raises(pgspate.UsageError) as refused:
        pgspate.load(rows, "t", max_rejects=1, to=dsn)
    assert 'rejects="rejected.ndjson"' in refused.value.hint


@pytest.mark.parametrize("write", [pgspate.load, pgspate.Writer])
def test_a_call_without_a_server_warns(monkeypatch, tmp_path, write):
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGSPATE_DATA_DIR", str(tmp_path))
    # The embedded server cannot start.
    monkeypatch.setenv("PGSPATE_PG_BIN", str(tmp_path / "nowhere"))
    arguments = [[(1,)], "t"] if write is pgspate.load else ["t"]
    with pytest.warns(UserWarning, match="the rows go to the embedded PostgreSQL") as warned:
        with pytest.raises(pgspate.Error):
            with write(*arguments):
                pass
    assert warned[0].filename == __file__
