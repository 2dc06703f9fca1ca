"""Compare pgspate with other ways to apply a stream of changes to a table.

Writes docs/bench/results/DATE-stream.jsonl, a line per trial. Contenders that write row by row get
only the first events, because all events would take them minutes. Some contenders run once more
through a proxy that adds a delay to each round trip, as a network does.
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
from delay_proxy import DelayProxy
from main import results_file
from places import BENCH, REPOSITORY, Places, cache_folder, find_pg_bin, find_pgspate
from replication import PGSPATE_SLOT, SUBSCRIPTION
from server import PORT, Server

PGSPATE_FILE = "pgspate"
# The share of the events that each contender applies. `rows` commits each row, `rows-1000` each
# thousand rows. `batches` applies ten thousand events by one multi-row upsert and one delete.
EVENT_SHARES = {
    "rows": 0.02,
    "rows-1000": 0.1,
    "batches": 1.0,
    SUBSCRIPTION: 1.0,
    PGSPATE_SLOT: 1.0,
    PGSPATE_FILE: 1.0,
}
# The contenders that also run through the delay proxy, and the share of events they then apply.
DELAYED_EVENT_SHARES = {"rows": 0.004, "rows-1000": 0.01, "batches": 1.0, PGSPATE_FILE: 1.0}
CREATE_ORDERS = (
    "create table orders (id bigint primary key, customer int, status text, "
    "amount numeric(12, 2), updated timestamptz, note text)"
)
INSERT_START_ROWS = (
    "insert into orders select n, n % 50000, 'new', n % 1000, '2026-01-01', 'order ' || n "
    "from generate_series(0, {} - 1) n"
)
CONTENTS_QUERY = "select count(*), sum(hashtextextended(t::text, 0)) from orders t"


def make_events(cache: Path, events: int, keys: int) -> Path:
    """Writes a file of random events for `keys` keys, and returns its path.

    Of five events, about three are updates, one is an insert and one a delete. A file that exists
    is returned as it is.
    """
    path = cache / f"stream-{events}-{keys}.ndjson"
    if path.exists():
        return path
    generator = random.Random(7)
    live_keys, deleted_keys = list(range(keys)), []

    def take_random_key(keys: list[int]) -> int:
        """Removes a random key from `keys`, and returns the key."""
        index = generator.randrange(len(keys))
        keys[index], keys[-1] = keys[-1], keys[index]
        return keys.pop()

    def random_row(key: int) -> dict:
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

    partial = path.with_suffix(".part")
    with partial.open("w") as out:
        for _ in range(events):
            pick = generator.random()
            if pick < 0.2 and len(live_keys) > 1:
                deleted_keys.append(take_random_key(live_keys))
                event = {"op": "delete", "table": "public.orders", "key": {"id": deleted_keys[-1]}}
            elif pick < 0.4 and deleted_keys:
                live_keys.append(take_random_key(deleted_keys))
                event = {"op": "insert", "table": "public.orders", "row": random_row(live_keys[-1])}
            else:
                key = live_keys[generator.randrange(len(live_keys))]
                event = {"op": "update", "table": "public.orders", "row": random_row(key)}
            out.write(json.dumps(event, separators=(",", ":")) + "\n")
    partial.rename(path)
    return path


@dataclass
class StreamBench:
    """The servers, the events and the options of all trials."""

    places: Places
    server: Server
    publisher: Server | None
    source: Path
    args: argparse.Namespace

    def reset_orders(self) -> None:
        """Drops and creates the table with its first rows, and drops pgspate's ledger."""
        self.server.sql(
            "drop schema if exists pgspate cascade;\ndrop table if exists orders;\n"
            f"{CREATE_ORDERS};\n"
            f"{INSERT_START_ROWS.format(self.args.keys)};\nvacuum analyze orders;\ncheckpoint;\n"
        )

    def run_command(self, words: list, host: Path) -> measure.ResourceUsage:
        """Runs a command whose PGHOST is `host`; raises SystemExit if the command fails."""
        environment = self.server.environment() | {"PGHOST": str(host)}
        command = [str(word) for word in words]
        usage = measure.run_pipelines([[command]], environment, self.server.folder, 1800)
        if usage.failure:
            raise SystemExit(f"error: {command[1]} failed\n{usage.failure}")
        return usage

    def run_trial(self, contender: str, share: float, host: Path, round_trip_ms: float) -> dict:
        """Resets the table, runs a contender on a share of the events, and returns the result."""
        self.reset_orders()
        events = int(self.args.events * share)
        cpu = measure.server_cpu_s(self.server.pid)
        usage, seconds = measure.ResourceUsage(), 0.0
        if contender == SUBSCRIPTION:
            seconds = replication.measure_subscription(self.publisher, self.server)
        elif contender in (PGSPATE_FILE, PGSPATE_SLOT):
            is_slot = contender == PGSPATE_SLOT
            source = replication.slot_url(self.publisher, "pgspate") if is_slot else self.source
            to = self.server.conninfo().replace(str(self.server.folder), str(host))
            usage = self.run_command(
                [self.places.pgspate, "apply", source, "--quiet", "--to", to], host
            )
            seconds = usage.wall_s
        else:
            peer = BENCH / "peers" / "stream.py"
            usage = self.run_command(
                [self.places.python, peer, contender, self.source, events], host
            )
            # The script prints the seconds of its writes. For pgspate, the whole command counts.
            seconds = float(usage.output)
        return {
            "kind": "stream",
            "contender": contender,
            "round_trip_ms": round_trip_ms,
            "events": events,
            "seconds": round(seconds, 3),
            "events_per_second": round(events / seconds),
            "server_cpu_s": round(measure.server_cpu_s(self.server.pid) - cpu, 3),
            "client_cpu_s": round(usage.cpu_s, 3),
            "client_rss_bytes": usage.rss_bytes,
            "contents": self.server.sql(CONTENTS_QUERY)[0],
            "load_average": os.getloadavg()[0],
        }

    def measure_latency(self, name: str, source: Path | str, write_to: str) -> dict:
        """Measures the latency of single events while `pgspate apply --follow` waits for them.

        `write_to` is the file or the publisher's conninfo that bench/peers/latency.py writes to.
        """
        self.reset_orders()
        server, count = self.server, self.args.lone_events
        command = [self.places.pgspate, "apply", source, "--to", server.conninfo(), "--follow"]
        log = (server.folder / "follow.log").open("w")
        follower = subprocess.Popen([*map(str, command), "--quiet"], stderr=log)
        try:
            peer = BENCH / "peers" / "latency.py"
            usage = self.run_command([self.places.python, peer, count, write_to], server.folder)
        finally:
            follower.terminate()
            follower.wait()
        latencies_ms = sorted(json.loads(usage.output))
        result = {"kind": "latency", "source": name, "events": count}
        for key, quantile in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1)):
            result[key] = round(latencies_ms[min(int(count * quantile), count - 1)], 1)
        return result

    def measure_latencies(self) -> Iterator[dict]:
        """Measures the latency with a growing file as source, then with a slot."""
        if not self.args.lone_events:
            return
        file = self.server.folder / "lone.ndjson"
        file.touch()
        yield self.measure_latency("file", file, str(file))
        if self.publisher:
            source = replication.slot_url(self.publisher, "pgspate")
            yield self.measure_latency("slot", source, self.publisher.conninfo())

    def run_trials(self) -> Iterator[dict]:
        """Runs the chosen contenders, first without and then with the delay proxy."""
        wanted = self.args.contenders.split(",")
        server_folder = self.server.folder
        for contender in wanted:
            yield self.run_trial(contender, EVENT_SHARES[contender], server_folder, 0)
        if self.args.round_trip_ms:
            seconds = self.args.round_trip_ms / 1000
            with DelayProxy(server_folder, server_folder / "far", PORT, seconds) as proxy:
                for contender in filter(DELAYED_EVENT_SHARES.__contains__, wanted):
                    share = DELAYED_EVENT_SHARES[contender]
                    yield self.run_trial(contender, share, proxy.folder, self.args.round_trip_ms)


