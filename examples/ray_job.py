"""Writes with Ray on this machine: `python ray_job.py [CONNECTION STRING]`.

Needs `pgspate[ray]`. Without a connection string, pgspate starts a temporary server. A dataset is
written by four tasks, and 30 meters are synced by a task each, over at most 6 connections.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pgspate.ray
import ray

FLIGHTS = str(Path(__file__).parent / "flights-2013-03.parquet")


def readings(meter: int) -> list[dict[str, float]]:
    return [{"meter": meter, "hour": hour, "use": (meter * 7 + hour * 13) % 50 / 10}
            for hour in range(24)]


def write(url: str) -> None:
    flights = ray.data.read_parquet(FLIGHTS).repartition(4)
    print(pgspate.ray.write_postgres(
        flights, "ray_flights", to=url, create=True, job="flights 2013-03"))
    pgspate.sync(readings(0), "ray_readings", to=url, create=True, key=["meter", "hour"],
                 scope_by="meter")
    print(pgspate.ray.sync_each(
        range(30), readings, "ray_readings", to=url, scope_by="meter", connections=6))


if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    try:
        if len(sys.argv) > 1:
            write(sys.argv[1])
        else:
            with pgspate.server(temporary=True) as server:
                write(server.url)
    finally:
        ray.shutdown()
