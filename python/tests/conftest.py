"""Fixtures: one server for all tests, and a database for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import psycopg
import pytest

import pgspate

_database_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def no_default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Calls without `to=` fail: they neither reach a server of this machine nor start one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGHOST", str(tmp_path_factory.mktemp("nowhere")))
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[pgspate.Server]:
    with pgspate.server(temporary=True) as server:
        yield server


@pytest.fixture
def dsn(server: pgspate.Server) -> Iterator[str]:
    """Yields the connection string of an empty database that only one test uses."""
    name = f"python_{os.getpid()}_{next(_database_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    yield server.dsn.replace("dbname=postgres", f"dbname={name}")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection]:
    """Yields a connection to the database of `dsn`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection
