"""What may be stored as state or in an event body, and its one canonical form as bytes.

The list of storable values is fixed: JSON, plus datetime, date, Decimal, UUID, bytes, tuple, set, integers of any size,
enums (by value), dataclasses and pydantic models (as plain dicts). Bytes never name a class to revive, so reading a
store that somebody else wrote runs none of their code.

Canonical means: UTF-8 JSON, keys sorted by their UTF-8 bytes, no spaces. The same value always gives the same bytes, so
digests of bytes are digests of values. What JSON lacks is written as `{"$": tag, "v": payload}`; a dict of the user's
that has a `"$"` key is written with `"$": "dict"` and one more `$` in front of every key that starts with one.

The good path is one walk that returns its argument untouched, then orjson. It ignores what orjson itself refuses (keys
that are no strings, lone surrogates, integers over 64 bits); only when orjson does refuse is there a second, careful
walk. Paths are put together only while a refusal travels up.
"""

from __future__ import annotations

import dataclasses
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from types import NoneType
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

import orjson

from walkback_store.errors import CorruptData, ValueRefused

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_DEPTH: Final = 200
"""How many containers may lie inside each other; a tuple, a set or a dataclass counts as one."""

ALLOWED: Final = (
    "None, bool, int, float, str, list, dict, tuple, set, bytes, datetime, date, Decimal, UUID, "
    "enums, dataclasses and pydantic models"
)

_OPTIONS: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
T = TypeVar("T")

_CONTAINERS: Final[frozenset[type]] = frozenset({dict, list})
_INFINITY: Final = float("inf")
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1

_FAST: Final[frozenset[type]] = frozenset({str, int, bool, NoneType})
"""Leaf types the first walk passes over: orjson writes them right or refuses them."""

_CAREFUL: Final[frozenset[type]] = frozenset({bool, NoneType})
"""Leaf types the second walk passes over; it looks at every string, key and integer."""

_UNCHANGED_MEMBERS: Final[frozenset[type]] = frozenset({str, int, float, bool, NoneType, bytes, UUID, date, Decimal})
"""A set of these comes back as it was; of others, two members could become equal or be no longer hashable."""

_ENCODE_TUPLES_APART: Final = 25
"""From this depth a tuple is encoded on its own. It takes two levels of JSON, and orjson writes at most 254."""


