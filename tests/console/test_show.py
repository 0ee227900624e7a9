"""What only a runtime makes, in people's words: breakers, undoing, other runs' outcomes, answers that came too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import walkback as wb
from tests.console.terminal import Command
from tests.support.people import open_store
from walkback_console.plain_words import FOREVER
from walkback_store import Store
from walkback_store.machine.store_wide import ProbeService

SOON = timedelta(milliseconds=10)
late = threading.Event()


class Refused(Exception):
    pass


@wb.tool(
    effect="write",
    service="bank",
    idempotent=True,
    breaker=wb.Breaker(failures=2, cooldown=timedelta(minutes=5)),
    retry=wb.Retry(attempts=3, base=SOON, cap=SOON),
)
def transfer(cents: int) -> None:
    raise OSError("connection reset")


@wb.tool(effect="write", identity="invoice for {order}", compensate="void")
def invoice(order: str) -> dict[str, str]:
    return {"id": f"inv-{order}"}


@wb.tool(effect="write")
def void(result: dict[str, str]) -> None:
    pass


@wb.tool(effect="write", compensate="unprint")
def print_label() -> None:
    pass


@wb.tool(effect="write")
def unprint() -> None:
    raise OSError("no paper")


@wb.tool(effect="write", definite=(Refused,))
def send_receipt() -> None:
    raise Refused("no such address")


def looked(op: wb.Op) -> wb.Evidence:
    return wb.absent() if op.attempt == 1 else wb.cannot_tell("the search is down")


@wb.tool(
    effect="write", timeout=0.3, verify=looked, settle=timedelta(0), definite=(Refused,),
    retry=wb.Retry(attempts=2, base=SOON, cap=SOON),
)  # fmt: skip
def pay(*, op: wb.Op) -> str:
    if op.attempt > 1:
        raise Refused("no funds")
    late.wait(30)
    return "paid at last"


@wb.agent
def banker(run: wb.Run) -> None:
    run.call(transfer, cents=5)


@wb.agent
def biller(run: wb.Run, order: str) -> None:
    run.call(invoice, order=order)


@wb.agent
def undoer(run: wb.Run) -> None:
    with run.transaction("billing"):
        run.call(invoice, order="9")
        run.call(send_receipt)


@wb.agent
def printer(run: wb.Run) -> None:
    with run.transaction("label"):
        run.call(print_label)
        run.call(send_receipt)


@wb.agent
def payer(run: wb.Run) -> None:
    run.call(pay)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[wb.App]:
    agents = [banker, biller, undoer, printer, payer]
    with wb.App(tmp_path / "walkback.db", agents=agents, tools=[void, unprint]) as app:
        yield app


def url(app: wb.App) -> str:
    return str(app.store.backend.path)  # type: ignore[attr-defined]


def words(text: str) -> str:
    return " ".join(text.split())


# --- breakers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def outage(app: wb.App) -> str:
    """A service failed twice, and its breaker is open for five minutes. One run waits for it, and one does too that has
    not called it yet."""
    for run_id in ("b1", "b2"):
        app.start(banker, run_id=run_id)
        app.run_until_idle(concurrency=1, wait=0)
    return url(app)


@pytest.mark.parametrize("args", [("inbox",), ("runs",), ("stats",), ("show", "b1"), ("show", "b2")], ids="-".join)
def test_an_open_breaker_is_on_every_list_with_when_it_is_tried_again(
    walkback: Command, outage: str, args: tuple[str, ...]
) -> None:
    said = words(walkback(*args, "--store", outage).out)
    assert "BREAKER OPEN service bank: transfer: OSError (" in said
    assert "; tried again in 4 min" in said
    assert "FROZEN" not in said


def test_json_has_until_when_a_breaker_is_open_and_who_tries_it(walkback: Command, outage: str) -> None:
    for command in ("inbox", "stats"):
        (freeze,) = walkback(command, "--store", outage, "--json").json["freezes"]
        assert (freeze["scope"], freeze["name"], freeze["probe"]) == ("service", "bank", None)
        assert freeze["until"] > freeze["since"]


def test_a_breaker_whose_time_is_up_says_who_tries_the_service(
    walkback: Command, outage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(outage) as store:
        (freeze,) = store.freezes()
        later = freeze["until"] + 1
        monkeypatch.setattr("walkback_console.cli.reading.now", lambda: later)
        assert "; the next call tries it again" in words(walkback("inbox", "--store", outage).out)
        monkeypatch.setattr("time.time_ns", lambda: later * 1000)
        store.do(
            ProbeService(actor="worker:w", service="bank", place="b1#1", until=later + 60_000_000)
        )  # fmt: skip
    assert "; b1 #1 is trying it now" in words(walkback("inbox", "--store", outage).out)


def test_a_key_that_is_remembered_for_ever_is_said_to_be(walkback: Command, outage: str) -> None:
    assert ", remembered there for ever; cannot verify" in words(walkback("show", "b1", "--store", outage).out)
    (call,) = walkback("show", "b1", "--store", outage, "--json").json["operations"]
    assert call["key_until"] == "9999-12-31T23:59:59.999999Z"
    assert FOREVER < 1 << 62


# --- undoing, and the outcomes of others -------------------------------------------------------------------------


def test_steps_that_undo_others_say_so_on_both_sides(walkback: Command, app: wb.App) -> None:
    app.start(undoer, run_id="u1")
    app.run_until_idle(wait=0)
    shown = walkback("show", "u1", "--store", url(app))
    assert "c1 WRITE void, undoes step 1 succeeded" in words(shown.out)
    assert "by step c1" in shown.out
    calls = walkback("show", "u1", "--store", url(app), "--json").json["operations"]
    assert [(call["step"], call["undoes"], call["undone_in"]) for call in calls] == [
        ("1", None, "c1"), ("2", None, None), ("c1", "1", None),
    ]  # fmt: skip


def test_what_could_not_be_undone_says_what_it_was_to_undo(walkback: Command, app: wb.App) -> None:
    app.start(printer, run_id="p1")
    app.run_until_idle(wait=0)
    said = words(walkback("show", "p1", "--store", url(app)).out)
    assert "c1 WRITE unprint, undoes step 1 unknown" in said
    assert "to be undone by step c1" in said
    assert "undoes step 1 contract key" in said
    assert "cannot verify attempt 1" in said  # and not: cannot be undone


def test_a_call_that_another_run_has_made_says_which(walkback: Command, app: wb.App) -> None:
    for run_id in ("i1", "i2"):
        app.start(biller, run_id=run_id, order="77")
        app.run_until_idle(wait=0)
    assert "not called: done by i1 #1" in words(walkback("show", "i2", "--store", url(app)).out)
    (call,) = walkback("show", "i2", "--store", url(app), "--json").json["operations"]
    assert call["refers_to"] == "i1#1"


# --- answers that come too late ----------------------------------------------------------------------------------


def wait_for_late_evidence(store: Store, run_id: str) -> None:
    until = time.monotonic() + 30
    while not any(event.kind == "late_evidence" for event in store.events(run_id)):
        assert time.monotonic() < until, "no late evidence"
        time.sleep(0.02)


def test_an_answer_that_came_too_late_is_shown_with_what_it_puts_in_doubt(walkback: Command, app: wb.App) -> None:
    late.clear()
    app.start(payer, run_id="l1")
    app.run_until_idle(wait=2)
    late.set()
    wait_for_late_evidence(app.store, "l1")
    said = words(walkback("show", "l1", "--store", url(app)).out)
    assert "too late attempt 1: acknowledged at " in said
    assert ", after it had been given up: paid at last" in said
    assert "verify not there at " in said
    assert "verdict retry in the end failed" in said
    assert "duplicate? suspected: it counts as failed, and it happened" in said
    (call,) = walkback("show", "l1", "--store", url(app), "--json").json["unsettled"]
    assert [(a["attempt"], a["answer"], a["output"]) for a in call["late"]] == [(1, "acknowledged", "paid at last")]
    assert "duplicate_suspected" in walkback("inbox", "--store", url(app)).out
