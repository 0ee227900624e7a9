"""Moments in between: what arrives just before a run parks, and decisions that nobody has carried out yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store import recipes
from tests.store.driver import ANN, BOB, DIGEST, SECOND, Held, ask, call, finish, intend, lose_track, succeed, write
from tests.store.recipes import World
from walkback_store.engine import Committed
from walkback_store.errors import KeyConflict, PreconditionFailed, StopRequested, TransitionConflict
from walkback_store.machine import people, runs
from walkback_store.machine.operations import (
    AskApproval,
    BeginCompensation,
    EndAttempt,
    EndCompensation,
    Intend,
    RecordVerification,
    Settle,
)
from walkback_store.machine.store_wide import NotePrune, RegisterWorker
from walkback_store.words import Answer, Evidence, OperationStatus, RunStatus, Why


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


# --- parking -----------------------------------------------------------------------------------------------------


def test_a_run_that_parks_for_a_signal_that_has_come_is_due_at_once(world: World) -> None:
    h = world.held()
    world.store.do(runs.SendSignal(actor="system", run_id=h.run_id, signal_id="s1", name="go"))
    world.store.do(runs.ParkRun(**h.by, waits_for="signal:go"))
    world.take(h.run_id)


def test_a_signal_of_another_name_or_one_that_was_taken_wakes_nobody(world: World) -> None:
    h = world.held()
    for name in ("go", "stop"):
        world.store.do(runs.SendSignal(actor="system", run_id=h.run_id, signal_id=name, name=name))
    world.store.do(runs.ConsumeSignal(**h.by, signal_id="go", step="1"))
    world.store.do(runs.ParkRun(**h.by, waits_for="signal:go"))
    assert h.run["wake_at"] is None


def test_a_run_that_parks_for_an_approval_that_was_given_wakes_when_it_can_no_longer_be_taken_back(
    world: World,
) -> None:
    h = world.held()
    ask(h, "1")
    world.store.do(people.Approve(actor=ANN, run_id=h.run_id, step="1", digest=DIGEST, regret=10 * SECOND))
    world.store.do(runs.ParkRun(**h.by, waits_for="approval:1"))
    assert h.run["wake_at"] == world.clock.now + 10 * SECOND


def test_a_run_that_parks_for_an_approval_that_was_refused_is_due_at_once(world: World) -> None:
    h = world.held()
    ask(h, "1")
    world.store.do(people.Refuse(actor=ANN, run_id=h.run_id, step="1", reason="no"))
    world.store.do(runs.ParkRun(**h.by, waits_for="approval:1"))
    assert h.run["wake_at"] == world.clock.now


@pytest.mark.parametrize("nothing", ["", " ", "decision:failed"])
def test_a_run_does_not_wait_for_nothing_nor_for_a_decision_that_nobody_took(world: World, nothing: str) -> None:
    h = world.held()
    recipes.check_refused(world, runs.ParkRun(**h.by, waits_for=nothing), PreconditionFailed)


# --- two things at once ------------------------------------------------------------------------------------------


def test_one_of_two_approvals_taken_back_leaves_no_run_asleep(world: World) -> None:
    h = world.held()
    ask(h, "1")
    ask(h, "2", park=True)
    given = [
        world.store.do(people.Approve(actor=ANN, run_id=h.run_id, step=step, digest=DIGEST, regret=SECOND)).seq
        for step in ("1", "2")
    ]
    world.store.do(people.TakeBack(actor=ANN, run_id=h.run_id, decision=given[1], reason="not this one"))
    world.take(h.run_id)


def test_an_approval_given_or_refused_meanwhile_does_not_touch_a_decision_that_waits(world: World) -> None:
    h = world.held()
    ask(h, "1")
    ask(h, "2")
    lose_track(h, "3")
    world.store.do(runs.NeedOperator(**h.by, why=Why.UNKNOWN, detail="?", step="3"))
    retry = people.DecideRetry(actor=ANN, run_id=h.run_id, step="3", reason="again", regret=60 * SECOND)
    seq = world.store.do(retry).seq
    due = h.run["wake_at"]
    world.store.do(people.Approve(actor=BOB, run_id=h.run_id, step="1", digest=DIGEST, regret=SECOND))
    world.store.do(people.Refuse(actor=BOB, run_id=h.run_id, step="2", reason="no"))
    assert (h.run["status"], h.run["wake_at"], h.run["decision"]) == ("waiting", due, seq)
    world.store.do(people.TakeBack(actor=ANN, run_id=h.run_id, decision=seq, reason="wait"))
    assert (h.run["status"], h.run["decision"]) == ("needs_operator", None)


def test_a_pause_does_not_become_a_cancel_that_was_asked_for_earlier(world: World) -> None:
    h = world.held()
    world.store.do(people.RequestCancel(actor=ANN, run_id=h.run_id, reason="wrong order"))
    pause = people.RequestPause(actor=BOB, run_id=h.run_id)
    recipes.check_refused(world, pause, PreconditionFailed, match="being cancelled already")


# --- decisions ---------------------------------------------------------------------------------------------------


def test_a_worker_does_what_was_decided_before_anything_else(world: World) -> None:
    scene = recipes.retry_due(world)
    by = scene.by
    for t in (
        runs.ParkRun(**by, waits_for="signal:x"),
        runs.FinishRun(**by),
        runs.FailRun(**by, error_class="E", message="m"),
    ):
        recipes.check_refused(world, t, PreconditionFailed, match="was not carried out yet")


def test_a_decision_that_cannot_be_carried_out_ends_when_a_person_is_needed_again(world: World) -> None:
    scene = recipes.retry_due(world)
    seq = world.store.run(scene.run_id)["decision"]
    world.store.do(runs.NeedOperator(**scene.by, why=Why.DIVERGED, detail="the code has changed"))
    (decision,) = [d for d in world.rows("decisions") if d["seq"] == seq and d["action"] == "retry"][-1:]
    assert decision["status"] == "expired"
    assert world.store.run(scene.run_id)["decision"] is None


# --- calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [people.RequestPause, people.RequestCancel])
def test_nothing_new_is_called_once_a_person_asked_the_run_to_stop(
    world: World, request_: type[people.OperatorOnRun]
) -> None:
    h = world.held()
    world.store.do(request_(actor=ANN, run_id=h.run_id, reason="stop"))
    recipes.check_refused(world, Intend(**h.by, step="1", call=call("1"), worker=h.worker), StopRequested)
    world.store.do(runs.StopAtBoundary(**h.by))


def test_an_answer_is_not_rewritten_by_a_later_one(world: World) -> None:
    h = world.held()
    intend(h, "1")
    world.store.do(EndAttempt(**h.by, step="1", answer=Answer.AMBIGUOUS))
    late = Settle(**h.by, step="1", outcome=OperationStatus.SUCCEEDED, answer=Answer.ACKNOWLEDGED)
    recipes.check_refused(world, late, PreconditionFailed, match="no attempt")
    (attempt,) = world.store.operation(h.run_id, "1").attempts
    assert attempt["answer"] == "ambiguous"


@pytest.mark.parametrize("recipe", [recipes.refused, recipes.denied])
def test_what_a_person_refused_or_policy_denied_is_not_asked_again(world: World, recipe: recipes.Recipe) -> None:
    scene = recipe(world)
    world.clock.pass_(1000 * 60 * SECOND)
    if world.store.run(scene.run_id)["worker"] is None:
        world.take(scene.run_id)
    asked = AskApproval(**scene.by, step="1", call=call("1"), digest=DIGEST, rule="big payments")
    recipes.check_refused(world, asked, PreconditionFailed, match="not asked about again")


# --- an approval asked for again ---------------------------------------------------------------------------------


def asked_again(world: World, evidence: Evidence | None = None) -> Held:
    """A call that was approved and attempted, ended without an answer, and is asked about again before a retry."""
    h = world.held()
    ask(h, "1", expires_at=world.clock.now + 60 * SECOND)
    world.store.do(people.Approve(actor=ANN, run_id=h.run_id, step="1", digest=DIGEST, regret=0))
    intend(h, "1", digest=DIGEST)
    world.store.do(EndAttempt(**h.by, step="1", answer=Answer.AMBIGUOUS))
    if evidence is not None:
        world.store.do(RecordVerification(**h.by, step="1", evidence=evidence))
    world.clock.pass_(120 * SECOND)
    ask(h, "1")
    return h


@pytest.mark.parametrize(("evidence", "status"), [(None, "unknown"), (Evidence.ABSENT, "failed")])
def test_a_call_that_was_attempted_is_not_called_denied(world: World, evidence: Evidence, status: str) -> None:
    h = asked_again(world, evidence)
    world.store.do(people.Refuse(actor=ANN, run_id=h.run_id, step="1", n=2, reason="no more"))
    assert h.op("1")["status"] == status
    if status == "unknown":
        recipes.check_refused(world, runs.FinishRun(**h.by), PreconditionFailed, match="1 unknown")


def test_a_cancel_does_not_forget_what_may_have_happened(world: World) -> None:
    h = asked_again(world)
    world.store.do(runs.ParkRun(**h.by, waits_for="approval:1"))
    world.store.do(people.RequestCancel(actor=ANN, run_id=h.run_id, reason="not needed"))
    assert (h.run["status"], h.run["cancel_requested"]) == ("waiting", 1)
    assert h.op("1")["status"] == "awaiting_approval"


def test_what_is_asked_again_is_the_same_call(world: World) -> None:
    h = world.held()
    intend(h, "1")
    world.store.do(EndAttempt(**h.by, step="1", answer=Answer.AMBIGUOUS))
    other = AskApproval(**h.by, step="1", call=call("1", args={"cents": 1}), digest="e" * 64, rule="big")
    recipes.check_refused(world, other, KeyConflict)


def test_an_approval_that_would_expire_before_it_could_be_used_is_not_given(world: World) -> None:
    h = world.held()
    ask(h, "1", expires_at=world.clock.now + 5 * SECOND)
    given = people.Approve(actor=ANN, run_id=h.run_id, step="1", digest=DIGEST, regret=10 * SECOND)
    recipes.check_refused(world, given, PreconditionFailed, match="expire before")


# --- compensation ------------------------------------------------------------------------------------------------


def undoing(world: World, *steps: str) -> Held:
    h = world.held()
    for step in steps:
        write(h, step)
    world.store.do(BeginCompensation(**h.by, scope="run", steps=steps, cause="it failed"))
    return h


@pytest.mark.parametrize("first", ["pending", "unknown", "succeeded"])
def test_one_operation_is_undone_by_one_compensation(world: World, first: str) -> None:
    h = undoing(world, "1")
    intend(h, "c1", tool="refund", compensates="1")
    if first == "unknown":
        world.store.do(Settle(**h.by, step="c1", outcome=OperationStatus.UNKNOWN, answer=Answer.NONE))
    elif first == "succeeded":
        succeed(h, "c1")
    second = Intend(**h.by, step="c2", call=call("c2", tool="refund", compensates="1"), worker=h.worker)
    recipes.check_refused(world, second, PreconditionFailed, match="only once")


def test_another_compensation_may_follow_one_that_failed(world: World) -> None:
    h = undoing(world, "1")
    intend(h, "c1", tool="refund", compensates="1")
    world.store.do(Settle(**h.by, step="c1", outcome=OperationStatus.FAILED, answer=Answer.REJECTED))
    intend(h, "c2", tool="refund", compensates="1")
    succeed(h, "c2")
    assert (h.op("1")["status"], h.op("1")["compensated_by"]) == ("compensated", "c2")


def test_nothing_is_undone_outside_a_compensation_and_nothing_else_is_called_in_one(world: World) -> None:
    h = world.held()
    write(h, "1")
    undo = Intend(**h.by, step="c1", call=call("c1", tool="refund", compensates="1"), worker=h.worker)
    recipes.check_refused(world, undo, PreconditionFailed, match="not compensating")
    intend(h, "2")
    begin = BeginCompensation(**h.by, scope="run", steps=["1"], cause="it failed")
    recipes.check_refused(world, begin, PreconditionFailed, match="not at a boundary")


def test_a_run_is_not_compensated_while_something_in_scope_still_stands(world: World) -> None:
    h = undoing(world, "1", "2")
    intend(h, "c2", tool="refund", compensates="2")
    succeed(h, "c2")
    for outcome in (RunStatus.COMPENSATED, RunStatus.RUNNING):
        recipes.check_refused(
            world, EndCompensation(**h.by, outcome=outcome), PreconditionFailed, match="1 still stands"
        )
    world.store.do(EndCompensation(**h.by, outcome=RunStatus.NEEDS_OPERATOR, detail="no undo", step="1"))
    assert (h.run["why"], h.run["why_step"]) == ("compensation_failed", "1")


def test_a_compensation_that_waits_is_not_cut_in_half_by_a_cancel(world: World) -> None:
    h = undoing(world, "1")
    world.store.do(runs.ParkRun(**h.by, waits_for="the next try", wake_at=world.clock.now + 60 * SECOND))
    world.store.do(people.RequestCancel(actor=ANN, run_id=h.run_id, reason="stop"))
    assert (h.run["status"], h.run["cancel_requested"]) == ("compensating", 1)


def test_what_is_left_of_a_run_that_was_compensated_in_part_can_still_be_undone(world: World) -> None:
    h = undoing(world, "1")
    intend(h, "c1", tool="refund", compensates="1")
    succeed(h, "c1")
    world.store.do(EndCompensation(**h.by, outcome=RunStatus.COMPENSATED))
    more = people.DecideCompensate(actor=ANN, run_id=h.run_id, scope="step 2", steps=["2"], reason="that too")
    world.store.do(more)
    assert h.run["status"] == "waiting"


def test_a_compensation_undoes_exactly_what_was_decided(world: World) -> None:
    h = world.held()
    for step in ("1", "2"):
        write(h, step)
    finish(h)
    decide = people.DecideCompensate(actor=ANN, run_id=h.run_id, scope="op", steps=["2"], reason="undo", regret=0)
    decision = world.store.do(decide).seq
    h = world.take(h.run_id)
    forward = Intend(**h.by, step="3", call=call("3"), worker=h.worker)
    recipes.check_refused(world, forward, PreconditionFailed, match="not carried out|not carried")
    other = BeginCompensation(**h.by, scope="op", steps=["1"], cause="asked", decision=decision)
    recipes.check_refused(world, other, PreconditionFailed, match="about something else")
    world.store.do(BeginCompensation(**h.by, scope="op", steps=["2"], cause="asked", decision=decision))


def test_a_step_is_recorded_once_also_within_one_commit(world: World) -> None:
    h = world.held()
    look = runs.RecordStep(**h.by, step="1", name="look")
    done, refused = world.store.commit([look, Intend(**h.by, step="1", call=call("1"), worker=h.worker)])
    assert isinstance(done, Committed)
    assert isinstance(refused, PreconditionFailed)


# --- what a transition is given ----------------------------------------------------------------------------------


def test_a_reason_that_is_no_reason_is_refused_alone(world: World) -> None:
    h = world.held()
    nonsense = runs.NeedOperator(**h.by, why="nonsense", detail="x")  # type: ignore[arg-type]
    note = people.AddNote(actor=ANN, run_id=h.run_id, reason="look here")
    refused, done = world.store.commit([nonsense, note])
    assert isinstance(refused, PreconditionFailed)
    assert isinstance(done, Committed)


def test_a_value_of_the_wrong_kind_is_refused_alone(world: World) -> None:
    h = world.held()
    wrong = runs.ParkRun(**h.by, waits_for="a time", wake_at=None, state=7)  # type: ignore[arg-type]
    note = people.AddNote(actor=ANN, run_id=h.run_id, reason="look here")
    refused, done = world.store.commit([wrong, note])
    assert isinstance(refused, PreconditionFailed)
    assert isinstance(refused.__cause__, TypeError)
    assert isinstance(done, Committed)


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "x" * 201])
def test_a_name_that_a_database_or_a_person_cannot_read_is_refused(world: World, name: str) -> None:
    h = world.held()
    recipes.check_refused(world, Intend(**h.by, step=name, call=call("1"), worker="w"), PreconditionFailed)
    recipes.check_refused(world, runs.RecordStep(**h.by, step=name, name="n"), PreconditionFailed)
    early = runs.SendSignal(actor="system", run_id=h.run_id, signal_id=name, name="go")
    recipes.check_refused(world, early, PreconditionFailed)
    worker = RegisterWorker(
        actor="worker:x", worker=name, host="h", boot_id="b", pid=1, process_started="1", agents={}, lease=1
    )
    with pytest.raises(PreconditionFailed):
        world.store.do(worker)


def test_an_id_used_for_another_transition_of_the_same_actor_and_run_is_a_conflict(world: World) -> None:
    h = world.held()
    step = runs.RecordStep(**h.by, step="1", name="look")
    world.store.do(step)
    with pytest.raises(TransitionConflict):
        world.store.do(runs.ReleaseRun(**h.by, id=step.id))
    with pytest.raises(TransitionConflict):
        world.store.do(runs.RecordStep(**h.by, step="2", name="look", id=step.id))


def test_only_what_has_finished_is_noted_as_pruned(world: World) -> None:
    h = world.held()
    note = NotePrune(actor=ANN, pruned=h.run_id, head_seq=h.run["head_seq"], finished_at=0)
    with pytest.raises(PreconditionFailed):
        world.store.do(note)
