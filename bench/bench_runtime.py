"""What the runtime makes of the store's speed: one run, many at once, resuming; and the same steps on others.

Each contender is a process of its own that takes a burst of durable steps when it is told to (`bench/peers/gate.py`);
the bare loop of `bench_store` runs before and after each burst. A burst whose two neighbours differ by more than half
is dropped, and what is compared are shares of the neighbours, not rates: disks and machines drift. The others come from
PyPI, into `.venv-peers`; where that cannot be done, they are left out. docs/benchmarks.md has the particulars.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from bench.bench_store import (
    DRIFT,
    LONG_GROWTH,
    LONG_STATE,
    Runner,
    Sink,
    Subject,
    Words,
    bare_loop,
    claimed,
    progress,
    rate,
    register,
)
from tests.support.postgres import running_postgres
from walkback_store import open_store
from walkback_store.values import encode

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).parent / "peers" / "requirements.txt"
BURST = 300
BARE_BURST = 300
ROUNDS = 9
TRIES = 4 * ROUNDS
RUNS = 100
MANY_BURST = 3_000
RESUMES = 5
STATE = 980


def run(report: Sink) -> None:
    peers = install_peers()
    with (
        tempfile.TemporaryDirectory(prefix="walkback-bench-") as folder,
        running_postgres() as server,
    ):
        measure_steps(report, sqlite_subject(Path(folder)), sqlite_contenders(Path(folder), peers))
        with ExitStack() as stack:

            def fresh() -> str:
                return stack.enter_context(server.fresh_database())

            subject = Subject("PostgreSQL", "postgresql", fresh(), fresh(), 0.4)
            measure_steps(report, subject, postgresql_contenders(fresh, peers))
        measure_many(report, Path(folder))
        measure_resuming(report, Path(folder), peers)


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
        self._tell(json.dumps(order))
        self.first = self._answer()

    def burst(self, steps: int) -> dict[str, Any]:
        self._tell(str(steps))
        return self._answer()

    def rate(self, steps: int = BURST) -> float:
        answer = self.burst(steps)
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


def ours(address: str, log: object, **order: Any) -> Entrant:
    return Entrant(
        "Walkback", "walkback_steps", sys.executable, {"mode": "steps", "address": address, "log": log} | order
    )


def sqlite_subject(folder: Path) -> Subject:
    return Subject("SQLite", "sqlite", f"sqlite:///{folder}/store.db", str(folder / "bare.db"), 0.6)


def sqlite_contenders(folder: Path, peers: str | None) -> list[Entrant]:
    log = Words().text(STATE)

    def at(name: str) -> dict[str, Any]:
        return {"mode": "steps", "address": f"sqlite:///{folder}/{name}.db", "log": log}

    found = [ours(f"sqlite:///{folder}/ours.db", log)]
    if peers is not None:
        found += [
            Entrant("DBOS as it comes", "dbos_steps", peers, at("dbos")),
            Entrant("DBOS with WAL", "dbos_steps", peers, at("dbos-wal") | {"wal": True}, "> 1"),
            Entrant("LangGraph", "langgraph_steps", peers, at("langgraph"), "> 1"),
        ]
    return found


def postgresql_contenders(fresh: Callable[[], str], peers: str | None) -> list[Entrant]:
    log = Words().text(STATE)

    def at(address: str) -> dict[str, Any]:
        return {"mode": "steps", "address": address, "log": log}

    found = [ours(fresh(), log)]
    if peers is not None:
        found += [
            Entrant("DBOS", "dbos_steps", peers, at(fresh()), "> 1"),
            Entrant("LangGraph as it comes", "langgraph_steps", peers, at(fresh())),
            Entrant("LangGraph with pipelining", "langgraph_steps", peers, at(fresh()) | {"pipeline": True}, "> 1"),
            Entrant("Absurd", "absurd_steps", peers, at(fresh()), "> 1"),
        ]
    return found


# --- one run -----------------------------------------------------------------------------------------------------


def measure_steps(report: Sink, subject: Subject, entrants: Sequence[Entrant]) -> None:
    store_alone = Entrant("the store alone", "", "", {})
    bursts: list[tuple[Entrant, Callable[[], float]]] = []
    with ExitStack() as stack:
        bare = stack.enter_context(bare_loop(subject))
        for entrant in entrants:
            contender = stack.enter_context(Contender(entrant.python, entrant.module, entrant.order))
            bursts.append((entrant, contender.rate))
        transitions = stack.enter_context(runner(subject))
        bursts.insert(1, (store_alone, lambda: rate(transitions, BURST)))
        limits: list[float] = []
        rate(bare, BARE_BURST)
        for _, burst in bursts:
            burst()
        before = rate(bare, BARE_BURST)
        for _ in range(TRIES):
            for entrant, burst in bursts:
                own = burst()
                after = rate(bare, BARE_BURST)
                if len(entrant.shares) < ROUNDS and max(before, after) <= DRIFT * min(before, after):
                    limits.append((before + after) / 2)
                    entrant.shares.append(own / limits[-1])
                    entrant.rates.append(own)
                before = after
            if all(len(entrant.shares) == ROUNDS for entrant, _ in bursts):
                break
    tell_steps(report, subject, entrants, store_alone, limits)


@contextmanager
def runner(subject: Subject) -> Iterator[Callable[[], None]]:
    """The store's own transitions, without the runtime: the intent and the outcome of `bench_store`."""
    with open_store(subject.address) as store:
        register(store, "alone")
        ((run_id, fence),) = claimed(store, "alone", ["alone"], encode({})).items()
        yield Runner(store, "alone", run_id, fence, Words().text(STATE)).step


def tell_steps(
    report: Sink, subject: Subject, entrants: Sequence[Entrant], store_alone: Entrant, limits: list[float]
) -> None:
    for entrant in (*entrants, store_alone):
        if not entrant.shares:
            raise RuntimeError(
                f"{subject.name}, {entrant.name}: the machine is too busy, no two bare bursts were alike"
            )
        share, kept = median(entrant.shares), sorted(entrant.shares)
        progress(
            f"{subject.name}, {entrant.name}: {share:.2f} of the bare loop "
            f"({len(kept)} bursts, {kept[0]:.2f} to {kept[-1]:.2f}), {median(entrant.rates):,.0f} steps/s"
        )
    mine, others = entrants[0], entrants[1:]
    share = median(mine.shares)
    name = "runtime, steps of one run"
    report.add(
        f"{name} against a bare loop, {subject.name}", share, "ratio", f">= {subject.share}", share >= subject.share
    )
    report.add(f"{name}, {subject.name}", median(mine.rates), "steps/s")
    report.add(f"{name}, bare loop, {subject.name}", median(limits), "steps/s")
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
            Contender(alone.python, alone.module, alone.order) as one,
            Contender(many.python, many.module, many.order) as all_of_them,
        ):
            one.burst(BURST), all_of_them.burst(RUNS)
            before = one.rate()
            for _ in range(TRIES):
                answer = all_of_them.burst(MANY_BURST)
                after = one.rate()
                if max(before, after) <= DRIFT * min(before, after):
                    together = answer["steps"] / answer["seconds"]
                    gains.append(together / ((before + after) / 2))
                    found.append((together, answer["commits"] / answer["steps"]))
                before = after
                if len(gains) == ROUNDS:
                    break
        if not gains:
            raise RuntimeError(f"{name}: the machine is too busy, no two bursts of one run were alike")
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
