"""What the protocol may ask of the world outside it, and what it is told.

The protocol is a generator without I/O: it yields one of these and is sent the answer. A driver grants them: with real
threads, on an event loop, or in a simulation where time is a number and any of them can go wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from walkback.evidence import Evidence
from walkback.tools import Op, Tool
from walkback_store.machine.base import Transition
from walkback_store.store import Store
from walkback_store.words import Answer

T = TypeVar("T")


@dataclass(slots=True)
class Commit:
    """Have these in the log, in this order, in one transaction. Answer: what was committed, or the refusal is
    raised."""

    transitions: tuple[Transition, ...]

    @property
    def point(self) -> str:
        return f"commit:{type(self.transitions[0]).__name__}"


@dataclass(slots=True)
class Answered:
    """What came of an attempt."""

    kind: Answer
    output: object = None
    error_class: str | None = None
    error: str | None = None
    sent: bool = True
    """False when it is certain that the tool was never entered."""
    stop: bool = False
    """The error is one after which the tool does not want to be tried again."""
    problems: Sequence[str] = ()
    """Where the output cannot be stored, or is not what the tool declares."""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Invoke:
    """Call the tool. Answer: `Answered`, at the latest when the deadline has passed."""

    tool: Tool
    args: dict[str, object]
    op: Op
    deadline: int
    late: Callable[[Answered], Generator[Any, Any, None]]
    """What to do with an answer that comes after the deadline."""
    point = "call"


@dataclass(slots=True)
class Verify:
    """Read the world again. Answer: `Evidence`; whatever goes wrong is `cannot_tell`."""

    tool: Tool
    op: Op
    point = "verify"


@dataclass(slots=True)
class Observe:
    """Read the tool's preconditions. Answer: a plain value; what goes wrong is raised as `CannotObserve`."""

    tool: Tool
    op: Op
    point = "observe"


class CannotObserve(Exception):
    """The preconditions could not be read. Nothing was called."""


@dataclass(slots=True)
class Look:
    """Ask the store something. Answer: whatever it says."""

    question: Callable[[Store], object]
    point = "look"


@dataclass(slots=True)
class Wait:
    """Let time pass, not long. Raises `Stopping` when the worker has to go."""

    until: int
    point = "wait"


@dataclass(slots=True)
class Now:
    """Answer: microseconds since 1970, by the store's clock as far as it is known here."""

    point = "now"


@dataclass(slots=True)
class Jitter:
    """Answer: a number from 0 up to 1."""

    point = "jitter"


@dataclass(slots=True)
class Entropy:
    """Answer: 16 random bytes."""

    point = "entropy"


@dataclass(slots=True)
class Await:
    """Something of the agent's own to be awaited, such as an async function that decides. Answer: what it gives."""

    awaitable: Awaitable[Any]
    point = "await"


@dataclass(slots=True)
class IsDead:
    """Answer: whether a worker's process is known to be gone, so that nothing it began can still be sent."""

    worker: str
    point = "is dead"


@dataclass(slots=True)
class Enter:
    """Wait for one of the places that a tool with limited concurrency has in this worker; kept until the call ends."""

    tool: Tool
    point = "enter"


@dataclass(slots=True)
class Branches:
    """Run these side by side. Answer: what each returned, in order."""

    protocols: Sequence[Generator[Any, Any, Any]]
    point = "branches"


Wish: TypeAlias = (
    Commit | Invoke | Verify | Observe | Look | Wait | Now | Jitter | Entropy | Await | IsDead | Enter | Branches
)
Protocol: TypeAlias = Generator[Wish, Any, T]

__all__ = [
    "Answered",
    "Await",
    "Branches",
    "CannotObserve",
    "Commit",
    "Enter",
    "Entropy",
    "Evidence",
    "Invoke",
    "IsDead",
    "Jitter",
    "Look",
    "Now",
    "Observe",
    "Protocol",
    "Verify",
    "Wait",
    "Wish",
]
