"""The console, from outside: keys and bytes over a real pty, as a terminal would have them.

Cold start to the first screen beside an app with an empty table, and on a store of 1,000,000 runs beside an empty one;
the time from a key to the last byte of what it changes, and how many bytes that is, while another process commits 50
events a second; memory; a run of 100,000 steps; `walkback runs --json`; and how soon a lost database is said, and `q`
leaves while it is. Every start is a process of its own; what is compared takes turns, so that a busy moment strikes
both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import psutil

from bench.bench_scale import sqlite_subject
from bench.empty_table import COLUMN
from tests.console.pty_screen import PtyScreen, clean_environment
from tests.support.postgres import running_postgres
from tests.support.proxy import CuttingProxy
from walkback_store import Store, open_store
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import Call, Intend, Settle
from walkback_store.machine.runs import ClaimRun, FinishRun, RecordStep, StartRun
from walkback_store.machine.store_wide import RegisterWorker, StopWorker
from walkback_store.values import encode
from walkback_store.words import Answer, OperationStatus

ROUNDS = 9
KEYS = 200
LOSSES = 5
EVENTS_A_SECOND = 50
LONG_RUN, LONG_STEPS = "a-very-long-run", 100_000
PATIENCE = 60.0
QUIET = 0.04
"""Seconds without a byte after which a key's answer counts as whole."""
AT_MOST = 2.0
"""A key's answer is not waited for any longer; it then counts as having taken so long."""


class Sink(Protocol):
    def add(self, name: str, value: float, unit: str, bar: str | None = None, ok: bool | None = None) -> None: ...


Painted = str | Callable[[PtyScreen], object]


@dataclass(frozen=True)
class Console:
    """What is measured: how it is started, and how one sees that it is there."""

    inbox: Callable[[str], list[str]]
    """The command that shows the inbox of a store."""
    nothing: Painted
    """What is on the screen when the inbox of an empty store has been read and painted."""
    something: Painted
    """The same of a store in which something needs a person."""
    run: Callable[[str, str], list[str]]
    """The command that opens a run of a store."""
    timeline: Painted
    """What is on the screen when the timeline of the long run has been painted."""
    lost: Painted = "THE STORE DOES NOT ANSWER"
    """What is on the screen once it has noticed that the store is gone."""


def walkback(*args: str) -> list[str]:
    return [sys.executable, "-m", "walkback_console", *args]


WALKBACK = Console(
    inbox=lambda url: walkback("--store", url),
    nothing="Nothing needs a person",
    something="unknown",
    run=lambda url, run_id: walkback("--store", url, "open", run_id),
    timeline="observe reading",
)
EMPTY_TABLE = [sys.executable, "-m", "bench.empty_table"]


def run(report: Sink, console: Console = WALKBACK) -> None:
    with tempfile.TemporaryDirectory(prefix="walkback-bench-") as folder:
        empty = f"sqlite:///{Path(folder) / 'empty.db'}"
        long = f"sqlite:///{Path(folder) / 'long.db'}"
        open_store(empty).close()
        with open_store(long) as store:
            fill_long_run(store, LONG_STEPS)
        measure_start(report, console, empty)
        measure_long_run(report, console, long)
        with losses(Path(folder)) as several:
            measure_losses(report, console, several)
        with sqlite_subject() as subject:
            full = f"sqlite:///{subject.store.backend.path}"  # type: ignore[attr-defined]
            measure_scale(report, console, empty, full)
            measure_listing(report, full)
            measure_keys(report, console, full)


# --- starting -----------------------------------------------------------------------------------------------------


def first_paint(args: Sequence[str], painted: Painted) -> float:
    """Milliseconds from the start of the process to the byte that completed the screen."""
    with PtyScreen(args) as screen:
        screen.wait_for(painted, PATIENCE)
        return (screen.seen_at - screen.started) * 1000


