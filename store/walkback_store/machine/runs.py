"""The life of a run: started, claimed, parked, finished; and the steps that are not tool calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from walkback_store.errors import (
    BreakerOpen,
    Frozen,
    NotFound,
    PreconditionFailed,
    Refused,
    RunExists,
    RunPruned,
    StaleFence,
)
from walkback_store.frames import unpack_body
from walkback_store.log import Draft, Row
from walkback_store.machine.base import (
    ANYONE,
    EPOCH_BITS,
    LEAVES_WORKER,
    NONE,
    STORE,
    SYSTEM,
    UNCHANGED,
    Load,
    OnRun,
    View,
    check_name,
)
from walkback_store.machine.gates import CLAIMED, FREEZE, IDENTITY, UNDECIDED, check_freezes, owner_status
from walkback_store.values import decode, encode, fingerprint
from walkback_store.words import (
    FINISHED,
    LIVE,
    ApprovalStatus,
    DecisionStatus,
    Durability,
    Evidence,
    Kind,
    OperationStatus,
    RunStatus,
    Why,
    WorkerStatus,
)

R = RunStatus


def fence_after(run: Row, epoch: int) -> int:
    return max(int(run["fence"]) + 1, (epoch << EPOCH_BITS) + 1)


def check_settled(transition: OnRun, run: Row) -> None:
    """No operation may be left in the air when a run ends."""
    left = {what: run[f"{what}_operations"] for what in ("awaiting", "pending", "unknown")}
    if any(left.values()):
        found = ", ".join(f"{n} {what}" for what, n in left.items() if n)
        raise PreconditionFailed(
            f"{type(transition).__name__}: run {transition.run_id!r} still has operations that are not settled "
            f"({found}). Settle them first; nothing was changed."
        )


@dataclass(kw_only=True, slots=True)
class StartRun(OnRun):
    """A run exists from here on and can be claimed. The same id with the same input is the same run."""

    sources: ClassVar = (NONE,)
    targets: ClassVar = (R.RUNNING,)
    kind: ClassVar = Kind.RUN_STARTED
    by: ClassVar = ANYONE
    needs: ClassVar = "the id was never used (a pruned id is refused); 1 to 200 printable characters"

    agent: str
    version: str = "1"
    input: object = None
    tags: Sequence[str] = ()
    parent: str | None = None
    fork_step: str | None = None
    fork_kind: str | None = None

    def decide(self, view: View) -> list[Draft]:
        run_id = self.run_id
        check_name("a run id", run_id)
        if run_id.startswith("@"):
            raise PreconditionFailed(f"{run_id!r} cannot be a run id: those that start with '@' are the store's own.")
        digest = fingerprint(self.input)
        run = view.run(run_id)
        if run is not None:
            if (run["agent"], run["input_digest"]) == (self.agent, digest):
                return []
            raise RunExists(
                f"run {run_id!r} exists already, for agent {run['agent']!r} with other input. Nothing was started; "
                "use another id, or the same input."
            )
        if view.tombstone(run_id):
            raise RunPruned(f"run {run_id!r} existed and was pruned. Ids are never used twice: choose another.")
        tags = sorted(set(self.tags))
        row: dict[str, Any] = {
            "run_id": run_id,
            "agent": self.agent,
            "agent_version": self.version,
            "status": R.RUNNING,
            "input_digest": digest,
            "created_at": view.now,
        }
        if tags:
            row["tags"] = encode(tags).decode()
        if self.parent is not None:
            row |= {"parent": self.parent, "fork_step": self.fork_step, "fork_kind": self.fork_kind}
        data: dict[str, Any] = {"input": self.input}
        if self.state is not None:
            origin = view.run(self.parent) if self.parent else None
            stand_in = {"run_no": view.next_run_no(), "snapshots": 0, "last_snapshot": None, "fork_of": origin}
            n, data["snapshot"] = view.snapshot(stand_in, run_id, self.state)
            row |= {"snapshots": n + 1, "last_snapshot": n}
        return [Draft(Kind.RUN_STARTED, data, {"runs": {"": row}})]


DECISION = "decision:"
"""What a run waits for after a decision; followed by the status it goes back to if that is taken back.

