"""Measure pgspate and its peers loading the same data into the same PostgreSQL.

Writes docs/bench/results/DATE-NAME.jsonl, a line per trial, and docs/bench/load.md from
it; with `--only` the page goes to stdout. Exit status: 0 all trials good, 1 some failed or
nothing could be run, 130 interrupted.
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
from trials import Session, run_rounds

MEMORY = "memory"
PAGE = "load.md"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Do what the command line says."""
    args = arguments()
    if args.report:
        Path(args.out, PAGE).write_text(report.page([Path(path) for path in args.report]))
        return 0
    if args.list:
        print("\n".join(all_choices()))
        return 0
    chosen = choose(args.only)
    for number in SIGNALS:
        signal.signal(number, interrupted)
    try:
        return measure_all(args, chosen)
    except KeyboardInterrupt:
        return 130


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/run.sh", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add(
        "--only",
        metavar="NAMES",
        help="inputs, contenders or INPUT/CONTENDER, comma-separated; * and ? are understood",
    )
    add("--list", action="store_true", help="print what --only chooses from, and stop")
    add("--repeats", type=int, default=3, help="rounds (default 3; pgloader runs in the first)")
    add(
        "--scale",
        type=float,
        default=1.0,
        help="size of the inputs: 1 is 2.4 M lineitems",
    )
    add("--large", action="store_true", help="measure memory with a 10 GB stdin as well")
    add("--timeout", type=float, default=1800, metavar="S", help="longest trial (default 1800)")
    add("--pg-bin", metavar="DIR", help="folder of postgres and initdb")
    add("--pgspate", metavar="FILE", help="the program (default target/release/pgspate)")
    add("--cache", metavar="DIR", help="for data and peers (default the user's cache folder)")
    add("--out", metavar="DIR", default=str(REPOSITORY / "docs" / "bench"), help="for the results")
    add("--name", default="load", help="in the results file's name (default load)")
    add("--no-install", action="store_true", help="build and install nothing that is missing")
    add("--report", metavar="FILE", nargs="+", help="only make load.md, from these results")
    args = parser.parse_args()
    if args.repeats < 1 or args.scale <= 0:
        parser.error("--repeats and --scale have to be above zero")
    return args


def all_choices() -> list[str]:
    """Returns all names that `--only` can choose."""
    pairs = [(name, c.name) for name, entries in contenders.BY_DATASET.items() for c in entries]
    return [f"{dataset}/{contender}" for dataset, contender in pairs] + [MEMORY]


def choose(only: str | None) -> set[str]:
    """Returns the names that `--only` chooses; raises SystemExit if a pattern matches none."""
    chosen = set()
    for pattern in (only or "*").split(","):
        matching = {name for name in all_choices() if matches(name, pattern.strip())}
        if not matching:
            raise SystemExit(
                f'error: nothing is named "{pattern}"\n\nhint: See `bench/run.sh --list`.'
            )
        chosen |= matching
    return chosen


def matches(name: str, pattern: str) -> bool:
    """Returns whether a pattern matches the input, the contender or INPUT/CONTENDER."""
    return any(fnmatch(part, pattern) for part in (name, *name.split("/")))


def measure_all(args: argparse.Namespace, chosen: set[str]) -> int:
    """Prepare all_choices, run the trials, write the page."""
    places = Places(
        cache_folder(args.cache),
        find_pg_bin(args.pg_bin),
        find_pgspate(args.pgspate, build=not args.no_install),
    )
    places.cache.mkdir(parents=True, exist_ok=True)
    gathered = peers.gather(places, install=not args.no_install)
    inputs = datasets.make_all(places, args.scale)
    results = results_file(Path(args.out), args.name)
    with Server(places) as server, results.open("w") as out:
        session = Session(places, server, gathered, out, args.timeout)
        session.record(facts.collect_facts(server, gathered.versions, args.scale, args.repeats))
        record_missing(session, chosen)
        record_inputs(session, inputs, chosen)
        failed = run_rounds(session, inputs, chosen, args.repeats)
        if MEMORY in chosen and "pgspate" not in gathered.missing:
            failed += memory.run_memory(session, inputs[0], args.large)
    peers.say(f"wrote {results}")
    if args.only:
        # Results of some contenders must not replace the page with all results.
        print(report.page([results]))
    else:
        Path(args.out, PAGE).write_text(report.page([results]))
    return 1 if failed else 0


def results_file(out: Path, name: str) -> Path:
    """Returns a path of no existing file, so that earlier results are always kept."""
    folder = out / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{date.today().isoformat()}-{name}"
    path, number = folder / f"{stem}.jsonl", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.jsonl", number + 1
    return path


def record_missing(session: Session, chosen: set[str]) -> None:
    """Records the chosen peers that are missing, with the reasons."""
    wanted = {
        contender.peer
        for dataset, entries in contenders.BY_DATASET.items()
        for contender in entries
        if f"{dataset}/{contender.name}" in chosen
    }
    wanted |= {"pgspate"} if MEMORY in chosen else set()
    for peer in sorted(wanted & session.peers.missing.keys()):
        reason = session.peers.missing[peer]
        peers.say(f"missing: {peer}: {reason}")
        session.record({"kind": "missing", "peer": peer, "reason": reason})


def record_inputs(session: Session, inputs: list[datasets.Dataset], chosen: set[str]) -> None:
    """Describe the inputs that are used."""
    for dataset in inputs:
        if any(name.startswith(f"{dataset.name}/") for name in chosen):
            size = dataset.path.stat().st_size
            fields = {"dataset": dataset.name, "table": dataset.table, "bytes": size}
            session.record({"kind": "input", **fields, "title": dataset.title})


def interrupted(*_: object) -> None:
    """Raises KeyboardInterrupt, so that the server is stopped; ignores further signals."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
