"""What happens to a decision when the world moves on first, when two decide, and when one may not decide at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.at_the_console import answer, console, go, see, text_of
from tests.console.incident import Incident, fill
from tests.console.pty_screen import PtyScreen
from walkback_console.actions import TABLE
from walkback_console.whoami import operator_of
from walkback_store import Store, open_store
from walkback_store.machine.operations import AppendLateEvidence
from walkback_store.machine.roles import GrantRole
from walkback_store.words import Role


@pytest.fixture
def incident(store_url: str, tmp_path: Path) -> Incident:
    return fill(store_url, tmp_path / "world")


@pytest.fixture
def store(incident: Incident) -> Iterator[Store]:
    with open_store(incident.url, create=False) as store:
        yield store


def test_what_changed_while_it_was_being_decided_is_refused_and_named(
    incident: Incident, store: Store, tmp_path: Path
) -> None:
    run_id, step = incident.mail
    with console(incident.url, tmp_path / "home") as screen:
        screen.press("f")
        see(screen, "it did not: fail: notify-4711#3", "Cancel")
        data = {"attempt": 1, "answer": "acknowledged", "output": "mail-1"}
        late = AppendLateEvidence(actor="worker:w2", run_id=run_id, step=step, data=data, duplicate_suspected=True)
        store.do(late)
        answer(screen, "it did not: fail", "nothing in the outbox")
        see(screen, "it did not: fail: REFUSED.", "changed since you looked")
    assert store.operation(run_id, step).operation["status"] == "unknown"


def test_of_two_people_at_two_consoles_one_wins_and_the_other_is_told_who(
    incident: Incident, store: Store, tmp_path: Path
) -> None:
    run_id, step = incident.approvals["short"]
    with console(incident.url, tmp_path / "one") as first, console(incident.url, tmp_path / "two") as second:
        for screen, key in ((first, "a"), (second, "d")):
            go(screen, f"{run_id}#{step}")
            screen.press(key)
            see(screen, "Cancel", f"{run_id}#{step}")
        answer(first, "approve", "it reads well")
        see(first, f"approve: recorded for {run_id}#{step}")
        answer(second, "refuse", "it does not")
        see(second, "refuse: REFUSED.", f"{operator_of(store)} decided it: it reads well")
    (approval,) = store.operation(run_id, step).approvals
    assert (approval["status"], approval["reason"]) == ("given", "it reads well")


def try_everything(screen: PtyScreen, incident: Incident, refusal: str) -> None:
    """Every key of an action that changes something, on the screens where it is one; none opens a dialog."""
    places = {"operation": incident.mail, "approval": incident.approvals["short"]}
    for where in ("inbox", "operation", "approval"):
        if where in places:
            go(screen, "#".join(places[where]))
        for action in TABLE:
            if action.mutates and where in action.on and action.id != "undo":
                screen.settle()
                screen.press(action.keys[0])
                see(screen, f"{action.label}: not now; {refusal}")
                assert "Cancel" not in text_of(screen), action.id


def test_read_only_takes_every_action_away(incident: Incident, store: Store, tmp_path: Path) -> None:
    before = len(store.people_since(0))
    with console(incident.url, tmp_path / "home", "--read-only") as screen:
        assert "READ-ONLY" in text_of(screen)
        assert "it happened" not in screen.display[-1]
        try_everything(screen, incident, "the console was opened with --read-only")
    assert len(store.people_since(0)) == before


def test_a_viewer_can_look_and_do_nothing(incident: Incident, store: Store, tmp_path: Path) -> None:
    me = operator_of(store)
    store.do(GrantRole(actor=me, person="operator:bob", role=Role.ADMIN, reason="takes over"))
    store.do(GrantRole(actor="operator:bob", person=me, role=Role.VIEWER, reason="on holiday"))
    before = len(store.people_since(0))
    with console(incident.url, tmp_path / "home") as screen:
        see(screen, "(viewer)")
        assert "it happened" not in screen.display[-1]
        try_everything(screen, incident, "it needs the role")
    assert len(store.people_since(0)) == before
