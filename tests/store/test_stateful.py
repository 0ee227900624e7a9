"""Random workers and operators, over several runs, from two stores on one database: nothing they do breaks a promise.

Each step submits transitions that may be legal or not, one by one or as a group. What was refused changed nothing, what
was applied moved only as the state machine declares, and no effect was let through that a person had stopped. The
promises are written down here once more, from the rows as they are stored, and not with the code that is tested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import select, update

from tests.store.driver import DIGEST, MINUTE, SECOND, Clock, open_with_clock, register
from tests.store.recipes import run_statuses
from tests.support.people import open_store
from tests.support.postgres import Postgres
from walkback_store import schema
from walkback_store.engine import Committed
from walkback_store.errors import Frozen, PreconditionFailed, Refused, StaleFence, StoreError
from walkback_store.fsck import fsck
from walkback_store.log import Row
from walkback_store.machine import operations, people, roles, runs, store_wide
from walkback_store.machine.base import NONE, WORKER, OnRun, Transition
from walkback_store.machine.document import moves_of
from walkback_store.machine.operations import Call
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.store import Store
from walkback_store.values import encode
from walkback_store.words import (
    FINISHED,
    LIVE,
    Answer,
    Effect,
    Evidence,
    FreezeScope,
    OperationStatus,
    Role,
    RunStatus,
    Why,
)

LONG = os.environ.get("WALKBACK_FAULTS") == "long"
RUNS, STEPS = 3, ("1", "2", "6.1", "6.2")
EDITED = "e" * 64
NOT_HERE = {store_wide.AdoptStore, store_wide.NotePrune}
"""They concern the store as a whole, and would end all else that is going on."""

Rows = dict[str, list[Row]]
CHANCE = st.integers(0, 2**32 - 1)
"""A step's own dice: what Hypothesis chooses is which steps there are, and their seeds."""
WHICH = st.integers(0, 1)
"""Which of the two stores."""


@dataclass(slots=True)
class Arena:
    """Two stores on one database, as two processes would have them, used by many examples in turn."""

    stores: tuple[Store, Store]
    clock: Clock
    examples: int = 0
    applied: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def rows(self, table: str, **equal: Any) -> list[Row]:
        t = schema.metadata.tables[table]
        query = select(t).where(*(t.c[name] == value for name, value in equal.items()))
        with self.stores[0].backend.engine.connect() as db:
            return [dict(row) for row in db.execute(query.order_by(*t.primary_key.columns)).mappings()]


@contextmanager
def arena(url: str) -> Iterator[Arena]:
    one, clock = open_with_clock(url)
    with one, open_store(url, clock=clock) as two:
        yield Arena((one, two), clock)


