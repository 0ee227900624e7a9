"""Snapshots: the whole state at every boundary, kept as deltas, each readable in a bounded number of hops.

A snapshot is stored against the one before it; every 32nd against the one 32 before, every 1024th against the one 1024
before, every 32768th on its own. So what changed is stored two or three times, and reading takes at most 94 hops,
however long the run; 63 up to the 1024th. A fork's first snapshot is stored against its parent's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from walkback_store.errors import CorruptData, NotFound
from walkback_store.frames import pack, unpack

RADIX = 32
LEVELS = 3
MAX_DEPTH = 192
CACHE_BYTES = 64 * 1024 * 1024
_HALF = 2

Stored = dict[str, Any]
Find = Callable[[int, int], Stored | None]


def base_of(n: int) -> int | None:
    """The ordinal that snapshot `n` is stored against; None for a keyframe."""
    span = 1
    for _ in range(LEVELS):
        if n % (span * RADIX):
            return n - span
        span *= RADIX
    return None


def chain_of(n: int) -> list[int]:
    """The ordinals that reading `n` goes through, if all of them are deltas."""
    chain = [n]
    while (base := base_of(chain[-1])) is not None:
        chain.append(base)
    return chain


@dataclass(slots=True)
class Content:
    digest: bytes
    depth: int
    data: bytes


class SnapshotCache:
    """Recent contents in memory, so that writing the next delta reads nothing. Trusted by digest, never by number."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._contents: OrderedDict[tuple[int, int], Content] = OrderedDict()

    def get(self, run_no: int, n: int) -> Content | None:
        content = self._contents.get((run_no, n))
        if content is not None:
            self._contents.move_to_end((run_no, n))
        return content

    def put(self, run_no: int, n: int, content: Content) -> None:
        self.drop(run_no, n)
        self._contents[run_no, n] = content
        self._size += len(content.data)
        if (n - 1) % RADIX:
            self.drop(run_no, n - 1)  # no later snapshot is stored against it
        while self._size > self._limit and len(self._contents) > 1:
            _, oldest = self._contents.popitem(last=False)
            self._size -= len(oldest.data)

    def drop(self, run_no: int, n: int) -> None:
        content = self._contents.pop((run_no, n), None)
        if content is not None:
            self._size -= len(content.data)

    def forget(self) -> None:
        """After a rollback, what was put may never have been stored."""
        self._contents.clear()
        self._size = 0


def read(find: Find, run_no: int, n: int) -> Content:
    """The content of a snapshot, checked against its digest. What a damaged hop leads to does not match it either."""
    hops: list[Stored] = []
    at: tuple[int, int] | None = (run_no, n)
    while at is not None:
        row = find(*at)
        if row is None:
            raise NotFound(f"snapshot {at[1]} is not in the store (pruned, or never taken).")
        hops.append(row)
        if len(hops) > MAX_DEPTH + 1:
            raise CorruptData(f"snapshot {n} needs more than {MAX_DEPTH} hops: its chain is damaged.")
        at = None if row["base_n"] is None else (row["base_run"], row["base_n"])
    data: bytes | None = None
    for row in reversed(hops):
        data = unpack(row["data"], data)
    return _checked(hops[0], data)


def following(row: Stored, before: bytes) -> bytes | None:
    """The content of a snapshot from that of the one before it; None if it is stored against another."""
    if (row["base_run"], row["base_n"]) != (row["run_no"], row["n"] - 1):
        return None
    return _checked(row, unpack(row["data"], before)).data


def _checked(row: Stored, data: bytes | None) -> Content:
    if data is None or len(data) != row["size"] or sha256(data).digest() != row["digest"]:
        raise CorruptData(f"snapshot {row['n']} does not match its digest; it was not interpreted.")
    return Content(row["digest"], row["depth"], data)


def make(
    cache: SnapshotCache,
    find: Find,
    run_no: int,
    n: int,
    state: bytes,
    digest: bytes,
    fork_of: tuple[int, int] | None,
) -> Stored:
    """The row for a new snapshot."""
    base_n = base_of(n)
    at = fork_of if n == 0 else None if base_n is None else (run_no, base_n)
    base = None
    if at is not None:
        base = cache.get(*at)
        if base is None:
            base = read(find, *at)
            cache.put(*at, base)
        if base.depth >= MAX_DEPTH:
            at = base = None
    data = pack(state, base.data if base else None)
    if base is not None and len(data) * _HALF > len(state):
        alone = pack(state)
        if len(alone) <= len(data) * _HALF:  # nothing in common: a keyframe costs little more and ends the chain
            at, base, data = None, None, alone
    depth = 0 if base is None else base.depth + 1
    return {
        "run_no": run_no,
        "n": n,
        "base_run": at[0] if at and base else None,
        "base_n": at[1] if at and base else None,
        "depth": depth,
        "size": len(state),
        "digest": digest,
        "data": data,
    }
