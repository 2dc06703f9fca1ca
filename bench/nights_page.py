"""The page about nightly results, made from results files and nothing else."""

import json
from pathlib import Path
from statistics import median

from report import describe

TITLES = {
    "delete-insert": "`delete`, then `insert` (psycopg 3, executemany)",
    "upsert": "`insert … on conflict do update`, `delete` of the rest (psycopg 3)",
    "orm": "SQLAlchemy's `Session.merge`, known rows read at once before",
    "merge": "COPY into a temporary table, `merge` of what differs (psycopg 3)",
    "pgspate": "**pgspate sync**, all meters in one command",
    "pgspate-shared": "the same with `--lanes 2`",
}

Lines = list[dict]


def page(results: list[Path]) -> str:
    """The page of one or more results files; the first says what the machine is."""
    by_kind: dict[str, Lines] = {}
    for path in results:
        for line in map(json.loads, path.read_text().splitlines()):
            by_kind.setdefault(line["kind"], []).append(line)
    told, nights = by_kind["facts"][0], by_kind.get("night", [])
    parts = [introduction(told, [path.name for path in results])]
    parts += [contenders(told, of(nights, "nights")), unchanged(of(nights, "unchanged"))]
    parts += [long_run(nights), few(by_kind.get("few", [])), AGAIN]
    return "\n".join(part for part in parts if part)


def of(nights: Lines, experiment: str) -> Lines:
    """The nights of an experiment."""
    return [night for night in nights if night["experiment"] == experiment]


def introduction(told: dict, names: list[str]) -> str:
    """What was measured, and on what."""
    files = ", ".join(f"[{name}](results/{name})" for name in names)
    return f"""# Nightly results, measured

Every number is in {files}, from which `bench/nights.sh` makes this page.

{describe(told)}

A table of predictions, keyed by meter and time, has {told["meters"]} meters with
{told["rows"]:,} rows each. A night's source drops 15 % of them, changes 43 %, leaves 42 % as
they are, and adds as many as it drops; each contender makes the table like it, from the same
start and with the same nights, and ends with the same table, which is checked. Autovacuum is
off unless a line says otherwise. The contenders in Python have a night's rows in memory before
their clock starts, and write one meter per transaction; pgspate's time is that of the whole
command, which reads them from a CSV file.
"""


def contenders(told: dict, nights: Lines) -> str:
    """All nights of each contender, added up."""
    lines = [
        f"## {told['nights']} nights\n",
        "| | seconds | of SQLAlchemy's | WAL MB | dead rows | table MB | server CPU s "
        "| client CPU s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    sums = {name: total(mine) for name in TITLES if (mine := by(nights, name))}
    base = sums.get("orm", {}).get("seconds")
    for name, its in sums.items():
        ratio = f"{base / its['seconds']:.1f}×" if base else "–"
        lines.append(
            f"| {TITLES[name]} | {its['seconds']:.1f} | {ratio} | {its['wal_bytes'] / 1e6:,.0f} "
            f"| {its['dead']:,} | {its['table_bytes'] / 1e6:,.0f} | {its['server_cpu_s']:.1f} "
            f"| {its['client_cpu_s']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def by(nights: Lines, contender: str) -> Lines:
    """The nights of a contender."""
    return [night for night in nights if night["contender"] == contender]


def total(nights: Lines) -> dict:
    """What nights took together, and what the last one left."""
    sums = ("seconds", "wal_bytes", "server_cpu_s", "client_cpu_s")
    return nights[-1] | {name: sum(night[name] for night in nights) for name in sums}


def unchanged(nights: Lines) -> str:
    """A night without a change."""
    if not nights:
        return ""
    rows = [
        f"| {TITLES[it['contender']]} | {it['seconds']:.2f} | {it['wal_bytes'] / 1e6:.1f} "
        f"| {it['dead']:,} |"
        for it in nights
    ]
    head = "| | seconds | WAL MB | dead rows |\n|---|---:|---:|---:|\n"
    return "## A night on which nothing has changed\n\n" + head + "\n".join(rows) + "\n"


def long_run(nights: Lines) -> str:
    """What more nights leave."""
    titles = {
        "ten-100": "fillfactor 100, no autovacuum",
        "ten-60": "fillfactor 60, no autovacuum",
        "ten-merge": "the staged `merge` meter by meter, fillfactor 100, no autovacuum",
        "ten-own-100": "`--vacuum`, fillfactor 100",
        "ten-own-60": "`--vacuum`, fillfactor 60",
        "ten-turns-100": "`--vacuum --transactions 2`, fillfactor 100",
        "ten-turns-60": "`--vacuum --transactions 2`, fillfactor 60",
        "ten-vacuum": "fillfactor 100, autovacuum between the nights",
        "ten-vacuum-turns": "the same with `--vacuum --transactions 2`",
    }
    found = {name: mine for name in titles if (mine := of(nights, name))}
    if not found:
        return ""
    count = len(next(iter(found.values())))
    lines = [
        f"## {count} nights\n",
        "| | seconds | WAL MB | dead rows | table MB after the first | table MB in the end "
        "| indexes MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, mine in found.items():
        its = total(mine)
        lines.append(
            f"| {titles[name]} | {its['seconds']:.1f} | {its['wal_bytes'] / 1e6:,.0f} "
            f"| {its['dead']:,} | {mine[0]['table_bytes'] / 1e6:.1f} "
            f"| {its['table_bytes'] / 1e6:.1f} | {its['index_bytes'] / 1e6:.1f} |"
        )
    return "\n".join(lines) + "\n"


def few(lines: Lines) -> str:
    """A large table of which little changes."""
    if not lines:
        return ""
    load, sync = (
        median(line["seconds"] for line in lines if line["what"] == what)
        for what in ("load", "sync")
    )
    return (
        "## One row in a hundred\n\n"
        f"Of a table of {lines[0]['rows']:,} rows one in a hundred differs: `pgspate sync` takes "
        f"{sync:.1f} s, {sync / load:.2f} times as long as `pgspate load` of the same file into a "
        f"bare table ({load:.1f} s); medians of {len(lines) // 2} rounds.\n"
    )


AGAIN = """## Do it again

```
bench/nights.sh
```

It needs what `bench/run.sh` needs. `--report FILE...` makes this page again from results files.
"""
