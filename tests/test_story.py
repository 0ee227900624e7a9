"""`make demo` really happens: every effect once, and a record that knows about it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from walkback_store import Store, open_store
from walkback_store.fsck import fsck

ROOT = Path(__file__).resolve().parent.parent


def tell(folder: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "examples.story", "--folder", str(folder), *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where the story happened, and what was printed. It takes a few seconds, so it is told once for all."""
    folder = tmp_path_factory.mktemp("story") / "demo"
    return folder, tell(folder)


@pytest.fixture
def demo(told: tuple[Path, str]) -> Path:
    return told[0]


@pytest.fixture
def store(demo: Path) -> Iterator[Store]:
    with open_store(demo / "walkback.db", create=False) as store:
        yield store


def test_every_effect_happened_once_although_two_workers_were_killed(demo: Path) -> None:
    assert [json.loads(line) for line in (demo / "ledger.jsonl").read_text().splitlines()] == [
        {"invoice": "inv-1001", "order": "1001", "cents": 12_000},
        {"invoice": "inv-1004", "order": "1004", "cents": 4_500},
        {"invoice": "inv-1005", "order": "1005", "cents": 9_900},
        {"void": "inv-1005"},
    ]


def test_every_run_ended_as_it_is_told_and_the_store_is_whole(store: Store) -> None:
    assert {row["run_id"]: (row["status"], row["waits_for"]) for row in store.runs().rows} == {
        "order-1001": ("succeeded", None),
        "order-1002": ("waiting", "approval:3"),
        "thanks-1003": ("waiting", "freeze:send_mail"),
        "order-1004": ("succeeded", None),
        "order-1005": ("failed", None),
    }
    assert sorted(row["status"] for row in store.workers()) == ["lost"] * 2 + ["stopped"] * 4
    assert fsck(store, deep=True).problems == []


def test_where_nobody_could_tell_a_person_decided(store: Store) -> None:
    events = store.events("order-1001")
    kinds = [event.kind for event in events if event.step == "3"]
    assert kinds.count("intent") == 1
    assert kinds.index("recovery") < kinds.index("needs_operator") < kinds.index("operator_action")
    (recovery,) = (event for event in events if event.kind == "recovery")
    assert recovery.data["proven"].startswith("cannot tell")
    assert recovery.data["retry_safe"].startswith("no")


def test_where_the_ledger_could_tell_nobody_was_asked(store: Store) -> None:
    events = store.events("order-1004")
    assert [event.kind for event in events].count("intent") == 2  # the invoice and the receipt
    assert {"needs_operator", "operator_action"}.isdisjoint(event.kind for event in events)
    (recovery,) = (event for event in events if event.kind == "recovery")
    assert recovery.data["proven"].startswith("yes")
    assert store.operation("order-1004", "3").operation["attempts"] == 1


def test_what_was_done_for_nothing_was_undone(store: Store) -> None:
    found = {row["step"]: (row["operation_tool"], row["operation_status"]) for row in store.timeline("order-1005")}
    assert found["3"] == ("create_invoice", "compensated")
    assert found["4"] == ("send_receipt", "failed")
    assert found["c3"] == ("void_invoice", "succeeded")


def test_nothing_is_left_running(demo: Path) -> None:
    left = [p for p in psutil.process_iter(["cmdline"]) if any(str(demo) in part for part in p.info["cmdline"] or ())]
    assert left == []


def test_telling_it_again_starts_afresh_and_keeps_what_is_not_ours(demo: Path) -> None:
    (demo / "notes.txt").write_text("mine")
    tell(demo, "--quiet")
    assert len((demo / "ledger.jsonl").read_text().splitlines()) == 4
    assert (demo / "notes.txt").read_text() == "mine"
    with open_store(demo / "walkback.db", create=False) as store:
        assert len(store.runs().rows) == 5


def test_it_reads_well_at_80_columns_and_shows_what_the_real_commands_say(told: tuple[Path, str]) -> None:
    folder, text = told
    assert [line for line in text.splitlines() if len(line) > 80 and str(folder) not in line] == []
    for words in (
        "$ walkback",
        "needs_operator: unknown",
        "retry safe?",
        "clean",
        "whole",
        "FROZEN tool send_mail",
        "$ walkback work examples.story_agents:app",
        "is gone; its runs can be taken over",
        "undoes step 3",
    ):
        assert words in text
