"""Runs trials: in each round, each contender loads an empty table.

After each trial, the table must have the row count and checksum of the reference load by psql.
Otherwise the trial has failed.
"""

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TextIO

import contenders
import measure
from contenders import Contender, LoadSetup
from datasets import Dataset, create_table_sql, read_into_page_cache
from peers import PeerInventory, print_progress
from places import Places
from server import Server

CONTENTS_QUERY = "select count(*), sum(hashtextextended(t::text, 0)) from {} t"
WAL_POSITION_QUERY = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"

PGSPATE_REPORT_KEYS = ("path", "lanes", "chunks", "rows_as_text", "seconds", "stages", "warnings")


@dataclass
class Trial:
    """One load by one contender: a line of the results file."""

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
    """The machine's load average over the minute before the trial."""
    failure: str = ""
    report: dict = field(default_factory=dict)
    """Parts of pgspate's JSON report; empty for other programs."""
    kind: str = "trial"


class TrialRunner:
    """Runs trials on one server, and writes their results to `out`."""

    def __init__(
        self, places: Places, server: Server, peers: PeerInventory, out: TextIO, timeout_s: float
    ):
        self.places = places
        self.server = server
        self.peers = peers
        self.out = out
        self.timeout_s = timeout_s
        self.expected: dict[str, tuple[int, str]] = {}
        """Row count and checksum of each table after its reference load."""
        time.sleep(0.5)
        self.idle_process_count = len(measure.child_pids(server.pid))

    def write_record(self, fields: dict) -> None:
        """Writes one line to the results file."""
        self.out.write(json.dumps(fields, ensure_ascii=False) + "\n")
        self.out.flush()

    def make_reference(self, dataset: Dataset) -> None:
        """Loads a table by psql, unmeasured, as the reference for all contenders.

        Also copies the rows into two binary files, the input of the contender `PHYSICAL_LIMIT`.
        """
        print_progress(f"reference load of {dataset.table}")
        setup = LoadSetup(self.places, self.server, dataset)
        self.reset_table(dataset.table)
        baseline = next(
            c for c in contenders.contenders_for(dataset.name) if c.name == contenders.BASELINE
        )
        usage = self.run_commands(baseline.commands(setup))
        if usage.failure:
            raise SystemExit(f"error: reference load by psql failed\n{usage.failure}")
        self.expected[dataset.table] = self.table_contents(dataset.table)
        relation = f"from {dataset.table} where ctid"
        blocks = f"pg_relation_size('{dataset.table}') / current_setting('block_size')::int"
        middle = int(self.server.sql(f"select {blocks} / 2")[0][0])
        for half_path, side in zip(setup.binary_half_paths(), ("<", ">="), strict=True):
            query = f"select * {relation} {side} '({middle},0)'"
            self.server.sql(f"copy ({query}) to '{half_path}' (format binary)")
            read_into_page_cache(half_path)

    def run_trial(self, dataset: Dataset, contender: Contender, round_number: int) -> Trial:
        """Runs, measures and checks one load, and records its result."""
        trial = Trial(dataset.name, contender.name, round_number)
        setup = LoadSetup(self.places, self.server, dataset)
        self.reset_table(dataset.table)
        commands = contender.commands(setup)
        trial.load_average = os.getloadavg()[0]
        self.measure_commands(trial, commands)
        if not trial.failure:
            self.check_contents(trial, dataset.table)
        self.write_record(asdict(trial))
        message = trial.failure.splitlines()[-1] if trial.failure else f"{trial.wall_s:8.2f} s"
        print_progress(f"{dataset.name:18} {contender.name:18} {message}")
        return trial

    def measure_commands(self, trial: Trial, commands: list[measure.Pipeline]) -> None:
        """Runs the commands, and stores their time, CPU, memory and WAL in `trial`."""
        wal = int(self.server.sql(WAL_POSITION_QUERY)[0][0])
        self.wait_for_backends()
        cpu = measure.server_cpu_s(self.server.pid)
        usage = self.run_commands(commands)
        self.wait_for_backends()
        trial.server_cpu_s = round(measure.server_cpu_s(self.server.pid) - cpu, 3)
        trial.wal_bytes = int(self.server.sql(WAL_POSITION_QUERY)[0][0]) - wal
        trial.wall_s = round(usage.wall_s, 3)
        trial.client_cpu_s = round(usage.cpu_s, 3)
        trial.client_rss_bytes = usage.rss_bytes
        trial.failure = self.hide_folders(usage.failure)
        trial.report = self.pgspate_report_parts(usage.output)

    def check_contents(self, trial: Trial, table: str) -> None:
        """Compares the table with the reference; a difference makes the trial a failure."""
        trial.rows, trial.checksum = self.table_contents(table)
        if (trial.rows, trial.checksum) != self.expected[table]:
            rows = self.expected[table][0]
            trial.failure = f"wrong contents: the table has {trial.rows} rows, the reference {rows}"
            if trial.rows == rows:
                trial.failure = "wrong contents: the row counts are equal, some values differ"

    def run_commands(
        self, commands: list[measure.Pipeline], feeder_count: int = 0
    ) -> measure.ResourceUsage:
        """Runs pipelines that connect to the server, and returns what they used."""
        env = self.server.environment()
        return measure.run_pipelines(
            commands, env, self.server.folder, self.timeout_s, feeder_count
        )

    def reset_table(self, table: str) -> None:
        """Drops the table and pgspate's ledger, creates the table empty, and runs a checkpoint."""
        self.server.sql(
            f"drop schema if exists pgspate cascade;\ndrop table if exists {table};\n"
            f"{create_table_sql(table)};\ncheckpoint;\n"
        )

    def table_contents(self, table: str) -> tuple[int, str]:
        """Returns the row count, and a checksum of all values that ignores the order of rows."""
        rows, checksum = self.server.sql(CONTENTS_QUERY.format(table))[0]
        return int(rows), checksum

    def pgspate_report_parts(self, output: str) -> dict:
        """Returns the parts of pgspate's JSON report that explain its time.

        Returns an empty dict if `output` is not such a report.
        """
        with contextlib.suppress(ValueError, AttributeError):
            report = json.loads(self.hide_folders(output))
            return {name: report[name] for name in PGSPATE_REPORT_KEYS if name in report}
        return {}

    def wait_for_backends(self) -> None:
        """Waits until all backends have exited, so that their CPU time is counted."""
        measure.wait_for_process_count(self.server.pid, self.idle_process_count)

    def hide_folders(self, message: str) -> str:
        """Replaces paths of this machine in a message."""
        message = message.replace(str(self.server.folder), "SERVER")
        return message.replace(str(self.places.cache), "CACHE")


