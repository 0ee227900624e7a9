"""`make demo` really happens: one effect in the world, and a record that knows about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from walkback_store import open_store
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


def test_the_effect_happened_once_and_the_run_ended_well(demo: Path) -> None:
    booked = [json.loads(line) for line in (demo / "ledger.jsonl").read_text().splitlines()]
    assert booked == [{"cents": 12_000, "order": "1001"}]
    with open_store(demo / "walkback.db", create=False) as store:
        assert {row["run_id"]: row["status"] for row in store.runs().rows} == {
            "order-1001": "succeeded",
            "order-1002": "waiting",
            "thanks-1003": "waiting",
        }
        kinds = [event.kind for event in store.events("order-1001")]
        assert kinds.count("intent") == 1
        assert kinds.index("recovery") < kinds.index("needs_operator") < kinds.index("operator_action")
        (recovery,) = (e for e in store.events("order-1001") if e.kind == "recovery")
        assert recovery.data["proven"].startswith("cannot tell")
        assert {row["worker"]: row["status"] for row in store.workers()} == {
            "worker-1": "lost",
            "worker-2": "stopped",
            "worker-3": "stopped",
        }
        assert store.run("thanks-1003")["waits_for"] == "freeze:send_mail"
        assert fsck(store, deep=True).problems == []


def test_nothing_is_left_running(demo: Path) -> None:
    left = [p for p in psutil.process_iter(["cmdline"]) if any(str(demo) in part for part in p.info["cmdline"] or ())]
    assert left == []


def test_telling_it_again_starts_afresh_and_keeps_what_is_not_ours(demo: Path) -> None:
    (demo / "notes.txt").write_text("mine")
    tell(demo, "--quiet")
    assert len((demo / "ledger.jsonl").read_text().splitlines()) == 1
    assert (demo / "notes.txt").read_text() == "mine"
    with open_store(demo / "walkback.db", create=False) as store:
        assert len(store.runs().rows) == 3


def test_it_reads_well_at_80_columns_and_shows_what_the_real_commands_say(told: tuple[Path, str]) -> None:
    folder, text = told
    assert [line for line in text.splitlines() if len(line) > 80 and str(folder) not in line] == []
    for words in ("$ walkback", "needs_operator: unknown", "retry safe?", "clean", "whole", "FROZEN tool send_mail"):
        assert words in text
