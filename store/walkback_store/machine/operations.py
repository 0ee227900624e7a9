"""The life of one tool call: asked for, intended, attempted, verified, settled, undone.

An operation is named by its run and step. What it was called with and what it answered are in its events, whole; the
row holds what lists and decisions need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from walkback_store.errors import KeyConflict, NotFound, PreconditionFailed, StopRequested
from walkback_store.log import Draft, Row
from walkback_store.machine.base import ANYONE, LEAVES_WORKER, NONE, STORE, UNCHANGED, Load, OnRun, View, is_name
from walkback_store.machine.gates import check_freezes, check_identity, owner_status, place_of
from walkback_store.machine.runs import (
    NO_WHY,
    approval_key,
    check_carried_out,
    check_settled,
    ended,
    give_up_decision,
    latest_approval,
    moved_on,
    started_step,
    stop_requested,
)
from walkback_store.values import encode
from walkback_store.words import (
    LIVE,
    Answer,
    ApprovalStatus,
    DecisionStatus,
    Effect,
    Evidence,
    Kind,
    OperationStatus,
    RunStatus,
    Why,
    WorkerStatus,
)

O = OperationStatus  # noqa: E741
R = RunStatus
COUNTED = {O.AWAITING_APPROVAL: "awaiting_operations", O.PENDING: "pending_operations", O.UNKNOWN: "unknown_operations"}
"""The counters on a run's row; a run cannot end while one of them is not zero."""


@dataclass(kw_only=True, slots=True)
class OnOperation(OnRun):
    """A transition of one operation."""

    subject: ClassVar = "operation"

    step: str

    def loads(self) -> Iterable[Load]:
        return (("operations", self.run_id, self.step),)

    def _live_run(self, view: View) -> Row:
        return self._check_run(view, LIVE)

    def _operation(self, view: View) -> Row:
        operation = view.row("operations", self.run_id, self.step)
        if operation is None:
            raise NotFound(f"run {self.run_id!r} has no operation at step {self.step}. Nothing was changed.")
        if operation["status"] not in self.sources:
            raise self._illegal(f"operation {self.run_id}#{self.step}", operation["status"])
        self._check_seen(view, operation["touched"], f"operation {self.run_id}#{self.step}")
        return operation


def counts(run: Row, before: str | None, after: str) -> dict[str, Any]:
    """How the run's counters of operations that are not settled change."""
    changed: dict[str, Any] = {}
    if before != after:
        for status, by in ((before, -1), (after, 1)):
            if status in COUNTED:
                changed[COUNTED[O(status)]] = run[COUNTED[O(status)]] + by
    return changed


