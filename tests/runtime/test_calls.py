"""One call, as its author and its operator see it: outcomes, retries, approvals, identities, drift."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

import walkback as wb
from tests.runtime.shop import ANN, Person, Shop, kinds, opened, ops, until_threads_end, why, work
from walkback_store.machine.people import DecideRetry, RecordAbsent, Refuse, RequestVerify
from walkback_store.values import fingerprint

QUICK = wb.Retry(
    attempts=3, elapsed=timedelta(minutes=1), base=timedelta(milliseconds=1), cap=timedelta(milliseconds=5)
)


class Nope(Exception):
    """Declared definite."""


def one(tool: Any, **args: Any) -> wb.Agent:
    """An agent with one call, which tells what came of it."""

    @wb.agent(name="one")
    def agent(run: wb.Run) -> object:
        try:
            return {"result": run.call(tool, **args)}
        except wb.CallError as error:
            return {"error": type(error).__name__, "words": str(error)}

    return agent


# --- answers and evidence ----------------------------------------------------------------------------------------


def test_an_error_that_is_declared_definite_is_a_failure_and_is_not_tried_again(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", definite=(Nope,), retry=QUICK, idempotent=True)
    def act() -> None:
        shop.do("tried")
        raise Nope("the card is blocked")

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        result: Any = app.result("r")
        assert result["error"] == "ToolFailed"
        assert "the card is blocked" in result["words"]
        assert shop.count("tried") == 1
        assert ops(app, "r") == {"1": "failed"}


def test_any_other_error_of_a_write_that_nobody_can_look_for_is_unknown(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", retry=QUICK)
    def act() -> dict[str, int]:
        shop.do("act")
        raise ConnectionError("reset by peer")

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "unknown"
        assert "ConnectionError: reset by peer" in detail
        assert shop.count("act") == 1
        Person(app).happened("r", "1", {"id": 7})
        work(app)
        assert app.result("r") == {"result": {"id": 7}}


def test_a_key_makes_a_retry_safe_and_is_the_same_every_time(store_url: str, shop: Shop) -> None:
    seen: list[tuple[str, int]] = []

    @wb.tool(effect="write", retry=QUICK, idempotent=timedelta(hours=24))
    def act(*, op: wb.Op) -> str:
        seen.append((op.key, op.attempt))
        if op.attempt < 3:
            raise ConnectionError("reset")
        return "at last"

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        assert app.result("r") == {"result": "at last"}
        assert [attempt for _, attempt in seen] == [1, 2, 3]
        assert len({key for key, _ in seen}) == 1
        assert app.store.operation("r", "1").operation["attempts"] == 3


def test_a_budget_that_is_spent_on_retries_by_key_leaves_it_unknown(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", retry=QUICK, idempotent=True)
    def act() -> None:
        shop.do("act")
        raise ConnectionError("reset")

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        assert why(app, "r")[0] == "unknown"
        assert shop.count("act") == 3


def test_errors_after_which_nothing_is_tried_again(store_url: str, shop: Shop) -> None:
    stop = wb.Retry(attempts=5, base=timedelta(milliseconds=1), stop=(PermissionError,))

    @wb.tool(effect="read", retry=stop)
    def look() -> None:
        shop.do("look")
        raise PermissionError("no")

    with opened(store_url, one(look)) as app:
        app.start("one", run_id="r")
        work(app)
        result: Any = app.result("r")
        assert "PermissionError" in result["words"]
        assert shop.count("look") == 1


def test_a_read_is_tried_again_and_then_fails(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="read", retry=QUICK)
    def look() -> None:
        shop.do("look")
        raise ConnectionError("down")

    with opened(store_url, one(look)) as app:
        app.start("one", run_id="r")
        work(app)
        result: Any = app.result("r")
        assert result["error"] == "ToolFailed"
        assert shop.count("look") == 3


def test_verify_decides_what_an_error_left_open(store_url: str, shop: Shop) -> None:
    def look(op: wb.Op) -> wb.Evidence:
        return wb.happened({"id": op.args["n"]}) if shop.count("act") else wb.absent()

    @wb.tool(effect="write", verify=look, retry=QUICK)
    def act(n: int) -> dict[str, int]:
        shop.do("act", n)
        raise TimeoutError("gateway")

    with opened(store_url, one(act, n=3)) as app:
        app.start("one", run_id="r")
        work(app)
        assert app.result("r") == {"result": {"id": 3}}
        assert shop.count("act") == 1


def test_absent_without_a_settle_time_or_a_key_is_unknown_and_verify_again_can_settle_it(
    store_url: str, shop: Shop
) -> None:
    visible = {"now": False}

    def look(op: wb.Op) -> wb.Evidence:
        return wb.happened({"id": 1}) if visible["now"] else wb.absent()

    @wb.tool(effect="write", verify=look, retry=QUICK)
    def act() -> dict[str, int]:
        shop.do("act")
        raise TimeoutError("gateway")

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        assert why(app, "r")[0] == "unknown"
        again = RequestVerify(actor=ANN, run_id="r", step="1")
        app.store.do(again)
        work(app)
        assert why(app, "r")[0] == "unknown"
        visible["now"] = True
        app.store.do(RequestVerify(actor=ANN, run_id="r", step="1"))
        work(app)
        assert app.result("r") == {"result": {"id": 1}}
        assert shop.count("act") == 1


def test_acknowledged_but_absent_is_not_made_again_without_a_key(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", verify=lambda op: wb.absent(), settle=timedelta(milliseconds=1), timeout=0.3, retry=QUICK)
    def act() -> str:
        shop.do("act")
        return "ok"

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        assert why(app, "r")[0] == "unknown"
        assert shop.count("act") == 1
        app.store.do(RecordAbsent(actor=ANN, run_id="r", step="1", reason="not in the book"))
        work(app)
        result: Any = app.result("r")
        assert result["error"] == "ToolFailed"
        assert "not in the book" in result["words"]


def test_partial_success_says_what_is_done_and_what_is_missing(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", verify=lambda op: wb.partial(done=["a"], missing=["b"]), retry=QUICK)
    def act() -> str:
        return "ok"

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "unknown"
        assert "'a'" in detail
        assert "'b'" in detail
        assert app.store.operation("r", "1").operation["evidence"] == "partial"


def test_an_operator_may_order_a_retry_which_counts_once(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", retry=QUICK)
    def act() -> str:
        shop.do("act")
        return "ok"

    shop.trouble = [ConnectionError("reset"), ConnectionError("reset")]
    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        for _ in range(2):
            assert why(app, "r")[0] == "unknown"
            app.store.do(DecideRetry(actor=ANN, run_id="r", step="1", reason="not in the book", regret=0))
            work(app)
        assert app.result("r") == {"result": "ok"}
        assert app.store.operation("r", "1").operation["attempts"] == 3


def test_the_record_before_a_write_has_what_was_seen_and_what_is_expected(store_url: str, shop: Shop) -> None:
    def stock(op: wb.Op) -> dict[str, int]:
        return {"left": 3}

    def booked(op: wb.Op) -> wb.Evidence:
        """the order is in the book"""
        return wb.happened()

    @wb.tool(
        effect="write", preconditions=stock, verify=booked, describe=lambda a: f"order {a['n']}", stake="$5".format
    )
    def act(n: int, *, op: wb.Op) -> None:
        shop.do("act", op.found_before)

    with opened(store_url, one(act, n=1)) as app:
        app.start("one", run_id="r")
        work(app)
        intent = next(e for e in app.store.events("r") if e.kind == "intent")
        assert intent.data["preconditions"] == {"left": 3}
        assert intent.data["expects"] == "the order is in the book"
        assert intent.data["args"] == {"n": 1}
        row = app.store.operation("r", "1").operation
        assert (row["description"], row["stake"], row["stake_value"]) == ("order 1", "$5", 5.0)
        assert shop.done == [("act", {"left": 3})]
        assert kinds(app, "r", "1") == ["intent", "tool_result", "verification", "outcome"]


def test_a_write_is_not_tried_again_on_an_observation_that_does_not_hold_any_more(store_url: str, shop: Shop) -> None:
    left = [3, 2]

    @wb.tool(effect="write", preconditions=lambda op: left[min(shop.count("act"), 1)], idempotent=True, retry=QUICK)
    def act() -> None:
        shop.do("act")
        raise ConnectionError("reset")

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "unknown"
        assert "PreconditionsChanged" in detail
        assert shop.count("act") == 1


def test_preconditions_that_cannot_be_read_deny_the_call(store_url: str, shop: Shop) -> None:
    def broken(op: wb.Op) -> None:
        raise OSError("down")

    @wb.tool(effect="write", preconditions=broken)
    def act() -> None:
        shop.do("act")

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        result: Any = app.result("r")
        assert result["error"] == "Denied"
        assert shop.done == []


# --- time --------------------------------------------------------------------------------------------------------


def test_a_tool_that_hangs_is_left_behind_and_what_it_says_later_is_kept(store_url: str, shop: Shop) -> None:
    wake, woken = threading.Event(), threading.Event()

    @wb.tool(effect="write", timeout=0.3, retry=QUICK, idempotent=True)
    def act(*, op: wb.Op) -> int:
        shop.do("act", op.attempt)
        if op.attempt == 1:
            wake.wait(30)
            woken.set()
        return op.attempt

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        assert app.result("r") == {"result": 2}
        wake.set()
        assert woken.wait(10)
        deadline = threading.Event()
        for _ in range(200):
            if "late_evidence" in kinds(app, "r"):
                break
            deadline.wait(0.05)
        until_threads_end()
        late = next(e for e in app.store.events("r") if e.kind == "late_evidence")
        assert (late.data["attempt"], late.data["answer"], late.data["output"]) == (1, "acknowledged", 1)
        assert app.store.operation("r", "1").operation["duplicate_suspected"] == 0  # the key stood for both


def test_two_effects_that_nothing_could_rule_out_are_suspected_when_the_late_answer_comes(
    store_url: str, shop: Shop
) -> None:
    wake, late = threading.Event(), threading.Event()

    def look(op: wb.Op) -> wb.Evidence:
        return wb.absent()

    @wb.tool(effect="write", timeout=0.2, settle=timedelta(milliseconds=100), verify=look, retry=QUICK)
    def act(*, op: wb.Op) -> int:
        if op.attempt == 1:
            wake.wait(30)
            late.set()
        shop.do("act")
        return op.attempt

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        assert why(app, "r")[0] == "unknown"  # the second was acknowledged, and nobody can find it
        wake.set()
        assert late.wait(10)
        for _ in range(200):
            if "late_evidence" in kinds(app, "r"):
                break
            threading.Event().wait(0.05)
        until_threads_end()
        assert shop.count("act") == 2
        assert app.store.operation("r", "1").operation["duplicate_suspected"] == 1


def test_an_async_agent_leaves_a_plain_tool_behind_as_well(store_url: str, shop: Shop) -> None:
    wake = threading.Event()

    @wb.tool(effect="write", timeout=0.3, retry=QUICK, idempotent=True)
    def act(*, op: wb.Op) -> int:
        shop.do("act", op.attempt)
        if op.attempt == 1:
            wake.wait(30)
        return op.attempt

    @wb.agent
    async def waits(run: wb.Run) -> object:
        found = await run.call(act)
        wake.set()
        await run.sleep(0.3)
        return found

    with opened(store_url, waits) as app:
        app.start("waits", run_id="r")
        work(app)
        assert app.result("r") == 2
        assert "late_evidence" in kinds(app, "r")


# --- drift -------------------------------------------------------------------------------------------------------


def test_an_answer_that_no_longer_fits_keeps_the_effect_and_parks_the_run(store_url: str, shop: Shop) -> None:
    class Invoice(BaseModel):
        id: int
        total: int

    @wb.tool(effect="write")
    def act() -> Invoice:
        shop.do("act")
        return {"id": 1, "sum": 5, "extra": True}  # type: ignore[return-value]

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "drift"
        assert "total" in detail
        assert ops(app, "r") == {"1": "succeeded"}
        raw = next(e for e in app.store.events("r") if e.kind == "tool_result")
        assert raw.data["output"] == {"id": 1, "sum": 5, "extra": True}
        Person(app).resume("r")
        work(app)
        assert app.result("r") == {"result": {"id": 1, "sum": 5, "extra": True}}
        assert shop.count("act") == 1


def test_an_answer_that_cannot_be_stored_is_drift_too(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def act() -> object:
        shop.do("act")
        return {"socket": threading.Lock()}

    with opened(store_url, one(act)) as app:
        app.start("one", run_id="r")
        work(app)
        assert why(app, "r")[0] == "drift"
        assert ops(app, "r") == {"1": "succeeded"}


def test_extra_fields_are_tolerated_and_types_are_as_declared(store_url: str) -> None:
    class Invoice(BaseModel):
        id: int

    @wb.tool(effect="read")
    def look() -> Invoice:
        return {"id": "7", "more": 1}  # type: ignore[return-value]

    @wb.agent(name="one")
    def agent(run: wb.Run) -> object:
        found = run.call(look)
        run.wait_for("go")
        return [type(found).__name__, found.id]

    with opened(store_url, agent) as app:
        app.start("one", run_id="r")
        work(app)
        app.signal("r", "go")
        work(app)
        assert app.result("r") == ["Invoice", 7]


# --- approvals ---------------------------------------------------------------------------------------------------


def gated(shop: Shop, **more: Any) -> wb.Tool:
    @wb.tool(effect="write", approval=lambda a: a["cents"] > 100, **more)
    def pay(to: str, cents: int, *, op: wb.Op) -> dict[str, Any]:
        shop.do("pay", (to, cents, op.key))
        return {"paid": cents}

    return pay


def test_an_approval_is_waited_for_without_a_worker_and_consumed_by_the_intent(store_url: str, shop: Shop) -> None:
    with opened(store_url, one(gated(shop), to="bob", cents=500)) as app:
        app.start("one", run_id="r")
        work(app)
        row = app.store.run("r")
        assert (row["status"], row["waits_for"], row["worker"]) == ("waiting", "approval:1", None)
        assert shop.done == []
        Person(app).approve("r", "1")
        work(app)
        assert app.result("r") == {"result": {"paid": 500}}
        assert app.store.operation("r", "1").approvals[0]["status"] == "consumed"


def test_below_the_limit_nobody_is_asked(store_url: str, shop: Shop) -> None:
    with opened(store_url, one(gated(shop), to="bob", cents=5)) as app:
        app.start("one", run_id="r")
        work(app)
        assert app.result("r") == {"result": {"paid": 5}}


def test_a_refusal_reaches_the_agent_with_its_reason(store_url: str, shop: Shop) -> None:
    with opened(store_url, one(gated(shop), to="bob", cents=500)) as app:
        app.start("one", run_id="r")
        work(app)
        app.store.do(Refuse(actor=ANN, run_id="r", step="1", reason="bob has left the company"))
        work(app)
        result: Any = app.result("r")
        assert result["error"] == "ApprovalRefused"
        assert "bob has left the company" in result["words"]
        assert shop.done == []


def test_an_approval_that_nobody_gives_in_time_expires(store_url: str, shop: Shop) -> None:
    tool = gated(shop, approval_expires=timedelta(seconds=0.4))
    with opened(store_url, one(tool, to="bob", cents=500)) as app:
        app.start("one", run_id="r")
        work(app)
        result: Any = app.result("r")
        assert result["error"] == "ApprovalExpired"
        assert shop.done == []


def test_edited_arguments_are_what_is_called_and_the_agent_still_replays(store_url: str, shop: Shop) -> None:
    pay = gated(shop)

    @wb.agent(name="one")
    def agent(run: wb.Run) -> object:
        first = run.call(pay, to="bob", cents=500)
        run.wait_for("go")
        return first

    with opened(store_url, agent) as app:
        app.start("one", run_id="r")
        work(app)
        asked = app.store.operation("r", "1").approvals[0]
        args = {"to": "bob", "cents": 400}
        digest = fingerprint(["pay", "1", pay.args_hash(args), "r", "1", asked["rule"], None])
        Person(app).approve("r", "1", edited_args=args, edited_hash=pay.args_hash(args), edited_digest=digest)
        work(app)
        app.signal("r", "go")
        work(app)
        assert app.result("r") == {"paid": 400}
        (paid,) = shop.done
        assert paid[1][:2] == ("bob", 400)  # type: ignore[index]
        row = app.store.operation("r", "1").operation
        assert row["args_hash"] == pay.args_hash(args)
        assert row["key"] == paid[1][2]  # type: ignore[index]


def test_what_an_approval_was_given_on_is_looked_at_again_before_the_call(store_url: str, shop: Shop) -> None:
    balance = [1000]
    pay = gated(shop, preconditions=lambda op: balance[0])
    with opened(store_url, one(pay, to="bob", cents=500)) as app:
        app.start("one", run_id="r")
        work(app)
        balance[0] = 3
        Person(app).approve("r", "1")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "review"
        assert "changed" in detail
        assert shop.done == []


def test_the_same_call_twice_in_one_run_asks_a_person(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def send(to: str) -> None:
        shop.do("send", to)

    @wb.tool(effect="write", repeatable=True)
    def ping(to: str) -> None:
        shop.do("ping", to)

    @wb.agent
    def twice(run: wb.Run) -> str:
        for _ in range(2):
            run.call(ping, to="bob")
        for _ in range(2):
            run.call(send, to="bob")
        return "done"

    with opened(store_url, twice) as app:
        app.start("twice", run_id="r")
        work(app)
        assert (shop.count("ping"), shop.count("send")) == (2, 1)
        assert app.store.run("r")["waits_for"] == "approval:4"
        assert app.store.operation("r", "4").approvals[0]["rule"] == "the same call as step 3 of this run"
        Person(app).approve("r", "4")
        work(app)
        assert app.result("r") == "done"
        assert shop.count("send") == 2


# --- business identity -------------------------------------------------------------------------------------------


def invoice_tool(shop: Shop) -> wb.Tool:
    @wb.tool(effect="write", identity="invoice for {order}", idempotent=True, compensate="void", retry=QUICK)
    def invoice(order: str, cents: int, *, op: wb.Op) -> dict[str, Any]:
        shop.do("invoice", op.key)
        return {"invoice": order}

    return invoice


def test_one_run_owns_an_identity_and_others_get_its_outcome_by_reference(store_url: str, shop: Shop) -> None:
    invoice = invoice_tool(shop)

    @wb.tool(effect="write")
    def void(order: str) -> None:
        shop.do("void")

    with opened(store_url, one(invoice, order="7", cents=5), tools=[void]) as app:
        for name in ("a", "b", "c"):
            app.start("one", run_id=name)
        work(app)
        assert {str(app.result(name)) for name in ("a", "b", "c")} == {"{'result': {'invoice': '7'}}"}
        assert shop.count("invoice") == 1
        refers = [app.store.operation(name, "1").operation["refers_to"] for name in ("a", "b", "c")]
        assert refers.count(None) == 1
        assert shop.done[0][1] == "@invoice:invoice for 7:1"


def test_the_same_identity_with_other_arguments_is_an_error_and_nothing_is_called(store_url: str, shop: Shop) -> None:
    invoice = invoice_tool(shop)

    @wb.tool(effect="write")
    def void(order: str) -> None:
        shop.do("void")

    @wb.agent
    def bill(run: wb.Run, cents: int) -> object:
        try:
            return run.call(invoice, order="7", cents=cents)
        except wb.KeyConflict as conflict:
            return str(conflict)

    with opened(store_url, bill, tools=[void]) as app:
        app.start("bill", run_id="a", cents=5)
        work(app)
        app.start("bill", run_id="b", cents=6)
        work(app)
        assert "invoice was not called" in str(app.result("b"))
        assert shop.count("invoice") == 1


def test_others_wait_while_the_owner_is_in_doubt_and_an_undone_identity_is_free_again(
    store_url: str, shop: Shop
) -> None:
    invoice = invoice_tool(shop)

    @wb.tool(effect="write")
    def void(order: str) -> None:
        shop.do("void")

    shop.trouble = [ConnectionError("reset")] * 3
    with opened(store_url, one(invoice, order="7", cents=5), tools=[void]) as app:
        app.start("one", run_id="a")
        work(app)
        assert why(app, "a")[0] == "unknown"
        app.start("one", run_id="b")
        work(app)
        assert app.store.run("b")["waits_for"] == "identity:invoice for 7"
        Person(app).happened("a", "1", {"invoice": "7"})
        work(app)
        assert app.result("b") == {"result": {"invoice": "7"}}
        Person(app).undo("a", "operation:1", ["1"])
        work(app)
        assert app.status("a") == "compensated"
        app.start("one", run_id="c")
        work(app)
        assert shop.done[-1] == ("invoice", "@invoice:invoice for 7:2")


# --- breakers, budgets and limits --------------------------------------------------------------------------------


def test_a_service_that_fails_again_and_again_is_left_alone_and_probed_by_one(store_url: str, shop: Shop) -> None:
    down = {"now": True}
    once = wb.Retry(attempts=1)

    @wb.tool(
        effect="read",
        service="billing",
        retry=once,
        breaker=wb.Breaker(failures=3, cooldown=timedelta(seconds=1)),
    )
    def look(n: int) -> int:
        shop.do("look", n)
        if down["now"]:
            raise ConnectionError("down")
        return n

    @wb.agent
    def ask(run: wb.Run, n: int) -> object:
        try:
            return run.call(look, n=n)
        except wb.ToolFailed:
            return "failed"

    with opened(store_url, ask) as app:
        for n in range(3):
            app.start("ask", run_id=f"r{n}", n=n)
            app.run_until_idle(wait=0)
        (freeze,) = app.store.freezes()
        assert (freeze["scope"], freeze["name"]) == ("service", "billing")
        down["now"] = False
        for n in range(3, 8):
            app.start("ask", run_id=f"r{n}", n=n)
        app.run_until_idle(wait=0)
        assert shop.count("look") == 3
        assert {app.store.run(f"r{n}")["waits_for"] for n in range(3, 8)} == {"freeze:billing"}
        app.run_until_idle(wait=10)
        assert [app.result(f"r{n}") for n in range(3, 8)] == [3, 4, 5, 6, 7]
        assert app.store.freezes() == []


def test_retries_of_a_tool_share_a_budget_that_a_restart_does_not_forget(store_url: str, shop: Shop) -> None:
    few = wb.Retry(
        attempts=3, base=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), tokens=2, tokens_per_second=0.001
    )

    @wb.tool(effect="read", retry=few)
    def look() -> None:
        shop.do("look")
        raise ConnectionError("down")

    with opened(store_url, one(look)) as app:
        app.start("one", run_id="a")
        app.run_until_idle(wait=0)
        assert shop.count("look") == 3
    with opened(store_url, one(look)) as app:
        app.start("one", run_id="b")
        app.run_until_idle(wait=0)
        assert shop.count("look") == 4
        assert app.store.run("b")["waits_for"] == "retry:1"


def test_a_tool_with_limited_concurrency_is_never_entered_more_often_at_once(store_url: str, shop: Shop) -> None:
    lock = threading.Lock()
    inside = {"now": 0, "most": 0}

    @wb.tool(effect="write", concurrency=2)
    def act(n: int) -> int:
        with lock:
            inside["now"] += 1
            inside["most"] = max(inside["most"], inside["now"])
        threading.Event().wait(0.05)
        with lock:
            inside["now"] -= 1
        return n

    @wb.agent
    def agent(run: wb.Run, n: int) -> object:
        return run.call(act, n=n)

    @wb.agent
    async def async_agent(run: wb.Run, n: int) -> object:
        return await run.call(act, n=n)

    with opened(store_url, agent, async_agent) as app:
        for n in range(6):
            app.start("agent" if n % 2 else "async_agent", run_id=f"r{n}", n=n)
        work(app)
        assert [app.result(f"r{n}") for n in range(6)] == list(range(6))
        assert inside["most"] == 2


def test_bad_arguments_reach_the_agent_before_anything_is_recorded(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def act(n: int) -> None:
        shop.do("act")

    @wb.agent
    def wrong(run: wb.Run) -> str:
        with pytest.raises(wb.BadArguments, match="n"):
            run.call(act, n="seven")
        with pytest.raises(wb.UnknownTool, match="nothing_like_it"):
            run.call("nothing_like_it")
        return "fine"

    with opened(store_url, wrong) as app:
        app.start("wrong", run_id="r")
        work(app)
        assert app.result("r") == "fine"
        assert shop.done == []
        assert app.store.timeline("r") == []


def test_two_tools_of_one_name_are_never_taken_for_each_other(store_url: str, shop: Shop) -> None:
    def made(value: str) -> wb.Tool:
        @wb.tool(effect="write", name="send")
        def send() -> None:
            shop.do(value)

        return send

    first, second = made("first"), made("second")
    one_of, other_of = wb.agent(name="a")(lambda run: run.call(first)), wb.agent(name="b")(lambda run: run.call(second))
    with opened(store_url, one_of, other_of) as app:
        for name in ("a", "b"):
            app.start(name, run_id=name)
        work(app)
        assert app.status("a") == "succeeded"
        assert "two tools called 'send'" in app.store.events("b")[-1].data["message"]
        assert shop.done == [("first", None)]


def test_a_field_that_the_state_does_not_have_is_noticed_before_the_call(store_url: str, shop: Shop) -> None:
    class State(BaseModel):
        x: int = 0

    @wb.tool(effect="write")
    def act() -> int:
        shop.do("act")
        return 1

    @wb.agent(state=State)
    def wrong(run: wb.Run) -> None:
        run.call(act, into="y")

    with opened(store_url, wrong) as app:
        app.start("wrong", run_id="r")
        work(app)
        assert app.store.run("r")["error_class"] == "DefinitionError"
        assert shop.done == []


def test_a_retry_after_the_approval_has_expired_is_asked_about_again(store_url: str, shop: Shop) -> None:
    slow = wb.Retry(attempts=3, base=timedelta(seconds=1), cap=timedelta(seconds=1))
    attempts: list[int] = []

    @wb.tool(effect="write", approval=True, approval_expires=timedelta(seconds=1.5), idempotent=True, retry=slow)
    def pay(*, op: wb.Op) -> str:
        attempts.append(op.attempt)
        if op.attempt == 1:
            threading.Event().wait(1.6)
            raise ConnectionError("reset")
        return "paid"

    with opened(store_url, one(pay)) as app:
        app.start("one", run_id="r")
        app.run_until_idle(wait=0)
        Person(app).approve("r", "1")
        app.run_until_idle(wait=0)
        for _ in range(400):
            approvals = app.store.operation("r", "1").approvals
            if len(approvals) == 2:
                break
            app.run_until_idle(wait=1)
            threading.Event().wait(0.1)
        assert [a["status"] for a in approvals] == ["consumed", "asked"]
        assert attempts == [1]
        Person(app).approve("r", "1")
        work(app)
        assert app.result("r") == {"result": "paid"}
        assert attempts == [1, 2]
