"""The options of `df.write.format("pgspate")`. Spark itself is not needed."""

from __future__ import annotations

import pytest

import pgspate
from pgspate._spark_options import parse_options

JDBC = "jdbc:postgresql://db.example:5433/shop"
URL = "postgresql://db.example:5433/shop"


def parse(overwrite=False, **options):
    return parse_options({"url": JDBC, "dbtable": "orders", **options}, overwrite=overwrite)


@pytest.mark.parametrize("url, to", [
    (JDBC, URL),
    (URL, URL),
    ("host=db.example", "host=db.example"),
    ("jdbc:postgresql:shop", "postgresql://localhost/shop"),
    ("jdbc:postgresql:/", "postgresql://localhost/"),
    ("jdbc:postgresql://a:1,b:2/shop?targetServerType=primary",
     "postgresql://a:1,b:2/shop?target_session_attrs=primary"),
    (JDBC + "?ssl=true", URL + "?sslmode=verify-full"),
    (JDBC + "?sslmode=require&ApplicationName=night%20job",
     URL + "?sslmode=require&application_name=night%20job"),
    (JDBC + "?currentSchema=a,b", URL + "?options=-c%20search_path%3Da%2Cb"),
    (JDBC + "?user=app&password=p%26q", URL + "?user=app&password=p%26q"),
])
def test_urls_of_jdbc_become_those_of_libpq(url, to):
    found = parse(url=url)
    assert (found.to, found.notes) == (to, [])


def test_user_and_password_are_added():
    assert parse(user="app", password="p&q=1").to == URL + "?user=app&password=p%26q%3D1"
    assert parse(url="host=h", USER="a b'c").to == "host=h user='a b\\'c'"
    found = parse_options({"service": "shop", "dbtable": "t", "passfile": "/p"}, overwrite=False)
    assert found.to == "passfile='/p' service='shop'"


def test_without_a_server_the_environment_counts(monkeypatch):
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pgspate.UsageError, match="the option url is missing"):
        parse_options({"dbtable": "t"}, overwrite=False)
    monkeypatch.setenv("PGHOST", "db.example")
    assert parse_options({"dbtable": "t"}, overwrite=False).to is None


def test_options_become_arguments():
    found = parse(write="SYNC", key="a, b", scopeBy="day", maxDelete="20%", allowempty="true",
                  connections="4", buffer="8", job="nightly", columns="a,b,day", create="true",
                  ignoreUnknown="TRUE")
    assert found.begin_options == {"mode": "sync", "key": ["a", "b"], "scope_by": ["day"],
                           "max_delete": "20%", "allow_empty": True, "connections": 4, "buffer": 8}
    assert (found.job, found.columns, found.create, found.ignore_unknown) == (
        "nightly", ["a", "b", "day"], True, True)
    assert parse().begin_options == {}
    assert parse(overwrite=True).begin_options == {"mode": "replace", "allow_empty": True}
    assert parse(write="upsert", key="id").begin_options == {
        "mode": "sync", "no_delete": True, "key": ["id"]}


def test_options_of_jdbc_without_effect_are_named():
    found = parse(url=JDBC + "?reWriteBatchedInserts=true", batchsize="1000", numPartitions="8")
    assert len(found.notes) == 3
    assert parse(queryTimeout="5").notes == [
        "the option querytimeout has no effect: pgspate sets no time limit for statements"]
    for part in ("batchsize", "numpartitions has no effect: use `connections`",
                 "reWriteBatchedInserts"):
        assert any(part in note for note in found.notes), part


@pytest.mark.parametrize("options, message", [
    ({"dbtabel": "t"}, "Did you mean `dbtable`"),
    ({"nonsense": "t"}, "The options are url, dbtable"),
    ({"query": "select 1"}, "a query cannot be written to"),
    ({"sessionInitStatement": "set x = 1"}, "is not supported"),
    ({"url": "jdbc:mysql://h/db"}, "the URL is of mysql"),
    ({"service": "s"}, "are both given"),
    ({"write": "replace"}, "Use append, upsert or sync"),
    ({"create": "yes"}, "Use true or false"),
    ({"connections": "many"}, "Use a whole number"),
])
def test_wrong_options_are_refused(options, message):
    with pytest.raises(pgspate.UsageError, match=message):
        parse(**options)


def test_overwrite_contradicts_upsert():
    with pytest.raises(pgspate.UsageError, match="contradict each other"):
        parse(overwrite=True, write="upsert")
