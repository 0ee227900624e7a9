"""A simulator: real agents, the real protocol and a real store; but time is a number, and anything can go wrong.

Workers are threads of which only one runs at a time: at every wish of the protocol the scheduler decides who goes on.
So a trial is decided by its seed and its plan alone, and replays the same. A worker can be crashed or frozen at any
wish, lose its lease, or lose the answer to a commit; a call can be lost on the way there or back, answer late, or
take effect late.

>>> sim = Simulation(store, clock, crew, registry, plan=Plan(at=7, process="crash"))     # doctest: +SKIP
>>> sim.start("close_order", "order-1", order="1")                                       # doctest: +SKIP
>>> sim.run()                                                                            # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from walkback.drivers import base
from walkback.errors import RunLeft
from walkback.evidence import Evidence
from walkback.execution import Execution
from walkback.terms import SECOND, Hold
from walkback.tools import Registry
from walkback.wishes import (
    Answered,
    Await,
    Branches,
    CannotObserve,
    Commit,
    Enter,
    Entropy,
    Invoke,
    IsDead,
    Jitter,
    Look,
    Now,
    Observe,
    Protocol,
    Verify,
    Wait,
    Wish,
)
from walkback.worker import Crew
from walkback_store.engine import Committed
from walkback_store.errors import Refused, StoreError
from walkback_store.machine.runs import StartRun, WakeRun
from walkback_store.machine.store_wide import LoseWorker, RegisterWorker
from walkback_store.store import Store
from walkback_store.values import encode, plain

LEASE = 5 * SECOND
MOST_TURNS = 5_000
"""A trial that takes more is going round in circles."""
MOST_TIME = 7 * 24 * 3600 * SECOND
FREE = (Now, Jitter, Entropy, IsDead, Enter)
"""Wishes with which nothing can go wrong that would not go wrong at the next one."""

PROCESS = ("crash", "commit lost", "lease lost", "frozen briefly", "frozen past the deadline", "frozen for long")
"""What can happen to a worker at a wish."""
CALLS = (
    "response lost", "request lost", "late response", "lands late", "error before", "error after", "definite error",
)  # fmt: skip
"""What can happen to a call."""


class Crashed(BaseException):
    """This worker is dead: nothing it does reaches anyone."""


class GoesInCircles(AssertionError):
    """The trial does not come to an end."""


class SimulatedError(Exception):
    """What a call raises that went wrong on purpose. It proves nothing."""


class DefiniteError(Exception):
    """A call's way to say that nothing happened. Declare it as `definite=` where a trial should know that."""


@dataclass(slots=True)
class Plan:
    """What goes wrong in one trial."""

    at: int | None = None
    """The wish, counted from 0 over all workers, at which `process` strikes."""
    process: str | None = None
    calls: dict[tuple[str, int], str] = field(default_factory=dict)
    """(tool, which of its calls from 1): what happens to it."""
    stale: int = 0
    """Verify sees the world as it was so many microseconds ago."""
    blind: int = 0
    """So many looks of verify, from the first, end with an error."""
    seed: int | None = None
    """With a seed, workers take turns at random and trouble strikes at random; without, only what is said here."""
    trouble: float = 0.0
    """With a seed: how likely trouble is at each wish."""
    most_troubles: int = 6


class Clock:
    """Microseconds since 1970, moved by the simulator alone."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class _Actor:
    """A worker. Its thread runs only while the scheduler waits for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.go = threading.Semaphore(0)
        self.back = threading.Semaphore(0)
        self.wake_at: int | None = 0
        """0: ready; a time: not before; None: nothing to do."""
        self.dead = False
        self.lost = False
        self.work: Callable[[], None] | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._live, name=f"sim-{name}", daemon=True)
        self.thread.start()

    def _live(self) -> None:
        while True:
            self.go.acquire()
            work = self.work
            if work is None:
                return
            try:
                work()
            except (Crashed, RunLeft):
                pass
            except BaseException as error:
                self.error = error
            self.work, self.wake_at = None, None
            self.back.release()

    def turn(self) -> None:
        """Let it run until it pauses; called by the scheduler."""
        self.go.release()
        self.back.acquire()

    def pause(self, wake_at: int = 0) -> None:
        """Called by the actor itself."""
        self.wake_at = wake_at
        self.back.release()
        self.go.acquire()
        if self.dead:
            raise Crashed

    def end(self) -> None:
        """Of a worker that is between two jobs, or dead."""
        self.dead = True
        if self.work is not None:  # unwind it
            while self.work is not None:
                self.turn()
        self.go.release()
        self.thread.join()


