"""What a worker's runs share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walkback.drivers.base import Workplace
from walkback.wishes import Commit
from walkback_store.engine import Committed
from walkback_store.machine.base import Transition
from walkback_store.store import Store


def now() -> int:
    return time.time_ns() // 1000


class SlowStore:
    """Shares its clock, `ahead` of ours, and takes a while to answer after it has dated a commit."""

    backend = SimpleNamespace(locks_rows=True)

    def __init__(self, ahead: int, repeats: bool = False) -> None:
        self.ahead = ahead
        self.repeats = repeats

    def commit(self, transitions: Sequence[Transition]) -> list[Any]:
        at = now() + self.ahead
        while now() < at - self.ahead + 5_000:
            pass
        return [Committed(b"", 1, b"", at, None, repeated=self.repeats)]


def heard_from(store: SlowStore) -> Workplace:
    place = Workplace(cast(Store, store))
    place.submit(Commit(()))
    return place


def test_a_slow_commit_does_not_put_the_clock_back() -> None:
    assert heard_from(SlowStore(ahead=0)).offset == 0


def test_a_commit_that_was_made_before_says_nothing_about_the_time() -> None:
    assert heard_from(SlowStore(ahead=-3_600_000_000, repeats=True)).offset == 0


@pytest.mark.parametrize("ahead", [-60_000_000, 60_000_000])
def test_the_clock_follows_the_store_as_far_as_a_commit_can_tell(ahead: int) -> None:
    store = SlowStore(ahead)
    place = heard_from(store)
    first = abs(place.offset - ahead)
    assert first < 1_000_000
    place.submit(Commit(()))
    assert abs(place.offset - ahead) <= first, "a second commit makes it worse"
