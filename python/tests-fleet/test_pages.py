"""Tests that the guides and examples for Spark, Ray and dlt run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import HERE

ROOT = HERE.parents[1]


@pytest.mark.parametrize("page, blocks", [
    ("spark", 5), ("ray", 4), ("dlt", 1), ("dask-prefect-dagster", 1)])
def test_a_guide_runs(page, blocks, tmp_path):
    """Each guide runs in a process of its own, because Spark and Ray start once per process."""
    program = [sys.executable, str(ROOT / "python/guide.py"), str(ROOT / f"docs/how-to/{page}.md")]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = int(done.stdout.rsplit(":", 1)[1].split()[0])
    assert found >= blocks


@pytest.mark.parametrize("name, shown", [
    ("spark_job", "28834 rows in 4 parts"), ("ray_job", "30 of 30 members done")])
def test_an_example_runs(name, shown, tmp_path):
    program = [sys.executable, str(ROOT / f"examples/{name}.py")]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert shown in done.stdout.replace(",", ""), done.stdout
