"""The smallest places in which two states differ."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest
from deepdiff import DeepDiff
from hypothesis import given, settings
from hypothesis import strategies as st

from walkback_console.diffs import Change, diff, same
from walkback_console.trees import MISSING, format_path, members
from walkback_store.values import encode

leaves = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 2, 2**70, 0.0, -0.0, 1.0, "1", "", Decimal(1), Decimal("1.0"), UUID(int=1), b"1"])
    | st.sampled_from([str(UUID(int=1)), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)])
)
hashable = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)
        | st.sets(hashable, max_size=4)
    ),
    max_leaves=20,
)


def applied(state: Any, changes: list[Change]) -> Any:
    """What `diffs` promises its numbers mean: take away, put in, then change."""
    if not changes:
        return state
    if any(not change.path for change in changes):
        assert len(changes) == 1
        return changes[0].new
    here = [change for change in changes if len(change.path) == 1]
    kind = type(state)
    content: Any = dict(state) if kind is dict else members(state) if kind is set else list(state)
    for change in reversed(here):
        if change.kind == "removed":
            assert same(content[change.path[0]], change.old)
            del content[change.path[0]]
    for change in here:
        if change.kind == "added" and kind is dict:
            content[change.path[0]] = change.new
        elif change.kind == "added":
            content.insert(change.path[0], change.new)
    for part in dict.fromkeys(change.path[0] for change in changes if change.kind == "changed" or len(change.path) > 1):
        inner = [
            Change(change.path[1:], change.kind, change.old, change.new)
            for change in changes
            if change.path[0] == part and (len(change.path) > 1 or change.kind == "changed")
        ]
        content[part] = applied(content[part], inner)
    return kind(content)


def said(before: object, after: object) -> list[str]:
    return [f"{change.kind} {format_path(change.path)}" for change in diff(before, after)]


@given(states, states)
def test_the_changes_lead_from_one_state_to_the_other(before: object, after: object) -> None:
    assert encode(applied(before, diff(before, after))) == encode(after)


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_the_changes_of_a_list_can_be_applied(before: list[int], after: list[int]) -> None:
    assert applied(before, diff(before, after)) == after


@given(st.integers(0, 2**32), st.integers(1, 2000))
@settings(max_examples=20, deadline=None)
def test_the_changes_of_a_long_list_can_be_applied(seed: int, values: int) -> None:
    chance = Random(seed)
    before = [chance.randrange(values) for _ in range(1100)]
    after = [n for n in before if chance.random() < 0.95]
    for _ in range(60):
        after.insert(chance.randrange(len(after)), chance.randrange(values))
    assert applied(before, diff(before, after)) == after


@given(states, states)
def test_nothing_is_said_only_of_what_is_stored_alike(before: object, after: object) -> None:
    assert (diff(before, after) == []) == (encode(before) == encode(after))
    assert diff(before, before) == []


@given(st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3) | st.text())))
def test_another_tool_finds_the_same_places(before: dict[str, Any]) -> None:
    after = {key: {**inner, "x": 1} for key, inner in before.items() if key != "b"} | {"new": {}}
    theirs = DeepDiff(before, after, view="tree", threshold_to_diff_deeper=0)
    found = {tuple(level.path(output_format="list")) for levels in theirs.values() for level in levels}
    assert {change.path for change in diff(before, after)} == found


def test_one_insertion_is_one_change() -> None:
    many = [{"n": n} for n in range(1000)]
    assert said({"items": many}, {"items": [{"n": -1}, *many]}) == ["added items[0]"]
    assert said(many, many[:500] + many[501:]) == ["removed [500]"]
    assert said(many, [*many[1:], {"n": -1}]) == ["removed [0]", "added [999]"]
    more = [{"n": n} for n in range(3000)]
    assert said(more, [*more[1:1500], *more[1501:], {"n": -1}]) == ["removed [0]", "removed [1500]", "added [2998]"]
    few = many[:900]
    assert said(few, [{"n": -1}, *few[:400], *few[401:], {"n": -2}]) == ["added [0]", "removed [400]", "added [900]"]
    assert said([1, 2, 3, 4], [1, 9, 2, 3, 5, 4, 6]) == ["added [1]", "added [4]", "added [6]"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        (Decimal("1.0"), Decimal("1.00")),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_what_python_takes_for_equal_may_have_changed(before: object, after: object) -> None:
    assert diff({"a": [before]}, {"a": [after]}) == [Change(("a", 0), "changed", before, after)]


def test_every_kind_of_change_says_what_was_and_what_is() -> None:
    before = {"gone": 1, "kept": {"same": [1, 2]}, "other": {"x": "old"}, "tags": {"a", "b"}}
    after = {"kept": {"same": [1, 2]}, "new": None, "other": {"x": "new"}, "tags": {"b", "c"}}
    assert diff(before, after) == [
        Change(("gone",), "removed", 1, MISSING),
        Change(("new",), "added", MISSING, None),
        Change(("other", "x"), "changed", "old", "new"),
        Change(("tags", 0), "removed", "a", MISSING),
        Change(("tags", 1), "added", MISSING, "c"),
    ]
