"""Real workers that are killed, stopped and robbed of their runs: every effect happens once, or a person is asked.

A ledger that the runtime cannot reach counts what really happened, and is held against what the store says.
"""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.agents import KINDS, STEPS, Kind, Point
from tests.faults.fleet import CRASHED, Fleet, Violation, fleet, spin, until
from walkback_store.fsck import fsck

LONG = os.environ.get("WALKBACK_FAULTS") == "long"
AT_ONCE = 6
"""So many workers that are about to die, side by side."""


# --- killed at every boundary --------------------------------------------------------------------------------------

GROUPS = {
    "plain": [kind for kind in KINDS if "async" not in kind.name and "compensation" not in kind.name],
    "async": [kind for kind in KINDS if "async" in kind.name and "compensation" not in kind.name],
    "undoing": [kind for kind in KINDS if "compensation" in kind.name],
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_worker_killed_at_any_boundary_leaves_what_another_can_settle(
    group: str, store_url: str, tmp_path: Path
) -> None:
    trials = [(kind, point) for kind in GROUPS[group] for point in kind.points]
    with fleet(store_url, tmp_path) as all_:
        dying: list[tuple[int, Kind, str]] = []

        def bury() -> None:
            pid, kind, point = dying.pop(0)
            until(lambda: pid in all_.server.ended or (all_.help() and False), f"{kind.name}: it dies {point}", 30)
            assert all_.end_of(pid) == -signal.SIGKILL

        for i, (kind, point) in enumerate(trials):
            if len(dying) == AT_ONCE:
                bury()
            version = f"{i}: {point}"
            all_.start(kind, f"t{i}", version)
            dying.append((all_.worker([(kind.name, version)], dies=[point]), kind, str(point)))
        while dying:
            bury()
        all_.worker(concurrency=100)
        all_.rest()
        all_.judge()


def test_the_judge_sees_an_effect_that_happened_twice(store_url: str, tmp_path: Path) -> None:
    """A guard against tests that pass because nobody looked: this tool is not what it says."""
    with fleet(store_url, tmp_path) as all_:
        all_.start("lies", "t")
        assert all_.end_of(all_.worker(dies=[Point("call", "after", tool="lies")])) == -signal.SIGKILL
        all_.worker()
        all_.rest()
        with pytest.raises(Violation, match="lies:t happened 2 times"):
            all_.judge()


# --- killed at any moment ------------------------------------------------------------------------------------------

CREW = 3
KILLS = 40 if LONG else 8
SEEDS = {"sqlite": 25, "postgresql": 25} if LONG else {"sqlite": 1, "postgresql": 1}


def some_runs(all_: Fleet, random_: random.Random, round_: int, count: int = 4) -> None:
    for i in range(count):
        all_.start(random_.choice(KINDS), f"m{round_}-{i}")


EVERYTHING = [(kind.name, "1") for kind in KINDS]


def some_moment(all_: Fleet, random_: random.Random) -> None:
    """After so many effects, or so many events, or just now; and then a little later."""
    what, count = random_.choice((("effects", 1), ("effects", 3), ("events", 2), ("events", 12), ("now", 0)))
    measure = all_.world.total if what == "effects" else all_.events
    begin = measure()

    def come() -> bool:
        all_.help()
        return what == "now" or measure() >= begin + count or not all_.restless()

    until(come, f"there are {count} more {what}")
    spin(random_, 0.03)


def kill_campaign(all_: Fleet, seed: int) -> None:
    random_ = random.Random(seed)
    crew = [all_.worker(EVERYTHING, latency=0.05) for _ in range(CREW)]
    for n in range(KILLS):
        some_runs(all_, random_, n)
        some_moment(all_, random_)
        victim = crew.pop(random_.randrange(len(crew)))
        all_.kill(victim)
        crew.append(all_.worker(EVERYTHING, latency=0.05))
    all_.rest()
    all_.judge(crashes=True)


@pytest.mark.parametrize("seed", range(3000, 3000 + SEEDS["sqlite"]))
def test_workers_killed_at_any_moment_do_everything_once_on_sqlite(seed: int, tmp_path: Path) -> None:
    with fleet(f"sqlite:///{tmp_path / 'walkback.db'}", tmp_path, seed) as all_:
        kill_campaign(all_, seed)


@pytest.mark.parametrize("seed", range(4000, 4000 + SEEDS["postgresql"]))
def test_workers_killed_at_any_moment_do_everything_once_on_postgresql(seed: int, pg_url: str, tmp_path: Path) -> None:
    with fleet(pg_url, tmp_path, seed) as all_:
        kill_campaign(all_, seed)


# --- stopped, and gone on ------------------------------------------------------------------------------------------

STOPS = 20 if LONG else 3
LATENCY = 0.6
"""Seconds, so that many are interrupted in the middle of a call."""
STOP_SEEDS = 10 if LONG else 1


def has_a_run(all_: Fleet, pid: int) -> bool:
    all_.help()
    names = all_.names_of(pid)
    return any(row["worker"] in names for row in all_.rows("worker").values()) or not all_.restless()


@pytest.mark.parametrize("seed", range(5000, 5000 + STOP_SEEDS))
def test_a_worker_that_was_stopped_and_goes_on_changes_nothing_of_what_others_took_over(
    seed: int, store_url: str, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    taken_over = 0
    with fleet(store_url, tmp_path, seed) as all_:
        crew = [all_.worker(EVERYTHING, latency=LATENCY) for _ in range(CREW)]
        for n in range(5 * STOPS):
            if n >= STOPS and taken_over:  # on a busy machine it may take a few more until one is caught holding a run
                break
            some_runs(all_, random_, n, 8)
            victim = random_.choice(crew)
            until(partial(has_a_run, all_, victim), "it has a run")
            spin(random_, 0.03)
            names = all_.names_of(victim)
            os.kill(victim, signal.SIGSTOP)
            try:
                # One that is stopped inside the service has a request there that goes on afterwards, however late.
                if all_.world.in_nobodys_hands() and all_.lost(names):
                    taken_over += 1
                    if random_.random() < 0.5:
                        all_.rest()  # then all that it was about to do has been done without it
            finally:
                os.kill(victim, signal.SIGCONT)
            until(partial(all_.names_of, victim), "it goes on, under whatever name")
        all_.rest()
        all_.judge(crashes=True)
    assert taken_over, "no worker was ever declared lost"


@pytest.mark.parametrize("seed", range(6000, 6000 + STOP_SEEDS))
def test_a_worker_that_loses_its_lease_and_lives_does_nothing_twice(seed: int, store_url: str, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    robbed = 0
    with fleet(store_url, tmp_path, seed) as all_:
        crew = [all_.worker(EVERYTHING, latency=LATENCY) for _ in range(CREW)]
        for n in range(2 * STOPS):
            some_runs(all_, random_, n)
            some_moment(all_, random_)
            victim = random_.choice(crew)
            (name,) = until(partial(all_.names_of, victim), "it is registered")
            if all_.rob(name):
                robbed += 1
                until(partial(renamed, all_, victim, name), "it takes another name")
        all_.rest()
        all_.judge(crashes=True)
    assert robbed, "no worker ever lost its lease"


def renamed(all_: Fleet, pid: int, before: str) -> bool:
    return bool(set(all_.names_of(pid)) - {before})


# --- tools that hang ---------------------------------------------------------------------------------------------


def late_words(all_: Fleet, run_id: str) -> list[dict[str, Any]]:
    return [dict(e.data) for e in all_.store.events(run_id, limit=1000) if e.kind == "late_evidence"]


CERTAIN_HANGS = (
    "hangs, key",
    "hangs, key, async",
    "hangs, verify and settle",
    "hangs, verify and settle, async",
    "hangs in verify",
    "hangs in verify, async",
)


def test_a_run_goes_on_without_a_tool_that_hangs_and_hears_it_when_it_comes_back(
    store_url: str, tmp_path: Path
) -> None:
    with fleet(store_url, tmp_path) as all_:
        runs = {kind: all_.start(kind, f"h{i}")[0] for i, kind in enumerate(CERTAIN_HANGS)}
        all_.worker()
        all_.rest()
        assert len(all_.world.signs("hangs:")) == len(runs), "not every tool hung"
        for run in runs.values():
            all_.world.sign(f"go:{run.what}")
        for kind, run in runs.items():
            if "verify" in kind.split(",")[0]:
                continue  # a look that comes back late is no answer to the call
            (late,) = until(partial(late_words, all_, run.run_id), f"{kind}: its late answer is recorded")
            assert late["attempt"] == 1
            refused = "settle" in kind
            assert late["answer"] == ("ambiguous" if refused else "acknowledged")
        all_.judge()


@pytest.mark.parametrize("kind", ["hangs rudely", "hangs rudely, async"])
def test_a_hung_call_that_takes_effect_after_a_person_ordered_another_is_flagged(
    kind: str, store_url: str, tmp_path: Path
) -> None:
    with fleet(store_url, tmp_path) as all_:
        (run,) = all_.start(kind, "h")
        all_.worker()
        all_.rest()
        assert all_.asked[run.run_id] == ["unknown: hangs_rudely"]
        assert all_.store.operation(run.run_id, "1").operation["duplicate_suspected"] == 0
        all_.world.sign(f"go:{run.what}")
        until(lambda: late_words(all_, run.run_id), "its late answer is recorded")
        assert all_.world.count("hangs_rudely:h") == 2
        assert all_.store.operation(run.run_id, "1").operation["duplicate_suspected"] == 1
        assert fsck(all_.store).clean


def test_a_thread_that_hangs_keeps_its_place_in_the_worker(store_url: str, tmp_path: Path) -> None:
    with fleet(store_url, tmp_path) as all_:
        (hung,) = all_.start("hangs, key", "h")
        all_.worker([("hangs, key", "1"), ("key", "1")], concurrency=1)
        all_.rest()
        (other,) = all_.start("key", "k")
        beats = all_.beats()
        until(lambda: all_.beats() > beats + 4, "the worker has had time to claim it")
        assert all_.store.run(other.run_id)["worker"] is None
        assert all_.world.count("keyed:k") == 0
        all_.world.sign(f"go:{hung.what}")
        all_.rest()
        all_.judge()


def test_a_call_that_hangs_keeps_its_place_among_the_calls_of_its_tool(store_url: str, tmp_path: Path) -> None:
    with fleet(store_url, tmp_path) as all_:
        (hung,) = all_.start("hangs alone", "h")
        all_.worker([("hangs alone", "1")])
        until(lambda: attempts_ended(all_, hung.run_id), "its call is given up")
        assert all_.world.count("hangs_alone:h") == 0
        all_.world.sign(f"go:{hung.what}")
        all_.rest()
        all_.judge()


def attempts_ended(all_: Fleet, run_id: str) -> bool:
    return any(e.kind == "tool_result" for e in all_.store.events(run_id))


# --- asked to stop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["many steps", "many steps, async"])
def test_a_worker_asked_to_stop_ends_its_step_and_hands_its_run_back(kind: str, store_url: str, tmp_path: Path) -> None:
    with fleet(store_url, tmp_path) as all_:
        (run,) = all_.start(kind, "s")
        first = all_.worker()
        entered = 0

        def let_go() -> int:
            nonlocal entered
            if f"entered:s-{entered}" in all_.world.signs("entered:"):
                all_.world.sign(f"go:s-{entered}")
                entered += 1
            return entered

        def ended() -> bool:
            let_go()
            return first in all_.server.ended

        until(lambda: let_go() == 3, "three steps are done")
        until(lambda: f"entered:s-{entered}" in all_.world.signs("entered:"), "it is in the middle of a step")
        os.kill(first, signal.SIGTERM)
        until(ended, "it ends")
        assert all_.end_of(first) == 0
        assert all_.world.total() == entered < STEPS
        row = all_.store.run(run.run_id)
        assert (row["status"], row["worker"], row["crashes"]) == ("running", None, 0)
        assert all_.store.workers()[0]["status"] == "stopped"
        for i in range(STEPS):
            all_.world.sign(f"go:s-{i}")
        all_.worker()
        all_.rest()
        taken = [e.data["taken_from"] for e in all_.store.events(run.run_id) if "taken_from" in e.data]
        assert taken == [None, None], "the second had to take it from the first"
        assert all_.world.effects() == {f"waits_its_turn:s-{i}": 1 for i in range(STEPS)}
        assert fsck(all_.store).clean


# --- agents that kill their workers --------------------------------------------------------------------------------


def test_a_run_whose_code_kills_its_worker_three_times_is_put_before_a_person(store_url: str, tmp_path: Path) -> None:
    with fleet(store_url, tmp_path) as all_:
        (run,) = all_.start("deadly", "d")
        deaths = 0
        while True:
            pid = all_.worker()
            until(partial(dead_or_parked, all_, pid, run.run_id), "it dies, or parks the run")
            if pid not in all_.server.ended:
                break
            assert all_.end_of(pid) == -signal.SIGKILL
            deaths += 1
        row = all_.store.run(run.run_id)
        assert (deaths, row["why"], row["worker"]) == (3, "review", None)
        assert CRASHED in row["why_detail"]
        assert all_.world.effects() == {"keyed:d": 1}
        all_.start("deadly", "e")
        assert all_.end_of(pid) == -signal.SIGKILL, "the worker that parked it did not go on with others"
        assert fsck(all_.store).clean


def dead_or_parked(all_: Fleet, pid: int, run_id: str) -> bool:
    return pid in all_.server.ended or bool(all_.store.run(run_id)["status"] == "needs_operator")
