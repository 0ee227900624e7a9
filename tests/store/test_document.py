"""The document and the code say the same."""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path

import walkback_store
from walkback_store.machine import operations, people, roles, runs, store_wide
from walkback_store.machine.base import NONE, UNCHANGED, Transition
from walkback_store.machine.document import document, moves_of
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.words import (
    ApprovalStatus,
    BatchStatus,
    DecisionStatus,
    OperationStatus,
    Role,
    RunStatus,
    WorkerStatus,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_the_state_machine_document_is_what_the_code_says() -> None:
    assert (DOCS / "state-machine.md").read_text() == document(), "run `make docs`"


def test_every_transition_in_the_code_is_in_the_table() -> None:
    concrete = {
        c
        for module in (runs, operations, people, store_wide, roles)
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Transition) and not inspect.isabstract(c) and c.__module__ == module.__name__
    }
    assert concrete == set(TRANSITIONS)


def test_every_status_can_be_reached_and_is_a_word_of_the_vocabulary() -> None:
    vocabulary: dict[str, type[StrEnum]] = {
        "run": RunStatus,
        "operation": OperationStatus,
        "approval": ApprovalStatus,
        "decision": DecisionStatus,
        "worker": WorkerStatus,
        "batch": BatchStatus,
        "role": Role,
    }
    for subject, words in vocabulary.items():
        moves = [move for t in TRANSITIONS for move in moves_of(t, subject)]
        targets = {str(target) for _, target in moves} - {UNCHANGED}
        sources = {str(source) for source, _ in moves} - {NONE}
        assert targets == set(map(str, words))
        assert sources <= targets


def test_the_public_surface_fits_on_a_screen() -> None:
    assert walkback_store.__all__ == ["Committed", "Store", "open_store"]
