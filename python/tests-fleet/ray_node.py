"""Removes a node during a write: `python ray_node.py DSN MARKS` prints how many attempts lost."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import ray
from conftest import wait_until
from faulty import FaultyTicket, mark_first
from ray.cluster_utils import Cluster

import pgspate.ray
from pgspate import _engine

ROWS, PARTS = 40_000, 8
NODE = {"object_store_memory": 100 << 20}


def write_and_remove(cluster: Cluster, dsn: str, marks: str) -> int:
    """Writes while a node is removed. Returns the number of sealed attempts that were left out."""
    other = cluster.add_node(**NODE, num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    make = _engine.begin_write
    _engine.begin_write = lambda *arguments, **options: FaultyTicket.of(
        make(*arguments, **options), "wait after", tuple(range(PARTS)), marks)

    def remove_node():
        wait_until(lambda: len(list(Path(marks).glob("*.sealed"))) >= 3, "no parts are sealed")
        cluster.remove_node(other, allow_graceful=False)
        mark_first(marks, "removed")

    thread = threading.Thread(target=remove_node)
    thread.start()
    rows = ray.data.range(ROWS, override_num_blocks=PARTS)
    report = pgspate.ray.write_postgres(rows, "t", to=dsn)
    thread.join()
    return report.losers


if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={
        **NODE, "num_cpus": 1, "include_dashboard": False})
    try:
        print(write_and_remove(cluster, *sys.argv[1:]))
    finally:
        ray.shutdown()
        cluster.shutdown()
