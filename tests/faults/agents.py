"""Agents for real workers that are killed, and the world outside them: a ledger that the runtime cannot reach.

The ledger is a database of its own. A tool writes a line into it, and that line is the effect. One service knows keys
and does the same thing once; the other does whatever it is asked to, but not after the time that the request names. A
sign is how a test and a tool wait for each other.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import walkback as wb
from walkback.testing import Faults

DAY = timedelta(hours=24)
TIMEOUT = 1.0
SETTLE = timedelta(seconds=1.5)
PATIENT = wb.Retry(
    attempts=20,
    elapsed=timedelta(minutes=10),
    base=timedelta(milliseconds=50),
    cap=timedelta(milliseconds=200),
    tokens=100_000,
)
LOOK_EVERY = 0.01


class Refused(Exception):
    """The service says no, and nothing happened."""


class Expired(Exception):
    """The request came after its time. Nothing happened, but who asks so late should not rely on an answer."""


class World:
    """What is outside, as one process sees it."""

    def __init__(self, path: Path, latency: float = 0.0) -> None:
        self.path = path
        self.latency = latency
        """So many seconds a request may be on its way, and its answer again."""

    @classmethod
    def create(cls, path: Path) -> World:
        path.parent.mkdir(parents=True, exist_ok=True)
        world = cls(path)
        with world.open() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE effects (n INTEGER PRIMARY KEY, subject TEXT NOT NULL, pid INTEGER NOT NULL)")
            db.execute("CREATE TABLE keys (key TEXT PRIMARY KEY)")
            db.execute("CREATE TABLE signs (name TEXT PRIMARY KEY)")
        return world

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = FULL")
            yield db

    def do(self, subject: str, *, key: str | None = None, before: datetime | None = None) -> None:
        """One effect. Nothing, when the key is known; `Expired`, when it is too late."""
        self._travel()
        with self.open() as db:
            db.execute("BEGIN IMMEDIATE")
            if before is not None and datetime.now(UTC) >= before:
                raise Expired("this request came too late")
            new = key is None or db.execute("INSERT OR IGNORE INTO keys VALUES (?)", (key,)).rowcount
            if new:
                db.execute("INSERT INTO effects (subject, pid) VALUES (?, ?)", (subject, os.getpid()))
            db.execute("COMMIT")
        self._travel()

    def _travel(self) -> None:
        if self.latency:
            time.sleep(random.random() * self.latency)

    def in_nobodys_hands(self, seconds: float = TIMEOUT / 3) -> bool:
        """Whether the ledger can be written. A process that is stopped in the middle of writing keeps everyone out.

        Not for so long that others take the service for hung.
        """
        with closing(sqlite3.connect(self.path, timeout=seconds, isolation_level=None)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            db.execute("ROLLBACK")
            return True

    def find(self, subject: str) -> bool:
        return bool(self.count(subject))

    def count(self, subject: str) -> int:
        with self.open() as db:
            found: int = db.execute("SELECT count(*) FROM effects WHERE subject = ?", (subject,)).fetchone()[0]
            return found

    def total(self) -> int:
        with self.open() as db:
            found: int = db.execute("SELECT count(*) FROM effects").fetchone()[0]
            return found

    def effects(self) -> dict[str, int]:
        """How often each thing happened."""
        with self.open() as db:
            return dict(db.execute("SELECT subject, count(*) FROM effects GROUP BY subject"))

    # --- signs -----------------------------------------------------------------------------------------------------

    def sign(self, name: str) -> bool:
        """Put up a sign; whether it is new."""
        with self.open() as db:
            return bool(db.execute("INSERT OR IGNORE INTO signs VALUES (?)", (name,)).rowcount)

    def signs(self, beginning: str = "") -> set[str]:
        with self.open() as db:
            names = {name for (name,) in db.execute("SELECT name FROM signs")}
        return {name for name in names if name.startswith(beginning)}

    def wait_for(self, name: str) -> None:
        """For a tool that hangs until the test lets it go."""
        while name not in self.signs(name):
            time.sleep(LOOK_EVERY)


world = World(Path(os.devnull))
"""Every worker process sets its own."""


# --- tools -------------------------------------------------------------------------------------------------------


def look(op: wb.Op) -> wb.Evidence:
    return wb.happened({"done": op.args["what"]}) if world.find(f"{op.tool}:{op.args['what']}") else wb.absent()


async def look_later(op: wb.Op) -> wb.Evidence:
    await asyncio.sleep(0)
    return look(op)


@wb.tool(effect="read", timeout=TIMEOUT, retry=PATIENT)
def peek(what: str) -> dict[str, str]:
    return {"seen": what}


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, retry=PATIENT, compensate="keyed_undo")
def keyed(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"keyed:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, retry=PATIENT)
def keyed_undo(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"keyed_undo:{what}", key=op.key)
    return {"done": what}


@wb.tool(
    effect="write",
    timeout=TIMEOUT,
    verify=look,
    settle=SETTLE,
    retry=PATIENT,
    compensate="verified_undo",
)
def verified(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"verified:{what}", before=op.deadline)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, verify=look, settle=SETTLE, retry=PATIENT)
def verified_undo(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"verified_undo:{what}", before=op.deadline)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, verify=look_later, settle=SETTLE, retry=PATIENT, compensate="verified_undo")
async def verified_later(what: str, *, op: wb.Op) -> dict[str, str]:
    await asyncio.sleep(0)
    world.do(f"verified_later:{what}", before=op.deadline)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, retry=PATIENT)
def neither(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"neither:{what}", before=op.deadline)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, retry=PATIENT, approval=True)
def gated(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"gated:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, retry=PATIENT, identity="the {what}")
def owned(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"owned:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, verify=look, settle=SETTLE, definite=(Refused,), retry=PATIENT)
def refuses(what: str) -> dict[str, str]:
    raise Refused("never")


# --- agents ------------------------------------------------------------------------------------------------------


def once(tool: Any) -> Callable[..., Any]:
    def agent(run: wb.Run, what: str) -> str:
        run.call(tool, what=what, into="result")
        run.call(peek, what=what)
        return "done"

    return agent


def once_async(tool: Any) -> Callable[..., Any]:
    async def agent(run: wb.Run, what: str) -> str:
        await run.call(tool, what=what, into="result")
        await run.call(peek, what=what)
        return "done"

    return agent


def undone(tool: Any) -> Callable[..., Any]:
    def agent(run: wb.Run, what: str) -> str:
        try:
            with run.transaction("both"):
                run.call(tool, what=what)
                run.call(refuses, what=what)
        except wb.ToolFailed:
            return "undone"
        return "done"

    return agent


def undone_async(tool: Any) -> Callable[..., Any]:
    async def agent(run: wb.Run, what: str) -> str:
        try:
            async with run.transaction("both"):
                await run.call(tool, what=what)
                await run.call(refuses, what=what)
        except wb.ToolFailed:
            return "undone"
        return "done"

    return agent


def side_by_side(run: wb.Run, what: str) -> str:
    run.parallel(wb.call(keyed, what=what), wb.call(verified, what=what), into="results")
    run.call(peek, what=what)
    return "done"


async def side_by_side_async(run: wb.Run, what: str) -> str:
    await run.parallel(wb.call(keyed, what=what), wb.call(verified_later, what=what), into="results")
    await run.call(peek, what=what)
    return "done"


@dataclass(frozen=True, slots=True)
class Point:
    """Where a worker dies."""

    name: str
    when: str
    step: str | None = None
    tool: str | None = None

    def __str__(self) -> str:
        where = " ".join(part for part in (self.tool, f"step {self.step}" if self.step else None) if part)
        return f"{self.when} {self.name} ({where})" if where else f"{self.when} {self.name}"


def around(name: str, step: str | None = None, tool: str | None = None) -> tuple[Point, Point]:
    return Point(name, "before", step, tool), Point(name, "after", step, tool)


def of_call(step: str, tool: str, *, verify: bool = False) -> tuple[Point, ...]:
    """The boundaries of one call, from its intent to its outcome."""
    looks = around("verify", tool=tool) if verify else ()
    return (
        *around("commit:Intend", step),
        *around("call", tool=tool),
        *looks,
        *around("commit:Settle", step),
    )


FINISH = (Point("commit:FinishRun", "before"),)
UNDO = (*around("commit:BeginCompensation"), *around("commit:EndCompensation"))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of step, as an agent with one of it."""

    name: str
    function: Callable[..., Any]
    points: tuple[Point, ...]
    runs: int = 1
    output: str = "done"
    certain: bool = True
    """Nothing that happens here leaves a doubt that only a person can settle."""

    def agent(self, version: str) -> wb.Agent:
        return wb.Agent(self.function, name=self.name, version=version)


KINDS = (
    Kind("read", once(peek), (*of_call("1", "peek"), *FINISH)),
    Kind("key", once(keyed), (*of_call("1", "keyed"), *FINISH)),
    Kind("key, async", once_async(keyed), (*of_call("1", "keyed"), *FINISH)),
    Kind("verify and settle", once(verified), (*of_call("1", "verified", verify=True), *FINISH)),
    Kind(
        "verify and settle, async",
        once_async(verified_later),
        (*of_call("1", "verified_later", verify=True), *FINISH),
    ),
    Kind("neither", once(neither), (*of_call("1", "neither"), *FINISH), certain=False),
    Kind("neither, async", once_async(neither), (*of_call("1", "neither"), *FINISH), certain=False),
    Kind(
        "approval",
        once(gated),
        (*around("commit:AskApproval", "1"), *around("commit:ParkRun"), *of_call("1", "gated"), *FINISH),
    ),
    Kind(
        "side by side",
        side_by_side,
        (*of_call("1.1", "keyed"), *of_call("1.2", "verified", verify=True), *FINISH),
    ),
    Kind(
        "side by side, async",
        side_by_side_async,
        (*of_call("1.1", "keyed"), *of_call("1.2", "verified_later", verify=True), *FINISH),
    ),
    Kind(
        "identity of two runs",
        once(owned),
        (*around("commit:ClaimIdentity", "1"), *of_call("1", "owned"), *around("commit:Refer", "1"), *FINISH),
        runs=2,
    ),
    Kind(
        "compensation with key",
        undone(keyed),
        (
            Point("call", "before", tool="refuses"),
            *around("commit:Settle", "2"),
            *UNDO,
            *of_call("c1", "keyed_undo"),
            *FINISH,
        ),
        output="undone",
    ),
    Kind(
        "compensation with verify",
        undone(verified),
        (*of_call("c1", "verified_undo", verify=True), *FINISH),
        output="undone",
    ),
    Kind(
        "compensation with verify, async",
        undone_async(verified_later),
        (*UNDO, *of_call("c1", "verified_undo", verify=True), *FINISH),
        output="undone",
    ),
)


