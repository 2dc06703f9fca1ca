"""The operator and the hook of Airflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def airflow(environment, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
        pytest.importorskip("airflow.providers.postgres")
        import pgspate.airflow

        yield pgspate.airflow


@pytest.fixture
def connected(airflow, server, db, monkeypatch):
    """Yields the module, with Airflow's connection `shop` to the database of the test."""
    url = server.url.rpartition("/")[0] + "/" + db.info.dbname
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", url + "?application_name=from_extra")
    return airflow


def test_a_task_that_is_repeated_loads_once(connected, db, tmp_path: Path):
    (tmp_path / "items.csv").write_text("id,name\n1,bolt\n2,nut\n")

    def run(**given):
        operator = connected.PgspateOperator(
            task_id="write", source=str(tmp_path / "items.csv"), table="items", conn_id="shop",
            **given)
        report = operator.execute({})
        json.dumps(report)
        return report

    assert run(options={"create": True, "types": {"id": "int"}})["rows_written"] == 2
    assert run()["rows_written"] == 0
    report = run(command="sync", options={"key": "id", "scope": "all"})
    assert (report["inserted"], report["unchanged"]) == (0, 2)
    assert db.execute("select id, name from items order by id").fetchall() == [
        (1, "bolt"), (2, "nut")]
    with pytest.raises(Exception, match="unknown command"):
        run(command="copy")


def test_the_hook_writes_rows_with_the_extras_of_its_connection(connected, db):
    hook = connected.PgspateHook("shop")
    db.execute("create table items (id int primary key, made_by text "
               "default current_setting('application_name'))")
    assert hook.load([{"id": 1}], "items").rows_written == 1
    assert hook.sync([{"id": 2}], "items", no_delete=True).inserted == 1
    found = db.execute("select id, made_by from items order by id").fetchall()
    assert found == [(1, "from_extra"), (2, "from_extra")]


def test_source_table_and_options_are_templates(airflow):
    operator = airflow.PgspateOperator(task_id="write", source="s3://x/{{ ds }}.csv", table="t",
                                       options={"fleet": "f", "generation": "{{ ds }}"})
    operator.render_template_fields({"ds": "2026-11-22"})
    assert operator.source == "s3://x/2026-11-22.csv"
    assert operator.options["generation"] == "2026-11-22"
