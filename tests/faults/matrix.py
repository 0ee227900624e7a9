"""The crash matrix: kinds of steps, what can go wrong, and the judge.

Every trial is one simulation. A ledger that the runtime cannot reach counts what really happened; afterwards it is held
against what the store says. A person is simulated too: they approve what is asked for, and resolve what is unknown by
looking at the ledger, but only when nothing else moves any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import walkback as wb
from tests.support.people import open_store
from walkback.terms import SECOND
from walkback.testing import Clock, DefiniteError, Ledger, Plan, Service, Simulation
from walkback.tools import Registry
from walkback.worker import Crew
from walkback_store import Store
from walkback_store.machine.people import Approve, DecideRetry, RecordAbsent, RecordHappened, ResumeRun
from walkback_store.words import FINISHED

DAY = timedelta(hours=24)
SETTLE = timedelta(seconds=20)
ANN = "operator:ann"
PATIENT = wb.Retry(attempts=6, elapsed=timedelta(minutes=30), base=timedelta(seconds=1), cap=timedelta(seconds=10))


@dataclass(slots=True)
class World:
    """What is outside, in the trial under way."""

    clock: Clock
    ledger: Ledger = field(default_factory=Ledger)
    stale: int = 0

    def keyed(self) -> Service:
        return Service(self.ledger, self.clock, int(DAY.total_seconds()) * SECOND)

    def plain(self) -> Service:
        return Service(self.ledger, self.clock)

    def find(self, subject: str) -> object:
        return self.plain().find(subject, as_of=self.clock.now - self.stale)


world: World


# --- tools -------------------------------------------------------------------------------------------------------


def look(op: wb.Op) -> wb.Evidence:
    found = world.find(f"{op.tool}:{op.args['what']}")
    return wb.happened({"done": op.args["what"]}) if found else wb.absent()


@wb.tool(effect="read", retry=PATIENT)
def peek(what: str) -> dict[str, str]:
    return {"seen": what}


@wb.tool(effect="write", idempotent=DAY, definite=(DefiniteError,), retry=PATIENT, compensate="keyed_undo")
def keyed(what: str, *, op: wb.Op) -> dict[str, str]:
    world.keyed().do(f"keyed:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", idempotent=DAY, definite=(DefiniteError,), retry=PATIENT)
def keyed_undo(what: str, *, op: wb.Op) -> dict[str, str]:
    world.keyed().do(f"keyed_undo:{what}", key=op.key)
    return {"done": what}


@wb.tool(
    effect="write", verify=look, settle=SETTLE, definite=(DefiniteError,), retry=PATIENT, compensate="verified_undo"
)
def verified(what: str) -> dict[str, str]:
    world.plain().do(f"verified:{what}")
    return {"done": what}


@wb.tool(effect="write", verify=look, settle=SETTLE, definite=(DefiniteError,), retry=PATIENT)
def verified_undo(what: str) -> dict[str, str]:
    world.plain().do(f"verified_undo:{what}")
    return {"done": what}


@wb.tool(effect="write", definite=(DefiniteError,), retry=PATIENT, compensate="keyed_undo_of_neither")
def neither(what: str) -> dict[str, str]:
    world.plain().do(f"neither:{what}")
    return {"done": what}


@wb.tool(effect="write", idempotent=DAY, definite=(DefiniteError,), retry=PATIENT)
def keyed_undo_of_neither(what: str, *, op: wb.Op) -> dict[str, str]:
    world.keyed().do(f"keyed_undo_of_neither:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", idempotent=DAY, definite=(DefiniteError,), retry=PATIENT, approval=True)
def gated(what: str, *, op: wb.Op) -> dict[str, str]:
    world.keyed().do(f"gated:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", idempotent=DAY, definite=(DefiniteError,), retry=PATIENT, identity="the {what}")
def owned(what: str, *, op: wb.Op) -> dict[str, str]:
    world.keyed().do(f"owned:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", verify=look, settle=SETTLE, definite=(DefiniteError,), retry=PATIENT)
def refuses(what: str) -> dict[str, str]:
    raise DefiniteError("never")


# --- agents ------------------------------------------------------------------------------------------------------


def once(tool: Any) -> Callable[..., str]:
    def agent(run: wb.Run, what: str) -> str:
        try:
            run.call(tool, what=what, into="result")
        except wb.ToolFailed:
            return "failed"
        run.call(peek, what=what)
        return "done"

    return agent


def undone(tool: Any) -> Callable[..., str]:
    def agent(run: wb.Run, what: str) -> str:
        try:
            with run.transaction("both"):
                run.call(tool, what=what)
                run.call(refuses, what=what)
        except wb.ToolFailed:
            return "undone"
        return "done"

    return agent


@wb.agent
def doubt_inside(run: wb.Run, what: str) -> str:
    try:
        with run.transaction("both"):
            run.call(keyed, what=what)
            run.call(neither, what=what)
            run.call(refuses, what=what)
    except wb.ToolFailed:
        return "undone"
    return "done"


@wb.agent
def everything(run: wb.Run, what: str, shared: str) -> str:
    """A whole run: one of each kind, with state that grows."""
    run.plan(["look", "choose", "write", "undo", "side by side", "share", "end"])
    run.state["seen"] = run.call(peek, what=what)
    run.state["chance"] = run.random()
    run.decide("which way", lambda: "forward", rationale="there is no other")
    for tool in (keyed, verified, neither, gated):
        try:
            run.call(tool, what=what, into=tool.name)
        except wb.ToolFailed as failed:
            run.state[tool.name] = failed.error_class
    run.sleep(timedelta(seconds=30))
    try:
        with run.transaction("all"):
            run.call(keyed, what=f"{what}+")
            run.parallel(wb.call(verified, what=f"{what}+"), wb.call(keyed, what=f"{what}++"))
            run.call(refuses, what=what)
    except wb.ToolFailed as failed:
        run.state["undone"] = failed.tool
    try:
        run.call(owned, what=shared, into="shared")
    except wb.ToolFailed:
        run.state["shared"] = None
    return "done"


@wb.agent
def side_by_side(run: wb.Run, what: str) -> str:
    try:
        run.parallel(wb.call(keyed, what=what), wb.call(verified, what=what), into="results")
    except wb.ToolFailed:
        return "failed"
    run.call(peek, what=what)
    return "done"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of step, as an agent with one of it."""

    name: str
    agent: wb.Agent
    tool: str
    """Whose calls go wrong."""
    runs: int = 1
    certain: bool = True
    """Nothing that happens here leaves a doubt that only a person can settle."""
    undoes: bool = False
    """It fails, and what it did is to be undone."""


