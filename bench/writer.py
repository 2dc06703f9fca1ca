"""Compare ways to write single records by many callers: `python bench/writer.py --help`.

Each caller waits until its record is durable, and sends the next one then. Contenders are pgbench,
drivers of Python, asyncpg behind PgBouncer, a batcher as people write it by hand, and pgspate's
writer. Needs the packages of bench/requirements-writer.txt and the package pgspate; `make
bench-writer` has both. Client and server share the machine's processors, so both CPU times are
measured. Each trial has a new copy of the database, and its records are counted at the end. Rounds
run every trial once, in random order.

No delay is added to round trips: bench/delay_proxy.py would use more CPU time than the contenders.
`pgspate lab run callers` has a proxy in Rust, and also measures `pgspate serve`.
"""

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import facts
import pgspate
from measure import ResourceUsage, cpu_ticks, run_pipelines, server_cpu_s
from places import BENCH, Places, find_pg_bin
from server import USER, Server, free_port, owner_prefix, unprivileged_owner

TRIAL = "trial"
TABLES = ("account", "transaction")
CONTENDERS = {
    "pgbench": (1, 16, 64),
    "psycopg": (1, 16, 64),
    "asyncpg": (1, 16, 64),
    "pgbouncer": (64, 256),
    "batcher": (64, 256),
    "writer": (1, 64, 256, 1000),
}
POOL_SESSIONS = 16
TIMEOUT_S = 120
# The tables of the lab's experiment `callers`. Nothing is compressed, as on its wide rows.
CREATE_TABLES = """
create table account (id bigint, number text, holder text, email text, opened timestamptz,
  status text, currency text, balance numeric(14, 2), profile text);
create table transaction (id bigint, account bigint, booked timestamptz, amount numeric(14, 2),
  currency text, kind text, counterparty text, reference text, memo text);
insert into account select n, 'XX' || lpad(n::text, 20, '0'), 'Ada Jensen',
  left(md5(n::text), 16) || '@example.org',
  timestamptz '2025-01-01' + random() * interval '2 years',
  'open', 'EUR', n % 1000000, left(repeat(md5(n::text), 26), 830) from generate_series(1, {rows}) n;
insert into transaction select n, 1 + n * 7919 % {rows},
  timestamptz '2025-01-01' + random() * interval '2 years', n % 10000, 'EUR', 'card',
  'XX' || lpad(n::text, 20, '0') || ' Ada Jensen', upper(left(md5(n::text), 24)),
  left(repeat(md5(n::text), 31), 964) from generate_series(1, {rows}) n;
alter table account add primary key (id);
alter table transaction add primary key (id);
create index on transaction (account, booked);
create index on transaction (booked);
create index on transaction (reference);
vacuum (freeze, analyze) account;
vacuum (freeze, analyze) transaction;
"""
PGBENCH_SCRIPTS = {
    "account": r"""
\set n :n + 1
\set id (:client_id + 1) * 1000000000 + :n
\set seconds random(1735689600, 1798761600)
\set cents random(1, 100000000)
insert into account (id, number, holder, email, opened, status, currency, balance, profile)
values (:id, :number, :holder, :email, to_timestamp(:seconds), 'open', 'EUR', :cents / 100.0, :text)
""",
    "transaction": r"""
\set n :n + 1
\set id (:client_id + 1) * 1000000000 + :n
\set account random(1, :rows)
\set seconds random(1735689600, 1798761600)
\set cents random(1, 100000000)
\set high random(1, 1000000000000)
\set low random(1, 1000000000000)
insert into transaction (id, account, booked, amount, currency, kind, counterparty, reference, memo)
values (:id, :account, to_timestamp(:seconds), :cents / 100.0, 'EUR', 'card', :holder,
  to_hex(:high::bigint) || to_hex(:low::bigint), :text)
""",
}