Only a run that waits for nothing else can be decided about, so nothing is lost by saying it there.
"""


def waits_for_decision(run: Row) -> bool:
    return run["status"] == R.WAITING and (run["waits_for"] or "").startswith(DECISION)


def check_carried_out(transition: OnRun, run: Row) -> None:
    """A worker that claimed a run because somebody decided does what was decided first."""
    if run["decision"] is not None:
        raise PreconditionFailed(
            f"{type(transition).__name__}: decision {run['decision']} about run {transition.run_id!r} was not carried "
            "out yet. Carry it out first, or say why a person is needed; nothing was changed."
        )


def give_up_decision(transition: OnRun, view: View, run: Row, of_run: dict[str, Any]) -> dict[str, Any]:
    """A person is asked again, so what was decided and not carried out is over."""
    if run["decision"] is None:
        return {}
    of_run["decision"] = None
    ended = {"status": DecisionStatus.EXPIRED, "ended_at": view.now, "ended_by": transition.actor}
    return {"decisions": {str(run["decision"]): ended}}


@dataclass(kw_only=True, slots=True)
class ClaimRun(OnRun):
    """The worker holds the run, with a new fence. A waiting run that is due runs again."""

    sources: ClassVar = (R.RUNNING, R.COMPENSATING, R.WAITING)
    targets: ClassVar = (UNCHANGED, R.RUNNING, R.COMPENSATING)
    moves: ClassVar = ((R.WAITING, R.RUNNING), (R.WAITING, R.COMPENSATING))
    kind: ClassVar = Kind.LEASE
    by: ClassVar = "worker (new fence)"
    needs: ClassVar = (
        "the worker is alive, and no other that is alive holds it; a waiting run is due; the store is adopted"
    )

    worker: str

    def loads(self) -> tuple[Load, ...]:
        return (("workers", STORE, self.worker),)

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        held = run["worker"]
        if not _alive(view, self.worker):
            raise StaleFence(f"worker {self.worker!r} was declared lost or never registered; stop, and register anew.")
        if held is not None and held != self.worker and _alive(view, held):
            raise PreconditionFailed(f"run {self.run_id!r} is held by worker {held!r}. Nothing was changed.")
        if run["status"] == R.WAITING and (run["wake_at"] is None or run["wake_at"] > view.now):
            raise PreconditionFailed(f"run {self.run_id!r} waits for {run['waits_for']!r} and is not due yet.")
        fence = fence_after(run, view.epoch)
        row: dict[str, Any] = {"worker": self.worker, "fence": fence}
        if held is not None and held != self.worker:
            row["crashes"] = run["crashes"] + 1
        if run["status"] == R.WAITING:
            row |= woken(run)
        data = {"worker": self.worker, "fence": fence, "taken_from": held}
        return [Draft(Kind.LEASE, data, {"runs": {"": row}})]

    def outdated(self, body: bytes, run: Row) -> Refused | None:
        given = decode(unpack_body(bytes(body)))["data"]["fence"]  # type: ignore[index]
        if run["fence"] == given:
            return None
        return StaleFence(f"run {self.run_id!r} was claimed with fence {given}, and has been taken over since.")


def _alive(view: View, worker: str) -> bool:
    row = view.row("workers", STORE, worker)
    return row is not None and row["status"] == WorkerStatus.ALIVE


@dataclass(kw_only=True, slots=True)
class ReleaseRun(OnRun):
    """The worker hands the run back; another may claim it at once."""

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.LEASE

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        data, of_run, of_steps = self._boundary(view, run)
        return [Draft(Kind.LEASE, data | {"released": run["worker"]}, _sets(of_run | LEAVES_WORKER, of_steps))]


def _sets(of_run: Mapping[str, Any], of_steps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    sets: dict[str, Any] = {"runs": {"": of_run}}
    if of_steps:
        sets["steps"] = of_steps
    return sets


@dataclass(kw_only=True, slots=True)
class DeclarePlan(OnRun):
    """The agent says which steps it means to take, so that "6 of 9" is known."""

    sources: ClassVar = (R.RUNNING,)
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.PLAN
    durability: ClassVar = Durability.RELAXED

    steps: Sequence[str]

    def decide(self, view: View) -> list[Draft]:
        self._check_run(view)
        plan = list(self.steps)
        return [Draft(Kind.PLAN, {"steps": plan}, {"runs": {"": {"plan": encode(plan).decode()}}})]


STEP_KINDS = {
    "observe": Kind.OBSERVATION,
    "decide": Kind.DECISION,
    "policy": Kind.POLICY_CHECK,
    "step": Kind.STEP,
}


@dataclass(kw_only=True, slots=True)
class RecordStep(OnRun):
    """A step with no tool call: an observation, a decision with its rationale, a policy check, a recorded value."""

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.STEP
    needs: ClassVar = "the step is new"
    durability: ClassVar = Durability.RELAXED

    step: str
    step_kind: str = "step"
    name: str
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def kinds(cls) -> frozenset[Kind]:
        return frozenset(STEP_KINDS.values())

    def loads(self) -> tuple[Load, ...]:
        return (("steps", self.run_id, self.step),)

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        check_carried_out(self, run)
        if view.row("steps", self.run_id, self.step) is not None:
            raise PreconditionFailed(f"step {self.step} of run {self.run_id!r} is recorded already.")
        data, of_run, of_steps = self._boundary(view, run)
        step = started_step(view, run, of_run, self.step, self.step_kind, self.name)
        step |= {"status": "succeeded", "ended_at": view.now, "after": step["before"]}
        return [
            Draft(
                STEP_KINDS.get(self.step_kind, Kind.STEP),
                {**self.data, **data},
                _sets(of_run | moved_on(run, self.step), {**of_steps, self.step: step}),
                self.step,
            )
        ]


def started_step(view: View, run: Row, of_run: Mapping[str, Any], step: str, kind: str, name: str) -> dict[str, Any]:
    check_name("a step", step)
    return {
        "kind": kind,
        "name": name,
        "status": "running",
        "first_seq": run["head_seq"] + 1,
        "started_at": view.now,
        "before": of_run.get("last_snapshot", run["last_snapshot"]),
    }


def moved_on(run: Row, step: str) -> dict[str, Any]:
    """The run's position after a new step; branches of a parallel block share their parent's number."""
    top = step.split(".", 1)[0].lstrip("c")
    position = int(top) if top.isdigit() else run["position"]
    return {"position": max(position, run["position"]), "steps": run["steps"] + 1, "last_step": step}


@dataclass(kw_only=True, slots=True)
class TakeSnapshot(OnRun):
    """The state at a boundary that no other transition carries."""

    sources: ClassVar = tuple(sorted(LIVE))
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.SNAPSHOT
    durability: ClassVar = Durability.RELAXED

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        data, of_run, of_steps = self._boundary(view, run)
        return [Draft(Kind.SNAPSHOT, data, _sets(of_run, of_steps))] if of_run else []


@dataclass(kw_only=True, slots=True)
class ParkRun(OnRun):
    """The run waits, and holds no worker: for a time, for `signal:NAME`, for `approval:STEP`, or for something else.

    What came just before it parked is not lost: then the run is due at once. One that waits for `freeze:NAME` or for
    `identity:TEXT` is woken by whoever looks after it, see `WakeRun`.
    """

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (R.WAITING,)
    kind: ClassVar = Kind.WAIT
    needs: ClassVar = "it says what it waits for; no decision of a person is left to carry out"

    waits_for: str
    wake_at: int | None = None
    known: int = 0
    """The last event that the worker has taken into account: what was decided before it wakes nobody again."""

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        check_carried_out(self, run)
        if not self.waits_for.strip() or self.waits_for.startswith(DECISION):
            raise PreconditionFailed(f"run {self.run_id!r} cannot wait for {self.waits_for!r}. Nothing was changed.")
        wake_at = min((at for at in (self.wake_at, *self._due(view, run)) if at is not None), default=None)
        data, of_run, of_steps = self._boundary(view, run)
        of_run |= LEAVES_WORKER | {"status": R.WAITING, "waits_for": self.waits_for, "wake_at": wake_at}
        if run["status"] == R.COMPENSATING:
            of_run["resume_to"] = R.COMPENSATING
        data |= {"waits_for": self.waits_for, "wake_at": wake_at}
        return [Draft(Kind.WAIT, data, _sets(of_run, of_steps))]

    def _due(self, view: View, run: Row) -> Iterator[int]:
        """When what has come already can be had: the signal, an approval, or the end that somebody asked for."""
        if stop_requested(run) and not run["pending_operations"]:
            yield view.now
        what, _, name = self.waits_for.partition(":")
        if what == "signal" and view.has_signal(self.run_id, name):
            yield view.now
        asked = view.awaiting(self.run_id) if run["awaiting_operations"] else []
        for step in {*asked, name} if what == "approval" else asked:
            approval = latest_approval(view, self.run_id, step)
            if approval is not None and approval["status"] != ApprovalStatus.ASKED and approval["touched"] > self.known:
                yield max(view.now, approval["not_before"] or 0)


@dataclass(kw_only=True, slots=True)
class WakeRun(OnRun):
    """What held the run up is gone: it can be claimed, and finds out by itself what to do next."""

    sources: ClassVar = (R.WAITING,)
    targets: ClassVar = (R.RUNNING, R.COMPENSATING)
    kind: ClassVar = Kind.WAIT
    by: ClassVar = SYSTEM
    needs: ClassVar = (
        "it waits for `freeze:NAME`, and nobody stops that tool, or that service, for its agent any more; or for "
        "`identity:TEXT`, which nobody owns, or whose owner's outcome is known"
    )

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        found = run["waits_for"]
        if found.startswith(FREEZE):
            name = found.removeprefix(FREEZE)
            try:
                check_freezes(view, name, run["agent"], name)
            except BreakerOpen as breaker:
                if breaker.until is None or breaker.until > view.now:  # later, the run itself may probe it
                    raise PreconditionFailed(f"run {self.run_id!r} goes on waiting: {breaker}") from breaker
            except Frozen as frozen:
                raise PreconditionFailed(f"run {self.run_id!r} goes on waiting: {frozen}") from frozen
        elif found.startswith(IDENTITY):
            self._check_decided(view, found.removeprefix(IDENTITY))
        else:
            raise PreconditionFailed(
                f"run {self.run_id!r} waits for {found!r}, which nobody can see. It was not woken."
            )
        return [Draft(Kind.WAIT, {"woken": found}, {"runs": {"": woken(run)}})]

    def _check_decided(self, view: View, identity: str) -> None:
        row = view.row("identities", STORE, identity)
        if row is None:
            return
        status = owner_status(view, row)
        if status == CLAIMED and row["run_id"] == self.run_id:  # nobody but this run can call
            return
        if status in UNDECIDED:
            raise PreconditionFailed(
                f"run {self.run_id!r} goes on waiting: {row['run_id']}#{row['step']}, which owns {identity!r}, is "
                f"{status}."
            )


@dataclass(kw_only=True, slots=True)
class NeedOperator(OnRun):
    """The run parks for a person, and says why. A decision that could not be carried out ends with that."""

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (R.NEEDS_OPERATOR,)
    also: ClassVar = {"decision": ((DecisionStatus.WAITING, DecisionStatus.EXPIRED),)}
    kind: ClassVar = Kind.NEEDS_OPERATOR
    needs: ClassVar = "a reason: " + ", ".join(Why)

    why: Why
    detail: str
    step: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        if self.why not in set(Why):
            raise PreconditionFailed(f"{self.why!r} is no reason to need an operator; it is one of {', '.join(Why)}.")
        data, of_run, of_steps = self._boundary(view, run)
        of_run |= LEAVES_WORKER | {
            "status": R.NEEDS_OPERATOR,
            "why": self.why,
            "why_detail": self.detail,
            "why_step": self.step,
            "why_since": view.now,
            "resume_to": run["status"],
        }
        data = {**self.data, **data, "why": self.why, "detail": self.detail}
        sets = _sets(of_run, of_steps) | give_up_decision(self, view, run, of_run)
        return [Draft(Kind.NEEDS_OPERATOR, data, sets, self.step)]


NO_WHY: dict[str, Any] = {"why": None, "why_detail": None, "why_step": None, "why_since": None, "resume_to": None}


@dataclass(kw_only=True, slots=True)
class FinishRun(OnRun):
    """The agent returned."""

    sources: ClassVar = (R.RUNNING,)
    targets: ClassVar = (R.SUCCEEDED,)
    kind: ClassVar = Kind.RUN_FINISHED
    needs: ClassVar = "every operation is settled; no decision of a person is left to carry out"

    output: object = None

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        check_carried_out(self, run)
        check_settled(self, run)
        data, of_run, of_steps = self._boundary(view, run)
        of_run |= ended(run, R.SUCCEEDED, view.now)
        return [Draft(Kind.RUN_FINISHED, {**data, "output": self.output}, _sets(of_run, of_steps))]


@dataclass(kw_only=True, slots=True)
class FailRun(OnRun):
    """The agent raised. The failure's context is kept: step, tool, input, output, exception."""

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (R.FAILED,)
    kind: ClassVar = Kind.RUN_FINISHED
    needs: ClassVar = "every operation is settled; no decision of a person is left to carry out"

    error_class: str
    message: str
    fingerprint: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        check_carried_out(self, run)
        check_settled(self, run)
        data, of_run, of_steps = self._boundary(view, run)
        of_run |= ended(run, R.FAILED, view.now)
        of_run |= {"error_class": self.error_class, "fingerprint": self.fingerprint}
        data = {**self.data, **data, "error_class": self.error_class, "message": self.message}
        return [Draft(Kind.RUN_FINISHED, data, _sets(of_run, of_steps))]


