"""Streams of changes, from files and from Python's iterables."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import json
import queue
import socket
import threading
import urllib.request
import uuid
from decimal import Decimal

import pytest

import pgspate
import pgspate.aio


class Mood(enum.Enum):
    sad = 1


EVENTS = [
    {"op": "insert", "table": "parts", "row": {"id": 1, "name": "bolt"}},
    {"op": "insert", "table": "parts", "row": {"id": 2, "name": "nut"}},
    {"op": "update", "table": "parts", "row": {"id": 1, "name": "screw"}},
    {"op": "delete", "table": "parts", "key": {"id": 2}},
]


@pytest.fixture
def parts(db):
    db.execute("create table parts (id int primary key, name text)")
    return lambda: db.execute("select * from parts order by id").fetchall()


def streams(db):
    return db.execute("select stream, ordinal from pgspate.stream").fetchall()


@pytest.mark.parametrize("form", [dict, str, bytes])
def test_events_are_dicts_or_json(db, dsn, parts, form):
    events = [
        event if form is dict else json.dumps(event, indent=1) if form is str
        else json.dumps(event).encode()
        for event in EVENTS
    ]
    for given in (events, tuple(events), iter(events), (event for event in events)):
        report = pgspate.apply(given, to=dsn)
        assert (report.events, report.stream) == (4, type(given).__name__)
        # Every key of the engine's report is a field of `ApplyReport`.
        fields = {one.name for one in dataclasses.fields(report)}
        assert set(report.to_dict()) - fields <= {"is_stopped"}
        assert parts() == [(1, "screw")] and report.tables == ["public.parts"]
        # The position is not kept, because no later call needs it.
        assert streams(db) == []
    assert pgspate.apply([], to=dsn).events == 0 and streams(db) == []
    with pytest.raises(pgspate.UsageError, match="an event and not a path"):
        pgspate.apply(json.dumps(EVENTS[0]), to=dsn)


def test_a_named_stream_is_applied_once(db, dsn, parts):
    assert pgspate.apply(EVENTS, stream="parts", to=dsn).inserted == 1
    db.execute("update parts set name = 'mine'")
    again = pgspate.apply(iter(EVENTS), stream="parts", to=dsn)
    assert (again.events, again.events_before) == (0, 4)
    more = [*EVENTS, {"op": "insert", "table": "parts", "row": {"id": 3, "name": "new"}}]
    assert pgspate.apply(more, stream="parts", to=dsn).events == 1
    assert parts() == [(1, "mine"), (3, "new")] and streams(db) == [("parts", 5)]
    with pytest.raises(pgspate.LedgerError, match="not the stream"):
        pgspate.apply(more[::-1], stream="parts", to=dsn)


def test_the_stream_of_a_file_has_the_name_of_the_file(db, dsn, parts, tmp_path):
    path = tmp_path / "events.ndjson"
    path.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    for given, count in ((path, 4), (str(path), 0), ([path], 0)):
        assert pgspate.apply(given, to=dsn).events == count
    assert parts() == [(1, "screw")] and streams(db) == [(str(path), 4)]


def test_apply_stores_the_same_values_as_load(db, dsn):
    db.execute("create table t (id int primary key, n numeric, f float8, at timestamptz, "
               "local timestamp, d date, iv interval, u uuid, y bytea, j jsonb, l int[], e text)")
    east = dt.timezone(dt.timedelta(hours=5, minutes=30))
    row = {
        "id": 2**31 - 1, "n": Decimal("1.50"), "f": float("inf"),
        "at": dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=east),
        "local": dt.datetime(2024, 1, 2, 3, tzinfo=east), "d": dt.date(2024, 2, 29),
        "iv": dt.timedelta(days=-1, seconds=5), "u": uuid.UUID(int=7), "y": b"\x00\xff\\",
        "j": {"a": [1, None, 'ä"\n', True]}, "l": [1, None], "e": Mood.sad,
    }
    pgspate.load([row], "t", to=dsn)
    stored = db.execute("select * from t").fetchall()
    db.execute("truncate t")
    pgspate.apply([{"op": "insert", "table": "t", "row": row}], to=dsn)
    assert db.execute("select * from t").fetchall() == stored
    nan = {**row, "n": Decimal("NaN"), "f": float("nan"), "e": None}
    pgspate.apply([{"op": "update", "table": "t", "row": nan}], to=dsn)
    found = db.execute("select n::text, f::text, e from t").fetchall()
    assert found == [("NaN", "NaN", None)]


def test_a_timestamp_of_pandas_is_stored_as_by_load(db, dsn):
    pandas = pytest.importorskip("pandas")
    db.execute("create table t (id int primary key, local timestamp, at timestamptz, d date)")
    moment = pandas.Timestamp("2024-01-02 02:00:00.123456789", tz="Asia/Kolkata")
    rows = [{"id": 1, "local": moment, "at": moment, "d": moment},
            {"id": 2, "local": moment.tz_localize(None), "at": pandas.NaT, "d": None}]
    pgspate.load(rows, "t", to=dsn)
    stored = db.execute("select * from t order by id").fetchall()
    db.execute("truncate t")
    pgspate.apply([{"op": "insert", "table": "t", "row": row} for row in rows], to=dsn)
    assert db.execute("select * from t order by id").fetchall() == stored
    assert stored[0][1:4:2] == (dt.datetime(2024, 1, 1, 20, 30, 0, 123457), dt.date(2024, 1, 1))


def test_apply_takes_the_options_of_the_command(db, dsn, parts):
    db.execute('create table "o,1" (id int primary key, name text)')
    report = pgspate.apply(EVENTS, map={"parts": "o,1"}, to=dsn)
    assert report.tables == ['public."o,1"'] and parts() == []
    other = {"op": "insert", "table": "none", "row": {"id": 9}}
    report = pgspate.apply([*EVENTS, other], tables="parts", to=dsn)
    assert report.left_out == 1 and parts() == [(1, "screw")]
    odd = {"op": "insert", "table": "parts", "row": {"id": 5, "odd": "x"}}
    with pytest.raises(pgspate.Error, match='"odd"'):
        pgspate.apply([odd], to=dsn)
    assert pgspate.apply([odd], unknown_columns="ignore", to=dsn).inserted == 1
    with pytest.raises(ValueError, match="nonsense"):
        pgspate.apply(EVENTS, format="nonsense", to=dsn)


def test_dms_columns_names_the_columns_of_a_file_without_header(db, dsn, tmp_path):
    db.execute('create table t (id int primary key, "a,b" text)')
    path = tmp_path / "changes.csv"
    path.write_text("I,1,bolt\nU,1,screw\nI,2,nut\n")
    pgspate.apply(path, format="dms", source_table="t", dms_columns=["id", "a,b"], to=dsn)
    assert db.execute("select * from t order by id").fetchall() == [(1, "screw"), (2, "nut")]


def test_the_error_for_a_bad_event_names_its_place(db, dsn, parts):
    circle = {}
    circle["row"] = circle
    for bad, kind in (({"op": "grow"}, "format"), (5, "format"), ({1: 2}, "format"),
                      (b"\xff", "format"), ({"op": object()}, "type"), (circle, "format")):
        with pytest.raises(pgspate.Error) as error:
            pgspate.apply([EVENTS[0], bad], to=dsn)
        assert error.value.kind == kind
        assert (error.value.place.source, error.value.place.line) == ("list", 2)
        # The events before the bad event are applied.
        assert parts() == [(1, "bolt")] and streams(db) == []
    report = pgspate.apply([*EVENTS, {"op": "grow"}], max_dead_letters=1, to=dsn)
    assert (report.dead_letters, report.events) == (1, 5)
    for no_events in (5, b"{}", {"op": "insert"}):
        with pytest.raises(pgspate.UsageError, match="has no events"):
            pgspate.apply(no_events, to=dsn)


def test_an_exception_of_the_iterable_reaches_the_caller(db, dsn, parts):
    def events():
        yield EVENTS[0]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pgspate.apply(events(), to=dsn)


def test_an_event_does_not_wait_for_the_next_one(db, dsn, parts):
    waiting = queue.SimpleQueue()

    def events():
        while (event := waiting.get()) is not None:
            yield event

    done = []
    thread = threading.Thread(target=lambda: done.append(pgspate.apply(events(), to=dsn)))
    thread.start()
    for nth, event in enumerate(EVENTS):
        waiting.put(event)
        expected = [[(1, "bolt")], [(1, "bolt"), (2, "nut")], [(1, "screw"), (2, "nut")],
                    [(1, "screw")]][nth]
        while parts() != expected:
            assert thread.is_alive()
    waiting.put(None)
    thread.join()
    assert done[0].events == 4 and done[0].batches == 4


def test_the_last_event_of_a_burst_does_not_wait_for_the_next_one(db, dsn, parts):
    def events():
        sent = 0
        for burst in range(1, 20):
            for _ in range(burst):
                sent += 1
                yield {"op": "insert", "table": "parts", "row": {"id": sent}}
            while len(parts()) < sent:
                pass

    assert pgspate.apply(events(), to=dsn).events == 190


def test_an_error_is_raised_although_the_next_asynchronous_event_never_comes(db, dsn, parts):
    async def events():
        yield EVENTS[0]
        yield {"op": "insert", "table": "nowhere", "row": {"id": 1}}
        await asyncio.Event().wait()

    with pytest.raises(pgspate.Error, match="nowhere"):
        asyncio.run(pgspate.aio.apply(events(), to=dsn))


def test_asynchronous_events_and_rows(db, dsn, parts):
    db.execute("create table t (a int primary key)")

    async def rows(count):
        for n in range(count):
            if n % 5000 == 0:
                await asyncio.sleep(0)
            yield (n,)

    async def changes():
        for event in EVENTS:
            yield event
            await asyncio.sleep(0)

    async def broken():
        yield (-1,)
        raise KeyError("mine")

    async def run_calls():
        report = await pgspate.aio.load(rows(30_000), "t", to=dsn)
        assert report.rows_written == 30_000
        report = await pgspate.aio.sync(rows(29_000), "t", scope="all", to=dsn)
        assert (report.deleted, report.unchanged) == (1000, 29_000)
        assert (await pgspate.aio.apply(changes(), to=dsn)).events == 4
        with pytest.raises(KeyError, match="mine"):
            await pgspate.aio.load(broken(), "t", to=dsn)
        # If the call fails early, the remaining rows are not made.
        with pytest.raises(pgspate.PlanError, match="does not exist"):
            await pgspate.aio.load(rows(10**9), "nowhere", to=dsn)
        with pytest.raises(pgspate.ServerError, match='"async_generator"'):
            await pgspate.aio.load(rows(1), "t", to=dsn)

    asyncio.run(run_calls())
    assert parts() == [(1, "screw")]
    with pytest.raises(pgspate.UsageError, match="pgspate.aio"):
        pgspate.load(rows(1), "t", to=dsn)


def test_asynchronous_rows_that_cannot_begin_raise_their_exception(db, dsn):
    class Rows:
        def __aiter__(self):
            raise KeyError("mine")

    db.execute("create table t (a int)")
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(pgspate.aio.load(Rows(), "t", to=dsn))


def test_asynchronous_rows_are_cancelled(db, dsn):
    db.execute("create table t (a int)")
    steps = []

    async def one_row_then_silence():
        yield (1,)
        steps.append("waits")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    async def cancel():
        task = asyncio.create_task(pgspate.aio.load(one_row_then_silence(), "t", to=dsn))
        while not steps:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert steps == ["waits", "ended"]
    assert db.execute("select count(*) from t").fetchone() == (0,)


def test_metrics_are_served_while_events_are_applied(dsn, parts):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "127.0.0.1:%d" % free.getsockname()[1]
    pages = []

    def events():
        yield from EVENTS
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
            pages.append(page.read().decode())

    pgspate.apply(events(), to=dsn, metrics=address)
    assert "pgspate_apply_events_total" in pages[0]


@pytest.mark.parametrize("option", ["plan", "json", "quiet"])
def test_options_for_terminals_are_refused(dsn, parts, option):
    with pytest.raises(pgspate.UsageError, match=f"`{option}` is an option of the command"):
        asyncio.run(pgspate.aio.apply(EVENTS, to=dsn, **{option: True}))
    with pytest.raises(pgspate.UsageError, match=f"`{option}` is an option of the command"):
        asyncio.run(pgspate.aio.load([(1, "bolt")], "parts", to=dsn, **{option: True}))
    assert parts() == []


def test_a_line_end_in_a_string_is_refused_and_not_changed(db, dsn, parts):
    event = '{"op": "insert",\r\n "table": "parts",\n"row": {"id": 1, "name": "%s"}}\n'
    pgspate.apply([event % 'a\\\\\\"b\\n'], to=dsn)
    assert db.execute("select name from parts").fetchall() == [('a\\"b\n',)]
    for name in ("a\nb", 'a\\"\rb'):
        for form in (str, str.encode):
            with pytest.raises(pgspate.FormatError, match="line end in a string"):
                pgspate.apply([form(event % name)], to=dsn)


@pytest.mark.parametrize("event", [
    '{"op": "\ud800"}', {"op": "\ud800"}, {"op": "insert", "table": "parts", "row": {"\ud800": 1}},
])
def test_a_lone_surrogate_in_an_event_is_refused(dsn, parts, event):
    with pytest.raises(pgspate.ConversionError, match="lone surrogate"):
        pgspate.apply([event, "{}"], to=dsn)


def test_narrow_floats_of_numpy_in_events_have_their_own_digits(db, dsn):
    numpy = pytest.importorskip("numpy")
    db.execute("create table t (id int primary key, f float4, n numeric, l numeric[])")
    tenth = numpy.float32(0.1)
    row = {"id": 1, "f": tenth, "n": tenth, "l": numpy.array([0.1, 0.2], dtype="float32")}
    pgspate.apply([{"op": "insert", "table": "t", "row": row}], to=dsn)
    found = db.execute("select f::text, n::text, l::text from t").fetchall()
    assert found == [("0.1", "0.1", "{0.1,0.2}")]


def test_ranges_in_events_are_stored_or_refused(db, dsn):
    from psycopg.types.range import Range

    db.execute("create table t (id int primary key, r int4range, l int4range[])")
    row = {"id": 1, "r": Range(1, 2), "l": [Range(1, 2), Range(3, 4)]}
    pgspate.apply([{"op": "insert", "table": "t", "row": row}], to=dsn)
    found = db.execute("select r::text, l::text from t").fetchall()
    assert found == [("[1,2)", '{"[1,2)","[3,4)"}')]
