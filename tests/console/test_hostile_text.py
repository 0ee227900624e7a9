"""Hostile text in every place where an agent, a tool or a person can put some: a real terminal gets none of it raw."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from tests.console.hostile import EVIL, EVIL_ID, MARKUP, PLAIN, RUNS, evil, fill_hostile, printable
from tests.console.terminal import STRICT, Command, in_one_terminal
from walkback_console.cli.commands import app

WIDE = {"COLUMNS": "2000", "LINES": "50"}
"""So that nothing is folded, and what is looked for can be found."""


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    url = str(tmp_path / "walkback.db")
    fill_hostile(url)
    return url


def commands(url: str, folder: Path) -> list[list[str]]:
    """Every command there is, with every argument that changes what it prints."""
    looks = [
        ["inbox"],
        ["runs"],
        ["runs", EVIL_ID],
        ["workers"],
        ["workers", "--all"],
        ["handover"],
        ["stats"],
        ["doctor"],
        ["fsck"],
        ["fsck", "--deep", RUNS["failed"]],
        ["events", "@store"],
        ["show", "nothing"],
        ["show", MARKUP],
        *([command, run_id] for run_id in RUNS.values() for command in ("show", "events", "audit")),
        ["show", "--all", RUNS["unknown"]],
        ["show", f"{RUNS['unknown']}#2"],
        ["show", RUNS["unknown"], printable("step")],
        ["show", f"{RUNS['asks']}#1"],
        ["state", RUNS["unknown"]],
        ["state", RUNS["unknown"], "--path", EVIL],
        ["diff", RUNS["unknown"], "2"],
        ["diff", RUNS["unknown"], "2", "--with", PLAIN],
    ]
    why = ["--reason", evil("typed"), "--yes"]
    decides = [
        ["open", "nothing"],
        ["approve", RUNS["asks"], "--digest", EVIL, *why],
        ["approve", RUNS["asks"], *why],
        ["approve", RUNS["asks"], *why],
        ["handover"],
        ["undo", RUNS["asks"]],
        ["deny", RUNS["asks"], *why],
        ["note", RUNS["unknown"], *why],
        ["own", RUNS["unknown"]],
        ["own", f"{RUNS['unknown']}#2", "--to", evil("next owner"), *why],
        ["show", RUNS["unknown"]],
        ["handover"],
        ["resolve", RUNS["unknown"], "--verify"],
        ["resolve", RUNS["unknown"], "--happened", "--result", EVIL, *why],
        ["batch", "1"],
        ["retry", RUNS["unknown"], f"{RUNS['unknown']}#2", *why],
        ["resolve", RUNS["unknown"], RUNS["asks"], "--absent", *why],
        ["retry", RUNS["unknown"], *why],
        ["resolve", RUNS["unknown"], "--absent", *why],
        ["undo", RUNS["unknown"]],
        ["resolve", RUNS["unknown"], "--no-duplicate", *why],
        ["resolve", RUNS["unknown"], "--happened", "--evidence", evil("seen"), "--result", json.dumps(EVIL), *why],
        ["pause", RUNS["waits"], *why],
        ["compensate", RUNS["unknown"], *why],
        ["compensate", RUNS["failed"], "--transaction", EVIL, *why],
        ["resume", RUNS["waits"], *why],
        ["resume", RUNS["waits"], "--json", *why],
        ["cancel", RUNS["waits"], *why],
        ["grant", MARKUP, "viewer", *why],
        ["grant", EVIL, "viewer", *why],
        ["roles"],
        ["roles", "--json"],
        ["freeze", "agent", evil("some agent"), *why],
        ["freeze", "agent", evil("some agent"), *why],
        ["freeze", EVIL, *why],
        ["unfreeze", "agent", evil("some agent"), *why],
        ["unfreeze", EVIL, *why],
    ]
    changes = [
        ["signal", RUNS["waits"], EVIL, "--data", json.dumps(EVIL), "--id", MARKUP],
        ["signal", RUNS["waits"], EVIL, "--data", EVIL],
        ["signal", RUNS["waits"], EVIL, "--json", "--id", MARKUP],
        ["adopt", "--yes", "--reason", "none"],
        ["backup", str(folder / "a.db")],
        ["backup", str(folder / "b.db"), "--json"],
        ["prune", "--older-than", "0s", "--dry-run"],
        ["prune", "--older-than", "0s", "--yes"],
    ]
    pruned = [[command, RUNS["failed"]] for command in ("show", "events", "audit", "fsck")]
    works = [
        ["work", f"{MARKUP}:{EVIL}"],
        ["work", f"os:{EVIL}"],
        ["work", "tests.console.hostile_app:app", "--until-idle"],
    ]
    as_json = [[*args, "--json"] for args in looks]
    return [["--store", url, *args] for args in (*looks, *as_json, *works, *decides, *changes, *pruned)]


def test_every_command_is_driven(tmp_path: Path) -> None:
    driven = {args[2] for args in commands("x", tmp_path)}
    assert driven == {c.name or (c.callback.__name__ if c.callback else "") for c in app.registered_commands}


def test_no_control_byte_from_the_store_reaches_the_terminal(hostile: str, tmp_path: Path) -> None:
    said = in_one_terminal(commands(hostile, tmp_path), **STRICT | WIDE).decode()
    assert said.count("Traceback") == 1  # what the app of `walkback work` raises, in its log
    raw = {
        f"{c!r} after {said[max(0, i - 40) : i]!r}"
        for i, c in enumerate(said)
        if c not in "\r\n" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }
    assert raw == set()
    folded = "".join(said.split())
    for where in (
        "agent", "tag", "stepname", "said", "tool", "description", "stake", "undo", "attempted", "proven",
        "retrysafe", "verdict", "errorclass", "error", "why", "operator", "note", "owner", "late", "waitsfor",
        "freezer", "reason", "runerror", "edited", "raised",
        "found", "output", "service", "outage", "typed", "batch", "nextowner", "someagent",
    ):  # fmt: skip
        assert f"{where}:␛[2J" in folded, f"the hostile {where} was never shown, so this test shows nothing about it"
    for where in ("statekey", "statevalue", "item"):  # of a state, as JSON escapes it
        assert f"{where}:\\u001b[2J" in folded
    assert "".join(MARKUP.split()) in folded


def test_a_terminal_with_colours_gets_no_sequence_but_those_of_rich(hostile: str, tmp_path: Path) -> None:
    said = in_one_terminal(commands(hostile, tmp_path), TERM="xterm-256color", COLUMNS="80").decode()
    assert "\x1b[" in said  # colours are on, so something could go wrong
    for sequence in ("\x1b]", "\x1b[2J", "\x1b\\", "\x9b", "\x90", "\x9c", "\x07", "\x08", "\x7f", "\u202e", "\u200b"):
        assert sequence not in said


def test_json_escapes_what_a_terminal_would_obey_and_keeps_it_exact(hostile: str, walkback: Command) -> None:
    done = walkback("show", RUNS["unknown"], "--store", hostile, "--json")
    assert done.out.isascii()
    assert all(c == "\n" or c.isprintable() for c in done.out)
    shown = json.loads(done.out)
    assert shown["agent"] == evil("agent")
    assert shown["operations"][0]["error"] == evil("error")
    assert shown["id"] == RUNS["unknown"]
