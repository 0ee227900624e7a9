"""Commits: many transitions in one transaction, and the truth about each of them.

Callers on several threads share a commit: the first to come leads and takes along whoever queued up meanwhile. Nothing
returns before COMMIT has. Each transition is decided in memory before anything is written, so one that is refused costs
its neighbours nothing; should the database itself reject a row, the batch is rolled back and each goes alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from walkback_store import schema
from walkback_store.backends.base import Backend, ConnectionLost, Rejected
from walkback_store.errors import (
    CommitUnknown,
    CorruptData,
    NotAdopted,
    PreconditionFailed,
    Refused,
    StoreError,
    TransitionConflict,
    Unreachable,
    ValueRefused,
)
from walkback_store.log import Row
from walkback_store.machine.base import OPERATOR, Transition
from walkback_store.machine.roles import check_role, claimed
from walkback_store.snapshots import SnapshotCache
from walkback_store.work import Known, Site, Work

T = TypeVar("T")
RECONNECT_PAUSE = 0.05
LAST = "\U0010ffff"
"""Above every run id: the store's own log is locked after all runs."""
Plan = Callable[[Work], Sequence[Transition]]


@dataclass(slots=True)
class Committed:
    """A transition that is in the log."""

    transition: bytes
    seq: int
    hash: bytes
    at: int
    run: Row | None
    """The run's row as this transition left it; as it is now, when the transition was applied earlier."""
    repeated: bool = False
    """It had been applied by an earlier submission of the same id, or there was nothing to do."""


MISTAKES = (TypeError, ValueError, LookupError, AttributeError)
"""What comes of values of a kind that a transition cannot be decided with."""
REFUSALS = (Refused, ValueRefused, NotAdopted, CorruptData, *MISTAKES)
"""What concerns one transition and not its neighbours."""


