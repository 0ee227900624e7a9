"""Moments in between: what arrives just before a run parks, and decisions that nobody has carried out yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store import recipes
from tests.store.driver import ANN, BOB, DIGEST, SECOND, ask, call, intend, lose_track
from tests.store.recipes import World
from walkback_store.engine import Committed
from walkback_store.errors import PreconditionFailed, StopRequested, TransitionConflict
from walkback_store.machine import people, runs
from walkback_store.machine.operations import AskApproval, EndAttempt, Intend, Settle
from walkback_store.machine.store_wide import NotePrune, RegisterWorker
from walkback_store.words import Answer, OperationStatus, Why


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
