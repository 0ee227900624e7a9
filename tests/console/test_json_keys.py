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
from walkback_store.machine.store_wide import Freeze
from walkback_store.words import FreezeScope


def keys_of(value: Any, below: tuple[str, ...] = ()) -> set[str]:
    """Every key of ours; not those inside an event's data, nor names of tables, statuses, kinds and people."""
    free = {"data", "rows", "actors", "counts", "recovery", "plan", "agents"}
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
        driver.finish(driver.held(store, "done", worker="w3"))
        store.do(AddNote(actor=driver.ANN, run_id="lost", reason="looking"))
        store.do(Freeze(actor=driver.ANN, scope=FreezeScope.TOOL, name="pay", reason="why not"))
    copy = str(tmp_path / "copy.db")
    undocumented = []
    with open_store(url) as store:
        driver.park_unknown(driver.held(store, "again", worker="w4"), "1", tool="mail")
        store.do(DecideRetry(actor=driver.ANN, run_id="again", step="1", reason="it is not there"))
    for args in (
        ("inbox",), ("runs",), ("show", "lost"), ("show", "asks"), ("stats",), ("doctor",), ("fsck",),
        ("workers",), ("handover",), ("signal", "asks", "paid"),
        ("audit", "lost"), ("events", "done", "--after", "2"), ("backup", copy),
        ("work", "tests.console.hostile_app:app", "--until-idle"), ("prune", "--older-than", "0s", "--yes"),
        ("adopt", "--reason", "gone", "--yes", "--store", copy),
    ):  # fmt: skip
        done = walkback("--store", url, *args, "--json")
        said = section(args[0]) + (section("runs") if args[0] == "show" else "")
        if args[0] in {"stats", "workers", "handover"}:
            said += section("inbox")
        if args[0] in {"audit", "handover"}:
            said += section("events")
        lines = [json.loads(line) for line in done.out.splitlines()] if args[0] == "work" else done.json
        undocumented += [f"{args[0]}: {key}" for key in sorted(keys_of(lines)) if f"`{key}`" not in said]
    assert undocumented == []
