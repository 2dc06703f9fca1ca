"""Makes the page of results, docs/bench/load.md, from results files."""

import json
import statistics
from pathlib import Path

import contenders
from contenders import Contender

DATASET_TITLES = {
    "lineitem-csv": "TPC-H lineitem from CSV",
    "lineitem-keyed": "TPC-H lineitem from CSV, into a table with indexes",
    "lineitem-parquet": "TPC-H lineitem from Parquet",
}

DATASET_NOTES = {
    "lineitem-csv": "16 columns: bigint, integer, numeric(15, 2), date, text.",
    "lineitem-keyed": "A primary key on order and line, indexes on part and ship date.",
    "lineitem-parquet": (
        "The same rows. psql cannot read Parquet, so speeds are relative to its CSV load."
    ),
}

TrialLines = list[dict]


def build_page(results: list[Path]) -> str:
    """Returns the page for results files; the first file describes the machine."""
    by_kind: dict[str, list[dict]] = {}
    for path in results:
        for line in map(json.loads, path.read_text().splitlines()):
            by_kind.setdefault(line["kind"], []).append(line)
    facts = by_kind["facts"][0]
    parts = [introduction(facts, [path.name for path in results])]
    trials = by_kind.get("trial", [])
    parts += [dataset_part(name, trials, by_kind.get("input", [])) for name in DATASET_TITLES]
    parts += [memory_part(by_kind.get("memory", [])), missing_part(by_kind.get("missing", []))]
    parts += [rerun_part(facts)]
    return "\n".join(part for part in parts if part)


def introduction(facts: dict, names: list[str]) -> str:
    """Returns the head of the page: the machine, and how trials are measured."""
    files = ", ".join(f"[{name}](results/{name})" for name in names)
    return f"""# Load benchmark

Each figure is the median over the rounds. The lowest and the highest time follow in brackets,
unless the contender ran once.
Every trial is in {files}, from which `bench/run.sh` makes this page.

{machine_table(facts)}

- Client and server share the machine and talk over a Unix socket.
- Each round runs every contender once. Each round starts with a different contender.
- Each trial begins right after a checkpoint, with an empty table. The table has
  indexes only if the title says so.
- The time is that of the whole command, including the start of its program.
- After each trial, the row count and a checksum of all values were compared with psql's table.
- *Server CPU* is the CPU time of all PostgreSQL processes.
- *Memory* is the sum of the peaks of the client's processes.
- pgspate also writes its ledger, unless the contender's name says otherwise. It runs with
  `--analyze never`, because no other contender analyzes the table.
- The *limit* is COPY of two ready binary files over two connections. If the server waits for its
  disk, a load with more connections can be faster than the limit.
"""


def machine_table(facts: dict) -> str:
    """Returns a table of the machine and the programs."""
    peers = ", ".join(f"{name} {version}" for name, version in facts["peers"].items())
    settings = ", ".join(f"{name}={value}" for name, value in facts["settings"].items())
    cores = f"{facts['cores']} cores"
    memory = f"{facts['memory_bytes'] / 2**30:.0f} GiB"
    return f"""| | |
|---|---|
| date, commit | {facts["date"]}, {facts["commit"] or "unknown"} |
| machine | {facts["cpu"]}, {cores}, {memory} memory, {facts["kernel"]}, {facts["filesystem"]} |
| load average at the start | {facts["load_average"]:.1f} |
| PostgreSQL | {facts["postgresql"]}: {settings}; defaults otherwise |
| programs | {peers} |"""


