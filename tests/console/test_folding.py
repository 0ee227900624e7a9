"""Long texts on a narrow screen: nothing is lost without being counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from walkback_console.folding import fit, fit_text, fold, fold_pieces, word_diff
from walkback_console.safe_text import safe


@given(st.text(), st.integers(24, 60))
def test_a_folded_text_is_complete_and_fits(text: str, width: int) -> None:
    lines, left = fold(text, width, 10**6)
    assert left == 0
    assert all(cell_len(line) <= width for line in lines)
    assert all(safe(line) == line for line in lines)


def test_a_text_is_folded_where_it_breaks_itself_and_the_rest_is_counted() -> None:
    assert fold("one\n\ntwo three", 5, 10) == (["one", "", "two t", "hree"], 0)
    assert fold("one\n" + "x" * 100, 10, 3) == (["one", "x" * 10, "x" * 10], 80)
    assert fold({"a": [1, 2]}, 8, 10) == (['{"a": [1', ", 2]}"], 0)
    assert fold("x", 8, 10) == (['"x"'], 0)


@given(st.text() | st.integers() | st.binary(), st.integers(40, 80))
def test_what_is_made_to_fit_does(value: object, width: int) -> None:
    assert cell_len(fit(value, width)) <= width


def test_what_is_left_out_is_counted() -> None:
    assert fit("short", 40) == '"short"'
    assert fit("x" * 1000, 40) == '"' + "x" * 22 + '" +978 characters'
    assert fit_text("k" * 100, 40) == "k" * 24 + " +76 characters"


def test_words_that_changed_are_marked_by_more_than_colour() -> None:
    pieces = word_diff("pay ten dollars to Ann today", "pay fifty dollars to Ann today")
    assert pieces == [("same", "pay "), ("old", "ten"), ("new", "fifty"), ("same", " dollars to Ann today")]
    assert ["".join(text for _, text in line) for line in fold_pieces(pieces, 24)] == [
        "pay [-ten-]{+fifty+} ",
        "dollars to Ann today",
    ]
    assert word_diff("one two three", "something else entirely") is None
    assert word_diff("a" * 30_000, "a" * 30_001) is None


@given(st.text(), st.text())
def test_marked_words_fit_and_hold_both_texts(old: str, new: str) -> None:
    pieces = word_diff(old, new)
    if pieces is not None:
        assert "".join(text for tag, text in pieces if tag != "new") == old
        assert "".join(text for tag, text in pieces if tag != "old") == new
        for line in fold_pieces(pieces, 24):
            shown = "".join(text for _, text in line)
            assert cell_len(shown) <= 24
            assert safe(shown) == shown
