"""What can be stored comes back exactly; what cannot is refused with its path; planted bytes do no harm."""

from __future__ import annotations

import enum
import json
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, field_serializer

from walkback_store.errors import CorruptData, ValueRefused
from walkback_store.values import MAX_DEPTH, decode, encode, plain

# --- what a value is, more strictly than `==` says ---------------------------------------------------------------


def shape(value: object) -> object:
    """Tells True from 1 from 1.0, -0.0 from 0.0, 1.0 from 1.00, and one instant from itself in another offset."""
    if isinstance(value, dict):
        return ("dict", sorted((key, shape(child)) for key, child in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [shape(child) for child in value])
    if isinstance(value, set | frozenset):
        return ("set", sorted((shape(child) for child in value), key=repr))
    if isinstance(value, datetime):
        return ("datetime", value.isoformat(), value.fold if value.tzinfo is None else 0)
    return (type(value).__name__, repr(value))


def nested(depth: int, wrap: Any) -> Any:
    value: Any = "leaf"
    for _ in range(depth):
        value = wrap(value)
    return value


fixed_offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
datetimes = st.datetimes() | st.datetimes(timezones=fixed_offsets) | st.datetimes(timezones=st.just(UTC))
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.dates()
    | datetimes
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.binary()
)
hashable = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=8,
)
keys = st.text() | st.sampled_from(["$", "$$", "$$$", "$v", "v", "!", "#", "a", "é", "\U00010000", "\uffff", ""])
values = st.recursive(
    leaves | datetimes.map(lambda at: at.replace(fold=1)) | st.datetimes(timezones=st.timezones()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(hashable, max_size=4)
    ),
    max_leaves=20,
)


# --- round trip --------------------------------------------------------------------------------------------------


@given(values)
@settings(max_examples=500)
def test_every_storable_value_comes_back_exactly(value: object) -> None:
    assert shape(decode(encode(value))) == shape(value)


@given(values)
def test_storing_what_came_back_gives_the_same_bytes(value: object) -> None:
    assert encode(plain(value)) == encode(value)


@given(values)
def test_bytes_are_json_with_sorted_keys_and_no_duplicates(value: object) -> None:
    def check(pairs: list[tuple[str, object]]) -> None:
        names = [name.encode() for name, _ in pairs]
        assert names == sorted(set(names))

    json.loads(encode(value), object_pairs_hook=check)


@given(st.dictionaries(keys, values, min_size=2, max_size=6), st.randoms())
def test_insertion_order_does_not_matter(value: dict[str, object], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert encode(dict(items)) == encode(value)


@given(st.lists(hashable, unique=True, max_size=8), st.randoms())
def test_order_of_a_set_does_not_matter(members: list[Any], random: Any) -> None:
    shuffled = members[:]
    random.shuffle(shuffled)
    assert encode(frozenset(shuffled)) == encode(set(members))


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": [True, 1, 1.0, -0.0, None]}, b'{"a":[true,1,1.0,-0.0,null],"b":1}'),
        ((1, 2), b'{"$":"tuple","v":[1,2]}'),
        ({"b", "a"}, b'{"$":"set","v":["a","b"]}'),
        (2**64, b'{"$":"int","v":"0x10000000000000000"}'),
        (2**64 - 1, b"18446744073709551615"),
        (-(2**63) - 1, b'{"$":"int","v":"-0x8000000000000001"}'),
        (Decimal("1.10"), b'{"$":"decimal","v":"1.10"}'),
        (b"\x00\xff", b'{"$":"bytes","v":"AP8="}'),
        (date(2026, 1, 2), b'{"$":"date","v":"2026-01-02"}'),
        (datetime(2026, 1, 2, tzinfo=UTC), b'{"$":"datetime","v":"2026-01-02T00:00:00+00:00"}'),
        (datetime(2026, 10, 25, 2, 30, fold=1), b'{"$":"datetime-fold","v":"2026-10-25T02:30:00"}'),
        (UUID(int=1), b'{"$":"uuid","v":"00000000-0000-0000-0000-000000000001"}'),
        ({"$": "tuple", "v": [1]}, b'{"$":"dict","$$":"tuple","v":[1]}'),
        ({"$": 1, "$$": 2, "!": 3}, b'{"!":3,"$":"dict","$$":1,"$$$":2}'),
        ({"$$": 2, "$price": 1}, b'{"$$":2,"$price":1}'),
    ],
)
def test_the_format_on_disk_is_this(value: object, data: bytes) -> None:
    """Stores written by an earlier version are read by this one: these bytes must never change."""
    assert encode(value) == data
    assert shape(decode(data)) == shape(value)


