"""A state as lines: what lies in it, where, and which parts of it are open.

A path is a tuple of keys and numbers, written like `order.items[3].price`. Keys that are no plain names are quoted as
JSON text, in ASCII, so that a path as shown can be typed again. The members of a set have no names; they are numbered
in the order in which the store writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Final
from uuid import UUID

from walkback_console.plain_words import many
from walkback_console.safe_text import safe
from walkback_store.values import encode

Path = tuple[str | int, ...]

ROOT: Final = "$"
_PLAIN: Final = re.compile(r"[^.\[\]\s\"]+")
_INDEX: Final = re.compile(r"\[(\d{1,18})\]", re.ASCII)
_DIGITS: Final = 1000
"""Integers with more bits than this are written in hexadecimal: decimal digits take quadratic time."""


class Missing(Enum):
    """Nothing is there: not even None, which a state may hold."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


# --- paths -------------------------------------------------------------------------------------------------------


def format_path(path: Path) -> str:
    """`$` is the state itself."""
    if not path:
        return ROOT
    text = "".join(_step(part) for part in path)
    return text.removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() and safe(part) == part else f"[{json.dumps(part)}]"


def parse_path(text: str) -> Path:
    """The opposite of `format_path`; ValueError says what is wrong. Most names need no quotes."""
    text = text.strip()
    at = len(ROOT) if text.startswith(ROOT) else 0
    if text[at : at + 1] == "." and at:
        at += 1
    path: list[str | int] = []
    while at < len(text):
        at, part = _bracketed(text, at) if text[at] == "[" else _named(text, at)
        path.append(part)
        if text[at : at + 1] == ".":
            at += 1
            if at == len(text) or text[at] == "[":
                raise ValueError(f"the path {text!r} has a dot with no name behind it")
    return tuple(path)


def _bracketed(text: str, at: int) -> tuple[int, str | int]:
    if found := _INDEX.match(text, at):
        return found.end(), int(found[1])
    try:
        key, end = json.JSONDecoder().raw_decode(text, at + 1)
    except (ValueError, RecursionError):
        key, end = None, at
    if not isinstance(key, str) or text[end : end + 1] != "]":
        raise ValueError(f'the path {text!r} has a bracket that is neither [number] nor ["key"]')
    return end + 1, key


def _named(text: str, at: int) -> tuple[int, str]:
    found = _PLAIN.match(text, at)
    if found is None:
        raise ValueError(f'the path {text!r} cannot be read at {text[at:]!r}: quote odd keys, as in a["odd key"]')
    return found.end(), found[0]


def value_at(state: object, path: Path) -> object:
    """What lies at a path, or MISSING."""
    for part in path:
        if isinstance(state, Mapping):
            if part not in state:
                return MISSING
            state = state[part]
        elif isinstance(state, list | tuple | set | frozenset) and isinstance(part, int):
            if not 0 <= part < len(state):
                return MISSING
            state = _ordered(state)[part]
        else:
            return MISSING
    return state


# --- what a value is ---------------------------------------------------------------------------------------------


def children(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(_ordered(value))
    return ()


def _ordered(value: list[object] | tuple[object, ...] | Set[object]) -> list[object] | tuple[object, ...]:
    return members(value) if isinstance(value, Set) else value


def members(value: Set[object]) -> list[object]:
    """In the order in which the store writes them, which is the same every time."""
    return sorted(value, key=encode)


def kind_of(value: object) -> str:
    for kind, word in _KINDS:
        if isinstance(value, kind):
            return word
    return type(value).__name__


_KINDS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "text"),
    (Mapping, "dict"),
    (list, "list"),
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "set"),
    (bytes, "bytes"),
    (datetime, "datetime"),
    (date, "date"),
    (Decimal, "decimal"),
    (UUID, "uuid"),
    (type(None), "null"),
    (Missing, "nothing"),
)
"""Order matters: a bool is also an int, a datetime also a date."""


def size_of(value: object) -> int | None:
    """How many keys, items, characters or bytes; None for what has no size."""
    if isinstance(value, Mapping | list | tuple | set | frozenset | str | bytes):
        return len(value)
    return None


def is_container(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple | set | frozenset)


def text_of(value: object) -> str:
    """A value in full, on one line: texts in quotes, so that "1" is not taken for 1. Not yet safe for a screen."""
    writer = _WRITERS.get(kind_of(value))
    return repr(value) if writer is None else writer(value)


def _container_text(value: object) -> str:
    opening, closing = _BRACKETS[kind_of(value)]
    named = isinstance(value, Mapping)
    parts = (f"{json.dumps(key)}: {text_of(child)}" if named else text_of(child) for key, child in children(value))
    return opening + ", ".join(parts) + closing


def _integer(value: object) -> str:
    assert isinstance(value, int)  # noqa: S101 - for mypy: the table below is by kind
    return str(value) if value.bit_length() <= _DIGITS else hex(value)


