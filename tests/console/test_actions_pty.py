"""Every action that changes something, sent by keys through a pty to a real store, and carried out by a live worker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.console.at_the_console import answer, console, decide, go, see, text_of
from tests.console.incident import Incident, effects, fill, wait_until, worker
from tests.console.incident_app import make_app
from tests.console.pty_screen import PtyScreen
from walkback_console.actions import TABLE
from walkback_console.whoami import operator_of
from walkback_store import Store, open_store

Seen = Callable[[], object]
"""Whether it has been carried out."""


@dataclass(slots=True)
class Desk:
    """A console, the store behind it, and what was in the world before."""

    screen: PtyScreen
    store: Store
    incident: Incident

    def status(self, run_id: str) -> str:
        return str(self.store.run(run_id)["status"])

    def operation(self, run_id: str, step: str) -> dict[str, Any]:
        return self.store.operation(run_id, step).operation

    def happened(self, what: str, **about: object) -> int:
        """How often there was such an effect in the world."""
        found = effects(self.incident.world.folder, what)
        return sum(all(effect.get(name) == value for name, value in about.items()) for effect in found)

    def on(self, place: str, key: str, label: str, *typed: str, first: str | None = None) -> None:
        go(self.screen, place)
        decide(self.screen, key, label, place, *typed, first=first)
        self.screen.press("esc")

    def fate(self, name: str, n: int) -> str:
        return self.incident.fates(name)[n][0]


# --- one function for each action: it presses the keys, and says how to see that it was carried out ---------------


def verify(desk: Desk) -> Seen:
    run_id = desk.fate("happened", 0)
    desk.on(f"{run_id}#3", "v", "verify again")
    return lambda: desk.status(run_id) == "succeeded" and desk.operation(run_id, "3")["evidence"] == "happened"


def happened(desk: Desk) -> Seen:
    run_id, step = desk.incident.mail
    to = "order-4711@customers.example"
    desk.on(f"{run_id}#{step}", "h", "it happened", "they read it out", '"mail-1"', "asked them")
    return lambda: desk.status(run_id) == "succeeded" and desk.happened("mail", to=to) == 1


def fail(desk: Desk) -> Seen:
    run_id = desk.fate("cannot tell", 0)
    desk.on(f"{run_id}#3", "f", "it did not: fail", "not in the bank's list")
    return lambda: desk.status(run_id) == "failed" and not desk.happened("charge", order=run_id)


def retry(desk: Desk) -> Seen:
    run_id = desk.fate("absent", 0)
    desk.on(f"{run_id}#3", "r", "it did not: retry", "they are back")
    return lambda: desk.status(run_id) == "succeeded" and desk.happened("charge", order=run_id) == 1


def undo(desk: Desk) -> Seen:
    run_id = desk.fate("absent", 1)
    go(desk.screen, f"{run_id}#3")
    decide(desk.screen, "r", "it did not: retry", f"{run_id}#3", "they are back")
    see(desk.screen, "u takes it back")
    decide(desk.screen, "u", "take back", f"{run_id}#3")
    desk.screen.press("esc")
    return lambda: desk.status(run_id) == "needs_operator" and not desk.happened("charge", order=run_id)


def approve(desk: Desk) -> Seen:
    run_id, step = desk.incident.approvals["short"]
    desk.on(f"{run_id}#{step}", "a", "approve", "reads well")
    return lambda: desk.status(run_id) == "succeeded" and desk.happened("announcement") == 1


def refuse(desk: Desk) -> Seen:
    run_id, step = desk.incident.approvals["big"]
    desk.on(f"{run_id}#{step}", "d", "refuse", "too much")
    return lambda: desk.operation(run_id, step)["status"] == "denied" and desk.status(run_id) == "failed"


def compensate(desk: Desk) -> Seen:
    """A step, a transaction, all after a step, a run."""
    runs = desk.incident.decoys[1:5]
    for run_id, scope in zip(runs, ("", "transaction billing", "after 2", "run"), strict=True):
        desk.on(f"{run_id}#3", "c", "compensate", "the wrong price", first=scope or None)
    return lambda: all(
        desk.happened("refund", order=run_id) == 1 and desk.operation(run_id, "3")["status"] == "compensated"
        for run_id in runs
    )


def dismiss(desk: Desk) -> Seen:
    run_id, step = desk.incident.duplicate
    desk.on(f"{run_id}#{step}", "D", "no duplicate", "one line on the statement")
    return lambda: not desk.operation(run_id, step)["duplicate_suspected"]


def _in_runs(desk: Desk, run_id: str, key: str, label: str, *typed: str) -> None:
    screen = desk.screen
    screen.settle()
    screen.press(":")
    screen.type(f"runs {run_id}")
    screen.press("enter")
    screen.wait_for(lambda s: any(line.startswith("▌") and run_id in line for line in s.display))
    screen.settle()
    decide(screen, key, label, run_id, *typed)
    screen.press("esc")


def resume(desk: Desk) -> Seen:
    run_id = desk.incident.paused
    _in_runs(desk, run_id, "R", "resume", "they called back")
    wait_until(lambda: desk.status(run_id) == "waiting")
    make_app(desk.store).signal(run_id, "documents", "a passport")
    return lambda: desk.status(run_id) == "succeeded"


def pause(desk: Desk) -> Seen:
    run_id = desk.incident.waiting
    _in_runs(desk, run_id, "p", "pause", "wait for the lawyer")
    make_app(desk.store).signal(run_id, "documents", "a passport")
    return lambda: desk.status(run_id) == "paused"


def cancel(desk: Desk) -> Seen:
    run_id = desk.incident.diverged
    _in_runs(desk, run_id, "X", "cancel", "nobody needs it any more")
    return lambda: desk.status(run_id) == "cancelled"


def freeze(desk: Desk) -> Seen:
    """A run that comes to a call of the tool waits. The row under the cursor is gone by now; that is no matter."""
    desk.screen.settle()
    desk.screen.press("F")
    answer(desk.screen, "freeze: the store", "tool send_mail", "it mails everybody")
    see(desk.screen, "FROZEN: tool send_mail")
    make_app(desk.store).start("notify_customer", run_id="notify-frozen", order="order-5")
    wait_until(lambda: desk.store.run("notify-frozen")["waits_for"] == "freeze:send_mail")
    assert not desk.happened("mail", to="order-5@customers.example")
    return lambda: True


def unfreeze(desk: Desk) -> Seen:
    """And goes on when the freeze is lifted. After `freeze`."""
    desk.screen.settle()
    desk.screen.press(":")
    desk.screen.type("workers")
    desk.screen.press("enter")
    see(desk.screen, "▌ FREEZE ■ FROZEN: tool send_mail")
    desk.screen.press("U")
    answer(desk.screen, "unfreeze: ", "mended")
    see(desk.screen, "gone: FREEZE")
    desk.screen.press("esc")
    return lambda: desk.status("notify-frozen") == "succeeded" and desk.happened("mail", to="order-5@customers.example")


def note(desk: Desk) -> Seen:
    run_id = desk.fate("absent", 2)
    desk.on(f"{run_id}#3", "w", "note", "the bank opens at 9")

    def kept() -> bool:
        (event,) = [e for e in desk.store.events(run_id) if e.kind == "operator_action"]
        return (event.step, event.data["reason"]) == ("3", "the bank opens at 9")

    return kept


def own(desk: Desk) -> Seen:
    run_id = desk.fate("absent", 3)
    desk.on(f"{run_id}#3", "o", "take it")
    return lambda: f"operator:{desk.store.run(run_id)['owner']}" == operator_of(desk.store)


def handover(desk: Desk) -> Seen:
    run_id = desk.fate("absent", 4)
    desk.on(f"{run_id}#3", "O", "hand over", "bob", "call the bank at 9")
    return lambda: desk.store.run(run_id)["owner"] == "bob"


def _open_batch(desk: Desk) -> None:
    screen = desk.screen
    screen.settle()
    screen.press("/")
    screen.type("tool:charge_card status:unknown")
    screen.press("enter")
    screen.wait_for(lambda s: any(line.startswith("▌") and "others" in line for line in s.display))
    screen.settle()
    screen.press("enter")
    see(screen, "[all ")


def _tab_to(desk: Desk, name: str) -> None:
    """To the class of that name."""
    for _ in range(8):
        desk.screen.settle()
        line = next(line for line in desk.screen.display if "[" in line and re.search(r"\ball \d", line))
        if name in line.partition("[")[2].partition("]")[0]:
            return
        desk.screen.press("tab")
    raise AssertionError(f"there is no class {name}")


def verify_all(desk: Desk) -> Seen:
    """First of those about many: what it finds splits the rest into classes."""
    _open_batch(desk)
    count = int(text_of(desk.screen).partition("[all ")[2].partition("]")[0])
    desk.screen.press("v")
    answer(desk.screen, f"verify all: {count} operations", str(count))
    left = [run_id for run_id, _ in desk.incident.fates("happened")]
    wait_until(lambda: all(desk.status(run_id) == "succeeded" for run_id in left))
    see(desk.screen, f"{len(left)} happened")
    return lambda: True


def retry_all(desk: Desk) -> Seen:
    """The two that are marked, one after the other."""
    marked = _mark(desk, "absent", 2)
    desk.screen.press("r")
    answer(desk.screen, "they did not: retry: 2 operations", "2 the ledger lost them")
    see(desk.screen, "retry of 2 is open")
    return lambda: all(
        desk.status(run_id) == "succeeded" and desk.happened("charge", order=run_id) == 1 for run_id in marked
    )


def stop_batch(desk: Desk) -> Seen:
    marked = _mark(desk, "absent", 3, skip=2)
    desk.screen.press("r")
    answer(desk.screen, "they did not: retry: 3 operations", "3 the ledger lost them")
    see(desk.screen, "retry of 3 is open")
    desk.screen.press("K")
    answer(desk.screen, "stop the batch: ", "not those")
    see(desk.screen, "retry of 3 is stopped: not those")
    return lambda: all(
        desk.status(run_id) == "needs_operator" and not desk.happened("charge", order=run_id) for run_id in marked
    )


def fail_all(desk: Desk) -> Seen:
    left = [run_id for run_id, _ in desk.incident.fates("cannot tell")]
    _tab_to(desk, "cannot tell")
    desk.screen.press("f")
    answer(desk.screen, f"they did not: fail: {len(left)} operations", f"{len(left)} asked the bank")
    return lambda: all(desk.status(run_id) == "failed" for run_id in left)


def handover_all(desk: Desk) -> Seen:
    marked = _mark(desk, "absent", 2, skip=5)
    desk.screen.press("O")
    answer(desk.screen, "hand over: 2 operations", "carol", "2 see the ticket")
    return lambda: all(desk.store.run(run_id)["owner"] == "carol" for run_id in marked)


def _mark(desk: Desk, name: str, count: int, skip: int = 0) -> list[str]:
    """Some of a class, without the first: a batch has those."""
    screen = desk.screen
    _tab_to(desk, name)
    screen.wait_for(lambda s: not any("●" in line for line in s.display))
    screen.press("home", *["down"] * skip, *["space"] * count)
    screen.wait_for(lambda s: sum("●" in line for line in s.display) == count)
    return [line.split()[-1].partition("#")[0] for line in screen.display if "●" in line]


SINGLE = (
    retry, undo, approve, compensate, verify, happened, fail, refuse, dismiss, resume, pause, cancel, note, own,
    handover, freeze, unfreeze,
)  # fmt: skip
MANY = (verify_all, retry_all, stop_batch, handover_all, fail_all)


def test_every_action_that_changes_something_is_among_these() -> None:
    covered = [deed.__name__ for deed in (*SINGLE, *MANY)]
    assert sorted(covered) == sorted(action.id for action in TABLE if action.make is not None)


@pytest.fixture
def incident(store_url: str, tmp_path: Path) -> Incident:
    return fill(store_url, tmp_path / "world")


@pytest.fixture
def desk(incident: Incident, tmp_path: Path) -> Iterator[Desk]:
    """With a worker that lives."""
    with (
        worker(incident.url, incident.world.folder),
        open_store(incident.url, create=False) as store,
        console(incident.url, tmp_path / "home") as screen,
    ):
        yield Desk(screen, store, incident)


@pytest.mark.parametrize("deeds", [SINGLE, MANY], ids=["single", "many"])
def test_a_worker_carries_out_what_is_sent_by_keys(desk: Desk, deeds: tuple[Callable[[Desk], Seen], ...]) -> None:
    seen = {deed.__name__: deed(desk) for deed in deeds}
    for name, carried_out in seen.items():
        try:
            wait_until(carried_out)
        except AssertionError:
            pytest.fail(f"{name} was not carried out\n{desk.screen.text}")
    assert [name for name, carried_out in seen.items() if not carried_out()] == []  # and it has stayed so
    keys = Counter(effect["key"] for effect in effects(desk.incident.world.folder, "charge"))
    assert set(keys.values()) == {1}