@dataclass(kw_only=True, slots=True)
class StopAtBoundary(OnRun):
    """A requested cancel or pause takes effect between two operations, so that none is cut in half.

    Approvals of a cancelled run are withdrawn.
    """

    sources: ClassVar = (R.RUNNING, R.COMPENSATING)
    targets: ClassVar = (R.CANCELLED, R.PAUSED)
    moves: ClassVar = ((R.RUNNING, R.CANCELLED), (R.RUNNING, R.PAUSED), (R.COMPENSATING, R.PAUSED))
    also: ClassVar = {
        "operation": (
            (OperationStatus.AWAITING_APPROVAL, OperationStatus.DENIED),
            (OperationStatus.AWAITING_APPROVAL, OperationStatus.FAILED),
        ),
        "approval": (
            (ApprovalStatus.ASKED, ApprovalStatus.EXPIRED),
            (ApprovalStatus.GIVEN, ApprovalStatus.EXPIRED),
        ),
        "decision": ((DecisionStatus.WAITING, DecisionStatus.EXPIRED),),
    }
    kind: ClassVar = Kind.WAIT
    needs: ClassVar = (
        "a cancel or pause was requested (what is being undone is undone to its end before a cancel takes effect); no "
        "operation is pending; for a cancel, none awaits approval or is unknown"
    )

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        check_carried_out(self, run)
        if not stop_requested(run):
            raise PreconditionFailed(f"nobody asked run {self.run_id!r} to stop. Nothing was changed.")
        data, of_run, of_steps = self._boundary(view, run)
        sets = stopped(self, view, run)
        of_run |= LEAVES_WORKER | sets["runs"][""]
        sets["runs"] = {"": of_run}
        for step, columns in of_steps.items():
            sets.setdefault("steps", {}).setdefault(step, {}).update(columns)
        return [Draft(Kind.WAIT, {**data, "stopped": of_run["status"]}, sets)]


