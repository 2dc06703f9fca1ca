"""The page of results, made from a results file and nothing else."""

import json
import statistics
from pathlib import Path

import contenders
from contenders import Contender

TITLES = {
    "lineitem-csv": "TPC-H lineitem from CSV",
    "lineitem-keyed": "TPC-H lineitem from CSV, into a table with indexes",
    "lineitem-parquet": "TPC-H lineitem from Parquet",
}

NOTES = {
    "lineitem-csv": "16 columns: bigint, integer, numeric(15, 2), date, text.",
    "lineitem-keyed": "A primary key on order and line, indexes on part and ship date.",
    "lineitem-parquet": "The same rows. psql cannot read Parquet; the ratios are to its CSV load.",
}

Trials = list[dict]


def page(results: list[Path]) -> str:
    """The page of one or more results files; the first says what the machine is."""
    by_kind: dict[str, list[dict]] = {}
    for path in results:
        for line in map(json.loads, path.read_text().splitlines()):
            by_kind.setdefault(line["kind"], []).append(line)
    facts = by_kind["facts"][0]
    parts = [introduction(facts, [path.name for path in results])]
    trials = by_kind.get("trial", [])
    parts += [dataset_part(name, trials, by_kind.get("input", [])) for name in TITLES]
    parts += [memory_part(by_kind.get("memory", [])), missing_part(by_kind.get("missing", []))]
    parts += [rerun_part(facts)]
    return "\n".join(part for part in parts if part)


def introduction(facts: dict, names: list[str]) -> str:
    """Returns the head of the page: how and on what machine was measured."""
    files = ", ".join(f"[{name}](results/{name})" for name in names)
    return f"""# Loading, measured

Medians over the rounds, least and greatest in brackets; a number alone is a single run.
Every trial is in {files}, from which `bench/run.sh` makes this page.

{describe(facts)}

- Client and server share the machine and talk over a Unix socket.
- In each round every contender has its turn. Each round begins with another contender.
- Each trial begins with an empty table right after a checkpoint, without indexes unless the
  title says so.
- The time is that of the whole command with its start.
- Every table was compared with the one psql makes: rows, and a checksum over all values.
- *Server CPU* is that of all of PostgreSQL's processes.
- *Memory* is the client's peak, added up over its processes.
- pgspate keeps its ledger unless a line says otherwise. It runs without the `analyze` after the
  load, as the other contenders run none.
- The *limit* has two connections. If the server waits for its disk, more lanes can overlap
  waits and be faster than the limit.
"""


def describe(facts: dict) -> str:
    """The machine and the programs, as a table."""
    peers = ", ".join(f"{name} {version}" for name, version in facts["peers"].items())
    settings = ", ".join(f"{name}={value}" for name, value in facts["settings"].items())
    cores = f"{facts['cores']} cores"
    memory = f"{facts['memory_bytes'] / 2**30:.0f} GiB"
    return f"""| | |
|---|---|
| date, commit | {facts["date"]}, {facts["commit"] or "unknown"} |
| machine | {facts["cpu"]}, {cores}, {memory} memory, {facts["kernel"]}, {facts["filesystem"]} |
| load average at the start | {facts["load_average"]:.1f} |
| PostgreSQL | {facts["postgresql"]}: {settings}; the rest as it comes |
| programs | {peers} |"""


