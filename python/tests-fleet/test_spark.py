"""Tests of writing Spark's data frames, by the data source and by `pgspate.spark.load`."""

from __future__ import annotations

import pytest

import pgspate
import pgspate.spark
from conftest import stages_left


def by_source(df, dsn, mode="append", **options):
    options = {"url": dsn, "dbtable": "t", **options}
    df.write.format("pgspate").options(**options).mode(mode).save()


def by_load(df, dsn, mode="append", **options):
    renamed = {"ignoreUnknown": "ignore_unknown", "write": "mode"}
    given = {renamed.get(name, name): value for name, value in options.items()}
    if mode == "overwrite":
        given["mode"] = mode
    for name in ("create", "ignore_unknown"):
        given[name] = given.get(name) == "true"
    if "columns" in given:
        given["columns"] = given["columns"].split(",")
    if "key" in given:
        given["key"] = given["key"].split(",")
    pgspate.spark.load(df, "t", to=dsn, **given)


@pytest.fixture(params=[by_source, by_load])
def write(request, dsn):
    return lambda df, *mode, **options: request.param(df, dsn, *mode, **options)


def ids(db):
    return [row[0] for row in db.execute("select id from t order by id")]


def error_text(caught) -> str:
    return str(caught.value)


def test_partitions_are_appended_at_once(spark, db, write):
    df = spark.range(0, 10_000, 1, 8)
    write(df, create="true")
    write(df.filter("id < 5"))
    assert ids(db) == sorted([*range(10_000), *range(5)])


def test_empty_frames_and_partitions(spark, db, write):
    df = spark.range(0, 10, 1, 8)
    write(df.filter("id < 0"), create="true")
    assert ids(db) == []
    write(df.filter("id = 3"))
    write(spark.createDataFrame([], "id long"))
    assert ids(db) == [3]


def test_columns_must_be_known(spark, db, write):
    db.execute("create table t (id bigint, more text default 'x')")
    df = spark.sql("select 1L id, 2 other")
    with pytest.raises(Exception) as caught:
        write(df)
    assert 'no column "other"' in error_text(caught) or '"other"' in error_text(caught)
    with pytest.raises(Exception) as caught:
        write(spark.sql("select 2 other"))
    assert '"other"' in error_text(caught)
    assert ids(db) == []
    write(df, ignoreUnknown="true")
    assert db.execute("select id, more from t").fetchall() == [(1, "x")]


def test_a_named_job_is_written_once(spark, db, write):
    write(spark.range(3), create="true", job="nightly")
    write(spark.range(5), job="nightly")
    assert ids(db) == [0, 1, 2]


def test_the_server_refuses_rows(spark, db, write):
    db.execute("create table t (id int primary key)")
    with pytest.raises(Exception) as caught:
        write(spark.range(0, 10, 1, 4).selectExpr("id div 2 id"))
    # The index of a shadow table is built after the rows are written.
    assert "is duplicated" in error_text(caught)
    assert ids(db) == []
    assert stages_left(db) == []


def test_overwrite_replaces_all_rows(spark, db, write):
    db.execute("create table t (id bigint primary key)")
    db.execute("insert into t values (1), (2)")
    write(spark.range(5, 8), "overwrite")
    assert ids(db) == [5, 6, 7]
    write(spark.range(0), "overwrite")
    assert ids(db) == []


def test_upsert_updates_rows_of_the_same_key(spark, db, write):
    db.execute("create table t (id bigint primary key, name text)")
    db.execute("insert into t values (1, 'old'), (2, 'old')")
    write(spark.sql("select id, 'new' name from range(2, 5)"), write="upsert", key="id")
    found = db.execute("select id, name from t order by id").fetchall()
    assert found == [(1, "old"), (2, "new"), (3, "new"), (4, "new")]


