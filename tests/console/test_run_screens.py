"""The screens of runs, of one run, of workers and of the log, over stores that real runs have filled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

import walkback as wb
from tests.console.hostile_app import EVIL
from tests.console.incident import fill
from walkback_console.app import Walkback, options_for
from walkback_console.moments import TOO_LARGE, States
from walkback_console.screens.run import RunScreen
from walkback_console.screens.runs import KEPT, RunsScreen
from walkback_console.screens.workers import WorkersScreen
from walkback_store import Store, open_store
from walkback_store.errors import NotFound
from walkback_store.machine.store_wide import Freeze
from walkback_store.words import FreezeScope

LONG = 5_200
PATIENCE = 200
"""Looks at the screen, a twentieth of a second apart, before a condition counts as never true."""


class Refused(Exception):
    pass


@wb.tool(effect="read")
def read_price(sku: str) -> dict[str, Any]:
    return {"sku": sku, "cents": 1250}


@wb.tool(effect="write", compensate="void", describe=lambda a: f"invoice {a['order']}", idempotent=True)
def invoice(order: str, cents: int, *, op: wb.Op) -> dict[str, Any]:
    return {"id": f"inv-{order}", "cents": cents}


@wb.tool(effect="write", idempotent=True)
def void(result: dict[str, Any], order: str, cents: int, *, op: wb.Op) -> str:
    return f"voided {result['id']}"


@wb.tool(effect="write", definite=(Refused,), describe=lambda a: f"receipt to {a['to']}", retry=wb.Retry(attempts=1))
def send_receipt(to: str) -> str:
    raise Refused(f"no such address: {to}")


@wb.agent
def bill(run: wb.Run, order: str) -> str:
    run.plan(["price", "rate", "invoice", "receipt"])
    run.state["price"] = run.call(read_price, sku="T-100")
    rate = run.decide("rate", 0.0, rationale="the table has no such currency")
    run.state["rates"] = {"per_euro": rate, "currency": "CHF"}
    run.state["note"] = run.observe("note", f"bill {order}")
    with run.transaction("billing"):
        run.call(invoice, order=order, cents=run.state["price"]["cents"], into="invoice")
        run.call(send_receipt, to=f"{order}@nowhere.example")
    return order


@wb.agent
def count(run: wb.Run, steps: int) -> int:
    for n in range(steps):
        run.state["n"] = run.observe("rare" if n == 4321 else "tick", n)
    return steps


@wb.agent
def patient(run: wb.Run) -> None:
    run.observe("soon", 1)
    run.observe("now", 2)
    run.wait_for("go")
    run.observe("later", 3)


@wb.agent
def quick(run: wb.Run, n: int) -> int:
    if n % 10 == 3:
        raise ValueError(f"{n} is unlucky")
    return n


@wb.tool(effect="write", describe=lambda a: f"do {EVIL}", definite=(Refused,), retry=wb.Retry(attempts=1))
def nasty(text: str) -> str:
    raise Refused(EVIL)


@wb.agent
def hostile(run: wb.Run) -> None:
    run.state[f"key {EVIL}"] = {"value": EVIL}
    run.decide("what", EVIL, rationale=EVIL)
    run.observe("seen", {"text": EVIL})
    run.call(nasty, text=EVIL)


AGENTS = [bill, count, patient, quick, hostile]


def work(url: str, *starts: tuple[str, str, dict[str, Any]]) -> None:
    with open_store(url) as store:
        app = wb.App(store, agents=AGENTS)
        for agent, run_id, arguments in starts:
            app.start(agent, run_id=run_id, **arguments)
        app.run_until_idle()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'walkback.db'}"


class Driven:
    """The console on a store, and what is asked of that store."""

    def __init__(self, url: str) -> None:
        self.asked: list[int] = []
        options = options_for(url, environ={})
        self.app = Walkback(replace(options, open_store=lambda: self._watched(options.open_store()), ascii_only=False))
        self.pilot: Pilot[None] | None = None

    def _watched(self, store: Store) -> Store:
        timeline, runs = store.timeline, store.runs

        def timeline_(*args: Any, **more: Any) -> Any:
            rows = timeline(*args, **more)
            self.asked.append(len(rows))
            return rows

        def runs_(*args: Any, **more: Any) -> Any:
            page = runs(*args, **more)
            self.asked.append(len(page.rows))
            return page

        store.timeline, store.runs = timeline_, runs_  # type: ignore[method-assign]
        return store

    @property
    def text(self) -> str:
        """What is on the screen."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    @property
    def run(self) -> RunScreen:
        assert isinstance(self.app.screen, RunScreen)
        return self.app.screen

    @property
    def runs(self) -> RunsScreen:
        assert isinstance(self.app.screen, RunsScreen)
        return self.app.screen

    async def until(self, true: Callable[[], object], what: str = "") -> None:
        assert self.pilot is not None
        for _ in range(PATIENCE):
            if true():
                return
            await self.pilot.pause(0.05)
        raise AssertionError(f"{what or true} never came true; the screen:\n{self.text}")

    async def shows(self, *texts: str) -> None:
        await self.until(lambda: all(text in self.text for text in texts), f"{texts} on the screen")

    async def press(self, *keys: str) -> None:
        assert self.pilot is not None
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        names = {" ": "space", ":": "colon", "_": "underscore", "-": "minus", "#": "number_sign"}
        await self.press(*(names.get(c, c) for c in text))

    async def command(self, text: str) -> None:
        await self.press("colon")
        await self.type(text)
        await self.press("enter")