def test_integers_of_any_size_come_back() -> None:
    for value in (10**5000, -(10**5000), 2**64, 2**64 - 1, -(2**63), -(2**63) - 1):
        assert decode(encode({"n": [value]})) == {"n": [value]}


def test_the_offset_is_kept_and_the_name_of_the_zone_is_not() -> None:
    berlin = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    stored = plain(berlin)
    assert isinstance(stored, datetime)
    assert stored.utcoffset() == timedelta(hours=1)
    assert stored.tzinfo == timezone(timedelta(hours=1))
    assert encode(berlin) != encode(berlin.astimezone(UTC))


def test_an_offset_below_a_second_is_kept() -> None:
    for microseconds in (1, -1, 999_999):
        value = datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=microseconds)))
        assert shape(plain(value)) == shape(value)


def test_sets_inside_sets_come_back_frozen_as_they_must() -> None:
    value = {frozenset({frozenset(), (frozenset({1}),)})}
    stored = plain(value)
    assert stored == value
    assert type(stored) is set
    assert type(next(iter(stored))) is frozenset
    assert type(plain(frozenset({1}))) is set


# --- what goes by value ------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1
    PAIR = ("a", 1)
    LIST = [1, 2]  # noqa: RUF012
    BAD = object()


class Other(enum.Enum):
    RED = 1


class Word(enum.StrEnum):
    OPEN = "open"


class Number(enum.IntEnum):
    BIG = 2**70
    ONE = 1


class Text(str):
    __slots__ = ()


class Real(float):
    pass


@dataclass
class Item:
    name: str
    price: Decimal
    parts: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    n: int


class Cart(BaseModel):
    owner: UUID
    items: list[Item]
    tags: set[str]
    extra: Any = None


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Color.RED, 1),
        (Color.PAIR, ("a", 1)),
        (Color.LIST, [1, 2]),
        (Word.OPEN, "open"),
        (Number.ONE, 1),
        (Number.BIG, 2**70),
        ({Word.OPEN: Word.OPEN}, {"open": "open"}),
        ({Word.OPEN, "shut"}, {"open", "shut"}),
        (Text("a"), "a"),
        ({Text("$"): 1}, {"$": 1}),
        (Real(1.5), 1.5),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (defaultdict(list, a=[(1,)]), {"a": [(1,)]}),
        (Point(1, 2), (1, 2)),
        (Item("a", Decimal("1.0"), [Item("b", Decimal(2))]),
         {"name": "a", "price": Decimal("1.0"), "parts": [{"name": "b", "price": Decimal(2), "parts": []}]}),
        (Cart(owner=UUID(int=1), items=[Item("a", Decimal(1))], tags={"x"}, extra=(1, Word.OPEN)),
         {"owner": UUID(int=1), "items": [{"name": "a", "price": Decimal(1), "parts": []}], "tags": {"x"},
          "extra": (1, "open")}),
        (RootModel[list[int]]([1, 2]), [1, 2]),
    ],
)  # fmt: skip
def test_goes_by_value(value: object, stored: object) -> None:
    assert shape(plain(value)) == shape(stored)
    assert shape(plain({"in": [value]})) == shape({"in": [stored]})


def test_encode_does_not_change_its_argument() -> None:
    inner = [(1,), {"$": 2**70}]
    value = {"a": inner, "b": {Word.OPEN: {3}}}
    encode(value)
    assert value == {"a": [(1,), {"$": 2**70}], "b": {Word.OPEN: {3}}}
    assert value["a"] is inner


# --- refusals ----------------------------------------------------------------------------------------------------