@pytest.mark.parametrize("is_source", [True, False])
def test_sync_makes_scopes_equal(spark, db, dsn, is_source):
    db.execute("create table t (meter int, day int, use float8, primary key (meter, day))")
    db.execute("insert into t select m, d, 1 from generate_series(1, 3) m, generate_series(1, 4) d")
    df = spark.sql("select 1 + id div 3 meter, cast(id % 3 + 1 as int) day, 2D use from range(6)")
    df = df.selectExpr("cast(meter as int) meter", "day", "use").repartition(4)
    if is_source:
        by_source(df, dsn, write="sync", scopeBy="meter", maxDelete="60%")
    else:
        report = pgspate.spark.sync(df, "t", to=dsn, scope_by="meter", max_delete="60%")
        assert report.rows_in == 6
    found = db.execute("select meter, count(*), sum(use) from t group by 1 order by 1").fetchall()
    assert found == [(1, 3, 6), (2, 3, 6), (3, 4, 4)]


def test_a_sync_that_is_not_safe_is_refused(spark, db, dsn):
    db.execute("create table t (id int primary key, day int)")
    db.execute("insert into t select id, 1 from generate_series(1, 10) id")
    twice = spark.sql("select cast(id % 5 as int) id, 1 day from range(10)").repartition(4)
    with pytest.raises(pgspate.Error, match="key"):
        pgspate.spark.sync(twice, "t", to=dsn, scope="all")
    few = spark.sql("select cast(id as int) id, 1 day from range(1, 4)")
    with pytest.raises(pgspate.Error, match="would be deleted"):
        pgspate.spark.sync(few, "t", to=dsn, scope_by="day")
    with pytest.raises(pgspate.Error, match="empty"):
        pgspate.spark.sync(few.filter("id < 0"), "t", to=dsn, scope="all")
    assert ids(db) == list(range(1, 11))
    report = pgspate.spark.sync(few, "t", to=dsn, scope_by="day", max_delete=70)
    assert report.deleted == 7 and stages_left(db) == []


def test_tasks_can_commit_by_themselves(spark, db, write):
    db.execute("create table t (id bigint)")
    write(spark.range(0, 1000, 1, 4), commit="task")
    assert ids(db) == list(range(1000))


TYPES = [
    # Spark's expression, the type of the created column, other types that accept the value, and the
    # value as text.
    ("true", "boolean", ["text"], "true"),
    ("1Y", "smallint", ["int", "bigint", "numeric"], "1"),
    ("2S", "smallint", ["bigint"], "2"),
    ("3", "integer", ["bigint", "numeric", "int8"], "3"),
    ("4L", "bigint", ["numeric", "integer"], "4"),
    ("1.5f", "real", ["float8"], "1.5"),
    ("2.5D", "double precision", ["float4"], "2.5"),
    ("1.50BD", "numeric", ["numeric(10,2)"], "1.50"),
    ("'ä'", "text", ["varchar(3)", "name"], "ä"),
    ("'{\"a\": 1}'", "text", ["jsonb"], '{"a": 1}'),
    ("'7f1c9c4e-8f0e-4a4e-9f3b-0a8d7e1c2b3d'", "text", ["uuid"],
     "7f1c9c4e-8f0e-4a4e-9f3b-0a8d7e1c2b3d"),
    ("'{1,2}'", "text", ["int[]"], "{1,2}"),
    ("'b'", "text", ["mood"], "b"),
    ("X'00ff'", "bytea", [], "\\x00ff"),
    ("date'2024-02-29'", "date", [], "2024-02-29"),
    ("timestamp'2024-02-29 13:14:15.123456'", "timestamp with time zone", [],
     "2024-02-29 12:14:15.123456+00"),
    ("timestamp_ntz'2024-02-29 13:14:15.123456'", "timestamp without time zone", [],
     "2024-02-29 13:14:15.123456"),
    ("interval '0 01:02:03.5' day to second", "interval", [], "01:02:03.5"),
    ("time'13:14:15.123456'", "time without time zone", [], "13:14:15.123456"),
    ("array(1, null)", "integer[]", ["bigint[]"], "{1,NULL}"),
    ("array('a', 'NULL')", "text[]", [], '{a,"NULL"}'),
    ("array(array(1, 2))", "jsonb", [], "[[1, 2]]"),
    ("named_struct('a', 1, 'b', 'x')", "jsonb", [], '{"a": 1, "b": "x"}'),
    ("map('k', 1)", "jsonb", [], '{"k": 1}'),
    ("array(named_struct('a', 1))", "jsonb", [], '[{"a": 1}]'),
    ("cast(null as int)", "integer", ["text", "date"], None),
]