def drive(url: str, steps: Callable[[Driven], Coroutine[Any, Any, None]], size: tuple[int, int] = (80, 24)) -> Driven:
    async def go() -> Driven:
        driven = Driven(url)
        async with driven.app.run_test(size=size) as pilot:
            driven.pilot = pilot
            await driven.until(lambda: driven.app.overview.at, "the store's first answer")
            await steps(driven)
            driven.app.leave()
        return driven

    return asyncio.run(go())


# --- one run -----------------------------------------------------------------------------------------------------


@pytest.fixture
def billed(url: str) -> str:
    work(url, ("bill", "order-1", {"order": "1"}))
    return url


def test_a_timeline_says_what_was_a_write_and_what_was_undone(billed: str) -> None:
    async def steps(d: Driven) -> None:
        await d.command("open order-1")
        await d.shows("decide", "send_receipt")
        rows = {line.split()[0]: line for line in (re.sub("^[▌ ]+", "", x) for x in d.text.split("\n")) if line.strip()}
        for step, words in {
            "1": ("read ", "✓ succeeded"),
            "4": ("WRITE", "↩ compensated", "undone by c4"),
            "5": ("WRITE", "✗ failed", "receipt to 1@nowhere.example"),
            "c4": ("WRITE undoes 4", "✓ succeeded"),
        }.items():
            assert [word for word in words if word not in rows[step]] == []
        assert "WRITE" not in rows["1"] + rows["2"] + rows["3"]
        assert "no such address" in d.text

    drive(billed, steps, (116, 30))


def test_one_pane_at_a_time_where_there_is_no_room_for_two(billed: str) -> None:
    async def narrow(d: Driven) -> None:
        await d.command("open order-1")
        await d.shows("WRITE undoes 4", "↩ compensated", "✗ failed")
        assert "operation]" not in d.text
        await d.press("tab")
        await d.shows("[3 operation]")
        assert "WRITE undoes 4" not in d.text
        await d.press("escape")
        await d.shows("WRITE undoes 4")

    async def wide(d: Driven) -> None:
        await d.command("open order-1")
        await d.shows("WRITE undoes 4", "[3 operation]", "no such address")

    drive(billed, narrow)
    drive(billed, wide, (140, 40))


def test_faults_only_and_search_leave_the_steps_that_are_asked_for(billed: str) -> None:
    async def steps(d: Driven) -> None:
        await d.command("open order-1")
        await d.shows("read_price")
        await d.press("x")
        await d.until(lambda: d.run.list.source.count == 2)
        await d.shows("send_receipt", "faults only", "2 steps")
        assert "read_price" not in d.text
        await d.press("x")
        await d.shows("read_price")
        await d.press("slash")
        await d.type("invoice")
        await d.press("enter")
        await d.until(lambda: d.run.list.source.count == 1)
        await d.until(lambda: d.run.list.has_focus)
        await d.press("escape")  # first out of the search, not out of the run
        await d.until(lambda: d.run.list.source.count > 4)

    drive(billed, steps)


def test_state_and_diff_are_those_of_the_step_under_the_cursor(billed: str) -> None:
    async def steps(d: Driven) -> None:
        await d.command("open order-1#2")
        await d.until(lambda: isinstance(d.app.screen, RunScreen) and d.run.list.selected == "2")
        await d.press("d")
        await d.shows("[2 diff]", "added", "rates", '"per_euro": 0.0')
        await d.press("s")
        await d.shows("[1 state]", "after step 2", "rates")
        await d.press("B")
        await d.shows("before step 2")
        await d.until(lambda: "rates" not in d.text)
        await d.press("a", "full_stop")
        await d.shows("after step 3", "note")
        await d.press("comma", "comma")
        await d.shows("after step 1", "price")
        assert "rates" not in d.text
        await d.press("greater_than_sign")
        await d.until(lambda: d.run.list.selected == "4")
        await d.press("g")
        await d.type("3")
        await d.press("enter")
        await d.until(lambda: d.run.list.selected == "3")

    drive(billed, steps)


def test_the_record_events_and_layers_of_a_step_are_a_key_away(billed: str) -> None:
    async def steps(d: Driven) -> None:
        await d.command("open order-1#2")
        await d.until(lambda: isinstance(d.app.screen, RunScreen) and d.run.list.selected == "2")
        await d.press("3")
        await d.shows("chosen", "because", "the table has no such currency")
        await d.press("4")
        await d.shows("[4 events]", "decision", "rationale")
        await d.press("5")
        await d.shows("TASK POSITION", "✓ done", "to do", "read_price", "because: the table has no such currency")
        assert "invoice 1" not in d.text  # that came later
        await d.press("escape", "home")
        await d.until(lambda: d.run.list.selected == "1")
        await d.press("enter")
        await d.until(lambda: type(d.app.screen).__name__ == "OperationScreen")

    drive(billed, steps, (80, 40))


def test_who_wrote_a_bad_value_takes_seven_keys(url: str, tmp_path: Path) -> None:
    fill(url, tmp_path / "world")

    async def steps(d: Driven) -> None:
        await d.press("colon")  # 1
        await d.type("runs status:failed")
        await d.press("enter")  # 2
        await d.shows("reconcile-2", "3 runs")
        await d.press("enter")  # 3
        await d.shows("Run reconcile-2", "observe")
        await d.press("s")  # 4
        await d.shows("after step")
        await d.press("slash")  # 5
        await d.type("per_euro")
        await d.press("enter")  # 6
        await d.until(lambda: d.run.detail.state.has_focus and d.run.detail.state.selected == "rates.per_euro")
        await d.press("b")  # 7
        await d.shows("rates.per_euro = 0.0 was written by step 2, decide rate", "[2 diff]", "added")
        assert d.run.list.selected == "2"

    drive(url, steps)


def test_a_search_typed_before_the_state_is_there_finds_it_when_it_comes(billed: str) -> None:
    async def steps(d: Driven) -> None:
        await d.command("open order-1#3")
        await d.until(lambda: isinstance(d.app.screen, RunScreen) and d.run.list.selected == "3")
        await d.press("s", "slash", "p", "e", "r", "underscore", "enter", "b")
        await d.shows("rates.per_euro = 0.0 was written by step 2")

    drive(billed, steps)