class Machine(RuleBasedStateMachine):
    def __init__(self, arena: Arena) -> None:
        super().__init__()
        arena.examples += 1
        self.arena = arena
        self.clock = arena.clock
        self.prefix = f"e{arena.examples}-"
        self.agents = [f"{self.prefix}a", f"{self.prefix}b"]
        self.tools = [f"{self.prefix}pay", f"{self.prefix}mail"]
        self.services = [f"{self.prefix}bank/eu", f"{self.prefix}relay"]
        self.identities = [f"{self.prefix}invoice/{i}" for i in range(2)]
        self.runs = [f"{self.prefix}r{i}" for i in range(RUNS)]
        self.workers: list[str] = []
        self.fences: dict[str, list[int]] = {}
        self.done: list[tuple[Transition, Committed]] = []
        self.touched: set[str] = set()
        self.throws = 0
        for i in range(2):
            self._register(f"{self.prefix}w{i}")
        for i, run_id in enumerate(self.runs):
            self._submit_one(0, runs.StartRun(actor="operator:o", run_id=run_id, agent=self.agents[i % 2]))

    def _register(self, name: str) -> None:
        register(self.arena.stores[0], name, self.agents)
        self.workers.append(name)

    # --- looking ---------------------------------------------------------------------------------------------------

    def look(self, run_id: str) -> Rows:
        found = self.arena.rows("runs", run_id=run_id)
        seen: Rows = {"runs": found}
        with self.arena.stores[0].backend.engine.connect() as db:
            for t in (*schema.PER_RUN, schema.snapshots):
                query = select(t).where(t.c.run_no == (found[0]["run_no"] if found else -1))
                seen[t.name] = [dict(r) for r in db.execute(query.order_by(*t.primary_key.columns)).mappings()]
        return seen

    def look_at_store(self) -> Rows:
        folded = [t.name for t in schema.STORE_WIDE if t.name != "workers"]
        return {name: self.arena.rows(name) for name in (*folded, "store")} | {
            "workers": [
                {k: v for k, v in w.items() if k not in {"beat", "beat_at"}} for w in self.arena.rows("workers")
            ]
        }

    # --- submitting ------------------------------------------------------------------------------------------------

    def _submit_one(self, which: int, t: Transition) -> None:
        if t.log is not None:
            self.touched.add(t.log)
        before = self.look(t.log) if t.log is not None else self.look_at_store()
        frozen = self.arena.rows("freezes", lifted_at=None)
        owned = {i["identity"]: i for i in self.owned()}
        (result,) = self.arena.stores[which].commit([t])
        after = self.look(t.log) if t.log is not None else self.look_at_store()
        name = type(t).__name__
        if isinstance(result, StoreError):
            assert isinstance(result, Refused), f"{name}: {result!r}"
            assert before == after, f"{name} was refused and changed something: {result}"
            self.arena.refused[name] = self.arena.refused.get(name, 0) + 1
            return
        self._remember(t, result)
        if result.repeated:
            return
        if t.log is not None:
            self.check_moves(t, before, after)
        if isinstance(t, operations.Intend | operations.StartAttempt):
            self.check_effect(t, before, frozen)
        if isinstance(t, operations.Intend) and t.call.identity in owned and t.call.compensates is None:
            owner = owned[t.call.identity]
            assert (owner["run_id"], owner["step"]) == (t.run_id, t.step), "called what another operation owns"
        if isinstance(t, store_wide.ClaimIdentity) and t.identity in owned:
            status = self.status_of_owner(owned[t.identity])
            assert status in {None, "failed", "denied", "compensated"}, f"taken from an owner that is {status}"
        if isinstance(t, operations.Refer):
            assert self.status_of_owner(owned[t.identity]) == "succeeded", "referred to what has not succeeded"

    def owned(self) -> list[Row]:
        return [row for identity in self.identities for row in self.arena.rows("identities", identity=identity)]

    def status_of_owner(self, identity: Row) -> str | None:
        """As far as it has called, or still may; None when it never will."""
        (run,) = self.arena.rows("runs", run_id=identity["run_id"])
        found = self.arena.rows("operations", run_no=run["run_no"], step=identity["step"])
        if not found:
            return None if run["status"] in FINISHED else "claimed"
        return str(found[0]["status"])

    def _remember(self, t: Transition, result: Committed) -> None:
        name = type(t).__name__
        self.arena.applied[name] = self.arena.applied.get(name, 0) + 1
        if not result.repeated:  # one that had nothing to do left no trace to be recognised by
            self.done.append((t, result))
        if isinstance(t, runs.ClaimRun) and not result.repeated:
            assert result.run is not None
            given = self.fences.setdefault(t.run_id, [])
            assert not given or result.run["fence"] > given[-1], "a fence did not grow"
            given.append(result.run["fence"])

    def check_moves(self, t: Transition, before: Rows, after: Rows) -> None:
        """Every status that changed changed as declared, and the subject was where the transition is legal from."""
        for table, subject in (
            ("runs", "run"),
            ("operations", "operation"),
            ("approvals", "approval"),
            ("decisions", "decision"),
        ):
            moves = {(str(a), str(b)) for a, b in moves_of(type(t), subject)}
            was = {_key(table, row): row["status"] for row in before[table]}
            for row in after[table]:
                move = (str(was.get(_key(table, row), NONE)), str(row["status"]))
                assert move[0] == move[1] or move in moves, f"{type(t).__name__} moved a {subject} {move}"
        assert isinstance(t, OnRun)
        found = _status(t, before)
        assert found in t.sources, f"{type(t).__name__} was applied from {found}"
        if t.by == WORKER:
            assert before["runs"][0]["fence"] == t.fence, f"{type(t).__name__} was applied with a stale fence"

    def check_effect(self, t: operations.Intend | operations.StartAttempt, before: Rows, freezes: list[Row]) -> None:
        """The one thing that must never go wrong: a call was let through."""
        (run,) = before["runs"]
        operation = next((o for o in before["operations"] if o["step"] == t.step), None)
        tool = t.call.tool if isinstance(t, operations.Intend) else (operation or {})["tool"]
        stops = {("everything", None), ("tool", tool), ("agent", run["agent"])}
        service = t.call.service if isinstance(t, operations.Intend) else (operation or {})["service"]
        if service is not None:
            stops.add(("service", service))
        place = f"{t.run_id}#{t.step}"
        active = {(f["scope"], f["name"]) for f in freezes if (f["probe"] or "nobody") != place}
        assert not stops & active, f"called while frozen: {stops & active}"
        assert run["status"] in LIVE, f"called in a run that is {run['status']}"
        if isinstance(t, operations.Intend):
            stopping = run["pause_requested"] or (run["cancel_requested"] and run["status"] == RunStatus.RUNNING)
            assert not stopping, "called after somebody asked the run to stop"
        assert not [a for a in before["attempts"] if a["step"] == t.step and a["status"] == "running"]
        approvals = [a for a in before["approvals"] if a["step"] == t.step]
        if isinstance(t, operations.Intend):
            assert not run["pause_requested"], "called although asked to pause"
            assert not run["cancel_requested"] or run["status"] == "compensating", "called although asked to cancel"
            if operation is not None:
                last = approvals[-1]
                assert last["status"] == "given", f"called with an approval that is {last['status']}"
                assert last["not_before"] <= self.clock.now, "called while it could still be taken back"
                assert t.digest == (last["edited_digest"] or last["digest"]), "called with something else than agreed"
                wanted = last["edited_hash"] or operation["args_hash"]
                assert (t.call.args_hash, t.call.tool) == (wanted, operation["tool"])
        if approvals:
            expires = approvals[-1]["expires_at"]
            assert expires is None or expires > self.clock.now, "called with an approval that has expired"
            assert approvals[-1]["status"] in {"given", "consumed"}

    # --- promises about every run ----------------------------------------------------------------------------------

    @invariant()
    def every_run_keeps_its_promises(self) -> None:
        touched, self.touched = self.touched, set()
        for run_id in sorted(touched):
            seen = self.look(run_id)
            self.check_run(seen["runs"][0], seen)

    @invariant()
    def every_breaker_that_is_open_is_a_freeze(self) -> None:
        active = {f["freeze_no"]: f for f in self.arena.rows("freezes", lifted_at=None)}
        for breaker in (row for service in self.services for row in self.arena.rows("breakers", service=service)):
            if breaker["freeze_no"] is not None:
                freeze = active.pop(breaker["freeze_no"])
                assert (freeze["scope"], freeze["name"]) == ("service", breaker["service"])
                assert breaker["trips"] > 0
            else:
                assert breaker["trips"] == 0
        assert all(f["until"] is None and f["probe"] is None for f in active.values()), "a person's freeze is probed"

    def check_run(self, run: Row, seen: Rows) -> None:
        status, statuses = run["status"], [o["status"] for o in seen["operations"]]
        if status == RunStatus.NEEDS_OPERATOR:
            assert run["why"] in set(Why), "it needs an operator and does not say why"
        if status in FINISHED:
            left = {"awaiting_approval", "pending", "unknown"} & set(statuses)
            assert not left, f"it is {status} with operations that are {left}"
        for word, column in (
            ("awaiting_approval", "awaiting_operations"),
            ("pending", "pending_operations"),
            ("unknown", "unknown_operations"),
        ):
            assert run[column] == statuses.count(word), f"{column} is {run[column]}, but {statuses.count(word)} are"
        assert run["worker"] is None or status in LIVE, f"it is {status} and held by {run['worker']}"
        assert run["wake_at"] is None or status == RunStatus.WAITING, f"it is {status} and to be woken"
        running = [a["step"] for a in seen["attempts"] if a["status"] == "running"]
        assert len(running) == len(set(running)), "two attempts of one operation run"
        assert sorted(running) == sorted(o["step"] for o in seen["operations"] if o["attempting"])
        self.check_approvals(seen)
        self.check_decisions(run, seen)

    def check_decisions(self, run: Row, seen: Rows) -> None:
        """What a person decided is carried out, taken back or given up; a run never sleeps over it."""
        waiting = [d for d in seen["decisions"] if d["status"] == "waiting" and d["action"] != "approve"]
        known = [] if run["decision"] is None else [run["decision"]]
        assert [d["seq"] for d in waiting] == known, "the decisions that wait are not the run's"
        if run["status"] == RunStatus.WAITING and run["waits_for"].startswith("decision:"):
            (decision,) = waiting
            assert run["wake_at"] == decision["not_before"]
        elif run["status"] not in LIVE:
            assert not waiting, f"it is {run['status']}, and {waiting} was never carried out"
        if run["status"] == RunStatus.WAITING and any(a["status"] == "given" for a in seen["approvals"]):
            assert run["wake_at"] is not None, "it was given what it waits for, and sleeps for ever"

    def check_approvals(self, seen: Rows) -> None:
        for operation in seen["operations"]:
            of_it = [a for a in seen["approvals"] if a["step"] == operation["step"]]
            undecided = [a for a in of_it if a["status"] in {"asked", "given"}]
            assert len(undecided) == (operation["status"] == "awaiting_approval")
        given = {a["step"] for a in seen["approvals"] if a["status"] == "given"}
        waiting = [d["step"] for d in seen["decisions"] if d["status"] == "waiting" and d["action"] == "approve"]
        assert sorted(waiting) == sorted(given), "an approval and its decision do not agree"

    # --- what happens ----------------------------------------------------------------------------------------------

    def dice(self, chance: int) -> Random:
        """Other throws each time, even for the same chance."""
        self.throws += 1
        return Random(f"{chance} {self.throws}")

    @rule(chance=CHANCE, which=WHICH)
    def somebody_does_something(self, chance: int, which: int) -> None:
        random = self.dice(chance)
        if random.random() < 0.2:
            self._submit_one(which, self.any_transition(random))
            return
        run_id = random.choice(self.runs)
        for _ in range(random.choice((1, 3, 6))):
            by = random.choice((None, WORKER))
            self._submit_one(which, self.any_transition(random, sensible=True, by=by, run_id=run_id))

    @rule(chance=CHANCE, which=WHICH, n=st.integers(2, 5))
    def several_share_a_commit(self, chance: int, which: int, n: int) -> None:
        random = self.dice(chance)
        group = [self.any_transition(random, sensible=random.random() < 0.7) for _ in range(n)]
        touched = sorted({t.log for t in group if t.log is not None})
        self.touched.update(touched)
        before = {run_id: self.look(run_id) for run_id in touched}
        results = self.arena.stores[which].commit(group)
        assert len(results) == n
        for t, result in zip(group, results, strict=True):
            assert isinstance(result, Committed | Refused), f"{type(t).__name__}: {result!r}"
            if isinstance(result, Committed):
                self._remember(t, result)
        for run_id in touched:
            of_run = [r for t, r in zip(group, results, strict=True) if t.log == run_id]
            seqs = [r.seq for r in of_run if isinstance(r, Committed) and not r.repeated]
            after = self.look(run_id)
            if not seqs:
                assert after == before[run_id], "all were refused, and something changed"
            else:
                assert seqs == sorted(set(seqs)), "they were not applied in the order given"
                assert after["runs"][0]["head_seq"] == seqs[-1]

    @rule(chance=CHANCE, which=WHICH)
    def the_world_goes_on(self, chance: int, which: int) -> None:
        random = self.dice(chance)
        happens = random.choices(
            (
                self.time_passes,
                self.a_worker_claims_what_there_is,
                self.somebody_submits_the_same_again,
                self.a_worker_dies,
            ),
            (4, 4, 3, 1),
        )[0]
        happens(random, which)

    def time_passes(self, random: Random, which: int) -> None:
        self.clock.pass_(random.choice((SECOND, 10 * SECOND, MINUTE)))

    def somebody_submits_the_same_again(self, random: Random, which: int) -> None:
        t, first = random.choice(self.done[-20:])
        before = self.look(t.log) if t.log is not None else self.look_at_store()
        (again,) = self.arena.stores[which].commit([t])
        assert before == (self.look(t.log) if t.log is not None else self.look_at_store())
        if isinstance(t, runs.ClaimRun) and isinstance(again, StaleFence):
            return  # it was applied, and somebody has taken the run over since
        assert isinstance(again, Committed), f"{type(t).__name__}: {again!r}"
        assert again.repeated
        if not isinstance(t, runs.StartRun | runs.SendSignal | runs.TakeSnapshot):  # which find nothing to do any more
            assert again.seq <= first.seq

    def a_worker_dies(self, random: Random, which: int) -> None:
        self._register(f"{self.prefix}w{len(self.workers)}")  # and another comes
        alive = [w for w in self.arena.rows("workers", status="alive") if w["worker"] in self.workers]
        row = random.choice(alive)
        dead = store_wide.LoseWorker(actor="system", worker=row["worker"], beat=row["beat"], reason="dead")
        self._submit_one(which, dead)

    def a_worker_claims_what_there_is(self, random: Random, which: int) -> None:
        worker = random.choice(self.workers[-3:])
        store = self.arena.stores[which]
        self.touched.update(self.runs)
        try:
            claimed = store.claim(worker, {agent: ["1"] for agent in self.agents}, limit=2)
        except Refused:
            return
        for result in claimed:
            assert result.run is not None
            given = self.fences.setdefault(result.run["run_id"], [])
            assert not given or result.run["fence"] > given[-1], "a fence did not grow"
            given.append(result.run["fence"])
            assert store.run(result.run["run_id"])["worker"] == worker
        if claimed:
            store.beat(worker)

    def teardown(self) -> None:
        for freeze in self.arena.rows("freezes", lifted_at=None):
            lift = store_wide.Unfreeze(actor="operator:o", freeze_no=freeze["freeze_no"], reason="the end")
            self.arena.stores[0].do(lift)
        for run_id in self.runs:
            assert fsck(self.arena.stores[1], run_id, deep=True).problems == []

    # --- choosing --------------------------------------------------------------------------------------------------

    def any_transition(
        self, random: Random, sensible: bool = False, by: str | None = None, run_id: str | None = None
    ) -> Transition:
        """Sensible ones are often legal: they begin with what is possible, and look before they leap."""
        chance = Chance(random, self, run_id or random.choice(self.runs), sensible)
        kinds = [t for t in MAKERS if (by is None or t.by == by or t is runs.ClaimRun) and chance.possible(t)]
        if not sensible or not kinds:
            kinds = list(MAKERS)
        weights = [WEIGHTS.get(t, 2) if sensible else 1 for t in kinds]
        (chance.kind,) = random.choices(kinds, weights)
        made = MAKERS[chance.kind](chance)
        if isinstance(made, OnRun) and random.random() < 0.05:
            made.seen = random.randrange(1, 6)
        return made


