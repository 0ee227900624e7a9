"""A recipe for every state and an example of every transition, and the check that both agree with what is declared.

A transition is legal from exactly its `sources`. So for each transition and each state of its subject, a recipe brings
a new run, worker, freeze, identity or batch into that state, the example is submitted, and what happens is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.store.driver import (
    ANN,
    BOB,
    DIGEST,
    MINUTE,
    Clock,
    Held,
    ask,
    call,
    finish,
    intend,
    lose_track,
    open_with_clock,
    register,
    start,
    succeed,
    write,
)
from tests.support.postgres import Postgres
from walkback_store import schema
from walkback_store.errors import (
    IdentityTaken,
    IllegalTransition,
    NotFound,
    PreconditionFailed,
    Refused,
    RunExists,
    StaleFence,
    StaleView,
    StoreError,
    TransitionConflict,
)
from walkback_store.fsck import fsck
from walkback_store.log import Row
from walkback_store.machine import operations, people, roles, runs, store_wide
from walkback_store.machine.base import NONE, OPERATOR, UNCHANGED, WORKER, OnRun, Transition, new_id
from walkback_store.machine.document import moves_of
from walkback_store.machine.operations import OnOperation
from walkback_store.machine.store_wide import CLOSED, FREE, KEPT, OPEN, OWNED
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.store import Store
from walkback_store.words import (
    LIVE,
    Answer,
    ApprovalStatus,
    BatchStatus,
    DecisionStatus,
    Evidence,
    FreezeScope,
    OperationStatus,
    Role,
    RunStatus,
    Why,
    WorkerStatus,
)

A = ApprovalStatus
D = DecisionStatus
O = OperationStatus  # noqa: E741
R = RunStatus
ACTIVE, LIFTED = "active", "lifted"
ADOPTED, NOT_ADOPTED = "adopted", "not adopted"
STEP = "1"


class World:
    """A store that many tests share: each works on a run, a worker, a freeze or a batch of its own."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._names = 0
        register(store)
        start(store, "somebody-elses")
        self.used = people.AddNote(actor=BOB, run_id="somebody-elses", reason="an id that is taken")
        store.do(self.used)

    def name(self, prefix: str = "r") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def run(self, **more: Any) -> str:
        """A run that nobody holds."""
        run_id = self.name()
        start(self.store, run_id, **more)
        return run_id

    def take(self, run_id: str, worker: str = "w") -> Held:
        claimed = self.store.do(runs.ClaimRun(actor=f"worker:{worker}", run_id=run_id, worker=worker))
        assert claimed.run is not None
        return Held(self.store, run_id, worker, claimed.run["fence"])

    def held(self, **more: Any) -> Held:
        return self.take(self.run(**more))

    def worker(self) -> str:
        name = self.name("w")
        register(self.store, name)
        return name

    def lose(self, worker: str) -> None:
        (row,) = [w for w in self.rows("workers") if w["worker"] == worker]
        self.store.do(store_wide.LoseWorker(actor="system", worker=worker, beat=row["beat"], reason="no heartbeat"))

    def rows(self, table: str, **equal: Any) -> list[Row]:
        """All of them, however many: tests look at everything that could have changed."""
        t = schema.metadata.tables[table]
        query = select(t).where(*(t.c[name] == value for name, value in equal.items()))
        with self.store.backend.engine.connect() as db:
            return [dict(row) for row in db.execute(query.order_by(*t.primary_key.columns)).mappings()]

    def everything_about(self, run_id: str | None) -> dict[str, list[Row]]:
        """Every row of a run and of the store's own log, so that "nothing was changed" can be seen."""
        found = {t.name: self.rows(t.name) for t in schema.STORE_WIDE}
        found["store"] = self.rows("store")
        for run in self.rows("runs", run_id=run_id):
            found["runs"] = [run]
            for t in (*schema.PER_RUN, schema.run_tags, schema.snapshots):
                found[t.name] = self.rows(t.name, run_no=run["run_no"])
        return found

    def last_event(self, run_id: str | None) -> Any:
        log = self.rows("store")[0] if run_id is None else self.store.run(run_id)
        (event,) = self.store.events(run_id, after=log["head_seq"] - 1)
        return event


@contextmanager
def new_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For a fixture with the databases as its parameters; afterwards the whole store is checked."""
    if request.param == "sqlite":
        with _world(f"sqlite:///{tmp_path_factory.mktemp('world') / 'walkback.db'}") as world:
            yield world
    else:
        server: Postgres = request.getfixturevalue("postgres")
        with server.fresh_database() as url, _world(url) as world:
            yield world


@contextmanager
def _world(url: str) -> Iterator[World]:
    store, clock = open_with_clock(url)
    with store:
        yield World(store, clock)
        assert fsck(store, deep=True).problems == []


# --- scenes: something in a known state ---------------------------------------------------------------------------


@dataclass(slots=True)
class Scene:
    """What a recipe made, and how an example names it."""

    world: World
    h: Held | None = None
    decision: int = 0
    number: int = 0
    name: str = ""
    owner: tuple[str, str] = ("nobody", STEP)
    """Of the identity called `name`."""

    @property
    def by(self) -> dict[str, Any]:
        """A worker's part of a transition, with the fence as it is now."""
        assert self.h is not None
        found = self.world.rows("runs", run_id=self.h.run_id)
        return self.h.by | {"fence": found[0]["fence"] if found else 1}

    @property
    def run_id(self) -> str:
        assert self.h is not None
        return self.h.run_id

    def ann(self, **more: Any) -> dict[str, Any]:
        return {"actor": ANN, "run_id": self.run_id, **more}