def dataset_part(dataset: str, trials: Trials, inputs: list[dict]) -> str:
    """The table of one input; empty when nothing was loaded from it."""
    mine = [trial for trial in trials if trial["dataset"] == dataset]
    if not mine:
        return ""
    table = {line["dataset"]: line["table"] for line in inputs}
    related = [trial for trial in trials if table[trial["dataset"]] == table[dataset]]
    about = next(line for line in inputs if line["dataset"] == dataset)
    rows = max(trial["rows"] for trial in related)
    lines = [
        f"## {TITLES[dataset]}\n",
        f"{about['title']}: {rows:,} rows, {about['bytes'] / 1e6:,.0f} MB. {NOTES[dataset]}\n",
        "| | seconds | rows/s | speed of psql | of the limit | server CPU s | client CPU s "
        "| memory MB | WAL MB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    base = median_wall(mine, contenders.BASELINE) or median_wall(related, contenders.BASELINE)
    limit = median_wall(mine, contenders.LIMIT) or median_wall(related, contenders.LIMIT)
    failures = []
    for contender in contenders.of(dataset):
        its = [trial for trial in mine if trial["contender"] == contender.name]
        good = [trial for trial in its if not trial["failure"]]
        if good:
            lines.append(row(contender, good, base, limit))
        bad = [trial for trial in its if trial["failure"]]
        failures += [failure(contender, bad, len(its))] if bad else []
    return "\n".join(lines + ([""] + failures if failures else [])) + "\n"


def row(contender: Contender, trials: Trials, base: float | None, limit: float | None) -> str:
    """Returns one contender's row of the table."""
    wall = median(trials, "wall_s")
    cells = [
        contender.title,
        spread(trials, "wall_s"),
        f"{median(trials, 'rows') / wall:,.0f}",
        f"{base / wall:.2f}×" if base else "–",
        f"{limit / wall:.0%}" if limit else "–",
        spread(trials, "server_cpu_s"),
        spread(trials, "client_cpu_s"),
        f"{median(trials, 'client_rss_bytes') / 1e6:,.0f}",
        f"{median(trials, 'wal_bytes') / 1e6:,.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def failure(contender: Contender, bad: Trials, of: int) -> str:
    """Returns the line about a contender's failed trials."""
    words = bad[0]["failure"].splitlines()[-1]
    return f"**{contender.title.strip('*')}** failed in {len(bad)} of {of} trials: `{words}`  "


def median(trials: Trials, key: str) -> float:
    """Median of a number over trials."""
    return statistics.median(trial[key] for trial in trials)


def median_wall(trials: Trials, contender: str) -> float | None:
    """Median time of one contender's good trials; none when it has none."""
    good = [t for t in trials if t["contender"] == contender and not t["failure"]]
    return median(good, "wall_s") if good else None


def spread(trials: Trials, key: str) -> str:
    """Median, least and greatest."""
    values = [trial[key] for trial in trials]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def memory_part(trials: Trials) -> str:
    """pgspate's memory by size of input."""
    if not trials:
        return ""
    lines = [
        "## Memory does not grow with the input\n",
        "Repeated rows of lineitem from a pipe into `pgspate load -`; the program that writes to",
        "the pipe is not counted.\n",
        "| input MB | rows | peak memory MB | seconds |",
        "|---:|---:|---:|---:|",
    ]
    for trial in {trial["input_bytes"]: trial for trial in trials}.values():
        size = f"| {trial['input_bytes'] / 1e6:,.0f} | {trial['rows']:,} "
        if trial["failure"]:
            lines.append(f"{size}| failed: {trial['failure'].splitlines()[-1]} | – |")
        else:
            memory = f"{trial['client_rss_bytes'] / 1e6:,.0f}"
            lines.append(f"{size}| {memory} | {trial['wall_s']:.1f} |")
    return "\n".join(lines) + "\n"


def missing_part(missing: list[dict]) -> str:
    """Returns the list of missing peers, with the reasons."""
    if not missing:
        return ""
    lines = {f"- {line['peer']}: {line['reason']}": None for line in missing}
    return "## Missing here\n\n" + "\n".join(lines) + "\n"


def rerun_part(facts: dict) -> str:
    """Returns the section on how to run the benchmark again."""
    flags = "" if facts["scale"] == 1 else f" --scale {facts['scale']:g}"
    flags += f" --repeats {facts['repeats']}"
    return f"""## Do it again

```
bench/run.sh{flags}
```

The benchmark needs Linux, Python 3.11, a PostgreSQL server's programs (`--pg-bin`) and pip. As
root it also installs pgloader with apt-get. Data and peers go to a cache folder (`--cache`), never
into the repository. The benchmark starts its own server in a temporary folder,
and removes both.

| option | effect |
|---|---|
| `--only 'lineitem-csv/p*,memory'` | choose by input, by contender or both |
| `--list` | name inputs and contenders |
| `--large` | add the memory trial with 10 GB |
| `--report FILE...` | make this page again from results files |
"""