WEIGHTS: dict[type[Transition], float] = {
    runs.ClaimRun: 30,
    operations.Intend: 10,
    operations.EndAttempt: 5,
    operations.StartAttempt: 20,
    operations.Settle: 8,
    operations.AskApproval: 5,
    runs.NeedOperator: 4,
    people.Approve: 8,
    people.DecideRetry: 20,
    people.RecordHappened: 10,
    people.RecordAbsent: 10,
    people.RequestVerify: 12,
    operations.EndCompensation: 4,
    runs.StopAtBoundary: 8,
    operations.CarryOutRetry: 20,
    operations.Refer: 30,
    runs.WakeRun: 30,
    store_wide.ClaimIdentity: 8,
    store_wide.ProbeService: 20,
    store_wide.ServiceFailed: 2,
    store_wide.ServiceAnswered: 0.5,
    store_wide.TakeToken: 0.5,
    people.CarryOutResume: 20,
    operations.BeginCompensation: 3,
    store_wide.Unfreeze: 8,
    store_wide.OpenBatch: 20,
    store_wide.ReleaseMember: 4,
    runs.FailRun: 1,
    people.RequestCancel: 0.5,
    people.RequestPause: 0.5,
    operations.AppendLateEvidence: 1,
    people.AddNote: 0.5,
    store_wide.Freeze: 0.5,
    store_wide.RegisterWorker: 0.2,
    store_wide.LoseWorker: 0.2,
}
"""So that runs get far before they end."""


