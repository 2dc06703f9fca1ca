"""Removes a node during a write: `python ray_node.py DSN MARKS` prints how many attempts lost."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import ray
from conftest import wait_until
from faulty_ray import FaultySink, mark_first
from ray.cluster_utils import Cluster

ROWS, PARTS = 40_000, 8
NODE = {"object_store_memory": 100 << 20}


def write_and_remove(cluster: Cluster, dsn: str, marks: str) -> int:
    """Writes while a node is removed. Returns the number of sealed attempts that were left out."""
    other = cluster.add_node(**NODE, num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    sink = FaultySink("t", "wait", range(PARTS), marks, to=dsn)

    def remove_node():
        wait_until(lambda: len(list(Path(marks).glob("*.sealed"))) >= 3, "no parts are sealed")
        cluster.remove_node(other, allow_graceful=False)
        mark_first(marks, "removed")

    thread = threading.Thread(target=remove_node)
    thread.start()
    ray.data.range(ROWS, override_num_blocks=PARTS).write_datasink(sink)
    thread.join()
    return sink.report.losers


if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={
        **NODE, "num_cpus": 1, "include_dashboard": False})
    try:
        print(write_and_remove(cluster, *sys.argv[1:]))
    finally:
        ray.shutdown()
        cluster.shutdown()
