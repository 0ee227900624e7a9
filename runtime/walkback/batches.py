"""Batches of retries: workers release their members one after another, and make the person's decision about each.

Any worker does, whatever its agents. What it decides by is read from the store, and each change is checked there once
more, so it does not matter how many do this at once, or that one dies between a release and the decision.
"""

from __future__ import annotations

import contextlib

from walkback_store.errors import Refused
from walkback_store.log import Row
from walkback_store.machine.people import REGRET, RetryMember
from walkback_store.machine.store_wide import ReleaseMember
from walkback_store.store import Store
from walkback_store.words import OperationStatus, RunStatus

RETRY = "retry"
UNDECIDED = frozenset({OperationStatus.UNKNOWN, OperationStatus.PENDING, OperationStatus.AWAITING_APPROVAL})


def carry_on(store: Store, actor: str) -> int:
    """Do what is due in every open batch of retries. Returns how many changes that were."""
    done = 0
    for batch in _open(store):
        done += _step(store, batch, actor)
    return done


def next_due(store: Store) -> int | None:
    """When something will have to be done in a batch by itself; None when nothing will."""
    times = [at for batch in _open(store) if (at := _due(batch, _member(store, batch))) is not None]
    return min(times, default=None)


def _open(store: Store) -> list[Row]:
    return [batch for batch in store.open_batches() if batch["action"] == RETRY]


def _member(store: Store, batch: Row) -> Row | None:
    """The operation that was released last, as it is now; None when none was, or when it is gone."""
    found = store.operations_of([(batch["run_id"], batch["step"])]) if batch["released"] else []
    return found[0] if found else None


def _due(batch: Row, member: Row | None) -> int | None:
    if not batch["released"]:
        return int(batch["at"] + REGRET)
    if member is None:
        return int(batch["released_at"])
    if member["status"] == OperationStatus.UNKNOWN:  # it was not decided yet, or it is known that it failed once more
        return int(batch["released_at"]) if member["run_status"] == RunStatus.NEEDS_OPERATOR else None
    if member["status"] in UNDECIDED:
        return None
    return int(batch["released_at"] + batch["spacing"])


def _step(store: Store, batch: Row, actor: str) -> int:
    member = _member(store, batch)
    at = _due(batch, member)
    if at is None or at > store.now():
        return 0
    if member is not None and member["status"] == OperationStatus.UNKNOWN and _retry(store, batch, batch):
        return 1
    with contextlib.suppress(Refused):  # somebody else was faster, or the person was
        store.do(ReleaseMember(actor=actor, batch_no=batch["batch_no"]))
        now, members = store.batch(batch["batch_no"], limit=1, after=batch["released"])
        if now["released"] > batch["released"] and members:
            _retry(store, batch, members[0])
        return 1
    return 0


def _retry(store: Store, batch: Row, place: Row) -> bool:
    """In the name of whoever opened the batch. Refused once it was decided, whatever came of that."""
    about = {"run_id": place["run_id"], "step": place["step"], "batch": batch["batch_no"]}
    with contextlib.suppress(Refused):
        store.do(RetryMember(actor=batch["by"], **about))
        return True
    return False