Recipe = Callable[[World], Scene]


def _nothing(world: World) -> Scene:
    return Scene(world, Held(world.store, world.name("no-run"), "w", 1))


def running(world: World) -> Scene:
    return Scene(world, world.held())


def unheld(world: World) -> Scene:
    scene = running(world)
    world.store.do(runs.ReleaseRun(**scene.by))
    return scene


def waiting(world: World) -> Scene:
    scene = running(world)
    world.store.do(runs.ParkRun(**scene.by, waits_for="signal:go", wake_at=world.clock.now))
    return scene


def held_up(world: World) -> Scene:
    """By a freeze that is lifted by now."""
    scene = frozen(world)
    scene.h = world.held()
    world.store.do(runs.ParkRun(**scene.by, waits_for=f"freeze:{scene.name}"))
    world.store.do(store_wide.Unfreeze(actor=ANN, freeze_no=scene.number, reason="mended"))
    return scene


def asked_to_pause(world: World, scene: Scene) -> Scene:
    world.store.do(people.RequestPause(**scene.ann(), reason="let me look"))
    return scene


def paused(world: World) -> Scene:
    scene = asked_to_pause(world, running(world))
    world.store.do(runs.StopAtBoundary(**scene.by))
    return scene


def needs_operator(world: World) -> Scene:
    scene = running(world)
    world.store.do(runs.NeedOperator(**scene.by, why=Why.REVIEW, detail="please look"))
    return scene


def compensating(world: World) -> Scene:
    scene = running(world)
    assert scene.h is not None
    write(scene.h, STEP)
    world.store.do(operations.BeginCompensation(**scene.by, scope="run", steps=[STEP], cause="it failed"))
    return scene


def released_compensating(world: World) -> Scene:
    scene = compensating(world)
    world.store.do(runs.ReleaseRun(**scene.by))
    return scene


def compensated(world: World) -> Scene:
    scene = operation_compensated(world)
    world.store.do(operations.EndCompensation(**scene.by, outcome=R.COMPENSATED))
    return scene


def succeeded(world: World) -> Scene:
    scene = running(world)
    assert scene.h is not None
    finish(scene.h)
    return scene


def failed(world: World) -> Scene:
    scene = running(world)
    world.store.do(runs.FailRun(**scene.by, error_class="ValueError", message="no"))
    return scene


def cancelled(world: World) -> Scene:
    scene = unheld(world)
    world.store.do(people.RequestCancel(**scene.ann(), reason="not needed"))
    return scene


def resumable(world: World, scene: Scene, status: str) -> Scene:
    """A resume that was decided, is due, and whose run was claimed to carry it out."""
    world.store.do(runs.NeedOperator(**scene.by, why=Why.REVIEW, detail="please look"))
    scene.decision = world.store.do(people.ResumeRun(**scene.ann(), reason="fine", regret=0)).seq
    scene.h = world.take(scene.run_id)
    assert scene.h.run["status"] == status
    return scene


# --- operations --------------------------------------------------------------------------------------------------


def _held(scene: Scene) -> Held:
    assert scene.h is not None
    return scene.h


def awaiting(world: World) -> Scene:
    scene = running(world)
    ask(_held(scene), STEP)
    return scene


def approved(world: World) -> Scene:
    """Given, and the time to take it back is over."""
    scene = awaiting(world)
    given = people.Approve(**scene.ann(), step=STEP, digest=DIGEST, regret=0)
    scene.decision = world.store.do(given).seq
    return scene


def pending(world: World) -> Scene:
    scene = running(world)
    intend(_held(scene), STEP)
    return scene


def between_attempts(world: World) -> Scene:
    scene = pending(world)
    world.store.do(operations.EndAttempt(**scene.by, step=STEP, answer=Answer.AMBIGUOUS))
    return scene


def operation_succeeded(world: World) -> Scene:
    scene = running(world)
    write(_held(scene), STEP)
    return scene


def operation_failed(world: World) -> Scene:
    scene = pending(world)
    world.store.do(operations.Settle(**scene.by, step=STEP, outcome=O.FAILED, answer=Answer.REJECTED))
    return scene


def _answered(scene: Scene) -> Scene:
    scene.world.store.do(operations.EndAttempt(**scene.by, step=STEP, answer=Answer.AMBIGUOUS))
    return scene


def unknown(world: World, **of_call: Any) -> Scene:
    scene = running(world)
    lose_track(_held(scene), STEP, **of_call)
    return scene


def denied(world: World) -> Scene:
    scene = running(world)
    world.store.do(operations.DenyOperation(**scene.by, step=STEP, call=call(STEP), rule="never", reason="policy"))
    return scene


def approval_ran_out(world: World) -> Scene:
    scene = running(world)
    ask(_held(scene), STEP, expires_at=world.clock.now + MINUTE)
    world.clock.pass_(MINUTE)
    world.store.do(people.ExpireApproval(actor="system", run_id=scene.run_id, step=STEP))
    return scene


