"""What people decide. A decision that causes an effect waits until `not_before` and can be taken back until then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from walkback_store.errors import NotFound, PreconditionFailed
from walkback_store.log import Draft, Row
from walkback_store.machine.base import NONE, OPERATOR, STORE, SYSTEM, UNCHANGED, Load, OnRun, View, require_reason
from walkback_store.machine.operations import OnOperation, carried_out, check_own, counts, to_compensate
from walkback_store.machine.roles import check_role
from walkback_store.machine.runs import (
    DECISION,
    NO_WAIT,
    NO_WHY,
    approval_key,
    check_settled,
    in_doubt,
    lapsed,
    latest_approval,
    never_called,
    stopped,
    waits_for_decision,
    woken,
)
from walkback_store.words import (
    ApprovalStatus,
    BatchStatus,
    DecisionStatus,
    Kind,
    OperationStatus,
    Role,
    RunStatus,
    Why,
)

A = ApprovalStatus
D = DecisionStatus
O = OperationStatus  # noqa: E741
R = RunStatus

REGRET = 10_000_000
"""Ten seconds in which a decision that causes an effect can be taken back."""

_ROLES = frozenset(Role)
NOT_STOPPED = tuple(sorted(set(R) - {R.SUCCEEDED, R.CANCELLED, R.COMPENSATED, R.FAILED}))


def waiting_decision(t: OnRun, view: View, action: str, regret: int, step: str | None, batch: int | None) -> Row:
    row = {
        "action": action,
        "status": D.WAITING,
        "by": t.actor,
        "not_before": view.now + regret,
        "decided_at": view.now,
    }
    if step is not None:
        row["step"] = step
    return row if batch is None else row | {"batch": batch}


def decided(run: Row, view: View, regret: int) -> dict[str, Any]:
    """The run is woken when the decision is due. All else stays, so taking it back only has to restore the status."""
    return {
        "status": R.WAITING,
        "waits_for": f"{DECISION}{run['status']}",
        "wake_at": view.now + regret,
        "decision": run["head_seq"] + 1,
    }


NEVER_CALLED = tuple((O.AWAITING_APPROVAL, status) for status in (O.DENIED, O.FAILED, O.UNKNOWN))
"""Denied; or, when an earlier attempt was made, failed if it is known to have come to nothing, and unknown if not."""
WAKES = {"run": ((R.WAITING, R.RUNNING), (R.WAITING, R.COMPENSATING))}


# --- approvals ---------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class OnApproval(OnRun):
    subject: ClassVar = "approval"
    by: ClassVar = OPERATOR
    needs_role: ClassVar = Role.APPROVER

    step: str
    n: int = 1

    def loads(self) -> Iterable[Load]:
        return (("operations", self.run_id, self.step), ("approvals", self.run_id, approval_key(self.step, self.n)))

    def _approval(self, view: View) -> tuple[Row, Row, Row]:
        run = self._run(view)
        approval = view.row("approvals", self.run_id, approval_key(self.step, self.n))
        operation = view.row("operations", self.run_id, self.step)
        if approval is None or operation is None:
            raise NotFound(f"no approval {self.n} was asked for {self.run_id}#{self.step}.")
        if self.by == OPERATOR and approval["role"] in _ROLES:  # a role of somebody else's making is only shown
            check_role(self, view, Role(approval["role"]))
        if approval["status"] not in self.sources:
            who = approval["decided_by"]
            detail = f"{who} decided it: {approval['reason'] or 'no reason given'}." if who else ""
            raise self._illegal(f"approval {self.run_id}#{self.step}/{self.n}", approval["status"], detail)
        self._check_seen(view, approval["touched"], f"approval {self.run_id}#{self.step}/{self.n}")
        return run, operation, approval

    def _ended(self, run: Row, operation: Row) -> dict[str, Any]:
        row = counts(run, operation["status"], never_called(operation))
        return row | woken(run) if run["status"] == R.WAITING and not waits_for_decision(run) else row


@dataclass(kw_only=True, slots=True)
class Approve(OnApproval):
    """A person agrees to what the digest names, or to arguments they edited. It can be taken back for a while."""

    sources: ClassVar = (A.ASKED,)
    targets: ClassVar = (A.GIVEN,)
    also: ClassVar = {"decision": ((NONE, D.WAITING),)}
    kind: ClassVar = Kind.APPROVAL_GIVEN
    needs: ClassVar = "the digest is the one asked about; it has not expired; the role that was asked for"

    digest: str
    reason: str = ""
    edited_args: object = None
    edited_hash: str | None = None
    edited_digest: str | None = None
    regret: int = REGRET

    def decide(self, view: View) -> list[Draft]:
        run, _, approval = self._approval(view)
        if approval["digest"] != self.digest:
            raise PreconditionFailed("what you saw is not what was asked for. Nothing was approved; look again.")
        if approval["expires_at"] is not None and approval["expires_at"] <= view.now:
            raise PreconditionFailed("this approval has expired. Nothing was approved; it will be asked again.")
        due = view.now + self.regret
        if approval["expires_at"] is not None and due >= approval["expires_at"]:
            raise PreconditionFailed(
                "it would expire before it could be carried out. Nothing was approved; regret less."
            )
        row: dict[str, Any] = {
            "status": A.GIVEN,
            "decided_by": self.actor,
            "decided_at": view.now,
            "reason": self.reason,
            "not_before": due,
        }
        data: dict[str, Any] = {"n": self.n, "digest": self.digest, "reason": self.reason}
        if (self.edited_hash is None) != (self.edited_digest is None):
            raise PreconditionFailed("edited arguments come with their hash and their digest. Nothing was approved.")
        if self.edited_hash is not None:
            edited = {"edited_hash": self.edited_hash, "edited_digest": self.edited_digest}
            row |= edited
            data |= {"edited_args": self.edited_args, **edited}
        sets: dict[str, Any] = {
            "approvals": {approval_key(self.step, self.n): row},
            "decisions": {
                str(run["head_seq"] + 1): waiting_decision(self, view, "approve", self.regret, self.step, None)
            },
        }
        if run["status"] == R.WAITING and not waits_for_decision(run):
            sets["runs"] = {"": {"wake_at": due if run["wake_at"] is None else min(due, run["wake_at"])}}
        return [Draft(Kind.APPROVAL_GIVEN, data, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class Refuse(OnApproval):
    """A person says no: it is not called, or not called again. The agent gets the reason."""

    sources: ClassVar = (A.ASKED,)
    targets: ClassVar = (A.REFUSED,)
    also: ClassVar = {**WAKES, "operation": NEVER_CALLED}
    kind: ClassVar = Kind.APPROVAL_REFUSED
    needs: ClassVar = "a reason; the role that was asked for"

    reason: str

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        run, operation, _ = self._approval(view)
        row = {"status": A.REFUSED, "decided_by": self.actor, "decided_at": view.now, "reason": self.reason}
        sets: dict[str, Any] = {
            "approvals": {approval_key(self.step, self.n): row},
            "operations": {self.step: {"status": never_called(operation), "ended_at": view.now, "error": self.reason}},
            "steps": {self.step: {"status": "failed", "ended_at": view.now}},
            "runs": {"": self._ended(run, operation)},
        }
        return [Draft(Kind.APPROVAL_REFUSED, {"n": self.n, "reason": self.reason}, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class ExpireApproval(OnApproval):
    """Nobody decided in time: it is not called, or not called again. The agent is told, and may ask again."""

    sources: ClassVar = (A.ASKED, A.GIVEN)
    targets: ClassVar = (A.EXPIRED,)
    also: ClassVar = {
        **WAKES,
        "operation": NEVER_CALLED,
        "decision": ((D.WAITING, D.EXPIRED),),
    }
    kind: ClassVar = Kind.APPROVAL_EXPIRED
    by: ClassVar = SYSTEM
    needs: ClassVar = "its time is up"

    def decide(self, view: View) -> list[Draft]:
        run, operation, approval = self._approval(view)
        if approval["expires_at"] is None or approval["expires_at"] > view.now:
            raise PreconditionFailed(f"approval {self.run_id}#{self.step}/{self.n} has not expired yet.")
        sets: dict[str, Any] = {
            "approvals": {approval_key(self.step, self.n): {"status": A.EXPIRED}},
            "operations": {
                self.step: {"status": never_called(operation), "ended_at": view.now, "error": "the approval expired"}
            },
            "steps": {self.step: {"status": "failed", "ended_at": view.now}},
            "runs": {"": self._ended(run, operation)},
        }
        if approval["status"] == A.GIVEN:
            sets["decisions"] = lapsed(self, view, approval)
        return [Draft(Kind.APPROVAL_EXPIRED, {"n": self.n}, sets, self.step)]


# --- an operation whose outcome is unknown -----------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class OnUnknown(OnOperation):
    """A person's word on an unknown. The run moves on when none is left."""

    sources: ClassVar = (O.UNKNOWN,)
    by: ClassVar = OPERATOR
    kind: ClassVar = Kind.OPERATOR_ACTION
    also: ClassVar = {"run": ((R.NEEDS_OPERATOR, R.RUNNING), (R.NEEDS_OPERATOR, R.COMPENSATING))}

    reason: str
    batch: int | None = None

    def _parked(self, view: View) -> tuple[Row, Row]:
        require_reason(self.reason)
        run = self._check_run(view, (R.NEEDS_OPERATOR,))
        return run, self._operation(view)

    def _facts(self, action: str, **more: object) -> dict[str, Any]:
        facts = {"action": action, "reason": self.reason, **more}
        return facts if self.batch is None else facts | {"batch": self.batch}

    def _resolved(self, run: Row, operation: Row, after: str) -> dict[str, Any]:
        row = counts(run, operation["status"], after)
        if row.get("unknown_operations", run["unknown_operations"]) == 0 and run["why"] == Why.UNKNOWN:
            row |= {**NO_WHY, "status": run["resume_to"] or R.RUNNING}
        return row


