"""How much memory pgspate needs for a small and for a large stdin: it should not differ."""

import contenders
from contenders import Stage
from datasets import Dataset
from peers import say
from trials import Session

LARGE_BYTES = 10_000_000_000
CSV = ["--format", "csv", "--header", "yes"]
# A file whole, then without its header as many times as it is to come again.
FEED = 'cat "$0"; for n in $(seq "$1"); do tail -n +2 "$0"; done'


def run_memory(session: Session, dataset: Dataset, large: bool) -> int:
    """Pipe the rows into pgspate, once and until they are many; how many loads failed."""
    again = [0, int(LARGE_BYTES / dataset.path.stat().st_size)] if large else [0]
    return sum(not piped(session, dataset, times) for times in again)


def piped(session: Session, dataset: Dataset, again: int) -> bool:
    """One load from a pipe: peak memory, time, rows."""
    stage = Stage(session.places, session.server, dataset)
    session.reset(dataset.table)
    feeder = ["sh", "-c", FEED, stage.path, str(again)]
    load = contenders.pgspate_load(stage, "-", *CSV)
    usage = session.run([[feeder, load]], feeders=1)
    rows = int(session.server.sql(f"select count(*) from {dataset.table}")[0][0])
    failure = session.without_folders(usage.failure)
    with dataset.path.open("rb") as file:
        header = len(file.readline())
        expected = sum(1 for _ in file) * (1 + again)
    if not failure and rows != expected:
        failure = f"wrong contents: {rows} rows, the input has {expected}"
    size = header + (dataset.path.stat().st_size - header) * (1 + again)
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