def operation_compensated(world: World) -> Scene:
    scene = compensating(world)
    intend(_held(scene), "c1", tool="refund", compensates=STEP)
    succeed(_held(scene), "c1")
    return scene


def parked(scene: Scene) -> Scene:
    """The same, in a run that a person has to look at."""
    why = Why.UNKNOWN if scene.h is not None and scene.h.run["unknown_operations"] else Why.REVIEW
    scene.world.store.do(runs.NeedOperator(**scene.by, why=why, detail="please look", step=STEP))
    return scene


def retry_due(world: World) -> Scene:
    scene = parked(unknown(world))
    decided = people.DecideRetry(**scene.ann(), step=STEP, reason="try again", regret=0)
    scene.decision = world.store.do(decided).seq
    scene.h = world.take(scene.run_id)
    return scene


def suspected(scene: Scene) -> Scene:
    late = operations.AppendLateEvidence(
        actor="worker:old", run_id=scene.run_id, step=STEP, data={"answer": "done"}, duplicate_suspected=True
    )
    scene.world.store.do(late)
    return scene


def _then_suspected(recipe: Recipe) -> Recipe:
    return lambda world: suspected(recipe(world))


# --- approvals and decisions --------------------------------------------------------------------------------------


def asked(world: World) -> Scene:
    scene = running(world)
    ask(_held(scene), STEP, expires_at=world.clock.now + MINUTE, park=True)
    return scene


def given(world: World) -> Scene:
    scene = asked(world)
    scene.decision = world.store.do(people.Approve(**scene.ann(), step=STEP, digest=DIGEST, regret=0)).seq
    return scene


def refused(world: World) -> Scene:
    scene = asked(world)
    world.store.do(people.Refuse(**scene.ann(), step=STEP, reason="too much"))
    return scene


def expired(world: World) -> Scene:
    scene = given(world)
    world.clock.pass_(MINUTE)
    world.store.do(people.ExpireApproval(actor="system", run_id=scene.run_id, step=STEP))
    return scene


def consumed(world: World) -> Scene:
    scene = given(world)
    scene.h = world.take(scene.run_id)
    intend(scene.h, STEP, digest=DIGEST)
    return scene


def time_is_up(scene: Scene) -> Scene:
    scene.world.clock.pass_(MINUTE)
    return scene


def decided(world: World) -> Scene:
    scene = parked(unknown(world))
    scene.decision = world.store.do(people.DecideRetry(**scene.ann(), step=STEP, reason="try again")).seq
    return scene


def taken_back(world: World) -> Scene:
    scene = decided(world)
    world.store.do(people.TakeBack(**scene.ann(), decision=scene.decision, reason="wait"))
    return scene


def carried_out(world: World) -> Scene:
    scene = retry_due(world)
    world.store.do(operations.CarryOutRetry(**scene.by, step=STEP, decision=scene.decision))
    return scene


# --- the store itself --------------------------------------------------------------------------------------------


def no_worker(world: World) -> Scene:
    return Scene(world, name=world.name("w"))


def alive(world: World) -> Scene:
    return Scene(world, name=world.worker())


def stopped_worker(world: World) -> Scene:
    scene = alive(world)
    world.store.do(store_wide.StopWorker(actor=f"worker:{scene.name}", worker=scene.name))
    return scene


def lost_worker(world: World) -> Scene:
    scene = alive(world)
    world.lose(scene.name)
    return scene


def not_frozen(world: World) -> Scene:
    return Scene(world, name=world.name("tool"), number=10**9)


def frozen(world: World) -> Scene:
    scene = not_frozen(world)
    freeze = store_wide.Freeze(actor=ANN, scope=FreezeScope.TOOL, name=scene.name, reason="it sends nonsense")
    scene.number = world.store.do(freeze).seq
    return scene


def lifted(world: World) -> Scene:
    scene = frozen(world)
    world.store.do(store_wide.Unfreeze(actor=ANN, freeze_no=scene.number, reason="mended"))
    return scene


def service_failed(s: Scene, threshold: int = 3, cooldown: int = 0) -> Transition:
    return store_wide.ServiceFailed(
        actor="system", service=s.name, reason="503, three times", threshold=threshold, cooldown=cooldown
    )


def no_breaker(world: World) -> Scene:
    return Scene(world, name=world.name("bank/"))


def closed_breaker(world: World) -> Scene:
    scene = no_breaker(world)
    world.store.do(service_failed(scene))
    return scene


def open_breaker(world: World) -> Scene:
    """One that may be probed at once."""
    scene = no_breaker(world)
    world.store.do(service_failed(scene, threshold=1))
    return scene


def no_budget(world: World) -> Scene:
    return Scene(world, name=world.name("tool/"))


def take_token(s: Scene, capacity: float = 2, per_second: float = 0.5) -> Transition:
    return store_wide.TakeToken(actor="system", tool=s.name, capacity=capacity, per_second=per_second)


def used_budget(world: World) -> Scene:
    scene = no_budget(world)
    world.store.do(take_token(scene))
    return scene


