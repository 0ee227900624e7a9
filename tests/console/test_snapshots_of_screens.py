"""A dozen screens as they are, over a store in which time stands still; `snapshots.py` says how to accept a change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests.console.snapshots import compare, screen_text
from tests.store import driver
from tests.support.people import open_store
from walkback_console.actions import Who
from walkback_console.app import Walkback, options_for
from walkback_console.palette import DARK, LIGHT
from walkback_store import Store
from walkback_store.machine.runs import FailRun, RecordStep
from walkback_store.machine.store_wide import Freeze
from walkback_store.values import encode
from walkback_store.words import FreezeScope

NOW = driver.BEGINNING + 90 * driver.MINUTE
PATIENCE = 20.0
Walk = Callable[[Pilot[None]], Awaitable[object]]


class Still(Walkback):
    """The console at one moment, with somebody whose name is the same on every machine."""

    def now(self) -> int:
        return NOW

    def read_age(self) -> int | None:
        return 0

    def _got_who(self, found: tuple[Who, int]) -> None:
        super()._got_who((Who("operator:ann", "admin", None), 0))


def fill(store: Store, clock: driver.Clock) -> None:
    """Each kind of row once, with words and amounts of every length."""
    driver.register(store)

    def run(run_id: str, minutes: int) -> driver.Held:
        clock.now = NOW - minutes * driver.MINUTE
        driver.start(store, run_id, state=encode({"order": run_id, "cents": 1250}))
        return driver.claim(store)

    h = run("order-done", 80)
    store.do(RecordStep(**h.by, step="1", step_kind="observe", name="stock", data={"left": 3}))
    driver.write(h, "2", tool="charge_card", description="charge Ann for order-done", stake="$12.50", stake_value=12.5)
    driver.finish(h)
    h = run("order-failed", 70)
    driver.write(
        h, "1", tool="charge_card", description="charge Bob for order-failed", after={"paid": True, "cents": 0}
    )
    store.do(FailRun(**h.by, error_class="ValueError", message="the rate per euro is 0", fingerprint="f" * 16))
    for n in range(3):
        h = run(f"order-{n}", 50)
        driver.park_unknown(
            h, "1", tool="charge_card", description=f"charge Ann for order-{n}", stake="$1,250.00", stake_value=1250.0
        )
    h = run("notify-1", 12)
    driver.park_unknown(h, "1", tool="send_mail", description="mail ann@customers.example: Your order is late")
    h = run("release-1", 5)
    args = {f"setting_{n:02}": f"value {n}" for n in range(12)}
    driver.ask(
        h, "1", park=True, tool="deploy", args=args, description="deploy checkout 4.2", stake="12 settings",
        expires_at=NOW + 35 * driver.MINUTE,
    )  # fmt: skip
    clock.now = NOW - driver.MINUTE
    store.do(Freeze(actor=driver.BOB, scope=FreezeScope.TOOL, name="refund_card", reason="the provider moves house"))
    clock.now = NOW


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = f"sqlite:///{tmp_path_factory.mktemp('still') / 'walkback.db'}"
    clock = driver.Clock()
    with open_store(found, clock=clock) as store:
        fill(store, clock)
    return found


def shown(pilot: Pilot[None]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return " ".join(" ".join("".join(segment.text for segment in strip) for strip in strips).split())


async def until(pilot: Pilot[None], *words: str) -> None:
    end = time.monotonic() + PATIENCE
    while not all(word in shown(pilot) for word in words):
        assert time.monotonic() < end, f"{words} never came: {shown(pilot)}"
        await pilot.pause(0.02)


def keys(*steps: tuple[tuple[str, ...], tuple[str, ...]]) -> Walk:
    """Each step: keys, and the words that have to come."""

    async def walk(pilot: Pilot[None]) -> None:
        for pressed, words in steps:
            await pilot.press(*pressed)
            await until(pilot, *words)

    return walk


def command(text: str, *words: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = {" ": "space", "#": "number_sign", "-": "minus"}
    return ("colon", *(names.get(c, c) for c in text), "enter"), words


INBOX = ((), ("need you", "safest next", "notify-1"))
OPERATION = command("open notify-1#1", "UNKNOWN", "you can")
SCREENS: dict[str, tuple[Walk, tuple[int, int], str]] = {
    "inbox": (keys(INBOX), (80, 24), DARK),
    "inbox-light": (keys(INBOX), (80, 24), LIGHT),
    "inbox-140x40": (keys(INBOX), (140, 40), DARK),
    "inbox-40x12": (keys(((), ("Walkback needs",))), (40, 12), DARK),
    "operation": (keys(INBOX, OPERATION), (80, 24), DARK),
    "approval": (keys(INBOX, command("open release-1#1", "AWAITING APPROVAL", "arguments")), (80, 24), DARK),
    "batch": (keys(INBOX, (("enter",), ("3 alike", "not looked at"))), (80, 24), DARK),
    "it-did-not": (keys(INBOX, OPERATION, (("f",), ("Cancel", "Why"))), (80, 24), DARK),
    "freeze": (keys(INBOX, OPERATION, (("F",), ("Cancel", "tool send_mail"))), (80, 24), DARK),
    "help": (keys(INBOX, (("question_mark",), ("Help for the screen",))), (80, 24), DARK),
    "runs": (keys(INBOX, command("runs", "runs", "order-done")), (80, 24), DARK),
    "run": (keys(INBOX, command("open order-failed", "FAILED", "charge Bob")), (140, 40), DARK),
    "workers": (keys(INBOX, command("workers", "FREEZE", "refund_card", "WORKER")), (80, 24), DARK),
}


@pytest.mark.parametrize("name", SCREENS)
def test_it_looks_as_it_did(name: str, url: str) -> None:
    walk, size, theme = SCREENS[name]
    made = options_for(url, environ={})
    options = replace(
        made,
        where="orders.db",
        theme=theme,
        ascii_only=False,
        open_store=lambda: open_store(url, create=False, clock=lambda: NOW),
    )

    async def go() -> str:
        app = Still(options)
        async with app.run_test(size=size) as pilot:
            await walk(pilot)
            last, text = "", screen_text(app)
            while text != last:  # until nothing more comes
                await pilot.pause(0.3)
                last, text = text, screen_text(app)
            app.leave()
            return text

    compare(f"screen-{name}", asyncio.run(go()))
