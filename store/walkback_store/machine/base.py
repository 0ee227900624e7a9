"""What every transition is: who may do it, from where, to where, and the events it leaves.

A transition looks at a `View` (rows read under the run's lock), decides, and returns drafts of events. It does no I/O
and changes nothing: if it raises, nothing has happened.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from walkback_store.errors import IllegalTransition, NotFound, PreconditionFailed, Refused, StaleFence, StaleView
from walkback_store.log import Draft, Row
from walkback_store.words import Durability, Kind, Role

STORE = "@store"
"""Stands for a run's id where the store's own log is meant."""

EPOCH_BITS = 32
"""A fence is a number below the store's epoch: so fences of a restored store never meet those given before."""

NONE = "(none)"
"""The state of something that does not exist yet."""

UNCHANGED = "unchanged"

WORKER, OPERATOR, ANYONE, SYSTEM = "worker", "operator", "anyone", "system"

Load = tuple[str, str, str]
"""(table, run_id, row key): a row that a transition will look at."""


class View(Protocol):
    """The store as one transition sees it, inside its transaction."""

    now: int

    @property
    def store(self) -> Row: ...
    @property
    def epoch(self) -> int:
        """Of this store. Raises `NotAdopted` in a copy."""
        ...

    def run(self, run_id: str) -> Row | None: ...
    def row(self, table: str, run_id: str, key: str) -> Row | None: ...
    def freezes(self) -> list[Row]: ...
    def awaiting(self, run_id: str) -> list[str]:
        """The steps of a run that await approval."""
        ...

    def has_signal(self, run_id: str, name: str) -> bool:
        """Whether a signal of this name has come that no step has taken."""
        ...

    def decided_in(self, run_id: str, batch: int) -> list[Row]:
        """What was decided about a run as part of a batch, in order."""
        ...

    def admins(self) -> list[str]:
        """Who may grant roles."""
        ...

    def tombstone(self, run_id: str) -> Row | None: ...
    def changed_by(self, run_id: str, seq: int) -> str: ...
    def snapshot(self, run: Row, run_id: str, state: bytes) -> tuple[int, str]: ...
    def next_run_no(self) -> int: ...


def new_id() -> bytes:
    """Unique, and growing with time: so the index of ids is written at its end, not all over."""
    return (time.time_ns() >> 16).to_bytes(6) + os.urandom(8)


@dataclass(kw_only=True, slots=True)
class Transition(ABC):
    """One change, asked for by `actor` ("worker:name", "operator:name", …). `id` makes it safe to submit twice."""

    subject: ClassVar[str] = "run"
    sources: ClassVar[tuple[str, ...]] = ()
    targets: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[Kind]
    by: ClassVar[str] = WORKER
    needs_role: ClassVar[Role] = Role.OPERATOR
    """What a person has to be at least, where `by` is OPERATOR. It is checked before anything is decided."""
    needs: ClassVar[str] = ""
    moves: ClassVar[tuple[tuple[str, str], ...] | None] = None
    """Which source goes to which target, where not each goes to each."""
    also: ClassVar[Mapping[str, tuple[tuple[str, str], ...]]] = {}
    """What becomes of others, by subject: of the run when the subject is something in it, of an approval, and so on."""
    durability: ClassVar[Durability] = Durability.STRICT
    dispatches: ClassVar[bool] = False
    """It lets a call be made, so it must not pass a freeze."""
    freezes: ClassVar[bool] = False

    actor: str
    id: bytes = field(default_factory=new_id)
    claim: str | None = None
    """What a person says that they are called. It is recorded beside the actor, and nothing is decided by it."""

    @classmethod
    def kinds(cls) -> frozenset[Kind]:
        """What its first event may be."""
        return frozenset({cls.kind})

    @property
    def log(self) -> str | None:
        """The run whose log this is appended to; None for the store's own log."""
        return None

    @property
    def strict(self) -> bool:
        return self.durability is Durability.STRICT

    def outdated(self, body: bytes, run: Row) -> Refused | None:
        """Why the caller must not go on as if this, which was applied earlier, had just been applied."""
        return None

    def loads(self) -> Iterable[Load]:
        """Rows to read in the first round trip, beside the run itself."""
        return ()

    def exempt(self, view: View) -> bool:
        """Whether a person may do this whatever their role is."""
        return False

    @abstractmethod
    def decide(self, view: View) -> list[Draft]: ...

    def store_columns(self) -> dict[str, Any]:
        """Columns of the store's own row that this changes."""
        return {}

    def _illegal(self, subject: str, found: str | None, detail: str = "") -> IllegalTransition:
        return IllegalTransition(type(self).__name__, subject, found or NONE, self.sources, detail)


