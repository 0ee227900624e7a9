"""A store full of trouble, made by the real runtime against a world that breaks, on either database.

Everything that a worker must be able to carry on afterwards was begun by one. Only three things are put in directly: a
run of a version that nobody has, late word of a second effect, and a breaker. Time is shifted, so that the trouble has
ages; it ends now.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import walkback as wb
from tests.console.incident_app import CHARGE_TIMEOUT, fate, make_app
from tests.console.terminal import command, environment
from tests.console.world import FOLDER, World, move_to
from walkback_console.whoami import operator_of
from walkback_store import Store, open_store
from walkback_store.machine.operations import AppendLateEvidence
from walkback_store.machine.people import RequestCancel, RequestPause
from walkback_store.machine.runs import StartRun
from walkback_store.machine.store_wide import ServiceFailed
from walkback_store.values import encode

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60 * 1_000_000
PATIENCE = 30.0
OUTAGE = 40
DECOYS = 44


class Names(NamedTuple):
    """Who and what the runs are about."""

    customer: str
    other: str
    company: str
    parcel: str
    region: str


WIDE = Names("山田 太郎", "Ōsaka 商店", "三菱重工業", "is lost 📦 荷物が届かない", "アジア太平洋 🌏")
NARROW = Names("Ann Example", "Café Müller", "Acme Heavy Industries", "is lost", "asia-pacific")


@dataclass(slots=True)
class Incident:
    """What was made, by name. An operation is a run and a step."""

    url: str
    world: World
    names: Names
    mail: tuple[str, str] = ("", "")
    """Unknown, and cannot be undone."""
    outage: list[tuple[str, str]] = field(default_factory=list)
    """Forty unknown charges."""
    tickets: list[tuple[str, str]] = field(default_factory=list)
    """Two unknown tickets: they can be undone."""
    approvals: dict[str, tuple[str, str]] = field(default_factory=dict)
    """`long`: its arguments do not fit on one screen; `short`; `big`: three of them are one row; `soon`: if urgent."""
    diverged: str = ""
    drifted: str = ""
    review: str = ""
    stuck: str = ""
    duplicate: tuple[str, str] = ("", "")
    compensation_failed: str | None = None
    failed: list[str] = field(default_factory=list)
    """With one fingerprint; a wrong `rates.per_euro` is in their state from step 2 on."""
    last_good: str = ""
    """The last succeeded run of the same agent."""
    paused: str = ""
    waiting: str = ""
    """For the signal `documents`."""
    cancelled: str = ""
    decoys: list[str] = field(default_factory=list)

    def fates(self, fate_: str) -> list[tuple[str, str]]:
        """Of the outage: those that turn out to have `happened`, to be `absent`, or of which one `cannot tell`."""
        return [member for member in self.outage if fate(member[0]) == fate_]

    @property
    def kinds(self) -> dict[str, int]:
        """What the inbox counts."""
        found = {
            "unknown": 1 + len(self.outage) + len(self.tickets),
            "approval": 5 + ("soon" in self.approvals),
            "diverged": 1,
            "drift": 1,
            "review": 1,
            "stuck": 1,
            "duplicate_suspected": 1,
        }
        return found | ({"compensation_failed": 1} if self.compensation_failed else {})


def fill(url: str, folder: Path, *, urgent: bool = False, wide: bool = True) -> Incident:
    """`urgent` adds what comes before everything else: an approval that runs out within minutes, and a failed
    compensation. Without it, the mail that nobody can call back is first.

    `wide`: with names in CJK and emoji, for which a font for pictures has no glyphs. In the end everything in the world
    works again.
    """
    incident = Incident(url, move_to(folder), names=WIDE if wide else NARROW)
    with _quiet():
        with phase(url, 300) as (store, app):
            _decoys(incident, app, range(DECOYS // 2))
        with phase(url, 180) as (store, app):
            _decoys(incident, app, range(DECOYS // 2, DECOYS))
            _put_in(incident, store, app)
        with phase(url, 50) as (_, app):
            incident.world.switch(payments_time_out=True, search_down=True)
            _outage(incident, app)
        incident.world.switch(payments_time_out=False, search_down=False)
        settled = time.monotonic() + CHARGE_TIMEOUT
        with phase(url, 12) as (store, app):
            incident.world.switch(mail_hangs=True, tickets_time_out=True)
            _morning(incident, app)
            app.run_until_idle(concurrency=20, wait=0)
            incident.world.switch(mail_hangs=False, tickets_time_out=False, new_price_list=True)
            app.signal(incident.diverged, "confirmed")
            incident.review = app.start("apologise", run_id="apologise-9", order="order-9")
            me = operator_of(store)
            store.do(RequestPause(actor=me, run_id=incident.paused, reason="the customer called"))
            store.do(RequestCancel(actor=me, run_id=incident.cancelled, reason="asked for twice"))
        with phase(url, 0) as (_, app):
            _approvals(incident, app, urgent)
    # On SQLite a worker's deadlines are by its own clock, whatever ours is. From here on, absent is absent for good.
    time.sleep(max(0.0, settled - time.monotonic()))
    return incident


@contextlib.contextmanager
def phase(url: str, minutes_ago: int) -> Iterator[tuple[Store, wb.App]]:
    """Some time ago. What was started by the end of it is carried on as far as it goes."""
    shift = minutes_ago * MINUTE
    clock = (lambda: time.time_ns() // 1000 - shift) if shift else None
    with open_store(url, clock=clock) as store:
        app = make_app(store)
        yield store, app
        app.run_until_idle(concurrency=20, wait=0)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the runtime warns of is the point here, and no news."""
    log = logging.getLogger("walkback")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _decoys(incident: Incident, app: wb.App, numbers: range) -> None:
    for n in numbers:
        incident.decoys.append(
            app.start(
                "bill_order",
                run_id=f"order-{7000 + n}",
                tags=["production"],
                order=f"order-{7000 + n}",
                cents=980 + n,
                customer=incident.names.customer,
            )
        )


