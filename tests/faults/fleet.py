"""Real workers on one store: started, killed, stopped; a person who answers for them; and the judge."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sqlalchemy import func, select

import walkback as wb
from tests.faults.agent_worker import Order
from tests.faults.agents import BY_NAME, SETTLE, Kind, Point, World
from tests.support.people import open_store
from walkback_store import Store, schema
from walkback_store.engine import Committed
from walkback_store.fsck import fsck
from walkback_store.machine.people import Approve, DecideRetry, RecordHappened, ResumeRun
from walkback_store.machine.store_wide import LoseWorker
from walkback_store.words import FINISHED

ANN = "operator:ann"
PATIENCE = 90.0
"""Seconds that something may take on a busy machine before it counts as never."""
BLOCKED = 8.0
"""A worker that is stopped for so long, and not declared lost, has a lock that others need."""
LOOK_EVERY = 0.02
CRASHED = "workers with it, one after another"


class Violation(AssertionError):
    """Something that must never happen has happened."""


def until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for it; what it gave."""
    end = time.monotonic() + seconds
    while not (found := true()):
        if time.monotonic() > end:
            raise Violation(f"it never came that {what}")
        time.sleep(LOOK_EVERY)
    return found


class Server:
    """Forks workers, and hears of their ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.agent_worker"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._heard = threading.Condition()
        self._started: list[int] = []
        self.ended: dict[int, int] = {}
        self._over = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def _in(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _listen(self) -> None:
        for line in self._out:
            word, *rest = line.split()
            with self._heard:
                if word == "worker":
                    self._started.append(int(rest[0]))
                else:
                    self.ended[int(rest[0])] = int(rest[1])
                self._heard.notify_all()
        with self._heard:
            self._over = True
            self._heard.notify_all()

    def start(self, order: Order) -> int:
        self._in.write(order.line())
        self._in.flush()
        with self._heard:
            self._heard.wait_for(lambda: self._started or self._over)
            assert self._started, "the server of workers ended"
            return self._started.pop()

    def end_of(self, pid: int) -> int:
        with self._heard:
            if not self._heard.wait_for(lambda: pid in self.ended or self._over, PATIENCE):
                raise Violation(f"worker {pid} never ended")
            return self.ended[pid]

    def close(self) -> None:
        self._in.close()
        self._process.wait()
        self._listener.join()
        self._out.close()


@dataclass(slots=True)
class Started:
    """A run that the judge will look at."""

    run_id: str
    kind: Kind
    version: str
    what: str


@dataclass(slots=True)
class Fleet:
    """Workers, a store and a world, and all that was started there."""

    url: str
    store: Store
    world: World
    server: Server
    errors: Path
    runs: dict[str, Started] = field(default_factory=dict)
    living: list[int] = field(default_factory=list)
    asked: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Why a person was needed, by run. Approvals do not count."""
    kills: int = 0

    # --- workers -------------------------------------------------------------------------------------------------

    def worker(
        self, agents: Iterable[tuple[str, str]] | None = None, *, dies: Iterable[Point] = (), **options: Any
    ) -> int:
        """Start one, for these kinds and versions, or for all there are; its process id."""
        wanted = sorted({(s.kind.name, s.version) for s in self.runs.values()}) if agents is None else list(agents)
        crashes = [
            {"point": p.name, "when": p.when}
            | ({"step": p.step} if p.step else {})
            | ({"tool": p.tool} if p.tool else {})
            for p in dies
        ]
        order = Order(self.url, str(self.world.path), str(self.errors), wanted, crashes, **options)
        pid = self.server.start(order)
        self.living.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self.end_of(pid) == -signal.SIGKILL
        self.kills += 1

    def end_of(self, pid: int) -> int:
        code = self.server.end_of(pid)
        if pid in self.living:
            self.living.remove(pid)
        return code

    def end_all(self) -> None:
        for pid in list(self.living):
            os.kill(pid, signal.SIGKILL)
            self.end_of(pid)

    def names_of(self, pid: int, *, alive: bool = True) -> list[str]:
        """What this process is, or was, registered as."""
        w = schema.workers
        query = select(w.c.worker).where(w.c.pid == pid)
        return self._values(query.where(w.c.status == "alive") if alive else query)

    def lost(self, names: Collection[str]) -> bool:
        """Wait until others have declared a worker that is stopped lost, and hold none of its runs any more.

        False when they cannot: it was stopped with the lock of a database in its hands, and so stops everyone.
        """
        w, r = schema.workers, schema.runs
        alive = select(w.c.worker).where(w.c.worker.in_(names), w.c.status == "alive")
        held = select(r.c.run_id).where(r.c.worker.in_(names))
        try:
            until(lambda: not self._values(alive) and not self._values(held), "it is lost", BLOCKED)
        except Violation:
            return False
        return True

    def rob(self, name: str) -> bool:
        """Declare a worker lost that is not; whether it could be done."""
        row = self.store.worker(name) or {}
        reason = "the test says so"
        lose = LoseWorker(actor="system", worker=name, beat=row["beat"], reason=reason)
        return isinstance(self.store.commit([lose])[0], Committed)

    # --- runs ----------------------------------------------------------------------------------------------------

    def start(self, kind: Kind | str, name: str, version: str = "1") -> list[Started]:
        """Start a trial of this kind; its runs are about the same thing."""
        kind = BY_NAME[kind] if isinstance(kind, str) else kind
        app = wb.App(self.store)
        started = []
        for i in range(kind.runs):
            one = Started(f"{name}-r{i}", kind, version, name)
            app.start(kind.agent(version), run_id=one.run_id, what=name)
            self.runs[one.run_id] = one
            started.append(one)
        return started

    def _values(self, query: Any) -> list[Any]:
        with self.store.backend.engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def rows(self, *columns: str) -> dict[str, dict[str, Any]]:
        """All runs, with these columns."""
        r = schema.runs
        with self.store.backend.engine.connect() as connection:
            query = select(r.c.run_id, *(r.c[name] for name in columns))
            return {row["run_id"]: dict(row) for row in connection.execute(query).mappings()}

    def events(self) -> int:
        with self.store.backend.engine.connect() as connection:
            return int(connection.execute(select(func.count()).select_from(schema.events)).scalar_one())

    def beats(self) -> int:
        """Of all workers together."""
        with self.store.backend.engine.connect() as connection:
            return int(connection.execute(select(func.sum(schema.workers.c.beat))).scalar_one() or 0)

    def restless(self) -> list[str]:
        return [run_id for run_id, row in self.rows("status").items() if row["status"] not in FINISHED]

    def rest(self, seconds: float = PATIENCE) -> None:
        """Wait until every run has ended, with a person's help."""

        def ended() -> bool:
            return not self.restless() or (self.help() and False)

        try:
            until(ended, "all runs rest", seconds)
        except Violation as never:
            rows = self.rows("status", "waits_for", "wake_at", "why", "why_detail", "worker", "crashes")
            stuck = "\n".join(f"  {run_id}: {rows[run_id]}" for run_id in self.restless())
            raise Violation(f"{never}:\n{stuck}") from None

    # --- the person ----------------------------------------------------------------------------------------------

    def help(self) -> bool:
        """What a person would do now: agree, resume, and settle what is unknown by looking at the ledger."""
        busy = False
        for run_id, row in self.rows("status", "waits_for", "unknown_operations").items():
            if row["status"] == "waiting" and str(row["waits_for"]).startswith("approval:"):
                busy |= self._approve(run_id, row["waits_for"].partition(":")[2])
            elif row["status"] == "needs_operator":
                busy |= self._settle(run_id) if row["unknown_operations"] else self._resume(run_id)
        return busy

    def _approve(self, run_id: str, step: str) -> bool:
        approval = self.store.operation(run_id, step).approvals[-1]
        if approval["status"] != "asked":
            return False
        n, digest = approval["n"], approval["digest"]
        self.store.do(Approve(actor=ANN, run_id=run_id, step=step, n=n, digest=digest, regret=0))
        return True

    def _resume(self, run_id: str) -> bool:
        run = self.store.run(run_id)
        self.asked[run_id].append(f"{run['why']}: {run['why_detail']}")
        self.store.do(ResumeRun(actor=ANN, run_id=run_id, reason="go on", regret=0))
        return True

    def _settle(self, run_id: str) -> bool:
        """Whoever made the attempt may only be slow, so nobody looks before the service would refuse it."""
        what = self.runs[run_id].what
        for row in self.store.timeline(run_id):
            if row["operation_status"] != "unknown":
                continue
            attempt = self.store.operation(run_id, row["step"]).attempts[-1]
            if attempt["deadline"] + SETTLE.total_seconds() * 1_000_000 > self.store.now():
                return False
            about: dict[str, Any] = {
                "actor": ANN,
                "run_id": run_id,
                "step": row["step"],
                "reason": "looked at the ledger",
            }
            self.asked[run_id].append(f"unknown: {row['name']}")
            if self.world.find(f"{row['name']}:{what}"):
                self.store.do(RecordHappened(**about, evidence="the ledger", result={"done": what}))
            else:
                self.store.do(DecideRetry(**about, regret=0))
            return True
        return False

    # --- the judge -----------------------------------------------------------------------------------------------

    def judge(self, *, crashes: bool = False, kinds: Callable[[Started], bool] = lambda _: True) -> None:
        """What must hold once all runs have ended. `crashes`: some may have been parked for killing their workers."""
        problems = []
        rows = self.rows("status", "worker")
        for run_id, started in self.runs.items():
            if not kinds(started):
                continue
            try:
                self._judge_run(started, rows[run_id], crashes)
            except AssertionError as error:
                problems.append(f"{started.kind.name}, version {started.version}: {error}\n{self.story(run_id)}")
        try:
            self._judge_effects([s for s in self.runs.values() if kinds(s)])
        except AssertionError as error:
            problems.append(str(error))
        problems += [str(problem) for problem in fsck(self.store).problems]
        said = self.errors.read_text() if self.errors.exists() else ""
        if "Traceback" in said:
            problems.append(f"a worker complained:\n{said[-6000:]}")
        if problems:
            raise Violation("\n".join(problems))

    def _judge_run(self, started: Started, row: dict[str, Any], crashes: bool) -> None:
        run_id = started.run_id
        assert row["status"] == "succeeded", f"{run_id} is {row['status']}"
        assert row["worker"] is None, f"{run_id} has ended, and {row['worker']} holds it"
        words = [w for w in self.asked.get(run_id, ()) if not (crashes and CRASHED in w)]
        if started.kind.certain:
            assert not words, f"a person was asked where the record could have answered: {words}"
        else:
            assert all(w.startswith("unknown") for w in words), f"a person was asked for no reason: {words}"
        self._judge_takeovers(run_id)
        events = self.store.events(run_id, limit=1000)
        assert events[-1].data.get("output") == started.kind.output or events[-1].kind == "late_evidence"

    def _judge_takeovers(self, run_id: str) -> None:
        """Who lost a run says nothing more about it, except what it learned too late."""
        lost: set[str] = set()
        for event in self.store.events(run_id, limit=1000):
            if event.actor in lost:
                assert event.kind == "late_evidence", (
                    f"{event.actor} lost {run_id}, and wrote {event.kind} all the same"
                )
            if event.kind == "lease" and event.data.get("taken_from") not in {None, event.data.get("worker")}:
                lost.add(f"worker:{event.data['taken_from']}")

    def _judge_effects(self, started: list[Started]) -> None:
        """What the store says happened, happened, and once."""
        stands: dict[str, set[str]] = defaultdict(set)
        suspected = set()
        for one in started:
            for row in self.store.timeline(one.run_id):
                if row["operation_effect"] == "write" and row["operation_refers_to"] is None:
                    stands[f"{row['name']}:{one.what}"].add(row["operation_status"])
                    if row["operation_duplicate_suspected"]:
                        suspected.add(f"{row['name']}:{one.what}")
        effects = self.world.effects()
        about = {one.what for one in started}
        for subject in effects:
            assert subject in stands or subject.partition(":")[2] not in about, f"{subject} happened without a record"
        for subject, statuses in stands.items():
            count = effects.get(subject, 0)
            happened = bool(statuses & {"succeeded", "compensated"})
            settled = not statuses & {"pending", "unknown", "awaiting_approval"}
            if not settled or count != happened:
                told = [self.story(one.run_id) for one in started if one.what == subject.partition(":")[2]]
                stories = "\n".join(told)
                raise Violation(f"{subject} happened {count} times, and is recorded as {statuses}\n{stories}")
        assert not suspected, f"two effects are suspected where there is one: {suspected}"

    def story(self, run_id: str) -> str:
        told = {"answer", "evidence", "outcome", "why", "verdict", "detail", "waits_for", "wake_at", "error", "message",
                "taken_from", "fence", "released", "abandoned"}  # fmt: skip
        lines = []
        for event in self.store.events(run_id, limit=1000):
            facts = {k: v for k, v in event.data.items() if k in told}
            lines.append(f"  {event.seq} {event.at} {event.kind} {event.step or ''} {event.actor} {facts}")
        return "\n".join(lines)


@contextmanager
def fleet(url: str, folder: Path, seed: int | None = None) -> Iterator[Fleet]:
    """A store, a ledger in a folder of its own, and a server of workers."""
    if seed is not None:
        print(f"seed {seed}")
    world = World.create(folder / "outside" / "ledger.db")
    server = Server()
    try:
        with world.open(), open_store(url) as store:  # the last to close a ledger locks it, and tidies up
            found = Fleet(url, store, world, server, folder / "workers.log")
            try:
                yield found
            finally:
                found.end_all()
    finally:
        server.close()


def spin(random_: random.Random, longest: float) -> None:
    """So that a signal comes at any point of a transaction."""
    end = time.perf_counter() + random_.random() * longest
    while time.perf_counter() < end:
        pass
