"""All that a run has done, as whoever takes it up reads it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.store.driver import (
    ANN,
    DIGEST,
    Held,
    ask,
    call,
    finish,
    held,
    intend,
    lose_track,
    open_with_clock,
    park_unknown,
    write,
)
from tests.support.people import open_store
from walkback_store import history
from walkback_store.errors import NotFound
from walkback_store.frames import unpack_body
from walkback_store.history import KINDS, History
from walkback_store.machine.operations import EndAttempt, Intend, Settle, StartAttempt
from walkback_store.machine.people import Approve, DecideRetry
from walkback_store.machine.runs import ConsumeSignal, DeclarePlan, RecordStep, SendSignal
from walkback_store.store import Store
from walkback_store.values import encode
from walkback_store.words import Answer, Evidence, OperationStatus


def eventful(h: Held) -> None:
    store = h.store
    store.do(DeclarePlan(**h.by, steps=["look", "pay"]))
    store.do(RecordStep(**h.by, step="1", name="look", step_kind="observe", data={"seen": (1, 2)}))
    write(h, "2", before={"n": 1}, after={"n": 2})
    for signal in ("s1", "s2", "s3"):
        store.do(SendSignal(actor="system", run_id=h.run_id, signal_id=signal, name="go", payload=signal))
    store.do(ConsumeSignal(**h.by, signal_id="s2", step="3"))
    intend(h, "4")
    store.do(EndAttempt(**h.by, step="4", answer=Answer.AMBIGUOUS))
    store.do(StartAttempt(**h.by, step="4", worker=h.worker))
    ask(h, "5")
    store.do(Approve(actor=ANN, run_id=h.run_id, step="5", digest=DIGEST))


def test_a_history_is_what_the_other_queries_say(store_url: str) -> None:
    store, _ = open_with_clock(store_url)
    with store:
        h = held(store)
        eventful(h)
        found = store.history("r1")
        assert found.run == store.run("r1")
        assert found.steps == store.timeline("r1")
        assert [step["step"] for step in found.steps] == ["1", "2", "3", "4", "5"]
        assert found.steps[0]["operation_status"] is None
        detail = store.operation("r1", "4")
        assert found.attempts == {"4": detail.attempts}
        assert [attempt["n"] for attempt in found.attempts["4"]] == [1, 2]
        assert found.approvals == {"5": store.operation("r1", "5").approvals}
        assert [(d["action"], d["step"]) for d in found.decisions] == [("approve", "5")]
        assert [s["signal_id"] for s in found.signals] == ["s1", "s3"]
        check_events(store, found)


def check_events(store: Store, found: History) -> None:
    wanted: dict[str | None, list[Any]] = {}
    for event in store.events(found.run["run_id"], limit=1000):
        if event.kind in KINDS:
            wanted.setdefault(event.step, []).append(event)
    assert found.events.keys() == wanted.keys()
    for step, events in wanted.items():
        same = [(e.seq, e.at, e.kind, e.actor, e.step, e.data) for e in events]
        assert [(e.seq, e.at, e.kind, e.actor, e.step, e.data) for e in found.events[step]] == same


def test_a_decision_that_waits_is_part_of_it(store_url: str) -> None:
    store, _ = open_with_clock(store_url)
    with store:
        h = held(store)
        park_unknown(h, "1")
        seq = store.do(DecideRetry(actor=ANN, run_id="r1", step="1", reason="try again")).seq
        found = store.history("r1")
        assert [d["seq"] for d in found.decisions] == [seq]
        assert [a["status"] for a in found.attempts["1"]] == ["ended"]
        check_events(store, found)


def test_a_body_is_unpacked_once_and_only_when_it_is_looked_at(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(store_url) as store:
        h = held(store)
        write(h, "1", args={"big": "x" * 10_000})
        unpacked = []

        def counted(body: bytes) -> bytes:
            unpacked.append(1)
            return unpack_body(body)

        monkeypatch.setattr(history, "unpack_body", counted)
        intent, *_ = store.history("r1").events["1"]
        assert unpacked == []
        assert intent.data["args"] == intent.data["args"] == {"big": "x" * 10_000}
        assert unpacked == [1]
        assert "intent" in repr(intent)


def test_a_run_that_is_not_there_has_no_history(store_url: str) -> None:
    with open_store(store_url) as store, pytest.raises(NotFound):
        store.history("r1")


def test_a_history_takes_the_time_it_needs(store_url: str) -> None:
    """Nobody waits in front of a screen for it."""
    with open_store(store_url) as store:
        h = held(store)
        write(h, "1")
        lose_track(h, "2")
        store.time_limit = 0.0
        assert len(store.history("r1").steps) == 2


def test_a_thousand_writes_are_read_at_once(store_url: str) -> None:
    """More than any page; and however slow the machine, nowhere near as slow as a row at a time would be."""
    with open_store(store_url) as store:
        h = held(store)
        for i in range(1, 1001):
            step = str(i)
            of_step = {**h.by, "step": step}
            both = [
                Intend(**of_step, call=call(step), worker=h.worker, state=encode({"i": i})),
                Settle(
                    **of_step, outcome=OperationStatus.SUCCEEDED, answer=Answer.ACKNOWLEDGED, output=i, result=i,
                    evidence=Evidence.HAPPENED,
                ),
            ]  # fmt: skip
            for result in store.commit(both):
                assert not isinstance(result, Exception)
        finish(h)
        store.history("r1")
        began = time.perf_counter()
        found = store.history("r1")
        took = time.perf_counter() - began
        assert len(found.steps) == 1000
        assert [e.kind for e in found.events["1000"]] == ["intent", "tool_result", "outcome"]
        assert took < 1.0