def in_turn(contenders: Sequence[tuple[Sequence[str], Painted]], rounds: int | None = None) -> list[float]:
    """The median of each, taking turns; the first of each is thrown away."""
    took: list[list[float]] = [[] for _ in contenders]
    for n in range((rounds or ROUNDS) + 1):
        for times, (args, painted) in zip(took, contenders, strict=True):
            found = first_paint(args, painted)
            if n:
                times.append(found)
    return [median(times) for times in took]


def measure_start(report: Sink, console: Console, empty: str) -> None:
    ours, table = in_turn([(console.inbox(empty), console.nothing), (EMPTY_TABLE, COLUMN)])
    report.add("console: start to first screen", ours, "ms")
    report.add("console: start of an app with an empty table", table, "ms")
    ratio(report, "console: first screen against an empty table", ours / table, 2)


def measure_scale(report: Sink, console: Console, empty: str, full: str) -> None:
    nothing, million = in_turn([(console.inbox(empty), console.nothing), (console.inbox(full), console.something)])
    report.add("console: start to first screen, 1,000,000 runs", million, "ms")
    ratio(report, "console: first screen, 1,000,000 runs against none", million / nothing, 2)


def measure_long_run(report: Sink, console: Console, long: str) -> None:
    (took,) = in_turn([(console.run(long, LONG_RUN), console.timeline)])
    report.add(f"console: open a run of {LONG_STEPS:,} steps", took, "ms", "<= 1000 ms", took <= 1000)


def measure_listing(report: Sink, full: str) -> None:
    took = median(listing(walkback("--store", full, "runs", "--json")) for _ in range(ROUNDS))
    report.add("walkback runs --json, cold", took, "ms", "<= 400 ms", took <= 400)


def listing(args: Sequence[str]) -> float:
    """Milliseconds that a command takes to its end."""
    start = time.perf_counter()
    subprocess.run(args, env=clean_environment(), check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
    return (time.perf_counter() - start) * 1000


def ratio(report: Sink, name: str, value: float, at_most: float) -> None:
    report.add(name, value, "x", f"<= {at_most:g} x", value <= at_most)


# --- keys ---------------------------------------------------------------------------------------------------------


class Key(NamedTuple):
    milliseconds: float
    bytes: int


def press_keys(screen: PtyScreen, count: int | None = None) -> list[Key]:
    """Ten down, ten up. The last byte is the one after which there was none for a while; a frame that
    something else caused meanwhile counts too, to the console's disadvantage."""
    found = []
    for n in range(count or KEYS):
        had = screen.received
        pressed = time.perf_counter()
        screen.press("down" if n // 10 % 2 == 0 else "up")
        last = screen.quiet_after(had, QUIET, AT_MOST)
        found.append(Key((last - pressed) * 1000, screen.received - had))
    return found


def measure_keys(report: Sink, console: Console, full: str) -> None:
    with PtyScreen(console.inbox(full)) as screen:
        screen.wait_for(console.something, PATIENCE)
        screen.settle()
        memory = resident(screen.process.pid)
        report.add("console: memory after opening", memory, "MB", "<= 200 MB", memory <= 200)
        with chatter(full, EVENTS_A_SECOND):
            keys = press_keys(screen)
    times = sorted(key.milliseconds for key in keys)
    sizes = sorted(key.bytes for key in keys)
    p99, size = percentile(times, 0.99), percentile([float(n) for n in sizes], 0.99)
    report.add("console: key to last byte, p50", percentile(times, 0.5), "ms")
    report.add("console: key to last byte, p99", p99, "ms", "<= 100 ms", p99 <= 100)
    report.add("console: bytes of a key, p99", size, "bytes", "<= 8192", size <= 8192)


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def resident(pid: int) -> float:
    """Megabytes, with those of its children."""
    process = psutil.Process(pid)
    total: int = sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])
    return total / 1e6


@contextmanager
def chatter(url: str, per_second: float) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that commits so many events a second; it ends with this block, or with this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.chatter", url, str(per_second)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"talking\n":
            raise RuntimeError("the process that commits events did not come up")
        yield process
        if process.poll() is not None:
            raise RuntimeError("the process that commits events has ended early, so nothing was measured")
    finally:
        process.kill()
        process.communicate()


