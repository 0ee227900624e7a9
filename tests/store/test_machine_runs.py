"""Runs: every transition from every state, and what else each of them needs and leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.store import recipes
from tests.store.driver import ANN, DIGEST, MINUTE, SECOND, ask, call, intend, start, succeed, write
from tests.store.recipes import CASES, ELSEWHERE, STATES, WORKER, World, matrix, transitions
from walkback_store.errors import NotFound, PreconditionFailed, RunExists, RunPruned, StaleFence, StopRequested
from walkback_store.housekeeping import prune
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import EndCompensation, Intend, Settle, StartAttempt
from walkback_store.machine.people import (
    AddNote,
    Approve,
    RecordAbsent,
    RequestCancel,
    RequestPause,
    ResumeRun,
    TakeBack,
)
from walkback_store.machine.runs import (
    ClaimRun,
    ConsumeSignal,
    DeclarePlan,
    FailRun,
    FinishRun,
    NeedOperator,
    ParkRun,
    RecordStep,
    ReleaseRun,
    SendSignal,
    StartRun,
    StopAtBoundary,
    TakeSnapshot,
)
from walkback_store.machine.store_wide import StopWorker
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.values import encode
from walkback_store.words import OperationStatus, RunStatus, Why


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


def test_there_is_an_example_of_every_transition_and_a_recipe_for_every_state() -> None:
    assert set(CASES) | ELSEWHERE == set(TRANSITIONS)
    for t in TRANSITIONS:
        if t not in ELSEWHERE:
            assert set(t.sources) <= set(STATES[t.subject]), t.__name__


@pytest.mark.parametrize(("transition", "state"), matrix("run"))
def test_a_run_goes_through_a_transition_from_exactly_its_sources(
    transition: type[Transition], state: str, world: World
) -> None:
    recipes.check(world, transition, state)


@pytest.mark.parametrize("transition", transitions("run", by=WORKER))
def test_a_worker_that_lost_the_run_changes_nothing(transition: type[Transition], world: World) -> None:
    recipes.check_stale_fence(world, transition)


@pytest.mark.parametrize("transition", transitions("run", by="operator"))
def test_a_decision_about_a_run_that_moved_on_is_refused_and_told_what_happened(
    transition: type[Transition], world: World
) -> None:
    recipes.check_stale_view(world, transition)


@pytest.mark.parametrize("transition", transitions("run"))
def test_an_id_that_was_used_for_something_else_is_a_conflict(transition: type[Transition], world: World) -> None:
    recipes.check_conflict(world, transition)


# --- starting ----------------------------------------------------------------------------------------------------


def test_the_same_id_with_the_same_input_is_the_same_run(world: World) -> None:
    run_id = world.run(value={"order": 1})
    before = world.everything_about(run_id)
    again = start(world.store, run_id, value={"order": 1})
    assert again.repeated
    assert world.everything_about(run_id) == before


@pytest.mark.parametrize("other", [{"value": {"order": 2}}, {"value": {"order": 1}, "agent": "b"}])
def test_the_same_id_for_other_work_is_refused(other: dict[str, Any], world: World) -> None:
    run_id = world.run(value={"order": 1})
    again = StartRun(actor=ANN, run_id=run_id, agent=other.get("agent", "a"), input=other["value"])
    recipes.check_refused(world, again, RunExists, match="agent 'a' with other input")


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\nb", "\x1b[31mred", "@store", "@", "a\u202eb", "nul\x00"])
def test_an_id_that_cannot_be_shown_or_is_the_stores_own_is_refused(bad: str, world: World) -> None:
    with pytest.raises(PreconditionFailed, match=r"cannot be a run id|cannot contain NUL"):
        start(world.store, bad)


def test_an_id_of_two_hundred_characters_of_any_script_is_fine(world: World) -> None:
    run_id = "ж" * 199 + str(world.clock.now % 10)
    start(world.store, run_id)
    assert world.store.run(run_id)["status"] == "running"


def test_a_pruned_id_is_never_used_again(world: World) -> None:
    scene = recipes.succeeded(world)
    world.clock.pass_(SECOND)
    prune(world.store, world.clock.now, ANN)
    again = StartRun(actor=ANN, run_id=scene.run_id, agent="a")
    recipes.check_refused(world, again, RunPruned)
    recipes.check_refused(world, AddNote(actor=ANN, run_id=scene.run_id, reason="x"), NotFound, match="was pruned")


def test_a_start_leaves_its_input_its_tags_and_the_first_snapshot(world: World) -> None:
    run_id = world.run(value={"order": 7}, tags=["red", "blue", "red"])
    run = world.store.run(run_id)
    assert (run["status"], run["tags"], run["snapshots"], run["last_snapshot"]) == ("running", '["blue","red"]', 1, 0)
    event = world.last_event(run_id)
    assert (event.seq, event.kind, event.actor, event.data["input"]) == (1, "run_started", ANN, {"order": 7})
    assert world.store.state(run_id, 0) == {"step": 0}


def test_a_fork_begins_with_its_parents_state(world: World) -> None:
    h = world.held()
    write(h, "1", after={"cart": ["a" * 500]})
    fork = world.name()
    start(world.store, fork, parent=h.run_id, fork_step="1", fork_kind="what-if", state=encode({"cart": ["a" * 500]}))
    run = world.store.run(fork)
    assert (run["parent"], run["fork_step"], run["fork_kind"]) == (h.run_id, "1", "what-if")
    assert world.store.state(fork, 0) == {"cart": ["a" * 500]}


# --- claiming ----------------------------------------------------------------------------------------------------


def claim_of(run_id: str, worker: str) -> ClaimRun:
    return ClaimRun(actor=f"worker:{worker}", run_id=run_id, worker=worker)


def test_a_run_held_by_a_living_worker_stays_with_it(world: World) -> None:
    h = world.held()
    recipes.check_refused(world, claim_of(h.run_id, world.worker()), PreconditionFailed, match="held by worker 'w'")


def test_a_run_of_a_lost_worker_is_taken_over_with_a_greater_fence_and_counted_as_a_crash(world: World) -> None:
    old = world.take(world.run(), world.worker())
    world.lose(old.worker)
    new = world.take(old.run_id)
    assert new.fence > old.fence
    assert (new.run["worker"], new.run["crashes"]) == ("w", 1)
    event = world.last_event(old.run_id)
    assert (event.kind, event.actor) == ("lease", "worker:w")
    assert event.data == {"worker": "w", "fence": new.fence, "taken_from": old.worker}


def test_a_run_of_a_worker_that_stopped_without_handing_it_back_can_be_taken_over(world: World) -> None:
    old = world.take(world.run(), world.worker())
    world.store.do(StopWorker(actor=f"worker:{old.worker}", worker=old.worker))
    assert world.take(old.run_id).fence > old.fence


def test_a_worker_that_never_registered_stopped_or_was_lost_claims_nothing(world: World) -> None:
    run_id = world.run()
    gone = [world.worker(), world.worker()]
    world.lose(gone[0])
    world.store.do(StopWorker(actor=f"worker:{gone[1]}", worker=gone[1]))
    for worker in ("never-registered", *gone):
        recipes.check_refused(world, claim_of(run_id, worker), StaleFence, match="register anew")


def test_a_released_run_is_held_by_nobody_and_its_crashes_are_forgotten(world: World) -> None:
    old = world.take(world.run(), world.worker())
    world.lose(old.worker)
    h = world.take(old.run_id)
    world.store.do(ReleaseRun(**h.by, state=encode({"n": 1})))
    run = world.store.run(h.run_id)
    assert (run["worker"], run["crashes"], run["last_snapshot"]) == (None, 0, 1)
    assert world.last_event(h.run_id).data["released"] == "w"


def test_a_waiting_run_is_claimed_when_it_is_due_and_not_before(world: World) -> None:
    h = world.held()
    world.store.do(ParkRun(**h.by, waits_for="time", wake_at=world.clock.now + MINUTE))
    recipes.check_refused(world, claim_of(h.run_id, "w"), PreconditionFailed, match="not due yet")
    world.clock.pass_(MINUTE)
    again = world.take(h.run_id)
    assert (again.run["status"], again.run["waits_for"], again.run["wake_at"]) == ("running", None, None)


def test_a_run_that_waits_without_an_end_is_not_claimed(world: World) -> None:
    h = world.held()
    world.store.do(ParkRun(**h.by, waits_for="signal:go"))
    world.clock.pass_(100 * MINUTE)
    recipes.check_refused(world, claim_of(h.run_id, "w"), PreconditionFailed, match="signal:go")


def test_a_run_that_waited_while_it_was_being_undone_goes_on_undoing(world: World) -> None:
    scene = recipes.compensating(world)
    world.store.do(ParkRun(**scene.by, waits_for="time", wake_at=world.clock.now))
    assert world.take(scene.run_id).run["status"] == "compensating"


def test_every_claim_of_a_run_has_a_greater_fence_and_the_epoch_is_its_upper_half(world: World) -> None:
    run_id = world.run()
    fences = []
    for _ in range(3):
        h = world.take(run_id)
        fences.append(h.fence)
        world.store.do(ReleaseRun(**h.by))
    (row,) = world.rows("store")
    assert fences == sorted(set(fences))
    assert {fence >> 32 for fence in fences} == {row["epoch"]}


# --- steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_kind", "kind"),
    [("observe", "observation"), ("decide", "decision"), ("policy", "policy_check"), ("step", "step")],
)
def test_a_step_is_recorded_as_what_it_is(step_kind: str, kind: str, world: World) -> None:
    h = world.held()
    data = {"rationale": "over 30 days old"}
    world.store.do(RecordStep(**h.by, step="1", step_kind=step_kind, name="how", data=data, state=encode({"n": 1})))
    event = world.last_event(h.run_id)
    assert (event.kind, event.step, event.data["rationale"]) == (kind, "1", "over 30 days old")
    (step,) = world.rows("steps", run_no=h.run["run_no"])
    assert (step["kind"], step["name"], step["status"], step["before"], step["after"]) == (
        *(step_kind, "how", "succeeded", 1, 1),
    )


def test_a_step_is_recorded_once(world: World) -> None:
    h = world.held()
    world.store.do(RecordStep(**h.by, step="1", name="look"))
    again = RecordStep(**h.by, step="1", name="look", state=encode({"never": 1}))
    recipes.check_refused(world, again, PreconditionFailed, match="recorded already")


def test_the_state_after_a_step_is_the_state_at_the_next_boundary(world: World) -> None:
    h = world.held()
    world.store.do(RecordStep(**h.by, step="1", name="one", state=encode({"n": 1})))
    world.store.do(RecordStep(**h.by, step="2", name="two", state=encode({"n": 2})))
    world.store.do(ParkRun(**h.by, waits_for="time", state=encode({"n": 3})))
    steps = world.rows("steps", run_no=h.run["run_no"])
    states = [tuple(world.store.state(h.run_id, s[side]) for side in ("before", "after")) for s in steps]
    assert states == [({"n": 1}, {"n": 2}), ({"n": 2}, {"n": 3})]


def test_a_state_that_did_not_change_is_not_stored_again(world: World) -> None:
    h = world.held()
    for i in range(3):
        world.store.do(RecordStep(**h.by, step=str(i), name="look", state=encode({"same": True})))
    assert h.run["snapshots"] == 2
    assert world.store.do(TakeSnapshot(**h.by, state=encode({"same": True}))).repeated


def test_branches_share_the_position_of_their_parent(world: World) -> None:
    h = world.held()
    for step in ("5", "6", "6.2", "6.1", "6.1.3"):
        world.store.do(RecordStep(**h.by, step=step, name="look"))
    assert (h.run["position"], h.run["steps"], h.run["last_step"]) == (6, 5, "6.1.3")


def test_a_plan_is_kept_on_the_run(world: World) -> None:
    h = world.held()
    world.store.do(DeclarePlan(**h.by, steps=["read", "decide", "pay"]))
    assert h.run["plan"] == '["read","decide","pay"]'
    assert world.last_event(h.run_id).data == {"steps": ["read", "decide", "pay"]}


# --- signals -----------------------------------------------------------------------------------------------------


def signal(run_id: str, signal_id: str, name: str = "paid", **more: Any) -> SendSignal:
    return SendSignal(actor="system", run_id=run_id, signal_id=signal_id, name=name, **more)


def test_a_signal_that_comes_early_is_kept_until_a_step_takes_it(world: World) -> None:
    h = world.held()
    world.store.do(signal(h.run_id, "s1", payload={"cents": 5}))
    assert [s["signal_id"] for s in world.store.waiting_signals(h.run_id, "paid")] == ["s1"]
    world.store.do(ConsumeSignal(**h.by, signal_id="s1", step="1"))
    assert world.store.waiting_signals(h.run_id, "paid") == []
    (row,) = world.rows("signals", run_no=h.run["run_no"])
    assert row["consumed_by"] == "1"
    sent = [e for e in world.store.events(h.run_id) if e.data.get("id") == "s1"]
    assert sent[0].data["payload"] == {"cents": 5}
    assert world.last_event(h.run_id).data["signal_seq"] == sent[0].seq == row["seq"]


def test_a_signal_counts_once_however_often_it_comes(world: World) -> None:
    h = world.held()
    world.store.do(signal(h.run_id, "s1"))
    before = world.everything_about(h.run_id)
    assert world.store.do(signal(h.run_id, "s1")).repeated
    assert world.everything_about(h.run_id) == before


def test_a_signal_wakes_the_run_that_waits_for_its_name_and_no_other(world: World) -> None:
    h = world.held()
    world.store.do(ParkRun(**h.by, waits_for="signal:paid"))
    world.store.do(signal(h.run_id, "s1", name="shipped"))
    assert h.run["status"] == "waiting"
    world.store.do(signal(h.run_id, "s2"))
    assert (h.run["status"], h.run["waits_for"]) == ("running", None)


def test_signals_are_taken_in_any_order_and_each_by_one_step(world: World) -> None:
    h = world.held()
    for signal_id in ("first", "second"):
        world.store.do(signal(h.run_id, signal_id))
    world.store.do(ConsumeSignal(**h.by, signal_id="second", step="1"))
    again = ConsumeSignal(**h.by, signal_id="second", step="2")
    recipes.check_refused(world, again, PreconditionFailed, match="taken by step 1")
    world.store.do(ConsumeSignal(**h.by, signal_id="first", step="2"))
    recipes.check_refused(world, ConsumeSignal(**h.by, signal_id="third", step="3"), NotFound)


# --- needing a person --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", Why)
def test_a_run_that_needs_an_operator_says_why_since_when_and_where(why: Why, world: World) -> None:
    h = world.held()
    data = {"fields": ["total"]}
    world.store.do(NeedOperator(**h.by, why=why, detail="look at this", step="3", data=data, state=encode({"n": 9})))
    run = h.run
    assert (run["status"], run["why"], run["why_detail"], run["why_step"]) == (
        *("needs_operator", why, "look at this", "3"),
    )
    assert (run["why_since"], run["worker"], run["resume_to"]) == (world.clock.now, None, "running")
    event = world.last_event(h.run_id)
    assert (event.kind, event.step) == ("needs_operator", "3")
    assert (event.data["why"], event.data["detail"], event.data["fields"]) == (why, "look at this", ["total"])
    assert world.store.state(h.run_id, run["last_snapshot"]) == {"n": 9}


# --- ending ------------------------------------------------------------------------------------------------------

UNSETTLED = {"awaiting": recipes.awaiting, "pending": recipes.pending, "unknown": recipes.unknown}


@pytest.mark.parametrize("left", UNSETTLED)
@pytest.mark.parametrize("how", [FinishRun, FailRun])
def test_a_run_does_not_end_while_an_operation_is_in_the_air(
    how: type[FinishRun] | type[FailRun], left: str, world: World
) -> None:
    scene = UNSETTLED[left](world)
    failure: dict[str, Any] = {"error_class": "E", "message": "no"} if how is FailRun else {}
    ending = how(**scene.by, **failure)
    recipes.check_refused(world, ending, PreconditionFailed, match=f"1 {left}")


def test_a_finished_run_keeps_its_output_and_holds_no_worker(world: World) -> None:
    h = world.held()
    world.store.do(FinishRun(**h.by, output={"invoice": 7}, state=encode({"done": True})))
    run = h.run
    assert (run["status"], run["worker"], run["finished_at"]) == ("succeeded", None, world.clock.now)
    assert world.last_event(h.run_id).data["output"] == {"invoice": 7}
    assert world.store.state(h.run_id, run["last_snapshot"]) == {"done": True}


def test_a_failed_run_keeps_the_context_of_its_failure(world: World) -> None:
    h = world.held()
    context = {"step": "4", "tool": "pay", "input": {"cents": 5}}
    world.store.do(FailRun(**h.by, error_class="KeyError", message="no order", fingerprint="f1", data=context))
    run = h.run
    assert (run["status"], run["error_class"], run["fingerprint"]) == ("failed", "KeyError", "f1")
    data = world.last_event(h.run_id).data
    assert {k: data[k] for k in ("error_class", "message", "step", "tool", "input")} == {
        "error_class": "KeyError",
        "message": "no order",
        **context,
    }


# --- pausing and cancelling --------------------------------------------------------------------------------------


def pause(run_id: str) -> RequestPause:
    return RequestPause(actor=ANN, run_id=run_id, reason="let me look")


def cancel(run_id: str) -> RequestCancel:
    return RequestCancel(actor=ANN, run_id=run_id, reason="not needed")


REQUESTS = {"pause": (pause, "paused"), "cancel": (cancel, "cancelled")}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_held_run_is_stopped_by_its_worker_at_the_next_boundary_and_calls_nothing_new_before(
    what: str, world: World
) -> None:
    request, status = REQUESTS[what]
    h = world.held()
    intend(h, "1")
    world.store.do(request(h.run_id))
    assert (h.run["status"], h.run[f"{what}_requested"], h.run["worker"]) == ("running", 1, "w")
    assert world.last_event(h.run_id).data["action"] == what
    recipes.check_refused(world, StopAtBoundary(**h.by), PreconditionFailed, match="1 pending")
    new = Intend(**h.by, step="2", call=call("2"), worker="w")
    recipes.check_refused(world, new, StopRequested, match=what)
    succeed(h, "1")
    world.store.do(StopAtBoundary(**h.by, state=encode({"stopped": True})))
    run = h.run
    assert (run["status"], run["worker"], run["cancel_requested"], run["pause_requested"]) == (status, None, 0, 0)
    assert (run["finished_at"] is not None) == (what == "cancel")
    assert world.store.state(h.run_id, run["last_snapshot"]) == {"stopped": True}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_retry_of_what_is_under_way_is_not_new_so_no_operation_is_cut_in_half(what: str, world: World) -> None:
    scene = recipes.between_attempts(world)
    world.store.do(REQUESTS[what][0](scene.run_id))
    world.store.do(StartAttempt(**scene.by, step="1", worker="w"))


@pytest.mark.parametrize("what", REQUESTS)
def test_a_run_that_nobody_holds_is_stopped_at_once(what: str, world: World) -> None:
    request, status = REQUESTS[what]
    run_id = world.run()
    world.store.do(request(run_id))
    assert world.store.run(run_id)["status"] == status


def test_nobody_asked_so_nothing_stops(world: World) -> None:
    h = world.held()
    recipes.check_refused(world, StopAtBoundary(**h.by), PreconditionFailed, match="nobody asked")


def test_a_cancel_outranks_a_pause(world: World) -> None:
    h = world.held()
    world.store.do(pause(h.run_id))
    world.store.do(cancel(h.run_id))
    world.store.do(StopAtBoundary(**h.by))
    assert (h.run["status"], h.run["pause_requested"]) == ("cancelled", 0)


def test_a_run_with_an_unknown_can_pause_but_not_be_cancelled(world: World) -> None:
    scene = recipes.unknown(world)
    world.store.do(cancel(scene.run_id))
    recipes.check_refused(world, StopAtBoundary(**scene.by), PreconditionFailed, match="1 unknown")
    other = recipes.unknown(world)
    world.store.do(pause(other.run_id))
    world.store.do(StopAtBoundary(**other.by))
    assert world.store.run(other.run_id)["status"] == "paused"


def test_a_cancel_of_a_run_with_an_unknown_waits_until_a_person_has_resolved_it(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    world.store.do(cancel(scene.run_id))
    assert world.store.run(scene.run_id)["status"] == "needs_operator"
    world.store.do(RecordAbsent(actor=ANN, run_id=scene.run_id, step="1", reason="not there"))
    h = world.take(scene.run_id)
    world.store.do(StopAtBoundary(**h.by))
    assert h.run["status"] == "cancelled"


def test_a_pause_while_the_run_waits_takes_effect_at_once_and_it_runs_afterwards(world: World) -> None:
    scene = recipes.waiting(world)
    world.store.do(pause(scene.run_id))
    run = world.store.run(scene.run_id)
    assert (run["status"], run["waits_for"], run["wake_at"], run["resume_to"]) == ("paused", None, None, "running")
    world.store.do(ResumeRun(actor=ANN, run_id=scene.run_id, reason=""))
    run = world.store.run(scene.run_id)
    assert (run["status"], run["resume_to"], run["worker"]) == ("running", None, None)


def test_a_pause_while_the_run_waits_for_an_approval_takes_effect_at_once_and_the_approval_stays(world: World) -> None:
    scene = recipes.asked(world)
    world.store.do(pause(scene.run_id))
    assert world.store.run(scene.run_id)["status"] == "paused"
    world.store.do(Approve(actor=ANN, run_id=scene.run_id, step="1", digest=DIGEST, regret=0))
    assert world.store.run(scene.run_id)["status"] == "paused"
    world.store.do(ResumeRun(actor=ANN, run_id=scene.run_id, reason=""))
    intend(world.take(scene.run_id), "1", digest=DIGEST)


def test_a_pause_while_the_run_is_undone_goes_on_undoing_afterwards(world: World) -> None:
    scene = recipes.released_compensating(world)
    world.store.do(pause(scene.run_id))
    world.store.do(ResumeRun(actor=ANN, run_id=scene.run_id, reason=""))
    assert world.store.run(scene.run_id)["status"] == "compensating"


def test_a_paused_run_that_needed_an_operator_still_does_after_it(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    before = world.store.run(scene.run_id)
    world.store.do(pause(scene.run_id))
    paused = world.store.run(scene.run_id)
    assert (paused["status"], paused["why"]) == ("paused", "unknown")
    world.store.do(ResumeRun(actor=ANN, run_id=scene.run_id, reason=""))
    after = world.store.run(scene.run_id)
    for column in ("status", "why", "why_detail", "why_step", "why_since", "resume_to"):
        assert after[column] == before[column]
    world.store.do(RecordAbsent(actor=ANN, run_id=scene.run_id, step="1", reason="not there"))
    assert world.store.run(scene.run_id)["status"] == "running"


def test_a_cancel_while_the_run_waits_for_an_approval_withdraws_it_at_once(world: World) -> None:
    scene = recipes.asked(world)
    world.store.do(cancel(scene.run_id))
    run = world.store.run(scene.run_id)
    assert (run["status"], run["awaiting_operations"], run["waits_for"]) == ("cancelled", 0, None)
    (operation,) = world.rows("operations", run_no=run["run_no"])
    (approval,) = world.rows("approvals", run_no=run["run_no"])
    (step,) = world.rows("steps", run_no=run["run_no"])
    assert (operation["status"], approval["status"], step["status"]) == ("denied", "expired", "failed")
    assert "withdrawn" in operation["error"]
    assert "withdrawn" in approval["reason"]


def test_an_approval_that_was_given_is_withdrawn_by_a_cancel_and_its_decision_with_it(world: World) -> None:
    scene = recipes.given(world)
    world.store.do(cancel(scene.run_id))
    (run,) = world.rows("runs", run_id=scene.run_id)
    (decision,) = world.rows("decisions", run_no=run["run_no"])
    assert (run["status"], decision["status"], decision["ended_by"]) == ("cancelled", "expired", ANN)


def test_several_approvals_are_withdrawn_together(world: World) -> None:
    h = world.held()
    for step in ("6.1", "6.2", "6.3"):
        ask(h, step)
    world.store.do(Approve(actor=ANN, run_id=h.run_id, step="6.2", digest=DIGEST))
    world.store.do(cancel(h.run_id))
    world.store.do(StopAtBoundary(**h.by))
    assert h.run["status"] == "cancelled"
    no = h.run["run_no"]
    assert [o["status"] for o in world.rows("operations", run_no=no)] == ["denied"] * 3
    assert [a["status"] for a in world.rows("approvals", run_no=no)] == ["expired"] * 3


def test_a_cancel_of_a_waiting_run_with_something_pending_wakes_it_so_that_a_worker_can_end_it(world: World) -> None:
    scene = recipes.between_attempts(world)
    world.store.do(ParkRun(**scene.by, waits_for="time", wake_at=world.clock.now + MINUTE))
    world.store.do(cancel(scene.run_id))
    run = world.store.run(scene.run_id)
    assert (run["status"], run["cancel_requested"], run["wake_at"]) == ("running", 1, None)
    h = world.take(scene.run_id)
    world.store.do(Settle(**h.by, step="1", outcome=OperationStatus.FAILED))
    world.store.do(StopAtBoundary(**h.by))
    assert h.run["status"] == "cancelled"


@pytest.mark.parametrize("what", REQUESTS)
def test_while_a_decision_waits_it_has_to_be_taken_back_first(what: str, world: World) -> None:
    scene = recipes.decided(world)
    recipes.check_refused(world, REQUESTS[what][0](scene.run_id), PreconditionFailed, match="Take it back first")
    world.store.do(TakeBack(actor=ANN, run_id=scene.run_id, decision=scene.decision, reason="wait"))
    world.store.do(REQUESTS[what][0](scene.run_id))


def test_what_is_being_undone_is_undone_to_its_end_before_a_cancel_takes_effect(world: World) -> None:
    scene = recipes.compensating(world)
    world.store.do(cancel(scene.run_id))
    h = scene.h
    assert h is not None
    recipes.check_refused(world, StopAtBoundary(**h.by), PreconditionFailed, match="nobody asked")
    intend(h, "c1", tool="refund", compensates="1")
    succeed(h, "c1")
    world.store.do(EndCompensation(**h.by, outcome=RunStatus.RUNNING))
    world.store.do(StopAtBoundary(**h.by))
    assert h.run["status"] == "cancelled"
