"""Measure ways to replace a table's results night after night, of which most do not change.

Writes docs/bench/results/DATE-nights.jsonl, a line per contender and night, and
docs/bench/sync.md from it. Every contender begins with the same table, and must have the same
table in the end.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import facts
import measure
import meters
import nights_page
import peers
from main import results_file
from places import BENCH, REPOSITORY, Places, cache_folder, find_pg_bin, find_pgspate
from server import Server

PYTHON = ("delete-insert", "upsert", "orm", "merge")
OURS = "pgspate"
SHARED = "pgspate-shared"
FEW_ROUNDS = 3
TURNS = ("--vacuum", "--transactions", "2")
WAL = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
DEAD = f"select n_dead_tup from pg_stat_user_tables where relname = '{meters.TABLE}'"
SIZES = f"select pg_relation_size('{meters.TABLE}'), pg_indexes_size('{meters.TABLE}')"
CONTENTS = f"select count(*), sum(hashtextextended(t::text, 0)) from {meters.TABLE} t"


class Bench:
    """A server and where the results go."""

    def __init__(self, places: Places, server: Server, out):
        self.places, self.server, self.out = places, server, out
        time.sleep(0.5)
        self.idle_processes = len(measure.children_of(server.pid))

    def record(self, fields: dict) -> None:
        """Write one line of results."""
        self.out.write(json.dumps(fields) + "\n")
        self.out.flush()

    def start(self, first: Path, options: str = "") -> None:
        """The table as it is before the first night, whatever the contender."""
        self.server.sql(
            f"drop schema if exists pgspate cascade;\ndrop table if exists {meters.TABLE};\n"
            f"{meters.CREATE} {options};\n"
            f"\\copy {meters.TABLE} from '{first}' (format csv, header)\n"
            f"vacuum analyze {meters.TABLE};\ncheckpoint;\n"
        )

    def command(self, contender: str, source: Path, flags: tuple[str, ...]) -> list[str]:
        """What a contender runs for a night."""
        if contender not in (OURS, SHARED):
            return [str(self.places.python), str(BENCH / "peers" / "night.py"), contender, source]
        command = [self.places.pgspate, "sync", source, "--table", meters.TABLE, "--quiet"]
        command += ["--scope-by", "meter", "--json", "--to", self.server.conninfo(), *flags]
        return [*command, "--lanes", "2"] if contender == SHARED else command

    def night(
        self, experiment: str, contender: str, night: int, source: Path, *flags: str
    ) -> dict:
        """One night of one contender, measured."""
        wal = int(self.server.sql(WAL)[0][0])
        measure.settle(self.server.pid, self.idle_processes)
        cpu = measure.server_cpu(self.server.pid)
        command = [str(part) for part in self.command(contender, source, flags)]
        usage = measure.run([[command]], self.server.environment(), self.server.folder, 1800)
        measure.settle(self.server.pid, self.idle_processes)
        if usage.failure:
            raise SystemExit(f"error: {contender} failed\n{usage.failure}")
        # The Python contenders say how long they wrote; our time is that of the whole command.
        is_ours = contender in (OURS, SHARED)
        seconds = usage.wall_s if is_ours else float(usage.output)
        table, indexes = map(int, self.server.sql(SIZES)[0])
        fields = {
            "kind": "night",
            "experiment": experiment,
            "contender": contender,
            "night": night,
            "seconds": round(seconds, 3),
            "server_cpu_s": round(measure.server_cpu(self.server.pid) - cpu, 3),
            "client_cpu_s": round(usage.cpu_s, 3),
            "wal_bytes": int(self.server.sql(WAL)[0][0]) - wal,
            "dead": int(self.server.sql(DEAD)[0][0]),
            "table_bytes": table,
            "index_bytes": indexes,
            "load_average": os.getloadavg()[0],
        }
        self.record(fields)
        peers.say(f"{experiment:12} {contender:14} night {night:2} {seconds:8.2f} s")
        return fields

    def contents(self) -> list[str]:
        """Rows, and a checksum over all values that no order changes."""
        return self.server.sql(CONTENTS)[0]


def main() -> int:
    """Do what the command line says."""
    args = arguments()
    if args.report:
        Path(args.out, "sync.md").write_text(nights_page.page([Path(it) for it in args.report]))
        return 0
    program = find_pgspate(args.pgspate, build=True)
    places = Places(cache_folder(args.cache), find_pg_bin(args.pg_bin), program)
    places.cache.mkdir(parents=True, exist_ok=True)
    found = peers.gather(places, install=True)
    sources = meters.make(places.cache, args.meters, args.rows, max(args.nights, args.long))
    results = results_file(Path(args.out), "nights")
    with Server(places) as server, results.open("w") as out:
        bench = Bench(places, server, out)
        sizes = {"meters": args.meters, "rows": args.rows, "nights": args.nights}
        bench.record(facts.machine(server, found.versions, 1, 1) | sizes)
        compare(bench, sources[: args.nights + 1], args.contenders.split(","))
        unchanged(bench, sources[0])
        fillfactors(bench, sources[: args.long + 1])
        few_changes(bench, args.large)
        vacuuming = Server(places, autovacuum="on", autovacuum_naptime="1s")
        with vacuuming as server:
            with_autovacuum(Bench(places, server, out), sources[: args.long + 1])
    peers.say(f"wrote {results}")
    Path(args.out, "sync.md").write_text(nights_page.page([results]))
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/nights.sh", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--meters", type=int, default=100)
    add("--rows", type=int, default=3000, help="of each meter (default 3000)")
    add("--nights", type=int, default=3, help="for all contenders (default 3)")
    add("--long", type=int, default=10, help="nights for the fillfactors (default 10)")
    add("--large", type=int, default=5_000_000, help="rows of which 1 %% change (default 5 M)")
    add("--contenders", default=",".join([*PYTHON, OURS, SHARED]), help="comma-separated")
    add("--pg-bin", metavar="DIR", help="folder of postgres and initdb")
    add("--pgspate", metavar="FILE", help="the program (default target/release/pgspate)")
    add("--cache", metavar="DIR", help="for data and peers (default the user's cache folder)")
    add("--out", metavar="DIR", default=str(REPOSITORY / "docs" / "bench"), help="for the results")
    add("--report", metavar="FILE", nargs="+", help="only make sync.md, from these results")
    return parser.parse_args()


def compare(bench: Bench, sources: list[Path], contenders: list[str]) -> None:
    """The nights by every contender, each from the same start; all end with the same table."""
    ends = {}
    for contender in contenders:
        bench.start(sources[0])
        for night, source in enumerate(sources[1:], 1):
            bench.night("nights", contender, night, source)
        ends[contender] = bench.contents()
    if len({tuple(end) for end in ends.values()}) > 1:
        raise SystemExit(f"error: the tables differ in the end: {ends}")


def unchanged(bench: Bench, source: Path) -> None:
    """A night on which nothing has changed: by a full rewrite, and by us."""
    for contender in ("delete-insert", OURS):
        bench.start(source)
        bench.night("unchanged", contender, 1, source)


def fillfactors(bench: Bench, sources: list[Path]) -> None:
    """More nights by us, at fillfactors, without autovacuum."""
    for fillfactor in (100, 60):
        bench.start(sources[0], f"with (fillfactor = {fillfactor})")
        for night, source in enumerate(sources[1:], 1):
            bench.night(f"ten-{fillfactor}", OURS, night, source)
    # It writes the same rows in the same transactions as the ORM, in a fraction of the time.
    bench.start(sources[0])
    for night, source in enumerate(sources[1:], 1):
        bench.night("ten-merge", "merge", night, source)
    for name, flags in (("own", ("--vacuum",)), ("turns", TURNS)):
        for fillfactor in (100, 60):
            bench.start(sources[0], f"with (fillfactor = {fillfactor})")
            for night, source in enumerate(sources[1:], 1):
                bench.night(f"ten-{name}-{fillfactor}", OURS, night, source, *flags)


def with_autovacuum(bench: Bench, sources: list[Path]) -> None:
    """The same on a server that vacuums by itself. It looks every second, as our days are short."""
    for name, flags in (("ten-vacuum", ()), ("ten-vacuum-turns", TURNS)):
        bench.start(sources[0])
        for night, source in enumerate(sources[1:], 1):
            bench.night(name, OURS, night, source, *flags)
            wait_for_autovacuum(bench)


def wait_for_autovacuum(bench: Bench) -> None:
    """Until the dead rows of this night have been vacuumed, or two minutes are over."""
    begun = time.monotonic()
    while int(bench.server.sql(DEAD)[0][0]) > 1000 and time.monotonic() - begun < 120:
        time.sleep(1)


def few_changes(bench: Bench, rows: int) -> None:
    """A large table of which one row in a hundred changes, beside loads into a bare table."""
    source = bench.places.cache / f"few-{rows}.csv"
    query = (
        "select n as id, case when n % 100 = {} then 'changed ' else 'row ' end || n as note, "
        f"n * 0.25 as amount from generate_series(1, {rows}) n"
    )
    create = "create table few (id bigint primary key, note text, amount numeric)"
    bench.server.sql(f"\\copy ({query.format(7)}) to '{source}' (format csv, header)\n")
    to = ["--to", bench.server.conninfo(), "--quiet"]
    program = str(bench.places.pgspate)
    for turn in range(FEW_ROUNDS):
        bench.server.sql(
            f"drop table if exists few, bare;\n{create};\n"
            f"insert into few {query.format(-1)};\nvacuum analyze few;\n"
            "create table bare (like few);\ncheckpoint;\n"
        )
        for name, command in [
            ("load", [program, "load", str(source), "--table", "bare", "--analyze", "never", *to]),
            ("sync", [program, "sync", str(source), "--table", "few", "--scope", "all", *to]),
        ]:
            usage = measure.run(
                [[command]], bench.server.environment(), bench.server.folder, 1800
            )
            if usage.failure:
                raise SystemExit(f"error: {name} failed\n{usage.failure}")
            seconds = round(usage.wall_s, 3)
            fields = {"kind": "few", "what": name, "rows": rows, "round": turn, "seconds": seconds}
            bench.record(fields)
            peers.say(f"few changes  {name:14} {usage.wall_s:8.2f} s")
    source.unlink()


if __name__ == "__main__":
    sys.exit(main())
