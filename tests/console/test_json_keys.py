"""What `--json` prints is what docs/cli.md promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.console.terminal import Command
from tests.store import driver
from tests.support.people import open_store
from tests.test_docs import section
from walkback_store.machine.people import AddNote, DecideRetry
from walkback_store.machine.store_wide import Freeze, OpenBatch
from walkback_store.words import FreezeScope

BY_LINE = {"work", "events"}
DECIDING = {
    "deny", "resolve", "retry", "compensate", "pause", "resume", "cancel", "undo", "freeze", "unfreeze", "note", "own",
}  # fmt: skip


def keys_of(value: Any, below: tuple[str, ...] = ()) -> set[str]:
    """Every key of ours; not those inside an event's data, nor names of tables, statuses, kinds and people."""
    free = {"data", "rows", "actors", "counts", "recovery", "plan", "agents", "arguments", "origins", "old", "new"}
    if isinstance(value, list):
        return set().union(*(keys_of(item, below) for item in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    if below and (below[-1] in free or below == ("runs",)):
        return set()
    return set(value).union(*(keys_of(item, (*below, key)) for key, item in value.items()))


def test_every_key_of_every_json_is_documented_with_its_command(walkback: Command, tmp_path: Path) -> None:
    url = str(tmp_path / "walkback.db")
    with open_store(url) as store:
        driver.park_unknown(driver.held(store, "lost", worker="w1"), "1")
        driver.ask(driver.held(store, "asks", worker="w2"), "1", park=True)
        done_run = driver.held(store, "done", worker="w3")
        driver.write(done_run, "1", before={"a": 1}, after={"a": 2}, compensate="refund")
        driver.finish(done_run)
        store.do(AddNote(actor=driver.ANN, run_id="lost", reason="looking"))
        store.do(Freeze(actor=driver.ANN, scope=FreezeScope.TOOL, name="pay", reason="why not"))
    copy = str(tmp_path / "copy.db")
    why = ("--reason", "x", "--yes")
    undocumented = []
    with open_store(url) as store:
        driver.park_unknown(driver.held(store, "again", worker="w4"), "1", tool="mail")
        store.do(DecideRetry(actor=driver.ANN, run_id="again", step="1", reason="it is not there"))
        batch = str(store.do(OpenBatch(actor=driver.ANN, action="retry", members=[("lost", "1")], reason="x")).seq)
    for args in (
        ("inbox",), ("runs",), ("show", "lost"), ("show", "asks"), ("stats",), ("doctor",), ("fsck",),
        ("workers",), ("handover",), ("signal", "asks", "paid"), ("show", "lost#1"), ("show", "asks#1"),
        ("diff", "done"),
        ("approve", "asks", "--yes"), ("undo", "asks"), ("deny", "asks", *why),
        ("freeze", "everything", *why), ("unfreeze", "everything", *why), ("note", "lost", *why), ("own", "lost"),
        ("pause", "lost", *why), ("resume", "lost", *why), ("resolve", "lost", "--absent", *why),
        ("undo", "again"), ("retry", "again", *why), ("undo", "again"), ("cancel", "again", *why),
        ("compensate", "done", *why), ("roles",), ("batch", batch), ("grant", "bob", "approver", *why),
        ("audit", "lost"), ("events", "done", "--after", "2"), ("backup", copy),
        ("work", "tests.console.hostile_app:app", "--until-idle"), ("prune", "--older-than", "0s", "--yes"),
        ("adopt", "--reason", "gone", "--yes", "--store", copy),
    ):  # fmt: skip
        done = walkback("--store", url, *args, "--json")
        said = section(args[0]) + (section("runs") if args[0] == "show" else "")
        if args[0] in {"stats", "workers", "handover"}:
            said += section("inbox")
        if args[0] == "show":
            said += section("handover")
        if args[0] in {"audit", "handover", "show"}:
            said += section("events")
        if args[0] == "batch":
            said += section("workers")
        if args[0] in DECIDING:
            said += section("approve")
        assert done.code == 0, (args, done.err)
        lines = [json.loads(line) for line in done.out.splitlines()] if args[0] in BY_LINE else done.json
        undocumented += [f"{args[0]}: {key}" for key in sorted(keys_of(lines)) if f"`{key}`" not in said]
    assert undocumented == []