def _put_in(incident: Incident, store: Store, app: wb.App) -> None:
    incident.stuck = "bill-order-of-the-next-release"
    store.do(
        StartRun(
            actor="service:app", run_id=incident.stuck, agent="bill_order", version="7", state=encode({}),
            input={"order": "order-1", "cents": 100, "customer": incident.names.other},
        )
    )  # fmt: skip
    incident.duplicate = run_id, step = incident.decoys[0], "3"
    data = {"attempt": 1, "answer": "acknowledged", "worker": "warehouse-3", "output": {"id": "charge-0"}}
    store.do(
        AppendLateEvidence(actor="worker:warehouse-3", run_id=run_id, step=step, data=data, duplicate_suspected=True)
    )
    store.do(
        ServiceFailed(actor="system", service="geocoder", reason="503 five times", threshold=1, cooldown=600 * MINUTE)
    )
    incident.failed.append(app.start("reconcile", run_id="reconcile-0", order="order-0", currency="CHF"))


def _outage(incident: Incident, app: wb.App) -> None:
    for n in range(OUTAGE):
        order = f"order-{1000 + n}"
        run_id = app.start(
            "bill_order",
            run_id=order,
            tags=["production", "checkout"],
            order=order,
            cents=125_000 + n,
            customer=f"{incident.names.customer} {n}",
        )
        incident.outage.append((run_id, "3"))


def _morning(incident: Incident, app: wb.App) -> None:
    incident.mail = (app.start("notify_customer", run_id="notify-4711", order="order-4711"), "3")
    for n in range(2):
        run_id = app.start("open_case", run_id=f"case-{n}", subject=f"parcel {n} {incident.names.parcel}")
        incident.tickets.append((run_id, "1"))
    incident.diverged = app.start("reprice", run_id="reprice-T-100", sku="T-100")
    incident.drifted = app.start("convert", run_id="convert-USD", currency="USD")
    incident.waiting = app.start("onboard", run_id="onboard-acme", customer="ACME GmbH & Co. KG")
    incident.paused = app.start("onboard", run_id="onboard-paused", customer=incident.names.other)
    incident.cancelled = app.start("onboard", run_id="onboard-twice", customer="twice")
    for n in (1, 2):
        incident.failed.append(app.start("reconcile", run_id=f"reconcile-{n}", order=f"order-{n}", currency="CHF"))
    incident.last_good = app.start("reconcile", run_id="reconcile-good", order="order-3", currency="EUR")


def _approvals(incident: Incident, app: wb.App, urgent: bool) -> None:
    asked = incident.approvals
    asked["long"] = (
        app.start("release", run_id="release-checkout", service="checkout", version="4.2", settings=48),
        "2",
    )
    asked["short"] = (app.start("tell_everyone", run_id="tell-status", channel="#status"), "1")
    for n in range(3):
        order = f"order-{9000 + n}"
        cents = 12_345_678_901_234 if n else 250_000
        asked["big"] = (
            app.start("bill_order", run_id=order, order=order, cents=cents, customer=incident.names.company),
            "3",
        )
    if urgent:
        asked["soon"] = (app.start("quarterly-rotation-of-the-signing-keys-of-all-integrations", run_id="rotation-apac",
                                   region=incident.names.region), "1")  # fmt: skip
        incident.compensation_failed = app.start(
            "open_case", run_id="case-locked", subject="locked: invoice 77 is wrong", fails=True
        )


# --- afterwards ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def worker(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A live `walkback work`, ready to take runs; killed by its pid in the end."""
    process = subprocess.Popen(
        command("work", "tests.console.incident_app:app", "--store", url, "--lease", "2"),
        cwd=ROOT,
        env=environment(**{FOLDER: str(folder)}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline().decode()  # it says when it works
        assert " works on " in first, first + process.stderr.read().decode()
        with open_store(url, create=False) as store:
            wait_until(lambda: any(row["status"] == "alive" and row["pid"] == process.pid for row in store.workers()))
        yield process
    finally:
        process.kill()
        process.communicate()


def effects(folder: Path, what: str | None = None) -> list[dict[str, Any]]:
    """What really happened: of one kind (`mail`, `charge`, `refund`, `ticket`, `close`, `deploy`), or everything."""
    return World(folder).effects(what)


def wait_until(true: Any, timeout: float = PATIENCE) -> None:
    until = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)
