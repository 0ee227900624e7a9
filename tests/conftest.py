"""Fixtures for every test: fresh stores, on real SQLite and real PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Postgres, running_postgres
from tests.support.proxy import CuttingProxy


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server per test process, started by the first test that asks for it."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def pg_url(postgres: Postgres) -> Iterator[str]:
    """A fresh PostgreSQL database."""
    with postgres.fresh_database() as url:
        yield url


@pytest.fixture
def pg_proxy(pg_url: str) -> Iterator[CuttingProxy]:
    """A proxy in front of `pg_url` that can lose connections on command."""
    with CuttingProxy(pg_url) as proxy:
        yield proxy


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that does not exist yet, on either database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'walkback.db'}"
    url: str = request.getfixturevalue("pg_url")
    return url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the console mostly wait for a screen, and the others compute: file by file, some of each in turn."""
    placed: list[tuple[float, list[pytest.Item]]] = []
    for waits in (True, False):
        kind = [item for item in items if ("console" in item.path.parts) is waits]
        seen = 0
        for _, of_file in itertools.groupby(kind, key=lambda item: item.path):
            group = list(of_file)
            placed.append((seen / len(kind), group))
            seen += len(group)
    items[:] = [item for _, group in sorted(placed, key=lambda place: place[0]) for item in group]
