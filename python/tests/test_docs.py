"""Every example in a docstring does what it shows."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import pgspate

MODULES = ["_errors", "_load", "_sync", "_progress", "_report", "_server", "_pandas", "aio",
           "sqlalchemy"]
NEEDS = {"_pandas": ["pandas", "sqlalchemy"], "sqlalchemy": ["sqlalchemy"]}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    for package in NEEDS.get(name, []):
        pytest.importorskip(package)
    module = importlib.import_module(f"pgspate.{name}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0 and results.failed == 0


def test_everything_public_is_described():
    for name in pgspate.__all__:
        thing = getattr(pgspate, name)
        if name != "__version__":
            assert inspect.getdoc(thing), name


def test_calls_and_typed_options_agree():
    from pgspate import _options


    for function, typed in ((pgspate.load, _options.LoadOptions),
                            (pgspate.sync, _options.SyncOptions)):
        parameters = set(inspect.signature(function).parameters) - {"data", "table"}
        assert parameters == typed.__optional_keys__
