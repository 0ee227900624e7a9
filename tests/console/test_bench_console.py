"""What the console's benchmark measures with, tried on an app that is there: each number is a measurement."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import bench_console
from bench.bench_console import (
    EMPTY_TABLE,
    LONG_RUN,
    WALKBACK,
    Console,
    chatter,
    fill_long_run,
    first_paint,
    listing,
    losses,
    measure_keys,
    measure_long_run,
    measure_losses,
    measure_scale,
    measure_start,
    press_keys,
    resident,
    walkback,
)
from bench.empty_table import COLUMN
from bench.report import Report
from tests.console.incident import wait_until
from tests.console.pty_screen import PtyScreen
from walkback_store import open_store
from walkback_store.fsck import fsck

TABLE = [sys.executable, "-m", "tests.console.table_app"]
STAND_IN = Console(
    inbox=lambda url: TABLE, nothing="Quit", something="unknown", run=lambda url, run_id: TABLE, timeline="deploy"
)


def test_a_start_is_measured_until_its_screen_is_painted() -> None:
    assert first_paint(EMPTY_TABLE, COLUMN) > 0
    assert first_paint(TABLE, "Quit") > 0


def test_a_key_is_measured_to_its_last_byte_and_the_bytes_are_counted() -> None:
    with PtyScreen(TABLE) as screen:
        screen.wait_for("Quit")
        screen.settle()
        keys = press_keys(screen, 6)
        assert resident(screen.process.pid) > 10
    assert [key.bytes > 0 for key in keys[:3]] == [True, True, True]  # then the last row is reached
    assert all(0 < key.milliseconds <= 1000 * (bench_console.AT_MOST + 1) for key in keys)


def test_another_process_commits_events_while_it_is_measured(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'walkback.db'}"
    with open_store(url) as store, chatter(url, 200):
        wait_until(lambda: sum(row["steps"] for row in store.runs().rows) > 20)
    with open_store(url) as store:
        assert fsck(store).problems == []


def test_a_long_run_is_filled_through_the_state_machine(store_url: str) -> None:
    with open_store(store_url) as store:
        fill_long_run(store, 2_000)
        run = store.run(LONG_RUN)
        assert (run["status"], run["steps"]) == ("succeeded", 2_000)
        assert len(store.timeline(LONG_RUN, effect="write", limit=200)) == 100
        assert fsck(store).problems == []


def test_a_listing_is_measured_to_its_end(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'walkback.db'}"
    open_store(url).close()
    assert listing(walkback("--store", url, "runs", "--json")) > 0


def test_every_measurement_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'walkback.db'}"
    open_store(url).close()
    report = Report()
    monkeypatch.setattr(bench_console, "ROUNDS", 1)
    monkeypatch.setattr(bench_console, "KEYS", 2)
    measure_start(report, STAND_IN, url)
    measure_scale(report, STAND_IN, url, url)
    measure_long_run(report, STAND_IN, url)
    measure_keys(report, STAND_IN, url)
    assert len(report.entries) == 10
    assert all(entry.value > 0 for entry in report.entries)


def test_every_way_to_lose_a_database_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report()
    monkeypatch.setattr(bench_console, "LOSSES", 1)
    with losses(tmp_path) as several:
        measure_losses(report, WALKBACK, several)
    assert len(report.entries) == 2 * len(several) == 6
    assert all(entry.value > 0 for entry in report.entries)
