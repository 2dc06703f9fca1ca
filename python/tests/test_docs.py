"""Docstrings, guides and examples: they run, are complete, and agree with the command."""

from __future__ import annotations

import doctest
import html
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import pgspate
from pgspate import _options, _python_words, _typed

ROOT = Path(__file__).resolve().parents[2]

MODULES = ["_errors", "_calls", "_doctor", "_progress", "_report", "_server", "_write", "_pandas",
           "_writer", "_aio_writer", "aio", "fleetjob", "sqlalchemy"]
NEEDS = {"_pandas": ["pandas", "sqlalchemy"], "sqlalchemy": ["sqlalchemy"]}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    for package in NEEDS.get(name, []):
        pytest.importorskip(package)
    module = importlib.import_module(f"pgspate.{name}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0 and results.failed == 0


def test_every_public_name_has_a_docstring():
    for name in pgspate.__all__:
        value = getattr(pgspate, name)
        if name != "__version__":
            assert inspect.getdoc(value), name


# Arguments whose flag has another name, and arguments without a flag.
ARGUMENTS = {flag: name for name, flag in _python_words.FLAGS.items()}
ONLY_IN_PYTHON = {"progress", "index"}
COMMANDS = {
    "load": _typed.LoadOptions,
    "sync": _typed.SyncOptions,
    "apply": _typed.ApplyOptions,
    "doctor": _typed.DoctorOptions,
    "tune": _typed.TuneOptions,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_calls_are_those_of_the_typed_dicts(name):
    parameters = inspect.signature(getattr(pgspate, name)).parameters.values()
    assert {it.name for it in parameters if it.kind is it.KEYWORD_ONLY} == (
        COMMANDS[name].__optional_keys__
    )


def test_the_guide_runs(tmp_path, monkeypatch):
    for package in ("pyarrow", "pandas", "sqlalchemy"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "python")
    from guide import run

    assert run(ROOT / "docs/how-to/python.md") > 8


def test_the_page_about_fastapi_runs(tmp_path, monkeypatch):
    for package in ("fastapi", "httpx2", "psycopg"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "python")
    from guide import run

    assert run(ROOT / "docs/how-to/many-small-inserts-from-fastapi.md") > 3


def test_the_example_of_fastapi_runs():
    for package in ("fastapi", "uvicorn", "psycopg"):
        pytest.importorskip(package)
    program = [sys.executable, str(ROOT / "examples/fastapi_app.py"), "--try"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "512 of 513 requests stored, 1 refused" in done.stdout


def test_the_notebook_runs():
    for package in ("ipykernel", "pyarrow"):
        pytest.importorskip(package)
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(ROOT / "examples/flights.ipynb", 4)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    # The repository has the notebook without its output.
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    place = {"metadata": {"path": str(ROOT / "examples")}}
    nbclient.NotebookClient(book, timeout=600, resources=place).execute()
    shown = [out.data.get("text/html", "") for cell in cells for out in cell.outputs
             if "data" in out]
    for part in ("public.flights: 51,955 rows in", "<progress value='1.0000'>",
                 "public.carriers: 3 events", "alter system set fsync"):
        assert any(part in html.unescape(page) for page in shown), part


def test_the_example_runs(tmp_path):
    program = [sys.executable, str(ROOT / "examples/python.py")]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "<SyncReport public.squares: 0 inserted, 1 updated" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_calls_are_those_of_the_command(command):
    program = [sys.executable, "-m", "pgspate", command, "--help"]
    text = subprocess.run(program, capture_output=True, text=True).stdout
    flags = re.findall(r"^ +(?:-\w, +)?--([a-z][a-z-]+)", text, re.M)
    flags = {flag.replace("-", "_") for flag in flags}
    # In Python, a report takes the place of these flags.
    flags -= {"json", "quiet", "plan", "help", "advise_only", "cli_input_json"}
    if command in ("load", "sync"):
        flags -= {"table"}
    flags = {ARGUMENTS.get(flag, flag) for flag in flags}
    assert flags == COMMANDS[command].__optional_keys__ - ONLY_IN_PYTHON


@pytest.mark.parametrize("command", COMMANDS)
def test_the_defaults_of_calls_are_those_of_the_command(command):
    reference = (ROOT / "docs/reference/options.md").read_text()
    section = re.search(rf"^## pgspate {command}$(.*?)^## ", reference, re.M | re.S)
    rows = re.findall(r"^\| (?:`-\w`, )?`--([a-z-]+)(.*)$", section[1], re.M)
    defaults = {
        name.replace("-", "_"): re.search(r"\. Default: `(.*)` \|$", row) for name, row in rows
    }
    parameters = inspect.signature(getattr(pgspate, command)).parameters
    assert sum(default is not None for default in defaults.values()) > 1
    for name in COMMANDS[command].__optional_keys__ - ONLY_IN_PYTHON:
        default = parameters[name].default
        # For these defaults, Python does not pass the argument, and the command uses its default.
        if default not in (None, False, ()):
            assert defaults[name] and defaults[name][1] == str(default), name


@pytest.mark.parametrize("flag, literal", [("format FORMAT", _options.Format),
                                           ("rebuild-indexes WHEN", _options.When)])
def test_the_values_of_options_are_those_of_the_command(flag, literal):
    reference = (ROOT / "docs/reference/options.md").read_text()
    help_text = re.search(rf"^\| `--{flag}` \| .*?: (`.*`.*)\|$", reference, re.M)[1]
    values = help_text.partition("Default:")[0]
    assert tuple(re.findall(r"`(\w+)` \(", values)) == get_args(literal)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_of_a_call_is_documented(command):
    call = getattr(pgspate, command)
    arguments = inspect.getdoc(call).partition("\nArgs:\n")[2].partition("\n\nReturns:")[0]
    described = re.findall(r"^    (\w+): ", arguments, re.M)
    assert described == list(inspect.signature(call).parameters)


@pytest.mark.parametrize("file, arguments", [("docs/reference/python.md", []),
                                             ("python/pgspate/_typed.py", ["options"])])
def test_a_generated_file_is_current(file, arguments):
    pytest.importorskip("sqlalchemy")
    done = subprocess.run([sys.executable, str(ROOT / "python/reference.py"), *arguments],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    current = (ROOT / file).read_text()
    assert current == done.stdout, "run `make reference-python`"