def claim_of(h: Held, identity: str, step: str = STEP, **of_call: Any) -> store_wide.ClaimIdentity:
    named = call(step, args={"pays": identity}, **of_call)
    return store_wide.ClaimIdentity(
        actor=f"worker:{h.worker}", identity=identity, run_id=h.run_id, step=step, tool=named.tool,
        args_hash=named.args_hash,
    )  # fmt: skip


def owned(world: World) -> Scene:
    """By a run that has not called yet, and for another run that is about to."""
    scene = Scene(world, world.held(), name=world.name("invoice/7/"))
    owner = world.held()
    world.store.do(claim_of(owner, scene.name))
    scene.owner = (owner.run_id, STEP)
    return scene


def unclaimed(world: World) -> Scene:
    return Scene(world, world.held(), name=world.name("invoice/7/"))


def pays(identity: str) -> dict[str, Any]:
    """What a call is that does what this identity names."""
    return {"args": {"pays": identity}, "identity": identity}


def let_go(world: World) -> Scene:
    scene = owned(world)
    (run,) = world.rows("runs", run_id=scene.owner[0])
    owner = Held(world.store, scene.owner[0], "w", run["fence"])
    intend(owner, STEP, **pays(scene.name))
    world.store.do(operations.Settle(**owner.by, step=STEP, outcome=O.FAILED, answer=Answer.REJECTED))
    return scene


def done_elsewhere(world: World) -> Scene:
    scene = owned(world)
    (run,) = world.rows("runs", run_id=scene.owner[0])
    write(Held(world.store, scene.owner[0], "w", run["fence"]), STEP, **pays(scene.name))
    return scene


def refer(s: Scene, step: str = STEP) -> operations.Refer:
    return operations.Refer(
        **s.by, step=step, call=call(step, **pays(s.name)), identity=s.name, owner=s.owner, result={"receipt": 7}
    )


def no_batch(world: World) -> Scene:
    scene = parked(unknown(world))
    scene.number = 10**9
    return scene


def open_batch(world: World) -> Scene:
    """One that cannot be taken back any more."""
    return batched(no_batch(world))


def batched(scene: Scene) -> Scene:
    opened = store_wide.OpenBatch(actor=ANN, action="retry", members=[(scene.run_id, STEP)], reason="all the same")
    scene.number = scene.world.store.do(opened).seq
    scene.world.clock.pass_(people.REGRET)
    return scene


def its_turn(world: World) -> Scene:
    """An unknown that was released in a batch."""
    scene = batched(unknown(world))
    world.store.do(store_wide.ReleaseMember(actor="system", batch_no=scene.number))
    return scene


def stopped_batch(world: World) -> Scene:
    scene = open_batch(world)
    world.store.do(store_wide.StopBatch(actor=ANN, batch_no=scene.number, reason="no"))
    return scene


def done_batch(world: World) -> Scene:
    scene = open_batch(world)
    world.store.do(store_wide.ReleaseMember(actor="system", batch_no=scene.number))
    happened = people.RecordHappened(**scene.ann(), step=STEP, reason="seen", evidence="receipt 7")
    world.store.do(happened)
    world.store.do(store_wide.ReleaseMember(actor="system", batch_no=scene.number))
    return scene


def no_role(world: World) -> Scene:
    return Scene(world, name=world.name("operator:eve"))


def grant(s: Scene, role: Role) -> roles.GrantRole:
    return roles.GrantRole(actor=ANN, person=s.name, role=role, reason="she has the keys")


def with_role(role: Role) -> Recipe:
    def recipe(world: World) -> Scene:
        scene = no_role(world)
        world.store.do(grant(scene, role))
        return scene

    return recipe


def at_home(world: World) -> Scene:
    return Scene(world)


def make_copy(store: Store) -> None:
    """As if the file or the dump had been restored elsewhere, and opened there."""
    with store.backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        db.execute(update(schema.store).values(home="elsewhere"))
    store.backend.reconnect()


def copied(world: World) -> Scene:
    make_copy(world.store)
    return Scene(world)


STATES: dict[str, dict[str, Recipe]] = {
    "run": {
        NONE: _nothing,
        R.RUNNING: running,
        R.WAITING: waiting,
        R.PAUSED: paused,
        R.NEEDS_OPERATOR: needs_operator,
        R.COMPENSATING: compensating,
        R.COMPENSATED: compensated,
        R.SUCCEEDED: succeeded,
        R.FAILED: failed,
        R.CANCELLED: cancelled,
    },
    "operation": {
        NONE: running,
        O.AWAITING_APPROVAL: awaiting,
        O.PENDING: pending,
        O.SUCCEEDED: operation_succeeded,
        O.FAILED: operation_failed,
        O.UNKNOWN: unknown,
        O.DENIED: denied,
        O.COMPENSATED: operation_compensated,
    },
    "approval": {
        NONE: running,
        A.ASKED: asked,
        A.GIVEN: given,
        A.REFUSED: refused,
        A.EXPIRED: expired,
        A.CONSUMED: consumed,
    },
    "decision": {
        NONE: running,
        D.WAITING: decided,
        D.TAKEN_BACK: taken_back,
        D.CARRIED_OUT: carried_out,
        D.EXPIRED: expired,
    },
    "worker": {
        NONE: no_worker,
        WorkerStatus.ALIVE: alive,
        WorkerStatus.STOPPED: stopped_worker,
        WorkerStatus.LOST: lost_worker,
    },
    "freeze": {NONE: not_frozen, ACTIVE: frozen, LIFTED: lifted},
    "batch": {
        NONE: no_batch,
        BatchStatus.OPEN: open_batch,
        BatchStatus.STOPPED: stopped_batch,
        BatchStatus.DONE: done_batch,
    },
    "breaker": {NONE: no_breaker, CLOSED: closed_breaker, OPEN: open_breaker},
    "budget": {NONE: no_budget, KEPT: used_budget},
    "identity": {NONE: unclaimed, FREE: let_go, OWNED: owned},
    "role": {NONE: no_role, **{role: with_role(role) for role in Role}},
    "store": {NOT_ADOPTED: copied, ADOPTED: at_home},
}
"""How to get there, for every state of every subject."""


