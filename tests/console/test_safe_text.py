"""Text from the store reaches a terminal as marks that can be seen, never as something that it obeys."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkback_console.safe_text import safe

OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


@given(st.text(alphabet=st.characters()))
def test_nothing_a_terminal_obeys_or_hides_is_left(text: str) -> None:
    assert {unicodedata.category(c) for c in safe(text)}.isdisjoint(OBEYED)


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S"), exclude_characters="\u115f\u1160\u3164\uffa0")))
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert safe(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "␛[2J"),
        ("a\nb\tc\r", "a␊b␉c␍"),
        ("\x00\x7f", "␀␡"),
        ("\x9b31m", "<U+009B>31m"),
        ("\x85", "<U+0085>"),
        ("pay \u202e00.1$", "pay <U+202E>00.1$"),
        ("a\u200bb\ufeff", "a<U+200B>b<U+FEFF>"),
        ("\u2028\u2029", "<U+2028><U+2029>"),
        ("\ud800", "<U+D800>"),
        ("\u3164", "<U+3164>"),
        ("\U000e0041", "<U+E0041>"),
        ("a\U000e0100", "a<U+E0100>"),
        ("Zürich 東京 ✔️ é", "Zürich 東京 ✔️ é"),
        ("[/x][@click=app.quit]", "[/x][@click=app.quit]"),
    ],
)
def test_each_kind_of_hostile_character_has_its_mark(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_every_single_character_is_harmless_after_it() -> None:
    for code in range(0x110000):
        shown = safe(chr(code))
        assert shown, hex(code)
        assert all(unicodedata.category(c) not in OBEYED for c in shown), hex(code)
