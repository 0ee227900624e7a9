"""Operations: every transition from every state, and what else each of them needs and leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store import recipes
from tests.store.recipes import WORKER, World, matrix, transitions
from walkback_store.machine import TRANSITIONS
from walkback_store.machine.base import Transition
from walkback_store.words import RunStatus


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


@pytest.mark.parametrize(("transition", "state"), matrix("operation"))
def test_a_transition_is_legal_from_exactly_its_sources(transition: type[Transition], state: str, world: World) -> None:
    recipes.check(world, transition, state)


@pytest.mark.parametrize("transition", transitions("operation"))
def test_an_id_that_was_used_for_something_else_is_a_conflict(transition: type[Transition], world: World) -> None:
    recipes.check_conflict(world, transition)


IN_RUNS = [
    pytest.param(t, status, id=f"{t.__name__}-{status}")
    for t in TRANSITIONS
    if t.subject == "operation"
    for status in RunStatus
    if status not in recipes.run_statuses(t)
]


@pytest.mark.parametrize(("transition", "status"), IN_RUNS)
def test_a_transition_is_refused_in_a_run_that_is_not_in_the_right_state_for_it(
    transition: type[Transition], status: str, world: World
) -> None:
    recipes.check_run_status(world, transition, status)


@pytest.mark.parametrize("transition", transitions("operation", by=WORKER))
def test_a_worker_that_lost_the_run_changes_nothing(transition: type[Transition], world: World) -> None:
    recipes.check_stale_fence(world, transition)


@pytest.mark.parametrize("transition", transitions("operation", by="operator"))
def test_a_decision_about_an_operation_that_moved_on_is_refused_and_told_what_happened(
    transition: type[Transition], world: World
) -> None:
    recipes.check_stale_view(world, transition)
