"""Equal arguments are one call and different ones are two; what is recorded is what the function is called with."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from walkback.arguments import args_hash
from walkback_store.errors import ValueRefused
from walkback_store.values import MAX_DEPTH, plain


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass(frozen=True)
class Point:
    x: float
    y: float


class Item(BaseModel):
    sku: str
    price: Decimal


Pair = namedtuple("Pair", "left right")
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2025, 7, 1, 12, tzinfo=UTC)


def of(value: object) -> str:
    return args_hash({"x": value})


# --- equal arguments -------------------------------------------------------------------------------------------------

EQUAL: list[tuple[object, object]] = [
    (1, 1.0),
    (0, -0.0),
    (10**22, 1e22),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (OrderedDict(b=2, a=1), {"a": 1, "b": 2}),
    (Decimal("1.50"), Decimal("1.5")),
    (Decimal("10"), Decimal("1E+1")),
    (Decimal("0.00"), Decimal("-0")),
    (NOON, NOON.astimezone(BERLIN)),
    (NOON, NOON.astimezone(timezone(timedelta(hours=-3.5)))),
    (datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN), datetime(2024, 10, 27, 0, 30, tzinfo=UTC)),
    (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN), datetime(2024, 10, 27, 1, 30, tzinfo=UTC)),
    (
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(1, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    ),
    (Colour.RED, "red"),
    (Level.HIGH, 3),
    (Point(1, 2.5), {"x": 1, "y": 2.5}),
    (Item(sku="a", price=Decimal("2.0")), {"sku": "a", "price": Decimal(2)}),
    ((1, 2), [1, 2]),
    (Pair(1, [2]), [1, (2,)]),
    ({1, 2.5}, {2.5, 1.0}),
    ({"a", "b", "c"}, frozenset("cba")),
    ({(1, 2)}, {(1.0, 2)}),
    ({frozenset({(1,)})}, {frozenset({(1.0,)})}),
    ({"deep": [{"when": NOON, "n": 2.0}]}, {"deep": ({"n": 2, "when": NOON.astimezone(BERLIN)},)}),
]


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=lambda value: type(value).__name__)
def test_arguments_that_mean_the_same_are_one_call(one: object, other: object) -> None:
    assert of(one) == of(other)


def test_any_mapping_of_arguments_will_do() -> None:
    assert args_hash(MappingProxyType({"a": 1, "b": "x"})) == args_hash({"b": "x", "a": 1.0})


# --- different arguments ---------------------------------------------------------------------------------------------

DIFFERENT: list[object] = [
    1, "1", True, None, 0, False, "", [], {}, set(), "None", [1], {1}, [[1]], [None], [1, 2], [2, 1], {1, 2}, {2},
    1.5, "1.5", Decimal("1.5"), Decimal("1.50000000000000000000000000000000001"),
    Decimal("1.50000000000000000000000000000000002"), Decimal(1), 2**53, 2**53 + 1, 2**64, 10**30,
    b"1", b"", UUID(int=1), str(UUID(int=1)),
    date(2025, 7, 1), datetime(2025, 7, 1), datetime(2025, 7, 1, tzinfo=UTC), datetime(2025, 7, 1, tzinfo=BERLIN),
    "2025-07-01", "2025-07-01T00:00:00", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    ["set", 1], ["datetime", 1], {"$": "set", "v": [1]}, {"$": "tuple", "v": ["set", 1]}, {"a": None},
    {"$": "decimal", "v": "1.5"}, "é", "e\u0301",
]  # fmt: skip


def test_arguments_that_differ_are_two_calls() -> None:
    hashes: dict[str, object] = {}
    for value in DIFFERENT:
        assert of(value) not in hashes, f"{value!r} is taken for {hashes.get(of(value))!r}"
        hashes[of(value)] = value


def test_none_and_missing_are_two_calls() -> None:
    assert len({args_hash({}), args_hash({"x": None}), args_hash({"y": None})}) == 3


# --- both at once: the hash agrees with a definition that shares no code with it -------------------------------------


def meaning(value: Any) -> Any:
    """What a value means as an argument, as nested tuples that Python itself compares."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, Decimal):
        return ("decimal", value)
    if isinstance(value, datetime):
        return ("moment", value) if value.tzinfo else ("local", value.isoformat())
    if isinstance(value, list | tuple):
        return ("list", tuple(meaning(child) for child in value))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(meaning(child) for child in value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, meaning(child)) for key, child in value.items()))
    return (type(value).__name__, value)


