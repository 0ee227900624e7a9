"""Short ways to bring a store to where a test begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.people import open_store
from walkback_store.engine import Committed
from walkback_store.machine.operations import AskApproval, Call, Intend, Settle
from walkback_store.machine.runs import FinishRun, NeedOperator, ParkRun, StartRun
from walkback_store.machine.store_wide import RegisterWorker
from walkback_store.store import Store
from walkback_store.values import encode
from walkback_store.words import Answer, Evidence, OperationStatus, Why

SECOND = 1_000_000
MINUTE = 60 * SECOND
BEGINNING = 1_700_000_000 * SECOND
ANN, BOB = "operator:ann", "operator:bob"
DIGEST = "d" * 64


class Clock:
    """Time that moves when a test says so."""

    def __init__(self, now: int = BEGINNING) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def pass_(self, microseconds: int) -> None:
        self.now += microseconds


@dataclass(slots=True)
class Held:
    """A run held by a worker: what its transitions have in common."""

    store: Store
    run_id: str
    worker: str
    fence: int

    @property
    def by(self) -> dict[str, Any]:
        return {"actor": f"worker:{self.worker}", "run_id": self.run_id, "fence": self.fence}

    @property
    def run(self) -> dict[str, Any]:
        return self.store.run(self.run_id)

    def op(self, step: str) -> dict[str, Any]:
        return self.store.operation(self.run_id, step).operation


def open_with_clock(url: str) -> tuple[Store, Clock]:
    clock = Clock()
    return open_store(url, clock=clock), clock


def register(store: Store, worker: str = "w", agents: Sequence[str] = ("a",)) -> None:
    store.do(
        RegisterWorker(
            actor=f"worker:{worker}",
            worker=worker,
            host="here",
            boot_id="boot",
            pid=1,
            process_started="1",
            agents={agent: ["1"] for agent in agents},
            lease=MINUTE,
        )
    )


def start(store: Store, run_id: str = "r1", *, agent: str = "a", value: object = None, **more: Any) -> Committed:
    more.setdefault("state", encode({"step": 0}))
    return store.do(StartRun(actor=ANN, run_id=run_id, agent=agent, input=value, **more))


def claim(store: Store, worker: str = "w", agent: str = "a") -> Held:
    """The oldest run that can be claimed."""
    (claimed,) = store.claim(worker, {agent: ["1"]})
    assert claimed.run is not None
    return Held(store, claimed.run["run_id"], worker, claimed.run["fence"])


def held(store: Store, run_id: str = "r1", worker: str = "w") -> Held:
    """A new run in a new worker's hands."""
    register(store, worker)
    start(store, run_id)
    return claim(store, worker)


def call(step: str, *, args: object = None, **more: Any) -> Call:
    args = {"step": step} if args is None else args
    more.setdefault("tool", "pay")
    return Call(args=args, args_hash=encode(args).hex().ljust(64, "0")[:64], key=f"key-{step}", **more)


def intend(h: Held, step: str, *, state: object = None, digest: str | None = None, **of_call: Any) -> Committed:
    encoded = None if state is None else encode(state)
    return h.store.do(
        Intend(**h.by, step=step, call=call(step, **of_call), worker=h.worker, digest=digest, state=encoded)
    )


def succeed(h: Held, step: str, *, state: object = None, result: object = None) -> Committed:
    return h.store.do(
        Settle(
            **h.by,
            step=step,
            outcome=OperationStatus.SUCCEEDED,
            answer=Answer.ACKNOWLEDGED,
            output=result,
            evidence=Evidence.HAPPENED,
            result=result,
            state=None if state is None else encode(state),
        )
    )


def write(h: Held, step: str, *, before: object = None, after: object = None, **of_call: Any) -> None:
    """A whole write: intended, called, settled."""
    intend(h, step, state=before, **of_call)
    succeed(h, step, state=after)


def lose_track(h: Held, step: str, **of_call: Any) -> None:
    """A write whose outcome is unknown, in a run that still goes on."""
    intend(h, step, **of_call)
    h.store.do(Settle(**h.by, step=step, outcome=OperationStatus.UNKNOWN, answer=Answer.NONE, error_class="Timeout"))


def park_unknown(h: Held, step: str, **of_call: Any) -> None:
    """A write whose outcome is unknown, and a run that waits for a person because of it."""
    lose_track(h, step, **of_call)
    h.store.do(NeedOperator(**h.by, why=Why.UNKNOWN, detail="no answer", step=step))


def ask(h: Held, step: str, *, expires_at: int | None = None, park: bool = False, **of_call: Any) -> None:
    """An approval is asked for; the run waits for it when told to."""
    asked = AskApproval(
        **h.by, step=step, call=call(step, **of_call), digest=DIGEST, rule="big payments", expires_at=expires_at
    )
    h.store.do(asked)
    if park:
        h.store.do(ParkRun(**h.by, waits_for=f"approval:{step}"))


def finish(h: Held) -> Committed:
    return h.store.do(FinishRun(**h.by, output="done"))