RARELY = {"identity": 12, "service": 6}
"""How often a call has none, for each time that it has one of two, whoever owns it or however it is."""


def _key(table: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[c.name] for c in schema.metadata.tables[table].primary_key.columns)


def _status(t: OnRun, seen: Rows) -> str:
    """Where the subject of a transition stood."""
    step, found = getattr(t, "step", None), None
    if t.subject == "run":
        found = seen["runs"][0] if seen["runs"] else None
    elif t.subject == "operation":
        found = next((o for o in seen["operations"] if o["step"] == step), None)
    elif isinstance(t, people.OnApproval):
        found = next((a for a in seen["approvals"] if (a["step"], a["n"]) == (step, t.n)), None)
    elif isinstance(t, people.TakeBack):
        found = next((d for d in seen["decisions"] if d["seq"] == t.decision), None)
    return NONE if found is None else str(found["status"])


@dataclass(slots=True)
class Chance:
    """Draws the parts of a transition, mostly so that it could be legal."""

    random: Random
    machine: Machine
    run_id: str
    sensible: bool
    kind: type[Transition] = runs.StartRun
    seen: Rows = field(init=False)
    run: Row = field(init=False)

    def __post_init__(self) -> None:
        self.seen = self.machine.look(self.run_id)
        self.run = self.seen["runs"][0]

    def of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def possible(self, t: type[Transition]) -> bool:
        """As far as a look at the run can tell; the state machine looks closer."""
        run, status, now = self.run, self.run["status"], self.machine.clock.now
        decided = {d["action"] for d in self.seen["decisions"] if d["status"] == "waiting"}
        unsettled = run["awaiting_operations"] or run["pending_operations"] or run["unknown_operations"]
        also = {
            runs.ClaimRun: run["worker"] is None and (status != "waiting" or 0 < (run["wake_at"] or 0) <= now),
            runs.FailRun: not unsettled,
            runs.StopAtBoundary: bool(run["pause_requested"] or run["cancel_requested"]),
            runs.ConsumeSignal: bool(self.seen["signals"]),
            people.CarryOutResume: "resume" in decided,
            operations.CarryOutRetry: "retry" in decided,
            people.DecideCompensate: not unsettled,
            people.DismissDuplicate: any(o["duplicate_suspected"] for o in self.seen["operations"]),
            store_wide.OpenBatch: bool(run["unknown_operations"]),
            operations.StartAttempt: any(
                o["status"] == "pending" and not o["attempting"] for o in self.seen["operations"]
            ),
            store_wide.ProbeService: t is store_wide.ProbeService and bool(self.open_breakers()),
            operations.Refer: t is operations.Refer and bool(self.identities("succeeded")),
            runs.WakeRun: (run["waits_for"] or "").startswith(("freeze:", "identity:")),
        }
        if not also.get(t, True):
            return False
        if t.subject == "run":
            return status in t.sources
        if t.subject == "operation":
            return status in run_statuses(t) and bool(self.steps_in(t))
        if t.subject == "approval":
            return any(a["status"] in t.sources for a in self.seen["approvals"])
        if t.subject == "decision":
            return any(d["status"] in t.sources for d in self.seen["decisions"])
        return self.random.random() < 0.3

    def steps_in(self, t: type[Transition]) -> list[str]:
        status = {o["step"]: str(o["status"]) for o in self.seen["operations"]}
        known = [*STEPS, *(f"c{s}" for s in STEPS)] if self.run["status"] == "compensating" else list(STEPS)
        return [s for s in known if status.get(s, NONE) in t.sources]

    @property
    def step(self) -> str:
        likely = self.steps_in(self.kind) if self.sensible and self.kind.subject == "operation" else []
        if likely and self.kind is operations.StartAttempt:
            attempting = {o["step"] for o in self.seen["operations"] if o["attempting"]}
            likely = [s for s in likely if s not in attempting] or likely
        if likely and self.kind is operations.Intend:  # what was claimed is meant to be called
            likely = [s for s in likely if s in self.claimed()] or likely
        return str(self.of(*(likely or STEPS)))

    def identities(self, status: str | None = None) -> list[Row]:
        """Those of this example; whose owner is so, when a status is given."""
        known = self.machine.owned()
        return [i for i in known if status is None or self.machine.status_of_owner(i) == status]

    def open_breakers(self) -> list[str]:
        """That may be probed."""
        now, services = self.machine.clock.now, self.machine.services
        active = self.machine.arena.rows("freezes", lifted_at=None, scope="service")
        return [f["name"] for f in active if f["name"] in services and f["until"] is not None and f["until"] <= now]

    def claimed(self) -> set[str]:
        """The steps of this run that own an identity."""
        return {i["step"] for i in self.identities() if i["run_id"] == self.run_id}

    @property
    def worker(self) -> str:
        return str(self.run["worker"] or self.of(*self.machine.workers))

    @property
    def by(self) -> dict[str, Any]:
        """As the holder; now and then as one who lost the run, or never had it."""
        fence = self.run["fence"]
        if self.of(*range(10)) == 0:
            fence = self.of(fence - 1, fence + 1, None, *self.machine.fences.get(self.run_id, []))
        return {"actor": f"worker:{self.worker}", "run_id": self.run_id, "fence": fence}

    @property
    def operator(self) -> dict[str, Any]:
        return {"actor": self.of("operator:ann", "operator:bob"), "run_id": self.run_id}

    @property
    def state(self) -> bytes | None:
        return encode({"n": self.of(1, 2, 3), "log": ["x" * 50]}) if self.of(True, False) else None

    @property
    def reason(self) -> str:
        return " " if self.of(*range(20)) == 0 else "because"

    @property
    def regret(self) -> int:
        return int(self.of(0, 10 * SECOND))

    @property
    def soon(self) -> int | None:
        now = self.machine.clock.now
        return None if (wait := self.of(None, 0, 5 * SECOND, MINUTE)) is None else now + int(wait)

    def decision(self, action: str) -> int:
        known = [
            d["seq"]
            for d in self.seen["decisions"]
            if d["action"] == action and (d["status"] == "waiting" or not self.sensible)
        ]
        return int(self.of(*known, 3)) if known else 3

    def call(self, step: str) -> tuple[Call, str]:
        """And the digest that goes with it: of what was asked for, or of what was agreed to instead."""
        operation = next((o for o in self.seen["operations"] if o["step"] == step), None)
        tool = operation["tool"] if operation and self.sensible else self.of(*self.machine.tools)
        approval = next((a for a in reversed(self.seen["approvals"]) if a["step"] == step), None)
        edited = bool(approval and approval["edited_hash"]) if self.sensible else self.of(True, False, False)
        undoes = step.removeprefix("c") if step.startswith("c") else None
        mine = [i["identity"] for i in self.identities() if (i["run_id"], i["step"]) == (self.run_id, step)]
        identity = (
            self.of(*mine)
            if mine and self.sensible
            else self.of(*[None] * RARELY["identity"], *self.machine.identities)
        )
        call = Call(
            service=self.of(*[None] * RARELY["service"], *self.machine.services), identity=identity,
            tool=tool, args={"step": step}, args_hash=f"{step}-edited" if edited else step, compensates=undoes,
            effect=self.of(Effect.WRITE, Effect.WRITE, Effect.READ), can_verify=self.of(True, True, True, False),
        )  # fmt: skip
        return call, EDITED if edited else DIGEST


