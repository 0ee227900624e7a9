"""Faults on purpose: crash here, lose this answer, delay that one.

A fault names a point of the protocol, and what goes wrong there. Points are named after the wishes: `commit:Intend`,
`commit:Settle`, `call`, `verify`, `wait` and so on. These are for real workers; the simulator has a `Plan` of its own.

>>> from walkback.testing import Faults
>>> faults = Faults().crash("call", when="after", tool="send_mail")
>>> app = wb.App("walkback.db", agents=[close_order], faults=faults)            # doctest: +SKIP
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class What(StrEnum):
    CRASH = "crash"
    """The process dies: SIGKILL."""
    LOSE_ANSWER = "lose answer"
    """The call is made, and its answer never comes."""
    LOSE_REQUEST = "lose request"
    """The call is not made, and nobody is told: to its caller it looks like a lost answer."""
    DELAY = "delay"
    RAISE = "raise"
    LOSE_COMMIT = "lose commit"
    """The commit is made, and its answer is lost; the driver has to find out."""


@dataclass(slots=True)
class Fault:
    what: What
    point: str
    when: str = "before"
    tool: str | None = None
    step: str | None = None
    nth: int = 1
    seconds: float = 0.0
    error: Callable[[], BaseException] | None = None
    met: int = 0
    fired: bool = False

    def meets(self, point: str, when: str, tool: str | None, step: str | None) -> bool:
        if self.fired or self.when != when or (self.point != point and not point.startswith(f"{self.point}:")):
            return False
        if (self.tool is not None and self.tool != tool) or (self.step is not None and self.step != step):
            return False
        self.met += 1
        self.fired = self.met == self.nth
        return self.fired


class Faults:
    """A list of faults, each of which strikes once: the `nth` time that its point is met."""

    def __init__(self, kill: Callable[[], None] | None = None) -> None:
        self.list: list[Fault] = []
        self._kill = kill or _kill_this_process
        self._lock = threading.Lock()

    # --- saying what goes wrong ----------------------------------------------------------------------------------

    def crash(self, point: str, *, when: str = "before", **where: Any) -> Faults:
        """The process dies at this point, `when` it is about to be granted or has just been."""
        return self._add(What.CRASH, point, when, where)

    def lose_answer(self, tool: str | None = None, **where: Any) -> Faults:
        """The call is made, and its answer does not come within the deadline."""
        return self._add(What.LOSE_ANSWER, "call", "before", where | {"tool": tool})

    def lose_request(self, tool: str | None = None, **where: Any) -> Faults:
        """The call is not made, and no answer comes within the deadline."""
        return self._add(What.LOSE_REQUEST, "call", "before", where | {"tool": tool})

    def delay(self, point: str, seconds: float, *, when: str = "before", **where: Any) -> Faults:
        return self._add(What.DELAY, point, when, where | {"seconds": seconds})

    def fail(self, point: str, error: Callable[[], BaseException], *, when: str = "before", **where: Any) -> Faults:
        """The call or the look ends with this error: `before` it was made, or `after` it took effect."""
        return self._add(What.RAISE, point, when, where | {"error": error})

    def lose_commit(self, point: str, **where: Any) -> Faults:
        """The commit is made, and its answer is lost."""
        return self._add(What.LOSE_COMMIT, point, "after", where)

    def _add(self, what: What, point: str, when: str, where: dict[str, Any]) -> Faults:
        if when not in {"before", "after"}:
            raise ValueError(f"when is 'before' or 'after', not {when!r}")
        self.list.append(Fault(what, point, when, **where))
        return self

    # --- asked by the drivers ------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.list)

    def at(self, point: str, when: str, tool: str | None = None, step: str | None = None) -> Fault | None:
        """The fault that strikes here, if any. A crash does not return."""
        with self._lock:
            struck = [fault for fault in self.list if fault.meets(point, when, tool, step)]
        for fault in struck:
            if fault.what is What.CRASH:
                self._kill()
        return struck[0] if struck else None


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # nothing more happens here