NAN = float("nan")
INFINITE = float("inf")


class Unset:
    pass


class Broken(BaseModel):
    n: int

    @field_serializer("n")
    def fail(self, n: int) -> int:
        raise RuntimeError("serializer broke")


class Nanoseconds(datetime):
    """As pandas does: a datetime that is not equal to what its datetime part says."""

    def __ne__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (NAN, "$", "nan is not a finite number"),
        ({"cart": [0, 0, 0, {"price": NAN}]}, "$.cart[3].price", "nan"),
        ({"a": [INFINITE]}, "$.a[0]", "inf"),
        ({"a": -INFINITE}, "$.a", "-inf"),
        ({"a": Real("nan")}, "$.a", "nan"),
        ({"a": Decimal("NaN")}, "$.a", "Decimal NaN"),
        ({"a": Decimal("sNaN")}, "$.a", "Decimal sNaN"),
        ({"a": Decimal("-Infinity")}, "$.a", "Decimal -Infinity"),
        ({"odd key": {"$": [NAN]}}, '$["odd key"]["$"][0]', "nan"),
        ({'q"': {"größe": NAN}}, '$["q\\""].größe', "nan"),
        ({"a": "\ud800"}, "$.a", "lone surrogate"),
        ({"a": [Text("x\udfff")]}, "$.a[0]", "lone surrogate"),
        ({"a": {"\ud800": 1}}, '$.a["\\ud800"]', "the key has a lone surrogate"),
        ({"a": {"$": 1, "\ud800": 1}}, '$.a["\\ud800"]', "the key has a lone surrogate"),
        ({"tags": {"ok", "\ud800"}}, "$.tags{...}", "lone surrogate"),
        ({"tags": {(1, NAN)}}, "$.tags{...}[1]", "nan"),
        ({"a": (1, (2, NAN))}, "$.a[1][1]", "nan"),
        ({"a": {1: 2}}, "$.a", "key of type int"),
        ({"a": {None: 2}}, "$.a", "key of type NoneType"),
        ({"a": {(1, 2): 2}}, "$.a", "key of type tuple"),
        ({"a": {Color.RED: 2}}, "$.a", f"key of type {__name__}.Color"),
        ({"a": {"$": 1, 3: 2}}, "$.a", "key of type int"),
        ({"a": object()}, "$.a", "a object cannot be stored; allowed are None, bool, int"),
        ({"a": time(1)}, "$.a", "datetime.time"),
        ({"a": timedelta(1)}, "$.a", "datetime.timedelta"),
        ({"a": Fraction(1)}, "$.a", "fractions.Fraction"),
        ({"a": 1j}, "$.a", "complex"),
        ({"a": bytearray(b"x")}, "$.a", "bytearray"),
        ({"a": range(3)}, "$.a", "range"),
        ({"a": Item}, "$.a", "a type cannot"),
        ({"a": Cart}, "$.a", "ModelMetaclass cannot"),
        ({"a": threading.Lock()}, "$.a", "_thread.lock"),
        ({"a": Color.BAD}, "$.a", "object cannot be stored"),
        ({"a": Unset()}, "$.a", f"{__name__}.Unset"),
        ([Item("a", Decimal("NaN"))], "$[0].price", "Decimal NaN"),
        ([Cart(owner=UUID(int=1), items=[], tags=set(), extra={"x": [NAN]})], "$[0].extra.x[0]", "nan"),
        ([Broken(n=1)], "$[0]", "serializer broke"),
        ([make_dataclass("Late", [("x", int, field(init=False))])()], "$[0]", "never set"),
        ({"at": Nanoseconds(2026, 1, 1)}, "$.at", "holds more than a datetime can"),
        ({"a": {Frozen(1)}}, "$.a", "no set can hold"),
        ({"a": {Color.LIST}}, "$.a", "no set can hold"),
        ({"a": {Color.RED, Other.RED}}, "$.a", "two members of this set become equal"),
        ({"a": {Color.RED, True}}, "$.a", "two members of this set become equal"),
    ],
)
def test_refused_with_its_path(value: object, path: str, reason: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        encode(value)
    assert refused.value.path == path
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("wrap", "step"),
    [
        (lambda inner: [inner], "[0]"),
        (lambda inner: {"a": inner}, ".a"),
        (lambda inner: (inner,), "[0]"),
        (lambda inner: frozenset({inner}), "{...}"),
        (lambda inner: defaultdict(list, a=inner), ".a"),
        (lambda inner: {"$": inner}, '["$"]'),
        (lambda inner: Item("n", Decimal(1), inner), ".parts"),
    ],
)
def test_depth_is_allowed_up_to_the_limit_and_refused_beyond_it(wrap: Any, step: str) -> None:
    deepest = nested(MAX_DEPTH, wrap)
    assert encode(plain(deepest)) == encode(deepest)
    with pytest.raises(ValueRefused) as refused:
        encode(wrap(deepest))
    assert refused.value.path == "$" + step * MAX_DEPTH
    assert "deeper than 200 levels" in refused.value.reason