def test_every_type_into_a_created_table(spark, db, dsn):
    selected = ", ".join(f"{one[0]} c{nth}" for nth, one in enumerate(TYPES))
    pgspate.spark.load(spark.sql(f"select {selected}"), "t", to=dsn, create=True)
    found = db.execute("select format_type(atttypid, atttypmod) from pg_attribute "
                       "where attrelid = 't'::regclass and attnum > 0 order by attnum").fetchall()
    assert [row[0] for row in found] == [one[1] for one in TYPES]
    texts = ", ".join(f"c{nth}::text" for nth in range(len(TYPES)))
    assert list(db.execute(f"select {texts} from t").fetchone()) == [one[3] for one in TYPES]


def test_every_type_into_existing_columns(spark, db, dsn):
    db.execute("create type mood as enum ('a', 'b')")
    pairs = [(one, other) for one in TYPES for other in one[2]]
    columns = ", ".join(f"c{nth} {other}" for nth, (_, other) in enumerate(pairs))
    db.execute(f"create table t ({columns}, v int)")
    selected = ", ".join(f"{one[0]} c{nth}" for nth, (one, _) in enumerate(pairs))
    pgspate.spark.load(spark.sql(f"select {selected}, null v"), "t", to=dsn)
    texts = ", ".join(f"c{nth}::text" for nth in range(len(pairs)))
    row = db.execute(f"select {texts} from t").fetchone()
    assert list(row) == [one[3] for one, _ in pairs]


@pytest.mark.parametrize("expression, hint", [
    ("interval '1' year", "Cast it to a string"),
    ("make_interval(1)", "Cast it to a string"),
    ("parse_json('{}')", r"to_json\(c\)"),
    ("array(parse_json('{}'))", r"to_json\(c\)"),
    ("null", "Cast it to the type"),
])
def test_a_type_that_cannot_be_written_is_refused(spark, dsn, expression, hint):
    with pytest.raises(pgspate.UsageError, match=hint):
        pgspate.spark.load(spark.sql(f"select {expression} c"), "t", to=dsn, create=True)
    with pytest.raises(pgspate.UsageError, match="two columns"):
        pgspate.spark.load(spark.sql("select 1 c, 2 c"), "t", to=dsn)


def test_unsupported_uses_of_the_data_source_are_refused(spark, dsn):
    with pytest.raises(Exception, match="pgspate reads no tables into Spark"):
        spark.read.format("pgspate").option("url", dsn).load()
    with pytest.raises(Exception, match="mode|Mode"):
        spark.range(1).write.format("pgspate").option("url", dsn).save()
    with pytest.raises(Exception, match="Did you mean `dbtable`"):
        by_source(spark.range(1), dsn, dbtables="t")


def test_an_epoch_of_a_stream_is_written_once(spark, db, dsn, tmp_path):
    db.execute("create table t (id bigint)")
    (tmp_path / "in").mkdir()

    def run(epochs):
        frame = spark.readStream.schema("id long").csv(str(tmp_path / "in"))
        query = (frame.writeStream.foreachBatch(pgspate.spark.sink("t", to=dsn))
                 .option("checkpointLocation", str(tmp_path / "check")).start())
        query.processAllAvailable()
        query.stop()
        assert ids(db) == list(range(epochs))

    for epoch in range(3):
        (tmp_path / f"in/{epoch}.csv").write_text(f"{epoch}\n")
        run(epoch + 1)
        # Spark forgets that the epoch was committed, and repeats it.
        for name in (str(epoch), f".{epoch}.crc"):
            (tmp_path / "check/commits" / name).unlink()
        run(epoch + 1)


def test_connect_writes_a_frame(dsn, db):
    pytest.importorskip("grpc")
    import subprocess
    import sys
    program = (
        "import sys, pgspate.spark\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.remote('local[2]').getOrCreate()\n"
        "df = spark.range(0, 100, 1, 4)\n"
        "print(pgspate.spark.load(df, 't', to=sys.argv[1], create=True))\n"
        "df.write.format('pgspate').option('url', sys.argv[1]).option('dbtable', 't')"
        ".mode('append').save()\n"
        "spark.stop()\n")
    done = subprocess.run([sys.executable, "-c", program, dsn], capture_output=True, text=True,
                          timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    assert ids(db) == sorted([*range(100), *range(100)])
