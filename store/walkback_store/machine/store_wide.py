"""What concerns the whole store: freezes, breakers, budgets, identities, workers, batches, adopting a copy, pruning.

All of it is kept in the store's own log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from walkback_store.errors import KeyConflict, NotFound, NoToken, PreconditionFailed
from walkback_store.log import Draft, Row
from walkback_store.machine.base import (
    ANYONE,
    NONE,
    OPERATOR,
    STORE,
    SYSTEM,
    WORKER,
    Load,
    Transition,
    View,
    check_name,
    is_name,
    require_reason,
)
from walkback_store.machine.gates import GONE, UNDECIDED, owner_status, place_of, taken
from walkback_store.machine.people import REGRET
from walkback_store.machine.roles import granted, role_of
from walkback_store.values import encode
from walkback_store.words import (
    FINISHED,
    BatchStatus,
    DecisionStatus,
    FreezeScope,
    Kind,
    OperationStatus,
    Role,
    WorkerStatus,
)

CLOSED, OPEN = "closed", "open"
"""The states of a breaker."""
KEPT = "kept"
"""The state of a budget that something was taken from."""
FREE, OWNED = "free", "owned"
"""The states of an identity that was claimed."""

SECOND = 1_000_000
ROUNDING = 1e-9
MAX_DOUBLINGS = 5
CLOSED_AGAIN: dict[str, Any] = {"failures": 0, "trips": 0, "freeze_no": None}
LETS_GO = frozenset({GONE, OperationStatus.FAILED, OperationStatus.DENIED, OperationStatus.COMPENSATED})
"""What an operation is when nothing of it stands, so that another may do the same."""


@dataclass(kw_only=True, slots=True)
class OnStore(Transition):
    subject: ClassVar = "store"
    kind: ClassVar = Kind.STORE


@dataclass(kw_only=True, slots=True)
class Freeze(OnStore):
    """No call of this tool, of this agent, to this service, or at all is dispatched from here on."""

    subject: ClassVar = "freeze"
    freezes: ClassVar = True
    kind: ClassVar = Kind.OPERATOR_ACTION
    sources: ClassVar = (NONE,)
    targets: ClassVar = ("active",)
    by: ClassVar = OPERATOR
    needs: ClassVar = "a reason; the same freeze is not active"

    scope: FreezeScope
    name: str | None = None
    reason: str

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        if (self.name is None) != (self.scope == FreezeScope.EVERYTHING):
            raise PreconditionFailed("a freeze names a tool or an agent or a service, or is of everything.")
        if any((f["scope"], f["name"]) == (self.scope, self.name) for f in view.freezes()):
            raise self._illegal(f"{self.scope} {self.name or ''}".strip(), "active")
        key = str(view.store["head_seq"] + 1)
        row = {"scope": self.scope, "name": self.name, "by": self.actor, "reason": self.reason, "at": view.now}
        data = {"action": "freeze", "scope": self.scope, "name": self.name, "reason": self.reason}
        return [Draft(Kind.OPERATOR_ACTION, data, {"freezes": {key: row}})]


@dataclass(kw_only=True, slots=True)
class Unfreeze(OnStore):
    """Dispatch goes on. A breaker whose freeze a person lifts is closed, and counts anew."""

    subject: ClassVar = "freeze"
    freezes: ClassVar = True
    kind: ClassVar = Kind.OPERATOR_ACTION
    sources: ClassVar = ("active",)
    targets: ClassVar = ("lifted",)
    also: ClassVar = {"breaker": ((OPEN, CLOSED),)}
    by: ClassVar = OPERATOR
    needs: ClassVar = "a reason"

    freeze_no: int
    reason: str

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        freeze = next((f for f in view.freezes() if f["freeze_no"] == self.freeze_no), None)
        if freeze is None:
            raise self._illegal(f"freeze {self.freeze_no}", "lifted or never set")
        sets: dict[str, Any] = {"freezes": lifted(self, view, self.freeze_no)}
        if freeze["scope"] == FreezeScope.SERVICE:
            breaker = view.row("breakers", STORE, freeze["name"]) if is_name(freeze["name"]) else None
            if breaker is not None and breaker["freeze_no"] == self.freeze_no:
                sets["breakers"] = {freeze["name"]: CLOSED_AGAIN}
        data = {"action": "unfreeze", "freeze_no": self.freeze_no, "reason": self.reason}
        return [Draft(Kind.OPERATOR_ACTION, data, sets)]


def lifted(t: Transition, view: View, freeze_no: int) -> dict[str, Any]:
    return {str(freeze_no): {"lifted_at": view.now, "lifted_by": t.actor}}


# --- breakers ----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class OnBreaker(OnStore):
    """A breaker that is open is a freeze of its service, so both are looked at, and changed, together."""

    subject: ClassVar = "breaker"
    freezes: ClassVar = True
    by: ClassVar = SYSTEM

    service: str

    def loads(self) -> Iterable[Load]:
        return (("breakers", STORE, self.service),) if is_name(self.service) else ()

    def _breaker(self, view: View) -> tuple[Row | None, Row | None]:
        """The breaker, and the freeze that it has set while it is open."""
        check_name("a service", self.service)
        breaker = view.row("breakers", STORE, self.service)
        number = None if breaker is None else breaker["freeze_no"]
        return breaker, next((f for f in view.freezes() if number is not None and f["freeze_no"] == number), None)


@dataclass(kw_only=True, slots=True)
class ServiceFailed(OnBreaker):
    """A call of the service failed because of the service. Too often, and the breaker opens: a freeze of the service.

    When the call that probes an open breaker fails, it stays open, for twice as long each time.
    """

    sources: ClassVar = (NONE, CLOSED, OPEN)
    targets: ClassVar = (CLOSED, OPEN)
    moves: ClassVar = ((NONE, CLOSED), (NONE, OPEN), (CLOSED, CLOSED), (CLOSED, OPEN), (OPEN, OPEN))
    also: ClassVar = {"freeze": ((NONE, "active"),)}
    needs: ClassVar = "to open: `threshold` failures since it last answered, and the service is not frozen"

    reason: str
    threshold: int
    cooldown: int
    """Microseconds until the first probe."""

    def decide(self, view: View) -> list[Draft]:
        if self.threshold < 1 or self.cooldown < 0:
            raise PreconditionFailed("a breaker opens after at least one failure, and not for less than no time.")
        breaker, freeze = self._breaker(view)
        failures, trips = (0, 0) if breaker is None else (breaker["failures"], breaker["trips"])
        row: dict[str, Any] = {"failures": failures + 1, "failed_at": view.now}
        sets: dict[str, Any] = {"breakers": {self.service: row}}
        data: dict[str, Any] = {"action": "service_failed", "service": self.service, "reason": self.reason}
        if freeze is not None:
            if freeze["probe"] is not None:  # else it was called before the breaker opened, and says nothing new
                until = view.now + self.cooldown * 2 ** min(trips, MAX_DOUBLINGS)
                row["trips"] = trips + 1
                sets["freezes"] = {str(freeze["freeze_no"]): {"until": until, "probe": None}}
                data |= {"until": until, "freeze_no": freeze["freeze_no"]}
        elif failures + 1 >= self.threshold and not self._frozen(view):
            number, until = view.store["head_seq"] + 1, view.now + self.cooldown
            row |= {"trips": trips + 1, "freeze_no": number}
            sets["freezes"] = {
                str(number): {
                    "scope": FreezeScope.SERVICE, "name": self.service, "by": self.actor, "reason": self.reason,
                    "at": view.now, "until": until,
                }
            }  # fmt: skip
            data |= {"until": until, "freeze_no": number}
        return [Draft(Kind.STORE, data, sets)]

    def _frozen(self, view: View) -> bool:
        """By a person, whose freeze stops its calls as well."""
        return any((f["scope"], f["name"]) == (FreezeScope.SERVICE, self.service) for f in view.freezes())


@dataclass(kw_only=True, slots=True)
class ServiceAnswered(OnBreaker):
    """A call of the service went through: failures count from zero again, and an open breaker closes.

    Does nothing when there is nothing to reset.
    """

    sources: ClassVar = (CLOSED, OPEN)
    targets: ClassVar = (CLOSED,)
    also: ClassVar = {"freeze": (("active", "lifted"),)}

    def decide(self, view: View) -> list[Draft]:
        breaker, freeze = self._breaker(view)
        if breaker is None or (not breaker["failures"] and freeze is None):
            return []
        sets: dict[str, Any] = {"breakers": {self.service: CLOSED_AGAIN}}
        if freeze is not None:
            sets["freezes"] = lifted(self, view, freeze["freeze_no"])
        return [Draft(Kind.STORE, {"action": "service_answered", "service": self.service}, sets)]


@dataclass(kw_only=True, slots=True)
class ProbeService(OnBreaker):
    """One call may pass an open breaker, to see whether the service answers; until `until` nobody else may."""

    sources: ClassVar = (OPEN,)
    targets: ClassVar = (OPEN,)
    needs: ClassVar = "its time has come, and that of an earlier probe is over; no person has frozen the service"

    place: str
    """The run and step of the call, as `run_id#step`."""
    until: int

    def decide(self, view: View) -> list[Draft]:
        _, freeze = self._breaker(view)
        if not self.place.strip():
            raise PreconditionFailed("a probe is a call: say which. Nothing was changed.")
        if freeze is None:
            raise PreconditionFailed(f"the breaker of {self.service!r} is not open. Nothing was changed; just call.")
        if freeze["until"] is None or freeze["until"] > view.now:
            probed = f", and is being probed by {freeze['probe']}" if freeze["probe"] is not None else ""
            raise PreconditionFailed(
                f"the breaker of {self.service!r} may not be probed before {freeze['until']}{probed}. Wait for it."
            )
        data = {"action": "probe_service", "service": self.service, "place": self.place, "until": self.until}
        row = {"probe": self.place, "until": self.until}
        return [Draft(Kind.STORE, data, {"freezes": {str(freeze["freeze_no"]): row}})]


# --- budgets -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class TakeToken(OnStore):
    """One retry of a tool is taken from its budget, which all workers share: a bucket of tokens that fills with time.

    An empty one refuses with `NoToken`, which says when to ask again.
    """

    subject: ClassVar = "budget"
    sources: ClassVar = (NONE, KEPT)
    targets: ClassVar = (KEPT,)
    by: ClassVar = SYSTEM
    needs: ClassVar = "there is a token; a bucket that was never used is full"

    tool: str
    capacity: float
    per_second: float

    def loads(self) -> Iterable[Load]:
        return (("buckets", STORE, self.tool),) if is_name(self.tool) else ()

    def decide(self, view: View) -> list[Draft]:
        check_name("a tool", self.tool)
        if not 1 <= self.capacity < math.inf or not 0 < self.per_second < math.inf:
            raise PreconditionFailed("a budget holds at least one token, and fills up with time. Nothing was changed.")
        bucket = view.row("buckets", STORE, self.tool)
        tokens, now = float(self.capacity), view.now
        if bucket is not None:
            now = max(now, bucket["at"])  # a clock that was set back fills nothing up
            tokens = min(tokens, bucket["tokens"] + (now - bucket["at"]) * self.per_second / SECOND)
        if tokens < 1 - ROUNDING:
            at = now + math.ceil((1 - tokens) / self.per_second * SECOND)
            raise NoToken(f"the retries of {self.tool!r} are spent for now. Nothing was changed; ask again later.", at)
        row = {"tokens": max(0.0, tokens - 1), "at": now}
        return [Draft(Kind.STORE, {"action": "take_token", "tool": self.tool}, {"buckets": {self.tool: row}})]


# --- identities --------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class ClaimIdentity(OnStore):
    """From here on this operation is the only one in the store that may do what the identity names.

    It owns it until it is settled as not done, or undone; then another may take it over, as the next generation.
    Claimed again by its owner, it stays as it is. Anybody else is refused with `IdentityTaken`, which says who owns it.
    """

    subject: ClassVar = "identity"
    sources: ClassVar = (NONE, FREE)
    targets: ClassVar = (OWNED,)
    by: ClassVar = ANYONE
    needs: ClassVar = "no other operation owns it; while one does, it is the same call, or a `KeyConflict`"

    identity: str
    run_id: str
    step: str
    tool: str
    args_hash: str

    def loads(self) -> Iterable[Load]:
        return (("identities", STORE, self.identity),) if is_name(self.identity) else ()

    def decide(self, view: View) -> list[Draft]:
        check_name("an identity", self.identity)
        check_name("a step", self.step)
        if view.run(self.run_id) is None:
            raise NotFound(f"there is no run {self.run_id!r} in this store. Nothing was claimed.")
        found = view.row("identities", STORE, self.identity)
        generation = 1
        if found is not None:
            if (found["run_id"], found["step"]) == (self.run_id, self.step):
                self._check_same(found)
                return []
            status = owner_status(view, found)
            if status not in LETS_GO:
                self._check_same(found)
                raise taken(found, status)
            generation = found["generation"] + 1
        row = {
            "generation": generation, "run_id": self.run_id, "step": self.step, "tool": self.tool,
            "args_hash": self.args_hash, "at": view.now, "outcome": None,
        }  # fmt: skip
        data = {"action": "claim_identity", "identity": self.identity, **row}
        del data["outcome"], data["at"]
        return [Draft(Kind.STORE, data, {"identities": {self.identity: row}}, self.step)]

    def _check_same(self, found: Row) -> None:
        if (found["tool"], found["args_hash"]) != (self.tool, self.args_hash):
            raise KeyConflict(
                f"{self.identity!r} is owned by {place_of(found['run_id'], found['step'])}, as {found['tool']} with "
                f"arguments {found['args_hash'][:12]}, not {self.tool} with {self.args_hash[:12]}. Nothing was called."
            )


# --- workers -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class OnWorker(OnStore):
    subject: ClassVar = "worker"

    worker: str

    def loads(self) -> Iterable[Load]:
        return (("workers", STORE, self.worker),)

    def _worker(self, view: View) -> Row | None:
        row = view.row("workers", STORE, self.worker)
        status = row["status"] if row is not None else NONE
        if status not in self.sources:
            raise self._illegal(f"worker {self.worker!r}", status)
        return row


@dataclass(kw_only=True, slots=True)
class RegisterWorker(OnWorker):
    """A worker process says who it is and which agent versions it has. A name is used once."""

    sources: ClassVar = (NONE,)
    targets: ClassVar = (WorkerStatus.ALIVE,)
    by: ClassVar = WORKER

    host: str
    boot_id: str
    pid: int
    process_started: str
    agents: Mapping[str, Sequence[str]]
    lease: int

    def decide(self, view: View) -> list[Draft]:
        check_name("a worker's name", self.worker)
        self._worker(view)
        row = {
            "status": WorkerStatus.ALIVE, "host": self.host, "boot_id": self.boot_id, "pid": self.pid,
            "process_started": self.process_started, "lease": self.lease, "started_at": view.now,
            "agents": encode({k: list(v) for k, v in self.agents.items()}).decode(),
        }  # fmt: skip
        return [Draft(Kind.STORE, {"action": "worker_started"}, {"workers": {self.worker: row}})]


@dataclass(kw_only=True, slots=True)
class StopWorker(OnWorker):
    """A worker says that it is done."""

    sources: ClassVar = (WorkerStatus.ALIVE,)
    targets: ClassVar = (WorkerStatus.STOPPED,)
    by: ClassVar = WORKER

    def decide(self, view: View) -> list[Draft]:
        self._worker(view)
        row = {"status": WorkerStatus.STOPPED, "ended_at": view.now}
        return [Draft(Kind.STORE, {"action": "worker_stopped"}, {"workers": {self.worker: row}})]


@dataclass(kw_only=True, slots=True)
class LoseWorker(OnWorker):
    """Its lease ran out or its process is dead. Its runs can be claimed, and with that its fences end."""

    sources: ClassVar = (WorkerStatus.ALIVE,)
    targets: ClassVar = (WorkerStatus.LOST,)
    by: ClassVar = SYSTEM
    needs: ClassVar = "the heartbeat is still the one the observer saw"

    beat: int
    reason: str

    def decide(self, view: View) -> list[Draft]:
        row = self._worker(view)
        if row is not None and row["beat"] != self.beat:
            raise PreconditionFailed(f"worker {self.worker!r} has moved since; it is not lost.")
        change = {"status": WorkerStatus.LOST, "ended_at": view.now}
        return [Draft(Kind.STORE, {"action": "worker_lost", "reason": self.reason}, {"workers": {self.worker: change}})]


# --- batches -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class OpenBatch(OnStore):
    """Many operations, one decision: its members, in the order in which they will be released."""

    subject: ClassVar = "batch"
    kind: ClassVar = Kind.OPERATOR_ACTION
    sources: ClassVar = (NONE,)
    targets: ClassVar = (BatchStatus.OPEN,)
    by: ClassVar = OPERATOR
    needs: ClassVar = "a reason and at least one member, each of them unknown"

    action: str
    members: Sequence[tuple[str, str]]
    spacing: int = 0
    reason: str

    def loads(self) -> Iterable[Load]:
        return [("operations", run_id, step) for run_id, step in self.members]

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        if not self.members or len(set(self.members)) != len(self.members):
            raise PreconditionFailed("a batch has at least one member, and none of them twice.")
        for run_id, step in self.members:
            operation = view.row("operations", run_id, step)
            if operation is None or operation["status"] != OperationStatus.UNKNOWN:
                found = operation["status"] if operation else "not there"
                raise PreconditionFailed(f"{run_id}#{step} is {found}, not unknown. The batch was not opened.")
        no = view.store["head_seq"] + 1
        row = {
            "action": self.action, "status": BatchStatus.OPEN, "total": len(self.members), "spacing": self.spacing,
            "by": self.actor, "reason": self.reason, "at": view.now,
        }  # fmt: skip
        members = {f"{no}/{n}": {"run_id": run, "step": step} for n, (run, step) in enumerate(self.members, 1)}
        data = {"action": "open_batch", "of": self.action, "reason": self.reason, "total": len(self.members)}
        return [Draft(Kind.OPERATOR_ACTION, data, {"batches": {str(no): row}, "batch_members": members})]


@dataclass(kw_only=True, slots=True)
class OnBatch(OnStore):
    subject: ClassVar = "batch"
    sources: ClassVar = (BatchStatus.OPEN,)

    batch_no: int

    def loads(self) -> Iterable[Load]:
        return (("batches", STORE, str(self.batch_no)),)

    def _batch(self, view: View) -> Row:
        batch = view.row("batches", STORE, str(self.batch_no))
        if batch is None:
            raise NotFound(f"there is no batch {self.batch_no}.")
        if batch["status"] not in self.sources:
            raise self._illegal(f"batch {self.batch_no}", batch["status"])
        return batch


@dataclass(kw_only=True, slots=True)
class ReleaseMember(OnBatch):
    """The next member may go: the first alone, the others paced, and none after one that did not succeed.

    What was released is retried by `RetryMember`. The first is not released while the batch can be taken back.
    """

    targets: ClassVar = (BatchStatus.OPEN, BatchStatus.STOPPED, BatchStatus.DONE)
    by: ClassVar = SYSTEM
    needs: ClassVar = (
        "of the first: ten seconds since the batch was opened; of others: the member before has an outcome; `spacing` "
        "has passed since its release"
    )

    def decide(self, view: View) -> list[Draft]:
        batch = self._batch(view)
        n = batch["released"]
        change: dict[str, Any]
        if n:
            last = view.row("batch_members", STORE, f"{self.batch_no}/{n}") or {}
            operation = view.row("operations", last["run_id"], last["step"])
            status = operation["status"] if operation else "gone"
            why = f"member {n} is {status}" if operation is None else self._ended(view, operation, last, n)
            if why is None:
                raise PreconditionFailed(f"member {n} of batch {self.batch_no} is still {status}; wait for it.")
            if status not in {OperationStatus.SUCCEEDED, OperationStatus.COMPENSATED}:
                change = {"status": BatchStatus.STOPPED, "ended_at": view.now, "ended_why": why}
                return [
                    Draft(Kind.STORE, {"action": "batch_stopped"} | change, {"batches": {str(self.batch_no): change}})
                ]
            if last["released_at"] + batch["spacing"] > view.now:
                raise PreconditionFailed(f"the next member of batch {self.batch_no} is not due yet.")
        elif batch["at"] + REGRET > view.now:
            raise PreconditionFailed(f"batch {self.batch_no} can still be taken back; its first member is not due yet.")
        if n == batch["total"]:
            change = {"status": BatchStatus.DONE, "ended_at": view.now}
            return [Draft(Kind.STORE, {"action": "batch_done"}, {"batches": {str(self.batch_no): change}})]
        sets = {
            "batches": {str(self.batch_no): {"released": n + 1}},
            "batch_members": {f"{self.batch_no}/{n + 1}": {"released_at": view.now}},
        }
        return [Draft(Kind.STORE, {"action": "batch_released", "n": n + 1}, sets)]

    def _ended(self, view: View, operation: Row, member: Row, n: int) -> str | None:
        """What became of the member, in words; None while that is open."""
        status = operation["status"]
        if status not in UNDECIDED:
            return f"member {n} is {status}"
        if status == OperationStatus.UNKNOWN:
            of_member = [d for d in view.decided_in(member["run_id"], self.batch_no) if d["step"] == member["step"]]
            decision = of_member[-1]["status"] if of_member else None
            if decision in {DecisionStatus.TAKEN_BACK, DecisionStatus.EXPIRED}:
                return f"the decision about member {n} was {'taken back' if decision == 'taken_back' else 'lost'}"
            tried_since = (operation["ended_at"] or 0) > member["released_at"]
            if decision == DecisionStatus.CARRIED_OUT or tried_since:
                return f"member {n} is {status}"
        return None


@dataclass(kw_only=True, slots=True)
class StopBatch(OnBatch):
    """A person stops a batch; members not released stay as they are."""

    kind: ClassVar = Kind.OPERATOR_ACTION
    targets: ClassVar = (BatchStatus.STOPPED,)
    by: ClassVar = OPERATOR
    needs: ClassVar = "a reason"

    reason: str

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        self._batch(view)
        change = {"status": BatchStatus.STOPPED, "ended_at": view.now, "ended_why": self.reason}
        data = {"action": "stop_batch", "reason": self.reason}
        return [Draft(Kind.OPERATOR_ACTION, data, {"batches": {str(self.batch_no): change}})]


# --- copies and pruning ------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class AdoptStore(OnStore):
    """A copy or a restored backup becomes a store of its own: a new epoch, and no fence given before holds."""

    kind: ClassVar = Kind.OPERATOR_ACTION
    sources: ClassVar = ("not adopted",)
    targets: ClassVar = ("adopted",)
    also: ClassVar = {"role": tuple((before, Role.ADMIN) for before in (NONE, *Role) if before != Role.ADMIN)}
    by: ClassVar = OPERATOR
    needs_role: ClassVar = Role.ADMIN
    needs: ClassVar = "a reason; from who is no admin, that they own the file or database, or that nobody is admin"

    epoch: int
    home: str
    feed_base: int
    reason: str
    owner: bool = False
    """The person owns the file, or the database. Where a copy is opened the admins of the original may be unknown, and
    then its owner becomes admin."""

    def exempt(self, view: View) -> bool:
        return self.owner or not view.admins()

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        if view.store["home_mismatch"] is None:
            raise self._illegal("this store", "adopted")
        data: dict[str, Any] = {"action": "adopt", "reason": self.reason, "epoch": self.epoch}
        data["was"] = view.store["epoch"]
        sets: dict[str, Any] = {}
        if not role_of(view, self.actor).allows(Role.ADMIN):
            check_name("a person", self.actor)
            data["role"] = Role.ADMIN.value
            sets = {"roles": {self.actor: granted(Role.ADMIN, self.actor, view.now)}}
        return [Draft(Kind.OPERATOR_ACTION, data, sets)]

    def store_columns(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "home": self.home, "feed_base": self.feed_base}


@dataclass(kw_only=True, slots=True)
class NotePrune(OnStore):
    """A finished run is about to be reduced to its audit trail and a tombstone.

    Who asks for an identity that it owns must still learn what became of it, so that is noted with the identity.
    """

    sources: ClassVar = ("not pruned",)
    targets: ClassVar = ("pruned",)
    by: ClassVar = OPERATOR
    needs_role: ClassVar = Role.ADMIN
    needs: ClassVar = "the run has finished"

    pruned: str
    head_seq: int
    finished_at: int
    outcomes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """For each identity that the run owns: the step, and the status of its operation."""

    def loads(self) -> Iterable[Load]:
        return [("identities", STORE, identity) for identity in self.outcomes]

    def decide(self, view: View) -> list[Draft]:
        run = view.run(self.pruned)
        if run is not None and run["status"] not in FINISHED:  # it may be gone by now, in this same transaction
            raise PreconditionFailed(f"run {self.pruned!r} is {run['status']}; only what has finished is pruned.")
        data = {"action": "prune", "run_id": self.pruned, "head_seq": self.head_seq, "finished_at": self.finished_at}
        kept = {}
        for identity, (step, status) in self.outcomes.items():
            row = view.row("identities", STORE, identity)
            if row is not None and (row["run_id"], row["step"]) == (self.pruned, step):  # nobody took it over meanwhile
                kept[identity] = {"outcome": status}
        return [Draft(Kind.STORE, data, {"identities": kept} if kept else {})]


__all__ = [
    "STORE",
    "AdoptStore",
    "ClaimIdentity",
    "Freeze",
    "LoseWorker",
    "NotePrune",
    "OpenBatch",
    "ProbeService",
    "RegisterWorker",
    "ReleaseMember",
    "ServiceAnswered",
    "ServiceFailed",
    "StopBatch",
    "StopWorker",
    "TakeToken",
    "Unfreeze",
]
