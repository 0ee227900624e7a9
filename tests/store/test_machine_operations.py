"""Operations: every transition from every state, and what else each of them needs and leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.store import recipes
from tests.store.driver import (
    ANN,
    BOB,
    DIGEST,
    MINUTE,
    SECOND,
    Held,
    ask,
    call,
    finish,
    intend,
    lose_track,
    succeed,
    write,
)
from tests.store.recipes import WORKER, O, World, matrix, transitions
from walkback_store.errors import Frozen, KeyConflict, NotFound, PreconditionFailed
from walkback_store.log import Row
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import (
    AppendLateEvidence,
    BeginCompensation,
    EndAttempt,
    EndCompensation,
    Intend,
    RecordRecovery,
    RecordVerification,
    Settle,
    StartAttempt,
)
from walkback_store.machine.people import DismissDuplicate, RecordHappened
from walkback_store.machine.store_wide import Freeze, Unfreeze
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.values import encode
from walkback_store.words import Answer, Effect, Evidence, FreezeScope, RunStatus


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


@pytest.mark.parametrize(("transition", "state"), matrix("operation"))
def test_a_transition_is_legal_from_exactly_its_sources(transition: type[Transition], state: str, world: World) -> None:
    recipes.check(world, transition, state)


@pytest.mark.parametrize("transition", transitions("operation"))
def test_an_id_that_was_used_for_something_else_is_a_conflict(transition: type[Transition], world: World) -> None:
    recipes.check_conflict(world, transition)


IN_RUNS = [
    pytest.param(t, status, id=f"{t.__name__}-{status}")
    for t in TRANSITIONS
    if t.subject == "operation"
    for status in RunStatus
    if status not in recipes.run_statuses(t)
]


@pytest.mark.parametrize(("transition", "status"), IN_RUNS)
def test_a_transition_is_refused_in_a_run_that_is_not_in_the_right_state_for_it(
    transition: type[Transition], status: str, world: World
) -> None:
    recipes.check_run_status(world, transition, status)


@pytest.mark.parametrize("transition", transitions("operation", by=WORKER))
def test_a_worker_that_lost_the_run_changes_nothing(transition: type[Transition], world: World) -> None:
    recipes.check_stale_fence(world, transition)


@pytest.mark.parametrize("transition", transitions("operation", by="operator"))
def test_a_decision_about_an_operation_that_moved_on_is_refused_and_told_what_happened(
    transition: type[Transition], world: World
) -> None:
    recipes.check_stale_view(world, transition)


# --- calling -----------------------------------------------------------------------------------------------------


def operation_of(world: World, h: Held, step: str = "1") -> Row:
    (row,) = world.rows("operations", run_no=h.run["run_no"], step=step)
    return row


def attempts_of(world: World, h: Held, step: str = "1") -> list[tuple[int, str, str | None]]:
    found = world.rows("attempts", run_no=h.run["run_no"], step=step)
    return [(a["n"], a["status"], a["answer"]) for a in found]


def test_an_intent_records_everything_before_the_call_is_made(world: World) -> None:
    h = world.held()
    made = call(
        "1", args={"order": 7}, service="bank", identity="invoice 7", description="invoice order 7", stake="$5",
        stake_value=5.0, can_verify=True, compensate="void", scope="billing", key_until=world.clock.now + MINUTE,
        preconditions={"balance": 3}, expects={"paid": True},
    )  # fmt: skip
    intent = Intend(**h.by, step="1", call=made, worker="w", deadline=world.clock.now + SECOND, state=encode({"n": 1}))
    seq = world.store.do(intent).seq
    row = operation_of(world, h)
    assert (row["status"], row["attempts"], row["intent_seq"], row["touched"]) == ("pending", 1, seq, seq)
    for column in ("tool", "tool_version", "effect", "service", "key", "key_until", "args_hash", "identity"):
        assert row[column] == getattr(made, column)
    for column in ("description", "stake", "stake_value", "compensate", "scope", "compensates"):
        assert row[column] == getattr(made, column)
    assert row["can_verify"] == 1
    (attempt,) = world.rows("attempts", run_no=h.run["run_no"])
    assert (attempt["status"], attempt["worker"], attempt["deadline"]) == ("running", "w", world.clock.now + SECOND)
    event = world.last_event(h.run_id)
    assert (event.kind, event.step, event.data["args"]) == ("intent", "1", {"order": 7})
    assert (event.data["preconditions"], event.data["expects"]) == ({"balance": 3}, {"paid": True})
    assert (h.run["pending_operations"], h.run["position"], h.run["last_step"]) == (1, 1, "1")
    (step,) = world.rows("steps", run_no=h.run["run_no"])
    assert (step["kind"], step["name"], step["status"], step["before"]) == ("call", "pay", "running", 1)


@pytest.mark.parametrize("other", [{"args": {"cents": 6}}, {"tool": "refund"}])
def test_the_same_step_with_other_arguments_or_another_tool_is_a_conflict_and_nothing_is_called(
    other: dict[str, Any], world: World
) -> None:
    scene = recipes.approved(world)
    again = Intend(**scene.by, step="1", call=call("1", **other), worker="w", digest=DIGEST)
    recipes.check_refused(world, again, KeyConflict, match="Nothing was called")


def test_one_attempt_of_an_operation_runs_at_a_time(world: World) -> None:
    scene = recipes.pending(world)
    h = scene.h
    assert h is not None
    again = StartAttempt(**h.by, step="1", worker="w")
    recipes.check_refused(world, again, PreconditionFailed, match="attempt 1 .* has not ended")
    world.store.do(EndAttempt(**h.by, step="1", answer=Answer.NONE, error_class="T", error="late"))
    world.store.do(StartAttempt(**h.by, step="1", worker="w", deadline=world.clock.now + SECOND))
    assert attempts_of(world, h) == [(1, "ended", "none"), (2, "running", None)]
    assert operation_of(world, h)["key"] == "key-1"
    give_up = EndAttempt(**h.by, step="1", answer=Answer.NONE, abandoned=True)
    recipes.check_refused(world, give_up, PreconditionFailed, match="may still be under way")
    world.clock.pass_(2 * SECOND)
    world.store.do(give_up)
    assert attempts_of(world, h)[1] == (2, "abandoned", "none")


def test_an_attempt_without_a_deadline_is_abandoned_only_when_its_worker_is_gone(world: World) -> None:
    scene = recipes.pending(world)
    give_up = EndAttempt(**scene.by, step="1", answer=Answer.NONE, abandoned=True)
    world.clock.pass_(1000 * SECOND)
    recipes.check_refused(world, give_up, PreconditionFailed, match="may still be under way")


def test_an_answer_is_kept_verbatim(world: World) -> None:
    scene = recipes.pending(world)
    answer = {"id": 7, "text": "ok \x1b[31m\x00", "list": [1, None]}
    world.store.do(EndAttempt(**scene.by, step="1", answer=Answer.ACKNOWLEDGED, output=answer, data={"took": 3}))
    event = world.last_event(scene.run_id)
    assert (event.kind, event.data["output"], event.data["took"]) == ("tool_result", answer, 3)


def test_no_attempt_can_end_that_does_not_run(world: World) -> None:
    scene = recipes.between_attempts(world)
    again = EndAttempt(**scene.by, step="1", answer=Answer.ACKNOWLEDGED)
    recipes.check_refused(world, again, PreconditionFailed, match="no attempt")


def test_the_four_answers_of_a_recovery_are_kept(world: World) -> None:
    scene = recipes.pending(world)
    answers: dict[str, Any] = {
        "attempted": "yes",
        "acknowledged": "no",
        "proven": "cannot tell",
        "retry_safe": "yes",
        "verdict": "retry",
    }
    world.store.do(RecordRecovery(**scene.by, step="1", **answers))
    assert world.last_event(scene.run_id).data == answers


def test_evidence_is_not_an_outcome(world: World) -> None:
    scene = recipes.pending(world)
    world.store.do(RecordVerification(**scene.by, step="1", evidence=Evidence.HAPPENED, found={"id": 7}))
    h = scene.h
    assert h is not None
    row = operation_of(world, h)
    assert (row["status"], row["evidence"], row["evidence_at"]) == ("pending", "happened", world.clock.now)
    assert world.last_event(h.run_id).data == {"evidence": "happened", "found": {"id": 7}}


# --- outcomes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [O.SUCCEEDED, O.FAILED, O.UNKNOWN])
def test_an_outcome_is_committed_with_the_answer_and_the_evidence_it_rests_on(outcome: O, world: World) -> None:
    scene = recipes.pending(world)
    h = scene.h
    assert h is not None
    settled = Settle(
        **h.by, step="1", outcome=outcome, answer=Answer.ACKNOWLEDGED, output={"id": 7}, evidence=Evidence.PARTIAL,
        result=7, error_class="Odd", error="half of it", state=encode({"n": 2}),
    )  # fmt: skip
    committed = world.store.do(settled)
    events = world.store.events(h.run_id, after=committed.seq - 3)
    assert [e.kind for e in events] == ["tool_result", "verification", "outcome"]
    assert (events[0].data["output"], events[1].data["evidence"]) == ({"id": 7}, "partial")
    assert (events[2].data["outcome"], events[2].data["result"]) == (outcome, 7)
    row = operation_of(world, h)
    assert (row["status"], row["outcome_seq"], row["error_class"], row["error"]) == (
        *(outcome, committed.seq, "Odd", "half of it"),
    )
    assert attempts_of(world, h) == [(1, "ended", "acknowledged")]
    (step,) = world.rows("steps", run_no=h.run["run_no"])
    assert (step["status"], world.store.state(h.run_id, step["after"])) == (outcome, {"n": 2})
    assert (h.run["pending_operations"], h.run["unknown_operations"]) == (0, int(outcome == O.UNKNOWN))


def test_nothing_is_settled_for_certain_while_an_attempt_runs_whose_answer_is_not_known(world: World) -> None:
    scene = recipes.pending(world)
    for outcome in (O.SUCCEEDED, O.FAILED):
        early = Settle(**scene.by, step="1", outcome=outcome, evidence=Evidence.HAPPENED)
        recipes.check_refused(world, early, PreconditionFailed, match="has not ended")
    world.store.do(Settle(**scene.by, step="1", outcome=O.UNKNOWN, evidence=Evidence.CANNOT_TELL))


@pytest.mark.parametrize("wrong", [O.PENDING, O.DENIED, O.COMPENSATED, O.AWAITING_APPROVAL])
def test_what_is_not_an_outcome_is_refused(wrong: O, world: World) -> None:
    scene = recipes.pending(world)
    settled = Settle(**scene.by, step="1", outcome=wrong, answer=Answer.ACKNOWLEDGED)
    recipes.check_refused(world, settled, PreconditionFailed, match="is not an outcome")


def test_what_was_unknown_is_settled_when_the_world_was_read_again(world: World) -> None:
    scene = recipes.unknown(world)
    world.store.do(Settle(**scene.by, step="1", outcome=O.SUCCEEDED, evidence=Evidence.HAPPENED))
    h = scene.h
    assert h is not None
    assert (operation_of(world, h)["status"], h.run["unknown_operations"]) == ("succeeded", 0)


def test_a_settled_operation_forgets_the_crashes_of_its_run(world: World) -> None:
    old = world.take(world.run(), world.worker())
    world.lose(old.worker)
    h = world.take(old.run_id)
    assert h.run["crashes"] == 1
    write(h, "1")
    assert h.run["crashes"] == 0


# --- parallel steps ----------------------------------------------------------------------------------------------


def test_branches_are_operations_of_their_own_and_the_run_counts_them_all(world: World) -> None:
    h = world.held()
    intend(h, "6.1")
    intend(h, "6.2")
    ask(h, "6.3")
    assert (h.run["pending_operations"], h.run["awaiting_operations"], h.run["position"]) == (2, 1, 6)
    succeed(h, "6.2")
    world.store.do(Settle(**h.by, step="6.1", outcome=O.UNKNOWN, answer=Answer.NONE))
    statuses = {o["step"]: o["status"] for o in world.rows("operations", run_no=h.run["run_no"])}
    assert statuses == {"6.1": "unknown", "6.2": "succeeded", "6.3": "awaiting_approval"}
    assert (h.run["pending_operations"], h.run["awaiting_operations"], h.run["unknown_operations"]) == (0, 1, 1)


# --- freezes -----------------------------------------------------------------------------------------------------


def freeze_of(scope: FreezeScope, tool: str, agent: str) -> Freeze:
    name = {FreezeScope.TOOL: tool, FreezeScope.AGENT: agent, FreezeScope.SERVICE: "bank"}.get(scope)
    return Freeze(actor=BOB, scope=scope, name=name, reason="it sends nonsense")


@contextmanager
def frozen(world: World, freeze: Freeze) -> Iterator[None]:
    number = world.store.do(freeze).seq
    yield
    world.store.do(Unfreeze(actor=ANN, freeze_no=number, reason="mended"))


@pytest.mark.parametrize("scope", FreezeScope)
def test_nothing_that_is_frozen_is_dispatched_until_the_freeze_is_lifted(scope: FreezeScope, world: World) -> None:
    agent = world.name("agent")
    tool = world.name("tool")
    first = world.held(agent=agent)
    intend(first, "1", tool=tool, service="bank")
    world.store.do(EndAttempt(**first.by, step="1", answer=Answer.AMBIGUOUS))
    new = Intend(**first.by, step="2", call=call("2", tool=tool, service="bank"), worker="w")
    again = StartAttempt(**first.by, step="1", worker="w")
    with frozen(world, freeze_of(scope, tool, agent)):
        for dispatch in (new, again):
            error = recipes.check_refused(world, dispatch, Frozen, match=f"frozen by {BOB}: it sends nonsense")
            assert isinstance(error, Frozen)
            assert (error.scope, error.name) == (scope, freeze_of(scope, tool, agent).name)
    world.store.do(new)
    world.store.do(again)


@pytest.mark.parametrize("scope", [FreezeScope.TOOL, FreezeScope.AGENT, FreezeScope.SERVICE])
def test_what_is_not_frozen_goes_on(scope: FreezeScope, world: World) -> None:
    h = world.held(agent=world.name("agent"))
    with frozen(world, freeze_of(scope, world.name("tool"), world.name("agent"))):
        write(h, "1")
        write(h, "2", tool="bank", service="shop")


def test_what_was_called_before_a_freeze_is_settled_during_it(world: World) -> None:
    scene = recipes.pending(world)
    with frozen(world, freeze_of(FreezeScope.EVERYTHING, "", "")):
        world.store.do(Settle(**scene.by, step="1", outcome=O.SUCCEEDED, answer=Answer.ACKNOWLEDGED))


# --- late evidence -----------------------------------------------------------------------------------------------


def test_late_evidence_needs_no_fence_and_changes_nothing_but_the_flag(world: World) -> None:
    scene = recipes.operation_succeeded(world)
    h = scene.h
    assert h is not None
    before = operation_of(world, h)
    late = AppendLateEvidence(actor="worker:old", run_id=h.run_id, step="1", data={"answer": "paid"})
    world.store.do(late)
    assert operation_of(world, h) == before
    event = world.last_event(h.run_id)
    assert (event.kind, event.actor, event.data) == ("late_evidence", "worker:old", {"answer": "paid"})
    late = AppendLateEvidence(actor="worker:old", run_id=h.run_id, step="1", data={}, duplicate_suspected=True)
    seq = world.store.do(late).seq
    assert operation_of(world, h) == before | {"duplicate_suspected": 1, "touched": seq}


def test_a_person_clears_a_suspected_duplicate_even_in_a_run_that_has_ended(world: World) -> None:
    scene = recipes.operation_succeeded(world)
    h = scene.h
    assert h is not None
    finish(h)
    recipes.suspected(scene)
    assert operation_of(world, h)["duplicate_suspected"] == 1
    world.store.do(DismissDuplicate(actor=ANN, run_id=h.run_id, step="1", reason="one invoice only"))
    assert operation_of(world, h)["duplicate_suspected"] == 0
    assert world.last_event(h.run_id).data == {"action": "dismiss_duplicate", "reason": "one invoice only"}
    again = DismissDuplicate(actor=ANN, run_id=h.run_id, step="1", reason="one invoice only")
    recipes.check_refused(world, again, PreconditionFailed, match="no duplicate")


# --- compensation ------------------------------------------------------------------------------------------------

UNSETTLED = {"pending": recipes.pending, "unknown": recipes.unknown, "awaiting_approval": recipes.awaiting}


@pytest.mark.parametrize("status", UNSETTLED)
def test_what_may_still_happen_cannot_be_undone(status: str, world: World) -> None:
    scene = UNSETTLED[status](world)
    undo = BeginCompensation(**scene.by, scope="run", steps=["1"], cause="it failed")
    recipes.check_refused(world, undo, PreconditionFailed, match=f"#1 is {status}")


def test_what_was_never_called_cannot_be_undone(world: World) -> None:
    h = world.held()
    undo = BeginCompensation(**h.by, scope="run", steps=["1"], cause="it failed")
    recipes.check_refused(world, undo, NotFound, match="no operation at step 1")


def test_scope_operations_and_cause_are_committed_before_anything_is_undone(world: World) -> None:
    h = world.held()
    for step in ("1", "2"):
        write(h, step, scope="billing")
    begin = BeginCompensation(**h.by, scope="billing", steps=["2", "1"], cause="step 3 failed", then="failed")
    world.store.do(begin)
    event = world.last_event(h.run_id)
    assert (event.kind, event.data) == (
        "compensation",
        {"scope": "billing", "steps": ["2", "1"], "cause": "step 3 failed", "then": "failed"},
    )
    assert h.run["status"] == "compensating"
    for step in ("2", "1"):
        intend(h, f"c{step}", tool="refund", compensates=step)
        succeed(h, f"c{step}")
        row = operation_of(world, h, step)
        assert (row["status"], row["compensated_by"]) == ("compensated", f"c{step}")
    world.store.do(EndCompensation(**h.by, outcome=RunStatus.COMPENSATED))
    assert (h.run["status"], h.run["worker"], h.run["finished_at"]) == ("compensated", None, world.clock.now)


def test_while_undoing_only_compensations_and_reads_are_called(world: World) -> None:
    scene = recipes.compensating(world)
    forward = Intend(**scene.by, step="2", call=call("2"), worker="w")
    recipes.check_refused(world, forward, PreconditionFailed, match="only compensations")
    look = Intend(**scene.by, step="3", call=call("3", effect=Effect.READ), worker="w")
    world.store.do(look)


def test_only_what_succeeded_is_undone_and_only_once(world: World) -> None:
    scene = recipes.operation_compensated(world)
    twice = Intend(**scene.by, step="c2", call=call("c2", compensates="1"), worker="w")
    recipes.check_refused(world, twice, PreconditionFailed, match="is compensated")
    failed = recipes.operation_failed(world)
    world.store.do(BeginCompensation(**failed.by, scope="run", steps=["1"], cause="x"))
    nothing = Intend(**failed.by, step="c1", call=call("c1", compensates="1"), worker="w")
    recipes.check_refused(world, nothing, PreconditionFailed, match="is failed")
    missing = Intend(**failed.by, step="c9", call=call("c9", compensates="9"), worker="w")
    recipes.check_refused(world, missing, PreconditionFailed, match="not there")


def test_a_compensation_that_fails_leaves_the_operation_as_it_was_and_asks_a_person(world: World) -> None:
    scene = recipes.compensating(world)
    h = scene.h
    assert h is not None
    intend(h, "c1", tool="refund", compensates="1")
    world.store.do(Settle(**h.by, step="c1", outcome=O.FAILED, answer=Answer.REJECTED))
    assert operation_of(world, h)["status"] == "succeeded"
    world.store.do(EndCompensation(**h.by, outcome=RunStatus.NEEDS_OPERATOR, detail="the bank said no"))
    run = h.run
    assert (run["status"], run["why"], run["why_detail"], run["resume_to"]) == (
        *("needs_operator", "compensation_failed", "the bank said no", "compensating"),
    )


def test_a_compensation_does_not_end_with_operations_in_the_air_except_for_a_person_to_look_at(world: World) -> None:
    scene = recipes.compensating(world)
    h = scene.h
    assert h is not None
    lose_track(h, "c1", tool="refund", compensates="1")
    for outcome in (RunStatus.COMPENSATED, RunStatus.RUNNING):
        recipes.check_refused(world, EndCompensation(**h.by, outcome=outcome), PreconditionFailed, match="1 unknown")
    world.store.do(EndCompensation(**h.by, outcome=RunStatus.NEEDS_OPERATOR, detail="look"))
    happened = RecordHappened(actor=ANN, run_id=h.run_id, step="c1", reason="seen", evidence="refund 9")
    world.store.do(happened)
    assert operation_of(world, h)["status"] == "compensated"


def test_a_transaction_that_was_undone_lets_the_run_go_on(world: World) -> None:
    scene = recipes.operation_compensated(world)
    world.store.do(EndCompensation(**scene.by, outcome=RunStatus.RUNNING))
    h = scene.h
    assert h is not None
    assert (h.run["status"], h.run["worker"]) == ("running", "w")
    write(h, "2")
    finish(h)


@pytest.mark.parametrize("wrong", [RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.WAITING])
def test_a_compensation_ends_in_one_of_three_ways(wrong: RunStatus, world: World) -> None:
    scene = recipes.compensating(world)
    recipes.check_refused(
        world, EndCompensation(**scene.by, outcome=wrong), PreconditionFailed, match="does not end as"
    )


def test_policy_denies_without_a_call_and_says_why(world: World) -> None:
    scene = recipes.denied(world)
    h = scene.h
    assert h is not None
    row = operation_of(world, h)
    assert (row["status"], row["error"], row["attempts"]) == ("denied", "policy", 0)
    data = world.last_event(h.run_id).data
    assert (data["verdict"], data["rule"], data["reason"]) == ("deny", "never", "policy")
    finish(h)
