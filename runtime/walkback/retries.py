"""How often, how fast and how long a tool is tried again.

A policy only says what is allowed; whether another attempt is *safe* is decided elsewhere, by the evidence. Reads and
writes have separate policies, because a read that fails costs nothing but time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

_ENOUGH_DOUBLINGS: Final = 100
"""One microsecond doubled this often is more than any timedelta, so nothing is lost by not going further."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy. It is refused when it could never work, with what to write instead."""

    attempts: int = 3
    """In all, the first one included."""
    elapsed: timedelta = timedelta(minutes=5)
    """The budget of one operation, counted from its first attempt."""
    base: timedelta = timedelta(seconds=1)
    """The longest wait before the second attempt; it doubles for each one after."""
    cap: timedelta = timedelta(seconds=30)
    """No wait is longer."""
    stop: tuple[type[BaseException], ...] = ()
    """After one of these nothing is tried again."""
    tokens: float = 20
    """How many retries of the tool may come in a burst, over all runs. The first attempt takes none."""
    tokens_per_second: float = 1.0
    """How fast the tool earns retries back."""

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts!r}; it counts the first one too: write 1 for no retries.")
        for name in ("elapsed", "base", "cap"):
            span = getattr(self, name)
            if not isinstance(span, timedelta):
                raise ValueError(f"{name} is {span!r}; write a timedelta, such as timedelta(seconds=30).")
        if self.elapsed <= timedelta(0):
            raise ValueError(f"elapsed is {self.elapsed}; it must be more than nothing. For no retries: attempts=1.")
        if self.base < timedelta(0):
            raise ValueError(f"base is {self.base}; a wait cannot be negative.")
        if self.cap < self.base:
            raise ValueError(f"cap ({self.cap}) is shorter than base ({self.base}); swap them, or raise cap.")
        if not _is_number(self.tokens) or self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens!r}; it must be at least 1. For no retries: attempts=1.")
        if not _is_number(self.tokens_per_second) or self.tokens_per_second <= 0:
            raise ValueError(f"tokens_per_second is {self.tokens_per_second!r}; it must be a number above 0.")
        object.__setattr__(self, "stop", exception_classes("stop", self.stop))

    def delay(self, attempt: int, jitter: float) -> timedelta:
        """How long to wait after attempt number `attempt` failed; `jitter` is a random number from 0 up to 1.

        Full jitter: anywhere between no wait and the longest one, so that clients that failed together do not come
        back together.
        """
        if attempt < 1:
            raise ValueError(f"attempt is {attempt}; attempts are counted from 1.")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter is {jitter}; it must be at least 0 and less than 1.")
        longest = self.base.total_seconds() * 2.0 ** min(attempt - 1, _ENOUGH_DOUBLINGS)
        return timedelta(seconds=jitter * min(longest, self.cap.total_seconds()))

    def stops(self, error: BaseException) -> bool:
        """Whether nothing is tried again after this error."""
        return isinstance(error, self.stop)


def exception_classes(name: str, given: object) -> tuple[type[BaseException], ...]:
    """One class, or several in a tuple or list, as a tuple; anything else is a ValueError that says what to write."""
    classes = tuple(given) if isinstance(given, tuple | list) else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ValueError(f"{name} has {each!r}; write exception classes, such as {name}=(ValueError,).")
    return classes


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


READS: Final = Retry(
    attempts=4, elapsed=timedelta(minutes=1), base=timedelta(milliseconds=200), cap=timedelta(seconds=5)
)
"""For tools that change nothing."""

WRITES: Final = Retry(attempts=3, elapsed=timedelta(minutes=5), base=timedelta(seconds=1), cap=timedelta(seconds=30))
"""For tools that change the world."""

NO_RETRY: Final = Retry(attempts=1)
"""One attempt, whatever comes of it."""


def none() -> Retry:
    """The policy with one attempt."""
    return NO_RETRY
