"""`walkback state` and `walkback diff`: what a run knew at a step, and what became of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.terminal import Command
from tests.store import driver
from tests.support.people import open_store

START: dict[str, Any] = {"step": 0}
PAID: dict[str, Any] = {"order": {"id": "o-1", "items": [{"cents": 5}, {"cents": 7}]}, "paid": False}
DONE: dict[str, Any] = {"order": {"id": "o-1", "items": [{"cents": 5}, {"cents": 9}]}, "paid": True}


@pytest.fixture
def filled(store_url: str) -> str:
    with open_store(store_url) as store:
        h = driver.held(store, "order-1", worker="w1")
        driver.write(h, "1", before=START, after=PAID)
        driver.write(h, "2", before=PAID, after=PAID)
        driver.write(h, "3", before=PAID, after=DONE)
        other = driver.held(store, "order-2", worker="w2")
        driver.write(other, "1", before=START, after=DONE)
    return store_url


def test_the_state_is_that_after_the_step_before_it_or_the_newest(walkback: Command, filled: str) -> None:
    def state(*args: str) -> Any:
        return walkback("state", *args, "--store", filled, "--json").json

    assert state("order-1") == DONE
    assert state("order-1", "1") == PAID
    assert state("order-1#1") == PAID
    assert state("order-1", "1", "--before") == START
    assert state("order-1", "2") == PAID  # a step that changed nothing
    assert state("order-1", "3", "--path", "order.items[1]") == {"cents": 9}
    assert state("order-1", "3", "--path", "paid") is True


def test_a_person_sees_an_indented_tree(walkback: Command, filled: str) -> None:
    said = walkback("state", "order-1", "3", "--store", filled).out
    lines = [line.rstrip() for line in said.splitlines()]
    assert lines[0].startswith("order-1, after step 3  snapshot ")
    assert lines[1:] == [
        "  order  {2 keys}",
        '    id  "o-1"',
        "    items  [2 items]",
        "      [0]  {1 key}",
        "        cents  5",
        "      [1]  {1 key}",
        "        cents  9",
        "  paid  true",
    ]


def test_big_things_stay_closed_and_say_how_big_they_are(walkback: Command, store_url: str) -> None:
    with open_store(store_url) as store:
        h = driver.held(store, "big", worker="w1")
        state = {"rows": [{"n": n} for n in range(5000)], "text": "x" * 100_000, "small": [1]}
        driver.write(h, "1", before=state, after=state)
    said = walkback("state", "big", "--store", store_url).out
    assert "rows  [5,000 items]" in said
    assert "+99,600 characters" in said
    assert "--path rows" in said
    assert len(said.splitlines()) < 40
    inside = walkback("state", "big", "--path", "rows", "--store", store_url).out
    assert "[0]" in inside
    assert "more; --path narrows it" in inside
    assert len(walkback("state", "big", "--path", "rows", "--store", store_url, "--json").json) == 5000


def test_a_path_that_leads_nowhere_says_where_it_ends_and_what_is_there(walkback: Command, filled: str) -> None:
    done = walkback("state", "order-1", "--path", "order.itmes[0]", "--store", filled)
    assert done.code == 1
    assert "there is no order.itmes[0]; order has id, items" in done.err
    assert walkback("state", "order-1", "--path", "a..b", "--store", filled).code == 2
    assert walkback("state", "order-1", "--before", "--store", filled).code == 2
    assert walkback("state", "order-1", "9", "--store", filled).code == 1


def changes(found: Any) -> list[tuple[Any, ...]]:
    return [(c["path"], c["kind"], c["old"], c["new"]) for c in found["changes"]]


def test_a_diff_is_what_the_step_changed(walkback: Command, filled: str) -> None:
    found = walkback("diff", "order-1", "3", "--store", filled, "--json").json
    assert changes(found) == [("order.items[1].cents", "changed", 7, 9), ("paid", "changed", False, True)]
    assert (found["from"]["when"], found["to"]["when"]) == ("before", "after")
    assert walkback("diff", "order-1#2", "--store", filled, "--json").json["changes"] == []
    said = walkback("diff", "order-1", "3", "--store", filled).out
    assert "~  order.items[1].cents  7 -> 9" in said
    assert "Nothing changed." in walkback("diff", "order-1", "2", "--store", filled).out
    newest = walkback("diff", "order-1", "--store", filled, "--json").json
    assert newest["to"]["step"] == "3"


def test_two_steps_or_two_runs_are_compared_by_their_states_after(walkback: Command, filled: str) -> None:
    def diff(*args: str) -> Any:
        return changes(walkback("diff", *args, "--store", filled, "--json").json)

    both = [("order.items[1].cents", "changed", 7, 9), ("paid", "changed", False, True)]
    assert diff("order-1", "1", "3") == both
    assert diff("order-1#1", "3") == both
    assert diff("order-1", "1", "--with", "order-2") == both
    assert diff("order-1", "3", "1", "--with", "order-2") == []
    assert diff("order-1", "1", "3", "--path", "order.items") == both[:1]
    assert diff("order-1", "3", "1")[1] == ("paid", "changed", True, False)
    assert walkback("diff", "order-1#1", "2", "3", "--store", filled).code == 2