@dataclass(kw_only=True, slots=True)
class RecordHappened(OnUnknown):
    """It happened: the person gives the result and the evidence, and the run goes on with that result."""

    targets: ClassVar = (O.SUCCEEDED,)
    needs: ClassVar = "a reason and evidence"

    evidence: str
    result: object = None

    def decide(self, view: View) -> list[Draft]:
        if not self.evidence.strip():
            raise PreconditionFailed("say what shows that it happened; it is stored as the evidence.")
        run, operation = self._parked(view)
        rows: dict[str, Any] = {
            self.step: {
                "status": O.SUCCEEDED, "evidence": "happened", "evidence_at": view.now,
                "outcome_seq": run["head_seq"] + 1, "ended_at": view.now,
            }
        }  # fmt: skip
        if operation["compensates"] is not None:
            rows[operation["compensates"]] = {"status": O.COMPENSATED, "compensated_by": self.step}
        sets = {
            "operations": rows,
            "steps": {self.step: {"status": "succeeded", "ended_at": view.now}},
            "runs": {"": self._resolved(run, operation, O.SUCCEEDED)},
        }
        facts = self._facts("it_happened", result=self.result, evidence=self.evidence)
        return [Draft(Kind.OPERATOR_ACTION, facts, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class RecordAbsent(OnUnknown):
    """It did not happen, and is not to be tried again: the agent sees a failure."""

    targets: ClassVar = (O.FAILED,)
    needs: ClassVar = "a reason"

    def decide(self, view: View) -> list[Draft]:
        run, operation = self._parked(view)
        sets = {
            "operations": {
                self.step: {
                    "status": O.FAILED, "evidence": "absent", "evidence_at": view.now, "error": self.reason,
                    "outcome_seq": run["head_seq"] + 1, "ended_at": view.now,
                }
            },
            "steps": {self.step: {"status": "failed", "ended_at": view.now}},
            "runs": {"": self._resolved(run, operation, O.FAILED)},
        }  # fmt: skip
        return [Draft(Kind.OPERATOR_ACTION, self._facts("it_did_not_happen"), sets, self.step)]


@dataclass(kw_only=True, slots=True)
class DecideRetry(OnUnknown):
    """It did not happen, try again. Waits until `not_before`; a worker carries it out."""

    targets: ClassVar = (O.UNKNOWN,)
    also: ClassVar = {"run": ((R.NEEDS_OPERATOR, R.WAITING),), "decision": ((NONE, D.WAITING),)}
    needs: ClassVar = "a reason; no other decision waits; in a batch, that it is this one's turn"

    regret: int = REGRET

    def decide(self, view: View) -> list[Draft]:
        run, _ = self._parked(view)
        if self.batch is not None:
            released_member(view, self.batch, self.run_id, self.step)
        seq = run["head_seq"] + 1
        sets = {
            "decisions": {str(seq): waiting_decision(self, view, "retry", self.regret, self.step, self.batch)},
            "runs": {"": decided(run, view, self.regret)},
        }
        return [Draft(Kind.OPERATOR_ACTION, self._facts("retry"), sets, self.step)]


def released_member(view: View, batch_no: int, run_id: str, step: str) -> Row:
    """The batch, when it is open, of retries, and this is the member that was released last."""
    batch = view.row("batches", STORE, str(batch_no))
    if batch is None:
        raise NotFound(f"there is no batch {batch_no}. Nothing was decided.")
    member = view.row("batch_members", STORE, f"{batch_no}/{batch['released']}") or {}
    if (batch["status"], batch["action"]) != (BatchStatus.OPEN, "retry"):
        raise PreconditionFailed(f"batch {batch_no} is {batch['status']}, of {batch['action']}. Nothing was decided.")
    if (member.get("run_id"), member.get("step")) != (run_id, step):
        raise PreconditionFailed(f"it is not the turn of {run_id}#{step} in batch {batch_no}. Nothing was decided.")
    return batch


@dataclass(kw_only=True, slots=True)
class RetryMember(OnOperation):
    """What a person decided about all members of a batch, for the one whose turn it is: try again, at once.

    A worker asks for it, in the name of the person who opened the batch. Their role was looked at then, and what can be
    taken back is the batch.
    """

    sources: ClassVar = (O.UNKNOWN,)
    targets: ClassVar = (O.UNKNOWN,)
    also: ClassVar = DecideRetry.also
    by: ClassVar = SYSTEM
    kind: ClassVar = Kind.OPERATOR_ACTION
    needs: ClassVar = "it was released last in an open batch of retries, which the actor opened; once for each member"

    batch: int

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view, (R.NEEDS_OPERATOR,))
        self._operation(view)
        batch = released_member(view, self.batch, self.run_id, self.step)
        if self.actor != batch["by"]:
            raise PreconditionFailed(f"batch {self.batch} is {batch['by']}'s, not {self.actor}'s. Nothing was decided.")
        if any(row["step"] == self.step for row in view.decided_in(self.run_id, self.batch)):
            raise PreconditionFailed(f"batch {self.batch} has retried {self.run_id}#{self.step}. Nothing was decided.")
        seq = run["head_seq"] + 1
        sets = {
            "decisions": {str(seq): waiting_decision(self, view, "retry", 0, self.step, self.batch)},
            "runs": {"": decided(run, view, 0)},
        }
        facts = {"action": "retry", "reason": batch["reason"], "batch": self.batch}
        return [Draft(Kind.OPERATOR_ACTION, facts, sets, self.step)]


@dataclass(kw_only=True, slots=True)
class DismissDuplicate(OnOperation):
    """A person looked: there is no second effect, or it is taken care of. The suspicion is over, its record stays."""

    sources: ClassVar = tuple(sorted(O))
    targets: ClassVar = (UNCHANGED,)
    by: ClassVar = OPERATOR
    kind: ClassVar = Kind.OPERATOR_ACTION
    needs: ClassVar = "a reason; a duplicate is suspected"

    reason: str

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        self._run(view)
        if not self._operation(view)["duplicate_suspected"]:
            raise PreconditionFailed(f"no duplicate of {self.run_id}#{self.step} is suspected. Nothing was changed.")
        facts = {"action": "dismiss_duplicate", "reason": self.reason}
        return [Draft(Kind.OPERATOR_ACTION, facts, {"operations": {self.step: {"duplicate_suspected": 0}}}, self.step)]


@dataclass(kw_only=True, slots=True)
class RequestVerify(OnUnknown):
    """Look again: a worker runs the tool's verify once more and settles by what it finds."""

    targets: ClassVar = (O.UNKNOWN,)
    needs: ClassVar = "the tool can verify"

    reason: str = "verify again"

    def decide(self, view: View) -> list[Draft]:
        run, operation = self._parked(view)
        if not operation["can_verify"]:
            raise PreconditionFailed(f"{operation['tool']} has no verify: only a person can find out what happened.")
        sets = {
            "operations": {self.step: {"verify_requested": 1}},
            "runs": {"": {**NO_WHY, "status": run["resume_to"] or R.RUNNING}},
        }
        return [Draft(Kind.OPERATOR_ACTION, self._facts("verify_again"), sets, self.step)]


# --- runs --------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class OperatorOnRun(OnRun):
    by: ClassVar = OPERATOR
    kind: ClassVar = Kind.OPERATOR_ACTION

    reason: str


@dataclass(kw_only=True, slots=True)
class DecideCompensate(OperatorOnRun):
    """Undo an operation, a transaction, everything after a step, or the run. Waits; a worker carries it out."""

    sources: ClassVar = (R.NEEDS_OPERATOR, R.PAUSED, R.SUCCEEDED, R.FAILED, R.CANCELLED, R.COMPENSATED)
    targets: ClassVar = (R.WAITING,)
    also: ClassVar = {"decision": ((NONE, D.WAITING),)}
    needs: ClassVar = "a reason; every operation of the run is settled; none of the steps only refers to another's"

    scope: str
    steps: Sequence[str]
    regret: int = REGRET

    def loads(self) -> Iterable[Load]:
        return [("operations", self.run_id, step) for step in self.steps]

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        run = self._check_run(view)
        check_settled(self, run)
        for step in self.steps:
            operation = view.row("operations", self.run_id, step)
            if operation is not None:
                check_own(self.run_id, operation)
        what = to_compensate(self.scope, self.steps)
        seq = run["head_seq"] + 1
        sets = {
            "decisions": {
                str(seq): waiting_decision(self, view, "compensate", self.regret, None, None) | {"what": what}
            },
            "runs": {"": decided(run, view, self.regret)},
        }
        data = {"action": "compensate", "reason": self.reason, "scope": self.scope, "steps": list(self.steps)}
        return [Draft(Kind.OPERATOR_ACTION, data, sets)]


@dataclass(kw_only=True, slots=True)
class TakeBack(OperatorOnRun):
    """A decision that still waits is undone by a new event; the run stands where it stood before."""

    subject: ClassVar = "decision"
    sources: ClassVar = (D.WAITING,)
    targets: ClassVar = (D.TAKEN_BACK,)
    also: ClassVar = {
        "run": tuple(
            (R.WAITING, status)
            for status in (R.NEEDS_OPERATOR, R.PAUSED, R.SUCCEEDED, R.FAILED, R.CANCELLED, R.COMPENSATED)
        ),
        "approval": ((A.GIVEN, A.ASKED),),
    }
    needs: ClassVar = "nothing was carried out yet"

    decision: int

    def loads(self) -> Iterable[Load]:
        return (("decisions", self.run_id, str(self.decision)),)

    def decide(self, view: View) -> list[Draft]:
        run = self._run(view)
        decision = view.row("decisions", self.run_id, str(self.decision))
        if decision is None:
            raise NotFound(f"run {self.run_id!r} has no decision {self.decision}.")
        if decision["status"] != D.WAITING:
            detail = f"It ended at {decision['ended_at']} by {decision['ended_by']}; compensation is what is left."
            raise self._illegal(f"decision {self.run_id}@{self.decision}", decision["status"], detail)
        sets: dict[str, Any] = {
            "decisions": {
                str(self.decision): {"status": D.TAKEN_BACK, "ended_at": view.now, "ended_by": self.actor},
            }
        }
        if decision["action"] == "approve":
            approval = latest_approval(view, self.run_id, decision["step"])
            if approval is None or approval["status"] != A.GIVEN:
                found = approval["status"] if approval is not None else "gone"
                raise PreconditionFailed(f"the approval is {found}; it cannot be taken back any more.")
            undone = ("decided_by", "decided_at", "reason", "not_before", "edited_hash", "edited_digest")
            key = approval_key(decision["step"], approval["n"])
            sets["approvals"] = {key: {"status": A.ASKED, **dict.fromkeys(undone)}}
            if run["status"] == R.WAITING and not waits_for_decision(run):
                sets["runs"] = {"": {"wake_at": view.now}}  # its worker finds out what there is to wait for now
        elif waits_for_decision(run):
            status = run["waits_for"].removeprefix(DECISION)
            sets["runs"] = {"": {**NO_WAIT, "status": status, "decision": None}}
        else:
            raise PreconditionFailed(f"a worker has claimed run {self.run_id!r} to carry this out; it is too late.")
        return [
            Draft(Kind.OPERATOR_ACTION, {"action": "take_back", "reason": self.reason, "decision": self.decision}, sets)
        ]


@dataclass(kw_only=True, slots=True)
class RequestCancel(OperatorOnRun):
    """A request: it takes effect at the next boundary, at once when nothing is under way. Approvals are withdrawn."""

    sources: ClassVar = NOT_STOPPED
    targets: ClassVar = (UNCHANGED, R.CANCELLED, R.RUNNING, R.COMPENSATING)
    moves: ClassVar = (
        *((source, R.CANCELLED) for source in (R.RUNNING, R.WAITING, R.PAUSED, R.NEEDS_OPERATOR)),
        *WAKES["run"],
    )
    also: ClassVar = {
        "operation": NEVER_CALLED[:2],
        "approval": ((A.ASKED, A.EXPIRED), (A.GIVEN, A.EXPIRED)),
        "decision": ((D.WAITING, D.EXPIRED),),
    }
    needs: ClassVar = "a reason; no decision of a person waits"

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        run = self._check_run(view)
        return [_requested(self, view, run, "cancel")]


@dataclass(kw_only=True, slots=True)
class RequestPause(OperatorOnRun):
    """A request: it takes effect at the next boundary, at once when nothing is under way."""

    sources: ClassVar = tuple(sorted(set(NOT_STOPPED) - {R.PAUSED}))
    targets: ClassVar = (UNCHANGED, R.PAUSED, R.RUNNING, R.COMPENSATING)
    moves: ClassVar = (*((source, R.PAUSED) for source in sources), *WAKES["run"])
    needs: ClassVar = "no decision of a person waits; no cancel was requested"

    reason: str = ""

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        return [_requested(self, view, run, "pause")]


def _requested(t: OperatorOnRun, view: View, run: Row, what: str) -> Draft:
    if waits_for_decision(run):
        raise PreconditionFailed(f"a decision about run {t.run_id!r} waits to be carried out. Take it back first.")
    if what == "pause" and run["cancel_requested"]:
        raise PreconditionFailed(f"run {t.run_id!r} is being cancelled already. Nothing was changed.")
    row: dict[str, Any] = {f"{what}_requested": 1}
    sets: dict[str, Any] = {"runs": {"": row}}
    if run["worker"] is None:
        under_way = run["pending_operations"] or run["decision"] is not None
        if what == "cancel":
            undoing = run["status"] == R.COMPENSATING or (
                run["status"] in {R.WAITING, R.PAUSED} and run["resume_to"] == R.COMPENSATING
            )
            under_way = under_way or run["unknown_operations"] or undoing
        if not under_way:
            if what == "pause" or not run["awaiting_operations"] or not in_doubt(view, t.run_id):
                sets = stopped(t, view, run | row)
        elif run["status"] == R.WAITING:  # a worker has to bring what is pending to an end
            row |= woken(run)
    return Draft(Kind.OPERATOR_ACTION, {"action": what, "reason": t.reason}, sets)


@dataclass(kw_only=True, slots=True)
class ResumeRun(OperatorOnRun):
    """The run goes on: after a pause, after a review, or again after a failure. Waits, for it may cause effects."""

    sources: ClassVar = (R.PAUSED, R.NEEDS_OPERATOR, R.FAILED)
    targets: ClassVar = (R.RUNNING, R.WAITING, R.COMPENSATING, R.NEEDS_OPERATOR)
    moves: ClassVar = (
        *((R.PAUSED, target) for target in (R.RUNNING, R.COMPENSATING, R.NEEDS_OPERATOR)),
        (R.NEEDS_OPERATOR, R.WAITING),
        (R.FAILED, R.WAITING),
    )
    also: ClassVar = {"decision": ((NONE, D.WAITING),)}
    needs: ClassVar = (
        "a reason, except after a pause; no operation is unknown (a paused run goes back to needs_operator)"
    )

    regret: int = REGRET

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        data = {"action": "resume", "reason": self.reason}
        if run["status"] == R.PAUSED:
            row: dict[str, Any] = {"status": R.NEEDS_OPERATOR}
            if run["why"] is None:
                row = {"status": run["resume_to"] or R.RUNNING, "resume_to": None}
            return [Draft(Kind.OPERATOR_ACTION, data, {"runs": {"": row}})]
        require_reason(self.reason)
        if run["unknown_operations"]:
            raise PreconditionFailed(
                f"run {self.run_id!r} has {run['unknown_operations']} unknown operations. Resolve each of them first."
            )
        seq = str(run["head_seq"] + 1)
        sets = {
            "decisions": {seq: waiting_decision(self, view, "resume", self.regret, None, None)},
            "runs": {"": decided(run, view, self.regret)},
        }
        return [Draft(Kind.OPERATOR_ACTION, data, sets)]


@dataclass(kw_only=True, slots=True)
class CarryOutResume(OnRun):
    """The claimed run goes on, as a person decided."""

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (UNCHANGED,)
    also: ClassVar = {"decision": ((D.WAITING, D.CARRIED_OUT),)}
    kind: ClassVar = Kind.RECOVERY
    needs: ClassVar = "a resume decision that waits, and is due"

    decision: int

    def decide(self, view: View) -> list[Draft]:
        self._check_run(view)
        sets: dict[str, Any] = {
            "decisions": carried_out(self, view, self.decision, "resume"),
            "runs": {"": NO_WHY | {"error_class": None, "fingerprint": None, "finished_at": None, "decision": None}},
        }
        return [Draft(Kind.RECOVERY, {"decision": self.decision, "verdict": "resume"}, sets)]


@dataclass(kw_only=True, slots=True)
class AddNote(OperatorOnRun):
    """Words for the next person; `owner` hands the run over, or takes it."""

    sources: ClassVar = tuple(sorted(R))
    targets: ClassVar = (UNCHANGED,)

    step: str | None = None
    owner: str | None = None
    disown: bool = False

    def decide(self, view: View) -> list[Draft]:
        self._check_run(view)
        require_reason(self.reason)
        data: dict[str, Any] = {"action": "note", "reason": self.reason}
        sets: dict[str, Any] = {}
        if self.owner is not None or self.disown:
            data |= {"action": "own", "owner": self.owner}
            sets = {"runs": {"": {"owner": self.owner}}}
        return [Draft(Kind.OPERATOR_ACTION, data, sets, self.step)]


__all__ = [
    "REGRET",
    "AddNote",
    "Approve",
    "CarryOutResume",
    "DecideCompensate",
    "DecideRetry",
    "DismissDuplicate",
    "ExpireApproval",
    "RecordAbsent",
    "RecordHappened",
    "Refuse",
    "RequestCancel",
    "RequestPause",
    "RequestVerify",
    "ResumeRun",
    "RetryMember",
    "TakeBack",
]