def stop_requested(run: Row) -> bool:
    return bool(run["pause_requested"] or (run["cancel_requested"] and run["status"] != R.COMPENSATING))


def stopped(transition: OnRun, view: View, run: Row) -> dict[str, Any]:
    """The changes that stop a run whose cancel or pause was requested.

    A paused run never goes back to waiting: it runs, and its worker finds out again what there is to wait for. One that
    needs an operator goes back to that; its `why` stays.
    """
    if run["cancel_requested"] and run["status"] != R.COMPENSATING:
        check_settled(transition, run | {"awaiting_operations": 0})
        row = {**NO_WHY, **NO_WAIT, **NO_REQUESTS, "status": R.CANCELLED, "finished_at": view.now}
        if not run["awaiting_operations"]:
            return {"runs": {"": row}}
        return {"runs": {"": row | {"awaiting_operations": 0}}, **_withdrawn(transition, view)}
    if run["pending_operations"]:
        check_settled(transition, run)
    row = {**NO_WAIT, "status": R.PAUSED, "pause_requested": 0}
    if run["status"] == R.WAITING:
        row["resume_to"] = run["resume_to"] or R.RUNNING
    elif run["status"] != R.NEEDS_OPERATOR:
        row["resume_to"] = run["status"]
    return {"runs": {"": row}}


