"""What the drivers share: the worker's place in the world, and how an exception becomes an answer."""

from __future__ import annotations

import inspect
import os
import random
import sysconfig
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import walkback_store
from walkback.errors import LeaseLost, Stopping
from walkback.evidence import Evidence, cannot_tell
from walkback.terms import SECOND
from walkback.testing.faults import Faults
from walkback.tools import Tool
from walkback.wishes import Answered, Commit
from walkback_store.engine import Committed
from walkback_store.errors import CommitUnknown, StoreBusy, StoreError, TooSlow, Unreachable, ValueRefused
from walkback_store.leases import boot_id, known_dead
from walkback_store.store import Store
from walkback_store.values import plain
from walkback_store.words import Answer, WorkerStatus

T = TypeVar("T")
SECONDS = SECOND
GIVE_UP_AFTER = 60.0
"""Seconds for which a commit is tried while the store does not answer; then the run is left to whoever takes it."""
PAUSE = 0.2
MAX_ERROR, MAX_TRACEBACK = 2_000, 4_000


@dataclass(slots=True)
class Workplace:
    """What every run of one worker process shares."""

    store: Store
    worker: str = ""
    faults: Faults = field(default_factory=Faults)
    stopping: threading.Event = field(default_factory=threading.Event)
    gate: threading.Condition = field(default_factory=threading.Condition)
    busy: dict[str, int] = field(default_factory=dict)
    """How many calls of each tool with limited concurrency are under way, hung ones included."""
    left_behind: int = 0
    """Threads of plain tools of async agents that did not come back in time."""
    offset: int = 0
    """The store's clock against this machine's, in microseconds, as far as commits have told."""
    random: random.Random = field(default_factory=random.SystemRandom)
    dead: dict[str, bool] = field(default_factory=dict)

    def now(self) -> int:
        return time.time_ns() // 1000 + self.offset

    def heard(self, committed: Sequence[Committed], since: int) -> None:
        """A commit that was asked for at `since` was made between then and now: so far off can this clock be, at most.

        By its date alone a slow commit would put the clock back, and deadlines with it.
        """
        new = [c.at for c in committed if not c.repeated]
        if self.store.backend.locks_rows and new:  # PostgreSQL's clock counts there; on SQLite it is ours
            at = new[-1]
            self.offset = min(max(self.offset, at - time.time_ns() // 1000), at - since)

    def is_dead(self, worker: str) -> bool:
        """Known to be gone, not merely silent. A process on another machine, or of another boot, is never known."""
        if worker == self.worker:
            return False
        if not self.dead.get(worker):
            found = self.store.worker(worker)
            self.dead[worker] = found is not None and (
                found["status"] == WorkerStatus.STOPPED
                or (found["boot_id"] == boot_id() and known_dead(found["pid"], found["process_started"]))
            )
        return self.dead[worker]

    def commit(self, wish: Commit) -> list[Committed]:
        """Have it in the log; the first refusal is raised."""
        done: list[Committed] = []
        for result in self.submit(wish):
            if isinstance(result, StoreError):
                raise result
            done.append(result)
        return done

    def submit(self, wish: Commit) -> list[Committed | StoreError]:
        """What became of each, for certain: a COMMIT whose fate is unknown is submitted again, with the same ids."""
        until, since = time.monotonic() + GIVE_UP_AFTER, time.time_ns() // 1000
        while True:
            try:
                results = self.store.commit(wish.transitions)
            except (CommitUnknown, Unreachable, StoreBusy) as error:
                if time.monotonic() > until:
                    raise LeaseLost(f"the store does not answer: {error}") from error
                time.sleep(PAUSE)
            else:
                self.heard([r for r in results if isinstance(r, Committed)], since)
                return results

    def ask(self, question: Callable[[Store], T]) -> T:
        """What the store says; a store that does not answer for a while is asked again."""
        until = time.monotonic() + GIVE_UP_AFTER
        while True:
            try:
                return question(self.store)
            except (Unreachable, StoreBusy, TooSlow) as error:
                if time.monotonic() > until:
                    raise LeaseLost(f"the store does not answer: {error}") from error
                time.sleep(PAUSE)

    # --- tools with limited concurrency ----

    def enter(self, tool: Tool, *, wait: bool = True) -> bool:
        """Take one of the tool's places; False when there is none and nobody waits."""
        with self.gate:
            while self.busy.get(tool.name, 0) >= (tool.concurrency or 1):
                if not wait:
                    return False
                if self.stopping.is_set():
                    raise Stopping("the worker is asked to stop")
                self.gate.wait(PAUSE)
            self.busy[tool.name] = self.busy.get(tool.name, 0) + 1
            return True

    def leave(self, tool: Tool) -> None:
        with self.gate:
            self.busy[tool.name] -= 1
            self.gate.notify_all()


# --- answers -----------------------------------------------------------------------------------------------------


def acknowledged(output: object) -> Answered:
    """The tool returned. What cannot be stored is kept as text, and the run will ask about it."""
    try:
        return Answered(Answer.ACKNOWLEDGED, plain(output))
    except ValueRefused as refused:
        text = repr(output)[:MAX_ERROR]
        return Answered(Answer.ACKNOWLEDGED, {"unstorable": text}, problems=(f"{refused.path}: {refused.reason}",))


def raised(tool: Tool, error: BaseException) -> Answered:
    """Only an error that the tool declares definite proves that nothing happened."""
    kind = Answer.REJECTED if isinstance(error, tool.definite) else Answer.AMBIGUOUS
    return Answered(
        kind,
        error_class=type(error).__name__,
        error=words_of(error),
        stop=tool.retry.stops(error),
        data={"traceback": traceback_of(error)},
    )


def words_of(error: BaseException) -> str:
    """What an exception says, as text that can be stored, whatever its author did."""
    try:
        text = str(error) or repr(error)
    except Exception:
        text = f"a {type(error).__name__} that cannot be put in words"
    return storable(text)[:MAX_ERROR]


def traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        text = "".join(traceback.format_tb(error.__traceback__))
    return storable(text)[-MAX_TRACEBACK:]


def source_of(error: BaseException) -> dict[str, Any] | None:
    """Where in somebody's own code it was raised: the innermost place that is neither ours nor a library's."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if not code.co_filename.startswith(("<", *_LIBRARIES)) and "site-packages" not in Path(code.co_filename).parts:
            found = {"file": storable(code.co_filename), "line": line, "function": storable(code.co_qualname)}
    return found


_OURS = (Path(__file__).parents[1], Path(walkback_store.__file__).parent)
_LIBRARIES = tuple(f"{path}{os.sep}" for path in (*_OURS, sysconfig.get_path("stdlib")))


def storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def no_answer(tool: Tool) -> Answered:
    return Answered(Answer.NONE, error_class="Timeout", error=f"no answer within {tool.timeout:g} s")


def not_sent() -> Answered:
    """The deadline had passed before the tool was entered, so whoever looks by then must not find it sent later."""
    return Answered(
        Answer.NONE, error_class="NotSent", error="the deadline passed before the call; it was not made", sent=False
    )


def found(given: object) -> Evidence:
    if isinstance(given, Evidence):
        return given
    return cannot_tell(f"verify answered {given!r}, which is no evidence"[:MAX_ERROR])


def could_not_look(error: BaseException) -> Evidence:
    return cannot_tell(f"{type(error).__name__}: {words_of(error)}")


def is_awaitable(given: object) -> TypeGuard[Awaitable[Any]]:
    return inspect.isawaitable(given)
