"""What the runtime makes of the store's speed: one run, many at once, resuming; and the same steps on others.

Each contender is a process of its own that takes a short burst of durable steps when it is told to
(`bench/peers/gate.py`), in random order, with a burst of the bare loop of `bench_store`, also a process, before and
after each. What is compared are shares of those two neighbours. Which bursts count is decided by the neighbours alone:
they must be alike, and not much slower than the bare loop is at its best. A second bare loop is among the contenders;
when its share is not about 1, the machine was too busy and the other shares say nothing either. The others come from
PyPI, into `.venv-peers`; where that cannot be done, they are left out. docs/benchmarks.md has the particulars.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from types import TracebackType
from typing import Any

from bench.bench_store import (
    DRIFT,
    LONG_GROWTH,
    LONG_STATE,
    Sink,
    Subject,
    Words,
    progress,
)
from tests.support.postgres import running_postgres
from walkback_store.values import encode

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).parent / "peers" / "requirements.txt"
SEED = 11
BURST = 50
WARM_UP = 200
ROUNDS = 15
PATIENCE = 240.0
"""Seconds for one set of contenders, if the machine does not come to rest."""
QUIET = 2.0
"""The bare loop may be slower than at its best (the 90th percentile of its rates) by this factor."""
CONTROL = 1.1
"""Two bare loops may differ by this factor."""
RUNS = 100
MANY_BURST = 2_000
ALONE_BURST = 300
RESUMES = 5
STATE = 980


def run(report: Sink) -> None:
    peers = install_peers()
    with tempfile.TemporaryDirectory(prefix="walkback-bench-") as name:
        folder = Path(name)
        names = itertools.count()

        def fresh_file() -> str:
            return f"sqlite:///{folder}/{next(names)}.db"

        subject = Subject("SQLite", "sqlite", "", "", 0.6)
        measure_steps(report, subject, sqlite_sets(fresh_file, peers), fresh_file)
        with running_postgres() as server, ExitStack() as stack:

            def fresh_database() -> str:
                return stack.enter_context(server.fresh_database())

            subject = Subject("PostgreSQL", "postgresql", "", "", 0.4)
            measure_steps(report, subject, postgresql_sets(fresh_database, peers), fresh_database)
        measure_many(report, folder)
        measure_resuming(report, folder, peers)


# --- the others --------------------------------------------------------------------------------------------------


_VERSIONS = """
import sqlite3, sys
from importlib.metadata import version
print(*(f"{name} {version(name)}" for name in sys.argv[1:]), f"SQLite {sqlite3.sqlite_version}", sep=", ")
"""


def install_peers() -> str | None:
    """The Python that has them; None when they cannot be had."""
    python, stamp = PEERS / "bin" / "python", PEERS / ".installed"
    wanted = REQUIREMENTS.read_text()
    if not (stamp.exists() and stamp.read_text() == wanted):
        progress(f"installing what is compared into {PEERS.name} ...")
        shutil.rmtree(PEERS, ignore_errors=True)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "-r", str(REQUIREMENTS)]
        for command in ([sys.executable, "-m", "venv", str(PEERS)], pip):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                progress(f"the others are left out, as they cannot be installed: {done.stderr.strip()[-300:]}")
                return None
        stamp.write_text(wanted)
    names = [line.partition(">=")[0].partition("[")[0] for line in wanted.split()]
    asked = subprocess.run([str(python), "-c", _VERSIONS, *names], capture_output=True, text=True)
    progress(f"compared with {asked.stdout.strip()}")
    return str(python)


class Contender:
    """A process that takes durable steps when it is told to."""

    def __init__(self, python: str, module: str, order: dict[str, Any]) -> None:
        self._module = f"bench.peers.{module}"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", self._module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.cpu: list[float] = []
        """Seconds of processor time per step, of each burst."""
        self._tell(json.dumps(order))
        self.first = self._answer()

    def burst(self, steps: int) -> dict[str, Any]:
        self._tell(str(steps))
        return self._answer()

    def rate(self, steps: int = BURST) -> float:
        answer = self.burst(steps)
        self.cpu.append(answer["cpu"] / answer["steps"])
        return float(answer["steps"] / answer["seconds"])

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _tell(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"{self._module} ended: {self._errors.read().strip()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


@dataclass
class Entrant:
    name: str
    module: str
    python: str
    order: dict[str, Any]
    bar: str | None = None
    """How the report holds ours against it: `> 1`, or None where it is only told."""
    shares: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu: float = 0.0
    of: int = 0
    """How many bursts there were, counted or not."""

    def start(self) -> Contender:
        return Contender(self.python, self.module, self.order)


def ours(address: str, log: object, **order: Any) -> Entrant:
    return Entrant(
        "Walkback", "walkback_steps", sys.executable, {"mode": "steps", "address": address, "log": log} | order
    )


def sqlite_sets(fresh: Callable[[], str], peers: str | None) -> list[list[Entrant]]:
    log = Words().text(STATE)
    if peers is None:
        return [[ours(fresh(), log)]]

    def at(**order: Any) -> dict[str, Any]:
        return {"mode": "steps", "address": fresh(), "log": log} | order

    return [
        [
            ours(fresh(), log),
            Entrant("DBOS with WAL", "dbos_steps", peers, at(wal=True), "> 1"),
            Entrant("LangGraph", "langgraph_steps", peers, at(), "> 1"),
        ],
        [Entrant("DBOS as it comes", "dbos_steps", peers, at())],
    ]


def postgresql_sets(fresh: Callable[[], str], peers: str | None) -> list[list[Entrant]]:
    log = Words().text(STATE)
    if peers is None:
        return [[ours(fresh(), log)]]

    def at(**order: Any) -> dict[str, Any]:
        return {"mode": "steps", "address": fresh(), "log": log} | order

    return [
        [
            ours(fresh(), log),
            Entrant("DBOS", "dbos_steps", peers, at(), "> 1"),
            Entrant("LangGraph as it comes", "langgraph_steps", peers, at(), "> 1"),
            Entrant("LangGraph with pipelining", "langgraph_steps", peers, at(pipeline=True), "> 1"),
            Entrant("Absurd", "absurd_steps", peers, at(), "> 1"),
        ]
    ]


# --- one run -----------------------------------------------------------------------------------------------------


@dataclass
class Burst:
    entrant: int
    rate: float
    before: float
    after: float

    @property
    def limit(self) -> float:
        return (self.before + self.after) / 2

    @property
    def alike(self) -> bool:
        return max(self.before, self.after) <= DRIFT * min(self.before, self.after)


def measure_steps(report: Sink, subject: Subject, sets: Sequence[Sequence[Entrant]], fresh: Callable[[], str]) -> None:
    """Ours is in the first set. What would disturb the others is in a set of its own."""
    log = Words().text(STATE)

    def limit(what: str, name: str) -> Entrant:
        order = {"mode": "steps", "address": fresh(), "log": log, "what": what, "kind": subject.kind}
        return Entrant(name, "limit_steps", sys.executable, order)

    control, store_alone = limit("bare", "another bare loop"), limit("store", "the store alone")
    limits = [compete(subject, limit("bare", "bare"), [*sets[0], control, store_alone])]
    for more in sets[1:]:
        compete(subject, limit("bare", "bare"), more)
    tell_steps(report, subject, [e for each in sets for e in each], control, store_alone, limits[0])


def compete(subject: Subject, bare: Entrant, entrants: Sequence[Entrant]) -> float:
    """Fills in the shares of all of them; the rate of the bare loop meanwhile."""
    pick = random.Random(SEED)
    bursts: list[Burst] = []
    with ExitStack() as stack:
        contenders = [stack.enter_context(entrant.start()) for entrant in (bare, *entrants)]
        for contender in contenders:
            contender.burst(WARM_UP)
        limit, *others = contenders
        until = time.monotonic() + PATIENCE
        before = limit.rate()
        while time.monotonic() < until and min(map(len, (counted(bursts, i) for i in range(len(others))))) < ROUNDS:
            for i in pick.sample(range(len(others)), len(others)):
                own, after = others[i].rate(), limit.rate()
                bursts.append(Burst(i, own, before, after))
                before = after
    for i, entrant in enumerate(entrants):
        kept = counted(bursts, i)
        entrant.shares = [burst.rate / burst.limit for burst in kept]
        entrant.rates = [burst.rate for burst in kept]
        entrant.of = sum(burst.entrant == i for burst in bursts)
        entrant.cpu = median(others[i].cpu)
    return median([burst.limit for i in range(len(entrants)) for burst in counted(bursts, i)] or [0.0])


def counted(bursts: Sequence[Burst], entrant: int) -> list[Burst]:
    """Those of one contender that count. Its own rate has no say in it."""
    if len(bursts) < 10:
        return []
    best = quantiles((burst.after for burst in bursts), n=10)[-1]
    return [b for b in bursts if b.entrant == entrant and b.alike and b.limit >= best / QUIET]


def tell_steps(
    report: Sink,
    subject: Subject,
    entrants: Sequence[Entrant],
    control: Entrant,
    store_alone: Entrant,
    limit: float,
) -> None:
    everyone = [*entrants, control, store_alone]
    for entrant in everyone:
        shares = sorted(entrant.shares) or [0.0]
        progress(
            f"{subject.name}, {entrant.name}: {median(shares):.2f} of the bare loop ({len(entrant.shares)} of "
            f"{entrant.of} bursts, {shares[0]:.2f} to {shares[-1]:.2f}), {entrant.cpu * 1000:.2f} ms of processor time"
        )
        if entrant is not control:
            name = f"runtime, processor time of a step, {entrant.name}, {subject.name}"
            report.add(name, entrant.cpu * 1000, "ms")
    quiet = min(len(entrant.shares) for entrant in everyone)
    name = f"runtime, bursts in quiet moments, the fewest of any, {subject.name}"
    report.add(name, quiet, "bursts", f">= {ROUNDS}", quiet >= ROUNDS)
    if quiet < ROUNDS:
        progress(f"{subject.name}: the machine was too busy; nothing is compared")
        return
    mine, others = entrants[0], entrants[1:]
    share, same = median(mine.shares), median(control.shares)
    name = "runtime, steps of one run"
    report.add(
        f"runtime, control: a bare loop against another, {subject.name}",
        same,
        "ratio",
        f"{1 / CONTROL:.2f} to {CONTROL}",
        1 / CONTROL <= same <= CONTROL,
    )
    report.add(
        f"{name} against a bare loop, {subject.name}", share, "ratio", f">= {subject.share}", share >= subject.share
    )
    report.add(f"{name}, {subject.name}", median(mine.rates), "steps/s")
    report.add(f"{name}, bare loop, {subject.name}", limit, "steps/s")
    for entrant in others:
        gain = share / median(entrant.shares)
        against = f"{name} against {entrant.name}, {subject.name}"
        report.add(against, gain, "ratio", entrant.bar, None if entrant.bar is None else gain > 1)
        report.add(f"{name}, {entrant.name}, {subject.name}", median(entrant.rates), "steps/s")
    gain = share / median(store_alone.shares)
    report.add(f"{name} against the store's transitions alone, {subject.name}", gain, "ratio")


# --- many runs at once -------------------------------------------------------------------------------------------


def measure_many(report: Sink, folder: Path) -> None:
    log = Words().text(STATE)
    for kind in ("plain", "async"):
        name = f"runtime, {RUNS} {kind} runs at once"
        alone = ours(f"sqlite:///{folder}/{kind}-alone.db", log)
        many = ours(f"sqlite:///{folder}/{kind}-many.db", log, runs=RUNS, **{"async": kind == "async"})
        gains: list[float] = []
        found: list[tuple[float, float]] = []
        with (
            alone.start() as one,
            many.start() as all_of_them,
        ):
            one.burst(WARM_UP), all_of_them.burst(MANY_BURST)
            until = time.monotonic() + PATIENCE
            before = one.rate(ALONE_BURST)
            while time.monotonic() < until and len(gains) < ROUNDS:
                answer = all_of_them.burst(MANY_BURST)
                after = one.rate(ALONE_BURST)
                if max(before, after) <= DRIFT * min(before, after):
                    together = answer["steps"] / answer["seconds"]
                    gains.append(together / ((before + after) / 2))
                    found.append((together, answer["commits"] / answer["steps"]))
                before = after
        if len(gains) < ROUNDS:
            progress(f"{name}: only {len(gains)} bursts between two that were alike; the machine is busy")
        report.add(f"{name}, bursts that count, SQLite", len(gains), "bursts", f">= {ROUNDS}", len(gains) >= ROUNDS)
        if len(gains) < ROUNDS:
            continue
        gain, commits = median(gains), median(each for _, each in found)
        progress(f"{name}: {gain:.2f} x one run ({len(gains)} bursts, {min(gains):.2f} to {max(gains):.2f})")
        report.add(f"{name} against one, SQLite", gain, "ratio", ">= 2", gain >= 2)
        report.add(f"{name}, SQLite", median(together for together, _ in found), "steps/s")
        report.add(f"{name}, strict commits per step, SQLite", commits, "commits", "<= 0.2", commits <= 0.2)


# --- resuming ----------------------------------------------------------------------------------------------------


def measure_resuming(report: Sink, folder: Path, peers: str | None) -> None:
    """A run is killed after its 1,000th step; a fresh process takes it up. Until the next step's effect is entered."""
    name = "runtime, resuming at step 1,000"
    small, large = Words().text(STATE), messages()
    for size, log in (("1 KB", small), ("100 KB", large)):
        entrant = ours(f"sqlite:///{folder}/resume-{size.split()[0]}.db", log)
        found = resumed(entrant)
        from_claim = median(answer["from_claim"] for answer in found) * 1000
        from_start = median(answer["seconds"] for answer in found) * 1000
        progress(
            f"{name}, {size} state: {from_claim:.0f} ms from the claim, {from_start:.0f} ms from opening the store"
        )
        report.add(f"{name}, {size} state, from the claim", from_claim, "ms", "<= 100 ms", from_claim <= 100)
        report.add(f"{name}, {size} state, from opening the store", from_start, "ms", "<= 100 ms", from_start <= 100)
    if peers is None:
        return
    for peer, module in (("DBOS with WAL", "dbos_steps"), ("LangGraph", "langgraph_steps")):
        order = {"mode": "fill", "address": f"sqlite:///{folder}/resume-{module}.db", "log": small, "wal": True}
        took = median(answer["seconds"] for answer in resumed(Entrant(peer, module, peers, order))) * 1000
        progress(f"{name}, {peer}: {took:.0f} ms")
        report.add(f"{name}, 1 KB state, {peer}", took, "ms")


def resumed(entrant: Entrant) -> list[dict[str, Any]]:
    """Each time a new run in a new file. A copy of a filled one would not do: a copied store stands still."""
    found = []
    for turn in range(RESUMES):
        at = {"address": entrant.order["address"].replace(".db", f"-{turn}.db")}
        with Contender(entrant.python, entrant.module, entrant.order | at | {"mode": "fill"}) as contender:
            contender.kill()
        with Contender(entrant.python, entrant.module, entrant.order | at | {"mode": "resume"}) as contender:
            found.append(contender.first)
    return found


def messages() -> list[dict[str, str]]:
    """A conversation of 100 KB."""
    words, found = Words(), list[dict[str, str]]()
    while len(encode(found)) < LONG_STATE:
        found.append({"role": "tool", "content": words.text(LONG_GROWTH - 30)})
    return found
