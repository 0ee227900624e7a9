"""What became of a state: the smallest places in which two of them differ.

Equal parts are left out first, by comparisons that run in C; the common ends of two lists go next, so that one
insertion is one change and not a change of everything behind it. Only what is left in between is aligned item by item.

A change inside a list is said with the item's number *after* the change; the number of a removed item is the one it had
before. So: take away what was removed, put in what was added from the front, then change what was changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, Literal

import orjson

from walkback_console.trees import MISSING, Path, members
from walkback_store.values import encode

Kind = Literal["added", "removed", "changed"]

_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_ALIGNED: Final = 1_000_000
"""Lists whose lengths multiply to more than this are aligned by items that occur once: the rest would take seconds."""


@dataclass(frozen=True, slots=True)
class Change:
    path: Path
    kind: Kind
    old: object
    """MISSING if it was added."""
    new: object
    """MISSING if it was removed."""


def same(a: object, b: object) -> bool:
    """Whether two values are stored as the same bytes. To Python, True, 1 and 1.0 are one; to a store, three."""
    if a is b:
        return True
    if type(a) is not type(b) or a != b:
        return False
    return isinstance(a, str | int) or _as_bytes(a) == _as_bytes(b)


def _as_bytes(value: object) -> bytes:
    """Tells apart what Python takes for equal. Not more: a tuple and a list, a UUID and its text look the same here."""
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return encode(value)


def diff(before: object, after: object) -> list[Change]:
    """In the order of the paths."""
    return list(_changes((), before, after))


def _changes(path: Path, a: object, b: object) -> Iterator[Change]:
    if same(a, b):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        yield from _of_dicts(path, a, b)
    elif type(a) is type(b) and isinstance(a, list | tuple) and isinstance(b, list | tuple):
        yield from _of_lists(path, a, b)
    elif type(a) is type(b) and isinstance(a, Set) and isinstance(b, Set):
        yield from _of_sets(path, a, b)
    else:
        yield Change(path, "changed", a, b)


def _of_dicts(path: Path, a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[Change]:
    for key in sorted(a.keys() | b.keys()):
        if key not in b:
            yield Change((*path, key), "removed", a[key], MISSING)
        elif key not in a:
            yield Change((*path, key), "added", MISSING, b[key])
        else:
            yield from _changes((*path, key), a[key], b[key])


def _of_lists(path: Path, a: Sequence[object], b: Sequence[object]) -> Iterator[Change]:
    front = _common(a, b)
    back = _common(a[front:][::-1], b[front:][::-1])
    old, new = a[front : len(a) - back], b[front : len(b) - back]
    if not old or not new or len(old) == len(new) == 1:
        yield from _by_number(path, old, new, front, front)
        return
    # Fingerprints, as items may be dicts, which nothing can hash.
    for a1, a2, b1, b2 in _gaps([encode(x) for x in old], [encode(x) for x in new]):
        yield from _by_number(path, old[a1:a2], new[b1:b2], front + a1, front + b1)


Gap = tuple[int, int, int, int]


def _gaps(a: list[bytes], b: list[bytes]) -> Iterator[Gap]:
    """Where two lists are not the same: a[a1:a2] against b[b1:b2]."""
    if len(a) * len(b) <= _ALIGNED:
        matcher = SequenceMatcher(None, a, b, autojunk=False)
        yield from (places for tag, *places in matcher.get_opcodes() if tag != "equal")  # type: ignore[misc]
        return
    a_at = b_at = 0
    for x, y in [*_only_ones(a, b), (len(a), len(b))]:
        if x > a_at or y > b_at:
            yield a_at, x, b_at, y
        a_at, b_at = x + 1, y + 1


def _only_ones(a: list[bytes], b: list[bytes]) -> list[tuple[int, int]]:
    """The places of items that each list has once, as many as there are in the same order in both."""
    counts_a, counts_b = Counter(a), Counter(b)
    places = {item: n for n, item in enumerate(b) if counts_b[item] == 1}
    tops: list[int] = []
    """By length of a row of rising places: the smallest place that such a row can end with."""
    chains: list[tuple[int, int, int]] = []
    ends: list[int] = []
    for x, item in enumerate(a):
        if counts_a[item] == 1 and (y := places.get(item)) is not None:
            length = bisect_left(tops, y)
            before = ends[length - 1] if length else -1
            tops[length : length + 1] = [y]
            ends[length : length + 1] = [len(chains)]
            chains.append((x, y, before))
    found: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        x, y, at = chains[at]
        found.append((x, y))
    return found[::-1]


def _by_number(path: Path, a: Sequence[object], b: Sequence[object], a_at: int, b_at: int) -> Iterator[Change]:
    """Item by item as far as both go; what is left of one of them was removed, or added."""
    for number, (x, y) in enumerate(zip(a, b, strict=False)):
        yield from _changes((*path, b_at + number), x, y)
    for number in range(len(b), len(a)):
        yield Change((*path, a_at + number), "removed", a[number], MISSING)
    for number in range(len(a), len(b)):
        yield Change((*path, b_at + number), "added", MISSING, b[number])


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items at the front are the same."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x is not y and x != y:
            break
        count += 1
    # Equal to Python; whether in type as well is asked once, for all of them.
    if _as_bytes(a[:count]) == _as_bytes(b[:count]):
        return count
    return next(n for n, (x, y) in enumerate(zip(a, b, strict=False)) if not same(x, y))


def _of_sets(path: Path, a: Set[object], b: Set[object]) -> Iterator[Change]:
    """A member has no place of its own: it is there or not. Numbered as `trees` numbers them."""
    old = {encode(x): (n, x) for n, x in enumerate(members(a))}
    new = {encode(x): (n, x) for n, x in enumerate(members(b))}
    for data, (n, x) in old.items():
        if data not in new:
            yield Change((*path, n), "removed", x, MISSING)
    for data, (n, x) in new.items():
        if data not in old:
            yield Change((*path, n), "added", MISSING, x)