_BRACKETS: Final = {"dict": ("{", "}"), "list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}")}

_WRITERS: Final[dict[str, Callable[[object], str]]] = {
    "null": lambda value: "null",
    "nothing": lambda value: "nothing",
    "bool": lambda value: "true" if value else "false",
    "int": _integer,
    "float": repr,
    "text": lambda value: json.dumps(value, ensure_ascii=False),
    "bytes": lambda value: "0x" + value.hex() if isinstance(value, bytes) else repr(value),
    "datetime": lambda value: value.isoformat() if isinstance(value, date) else repr(value),
    "date": lambda value: value.isoformat() if isinstance(value, date) else repr(value),
    "decimal": str,
    "uuid": str,
    "dict": _container_text,
    "list": _container_text,
    "tuple": _container_text,
    "set": _container_text,
}


def brief(value: object, width: int = 60) -> str:
    """A value in about this many characters, safe for a screen. What is left out is counted, not dotted."""
    if is_container(value):
        count = size_of(value) or 0
        opening, closing = _BRACKETS[kind_of(value)]
        return opening + (many(count, "key" if isinstance(value, Mapping) else "item") if count else "") + closing
    if isinstance(value, str | bytes) and len(value) > width:
        unit = "character" if isinstance(value, str) else "byte"
        return f"{safe(text_of(value[:width]))} +{many(len(value) - width, unit)}"
    text = text_of(value)
    if len(text) > width and not isinstance(value, str | bytes):  # an integer with thousands of digits
        return f"{safe(text[:width])} +{many(len(text) - width, 'character')}"
    return safe(text)


# --- lines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One value of a state. All texts are safe for a screen."""

    path: Path
    key: str
    kind: str
    size: int | None
    value: str
    depth: int
    is_container: bool
    is_open: bool


class Tree:
    """A state as a list of lines, of which only those in open containers exist. A list's `Source`, by path.

    Lines are made when they are looked at: opening a list of 50,000 only notes where they are.
    """

    def __init__(self, state: object, opened: Set[Path] = frozenset({()})) -> None:
        self.state = state
        self.opened = frozenset(opened)
        self._nodes: list[tuple[Path, object]] = []
        self._indexes: dict[str, int] | None = None
        self._flatten()

    @property
    def count(self) -> int:
        return len(self._nodes)

    def row(self, index: int) -> Line | None:
        path, value = self._nodes[index]
        has_children = is_container(value) and bool(size_of(value))
        return Line(
            path=path,
            key=label(path),
            kind=kind_of(value),
            size=size_of(value),
            value=brief(value),
            depth=len(path),
            is_container=has_children,
            is_open=has_children and path in self.opened,
        )

    def key(self, index: int) -> str | None:
        return format_path(self._nodes[index][0])

    def index_of(self, key: str) -> int | None:
        if self._indexes is None:
            self._indexes = {format_path(path): index for index, (path, _) in enumerate(self._nodes)}
        return self._indexes.get(key)

    def with_open(self, path: Path, is_open: bool = True) -> Tree:
        """The same state with one container opened or closed. What was open inside of it is so again next time."""
        return Tree(self.state, self.opened | {path} if is_open else self.opened - {path})

    def reveal(self, path: Path) -> Tree:
        """With everything open that a path goes through."""
        return Tree(self.state, self.opened | {path[:length] for length in range(len(path))})

    def _flatten(self) -> None:
        waiting: list[tuple[Path, object]] = [] if self.state is MISSING else [((), self.state)]
        while waiting:
            path, value = waiting.pop()
            self._nodes.append((path, value))
            if path in self.opened:
                waiting.extend(reversed([((*path, part), child) for part, child in children(value)]))


def label(path: Path) -> str:
    """The last part of a path, as it stands in front of its value."""
    if not path:
        return ROOT
    return _step(path[-1]).removeprefix(".")


def find(state: object, text: str) -> Iterator[Path]:
    """The paths of all values, open or not, of which the key, the path or the value holds a text in any case.

    A text with a dot or a bracket in it is looked for in paths, too, and found where the path first holds it.
    """
    wanted = text.casefold()
    in_paths = "." in text or "[" in text
    waiting: list[tuple[Path, object]] = [((), state)]
    while waiting:
        path, value = waiting.pop()
        if _holds(path, value, wanted) or (in_paths and _first_holds(path, wanted)):
            yield path
        if is_container(value):
            waiting.extend(reversed([((*path, part), child) for part, child in children(value)]))


def _holds(path: Path, value: object, wanted: str) -> bool:
    if path and wanted in str(path[-1]).casefold():
        return True
    if is_container(value):
        return False
    return wanted in (value if isinstance(value, str) else text_of(value)).casefold()


def _first_holds(path: Path, wanted: str) -> bool:
    return bool(path) and wanted in format_path(path).casefold() and wanted not in format_path(path[:-1]).casefold()
