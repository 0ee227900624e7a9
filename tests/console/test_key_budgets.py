"""How many keys the things take that are done at 3 in the morning: cold, at 80 by 24, among decoys. Typing is free.

Each budget is for the row that the cursor is on when the console opens: what is most urgent. So each store is made such
that the trouble in question is that row, with the whole incident below it. What was done is looked up in the store.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.console.at_the_console import answer, console, see, text_of
from tests.console.incident import DECOYS, Incident, fill, phase, wait_until, worker
from tests.console.pty_screen import PtyScreen
from walkback_console.whoami import operator_of
from walkback_store import open_store
from walkback_store.machine.people import Approve, RecordHappened

BUDGET = {
    "what needs me": 0,
    "was this mail sent": 1,
    "verify again": 2,
    "it happened, with evidence": 6,
    "approve after seeing everything": 4,
    "forty verified and split": 3,
    "forty resolved": 9,
    "freeze a tool": 3,
    "who wrote this bad value": 7,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "world"


@pytest.fixture
def incident(store_url: str, folder: Path) -> Incident:
    """The mail that nobody can call back is under the cursor."""
    return fill(store_url, folder)


@pytest.fixture
def outage_first(incident: Incident) -> Incident:
    """Somebody has dealt with the mail already."""
    with open_store(incident.url) as store:
        run_id, step = incident.mail
        me, why = operator_of(store), "the customer has it"
        store.do(RecordHappened(actor=me, run_id=run_id, step=step, reason=why, evidence="a call", result="mail-1"))
    return incident


def spent(screen: PtyScreen, what: str) -> None:
    assert screen.keys_pressed <= BUDGET[what], f"{what} took {screen.keys_pressed} keys"


def test_what_needs_me_is_there_without_a_key(incident: Incident, tmp_path: Path) -> None:
    with console(incident.url, tmp_path / "home") as screen:
        said = text_of(screen)
        total = sum(incident.kinds.values())
        assert f"{total} need you: {incident.kinds['unknown']} unknown" in said
        assert len(incident.outage) + DECOYS >= 40
        rows = [line for line in screen.display if line.startswith("▌")]
        assert "unknown" in rows[0]
        assert "notify-4711 #3" in rows[1]
        for words in ("TimeoutError: smtp.customers.example", "cannot verify", "safest next", "40", "$50,007.80"):
            assert words in said
        spent(screen, "what needs me")


def test_whether_the_mail_was_sent_is_one_key_away(incident: Incident, tmp_path: Path) -> None:
    with console(incident.url, tmp_path / "home") as screen:
        screen.press("enter")
        see(screen, "attempted?")
        said = text_of(screen)
        for words in (
            "UNKNOWN: it may have happened, or not",
            "attempted? yes, once",
            "acknowledged? no",
            "proven? no",
        ):
            assert words in said
        spent(screen, "was this mail sent")


def test_verifying_again_the_row_under_the_cursor(outage_first: Incident, folder: Path, tmp_path: Path) -> None:
    url = outage_first.url
    with phase(url, 100) as (store, app):  # one charge, more than all those of the outage together
        app.start("bill_order", run_id="order-2000", order="order-2000", cents=9_000_000)
        app.run_until_idle(wait=0)
        digest = store.operation("order-2000", "3").approvals[-1]["digest"]
        store.do(Approve(actor=operator_of(store), run_id="order-2000", step="3", digest=digest, regret=0))
        outage_first.world.switch(payments_time_out=True, search_down=True)
    outage_first.world.switch(payments_time_out=False, search_down=False)
    with worker(url, folder), console(url, tmp_path / "home") as screen:
        assert [line for line in screen.display if line.startswith("▌")][1].rstrip().endswith("order-2000 #3")
        screen.press("v")
        see(screen, "verify again: recorded for order-2000#3")
        spent(screen, "verify again")
        with open_store(url) as store:
            wait_until(lambda: store.run("order-2000")["status"] == "succeeded")
            assert store.operation("order-2000", "3").operation["evidence"] == "happened"


def test_recording_that_it_happened_with_evidence_and_result(incident: Incident, tmp_path: Path) -> None:
    with console(incident.url, tmp_path / "home") as screen:
        screen.press("h")
        answer(
            screen, "it happened: notify-4711#3", "the customer reads it out", '"mail-77"', "asked them on the phone"
        )
        see(screen, "it happened: recorded for notify-4711#3")
        spent(screen, "it happened, with evidence")
    with open_store(incident.url) as store:
        run_id, step = incident.mail
        assert store.operation(run_id, step).operation["status"] == "succeeded"
        (event,) = [e for e in store.events(run_id) if e.kind == "operator_action"]
        assert (event.data["evidence"], event.data["result"]) == ("the customer reads it out", "mail-77")


def test_approving_after_everything_was_on_the_screen(store_url: str, folder: Path, tmp_path: Path) -> None:
    fill(store_url, folder)
    with phase(store_url, 0) as (_, app):  # it runs out in nine minutes
        name = "quarterly-rotation-of-the-signing-keys-of-all-integrations"
        app.start(name, run_id="rotation-eu", region="EU", carriers=10)
    with console(store_url, tmp_path / "home") as screen:
        screen.press("enter")
        see(screen, "read on, to approve")
        assert "carrier 9" not in screen.text
        screen.press("space")
        see(screen, "a approve")
        assert "carrier 9" in screen.text
        screen.press("a")
        answer(screen, "approve: rotation-eu#1", "in the calendar")
        see(screen, "approve: recorded for rotation-eu#1")
        spent(screen, "approve after seeing everything")
    with open_store(store_url) as store:
        (approval,) = store.operation("rotation-eu", "1").approvals
        assert (approval["status"], approval["decided_by"]) == ("given", operator_of(store))


def test_an_approval_cannot_be_given_before_all_of_it_was_shown(incident: Incident, tmp_path: Path) -> None:
    run_id, step = incident.approvals["long"]
    with console(incident.url, tmp_path / "home") as screen:
        screen.press("/")
        screen.type(run_id)
        screen.press("enter")
        screen.wait_for(lambda s: any(line.startswith("▌") and run_id in line for line in s.display))
        screen.press("a")  # not on the row, whatever the row is
        screen.settle()
        assert "Cancel" not in screen.text
        screen.press("enter")
        see(screen, "read on, to approve")
        screen.press("a")
        see(screen, "have not been shown")
        assert "Cancel" not in screen.text
    with open_store(incident.url) as store:
        assert store.operation(run_id, step).approvals[-1]["status"] == "asked"


def test_forty_unknowns_of_one_outage(outage_first: Incident, folder: Path, tmp_path: Path) -> None:
    incident = outage_first
    with worker(incident.url, folder), console(incident.url, tmp_path / "home") as screen:
        screen.press("enter")
        see(screen, "[all 40]")
        screen.press("v")
        answer(screen, "verify all: 40 operations", "40")
        see(screen, "9 absent 3 cannot tell 28 happened")
        spent(screen, "forty verified and split")
        screen.press("tab")
        see(screen, "[9 absent]")
        screen.press("r")
        answer(screen, "they did not: retry: 9 operations", "9 the outage swallowed them")
        see(screen, "they did not: retry: recorded")
        screen.press("tab")
        see(screen, "[3 cannot tell]")
        screen.press("f")
        answer(screen, "they did not: fail: 3 operations", "3 not in the bank's list")
        see(screen, "they did not: fail: recorded")
        spent(screen, "forty resolved")
        with open_store(incident.url) as store:
            runs = {fate: [r for r, _ in incident.fates(fate)] for fate in ("happened", "absent", "cannot tell")}

            def status(fate: str) -> Counter[str]:
                return Counter(store.run(run_id)["status"] for run_id in runs[fate])

            assert status("happened") == {"succeeded": 28}
            wait_until(lambda: status("cannot tell") == {"failed": 3})
            (batch,) = store.batches()
            _, members = store.batch(batch["batch_no"])
            assert {m["run_id"] for m in members} == set(runs["absent"])


def test_freezing_the_tool_under_the_cursor(incident: Incident, tmp_path: Path) -> None:
    with console(incident.url, tmp_path / "home") as screen:
        screen.press("F")
        answer(screen, "tool send_mail", "it mails everybody")
        see(screen, "FROZEN: tool send_mail")
        spent(screen, "freeze a tool")
    with open_store(incident.url) as store:
        frozen = [(f["scope"], f["name"], f["reason"]) for f in store.freezes() if f["until"] is None]
        assert frozen == [("tool", "send_mail", "it mails everybody")]


def test_who_wrote_the_bad_value(incident: Incident, tmp_path: Path) -> None:
    with console(incident.url, tmp_path / "home") as screen:
        screen.press(":")
        screen.type("runs status:failed")
        screen.press("enter")
        screen.wait_for(lambda s: any(line.startswith("▌") and "reconcile-" in line for line in s.display))
        screen.press("enter")
        see(screen, "the rate per euro is 0")
        screen.press("s")
        see(screen, "rates")
        screen.press("/")
        screen.type("per_euro")
        screen.press("enter")
        screen.wait_for(lambda s: any(line.startswith("▌") and "per_euro" in line for line in s.display))
        screen.press("b")
        see(screen, "rates.per_euro = 0.0 was written by step 2")
        spent(screen, "who wrote this bad value")
