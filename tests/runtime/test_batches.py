"""A batch of retries in workers' hands: the first alone, the others one by one, and none after one that went wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import walkback as wb
from tests.runtime.shop import ANN, Shop, work
from tests.support.people import open_store
from walkback import batches
from walkback_store.fsck import fsck
from walkback_store.machine.people import REGRET, RecordHappened, TakeBack
from walkback_store.machine.store_wide import OpenBatch, ReleaseMember, StopBatch
from walkback_store.store import Store

NAMES = ("r1", "r2", "r3")
RESET = "reset"


class Ahead:
    """The time as it is, and more of it whenever a test says so."""

    def __init__(self) -> None:
        self.by = 0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + self.by


@dataclass
class Desk:
    """Three runs whose calls got no answer, and a person who has them tried again."""

    app: wb.App
    shop: Shop
    clock: Ahead

    @property
    def store(self) -> Store:
        return self.app.store

    def open(self, spacing: int = 0) -> int:
        members = [(name, "1") for name in NAMES]
        opened = OpenBatch(actor=ANN, action="retry", members=members, spacing=spacing, reason="the bank is back")
        return self.store.do(opened).seq

    def later(self, microseconds: int = REGRET) -> None:
        self.clock.by += microseconds
        work(self.app)

    def statuses(self) -> list[str]:
        return [self.app.status(name) for name in NAMES]

    def batch(self, number: int) -> tuple[str, int, str | None]:
        row, _ = self.store.batch(number)
        return row["status"], row["released"], row["ended_why"]


@pytest.fixture
def desk(store_url: str, shop: Shop) -> Iterator[Desk]:
    @wb.tool(effect="write", retry=wb.Retry(attempts=1))
    def act(n: str) -> str:
        shop.do("act", n)
        return "ok"

    @wb.agent
    def payer(run: wb.Run, n: str) -> str:
        return str(run.call(act, n=n))

    clock = Ahead()
    shop.trouble = [ConnectionError(RESET) for _ in NAMES]
    with open_store(store_url, clock=clock) as store, wb.App(store, agents=[payer]) as app:
        for name in NAMES:
            app.start(payer, run_id=name, n=name)
        work(app)
        made = Desk(app, shop, clock)
        assert made.statuses() == ["needs_operator"] * 3
        yield made
        assert fsck(store, deep=True).problems == []


def test_a_batch_is_retried_in_order_and_done(desk: Desk) -> None:
    number = desk.open()
    work(desk.app)
    assert desk.batch(number) == ("open", 0, None)
    desk.later()
    assert desk.batch(number) == ("done", 3, None)
    assert desk.shop.done == [("act", name) for name in NAMES]
    assert desk.statuses() == ["succeeded"] * 3
    for name in NAMES:
        (decision,) = desk.store.operation(name, "1").decisions
        assert (decision["by"], decision["batch"], decision["status"]) == (ANN, number, "carried_out")


def test_what_is_stopped_within_the_first_ten_seconds_releases_nothing(desk: Desk) -> None:
    number = desk.open()
    desk.later(REGRET - 3_000_000)  # and the two seconds for which the worker waits
    desk.store.do(StopBatch(actor=ANN, batch_no=number, reason="not yet"))
    desk.later()
    assert desk.batch(number) == ("stopped", 0, "not yet")
    assert desk.shop.done == []
    assert desk.statuses() == ["needs_operator"] * 3


@pytest.mark.parametrize("spoilt", [0, 1])
def test_a_batch_stops_at_the_first_that_does_not_succeed_and_the_rest_stay_in_the_inbox(
    desk: Desk, spoilt: int
) -> None:
    number = desk.open(spacing=60_000_000)
    for n in range(spoilt):
        desk.later(60_000_000)
        assert desk.batch(number) == ("open", n + 1, None)
    desk.shop.trouble = [ConnectionError(RESET)]
    desk.later(60_000_000)
    assert desk.batch(number) == ("stopped", spoilt + 1, f"member {spoilt + 1} is unknown")
    desk.later(600_000_000)
    assert desk.shop.count("act") == spoilt
    assert desk.statuses() == ["succeeded"] * spoilt + ["needs_operator"] * (3 - spoilt)
    (row,) = desk.store.inbox(desk.store.now())
    assert row["n"] == 3 - spoilt


def test_members_are_spaced(desk: Desk) -> None:
    number = desk.open(spacing=60_000_000)
    desk.later()
    assert desk.batch(number) == ("open", 1, None)
    desk.later(30_000_000)
    assert desk.batch(number) == ("open", 1, None)
    desk.later(30_000_000)
    assert desk.batch(number) == ("open", 2, None)
    assert desk.shop.done == [("act", "r1"), ("act", "r2")]


def test_a_release_whose_worker_died_is_decided_by_the_next_one_and_once(desk: Desk) -> None:
    number = desk.open(spacing=60_000_000)
    desk.clock.by += REGRET
    desk.store.do(ReleaseMember(actor="worker:dead", batch_no=number))
    assert batches.carry_on(desk.store, "worker:one") == 1
    assert batches.carry_on(desk.store, "worker:other") == 0
    work(desk.app)
    assert desk.shop.done == [("act", "r1")]
    assert len(desk.store.operation("r1", "1").decisions) == 1


def test_a_member_that_a_person_settles_is_not_called_and_the_next_one_goes_on(desk: Desk) -> None:
    number = desk.open(spacing=60_000_000)
    desk.store.do(RecordHappened(actor=ANN, run_id="r1", step="1", reason="seen", evidence="the book", result="ok"))
    desk.later()
    assert desk.batch(number) == ("open", 1, None)
    desk.later(60_000_000)
    assert desk.batch(number) == ("open", 2, None)
    assert desk.shop.done == [("act", "r2")]


def test_a_retry_that_a_person_takes_back_stops_the_batch(desk: Desk) -> None:
    number = desk.open()
    desk.clock.by += REGRET
    assert batches.carry_on(desk.store, "worker:one") == 1
    (decision,) = desk.store.operation("r1", "1").decisions
    desk.store.do(TakeBack(actor=ANN, run_id="r1", decision=decision["seq"], reason="wait"))
    work(desk.app)
    assert desk.batch(number) == ("stopped", 1, "the decision about member 1 was taken back")
    assert desk.shop.done == []


def test_a_batch_of_something_else_is_left_alone(desk: Desk) -> None:
    members = [(name, "1") for name in NAMES]
    number = desk.store.do(OpenBatch(actor=ANN, action="it_happened", members=members, reason="seen")).seq
    desk.later(REGRET * 2)
    assert desk.batch(number) == ("open", 0, None)