class Simulation:
    """One trial: some runs, some workers, one plan."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        crew: Crew,
        registry: Registry,
        *,
        plan: Plan | None = None,
        version: str = "1",
    ) -> None:
        self.store = store
        self.clock = clock
        self.plan = plan or Plan()
        self.version = version
        self.wishes: list[str] = []
        """The point of every wish that counted, in order: what `Plan.at` refers to."""
        self.troubles: list[str] = []
        self._crew = crew
        self._registry = registry
        self._random = random.Random(self.plan.seed or 0)  # noqa: S311 (chance here must repeat itself)
        self._actors: list[_Actor] = []
        self._events: list[tuple[int, Callable[[], object]]] = []
        self._called: dict[str, int] = {}
        self._looked = 0
        self._names = 0
        self._leases: dict[str, int] = {}
        self._agents = sorted({name for name, _ in crew.agents})

    # --- what a test does ----------------------------------------------------------------------------------------

    def start(self, agent: str, run_id: str, **values: Any) -> None:
        found = next(a for (name, _), a in self._crew.agents.items() if name == agent)
        self.store.do(
            StartRun(
                actor="service:sim",
                run_id=run_id,
                agent=agent,
                version=self.version,
                input=found.bind(values),
                state=encode(found.first_state()),
            )
        )

    def at(self, when: int, what: Callable[[], object]) -> None:
        """Something that happens in the world by itself."""
        self._events.append((when, what))

    def run(self) -> None:
        """Until nothing moves any more: every run has ended, or waits for a person or a signal."""
        begun = self.clock.now
        for _ in range(MOST_TURNS):
            if self.clock.now - begun > MOST_TIME:
                raise GoesInCircles(f"a week has passed, and still something is due ({self.plan})")
            if not self._turn():
                return
        raise GoesInCircles(f"{MOST_TURNS} turns, and no end ({self.plan})")

    def close(self) -> None:
        for actor in self._actors:
            actor.end()

    @property
    def _random_turns(self) -> bool:
        return self.plan.seed is not None

    # --- the scheduler -------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        now = self.clock.now
        due = [event for event in self._events if event[0] <= now]
        if due:
            self._events.remove(due[0])
            due[0][1]()
            return True
        ready = [a for a in self._actors if a.work is not None and a.wake_at is not None and a.wake_at <= now]
        if ready and not (self._random_turns and self._random.random() < 0.1 and self._claim()):
            actor = self._random.choice(ready) if self._random_turns else ready[-1]
            actor.turn()
            if actor.error is not None:
                raise actor.error
            return True
        if ready or self._chores() or self._claim():
            return True
        times = [at for at, _ in self._events]
        times += [a.wake_at for a in self._actors if a.work is not None and a.wake_at is not None]
        times += self._leases.values()
        wake = self.store.next_wake({agent: [self.version] for agent in self._agents})
        if wake is not None:
            times.append(wake)
        later = [at for at in times if at > now]
        if not later:
            return False
        self.clock.now = min(later)
        return True

    def _chores(self) -> bool:
        """What idle workers do for others: declare the dead lost, wake what is no longer held up."""
        done = False
        for name, at in list(self._leases.items()):
            if at <= self.clock.now:
                del self._leases[name]
                self.declare_lost(name)
                done = True
        for row in self.store.held_up():
            if row["agent_version"] == self.version:
                with contextlib.suppress(Refused):
                    self.store.do(WakeRun(actor="worker:sim", run_id=row["run_id"]))
                    done = True
        return done

    def declare_lost(self, name: str) -> None:
        row = self.store.worker(name)
        if row is not None and row["status"] == "alive":
            self.store.do(LoseWorker(actor="worker:sim", worker=name, beat=row["beat"], reason="no heartbeat"))

    def _claim(self) -> bool:
        actor = next((a for a in self._actors if a.work is None and not a.dead and not a.lost), None)
        if actor is None:
            actor = self._hire()
        claims = self.store.claim(actor.name, {agent: [self.version] for agent in self._agents}, 1)
        for claim in claims:
            run = claim.run or {}
            hold = Hold(run["run_id"], actor.name, run, self._registry)
            agent = next(a for (name, _), a in self._crew.agents.items() if name == run["agent"])
            driver = SimDriver(self, actor)
            actor.work = Execution(hold, agent, driver).run
            actor.wake_at = 0
        return bool(claims)

    def _hire(self) -> _Actor:
        self._names += 1
        name = f"{self.version}-w{self._names}"
        self.store.do(
            RegisterWorker(
                actor=f"worker:{name}",
                worker=name,
                host="sim",
                boot_id="sim",
                pid=1,
                process_started="1",
                agents={agent: [self.version] for agent in self._agents},
                lease=LEASE,
            )
        )
        actor = _Actor(name)
        self._actors.append(actor)
        return actor

    # --- trouble -------------------------------------------------------------------------------------------------

    def trouble_at(self, actor: _Actor, wish: Wish) -> str | None:
        """What happens to this worker at this wish."""
        n = len(self.wishes)
        self.wishes.append(wish.point)
        plan = self.plan
        if plan.seed is not None and plan.trouble and len(self.troubles) < plan.most_troubles:
            if self._random.random() < plan.trouble:
                what = self._random.choice(PROCESS)
                self.troubles.append(f"{what} at {n} ({wish.point}) of {actor.name}")
                return what
            return None
        if plan.at == n and plan.process is not None:
            self.troubles.append(f"{plan.process} at {n} ({wish.point}) of {actor.name}")
            return plan.process
        return None

    def trouble_with(self, tool: str) -> str | None:
        """What happens to this call."""
        self._called[tool] = nth = self._called.get(tool, 0) + 1
        plan = self.plan
        if plan.seed is not None and plan.trouble and len(self.troubles) < plan.most_troubles:
            if self._random.random() < 2 * plan.trouble:
                what = self._random.choice(CALLS)
                self.troubles.append(f"{what} of {tool} {nth}")
                return what
            return None
        return plan.calls.get((tool, nth))

    def is_blind(self) -> bool:
        self._looked += 1
        return self._looked <= self.plan.blind

    def is_dead(self, worker: str) -> bool:
        return any(a.name == worker and a.dead for a in self._actors)

    def bury(self, actor: _Actor) -> None:
        """It is dead; others find out when its lease is over, or at once where they can see the process."""
        actor.dead = True
        self._leases[actor.name] = self.clock.now


class SimDriver:
    """Grants wishes in virtual time."""

    is_async = False

    def __init__(self, sim: Simulation, actor: _Actor) -> None:
        self._sim = sim
        self._actor = actor

    def run(self, protocol: Protocol[Any]) -> Any:
        try:
            wish: Wish = next(protocol)
            while True:
                try:
                    answer = self._grant(wish)
                except Exception as error:
                    wish = protocol.throw(error)
                else:
                    wish = protocol.send(answer)
        except StopIteration as end:
            return end.value

    def _grant(self, wish: Wish) -> Any:
        if self._actor.dead:
            raise Crashed
        if isinstance(wish, Branches):
            return self._branches(wish)
        repeat = False
        if not isinstance(wish, FREE):
            repeat = self._strike(wish)
        return self._granted(wish, repeat)

    def _strike(self, wish: Wish) -> bool:
        """Trouble, if it is due here, before the wish is granted. Whether the commit's answer gets lost."""
        sim, actor = self._sim, self._actor
        trouble = sim.trouble_at(actor, wish)
        actor.pause()
        if trouble is None:
            return False
        if trouble == "crash":
            sim.bury(actor)
            raise Crashed
        if trouble == "commit lost":
            return isinstance(wish, Commit)
        actor.lost = True
        sim.declare_lost(actor.name)
        pauses = {
            "lease lost": 0,
            "frozen briefly": SECOND,
            "frozen past the deadline": 31 * SECOND,
            "frozen for long": 3600 * SECOND,
        }
        actor.pause(sim.clock.now + pauses[trouble])
        return False

    def _granted(self, wish: Wish, repeat: bool) -> Any:
        sim = self._sim
        match wish:
            case Commit():
                done = self._commit(wish)
                return self._commit(wish) if repeat else done
            case Now():
                return sim.clock.now
            case Jitter():
                return sim._random.random() if sim.plan.seed is not None else 0.5
            case Entropy():
                return sim._random.randbytes(16)
            case Look():
                return wish.question(sim.store)
            case IsDead():
                return sim.is_dead(wish.worker)
            case Enter() | Await():
                return None
            case Wait():
                if wish.until > sim.clock.now:
                    self._actor.pause(wish.until)
                return None
            case Invoke():
                return self._invoke(wish)
            case Verify():
                return self._verify(wish)
            case Observe():
                return self._observe(wish)
            case Branches():
                return self._branches(wish)

    def _commit(self, wish: Commit) -> list[Committed]:
        done: list[Committed] = []
        for result in self._sim.store.commit(wish.transitions):
            if isinstance(result, StoreError):
                raise result
            done.append(result)
        return done

    # --- calls ---------------------------------------------------------------------------------------------------

    def _invoke(self, wish: Invoke) -> Answered:
        sim, tool = self._sim, wish.tool
        if sim.clock.now >= wish.deadline:
            return base.not_sent()
        trouble = sim.trouble_with(tool.name)
        if trouble in {"request lost", "lands late"}:
            if trouble == "lands late":
                settle = 0 if tool.settle is None else int(tool.settle.total_seconds() * SECOND)
                sim.at(wish.deadline + (settle // 2 or SECOND), lambda: self._land(wish))
            self._actor.pause(wish.deadline)
            return base.no_answer(tool)
        if trouble == "error before":
            return base.raised(tool, SimulatedError("something went wrong"))
        if trouble == "definite error":
            return base.raised(tool, DefiniteError("rejected"))
        answer = self._land(wish)
        if trouble in {"response lost", "late response"}:
            if trouble == "late response":
                sim.at(wish.deadline + SECOND, lambda: self._tell_late(wish, answer))
            self._actor.pause(wish.deadline)
            return base.no_answer(tool)
        if trouble == "error after":
            return base.raised(tool, SimulatedError("something went wrong"))
        return answer

    @staticmethod
    def _land(wish: Invoke) -> Answered:
        """The call takes effect, now."""
        try:
            return base.acknowledged(wish.tool.function(**wish.tool.bind(wish.args, wish.op)))
        except Exception as error:
            return base.raised(wish.tool, error)

    def _tell_late(self, wish: Invoke, answer: Answered) -> None:
        """Whoever made the call hears of it, unless they are dead."""
        if self._actor.dead:
            return
        protocol = wish.late(answer)
        with contextlib.suppress(StopIteration):
            next_wish = next(protocol)
            while True:
                next_wish = protocol.send(self._granted(next_wish, False))

    def _verify(self, wish: Verify) -> Evidence:
        if self._sim.is_blind():
            return base.could_not_look(SimulatedError("the search is down"))
        try:
            return base.found(wish.tool.verify(wish.op) if wish.tool.verify else None)
        except Exception as error:
            return base.could_not_look(error)

    def _observe(self, wish: Observe) -> object:
        try:
            return plain(wish.tool.preconditions(wish.op) if wish.tool.preconditions else None)
        except Exception as error:
            raise CannotObserve(str(error)) from error

    # --- side by side --------------------------------------------------------------------------------------------

    def _branches(self, wish: Branches) -> list[Any]:
        """One wish of one branch at a time, in turn or at random; a branch that waits lets the others go on."""
        branches = [_Branch(protocol) for protocol in wish.protocols]
        turn = 0
        while open_ := [b for b in branches if not b.over]:
            now = self._sim.clock.now
            ready = [b for b in open_ if b.not_before <= now]
            if not ready:
                self._actor.pause(min(b.not_before for b in open_))
                continue
            turn += 1
            seeded = self._sim.plan.seed is not None
            branch = self._sim._random.choice(ready) if seeded else ready[turn % len(ready)]
            next_wish = branch.wish
            if isinstance(next_wish, Wait) and next_wish.until > now and branch.not_before < next_wish.until:
                branch.not_before = next_wish.until
                continue
            try:
                answer = self._grant(next_wish)
            except Exception as error:
                branch.throw(error)
            else:
                branch.send(answer)
        for branch in branches:
            if branch.error is not None:
                raise branch.error
        return [b.result for b in branches]


class _Branch:
    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self.not_before = 0
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.wish: Any = None
        self._advance(lambda: next(protocol))

    def send(self, answer: Any) -> None:
        self._advance(lambda: self._protocol.send(answer))

    def throw(self, error: Exception) -> None:
        self._advance(lambda: self._protocol.throw(error))

    def _advance(self, how: Callable[[], Any]) -> None:
        try:
            self.wish = how()
        except StopIteration as end:
            self.result, self.over = end.value, True
        except (Exception, RunLeft) as error:
            self.error, self.over = error, True