@dataclass(kw_only=True, slots=True)
class Call:
    """What is called: the contract and the arguments, as recorded in the intent and in an approval request."""

    tool: str
    tool_version: str = "1"
    effect: Effect = Effect.WRITE
    service: str | None = None
    args: object = None
    args_hash: str
    """`values.fingerprint` of the normalised arguments."""
    key: str | None = None
    key_until: int | None = None
    identity: str | None = None
    description: str | None = None
    stake: str | None = None
    stake_value: float | None = None
    can_verify: bool = False
    compensate: str | None = None
    scope: str | None = None
    compensates: str | None = None
    preconditions: object = None
    expects: object = None

    def columns(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "tool": self.tool,
            "tool_version": self.tool_version,
            "effect": self.effect,
            "args_hash": self.args_hash,
        }
        for name in (
            "service", "key", "key_until", "identity", "description", "stake", "stake_value", "compensate", "scope",
            "compensates",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                row[name] = value
        if self.can_verify:
            row["can_verify"] = 1
        return row

    def facts(self) -> dict[str, Any]:
        data: dict[str, Any] = {"args": self.args}
        if self.preconditions is not None:
            data["preconditions"] = self.preconditions
        if self.expects is not None:
            data["expects"] = self.expects
        return data

    def owned(self) -> Iterable[Load]:
        """The row that says who owns its identity."""
        if self.identity is not None and self.compensates is None and is_name(self.identity):
            yield ("identities", STORE, self.identity)


def check_owned(t: AskApproval | Intend, view: View) -> None:
    """An identity can be taken over while its owner is denied, and that may be asked about once more."""
    if t.call.compensates is None:
        check_identity(view, t.call.identity, t.run_id, t.step)


def check_same_call(t: AskApproval | Intend, operation: Row, args_hash: str) -> None:
    if (args_hash, operation["tool"]) != (t.call.args_hash, t.call.tool):
        raise KeyConflict(
            f"step {t.step} of run {t.run_id!r} is recorded as {operation['tool']} with arguments {args_hash[:12]}, "
            f"not {t.call.tool} with {t.call.args_hash[:12]}. Nothing was called."
        )


def check_own(run_id: str, operation: Row) -> None:
    """What an operation only refers to is undone where it was done."""
    if operation["refers_to"] is not None:
        raise PreconditionFailed(
            f"{run_id}#{operation['step']} called nothing: its outcome is that of {operation['refers_to']}, which owns "
            "it, and only there is it undone. Nothing was changed."
        )


def check_direction(run_id: str, run: Row, effect: str, compensates: str | None) -> None:
    """A run either goes forward or is undone; a read changes nothing, and may be made either way."""
    undoing = run["status"] == R.COMPENSATING
    if undoing and effect == Effect.WRITE and compensates is None:
        raise PreconditionFailed(f"run {run_id!r} is compensating; only compensations are called now.")
    if not undoing and compensates is not None:
        raise PreconditionFailed(
            f"run {run_id!r} is not compensating: begin a compensation, which says of what, first."
        )


@dataclass(kw_only=True, slots=True)
class AskApproval(OnOperation):
    """A person must agree before the call is made; bound to a digest of exactly what they will be shown."""

    sources: ClassVar = (NONE, O.PENDING, O.DENIED)
    targets: ClassVar = (O.AWAITING_APPROVAL,)
    also: ClassVar = {"approval": ((NONE, ApprovalStatus.ASKED),)}
    kind: ClassVar = Kind.APPROVAL_ASKED
    needs: ClassVar = (
        "no attempt is running; it is the same call; an earlier approval has expired (one that was refused is not "
        "asked again); nobody else owns its identity"
    )

    call: Call
    digest: str
    rule: str
    role: str | None = None
    expires_at: int | None = None
    shown: object = None

    def loads(self) -> Iterable[Load]:
        yield ("operations", self.run_id, self.step)
        yield ("approvals", self.run_id, approval_key(self.step, 1))
        yield from self.call.owned()

    def _check_may_ask_again(self, view: View, operation: Row, approval: Row | None) -> None:
        over = approval is not None and (
            approval["status"] == ApprovalStatus.EXPIRED
            or (
                approval["status"] != ApprovalStatus.REFUSED
                and approval["expires_at"] is not None
                and approval["expires_at"] <= view.now
            )
        )
        if over or (approval is None and operation["status"] == O.PENDING):
            return
        said = "policy said no" if approval is None else f"approval {approval['n']} is {approval['status']}"
        raise PreconditionFailed(
            f"{self.run_id}#{self.step} is not asked about again: {said}, and has not expired. Nothing was changed."
        )

    def decide(self, view: View) -> list[Draft]:
        run = self._live_run(view)
        check_carried_out(self, run)
        operation = view.row("operations", self.run_id, self.step)
        approval = latest_approval(view, self.run_id, self.step)
        if operation is not None:
            self._operation(view)
            check_same_call(self, operation, operation["args_hash"])
            check_no_attempt_runs(self.run_id, operation)
            self._check_may_ask_again(view, operation, approval)
        check_owned(self, view)
        n = 1 if approval is None else approval["n"] + 1
        data, of_run, of_steps = self._boundary(view, run)
        row: dict[str, Any] = {"status": O.AWAITING_APPROVAL}
        if operation is None:
            row |= self.call.columns() | {"started_at": view.now}
            of_steps[self.step] = started_step(view, run, of_run, self.step, "call", self.call.tool)
            of_run |= moved_on(run, self.step)
        elif operation["status"] == O.DENIED:
            row |= {"ended_at": None, "error": None}
            of_steps[self.step] = of_steps.get(self.step, {}) | {"status": "running", "ended_at": None}
        of_run |= counts(run, None if operation is None else operation["status"], O.AWAITING_APPROVAL)
        asked = {
            "status": ApprovalStatus.ASKED,
            "digest": self.digest,
            "rule": self.rule,
            "role": self.role,
            "asked_at": view.now,
            "expires_at": self.expires_at,
        }
        sets = {
            "runs": {"": of_run},
            "steps": of_steps,
            "operations": {self.step: row},
            "approvals": {approval_key(self.step, n): asked},
        }
        facts = {**data, **self.call.facts(), "digest": self.digest, "rule": self.rule, "shown": self.shown}
        return [Draft(Kind.APPROVAL_ASKED, facts, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class DenyOperation(OnOperation):
    """Policy says no. Nothing was called, and the agent is told why."""

    sources: ClassVar = (NONE,)
    targets: ClassVar = (O.DENIED,)
    kind: ClassVar = Kind.POLICY_CHECK

    call: Call
    rule: str
    reason: str

    def decide(self, view: View) -> list[Draft]:
        run = self._live_run(view)
        if view.row("operations", self.run_id, self.step) is not None:
            self._operation(view)
        data, of_run, of_steps = self._boundary(view, run)
        step = started_step(view, run, of_run, self.step, "call", self.call.tool)
        step |= {"status": "failed", "ended_at": view.now}
        row = self.call.columns() | {
            "status": O.DENIED, "started_at": view.now, "ended_at": view.now, "error": self.reason,
        }  # fmt: skip
        sets = {
            "runs": {"": of_run | moved_on(run, self.step)},
            "steps": {**of_steps, self.step: step},
            "operations": {self.step: row},
        }
        facts = {**data, **self.call.facts(), "verdict": "deny", "rule": self.rule, "reason": self.reason}
        return [Draft(Kind.POLICY_CHECK, facts, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class Intend(OnOperation):
    """The write-ahead record, with the first attempt: committed before the call is made. A read's is relaxed."""

    sources: ClassVar = (NONE, O.AWAITING_APPROVAL)
    targets: ClassVar = (O.PENDING,)
    also: ClassVar = {
        "approval": ((ApprovalStatus.GIVEN, ApprovalStatus.CONSUMED),),
        "decision": ((DecisionStatus.WAITING, DecisionStatus.CARRIED_OUT),),
    }
    dispatches: ClassVar = True
    kind: ClassVar = Kind.INTENT
    needs: ClassVar = (
        "nobody asked the run to pause or cancel; nothing that applies is frozen; an approval that was asked for is "
        "given for this digest, not expired, and its waiting time is over; the step was not recorded as another call; "
        "nobody else owns its identity; a run that is compensating, and no other, calls compensations, each of an "
        "operation of its own that has succeeded and that no other undoes"
    )

    call: Call
    worker: str
    deadline: int | None = None
    digest: str | None = None

    @property
    def strict(self) -> bool:
        return self.call.effect == Effect.WRITE

    def loads(self) -> Iterable[Load]:
        yield ("operations", self.run_id, self.step)
        if self.digest is not None:
            yield ("approvals", self.run_id, approval_key(self.step, 1))
        if self.call.compensates is not None:
            yield ("operations", self.run_id, self.call.compensates)
        yield from self.call.owned()

    def decide(self, view: View) -> list[Draft]:
        run = self._live_run(view)
        call = self.call
        operation = view.row("operations", self.run_id, self.step)
        sets: dict[str, Any] = {}
        if operation is not None:
            approval = latest_approval(view, self.run_id, self.step)
            check_same_call(self, operation, (approval and approval["edited_hash"]) or operation["args_hash"])
            self._operation(view)
            sets |= self._consumed(view)
        check_carried_out(self, run)
        if stop_requested(run):
            raise StopRequested(
                f"run {self.run_id!r} was asked to {'pause' if run['pause_requested'] else 'cancel'}. {call.tool!r} "
                "was not called; stop the run at this boundary."
            )
        check_direction(self.run_id, run, call.effect, call.compensates)
        check_owned(self, view)
        undone = None if call.compensates is None else self._undoable(view, call.compensates)
        check_freezes(view, call.tool, run["agent"], call.service, place_of(self.run_id, self.step))
        data, of_run, of_steps = self._boundary(view, run)
        seq = run["head_seq"] + 1
        n = 1 if operation is None else operation["attempts"] + 1
        row = call.columns() | {"status": O.PENDING, "attempts": n, "attempting": 1, "intent_seq": seq}
        if operation is not None:
            row |= no_evidence(operation)
        if operation is None:
            row["started_at"] = view.now
            of_steps[self.step] = started_step(view, run, of_run, self.step, "call", call.tool)
            of_run |= moved_on(run, self.step)
        of_run |= counts(run, None if operation is None else operation["status"], O.PENDING)
        sets["runs"] = {"": of_run}
        if of_steps:
            sets["steps"] = of_steps
        sets["operations"] = {self.step: row}
        if undone is not None and undone["compensated_by"] != self.step:
            sets["operations"][undone["step"]] = {"compensated_by": self.step}
        sets["attempts"] = {f"{self.step}/{n}": attempt_started(view, self.worker, self.deadline)}
        return [Draft(Kind.INTENT, {**data, **call.facts()}, sets, self.step)]

    def _undoable(self, view: View, step: str) -> Row:
        undone = view.row("operations", self.run_id, step)
        found = undone["status"] if undone is not None else "not there"
        by = undone["compensated_by"] if undone is not None else None
        if (
            found == O.SUCCEEDED and by is not None and by != self.step
        ):  # one that failed or was denied leaves it to another
            earlier = view.row("operations", self.run_id, by)
            if earlier is not None and earlier["status"] not in {O.FAILED, O.DENIED}:
                found = f"being undone by step {by}, which is {earlier['status']}"
        if undone is None or found != O.SUCCEEDED:
            raise PreconditionFailed(
                f"{self.run_id}#{step} is {found}: only what succeeded is undone, and only once. Nothing was called."
            )
        check_own(self.run_id, undone)
        return undone

    def _consumed(self, view: View) -> dict[str, Any]:
        approval = latest_approval(view, self.run_id, self.step)
        if approval is None or approval["status"] != ApprovalStatus.GIVEN:
            raise PreconditionFailed(
                f"{self.run_id}#{self.step} has no approval that is given (it is "
                f"{approval['status'] if approval else 'not asked'}). Nothing was called."
            )
        check_approval_holds(view, approval, self.digest, f"{self.run_id}#{self.step}")
        done = {"status": DecisionStatus.CARRIED_OUT, "ended_at": view.now, "ended_by": self.actor}
        return {
            "approvals": {approval_key(self.step, approval["n"]): {"status": ApprovalStatus.CONSUMED}},
            "decisions": {str(approval["touched"]): done},  # the event that gave it recorded the decision
        }


def check_approval_holds(view: View, approval: Row, digest: str | None, what: str) -> None:
    if (approval["edited_digest"] or approval["digest"]) != digest:
        raise PreconditionFailed(f"the approval of {what} was given for something else. Nothing was called.")
    if approval["expires_at"] is not None and approval["expires_at"] <= view.now:
        raise PreconditionFailed(f"the approval of {what} has expired. Nothing was called; ask again.")
    if approval["not_before"] is not None and approval["not_before"] > view.now:
        raise PreconditionFailed(f"the approval of {what} can still be taken back. Nothing was called; wait.")


def no_evidence(operation: Row) -> dict[str, Any]:
    """What was seen before an attempt says nothing about it."""
    return {} if operation["evidence"] is None else {"evidence": None, "evidence_at": None}


def attempt_started(view: View, worker: str, deadline: int | None) -> dict[str, Any]:
    row = {"status": "running", "worker": worker, "started_at": view.now}
    return row if deadline is None else row | {"deadline": deadline}


def check_no_attempt_runs(run_id: str, operation: Row) -> None:
    if operation["attempting"]:
        raise PreconditionFailed(
            f"attempt {operation['attempts']} of {run_id}#{operation['step']} has not ended. There is one live attempt "
            "per operation; end or abandon it first."
        )


def check_attempt_runs(run_id: str, operation: Row) -> None:
    if not operation["attempting"]:
        raise PreconditionFailed(
            f"no attempt of {run_id}#{operation['step']} is running, so none can have answered. Nothing was changed."
        )


@dataclass(kw_only=True, slots=True)
class StartAttempt(OnOperation):
    """Another attempt of the same operation, with the same key."""

    sources: ClassVar = (O.PENDING,)
    targets: ClassVar = (O.PENDING,)
    dispatches: ClassVar = True
    kind: ClassVar = Kind.ATTEMPT
    needs: ClassVar = (
        "no attempt is running; nothing that applies is frozen; its approval, if any, has not expired; the run still "
        "goes its way, forward or undoing"
    )

    worker: str
    deadline: int | None = None
    proven: bool = True
    """Nothing of the attempts before it can have happened."""

    def decide(self, view: View) -> list[Draft]:
        run = self._live_run(view)
        operation = self._operation(view)
        check_no_attempt_runs(self.run_id, operation)
        check_carried_out(self, run)
        check_direction(self.run_id, run, operation["effect"], operation["compensates"])
        place = place_of(self.run_id, self.step)
        check_freezes(view, operation["tool"], run["agent"], operation["service"], place)
        approval = latest_approval(view, self.run_id, self.step)
        if approval is not None and approval["expires_at"] is not None and approval["expires_at"] <= view.now:
            raise PreconditionFailed(f"the approval of {self.run_id}#{self.step} has expired; ask again.")
        n = operation["attempts"] + 1
        sets = {
            "operations": {self.step: {"attempts": n, "attempting": 1} | no_evidence(operation)},
            "attempts": {f"{self.step}/{n}": attempt_started(view, self.worker, self.deadline)},
        }
        return [Draft(Kind.ATTEMPT, {"n": n, "proven": self.proven}, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class EndAttempt(OnOperation):
    """What an attempt answered, verbatim; or that it was abandoned: its process is dead, or its bound has passed."""

    sources: ClassVar = (O.PENDING,)
    targets: ClassVar = (O.PENDING,)
    kind: ClassVar = Kind.TOOL_RESULT
    needs: ClassVar = "the attempt is running; to abandon it, its worker is gone or its deadline has passed"

    answer: Answer
    output: object = None
    error_class: str | None = None
    error: str | None = None
    abandoned: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)

    def decide(self, view: View) -> list[Draft]:
        self._live_run(view)
        operation = self._operation(view)
        check_attempt_runs(self.run_id, operation)
        if self.abandoned:
            self._check_over(view, operation["attempts"])
        status = "abandoned" if self.abandoned else "ended"
        return [attempt_ended(self, view, operation["attempts"], status)]

    def _check_over(self, view: View, n: int) -> None:
        """It can do nothing any more: who made it is gone, or its time is up."""
        attempt = view.row("attempts", self.run_id, f"{self.step}/{n}") or {}
        worker = view.row("workers", STORE, attempt["worker"])
        gone = worker is None or worker["status"] != WorkerStatus.ALIVE
        if not gone and (attempt["deadline"] is None or attempt["deadline"] > view.now):
            raise PreconditionFailed(
                f"attempt {n} of {self.run_id}#{self.step} may still be under way: {attempt['worker']} is alive, and "
                "its deadline has not passed. Wait for one of the two."
            )


def attempt_ended(t: EndAttempt | Settle, view: View, n: int, status: str = "ended") -> Draft:
    row: dict[str, Any] = {"status": status, "answer": t.answer, "ended_at": view.now}
    facts: dict[str, Any] = {"answer": t.answer, "n": n, "output": t.output, **t.data}
    if t.error_class is not None:
        row |= {"error_class": t.error_class, "error": t.error}
        facts |= {"error_class": t.error_class, "error": t.error}
    sets = {"attempts": {f"{t.step}/{n}": row}, "operations": {t.step: {"attempting": 0}}}
    return Draft(Kind.TOOL_RESULT, facts, sets, t.step)


@dataclass(kw_only=True, slots=True)
class RecordVerification(OnOperation):
    """What reading the world again showed. It is evidence, not yet an outcome."""

    sources: ClassVar = (O.PENDING, O.UNKNOWN)
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.VERIFICATION

    evidence: Evidence
    found: object = None

    def decide(self, view: View) -> list[Draft]:
        self._live_run(view)
        self._operation(view)
        return [verified(self, view)]


def verified(t: RecordVerification | Settle, view: View) -> Draft:
    row = {"evidence": t.evidence, "evidence_at": view.now}
    facts = {"evidence": t.evidence} if t.found is None else {"evidence": t.evidence, "found": t.found}
    return Draft(Kind.VERIFICATION, facts, {"operations": {t.step: row}}, t.step)


@dataclass(kw_only=True, slots=True)
class RecordRecovery(OnOperation):
    """The four questions asked of the record when an operation is found in flight, and their answers."""

    sources: ClassVar = (O.PENDING, O.UNKNOWN)
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.RECOVERY

    attempted: str
    acknowledged: str
    proven: str
    retry_safe: str
    verdict: str

    def decide(self, view: View) -> list[Draft]:
        self._live_run(view)
        self._operation(view)
        answers = {k: getattr(self, k) for k in ("attempted", "acknowledged", "proven", "retry_safe", "verdict")}
        return [Draft(Kind.RECOVERY, answers, {}, self.step)]


@dataclass(kw_only=True, slots=True)
class Settle(OnOperation):
    """The outcome, with the answer and the evidence it rests on, in one commit. Only then does the run move on."""

    sources: ClassVar = (O.PENDING, O.UNKNOWN)
    targets: ClassVar = (O.SUCCEEDED, O.FAILED, O.UNKNOWN)
    also: ClassVar = {"operation": ((O.SUCCEEDED, O.COMPENSATED),)}
    kind: ClassVar = Kind.OUTCOME
    needs: ClassVar = "an answer is that of the attempt that is running; without one, none is left running"

    outcome: OperationStatus
    result: object = None
    answer: Answer | None = None
    output: object = None
    evidence: Evidence | None = None
    found: object = None
    error_class: str | None = None
    error: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def kinds(cls) -> frozenset[Kind]:
        return frozenset({Kind.TOOL_RESULT, Kind.VERIFICATION, Kind.OUTCOME})

    @property
    def strict(self) -> bool:
        return True

    def loads(self) -> Iterable[Load]:
        return (("operations", self.run_id, self.step),)

    def decide(self, view: View) -> list[Draft]:
        run = self._live_run(view)
        operation = self._operation(view)
        if self.outcome not in self.targets:
            raise PreconditionFailed(f"{self.outcome!r} is not an outcome; it is one of {', '.join(self.targets)}.")
        drafts = []
        if self.answer is not None:
            check_attempt_runs(self.run_id, operation)
            drafts.append(attempt_ended(self, view, operation["attempts"]))
        elif self.outcome != O.UNKNOWN:
            check_no_attempt_runs(self.run_id, operation)
        if self.evidence is not None:
            drafts.append(verified(self, view))
        data, of_run, of_steps = self._boundary(view, run)
        of_run |= counts(run, operation["status"], self.outcome)
        if run["crashes"]:
            of_run["crashes"] = 0
        seq = run["head_seq"] + len(drafts) + 1
        row: dict[str, Any] = {"status": self.outcome, "outcome_seq": seq, "ended_at": view.now}
        if operation["verify_requested"]:
            row["verify_requested"] = 0
        if self.error_class is not None:
            row |= {"error_class": self.error_class, "error": self.error}
        rows = {self.step: row}
        if self.outcome == O.SUCCEEDED and operation["compensates"] is not None:
            rows[operation["compensates"]] = {"status": O.COMPENSATED, "compensated_by": self.step}
        step = of_steps.setdefault(self.step, {})
        step |= {"status": self.outcome, "ended_at": view.now}
        if "after" not in step:
            step["after"] = of_run.get("last_snapshot", run["last_snapshot"])
        facts: dict[str, Any] = {**data, "outcome": self.outcome}
        if self.result is not None:
            facts["result"] = self.result
        sets: dict[str, Any] = {"operations": rows, "steps": of_steps}
        if of_run:
            sets["runs"] = {"": of_run}
        drafts.append(Draft(Kind.OUTCOME, facts, sets, self.step))
        return drafts


@dataclass(kw_only=True, slots=True)
class Refer(OnOperation):
    """Nothing is called: another operation has done exactly this, and its outcome is this one's too. Never undone."""

    sources: ClassVar = (NONE,)
    targets: ClassVar = (O.SUCCEEDED,)
    kind: ClassVar = Kind.OUTCOME
    needs: ClassVar = "the identity is owned by that operation, which was the same call and has succeeded"

    call: Call
    identity: str
    owner: tuple[str, str]
    """The run and step of the operation that did it."""
    result: object = None

    def loads(self) -> Iterable[Load]:
        yield ("operations", self.run_id, self.step)
        yield ("operations", *self.owner)
        if is_name(self.identity):
            yield ("identities", STORE, self.identity)

    def decide(self, view: View) -> list[Draft]:
        run = self._live_run(view)
        call = self.call
        if view.row("operations", self.run_id, self.step) is not None:
            self._operation(view)
        check_carried_out(self, run)
        check_direction(self.run_id, run, call.effect, call.compensates)
        refers_to = place_of(*self.owner)
        self._check_done(view, refers_to)
        data, of_run, of_steps = self._boundary(view, run)
        step = started_step(view, run, of_run, self.step, "call", call.tool)
        step |= {"status": "succeeded", "ended_at": view.now, "after": step["before"]}
        row = call.columns() | {
            "identity": self.identity, "status": O.SUCCEEDED, "refers_to": refers_to, "started_at": view.now,
            "ended_at": view.now, "outcome_seq": run["head_seq"] + 1,
        }  # fmt: skip
        row.pop("compensate", None)
        if run["crashes"]:
            of_run["crashes"] = 0
        sets = {
            "runs": {"": of_run | moved_on(run, self.step)},
            "steps": {**of_steps, self.step: step},
            "operations": {self.step: row},
        }
        facts = {**data, "outcome": O.SUCCEEDED, "refers_to": refers_to, "result": self.result, **call.facts()}
        return [Draft(Kind.OUTCOME, facts, sets, self.step)]

    def _check_done(self, view: View, refers_to: str) -> None:
        identity = view.row("identities", STORE, self.identity) if is_name(self.identity) else None
        if identity is None or (identity["run_id"], identity["step"]) != tuple(self.owner):
            owned = "nobody" if identity is None else place_of(identity["run_id"], identity["step"])
            raise PreconditionFailed(
                f"{self.identity!r} is owned by {owned}, not by {refers_to}. Nothing was changed; claim it."
            )
        if (identity["tool"], identity["args_hash"]) != (self.call.tool, self.call.args_hash):
            raise KeyConflict(f"{refers_to} did {self.identity!r} with another call than this. Nothing was changed.")
        status = owner_status(view, identity)
        if status != O.SUCCEEDED:
            raise PreconditionFailed(f"{refers_to} is {status}, and has no outcome to refer to. Nothing was changed.")


@dataclass(kw_only=True, slots=True)
class AppendLateEvidence(OnOperation):
    """What a late or fenced-off attempt learned. The one unfenced append: it raises a flag and changes nothing else."""

    sources: ClassVar = tuple(sorted(O))
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.LATE_EVIDENCE
    by: ClassVar = ANYONE

    data: Mapping[str, Any]
    duplicate_suspected: bool = False

    def decide(self, view: View) -> list[Draft]:
        self._run(view)
        self._operation(view)
        sets: dict[str, Any] = {}
        if self.duplicate_suspected:
            sets = {"operations": {self.step: {"duplicate_suspected": 1}}}
        return [Draft(Kind.LATE_EVIDENCE, self.data, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class CarryOutRetry(OnOperation):
    """A person's word "it did not happen: try again", once its waiting time is over."""

    sources: ClassVar = (O.UNKNOWN,)
    targets: ClassVar = (O.PENDING,)
    also: ClassVar = {"decision": ((DecisionStatus.WAITING, DecisionStatus.CARRIED_OUT),)}
    kind: ClassVar = Kind.RECOVERY
    needs: ClassVar = "a retry decision that waits, and is due"

    decision: int

    def decide(self, view: View) -> list[Draft]:
        run = self._live_run(view)
        operation = self._operation(view)
        sets = {
            "decisions": carried_out(self, view, self.decision, "retry", self.step),
            "operations": {self.step: {"status": O.PENDING, "ended_at": None}},
            "runs": {"": counts(run, operation["status"], O.PENDING) | NO_WHY | {"decision": None}},
        }
        return [Draft(Kind.RECOVERY, {"decision": self.decision, "verdict": "retry"}, sets, self.step)]


def carried_out(
    t: OnRun, view: View, seq: int, action: str, step: str | None = None, what: str | None = None
) -> dict[str, Any]:
    decision = view.row("decisions", t.run_id, str(seq))
    if decision is None or decision["action"] != action:
        raise NotFound(f"run {t.run_id!r} has no {action} decision {seq}.")
    if (decision["step"], decision["what"]) != (step, what):
        raise PreconditionFailed(f"decision {seq} of run {t.run_id!r} is about something else. Nothing was changed.")
    if decision["status"] != DecisionStatus.WAITING:
        raise PreconditionFailed(f"decision {seq} of run {t.run_id!r} is {decision['status']}, not waiting.")
    if decision["not_before"] > view.now:
        raise PreconditionFailed(f"decision {seq} of run {t.run_id!r} can still be taken back; wait.")
    return {str(seq): {"status": DecisionStatus.CARRIED_OUT, "ended_at": view.now, "ended_by": t.actor}}


# --- compensation ------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class BeginCompensation(OnRun):
    """Scope, operations and cause are committed before the first of them is undone."""

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (R.COMPENSATING,)
    also: ClassVar = {"decision": ((DecisionStatus.WAITING, DecisionStatus.CARRIED_OUT),)}
    kind: ClassVar = Kind.COMPENSATION
    needs: ClassVar = (
        "nothing in the run is pending or awaits approval, and nothing in scope is unknown or only refers to what "
        "another did; an operator's decision, if any, is due and is about exactly this"
    )

    scope: str
    steps: Sequence[str]
    cause: str
    decision: int | None = None
    then: str = "running"
    """What the run is to do when all of it is undone; for whoever carries it out, and not checked here."""

    def loads(self) -> Iterable[Load]:
        return [("operations", self.run_id, step) for step in self.steps]

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        if self.decision is None:
            check_carried_out(self, run)
        for step in self.steps:
            operation = view.row("operations", self.run_id, step)
            if operation is None:
                raise NotFound(f"run {self.run_id!r} has no operation at step {step}.")
            if operation["status"] in {O.PENDING, O.UNKNOWN, O.AWAITING_APPROVAL}:
                raise PreconditionFailed(
                    f"{self.run_id}#{step} is {operation['status']}: what may still happen cannot be undone. Settle it "
                    "first; nothing was changed."
                )
            check_own(self.run_id, operation)
        if run["pending_operations"] or run["awaiting_operations"]:
            raise PreconditionFailed(
                f"run {self.run_id!r} has operations that are pending or await approval, so it is not at a boundary. "
                "Settle them first; nothing was changed."
            )
        undoing = encode(list(self.steps)).decode()
        sets: dict[str, Any] = {"runs": {"": {"status": R.COMPENSATING, "undoing": undoing}}}
        if self.decision is not None:
            what = to_compensate(self.scope, self.steps)
            sets["decisions"] = carried_out(self, view, self.decision, "compensate", what=what)
            sets["runs"][""] |= NO_WHY | {"finished_at": None, "decision": None}
        data = {"scope": self.scope, "steps": list(self.steps), "cause": self.cause, "then": self.then}
        return [Draft(Kind.COMPENSATION, data, sets)]


def to_compensate(scope: str, steps: Sequence[str]) -> str:
    """What a decision to compensate is about, to be compared with what is done."""
    return encode([scope, list(steps)]).decode()


@dataclass(kw_only=True, slots=True)
class EndCompensation(OnRun):
    """Everything in scope is undone, or a person has to look. Back to running when only a transaction was undone."""

    sources: ClassVar = (R.COMPENSATING,)
    targets: ClassVar = (R.RUNNING, R.COMPENSATED, R.NEEDS_OPERATOR)
    also: ClassVar = {"decision": ((DecisionStatus.WAITING, DecisionStatus.EXPIRED),)}
    kind: ClassVar = Kind.COMPENSATION
    needs: ClassVar = (
        "every operation is settled and no decision is left to carry out, except when a person has to look"
    )

    outcome: RunStatus
    detail: str = ""
    step: str | None = None
    """The compensation that failed, when a person has to look."""

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        if self.outcome not in self.targets:
            raise PreconditionFailed(f"a compensation does not end as {self.outcome!r}.")
        data, of_run, of_steps = self._boundary(view, run)
        of_run |= {"status": self.outcome}
        given_up: dict[str, Any] = {}
        if self.outcome == R.NEEDS_OPERATOR:
            given_up = give_up_decision(self, view, run, of_run)
            of_run |= LEAVES_WORKER | {
                "why": Why.COMPENSATION_FAILED,
                "why_detail": self.detail,
                "why_step": self.step,
                "why_since": view.now,
                "resume_to": R.COMPENSATING,
            }
        else:
            check_carried_out(self, run)
            check_settled(self, run)
            self._check_undone(view, run)
            of_run |= NO_WHY | {"undoing": None}
            if self.outcome == R.COMPENSATED:
                of_run |= ended(run, R.COMPENSATED, view.now)
        sets: dict[str, Any] = {"runs": {"": of_run}, **given_up}
        if of_steps:
            sets["steps"] = of_steps
        return [Draft(Kind.COMPENSATION, {**data, "ended": self.outcome, "detail": self.detail}, sets, self.step)]

    def _check_undone(self, view: View, run: Row) -> None:
        left = [
            step
            for step in orjson.loads(run["undoing"] or "[]")
            if (view.row("operations", self.run_id, step) or {}).get("status") == O.SUCCEEDED
        ]
        if left:
            raise PreconditionFailed(
                f"run {self.run_id!r} is not compensated: {', '.join(left)} still stands. Undo it, or ask a person."
            )


__all__ = [
    "AppendLateEvidence",
    "AskApproval",
    "BeginCompensation",
    "Call",
    "CarryOutRetry",
    "DenyOperation",
    "EndAttempt",
    "EndCompensation",
    "Intend",
    "RecordRecovery",
    "RecordVerification",
    "Refer",
    "Settle",
    "StartAttempt",
]
