"""Trials: contenders in turn, round after round, each into an empty table.

Every trial is checked: the table must hold as many rows as the reference load made, with
the same checksum over all values, or the trial counts as failed.
"""

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TextIO

import contenders
import measure
from contenders import Contender, Stage
from datasets import Dataset, create_table, warm
from peers import Peers, say
from places import Places
from server import Server

CONTENTS = "select count(*), sum(hashtextextended(t::text, 0)) from {} t"
WAL = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"

EXPLAINING = ("path", "lanes", "chunks", "rows_as_text", "seconds", "stages", "warnings")


@dataclass
class Trial:
    """One line of the results."""

    dataset: str
    contender: str
    round: int
    wall_s: float = 0.0
    server_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    client_rss_bytes: int = 0
    wal_bytes: int = 0
    rows: int = 0
    checksum: str = ""
    load_average: float = 0.0
    """Of the machine over the minute before."""
    failure: str = ""
    report: dict = field(default_factory=dict)
    """What pgspate says of the path it took."""
    kind: str = "trial"


class Session:
    """A server and where the results go."""

    def __init__(self, places: Places, server: Server, peers: Peers, out: TextIO, timeout_s: float):
        self.places = places
        self.server = server
        self.peers = peers
        self.out = out
        self.timeout_s = timeout_s
        self.expected: dict[str, tuple[int, str]] = {}
        """Rows and checksum by table."""
        time.sleep(0.5)
        self.idle_processes = len(measure.children_of(server.pid))

    def record(self, fields: dict) -> None:
        """Write one line of results."""
        self.out.write(json.dumps(fields, ensure_ascii=False) + "\n")
        self.out.flush()

    def make_reference(self, dataset: Dataset) -> None:
        """Load a table by psql, untimed: what every contender has to arrive at."""
        say(f"reference load of {dataset.table}")
        stage = Stage(self.places, self.server, dataset)
        self.reset(dataset.table)
        baseline = next(c for c in contenders.of(dataset.name) if c.name == contenders.BASELINE)
        usage = self.run(baseline.commands(stage))
        if usage.failure:
            raise SystemExit(f"error: could not make the reference\n{usage.failure}")
        self.expected[dataset.table] = self.contents(dataset.table)
        relation = f"from {dataset.table} where ctid"
        blocks = f"pg_relation_size('{dataset.table}') / current_setting('block_size')::int"
        middle = int(self.server.sql(f"select {blocks} / 2")[0][0])
        for half, side in zip(stage.binary_halves(), ("<", ">="), strict=True):
            query = f"select * {relation} {side} '({middle},0)'"
            self.server.sql(f"copy ({query}) to '{half}' (format binary)")
            warm(half)

    def trial(self, dataset: Dataset, contender: Contender, round_number: int) -> Trial:
        """One load, measured and checked."""
        trial = Trial(dataset.name, contender.name, round_number)
        stage = Stage(self.places, self.server, dataset)
        self.reset(dataset.table)
        commands = contender.commands(stage)
        trial.load_average = os.getloadavg()[0]
        self.measured(trial, commands)
        if not trial.failure:
            self.check(trial, dataset.table)
        self.record(asdict(trial))
        words = trial.failure.splitlines()[-1] if trial.failure else f"{trial.wall_s:8.2f} s"
        say(f"{dataset.name:18} {contender.name:18} {words}")
        return trial

    def measured(self, trial: Trial, commands: list[measure.Pipeline]) -> None:
        """Run the commands and note what they cost."""
        wal = int(self.server.sql(WAL)[0][0])
        self.settle()
        cpu = measure.server_cpu(self.server.pid)
        usage = self.run(commands)
        self.settle()
        trial.server_cpu_s = round(measure.server_cpu(self.server.pid) - cpu, 3)
        trial.wal_bytes = int(self.server.sql(WAL)[0][0]) - wal
        trial.wall_s = round(usage.wall_s, 3)
        trial.client_cpu_s = round(usage.cpu_s, 3)
        trial.client_rss_bytes = usage.rss_bytes
        trial.failure = self.without_folders(usage.failure)
        trial.report = self.path_taken(usage.output)

    def check(self, trial: Trial, table: str) -> None:
        """Compare the table with the reference."""
        trial.rows, trial.checksum = self.contents(table)
        if (trial.rows, trial.checksum) != self.expected[table]:
            rows = self.expected[table][0]
            trial.failure = f"wrong contents: {trial.rows} rows, the reference has {rows}"
            if trial.rows == rows:
                trial.failure = "wrong contents: as many rows as the reference, other values"

    def run(self, commands: list[measure.Pipeline], feeders: int = 0) -> measure.Usage:
        """Run commands against our server."""
        env = self.server.environment()
        return measure.run(commands, env, self.server.folder, self.timeout_s, feeders)

    def reset(self, table: str) -> None:
        """An empty table, no trace of an earlier load, and no dirty pages."""
        self.server.sql(
            f"drop schema if exists pgspate cascade;\ndrop table if exists {table};\n"
            f"{create_table(table)};\ncheckpoint;\n"
        )

    def contents(self, table: str) -> tuple[int, str]:
        """Rows of a table, and a checksum over all values that no order changes."""
        rows, checksum = self.server.sql(CONTENTS.format(table))[0]
        return int(rows), checksum

    def path_taken(self, output: str) -> dict:
        """The parts of a contender's JSON report that explain its time, if it printed one."""
        with contextlib.suppress(ValueError, AttributeError):
            told = json.loads(self.without_folders(output))
            return {name: told[name] for name in EXPLAINING if name in told}
        return {}

    def settle(self) -> None:
        """Wait until the backends have gone, so that their CPU is counted."""
        measure.settle(self.server.pid, self.idle_processes)

    def without_folders(self, words: str) -> str:
        """A message without this machine's paths."""
        words = words.replace(str(self.server.folder), "SERVER")
        return words.replace(str(self.places.cache), "CACHE")


def run_rounds(session: Session, datasets: list[Dataset], chosen: set[str], repeats: int) -> int:
    """All chosen contenders, interleaved; how many trials failed.

    `chosen` holds `dataset/contender`. Each round begins with another contender, so that
    none always comes after the same one.
    """
    pairs = [
        (dataset, contender)
        for dataset in datasets
        for contender in contenders.of(dataset.name)
        if f"{dataset.name}/{contender.name}" in chosen
    ]
    for dataset in references(datasets, pairs):
        session.make_reference(dataset)
    for dataset in {dataset.path: dataset for dataset, _ in pairs}.values():
        warm(dataset.path)
    os.sync()  # What making the data left to be written is not the first contender's to bear.
    failed = 0
    for number in range(repeats):
        turn = number * len(pairs) // max(repeats, 1)
        for dataset, contender in pairs[turn:] + pairs[:turn]:
            if contender.peer in session.peers.missing or (contender.slow and number > 0):
                continue
            failed += bool(session.trial(dataset, contender, number + 1).failure)
    return failed


def references(datasets: list[Dataset], pairs: list[tuple[Dataset, Contender]]) -> list[Dataset]:
    """For each table that is loaded, the input that psql can read."""
    tables = {dataset.table for dataset, _ in pairs}
    found = {}
    for dataset in datasets:
        names = [contender.name for contender in contenders.of(dataset.name)]
        if dataset.table in tables and contenders.BASELINE in names:
            found.setdefault(dataset.table, dataset)
    return list(found.values())
