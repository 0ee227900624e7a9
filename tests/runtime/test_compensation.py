"""Undoing: transactions, an operator's word, and what cannot be undone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import walkback as wb
from tests.runtime.shop import Person, Shop, opened, ops, why, work
from walkback_store.errors import PreconditionFailed
from walkback_store.fsck import fsck

QUICK = wb.Retry(attempts=2, base=timedelta(milliseconds=1), cap=timedelta(milliseconds=2))


class Nope(Exception):
    """Declared definite."""


class Kit:
    """Tools that do, undo and refuse, and count."""

    def __init__(self, shop: Shop) -> None:
        @wb.tool(effect="write", compensate="undo")
        def act(n: int) -> dict[str, int]:
            shop.do("act", n)
            return {"id": n * 10}

        @wb.tool(effect="write", definite=(Nope,), retry=QUICK)
        def undo(n: int, result: dict[str, int], *, op: wb.Op) -> None:
            assert op.undoes is not None
            shop.do("undo", (n, result["id"], op.undoes.step))

        @wb.tool(effect="write")
        def mail(n: int) -> None:
            shop.do("mail", n)

        @wb.tool(effect="write", definite=(Nope,))
        def refuse() -> None:
            raise Nope("no")

        self.act, self.undo, self.mail, self.refuse = act, undo, mail, refuse
        self.tools = [act, undo, mail, refuse]


@pytest.fixture
def kit(shop: Shop) -> Kit:
    return Kit(shop)


def test_what_a_transaction_did_is_undone_the_latest_first_and_the_agent_goes_on(
    store_url: str, shop: Shop, kit: Kit
) -> None:
    @wb.agent
    def agent(run: wb.Run) -> str:
        run.call(kit.act, n=1)
        try:
            with run.transaction("outer"):
                run.call(kit.act, n=2)
                with run.transaction("inner"):
                    run.call(kit.act, n=3)
                run.call(kit.act, n=4)
                run.call(kit.refuse)
        except wb.ToolFailed as failed:
            run.state["why"] = failed.error
        run.call(kit.act, n=5)
        run.wait_for("go")
        return str(run.state["why"])

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        app.signal("r", "go")
        work(app)
        assert app.result("r") == "no"
        undone = [value for what, value in shop.done if what == "undo"]
        assert undone == [(4, 40, "4"), (3, 30, "3"), (2, 20, "2")]
        assert ops(app, "r")["1"] == "succeeded"
        assert ops(app, "r")["3"] == "compensated"
        assert ops(app, "r")["c3"] == "succeeded"
        assert fsck(app.store, deep=True).problems == []


def test_a_transaction_that_ends_well_or_parks_undoes_nothing(store_url: str, shop: Shop, kit: Kit) -> None:
    @wb.agent
    def agent(run: wb.Run) -> str:
        with run.transaction("tx"):
            run.call(kit.act, n=1)
            run.wait_for("go")
            run.call(kit.act, n=2)
        return "done"

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        assert shop.count("undo") == 0
        app.signal("r", "go")
        work(app)
        assert app.result("r") == "done"
        assert shop.count("undo") == 0


def test_a_transaction_that_was_undone_is_left_again_on_replay_whatever_the_code_does_now(
    store_url: str, shop: Shop, kit: Kit
) -> None:
    lives: list[int] = []

    @wb.agent
    def agent(run: wb.Run) -> str:
        lives.append(1)
        try:
            with run.transaction("tx"):
                run.call(kit.act, n=1)
                if len(lives) == 1:
                    raise ValueError("only the first time")
                run.call(kit.mail, n=7)
        except (ValueError, wb.TransactionUndone) as error:
            run.wait_for("go")
            return type(error).__name__
        return "done"

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        app.signal("r", "go")
        work(app)
        assert app.result("r") == "TransactionUndone"
        assert shop.count("mail") == 0
        assert shop.count("undo") == 1


def test_what_has_no_compensation_stands_and_a_person_is_told_once(store_url: str, shop: Shop, kit: Kit) -> None:
    @wb.agent
    def agent(run: wb.Run) -> str:
        try:
            with run.transaction("tx"):
                run.call(kit.act, n=1)
                run.call(kit.mail, n=2)
                run.call(kit.refuse)
        except wb.ToolFailed:
            return "undone"
        return "done"

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "review"
        assert "mail at step 2" in detail
        assert ops(app, "r")["1"] == "compensated"
        Person(app).resume("r")
        work(app)
        assert app.result("r") == "undone"


def test_a_compensation_that_fails_asks_a_person_and_is_tried_again_at_their_word(
    store_url: str, shop: Shop, kit: Kit
) -> None:
    @wb.agent
    def agent(run: wb.Run) -> str:
        try:
            with run.transaction("tx"):
                run.call(kit.act, n=1)
                shop.trouble = [Nope("closed for the night")]
                run.call(kit.refuse)
        except wb.ToolFailed:
            return "undone"
        return "done"

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        kind, detail = why(app, "r")
        assert kind == "compensation_failed"
        assert "closed for the night" in detail
        Person(app).resume("r")
        work(app)
        assert app.result("r") == "undone"
        assert ops(app, "r") == {"1": "compensated", "2": "failed", "c1": "failed", "c1~2": "succeeded"}


def test_an_unknown_compensation_is_settled_before_the_next_one(store_url: str, shop: Shop, kit: Kit) -> None:
    @wb.agent
    def agent(run: wb.Run) -> str:
        try:
            with run.transaction("tx"):
                run.call(kit.act, n=1)
                run.call(kit.act, n=2)
                shop.trouble = [ConnectionError("reset")]
                run.call(kit.refuse)
        except wb.ToolFailed:
            return "undone"
        return "done"

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        assert why(app, "r")[0] == "unknown"
        assert ops(app, "r") == {"1": "succeeded", "2": "succeeded", "3": "failed", "c2": "unknown"}
        Person(app).happened("r", "c2", None)
        work(app)
        assert app.result("r") == "undone"
        assert shop.count("undo") == 1


# --- an operator's word ------------------------------------------------------------------------------------------


def three(kit: Kit) -> wb.Agent:
    @wb.agent(name="three")
    def agent(run: wb.Run) -> str:
        run.call(kit.act, n=1)
        with run.transaction("tx"):
            run.call(kit.act, n=2)
        run.call(kit.act, n=3)
        return "done"

    return agent


@pytest.mark.parametrize(
    ("scope", "steps", "left"),
    [
        ("operation:2", ["2"], {"1": "succeeded", "2": "compensated", "3": "succeeded"}),
        ("transaction:tx@1", ["2"], {"1": "succeeded", "2": "compensated", "3": "succeeded"}),
        ("after:1", ["3", "2"], {"1": "succeeded", "2": "compensated", "3": "compensated"}),
        ("run", ["3", "2", "1"], {"1": "compensated", "2": "compensated", "3": "compensated"}),
    ],
)
def test_a_person_may_have_an_operation_a_transaction_the_end_or_all_of_a_finished_run_undone(
    scope: str, steps: list[str], left: dict[str, str], store_url: str, shop: Shop, kit: Kit
) -> None:
    with opened(store_url, three(kit), tools=kit.tools) as app:
        app.start("three", run_id="r")
        work(app)
        Person(app).undo("r", scope, steps)
        work(app)
        assert app.status("r") == "compensated"
        assert {step: status for step, status in ops(app, "r").items() if not step.startswith("c")} == left
        order = [value[2] for what, value in shop.done if what == "undo"]  # type: ignore[index]
        assert order == steps
        assert fsck(app.store).problems == []


def test_undoing_part_of_a_run_that_is_not_over_asks_what_to_do_with_it(store_url: str, shop: Shop, kit: Kit) -> None:
    @wb.agent
    def agent(run: wb.Run) -> str:
        run.call(kit.act, n=1)
        shop.trouble = [ConnectionError("reset")]
        run.call(kit.mail, n=2)
        return "done"

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        with pytest.raises(PreconditionFailed, match="not settled"):
            Person(app).undo("r", "operation:1", ["1"])
        Person(app).happened("r", "2", None)
        work(app)
        assert app.result("r") == "done"


def test_what_has_no_compensation_is_not_begun_at_a_persons_word_either(store_url: str, shop: Shop, kit: Kit) -> None:
    @wb.agent
    def agent(run: wb.Run) -> str:
        run.call(kit.act, n=1)
        run.call(kit.mail, n=2)
        return "done"

    with opened(store_url, agent, tools=kit.tools) as app:
        app.start("agent", run_id="r")
        work(app)
        Person(app).undo("r", "run", ["2", "1"])
        work(app)
        kind, detail = why(app, "r")
        assert kind == "review"
        assert "mail at step 2 has no compensation" in detail
        assert shop.count("undo") == 0


def test_an_app_whose_compensation_is_missing_or_does_not_fit_is_refused(store_url: str) -> None:
    @wb.tool(effect="write", compensate="not_there")
    def act() -> None: ...

    @wb.tool(effect="write")
    def odd(nothing_like_it: int) -> None: ...

    @wb.tool(effect="write", compensate="odd")
    def other(n: int) -> None: ...

    apps: list[list[wb.Tool]] = [[act], [other, odd]]
    for tools in apps:
        with pytest.raises(wb.ToolDefinitionError) as refused:
            wb.App(store_url, tools=tools)
        assert str(refused.value)


def test_a_compensation_may_itself_need_an_approval(store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write", compensate="undo")
    def act(n: int) -> None:
        shop.do("act")

    @wb.tool(effect="write", approval=True)
    def undo(n: int) -> None:
        shop.do("undo")

    @wb.agent
    def agent(run: wb.Run) -> str:
        try:
            with run.transaction("tx"):
                run.call(act, n=1)
                raise ValueError("no")
        except ValueError:
            return "undone"

    with opened(store_url, agent, tools=[undo]) as app:
        app.start("agent", run_id="r")
        work(app)
        assert app.store.run("r")["waits_for"] == "approval:c1"
        Person(app).approve("r", "c1")
        work(app)
        assert app.result("r") == "undone"
        assert shop.count("undo") == 1


def test_results_reach_the_compensation_as_they_were(store_url: str, shop: Shop) -> None:
    seen: list[Any] = []

    @wb.tool(effect="write", compensate="undo")
    def act(n: int) -> dict[str, Any]:
        return {"deep": [n, {"x": "y"}]}

    @wb.tool(effect="write")
    def undo(n: int, result: dict[str, Any]) -> None:
        seen.append((n, result))

    @wb.agent
    def agent(run: wb.Run) -> None:
        with run.transaction("tx"):
            run.call(act, n=1)
            raise ValueError("no")

    with opened(store_url, agent, tools=[undo]) as app:
        app.start("agent", run_id="r")
        work(app)
        assert app.status("r") == "failed"
        assert seen == [(1, {"deep": [1, {"x": "y"}]})]