# --- tools that hang, and agents that are hard on their workers ----------------------------------------------------


def hang_the_first_time(what: str) -> None:
    """The first call says that it is there, and waits until the test lets it go."""
    if world.sign(f"hangs:{what}"):
        world.wait_for(f"go:{what}")


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, retry=PATIENT)
def lies(what: str) -> dict[str, str]:
    """Says that its service knows keys, and gives it none."""
    world.do(f"lies:{what}")
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, retry=PATIENT)
def hangs_keyed(what: str, *, op: wb.Op) -> dict[str, str]:
    hang_the_first_time(what)
    world.do(f"hangs_keyed:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, verify=look, settle=SETTLE, retry=PATIENT)
def hangs_verified(what: str, *, op: wb.Op) -> dict[str, str]:
    hang_the_first_time(what)
    world.do(f"hangs_verified:{what}", before=op.deadline)
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, retry=PATIENT)
def hangs_rudely(what: str) -> dict[str, str]:
    """With neither key nor verify, and it does what it does however late it is."""
    hang_the_first_time(what)
    world.do(f"hangs_rudely:{what}")
    return {"done": what}


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, retry=PATIENT, concurrency=1)
def hangs_alone(what: str, *, op: wb.Op) -> dict[str, str]:
    hang_the_first_time(what)
    world.do(f"hangs_alone:{what}", key=op.key)
    return {"done": what}


def look_and_hang(op: wb.Op) -> wb.Evidence:
    hang_the_first_time(str(op.args["what"]))
    return look(op)


@wb.tool(effect="write", timeout=TIMEOUT, idempotent=DAY, verify=look_and_hang, settle=SETTLE, retry=PATIENT)
def hangs_in_verify(what: str, *, op: wb.Op) -> dict[str, str]:
    world.do(f"hangs_in_verify:{what}", key=op.key)
    return {"done": what}


@wb.tool(effect="write", timeout=30, idempotent=DAY, retry=PATIENT)
def waits_its_turn(what: str, *, op: wb.Op) -> dict[str, str]:
    world.sign(f"entered:{what}")
    world.wait_for(f"go:{what}")
    world.do(f"waits_its_turn:{what}", key=op.key)
    return {"done": what}


STEPS = 20


def many_steps(run: wb.Run, what: str) -> str:
    for i in range(STEPS):
        run.call(waits_its_turn, what=f"{what}-{i}")
    return "done"


async def many_steps_async(run: wb.Run, what: str) -> str:
    for i in range(STEPS):
        await run.call(waits_its_turn, what=f"{what}-{i}")
    return "done"


def deadly(run: wb.Run, what: str) -> str:
    """Its code takes the worker with it, whenever it runs."""
    run.call(keyed, what=what)
    os.kill(os.getpid(), signal.SIGKILL)
    return "done"


HARD = (
    Kind("lies", once(lies), of_call("1", "lies")),
    Kind("hangs, key", once(hangs_keyed), ()),
    Kind("hangs, key, async", once_async(hangs_keyed), ()),
    Kind("hangs, verify and settle", once(hangs_verified), ()),
    Kind("hangs, verify and settle, async", once_async(hangs_verified), ()),
    Kind("hangs rudely", once(hangs_rudely), (), certain=False),
    Kind("hangs rudely, async", once_async(hangs_rudely), (), certain=False),
    Kind("hangs alone", once(hangs_alone), ()),
    Kind("hangs in verify", once(hangs_in_verify), ()),
    Kind("hangs in verify, async", once_async(hangs_in_verify), ()),
    Kind("many steps", many_steps, ()),
    Kind("many steps, async", many_steps_async, ()),
    Kind("deadly", deadly, ()),
)
BY_NAME = {kind.name: kind for kind in KINDS + HARD}
TOOLS = (peek, keyed, keyed_undo, verified, verified_undo, verified_later, neither, gated, owned, refuses)
HARD_TOOLS = (lies, hangs_keyed, hangs_verified, hangs_rudely, hangs_alone, hangs_in_verify, waits_its_turn)


def make_app(url: str, wanted: Iterable[tuple[str, str]], faults: Faults | None = None) -> wb.App:
    """`wanted` are kinds and versions: a version is how trials on one store keep apart."""
    agents = [BY_NAME[kind].agent(version) for kind, version in wanted]
    return wb.App(url, agents=agents, tools=(*TOOLS, *HARD_TOOLS), faults=faults)