offsets = st.integers(-3, 3).map(lambda hours: timezone(timedelta(hours=hours)))
moments = st.integers(0, 5).map(lambda hour: datetime(2025, 7, 1, hour))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([Decimal("0"), Decimal("-0.0"), Decimal("0.5"), Decimal("0.50"), Decimal("1"), Decimal("1.0")]),
    st.sampled_from(["", "0", "1", "a", "set"]),
    st.sampled_from([b"", b"a"]),
    moments,
    st.builds(lambda moment, zone: moment.replace(tzinfo=zone), moments, offsets),
    moments.map(datetime.date),
)
hashable = st.recursive(leaves, lambda inner: st.frozensets(inner, max_size=3) | st.tuples(inner, inner), max_leaves=4)
nested = st.recursive(
    leaves | hashable,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", "$", "$$"]), inner, max_size=3)
        | st.sets(hashable, max_size=3)
    ),
    max_leaves=6,
)


@given(nested, nested)
@example([True], [1])
@example({"$": 1}, {"$": 1.0})
@example({frozenset({0})}, {frozenset({0.0})})
def test_the_hash_is_equal_exactly_when_the_meaning_is(one: object, other: object) -> None:
    assert (of(one) == of(other)) == (meaning(one) == meaning(other))


@given(nested, st.randoms(use_true_random=False))
def test_the_same_said_in_another_way_has_the_same_hash(value: Any, random: Any) -> None:
    def again(said: Any) -> Any:
        if isinstance(said, dict):
            keys = list(said)
            random.shuffle(keys)
            return {key: again(said[key]) for key in keys}
        if isinstance(said, list | tuple):
            return random.choice([list, tuple])(map(again, said))
        if isinstance(said, bool | set | frozenset):
            return said
        if isinstance(said, int | float) and float(said).is_integer():
            return random.choice([int, float])(said)
        if isinstance(said, Decimal):
            return said.quantize(Decimal("1.0000"))
        if isinstance(said, datetime) and said.tzinfo:
            return said.astimezone(timezone(timedelta(minutes=random.randint(-600, 600))))
        return said

    assert of(again(value)) == of(value)


@given(nested)
def test_what_was_stored_has_the_hash_of_what_was_given(value: object) -> None:
    assert of(plain(value)) == of(value)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, Decimal("NaN"), object(), {1: 2}, timedelta(1), "\ud800"])
def test_what_cannot_be_stored_is_refused_with_its_path(bad: object) -> None:
    with pytest.raises(ValueRefused) as refused:
        args_hash({"x": [{"y": bad}]})
    assert refused.value.path.startswith("$.x[0].y")


def test_an_unstorable_member_of_a_set_or_model_is_refused_too() -> None:
    for bad in ({1, math.nan}, Point(math.nan, 0), {Point(1, 2), object()}):
        with pytest.raises(ValueRefused):
            of(bad)


def test_the_deepest_value_that_can_be_stored_can_be_hashed() -> None:
    def wrapped(leaf: object, times: int) -> object:
        for _ in range(times):
            leaf = [leaf]
        return leaf

    # The arguments are one level themselves.
    assert of(wrapped(Decimal("1.50"), MAX_DEPTH - 1)) == of(wrapped(Decimal("1.5"), MAX_DEPTH - 1))
    with pytest.raises(ValueRefused, match="deeper than"):
        of(wrapped(1, MAX_DEPTH))


def test_a_value_that_contains_itself_is_refused() -> None:
    itself: list[object] = []
    itself.append(itself)
    with pytest.raises(ValueRefused, match=r"contains itself|deeper than"):
        of(itself)
