"""A worker process: it claims runs, carries them on, and can be killed at any moment.

It holds no state: everything that matters is in the store. One thread minds the shop (claims, lets go of what hangs,
declares dead workers lost, wakes what waits for others); one beats; every run of a plain agent has a thread; async
agents share a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from walkback import batches
from walkback.agents import Agent
from walkback.drivers.aio import AsyncDriver, Committer, EventLoop
from walkback.drivers.base import Workplace
from walkback.drivers.threads import ThreadDriver, Watch
from walkback.execution import Execution
from walkback.terms import SECOND, Hold
from walkback.testing.faults import Faults
from walkback.tools import Registry
from walkback_store.errors import Refused, StaleFence, StoreError
from walkback_store.leases import boot_id, process_started
from walkback_store.machine.runs import ClaimRun, NeedOperator, ReleaseRun, WakeRun
from walkback_store.machine.store_wide import RegisterWorker, StopWorker
from walkback_store.store import Store
from walkback_store.words import Why

LEASE = 30.0
CONCURRENCY = 10
TURN = 0.05
"""Seconds between two looks at what hangs."""
REST = 2.0
"""Seconds for which a run that was left because of the store is not taken up again."""
SLOWEST = 0.25
"""Seconds between two questions for runs to claim, when there were none for a while."""
CHORES_EVERY = 1.0
IDLE_WAIT = 30.0
"""`run_until_idle` waits for what will be due by itself within so many seconds."""
GRACE = 30.0
"""Seconds that steps under way get to end when a worker is asked to stop."""
LATE = SECOND // 20
"""A call is let go so long after its deadline, so that one that answers in time is not cut off."""

log = logging.getLogger("walkback")
_numbers = itertools.count(1)


def worker_name() -> str:
    """A name is used once."""
    return f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}-{secrets.token_hex(3)}"[-200:]


@dataclass(slots=True)
class Session:
    """One run in hand."""

    hold: Hold
    watch: Watch
    thread: threading.Thread | None = None
    future: Future[Any] | None = None

    @property
    def over(self) -> bool:
        if self.thread is not None:
            return not self.thread.is_alive()
        return self.future is not None and self.future.done()


@dataclass(slots=True)
class Crew:
    """The agents a worker has, by name and version."""

    agents: dict[tuple[str, str], Agent] = field(default_factory=dict)

    def get(self, name: str, version: str) -> Agent | None:
        return self.agents.get((name, version))

    def versions(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, version in self.agents:
            found.setdefault(name, []).append(version)
        return found


class Worker:
    def __init__(
        self,
        store: Store,
        crew: Crew,
        registry: Registry,
        *,
        concurrency: int = CONCURRENCY,
        lease: float = LEASE,
        faults: Faults | None = None,
        name: str | None = None,
    ) -> None:
        self._store = store
        self._crew = crew
        self._registry = registry
        self._concurrency = concurrency
        self._lease = lease
        self._given_name = name
        self._place = Workplace(store, faults=faults or Faults())
        self._troubled: set[str] = set()
        self._loop = EventLoop()
        self._committer: Committer | None = None
        self._sessions: dict[str, Session] = {}
        self._hung: list[Session] = []
        self._asked_to_stop = threading.Event()
        self._lost = threading.Event()
        self._bell = threading.Event()
        self._next_chores = 0.0
        self._full = False
        self._resting: dict[str, float] = {}
        """Runs that were left because of the store, and until when they are left alone."""

    @property
    def name(self) -> str:
        return self._place.worker

    def stop(self) -> None:
        """Ask it to stop: steps under way are finished, then their runs are handed back. From any thread or handler."""
        self._asked_to_stop.set()
        self._place.stopping.set()
        self._bell.set()

    # --- the shop ------------------------------------------------------------------------------------------------

    def work(self, *, until_idle: bool = False, idle_wait: float = IDLE_WAIT, grace: float = GRACE) -> None:
        """Until it is asked to stop, or nothing is left that could be done."""
        try:
            while True:
                with self._registered():
                    self._mind(until_idle, idle_wait)
                    self._let_finish(grace)
                if self._asked_to_stop.is_set() or not self._lost.is_set():
                    return
                log.warning("worker %s was declared lost; it goes on under another name", self.name)
                self._place.stopping.clear()
        finally:
            if self._committer is not None:
                self._committer.close()
                self._committer = None
            self._loop.close()

    @contextlib.contextmanager
    def _registered(self) -> Iterator[None]:
        name = self._given_name if self._given_name is not None and not self._lost.is_set() else worker_name()
        self._lost.clear()
        self._place.worker = name
        pid = os.getpid()
        asked = time.time_ns() // 1000
        registered = self._store.do(
            RegisterWorker(
                actor=f"worker:{name}",
                worker=name,
                host=socket.gethostname(),
                boot_id=boot_id(),
                pid=pid,
                process_started=process_started(pid) or "",
                agents=self._crew.versions(),
                lease=int(self._lease * SECOND),
            )
        )
        self._place.heard([registered], asked)
        done = threading.Event()
        beats = threading.Thread(target=self._beat, args=(name, done), name="walkback-beat", daemon=True)
        beats.start()
        try:
            yield
        finally:
            done.set()
            beats.join()
            if not self._sessions and not self._hung and not self._lost.is_set():
                # Otherwise it just ends: whoever sees the process gone may be sure that it sends nothing any more.
                with contextlib.suppress(StoreError):
                    self._store.do(StopWorker(actor=f"worker:{name}", worker=name))

    def _beat(self, name: str, done: threading.Event) -> None:
        while not done.wait(self._lease / 4):
            try:
                self._store.beat(name)
            except StaleFence:
                self._lost.set()
                self._place.stopping.set()
                self._bell.set()
                return
            except StoreError as error:
                log.warning("worker %s could not beat: %s", name, error)

    def _mind(self, until_idle: bool, idle_wait: float) -> None:
        pause, next_claim = TURN, 0.0
        while not self._place.stopping.is_set():
            self._reap()
            self._let_go_of_what_hangs()
            self._chores()
            if self._bell.is_set() or time.monotonic() >= next_claim:
                self._bell.clear()
                if self._claim():
                    pause = TURN
                    continue
                pause = min(pause * 2, SLOWEST)
                next_claim = time.monotonic() + pause
            if until_idle and not self._sessions and not self._wake_held_up() and self._idle_for(idle_wait):
                return
            self._bell.wait(TURN if self._sessions else pause)

    def _idle_for(self, seconds: float) -> bool:
        """Whether nothing will be due by itself within so many seconds."""
        known = (self._store.next_wake(self._crew.versions()), batches.next_due(self._store))
        due = min((at for at in known if at is not None), default=None)
        return due is None or due > self._store.now() + int(seconds * SECOND)

    def _let_finish(self, grace: float) -> None:
        until = time.monotonic() + grace
        while time.monotonic() < until:
            self._reap()
            self._let_go_of_what_hangs(take_up=False)
            if not self._sessions:
                return
            self._bell.wait(TURN)
            self._bell.clear()
        log.warning("worker %s stops; others take over what is under way: %s", self.name, ", ".join(self._sessions))

    def _reap(self) -> None:
        self._hung = [s for s in self._hung if not s.over]
        for run_id in [run_id for run_id, s in self._sessions.items() if s.over]:
            del self._sessions[run_id]

    def _chores(self) -> None:
        now = time.monotonic()
        if now < self._next_chores:
            return
        self._next_chores = now + min(CHORES_EVERY, self._lease / 4)
        try:
            for lost in self._store.lose_dead_workers(f"worker:{self.name}"):
                log.warning("worker %s is gone; its runs can be taken over", lost)
            self._wake_held_up()
            batches.carry_on(self._store, f"worker:{self.name}")
            self._troubled.clear()
            self._troubled.update(row["service"] for row in self._store.breakers())
        except StoreError as error:
            log.warning("the store: %s", error)

    def _wake_held_up(self) -> int:
        """Runs that waited for a freeze to be lifted, or for the outcome of another run's operation."""
        woken = 0
        page = self._store.held_up()
        while page:
            for row in page:
                with contextlib.suppress(Refused):  # it still is; or somebody else was faster
                    self._store.do(WakeRun(actor=f"worker:{self.name}", run_id=row["run_id"]))
                    woken += 1
            page = self._store.held_up(after=page[-1]["run_id"])
        return woken

    # --- runs ----------------------------------------------------------------------------------------------------

    def _claim(self) -> int:
        hanging = len(self._hung) + self._place.left_behind
        free = self._concurrency - len(self._sessions) - hanging
        if hanging >= self._concurrency and not self._full:
            log.error("every place of worker %s is taken by a call that does not come back: restart it", self.name)
        self._full = hanging >= self._concurrency
        wanted = self._wanted()
        if free < 1 or not wanted:
            return 0
        asked, now = time.time_ns() // 1000, time.monotonic()
        self._resting = {run_id: until for run_id, until in self._resting.items() if until > now}
        try:
            claims = self._store.claim(self.name, wanted, free, holding={*self._sessions, *self._resting})
            self._place.heard(claims, asked)
        except StaleFence:
            self._lost.set()
            self._place.stopping.set()
            return 0
        except StoreError as error:
            log.warning("nothing could be claimed: %s", error)
            return 0
        taken = 0
        for claim in claims:
            if claim.run is None:
                continue
            if claim.run["run_id"] in self._sessions:
                continue
            if not self._place_for(claim.run["agent"], claim.run["agent_version"]):
                self._hand_back(claim.run)
                continue
            self._start(claim.run)
            taken += 1
        return taken

    def _wanted(self) -> Mapping[str, list[str]]:
        return {
            name: here
            for name, versions in self._crew.versions().items()
            if (here := [version for version in versions if self._place_for(name, version)])
        }

    def _place_for(self, name: str, version: str) -> bool:
        agent = self._crew.get(name, version)
        if agent is None or agent.concurrency is None:
            return agent is not None
        held = Counter(
            (s.hold.row["agent"], s.hold.row["agent_version"]) for s in [*self._sessions.values(), *self._hung]
        )
        return held[name, version] < agent.concurrency

    def _hand_back(self, run: dict[str, Any]) -> None:
        release = ReleaseRun(actor=f"worker:{self.name}", run_id=run["run_id"], fence=run["fence"])
        with contextlib.suppress(StoreError):
            self._store.do(release)

    def _start(self, run: dict[str, Any], hung: frozenset[str] = frozenset()) -> None:
        hold = Hold(run["run_id"], self.name, run, self._registry, troubled=self._troubled)
        agent = self._crew.get(run["agent"], run["agent_version"])
        session = Session(hold, Watch())
        session.watch.hung = hung
        self._sessions[hold.run_id] = session
        if agent is not None and agent.is_async:
            if self._committer is None:
                self._committer = Committer(self._place)
            execution = Execution(hold, agent, AsyncDriver(self._place, self._committer))
            session.future = self._loop.spawn(lambda: self._carry_async(execution))
            session.future.add_done_callback(lambda _: self._bell.set())
        else:
            execution = Execution(hold, agent, ThreadDriver(self._place, session.watch, self._loop))
            session.thread = threading.Thread(
                target=self._carry, args=(execution,), name=f"walkback-{hold.run_id}"[:60], daemon=True
            )
            session.thread.start()

    def _carry(self, execution: Execution) -> None:
        try:
            execution.run()
        except BaseException as error:
            self._explain(execution.hold, error)
        finally:
            self._left(execution)
            self._bell.set()

    async def _carry_async(self, execution: Execution) -> None:
        try:
            await execution.run_async()
        except asyncio.CancelledError:  # the worker ends, and others take the run over
            raise
        except BaseException as error:
            await asyncio.to_thread(self._explain, execution.hold, error)
        finally:
            self._left(execution)

    def _left(self, execution: Execution) -> None:
        if execution.lost:
            self._resting[execution.hold.run_id] = time.monotonic() + REST

    def _explain(self, hold: Hold, error: BaseException) -> None:
        """Something that is nobody's business but ours: it must neither be lost nor tried for ever."""
        log.error("run %s could not be carried on", hold.run_id, exc_info=error)
        detail = f"a worker could not carry it on: {type(error).__name__}: {error}"[:1000]
        with contextlib.suppress(StoreError):
            self._store.do(NeedOperator(**hold.by, why=Why.REVIEW, detail=detail))

    def _let_go_of_what_hangs(self, *, take_up: bool = True) -> None:
        """A call whose deadline has passed keeps its thread, and the run goes on without it."""
        for session in list(self._sessions.values()):
            if session.thread is None:
                continue
            overdue = session.watch.overdue(self._place.now() - LATE)
            if not overdue or session.over:
                continue
            run_id = session.hold.run_id
            log.warning("run %s: %s of step %s does not come back; its thread is left behind", run_id, *overdue[0])
            self._hung.append(self._sessions.pop(run_id))
            if take_up:
                self._take_up(session, overdue)

    def _take_up(self, session: Session, overdue: list[tuple[str, str]]) -> None:
        claim = ClaimRun(actor=f"worker:{self.name}", run_id=session.hold.run_id, worker=self.name)
        try:
            done = self._store.do(claim)
        except StoreError as error:
            log.warning("run %s could not be taken up again: %s", session.hold.run_id, error)
            return
        hung = session.watch.hung | {step for what, step in overdue if what != "call"}
        if done.run is not None:
            self._start(done.run, frozenset(hung))
