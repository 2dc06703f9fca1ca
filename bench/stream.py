"""Measure ways to apply a stream of changes to a table: by pgspate, and as sinks write them.

Writes docs/bench/results/DATE-stream.jsonl, a line per contender. The events are the same for all;
those that write row by row get the first of them only, as they would take minutes. Some of them
run once more with a network between them and the server: a proxy that adds to each round trip.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import facts
import measure
import peers
import replication
from delay import Delay
from main import results_file
from places import BENCH, REPOSITORY, Places, cache_folder, find_pg_bin, find_pgspate
from replication import NATIVE, SLOT
from server import PORT, Server

OURS = "pgspate"
# The share of the events that each contender gets. `rows` writes row by row, `rows-1000` in
# transactions of a thousand, `batches` by multi-row upserts and deletes of ten thousand.
PARTS = {"rows": 0.02, "rows-1000": 0.1, "batches": 1.0, NATIVE: 1.0, SLOT: 1.0, OURS: 1.0}
# The contenders that write through the delaying proxy, and their shares.
FAR = {"rows": 0.004, "rows-1000": 0.01, "batches": 1.0, OURS: 1.0}
CREATE = (
    "create table orders (id bigint primary key, customer int, status text, "
    "amount numeric(12, 2), updated timestamptz, note text)"
)
START = (
    "insert into orders select n, n % 50000, 'new', n % 1000, '2026-01-01', 'order ' || n "
    "from generate_series(0, {} - 1) n"
)
CONTENTS = "select count(*), sum(hashtextextended(t::text, 0)) from orders t"


def make_events(cache: Path, events: int, keys: int) -> Path:
    """Writes random events over `keys` keys: of five, three updates, one insert, one delete."""
    path = cache / f"stream-{events}-{keys}.ndjson"
    if path.exists():
        return path
    generator = random.Random(7)
    live, gone = list(range(keys)), []

    def take(keys: list[int]) -> int:
        """Removes a random key from `keys`, and returns the key."""
        index = generator.randrange(len(keys))
        keys[index], keys[-1] = keys[-1], keys[index]
        return keys.pop()

    def row(key: int) -> dict:
        """Returns a random row with this key."""
        return {
            "id": key,
            "customer": generator.randrange(50_000),
            "status": generator.choice(["new", "paid", "sent", "done"]),
            "amount": f"{generator.randrange(100_000) / 100:.2f}",
            "updated": f"2026-11-{generator.randrange(1, 28):02}"
                       f"T{generator.randrange(24):02}:00:00Z",
            "note": f"order {key}",
        }

    part = path.with_suffix(".part")
    with part.open("w") as out:
        for _ in range(events):
            pick = generator.random()
            if pick < 0.2 and len(live) > 1:
                gone.append(take(live))
                event = {"op": "delete", "table": "public.orders", "key": {"id": gone[-1]}}
            elif pick < 0.4 and gone:
                live.append(take(gone))
                event = {"op": "insert", "table": "public.orders", "row": row(live[-1])}
            else:
                key = live[generator.randrange(len(live))]
                event = {"op": "update", "table": "public.orders", "row": row(key)}
            out.write(json.dumps(event, separators=(",", ":")) + "\n")
    part.rename(path)
    return path


@dataclass
class Bench:
    """What all trials share."""

    places: Places
    server: Server
    publisher: Server | None
    source: Path
    args: argparse.Namespace

    def start(self) -> None:
        """The table as it is before the first event."""
        self.server.sql(
            f"drop schema if exists pgspate cascade;\ndrop table if exists orders;\n{CREATE};\n"
            f"{START.format(self.args.keys)};\nvacuum analyze orders;\ncheckpoint;\n"
        )

    def run(self, words: list, host: Path) -> measure.Usage:
        """Run a command with the server behind `host`."""
        environment = self.server.environment() | {"PGHOST": str(host)}
        words = [[[str(word) for word in words]]]
        usage = measure.run(words, environment, self.server.folder, 1800)
        if usage.failure:
            raise SystemExit(f"error: {words[0][0][1]} failed\n{usage.failure}")
        return usage

    def trial(self, contender: str, part: float, host: Path, round_trip_ms: float) -> dict:
        """One contender, from the same start as all."""
        self.start()
        events = int(self.args.events * part)
        cpu = measure.server_cpu(self.server.pid)
        usage, seconds = measure.Usage(), 0.0
        if contender == NATIVE:
            seconds = replication.subscribe(self.publisher, self.server)
        elif contender in (OURS, SLOT):
            is_slot = contender == SLOT
            source = replication.address(self.publisher, "pgspate") if is_slot else self.source
            to = self.server.conninfo().replace(str(self.server.folder), str(host))
            usage = self.run([self.places.pgspate, "apply", source, "--quiet", "--to", to], host)
            seconds = usage.wall_s
        else:
            peer = BENCH / "peers" / "stream.py"
            usage = self.run([self.places.python, peer, contender, self.source, events], host)
            # The Python contenders say how long they wrote; our time is that of the whole command.
            seconds = float(usage.output)
        return {
            "kind": "stream",
            "contender": contender,
            "round_trip_ms": round_trip_ms,
            "events": events,
            "seconds": round(seconds, 3),
            "events_per_second": round(events / seconds),
            "server_cpu_s": round(measure.server_cpu(self.server.pid) - cpu, 3),
            "client_cpu_s": round(usage.cpu_s, 3),
            "client_rss_bytes": usage.rss_bytes,
            "contents": self.server.sql(CONTENTS)[0],
            "load_average": os.getloadavg()[0],
        }

    def latency(self, name: str, source: Path | str, watched: str) -> dict:
        """How long lone events take while the stream is followed."""
        self.start()
        server, count = self.server, self.args.lone_events
        command = [self.places.pgspate, "apply", source, "--to", server.conninfo(), "--follow"]
        log = (server.folder / "follow.log").open("w")
        follower = subprocess.Popen([*map(str, command), "--quiet"], stderr=log)
        try:
            peer = BENCH / "peers" / "latency.py"
            usage = self.run([self.places.python, peer, count, watched], server.folder)
        finally:
            follower.terminate()
            follower.wait()
        millis = sorted(json.loads(usage.output))
        at = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1}
        found = {key: millis[min(int(count * share), count - 1)] for key, share in at.items()}
        found = {key: round(value, 1) for key, value in found.items()}
        return {"kind": "latency", "source": name, "events": count} | found

    def latencies(self) -> Iterator[dict]:
        """Measures the latency from a growing file, and from a slot."""
        if not self.args.lone_events:
            return
        file = self.server.folder / "lone.ndjson"
        file.touch()
        yield self.latency("file", file, str(file))
        if self.publisher:
            source = replication.address(self.publisher, "pgspate")
            yield self.latency("slot", source, self.publisher.conninfo())

    def trials(self) -> Iterator[dict]:
        """Runs the chosen contenders, first without and then with the delaying proxy."""
        wanted = self.args.contenders.split(",")
        near = self.server.folder
        for contender in wanted:
            yield self.trial(contender, PARTS[contender], near, 0)
        if self.args.round_trip_ms:
            seconds = self.args.round_trip_ms / 1000
            with Delay(near, near / "far", PORT, seconds) as delay:
                for contender in filter(FAR.__contains__, wanted):
                    part = FAR[contender]
                    yield self.trial(contender, part, delay.folder, self.args.round_trip_ms)


def main() -> int:
    """Do what the command line says."""
    args = arguments()
    program = find_pgspate(args.pgspate, build=True)
    places = Places(cache_folder(args.cache), find_pg_bin(args.pg_bin), program)
    places.cache.mkdir(parents=True, exist_ok=True)
    found = peers.gather(places, install=True)
    source = make_events(places.cache, args.events, args.keys)
    results = results_file(Path(args.out), "stream")
    ends = set()
    wanted = set(args.contenders.split(","))
    with ExitStack() as stack:
        server = stack.enter_context(Server(places))
        publisher = None
        if wanted & {NATIVE, SLOT}:
            publisher = stack.enter_context(
                Server(places, listens_on_tcp=True, **replication.PUBLISHER))
            replication.publish(publisher, CREATE, START.format(args.keys), source)
            ends.add(tuple(publisher.sql(CONTENTS)[0]))
        bench = Bench(places, server, publisher, source, args)
        out = stack.enter_context(results.open("w"))
        sizes = {"events": args.events, "keys": args.keys}
        out.write(json.dumps(facts.collect_facts(server, found.versions, 1, 1) | sizes) + "\n")
        for fields in bench.trials():
            out.write(json.dumps(fields) + "\n")
            if fields["events"] == args.events:
                ends.add(tuple(fields["contents"]))
            rate, far = fields["events_per_second"], fields["round_trip_ms"]
            contender = fields["contender"] + (f" +{far:g} ms" if far else "")
            peers.say(f"{contender:18} {fields['seconds']:8.2f} s {rate:9,} events/s")
        for fields in bench.latencies():
            out.write(json.dumps(fields) + "\n")
            peers.say(f"a lone event, {fields['source']}: {fields['p50_ms']} ms, "
                      f"{fields['p99_ms']} ms for one in a hundred")
    if len(ends) > 1:
        raise SystemExit(f"error: the tables differ in the end: {ends}")
    peers.say(f"wrote {results}")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/stream.sh", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--events", type=int, default=1_000_000)
    add("--keys", type=int, default=200_000)
    add("--round-trip-ms", type=float, default=1.0, help="added by the proxy; 0 for none")
    add("--lone-events", type=int, default=200, help="for the latency; 0 for none")
    add("--contenders", default=",".join(PARTS), help="comma-separated")
    add("--pg-bin", metavar="DIR", help="folder of postgres and initdb")
    add("--pgspate", metavar="FILE", help="the program (default target/release/pgspate)")
    add("--cache", metavar="DIR", help="for data and peers (default the user's cache folder)")
    add("--out", metavar="DIR", default=str(REPOSITORY / "docs" / "bench"), help="for the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
