"""The agents of the story and their tools. `walkback work examples.story_agents:app` carries them.

The ledger remembers no keys, so what is known about an invoice without an answer is what its search says. `LEDGER_URL`
is where it is.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import walkback as wb
from examples import ledger

LEDGER = os.environ.get("LEDGER_URL", "http://127.0.0.1:9")
NEEDS_APPROVAL_ABOVE = 50_000
"""Cents."""


def say(text: str) -> None:
    print(text, flush=True)


# --- tools -------------------------------------------------------------------------------------------------------


def invoice_exists(op: wb.Op) -> wb.Evidence:
    """An invoice for this order in the ledger."""
    try:
        found = ledger.search(LEDGER, str(op.args["order"]))
    except OSError as error:
        say(f"{op.run_id}: {error}")
        return wb.cannot_tell(error)
    say(f"{op.run_id}: the ledger's search finds {found[0]['invoice'] if found else 'nothing'}")
    return wb.happened({"invoice": found[0]["invoice"]}) if found else wb.absent()


def is_large(args: dict[str, Any]) -> bool:
    """invoices above $500"""
    return bool(args["cents"] > NEEDS_APPROVAL_ABOVE)


@wb.tool(
    effect="write",
    verify=invoice_exists,
    settle=timedelta(seconds=1),
    timeout=2,
    definite=(ledger.Refused,),
    compensate="void_invoice",
    approval=is_large,
    describe=lambda args: f"invoice order {args['order']}",
    stake=lambda args: f"${args['cents'] / 100:,.2f}",
)
def create_invoice(order: str, cents: int, *, op: wb.Op) -> dict[str, Any]:
    say(f"{op.run_id}: the intent is on disk; now calling the ledger")
    return ledger.post(LEDGER, "invoices", {"order": order, "cents": cents})


@wb.tool(effect="write", idempotent=True, describe=lambda args: f"void {args['result']['invoice']}")
def void_invoice(result: dict[str, Any], *, op: wb.Op) -> dict[str, Any]:
    say(f"{op.run_id}: voiding {result['invoice']}")
    return ledger.post(LEDGER, "voids", {"invoice": result["invoice"]})


@wb.tool(effect="write", definite=(ledger.Refused,), describe=lambda args: f"receipt to {args['to']}")
def send_receipt(invoice: str, to: str) -> dict[str, Any]:
    return ledger.post(LEDGER, "receipts", {"invoice": invoice, "to": to})


@wb.tool(effect="write", describe=lambda args: "thank the customer")
def send_mail(to: str, order: str, *, op: wb.Op) -> None:
    say(f"{op.run_id}: a mail to {to} about order {order}")


# --- agents ------------------------------------------------------------------------------------------------------


@wb.agent
def close_order(run: wb.Run, order: str, cents: int, to: str = "customer@example.com") -> str:
    run.plan(["read the order", "decide", "invoice", "receipt"])
    run.observe("the order", {"order": order, "cents": cents}, source="the shop")
    run.decide("how to close it", "invoice now", rationale="the goods left the house 31 days ago")
    with run.transaction("billing"):
        made = run.call(create_invoice, order=order, cents=cents, into="invoice")
        run.call(send_receipt, invoice=made["invoice"], to=to)
    say(f"{run.id}: finished")
    return "closed"


@wb.agent
def thank_customer(run: wb.Run, order: str) -> None:
    run.call(send_mail, to="customer@example.com", order=order)


app = wb.App(agents=[close_order, thank_customer])
