"""An event's body has one form, however it was written, and folding the same body twice changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkback_store.errors import CorruptData, ValueRefused
from walkback_store.log import encode_body, fold, parse_key, row_key, storable
from walkback_store.schema import STORE_LOG
from walkback_store.values import decode, encode
from walkback_store.words import RunStatus

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
changes_of_rows = st.dictionaries(
    st.text(), st.dictionaries(st.text() | st.just("$"), st.dictionaries(st.text(), scalars))
)


@given(changes_of_rows)
def test_the_quick_way_to_write_a_body_gives_the_canonical_bytes(changes: dict[str, dict[str, dict[str, Any]]]) -> None:
    body = encode_body({"said": 1}, changes)
    assert body == encode({"data": {"said": 1}, "set": changes})
    assert decode(body) == {"data": {"said": 1}, "set": changes}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", object()])
def test_a_column_that_json_cannot_hold_is_refused_with_its_path(value: object) -> None:
    with pytest.raises(ValueRefused, match=r"\$\.operations"):
        encode_body({}, {"operations": {"6": {"stake_value": value}}})


def test_a_nul_in_a_column_becomes_a_visible_mark_and_the_facts_keep_it() -> None:
    changes = {"runs": {"": {"why_detail": "a\x00b", "fence": 1}}}
    assert storable(changes) == {"runs": {"": {"why_detail": "a\u2400b", "fence": 1}}}
    unharmed = {"runs": {"": {"why_detail": "ab"}}}
    assert storable(unharmed) is unharmed


def test_a_column_holds_the_text_of_an_enum() -> None:
    changes: dict[str, dict[str, dict[str, Any]]] = {
        "runs": {"": {"status": RunStatus.RUNNING, "fence": 1}},
        "steps": {"6": {"after": 1}},
    }
    stored = storable(changes)
    assert stored == changes
    assert type(stored["runs"][""]["status"]) is str


@pytest.mark.parametrize("step", ["6", "6.1", "c6", "a/b", "/", ""])
def test_a_row_is_found_by_its_key_whatever_the_step_is_called(step: str) -> None:
    assert parse_key("attempts", row_key("attempts", step, 12)) == (step, 12)


def test_a_key_of_another_shape_is_not_interpreted() -> None:
    with pytest.raises(CorruptData):
        parse_key("attempts", "6")


class Rows:
    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], dict[str, Any]] = {}

    def change(self, table: str, run_no: int, key: str, changes: Any) -> None:
        self.seen.setdefault((table, key), {}).update(changes)


def test_folding_keeps_the_head_and_what_was_touched() -> None:
    rows = Rows()
    fold(rows, 1, 7, 99, b"h" * 32, {"operations": {"6": {"status": "pending"}}, "runs": {"": {"status": "running"}}})
    assert rows.seen["operations", "6"] == {"status": "pending", "touched": 7}
    assert rows.seen["runs", ""] == {
        "status": "running",
        "status_seq": 7,
        "updated_at": 99,
        "head_seq": 7,
        "head_hash": b"h" * 32,
    }


@pytest.mark.parametrize("changes", [{"sqlite_master": {"": {"sql": ""}}}, {"runs": {"": {"no_such_column": 1}}}])
def test_an_event_that_names_what_is_no_projection_is_not_folded(changes: Any) -> None:
    with pytest.raises(CorruptData):
        fold(Rows(), STORE_LOG, 1, 1, b"", changes)