def _kind(name: str, function: Callable[..., str] | wb.Agent, tool: str, **more: Any) -> Kind:
    agent = function if isinstance(function, wb.Agent) else wb.agent(name=name.replace(" ", "_"))(function)
    return Kind(name, agent, tool, **more)


KINDS = (
    _kind("read", once(peek), "peek"),
    _kind("write with key", once(keyed), "keyed"),
    _kind("write with verify and settle", once(verified), "verified"),
    _kind("write with neither", once(neither), "neither", certain=False),
    _kind("write with compensation", undone(keyed), "keyed", undoes=True),
    _kind("approval gated", once(gated), "gated"),
    _kind("parallel branch", side_by_side, "verified"),
    _kind("identity of two runs", once(owned), "owned", runs=2),
    _kind("compensation itself", undone(verified), "verified_undo", undoes=True),
    _kind("doubt inside a transaction", doubt_inside, "neither", certain=False, undoes=True),
)
WHOLE = _kind("a whole run", everything, "", runs=3, certain=False)
TOOLS = (peek, keyed, keyed_undo, verified, verified_undo, neither, keyed_undo_of_neither, gated, owned, refuses)


# --- a trial -----------------------------------------------------------------------------------------------------


class Violation(AssertionError):
    """Something that must never happen has happened."""


@contextmanager
def laboratory(folder: Path) -> Iterator[Laboratory]:
    """One store for many trials: opening one costs more than a trial."""
    clock = Clock()
    with open_store(folder / "lab.db", clock=clock) as store:
        yield Laboratory(store, clock)


class Laboratory:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._numbers = itertools.count(1)
        self.registry = Registry(TOOLS)
        self.registry.check()

    def trial(self, kind: Kind, plan: Plan) -> Trial:
        return Trial(self, kind, plan, f"t{next(self._numbers)}")


