"""The calls `doctor` and `tune`."""

from __future__ import annotations

import asyncio
import json

import pytest

import pgspate
import pgspate.aio


def test_findings_have_evidence_and_remedy(db, dsn, tmp_path):
    db.execute("create table m (id int primary key); "
               "create table \"<b>\" (id int primary key, m int references m)")
    db.execute("insert into m select generate_series(1, 1000); "
               "insert into \"<b>\" select n, n % 1000 + 1 from generate_series(1, 20000) n; "
               "analyze")
    found = asyncio.run(pgspate.aio.doctor(to=dsn, table='"<b>"', watch=0))
    [finding] = [it for it in found.findings if it.id == "foreign-key-indexes"]
    assert finding.is_trouble and finding.object == 'public."<b>"'
    assert "m_fkey" in finding.evidence
    assert any(sql.startswith("create index") for sql in finding.remedy)
    assert finding in found.trouble and found.role and "foreign-key-indexes" in repr(found)
    facts = json.loads(json.dumps(found.to_dict()))
    assert len(facts["findings"]) == len(found.findings) > 5
    for page in (found._repr_html_(), finding._repr_html_()):
        assert "create index" in page and "&lt;b&gt;" in page and "<b>" not in page
    picture = tmp_path / "p.svg"
    pgspate.doctor(to=dsn, table='"<b>"', watch=0, picture=picture)
    assert picture.read_text().startswith("<svg")
    with pytest.raises(pgspate.UsageError, match="no table"):
        pgspate.doctor(to=dsn, table="nowhere", watch=0)
    with pytest.raises(ValueError, match="watch"):
        pgspate.doctor(to=dsn, watch="long")
    with pytest.raises(TypeError):
        pgspate.doctor(dsn)


def test_settings_are_proposed_applied_and_reverted():
    with pgspate.server(temporary=True) as server:
        machine = {"to": server, "memory": "16GiB", "cpus": 4}
        tuning = pgspate.tune(**machine)
        page = tuning._repr_html_()
        assert "<th" in page and "needs restart" in page and "max_wal_size" in page
        proposal = {it["name"]: it for it in tuning.proposals}["max_wal_size"]
        assert proposal["reason"] and "max_wal_size" in repr(tuning) and not tuning.changed
        assert "alter system set max_wal_size" in pgspate.tune(emit="sql", **machine).text
        group = pgspate.tune(emit="rds", parameter_group="mine", **machine).text
        assert json.loads(group)["DBParameterGroupName"] == "mine"
        applied = pgspate.tune(apply=True, **machine)
        assert proposal["value"] == dict(applied.changed)["max_wal_size"]
        assert "max_wal_size" in asyncio.run(pgspate.aio.tune(**machine)).outstanding
        reverted = pgspate.tune(revert=True, to=server)
        assert dict(reverted.changed)["max_wal_size"] == proposal["now"]
        with pytest.raises(pgspate.UsageError, match="apply"):
            pgspate.tune(apply=True, revert=True, to=server)