def dataset_part(dataset: str, trials: TrialLines, inputs: list[dict]) -> str:
    """Returns the section with the table of one input, or an empty string if it has no trials."""
    dataset_trials = [trial for trial in trials if trial["dataset"] == dataset]
    if not dataset_trials:
        return ""
    table = {line["dataset"]: line["table"] for line in inputs}
    related = [trial for trial in trials if table[trial["dataset"]] == table[dataset]]
    input_line = next(line for line in inputs if line["dataset"] == dataset)
    rows = max(trial["rows"] for trial in related)
    lines = [
        f"## {DATASET_TITLES[dataset]}\n",
        f"{input_line['title']}: {rows:,} rows, {input_line['bytes'] / 1e6:,.0f} MB. "
        f"{DATASET_NOTES[dataset]}\n",
        "| | seconds | rows/s | speed relative to psql | relative to the limit "
        "| server CPU s | client CPU s | memory MB | WAL MB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    psql_s = median_wall(dataset_trials, contenders.BASELINE) or median_wall(
        related, contenders.BASELINE
    )
    limit_s = median_wall(dataset_trials, contenders.PHYSICAL_LIMIT) or median_wall(
        related, contenders.PHYSICAL_LIMIT
    )
    failures = []
    for contender in contenders.contenders_for(dataset):
        contender_trials = [
            trial for trial in dataset_trials if trial["contender"] == contender.name
        ]
        good = [trial for trial in contender_trials if not trial["failure"]]
        if good:
            lines.append(contender_row(contender, good, psql_s, limit_s))
        bad = [trial for trial in contender_trials if trial["failure"]]
        failures += [failure_line(contender, bad, len(contender_trials))] if bad else []
    return "\n".join(lines + ([""] + failures if failures else [])) + "\n"


def contender_row(
    contender: Contender, trials: TrialLines, psql_s: float | None, limit_s: float | None
) -> str:
    """Returns one contender's row of the table."""
    wall = median(trials, "wall_s")
    cells = [
        contender.title,
        median_and_range(trials, "wall_s"),
        f"{median(trials, 'rows') / wall:,.0f}",
        f"{psql_s / wall:.2f}×" if psql_s else "–",
        f"{limit_s / wall:.0%}" if limit_s else "–",
        median_and_range(trials, "server_cpu_s"),
        median_and_range(trials, "client_cpu_s"),
        f"{median(trials, 'client_rss_bytes') / 1e6:,.0f}",
        f"{median(trials, 'wal_bytes') / 1e6:,.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def failure_line(contender: Contender, bad: TrialLines, trial_count: int) -> str:
    """Returns the line that reports a contender's failed trials."""
    message = bad[0]["failure"].splitlines()[-1]
    title = contender.title.strip("*")
    return f"**{title}** failed in {len(bad)} of {trial_count} trials: `{message}`  "


def median(trials: TrialLines, key: str) -> float:
    """Returns the median of a field over trials."""
    return statistics.median(trial[key] for trial in trials)


def median_wall(trials: TrialLines, contender: str) -> float | None:
    """Returns the median time of a contender's successful trials; None if it has none."""
    good = [t for t in trials if t["contender"] == contender and not t["failure"]]
    return median(good, "wall_s") if good else None


def median_and_range(trials: TrialLines, key: str) -> str:
    """Returns the median, lowest and highest value; if there is one value, only that value."""
    values = [trial[key] for trial in trials]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def memory_part(trials: TrialLines) -> str:
    """Returns the section on pgspate's memory by size of input."""
    if not trials:
        return ""
    lines = [
        "## Memory does not grow with the input\n",
        "Repeated rows of lineitem are piped into `pgspate load -`. The memory of the program that",
        "writes to the pipe is not counted.\n",
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
    """Returns the section on missing peers, with the reasons."""
    if not missing:
        return ""
    lines = {f"- {line['peer']}: {line['reason']}": None for line in missing}
    return "## Missing peers\n\n" + "\n".join(lines) + "\n"


def rerun_part(facts: dict) -> str:
    """Returns the section on how to run the benchmark again."""
    flags = "" if facts["scale"] == 1 else f" --scale {facts['scale']:g}"
    flags += f" --repeats {facts['repeats']}"
    return f"""## Run it again

```
bench/run.sh{flags}
```

The benchmark needs Linux, Python 3.11, a PostgreSQL server's programs (`--pg-bin`) and pip. If
run as root, the benchmark also installs pgloader with apt-get. Data and peers are kept in a cache
folder (`--cache`) outside the repository. The benchmark starts its own server in a temporary
folder, and removes server and folder at the end.

| option | effect |
|---|---|
| `--only 'lineitem-csv/p*,memory'` | run only these inputs, contenders or INPUT/CONTENDER |
| `--list` | print the names that `--only` accepts |
| `--large` | also measure memory with 10 GB on stdin |
| `--report FILE...` | only make this page from results files |
"""