class Trial:
    def __init__(self, lab: Laboratory, kind: Kind, plan: Plan, name: str) -> None:
        global world
        world = World(lab.clock, stale=plan.stale)
        self.world = world
        self.kind = kind
        self.plan = plan
        self.store = lab.store
        crew = Crew({(kind.agent.name, "1"): kind.agent})
        self.sim = Simulation(lab.store, lab.clock, crew, lab.registry, plan=plan, version=name)
        self.run_ids = [f"{name}-r{i}" for i in range(kind.runs)]
        self.what = name
        self.asked = 0
        self.words: list[str] = []
        """What the person had to say."""

    def go(self) -> Trial:
        for run_id in self.run_ids:
            if self.kind is WHOLE:
                self.sim.start(self.kind.agent.name, run_id, what=run_id, shared=self.what)
            else:
                self.sim.start(self.kind.agent.name, run_id, what=self.what)
        try:
            for _ in range(40):
                self.sim.run()
                if not self._person():
                    break
            self.check()
        except Exception as error:  # also what a worker raised: it should know what to do, whatever happens
            raise Violation(f"{self.kind.name}, {self.plan}, {self.sim.troubles}: {error}\n{self.story()}") from error
        finally:
            self.sim.close()
        return self

    def story(self) -> str:
        lines = [f"  effect {e.at} {e.subject} {e.key}" for e in self.world.ledger.effects]
        for run_id in self.run_ids:
            for event in self.store.events(run_id, limit=1000):
                facts = {
                    k: v
                    for k, v in event.data.items()
                    if k
                    in {
                        "answer",
                        "evidence",
                        "outcome",
                        "why",
                        "verdict",
                        "detail",
                        "waits_for",
                        "wake_at",
                        "error",
                        "ended",
                        "scope",
                        "message",
                    }
                }
                lines.append(f"  {event.at} {run_id} {event.kind} {event.step or ''} {event.actor} {facts}")
        return "\n".join(lines)

    # --- the person ----------------------------------------------------------------------------------------------

    def _person(self) -> bool:
        """What a person would do now. Whether they did anything."""
        for run_id in self.run_ids:
            run = self.store.run(run_id)
            if run["status"] == "waiting" and str(run["waits_for"]).startswith("approval:"):
                step = run["waits_for"].partition(":")[2]
                approval = self.store.operation(run_id, step).approvals[-1]
                if approval["status"] == "asked":
                    self.store.do(
                        Approve(
                            actor=ANN, run_id=run_id, step=step, n=approval["n"], digest=approval["digest"], regret=0
                        )
                    )
                    return True
            if run["status"] == "needs_operator":
                self._resolve(run)
                return True
        return False

    def _resolve(self, run: dict[str, Any]) -> None:
        self.asked += 1
        run_id = run["run_id"]
        self.words.append(f"{run['why']}: {run['why_detail']}")
        if run["why"] != "unknown":
            self.store.do(ResumeRun(actor=ANN, run_id=run_id, reason="go on", regret=0))
            return
        for row in self.store.timeline(run_id):
            if row["operation_status"] != "unknown":
                continue
            about = {"actor": ANN, "run_id": run_id, "step": row["step"], "reason": "looked at the ledger"}
            if self.world.ledger.of(self._subject(run_id, row)):
                self.store.do(RecordHappened(**about, evidence="the ledger", result={"done": "so it is"}))
            elif self.asked % 2:
                self.store.do(DecideRetry(**about, regret=0))
            else:
                self.store.do(RecordAbsent(**about))

    def _subject(self, run_id: str, row: dict[str, Any]) -> str:
        """What an operation is about, in the ledger's words: from what it was called with."""
        events = self.store.operation(run_id, row["step"]).events
        args = next(e.data["args"] for e in events if "args" in e.data)
        return f"{row['name']}:{args['what']}"

    # --- the judge -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        for run_id in self.run_ids:
            run = self.store.run(run_id)
            assert run["status"] in FINISHED, f"{run_id} is stuck: {run['status']}, waits for {run['waits_for']}"
            assert run["status"] == "succeeded", f"{run_id} is {run['status']}"
        self.check_effects()
        if self.kind.certain and not self._excused():
            assert self.asked == 0, f"a person was asked where the record could have answered: {self.words}"

    def check_effects(self) -> None:
        """What the store says happened, happened, and once."""
        stands: dict[str, set[str]] = {}
        for run_id in self.run_ids:
            for row in self.store.timeline(run_id):
                if row["operation_effect"] == "write" and row["operation_refers_to"] is None:
                    stands.setdefault(self._subject(run_id, row), set()).add(row["operation_status"])
        for effect in self.world.ledger.effects:
            assert effect.subject in stands, f"{effect.subject} happened, and there is no record of it"
        for subject, statuses in stands.items():
            count = len(self.world.ledger.of(subject))
            assert not statuses & {"pending", "unknown", "awaiting_approval"}, f"{subject} is left {statuses}"
            assert count <= 1, f"{subject} happened {count} times"
            if self.kind.undoes and not subject.partition(":")[0].count("undo"):
                assert "succeeded" not in statuses, f"{subject} should have been undone, and stands"
            if statuses & {"succeeded", "compensated"}:
                assert count == 1, f"{subject} is recorded as {statuses}, and did not happen"
            else:
                assert count == 0, f"{subject} is recorded as {statuses}, and happened"

    def _excused(self) -> bool:
        """A compensation that is rejected for good is a person's business. So is an attempt that was rejected when one
        before it may have happened, where nobody can look.
        """
        definite = "definite error" in self.plan.calls.values() or any("definite" in t for t in self.sim.troubles)
        return definite and self.kind.tool in {"verified_undo", "keyed", "gated", "owned"}
