"""A state is opened where one looks; a diff says in words what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot

from walkback_console.diffs import Change, diff
from walkback_console.trees import MISSING, Path
from walkback_console.widgets.diff_view import DiffView
from walkback_console.widgets.state_view import StateView

V = TypeVar("V", StateView, DiffView)

STATE: dict[str, Any] = {
    "email": "ann@example.com",
    "order": {"items": [{"price": 150}, {"price": 2}], "note": "x" * 500},
    "zip": None,
}


class Shown(App[None]):
    def __init__(self, view: StateView | DiffView) -> None:
        super().__init__()
        self.view = view
        self.heard: list[Message] = []

    def compose(self) -> ComposeResult:
        yield self.view

    def on_state_view_whole(self, event: StateView.Whole) -> None:
        self.heard.append(event)

    def on_state_view_copied(self, event: StateView.Copied) -> None:
        self.heard.append(event)

    def on_diff_view_whole(self, event: DiffView.Whole) -> None:
        self.heard.append(event)

    def lines(self) -> list[str]:
        shown = [self.view.render_line(y).text.rstrip() for y in range(self.view.size.height)]
        return [line for line in shown if line]


def at(view: StateView | DiffView) -> Path | None:
    return view.selected_path


def value(view: StateView) -> object:
    return view.selected_value


def show(
    view: V, claim: Callable[[Shown, V, Pilot[None]], Coroutine[Any, Any, None]], size: tuple[int, int] = (60, 16)
) -> None:
    async def run() -> None:
        app = Shown(view)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await claim(app, view, pilot)

    asyncio.run(run())


def test_a_state_is_opened_and_closed_by_keys() -> None:
    async def claim(app: Shown, view: StateView, pilot: Pilot[None]) -> None:
        assert app.lines() == [
            "▌ ▾ $ {3 keys} dict",
            '      email "ann@example.com" text 15',
            "    ▸ order {2 keys} dict",
            "      zip null null",
        ]
        await pilot.press("down", "down", "enter", "right", "right")
        assert at(view) == ("order", "items")
        assert app.lines()[2:7] == [
            "    ▾ order {2 keys} dict",
            "▌     ▾ items [2 items] list",
            "        ▸ [0] {1 key} dict",
            "        ▸ [1] {1 key} dict",
            '        note "xxxxxxxxxxxxxxxxxx" +482 characters text 500',
        ]
        await pilot.press("left", "left", "space")
        assert at(view) == ("order",)
        assert len(app.lines()) == 4

    show(StateView(STATE), claim)


def test_enter_on_a_value_asks_for_all_of_it_and_copying_takes_it_exactly() -> None:
    async def claim(app: Shown, view: StateView, pilot: Pilot[None]) -> None:
        assert view.reveal(("order", "note"))
        await pilot.press("enter")
        await pilot.pause()
        whole = app.heard[-1]
        assert isinstance(whole, StateView.Whole)
        assert (whole.path, whole.value) == (("order", "note"), "x" * 500)
        view.action_copy_path()
        view.action_copy_value()
        await pilot.pause()
        copied = [(event.what, event.text) for event in app.heard if isinstance(event, StateView.Copied)]
        assert copied == [("path", "order.note"), ("value", "x" * 500)]
        assert not view.reveal(("nothing",))

    show(StateView(STATE), claim)


def test_the_cursor_stays_on_its_path_while_time_moves() -> None:
    async def claim(app: Shown, view: StateView, pilot: Pilot[None]) -> None:
        view.reveal(("order", "items", 0, "price"))
        await pilot.pause()
        line = next(n for n, shown in enumerate(app.lines()) if shown.startswith("▌"))
        view.show({"a": 1, **STATE, "order": {"items": [{"price": 999}]}})
        await pilot.pause()
        assert value(view) == 999
        view.show({"order": {"items": []}})
        await pilot.pause()
        assert view.selected_is_ghost
        assert value(view) is MISSING
        assert any("gone:" in shown for shown in app.lines())
        view.show(STATE)
        await pilot.pause()
        assert value(view) == 150
        assert app.lines()[line].startswith("▌")

    show(StateView(STATE), claim)


def test_a_search_opens_what_it_finds() -> None:
    async def claim(app: Shown, view: StateView, pilot: Pilot[None]) -> None:
        assert view.find("price")
        assert at(view) == ("order", "items", 0, "price")
        assert view.find_next()
        assert at(view) == ("order", "items", 1, "price")
        assert view.find_next()
        assert at(view) == ("order", "items", 0, "price")
        assert view.find_next(-1)
        assert at(view) == ("order", "items", 1, "price")
        assert len(view.matching) == 2
        assert not view.find("nowhere")

    show(StateView(STATE), claim)


def test_hostile_keys_and_values_are_inert_and_depth_leaves_room() -> None:
    deep: object = "\x1b]0;x\x07[@click=app.quit]"
    for _ in range(60):
        deep = {"\x9b2J[/x]\u202e": deep}

    async def claim(app: Shown, view: StateView, pilot: Pilot[None]) -> None:
        path = ("\x9b2J[/x]\u202e",) * 60
        assert view.reveal(path)
        await pilot.pause()
        assert at(view) == path
        shown = "\n".join(app.lines())
        assert all(c.isprintable() or c == "\n" for c in shown)
        assert "60> " in shown

    show(StateView(deep), claim)


def test_no_state_says_so() -> None:
    async def claim(app: Shown, view: StateView, pilot: Pilot[None]) -> None:
        assert app.lines() == ["  No state was recorded here."]
        await pilot.press("enter", "right", "left", "space", "n")
        view.show({"a": 1})
        await pilot.pause()
        assert app.lines() == ["▌ ▾ $ {1 key} dict", "      a 1 int"]

    show(StateView(), claim)


def test_changes_have_a_glyph_a_word_and_both_values() -> None:
    changes = diff(
        {"a": 1, "b": [1, 2], "text": "pay ten dollars to Ann for the order of last week, please"},
        {"a": True, "b": [1, 2, 3], "new": None, "text": "pay fifty dollars to Ann for the order of last week, please"},
    )

    async def claim(app: Shown, view: DiffView, pilot: Pilot[None]) -> None:
        assert app.lines() == [
            "▌ ~ changed a  1 → true",
            "  + added   b[2]  3",
            "  + added   new  null",
            "  ~ changed text",
            "      pay [-ten-]{+fifty+} dollars to Ann for the order of",
            "      last week, please",
        ]
        await pilot.press("end", "enter")
        await pilot.pause()
        whole = app.heard[-1]
        assert isinstance(whole, DiffView.Whole)
        assert whole.change == changes[-1]
        assert at(view) == ("text",)
        assert view.find("fifty")

    show(DiffView(changes), claim)


def test_a_long_value_is_folded_and_what_is_left_of_it_counted() -> None:
    changes = [Change(("note",), "removed", "word " * 2000, MISSING), Change(("k",), "added", MISSING, [1] * 30)]

    async def claim(app: Shown, view: DiffView, pilot: Pilot[None]) -> None:
        lines = [view.source.row(n) for n in range(view.source.count)]
        shown = ["".join(text for _, text in line.pieces) for line in lines if line is not None]
        assert shown[0] == "note"
        assert shown[1].startswith('    - "word word')
        assert shown[41] == "    +7,962 characters: enter opens it whole"
        assert "".join(line[6:] for line in shown[43:]) == "[" + ", ".join(["1"] * 30) + "]"
        await pilot.resize_terminal(100, 16)
        await pilot.pause()
        assert view.source.count < len(shown)
        assert view.selected is not None

    show(DiffView(changes), claim)


def test_no_change_says_so_and_another_diff_starts_at_its_top() -> None:
    async def claim(app: Shown, view: DiffView, pilot: Pilot[None]) -> None:
        assert app.lines() == ["  Nothing changed."]
        await pilot.press("enter", "down")
        view.show(diff({"x\x1b": "\x9b"}, {}))
        await pilot.pause()
        assert app.lines() == ['▌ - removed ["x\\u001b"]  "<U+009B>"']
        view.show([])
        await pilot.pause()
        assert app.lines() == ["  Nothing changed."]

    show(DiffView(), claim)
