"""A state as lines, and the paths that name its parts."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkback_console.safe_text import safe
from walkback_console.trees import (
    MISSING,
    Path,
    Tree,
    brief,
    children,
    find,
    format_path,
    is_container,
    kind_of,
    parse_path,
    text_of,
    value_at,
)

paths: st.SearchStrategy[Path] = st.lists(st.text() | st.integers(0, 10**9)).map(tuple)

STATE = {
    "order": {"items": [{"price": Decimal("1.50")}, {"price": 2}], "odd key": None, "tags": {"b", "a"}},
    "email": "ann@example.com",
}


@given(paths)
def test_a_path_survives_being_written_and_read(path: Path) -> None:
    written = format_path(path)
    assert parse_path(written) == path
    assert safe(written) == written


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ((), "$"),
        (("order", "items", 3, "price"), "order.items[3].price"),
        ((3, "größe"), "[3].größe"),
        (("odd key", "3", ""), '["odd key"]["3"][""]'),
        (("a.b", "\x1b", "\u3164"), '["a.b"]["\\u001b"]["\\u3164"]'),
    ],
)
def test_paths_are_written_as_people_would(path: Path, written: str) -> None:
    assert format_path(path) == written


@pytest.mark.parametrize(
    ("typed", "path"),
    [("", ()), ("$.a", ("a",)), ("$[0]", (0,)), ("order-id.x", ("order-id", "x")), (" a.b ", ("a", "b"))],
)
def test_what_people_type_is_understood(typed: str, path: Path) -> None:
    assert parse_path(typed) == path


@pytest.mark.parametrize("typed", ["a..b", "a.", "a.[0]", "a[", "a[x]", "a[-1]", 'a["x]', "a b", 'a["x"', "[]", "a]"])
def test_what_is_no_path_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="the path"):
        parse_path(typed)


def test_values_are_found_by_path() -> None:
    assert value_at(STATE, ("order", "items", 1, "price")) == 2
    assert value_at(STATE, ("order", "odd key")) is None
    assert value_at(STATE, ("order", "tags", 0)) == "a"
    assert value_at(STATE, ()) is STATE
    for path in (("nothing",), ("order", "items", 2), ("email", 0), ("order", "items", "0"), ("email", "x")):
        assert value_at(STATE, path) is MISSING


def shown(tree: Tree) -> list[str]:
    lines = [tree.row(n) for n in range(tree.count)]
    return [f"{'  ' * line.depth}{line.key} {line.kind} {line.value}" for line in lines if line is not None]


def test_only_what_is_open_has_lines() -> None:
    tree = Tree(STATE)
    assert shown(tree) == ["$ dict {2 keys}", "  order dict {3 keys}", '  email text "ann@example.com"']
    tree = tree.with_open(("order",)).with_open(("order", "tags"))
    assert shown(tree)[2:6] == [
        "    items list [2 items]",
        '    ["odd key"] null null',
        "    tags set {2 items}",
        '      [0] text "a"',
    ]
    assert tree.index_of("order.tags[0]") == 5
    assert tree.key(5) == "order.tags[0]"
    closed = tree.with_open(("order",), False)
    assert closed.count == 3
    assert shown(closed.with_open(("order",))) == shown(tree)
    revealed = Tree(STATE, frozenset()).reveal(("order", "items", 0, "price"))
    assert revealed.index_of("order.items[0].price") is not None


def test_a_huge_list_is_opened_without_making_its_lines() -> None:
    tree = Tree({"many": list(range(100_000))}).with_open(("many",))
    assert tree.count == 100_002
    line = tree.row(100_001)
    assert line is not None
    assert (line.key, line.value) == ("[99999]", "99999")


def test_finding_looks_at_keys_values_and_paths_whether_open_or_not() -> None:
    assert [format_path(p) for p in find(STATE, "PRICE")] == ["order.items[0].price", "order.items[1].price"]
    assert [format_path(p) for p in find(STATE, "1.5")] == ["order.items[0].price"]
    assert [format_path(p) for p in find(STATE, "example")] == ["email"]
    assert [format_path(p) for p in find(STATE, "items[1]")] == ["order.items[1]"]
    assert list(find(STATE, "nowhere")) == []


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "null", "null"),
        (True, "bool", "true"),
        (1, "int", "1"),
        (1.0, "float", "1.0"),
        ("1", "text", '"1"'),
        (2**4000, "int", hex(2**4000)),
        (b"\x00\xff", "bytes", "0x00ff"),
        (date(2026, 1, 2), "date", "2026-01-02"),
        (datetime(2026, 1, 2, tzinfo=UTC), "datetime", "2026-01-02T00:00:00+00:00"),
        (Decimal("1.50"), "decimal", "1.50"),
        (UUID(int=1), "uuid", "00000000-0000-0000-0000-000000000001"),
        ((1, "a"), "tuple", '(1, "a")'),
        ({"k": [None]}, "dict", '{"k": [null]}'),
        (frozenset({2, 1}), "set", "{1, 2}"),
    ],
)
def test_every_kind_of_value_has_a_word_and_a_text(value: object, kind: str, text: str) -> None:
    assert kind_of(value) == kind
    assert text_of(value) == text
    assert is_container(value) == bool(list(children(value)))


def test_a_long_text_says_how_much_of_it_is_not_shown() -> None:
    assert brief("x" * 100, 10) == '"xxxxxxxxxx" +90 characters'
    assert brief(b"\x00" * 11, 10) == "0x00000000000000000000 +1 byte"
    assert brief("a\x1b[2J\u202e") == '"a\\u001b[2J<U+202E>"'
    assert brief({}) == "{}"
