"""An app with real tools against a world of its own, for console tests and screenshots.

`walkback work tests.console.incident_app:app`, with WALKBACK_INCIDENT_WORLD in the environment.

What goes wrong is switched on in the world, and told by the tools as real ones tell it: an exception that proves
nothing, an answer that does not fit, a search that is down.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

import walkback as wb
from tests.console.world import world
from walkback_store import Store

CHARGE_TIMEOUT = 1.5
ONCE = wb.Retry(attempts=1)
EXPIRES_SOON, EXPIRES = timedelta(minutes=9), timedelta(minutes=40)


class TicketLocked(Exception):
    """The other side says no, for good."""


class Rate(BaseModel):
    currency: str
    per_euro: float


def fate(order: str) -> str:
    """What an outage makes of the charge of an order: of forty in a row 28 are booked, 9 are not, 3 nobody can tell."""
    place = int(order.rpartition("-")[2]) % 40
    return "happened" if place < 28 else "absent" if place < 37 else "cannot tell"


# --- tools --------------------------------------------------------------------------------------------------------


@wb.tool(effect="read")
def read_order(order: str) -> dict[str, Any]:
    """The order as the shop has it."""
    return {"order": order, "email": f"{order}@customers.example", "lines": [{"sku": "T-100", "quantity": 2}]}


@wb.tool(effect="write", retry=ONCE, describe=lambda a: f"mail {a['to']}: {a['subject']}")
def send_mail(to: str, subject: str, body: str) -> str:
    """Send a mail. Nobody can call it back."""
    effect = world().do("mail", None, to=to, subject=subject)
    if world().is_on("mail_hangs"):
        raise TimeoutError("smtp.customers.example: no answer to DATA within 10 s")
    return str(effect["id"])


def charge_exists(op: wb.Op) -> wb.Evidence:
    """A payment with this key at the payment provider."""
    if world().is_on("search_down"):
        return wb.cannot_tell("the payment search answers 503")
    found = world().find(op.key)
    if found is None and fate(str(op.args["order"])) == "cannot tell":
        return wb.cannot_tell("two payments of this amount, neither with a key")
    return wb.happened(found) if found else wb.absent()


@wb.tool(
    effect="write",
    verify=charge_exists,
    settle=timedelta(0),
    idempotent=timedelta(hours=24),
    compensate="refund_card",
    approval=lambda a: a["cents"] > 200_000,
    describe=lambda a: f"charge {a['customer']} for {a['order']}",
    stake=lambda a: f"${a['cents'] / 100:,.2f}",
    retry=ONCE,
    timeout=CHARGE_TIMEOUT,
)
def charge_card(order: str, cents: int, customer: str, *, op: wb.Op) -> dict[str, Any]:
    """Charge the card on file."""
    if world().is_on("payments_time_out"):
        if fate(order) == "happened":
            world().do("charge", op.key, order=order, cents=cents)
        raise TimeoutError("payments.example: read timed out")
    return world().do("charge", op.key, order=order, cents=cents)


@wb.tool(effect="write", idempotent=True, describe=lambda a: f"refund {a['order']}")
def refund_card(order: str, result: dict[str, Any], *, op: wb.Op) -> str:
    return str(world().do("refund", op.key, order=order)["id"])


def ticket_exists(op: wb.Op) -> wb.Evidence:
    """A ticket with this key in its text."""
    if world().is_on("search_down"):
        return wb.cannot_tell("the ticket search answers 503")
    found = world().find(op.key)
    return wb.happened(found) if found else wb.absent()


@wb.tool(
    effect="write",
    verify=ticket_exists,
    compensate="close_ticket",
    describe=lambda a: f"ticket: {a['subject']}",
    retry=ONCE,
)
def create_ticket(subject: str, *, op: wb.Op) -> dict[str, Any]:
    """Open a ticket for the support team."""
    if world().is_on("tickets_time_out"):
        raise ConnectionResetError("tickets.example: connection reset by peer")
    return world().do("ticket", op.key, subject=subject)


@wb.tool(effect="write", definite=(TicketLocked,), describe=lambda a: f"close ticket: {a['subject']}", retry=ONCE)
def close_ticket(subject: str, result: dict[str, Any], *, op: wb.Op) -> str:
    if subject.startswith("locked"):
        raise TicketLocked(f"{result['id']} is locked by an auditor")
    return str(world().do("close", op.key, subject=subject)["id"])


@wb.tool(
    effect="write",
    approval=True,
    approval_expires=EXPIRES,
    describe=lambda a: f"deploy {a['service']} {a['version']} to production",
    stake=lambda a: f"{len(a['manifest'])} settings",
    retry=ONCE,
)
def deploy(service: str, version: str, manifest: dict[str, Any], *, op: wb.Op) -> str:
    """Everything that goes to production is looked at by a person."""
    return str(world().do("deploy", op.key, service=service, version=version)["id"])


@wb.tool(
    effect="write",
    name="rotate_the_signing_keys_of_every_warehouse_and_carrier_integration",
    approval=True,
    approval_expires=EXPIRES_SOON,
    describe=lambda a: f"new signing keys in {a['region']}: every carrier signs anew",
    stake=lambda a: "$123,456,789,012.34",
    retry=ONCE,
)
def rotate_keys(region: str, carriers: list[str], *, op: wb.Op) -> str:
    """Keys are rotated with a person looking on."""
    return str(world().do("rotate", op.key, region=region)["id"])


@wb.tool(effect="write", approval=True, describe=lambda a: f"announce to {a['channel']}", retry=ONCE)
def announce(channel: str, text: str, *, op: wb.Op) -> str:
    """A person reads what everybody will read."""
    return str(world().do("announcement", op.key, channel=channel)["id"])


@wb.tool(effect="read")
def read_rate(currency: str) -> Rate:
    return {"currency": currency, "perEuro": "1.09"}  # type: ignore[return-value]  # the provider renamed a field


# --- agents -------------------------------------------------------------------------------------------------------


@wb.agent
def notify_customer(run: wb.Run, order: str) -> str:
    run.plan(["read the order", "choose the words", "send the mail", "put it down"])
    run.state["order"] = run.call(read_order, order=order)
    words = run.decide("the words", "we are sorry", rationale="the parcel is four days late")
    sent = run.call(send_mail, to=run.state["order"]["email"], subject="Your order is late", body=words, into="mail")
    run.observe("told", {"order": order, "mail": sent})
    return str(sent)


@wb.agent
def bill_order(run: wb.Run, order: str, cents: int, customer: str = "Ann Example") -> str:
    run.plan(["read the order", "decide", "charge", "put it down"])
    run.state["order"] = run.call(read_order, order=order)
    run.decide("how to pay", "card on file", rationale="the customer chose it at checkout, 14 days ago")
    with run.transaction("billing"):
        paid = run.call(charge_card, order=order, cents=cents, customer=customer, into="payment")
    run.observe("paid", paid)
    return str(paid["id"])


@wb.agent
def open_case(run: wb.Run, subject: str, fails: bool = False) -> str:
    run.plan(["open a ticket", "assign it"])
    with run.transaction("case"):
        ticket = run.call(create_ticket, subject=subject, into="ticket")
        if fails:
            raise LookupError(f"nobody is on call for {subject!r}")
    return str(ticket["id"])


@wb.agent
def apologise(run: wb.Run, order: str) -> None:
    with run.transaction("apology"):
        run.call(send_mail, to=f"{order}@customers.example", subject="Sorry", body="...")
        raise LookupError("the voucher could not be found")


@wb.agent
def release(run: wb.Run, service: str, version: str, settings: int = 4) -> str:
    run.plan(["collect the settings", "deploy"])
    manifest = {f"setting_{n:02}": f"value {n} of {service}, as reviewed for {version}" for n in range(settings)}
    run.observe("manifest", {"settings": settings}, source="git", trust="untrusted")
    return str(run.call(deploy, service=service, version=version, manifest=manifest))


@wb.agent
def tell_everyone(run: wb.Run, channel: str) -> str:
    return str(run.call(announce, channel=channel, text="Payments are slow this morning."))


@wb.agent(name="quarterly-rotation-of-the-signing-keys-of-all-integrations")
def rotation(run: wb.Run, region: str, carriers: int = 1) -> str:
    names = [f"carrier {n} of the {region} region" for n in range(carriers)]
    return str(run.call(rotate_keys, region=region, carriers=names))


@wb.agent
def reprice(run: wb.Run, sku: str) -> str:
    """Its code has changed since: there is a step that was not there before."""
    if world().is_on("new_price_list"):
        run.observe("price list", "2025-11")
    run.call(read_order, order=sku)
    run.wait_for("confirmed")
    return sku


@wb.agent
def convert(run: wb.Run, currency: str) -> float:
    run.call(read_order, order=f"in-{currency}")
    return float(run.call(read_rate, currency=currency, into="rate").per_euro)


@wb.agent
def reconcile(run: wb.Run, order: str, currency: str) -> float:
    """With a currency that is not in the table, a wrong rate is in the state from step 2 on; step 6 trips over it."""
    run.plan(["read", "choose the rate", "list the payments", "match them", "report", "divide"])
    run.state["order"] = run.call(read_order, order=order)
    rate = run.decide("rate", {"EUR": 1.0, "USD": 1.09}.get(currency, 0.0), rationale=f"the table's rate of {currency}")
    run.state["rates"] = {"currency": currency, "per_euro": rate}
    run.state["payments"] = run.observe("payments", [{"cents": 125_000}, {"cents": 980}], source="bank")
    run.state["matched"] = run.observe("matched", 2)
    run.state["report"] = run.observe("report", f"report of {order}")
    total = sum(p["cents"] for p in run.state["payments"])
    if not run.state["rates"]["per_euro"]:
        raise ValueError("the rate per euro is 0")
    return float(run.decide("total", total / run.state["rates"]["per_euro"]))


@wb.agent
def onboard(run: wb.Run, customer: str) -> str:
    run.plan(["ask for documents", "wait for them", "open the account"])
    run.observe("asked", customer)
    documents = run.wait_for("documents")
    return f"{customer}: {documents}"


AGENTS = (
    notify_customer, bill_order, open_case, apologise, release, tell_everyone, rotation, reprice, convert, reconcile,
    onboard,
)  # fmt: skip


def make_app(store: Store | None = None) -> wb.App:
    return wb.App(store, agents=AGENTS)


app = make_app()