def _withdrawn(transition: OnRun, view: View) -> dict[str, Any]:
    """What awaits approval when a run is cancelled will never be called."""
    sets: dict[str, Any] = {"operations": {}, "steps": {}, "approvals": {}, "decisions": {}}
    why = "withdrawn: the run was cancelled"
    for step in view.awaiting(transition.run_id):
        operation = view.row("operations", transition.run_id, step) or {}
        status = never_called(operation)
        if status == OperationStatus.UNKNOWN:
            raise PreconditionFailed(
                f"{transition.run_id}#{step} was attempted before it was asked about again, and may have happened. "
                "Refuse it, and settle what becomes unknown; then the run can be cancelled."
            )
        sets["operations"][step] = {"status": status, "ended_at": view.now, "error": why}
        sets["steps"][step] = {"status": "failed", "ended_at": view.now}
        approval = latest_approval(view, transition.run_id, step)
        if approval is not None and approval["status"] in {ApprovalStatus.ASKED, ApprovalStatus.GIVEN}:
            key = approval_key(step, approval["n"])
            sets["approvals"][key] = {"status": ApprovalStatus.EXPIRED, "reason": why}
            sets["decisions"] |= lapsed(transition, view, approval)
    return {table: rows for table, rows in sets.items() if rows}


def never_called(operation: Row) -> OperationStatus:
    """What becomes of a call that is not approved: denied, unless an earlier attempt of it was made."""
    if not operation["attempts"]:
        return OperationStatus.DENIED
    return OperationStatus.FAILED if operation["evidence"] == Evidence.ABSENT else OperationStatus.UNKNOWN