def _start(c: Chance) -> Transition:
    return runs.StartRun(**c.operator, agent=c.run["agent"], input=c.of(None, "other"))


def _claim(c: Chance) -> Transition:
    worker = c.of(*c.machine.workers[-3:])
    return runs.ClaimRun(actor=f"worker:{worker}", run_id=c.run_id, worker=worker)


def _park(c: Chance) -> Transition:
    held_up = (f"freeze:{c.of(*c.machine.tools)}", f"identity:{c.of(*c.machine.identities)}")
    waits = c.of("signal:go", "time", f"approval:{c.step}", *held_up)
    return runs.ParkRun(**c.by, waits_for=waits, wake_at=c.soon, state=c.state)


def _compensate(c: Chance) -> Transition:
    done = [o["step"] for o in c.seen["operations"] if o["status"] == "succeeded" and o["refers_to"] is None]
    steps = done if c.sensible else [c.of(*STEPS)]
    decided = c.decision("compensate")
    decision = decided if decided != 3 or c.of(*range(10)) == 0 else None
    return operations.BeginCompensation(**c.by, scope="run", steps=steps, cause="it failed", decision=decision)


def _ask(c: Chance) -> Transition:
    step = c.step
    call, _ = c.call(step)
    return operations.AskApproval(
        **c.by, step=step, call=call, digest=DIGEST, rule="big", expires_at=c.soon, state=c.state
    )


