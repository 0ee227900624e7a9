"""Who holds a run, when that ends, and what a worker that lost it can still do: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.writer import intend, registration, settle, start
from tests.support.people import open_store
from walkback_store import leases
from walkback_store.errors import IllegalTransition, PreconditionFailed, StaleFence
from walkback_store.leases import LeaseObserver, known_dead, process_started
from walkback_store.log import Row
from walkback_store.machine.runs import FinishRun, ReleaseRun
from walkback_store.machine.store_wide import LoseWorker, StopWorker
from walkback_store.store import Store

SECOND = 1_000_000
LEASE = 5 * SECOND
AGENTS = {"a": ["1"]}


class FakeTime:
    """One observer's clocks: monotonic seconds, and the wall clock's microseconds."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.wall = 1_700_000_000 * SECOND

    def pass_(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += int(seconds * SECOND)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def store(store_url: str, time: FakeTime) -> Iterator[Store]:
    with open_store(store_url, clock=lambda: time.wall) as opened:
        opened._observer = LeaseObserver(monotonic=lambda: time.monotonic)
        yield opened


def register(store: Store, worker: str) -> None:
    store.do(registration(worker, lease=LEASE))


def take(store: Store, worker: str) -> Row:
    (claimed,) = store.claim(worker, AGENTS)
    assert claimed.run is not None
    return claimed.run


def lose(store: Store, worker: str) -> None:
    row = next(w for w in store.workers() if w["worker"] == worker)
    store.do(LoseWorker(actor="system", worker=worker, beat=row["beat"], reason="as the test says"))


# --- when a worker is gone ---------------------------------------------------------------------------------------


def test_a_worker_that_beats_is_never_lost(store: Store, time: FakeTime) -> None:
    register(store, "w")
    for _ in range(10):
        store.beat("w")
        assert store.lose_dead_workers() == []
        time.pass_(LEASE / SECOND - 1)
        assert store.lose_dead_workers() == []


def test_a_worker_whose_heartbeat_stands_still_for_one_lease_is_lost_and_not_before(
    store: Store, time: FakeTime
) -> None:
    register(store, "w")
    assert store.lose_dead_workers() == []
    time.pass_(LEASE / SECOND - 0.5)
    assert store.lose_dead_workers() == []
    time.pass_(1)
    assert store.lose_dead_workers() == ["w"]
    assert store.lose_dead_workers() == []


def in_a_process(script: str, url: str) -> str:
    """Run a script that finds the address in its first argument. Returns what it says."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", script, url]
    return subprocess.run(
        command, check=True, env=env, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ).stdout


def test_a_worker_whose_process_is_dead_is_lost_at_once(store: Store, store_url: str) -> None:
    script = (
        "import sys; from tests.faults.writer import registration; from tests.support.people import open_store\n"
        "with open_store(sys.argv[1]) as store: store.do(registration('dead'))"
    )
    in_a_process(script, store_url)
    register(store, "alive")
    assert store.lose_dead_workers() == ["dead"]


OUT_OF_FILES = """
import json, resource, sys
from tests.faults.writer import registration
from tests.support.people import open_store
with open_store(sys.argv[1]) as store:
    store.do(registration("alive"))
    store.lose_dead_workers()  # has all it needs open
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    lost = store.lose_dead_workers()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    store.beat("alive")
print(json.dumps(lost))
"""


def test_an_observer_that_is_out_of_file_descriptors_declares_nobody_dead(store_url: str) -> None:
    assert json.loads(in_a_process(OUT_OF_FILES, store_url)) == []


def test_without_proc_a_process_is_dead_only_if_the_system_knows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a /proc that hides the processes of others."""
    monkeypatch.setattr(leases, "PROC", tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert known_dead(dead.pid, "1")
    assert not known_dead(os.getpid(), "1")
    assert not known_dead(1, "1")
    assert not known_dead(2**70, "1")
    assert process_started(os.getpid()) is None


def test_a_process_that_ended_and_was_not_waited_for_is_dead() -> None:
    ended = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert known_dead(ended.pid, "")
    ended.communicate()


def test_a_worker_that_could_not_tell_when_it_started_is_judged_by_its_lease(store: Store, time: FakeTime) -> None:
    unsure = registration("w", lease=LEASE)
    unsure.process_started = ""
    store.do(unsure)
    assert store.lose_dead_workers() == []
    time.pass_(LEASE / SECOND + 1)
    assert store.lose_dead_workers() == ["w"]


def test_a_pid_that_another_process_has_now_does_not_keep_a_worker_alive(store: Store) -> None:
    impostor = registration("w", lease=LEASE)
    impostor.process_started = str(int(impostor.process_started) - 1)
    store.do(impostor)
    assert store.lose_dead_workers() == ["w"]


def test_a_pid_on_another_machine_says_nothing(store: Store) -> None:
    elsewhere = registration("w", lease=LEASE)
    elsewhere.boot_id, elsewhere.pid = "another machine", 2**22 + 1
    assert process_started(elsewhere.pid) is None
    store.do(elsewhere)
    assert store.lose_dead_workers() == []


def test_on_sqlite_the_wall_clock_has_no_say(tmp_path: Path, time: FakeTime) -> None:
    with open_store(tmp_path / "walkback.db", clock=lambda: time.wall) as store:
        store._observer = LeaseObserver(monotonic=lambda: time.monotonic)
        register(store, "w")
        assert store.lose_dead_workers() == []
        time.wall += 1000 * LEASE
        assert store.lose_dead_workers() == []


def test_on_sqlite_a_new_observer_waits_for_a_lease_of_its_own(tmp_path: Path, time: FakeTime) -> None:
    with open_store(tmp_path / "walkback.db") as store:
        register(store, "w")
        store._observer = LeaseObserver(monotonic=lambda: time.monotonic)
        store.lose_dead_workers()
        time.pass_(2 * LEASE / SECOND)
        store._observer = LeaseObserver(monotonic=lambda: time.monotonic)
        assert store.lose_dead_workers() == []


def test_on_postgresql_a_new_observer_knows_at_once_by_the_shared_clock(pg_url: str, time: FakeTime) -> None:
    with open_store(pg_url, clock=lambda: time.wall) as store:
        register(store, "w")
        time.pass_(LEASE / SECOND + 1)
        assert store.lose_dead_workers() == ["w"]


def test_on_postgresql_time_is_the_servers(pg_url: str) -> None:
    with open_store(pg_url) as store:
        before = store.now()
        register(store, "w")
        store.beat("w")
        (row,) = store.workers()
        assert before <= row["started_at"] <= row["beat_at"] <= store.now()


def test_a_heartbeat_between_the_look_and_the_verdict_saves_the_worker(store: Store) -> None:
    register(store, "w")
    (seen,) = store.workers()
    store.beat("w")
    with pytest.raises(PreconditionFailed):
        store.do(LoseWorker(actor="system", worker="w", beat=seen["beat"], reason="too late"))
    store.beat("w")


# --- what it means -----------------------------------------------------------------------------------------------


def test_a_worker_declared_lost_learns_it_from_its_next_heartbeat(store: Store) -> None:
    register(store, "w")
    lose(store, "w")
    with pytest.raises(StaleFence):
        store.beat("w")


@pytest.mark.parametrize("name", ["never-registered", "stopped"])
def test_a_heartbeat_of_no_living_worker_is_refused(name: str, store: Store) -> None:
    register(store, "stopped")
    store.do(StopWorker(actor="worker:stopped", worker="stopped"))
    with pytest.raises(StaleFence):
        store.beat(name)


def test_a_name_is_not_used_twice_even_by_a_worker_that_was_lost(store: Store) -> None:
    register(store, "w")
    lose(store, "w")
    with pytest.raises(IllegalTransition):
        register(store, "w")


def test_a_run_held_by_a_living_worker_is_not_claimed(store: Store) -> None:
    register(store, "one")
    register(store, "two")
    store.do(start("r"))
    take(store, "one")
    assert store.claim("two", AGENTS) == []


def test_a_frozen_worker_that_wakes_after_a_takeover_can_write_nothing(store: Store, time: FakeTime) -> None:
    register(store, "frozen")
    store.do(start("r"))
    old = take(store, "frozen")["fence"]
    store.do(intend("r", old, 1, "frozen", {"n": 1}))
    store.lose_dead_workers()
    register(store, "next")
    time.pass_(LEASE / SECOND + 1)
    store.beat("next")
    assert "frozen" in store.lose_dead_workers()
    new = take(store, "next")["fence"]
    head = store.run("r")["head_seq"]
    for late in (
        settle("r", old, 1, "frozen", {"n": 2}),
        intend("r", old, 2, "frozen", {"n": 2}),
        ReleaseRun(actor="worker:frozen", run_id="r", fence=old),
        FinishRun(actor="worker:frozen", run_id="r", fence=old, output=None),
    ):
        with pytest.raises(StaleFence):
            store.do(late)
    assert store.run("r")["head_seq"] == head
    store.do(settle("r", new, 1, "next", {"n": 2}))


def test_every_claim_has_a_greater_fence_than_all_before_it(store: Store) -> None:
    store.do(start("r"))
    fences = []
    for i in range(4):
        register(store, f"w{i}")
        fences.append(take(store, f"w{i}")["fence"])
        if i % 2:
            lose(store, f"w{i}")
        else:
            store.do(ReleaseRun(actor=f"worker:w{i}", run_id="r", fence=fences[-1]))
    assert fences == sorted(set(fences))


def test_takeovers_in_a_row_are_counted_as_crashes_and_a_run_handed_back_counts_none(store: Store) -> None:
    store.do(start("r"))
    crashes = []
    for i in range(3):
        register(store, f"w{i}")
        crashes.append(take(store, f"w{i}")["crashes"])
        lose(store, f"w{i}")
    register(store, "good")
    held = take(store, "good")
    assert [*crashes, held["crashes"]] == [0, 1, 2, 3]
    store.do(ReleaseRun(actor="worker:good", run_id="r", fence=held["fence"]))
    assert take(store, "good")["crashes"] == 0
