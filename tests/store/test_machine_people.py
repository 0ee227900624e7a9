"""People: approvals, decisions that wait, and their words on what is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.store import recipes
from tests.store.driver import ANN, BOB, DIGEST, MINUTE, SECOND, Held, ask, call, finish, lose_track
from tests.store.recipes import O, Recipe, Scene, World, matrix, transitions
from walkback_store.errors import IllegalTransition, KeyConflict, NotFound, PreconditionFailed
from walkback_store.log import Row
from walkback_store.machine import people, runs
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import (
    AskApproval,
    BeginCompensation,
    CarryOutRetry,
    EndAttempt,
    Intend,
    Settle,
    StartAttempt,
)
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.values import encode
from walkback_store.words import Answer, Evidence, Why


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


@pytest.mark.parametrize(("transition", "state"), matrix("approval", "decision"))
def test_a_transition_is_legal_from_exactly_its_sources(transition: type[Transition], state: str, world: World) -> None:
    recipes.check(world, transition, state)


@pytest.mark.parametrize("transition", transitions("approval", "decision"))
def test_an_id_that_was_used_for_something_else_is_a_conflict(transition: type[Transition], world: World) -> None:
    recipes.check_conflict(world, transition)


@pytest.mark.parametrize("transition", transitions("approval"))
def test_a_decision_about_an_approval_that_moved_on_is_refused_and_told_what_happened(
    transition: type[Transition], world: World
) -> None:
    recipes.check_stale_view(world, transition)


BLANK: dict[type[Transition], recipes.Case] = {
    **{t: recipes.CASES[t] for t in TRANSITIONS if "a reason" in t.needs and t.by == "operator"},
    people.RequestVerify: recipes.CASES[people.RequestVerify],
    people.AddNote: recipes.CASES[people.AddNote],
}


@pytest.mark.parametrize("blank", ["", " \n"])
@pytest.mark.parametrize("transition", [pytest.param(t, id=t.__name__) for t in BLANK])
def test_a_decision_without_a_reason_is_refused(transition: type[Transition], blank: str, world: World) -> None:
    state = "needs_operator" if transition is people.ResumeRun else transition.sources[0]
    scene = recipes.bring(world, transition, state)
    made: Any = BLANK[transition].make(scene)
    made.reason = blank
    recipes.check_refused(world, made, PreconditionFailed, match="a reason is required")
    made.reason = "said so"
    world.store.do(made)  # and nothing else was wrong with it


# --- approvals ---------------------------------------------------------------------------------------------------


def approval_of(world: World, scene: Scene) -> Row:
    return world.rows("approvals", run_no=world.store.run(scene.run_id)["run_no"])[-1]


def operation_of(world: World, scene: Scene) -> Row:
    return world.rows("operations", run_no=world.store.run(scene.run_id)["run_no"], step="1")[0]


def decision_of(world: World, scene: Scene, seq: int) -> Row:
    (row,) = world.rows("decisions", run_no=world.store.run(scene.run_id)["run_no"], seq=seq)
    return row


def approve(scene: Scene, actor: str = ANN, **more: Any) -> people.Approve:
    return people.Approve(**{"actor": actor, "run_id": scene.run_id, "step": "1", "digest": DIGEST, **more})


def dispatch(h: Held, **more: Any) -> Intend:
    return Intend(**{**h.by, "step": "1", "call": call("1"), "worker": h.worker, "digest": DIGEST, **more})


def test_a_request_is_bound_to_a_digest_and_kept_with_what_will_be_shown(world: World) -> None:
    h = world.held()
    asked = AskApproval(
        **h.by, step="1", call=call("1", args={"cents": 5}), digest=DIGEST, rule="big payments", role="lead",
        expires_at=world.clock.now + MINUTE, shown={"stake": "$5"}, state=encode({"n": 1}),
    )  # fmt: skip
    world.store.do(asked)
    row = approval_of(world, Scene(world, h))
    assert (row["status"], row["digest"], row["rule"], row["role"]) == ("asked", DIGEST, "big payments", "lead")
    event = world.last_event(h.run_id)
    assert (event.kind, event.data["args"], event.data["shown"]) == ("approval_asked", {"cents": 5}, {"stake": "$5"})
    assert (h.run["awaiting_operations"], h.run["pending_operations"]) == (1, 0)
    early = dispatch(h, call=call("1", args={"cents": 5}))
    recipes.check_refused(world, early, PreconditionFailed, match="no approval that is given")


def test_an_approval_of_something_else_than_was_asked_is_refused(world: World) -> None:
    scene = recipes.asked(world)
    recipes.check_refused(world, approve(scene, digest="f" * 64), PreconditionFailed, match="look again")


def test_an_approval_that_comes_too_late_is_refused(world: World) -> None:
    scene = recipes.asked(world)
    world.clock.pass_(MINUTE)
    recipes.check_refused(world, approve(scene), PreconditionFailed, match="has expired")


def test_an_approval_waits_can_be_dispatched_when_due_and_is_consumed_by_the_intent(world: World) -> None:
    scene = recipes.asked(world)
    seq = world.store.do(approve(scene, reason="fine")).seq
    row = approval_of(world, scene)
    assert (row["status"], row["decided_by"], row["reason"]) == ("given", ANN, "fine")
    assert row["not_before"] == world.clock.now + people.REGRET
    run = world.store.run(scene.run_id)
    assert (run["status"], run["wake_at"]) == ("waiting", row["not_before"])
    decision = decision_of(world, scene, seq)
    assert (decision["action"], decision["status"], decision["by"]) == ("approve", "waiting", ANN)
    world.clock.pass_(people.REGRET)
    h = world.take(scene.run_id)
    committed = world.store.do(dispatch(h))
    assert approval_of(world, scene)["status"] == "consumed"
    decision = decision_of(world, scene, seq)
    assert (decision["status"], decision["ended_by"]) == ("carried_out", "worker:w")
    assert operation_of(world, scene)["intent_seq"] == committed.seq


def test_an_approval_that_can_still_be_taken_back_is_not_dispatched(world: World) -> None:
    scene = recipes.awaiting(world)
    world.store.do(approve(scene))
    h = scene.h
    assert h is not None
    world.clock.pass_(people.REGRET - 1)
    recipes.check_refused(world, dispatch(h), PreconditionFailed, match="can still be taken back")
    world.clock.pass_(1)
    world.store.do(dispatch(h))


@pytest.mark.parametrize("digest", ["f" * 64, None])
def test_what_was_agreed_to_is_checked_again_when_it_is_dispatched(digest: str | None, world: World) -> None:
    scene = recipes.approved(world)
    h = scene.h
    assert h is not None
    recipes.check_refused(world, dispatch(h, digest=digest), PreconditionFailed, match="something else")


def test_an_approval_that_ran_out_before_the_dispatch_is_worth_nothing(world: World) -> None:
    scene = recipes.given(world)
    world.clock.pass_(MINUTE)
    h = world.take(scene.run_id)
    recipes.check_refused(world, dispatch(h), PreconditionFailed, match="has expired")


def test_a_retry_after_the_approval_ran_out_asks_again(world: World) -> None:
    scene = recipes.consumed(world)
    h = scene.h
    assert h is not None
    world.store.do(EndAttempt(**h.by, step="1", answer=Answer.AMBIGUOUS))
    again = AskApproval(**h.by, step="1", call=call("1"), digest=DIGEST, rule="big payments")
    recipes.check_refused(world, again, PreconditionFailed, match="has not expired")
    world.clock.pass_(MINUTE)
    recipes.check_refused(world, StartAttempt(**h.by, step="1", worker="w"), PreconditionFailed, match="ask again")
    world.store.do(again)
    assert operation_of(world, scene)["status"] == "awaiting_approval"
    world.store.do(approve(scene, n=2, regret=0))
    world.store.do(dispatch(h))
    attempts = world.rows("attempts", run_no=h.run["run_no"])
    assert [(a["n"], a["status"]) for a in attempts] == [(1, "ended"), (2, "running")]
    assert [a["status"] for a in world.rows("approvals", run_no=h.run["run_no"])] == ["consumed", "consumed"]


def test_of_two_operators_one_wins_and_the_other_is_told_who(world: World) -> None:
    scene = recipes.asked(world)
    world.store.do(approve(scene, ANN, reason="fine by me"))
    refusal = people.Refuse(actor=BOB, run_id=scene.run_id, step="1", reason="too much")
    for late in (refusal, approve(scene, BOB)):
        error = recipes.check_refused(world, late, IllegalTransition)
        assert f"{ANN} decided it: fine by me" in str(error)


def test_of_two_operators_in_one_commit_one_wins(world: World) -> None:
    scene = recipes.asked(world)
    refusal = people.Refuse(actor=BOB, run_id=scene.run_id, step="1", reason="too much")
    first, second = world.store.commit([refusal, approve(scene)])
    assert not isinstance(first, Exception)
    assert isinstance(second, IllegalTransition)
    assert BOB in str(second)


def test_edited_arguments_are_what_is_called_and_what_was_asked_stays(world: World) -> None:
    scene = recipes.asked(world)
    edited = call("1", args={"cents": 4})
    agreed: dict[str, Any] = {"edited_args": {"cents": 4}, "edited_hash": edited.args_hash, "edited_digest": "e" * 64}
    world.store.do(approve(scene, BOB, regret=0, **agreed))
    row = approval_of(world, scene)
    assert (row["digest"], row["edited_digest"], row["edited_hash"]) == (DIGEST, "e" * 64, edited.args_hash)
    event = world.last_event(scene.run_id)
    assert (event.actor, event.data["edited_args"], event.data["digest"]) == (BOB, {"cents": 4}, DIGEST)
    h = world.take(scene.run_id)
    recipes.check_refused(world, dispatch(h), KeyConflict)
    recipes.check_refused(world, dispatch(h, call=edited), PreconditionFailed, match="something else")
    world.store.do(dispatch(h, call=edited, digest="e" * 64))
    assert operation_of(world, scene)["args_hash"] == edited.args_hash


@pytest.mark.parametrize("half", [{"edited_hash": "x"}, {"edited_digest": "x"}])
def test_edited_arguments_come_with_both_hash_and_digest(half: dict[str, str], world: World) -> None:
    scene = recipes.asked(world)
    recipes.check_refused(world, approve(scene, **half), PreconditionFailed, match="hash and their digest")


def test_a_refusal_denies_the_operation_and_wakes_the_run_with_the_reason(world: World) -> None:
    scene = recipes.refused(world)
    run = world.store.run(scene.run_id)
    assert (run["status"], run["waits_for"], run["awaiting_operations"]) == ("running", None, 0)
    row = operation_of(world, scene)
    assert (row["status"], row["error"], row["attempts"]) == ("denied", "too much", 0)
    event = world.last_event(scene.run_id)
    assert (event.kind, event.actor, event.data) == ("approval_refused", ANN, {"n": 1, "reason": "too much"})
    h = world.take(scene.run_id)
    again = AskApproval(**h.by, step="1", call=call("1"), digest=DIGEST, rule="big payments")
    recipes.check_refused(world, again, PreconditionFailed, match="has not expired")


def test_an_approval_expires_when_its_time_is_up_and_not_before(world: World) -> None:
    scene = recipes.asked(world)
    expire = people.ExpireApproval(actor="system", run_id=scene.run_id, step="1")
    recipes.check_refused(world, expire, PreconditionFailed, match="has not expired yet")
    world.clock.pass_(MINUTE)
    world.store.do(expire)
    assert approval_of(world, scene)["status"] == "expired"
    assert operation_of(world, scene)["status"] == "denied"
    assert world.store.run(scene.run_id)["status"] == "running"
    h = world.take(scene.run_id)
    ask(h, "1")
    assert [a["status"] for a in world.rows("approvals", run_no=h.run["run_no"])] == ["expired", "asked"]
    row = operation_of(world, scene)
    assert (row["status"], row["ended_at"], row["error"]) == ("awaiting_approval", None, None)


def test_an_approval_without_a_time_never_expires(world: World) -> None:
    scene = recipes.awaiting(world)
    world.clock.pass_(1000 * MINUTE)
    expire = people.ExpireApproval(actor="system", run_id=scene.run_id, step="1")
    recipes.check_refused(world, expire, PreconditionFailed, match="has not expired yet")


def test_an_approval_that_was_given_and_ran_out_ends_its_decision_as_expired(world: World) -> None:
    scene = recipes.expired(world)
    decision = decision_of(world, scene, scene.decision)
    assert (decision["status"], decision["ended_by"]) == ("expired", "system")
    back = people.TakeBack(**scene.ann(), decision=scene.decision, reason="wait")
    recipes.check_refused(world, back, IllegalTransition, match="is expired")


# --- taking back -------------------------------------------------------------------------------------------------


def take_back(scene: Scene, decision: int, actor: str = ANN) -> people.TakeBack:
    return people.TakeBack(actor=actor, run_id=scene.run_id, decision=decision, reason="wait")


def test_an_approval_taken_back_is_asked_again_and_a_worker_finds_out_what_to_wait_for(world: World) -> None:
    scene = recipes.asked(world)
    before = approval_of(world, scene)
    edited: dict[str, Any] = {"edited_args": {}, "edited_hash": "x", "edited_digest": "y"}
    seq = world.store.do(approve(scene, **edited)).seq
    world.store.do(take_back(scene, seq, BOB))
    after = approval_of(world, scene)
    assert after == before | {"touched": after["touched"]}
    run = world.store.run(scene.run_id)
    assert (run["status"], run["wake_at"]) == ("waiting", world.clock.now)
    decision = decision_of(world, scene, seq)
    assert (decision["status"], decision["ended_by"], decision["ended_at"]) == ("taken_back", BOB, world.clock.now)
    event = world.last_event(scene.run_id)
    assert event.data == {"action": "take_back", "reason": "wait", "decision": seq}
    world.store.do(approve(scene, BOB))


def test_an_approval_can_be_taken_back_until_it_is_consumed(world: World) -> None:
    scene = recipes.given(world)
    world.clock.pass_(SECOND)  # due, but nobody came for it
    world.store.do(take_back(scene, scene.decision))
    used = recipes.consumed(world)
    error = recipes.check_refused(
        world, take_back(used, used.decision), IllegalTransition, match="compensation is what"
    )
    assert "worker:w" in str(error)


DECISIONS: dict[str, tuple[Recipe, Callable[[Scene], Transition]]] = {
    "retry": (
        lambda w: recipes.parked(recipes.unknown(w)),
        lambda s: people.DecideRetry(**s.ann(), step="1", reason="try again"),
    ),
    "resume after review": (recipes.needs_operator, lambda s: people.ResumeRun(**s.ann(), reason="fine")),
    "resume after failure": (recipes.failed, lambda s: people.ResumeRun(**s.ann(), reason="mended")),
    **{
        f"compensate when {status}": (
            recipe,
            lambda s: people.DecideCompensate(**s.ann(), scope="run", steps=[], reason="undo it"),
        )
        for status, recipe in (
            ("needs_operator", recipes.needs_operator),
            ("paused", recipes.paused),
            ("succeeded", recipes.succeeded),
            ("failed", recipes.failed),
            ("cancelled", recipes.cancelled),
        )
    },
}


@pytest.mark.parametrize("what", DECISIONS)
def test_a_decision_waits_nobody_claims_the_run_before_and_taking_it_back_leaves_no_trace_but_its_events(
    what: str, world: World
) -> None:
    bring, decide = DECISIONS[what]
    scene = bring(world)
    before = world.store.run(scene.run_id)
    seq = world.store.do(decide(scene)).seq
    decision = decision_of(world, scene, seq)
    assert (decision["action"], decision["status"]) == (what.split()[0], "waiting")
    assert decision["not_before"] == world.clock.now + people.REGRET
    run = world.store.run(scene.run_id)
    assert (run["status"], run["wake_at"]) == ("waiting", decision["not_before"])
    world.clock.pass_(people.REGRET - 1)
    claim = runs.ClaimRun(actor="worker:w", run_id=scene.run_id, worker="w")
    recipes.check_refused(world, claim, PreconditionFailed, match="not due yet")
    world.store.do(take_back(scene, seq))
    after = world.store.run(scene.run_id)
    changed = {k for k in before if before[k] != after[k]}
    assert changed <= {"head_seq", "head_hash", "status_seq", "updated_at"}
    assert decision_of(world, scene, seq)["status"] == "taken_back"


@pytest.mark.parametrize("what", DECISIONS)
def test_a_decision_that_a_worker_came_for_cannot_be_taken_back(what: str, world: World) -> None:
    bring, decide = DECISIONS[what]
    scene = bring(world)
    seq = world.store.do(decide(scene)).seq
    world.clock.pass_(people.REGRET)
    world.take(scene.run_id)
    recipes.check_refused(world, take_back(scene, seq), PreconditionFailed, match="too late")


def test_a_decision_that_was_never_made_cannot_be_taken_back(world: World) -> None:
    scene = recipes.decided(world)
    recipes.check_refused(world, take_back(scene, 1), NotFound)
    recipes.check_refused(world, take_back(scene, 10**6), NotFound)


# --- carrying out ------------------------------------------------------------------------------------------------


def test_a_retry_is_carried_out_and_the_operation_is_pending_again_with_the_same_key(world: World) -> None:
    scene = recipes.retry_due(world)
    h = scene.h
    assert h is not None
    world.store.do(CarryOutRetry(**h.by, step="1", decision=scene.decision))
    run = h.run
    assert (run["status"], run["why"], run["unknown_operations"], run["pending_operations"]) == ("running", None, 0, 1)
    event = world.last_event(h.run_id)
    assert (event.kind, event.data) == ("recovery", {"decision": scene.decision, "verdict": "retry"})
    again = CarryOutRetry(**h.by, step="1", decision=scene.decision)
    recipes.check_refused(world, again, IllegalTransition)
    world.store.do(StartAttempt(**h.by, step="1", worker="w"))
    row = operation_of(world, scene)
    assert (row["attempts"], row["key"]) == (2, "key-1")


def test_a_retry_needs_a_decision_of_that_kind_that_still_waits(world: World) -> None:
    h = world.held()
    lose_track(h, "1")
    lose_track(h, "2")
    world.store.do(runs.NeedOperator(**h.by, why=Why.UNKNOWN, detail="?", step="1"))
    retry = people.DecideRetry(actor=ANN, run_id=h.run_id, step="1", reason="again", regret=0)
    decision = world.store.do(retry).seq
    h = world.take(h.run_id)
    other_kind = people.CarryOutResume(**h.by, decision=decision)
    recipes.check_refused(world, other_kind, NotFound, match="no resume decision")
    other_step = CarryOutRetry(**h.by, step="2", decision=decision)
    recipes.check_refused(world, other_step, PreconditionFailed, match="about something else")
    world.store.do(CarryOutRetry(**h.by, step="1", decision=decision))


def test_a_resume_is_carried_out_once(world: World) -> None:
    scene = recipes.resumable(world, recipes.running(world), "running")
    world.store.do(people.CarryOutResume(**scene.by, decision=scene.decision))
    twice = people.CarryOutResume(**scene.by, decision=scene.decision)
    recipes.check_refused(world, twice, PreconditionFailed, match="carried_out, not waiting")


def test_a_resumed_run_forgets_why_it_stopped(world: World) -> None:
    scene = recipes.failed(world)
    decision = world.store.do(people.ResumeRun(**scene.ann(), reason="mended", regret=0)).seq
    h = world.take(scene.run_id)
    world.store.do(people.CarryOutResume(**h.by, decision=decision))
    run = h.run
    assert (run["status"], run["error_class"], run["fingerprint"], run["finished_at"]) == ("running", None, None, None)


def test_a_run_with_an_unknown_is_not_resumed(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    recipes.check_refused(
        world, people.ResumeRun(**scene.ann(), reason="go on"), PreconditionFailed, match="1 unknown operations"
    )


def test_a_finished_run_is_undone_when_a_person_decided_so_and_it_is_due(world: World) -> None:
    scene = recipes.operation_succeeded(world)
    h = scene.h
    assert h is not None
    finish(h)
    undo = people.DecideCompensate(**scene.ann(), scope="run", steps=["1"], reason="wrong customer")
    seq = world.store.do(undo).seq
    assert world.last_event(h.run_id).data["steps"] == ["1"]
    world.clock.pass_(people.REGRET)
    h = world.take(h.run_id)
    begin = BeginCompensation(**h.by, scope="run", steps=["1"], cause="wrong customer", decision=seq)
    world.store.do(begin)
    run = h.run
    assert (run["status"], run["finished_at"]) == ("compensating", None)
    assert decision_of(world, scene, seq)["status"] == "carried_out"


def test_nothing_is_undone_by_decision_while_an_operation_is_in_the_air(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    undo = people.DecideCompensate(**scene.ann(), scope="run", steps=[], reason="undo it")
    recipes.check_refused(world, undo, PreconditionFailed, match="1 unknown")


# --- a person's word on an unknown --------------------------------------------------------------------------------


def test_it_happened_takes_the_result_and_the_evidence_and_the_run_goes_on(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    word = people.RecordHappened(**scene.ann(), step="1", reason="seen", evidence="receipt 7", result={"id": 7})
    seq = world.store.do(word).seq
    row = operation_of(world, scene)
    assert (row["status"], row["evidence"], row["outcome_seq"]) == ("succeeded", "happened", seq)
    data = world.last_event(scene.run_id).data
    assert (data["action"], data["result"], data["evidence"]) == ("it_happened", {"id": 7}, "receipt 7")
    run = world.store.run(scene.run_id)
    assert (run["status"], run["why"], run["unknown_operations"]) == ("running", None, 0)


def test_it_happened_without_evidence_is_refused(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    word = people.RecordHappened(**scene.ann(), step="1", reason="seen", evidence=" ")
    recipes.check_refused(world, word, PreconditionFailed, match="what shows that it happened")


def test_it_did_not_happen_is_a_failure_for_the_agent(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    world.store.do(people.RecordAbsent(**scene.ann(), step="1", reason="not in the books", batch=4))
    row = operation_of(world, scene)
    assert (row["status"], row["evidence"], row["error"]) == ("failed", "absent", "not in the books")
    data = world.last_event(scene.run_id).data
    assert data == {"action": "it_did_not_happen", "reason": "not in the books", "batch": 4}


def test_a_run_goes_on_when_the_last_unknown_is_resolved_and_not_before(world: World) -> None:
    h = world.held()
    lose_track(h, "6.1")
    lose_track(h, "6.2")
    world.store.do(runs.NeedOperator(**h.by, why=Why.UNKNOWN, detail="two of them"))
    world.store.do(people.RecordAbsent(actor=ANN, run_id=h.run_id, step="6.1", reason="no"))
    assert (h.run["status"], h.run["why"]) == ("needs_operator", "unknown")
    world.store.do(people.RecordHappened(actor=BOB, run_id=h.run_id, step="6.2", reason="yes", evidence="seen"))
    assert (h.run["status"], h.run["why"]) == ("running", None)


def test_a_run_that_stopped_for_another_reason_still_needs_an_operator_when_its_unknown_is_resolved(
    world: World,
) -> None:
    scene = recipes.unknown(world)
    world.store.do(runs.NeedOperator(**scene.by, why=Why.DIVERGED, detail="step 3 is another one"))
    world.store.do(people.RecordAbsent(**scene.ann(), step="1", reason="no"))
    run = world.store.run(scene.run_id)
    assert (run["status"], run["why"], run["unknown_operations"]) == ("needs_operator", "diverged", 0)


def test_only_a_tool_that_can_verify_is_asked_again(world: World) -> None:
    scene = recipes.parked(recipes.unknown(world))
    recipes.check_refused(
        world, people.RequestVerify(**scene.ann(), step="1"), PreconditionFailed, match="has no verify"
    )
    able = recipes.parked(recipes.unknown(world, can_verify=True))
    world.store.do(people.RequestVerify(**able.ann(), step="1"))
    row = operation_of(world, able)
    assert (row["status"], row["verify_requested"]) == ("unknown", 1)
    h = world.take(able.run_id)
    world.store.do(Settle(**h.by, step="1", outcome=O.FAILED, evidence=Evidence.ABSENT))
    assert operation_of(world, able)["verify_requested"] == 0


# --- notes and owners --------------------------------------------------------------------------------------------


def test_a_note_changes_nothing_but_the_log(world: World) -> None:
    run_id = world.run()
    before = world.store.run(run_id)
    world.store.do(people.AddNote(actor=ANN, run_id=run_id, reason="called the customer", step="3"))
    after = world.store.run(run_id)
    assert {k for k in before if before[k] != after[k]} <= {"head_seq", "head_hash", "updated_at"}
    event = world.last_event(run_id)
    assert (event.kind, event.step, event.data) == (
        *("operator_action", "3", {"action": "note", "reason": "called the customer"}),
    )


def test_a_run_is_handed_over_and_given_up(world: World) -> None:
    run_id = world.run()
    world.store.do(people.AddNote(actor=ANN, run_id=run_id, reason="mine", owner="ann"))
    assert world.store.run(run_id)["owner"] == "ann"
    world.store.do(people.AddNote(actor=ANN, run_id=run_id, reason="yours", owner="bob"))
    assert world.store.run(run_id)["owner"] == "bob"
    assert world.last_event(run_id).data == {"action": "own", "reason": "yours", "owner": "bob"}
    world.store.do(people.AddNote(actor=BOB, run_id=run_id, reason="going home", disown=True))
    assert world.store.run(run_id)["owner"] is None
