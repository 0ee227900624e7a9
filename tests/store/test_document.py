"""The document and the code say the same."""

from __future__ import annotations

import inspect
from pathlib import Path

import walkback_store
from walkback_store.machine import TRANSITIONS, operations, people, runs, store_wide
from walkback_store.machine.base import NONE, Transition
from walkback_store.machine.document import document
from walkback_store.words import ApprovalStatus, OperationStatus, RunStatus

DOCS = Path(__file__).parents[2] / "docs"


def test_the_state_machine_document_is_what_the_code_says() -> None:
    assert (DOCS / "state-machine.md").read_text() == document(), "run `make docs`"


def test_every_transition_in_the_code_is_in_the_table() -> None:
    concrete = {
        c
        for module in (runs, operations, people, store_wide)
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Transition) and not inspect.isabstract(c) and c.__module__ == module.__name__
    }
    assert concrete == set(TRANSITIONS)


def test_every_status_can_be_reached_and_is_a_word_of_the_vocabulary() -> None:
    for subject, words in (("run", RunStatus), ("operation", OperationStatus), ("approval", ApprovalStatus)):
        of_subject = [t for t in TRANSITIONS if t.subject == subject]
        targets = {str(target) for t in of_subject for target in t.targets} - {"unchanged"}
        sources = {str(source) for t in of_subject for source in t.sources} - {NONE}
        reached_elsewhere = {"compensated", "consumed"}  # by the transition of something else, in its own table
        assert set(map(str, words)) - reached_elsewhere <= targets
        assert targets | sources <= set(map(str, words))


def test_the_public_surface_fits_on_a_screen() -> None:
    assert walkback_store.__all__ == ["Committed", "Store", "open_store"]
