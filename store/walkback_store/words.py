"""The vocabulary: one word per thing, the same in tables, JSON, screens and docs."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run stands. A run is claimable while it is running or compensating and no live worker holds it."""

    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    NEEDS_OPERATOR = "needs_operator"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OperationStatus(StrEnum):
    """What is known about one tool call."""

    AWAITING_APPROVAL = "awaiting_approval"
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DENIED = "denied"
    COMPENSATED = "compensated"


class ApprovalStatus(StrEnum):
    """An approval is asked once; a later ask for the same operation is a new approval."""

    ASKED = "asked"
    GIVEN = "given"
    REFUSED = "refused"
    EXPIRED = "expired"
    CONSUMED = "consumed"


class DecisionStatus(StrEnum):
    """A person's decision that causes an effect waits until `not_before`, and can be taken back until then."""

    WAITING = "waiting"
    TAKEN_BACK = "taken_back"
    CARRIED_OUT = "carried_out"
    EXPIRED = "expired"


class WorkerStatus(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"
    LOST = "lost"


class BatchStatus(StrEnum):
    OPEN = "open"
    STOPPED = "stopped"
    DONE = "done"


class Why(StrEnum):
    """Why a run needs an operator. There is always exactly one."""

    UNKNOWN = "unknown"
    DUPLICATE_SUSPECTED = "duplicate_suspected"
    DIVERGED = "diverged"
    DRIFT = "drift"
    COMPENSATION_FAILED = "compensation_failed"
    BUDGET_SPENT = "budget_spent"
    REVIEW = "review"


class Kind(StrEnum):
    """The kinds of event."""

    RUN_STARTED = "run_started"
    RUN_FINISHED = "run_finished"
    LEASE = "lease"
    PLAN = "plan"
    STEP = "step"
    WAIT = "wait"
    SIGNAL = "signal"
    OBSERVATION = "observation"
    DECISION = "decision"
    POLICY_CHECK = "policy_check"
    APPROVAL_ASKED = "approval_asked"
    APPROVAL_GIVEN = "approval_given"
    APPROVAL_REFUSED = "approval_refused"
    APPROVAL_EXPIRED = "approval_expired"
    INTENT = "intent"
    ATTEMPT = "attempt"
    TOOL_RESULT = "tool_result"
    VERIFICATION = "verification"
    OUTCOME = "outcome"
    SNAPSHOT = "snapshot"
    COMPENSATION = "compensation"
    RECOVERY = "recovery"
    LATE_EVIDENCE = "late_evidence"
    NEEDS_OPERATOR = "needs_operator"
    OPERATOR_ACTION = "operator_action"
    STORE = "store"


AUDIT_KINDS = frozenset(Kind) - {Kind.OBSERVATION, Kind.DECISION, Kind.TOOL_RESULT, Kind.SNAPSHOT, Kind.STEP}
"""Kinds whose bodies `prune` keeps. The bodies of the others are reduced to their digest; the chain stays whole."""


class Effect(StrEnum):
    READ = "read"
    WRITE = "write"


class Answer(StrEnum):
    """What the other side said to an attempt."""

    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"
    AMBIGUOUS = "ambiguous"
    NONE = "none"


class Evidence(StrEnum):
    """What reading the world again showed."""

    HAPPENED = "happened"
    ABSENT = "absent"
    ABSENT_SO_FAR = "absent_so_far"
    CANNOT_TELL = "cannot_tell"
    PARTIAL = "partial"


class FreezeScope(StrEnum):
    TOOL = "tool"
    AGENT = "agent"
    SERVICE = "service"
    EVERYTHING = "everything"


class Durability(StrEnum):
    """STRICT survives power loss. RELAXED survives kill -9 of a worker, and nothing more."""

    STRICT = "strict"
    RELAXED = "relaxed"


class Role(StrEnum):
    """What a person may do; each may do what those before it may. Compare with `allows`: they are not in text order."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Whether somebody with this role may do what needs that one."""
        order = list(Role)
        return order.index(self) >= order.index(needed)

    @property
    def called(self) -> str:
        return f"{'a' if self is Role.VIEWER else 'an'} {self.value}"


LIVE = frozenset({RunStatus.RUNNING, RunStatus.COMPENSATING})
"""Statuses in which a worker may hold a run."""

FINISHED = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.COMPENSATED})
"""Statuses a run can be pruned from."""
