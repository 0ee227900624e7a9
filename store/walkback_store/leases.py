"""Which workers are gone.

PostgreSQL has a clock that all share. SQLite has none: a worker is gone when its heartbeat has not moved for one lease
of the *observer's* own monotonic clock, or when its process is known to be dead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from walkback_store.log import Row

PROC = Path("/proc")
ENDED = frozenset({"Z", "X"})
"""States of a process that is dead, and only not buried yet."""


def boot_id() -> str:
    """Names where a process id means something: this machine since it started, and this container on it."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        import uuid

        return f"node-{uuid.getnode():x}"


def process_started(pid: int) -> str | None:
    """When a process started, in ticks since boot; None if it is gone, and also if that cannot be told."""
    try:
        state, started = _status(pid)
    except OSError:
        return None
    return None if state in ENDED else started


def known_dead(pid: int, started: str) -> bool:
    """Whether a process is gone for certain: not there, ended, or its id is another's, that `started` later.

    Not being able to look is no answer: whoever is out of file descriptors, may not see other users' processes or has
    no /proc would find everyone dead.
    """
    try:
        state, found = _status(pid)
    except (FileNotFoundError, ProcessLookupError):
        return _no_such_process(pid)
    except OSError:
        return False
    return state in ENDED or bool(started and found != started)


def _status(pid: int) -> tuple[str, str]:
    stat = (PROC / str(pid) / "stat").read_bytes()
    fields = stat.rpartition(b")")[2].decode().split()  # before that comes a name, which may be anything
    return fields[0], fields[19]


def _no_such_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


class LeaseObserver:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, float]] = {}
        self._boot = boot_id()

    def judge(self, workers: Iterable[Row], now: int, *, database_clock: bool) -> Iterator[tuple[Row, str]]:
        """The workers that are gone, each with the reason."""
        for row in workers:
            if row["boot_id"] == self._boot and known_dead(row["pid"], row["process_started"]):
                yield row, f"process {row['pid']} on {row['host']} is dead"
            elif database_clock:
                if max(row["beat_at"], row["started_at"]) + row["lease"] < now:
                    yield row, "no heartbeat for one lease"
            elif self._still(row):
                yield row, "no heartbeat for one lease, as seen from here"

    def _still(self, row: Row) -> bool:
        at = self._monotonic()
        beat, since = self._seen.get(row["worker"], (None, at))
        if beat != row["beat"]:
            self._seen[row["worker"]] = (row["beat"], at)
            return False
        return bool(at - since > row["lease"] / 1_000_000)
