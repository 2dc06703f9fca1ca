"""Nightly predictions of meters: what a job that replaces its results writes every night.

Of each meter's rows a night drops 15 %, changes 43 %, leaves 42 % as they are, and adds as many
as it drops: the mix that a team has published for 400 such jobs. The same seed gives the same
nights to everyone.
"""

import random
from datetime import datetime, timedelta
from pathlib import Path

TABLE = "use_prediction"
KEY = "meter, occurred"
CREATE = (
    f"create table {TABLE} (meter int, occurred timestamp, prediction numeric(12, 3), "
    f"primary key ({KEY}))"
)
DROPPED = ADDED = 0.15
CHANGED = 0.43
BEGIN = datetime(2026, 1, 1)
STEP = timedelta(minutes=15)

Rows = dict[int, str]
"""Prediction by the number of the quarter of an hour."""


def make(folder: Path, meters: int, rows: int, nights: int) -> list[Path]:
    """CSV files of the table before the first night, and of the source of each night."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"meters-{meters}x{rows}-{night}.csv" for night in range(nights + 1)]
    if all(path.exists() for path in paths):
        return paths
    chance = random.Random(41)
    state: list[Rows] = [{at: value(chance) for at in range(rows)} for _ in range(meters)]
    for night, path in enumerate(paths):
        if night > 0:
            state = [next_night(chance, of_meter) for of_meter in state]
        write(path, state)
    return paths


def next_night(chance: random.Random, before: Rows) -> Rows:
    """What is predicted the night after."""
    kept = list(before)
    chance.shuffle(kept)
    dropped, changed = int(len(kept) * DROPPED), int(len(kept) * CHANGED)
    after = {at: before[at] for at in kept[dropped:]}
    after |= {at: value(chance) for at in kept[dropped : dropped + changed]}
    first = max(before) + 1
    after |= {at: value(chance) for at in range(first, first + int(len(kept) * ADDED))}
    return dict(sorted(after.items()))


def value(chance: random.Random) -> str:
    """A prediction."""
    return f"{chance.randrange(10_000_000) / 1000:.3f}"


def write(path: Path, state: list[Rows]) -> None:
    """All meters' rows, by meter and time; complete when it has its name."""
    partial = path.with_suffix(".part")
    with partial.open("w") as out:
        out.write("meter,occurred,prediction\n")
        for meter, rows in enumerate(state, 1):
            out.writelines(f"{meter},{BEGIN + at * STEP},{of}\n" for at, of in rows.items())
    partial.rename(path)
