"""What a step costs: commits against the bare database with the same fsyncs, many writers, bytes, and reading back.

A step is an intent and an outcome, each durable before it returns, around a tool call that here takes no time. Speeds
of disks drift, so the bare loop runs before and after each burst of ours; where those two differ by more than half, the
machine was busy with something else and the burst is not counted.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import psycopg

from tests.support.postgres import running_postgres
from walkback_store import open_store
from walkback_store.leases import boot_id, process_started
from walkback_store.machine.operations import Call, Intend, Settle
from walkback_store.machine.runs import StartRun
from walkback_store.machine.store_wide import RegisterWorker
from walkback_store.sqlite_library import sqlite3
from walkback_store.store import Store
from walkback_store.values import encode, fingerprint
from walkback_store.words import Answer, Evidence, OperationStatus

SEED = 11
BURST = 200
PAIRS = 9
DRIFT = 1.5
WRITERS = (1, 10, 100)
WRITER_STEPS = 2_000
LONG_STEPS = 1_000
LONG_STATE = 100 * 1024
LONG_GROWTH = 512
READS = 100


class Sink(Protocol):
    def add(self, name: str, value: float, unit: str, bar: str | None = None, ok: bool | None = None) -> None: ...


class Subject(NamedTuple):
    name: str
    kind: str  # sqlite, postgresql
    address: str
    bare: str
    """Where the bare loop writes: beside the store, on the same disk or in the same server."""
    share: float
    """The bar: at least this share of the bare loop's rate."""


def run(report: Sink) -> None:
    with subjects() as found:
        for subject in found:
            measure_against_bare(report, subject)
            measure_writers(report, subject)
    measure_long_run(report)


@contextmanager
def subjects() -> Iterator[list[Subject]]:
    with (
        tempfile.TemporaryDirectory(prefix="walkback-bench-") as folder,
        running_postgres() as server,
        server.fresh_database() as url,
        server.fresh_database() as bare,
    ):
        yield [
            Subject("SQLite", "sqlite", str(Path(folder) / "walkback.db"), str(Path(folder) / "bare.db"), 0.6),
            Subject("PostgreSQL", "postgresql", url, bare, 0.4),
        ]


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# --- text and steps ----------------------------------------------------------------------------------------------


