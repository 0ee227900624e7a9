"""Runs: every transition from every state, and what else each of them needs and leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store import recipes
from tests.store.recipes import CASES, ELSEWHERE, STATES, WORKER, World, matrix, transitions
from walkback_store.machine import TRANSITIONS
from walkback_store.machine.base import Transition


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


def test_there_is_an_example_of_every_transition_and_a_recipe_for_every_state() -> None:
    assert set(CASES) | ELSEWHERE == set(TRANSITIONS)
    for t in TRANSITIONS:
        if t not in ELSEWHERE:
            assert set(t.sources) <= set(STATES[t.subject]), t.__name__


@pytest.mark.parametrize(("transition", "state"), matrix("run"))
def test_a_run_goes_through_a_transition_from_exactly_its_sources(
    transition: type[Transition], state: str, world: World
) -> None:
    recipes.check(world, transition, state)


@pytest.mark.parametrize("transition", transitions("run", by=WORKER))
def test_a_worker_that_lost_the_run_changes_nothing(transition: type[Transition], world: World) -> None:
    recipes.check_stale_fence(world, transition)


@pytest.mark.parametrize("transition", transitions("run", by="operator"))
def test_a_decision_about_a_run_that_moved_on_is_refused_and_told_what_happened(
    transition: type[Transition], world: World
) -> None:
    recipes.check_stale_view(world, transition)


@pytest.mark.parametrize("transition", transitions("run"))
def test_an_id_that_was_used_for_something_else_is_a_conflict(transition: type[Transition], world: World) -> None:
    recipes.check_conflict(world, transition)
