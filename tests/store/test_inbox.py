"""What needs a person: which things do, as how many rows, and in what order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.store.driver import (
    ANN,
    BEGINNING,
    DIGEST,
    MINUTE,
    SECOND,
    Clock,
    Held,
    ask,
    finish,
    intend,
    lose_track,
    open_with_clock,
    park_unknown,
    register,
    start,
    succeed,
    write,
)
from walkback_store.inbox import KINDS, OVERDUE_AFTER, SOON, STUCK_AFTER
from walkback_store.log import Row
from walkback_store.machine.operations import AppendLateEvidence, BeginCompensation, EndCompensation, Settle
from walkback_store.machine.people import (
    AddNote,
    Approve,
    DecideCompensate,
    DecideRetry,
    DismissDuplicate,
    ExpireApproval,
    RecordAbsent,
    RecordHappened,
    Refuse,
    RequestCancel,
    RequestPause,
    RequestVerify,
    ResumeRun,
    TakeBack,
)
from walkback_store.machine.runs import NeedOperator, ParkRun, ReleaseRun, StartRun
from walkback_store.machine.store_wide import LoseWorker, RegisterWorker, StopWorker
from walkback_store.paging import COUNT_LIMIT
from walkback_store.store import Store
from walkback_store.words import Answer, OperationStatus, RunStatus, Why

HOUR = 60 * MINUTE


@pytest.fixture
def opened(store_url: str) -> Iterator[tuple[Store, Clock]]:
    store, clock = open_with_clock(store_url)
    register(store)
    with store:
        yield store, clock


def work_on(store: Store, run_id: str, *, agent: str = "a", worker: str = "w") -> Held:
    start(store, run_id, agent=agent)
    (claimed,) = store.claim(worker, {agent: ["1"]})
    assert claimed.run is not None
    assert claimed.run["run_id"] == run_id
    return Held(store, run_id, worker, claimed.run["fence"])


def parked(store: Store, run_id: str, why: Why, **call: Any) -> Held:
    """A run that waits for a person because of its last step, which has succeeded."""
    held = work_on(store, run_id)
    write(held, "1", **call)
    store.do(NeedOperator(**held.by, why=why, detail=f"because {why}", step="1"))
    return held


def of(rows: list[Row], *names: str) -> list[Any]:
    return [row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for row in rows]


# --- what is there, and what is not ------------------------------------------------------------------------------


def test_nothing_needs_a_person_while_everything_runs(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    write(held, "1")
    start(store, "waits for a worker")
    assert store.inbox(clock.now) == []
    assert store.inbox_counts(clock.now) == {}


@pytest.mark.parametrize("why", sorted(set(Why) - {Why.UNKNOWN}))
def test_a_parked_run_is_an_item_of_its_reason(opened: tuple[Store, Clock], why: Why) -> None:
    store, clock = opened
    parked(store, "r", why, tool="pay", tool_version="2", description="pay Ann", stake="$5.00", stake_value=5.0)
    (row,) = store.inbox(clock.now)
    assert (row["kind"], row["why"], row["n"], row["run_id"], row["step"]) == (why, why, 1, "r", "1")
    assert (row["tool"], row["tool_version"], row["description"]) == ("pay", "2", "pay Ann")
    assert (row["stake"], row["stake_value"], row["detail"]) == ("$5.00", 5.0, f"because {why}")
    assert row["since"] == row["until"] == clock.now


def test_every_unknown_operation_of_a_parked_run_is_an_item(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    for step in ("6.1", "6.2", "6.3"):
        lose_track(held, step)
    assert store.inbox(clock.now) == []  # the run still goes on
    store.do(NeedOperator(**held.by, why=Why.UNKNOWN, detail="no answer", step="6.2"))
    (row,) = store.inbox(clock.now)
    assert (row["kind"], row["n"], row["step"]) == ("unknown", 3, "6.1")
    assert of(store.inbox_members(row, clock.now).rows, "step") == ["6.1", "6.2", "6.3"]


def test_an_answered_unknown_is_gone_and_the_others_stay(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    for step in ("1", "2"):
        lose_track(held, step)
    store.do(NeedOperator(**held.by, why=Why.UNKNOWN, detail="no answer", step="1"))
    store.do(RecordAbsent(actor=ANN, run_id="r", step="1", reason="looked it up"))
    assert of(store.inbox(clock.now), "kind", "step", "n") == [("unknown", "2", 1)]
    store.do(RecordHappened(actor=ANN, run_id="r", step="2", reason="looked it up", evidence="receipt 7"))
    assert store.inbox(clock.now) == []


def test_an_unknown_in_a_run_parked_for_something_else_is_seen_too(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    lose_track(held, "1")
    write(held, "2", tool="mail")
    store.do(NeedOperator(**held.by, why=Why.DRIFT, detail="a field is missing", step="2"))
    assert of(store.inbox(clock.now), "kind", "step") == [("unknown", "1"), ("drift", "2")]


def test_one_operation_is_one_item_even_if_two_things_are_wrong_with_it(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    lose_track(held, "1")
    store.do(AppendLateEvidence(actor="worker:old", run_id="r", step="1", data={}, duplicate_suspected=True))
    store.do(NeedOperator(**held.by, why=Why.BUDGET_SPENT, detail="tried five times", step="1"))
    assert of(store.inbox(clock.now), "kind", "n") == [("budget_spent", 1)]
    assert {kind: count.n for kind, count in store.inbox_counts(clock.now).items()} == {"budget_spent": 1}


def test_an_unknown_that_is_also_a_suspected_duplicate_is_one_item(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r"), "1")
    store.do(AppendLateEvidence(actor="worker:old", run_id="r", step="1", data={}, duplicate_suspected=True))
    assert of(store.inbox(clock.now), "kind", "n") == [("unknown", 1)]


def test_a_run_that_says_unknown_without_naming_an_operation_is_an_item(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    store.do(NeedOperator(**held.by, why=Why.UNKNOWN, detail="who knows"))
    assert of(store.inbox(clock.now), "kind", "step", "detail") == [("unknown", None, "who knows")]


@pytest.mark.parametrize("status", ["running", "succeeded", "parked"])
def test_a_suspected_duplicate_is_seen_whatever_became_of_the_run(opened: tuple[Store, Clock], status: str) -> None:
    store, clock = opened
    held = work_on(store, "r")
    write(held, "1")
    if status == "succeeded":
        finish(held)
    elif status == "parked":
        write(held, "2")
        store.do(NeedOperator(**held.by, why=Why.REVIEW, detail="please", step="2"))
    assert "duplicate_suspected" not in of(store.inbox(clock.now), "kind")
    store.do(AppendLateEvidence(actor="worker:old", run_id="r", step="1", data={}, duplicate_suspected=True))
    assert ("duplicate_suspected", "1", 1) in of(store.inbox(clock.now), "kind", "step", "n")
    store.do(DismissDuplicate(actor=ANN, run_id="r", step="1", reason="one charge only"))
    assert "duplicate_suspected" not in of(store.inbox(clock.now), "kind")


def test_a_suspected_duplicate_in_a_run_with_other_unknowns_is_seen(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    lose_track(held, "1")
    lose_track(held, "2")
    store.do(NeedOperator(**held.by, why=Why.UNKNOWN, detail="no answer", step="1"))
    store.do(RecordHappened(actor=ANN, run_id="r", step="1", reason="seen", evidence="receipt 7"))
    store.do(AppendLateEvidence(actor="worker:old", run_id="r", step="1", data={}, duplicate_suspected=True))
    assert sorted(of(store.inbox(clock.now), "kind", "step")) == [("duplicate_suspected", "1"), ("unknown", "2")]


# --- what somebody has decided about -----------------------------------------------------------------------------


def test_a_run_that_waits_for_a_decision_to_be_carried_out_needs_nobody(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r"), "1")
    decided = store.do(DecideRetry(actor=ANN, run_id="r", step="1", reason="try again"))
    assert store.inbox(clock.now) == []
    store.do(TakeBack(actor=ANN, run_id="r", decision=decided.seq, reason="no"))
    assert of(store.inbox(clock.now), "kind", "step") == [("unknown", "1")]


def test_a_duplicate_that_is_about_to_be_compensated_needs_nobody(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    write(held, "1", compensate="refund")
    finish(held)
    store.do(AppendLateEvidence(actor="worker:old", run_id="r", step="1", data={}, duplicate_suspected=True))
    decided = store.do(DecideCompensate(actor=ANN, run_id="r", scope="operation", steps=["1"], reason="twice"))
    assert store.inbox(clock.now) == []
    store.do(TakeBack(actor=ANN, run_id="r", decision=decided.seq, reason="no"))
    assert of(store.inbox(clock.now), "kind") == ["duplicate_suspected"]


def test_a_decision_that_no_worker_carries_out_is_stuck(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r"), "1")
    store.do(DecideRetry(actor=ANN, run_id="r", step="1", reason="try again"))
    store.do(StopWorker(actor="worker:w", worker="w"))
    clock.pass_(10 * SECOND + STUCK_AFTER)
    assert of(store.inbox(clock.now), "kind", "why", "detail") == [("stuck", "no_worker", "a 1")]


def test_verify_again_takes_an_unknown_out_until_it_is_unknown_again(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r"), "1", can_verify=True)
    store.do(RequestVerify(actor=ANN, run_id="r", step="1"))
    assert store.inbox(clock.now) == []
    (claimed,) = store.claim("w", {"a": ["1"]})
    assert claimed.run is not None
    again = Held(store, "r", "w", claimed.run["fence"])
    store.do(Settle(**again.by, step="1", outcome=OperationStatus.UNKNOWN, error_class="Timeout"))
    store.do(NeedOperator(**again.by, why=Why.UNKNOWN, detail="still", step="1"))
    assert of(store.inbox(clock.now), "kind", "detail") == [("unknown", "still")]


def test_a_paused_run_does_not_ask_for_anything(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r"), "1")
    store.do(RequestPause(actor=ANN, run_id="r", reason="later"))
    assert store.run("r")["status"] == RunStatus.PAUSED
    assert store.inbox(clock.now) == []
    store.do(ResumeRun(actor=ANN, run_id="r", reason="now"))
    assert of(store.inbox(clock.now), "kind") == ["unknown"]


# --- approvals ---------------------------------------------------------------------------------------------------


def test_an_approval_is_asked_for_whether_or_not_the_run_waits_already(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    ask(held, "1", tool="pay", description="pay Ann", stake="$900", stake_value=900.0)
    before = store.inbox(clock.now)
    store.do(ParkRun(**held.by, waits_for="approval:1"))
    (row,) = store.inbox(clock.now)
    assert before == [row]
    assert (row["kind"], row["why"], row["tool"], row["error_class"]) == ("approval", "big payments", "pay", None)
    assert (row["run_id"], row["step"], row["stake"], row["deadline"]) == ("r", "1", "$900", None)


@pytest.mark.parametrize("answer", ["approve", "refuse", "cancel", "expire"])
def test_an_answered_approval_is_gone(opened: tuple[Store, Clock], answer: str) -> None:
    store, clock = opened
    ask(work_on(store, "r"), "1", park=True, expires_at=clock.now + HOUR)
    assert of(store.inbox(clock.now), "kind") == ["approval"]
    if answer == "approve":
        given = store.do(Approve(actor=ANN, run_id="r", step="1", digest=DIGEST))
    elif answer == "refuse":
        store.do(Refuse(actor=ANN, run_id="r", step="1", reason="too much"))
    elif answer == "cancel":
        store.do(RequestCancel(actor=ANN, run_id="r", reason="not needed"))
    else:
        clock.pass_(HOUR)
        store.do(ExpireApproval(actor="system", run_id="r", step="1"))
    assert store.inbox(clock.now) == []
    if answer == "approve":
        store.do(TakeBack(actor=ANN, run_id="r", decision=given.seq, reason="no"))
        assert of(store.inbox(clock.now), "kind") == ["approval"]


def test_an_approval_that_can_no_longer_be_given_is_not_asked_for(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    ask(work_on(store, "r"), "1", park=True, expires_at=clock.now + HOUR)
    clock.pass_(HOUR)
    assert store.inbox(clock.now) == []
    assert store.inbox_counts(clock.now) == {}


def test_an_approval_that_nobody_expires_is_stuck(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    ask(work_on(store, "r"), "1", park=True, expires_at=clock.now + HOUR, tool="pay")
    clock.pass_(HOUR + STUCK_AFTER)
    assert of(store.inbox(clock.now), "kind", "why", "tool", "step") == [("stuck", "approval_lapsed", "pay", "1")]


def test_a_run_that_its_expired_approval_wakes_is_stuck_only_once(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    ask(held, "1", expires_at=clock.now + HOUR)
    store.do(ParkRun(**held.by, waits_for="approval:1", wake_at=clock.now + HOUR))
    clock.pass_(HOUR + OVERDUE_AFTER)
    assert of(store.inbox(clock.now), "kind", "why", "n") == [("stuck", "overdue", 1)]


# --- stuck -------------------------------------------------------------------------------------------------------


def with_version(store: Store, run_id: str, version: str) -> None:
    store.do(StartRun(actor=ANN, run_id=run_id, agent="a", version=version))


def test_no_worker_for_a_version_is_one_row(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    with_version(store, "r1", "3")
    clock.pass_(HOUR)
    with_version(store, "r2", "3")
    clock.pass_(STUCK_AFTER - 1)
    assert of(store.inbox(clock.now), "n") == [1]
    clock.pass_(1)
    (row,) = store.inbox(clock.now)
    assert (row["kind"], row["why"], row["n"], row["detail"]) == ("stuck", "no_worker", 2, "a 3")
    assert (row["run_id"], row["agent"], row["agent_version"]) == ("r1", "a", "3")
    assert of(store.inbox_members(row, clock.now).rows, "run_id") == ["r1", "r2"]


def test_versions_without_a_worker_are_rows_of_their_own(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for run_id, version in (("r1", "3"), ("r2", "4"), ("r3", "3")):
        with_version(store, run_id, version)
    clock.pass_(STUCK_AFTER)
    assert of(store.inbox(clock.now), "detail", "n") == [("a 3", 2), ("a 4", 1)]


def test_a_run_in_the_queue_of_a_live_worker_is_not_stuck(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    start(store, "r")
    clock.pass_(OVERDUE_AFTER - 1)
    assert store.inbox(clock.now) == []


def test_a_run_that_no_live_worker_takes_for_long_is_overdue(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    start(store, "r")
    clock.pass_(OVERDUE_AFTER)
    assert of(store.inbox(clock.now), "kind", "why", "detail") == [("stuck", "overdue", "a 1")]
    assert store.claim("w", {"a": ["1"]})
    assert store.inbox(clock.now) == []


def test_a_worker_of_the_right_version_makes_runs_unstuck(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    with_version(store, "r", "3")
    clock.pass_(STUCK_AFTER)
    assert of(store.inbox(clock.now), "why") == ["no_worker"]
    store.do(
        RegisterWorker(
            actor="worker:new", worker="new", host="h", boot_id="b", pid=1, process_started="1", lease=MINUTE,
            agents={"a": ["2", "3"]},
        )
    )  # fmt: skip
    assert store.inbox(clock.now) == []


def test_a_waiting_run_is_stuck_when_its_time_is_long_past(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    store.do(ParkRun(**held.by, waits_for="time", wake_at=clock.now + HOUR))
    clock.pass_(HOUR + OVERDUE_AFTER - 1)
    assert store.inbox(clock.now) == []
    clock.pass_(1)
    assert of(store.inbox(clock.now), "why", "since") == [("overdue", BEGINNING + HOUR)]


def test_a_waiting_run_without_a_worker_is_stuck_a_minute_after_its_time(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    store.do(ParkRun(**held.by, waits_for="time", wake_at=clock.now + HOUR))
    store.do(StopWorker(actor="worker:w", worker="w"))
    clock.pass_(HOUR + STUCK_AFTER - 1)
    assert store.inbox(clock.now) == []
    clock.pass_(1)
    assert of(store.inbox(clock.now), "why", "detail") == [("no_worker", "a 1")]


def test_a_run_that_waits_for_a_signal_is_not_stuck(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    store.do(ParkRun(**held.by, waits_for="signal:go"))
    clock.pass_(1000 * HOUR)
    assert store.inbox(clock.now) == []


@pytest.mark.parametrize("how", ["lost", "stopped"])
def test_what_a_dead_worker_holds_is_one_row(opened: tuple[Store, Clock], how: str) -> None:
    store, clock = opened
    for run_id in ("r1", "r2"):
        write(work_on(store, run_id), "1")
    if how == "lost":
        store.do(LoseWorker(actor="system", worker="w", beat=0, reason="dead"))
    else:
        store.do(StopWorker(actor="worker:w", worker="w"))
    clock.pass_(STUCK_AFTER - 1)
    assert store.inbox(clock.now) == []
    clock.pass_(1)
    (row,) = store.inbox(clock.now)
    assert (row["kind"], row["why"], row["n"], row["detail"]) == ("stuck", "worker_lost", 2, "w")
    register(store, "next")
    assert len(store.claim("next", {"a": ["1"]}, 2)) == 2
    assert store.inbox(clock.now) == []


def test_a_released_run_waits_from_when_it_was_released(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = work_on(store, "r")
    clock.pass_(10 * HOUR)
    store.do(ReleaseRun(**held.by))
    assert store.inbox(clock.now) == []


# --- grouping ----------------------------------------------------------------------------------------------------


def test_alike_items_within_fifteen_minutes_are_one_row(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for n in range(3):
        park_unknown(work_on(store, f"r{n}"), "1")
        clock.pass_(15 * MINUTE)
    (row,) = store.inbox(clock.now)
    assert (row["n"], row["since"], row["until"]) == (3, BEGINNING, BEGINNING + 30 * MINUTE)


def test_alike_items_more_than_fifteen_minutes_apart_are_two_rows(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for n in range(2):
        park_unknown(work_on(store, f"r{n}"), "1")
        clock.pass_(15 * MINUTE + 1)
    assert of(store.inbox(clock.now), "run_id", "n") == [("r0", 1), ("r1", 1)]


@pytest.mark.parametrize(
    "other",
    [{"tool": "mail"}, {"tool_version": "2"}, {"compensate": "undo"}],
    ids=["tool", "version", "undo"],
)
def test_unlike_items_are_rows_of_their_own(opened: tuple[Store, Clock], other: dict[str, str]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r1"), "1")
    park_unknown(work_on(store, "r2"), "1", **other)
    assert of(store.inbox(clock.now), "n") == [1, 1]


def test_other_error_classes_are_rows_of_their_own(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for run_id, error in (("r1", "Timeout"), ("r2", "Reset"), ("r3", None), ("r4", "Timeout")):
        held = work_on(store, run_id)
        intend(held, "1")
        store.do(Settle(**held.by, step="1", outcome=OperationStatus.UNKNOWN, answer=Answer.NONE, error_class=error))
        store.do(NeedOperator(**held.by, why=Why.UNKNOWN, detail="?", step="1"))
    assert sorted(of(store.inbox(clock.now), "n", "run_id")) == [(1, "r2"), (1, "r3"), (2, "r1")]


def test_names_that_run_together_are_not_alike(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r1"), "1", tool="pay1", tool_version="2")
    park_unknown(work_on(store, "r2"), "1", tool="pay", tool_version="12")
    assert of(store.inbox(clock.now), "n") == [1, 1]


def test_a_row_is_described_by_its_oldest_item_alone(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    items = (("z", "aaa first", "$1.00", "zoe"), ("a", "zzz second", "$9.00", None), ("m", "mmm third", "$5.00", "ann"))
    held = {run_id: work_on(store, run_id) for run_id in ("m", "a", "z")}  # the run that was started last parks first
    for run_id, description, stake, owner in items:
        park_unknown(held[run_id], "1", description=description, stake=stake, stake_value=float(stake[1:]))
        if owner is not None:
            store.do(AddNote(actor=ANN, run_id=run_id, reason="mine", owner=owner))
        clock.pass_(MINUTE)
    (row,) = store.inbox(clock.now)
    described = (row["run_id"], row["description"], row["stake"], row["owner"], row["n"], row["stake_value"])
    assert described == ("z", "aaa first", "$1.00", "zoe", 3, 15.0)


def test_the_sum_says_when_it_is_of_several_currencies(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for n, (tool, stake) in enumerate((("same", "$1.50"), ("same", "$2,000"), ("mixed", "$3"), ("mixed", "EUR 4"))):
        park_unknown(work_on(store, f"r{n}"), "1", tool=tool, stake=stake, stake_value=1.0)
    park_unknown(work_on(store, "r9"), "1", tool="none")
    rows = of(store.inbox(clock.now), "tool", "mixed_stakes", "stake_value")
    assert sorted(rows, key=str) == [("mixed", 1, 2.0), ("none", 0, None), ("same", 0, 2.0)]


# --- order -------------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_in_which_to_look_at_them(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    ask(work_on(store, "approval"), "1", expires_at=clock.now + 10 * HOUR, tool="later", stake_value=1e9)
    clock.pass_(HOUR)
    for why in (Why.REVIEW, Why.BUDGET_SPENT, Why.DRIFT, Why.DIVERGED):
        parked(store, str(why), why, stake_value=1e9)
    with_version(store, "stuck", "3")
    park_unknown(work_on(store, "unknown, can be undone"), "1", compensate="undo", stake_value=1e9)
    park_unknown(work_on(store, "unknown, cannot be undone"), "1", stake_value=1e6)
    held = work_on(store, "compensation")
    write(held, "1", compensate="undo")
    store.do(BeginCompensation(**held.by, scope="all", steps=["1"], cause="failure"))
    store.do(EndCompensation(**held.by, outcome=RunStatus.NEEDS_OPERATOR, detail="the refund was refused"))
    ask(work_on(store, "urgent"), "1", expires_at=clock.now + STUCK_AFTER + SOON, tool="now")
    clock.pass_(STUCK_AFTER)
    assert of(store.inbox(clock.now), "run_id") == [
        "urgent",
        "compensation",
        "unknown, cannot be undone",
        "unknown, can be undone",
        "diverged",
        "review",  # these three with the same stake and at the same time: as they were started
        "budget_spent",
        "drift",
        "stuck",
        "approval",
    ]


def test_of_equal_rank_the_higher_stake_comes_first_then_the_older(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    stakes = {"t1": 5.0, "t2": None, "t3": 50.0, "t4": 5.0, "t5": None}
    held = {tool: work_on(store, tool) for tool in reversed(stakes)}
    for tool, stake in stakes.items():
        park_unknown(held[tool], "1", tool=tool, stake_value=stake)
        clock.pass_(SECOND)
    assert of(store.inbox(clock.now), "tool") == ["t3", "t1", "t4", "t2", "t5"]


def test_the_order_is_total_so_that_pages_fit_together(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    held = [work_on(store, f"r{n:02}") for n in range(11)]
    for n in reversed(range(11)):
        park_unknown(held[n], "1", tool=f"t{n % 7}")
        clock.pass_(SECOND if n % 3 else 0)
    for n in range(5):
        ask(work_on(store, f"s{n}"), "1", tool=f"t{n}")
    whole = store.inbox(clock.now)
    assert len(whole) == 12
    for size in (1, 2, 5, 7):
        pages = [store.inbox(clock.now, limit=size, offset=at) for at in range(0, len(whole) + 3 * size, size)]
        assert [row for page in pages for row in page] == whole
    assert store.inbox(clock.now) == whole


def test_an_unknown_whose_key_runs_out_soon_has_a_deadline(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "keyed"), "1", compensate="undo", key_until=clock.now + HOUR)
    park_unknown(work_on(store, "no undo"), "1", tool="other")
    assert of(store.inbox(clock.now), "run_id", "deadline") == [("no undo", None), ("keyed", BEGINNING + HOUR)]
    clock.pass_(HOUR - SOON)
    assert of(store.inbox(clock.now), "run_id", "rank") == [("keyed", 0), ("no undo", 2)]
    clock.pass_(SOON)
    assert of(store.inbox(clock.now), "run_id", "deadline") == [("no undo", None), ("keyed", None)]


def test_items_with_a_near_deadline_are_a_row_of_their_own(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for n, left in enumerate((10 * MINUTE, 5 * MINUTE, HOUR, 2 * HOUR)):
        ask(work_on(store, f"r{n}"), "1", expires_at=clock.now + left)
    rows = store.inbox(clock.now)
    assert of(rows, "n", "deadline") == [(2, clock.now + 5 * MINUTE), (2, clock.now + HOUR)]
    assert of(store.inbox_members(rows[0], clock.now).rows, "run_id") == ["r0", "r1"]


# --- members and counts ------------------------------------------------------------------------------------------


def test_members_are_exactly_those_of_the_row(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for burst in range(3):
        for n in range(4):
            held = work_on(store, f"b{burst}-{n}")
            lose_track(held, "1.1")
            lose_track(held, "1.2")
            store.do(NeedOperator(**held.by, why=Why.UNKNOWN, detail="?", step="1.1"))
            if n % 2:
                clock.pass_(SECOND)  # so that some begin at the very same time
        park_unknown(work_on(store, f"other-{burst}"), "1", tool="mail")
        clock.pass_(HOUR)
    rows = store.inbox(clock.now)
    assert sorted(of(rows, "n")) == [1, 1, 1, 8, 8, 8]
    for row in rows:
        for size in (1, 3, 50):
            members: list[Row] = []
            after = None
            while True:
                page = store.inbox_members(row, clock.now, limit=size, after=after)
                members += page.rows
                if page.older is None:
                    break
                assert len(page.rows) == size
                after = page.older
            assert len(members) == row["n"]
            assert len({(m["run_id"], m["step"]) for m in members}) == row["n"]
            burst = row["run_id"].split("-")[0]
            assert all(m["run_id"].split("-")[0] == burst and m["tool"] == row["tool"] for m in members)
            assert (members[0]["run_id"], members[0]["step"]) == (row["run_id"], row["step"])
            assert of(members, "since") == sorted(of(members, "since"))


def test_members_of_a_row_that_is_gone_are_none(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    park_unknown(work_on(store, "r"), "1")
    (row,) = store.inbox(clock.now)
    store.do(RecordAbsent(actor=ANN, run_id="r", step="1", reason="looked"))
    page = store.inbox_members(row, clock.now)
    assert page.rows == []
    assert page.older is None


def test_the_members_of_every_row_are_as_many_as_it_says(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for why in sorted(set(Why) - {Why.UNKNOWN}):
        parked(store, str(why), why)
    park_unknown(work_on(store, "u"), "1")
    ask(work_on(store, "soon"), "1", expires_at=clock.now + 10 * MINUTE)
    ask(work_on(store, "later"), "1")
    with_version(store, "v3", "3")
    work_on(store, "held")
    store.do(StopWorker(actor="worker:w", worker="w"))
    start(store, "free")
    clock.pass_(STUCK_AFTER)
    rows = store.inbox(clock.now)
    for row in rows:
        assert len(store.inbox_members(row, clock.now).rows) == row["n"], row
    counts = store.inbox_counts(clock.now)
    assert {kind: count.n for kind, count in counts.items()} == {
        kind: sum(row["n"] for row in rows if row["kind"] == kind) for kind in KINDS
    }
    assert list(counts) == list(KINDS)


def test_counts_stop_at_ten_thousand(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for first in range(0, COUNT_LIMIT + 1, 1000):
        ids = range(first, min(first + 1000, COUNT_LIMIT + 1))
        store.commit([StartRun(actor=ANN, run_id=f"r{n}", agent="a", version="3") for n in ids])
    clock.pass_(STUCK_AFTER)
    (row,) = store.inbox(clock.now)
    assert row["n"] == COUNT_LIMIT + 1
    assert str(store.inbox_counts(clock.now)["stuck"]) == "10,000+"
    finish(succeeded(store))
    with_version(store, "one more", "4")
    assert str(store.inbox_counts(clock.now)["stuck"]) == "10,000+"


def succeeded(store: Store) -> Held:
    held = work_on(store, "fine")
    intend(held, "1")
    succeed(held, "1")
    return held
