"""Loads of files and rows: the stored rows, options, errors and reports."""

from __future__ import annotations

import dataclasses
import json
from collections import namedtuple
from pathlib import Path

import pytest

import pgspate


def rows(db, table="t", order="1"):
    return db.execute(f"select * from {table} order by {order}").fetchall()


def test_a_file_is_loaded(db, dsn, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\n2,\n")
    report = pgspate.load(path, "t", create=True, to=dsn)
    assert rows(db) == [(1, "x"), (2, None)]
    assert report.rows_written == 2 and report.created and report.table == "public.t"
    # By now the ledger has the file as loaded.
    assert pgspate.load(str(path), "t", to=dsn).rows_before == 2
    other = tmp_path / "u.csv"
    other.write_text("a,b\n3,y\n")
    assert pgspate.load([path, other], "t", to=dsn, no_ledger=True).inputs == 2
    assert len(rows(db)) == 5


@dataclasses.dataclass
class Part:
    a: int
    b: str | None


Named = namedtuple("Named", "b a")


@pytest.mark.parametrize(
    "data",
    [
        [{"a": 1, "b": "x"}, {"a": 2}],
        [{"a": 1, "b": "x"}, {"b": None, "a": 2}],
        [(1, "x"), (2, None)],
        [[1, "x"], [2, None]],
        [Part(1, "x"), Part(2, None)],
        [Named("x", 1), Named(None, 2)],
        ((1, "x"), (2, None)),
    ],
    ids=lambda data: type(data[0]).__name__,
)
def test_rows_of_every_kind_are_loaded(db, dsn, data):
    db.execute("create table t (a int, b text)")
    for given in (data, iter(data), (row for row in data)):
        assert pgspate.load(given, "t", to=dsn).rows_written == 2
        assert rows(db) == [(1, "x"), (2, None)]
        db.execute("truncate t")


def test_the_argument_columns_selects_keys_and_names_values(db, dsn):
    db.execute("create table t (a int, b text, c int default 7)")
    pgspate.load([("x", 1)], "t", columns=["b", "a"], to=dsn)
    row = {"a": 2, "z": 0, "b": "y"}
    pgspate.load([row], "t", columns=["a", "b"], ignore_unknown=True, to=dsn)
    pgspate.load([{"a": 3, "z": 0}], "t", ignore_unknown=True, to=dsn)
    assert rows(db) == [(1, "x", 7), (2, "y", 7), (3, None, 7)]


def test_the_argument_columns_chooses_named_values_by_name(db, dsn):
    db.execute("create table t (a int, b text, c int default 7)")
    pgspate.load([Named("x", 1), Named("y", 2)], "t", columns=["a", "b"], to=dsn)
    pgspate.load([Named("z", 3)], "t", columns=["a"], to=dsn)
    # Other names rename the values in their order.
    pgspate.load([Named(4, 5)], "t", columns=["a", "c"], to=dsn)
    assert rows(db) == [(1, "x", 7), (2, "y", 7), (3, None, 7), (4, None, 5)]
    with pytest.raises(pgspate.ConversionError, match="has other fields"):
        pgspate.load([Named("x", 1), (2, "y")], "t", columns=["a", "b"], to=dsn)
    with pytest.raises(pgspate.UsageError, match="has 2 values, but `columns=` names 3"):
        pgspate.load([Named("x", 1)], "t", columns=["a", "b", "c"], to=dsn)


def test_column_names_may_have_commas(db, dsn):
    db.execute('create table t ("a,b" int, c int)')
    pgspate.load([(1, 2)], "t", columns=["a,b", "c"], to=dsn)
    assert rows(db) == [(1, 2)]


def test_data_without_rows_is_loaded(db, dsn):
    db.execute("create table t (a int, g int generated always as (a) stored)")
    assert pgspate.load([], "t", to=dsn).rows_written == 0
    pgspate.load([(1,)], "t", columns="a", to=dsn)
    with pytest.raises(pgspate.PlanError, match="no rows to put in the place"):
        pgspate.load(iter([]), "t", replace=True, to=dsn)
    assert rows(db) == [(1, 1)]
    emptied = pgspate.load(iter([]), "t", replace=True, allow_empty=True, to=dsn)
    assert emptied.rows_written == 0
    assert rows(db) == []


def test_a_list_is_read_again_when_two_lanes_insert_the_same_key(db, dsn):
    db.execute("create table t (a int primary key, b text)")
    data = [(n // 2, "x" * 100) for n in range(300_000)]
    with pytest.raises(pgspate.ServerError) as error:
        pgspate.load(data, "t", lanes=2, to=dsn)
    assert error.value.sqlstate == "23505"
    assert rows(db) == []


def test_the_error_names_the_first_bad_row(db, dsn):
    db.execute("create table t (a int, b text)")
    with pytest.raises(pgspate.ServerError) as raised:
        pgspate.load([(1, "x"), ("12a", None)], "t", to=dsn)
    error = raised.value
    assert error.kind == "server" and error.sqlstate == "22P02"
    assert error.place == pgspate.Place(source="list", row=2, column="a")
    assert error.message == 'could not load "list" into public.t'
    assert 'invalid input syntax for type integer: "12a"' in str(error)
    assert isinstance(error.__cause__, pgspate.ServerError)
    assert error.__cause__.sqlstate == "22P02"
    assert rows(db) == []


def test_rejected_rows_are_written_to_a_file(db, dsn, tmp_path):
    db.execute("create table t (a int, b text)")
    path = tmp_path / "bad.json"
    report = pgspate.load(({"a": a, "b": "y"} for a in [1, "x", 3]), "t", rejects=path, to=dsn)
    assert report.rows_rejected == 1 and report.rows_written == 2
    assert json.loads(path.read_text()) == {"a": "x", "b": "y"}


@pytest.mark.parametrize(
    "data, message",
    [
        ([(1,), (2, 3)], "the row has 2 values, expected 1"),
        ([{"a": 1}] + [{"a": 1, "q": 2}], 'column "q" of relation "t" does not exist'),
        ([{"a": 1}] * 1000 + [{"a": 1, "q": 2}], "has a key 'q' that none of the first 1000"),
        ([(1, 2)], 'the input has 2 fields, but "t" has 1 column'),
        ([1], "a row of class int has no columns"),
        ([(b"x",)], "which only a column of type bytea takes"),
        ([({},)], "which only a column of type json, jsonb or hstore takes"),
        ([([],)], "which only a column of type array, json or jsonb takes"),
        ([(object(),)], "a value of class object has no counterpart"),
        ([{"a": 1}, {2: 1}], "row 2 has a key of class int, and no name"),
        (5, "an object of class int cannot be loaded"),
    ],
)
def test_data_that_cannot_be_loaded_is_refused(db, dsn, data, message):
    db.execute("create table t (a int)")
    with pytest.raises(pgspate.Error) as error:
        pgspate.load(data, "t", to=dsn)
    assert message in str(error.value)
    assert rows(db) == []


def test_an_exception_of_the_iterable_reaches_the_caller(db, dsn):
    db.execute("create table t (a int)")

    def broken():
        yield from ((n,) for n in range(20_000))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pgspate.load(broken(), "t", to=dsn)
    assert rows(db) == []


def test_rows_are_made_on_the_calling_thread(db, dsn):
    import threading

    db.execute("create table t (a text)")
    caller = threading.get_ident()
    pgspate.load(((str(threading.get_ident() == caller),) for _ in range(3)), "t", to=dsn)
    assert rows(db) == [("True",)] * 3


def test_load_takes_the_options_of_the_command(db, dsn):
    db.execute("create table t (a int)")
    with pytest.raises(pgspate.UsageError, match="lanes"):
        pgspate.load([(1,)], "t", lanes="many", to=dsn)
    with pytest.raises(ValueError):
        pgspate.load([(1,)], "t", commit="never", to=dsn)
    with pytest.raises(TypeError):
        pgspate.load([(1,)], "t", dsn)
    report = pgspate.load([(1,)], "t", analyze="always", lanes=3, to=dsn)
    assert report.counted == "analyze"


def test_a_plan_describes_the_load_and_changes_nothing(db, dsn):
    db.execute("create table t (a int, b xml)")
    plan = pgspate.plan([(1, "<a/>")], "t", to=dsn)
    assert plan.path == "text" and [it["name"] for it in plan.columns] == ["a", "b"]
    assert "xml" in str(plan) and "public.t" in repr(plan)
    plan = pgspate.plan([(1,)], "t", columns=["a"], to=dsn)
    assert "binary, value by value" in str(plan)
    page = pgspate.plan([{"a": 1, "b": "<"}], "new", create=True, to=dsn)._repr_html_()
    # Columns are a table, and the statement keeps its lines.
    assert page.count("<table") > 1 and "<pre" in page and "a bigint,\n" in page
    assert rows(db) == []


def test_a_report_is_shown_as_text_and_html_and_converted_to_json(db, dsn):
    report = pgspate.load([{"a": "<b>"}], "t", create=True, to=dsn)
    assert repr(report).startswith("<LoadReport public.t: 1 row in ")
    page = report._repr_html_()
    assert "<th" in page and "rows written" in page and "nowrap" not in page
    assert "overflow-wrap:anywhere" in page
    assert json.loads(json.dumps(report.to_dict()))["rows_written"] == 1


def test_a_function_gets_the_progress_and_may_stop_the_load(db, dsn):
    seen = []
    db.execute("create table t (a int)")
    data = [(n,) for n in range(200_000)]
    pgspate.load(data, "t", to=dsn, progress=seen.append)
    assert all(one.total_rows == 200_000 and 0 <= one.share <= 1 for one in seen)

    def stop(_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        pgspate.load(([n] for n in iter(int, 1)), "t", to=dsn, progress=stop)
    assert len(rows(db)) == 200_000


def test_errors_can_be_pickled():
    import pickle

    with pytest.raises(pgspate.Error) as raised:
        pgspate.load(Path("nowhere.csv"), "t", to="host=/nowhere")
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value) and again.kind == raised.value.kind


def test_a_header_that_may_be_a_row_is_a_warning(db, dsn, tmp_path):
    path = tmp_path / "fruits.csv"
    path.write_text("apple,red\nbanana,yellow\n")
    report = pgspate.load(path, "fruits", create=True, to=dsn)
    assert report.warnings == [
        "the first line was taken for the names of the columns, although all columns are text; "
        "if it is a row, load with `header=False`"
    ]
    assert any(it.startswith("header yes:") for it in report.input)
    assert repr(report).endswith(", 1 warning>")
    one = tmp_path / "one.csv"
    one.write_text("person,mail\n")
    with pytest.raises(pgspate.FormatError, match="could not tell whether the first line"):
        pgspate.load(one, "fruits", to=dsn)


def test_no_rows_replace_rows_only_if_allowed(db, dsn):
    db.execute("create table t (id int); insert into t values (1)")
    with pytest.raises(pgspate.PlanError, match="there are no rows to put"):
        pgspate.load([], "t", columns=["id"], replace=True, to=dsn)
    assert db.execute("select count(*) from t").fetchone() == (1,)
    pgspate.load([], "t", columns=["id"], replace=True, allow_empty=True, to=dsn)
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_dicts_are_hstore_in_columns_of_this_type(db, dsn):
    available = db.execute("select from pg_available_extensions where name = 'hstore'")
    if available.fetchone() is None:
        pytest.skip("the server has no hstore")
    db.execute("create schema ext; create extension hstore schema ext")
    db.execute("create table t (id int primary key, h ext.hstore)")
    value = {"a": "1", 'b"': None, "c\\": 2, "d": True}
    stored = {"a": "1", 'b"': None, "c\\": "2", "d": "true"}

    def found():
        return [row[0] for row in db.execute("select ext.hstore_to_json(h) from t order by id")]

    pgspate.load([{"id": 1, "h": value}], "t", to=dsn)
    with pgspate.Writer("t", to=dsn) as writer:
        writer.insert({"id": 2, "h": value})
    pgspate.apply([{"op": "insert", "table": "t", "row": {"id": 3, "h": value}}], to=dsn)
    assert found() == [stored] * 3
    pgspate.load([{"id": 4, "h": '"a"=>"b"'}], "t", to=dsn)
    assert found()[-1] == {"a": "b"}