def encode(value: object, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The canonical bytes of a value, or `ValueRefused` with the path of what cannot be stored."""
    try:
        data = _encode(value)
    except _Refusal as refusal:
        raise ValueRefused(*refusal.explain()) from refusal.__cause__
    if len(data) > max_bytes:
        raise ValueRefused("$", _too_large(value, len(data), max_bytes))
    return data


def fingerprint(value: object) -> str:
    """128 bits of SHA-256 over the canonical bytes, as hex: equal values, equal fingerprints."""
    return sha256(encode(value)).hexdigest()[:32]


def decode(data: bytes, *, max_bytes: int = MAX_BYTES) -> object:
    """The value that `encode` was given, or `CorruptData`.

    Other JSON is accepted too as long as its tags are well formed: being canonical is checked by whoever compares
    digests, not here. An untagged integer over 64 bits, which `encode` never writes, is read as a float.
    """
    if len(data) > max_bytes:
        _corrupt(f"{len(data)} bytes are more than the limit of {max_bytes}")
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        _corrupt(f"not JSON ({error})")
    if _may_have_tags(data):
        return _revive(value, 1, False) if type(value) in _CONTAINERS else value
    if _may_be_deep(data) and _deeper_than_allowed(value):
        _corrupt(f"deeper than {MAX_DEPTH} levels")
    return value


def plain(value: object) -> object:
    """The value as it will come back from the store: no enums, no models, sets that are not frozen."""
    return decode(encode(value))


# --- refusing ----------------------------------------------------------------------------------------------------


class _Refusal(Exception):
    """Travels from the offending value up to `encode`; every container on the way adds itself and its step."""

    def __init__(self, reason: str, culprit: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.culprit = culprit
        self.trail: list[tuple[object, str]] = []

    def explain(self) -> tuple[str, str]:
        """The path and the reason. A value that is too deep may turn out to contain itself: then say where."""
        trail = self.trail[::-1]
        if self.culprit is not None:
            first_seen: dict[int, int] = {}
            for position, container in enumerate([*(container for container, _ in trail), self.culprit]):
                before = first_seen.setdefault(id(container), position)
                if before != position:
                    return _path(
                        trail[:position]
                    ), f"it contains itself: it is the same object as {_path(trail[:before])}"
        return _path(trail), self.reason


def _path(trail: list[tuple[object, str]]) -> str:
    return "$" + "".join(step for _, step in trail)


def _key_step(key: object) -> str:
    if not isinstance(key, str):
        return f"[{type(key).__name__}]"
    text = str.__str__(key)
    return f".{text}" if text.isidentifier() else f"[{json.dumps(text, ensure_ascii=not _is_text(text))}]"


def _is_text(text: str) -> bool:
    """Whether the string can be written as UTF-8: one half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _too_deep(container: object) -> _Refusal:
    return _Refusal(f"it lies deeper than {MAX_DEPTH} levels", container)


def _too_large(value: object, size: int, limit: int) -> str:
    reason = f"it takes {size} bytes and the limit is {limit}"
    parts = [(len(_encode(child)), step) for step, child in _children(value)]
    if parts:
        largest, step = max(parts)
        reason += f"; its largest part is ${step} with {largest} bytes"
    return reason


def _children(value: object) -> Iterator[tuple[str, object]]:
    if _is_dataclass(value):
        value = _dataclass_as_dict(value)
    if isinstance(value, dict):
        yield from ((_key_step(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))


# --- encoding: containers ----------------------------------------------------------------------------------------


def _encode(value: object) -> bytes:
    try:
        return _dump(_walk(value, _FAST))
    except orjson.JSONEncodeError:
        return _dump(_walk(value, _CAREFUL))


def _walk(value: object, atoms: frozenset[type]) -> object:
    kind = type(value)
    return value if kind in atoms else _WALKERS.get(kind, _convert)(value, 1, atoms)


def _dump(walked: object) -> bytes:
    return orjson.dumps(walked, option=_OPTIONS)


def _walk_dict(value: dict[str, object], depth: int, atoms: frozenset[type]) -> dict[str, object]:
    """The dict as orjson has to see it; the very same object when nothing in it has to change."""
    if depth > MAX_DEPTH:
        raise _too_deep(value)
    walked = _with_text_keys(value) if atoms is _CAREFUL else value
    changed: dict[str, object] = {}
    key = ""
    try:
        for key, child in walked.items():
            kind = type(child)
            if kind in atoms or (kind is float and -_INFINITY < child < _INFINITY):  # type: ignore[operator]
                continue
            new = _WALKERS.get(kind, _convert)(child, depth + 1, atoms)
            if new is not child:
                changed[key] = new
    except _Refusal as refusal:
        refusal.trail.append((value, _key_step(key)))
        raise
    if changed:
        walked = walked | changed
    return _escaped(walked) if "$" in walked else walked


def _walk_list(value: list[object], depth: int, atoms: frozenset[type]) -> list[object]:
    if depth > MAX_DEPTH:
        raise _too_deep(value)
    changed: dict[int, object] = {}
    index = 0
    try:
        for index, child in enumerate(value):
            kind = type(child)
            if kind in atoms or (kind is float and -_INFINITY < child < _INFINITY):  # type: ignore[operator]
                continue
            new = _WALKERS.get(kind, _convert)(child, depth + 1, atoms)
            if new is not child:
                changed[index] = new
    except _Refusal as refusal:
        refusal.trail.append((value, f"[{index}]"))
        raise
    if not changed:
        return value
    walked = list(value)
    for index, new in changed.items():
        walked[index] = new
    return walked


def _walk_tuple(value: tuple[object, ...], depth: int, atoms: frozenset[type]) -> object:
    items = _walk_list(value, depth, atoms)  # type: ignore[arg-type]
    return _tagged("tuple", items if depth < _ENCODE_TUPLES_APART else orjson.Fragment(_dump(items)))


def _walk_set(value: set[object] | frozenset[object], depth: int, atoms: frozenset[type]) -> object:
    """Members are ordered by their own canonical bytes, as a set has no order that could be relied on."""
    if depth > MAX_DEPTH:
        raise _too_deep(value)
    encoded = []
    try:
        for member in value:
            kind = type(member)
            walked = member if kind in atoms else _WALKERS.get(kind, _convert)(member, depth + 1, atoms)
            encoded.append(_dump(walked))
    except _Refusal as refusal:
        refusal.trail.append((value, "{...}"))
        raise
    encoded.sort()
    if not _UNCHANGED_MEMBERS.issuperset(map(type, value)):
        _refuse_lost_members(encoded)
    return _tagged("set", [orjson.Fragment(member) for member in encoded])


def _refuse_lost_members(encoded: list[bytes]) -> None:
    """Two enums with one value, or a frozen dataclass, can be members of a set; what they come back as cannot."""
    members: list[object] = [orjson.loads(member) for member in encoded]
    _revive(members, 0, True)
    try:
        survivors = set(members)
    except TypeError:
        raise _Refusal("a member of this set would come back as a dict or a list, which no set can hold") from None
    if len(survivors) < len(encoded):
        raise _Refusal("two members of this set become equal once they are stored by value")


def _with_text_keys(value: dict[str, object]) -> dict[str, object]:
    """The annotation is what was asked for; what users pass can have any key, or a subclass of str."""
    walked: dict[str, object] = {}
    for key, child in value.items():
        if not isinstance(key, str):
            raise _Refusal(f"it has a key of type {_type_name(type(key))}, and keys must be strings")
        text = str.__str__(key)
        if not _is_text(text):
            refusal = _Refusal("the key has a lone surrogate, which UTF-8 cannot hold")
            refusal.trail.append((value, _key_step(text)))
            raise refusal
        walked[text] = child
    if len(walked) < len(value):
        raise _Refusal("two of its keys are the same text")
    return walked


def _escaped(value: dict[str, object]) -> dict[str, object]:
    text_keys = _with_text_keys(value)
    return {"$": "dict"} | {f"${key}" if key.startswith("$") else key: child for key, child in text_keys.items()}


def _tagged(tag: str, payload: object) -> dict[str, object]:
    return {"$": tag, "v": payload}


# --- encoding: everything that is not a dict or a list -----------------------------------------------------------


def _convert(value: object, depth: int, atoms: frozenset[type]) -> object:
    """A leaf is written at once; for anything else a plain container, or an enum's value, stands in.

    The original stays on the trail of a refusal: only its identity shows that a value contains itself.
    """
    stand_in = _stand_in(value)
    if stand_in is value:
        return _convert_leaf(value)
    kind = type(stand_in)
    if kind in atoms:
        return stand_in
    try:
        return _WALKERS.get(kind, _convert)(stand_in, depth, atoms)
    except _Refusal as refusal:
        if refusal.culprit is stand_in:
            refusal.culprit = value
        else:
            refusal.trail.append((value, ""))
        raise


def _stand_in(value: object) -> object:
    """Order matters: an enum may also be a str, a dataclass may extend a dict. A leaf stands for itself."""
    if isinstance(value, Enum):
        return value.value
    if _is_dataclass(value):
        return _dataclass_as_dict(value)
    if callable(getattr(type(value), "model_dump", None)):
        return _model_as_data(value)
    for kind in (dict, list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(value)
    return value


_WALKERS: Final[dict[type, Callable[..., object]]] = {
    dict: _walk_dict,
    list: _walk_list,
    tuple: _walk_tuple,
    set: _walk_set,
    frozenset: _walk_set,
}
"""Called from inside each other without a step between: 200 levels must fit into Python's stack of 1000 calls."""


def _convert_leaf(value: object) -> object:
    """Order matters: a datetime is also a date."""
    for kind, converter in _LEAVES:
        if isinstance(value, kind):
            return converter(value)
    raise _Refusal(f"a {_type_name(type(value))} cannot be stored; allowed are {ALLOWED}")


def _text(value: str) -> str:
    text = str.__str__(value)
    if not _is_text(text):
        raise _Refusal("the text has a lone surrogate, which UTF-8 cannot hold")
    return text


def _integer(value: int) -> object:
    number = int.__int__(value)
    # In hexadecimal, because decimal digits take quadratic time and Python refuses more than 4300 of them.
    return number if _INT_MIN <= number <= _INT_MAX else _tagged("int", hex(number))


def _finite(value: float) -> float:
    if -_INFINITY < value < _INFINITY:
        return value if type(value) is float else float.__float__(value)
    raise _Refusal(f"{float.__repr__(value)} is not a finite number")


def _datetime(value: datetime) -> object:
    text = datetime.isoformat(value)
    if type(value) is not datetime and value.replace(tzinfo=None) != _read_datetime(text).replace(tzinfo=None):
        raise _Refusal(f"this {_type_name(type(value))} holds more than a datetime can, such as nanoseconds")
    # An offset already tells the two passes through the hour before winter apart; without one only `fold` does.
    return _tagged("datetime-fold" if value.fold and value.utcoffset() is None else "datetime", text)


def _date(value: date) -> object:
    return _tagged("date", date.isoformat(value))


def _decimal(value: Decimal) -> object:
    if not value.is_finite():
        raise _Refusal(f"Decimal {Decimal.__str__(value)} is not a finite number")
    return _tagged("decimal", Decimal.__str__(value))


def _uuid(value: UUID) -> object:
    return _tagged("uuid", UUID.__str__(value))


def _bytes(value: bytes) -> object:
    return _tagged("bytes", b64encode(value).decode())


_LEAVES: Final[tuple[tuple[type, Callable[..., object]], ...]] = (
    (str, _text),
    (datetime, _datetime),
    (date, _date),
    (Decimal, _decimal),
    (UUID, _uuid),
    (bytes, _bytes),
    (int, _integer),
    (float, _finite),
)


def _is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _dataclass_as_dict(value: object) -> dict[str, object]:
    """One level only: `dataclasses.asdict` would copy deeply and lose the path of what lies below."""
    try:
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    except AttributeError as error:
        raise _Refusal(f"a field of this {_type_name(type(value))} was never set ({error})") from error


def _model_as_data(value: object) -> object:
    """What a pydantic model dumps. Its serializers are the user's code, so they may fail in any way."""
    try:
        data: object = value.model_dump(mode="python")  # type: ignore[attr-defined]
    except Exception as error:
        raise _Refusal(f"this {_type_name(type(value))} cannot be dumped ({error})") from error
    return data


# --- decoding ----------------------------------------------------------------------------------------------------


def _corrupt(reason: str) -> NoReturn:
    raise CorruptData(f"these bytes are not a stored value: {reason}. Nothing was made of them.")


def _may_have_tags(data: bytes) -> bool:
    """Every tag has the key `"$"`, which a foreign writer may have escaped. A single byte is found much faster."""
    return (b"$" in data and b'"$"' in data) or (b"\\" in data and b"\\u0024" in data)


def _may_be_deep(data: bytes) -> bool:
    """In small data it is cheaper to count brackets than to look; large data nearly always has that many."""
    return len(data) > 16_384 or data.count(b"[") + data.count(b"{") > MAX_DEPTH


def _deeper_than_allowed(value: object) -> bool:
    """Level by level, as recursion is what a planted value would be after."""
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def _revive(node: Any, depth: int, hashable: bool) -> object:
    """Turn tags into values, in place. Inside a set (`hashable`) a set comes back frozen, as it could not be there.

    One function for all containers, so that each level takes one call of Python's stack.
    """
    tag = None
    if type(node) is dict and "$" in node:
        tag = node["$"]
        if tag in ("tuple", "set"):
            node = _payload(node, list)
        elif tag == "dict":
            node = {key.removeprefix("$"): child for key, child in node.items() if key != "$"}
        else:
            return _revive_leaf(node)
    if depth > MAX_DEPTH:
        _corrupt(f"deeper than {MAX_DEPTH} levels")
    for key, child in node.items() if type(node) is dict else enumerate(node):
        if type(child) in _CONTAINERS:
            node[key] = _revive(child, depth + 1, hashable or tag == "set")
    if tag == "tuple":
        return tuple(node)
    return _revive_set(node, hashable) if tag == "set" else node


def _revive_set(members: list[object], hashable: bool) -> set[object] | frozenset[object]:
    try:
        return frozenset(members) if hashable else set(members)
    except TypeError:
        _corrupt("a set with a member that no set can hold")


def _revive_leaf(node: dict[str, object]) -> object:
    tag = node["$"]
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    if reader is None:
        _corrupt(f"unknown tag {str(tag)[:40]!r}")
    text = _payload(node, str)
    try:
        return reader(text)
    except (ValueError, ArithmeticError) as error:
        _corrupt(f"malformed {tag} ({str(error)[:80]})")


def _payload(node: dict[str, object], kind: type[T]) -> T:
    payload = node.get("v")
    if len(node) != 2 or not isinstance(payload, kind):
        _corrupt(f"malformed {node['$']}")
    return payload


_OFFSET_BELOW_A_SECOND: Final = re.compile(r"([+-])00:00:00\.(\d{6})\Z", re.ASCII)


def _read_datetime(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    # Python 3.11 reads such an offset as UTC.
    if offset := _OFFSET_BELOW_A_SECOND.search(text):
        value = value.replace(tzinfo=timezone(timedelta(microseconds=int(offset[1] + offset[2]))))
    return value


def _read_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError("not a finite number")
    return value


_READERS: Final[dict[str, Callable[[str], object]]] = {
    "datetime": _read_datetime,
    "datetime-fold": lambda text: _read_datetime(text).replace(fold=1),
    "date": date.fromisoformat,
    "decimal": _read_decimal,
    "uuid": UUID,
    "bytes": lambda text: b64decode(text, validate=True),
    "int": lambda text: int(text, 16),
}