class Words:
    """Text that compresses about as prose does: 2,000 words of one to four syllables, the short ones more often."""

    def __init__(self, seed: int = SEED) -> None:
        self._pick = random.Random(seed)
        syllables = [a + b for a in "bcdfghlmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "ou")]
        found: dict[str, None] = {}
        while len(found) < 2_000:
            found["".join(self._pick.choices(syllables, k=self._pick.choice((1, 2, 2, 3, 3, 4))))] = None
        self._words = sorted(found, key=len)
        self._weights = [1 / (rank + 20) for rank in range(len(self._words))]

    def text(self, size: int) -> str:
        return " ".join(self._pick.choices(self._words, self._weights, k=size))[:size]


def intend(worker: str, run_id: str, fence: int, i: int, state: bytes) -> Intend:
    args = {"order": i}
    args_hash = fingerprint(args)
    key = f"{run_id}:{i}:send_mail:{args_hash[:8]}"
    call = Call(tool="send_mail", args=args, args_hash=args_hash, key=key, can_verify=True)
    return Intend(
        actor=f"worker:{worker}", run_id=run_id, fence=fence, step=str(i), call=call, worker=worker, state=state
    )


def settle(worker: str, run_id: str, fence: int, i: int, state: bytes, output: object) -> Settle:
    return Settle(
        actor=f"worker:{worker}",
        run_id=run_id,
        fence=fence,
        step=str(i),
        outcome=OperationStatus.SUCCEEDED,
        answer=Answer.ACKNOWLEDGED,
        output=output,
        evidence=Evidence.HAPPENED,
        state=state,
    )


def register(store: Store, worker: str) -> None:
    pid = os.getpid()
    store.do(
        RegisterWorker(
            actor=f"worker:{worker}",
            worker=worker,
            host="bench",
            boot_id=boot_id(),
            pid=pid,
            process_started=process_started(pid) or "",
            agents={worker: ["1"]},
            lease=600_000_000,
        )
    )


def claimed(store: Store, worker: str, run_ids: list[str], state: bytes) -> dict[str, int]:
    """New runs of an agent of the worker's own name, held by it, with their fences."""
    for run_id in run_ids:
        store.do(StartRun(actor="operator:bench", run_id=run_id, agent=worker, input={"n": 1}, state=state))
    got: dict[str, int] = {}
    while len(got) < len(run_ids):
        for claim in store.claim(worker, {worker: ["1"]}, 100):
            assert claim.run is not None
            got[claim.run["run_id"]] = claim.run["fence"]
    return got


class Runner:
    """One run with a state of 1 KB, a little of which changes at each step."""

    def __init__(self, store: Store, worker: str, run_id: str, fence: int, text: str) -> None:
        self._store, self._run = store, (worker, run_id, fence)
        self._state: dict[str, object] = {"log": text, "n": 0}
        self._i = 0

    def step(self) -> None:
        self._i = i = self._i + 1
        self._state["at"] = i
        self._store.do(intend(*self._run, i, encode(self._state)))
        self._state["n"] = i
        self._store.do(settle(*self._run, i, encode(self._state), {"ok": i}))


# --- against the bare database -----------------------------------------------------------------------------------

BARE_SCHEMA = (
    "CREATE TABLE log (pos INTEGER PRIMARY KEY, run INTEGER, seq INTEGER, kind TEXT, hash {bytes}, body {bytes})",
    "CREATE TABLE op (run INTEGER, step INTEGER, status TEXT, key TEXT, hash TEXT, PRIMARY KEY (run, step))",
    "CREATE TABLE state (run INTEGER, n INTEGER, data {bytes}, PRIMARY KEY (run, n))",
    "CREATE TABLE run (run INTEGER PRIMARY KEY, seq INTEGER, head {bytes})",
    "INSERT INTO run VALUES (1, 0, NULL)",
)


@contextmanager
def bare_loop(subject: Subject) -> Iterator[Callable[[], None]]:
    """What a step cannot do without: two durable commits, each of an event, the operation, the run, 1 KB of state."""
    db: Any
    if subject.kind == "sqlite":
        db = sqlite3.connect(subject.bare, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        begin, mark, blob = "BEGIN IMMEDIATE", "?", "BLOB"
    else:
        db = psycopg.connect(subject.bare, autocommit=True)
        begin, mark, blob = "BEGIN", "%s", "BYTEA"
    text = Words().text(900).encode()
    count = 0
    log = "INSERT INTO log VALUES (?, 1, ?, ?, ?, ?)".replace("?", mark)
    op = "INSERT INTO op VALUES (1, ?, ?, ?, ?)".replace("?", mark)
    done = "UPDATE op SET status = ? WHERE run = 1 AND step = ?".replace("?", mark)
    state = "INSERT INTO state VALUES (1, ?, ?)".replace("?", mark)
    head = "UPDATE run SET seq = ?, head = ? WHERE run = 1".replace("?", mark)
    digest, body = bytes(32), text[:300]

    def step() -> None:
        nonlocal count
        count += 1
        for half in (0, 1):
            n = 2 * count + half
            db.execute(begin)
            db.execute(log, (n, n, "intent", digest, body))
            if half:
                db.execute(done, ("succeeded", count))
            else:
                db.execute(op, (count, "pending", f"run:{count}:send_mail", "0" * 64))
            db.execute(state, (n, text))
            db.execute(head, (n, digest))
            db.execute("COMMIT")

    with closing(db):
        for statement in BARE_SCHEMA:
            db.execute(statement.format(bytes=blob))
        yield step


def rate(step: Callable[[], None], times: int = BURST) -> float:
    start = time.perf_counter()
    for _ in range(times):
        step()
    return times / (time.perf_counter() - start)


def measure_against_bare(report: Sink, subject: Subject) -> None:
    pairs: list[tuple[float, float]] = []
    with bare_loop(subject) as bare, open_store(subject.address) as store:
        register(store, "alone")
        ((run_id, fence),) = claimed(store, "alone", ["alone"], encode({})).items()
        ours = Runner(store, "alone", run_id, fence, Words().text(980)).step
        rate(bare), rate(ours)
        for _ in range(3 * PAIRS):
            before, own, after = rate(bare), rate(ours), rate(bare)
            if max(before, after) <= DRIFT * min(before, after):
                pairs.append((own, (before + after) / 2))
            if len(pairs) == PAIRS:
                break
    if not pairs:
        raise RuntimeError(f"{subject.name}: the machine is too busy, no two bare bursts were alike")
    ratio = median(own / limit for own, limit in pairs)
    progress(f"{subject.name}: {ratio:.2f} of the bare loop ({len(pairs)} pairs)")
    report.add(
        f"strict steps against a bare loop, {subject.name}",
        ratio,
        "ratio",
        f">= {subject.share}",
        ratio >= subject.share,
    )
    report.add(f"strict steps, {subject.name}", median(own for own, _ in pairs), "steps/s")
    report.add(f"strict steps, bare loop, {subject.name}", median(limit for _, limit in pairs), "steps/s")


# --- many writers ------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    rate: float
    commits: float


def writers(address: str, number: int, steps: int, label: str) -> Load:
    """Threads of one process with one store, each with a run of its own. Commits are per step, those that fsync."""
    with open_store(address) as store:
        register(store, label)
        text = Words().text(980)
        fences = claimed(store, label, [f"{label}-{i}" for i in range(number)], encode({}))
        runners = [Runner(store, label, run_id, fence, text) for run_id, fence in fences.items()]
        failed: list[BaseException] = []
        ready = threading.Barrier(number + 1)

        def work(runner: Runner) -> None:
            ready.wait()
            try:
                for _ in range(steps // number):
                    runner.step()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(runner,)) for runner in runners]
        for thread in threads:
            thread.start()
        before = store.engine.strict_commits
        ready.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - start
        if failed:
            raise failed[0]
        total = steps // number * number
        return Load(total / took, (store.engine.strict_commits - before) / total if total else 0.0)


def measure_writers(report: Sink, subject: Subject) -> None:
    found: dict[int, Load] = {}
    for number in WRITERS:
        loads = [writers(subject.address, number, WRITER_STEPS, f"w{number}-{turn}") for turn in range(3)]
        found[number] = sorted(loads)[1]
        steps_of = f"{number} writer{'s' if number > 1 else ''}, {subject.name}"
        report.add(steps_of, found[number].rate, "steps/s")
        counted, how = fsyncs(subject, number)
        each = found[number].commits if counted is None else counted
        progress(f"{steps_of}: {found[number].rate:,.0f} steps/s, {each:.3f} fsyncs per step ({how})")
        name = f"fsyncs per step, {steps_of}, {how}"
        if number == WRITERS[-1]:
            report.add(name, each, "fsyncs", "<= 0.2", each <= 0.2)
        else:
            report.add(name, each, "fsyncs")
    gain = found[WRITERS[-1]].rate / found[1].rate
    name = f"{WRITERS[-1]} writers against one, {subject.name}"
    if subject.kind == "sqlite":
        report.add(name, gain, "ratio", ">= 2", gain >= 2)
    else:
        report.add(name, gain, "ratio")


_WRITING = "import json, sys; from bench.bench_store import writers; writers(*json.loads(sys.argv[1]))"
_COUNTED = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s.*(?:fsync|fdatasync)$", re.MULTILINE)


def fsyncs(subject: Subject, number: int) -> tuple[float | None, str]:
    """Per step, counted from outside in a pass that is not timed; None where only the store's own count is left."""
    steps = WRITER_STEPS
    if subject.kind == "postgresql":
        with psycopg.connect(subject.address, autocommit=True) as db:
            if db.info.server_version >= 180000:
                return None, "as commits"
            before = server_syncs(db)
            writers(subject.address, number, steps, f"p{number}")
            return (server_syncs(db) - before) / steps, "by pg_stat_wal"
    strace = shutil.which("strace")
    if strace is None:
        return None, "as commits"
    counts = []
    for amount in (0, steps):  # the first counts what opening, starting and claiming cost
        with tempfile.TemporaryDirectory(prefix="walkback-bench-") as folder:
            path = str(Path(folder) / "walkback.db")
            open_store(path).close()
            output = Path(folder) / "strace"
            order = json.dumps([path, number, amount, "s"])
            trace = [strace, "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", str(output)]
            done = subprocess.run(
                [*trace, sys.executable, "-c", _WRITING, order],
                cwd=Path(__file__).parent.parent,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                progress(f"strace did not work here: {done.stderr.strip()[-200:]}")
                return None, "as commits"
            counts.append(sum(map(int, _COUNTED.findall(output.read_text()))))
    return (counts[1] - counts[0]) / steps, "by strace"


def server_syncs(db: psycopg.Connection[Any]) -> int:
    time.sleep(1.2)  # sessions report once a second, and when they end
    ((count,),) = db.execute("SELECT wal_sync FROM pg_stat_wal").fetchall()
    return int(count)


# --- a long run --------------------------------------------------------------------------------------------------


def measure_long_run(report: Sink) -> None:
    """A conversation of 100 KB that grows by the tool's answer of 0.5 KB at each step, for 1,000 steps."""
    words = Words()
    message = LONG_GROWTH - len(encode({"content": "", "role": "tool"})) - 1
    messages: list[dict[str, str]] = []
    while len(encode({"messages": messages})) < LONG_STATE:
        messages.append({"content": words.text(message), "role": "tool"})
    with tempfile.TemporaryDirectory(prefix="walkback-bench-") as folder:
        path = Path(folder) / "walkback.db"
        with open_store(path) as store:
            register(store, "long")
            ((run_id, fence),) = claimed(store, "long", ["long"], encode({"messages": messages})).items()
            state = encode({"messages": messages})
            sizes = []
            snapshots = []
            for i in range(1, LONG_STEPS + 1):
                store.do(intend("long", run_id, fence, i, state))
                answer = words.text(message)
                messages.append({"content": answer, "role": "tool"})
                state = encode({"messages": messages})
                done = store.do(settle("long", run_id, fence, i, state, answer))
                assert done.run is not None
                snapshots.append((done.run["last_snapshot"], len(state)))
                if i in (1, LONG_STEPS):
                    sizes.append(checkpointed_size(path))
            each = (sizes[1] - sizes[0]) / (LONG_STEPS - 1)
            progress(f"long run: {each:,.0f} bytes per step")
            report.add("bytes per step, 100 KB state growing 0.5 KB a step", each, "B", "<= 2048 B", each <= 2048)
            measure_reads(report, store, run_id, snapshots)
            if store.state_bytes(run_id, snapshots[-1][0]) != state:
                raise RuntimeError("the last snapshot is not the state that was stored")


def checkpointed_size(path: Path) -> int:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise RuntimeError("the log could not be moved into the file, so its size says nothing")
    return path.stat().st_size


def measure_reads(report: Sink, store: Store, run_id: str, snapshots: list[tuple[int, int]]) -> None:
    def read(step: int) -> float:
        """Milliseconds, the median of five."""
        n, size = snapshots[step - 1]
        took = []
        for _ in range(5):
            start = time.perf_counter()
            data = store.state_bytes(run_id, n)
            took.append((time.perf_counter() - start) * 1000)
            if len(data) != size:
                raise RuntimeError(f"snapshot {n} has {len(data)} bytes, not {size}")
        return median(took)

    read(1)
    spread = random.Random(SEED).sample(range(1, LONG_STEPS + 1), READS)
    found = sorted(read(step) for step in spread)
    p99 = found[int(len(found) * 0.99) - 1]
    report.add("reading a snapshot of the long run, median", median(found), "ms")
    report.add("reading a snapshot of the long run, p99", p99, "ms", "<= 10 ms", p99 <= 10)
    report.add("reading a snapshot of the long run, slowest", found[-1], "ms")

    def around(steps: range) -> tuple[float, float]:
        took = [read(step) for step in steps]
        each = [ms / (snapshots[step - 1][1] / LONG_STATE) for ms, step in zip(took, steps, strict=True)]
        return median(took), median(each)

    early, early_each = around(range(5, 16))
    late, late_each = around(range(LONG_STEPS - 10, LONG_STEPS + 1))
    ratio = late_each / early_each
    report.add("reading a snapshot near step 10", early, "ms")
    report.add("reading a snapshot near step 1,000", late, "ms")
    report.add("reading near step 1,000 against step 10, per 100 KB of state", ratio, "ratio", "<= 1", ratio <= 1)