def _refusal(transition: Transition, error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    refusal = PreconditionFailed(
        f"{type(transition).__name__} was given what it cannot use: {error!r}. Nothing was changed."
    )
    refusal.__cause__ = error
    return refusal


class _Waiting:
    __slots__ = ("done", "error", "results", "signal", "transitions")

    def __init__(self, transitions: list[Transition]) -> None:
        self.transitions = transitions
        self.results: list[Committed | StoreError] = []
        self.error: Exception | None = None
        self.done = False
        self.signal: threading.Event | None = None


class Engine:
    def __init__(self, backend: Backend, clock: Callable[[], int] | None, wait: float) -> None:
        self.backend = backend
        self._site = Site()
        self._clock = clock
        self._wait = wait
        self._cache = SnapshotCache()
        self._known = Known()
        self._writing = threading.RLock()
        self._gate = threading.Lock()
        self._queue: list[_Waiting] = []
        self._leader: _Waiting | None = None
        self._connection = 0
        self.strict_commits = 0
        self.relaxed_commits = 0

    # --- group commit --------------------------------------------------------------------------------------------

    def commit(self, transitions: Iterable[Transition]) -> list[Committed | StoreError]:
        """Submit; returns when all of them are committed or refused, in the order given."""
        self.backend.check_usable()  # before any lock: in a forked process one may be held for ever
        mine = _Waiting(list(transitions))
        try:
            with self._gate:
                self._queue.append(mine)
                if self._leader is None:
                    self._leader = mine
                else:
                    mine.signal = threading.Event()
            if mine.signal is not None:
                mine.signal.wait()  # until it is served, or has to lead
            if not mine.done:
                self._serve_queue()
        finally:  # also when interrupted: somebody else leads from here on
            self._resign(mine)
        if mine.error is not None:
            raise mine.error
        return mine.results

    def _serve_queue(self) -> None:
        with self._gate:
            batch, self._queue = self._queue, []
        try:
            self._serve(batch)
        finally:  # whoever is not served submits again, under another leader, which its ids make safe
            with self._gate:
                self._queue[:0] = [waiting for waiting in batch if not waiting.done]
            for waiting in batch:
                if waiting.done and waiting.signal is not None:
                    waiting.signal.set()

    def _resign(self, mine: _Waiting) -> None:
        with self._gate:
            if mine in self._queue:
                self._queue.remove(mine)
            if self._leader is mine:
                self._leader = heir = self._queue[0] if self._queue else None
                if heir is not None and heir.signal is not None:
                    heir.signal.set()

    def _serve(self, batch: Sequence[_Waiting]) -> None:
        try:
            together = [t for waiting in batch for t in waiting.transitions] if len(batch) > 1 else batch[0].transitions
            results = self._truth(together)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, StoreError):  # somebody's mistake, and nobody else's business
                for waiting in batch:
                    self._serve([waiting])
                return
            for waiting in batch:
                waiting.error, waiting.done = error, True
            return
        start = 0
        for waiting in batch:
            end = start + len(waiting.transitions)
            waiting.results, waiting.done = results[start:end], True
            start = end

    # --- one transaction, and what became of it ------------------------------------------------------------------

    def plan_and_commit(self, plan: Plan) -> list[Committed | StoreError]:
        """Transitions chosen inside the transaction that applies them, such as claims."""
        self.backend.check_usable()
        planned: list[Transition] = []

        def once(work: Work) -> Sequence[Transition]:
            work.read_clock()
            planned[:] = plan(work)
            return planned

        deadline = time.monotonic() + self._wait
        with self._writing:
            while True:
                try:
                    return self._attempt(once, strict=True)
                except Rejected as rejected:
                    raise PreconditionFailed(
                        f"the database rejected this: {rejected}. Nothing was written."
                    ) from rejected
                except ConnectionLost as lost:
                    self._reconnect(deadline, planned, lost.committing)
                    if lost.committing:
                        break
            with self._in_doubt(planned):
                return [r for t in planned if (r := self._recorded_alone(t)) is not None]

    def again(self, attempt: Callable[[], T], transitions: Sequence[Transition] = (), unknown: bool = False) -> T:
        """Do something that may be done twice; once more whenever the connection is lost, until the wait is over."""
        self.backend.check_usable()
        deadline = time.monotonic() + self._wait
        with self._writing:
            while True:
                try:
                    return attempt()
                except ConnectionLost:
                    self._reconnect(deadline, transitions, unknown)

    @contextmanager
    def _in_doubt(self, transitions: Sequence[Transition]) -> Iterator[None]:
        """Once COMMIT may have reached the server, no later error can say that nothing was written."""
        try:
            yield
        except StoreError as error:
            if isinstance(error, CommitUnknown):
                raise
            raise CommitUnknown(
                f"the connection was lost during COMMIT, and what became of it could not be read back ({error}) The "
                f"{len(transitions)} transitions may or may not be in the log: submit the same ones again.",
                [t.id for t in transitions],
            ) from error

    def _truth(self, transitions: Sequence[Transition], unknown: bool = False) -> list[Committed | StoreError]:
        """`unknown` once COMMIT may have reached the server; later attempts that get less far change nothing."""
        deadline = time.monotonic() + self._wait
        strict = any([t.strict for t in transitions])
        with self._writing:
            while True:
                try:
                    if not unknown:
                        return self._attempt(lambda _: transitions, strict)
                    with self._in_doubt(transitions):
                        return self._attempt(lambda _: transitions, strict)
                except Rejected as rejected:
                    return self._one_by_one(transitions, rejected, unknown)
                except ConnectionLost as lost:
                    # Resubmitting is safe whatever became of COMMIT: what was applied is recognised by its id, under
                    # the lock of its run, which a server still busy with the lost session holds until it is done.
                    unknown = unknown or lost.committing
                    self._reconnect(deadline, transitions, unknown)

    def _one_by_one(
        self, transitions: Sequence[Transition], rejected: Rejected, unknown: bool
    ) -> list[Committed | StoreError]:
        if len(transitions) > 1:
            return [self._alone(t, unknown) for t in transitions]
        try:
            recorded = self._recorded_alone(transitions[0])
        except (Rejected, *MISTAKES):  # not even its names can be looked up, such as one with NUL
            recorded = None
        if recorded is not None:
            return [recorded]
        return [PreconditionFailed(f"the database rejected {type(transitions[0]).__name__}: {rejected}")]

    def _alone(self, transition: Transition, unknown: bool) -> Committed | StoreError:
        """Its own answer, whatever it is: those before it are in the log."""
        try:
            return self._truth([transition], unknown)[0]
        except StoreError as error:
            return error

    def _reconnect(self, deadline: float, transitions: Sequence[Transition], committing: bool) -> None:
        self._cache.forget()
        self._known.forget()
        while True:
            try:
                self.backend.reconnect()
                return
            except StoreError as error:
                if time.monotonic() + RECONNECT_PAUSE > deadline:
                    if not committing:
                        raise Unreachable(f"{error} Nothing of this was written.") from error
                    raise CommitUnknown(
                        f"the connection was lost during COMMIT and the store does not answer ({error}). The "
                        f"{len(transitions)} transitions may or may not be in the log: submit the same ones again.",
                        [t.id for t in transitions],
                    ) from error
            time.sleep(RECONNECT_PAUSE)

    def _attempt(self, plan: Plan, strict: bool) -> list[Committed | StoreError]:
        backend = self.backend
        try:  # an interrupt may come when the transaction has just begun
            backend.begin(strict)
            if self._connection != backend.connections:
                self._connection = backend.connections
                self._cache.forget()
                self._known.forget()
            if not backend.alone():
                self._known.forget()
            work = self._work()
            transitions = plan(work)
            results = self._apply(work, transitions)
            if not work.dirty:
                backend.rollback()
                return results
            backend.commit(work.writes())
            work.remember()
        except BaseException:
            self._cache.forget()
            self._known.forget()
            backend.rollback()
            raise
        if strict:
            self.strict_commits += 1
        else:
            self.relaxed_commits += 1
        return results

    def _work(self) -> Work:
        clock = self.backend.clock() if self._clock is None else None
        return Work(self.backend, self._cache, self._known, clock, self._now(), self._site)

    def _now(self) -> int:
        return self._clock() if self._clock is not None else time.time_ns() // 1000

    def _apply(self, work: Work, transitions: Sequence[Transition]) -> list[Committed | StoreError]:
        results: list[Any] = [None] * len(transitions)
        try:
            order: Sequence[int] = range(len(transitions))
            if len(order) > 1:
                order = sorted(order, key=lambda i: transitions[i].log or LAST)
            work.prefetch(transitions)
        except MISTAKES as error:  # each alone, then
            raise Rejected(f"it was given what it cannot use ({error!r})") from error
        for i in order:
            transition = transitions[i]
            try:
                if transition.by == OPERATOR:
                    check_role(transition, work, transition.needs_role)
                drafts = transition.decide(work)
                if transition.claim is not None:
                    drafts = claimed(transition, drafts)
                head = work.append(transition, drafts) if drafts else None
            except REFUSALS as error:
                work.discard_drafts()
                # A second submission of something applied is refused by the state it left: ask the log first.
                results[i] = self._recorded(work, transition) or _refusal(transition, error)
                continue
            run = work.run(log) if (log := transition.log) is not None else None
            if head is None:
                at, seq, head_hash = work.now, run["head_seq"] if run else 0, run["head_hash"] if run else b""
                results[i] = Committed(transition.id, seq, head_hash, at, dict(run) if run else None, True)
            else:
                results[i] = Committed(transition.id, head["seq"], head["hash"], work.now, dict(run) if run else None)
        return results

    def _recorded(self, work: Work, transition: Transition) -> Committed | StoreError | None:
        sql = self.backend.statements.by_key(schema.events, ("transition",))
        answer = self.backend.fetch([(sql, (transition.id,))])[0]
        if not answer:
            return None
        event = dict(zip((c.name for c in schema.events.columns), answer[0], strict=False))
        run = work.run(transition.log) if transition.log is not None else None
        run_no = run["run_no"] if run is not None else schema.STORE_LOG
        mine = (run_no, transition.actor, getattr(transition, "step", None))
        if (event["run_no"], event["actor"], event["step"]) != mine or event["kind"] not in transition.kinds():
            return TransitionConflict(
                f"transition id {transition.id.hex()} was used before, by {event['actor']} for something else "
                f"({event['kind']}). Nothing was changed."
            )
        refusal = transition.outdated(event["body"], run) if run is not None else None
        if refusal is not None:
            return refusal
        return Committed(
            transition.id, event["seq"], bytes(event["hash"]), event["at"], dict(run) if run else None, True
        )

    def _recorded_alone(self, transition: Transition) -> Committed | StoreError | None:
        return self.again(lambda: self._look_up(transition), [transition], unknown=True)

    def _look_up(self, transition: Transition) -> Committed | StoreError | None:
        try:
            self.backend.begin(True)
            self._known.forget()
            work = self._work()
            work.prefetch([transition])
            return self._recorded(work, transition)
        finally:
            self.backend.rollback()

    def close(self) -> None:
        if self.backend.forked:  # the lock may be held by a thread that only the parent has
            self.backend.close()
            return
        with self._writing:
            self.backend.close()


__all__ = ["Committed", "Engine"]