def _intend(c: Chance) -> Transition:
    step = c.step
    call, digest = c.call(step)
    return operations.Intend(
        **c.by, step=step, call=call, worker=c.worker, digest=c.of(digest, digest, digest, None), state=c.state
    )


def _settle(c: Chance) -> Transition:
    step = c.step
    outcome = c.of(
        OperationStatus.SUCCEEDED, OperationStatus.SUCCEEDED, OperationStatus.FAILED, *[OperationStatus.UNKNOWN] * 3
    )
    if c.sensible and step in c.claimed():
        outcome = c.of(*[OperationStatus.SUCCEEDED] * 4, OperationStatus.FAILED)
    running = any(o["attempting"] for o in c.seen["operations"] if o["step"] == step)
    answer = c.of(None, *Answer)
    if c.sensible:
        answer = c.of(*Answer) if running else None
    return operations.Settle(
        **c.by, step=step, outcome=outcome, answer=answer, evidence=c.of(None, *Evidence), state=c.state
    )


def _need_operator(c: Chance) -> Transition:
    why = Why.UNKNOWN if c.sensible and c.run["unknown_operations"] else c.of(*Why)
    return runs.NeedOperator(**c.by, why=why, detail="look", state=c.state)


def _approve(c: Chance) -> Transition:
    step = c.step
    known = [a for a in c.seen["approvals"] if a["status"] == "asked"]
    n = 1
    if known and c.sensible:
        approval = c.of(*known)
        step, n = approval["step"], approval["n"]
    edited: dict[str, Any] = (
        {"edited_hash": f"{step}-edited", "edited_digest": EDITED, "edited_args": {}} if c.of(*range(3)) == 0 else {}
    )
    digest = c.of(DIGEST, DIGEST, DIGEST, "f" * 64)
    return people.Approve(**c.operator, step=step, n=n, digest=digest, regret=c.regret, **edited)


def _approval(c: Chance) -> dict[str, Any]:
    known = [a for a in c.seen["approvals"] if a["status"] in c.kind.sources]
    if known and c.sensible:
        approval = c.of(*known)
        return {"run_id": c.run_id, "step": approval["step"], "n": approval["n"]}
    return {"run_id": c.run_id, "step": c.step, "n": c.of(1, 2)}


def _take_back(c: Chance) -> Transition:
    known = [d["seq"] for d in c.seen["decisions"] if d["status"] == "waiting" or not c.sensible]
    return people.TakeBack(**c.operator, decision=c.of(*known) if known else 3, reason="wait")


def _freeze(c: Chance) -> Transition:
    scope, name = c.of(
        (FreezeScope.EVERYTHING, None),
        *((FreezeScope.TOOL, tool) for tool in c.machine.tools),
        *((FreezeScope.AGENT, agent) for agent in c.machine.agents),
        *((FreezeScope.SERVICE, service) for service in c.machine.services),
    )
    return store_wide.Freeze(actor="operator:ann", scope=scope, name=name, reason=c.reason)


def _unfreeze(c: Chance) -> Transition:
    active = [f["freeze_no"] for f in c.machine.arena.rows("freezes", lifted_at=None)]
    return store_wide.Unfreeze(actor="operator:bob", freeze_no=c.of(*active) if active else 1, reason=c.reason)


def _probe(c: Chance) -> Transition:
    place = f"{c.run_id}#{c.step}"
    service = c.of(*((c.sensible and c.open_breakers()) or c.machine.services))
    return store_wide.ProbeService(actor="system", service=service, place=place, until=c.machine.clock.now + 5 * SECOND)


def _failed(c: Chance) -> Transition:
    return store_wide.ServiceFailed(
        actor="system", service=c.of(*c.machine.services), reason="503", threshold=c.of(1, 2, 3),
        cooldown=c.of(0, SECOND),
    )  # fmt: skip


def _claim_identity(c: Chance) -> Transition:
    identity = c.of(*c.machine.identities)
    new = [s for s in STEPS if s not in {o["step"] for o in c.seen["operations"]}]
    step = c.of(*new) if new and c.sensible else c.of(*STEPS)
    return store_wide.ClaimIdentity(
        actor=f"worker:{c.worker}", identity=identity, run_id=c.run_id, step=step, tool=c.machine.tools[0],
        args_hash=c.of(identity, identity, identity, "other"),
    )  # fmt: skip


def _refer(c: Chance) -> Transition:
    step, done = c.step, c.identities("succeeded" if c.sensible else None)
    if done:
        found = c.of(*done)
        identity, owner, args_hash = found["identity"], (found["run_id"], found["step"]), found["args_hash"]
    else:
        identity, owner, args_hash = c.of(*c.machine.identities), (c.run_id, c.of(*STEPS)), "other"
    call = Call(tool=c.machine.tools[0], args_hash=args_hash, compensate="undo")
    return operations.Refer(**c.by, step=step, call=call, identity=identity, owner=owner, result=7, state=c.state)


def _worker(c: Chance) -> str:
    return str(c.of(*c.machine.workers))


def _stop_worker(c: Chance) -> Transition:
    spare = c.machine.workers[-1] if c.of(*range(4)) == 0 else "nobody"
    return store_wide.StopWorker(actor=f"worker:{spare}", worker=spare)


def _batch_no(c: Chance) -> int:
    known = [b["batch_no"] for b in c.machine.arena.rows("batches")[-3:]]
    return int(c.of(*known)) if known else 1


def _open_batch(c: Chance) -> Transition:
    unknown = [(c.run_id, o["step"]) for o in c.seen["operations"] if o["status"] == "unknown"]
    members = unknown if c.sensible else [(c.run_id, c.step)]
    return store_wide.OpenBatch(actor="operator:ann", action="retry", members=members, reason=c.reason)


def _registration(c: Chance) -> Transition:
    return store_wide.RegisterWorker(
        actor="worker:x", worker=_worker(c), host="here", boot_id="b", pid=1, process_started="1", agents={}, lease=1
    )


def _lose_worker(c: Chance) -> Transition:
    return store_wide.LoseWorker(actor="system", worker=_worker(c), beat=10**6, reason="not seen")


