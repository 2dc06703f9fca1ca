"""A server for all tests, and a database for each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import psycopg
import pytest

import pgspate

_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What does not say where to connect reaches no server of the machine's, and starts none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGHOST", str(tmp_path_factory.mktemp("nowhere")))
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[pgspate.Server]:
    with pgspate.server(temporary=True) as server:
        yield server


@pytest.fixture
def dsn(server: pgspate.Server) -> Iterator[str]:
    """How to connect to an empty database of the test's own."""
    name = f"python_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    yield server.dsn.replace("dbname=postgres", f"dbname={name}")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection to it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection
