"""A worker of the story: a process that claims runs, carries them on, and can be killed at any moment.

There is no runtime package yet, so this is the write-ahead protocol by hand, with the store's transitions. It works
until no run can be claimed. `python -m examples.story_worker NAME STORE LEDGER` prints a line for everything it does.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from examples import ledger
from walkback_store import Store, open_store
from walkback_store.errors import Frozen
from walkback_store.leases import boot_id, process_started
from walkback_store.machine.operations import (
    AskApproval,
    Call,
    EndAttempt,
    Intend,
    RecordRecovery,
    RecordVerification,
    Settle,
)
from walkback_store.machine.runs import DeclarePlan, FinishRun, NeedOperator, ParkRun, RecordStep
from walkback_store.machine.store_wide import RegisterWorker, StopWorker
from walkback_store.values import decode, encode
from walkback_store.words import Answer, Evidence, OperationStatus, Why

AGENTS = {"close_order": ["1"], "thank_customer": ["1"]}
LEASE = 60_000_000
PATIENCE = 30.0
NEEDS_APPROVAL_ABOVE = 50_000
"""Cents."""


def say(text: str) -> None:
    print(text, flush=True)


@dataclass
class Holding:
    """A run in this worker's hands. The fence goes with every write."""

    store: Store
    worker: str
    run: dict[str, Any]
    ledger: str

    @property
    def by(self) -> dict[str, Any]:
        return {"actor": f"worker:{self.worker}", "run_id": self.run["run_id"], "fence": self.run["fence"]}

    @property
    def id(self) -> str:
        return str(self.run["run_id"])

    def steps(self) -> dict[str, dict[str, Any]]:
        return {row["step"]: row for row in self.store.timeline(self.id)}

    def order(self) -> dict[str, Any]:
        """What the run was started with: the first event says it."""
        (first,) = self.store.events(self.id, limit=1)
        order: dict[str, Any] = dict(first.data["input"])
        return order

    def state(self) -> dict[str, Any]:
        n = self.store.run(self.id)["last_snapshot"]
        found = decode(self.store.state_bytes(self.id, n))
        assert isinstance(found, dict)
        return found


def call_of(step: str, run_id: str, tool: str, args: dict[str, Any], **contract: Any) -> Call:
    digest = hashlib.sha256(encode(args)).hexdigest()
    return Call(tool=tool, args=args, args_hash=digest, key=f"{run_id}:{step}:{tool}:{digest[:8]}", **contract)


def money(cents: int) -> str:
    return f"${cents / 100:,.2f}"


# --- the two agents ----------------------------------------------------------------------------------------------


def close_order(h: Holding) -> None:
    """Read the order, decide, invoice it. What is recorded already is not done again."""
    done = h.steps()
    order = h.order()
    if "1" not in done:
        h.store.do(DeclarePlan(**h.by, steps=["read the order", "decide", "invoice"]))
        h.store.do(RecordStep(**h.by, step="1", step_kind="observe", name="read the order", data={"order": order}))
    if "2" not in done:
        decision = {"choice": "invoice now", "rationale": "the goods left the house 31 days ago"}
        state = h.state() | {"order": order}
        h.store.do(
            RecordStep(**h.by, step="2", step_kind="decide", name="how to close", data=decision, state=encode(state))
        )
    cents = order["cents"]
    call = call_of(
        "3",
        h.id,
        "create_invoice",
        {"order": order["order"], "cents": cents},
        service="ledger",
        description=f"invoice order {order['order']}",
        stake=money(cents),
        stake_value=cents / 100,
        can_verify=True,
        compensate="void_invoice",
    )
    if "3" in done and done["3"]["operation_status"] == "succeeded":
        finish(h)
    elif "3" in done and done["3"]["operation_status"] == "pending":
        recover(h, "3")
    elif cents > NEEDS_APPROVAL_ABOVE:
        shown = hashlib.sha256(encode([call.tool, call.args, h.id])).hexdigest()
        h.store.do(AskApproval(**h.by, step="3", call=call, digest=shown, rule="invoices above $500"))
        h.store.do(ParkRun(**h.by, waits_for="approval:3"))
        say(f"{h.id}: {money(cents)} is above $500; asked for approval, and parked the run")
    else:
        invoice(h, "3", call)


