"""How much memory pgspate needs for a small and for a large stdin: it should not differ."""

import sys

import contenders
from contenders import Stage
from datasets import Dataset
from peers import say
from places import BENCH
from principals import rows_of_bytes
from trials import Session

SMALL_BYTES = 100_000_000
LARGE_BYTES = 10_000_000_000


def run_memory(session: Session, dataset: Dataset, sizes: list[int]) -> int:
    """Pipe generated rows of each size into pgspate; how many loads failed."""
    return sum(not piped(session, dataset, size) for size in sizes)


def piped(session: Session, dataset: Dataset, size: int) -> bool:
    """One load from a pipe: peak memory, time, rows."""
    stage = Stage(session.places, session.server, dataset)
    session.reset(dataset.table)
    feeder = [sys.executable, str(BENCH / "principals.py"), "--bytes", str(size)]
    load = contenders.pgspate_load(stage, "-", *contenders.IMDB)
    usage = session.run([[feeder, load]], feeders=1)
    rows = int(session.server.sql(f"select count(*) from {dataset.table}")[0][0])
    failure = session.without_folders(usage.failure)
    expected = rows_of_bytes(size)
    if not failure and rows != expected:
        failure = f"wrong contents: {rows} rows, the input has {expected}"
    session.record(
        {
            "kind": "memory",
            "contender": "pgspate",
            "input_bytes": size,
            "client_rss_bytes": usage.rss_bytes,
            "wall_s": round(usage.wall_s, 3),
            "client_cpu_s": round(usage.cpu_s, 3),
            "rows": rows,
            "failure": failure,
        }
    )
    session.reset(dataset.table)
    say(f"memory {size / 1e6:.0f} MB  {failure or f'{usage.rss_bytes / 1e6:.0f} MB'}")
    return not failure
