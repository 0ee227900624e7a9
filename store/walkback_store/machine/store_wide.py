"""What concerns the whole store: freezes, workers, batches, adopting a copy, pruning. Kept in the store's own log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from walkback_store.errors import NotFound, PreconditionFailed
from walkback_store.log import Draft, Row
from walkback_store.machine.base import (
    NONE,
    OPERATOR,
    STORE,
    SYSTEM,
    WORKER,
    Load,
    Transition,
    View,
    check_name,
    require_reason,
)
from walkback_store.values import encode
from walkback_store.words import FINISHED, BatchStatus, FreezeScope, Kind, OperationStatus, WorkerStatus


@dataclass(kw_only=True, slots=True)
class OnStore(Transition):
    subject: ClassVar = "store"
    kind: ClassVar = Kind.STORE


@dataclass(kw_only=True, slots=True)
class Freeze(OnStore):
    """No call of this tool, of this agent, or at all is dispatched from here on."""

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
            raise PreconditionFailed("a freeze names a tool or an agent, or is of everything.")
        if any((f["scope"], f["name"]) == (self.scope, self.name) for f in view.freezes()):
            raise self._illegal(f"{self.scope} {self.name or ''}".strip(), "active")
        key = str(view.store["head_seq"] + 1)
        row = {"scope": self.scope, "name": self.name, "by": self.actor, "reason": self.reason, "at": view.now}
        data = {"action": "freeze", "scope": self.scope, "name": self.name, "reason": self.reason}
        return [Draft(Kind.OPERATOR_ACTION, data, {"freezes": {key: row}})]


@dataclass(kw_only=True, slots=True)
class Unfreeze(OnStore):
    """Dispatch goes on."""

    subject: ClassVar = "freeze"
    freezes: ClassVar = True
    kind: ClassVar = Kind.OPERATOR_ACTION
    sources: ClassVar = ("active",)
    targets: ClassVar = ("lifted",)
    by: ClassVar = OPERATOR
    needs: ClassVar = "a reason"

    freeze_no: int
    reason: str

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        if not any(f["freeze_no"] == self.freeze_no for f in view.freezes()):
            raise self._illegal(f"freeze {self.freeze_no}", "lifted or never set")
        row = {"lifted_at": view.now, "lifted_by": self.actor}
        data = {"action": "unfreeze", "freeze_no": self.freeze_no, "reason": self.reason}
        return [Draft(Kind.OPERATOR_ACTION, data, {"freezes": {str(self.freeze_no): row}})]


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
    """The next member may go: the first alone, the others paced, and none after one that did not succeed."""

    targets: ClassVar = (BatchStatus.OPEN, BatchStatus.STOPPED, BatchStatus.DONE)
    by: ClassVar = SYSTEM
    needs: ClassVar = "the member before has an outcome; `spacing` has passed since its release"

    def decide(self, view: View) -> list[Draft]:
        batch = self._batch(view)
        n = batch["released"]
        change: dict[str, Any]
        if n:
            last = view.row("batch_members", STORE, f"{self.batch_no}/{n}") or {}
            operation = view.row("operations", last["run_id"], last["step"])
            status = operation["status"] if operation else "gone"
            if status in {OperationStatus.PENDING, OperationStatus.UNKNOWN} and not self._failed_again(view, last):
                raise PreconditionFailed(f"member {n} of batch {self.batch_no} is still {status}; wait for it.")
            if status not in {OperationStatus.SUCCEEDED, OperationStatus.COMPENSATED}:
                change = {"status": BatchStatus.STOPPED, "ended_at": view.now, "ended_why": f"member {n} is {status}"}
                return [
                    Draft(Kind.STORE, {"action": "batch_stopped"} | change, {"batches": {str(self.batch_no): change}})
                ]
            if last["released_at"] + batch["spacing"] > view.now:
                raise PreconditionFailed(f"the next member of batch {self.batch_no} is not due yet.")
        if n == batch["total"]:
            change = {"status": BatchStatus.DONE, "ended_at": view.now}
            return [Draft(Kind.STORE, {"action": "batch_done"}, {"batches": {str(self.batch_no): change}})]
        sets = {
            "batches": {str(self.batch_no): {"released": n + 1}},
            "batch_members": {f"{self.batch_no}/{n + 1}": {"released_at": view.now}},
        }
        return [Draft(Kind.STORE, {"action": "batch_released", "n": n + 1}, sets)]

    @staticmethod
    def _failed_again(view: View, member: Row) -> bool:
        """It was tried after its release, and is unknown once more."""
        operation = view.row("operations", member["run_id"], member["step"])
        ended = operation["ended_at"] if operation else None
        return bool(
            operation and operation["status"] == OperationStatus.UNKNOWN and (ended or 0) > member["released_at"]
        )


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
    by: ClassVar = OPERATOR
    needs: ClassVar = "a reason"

    epoch: int
    home: str
    feed_base: int
    reason: str

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        if view.store["home_mismatch"] is None:
            raise self._illegal("this store", "adopted")
        data = {"action": "adopt", "reason": self.reason, "epoch": self.epoch, "was": view.store["epoch"]}
        return [Draft(Kind.OPERATOR_ACTION, data, {})]

    def store_columns(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "home": self.home, "feed_base": self.feed_base}


@dataclass(kw_only=True, slots=True)
class NotePrune(OnStore):
    """A finished run is about to be reduced to its audit trail and a tombstone."""

    sources: ClassVar = ("not pruned",)
    targets: ClassVar = ("pruned",)
    by: ClassVar = OPERATOR
    needs: ClassVar = "the run has finished"

    pruned: str
    head_seq: int
    finished_at: int

    def decide(self, view: View) -> list[Draft]:
        run = view.run(self.pruned)
        if run is not None and run["status"] not in FINISHED:  # it may be gone by now, in this same transaction
            raise PreconditionFailed(f"run {self.pruned!r} is {run['status']}; only what has finished is pruned.")
        data = {"action": "prune", "run_id": self.pruned, "head_seq": self.head_seq, "finished_at": self.finished_at}
        return [Draft(Kind.STORE, data, {})]


__all__ = [
    "STORE",
    "AdoptStore",
    "Freeze",
    "LoseWorker",
    "NotePrune",
    "OpenBatch",
    "RegisterWorker",
    "ReleaseMember",
    "StopBatch",
    "StopWorker",
    "Unfreeze",
]