def main() -> int:
    """Runs the benchmark as the command line says, and returns the exit status."""
    args = parse_arguments()
    program = find_pgspate(args.pgspate, build=True)
    places = Places(cache_folder(args.cache), find_pg_bin(args.pg_bin), program)
    places.cache.mkdir(parents=True, exist_ok=True)
    inventory = peers.find_or_install_peers(places, install=True)
    source = make_events(places.cache, args.events, args.keys)
    results = results_file(Path(args.out), "stream")
    end_contents = set()
    wanted = set(args.contenders.split(","))
    with ExitStack() as stack:
        server = stack.enter_context(Server(places))
        publisher = None
        if wanted & {SUBSCRIPTION, PGSPATE_SLOT}:
            publisher = stack.enter_context(
                Server(places, listens_on_tcp=True, **replication.PUBLISHER_SETTINGS)
            )
            replication.fill_publisher(
                publisher, CREATE_ORDERS, INSERT_START_ROWS.format(args.keys), source
            )
            end_contents.add(tuple(publisher.sql(CONTENTS_QUERY)[0]))
        bench = StreamBench(places, server, publisher, source, args)
        out = stack.enter_context(results.open("w"))
        sizes = {"events": args.events, "keys": args.keys}
        out.write(json.dumps(facts.collect_facts(server, inventory.versions, 1, 1) | sizes) + "\n")
        for fields in bench.run_trials():
            out.write(json.dumps(fields) + "\n")
            if fields["events"] == args.events:
                end_contents.add(tuple(fields["contents"]))
            rate, round_trip_ms = fields["events_per_second"], fields["round_trip_ms"]
            contender = fields["contender"] + (f" +{round_trip_ms:g} ms" if round_trip_ms else "")
            peers.print_progress(f"{contender:18} {fields['seconds']:8.2f} s {rate:9,} events/s")
        for fields in bench.measure_latencies():
            out.write(json.dumps(fields) + "\n")
            peers.print_progress(
                f"latency of single events, {fields['source']}: median {fields['p50_ms']} ms, "
                f"99th percentile {fields['p99_ms']} ms"
            )
    if len(end_contents) > 1:
        raise SystemExit(f"error: tables differ after all events (rows, checksum): {end_contents}")
    peers.print_progress(f"wrote {results}")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="bench/stream.sh", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--events", type=int, default=1_000_000, help="number of events (default 1000000)")
    add("--keys", type=int, default=200_000, help="number of keys (default 200000)")
    add(
        "--round-trip-ms",
        type=float,
        default=1.0,
        help="delay that the proxy adds to each round trip (default 1); 0: no proxy",
    )
    add(
        "--lone-events",
        type=int,
        default=200,
        help="number of single events whose latency is measured (default 200); 0: none",
    )
    add(
        "--contenders",
        default=",".join(EVENT_SHARES),
        help="contenders to run, comma-separated (default: all)",
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
        help="folder that contains results/",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
