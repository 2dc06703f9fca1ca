"""Model a load as a pipeline, and say which stage holds it up on larger machines.

Measures the cost of each stage on this machine, checks the model against runs with one and with two
processors, and writes docs/bench/model.md, docs/bench/model.svg and
docs/bench/results/DATE-model.jsonl. Exit status: 0, or 1 if a load failed.
"""

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import datasets
import facts
import measure
import model_page
import peers
from peers import print_progress
from places import REPOSITORY, Places, cache_folder, find_pg_bin, find_pgspate
from server import Server

TABLE = "lineitem"
# Processors for client and server together, and lanes. The first is the one that gives the costs.
COST_RUN = (2, 1)
CHECKED_RUNS = [(1, 1), (1, 2), (2, 1), (2, 2)]
# One thread decompresses a file, beside the lanes.
UNCOMPRESSED = {"CSV, gzip": "CSV"}


@dataclass(frozen=True)
class Costs:
    """What a load of one file costs: seconds of one processor, or bytes."""

    rows: int
    source_s: float
    """Reading, decompressing and cutting, which one thread at a time does for a file."""
    lanes_s: float
    """The rest of the client: encoding and sending, which lanes share."""
    server_s: float
    wire_bytes: int
    fixed_s: float
    """The start, the plan, the last commit and the end."""

    def stage_seconds(self, cores: int, lanes: int, gigabits: float | None) -> dict[str, float]:
        """Returns the least time by each stage. Client and server have `cores` each."""
        stages = {
            "source": self.source_s,
            "lanes": self.lanes_s / min(lanes, cores),
            "server": self.server_s / min(lanes, cores),
        }
        if gigabits:
            stages["network"] = self.wire_bytes * 8 / (gigabits * 1e9)
        return stages

    def seconds(self, cores: int, gigabits: float | None = None) -> tuple[float, str]:
        """Returns the predicted time with as many lanes as cores, and the slowest stage."""
        stages = self.stage_seconds(cores, cores, gigabits)
        slowest = max(stages, key=stages.__getitem__)
        return self.fixed_s + stages[slowest], slowest

    def shared_seconds(self, cores: int, lanes: int) -> float:
        """Returns the predicted time if client and server share `cores`."""
        work = (self.source_s + self.lanes_s + self.server_s) / cores
        return self.fixed_s + max(work, *self.stage_seconds(cores, lanes, None).values())


@dataclass
class Run:
    """A load: a line of the results file."""

    input: str
    cores: int
    lanes: int
    repeat: int
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    stages: dict
    kind: str = "run"