# --- an example of every transition -------------------------------------------------------------------------------


@dataclass(slots=True)
class Case:
    make: Callable[[Scene], Transition]
    at: Mapping[str, Recipe] = field(default_factory=dict)
    """Where the plain recipe is not enough: the other things that the transition needs hold too."""
    then: Callable[[Scene], Scene] | None = None
    """What else has to be so, whatever the state."""


def _late(s: Scene) -> Transition:
    return operations.AppendLateEvidence(actor="worker:old", run_id=s.run_id, step=STEP, data={"answer": "done"})


def _release(s: Scene) -> Transition:
    return store_wide.ReleaseMember(actor="system", batch_no=s.number)


def _adopt(s: Scene) -> Transition:
    (row,) = s.world.rows("store")
    return store_wide.AdoptStore(
        actor=ANN, epoch=row["epoch"] + 1, home=s.world.store.backend.home(), feed_base=0, reason="the original is gone"
    )


def _registration(s: Scene) -> Transition:
    return store_wide.RegisterWorker(
        actor=f"worker:{s.name}", worker=s.name, host="here", boot_id="boot", pid=1, process_started="1",
        agents={"a": ["1"]}, lease=MINUTE,
    )  # fmt: skip


CASES: dict[type[Transition], Case] = {
    # runs
    runs.StartRun: Case(lambda s: runs.StartRun(**s.ann(), agent="a", input="something else")),
    runs.ClaimRun: Case(
        lambda s: runs.ClaimRun(actor="worker:w", run_id=s.run_id, worker="w"),
        at={R.RUNNING: unheld, R.COMPENSATING: released_compensating},
    ),
    runs.ReleaseRun: Case(lambda s: runs.ReleaseRun(**s.by)),
    runs.DeclarePlan: Case(lambda s: runs.DeclarePlan(**s.by, steps=["read", "pay"])),
    runs.RecordStep: Case(lambda s: runs.RecordStep(**s.by, step="7", name="look")),
    runs.TakeSnapshot: Case(lambda s: runs.TakeSnapshot(**s.by, state=b'{"seven":7}')),
    runs.ParkRun: Case(lambda s: runs.ParkRun(**s.by, waits_for="signal:go")),
    runs.WakeRun: Case(lambda s: runs.WakeRun(actor="system", run_id=s.run_id), at={R.WAITING: held_up}),
    runs.SendSignal: Case(
        lambda s: runs.SendSignal(actor="system", run_id=s.run_id, signal_id="s1", name="go", payload={"n": 1})
    ),
    runs.ConsumeSignal: Case(
        lambda s: runs.ConsumeSignal(**s.by, signal_id="s1", step="7"),
        at={R.RUNNING: lambda w: _signalled(running(w))},
    ),
    runs.NeedOperator: Case(lambda s: runs.NeedOperator(**s.by, why=Why.DRIFT, detail="a field is gone")),
    runs.StopAtBoundary: Case(
        lambda s: runs.StopAtBoundary(**s.by),
        at={
            R.RUNNING: lambda w: asked_to_pause(w, running(w)),
            R.COMPENSATING: lambda w: asked_to_pause(w, compensating(w)),
        },
    ),
    runs.FinishRun: Case(lambda s: runs.FinishRun(**s.by, output={"ok": True})),
    runs.FailRun: Case(lambda s: runs.FailRun(**s.by, error_class="KeyError", message="no such order")),
    operations.BeginCompensation: Case(
        lambda s: operations.BeginCompensation(**s.by, scope="run", steps=[], cause="a later step failed")
    ),
    operations.EndCompensation: Case(
        lambda s: operations.EndCompensation(**s.by, outcome=R.COMPENSATED),
        at={R.COMPENSATING: operation_compensated},
    ),
    people.RequestPause: Case(lambda s: people.RequestPause(**s.ann(), reason="let me look")),
    people.RequestCancel: Case(lambda s: people.RequestCancel(**s.ann(), reason="not needed")),
    people.ResumeRun: Case(lambda s: people.ResumeRun(**s.ann(), reason="go on")),
    people.CarryOutResume: Case(
        lambda s: people.CarryOutResume(**s.by, decision=s.decision),
        at={
            R.RUNNING: lambda w: resumable(w, running(w), R.RUNNING),
            R.COMPENSATING: lambda w: resumable(w, compensating(w), R.COMPENSATING),
        },
    ),
    people.DecideCompensate: Case(
        lambda s: people.DecideCompensate(**s.ann(), scope="run", steps=[], reason="undo it")
    ),
    people.AddNote: Case(lambda s: people.AddNote(**s.ann(), reason="called the customer")),
    # operations
    operations.DenyOperation: Case(
        lambda s: operations.DenyOperation(**s.by, step=STEP, call=call(STEP), rule="never", reason="policy")
    ),
    operations.AskApproval: Case(
        lambda s: operations.AskApproval(**s.by, step=STEP, call=call(STEP), digest=DIGEST, rule="big payments"),
        at={O.PENDING: between_attempts, O.DENIED: approval_ran_out},
    ),
    operations.Intend: Case(
        lambda s: operations.Intend(**s.by, step=STEP, call=call(STEP), worker="w", digest=DIGEST),
        at={O.AWAITING_APPROVAL: approved},
    ),
    operations.StartAttempt: Case(
        lambda s: operations.StartAttempt(**s.by, step=STEP, worker="w"), at={O.PENDING: between_attempts}
    ),
    operations.EndAttempt: Case(lambda s: operations.EndAttempt(**s.by, step=STEP, answer=Answer.AMBIGUOUS)),
    operations.RecordVerification: Case(
        lambda s: operations.RecordVerification(**s.by, step=STEP, evidence=Evidence.ABSENT_SO_FAR)
    ),
    operations.RecordRecovery: Case(
        lambda s: operations.RecordRecovery(
            **s.by, step=STEP, attempted="yes", acknowledged="no", proven="no", retry_safe="no", verdict="unknown"
        )
    ),
    operations.Settle: Case(
        lambda s: operations.Settle(**s.by, step=STEP, outcome=O.FAILED, evidence=Evidence.ABSENT),
        at={O.PENDING: lambda w: _answered(pending(w))},
    ),
    operations.Refer: Case(refer, at={NONE: done_elsewhere}),
    operations.AppendLateEvidence: Case(_late),
    people.DismissDuplicate: Case(
        lambda s: people.DismissDuplicate(**s.ann(), step=STEP, reason="there is one invoice only"),
        at={state: _then_suspected(recipe) for state, recipe in STATES["operation"].items() if state != NONE},
    ),
    people.RequestVerify: Case(
        lambda s: people.RequestVerify(**s.ann(), step=STEP),
        at={O.UNKNOWN: lambda w: unknown(w, can_verify=True)},
        then=parked,
    ),
    people.RecordHappened: Case(
        lambda s: people.RecordHappened(**s.ann(), step=STEP, reason="seen", evidence="receipt 7"), then=parked
    ),
    people.RecordAbsent: Case(lambda s: people.RecordAbsent(**s.ann(), step=STEP, reason="not there"), then=parked),
    people.DecideRetry: Case(lambda s: people.DecideRetry(**s.ann(), step=STEP, reason="try again"), then=parked),
    people.RetryMember: Case(
        lambda s: people.RetryMember(**s.ann(), step=STEP, batch=s.number), at={O.UNKNOWN: its_turn}, then=parked
    ),
    operations.CarryOutRetry: Case(
        lambda s: operations.CarryOutRetry(**s.by, step=STEP, decision=s.decision), at={O.UNKNOWN: retry_due}
    ),
    # approvals and decisions
    people.Approve: Case(lambda s: people.Approve(**s.ann(), step=STEP, digest=DIGEST, reason="fine")),
    people.Refuse: Case(lambda s: people.Refuse(**s.ann(), step=STEP, reason="too much")),
    people.ExpireApproval: Case(
        lambda s: people.ExpireApproval(actor="system", run_id=s.run_id, step=STEP), then=time_is_up
    ),
    people.TakeBack: Case(lambda s: people.TakeBack(**s.ann(), decision=s.decision, reason="wait")),
    # the store
    store_wide.Freeze: Case(
        lambda s: store_wide.Freeze(actor=ANN, scope=FreezeScope.TOOL, name=s.name, reason="it sends nonsense")
    ),
    store_wide.Unfreeze: Case(lambda s: store_wide.Unfreeze(actor=ANN, freeze_no=s.number, reason="mended")),
    store_wide.ServiceFailed: Case(service_failed),
    store_wide.ServiceAnswered: Case(lambda s: store_wide.ServiceAnswered(actor="system", service=s.name)),
    store_wide.ProbeService: Case(
        lambda s: store_wide.ProbeService(
            actor="system", service=s.name, place=f"r1#{STEP}", until=s.world.clock.now + MINUTE
        )
    ),
    store_wide.TakeToken: Case(take_token),
    store_wide.ClaimIdentity: Case(lambda s: claim_of(_held(s), s.name)),
    store_wide.RegisterWorker: Case(_registration),
    store_wide.StopWorker: Case(lambda s: store_wide.StopWorker(actor=f"worker:{s.name}", worker=s.name)),
    store_wide.LoseWorker: Case(
        lambda s: store_wide.LoseWorker(actor="system", worker=s.name, beat=0, reason="no heartbeat")
    ),
    store_wide.OpenBatch: Case(
        lambda s: store_wide.OpenBatch(actor=ANN, action="retry", members=[(s.run_id, STEP)], reason="all the same")
    ),
    store_wide.ReleaseMember: Case(_release),
    store_wide.StopBatch: Case(lambda s: store_wide.StopBatch(actor=ANN, batch_no=s.number, reason="no")),
    roles.GrantRole: Case(lambda s: grant(s, Role.OPERATOR if state_of("role", s) == Role.APPROVER else Role.APPROVER)),
    store_wide.AdoptStore: Case(_adopt),
}

