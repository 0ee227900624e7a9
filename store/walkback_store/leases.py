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


def boot_id() -> str:
    """Names where a process id means something: this machine since it started, and this container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        import uuid

        return f"node-{uuid.getnode():x}"


def process_started(pid: int) -> str | None:
    """When a process started, in ticks since boot, so that a reused pid is not taken for it; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] in {"Z", "X"} else fields[19]


class LeaseObserver:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, float]] = {}
        self._boot = boot_id()

    def judge(self, workers: Iterable[Row], now: int, *, database_clock: bool) -> Iterator[tuple[Row, str]]:
        """The workers that are gone, each with the reason."""
        for row in workers:
            if row["boot_id"] == self._boot and process_started(row["pid"]) != row["process_started"]:
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
