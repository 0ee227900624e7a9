"""Who wrote this value: the step at whose boundary it became what it is.

Snapshots are read back to where the value was another one. No shortcut is possible: a value may have been the same
long before, and something else in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from walkback_console.diffs import same
from walkback_console.plain_words import many
from walkback_console.trees import MISSING, Path, value_at
from walkback_store.log import Row
from walkback_store.values import decode

SNAPSHOTS = 10_000
_PAGE = 200
_STRETCH = 32
"""Snapshots read at once. Most are stored against the one before; every 32nd is not."""


class History(Protocol):
    """The part of a store that is read here."""

    def states_bytes(self, run_id: str, first: int, last: int) -> Iterator[bytes]: ...

    def timeline(
        self, run_id: str, *, after: int = 0, before: int | None = None, limit: int = ..., effect: str | None = None
    ) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Blame:
    """How a value came to be. Without a step, `message` says why none can be named."""

    path: Path
    snapshot: int
    """The first that holds the value; the last that was looked at, if the search was given up."""
    new: object
    old: object = MISSING
    step: str | None = None
    kind: str | None = None
    """What kind of step: a call, a decision, an observation."""
    name: str | None = None
    tool: str | None = None
    at: int | None = None
    """When the step ended; when it began, if it has not."""
    first_seq: int | None = None
    message: str = ""


def blame(
    store: History,
    run_id: str,
    path: Path,
    at_snapshot: int,
    *,
    limit: int = SNAPSHOTS,
    cancelled: Callable[[], bool] = lambda: False,
) -> Blame | None:
    """The step that gave a path the value it has at a snapshot, or took it away.

    None if nothing was ever there, or if `cancelled` says so, which is asked at each snapshot.
    """
    last = at_snapshot
    new: object = MISSING
    while last >= 0:
        # Forwards within a stretch, as that is how they are stored; the stretches backwards.
        first = max(last // _STRETCH * _STRETCH, at_snapshot - limit, 0)
        values: list[object] = []
        for data in store.states_bytes(run_id, first, last):
            if cancelled():
                return None
            values.append(value_at(decode(data), path))
        if last == at_snapshot:
            new = values[-1]
        for n in range(last, first - 1, -1):
            if not same(values[n - first], new):
                return _found(path, n + 1, values[n - first], new, _step(store, run_id, n + 1))
        if first and first == at_snapshot - limit:
            message = f"the same in the {many(limit, 'snapshot')} before it; nothing further back was looked at"
            return Blame(path, first, new, old=new, message=message)
        last = first - 1
    return None if new is MISSING else Blame(path, 0, new, message="there since the run was started")


def _found(path: Path, n: int, old: object, new: object, row: Row | None) -> Blame:
    if row is None:
        return Blame(path, n, new, old, message="written by the agent itself, before its first step")
    block = row["step"].rpartition(".")[0]
    return Blame(
        path,
        n,
        new,
        old,
        step=row["step"],
        kind=row["kind"],
        name=row["name"],
        tool=row["operation_tool"],
        at=row["started_at"] if row["ended_at"] is None else row["ended_at"],
        first_seq=row["first_seq"],
        message=f"the branches of step {block} write their results together" if block else "",
    )


def _step(store: History, run_id: str, n: int) -> Row | None:
    """The step between whose boundaries a snapshot lies; of a parallel block, the branch that ended it."""
    until: int | None = None
    found: Row | None = None
    while True:
        page = store.timeline(run_id, before=2**62 if until is None else until, limit=_PAGE)
        for row in reversed(page):
            before, after = row["before"], row["after"]
            if before is None or before >= n:
                continue
            if after is not None and after < n:
                return found
            found = found or row
        if len(page) < _PAGE:
            return found
        until = page[0]["first_seq"]