def _late(c: Chance) -> Transition:
    return operations.AppendLateEvidence(
        actor="worker:old", run_id=c.run_id, step=c.step, data={}, duplicate_suspected=c.of(True, False)
    )


def _recover(c: Chance) -> Transition:
    answers: dict[str, Any] = dict.fromkeys(("attempted", "acknowledged", "proven", "retry_safe", "verdict"), "no")
    return operations.RecordRecovery(**c.by, step=c.step, **answers)


MAKERS: dict[type[Transition], Callable[[Chance], Transition]] = {
    runs.StartRun: _start,
    runs.ClaimRun: _claim,
    runs.ReleaseRun: lambda c: runs.ReleaseRun(**c.by, state=c.state),
    runs.DeclarePlan: lambda c: runs.DeclarePlan(**c.by, steps=["a", "b"]),
    runs.RecordStep: lambda c: runs.RecordStep(**c.by, step=c.of("3", "4", "5"), name="look", state=c.state),
    runs.TakeSnapshot: lambda c: runs.TakeSnapshot(**c.by, state=c.state),
    runs.ParkRun: _park,
    runs.WakeRun: lambda c: runs.WakeRun(actor="system", run_id=c.run_id),
    runs.SendSignal: lambda c: runs.SendSignal(
        actor="system", run_id=c.run_id, signal_id=c.of("s1", "s2"), name=c.of("go", "stop")
    ),
    runs.ConsumeSignal: lambda c: runs.ConsumeSignal(**c.by, signal_id=c.of("s1", "s2"), step=c.of("7", "8")),
    runs.NeedOperator: _need_operator,
    runs.StopAtBoundary: lambda c: runs.StopAtBoundary(**c.by, state=c.state),
    runs.FinishRun: lambda c: runs.FinishRun(**c.by, output=1, state=c.state),
    runs.FailRun: lambda c: runs.FailRun(**c.by, error_class="E", message="no", state=c.state),
    operations.BeginCompensation: _compensate,
    operations.EndCompensation: lambda c: operations.EndCompensation(
        **c.by, outcome=c.of(RunStatus.RUNNING, RunStatus.COMPENSATED, RunStatus.NEEDS_OPERATOR, RunStatus.FAILED)
    ),
    people.RequestPause: lambda c: people.RequestPause(**c.operator, reason=c.reason),
    people.RequestCancel: lambda c: people.RequestCancel(**c.operator, reason=c.reason),
    people.ResumeRun: lambda c: people.ResumeRun(**c.operator, reason=c.reason, regret=c.regret),
    people.CarryOutResume: lambda c: people.CarryOutResume(**c.by, decision=c.decision("resume")),
    people.DecideCompensate: lambda c: people.DecideCompensate(
        **c.operator, scope="run", steps=["1"], reason=c.reason, regret=c.regret
    ),
    people.AddNote: lambda c: people.AddNote(**c.operator, reason=c.reason, owner=c.of(None, "ann")),
    operations.DenyOperation: lambda c: operations.DenyOperation(
        **c.by, step=(step := c.step), call=c.call(step)[0], rule="never", reason="policy"
    ),
    operations.AskApproval: _ask,
    operations.Intend: _intend,
    operations.StartAttempt: lambda c: operations.StartAttempt(**c.by, step=c.step, worker=c.worker),
    operations.EndAttempt: lambda c: operations.EndAttempt(
        **c.by, step=c.step, answer=c.of(*Answer), abandoned=c.of(True, False)
    ),
    operations.RecordVerification: lambda c: operations.RecordVerification(
        **c.by, step=c.step, evidence=c.of(*Evidence)
    ),
    operations.RecordRecovery: _recover,
    operations.Settle: _settle,
    operations.Refer: _refer,
    operations.AppendLateEvidence: _late,
    people.DismissDuplicate: lambda c: people.DismissDuplicate(**c.operator, step=c.step, reason=c.reason),
    people.RequestVerify: lambda c: people.RequestVerify(**c.operator, step=c.step, reason=c.reason),
    people.RecordHappened: lambda c: people.RecordHappened(
        **c.operator, step=c.step, reason=c.reason, evidence=c.reason
    ),
    people.RecordAbsent: lambda c: people.RecordAbsent(**c.operator, step=c.step, reason=c.reason),
    people.RetryMember: lambda c: people.RetryMember(
        actor="operator:ann", run_id=c.run_id, step=c.step, batch=_batch_no(c)
    ),
    people.DecideRetry: lambda c: people.DecideRetry(**c.operator, step=c.step, reason=c.reason, regret=c.regret),
    operations.CarryOutRetry: lambda c: operations.CarryOutRetry(**c.by, step=c.step, decision=c.decision("retry")),
    people.Approve: _approve,
    people.Refuse: lambda c: people.Refuse(actor="operator:bob", **_approval(c), reason=c.reason),
    people.ExpireApproval: lambda c: people.ExpireApproval(actor="system", **_approval(c)),
    people.TakeBack: _take_back,
    roles.GrantRole: lambda c: roles.GrantRole(
        actor="operator:ann", person=c.of("operator:eve", "operator:mo"), role=c.of(*Role), reason=c.reason
    ),
    store_wide.Freeze: _freeze,
    store_wide.Unfreeze: _unfreeze,
    store_wide.ServiceFailed: _failed,
    store_wide.ServiceAnswered: lambda c: store_wide.ServiceAnswered(actor="system", service=c.of(*c.machine.services)),
    store_wide.ProbeService: _probe,
    store_wide.TakeToken: lambda c: store_wide.TakeToken(
        actor="system", tool=c.of(*c.machine.tools), capacity=c.of(1, 2.5), per_second=c.of(0.01, 3)
    ),
    store_wide.ClaimIdentity: _claim_identity,
    store_wide.RegisterWorker: _registration,
    store_wide.StopWorker: _stop_worker,
    store_wide.LoseWorker: _lose_worker,
    store_wide.OpenBatch: _open_batch,
    store_wide.ReleaseMember: lambda c: store_wide.ReleaseMember(actor="system", batch_no=_batch_no(c)),
    store_wide.StopBatch: lambda c: store_wide.StopBatch(actor="operator:ann", batch_no=_batch_no(c), reason=c.reason),
}


