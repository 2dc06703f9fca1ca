"""Measure pgspate and its peers loading the same data into the same PostgreSQL.

Writes docs/bench/results/DATE-NAME.jsonl with a line per trial, and makes docs/bench/load.md from
that file. With `--only`, the page is printed to stdout. Exit status: 0 if all trials succeeded, 1
if a trial failed or the benchmark could not start, 130 if interrupted.
"""

import argparse
import signal
import sys
from datetime import date
from fnmatch import fnmatch
from pathlib import Path

import contenders
import datasets
import facts
import memory
import peers
import report
from places import REPOSITORY, Places, cache_folder, find_pg_bin, find_pgspate
from server import Server
from trials import TrialRunner, run_rounds

MEMORY_TRIAL = "memory"
PAGE_NAME = "load.md"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Runs the benchmark as the command line says, and returns the exit status."""
    args = parse_arguments()
    if args.report:
        Path(args.out, PAGE_NAME).write_text(
            report.build_page([Path(path) for path in args.report])
        )
        return 0
    if args.list:
        print("\n".join(all_trial_names()))
        return 0
    chosen = choose_trials(args.only)
    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)
    try:
        return measure_all(args, chosen)
    except KeyboardInterrupt:
        return 130


def parse_arguments() -> argparse.Namespace:
    """Parses and checks the command line."""
    parser = argparse.ArgumentParser(prog="bench/run.sh", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add(
        "--only",
        metavar="NAMES",
        help="run only these inputs, contenders or INPUT/CONTENDER: comma-separated, * and ? match",
    )
    add("--list", action="store_true", help="print the names that --only accepts, and exit")
    add(
        "--repeats",
        type=int,
        default=3,
        help="number of rounds (default 3); pgloader runs in the first only",
    )
    add(
        "--scale",
        type=float,
        default=1.0,
        help="size of the inputs: 1 is 2.4 M rows of lineitem (default 1)",
    )
    add("--large", action="store_true", help="also measure memory with 10 GB on stdin")
    add(
        "--timeout",
        type=float,
        default=1800,
        metavar="S",
        help="stop a trial after S seconds (default 1800)",
    )
    add("--pg-bin", metavar="DIR", help="folder that contains postgres and initdb")
    add(
        "--pgspate",
        metavar="FILE",
        help="pgspate program to measure (default target/release/pgspate)",
    )
    add(
        "--cache",
        metavar="DIR",
        help="folder for data and peers (default: pgspate-bench in the user's cache folder)",
    )
    add(
        "--out",
        metavar="DIR",
        default=str(REPOSITORY / "docs" / "bench"),
        help="folder for load.md and results/",
    )
    add("--name", default="load", help="name in the results file's name (default load)")
    add("--no-install", action="store_true", help="do not build or install what is missing")
    add("--report", metavar="FILE", nargs="+", help="only make load.md from these results files")
    args = parser.parse_args()
    if args.repeats < 1 or args.scale <= 0:
        parser.error("--repeats and --scale must be greater than zero")
    return args


def all_trial_names() -> list[str]:
    """Returns all names that `--only` can choose."""
    pairs = [
        (name, c.name)
        for name, entries in contenders.CONTENDERS_BY_DATASET.items()
        for c in entries
    ]
    return [f"{dataset}/{contender}" for dataset, contender in pairs] + [MEMORY_TRIAL]


def choose_trials(only: str | None) -> set[str]:
    """Returns the names that `--only` chooses; raises SystemExit if a pattern matches none."""
    chosen = set()
    for pattern in (only or "*").split(","):
        matching = {name for name in all_trial_names() if matches_pattern(name, pattern.strip())}
        if not matching:
            raise SystemExit(
                f'error: no trial matches "{pattern}"\n\n'
                "hint: `bench/run.sh --list` prints all names."
            )
        chosen |= matching
    return chosen


def matches_pattern(name: str, pattern: str) -> bool:
    """Returns whether a pattern matches the input, the contender or INPUT/CONTENDER."""
    return any(fnmatch(part, pattern) for part in (name, *name.split("/")))


def measure_all(args: argparse.Namespace, chosen: set[str]) -> int:
    """Runs the chosen trials, writes results and page, and returns the exit status."""
    places = Places(
        cache_folder(args.cache),
        find_pg_bin(args.pg_bin),
        find_pgspate(args.pgspate, build=not args.no_install),
    )
    places.cache.mkdir(parents=True, exist_ok=True)
    inventory = peers.find_or_install_peers(places, install=not args.no_install)
    inputs = datasets.make_datasets(places, args.scale)
    results = results_file(Path(args.out), args.name)
    with Server(places) as server, results.open("w") as out:
        runner = TrialRunner(places, server, inventory, out, args.timeout)
        runner.write_record(
            facts.collect_facts(server, inventory.versions, args.scale, args.repeats)
        )
        record_missing(runner, chosen)
        record_inputs(runner, inputs, chosen)
        failed = run_rounds(runner, inputs, chosen, args.repeats)
        if MEMORY_TRIAL in chosen and "pgspate" not in inventory.missing:
            failed += memory.measure_memory(runner, inputs[0], args.large)
    peers.print_progress(f"wrote {results}")
    if args.only:
        # Results of some contenders must not replace the page with all results.
        print(report.build_page([results]))
    else:
        Path(args.out, PAGE_NAME).write_text(report.build_page([results]))
    return 1 if failed else 0


def results_file(out: Path, name: str) -> Path:
    """Returns the path of a results file that does not exist yet, so that no results are lost."""
    folder = out / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{date.today().isoformat()}-{name}"
    path, number = folder / f"{stem}.jsonl", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.jsonl", number + 1
    return path


def record_missing(runner: TrialRunner, chosen: set[str]) -> None:
    """Records the peers that the chosen trials need and that are missing, with the reasons."""
    wanted = {
        contender.peer
        for dataset, entries in contenders.CONTENDERS_BY_DATASET.items()
        for contender in entries
        if f"{dataset}/{contender.name}" in chosen
    }
    wanted |= {"pgspate"} if MEMORY_TRIAL in chosen else set()
    for peer in sorted(wanted & runner.peers.missing.keys()):
        reason = runner.peers.missing[peer]
        peers.print_progress(f"{peer} is missing: {reason}")
        runner.write_record({"kind": "missing", "peer": peer, "reason": reason})


def record_inputs(runner: TrialRunner, inputs: list[datasets.Dataset], chosen: set[str]) -> None:
    """Records the inputs that the chosen trials use."""
    for dataset in inputs:
        if any(name.startswith(f"{dataset.name}/") for name in chosen):
            size = dataset.path.stat().st_size
            fields = {"dataset": dataset.name, "table": dataset.table, "bytes": size}
            runner.write_record({"kind": "input", **fields, "title": dataset.title})


def interrupt(*_: object) -> None:
    """Raises KeyboardInterrupt, so that the server is stopped; ignores further signals."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
