"""What goes wrong where two things meet: stops and broad excepts, the store's trouble and transactions, one branch and
another, an approval and a freeze."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest

import walkback as wb
from tests.runtime.shop import ANN, Person, Shop, kinds, opened, ops, until_threads_end, why, work
from walkback_store.errors import Unreachable
from walkback_store.machine.people import RecordAbsent, RequestCancel
from walkback_store.machine.store_wide import Freeze, Unfreeze
from walkback_store.words import FreezeScope

MS = timedelta(milliseconds=1)
QUICK = wb.Retry(attempts=3, elapsed=timedelta(minutes=1), base=MS, cap=5 * MS)


def test_a_stop_that_the_agent_swallows_does_not_finish_the_run_without_its_write(store_url: str, shop: Shop) -> None:
    workers: list[Any] = []

    @wb.tool(effect="write")
    def receipt() -> None:
        shop.do("receipt")

    @wb.agent
    def careless(run: wb.Run) -> str:
        if len(workers) == 1:
            workers.append(None)
            workers[0].stop()
        with contextlib.suppress(BaseException):
            run.call(receipt)
        return "done"

    with opened(store_url, careless) as app:
        app.start("careless", run_id="r")
        workers.append(app.worker())
        workers[0].work(until_idle=True)
        assert app.status("r") == "running"
        work(app)
        assert app.result("r") == "done"
        assert shop.count("receipt") == 1


def test_trouble_of_the_store_undoes_nothing_and_fails_nobody(
    store_url: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    @wb.tool(effect="write", compensate="undo")
    def act() -> None:
        shop.do("act")

    @wb.tool(effect="write")
    def undo() -> None:
        shop.do("undo")

    struck: list[int] = []

    @wb.agent
    def agent(run: wb.Run) -> str:
        with run.transaction("tx"):
            run.call(act)
            if not struck:
                monkeypatch.setattr(app.store, "waiting_signals", broken)
            run.wait_for("go")
        return "done"

    def broken(*_: object) -> None:
        struck.append(1)
        monkeypatch.undo()
        raise Unreachable("for a moment")

    with opened(store_url, agent, tools=[undo]) as app:
        app.start("agent", run_id="r")
        work(app)
        assert struck
        assert app.status("r") == "waiting"
        assert shop.count("undo") == 0


def test_evidence_about_one_attempt_says_nothing_about_the_next(store_url: str, shop: Shop) -> None:
    seen = [wb.absent(), wb.cannot_tell("down"), wb.cannot_tell("down"), wb.cannot_tell("down")]

    @wb.tool(effect="write", verify=lambda op: seen.pop(0), settle=MS, timeout=0.2, retry=QUICK)
    def act(*, op: wb.Op) -> None:
        shop.do("act")
        if op.attempt == 1:
            threading.Event().wait(0.25)
        raise ConnectionError("reset")

    @wb.agent
    def agent(run: wb.Run) -> None:
        run.call(act)

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        assert why(app, "r")[0] == "unknown"
        assert app.store.operation("r", "1").operation["evidence"] == "cannot_tell"


def test_a_compensation_that_cannot_even_be_called_asks_a_person(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", compensate="undo", verify=lambda op: wb.happened(), retry=QUICK)
    def act() -> dict[str, int] | None:
        shop.do("act")
        raise ConnectionError("reset")

    @wb.tool(effect="write")
    def undo(result: dict[str, int]) -> None:
        shop.do("undo")

    @wb.agent
    def agent(run: wb.Run) -> None:
        with run.transaction("tx"):
            run.call(act)
            raise ValueError("no")

    with opened(store_url, agent, tools=[undo]) as app:
        app.start("agent", run_id="r")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "compensation_failed"
        assert "cannot be called" in detail


def test_a_compensation_that_a_person_gave_up_is_not_tried_again_by_itself(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", compensate="undo")
    def act() -> None:
        shop.do("act")

    @wb.tool(effect="write", retry=QUICK)
    def undo() -> None:
        shop.do("undo")
        raise ConnectionError("reset")

    @wb.agent
    def agent(run: wb.Run) -> None:
        with run.transaction("tx"):
            run.call(act)
            raise ValueError("no")

    with opened(store_url, agent, tools=[undo]) as app:
        app.start("agent", run_id="r")
        work(app)
        assert why(app, "r")[0] == "unknown"
        app.store.do(RecordAbsent(actor=ANN, run_id="r", step="c1", reason="leave it"))
        work(app)
        assert why(app, "r")[0] == "compensation_failed"
        assert shop.count("undo") == 1


def test_the_same_write_twice_in_one_block_asks_a_person(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def send(to: str) -> str:
        shop.do("send", to)
        return to

    @wb.agent
    def agent(run: wb.Run) -> object:
        return run.parallel(wb.call(send, to="a"), wb.call(send, to="a"))

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        assert shop.count("send") == 1
        Person(app).approve("r", "1.2")
        work(app)
        assert app.result("r") == ["a", "a"]


def test_a_branch_that_hangs_does_not_cost_its_neighbour_the_answer(store_url: str, shop: Shop) -> None:
    free = threading.Event()

    @wb.tool(effect="write", timeout=5)
    def good() -> str:
        free.wait(1)
        shop.do("good")
        return "good"

    @wb.tool(effect="write", timeout=0.2, idempotent=True, retry=QUICK)
    def hang(*, op: wb.Op) -> str:
        if op.attempt == 1:
            free.wait(20)
        return "back"

    @wb.agent
    def agent(run: wb.Run) -> object:
        return run.parallel(wb.call(good), wb.call(hang))

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        free.set()
        until_threads_end()
        assert app.result("r") == ["good", "back"]
        assert ops(app, "r") == {"1.1": "succeeded", "1.2": "succeeded"}
        assert shop.count("good") == 1


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [ValueError("half a pair: \ud800"), Odd()], ids=["surrogate", "no words"])
def test_an_error_whose_words_cannot_be_stored_is_an_outcome_all_the_same(
    error: Exception, store_url: str, shop: Shop
) -> None:
    @wb.tool(effect="read", retry=wb.Retry(attempts=1))
    def look() -> None:
        raise error

    @wb.agent
    def agent(run: wb.Run) -> object:
        try:
            run.call(look)
        except wb.ToolFailed as failed:
            return failed.error_class
        raise error

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        assert app.result("r") == type(error).__name__


def test_a_call_that_is_approved_and_frozen_waits_quietly(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", approval=True)
    def pay() -> str:
        shop.do("pay")
        return "paid"

    @wb.agent
    def agent(run: wb.Run) -> object:
        return run.call(pay)

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        app.store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name="pay", reason="tonight"))
        Person(app).approve("r", "1")
        work(app)
        before = len(kinds(app, "r"))
        work(app)
        assert len(kinds(app, "r")) == before
        (freeze,) = app.store.freezes()
        app.store.do(Unfreeze(actor=ANN, freeze_no=freeze["freeze_no"], reason="over"))
        work(app)
        assert app.result("r") == "paid"


def test_more_runs_than_a_page_are_woken(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def act(n: int) -> int:
        shop.do("act", n)
        return n

    @wb.agent
    def agent(run: wb.Run, n: int) -> object:
        return run.call(act, n=n)

    with opened(store_url, agent) as app:
        app.store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name="other", reason="for ever"))
        app.store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name="act", reason="tonight"))
        for n in range(55):
            app.start("agent", run_id=f"r{n}", n=n)
        work(app)
        freeze = next(f for f in app.store.freezes() if f["name"] == "act")
        app.store.do(Unfreeze(actor=ANN, freeze_no=freeze["freeze_no"], reason="over"))
        work(app)
        assert shop.count("act") == 55


def test_an_async_agent_that_is_cancelled_from_within_fails_and_does_not_go_round(store_url: str) -> None:
    @wb.agent
    async def agent(run: wb.Run) -> None:
        await run.observe("x", 1)
        raise asyncio.CancelledError

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        assert (app.status("r"), app.store.run("r")["error_class"]) == ("failed", "CancelledError")


def test_a_timeout_of_the_agents_own_waits_for_the_step_and_undoes_the_transaction(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", compensate="undo")
    async def act() -> None:
        await asyncio.sleep(0.4)
        shop.do("act")

    @wb.tool(effect="write")
    async def undo() -> None:
        shop.do("undo")

    @wb.agent
    async def agent(run: wb.Run) -> str:
        try:
            async with asyncio.timeout(0.1), run.transaction("tx"):
                await run.call(act)
        except TimeoutError:
            return "too slow"
        return "done"

    with opened(store_url, agent, tools=[undo]) as app:
        app.start("agent", run_id="r")
        work(app)
        assert app.result("r") == "too slow"
        assert [what for what, _ in shop.done] == ["act", "undo"]


def test_an_async_tool_that_exits_does_not_take_the_loop_with_it(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="read", retry=wb.Retry(attempts=1))
    async def leave() -> None:
        raise SystemExit(3)

    @wb.agent
    def plain(run: wb.Run) -> object:
        try:
            return run.call(leave)
        except wb.ToolFailed as failed:
            return failed.error_class

    @wb.agent
    async def other(run: wb.Run) -> object:
        try:
            return await run.call(leave)
        except wb.ToolFailed as failed:
            return failed.error_class

    with opened(store_url, plain, other) as app:
        app.start("plain", run_id="a")
        app.start("other", run_id="b")
        work(app)
        assert [app.result("a"), app.result("b")] == ["SystemExit", "SystemExit"]


def test_a_cancel_while_the_agent_thinks_is_carried_out_when_it_comes_to_a_wait(store_url: str) -> None:
    thinking, go_on = threading.Event(), threading.Event()

    @wb.agent
    def thinker(run: wb.Run) -> str:
        run.observe("x", 1)
        thinking.set()
        go_on.wait(20)
        run.wait_for("never")
        return "done"

    with opened(store_url, thinker) as app:
        app.start("thinker", run_id="r")
        thread = threading.Thread(target=lambda: work(app))
        thread.start()
        assert thinking.wait(20)
        app.store.do(RequestCancel(actor=ANN, run_id="r", reason="enough"))
        go_on.set()
        thread.join()
        assert app.status("r") == "cancelled"


def test_a_transaction_may_be_entered_again_when_nothing_was_undone(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def act(n: int) -> int:
        shop.do("act", n)
        return n

    @wb.agent
    def agent(run: wb.Run) -> object:
        for n in ("bad", 1):
            try:
                with run.transaction("tx"):
                    return run.call(act, n=n)
            except wb.BadArguments:
                continue
        return None

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        assert app.result("r") == 1


def test_a_tool_that_recovery_could_not_find_is_not_called(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def hidden() -> None:
        shop.do("hidden")

    box = {"tool": hidden}

    @wb.agent
    def agent(run: wb.Run) -> None:
        run.call(box["tool"])

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        work(app)
        assert app.store.run("r")["error_class"] == "UnknownTool"
        assert shop.done == []
    with opened(store_url, agent, tools=[hidden]) as app:
        app.start("agent", run_id="r2")
        work(app)
        assert app.status("r2") == "succeeded"


def test_a_stop_inside_a_task_group_hands_the_run_back(store_url: str, shop: Shop) -> None:
    workers: list[Any] = []

    @wb.tool(effect="write")
    async def act(n: int) -> int:
        shop.do("act", n)
        if workers and n == 1:
            workers.pop().stop()
        return n

    @wb.agent
    async def agent(run: wb.Run) -> str:
        for n in (1, 2):
            async with asyncio.TaskGroup() as group:
                group.create_task(run.call(act, n=n))
        return "done"

    with opened(store_url, agent) as app:
        app.start("agent", run_id="r")
        worker = app.worker()
        workers.append(worker)
        worker.work(until_idle=True)
        assert app.status("r") == "running"
        work(app)
        assert app.result("r") == "done"
        assert shop.done == [("act", 1), ("act", 2)]