ELSEWHERE = {store_wide.NotePrune}
"""Made inside the transaction that takes a run apart, and never by itself: see the tests of `prune`."""

NEW_EACH_TIME = {store_wide.Freeze, store_wide.OpenBatch}
"""They make something new, whatever became of an earlier one of the kind."""


NOTHING_TO_DO = {(store_wide.ServiceAnswered, NONE)}
"""Neither refused nor recorded."""

OWN_REFUSALS: dict[type[Transition], type[Refused]] = {
    runs.StartRun: RunExists,
    store_wide.ProbeService: PreconditionFailed,
    store_wide.ClaimIdentity: IdentityTaken,
}
"""They say more than that the state is wrong."""

SAME_AGAIN = {runs.StartRun, store_wide.ServiceAnswered, store_wide.ClaimIdentity, roles.GrantRole}
"""A second time they find that there is nothing to do, whoever did it."""


def _signalled(scene: Scene) -> Scene:
    scene.world.store.do(runs.SendSignal(actor="system", run_id=scene.run_id, signal_id="s1", name="go"))
    return scene


def matrix(*subjects: str) -> list[Any]:
    """Every transition of these subjects, from every state."""
    return [
        pytest.param(t, state, id=f"{t.__name__}-from-{state}")
        for t in TRANSITIONS
        if t.subject in subjects and t not in ELSEWHERE
        for state in STATES[t.subject]
        if not (t in NEW_EACH_TIME and state not in {NONE, ACTIVE})
    ]