def in_doubt(view: View, run_id: str) -> bool:
    """Whether something that awaits approval was attempted before, and may have happened."""
    rows = [view.row("operations", run_id, step) for step in view.awaiting(run_id)]
    return any(row is not None and never_called(row) == OperationStatus.UNKNOWN for row in rows)


def approval_key(step: str, n: int) -> str:
    return f"{step}/{n}"


def latest_approval(view: View, run_id: str, step: str) -> Row | None:
    """The approval asked for last; a new one is asked only after the one before it ended."""
    latest, n = None, 1
    while (row := view.row("approvals", run_id, approval_key(step, n))) is not None:
        latest, n = row, n + 1
    return latest


def lapsed(transition: OnRun, view: View, approval: Row) -> dict[str, Any]:
    """The decision to approve, if there is one, ends without having been carried out."""
    if approval["status"] != ApprovalStatus.GIVEN:
        return {}
    ended = {"status": DecisionStatus.EXPIRED, "ended_at": view.now, "ended_by": transition.actor}
    return {str(approval["touched"]): ended}  # the event that gave it recorded the decision


NO_WAIT: dict[str, Any] = {"waits_for": None, "wake_at": None}
NO_REQUESTS: dict[str, Any] = {"cancel_requested": 0, "pause_requested": 0}