@dataclass(kw_only=True, slots=True)
class OnRun(Transition):
    """A transition of one run. A worker's carries the fence it was given with its claim."""

    run_id: str
    fence: int | None = None
    seen: int | None = None
    """What the caller looked at: `status_seq` of a run, `touched` of an operation or approval."""
    state: bytes | None = None
    """The agent's whole state at this boundary, encoded; it becomes a snapshot."""

    @property
    def log(self) -> str | None:
        return self.run_id

    def _run(self, view: View) -> Row:
        run = view.run(self.run_id)
        if run is None:
            if view.tombstone(self.run_id):
                raise NotFound(f"run {self.run_id!r} was pruned; its audit events remain in the log.")
            raise NotFound(f"there is no run {self.run_id!r} in this store. Nothing was changed.")
        if self.by == WORKER:
            self._check_fence(view, run)
        return run

    def _check_fence(self, view: View, run: Row) -> None:
        epoch = view.epoch
        if self.fence is None or self.fence != run["fence"] or self.fence >> EPOCH_BITS < epoch:
            raise StaleFence(
                f"{type(self).__name__}: run {self.run_id!r} was taken over (fence {run['fence']}, yours {self.fence}, "
                f"epoch {epoch}). Nothing was changed; stop working on it, and append what you learned as late "
                "evidence."
            )

    def _check_run(self, view: View, sources: Iterable[str] | None = None) -> Row:
        run = self._run(view)
        legal = self.sources if sources is None else tuple(sources)
        if run["status"] not in legal:
            raise IllegalTransition(type(self).__name__, f"run {self.run_id!r}", run["status"], legal)
        if self.subject == "run":
            self._check_seen(view, run["status_seq"], f"run {self.run_id!r}")
        return run

    def _check_seen(self, view: View, now_at: int, what: str) -> None:
        if self.seen is not None and self.seen != now_at:
            raise StaleView(
                f"{what} changed since you looked: {view.changed_by(self.run_id, now_at)}. Nothing was done; "
                "look again, then decide."
            )

    def _boundary(self, view: View, run: Row) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]:
        """Take the snapshot, if a state was given: (event data, run columns, step columns by step).

        The state after a step is the state at the next boundary, so a boundary also closes the step before it.
        """
        if self.state is None:
            return {}, {}, {}
        n, digest = view.snapshot(run, self.run_id, self.state)
        if n == run["last_snapshot"]:
            return {"snapshot": digest}, {}, {}
        of_run = {"last_snapshot": n, "snapshots": max(run["snapshots"], n + 1)}
        before = run["last_step"]
        return {"snapshot": digest}, of_run, {before: {"after": n}} if before is not None else {}


MAX_NAME = 200


def is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def check_name(what: str, name: str) -> None:
    """Names are keys of rows, so both databases must be able to hold them exactly, and people to read them."""
    if not is_name(name):
        raise PreconditionFailed(
            f"{name!r} cannot be {what}: 1 to {MAX_NAME} printable characters. Nothing was changed."
        )


LEAVES_WORKER = {"worker": None, "crashes": 0}


def require_reason(reason: str) -> None:
    if not reason.strip():
        raise PreconditionFailed("a reason is required; it is stored with the decision. Nothing was changed.")