def transitions(*subjects: str, by: str | None = None) -> list[Any]:
    found = [t for t in TRANSITIONS if t.subject in subjects and t not in ELSEWHERE and (by is None or t.by == by)]
    return [pytest.param(t, id=t.__name__) for t in found]


def bring(world: World, transition: type[Transition], state: str) -> Scene:
    case = CASES[transition]
    scene = case.at.get(state, STATES[transition.subject][state])(world)
    return case.then(scene) if case.then is not None else scene


def legal_scene(world: World, transition: type[Transition]) -> tuple[Scene, Transition]:
    """Where the transition is legal, and an example that would be accepted."""
    scene = bring(world, transition, transition.sources[-1])
    return scene, CASES[transition].make(scene)


def state_of(subject: str, scene: Scene) -> str:
    """The state that the projections show."""
    world = scene.world
    if subject == "run":
        found = world.rows("runs", run_id=scene.run_id)
    elif subject in {"operation", "approval"}:
        (run,) = world.rows("runs", run_id=scene.run_id)
        found = world.rows(f"{subject}s", run_no=run["run_no"], step=STEP)[-1:]
    elif subject == "decision":
        (run,) = world.rows("runs", run_id=scene.run_id)
        found = world.rows("decisions", run_no=run["run_no"], seq=scene.decision)
    elif subject == "worker":
        found = world.rows("workers", worker=scene.name)
    elif subject == "batch":
        found = world.rows("batches", batch_no=scene.number)
    elif subject == "freeze":
        (found,) = [world.rows("freezes", name=scene.name)[-1:]]
        found = [{"status": LIFTED if f["lifted_at"] is not None else ACTIVE} for f in found]
    elif subject == "role":
        found = [{"status": row["role"]} for row in world.rows("roles", person=scene.name)]
    elif subject == "breaker":
        found = world.rows("breakers", service=scene.name)
        found = [{"status": CLOSED if b["freeze_no"] is None else OPEN} for b in found]
    elif subject == "budget":
        found = [{"status": KEPT} for _ in world.rows("buckets", tool=scene.name)]
    elif subject == "identity":
        found = [{"status": _owned_or_free(world, i)} for i in world.rows("identities", identity=scene.name)]
    else:
        (row,) = world.rows("store")
        found = [{"status": ADOPTED if row["home"] == world.store.backend.home() else NOT_ADOPTED}]
    return found[0]["status"] if found else NONE


def _owned_or_free(world: World, identity: Row) -> str:
    (run,) = world.rows("runs", run_id=identity["run_id"])
    status = [o["status"] for o in world.rows("operations", run_no=run["run_no"], step=identity["step"])]
    return FREE if status and status[0] in {O.FAILED, O.DENIED, O.COMPENSATED} else OWNED


# --- the checks --------------------------------------------------------------------------------------------------