def test_depth_counts_python_containers_whatever_they_are_mixed_with() -> None:
    value: Any = UUID(int=1)
    for level in range(MAX_DEPTH):
        value = [(value,), [value], {"$": value}, {"a": value}][level % 4]
    assert shape(plain(value)) == shape(value)


def test_a_value_that_contains_itself_is_refused_where_the_circle_closes() -> None:
    loop: list[Any] = []
    loop.append(loop)
    node: dict[str, Any] = {"children": []}
    node["children"].append({"parent": node})
    item = Item("a", Decimal(1))
    item.parts.append((item,))
    lazy: defaultdict[str, Any] = defaultdict(list)
    lazy["me"] = lazy
    for value, path, same_as in [
        (loop, "$[0]", "$"),
        ({"tree": node}, "$.tree.children[0].parent", "$.tree"),
        ([item], "$[0].parts[0][0]", "$[0]"),
        (lazy, "$.me", "$"),
    ]:
        with pytest.raises(ValueRefused) as refused:
            encode(value)
        assert refused.value.path == path
        assert refused.value.reason == f"it contains itself: it is the same object as {same_as}"


def test_a_model_that_contains_itself_is_refused() -> None:
    cart = Cart(owner=UUID(int=1), items=[], tags=set())
    cart.extra = [cart]
    with pytest.raises(ValueRefused, match="it contains itself") as refused:
        encode({"cart": cart})
    assert refused.value.path.startswith("$.cart")


def test_the_same_object_twice_is_no_circle() -> None:
    shared = [1]
    assert plain([shared, shared, (shared,)]) == [[1], [1], ([1],)]


def test_too_many_bytes_are_refused_naming_the_largest_part() -> None:
    with pytest.raises(ValueRefused) as refused:
        encode({"small": 1, "log": ["x" * 100]}, max_bytes=50)
    assert refused.value.path == "$"
    assert refused.value.reason == "it takes 122 bytes and the limit is 50; its largest part is $.log with 104 bytes"
    assert len(encode({"log": "x"}, max_bytes=11)) == 11


def test_too_many_bytes_without_parts_are_refused() -> None:
    with pytest.raises(ValueRefused, match="it takes 102 bytes and the limit is 50"):
        encode("x" * 100, max_bytes=50)


