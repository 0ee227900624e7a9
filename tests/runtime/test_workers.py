"""Workers in one process: who takes what, how many at once, and what they leave behind."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

import walkback as wb
from tests.runtime.shop import Shop, kinds, opened, until_threads_end, why, work
from walkback.testing import Faults
from walkback.worker import Worker
from walkback_store.machine.store_wide import LoseWorker


def until(condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come to that")


def in_background(worker: Worker, **more: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: worker.work(**more))
    thread.start()
    return thread


def test_a_worker_takes_only_the_versions_that_it_has(store_url: str) -> None:
    old = wb.agent(name="a", version="1")(lambda run: "old")
    new = wb.agent(name="a", version="2")(lambda run: "new")
    with opened(store_url, new) as app:
        app.start("a", run_id="new")
        with opened(store_url, old) as other:
            other.start("a", run_id="old")
        work(app)
        assert (app.status("new"), app.status("old")) == ("succeeded", "running")
    with opened(store_url, old, new) as both:
        both.start("a", run_id="newest")
        work(both)
        assert [both.result(r) for r in ("old", "new", "newest")] == ["old", "new", "new"]


def test_runs_of_one_worker_go_on_side_by_side_up_to_the_limits(store_url: str) -> None:
    lock, inside = threading.Lock(), {"all": 0, "few": 0, "most": 0, "most few": 0}

    @wb.tool(effect="write", repeatable=True)
    def act(who: str) -> None:
        with lock:
            inside["all"] += 1
            inside["few"] += who == "few"
            inside["most"] = max(inside["most"], inside["all"])
            inside["most few"] = max(inside["most few"], inside["few"])
        threading.Event().wait(0.1)
        with lock:
            inside["all"] -= 1
            inside["few"] -= who == "few"

    @wb.agent(concurrency=2)
    def few(run: wb.Run) -> None:
        run.call(act, who="few")

    @wb.agent
    def many(run: wb.Run) -> None:
        run.call(act, who="many")

    with opened(store_url, few, many) as app:
        for n in range(6):
            app.start("few", run_id=f"f{n}")
            app.start("many", run_id=f"m{n}")
        app.run_until_idle(concurrency=5, wait=2)
        assert {app.status(f"{k}{n}") for k in "fm" for n in range(6)} == {"succeeded"}
        assert inside["most few"] <= 2
        assert 3 <= inside["most"] <= 5


def test_a_worker_that_is_asked_to_stop_finishes_the_step_and_hands_the_run_back(store_url: str, shop: Shop) -> None:
    at_work, go_on = threading.Event(), threading.Event()

    @wb.tool(effect="write")
    def act(n: int) -> int:
        at_work.set()
        go_on.wait(20)
        shop.do("act", n)
        return n

    @wb.agent
    def two(run: wb.Run) -> list[int]:
        return [run.call(act, n=1), run.call(act, n=2)]

    with opened(store_url, two) as app:
        app.start("two", run_id="r")
        worker = app.worker()
        thread = in_background(worker)
        assert at_work.wait(20)
        worker.stop()
        go_on.set()
        thread.join()
        row = app.store.run("r")
        assert (row["status"], row["worker"]) == ("running", None)
        assert shop.done == [("act", 1)]
        assert [w["status"] for w in app.store.workers()] == ["stopped"]
        work(app)
        assert app.result("r") == [1, 2]
        assert shop.done == [("act", 1), ("act", 2)]


def test_a_worker_that_was_declared_lost_goes_on_under_another_name(store_url: str) -> None:
    @wb.agent
    def nothing(run: wb.Run) -> str:
        return "done"

    with opened(store_url, nothing) as app:
        worker = app.worker(lease=0.4)
        thread = in_background(worker)
        until(lambda: app.store.workers())
        first = app.store.workers()[0]["worker"]

        def lose() -> bool:
            row = app.store.worker(first)
            assert row is not None
            try:
                app.store.do(LoseWorker(actor="system", worker=first, beat=row["beat"], reason="a test"))
            except wb.StoreError:
                return False  # it beat just now
            return True

        until(lose)
        until(lambda: any(w["status"] == "alive" and w["worker"] != first for w in app.store.workers()))
        app.start("nothing", run_id="r")
        until(lambda: app.status("r") == "succeeded")
        worker.stop()
        thread.join()


def test_a_worker_that_lost_its_lease_in_the_middle_changes_nothing_but_says_what_it_learned(
    store_url: str, shop: Shop
) -> None:
    at_work, go_on = threading.Event(), threading.Event()

    @wb.tool(effect="write", idempotent=True, retry=wb.Retry(base=timedelta(milliseconds=1)), timeout=1)
    def act(*, op: wb.Op) -> int:
        shop.do("act", op.key)
        if op.attempt == 1:
            at_work.set()
            go_on.wait(20)
        return op.attempt

    @wb.agent
    def one(run: wb.Run) -> object:
        return run.call(act)

    with opened(store_url, one) as app:
        app.start("one", run_id="r")
        first = app.worker()
        thread = in_background(first, grace=1)
        assert at_work.wait(20)
        row = app.store.worker(first.name)
        assert row is not None
        app.store.do(LoseWorker(actor="system", worker=first.name, beat=row["beat"], reason="a test"))
        first.stop()
        second = in_background(app.worker(), until_idle=True)
        until(lambda: app.status("r") == "succeeded")
        go_on.set()
        second.join()
        thread.join()
        until(lambda: "late_evidence" in kinds(app, "r"))
        until_threads_end()
        assert app.result("r") == 2
        assert len({key for _, key in shop.done}) == 1
        assert app.store.operation("r", "1").operation["duplicate_suspected"] == 0


def test_a_run_that_takes_three_workers_with_it_is_looked_at_by_a_person(store_url: str) -> None:
    lives: list[int] = []
    stuck = threading.Event()

    @wb.agent
    def deadly(run: wb.Run) -> str:
        lives.append(1)
        if len(lives) <= 3:
            stuck.wait(60)
        return "done"

    with opened(store_url, deadly) as app:
        app.start("deadly", run_id="r")
        for n in range(3):
            worker = app.worker(name=f"w{n}")
            thread = in_background(worker, grace=0)
            until(lambda n=n: len(lives) == n + 1)
            worker.stop()
            thread.join()
            row = app.store.worker(f"w{n}")
            assert row is not None
            app.store.do(LoseWorker(actor="system", worker=f"w{n}", beat=row["beat"], reason="a test"))
        work(app)
        kind, detail = why(app, "r")
        assert kind == "review"
        assert "3 workers" in detail
        stuck.set()
        until_threads_end()


def test_a_fault_of_the_runtime_itself_is_put_before_a_person(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from walkback import execution

    @wb.agent
    def nothing(run: wb.Run) -> None: ...

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    with opened(store_url, nothing) as app:
        app.start("nothing", run_id="r")
        monkeypatch.setattr(execution.Execution, "_first_state", broken)
        work(app)
        kind, detail = why(app, "r")
        assert kind == "review"
        assert "a fault of ours" in detail


@pytest.mark.parametrize("point", ["commit:Intend", "commit:Settle", "commit:FinishRun"])
def test_a_commit_whose_answer_is_lost_is_found_in_the_log(point: str, store_url: str, shop: Shop) -> None:
    @wb.tool(effect="write")
    def act() -> str:
        shop.do("act")
        return "ok"

    @wb.agent
    def plain(run: wb.Run) -> object:
        return run.call(act)

    @wb.agent
    async def other(run: wb.Run) -> object:
        return await run.call(act)

    for agent in (plain, other):
        with opened(store_url, agent, faults=Faults().lose_commit(point)) as app:
            app.start(agent, run_id=agent.name)
            work(app)
            assert app.result(agent.name) == "ok"
    assert shop.count("act") == 2


def test_an_answer_that_is_lost_on_the_way_is_found_by_verify(store_url: str, shop: Shop) -> None:
    def look(op: wb.Op) -> wb.Evidence:
        return wb.happened("found") if shop.count("act") else wb.absent()

    @wb.tool(effect="write", verify=look, timeout=0.2)
    def act() -> str:
        shop.do("act")
        return "ok"

    @wb.agent
    def plain(run: wb.Run) -> object:
        return run.call(act)

    @wb.agent
    async def other(run: wb.Run) -> object:
        return await run.call(act)

    for agent in (plain, other):
        shop.done.clear()
        with opened(store_url, agent, faults=Faults().lose_answer("act")) as app:
            app.start(agent, run_id=agent.name)
            work(app)
            assert app.result(agent.name) == "found"
            assert shop.count("act") == 1


def test_an_app_says_what_is_wrong_with_it_before_anything_starts(store_url: str) -> None:
    @wb.agent
    def a(run: wb.Run) -> None: ...

    with pytest.raises(wb.DefinitionError, match="policy files are not supported yet"):
        wb.App(store_url, agents=[a], policy="policy.toml")
    with pytest.raises(wb.DefinitionError, match="two agents called"):
        wb.App(store_url, agents=[a, wb.agent(name="a")(lambda run: 1)])
    with pytest.raises(wb.DefinitionError, match="no agents"):
        wb.App(store_url).run_until_idle()
    with pytest.raises(wb.DefinitionError, match="decorate"):
        wb.App(store_url, agents=[lambda run: None])  # type: ignore[list-item]
    with pytest.raises(wb.DefinitionError, match="first parameter"):
        wb.agent(lambda: None)
    with pytest.raises(wb.DefinitionError, match="every parameter has a name"):
        wb.agent(lambda run, **more: None)