def check_legal(world: World, transition: type[Transition], state: str) -> None:
    """It is applied, once, and leaves its event and one of its targets."""
    scene = bring(world, transition, state)
    subject = transition.subject
    assert state_of(subject, scene) == state
    t = CASES[transition].make(scene)
    log = t.log
    seq = _head(world, log)
    committed = world.store.do(t)
    assert not committed.repeated
    events = world.store.events(log, after=seq)
    assert [e.seq for e in events] == list(range(seq + 1, committed.seq + 1))
    assert {e.actor for e in events} == {t.actor}
    assert events[-1].kind == transition.kind
    assert events[-1].hash == committed.hash
    assert {e.at for e in events} == {world.clock.now}
    if transition is store_wide.OpenBatch:
        scene.number = committed.seq
    after = state_of(subject, scene)
    moves = {(str(a), str(b)) for a, b in moves_of(transition, subject)}
    assert (state, after) in moves or (after == state and UNCHANGED in transition.targets), f"{state} to {after}"
    everything = world.everything_about(log)
    again = world.store.do(t)
    assert again.repeated
    assert world.everything_about(log) == everything
    if transition not in SAME_AGAIN:
        assert (again.seq, again.hash) == (events[0].seq, events[0].hash)
    if log is not None:
        assert fsck(world.store, log, deep=True).problems == []


def check_illegal(world: World, transition: type[Transition], state: str) -> None:
    """It is refused by name, and nothing at all has changed."""
    scene = bring(world, transition, state)
    assert state_of(transition.subject, scene) == state
    t = CASES[transition].make(scene)
    before = world.everything_about(t.log)
    with pytest.raises(Refused) as refusal:
        world.store.do(t)
    error = refusal.value
    if transition in OWN_REFUSALS:
        assert isinstance(error, OWN_REFUSALS[transition])
    elif state == NONE and transition.subject not in {"worker", "freeze"}:
        assert isinstance(error, NotFound)
    else:
        assert isinstance(error, IllegalTransition)
        assert error.found == state or (transition, error.found) == (store_wide.Unfreeze, "lifted or never set")
        assert error.legal == tuple(sorted(transition.sources))
        assert error.transition == transition.__name__
        assert error.found in str(error)
        assert all(source in str(error) for source in transition.sources)
    assert world.everything_about(t.log) == before
    if before.get("runs"):
        assert fsck(world.store, t.log).problems == []


def check_nothing_to_do(world: World, transition: type[Transition], state: str) -> None:
    t = CASES[transition].make(bring(world, transition, state))
    before = world.everything_about(t.log)
    assert world.store.do(t).repeated
    assert world.everything_about(t.log) == before


def check(world: World, transition: type[Transition], state: str) -> None:
    if (transition, state) in NOTHING_TO_DO:
        check_nothing_to_do(world, transition, state)
    elif state in transition.sources:
        check_legal(world, transition, state)
    else:
        check_illegal(world, transition, state)


def check_refused(world: World, t: Transition, error: type[StoreError], match: str | None = None) -> StoreError:
    """Refused with this error, and nothing changed."""
    before = world.everything_about(t.log)
    with pytest.raises(error, match=match) as refusal:
        world.store.do(t)
    assert world.everything_about(t.log) == before
    return refusal.value


def check_stale_fence(world: World, transition: type[Transition]) -> None:
    for wrong in (-1, 1, None):
        _, t = legal_scene(world, transition)
        assert isinstance(t, OnRun)
        t.fence = None if wrong is None or t.fence is None else t.fence + wrong
        check_refused(world, t, StaleFence, match="late evidence")


def check_stale_view(world: World, transition: type[Transition]) -> None:
    """Somebody did something between the look and the decision; the refusal says what and who."""
    scene, t = legal_scene(world, transition)
    assert isinstance(t, OnRun)
    t.seen = 0
    error = check_refused(world, t, StaleView, match="changed since you looked")
    subject = transition.subject
    (run,) = world.rows("runs", run_id=scene.run_id)
    at = run["status_seq"] if subject == "run" else world.rows(f"{subject}s", run_no=run["run_no"])[-1]["touched"]
    (event,) = world.store.events(scene.run_id, after=at - 1, limit=1)
    assert event.kind in str(error)
    assert event.actor in str(error)
    t.seen = at
    assert not world.store.do(t).repeated


def check_conflict(world: World, transition: type[Transition]) -> None:
    _, t = legal_scene(world, transition)
    t.id = world.used.id
    check_refused(world, t, TransitionConflict, match=BOB)
    t.id = new_id()
    world.store.do(t)  # and nothing else was wrong with it


def check_run_status(world: World, transition: type[Transition], status: str) -> None:
    """A transition of something in a run is refused in a run that is not in the right state for it."""
    scene = STATES["run"][status](world)
    t = CASES[transition].make(scene)
    error = check_refused(world, t, IllegalTransition)
    assert isinstance(error, IllegalTransition)
    assert (error.found, error.legal) == (status, tuple(sorted(run_statuses(transition))))
    assert f"run {scene.run_id!r}" in str(error)


def run_statuses(transition: type[Transition]) -> frozenset[str]:
    """In which runs an operation can go through this."""
    if not issubclass(transition, OnOperation) or transition in {
        operations.AppendLateEvidence,
        people.DismissDuplicate,
    }:
        return frozenset(R)
    in_a_persons_name = transition.by == OPERATOR or transition is people.RetryMember
    return frozenset({R.NEEDS_OPERATOR}) if in_a_persons_name else LIVE


def _head(world: World, log: str | None) -> int:
    found = world.rows("store") if log is None else world.rows("runs", run_id=log)
    return int(found[0]["head_seq"]) if found else 0


__all__ = ["CASES", "ELSEWHERE", "STATES", "WORKER", "Scene", "World", "matrix", "new_world", "transitions"]