# --- the tests ---------------------------------------------------------------------------------------------------


def run(arena: Arena, examples: int, machine: type[Machine] = Machine) -> None:
    """The same every time; the long profile tries new ones, and prints the seed that repeats them."""

    def make() -> Machine:
        return machine(arena)

    if LONG:
        chosen = int(os.environ.get("WALKBACK_SEED", SystemRandom().randrange(2**32)))
        print(f"WALKBACK_SEED={chosen}")
        make = seed(chosen)(make)
        examples *= 40
    run_state_machine_as_test(
        make,  # type: ignore[arg-type]  # anything that makes one will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=not LONG,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # A shorter story takes minutes to find; WALKBACK_SHRINK=1 asks for it.
            phases=[Phase.generate, Phase.shrink] if os.environ.get("WALKBACK_SHRINK") else [Phase.generate],
            report_multiple_bugs=False,
        ),
    )


def test_every_transition_takes_part() -> None:
    assert set(MAKERS) | NOT_HERE == set(TRANSITIONS)


def check_all(url: str, examples: int) -> Arena:
    with arena(url) as made:
        run(made, examples)
        report = fsck(made.stores[0], deep=True)
        assert report.problems == []
        assert report.events > 0
    return made


def test_on_sqlite_nothing_that_workers_and_operators_do_breaks_a_promise(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = check_all(f"sqlite:///{tmp_path_factory.mktemp('stateful') / 'walkback.db'}", 100)
    # A machine that is always refused keeps every promise too. Which ones a change of this file leaves out is chance.
    left_out = {t.__name__ for t in MAKERS} - made.applied.keys()
    assert len(left_out) <= len(MAKERS) // 8, f"never applied: {sorted(left_out)}"
    assert sum(made.applied.values()) > 1000


def test_on_postgresql_nothing_that_workers_and_operators_do_breaks_a_promise(postgres: Postgres) -> None:
    with postgres.fresh_database() as url:
        check_all(url, 12)


# --- would it notice? --------------------------------------------------------------------------------------------


@contextmanager
def noticed(match: str) -> Iterator[None]:
    """Hypothesis tries what failed once more, in a store that it has left its traces in: so it may fail differently."""
    with pytest.raises((AssertionError, Flaky)) as found:
        yield
    assert re.search(match, "\n".join(str(e) for e in _whole(found.value)))


def _whole(error: BaseException | None) -> Iterator[BaseException]:
    if error is not None:
        yield error
        yield from _whole(error.__cause__ or error.__context__)
        for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _whole(part)


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with arena(f"sqlite:///{tmp_path_factory.mktemp('planted') / 'walkback.db'}") as made:
        yield made


@pytest.fixture
def often_frozen() -> Iterator[None]:
    before = WEIGHTS[store_wide.Freeze]
    WEIGHTS[store_wide.Freeze] = 10
    yield
    WEIGHTS[store_wide.Freeze] = before


@pytest.mark.usefixtures("often_frozen")
def test_a_forgotten_freeze_would_be_noticed(small: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "check_freezes", lambda *_: None)
    with noticed("called while frozen"):
        run(small, 200)


def test_an_identity_that_two_may_own_would_be_noticed(small: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_wide, "LETS_GO", frozenset({*OperationStatus, "claimed", "gone"}))
    with noticed("taken from an owner"):
        run(small, 200)


def test_a_call_of_what_another_owns_would_be_noticed(small: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RARELY, "identity", 2)
    monkeypatch.setattr(operations, "check_owned", lambda *_: None)
    with noticed("called what another operation owns"):
        run(small, 200)


def test_a_run_that_ends_with_operations_in_the_air_would_be_noticed(
    small: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "check_settled", lambda *_: None)
    with noticed("with operations that are"):
        run(small, 200)


def test_a_fence_that_is_not_checked_would_be_noticed(small: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfenced(self: OnRun, view: Any) -> Row:
        found: Row | None = view.run(self.run_id)
        if found is None:
            raise PreconditionFailed("no such run")
        return found

    monkeypatch.setattr(OnRun, "_run", unfenced)
    with noticed("stale fence"):
        run(small, 200)


def test_a_transition_that_is_legal_from_more_than_it_says_would_be_noticed(
    small: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people.ResumeRun, "sources", (RunStatus.PAUSED,))
    original = people.ResumeRun._check_run

    def lenient(self: OnRun, view: Any, sources: Any = None) -> Row:
        return original(self, view, tuple(RunStatus))

    monkeypatch.setattr(people.ResumeRun, "_check_run", lenient)
    with noticed(r"ResumeRun|held by|the decisions that wait"):
        run(small, 200)


def test_a_row_edited_between_two_steps_would_be_noticed(small: Arena) -> None:
    class Tampered(Machine):
        @rule()
        def somebody_edits_a_row(self) -> None:
            engine = self.arena.stores[0].backend.engine
            with engine.connect().execution_options(walkback_writes=True) as db, db.begin():
                r = schema.runs
                db.execute(update(r).where(r.c.run_id == self.runs[0]).values(owner="mallory"))

    with noticed("mallory"):
        run(small, 50, Tampered)


@pytest.mark.usefixtures("often_frozen")
def test_a_refusal_that_leaves_something_behind_would_be_noticed(small: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(view: Any, *_: Any) -> None:
        if any(f["scope"] == FreezeScope.EVERYTHING for f in view.freezes()):
            for entry in view._entries.values():
                if entry.row is not None and "owner" in entry.row:
                    entry.changes["owner"] = "left behind"
            raise Frozen("everything is frozen")

    monkeypatch.setattr(operations, "check_freezes", spoiled)
    with noticed(""):
        run(small, 200)
