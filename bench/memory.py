"""Measures pgspate's peak memory for a small and a large standard input. Both should be equal."""

import contenders
from contenders import LoadSetup
from datasets import Dataset
from peers import print_progress
from trials import TrialRunner

LARGE_BYTES = 10_000_000_000
CSV_OPTIONS = ["--format", "csv", "--header", "yes"]
# Shell script: prints file $0 once with its header, then $1 times without the header.
REPEAT_FILE_SCRIPT = 'cat "$0"; for n in $(seq "$1"); do tail -n +2 "$0"; done'


def measure_memory(runner: TrialRunner, dataset: Dataset, large: bool) -> int:
    """Pipes the dataset into pgspate; with `large`, a second time repeated up to 10 GB.

    Returns the number of failed loads.
    """
    repeat_counts = [0, int(LARGE_BYTES / dataset.path.stat().st_size)] if large else [0]
    return sum(not measure_piped_load(runner, dataset, repeats) for repeats in repeat_counts)


def measure_piped_load(runner: TrialRunner, dataset: Dataset, repeats: int) -> bool:
    """Loads the dataset and `repeats` copies from a pipe, and records memory, time and rows.

    Returns whether the load succeeded with the expected number of rows.
    """
    setup = LoadSetup(runner.places, runner.server, dataset)
    runner.reset_table(dataset.table)
    feeder = ["sh", "-c", REPEAT_FILE_SCRIPT, setup.path, str(repeats)]
    load = contenders.pgspate_load_command(setup, "-", *CSV_OPTIONS)
    usage = runner.run_commands([[feeder, load]], feeder_count=1)
    rows = int(runner.server.sql(f"select count(*) from {dataset.table}")[0][0])
    failure = runner.hide_folders(usage.failure)
    with dataset.path.open("rb") as file:
        header_bytes = len(file.readline())
        expected = sum(1 for _ in file) * (1 + repeats)
    if not failure and rows != expected:
        failure = f"wrong contents: the table has {rows} rows, the input {expected}"
    size = header_bytes + (dataset.path.stat().st_size - header_bytes) * (1 + repeats)
    runner.write_record(
        {
            "kind": "memory",
            "contender": "pgspate",
            "input_bytes": size,
            "client_rss_bytes": usage.rss_bytes,
            "wall_s": round(usage.wall_s, 3),
            "client_cpu_s": round(usage.cpu_s, 3),
            "rows": rows,
            "failure": failure,
        }
    )
    runner.reset_table(dataset.table)
    print_progress(f"memory {size / 1e6:.0f} MB  {failure or f'{usage.rss_bytes / 1e6:.0f} MB'}")
    return not failure