def run_rounds(runner: TrialRunner, datasets: list[Dataset], chosen: set[str], repeats: int) -> int:
    """Runs each chosen contender once in each round, and returns the number of failed trials.

    `chosen` holds names of the form `dataset/contender`. Each round begins with another contender.
    """
    pairs = [
        (dataset, contender)
        for dataset in datasets
        for contender in contenders.contenders_for(dataset.name)
        if f"{dataset.name}/{contender.name}" in chosen
    ]
    for dataset in reference_datasets(datasets, pairs):
        runner.make_reference(dataset)
    for dataset in {dataset.path: dataset for dataset, _ in pairs}.values():
        read_into_page_cache(dataset.path)
    # Write the new input files to disk now, not during the first trial.
    os.sync()
    failed = 0
    for number in range(repeats):
        first = number * len(pairs) // max(repeats, 1)
        for dataset, contender in pairs[first:] + pairs[:first]:
            if contender.peer in runner.peers.missing or (
                contender.first_round_only and number > 0
            ):
                continue
            failed += bool(runner.run_trial(dataset, contender, number + 1).failure)
    return failed


def reference_datasets(
    datasets: list[Dataset], pairs: list[tuple[Dataset, Contender]]
) -> list[Dataset]:
    """Returns, for each table that is loaded, an input that psql can read."""
    tables = {dataset.table for dataset, _ in pairs}
    found = {}
    for dataset in datasets:
        names = [contender.name for contender in contenders.contenders_for(dataset.name)]
        if dataset.table in tables and contenders.BASELINE in names:
            found.setdefault(dataset.table, dataset)
    return list(found.values())