@contextmanager
def running_pooler(server: Server) -> Iterator[tuple[str, int]]:
    """Runs PgBouncer in transaction mode, and yields its connection string and process id."""
    port, folder = free_port(), server.folder / "pooler"
    folder.mkdir()
    (folder / "users.txt").write_text(f'"{USER}" ""\n')
    (folder / "pooler.ini").write_text(
        f"[databases]\n{TRIAL} = host={server.folder} port={server.port} dbname={TRIAL}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {folder}/users.txt\npool_mode = transaction\n"
        f"default_pool_size = {POOL_SESSIONS}\nmax_client_conn = 1000\n"
    )
    shutil.chown(folder, *unprivileged_owner())
    command = [*owner_prefix(ends_with_parent=True), "pgbouncer", "-q", str(folder / "pooler.ini")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    try:
        time.sleep(1)
        if process.poll() is not None:
            raise SystemExit(f"error: could not start PgBouncer\n{(folder / 'log').read_text()}")
        yield f"host=127.0.0.1 port={port} user={USER} dbname={TRIAL}", process.pid
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


class WriterBench:
    """The server and the options of all trials."""

    def __init__(self, server: Server, args: argparse.Namespace):
        self.server, self.args = server, args
        server.sql(CREATE_TABLES.format(rows=args.rows))

    def run_trial(self, contender: str, callers: int, table: str) -> dict:
        """Copies the database, runs a contender, counts the records, and returns the result."""
        self.server.sql(f"drop database if exists {TRIAL} with (force)", "postgres")
        template = f"template {self.server.environment()['PGDATABASE']}"
        strategy = " strategy file_copy" if self.server_version() >= 15 else ""
        self.server.sql(f"create database {TRIAL} {template}{strategy}; checkpoint", "postgres")
        if contender == "pgbench":
            result = self.run_pgbench(callers, table)
        else:
            result = self.run_client(contender, callers, table)
        expected = self.args.rows + result["acknowledged"]
        found = int(self.server.sql(f"select count(*) from {table}", TRIAL)[0][0])
        if found != expected:
            raise SystemExit(f"error: {contender}: found {found} records, expected {expected}")
        levels = {"contender": contender, "callers": callers, "table": table}
        return {"kind": "trial"} | levels | result

    def server_version(self) -> int:
        """Returns the server's major version."""
        return int(self.server.sql("show server_version_num", "postgres")[0][0]) // 10_000

    def conninfo(self) -> str:
        """Returns the connection string of the trial's database."""
        return re.sub("dbname=.*", f"dbname={TRIAL}", self.server.conninfo())

    def run_command(self, words: list) -> ResourceUsage:
        """Runs a client; raises SystemExit if it fails."""
        environment = self.server.environment() | {"PGDATABASE": TRIAL}
        command = [str(word) for word in words]
        usage = run_pipelines([[command]], environment, self.server.folder, TIMEOUT_S)
        if usage.failure:
            raise SystemExit(f"error: {command[:4]} failed\n{usage.failure}")
        return usage

    def run_client(self, contender: str, callers: int, table: str) -> dict:
        """Runs a contender in Python."""
        def run(dsn: str) -> dict:
            client = BENCH / "peers" / "writer.py"
            words = [sys.executable, client, contender, callers, table, self.args.rows, dsn,
                     self.conninfo(), self.server.pid, self.args.seconds]
            return json.loads(self.run_command(words).output)

        if contender != "pgbouncer":
            return run(self.conninfo())
        with running_pooler(self.server) as (dsn, pid):
            result = run(dsn)
            # All its records count, as its CPU time is that of the whole trial.
            cpu_s = sum(cpu_ticks(pid)[:2]) / 100
            return result | {"pooler_cpu_us": round(cpu_s / result["acknowledged"] * 1e6, 1)}

    def run_pgbench(self, callers: int, table: str) -> dict:
        """Runs pgbench. CPU time and WAL are those of the whole trial."""
        folder = self.server.folder / "pgbench"
        folder.mkdir()
        script, seconds = folder / "script.sql", self.args.seconds
        # Its parser takes a statement that ends with its line.
        lines = PGBENCH_SCRIPTS[table].strip().replace("\nvalues", " values").replace("\n  ", " ")
        script.write_text(f"{lines};\n")
        text = ("rent 1234 wages 5678 invoice 9012 " * 40)[: 830 if table == "account" else 964]
        holder = "Ada Jensen" if table == "account" else "XX00000000000000000001 Ada Jensen"
        names = {"n": 0, "rows": self.args.rows, "text": text, "holder": holder,
                 "number": "XX00000000000000000001", "email": "0123456789abcdef@example.org"}
        values = [word for name, value in names.items() for word in ("-D", f"{name}={value}")]
        whole_s = max(round(seconds * 1.25), 1)
        server, lsn = self.server, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        cpu, wal = server_cpu_s(server.pid), float(server.sql(lsn)[0][0])
        usage = self.run_command(
            [self.server.places.pg_bin / "pgbench", "-n", "-M", "prepared", "-c", callers,
             "-j", min(callers, 2), "-T", whole_s, "-f", script, "-l", "--log-prefix",
             folder / "log", *values])
        wal, cpu = float(server.sql(lsn)[0][0]) - wal, server_cpu_s(server.pid) - cpu
        calls = []
        for log in folder.glob("log*"):
            for line in log.read_text().splitlines():
                _, _, wait_us, _, second, micro = line.split()[:6]
                calls.append((int(second) + int(micro) / 1e6, int(wait_us) / 1e3))
        shutil.rmtree(folder)
        if not calls:
            raise SystemExit("error: pgbench wrote no record; use more `--seconds`")
        end, count = max(ended for ended, _ in calls), len(calls)
        waits = sorted(wait for ended, wait in calls if ended >= end - seconds)
        return {
            "acknowledged": count,
            "records_per_second": round(len(waits) / seconds),
            "p50_ms": round(waits[len(waits) // 2], 2),
            "p99_ms": round(waits[len(waits) * 99 // 100], 2),
            "server_cpu_us": round(cpu / count * 1e6, 1),
            "client_cpu_us": round(usage.cpu_s / count * 1e6, 1),
            "wal_bytes": round(wal / count),
        }


def pooler_version() -> str:
    """Returns the version of PgBouncer, or an empty string."""
    if not shutil.which("pgbouncer"):
        return ""
    said = subprocess.run(["pgbouncer", "--version"], capture_output=True, text=True).stdout
    return said.split()[1] if said else ""


def tables_of_medians(trials: list[dict]) -> str:
    """Returns a Markdown table for each of the two tables; a cell is the median of all rounds."""
    lines = []
    keys = ("records_per_second", "p50_ms", "p99_ms", "server_cpu_us", "client_cpu_us", "wal_bytes")
    for table in TABLES:
        lines += ["", f"Into {table}:", "", "| by | callers | records/s | median wait, ms "
                  "| 99 % wait at most, ms | server CPU, µs | client CPU, µs | WAL, B |",
                  "|---|---:|---:|---:|---:|---:|---:|---:|"]
        for contender, counts in CONTENDERS.items():
            for callers in counts:
                ours = [trial for trial in trials if trial["contender"] == contender
                        and trial["callers"] == callers and trial["table"] == table]
                if ours:
                    cells = [f"{statistics.median(trial[key] for trial in ours):,.10g}"
                             for key in keys]
                    lines.append(f"| {contender} | {callers:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs all trials, and prints a line of JSON for each, and tables of medians."""
    args = parse_arguments()
    wanted = args.only.split(",") if args.only else list(CONTENDERS)
    if unknown := set(wanted) - set(CONTENDERS):
        raise SystemExit(f"error: {unknown.pop()} is not one of {', '.join(CONTENDERS)}")
    if "pgbouncer" in wanted and not shutil.which("pgbouncer"):
        print("PgBouncer is not installed, and is left out", file=sys.stderr)
        wanted.remove("pgbouncer")
    cases = [(contender, callers, table) for table in TABLES for contender in wanted
             for callers in CONTENDERS[contender]]
    places = Places(Path(), find_pg_bin(args.pg_bin), Path(sys.executable))
    trials, out = [], args.out.open("w") if args.out else None

    def show(line: dict) -> None:
        print(json.dumps(line), flush=True)
        if out:
            print(json.dumps(line), file=out, flush=True)

    versions = {name: version(name) for name in ("psycopg", "asyncpg", "uvloop")}
    versions |= {"pgspate": pgspate.__version__, "pgbouncer": pooler_version()}
    with Server(places) as server:
        sizes = {"rows": args.rows, "seconds": args.seconds, "pool_sessions": POOL_SESSIONS}
        show(facts.collect_facts(server, versions, 1, args.rounds) | sizes)
        bench = WriterBench(server, args)
        order = random.Random(args.rounds)
        for round_ in range(args.rounds):
            for case in order.sample(cases, len(cases)):
                trials.append(bench.run_trial(*case) | {"round": round_})
                show(trials[-1])
    print(tables_of_medians(trials))


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="number of rounds (default 3)")
    add("--only", metavar="NAMES", help=f"contenders, comma-separated, of {', '.join(CONTENDERS)}")
    add("--seconds", type=float, default=3.0, help="measured seconds of a trial (default 3)")
    add("--rows", type=int, default=200_000, help="rows of each table at first (default 200000)")
    add("--pg-bin", metavar="DIR", help="folder that contains postgres and initdb")
    add("--out", type=Path, metavar="FILE", help="file for the trials, one JSON line each")
    return parser.parse_args()


if __name__ == "__main__":
    main()