# --- planted bytes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"NaN",
        b"1e999",
        b"[1]x",
        b'"\\ud800"',
        b"\xff\xfe",
        b'{"$":"os.system","v":"true"}',
        b'{"\\u0024":"os.system","v":"true"}',
        b'{"$":null,"v":1}',
        b'{"$":["tuple"],"v":[]}',
        b'{"$":{"$":"tuple","v":[]},"v":[]}',
        b'{"$":"tuple"}',
        b'{"$":"tuple","v":{}}',
        b'{"$":"tuple","v":[],"w":1}',
        b'{"$":"set","v":[[]]}',
        b'{"$":"set","v":[{}]}',
        b'{"$":"set","v":[{"$":"tuple","v":[[]]}]}',
        b'{"$":"int","v":"zz"}',
        b'{"$":"int","v":12}',
        b'{"$":"decimal","v":"NaN"}',
        b'{"$":"decimal","v":"-Infinity"}',
        b'{"$":"decimal","v":"1e99999999999999999999"}',
        b'{"$":"decimal","v":""}',
        b'{"$":"datetime","v":"yesterday"}',
        b'{"$":"datetime","v":"2026-01-01T00:00:00+99:00"}',
        b'{"$":"date","v":"2026-13-01"}',
        b'{"$":"uuid","v":"1"}',
        b'{"$":"bytes","v":"A"}',
        b'{"$":"bytes","v":"*\\u00e9*="}',
        pickle.dumps({"a": 1}, 0),
        pickle.dumps({"a": 1}),
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"$":"tuple","v":[' * 100_000 + b"]}" * 100_000,
        b'{"$":"set","v":[' * 300 + b"]}" * 300,
        b'{"$":"dict","a":' * 300 + b"1" + b"}" * 300,
        b"[" * 201 + b"]" * 201,
        b'{"a":' * 201 + b"1" + b"}" * 201,
        b"[" * 1000 + b'"$"' + b"]" * 1000,
        b"[" * 1000 + b'"' + b"x" * 20_000 + b'"' + b"]" * 1000,
    ],
)  # fmt: skip
def test_malformed_bytes_are_corrupt_data(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode(data)


def test_more_bytes_than_the_limit_are_corrupt_data() -> None:
    assert decode(b"[1,2]", max_bytes=5) == [1, 2]
    with pytest.raises(CorruptData, match="limit of 4"):
        decode(b"[1,2]", max_bytes=4)


def test_foreign_json_is_accepted() -> None:
    assert decode(b' {"b": 1, "a" : [ ] } ') == {"a": [], "b": 1}
    assert decode(b'{"v":[1],"\\u0024":"tuple"}') == (1,)
    assert decode(b"[" * 200 + b"]" * 200) == nested(199, lambda inner: [inner] if inner != "leaf" else [[]])


TAGS = ["tuple", "set", "dict", "int", "decimal", "datetime", "datetime-fold", "date", "uuid", "bytes", "object", ""]
PAYLOADS = ["0x1", "-1", "1e5", "NaN", "2026-01-01", "2026-01-01T00:00:00+00:00:00.000001", "AA==", "0" * 32]
planted = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TAGS + PAYLOADS) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.fixed_dictionaries({"$": st.sampled_from(TAGS) | inner, "v": inner})
        | st.fixed_dictionaries({"$": st.sampled_from(TAGS)}, optional={"v": inner, "$$": inner, "$$$": inner})
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=15,
)


def value_or_corrupt(data: bytes) -> None:
    """Whatever could be read can also be written, and read again."""
    try:
        value = decode(data)
    except CorruptData:
        return
    assert shape(decode(encode(value))) == shape(value)


@given(planted)
@settings(max_examples=1000)
def test_planted_tags_give_a_storable_value_or_corrupt_data(value: object) -> None:
    value_or_corrupt(json.dumps(value).encode())


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_give_a_storable_value_or_corrupt_data(data: bytes) -> None:
    value_or_corrupt(data)


@given(values, st.data())
def test_damaged_bytes_give_a_storable_value_or_corrupt_data(value: object, data: st.DataObject) -> None:
    stored = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    value_or_corrupt(bytes(stored))


def run_limited(code: str, limit_mib: int) -> str:
    """Run Python that may not have more than so much memory."""
    limit = limit_mib * 1024 * 1024
    prelude = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
    done = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_deep_planted_bytes_are_refused_in_little_memory() -> None:
    code = """
from walkback_store.errors import CorruptData
from walkback_store.values import decode
for data in (b"[" * 20_000_000, b'{"$":"tuple","v":[' * 1_000_000, b'{"a":' * 4_000_000, b"\\x80\\x04" * 10_000_000):
    try:
        decode(data)
    except CorruptData:
        print("refused")
"""
    assert run_limited(code, 400).split() == ["refused"] * 4


def test_the_store_can_be_used_without_pydantic_loaded() -> None:
    code = "import sys, walkback_store.values; print({'pydantic', 'rich', 'textual', 'deepdiff'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
