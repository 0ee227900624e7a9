"""The crash matrix, in virtual time: every wish of the protocol, every kind of step, everything that can go wrong.

Exhaustive over one step: for each kind and for each way in which its call or its verify can go wrong, a worker is
crashed, frozen, robbed of its lease or of the answer to a commit at every single wish on the way. Random over whole
runs, from seeds. And the judge is judged: five protocols that are wrong on purpose must be found out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix import KINDS, WHOLE, Kind, Laboratory, Trial, Violation, laboratory
from walkback import compensation, execution, flight, outcomes, protocol, terms
from walkback.outcomes import Verdict
from walkback.terms import SECOND, Settled
from walkback.testing import Plan
from walkback.testing.simulator import CALLS, PROCESS
from walkback_store.fsck import fsck
from walkback_store.machine.base import OnRun

LONG = os.environ.get("WALKBACK_FAULTS") == "long"
SLICES, SEEDS_PER_SLICE = (100, 100) if LONG else (4, 40)

WORLDS: dict[str, dict[str, Any]] = {
    "all well": {},
    **{trouble: {"calls": {1: trouble}} for trouble in CALLS},
    "two lost": {"calls": {1: "response lost", 2: "request lost"}},
    "stale verify": {"stale": 10 * SECOND},
    "stale verify and response lost": {"stale": 10 * SECOND, "calls": {1: "response lost"}},
    "stale verify and error after": {"stale": 10 * SECOND, "calls": {1: "error after"}},
    "blind verify": {"blind": 2},
    "blind verify and response lost": {"blind": 2, "calls": {1: "response lost"}},
}
"""What goes wrong outside, in each of which everything goes wrong inside."""


def plan(kind: Kind, world: str, at: int | None = None, process: str | None = None) -> Plan:
    given = dict(WORLDS[world])
    calls = {(kind.tool, nth): trouble for nth, trouble in given.pop("calls", {}).items()}
    return Plan(at=at, process=process, calls=calls, **given)


THOROUGH = {"all well", "response lost"}
"""In these worlds everything is tried even in the short campaign; in the others, a crash at every wish, and a freeze at
those that reach out."""


def is_worth_a_trial(world: str, process: str, point: str) -> bool:
    if process == "commit lost" and not point.startswith("commit:"):
        return False
    if LONG or process == "crash":
        return True
    if world in THOROUGH:
        return process != "frozen for long"
    return process == "frozen past the deadline" and point.startswith(("commit:", "call", "verify"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Laboratory]:
    with laboratory(tmp_path) as found:
        yield found


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_whatever_happens_at_any_wish_effects_happen_once_and_the_run_ends(
    kind: Kind, world: str, lab: Laboratory
) -> None:
    wishes = lab.trial(kind, plan(kind, world)).go().sim.wishes
    assert len(wishes) > 5
    for process in PROCESS:
        for at, point in enumerate(wishes):
            if is_worth_a_trial(world, process, point):
                lab.trial(kind, plan(kind, world, at, process)).go()
    if LONG or world in THOROUGH:
        assert fsck(lab.store).problems == []


@pytest.mark.parametrize("first", range(0, SLICES * SEEDS_PER_SLICE, SEEDS_PER_SLICE))
def test_whole_runs_survive_trouble_at_random(first: int, lab: Laboratory) -> None:
    struck = 0
    for seed in range(first, first + SEEDS_PER_SLICE):
        print(f"seed {seed}")
        trial = lab.trial(WHOLE, Plan(seed=seed, trouble=0.04)).go()
        struck += len(trial.sim.troubles)
    assert struck > SEEDS_PER_SLICE
    assert fsck(lab.store).problems == []


def test_a_seed_replays_the_same(tmp_path: Path) -> None:
    stories = []
    for n in range(2):
        folder = tmp_path / str(n)
        folder.mkdir()
        with laboratory(folder) as lab:
            trial = lab.trial(WHOLE, Plan(seed=7, trouble=0.1)).go()
            stories.append((trial.sim.troubles, trial.sim.wishes, trial.story()))
    assert stories[0] == stories[1]
    assert stories[0][0]


def test_trouble_does_strike(lab: Laboratory) -> None:
    """A guard against a matrix that passes because nothing goes wrong."""
    kind = KINDS[1]
    for process in PROCESS:
        trial = lab.trial(kind, plan(kind, "all well", 3, process)).go()
        assert trial.sim.troubles == [f"{process} at 3 (commit:Intend) of {trial.sim.version}-w1"]
    seen = {
        t.split(" at ")[0]
        for seed in range(30)
        for t in lab.trial(WHOLE, Plan(seed=seed, trouble=0.1)).go().sim.troubles
    }
    assert set(PROCESS) <= seen


def go_through(trials: Iterable[Trial]) -> None:
    for trial in trials:
        trial.go()


# --- protocols that are wrong on purpose -------------------------------------------------------------------------


def outcome_before_verify(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcomes, "judge", lambda answer, evidence, standing: Verdict.SUCCEEDED)


def key_per_attempt(patch: pytest.MonkeyPatch) -> None:
    right = terms.op_for

    def wrong(hold: Any, request: Any, args: Any, key: Any, attempt: int, *more: Any) -> Any:
        return right(hold, request, args, f"{key}:{attempt}", attempt, *more)

    for module in (protocol, flight):
        patch.setattr(module, "op_for", wrong)


def fence_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OnRun, "_check_fence", lambda self, view, run: None)


def absent_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcomes, "weigh", lambda found, now, final_from: found)


def compensation_before_an_unknown_is_settled(patch: pytest.MonkeyPatch) -> None:
    def wrong(tool: str, step: str, error_class: str | None, error: str | None, evidence: str | None) -> Settled:
        return Settled(step=step, tool=tool, status="failed", error_class=error_class, error=error)

    for module in (protocol, flight, execution):
        patch.setattr(module, "unknown_rest", wrong)
    patch.setattr(compensation, "doubtful", lambda rows: [])


MUTANTS = {
    outcome_before_verify: ("write with verify and settle", "error before"),
    key_per_attempt: ("write with key", "response lost"),
    fence_ignored: ("", ""),
    absent_believed_at_once: ("write with verify and settle", "stale verify and error after"),
    compensation_before_an_unknown_is_settled: ("doubt inside a transaction", "response lost"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_protocol_that_is_wrong_on_purpose_is_found_out(
    mutant: Any, lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, world = MUTANTS[mutant]
    mutant(monkeypatch)
    if name:
        kind = next(kind for kind in KINDS if kind.name == name)
        trials: Iterable[Trial] = [lab.trial(kind, plan(kind, world))]
    else:
        trials = (lab.trial(WHOLE, Plan(seed=seed, trouble=0.08)) for seed in range(300))
    with pytest.raises(Violation):
        go_through(trials)