def woken(run: Row) -> dict[str, Any]:
    """A waiting run goes on where it was: forward, or undoing."""
    status = R.COMPENSATING if run["resume_to"] == R.COMPENSATING else R.RUNNING
    return {**NO_WAIT, "status": status, "resume_to": None}


def ended(run: Row, status: RunStatus, now: int) -> dict[str, Any]:
    row = {**LEAVES_WORKER, "status": status, "finished_at": now}
    return row | NO_REQUESTS if run["cancel_requested"] or run["pause_requested"] else row


@dataclass(kw_only=True, slots=True)
class SendSignal(OnRun):
    """A message from outside. It is kept if nobody waits for it yet, and counted once however often it comes."""

    sources: ClassVar = tuple(sorted(set(R) - FINISHED))
    targets: ClassVar = (UNCHANGED, R.RUNNING, R.COMPENSATING)
    moves: ClassVar = ((R.WAITING, R.RUNNING), (R.WAITING, R.COMPENSATING))
    kind: ClassVar = Kind.SIGNAL
    by: ClassVar = ANYONE
    needs: ClassVar = "the run has not finished"

    signal_id: str
    name: str
    payload: object = None

    def loads(self) -> tuple[Load, ...]:
        return (("signals", self.run_id, self.signal_id),)

    def decide(self, view: View) -> list[Draft]:
        check_name("a signal's id", self.signal_id)
        run = self._check_run(view)
        if view.row("signals", self.run_id, self.signal_id) is not None:
            return []
        sets: dict[str, Any] = {
            "signals": {
                self.signal_id: {"name": self.name, "seq": run["head_seq"] + 1, "received_at": view.now},
            }
        }
        if run["status"] == R.WAITING and run["waits_for"] == f"signal:{self.name}":
            sets["runs"] = {"": woken(run)}
        return [Draft(Kind.SIGNAL, {"id": self.signal_id, "name": self.name, "payload": self.payload}, sets)]


@dataclass(kw_only=True, slots=True)
class ConsumeSignal(OnRun):
    """A waiting step takes a signal that has arrived."""

    sources: ClassVar = (R.RUNNING,)
    targets: ClassVar = (UNCHANGED,)
    kind: ClassVar = Kind.SIGNAL
    needs: ClassVar = "the signal arrived and no step has taken it; the step is new"

    signal_id: str
    step: str

    def loads(self) -> tuple[Load, ...]:
        return (("signals", self.run_id, self.signal_id), ("steps", self.run_id, self.step))

    def decide(self, view: View) -> list[Draft]:
        run = self._check_run(view)
        signal = view.row("signals", self.run_id, self.signal_id)
        if signal is None:
            raise NotFound(f"run {self.run_id!r} has received no signal {self.signal_id!r}.")
        if signal["consumed_by"] is not None or view.row("steps", self.run_id, self.step) is not None:
            raise PreconditionFailed(f"signal {self.signal_id!r} was taken by step {signal['consumed_by']} already.")
        data, of_run, of_steps = self._boundary(view, run)
        step = started_step(view, run, of_run, self.step, "wait", signal["name"])
        step |= {"status": "succeeded", "ended_at": view.now, "after": step["before"]}
        sets = _sets(of_run | moved_on(run, self.step), {**of_steps, self.step: step})
        sets["signals"] = {self.signal_id: {"consumed_by": self.step}}
        return [Draft(Kind.SIGNAL, {**data, "consumed": self.signal_id, "signal_seq": signal["seq"]}, sets, self.step)]


__all__ = [
    "ClaimRun",
    "ConsumeSignal",
    "DeclarePlan",
    "FailRun",
    "FinishRun",
    "NeedOperator",
    "ParkRun",
    "RecordStep",
    "ReleaseRun",
    "SendSignal",
    "StartRun",
    "StopAtBoundary",
    "TakeSnapshot",
    "WakeRun",
]
