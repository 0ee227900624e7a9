"""Agents, as their authors see them: steps, replay, state, signals, time; on both databases."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import walkback as wb
from tests.runtime.shop import Person, Shop, kinds, opened, ops, why, work
from walkback_store.fsck import fsck
from walkback_store.machine.people import RequestCancel, RequestPause, ResumeRun
from walkback_store.machine.store_wide import Freeze, Unfreeze
from walkback_store.words import FreezeScope


def test_a_run_goes_from_its_input_to_its_result_and_every_step_is_in_the_store(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="read", trust="untrusted")
    def read_order(order: str) -> dict[str, Any]:
        return {"total": 4200, "email": "a@example.com"}

    @wb.tool(effect="write")
    def send(to: str, cents: int, *, op: wb.Op) -> dict[str, Any]:
        shop.do("send", op.key)
        return {"sent": to}

    @wb.agent
    def close(run: wb.Run, order: str, note: str = "none") -> object:
        run.plan(["read", "decide", "send"])
        run.state["order"] = run.call(read_order, order=order)
        way = run.decide("how", lambda: "by mail", rationale="they like mail")
        run.observe("weather", "fine", source="window", trust="untrusted", as_of=datetime(2026, 1, 1, tzinfo=UTC))
        run.call(send, to=run.state["order"]["email"], cents=run.state["order"]["total"], into="sent")
        return [way, note, run.state["sent"]]

    with opened(store_url, close) as app:
        app.start("close", order="7", run_id="r")
        work(app)
        assert app.result("r") == ["by mail", "none", {"sent": "a@example.com"}]
        assert [row["kind"] for row in app.store.timeline("r")] == ["call", "decide", "observe", "call"]
        row = app.store.run("r")
        assert (row["status"], row["plan"], row["position"]) == ("succeeded", '["read","decide","send"]', 4)
        decision = next(e for e in app.store.events("r") if e.kind == "decision")
        assert decision.data["choice"] == "by mail"
        assert decision.data["rationale"] == "they like mail"
        seen = next(e for e in app.store.events("r") if e.kind == "observation")
        assert (seen.data["source"], seen.data["trust"]) == ("window", "untrusted")
        assert shop.done[0][1] == app.store.operation("r", "4").operation["key"]
        assert str(shop.done[0][1]).startswith("r:4:send:")
        after = app.store.timeline("r")[-1]["after"]
        state: Any = app.store.state("r", after)
        assert state["sent"] == {"sent": "a@example.com"}
        assert fsck(app.store, deep=True).problems == []


def test_the_same_id_twice_is_one_run_and_other_input_is_an_error(store_url: str) -> None:
    @wb.agent
    def nothing(run: wb.Run, x: int = 1) -> int:
        return x

    with opened(store_url, nothing) as app:
        assert app.start("nothing", run_id="r") == "r"
        assert app.start("nothing", run_id="r", x=1) == "r"
        with pytest.raises(wb.RunExists, match="other input"):
            app.start("nothing", run_id="r", x=2)
        with pytest.raises(wb.DefinitionError, match="cannot be started"):
            app.start("nothing", y=2)
        with pytest.raises(wb.UnknownAgent, match="there are: nothing"):
            app.start("something")
        with pytest.raises(wb.RunNotFinished, match="running"):
            app.result("r")
        work(app)
        assert app.result("r") == 1


# --- replay ------------------------------------------------------------------------------------------------------


def test_a_resumed_run_answers_from_its_record_and_calls_nothing_twice(store_url: str, shop: Shop) -> None:
    lives: list[str] = []

    @wb.tool(effect="write")
    def act(n: int) -> int:
        shop.do("act", n)
        return n * 10

    @wb.agent
    def long(run: wb.Run) -> object:
        lives.append("x")
        values = [run.now(), run.random(), run.uuid()]
        run.state["all"] = [run.call(act, n=n) for n in range(5)]
        both = run.parallel(wb.call(act, n=100), wb.call(act, n=200))
        chosen = run.decide("which", lambda: len(lives))
        run.wait_for("go")
        return [str(v) for v in values] + [run.state["all"], both, chosen]

    with opened(store_url, long) as app:
        app.start("long", run_id="r")
        work(app)
        assert app.store.run("r")["waits_for"] == "signal:go"
        first = app.store.timeline("r")
        app.signal("r", "go")
        work(app)
        result: Any = app.result("r")
        assert len(lives) == 2
        assert result[3:] == [[0, 10, 20, 30, 40], [1000, 2000], 1]
        assert shop.count("act") == 7
        assert app.store.timeline("r")[: len(first)] == first
        assert {row["step"] for row in first} >= {"9.1", "9.2", "10"}


@pytest.mark.parametrize(
    "change", ["another tool", "other arguments", "another kind", "fewer steps", "other state", "wider block"]
)
def test_a_step_that_is_not_what_the_record_says_parks_the_run_and_calls_nothing(
    change: str, store_url: str, shop: Shop
) -> None:
    code = {"changed": False}

    @wb.tool(effect="write")
    def act(n: int) -> int:
        shop.do("act", n)
        return n

    @wb.tool(effect="write")
    def other(n: int) -> int:
        shop.do("other", n)
        return n

    @wb.agent
    def agent(run: wb.Run) -> str:
        new = code["changed"]
        run.parallel(*(wb.call(act, n=n) for n in ((1, 2, 3) if new and change == "wider block" else (1, 2))))
        if new and change == "fewer steps":
            return "early"
        run.state["x"] = 2 if new and change == "other state" else 1
        if new and change == "another kind":
            run.decide("something", "else")
        run.call(other if new and change == "another tool" else act, n=5 if new and change == "other arguments" else 4)
        run.wait_for("go")
        return "done"

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        code["changed"] = True
        before = list(shop.done)
        app.signal("r", "go")
        work(app)
        kind, _ = why(app, "r")
        assert kind == "diverged"
        assert shop.done == before
        event = next(e for e in app.store.events("r", limit=1000) if e.kind == "needs_operator")
        assert {"recorded", "actual"} <= set(event.data)
        code["changed"] = False
        Person(app).resume("r")
        work(app)
        assert app.result("r") == "done"


def test_state_may_be_a_pydantic_model_or_a_dataclass(store_url: str) -> None:
    class Order(BaseModel):
        total: int = 0
        lines: list[str] = []

    @dataclass
    class Plain:
        total: int = 0
        lines: list[str] = field(default_factory=list)

    @wb.tool(effect="read")
    def price(of: str) -> int:
        return 7

    def body(run: wb.Run) -> int:
        run.call(price, of="tea", into="total")
        run.state.lines.append("tea")
        run.wait_for("go")
        assert run.state.lines == ["tea"]
        return int(run.state.total)

    first, second = wb.agent(name="a", state=Order)(body), wb.agent(name="b", state=Plain)(body)
    with opened(store_url, first, second) as app:
        for name in ("a", "b"):
            app.start(name, run_id=name)
        work(app)
        for name in ("a", "b"):
            app.signal(name, "go")
        work(app)
        assert [app.result(name) for name in ("a", "b")] == [7, 7]
        state: Any = app.store.state("a", app.store.run("a")["last_snapshot"])
        assert state == {"total": 7, "lines": ["tea"]}


def test_two_calls_at_once_are_an_error_and_nothing_is_called(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    async def slow(n: int) -> int:
        await asyncio.sleep(0.2)
        shop.do("slow", n)
        return n

    @wb.agent
    async def hasty(run: wb.Run) -> list[str]:
        found = await asyncio.gather(run.call(slow, n=1), run.call(slow, n=2), return_exceptions=True)
        return [type(value).__name__ for value in found]

    with opened(store_url, hasty) as app:
        app.start("hasty", run_id="r")
        work(app)
        assert app.result("r") == ["int", "ConcurrentCalls"]
        assert shop.done == [("slow", 1)]


def test_an_agent_that_fails_leaves_its_failure_with_the_run(store_url: str) -> None:
    @wb.agent
    def broken(run: wb.Run) -> None:
        run.observe("x", 1)
        raise KeyError("missing")

    with opened(store_url, broken) as app:
        app.start("broken", run_id="r")
        app.start("broken", run_id="r2")
        work(app)
        row = app.store.run("r")
        assert (row["status"], row["error_class"]) == ("failed", "KeyError")
        assert row["fingerprint"] == app.store.run("r2")["fingerprint"]
        ended = app.store.events("r")[-1]
        assert "in broken" in ended.data["traceback"]
        assert ended.data["step"] == "1"
        with pytest.raises(wb.RunFailed, match="KeyError"):
            app.result("r")


def parse(text: str) -> object:
    return json.loads(text)  # the line that is at fault


def test_a_failure_says_where_in_the_agents_own_code_it_came_from(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", definite=(KeyError,))
    def act() -> None:
        raise KeyError("no")

    @wb.agent
    def in_a_library(run: wb.Run) -> object:
        return parse("{")

    @wb.agent
    def in_a_call(run: wb.Run) -> object:
        return run.call(act)

    with opened(store_url, in_a_library, in_a_call) as app:
        for name in ("in_a_library", "in_a_call"):
            app.start(name, run_id=name)
        work(app)
        lines = Path(__file__).read_text().splitlines()
        for name, function, words in (
            ("in_a_library", "parse", "the line that is at fault"),
            ("in_a_call", "in_a_call", "return run.call(act)"),
        ):
            source = app.store.events(name)[-1].data["source"]
            assert source["file"] == __file__
            assert source["function"].endswith(function)
            assert words in lines[source["line"] - 1]


def test_what_cannot_be_stored_as_a_result_fails_the_run_and_says_where(store_url: str) -> None:
    @wb.agent
    def odd(run: wb.Run) -> object:
        return {"a": object()}

    with opened(store_url, odd) as app:
        app.start("odd", run_id="r")
        work(app)
        assert app.store.run("r")["error_class"] == "ValueRefused"
        assert "$.a" in app.store.events("r")[-1].data["message"]


def test_an_agent_that_swallows_everything_cannot_go_on_after_its_run_has_left(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def act(n: int) -> int:
        shop.do("act", n)
        return n

    @wb.agent
    def greedy(run: wb.Run) -> str:
        try:
            run.wait_for("go")
        except BaseException:
            run.call(act, n=1)
        return "done"

    with opened(store_url, greedy) as app:
        app.start("greedy", run_id="r")
        work(app)
        assert app.status("r") == "waiting"
        assert shop.done == []


# --- signals and time --------------------------------------------------------------------------------------------


def test_signals_are_kept_until_they_are_waited_for_and_count_once(store_url: str) -> None:
    @wb.agent
    def waits(run: wb.Run) -> object:
        return [run.wait_for("b"), run.wait_for("a"), run.wait_for("a")]

    with opened(store_url, waits) as app:
        app.start("waits", run_id="r")
        app.signal("r", "a", 1, signal_id="one")
        app.signal("r", "a", 1, signal_id="one")
        app.signal("r", "b", 2, signal_id="two")
        work(app)
        assert app.store.run("r")["waits_for"] == "signal:a"
        app.signal("r", "a", 3, signal_id="three")
        work(app)
        assert app.result("r") == [2, 1, 3]


def test_a_wait_that_times_out_says_so_again_on_replay(store_url: str) -> None:
    @wb.agent
    def waits(run: wb.Run) -> object:
        try:
            run.wait_for("never", timeout=0.05)
            first = "came"
        except wb.WaitTimeout:
            first = "timeout"
        return [first, run.wait_for("go", timeout=timedelta(hours=1))]

    with opened(store_url, waits) as app:
        app.start("waits", run_id="r")
        work(app)
        app.signal("r", "never")
        app.signal("r", "go", "x")
        work(app)
        assert app.result("r") == ["timeout", "x"]


def test_a_long_sleep_holds_no_worker_and_ends_by_itself(store_url: str) -> None:
    @wb.agent
    def sleeper(run: wb.Run) -> str:
        run.sleep(timedelta(seconds=1.5))
        run.sleep(0.01)
        return "woke"

    with opened(store_url, sleeper) as app:
        app.start("sleeper", run_id="r")
        app.run_until_idle(wait=0)
        row = app.store.run("r")
        assert (row["status"], row["waits_for"], row["worker"]) == ("waiting", "sleep", None)
        work(app)
        assert app.result("r") == "woke"


# --- people ------------------------------------------------------------------------------------------------------


def test_a_cancel_or_a_pause_takes_effect_between_two_calls(store_url: str, shop: Shop) -> None:
    at_work, go_on = threading.Event(), threading.Event()

    @wb.tool(effect="write")
    def act(n: int) -> int:
        shop.do("act", n)
        at_work.set()
        go_on.wait(20)
        return n

    @wb.agent
    def two(run: wb.Run) -> str:
        run.call(act, n=1)
        run.call(act, n=2)
        return "done"

    for run_id, request, status in (
        ("c", RequestCancel(actor="operator:ann", run_id="c", reason="enough"), "cancelled"),
        ("p", RequestPause(actor="operator:ann", run_id="p"), "paused"),
    ):
        at_work.clear()
        go_on.clear()
        with opened(store_url, two) as app:
            app.start("two", run_id=run_id)
            worker = threading.Thread(target=lambda app=app: work(app))
            worker.start()
            assert at_work.wait(20)
            app.store.do(request)
            go_on.set()
            worker.join()
            assert app.status(run_id) == status
            assert ops(app, run_id) == {"1": "succeeded"}
            if status == "paused":
                app.store.do(ResumeRun(actor="operator:ann", run_id=run_id, reason="go on"))
                work(app)
                assert app.result(run_id) == "done"


def test_what_is_frozen_waits_without_a_worker_and_goes_on_when_it_is_lifted(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", service="mail")
    def act(n: int) -> int:
        shop.do("act", n)
        return n

    @wb.agent
    def one(run: wb.Run, n: int) -> int:
        return int(run.call(act, n=n))

    scopes = [(FreezeScope.TOOL, "act"), (FreezeScope.AGENT, "one"), (FreezeScope.EVERYTHING, None)]
    scopes.append((FreezeScope.SERVICE, "mail"))
    with opened(store_url, one) as app:
        for n, (scope, name) in enumerate(scopes):
            app.store.do(Freeze(actor="operator:ann", scope=scope, name=name, reason="tonight"))
            app.start("one", run_id=f"r{n}", n=n)
            work(app)
            row = app.store.run(f"r{n}")
            assert (row["status"], row["worker"]) == ("waiting", None)
            assert row["waits_for"].startswith("freeze:")
            assert shop.count("act") == n
            (freeze,) = app.store.freezes()
            app.store.do(Unfreeze(actor="operator:ann", freeze_no=freeze["freeze_no"], reason="over"))
            work(app)
            assert app.result(f"r{n}") == n


# --- async -------------------------------------------------------------------------------------------------------


def test_an_async_agent_has_the_same_steps(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", compensate="undo")
    async def act(n: int) -> int:
        await asyncio.sleep(0)
        shop.do("act", n)
        return n

    @wb.tool(effect="write")
    def undo(n: int) -> None:
        shop.do("undo", n)

    @wb.tool(effect="read")
    def look(n: int) -> int:
        return n + 1

    async def choose() -> str:
        await asyncio.sleep(0)
        return "left"

    @wb.agent
    async def wander(run: wb.Run) -> object:
        await run.plan(["a", "b"])
        seen = await run.call(look, n=1, into="seen")
        way = await run.decide("where", choose, rationale="none")
        moment = await run.now()
        both = await run.parallel(wb.call(act, n=1), wb.call(look, n=5))
        try:
            async with run.transaction("tx"):
                await run.call(act, n=2)
                raise ValueError("no")
        except ValueError:
            pass
        await run.sleep(0.01)
        word = await run.wait_for("go")
        return [seen, way, both, word, moment.tzinfo is not None]

    with opened(store_url, wander, tools=[undo]) as app:
        app.start("wander", run_id="r")
        work(app)
        app.signal("r", "go", "now")
        work(app)
        assert app.result("r") == [2, "left", [1, 6], "now", True]
        assert shop.done == [("act", 1), ("act", 2), ("undo", 2)]
        assert "compensation" in kinds(app, "r")
        assert fsck(app.store, deep=True).problems == []


def test_a_plain_with_in_an_async_agent_is_refused_and_says_what_to_write(store_url: str) -> None:
    @wb.agent
    async def wrong(run: wb.Run) -> None:
        with run.transaction("tx"):
            pass

    with opened(store_url, wrong) as app:
        app.start("wrong", run_id="r")
        work(app)
        assert "async with" in app.store.events("r")[-1].data["message"]


def test_an_agent_that_fails_with_a_step_under_way_ends_when_the_step_has(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    async def slow(n: int) -> int:
        await asyncio.sleep(0.3)
        shop.do("slow", n)
        return n

    @wb.agent
    async def hasty(run: wb.Run) -> object:
        return await asyncio.gather(run.call(slow, n=1), run.call(slow, n=2))

    with opened(store_url, hasty) as app:
        app.start("hasty", run_id="r")
        work(app)
        assert (app.status("r"), app.store.run("r")["error_class"]) == ("failed", "ConcurrentCalls")
        assert ops(app, "r") == {"1": "succeeded"}
        assert shop.done == [("slow", 1)]