def test_a_long_run_opens_at_its_newest_step_and_is_never_read_whole(url: str) -> None:
    work(url, ("count", "long", {"steps": LONG}))

    async def steps(d: Driven) -> None:
        d.asked.clear()
        await d.command("open long")
        await d.until(lambda: isinstance(d.app.screen, RunScreen) and d.run.list.selected == str(LONG))
        await d.shows(str(LONG), "observe")
        assert sum(d.asked) <= 1_000, "a page or two, not the run"
        await d.press("home")
        await d.until(lambda: d.run.list.selected == "1")
        await d.press("g")
        await d.type("2600")
        await d.press("enter")
        await d.until(lambda: d.run.list.selected == "2600")
        await d.press("s")
        await d.shows("n 2599")
        await d.press("escape", "slash")
        await d.type("rare")
        await d.press("enter")
        await d.until(lambda: d.run.list.source.count == 1 and d.run.list.selected == "4322")
        assert sum(d.asked) <= 2_500

    drive(url, steps)


def test_new_steps_appear_without_moving_the_cursor(url: str) -> None:
    work(url, ("patient", "first", {}))

    async def steps(d: Driven) -> None:
        await d.command("open first")
        await d.until(lambda: isinstance(d.app.screen, RunScreen) and d.run.list.selected == "2")
        await d.shows("WAITING", "the signal go")
        await d.press("up")
        await asyncio.to_thread(go_on, url, "first")
        await d.shows("SUCCEEDED", "later")
        assert d.run.list.selected == "1"

    drive(url, steps)


def go_on(url: str, run_id: str) -> None:
    with open_store(url) as store:
        app = wb.App(store, agents=AGENTS)
        app.signal(run_id, "go", None)
        app.run_until_idle()


def test_a_state_that_is_too_large_is_refused_with_its_size(store_url: str) -> None:
    work(store_url, ("quick", "small", {"n": 1}))
    with open_store(store_url) as store:
        assert store.state_size("small", 0) == len(store.state_bytes("small", 0))
        with pytest.raises(NotFound):
            store.state_size("small", 99)
        with pytest.raises(NotFound):
            store.state_size("none", 0)
        store.state_size = lambda run_id, n: TOO_LARGE + 1  # type: ignore[method-assign]
        found = States().read(store, "small", 0)
    assert "50 MB" in found.note


def test_an_answer_that_comes_after_its_screen_was_left_is_for_nobody(billed: str) -> None:
    async def steps(d: Driven) -> None:
        for _ in range(20):
            d.app.open_run("order-1")
            d.app.pop_screen()
            d.app.open_runs()
            d.app.pop_screen()
        await d.command("open order-1")
        await d.shows("WRITE undoes 4")

    drive(billed, steps)


# --- all runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def thousand(url: str) -> str:
    work(url, *(("quick", f"run-{n:04}", {"n": n}) for n in range(1_200)))
    return url


def test_a_thousand_runs_are_read_page_by_page(thousand: str) -> None:
    async def steps(d: Driven) -> None:
        d.asked.clear()
        await d.command("runs")
        await d.shows("run-1199", "1,200 runs")
        assert max(d.asked) <= 300
        for _ in range(60):
            await d.press("pagedown")
            if d.runs.list.selected == "run-0000":
                break
            await d.until(lambda: not d.runs._growing)
        await d.until(lambda: d.runs.list.selected == "run-0000")
        assert len(d.runs._window.rows) <= KEPT
        await d.press("home")
        await d.until(lambda: d.runs.list.selected == "run-1199")
        await d.press("end")
        await d.until(lambda: d.runs.list.selected == "run-0000")
        await d.shows("run-0000")
        for _ in range(60):
            await d.press("pageup")
            if d.runs.list.selected == "run-1199":
                break
            await d.until(lambda: not d.runs._growing)
        await d.until(lambda: d.runs.list.selected == "run-1199")

    drive(thousand, steps, (130, 60))