# --- a database that is lost --------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """A way to lose a database."""

    name: str
    url: str
    lose: Callable[[], object]
    find: Callable[[], object]


@contextmanager
def losses(folder: Path) -> Iterator[list[Loss]]:
    file, away = folder / "lost.db", folder / "moved.db"
    with running_postgres() as server, server.fresh_database() as behind, CuttingProxy(behind) as proxy:
        for url in (f"sqlite:///{file}", behind):
            open_store(url).close()

        def cut() -> None:
            proxy.refuse(True)
            proxy.cut_all()

        yield [
            Loss("SQLite, file moved", f"sqlite:///{file}", lambda: file.rename(away), lambda: away.rename(file)),
            Loss("PostgreSQL, connection cut", proxy.url, cut, lambda: proxy.refuse(False)),
            Loss("PostgreSQL, silent", proxy.url, proxy.stall, lambda: proxy.stall(False)),
        ]


def measure_losses(report: Sink, console: Console, several: Sequence[Loss]) -> None:
    """The slowest of a few: a bar that is met on average is no bar."""
    for loss in several:
        said, left = (max(times) for times in zip(*(lose_and_leave(console, loss) for _ in range(LOSSES)), strict=True))
        report.add(f"console: lost store to banner, {loss.name}", said, "ms", "<= 3000 ms", said <= 3000)
        report.add(f"console: q to exit while lost, {loss.name}", left, "ms", "<= 1000 ms", left <= 1000)


def lose_and_leave(console: Console, loss: Loss) -> tuple[float, float]:
    """Milliseconds from the loss to the banner, and from `q` to the end of the process."""
    with PtyScreen(console.inbox(loss.url)) as screen:
        screen.wait_for(console.nothing, PATIENCE)
        screen.settle()
        lost = time.perf_counter()
        loss.lose()
        try:
            screen.wait_for(console.lost, PATIENCE)
            said = screen.seen_at - lost
            pressed = time.perf_counter()
            screen.press("q")
            screen.exit_code(PATIENCE)
            return said * 1000, (time.perf_counter() - pressed) * 1000
        finally:
            loss.find()


# --- a long run ---------------------------------------------------------------------------------------------------


def fill_long_run(store: Store, steps: int, run_id: str = LONG_RUN) -> None:
    """Through the state machine; every 20th step is a write."""
    by: dict[str, Any] = {"actor": "worker:filler", "run_id": run_id}
    store.do(
        RegisterWorker(
            actor="worker:filler", worker="filler", host="here", boot_id="boot", pid=1, process_started="1",
            agents={"sensor": ["1"]}, lease=3_600_000_000,
        )
    )  # fmt: skip
    store.do(StartRun(actor="service:bench", run_id=run_id, agent="sensor", input=None, state=encode({})))
    claimed = store.do(ClaimRun(**by, worker="filler")).run
    assert claimed is not None
    fence = claimed["fence"]
    several: list[Transition] = []
    for n in range(1, steps + 1):
        several += _step(by, fence, n)
        if len(several) > 900 or n == steps:
            for result in store.commit(several):
                if isinstance(result, Exception):
                    raise result
            several = []
    store.do(FinishRun(**by, fence=fence, output=steps))
    store.do(StopWorker(actor="worker:filler", worker="filler"))


def _step(by: dict[str, Any], fence: int, n: int) -> list[Transition]:
    step = str(n)
    if n % 20:
        return [RecordStep(**by, fence=fence, step=step, step_kind="observe", name=f"reading {n}", data={"value": n})]
    call = Call(tool="set_valve", args={"open": n % 100}, args_hash=f"{n:032x}", key=f"{by['run_id']}:{n}")
    done = OperationStatus.SUCCEEDED
    return [
        Intend(**by, fence=fence, step=step, call=call, worker="filler"),
        Settle(**by, fence=fence, step=step, outcome=done, answer=Answer.ACKNOWLEDGED, output="ok"),
    ]
