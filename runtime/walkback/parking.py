"""How a run comes to rest: what the protocol ended with is put in the log, and the code above unwinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from walkback.errors import Parked
from walkback.terms import Hold, Person, Rest, Settled, Stop, Waiting, commit
from walkback.wishes import Protocol
from walkback_store.errors import PreconditionFailed
from walkback_store.machine.gates import FREEZE, IDENTITY
from walkback_store.machine.runs import NeedOperator, ParkRun, StopAtBoundary
from walkback_store.words import Why


def rest(hold: Hold, rests: Sequence[Rest], state: bytes | None) -> Protocol[list[Settled]]:
    """All of them settled, or the run rests: a person first, then a stop, then the earliest time to go on."""
    settled = [r for r in rests if isinstance(r, Settled)]
    if len(settled) == len(rests):
        return settled
    for found in rests:
        if isinstance(found, Person):
            yield from ask(hold, found, state)
    if any(isinstance(r, Stop) for r in rests):
        yield from stop(hold, state)
    waits = [r for r in rests if isinstance(r, Waiting)]
    times = [w.wake_at for w in waits if w.wake_at is not None]
    # What others have to wake it for is named; a time or an approval wakes it whatever it says.
    first = min(waits, key=lambda w: (not w.waits_for.startswith((FREEZE, IDENTITY)), w.wake_at or 1 << 62))
    park = ParkRun(**hold.by, waits_for=first.waits_for, wake_at=min(times, default=None), state=state)
    yield from commit(hold, park)
    raise Parked(f"run {hold.run_id!r} waits for {first.waits_for}")


def ask(hold: Hold, person: Person, state: bytes | None) -> Protocol[NoReturn]:
    need = NeedOperator(
        **hold.by, why=person.why, detail=person.detail, step=person.step, data=person.data, state=state
    )
    yield from commit(hold, need)
    raise Parked(f"run {hold.run_id!r} needs an operator: {person.why}: {person.detail}")


def stop(hold: Hold, state: bytes | None) -> Protocol[NoReturn]:
    """A requested pause or cancel takes effect here, between two operations."""
    try:
        yield from commit(hold, StopAtBoundary(**hold.by, state=state))
    except PreconditionFailed as refused:  # something of it may have happened, and only a person can settle that
        yield from ask(hold, Person(Why.REVIEW, str(refused)), state)
    raise Parked(f"run {hold.run_id!r} was asked to stop")
