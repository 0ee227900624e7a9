"""Hostile text in every place where an agent, a tool or a person can put some: a real terminal gets none of it raw."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.console import hostile_app
from tests.console.terminal import STRICT, Command, in_one_terminal
from tests.store import driver
from tests.support.people import open_store
from walkback_console.cli.commands import app
from walkback_store.machine.operations import AppendLateEvidence, RecordRecovery, RecordVerification, Settle
from walkback_store.machine.people import AddNote
from walkback_store.machine.runs import FailRun, NeedOperator, ParkRun, RecordStep
from walkback_store.machine.store_wide import Freeze, RegisterWorker, ServiceFailed
from walkback_store.values import encode
from walkback_store.words import Answer, Evidence, FreezeScope, OperationStatus, Why

MARKUP = "[/x][@click=app.bell]m[/][bold]"
EVIL = (
    "\x1b[2J\x1b[31m"  # clear the screen, change the colour
    "\x1b]52;c;ZXZpbA==\x07"  # write to the clipboard
    "\x1b]0;title\x1b\\"
    "\x9b2J\x90q\x9c\x85"  # the same as single bytes
    "\u202e\u2066\u200f"  # turn the reading direction round
    "\u200b\u2060\ufeff\u00ad"  # hide
    "\r\n\t\x08\x7f\u2028\u2029"  # overwrite, and break out of a line
    f"{MARKUP}"
)
EVIL_ID = f"{MARKUP} '; rm -rf $HOME"
"""A run id is printable; that leaves markup, and what a shell would make of it."""

WIDE = {"COLUMNS": "2000", "LINES": "50"}
"""So that nothing is folded, and what is looked for can be found."""

RUNS = {"unknown": f"1 {EVIL_ID}", "asks": f"2 {EVIL_ID}", "failed": f"3 {EVIL_ID}", "waits": f"4 {EVIL_ID}"}
PLAIN = "7"


def evil(where: str) -> str:
    return f"{where}:{EVIL}"


def printable(where: str) -> str:
    """The store refuses names of steps and workers with anything worse than this."""
    return f"{where}:{MARKUP}"


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A store in which every text that can be hostile is."""
    url = str(tmp_path / "walkback.db")
    with open_store(url) as store:
        agent = evil("agent")
        for worker in (printable("worker"), printable("other worker")):
            store.do(
                RegisterWorker(
                    actor=evil("worker actor"),
                    worker=worker,
                    host=evil("host"),
                    boot_id="elsewhere",
                    pid=1,
                    process_started="1",
                    agents={agent: ["1"]},
                    lease=driver.MINUTE,
                )
            )

        def held(run_id: str) -> driver.Held:
            state = encode({evil("state key"): evil("state value"), "list": [evil("item")] * 3})
            driver.start(
                store, run_id, agent=agent, value={evil("key"): evil("input")}, tags=[evil("tag")], state=state
            )
            return driver.claim(store, printable("worker"), agent)

        h = held(RUNS["unknown"])
        store.do(RecordStep(**h.by, step=printable("step"), name=evil("step name"), data={"said": evil("said")}))
        call: dict[str, Any] = {
            "tool": evil("tool"), "tool_version": evil("version"), "description": evil("description"),
            "stake": evil("stake"), "compensate": evil("undo"), "service": evil("service"),
            "identity": evil("identity"),
        }  # fmt: skip
        driver.intend(h, "2", **call)
        cannot_tell = {"detail": evil("found")}
        store.do(RecordVerification(**h.by, step="2", evidence=Evidence.CANNOT_TELL, found=cannot_tell))
        store.do(
            RecordRecovery(
                **h.by,
                step="2",
                attempted=evil("attempted"),
                acknowledged=evil("acknowledged"),
                proven=evil("proven"),
                retry_safe=evil("retry safe"),
                verdict=evil("verdict"),
            )
        )
        store.do(
            Settle(
                **h.by,
                step="2",
                outcome=OperationStatus.UNKNOWN,
                answer=Answer.NONE,
                error_class=evil("error class"),
                error=evil("error"),
            )
        )
        store.do(NeedOperator(**h.by, why=Why.UNKNOWN, detail=evil("why"), step="2"))
        store.do(AddNote(actor=evil("operator"), run_id=h.run_id, reason=evil("note"), owner=evil("owner")))
        store.do(
            AppendLateEvidence(
                actor=evil("late"),
                run_id=h.run_id,
                step="2",
                data={"late": evil("late"), "output": evil("output")},
                duplicate_suspected=True,
            )
        )
        driver.ask(held(RUNS["asks"]), "1", park=True, **call)
        store.do(
            ServiceFailed(
                actor=evil("breaker"),
                service=printable("service"),
                reason=evil("outage"),
                threshold=1,
                cooldown=driver.MINUTE,
            )
        )
        h = held(RUNS["failed"])
        store.do(FailRun(**h.by, error_class=evil("run error"), message=evil("message"), fingerprint=evil("print")))
        driver.start(store, f"6 {EVIL_ID}", agent=hostile_app.hostile.name, value={})
        driver.start(store, PLAIN, agent="a")
        h = held(RUNS["waits"])
        store.do(ParkRun(**h.by, waits_for=evil("waits for")))
        freezer = f"operator:{evil('freezer')}"
        store.do(
            Freeze(actor=freezer, scope=FreezeScope.TOOL, name=evil("tool"), reason=evil("reason"))
        )  # fmt: skip
        store.do(
            Freeze(actor=freezer, scope=FreezeScope.AGENT, name=evil("agent"), reason=evil("reason"))
        )  # fmt: skip
    # And a row that fsck has to quote.
    with open_store(url) as store, store.backend.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE runs SET error_class = ? WHERE error_class IS NOT NULL", (evil("edited"),))
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
        "found", "output", "service", "outage", "typed", "nextowner", "someagent",
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