def invoice(h: Holding, step: str, call: Call) -> None:
    h.store.do(Intend(**h.by, step=step, call=call, worker=h.worker, state=encode(h.state())))
    say(f"{h.id}: the intent is on disk; now calling the ledger")
    assert isinstance(call.args, dict)
    answer = ledger.post(h.ledger, call.args, PATIENCE)  # the worker of this story dies in here
    state = h.state() | {"invoice": answer["invoice"]}
    h.store.do(
        Settle(
            **h.by,
            step=step,
            outcome=OperationStatus.SUCCEEDED,
            answer=Answer.ACKNOWLEDGED,
            output=answer,
            evidence=Evidence.HAPPENED,
            result=answer,
            state=encode(state),
        )
    )
    finish(h)


def finish(h: Holding) -> None:
    h.store.do(FinishRun(**h.by, output="closed"))
    say(f"{h.id}: finished")


def thank_customer(h: Holding) -> None:
    args = {"to": "customer@example.com", "order": h.order()["order"]}
    call = call_of("1", h.id, "send_mail", args, service="mail", description="thank the customer")
    try:
        h.store.do(Intend(**h.by, step="1", call=call, worker=h.worker))
    except Frozen as frozen:
        h.store.do(ParkRun(**h.by, waits_for="freeze:send_mail"))
        say(f"{h.id}: {frozen}")


# --- recovery ----------------------------------------------------------------------------------------------------


def recover(h: Holding, step: str) -> None:
    """An operation is in flight, and its worker is dead. Four questions are asked of the record, none of a model."""
    found = h.store.operation(h.id, step)
    last = found.attempts[-1]
    if last["status"] == "running":
        h.store.do(EndAttempt(**h.by, step=step, answer=Answer.NONE, abandoned=True))
    evidence, proof = verify(h)
    h.store.do(RecordVerification(**h.by, step=step, evidence=evidence, found=proof))
    h.store.do(
        RecordRecovery(
            **h.by,
            step=step,
            attempted=f"yes: attempt {last['n']} by {last['worker']}, which is dead",
            acknowledged="no: no answer was recorded",
            proven=f"cannot tell: {proof}",
            retry_safe="no: the ledger does not promise to honour the key",
            verdict="unknown: a person decides",
        )
    )
    h.store.do(Settle(**h.by, step=step, outcome=OperationStatus.UNKNOWN, error_class="NoAnswer", error=proof))
    h.store.do(
        NeedOperator(
            **h.by,
            why=Why.UNKNOWN,
            step=step,
            detail=f"{last['worker']} died while calling create_invoice, and the ledger cannot say what happened",
        )
    )
    say(f"{h.id}: an invoice is in flight and nobody can say whether it was made: unknown")


def verify(h: Holding) -> tuple[Evidence, str]:
    """Ask the other side."""
    try:
        with urlopen(f"{h.ledger}/invoices?order={h.order()['order']}", timeout=PATIENCE) as response:
            return Evidence.HAPPENED, response.read().decode()
    except HTTPError as refused:
        refused.close()
        return Evidence.CANNOT_TELL, f"the ledger's search answers {refused.code}"
    except URLError as error:
        return Evidence.CANNOT_TELL, f"the ledger does not answer: {error.reason}"


# --- the worker --------------------------------------------------------------------------------------------------


def work(name: str, url: str, ledger_url: str) -> None:
    with open_store(url) as store:
        pid = os.getpid()
        store.do(
            RegisterWorker(
                actor=f"worker:{name}",
                worker=name,
                host=socket.gethostname(),
                boot_id=boot_id(),
                pid=pid,
                process_started=process_started(pid) or "",
                agents=AGENTS,
                lease=LEASE,
            )
        )
        for lost in store.lose_dead_workers():
            say(f"{lost} is dead; its runs are free")
        while claimed := store.claim(name, AGENTS):
            run = claimed[0].run
            assert run is not None
            holding = Holding(store, name, run, ledger_url)
            {"close_order": close_order, "thank_customer": thank_customer}[run["agent"]](holding)
        store.do(StopWorker(actor=f"worker:{name}", worker=name))


if __name__ == "__main__":
    work(*sys.argv[1:4])
