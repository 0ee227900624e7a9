"""The list under every screen: the cursor stays on its id, and what is acted on has been seen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.strip import Strip

from walkback_console.safe_text import safe
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.sources import ListSource, PagedSource, Source

Rows = LineList[str]


def draw(row: str, width: int, state: RowState) -> list[Text]:
    return [Text(("gone: " if state.ghost else "") + safe(row)), Text(f"below {safe(row)}")]


def rows(*names: str) -> ListSource[str]:
    return ListSource(names, key=str)


def numbered(count: int, first: int = 0) -> ListSource[str]:
    return rows(*(f"row{n}" for n in range(first, first + count)))


class Shown(App[None]):
    def __init__(self, source: Source[str], **more: Any) -> None:
        super().__init__()
        self.lines = Rows(source, draw, matches=lambda row, text: text in row, **more)
        self.heard: list[tuple[str, object]] = []

    def compose(self) -> ComposeResult:
        yield self.lines

    def on_line_list_selected(self, event: LineList.Selected) -> None:
        self.heard.append(("selected", event.key))

    def on_line_list_opened(self, event: LineList.Opened) -> None:
        self.heard.append(("opened", event.key))

    def on_line_list_gone(self, event: LineList.Gone) -> None:
        self.heard.append(("gone", event.key))

    def on_line_list_unseen(self, event: LineList.Unseen) -> None:
        self.heard.append(("unseen", event.key))

    def on_line_list_wanted(self, event: LineList.Wanted) -> None:
        self.heard.append(("wanted", (event.first, event.last)))

    def screen_lines(self) -> list[str]:
        height = self.lines.size.height
        return [self.lines.render_line(y).text.rstrip() for y in range(height)]

    def line_of_cursor(self) -> int:
        return next(n for n, line in enumerate(self.screen_lines()) if line.startswith(("▌", ">")))


def show(
    source: Source[str],
    claim: Callable[[Shown, Pilot[None]], Coroutine[Any, Any, None]],
    *,
    size: tuple[int, int] = (40, 10),
    **more: Any,
) -> None:
    async def run() -> None:
        app = Shown(source, **more)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await claim(app, pilot)

    asyncio.run(run())


def test_keys_move_the_cursor_and_say_so() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        await pilot.press("j", "down", "k", "end", "home", "pagedown", "enter")
        await pilot.pause()
        assert [key for what, key in app.heard if what == "selected"] == [
            "row1",
            "row2",
            "row1",
            "row99",
            "row0",
            "row9",
        ]
        assert app.heard[-1] == ("opened", "row9")
        assert app.screen_lines()[9] == "▌ row9"

    show(numbered(100), claim)


def test_the_selected_row_keeps_its_line_when_rows_come_and_go() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        await pilot.press("pagedown", "pagedown", "up", "up")
        line = app.line_of_cursor()
        assert app.lines.selected == "row16"
        for names in (
            [f"row{n}" for n in range(-5, 100)],  # five above
            [f"row{n}" for n in range(12, 100)],  # many gone above: the rest does not fill the lines above
            [f"row{n}" for n in range(12, 18)],  # gone below, too
            ["row16"],
            [f"row{n}" for n in range(0, 17)],
            [f"row{n}" for n in range(100, 0, -1)],  # in another order
        ):
            app.lines.replace(rows(*names))
            await pilot.pause()
            assert app.lines.selected == "row16"
            assert app.line_of_cursor() == line, names
            assert app.screen_lines()[line] == "▌ row16"
            assert app.lines.painted == "row16"

    show(numbered(100), claim)


def test_what_appears_above_is_counted_and_not_scrolled_to() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        before = app.screen_lines()
        app.lines.replace(rows("new1", "new2", "new3", *(f"row{n}" for n in range(100))))
        await pilot.pause()
        assert app.screen_lines() == before
        assert app.lines.new_above == 3
        app.lines.replace(rows("new1", "new2", "new3", "row0", "between", *(f"row{n}" for n in range(1, 100))))
        await pilot.pause()
        assert app.lines.new_above == 3
        await pilot.press("up")
        assert app.lines.new_above == 2
        await pilot.press("home")
        assert app.lines.new_above == 0

    show(numbered(100), claim)


def test_a_removed_row_stays_as_a_ghost_until_the_cursor_leaves() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        acted: list[str] = []
        await pilot.press("down", "down")
        app.lines.replace(rows("row0", "row1", "row3", "row4"))
        await pilot.pause()
        assert app.screen_lines()[:5] == ["  row0", "  row1", "▌ gone: row2", "  row3", "  row4"]
        assert app.lines.selected == "row2"
        assert app.lines.selected_is_ghost
        app.lines.act(acted.append)
        await pilot.press("enter")
        await pilot.pause()
        assert acted == []
        assert app.heard[-2:] == [("gone", "row2"), ("gone", "row2")]
        app.lines.replace(rows("row0", "row1", "row4", "row5"))
        await pilot.pause()
        assert app.screen_lines()[:5] == ["  row0", "  row1", "▌ gone: row2", "  row4", "  row5"]
        await pilot.press("down")
        assert app.screen_lines()[:5] == ["  row0", "  row1", "▌ row4", "  row5", ""]

    show(numbered(5), claim)


@pytest.mark.parametrize("key", ["up", "down"])
def test_a_ghost_that_comes_back_is_a_row_again_and_the_last_ghost_can_stay(key: str) -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        app.lines.replace(rows())
        await pilot.pause()
        assert app.screen_lines()[0] == "▌ gone: row0"
        await pilot.press(key)
        assert app.screen_lines()[0] == "▌ gone: row0"
        app.lines.replace(rows("row7", "row0"))
        await pilot.pause()
        assert not app.lines.selected_is_ghost
        assert app.screen_lines()[0] == "▌ row0"

    show(numbered(1), claim)


def test_without_holding_the_cursor_goes_to_the_first_row() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        await pilot.press("pagedown")
        app.lines.replace(rows("row3", "row5"), hold=False)
        await pilot.pause()
        assert app.screen_lines()[:3] == ["▌ row3", "  row5", ""]
        assert app.heard[-1] == ("selected", "row3")
        app.lines.replace(rows("row1", "row3"), hold=False)
        await pilot.pause()
        assert app.screen_lines()[:3] == ["  row1", "▌ row3", ""]

    show(numbered(100), claim)


def test_an_action_waits_until_its_row_was_painted_and_the_next_key_waits_for_it() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        acted: list[tuple[str, str | None]] = []
        lines = app.lines
        lines.action_move(1)
        lines.act(lambda key: acted.append((key, lines.painted)))
        lines.action_move(1)
        lines.act(lambda key: acted.append((key, lines.painted)))
        assert acted == []
        await pilot.pause()
        await pilot.pause()
        await pilot.pause()
        assert acted[0] == ("row1", "row1")
        assert all(key == painted for key, painted in acted)
        assert lines.selected == "row2"

    show(numbered(100), claim)


def test_an_action_on_a_row_that_was_scrolled_away_brings_it_back_first() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        acted: list[str] = []
        app.lines.scroll_to(y=50, animate=False)
        await pilot.pause()
        app.lines.act(acted.append)
        await pilot.pause()
        assert acted == []
        assert app.heard[-1] == ("unseen", "row0")
        assert app.screen_lines()[0] == "▌ row0"
        app.lines.act(acted.append)
        assert acted == ["row0"]

    show(numbered(100), claim)


def test_with_the_cursor_out_of_view_the_rows_on_the_screen_stay() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        app.lines.scroll_to(y=50, animate=False)
        await pilot.pause()
        before = app.screen_lines()
        app.lines.replace(numbered(120, -20))
        await pilot.pause()
        assert app.screen_lines() == before
        assert app.lines.selected == "row0"

    show(numbered(100), claim)


def test_a_click_selects_what_was_painted_there_and_two_open_it() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        await pilot.click(app.lines, offset=(4, 3))
        assert app.lines.selected == "row3"
        await pilot.click(app.lines, offset=(4, 5), times=2)
        await pilot.pause()
        assert app.heard[-1] == ("opened", "row5")
        await pilot.click(app.lines, offset=(4, 9))
        assert app.lines.selected == "row5"

    show(numbered(7), claim)


def test_marks_and_flashes_are_more_than_colour() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        app.lines.toggle_mark()
        app.lines.toggle_mark("row2")
        plain = app.lines.render_line(1)
        app.lines.flash(["row1"])
        assert app.lines.render_line(1) != plain
        assert app.screen_lines()[:3] == [">*row0", "  row1", " *row2"]
        app.lines.toggle_mark("row2")
        assert app.lines.marked == {"row0"}
        for _ in range(300):
            await pilot.pause(0.01)
            if app.lines.render_line(1) == plain:
                break
        assert app.lines.render_line(1) == plain

    show(numbered(5), claim, ascii=True)


def test_finding_goes_round() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        assert app.lines.find("9")
        assert app.lines.selected == "row9"
        assert app.lines.find_next()
        assert app.lines.selected == "row19"
        assert app.lines.find_next(-1)
        assert app.lines.find_next(-1)
        assert app.lines.selected == "row29"
        assert not app.lines.find("nowhere")
        assert app.lines.selected == "row29"

    show(numbered(30), claim)


def test_a_million_rows_are_drawn_a_screenful_at_a_time() -> None:
    drawn: set[str] = set()

    def drawing(row: str, width: int, state: RowState) -> list[Text]:
        drawn.add(row)
        return draw(row, width, state)

    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        await pilot.press("end")
        assert app.screen_lines()[9] == "▌ row999999"
        app.lines.select("row500000")
        await pilot.press(*["down"] * 30)
        assert app.lines.selected == "row500030"
        assert len(drawn) < 200

    source = numbered(1_000_000)

    async def run() -> None:
        app = Shown(source)
        app.lines = Rows(source, drawing)
        async with app.run_test(size=(40, 10)) as pilot:
            await claim(app, pilot)

    asyncio.run(run())


def test_moving_the_cursor_draws_two_rows() -> None:
    drawn: list[str] = []

    def drawing(row: str, width: int, state: RowState) -> list[Text]:
        drawn.append(row)
        return draw(row, width, state)

    async def run() -> None:
        app = Shown(numbered(100))
        app.lines = Rows(numbered(100), drawing)
        async with app.run_test(size=(40, 10)) as pilot:
            await pilot.press("down")
            await pilot.pause()
            drawn.clear()
            await pilot.press("down")
            await pilot.pause()
            assert set(drawn) == {"row1", "row2"}

    asyncio.run(run())


def test_rows_that_are_added_out_of_view_draw_nothing() -> None:
    drawn: list[int] = []

    class Counted(Rows):
        def render_line(self, y: int) -> Strip:
            drawn.append(y)
            return super().render_line(y)

    async def run() -> None:
        app = Shown(numbered(1000))
        app.lines = Counted(numbered(1000), draw)
        async with app.run_test(size=(40, 10)) as pilot:
            await pilot.press("down")
            await pilot.pause()
            drawn.clear()
            app.lines.replace(numbered(1001))
            app.lines.replace(numbered(1002, -1))
            await pilot.pause()
            assert drawn == []
            assert app.lines.new_above == 1
            await pilot.press("up", "up")
            assert app.screen_lines()[0] == "▌ row-1"

    asyncio.run(run())


def test_pages_are_asked_for_once_and_loaded_under_the_cursor() -> None:
    source: PagedSource[str] = PagedSource(1000, 50, key=str, pages_kept=3)
    source.put(0, [f"row{n}" for n in range(50)])

    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        await pilot.press("end")
        await pilot.pause()
        unloaded = app.lines.selected
        assert unloaded is None
        assert app.screen_lines()[9] == "▌ ..."
        assert app.heard == [("wanted", (990, 999))]
        acted: list[str] = []
        app.lines.act(acted.append)
        await pilot.press("enter")
        assert acted == []
        missing = source.missing(990, 999)
        assert missing == (950, 50)
        source.put(950, [f"row{n}" for n in range(950, 1000)])
        app.lines.loaded()
        await pilot.pause()
        assert app.lines.selected == "row999"
        assert app.screen_lines()[9] == "▌ row999"
        source.count = 1001
        source.put(1000, ["row1000"])
        app.lines.loaded()
        await pilot.pause()
        assert app.screen_lines()[9] == "▌ row999"
        await pilot.press("down")
        assert app.screen_lines()[9] == "▌ row1000"
        for offset in (200, 300, 400):
            source.put(offset, [f"row{n}" for n in range(offset, offset + 50)])
        app.lines.loaded()  # the page under the cursor was dropped meanwhile: the row is still what it was
        assert app.lines.selected == "row1000"
        assert not app.lines.selected_is_ghost

    show(source, claim)


def test_rows_of_two_lines_move_as_one() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down")
        assert app.screen_lines()[4:6] == ["▌ row2", "▌ below row2"]
        app.lines.replace(numbered(101, -1))
        await pilot.pause()
        assert app.screen_lines()[4:6] == ["▌ row2", "▌ below row2"]
        await pilot.press("end")
        assert app.screen_lines()[8:10] == ["▌ row99", "▌ below row99"]

    show(numbered(100), claim, row_height=2)


def test_hostile_text_is_inert_even_if_a_renderer_forgets() -> None:
    hostile = "a\x1b[2J\x1b]52;c;aGk=\x9b31m\u202e[/x][@click=app.quit]b\n"

    async def run() -> None:
        app = Shown(rows(hostile))
        app.lines = Rows(rows(hostile), lambda row, width, state: [Text(row)])
        async with app.run_test(size=(80, 5)) as pilot:
            await pilot.pause()
            line = app.lines.render_line(0)
            assert "".join(segment.text for segment in line).startswith("▌ a␛[2J␛]52;c;aGk=<U+009B>31m<U+202E>[/x][@cl")
            assert all(segment.style is None or not segment.style.meta for segment in line)

    asyncio.run(run())


def test_an_empty_list_says_so_and_survives_every_key() -> None:
    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        assert app.screen_lines()[0] == "  Nothing needs you."
        await pilot.press("up", "down", "home", "end", "pageup", "pagedown", "enter", "n")
        assert app.lines.selected is None
        app.lines.replace(rows("first"))
        await pilot.pause()
        assert app.screen_lines()[0] == "▌ first"
        assert app.heard == [("selected", "first")]

    show(rows(), claim, empty="Nothing needs you.")


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_the_cursor_moves_only_by_keys(seed: int) -> None:
    """Inserts, removals and keys in any order: after each change the same id is on the same line of the screen."""
    chance = random.Random(seed)

    def changed(names: Sequence[str]) -> list[str]:
        kept = [name for name in names if chance.random() < 0.8]
        for _ in range(chance.randrange(5)):
            kept.insert(chance.randint(0, len(kept)), f"new{chance.randrange(10**9)}")
        return kept

    async def claim(app: Shown, pilot: Pilot[None]) -> None:
        names = [f"row{n}" for n in range(30)]
        for _ in range(40):
            acted: list[str] = []
            await pilot.press(chance.choice(["up", "down", "pageup", "pagedown", "home", "end"]))
            selected, line = app.lines.selected, app.line_of_cursor()
            names = changed(names)
            app.lines.replace(rows(*names))
            app.lines.act(acted.append)
            await pilot.pause()
            assert (app.lines.selected, app.line_of_cursor()) == (selected, line)
            assert app.lines.painted == selected
            assert acted == ([selected] if selected in names else [])
            assert app.lines.selected_is_ghost == (selected not in names)

    show(numbered(30), claim)
