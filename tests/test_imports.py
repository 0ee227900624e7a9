"""What importing a package, or running a command, loads; looked at from a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.store import driver
from walkback_console.cli.commands import app
from walkback_console.whoami import operator_of
from walkback_store import housekeeping, open_store
from walkback_store.machine.people import AddNote, DecideRetry, RequestPause
from walkback_store.machine.store_wide import Freeze, OpenBatch
from walkback_store.words import FreezeScope

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
    return done.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("package", ["walkback_store", "walkback"])
def test_importing_loads_nothing_that_is_not_needed_at_once(package: str) -> None:
    assert loaded(f"import {package}", LOADED_LATE) == []


def test_the_version_is_said_without_loading_the_store() -> None:
    program = "from walkback_console.cli import main; main(['--version'])"
    assert loaded(program, ("textual", "deepdiff", "alembic", "rich", "sqlalchemy", "walkback_store", "walkback")) == []


@pytest.mark.parametrize("args", [["--help"], ["work", "--help"], ["runs", "--help"]])
def test_help_is_given_without_loading_the_store(args: list[str]) -> None:
    program = f"from walkback_console.cli import main; main({args!r})"
    assert loaded(program, ("textual", "deepdiff", "alembic", "sqlalchemy", "walkback_store", "walkback")) == []


def test_only_work_loads_the_runtime_and_nothing_that_screens_need(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import walkback as wb\n@wb.agent\ndef buyer(run): ...\napp = wb.App(agents=[buyer])\n"
    )
    url = str(tmp_path / "walkback.db")
    open_store(url).close()
    args = ["work", "shop:app", "--until-idle", "--store", url]
    program = f"import os; os.chdir({str(tmp_path)!r}); from walkback_console.cli import main; main({args!r})"
    # The last line: the log is on stderr too.
    assert loaded(program, ("walkback", "textual", "deepdiff", "alembic", "psycopg")) == ["walkback"]


@pytest.mark.parametrize(
    "command",
    [
        "runs", "inbox", "show", "doctor", "events", "stats", "fsck", "audit", "backup", "prune", "adopt", "state",
        "diff", "workers", "handover", "signal", "approve", "deny", "resolve", "retry", "compensate", "pause",
        "resume", "cancel", "undo", "freeze", "unfreeze", "note", "own", "roles", "grant", "batch",
    ],
)  # fmt: skip
def test_a_command_loads_neither_what_screens_nor_what_migrations_need(command: str, tmp_path: Path) -> None:
    url = str(tmp_path / "walkback.db")
    with open_store(url) as store:
        held = driver.held(store, "r1")
        driver.write(held, "1")
        driver.park_unknown(held, "2", can_verify=True)
        driver.ask(driver.held(store, "asks", worker="w2"), "1", park=True)
        done = driver.held(store, "done", worker="w3")
        driver.write(done, "1", compensate="refund")
        driver.finish(done)
        driver.park_unknown(driver.held(store, "again", worker="w4"), "1")
        why: dict[str, Any] = {"actor": operator_of(store), "reason": "x"}
        store.do(DecideRetry(**why, run_id="again", step="1"))
        store.do(RequestPause(**why, run_id="r1") if command == "resume" else AddNote(**why, run_id="r1"))
        store.do(Freeze(**why, scope=FreezeScope.TOOL, name="fax"))
        driver.park_unknown(driver.held(store, "many", worker="w5"), "1")
        batch = store.do(OpenBatch(**why, action="retry", members=[("many", "1")])).seq
    given = ["--reason", "x", "--yes"]
    more = {
        "diff": ["r1", "1"],
        "signal": ["r1", "paid"],
        "approve": ["asks", "--yes"],
        "deny": ["asks", *given],
        "resolve": ["r1", "--verify"],
        "compensate": ["done", *given],
        "undo": ["again"],
        "freeze": ["everything", *given],
        "unfreeze": ["tool", "fax", *given],
        "own": ["r1"],
        "batch": [str(batch)],
        "grant": ["bob", "viewer", *given],
        "backup": [str(tmp_path / "copy.db")],
        "prune": ["--older-than", "1d", "--yes"],
        "adopt": ["--reason", "gone", "--yes"],
    }
    more |= {name: ["r1"] for name in ("show", "events", "audit", "state")}
    more |= {name: ["r1", *given] for name in ("retry", "pause", "resume", "cancel", "note")}
    if command == "adopt":
        copy = str(tmp_path / "copy.db")
        with open_store(url) as store:
            housekeeping.backup(store, copy)
        url = copy
    program = f"from walkback_console.cli import main; main({['--store', url, command, *more.get(command, [])]!r})"
    assert loaded(program, ("textual", "deepdiff", "alembic", "psycopg", "walkback", "watchfiles")) == []


def test_every_command_is_one_of_those() -> None:
    marks = getattr(test_a_command_loads_neither_what_screens_nor_what_migrations_need, "pytestmark", [])
    (tried,) = (mark.args[1] for mark in marks)
    assert {*tried, "work", "open"} == {c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands}