def test_runs_are_filtered_while_one_types(thousand: str) -> None:
    async def steps(d: Driven) -> None:
        await d.command("runs")
        await d.shows("1,200 runs")
        await d.press("slash")
        await d.type("run-001")
        await d.shows("10 runs", "run-0013")
        await d.press("enter")
        await d.until(lambda: d.runs.list.has_focus)
        await d.press("x")
        await d.shows("faults only", "1 run", "run-0013", "ValueError")
        await d.press("enter")
        await d.shows("Run run-0013", "13 is unlucky")
        await d.press("escape")
        await d.shows("faults only")
        await d.press("m")
        await d.shows("with the same error")

    drive(thousand, steps)


def test_a_new_run_is_announced_and_moves_nothing(url: str) -> None:
    work(url, *(("quick", f"run-{n:02}", {"n": n}) for n in range(40)))

    async def steps(d: Driven) -> None:
        await d.command("runs")
        await d.shows("run-39")
        for _ in range(20):
            await d.press("down")
        await d.until(lambda: d.runs.list.selected == "run-19")
        line = next(n for n, text in enumerate(d.text.split("\n")) if "▌" in text)
        await asyncio.to_thread(work, url, *(("quick", f"late-{n}", {"n": n}) for n in range(3)))
        await d.shows("3 new ↑")
        assert d.runs.list.selected == "run-19"
        assert next(n for n, text in enumerate(d.text.split("\n")) if "▌" in text) == line
        await d.press("home")
        await d.shows("late-2")
        await d.until(lambda: "new ↑" not in d.text)

    drive(url, steps)


# --- workers, log, hostile text ----------------------------------------------------------------------------------


def test_a_freeze_is_lifted_from_its_row_and_stands_in_the_log(billed: str) -> None:
    async def steps(d: Driven) -> None:
        with open_store(billed) as store:
            for name in ("invoice", "void"):
                store.do(
                    Freeze(actor=d.app.who.actor, scope=FreezeScope.TOOL, name=name, reason="the bank is being moved")
                )
        await d.command("workers")
        await d.shows("FROZEN: tool invoice", "FROZEN: tool void", "the bank is being moved")
        assert isinstance(d.app.screen, WorkersScreen)
        await d.press("down", "U")
        await d.shows("unfreeze", "Calls of tool void are made again")
        await d.type("done")
        await d.press("enter")
        await d.shows("gone: FREEZE ■ FROZEN: tool void", "FREEZE   ■ FROZEN: tool invoice")
        await d.press("U")
        await d.shows("that row is gone")
        await d.command("log")
        await d.shows("walkback unfreeze tool void", "done")

    drive(billed, steps)


CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_hostile_text_is_inert_on_every_tab(url: str, size: tuple[int, int]) -> None:
    work(url, ("hostile", "evil", {}))

    async def steps(d: Driven) -> None:
        async def clean() -> None:
            assert not CONTROL.search(d.text), repr(d.text)

        await d.command("runs")
        await d.shows("evil")
        await clean()
        await d.press("enter")
        await d.shows("Run evil", "nasty")
        await clean()
        await d.press("home")
        for key, shown in zip("12345", ("state", "diff", "operation", "events", "layers"), strict=True):
            await d.press(key)
            await d.shows(f"[{key} {shown}]")
            await d.until(lambda: "reading ..." not in d.text)
            await clean()
            await d.press("full_stop")
            await d.until(lambda: "reading ..." not in d.text)
            await clean()
        await d.press("2", "s", "slash")
        await d.type("value")
        await d.press("enter", "enter")
        await d.until(lambda: type(d.app.screen).__name__ == "WholeScreen")
        await clean()

    drive(url, steps, size)
