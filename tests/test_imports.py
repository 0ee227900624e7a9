"""What importing a package, or running a command, loads; looked at from a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store import driver
from walkback_store import open_store

LOADED_LATE = ("textual", "rich", "deepdiff", "typer", "alembic", "psycopg")


def loaded(program: str, names: tuple[str, ...]) -> list[str]:
    """Which of these are loaded once the program has run; it may end with SystemExit."""
    program = f"""
import sys
try:
    {program}
except SystemExit as ended:
    assert not ended.code, ended.code
print(*(name for name in {names!r} if name in sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


@pytest.mark.parametrize("package", ["walkback_store", "walkback"])
def test_importing_loads_nothing_that_is_not_needed_at_once(package: str) -> None:
    assert loaded(f"import {package}", LOADED_LATE) == []


def test_the_version_is_said_without_loading_the_store() -> None:
    program = "from walkback_console.cli import main; main(['--version'])"
    assert loaded(program, ("textual", "deepdiff", "alembic", "rich", "sqlalchemy", "walkback_store", "walkback")) == []


@pytest.mark.parametrize("command", ["runs", "inbox", "doctor", "events"])
def test_a_command_loads_neither_what_screens_nor_what_migrations_need(command: str, tmp_path: Path) -> None:
    url = str(tmp_path / "walkback.db")
    with open_store(url) as store:
        driver.start(store, "r1")
    args = ["--store", url, command, *(["r1"] if command == "events" else [])]
    program = f"from walkback_console.cli import main; main({args!r})"
    assert loaded(program, ("textual", "deepdiff", "alembic", "psycopg", "walkback", "watchfiles")) == []
