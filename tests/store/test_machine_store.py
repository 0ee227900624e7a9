"""The store as a whole: workers, freezes, batches, copies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store import recipes
from tests.store.recipes import World, matrix, transitions
from walkback_store.machine.base import Transition


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


@pytest.mark.parametrize(("transition", "state"), matrix("worker", "freeze", "batch", "store"))
def test_a_transition_is_legal_from_exactly_its_sources(transition: type[Transition], state: str, world: World) -> None:
    recipes.check(world, transition, state)


@pytest.mark.parametrize("transition", transitions("worker", "freeze", "batch", "store"))
def test_an_id_that_was_used_for_something_else_is_a_conflict(transition: type[Transition], world: World) -> None:
    recipes.check_conflict(world, transition)