def main() -> int:
    """Measures, writes the results and the page, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench/model.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 2.4 M rows of lineitem")
    parser.add_argument("--pg-bin", metavar="DIR")
    parser.add_argument("--pgspate", metavar="FILE")
    parser.add_argument("--cache", metavar="DIR")
    parser.add_argument("--out", metavar="DIR", default=str(REPOSITORY / "docs" / "bench"))
    parser.add_argument("--report", metavar="FILE", help="only make the page from these results")
    args = parser.parse_args()
    results = Path(args.out, "results", f"{date.today()}-model.jsonl")
    if args.report:
        results = Path(args.report)
    else:
        measure_all(args, results)
    about, costs, checks = read_results(results)
    page, plot = model_page.build(about, costs, checks, results.name)
    Path(args.out, "model.md").write_text(page)
    Path(args.out, "model.svg").write_text(plot)
    return 0


def measure_all(args: argparse.Namespace, results: Path) -> None:
    """Loads each file with each number of processors and lanes, and writes the results."""
    places = Places(
        cache_folder(args.cache), find_pg_bin(args.pg_bin), find_pgspate(args.pgspate, build=True)
    )
    places.cache.mkdir(parents=True, exist_ok=True)
    peers.find_or_install_peers(places, install=True)
    inputs = make_inputs(places, args.scale)
    with Server(places) as server, results.open("w") as out:
        write_line(out, facts.collect_facts(server, {}, args.scale, args.repeats))
        for name, path in inputs.items():
            measure_input(places, server, name, path, args.repeats, out)
            write_line(out, {"kind": "sizes", "input": name, **sizes_of_table(places, server)})


def read_results(results: Path) -> tuple[dict, dict[str, Costs], model_page.Checks]:
    """Returns the facts, and by input its costs and the predicted and measured times."""
    records = [json.loads(line) for line in results.read_text().splitlines()]
    about = next(record for record in records if record["kind"] == "facts")
    sizes = {record["input"]: record for record in records if record["kind"] == "sizes"}
    costs, checks = {}, {}
    for name in sizes:
        runs: dict[tuple[int, int], list[dict]] = {}
        for record in records:
            if record["kind"] == "run" and record["input"] == name:
                runs.setdefault((record["cores"], record["lanes"]), []).append(record)
        costs[name] = costs_of(sizes[name], runs[COST_RUN], costs.get(UNCOMPRESSED.get(name)))
        checks[name] = [
            (key, costs[name].shared_seconds(*key), median(runs[key], "wall_s"))
            for key in CHECKED_RUNS
        ]
    return about, costs, checks


def write_line(out, record: dict) -> None:
    """Writes a line of the results file."""
    out.write(json.dumps(record) + "\n")
    out.flush()


def make_inputs(places: Places, scale: float) -> dict[str, Path]:
    """Returns the files by their formats. Each is read once, so that all are in the page cache."""
    csv, _, parquet = datasets.make_datasets(places, scale)
    compressed = csv.path.with_suffix(".csv.gz")
    if not compressed.exists():
        print_progress(f"making {compressed.name}")
        partial = compressed.with_suffix(".partial")
        with csv.path.open("rb") as file, gzip.open(partial, "wb", 6) as gz:
            shutil.copyfileobj(file, gz, 1 << 20)
        os.replace(partial, compressed)
    inputs = {"CSV": csv.path, "CSV, gzip": compressed, "Parquet": parquet.path}
    for path in inputs.values():
        datasets.read_into_page_cache(path)
    return inputs


def measure_input(places: Places, server: Server, name: str, path: Path, repeats: int, out) -> None:
    """Runs each load `repeats` times, round by round."""
    for repeat in range(repeats):
        for cores, lanes in CHECKED_RUNS:
            run = load(places, server, path, cores, lanes)
            run.input, run.repeat = name, repeat
            print_progress(f"{name}: {cores} processors, {lanes} lanes: {run.wall_s:.2f} s")
            write_line(out, asdict(run))


def load(places: Places, server: Server, path: Path, cores: int, lanes: int) -> Run:
    """Loads the file with client and server on the same `cores` processors."""
    server.sql(f"drop table if exists {TABLE}; {datasets.create_table_sql(TABLE)}; checkpoint")
    processors = set(sorted(os.sched_getaffinity(0))[:cores])
    os.sched_setaffinity(server.pid, processors)
    command = [str(places.pgspate), "load", str(path), "--table", TABLE, "--lanes", str(lanes)]
    command += ["--analyze", "never", "--no-ledger", "--quiet", "--json"]
    idle = len(measure.child_pids(server.pid))
    before = measure.server_cpu_s(server.pid)
    pinned = ["taskset", "-c", ",".join(map(str, sorted(processors))), *command]
    used = measure.run_pipelines([[pinned]], server.environment(), server.folder, 600)
    if used.failure:
        raise SystemExit(f"error: {used.failure}")
    measure.wait_for_process_count(server.pid, idle)
    server_cpu = measure.server_cpu_s(server.pid) - before
    stages = json.loads(used.output)["stages"]
    return Run("", cores, lanes, 0, used.wall_s, used.cpu_s, server_cpu, stages)


def median(runs: list[dict], name: str) -> float:
    """Returns the median of a field."""
    return statistics.median(run[name] for run in runs)


def costs_of(sizes: dict, runs: list[dict], uncompressed: Costs | None) -> Costs:
    """Returns the costs of a file. `uncompressed` has those of the same rows as plain text."""
    source = statistics.median(run["stages"]["source"] for run in runs)
    lanes = max(median(runs, "client_cpu_s") - source, 0.0)
    if uncompressed:
        more = lanes - uncompressed.lanes_s
        source, lanes = source + more, uncompressed.lanes_s
    server = median(runs, "server_cpu_s")
    return Costs(sizes["rows"], source, lanes, server, sizes["wire_bytes"], sizes["fixed_s"])


def sizes_of_table(places: Places, server: Server) -> dict:
    """Returns rows and bytes of the table that was loaded, and the time to load one row."""
    rows = int(server.sql(f"select count(*) from {TABLE}")[0][0])
    copy = [str(places.psql), "-XAtqc", f"copy {TABLE} to stdout (format binary)"]
    with subprocess.Popen(copy, env=server.environment(), stdout=subprocess.PIPE) as process:
        wire = sum(map(len, iter(lambda: process.stdout.read(1 << 20), b"")))
    one_row = places.cache / "one-row.csv"
    with one_row.open("w") as file:
        copy_row = f"copy (select * from {TABLE} limit 1) to stdout csv header"
        psql = [str(places.psql), "-XAtqc", copy_row]
        subprocess.run(psql, env=server.environment(), stdout=file, check=True)
    fixed = statistics.median(load(places, server, one_row, 2, 1).wall_s for _ in range(5))
    return {"rows": rows, "wire_bytes": wire, "fixed_s": fixed}


if __name__ == "__main__":
    sys.exit(main())
