"""One list for everything long: a cursor that stays on an id, over rows of which only the visible ones are drawn.

Rows come and go while people look at them. So what is selected is an id, never a number: when the rows are replaced,
the selected one stays on its line of the screen and the others move around it. If it is gone, it stays as a ghost until
the cursor leaves it. An action works on an id that has been painted under the cursor, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from walkback_console.palette import paper
from walkback_console.safe_text import safe
from walkback_console.widgets.sources import Source

R = TypeVar("R")

GUTTER = 2
"""Columns in front of every row: one for the cursor, one for the mark."""
FLASH_SECONDS = 1.0
_NEIGHBOURS = 200
"""How far from a row that is gone a neighbour is looked for, to say where its place is."""
_FRAMES = 5
"""How many frames an action waits for its row to be painted before it is given up."""


@dataclass(frozen=True, slots=True)
class RowState:
    """What a renderer may want to know beside the row. Cursor, mark and colours are drawn by the list itself."""

    cursor: bool = False
    ghost: bool = False
    """It is no longer among the rows: say "gone:" first."""
    flash: bool = False
    marked: bool = False
    find: str = ""
    """What is being searched for, to be made visible in the row."""


Render = Callable[[R, int, RowState], list[Text]]
Matches = Callable[[R, str], bool]


class LineList(ScrollView, Generic[R], can_focus=True):
    """Rows of one height. The screen gives a source and a function that draws one row in a width."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "first", "First", show=False),
        Binding("end", "last", "Last", show=False),
        Binding("enter", "open", "Open", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "line-list--cursor",
        "line-list--cursor-blurred",
        "line-list--mark",
        "line-list--ghost",
        "line-list--flash",
        "line-list--faint",
    }

    DEFAULT_CSS = """
    LineList {
        background: $surface;
        color: $text;
        overflow-x: hidden;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
        & > .line-list--cursor { background: $boost; text-style: bold; }
        & > .line-list--cursor-blurred { background: $boost; }
        & > .line-list--mark { color: $warning; text-style: bold; }
        & > .line-list--ghost { color: $text-muted; text-style: italic; }
        & > .line-list--flash { background: $warning 20%; }
        & > .line-list--faint { color: $text-muted; }
    }
    """

    new_above: reactive[int] = reactive(0, repaint=False)
    """How many rows appeared above the first visible one since the operator last saw that place."""

    class _Keyed(Message):
        def __init__(self, lines: LineList[Any], key: str) -> None:
            super().__init__()
            self.lines = lines
            self.key = key

        @property
        def control(self) -> LineList[Any]:
            return self.lines

    class Selected(_Keyed):
        """The cursor is on another row."""

    class Opened(_Keyed):
        """Enter or a double click."""

    class Gone(_Keyed):
        """An action was asked for on a row that is no longer there; nothing was done."""

    class Unseen(_Keyed):
        """An action was asked for on a row that was not on the screen; it is now, and nothing was done."""

    class Wanted(Message):
        """Rows `first` to `last` are on the screen and not loaded. Load them, then call `loaded`."""

        def __init__(self, lines: LineList[Any], first: int, last: int) -> None:
            super().__init__()
            self.lines = lines
            self.first = first
            self.last = last

        @property
        def control(self) -> LineList[Any]:
            return self.lines

    def __init__(
        self,
        source: Source[R],
        render_row: Render[R],
        *,
        row_height: int = 1,
        matches: Matches[R] | None = None,
        ascii: bool = False,
        empty: str = "",
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.ascii = ascii
        self.empty = empty
        self.marked: set[str] = set()
        self.painted: str | None = None
        """The id under the cursor in the last frame that was drawn."""
        self._source = source
        self._render_row = render_row
        self._row_height = row_height
        self._matches = matches
        self._find = ""
        self._cursor = 0 if source.count else -1
        """A place among what is shown, in which a ghost counts as a row."""
        self._selected = source.key(0) if source.count else None
        self._row: R | None = source.row(0) if source.count else None
        self._is_ghost = False
        self._lead = 0
        """Blank lines above the first row: they keep the selected row on its line when rows above it are gone."""
        self._tail = 0
        self._flashing: dict[str, int] = {}
        self._drawn: dict[int, tuple[Strip, str | None]] = {}
        """What each line of the screen showed last, and of which row: a click means what was seen, not what is now."""
        self._missing: set[int] = set()
        self._asked: set[int] = set()
        self._will_ask = False
        self._acts_waiting = 0

    # --- what is selected ----------------------------------------------------------------------------------------

    @property
    def source(self) -> Source[R]:
        return self._source

    @property
    def selected(self) -> str | None:
        """The id under the cursor; None if there are no rows or the one under the cursor is not loaded."""
        return self._selected

    @property
    def selected_row(self) -> R | None:
        return self._row

    @property
    def selected_is_ghost(self) -> bool:
        return self._is_ghost

    @property
    def selected_index(self) -> int | None:
        """The number of the selected row in the source; None for a ghost."""
        return None if self._cursor < 0 or self._is_ghost else self._cursor

    def select(self, key: str) -> bool:
        """Put the cursor on a row and bring it into view; False if the source does not know it."""
        index = self._source.index_of(key)
        if index is None:
            return False
        self._move_to(index)
        return True

    def select_index(self, index: int) -> None:
        if self._source.count:
            self._move_to(max(0, min(index, self._source.count - 1)))

    def act(self, callback: Callable[[str], object]) -> None:
        """Call back with the selected id once it has been painted under the cursor; never for a ghost.

        Keys that move the cursor and arrive meanwhile wait, so that "down, act, down" acts on the row in between.
        """
        self._act(callback, _FRAMES)

    def _act(self, callback: Callable[[str], object], frames: int) -> None:
        key = self._selected
        if key is None:
            return
        if self._is_ghost:
            self.post_message(self.Gone(self, key))
        elif not self._cursor_is_in_view():
            self._scroll_to_cursor()
            self.post_message(self.Unseen(self, key))
        elif self.painted == key:
            callback(key)
        elif frames:
            self._acts_waiting += 1

            def try_again() -> None:
                self._acts_waiting -= 1
                self._act(callback, frames - 1)

            self.refresh_row(self._cursor)
            self.call_after_refresh(try_again)

    # --- other rows ----------------------------------------------------------------------------------------------

    def replace(self, source: Source[R], *, hold: bool = True) -> None:
        """Show other rows. With `hold` nothing moves under the cursor, which may stay on the ghost of its row.

        Without it, after a filter was changed for instance, the cursor goes to the first row if its own is not there.
        """
        shown = self._shown()
        old, self._source = self._source, source
        self._missing.clear()
        self._asked.clear()
        self._follow(old, shown, hold)

    def set_row_height(self, height: int) -> None:
        """Lines that every row takes; the selected row stays in view."""
        if height != self._row_height:
            self._row_height = height
            self._drawn.clear()
            self._settle()
            self._scroll_to_cursor()
            self.refresh()

    def loaded(self) -> None:
        """The source has rows that it did not have before, or more of them."""
        self._asked.clear()
        self._follow(self._source, self._shown(), hold=True)

    def _shown(self) -> list[tuple[str, int, int]]:
        """Id, place and line of every row on the screen, from the top."""
        first, last = self._visible()
        found = [(self._key_at(place), place) for place in range(first, last + 1)]
        return [(key, place, self._line_of(place)) for key, place in found if key is not None]

    def _follow(self, old: Source[R], shown: list[tuple[str, int, int]], hold: bool) -> None:
        selected, was_ghost, cursor = self._selected, self._is_ghost, self._cursor
        in_view = self._cursor_is_in_view()
        line = self._line_of(cursor)
        count = self._source.count
        index = None if selected is None else self._source.index_of(selected)
        if selected is not None and index is None and self._source is old and not was_ghost:
            # The page of the selected row was dropped from memory; unless another row is in its place, it still is.
            index = cursor if cursor < count and self._source.key(cursor) is None else None
        if index is not None:
            self._cursor, self._is_ghost = index, False
        elif selected is not None and hold and self._row is not None:
            self._cursor = self._place_of_ghost(old, cursor, was_ghost)
            self._is_ghost = True
        else:
            self._is_ghost = False
            self._cursor = min(max(0, cursor if hold else 0), count - 1)
        if not self._is_ghost:
            self._adopt()
        self._count_new(shown, was_ghost, cursor)
        if hold and in_view and cursor >= 0:
            self._hold(self._cursor, line)
        elif hold and (anchor := self._anchor(shown)) is not None:
            self._hold(*anchor)
        else:
            self._settle()
            self._scroll_to_cursor()
        self.new_above = min(self.new_above, self._visible()[0])
        self._refresh_changed()
        if self._selected is not None and self._selected != selected:
            self.post_message(self.Selected(self, self._selected))

    def _adopt(self) -> None:
        """Take over id and row of what is under the cursor. A row that is not loaded leaves the id that is known."""
        if self._cursor < 0:
            self._selected, self._row = None, None
            return
        row = self._source.row(self._cursor)
        if row is not None:
            self._selected, self._row = self._source.key(self._cursor), row

    def _place_of_ghost(self, old: Source[R], cursor: int, was_ghost: bool) -> int:
        """In front of the nearest row below it that is still there, else behind the nearest one above."""
        count = self._source.count
        if old is self._source:
            return min(cursor, count)
        below = cursor if was_ghost else cursor + 1
        for index in range(below, min(old.count, below + _NEIGHBOURS)):
            key = old.key(index)
            if key is not None and (found := self._source.index_of(key)) is not None:
                return found
        for index in range(cursor - 1, max(-1, cursor - 1 - _NEIGHBOURS), -1):
            key = old.key(index) if index < old.count else None
            if key is not None and (found := self._source.index_of(key)) is not None:
                return found + 1
        return min(cursor, count)

    def _anchor(self, shown: list[tuple[str, int, int]]) -> tuple[int, int] | None:
        """With the cursor out of view, the first row on the screen that is still there keeps its line."""
        for key, _, line in shown:
            index = self._source.index_of(key)
            if index is not None:
                return self._place_of(index), line
        return None

    def _count_new(self, shown: list[tuple[str, int, int]], was_ghost: bool, cursor: int) -> None:
        for key, place, _ in shown:
            index = self._source.index_of(key)
            if index is not None:
                before = place - 1 if was_ghost and place > cursor else place
                self.new_above = max(0, self.new_above + index - before)
                return
        self.new_above = 0

    # --- flashes and marks ---------------------------------------------------------------------------------------

    def flash(self, keys: Iterable[str]) -> None:
        """Draw attention to these rows for a moment."""
        keys = list(keys)
        if not keys:
            return
        for key in keys:
            self._flashing[key] = self._flashing.get(key, 0) + 1
        self._refresh_changed()
        self.set_timer(FLASH_SECONDS, lambda: self._end_flash(keys))

    def _end_flash(self, keys: list[str]) -> None:
        for key in keys:
            left = self._flashing.pop(key, 1) - 1
            if left:
                self._flashing[key] = left
        self._refresh_changed()

    def toggle_mark(self, key: str | None = None) -> None:
        """Mark a row, or take its mark away; the selected one if none is named."""
        key = self._selected if key is None else key
        if key is not None:
            self.marked ^= {key}
            self._refresh_changed()

    def clear_marks(self) -> None:
        self.marked = set()
        self._refresh_changed()

    # --- searching -----------------------------------------------------------------------------------------------

    def find(self, text: str) -> bool:
        """Go to the next row that matches, starting with the selected one; "" ends the search. False if none does."""
        self._find = text
        found = bool(text) and self._seek(1, include_cursor=True)
        self._refresh_changed()
        return found

    def find_next(self, direction: int = 1) -> bool:
        return bool(self._find) and self._seek(direction, include_cursor=False)

    def _seek(self, direction: int, *, include_cursor: bool) -> bool:
        count = self._source.count
        if not count or self._matches is None:
            return False
        start = max(0, min(self._cursor, count - 1))
        for distance in range(0 if include_cursor else 1, count + 1):
            index = (start + direction * distance) % count
            row = self._source.row(index)
            if row is not None and self._matches(row, self._find):
                self._move_to(index)
                return True
        return False

    # --- moving --------------------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        self._when_acts_are_done(self._step, by)

    def action_page(self, direction: int) -> None:
        self._when_acts_are_done(self._step, direction * max(1, self._height() // self._row_height - 1))

    def action_first(self) -> None:
        self._when_acts_are_done(self.select_index, 0)

    def action_last(self) -> None:
        self._when_acts_are_done(self.select_index, self._source.count - 1)

    def action_open(self) -> None:
        self.act(lambda key: self.post_message(self.Opened(self, key)))

    def action_find_next(self, direction: int) -> None:
        self.find_next(direction)

    def _when_acts_are_done(self, move: Callable[[int], None], argument: int) -> None:
        if self._acts_waiting:
            self.call_after_refresh(self._when_acts_are_done, move, argument)
        else:
            move(argument)

    def _step(self, by: int) -> None:
        if self._source.count:
            place = max(0, min(self._cursor + by, self._places() - 1))
            index = self._index_at(place)
            if index is None:
                return  # still on the ghost, which is the first or the last of the places
            self._move_to(index)

    def _move_to(self, index: int) -> None:
        """The cursor goes to a row of the source, and a ghost it leaves is gone."""
        before, was_ghost, key_before = self._cursor, self._is_ghost, self._selected
        self._is_ghost = False
        self._cursor = index
        self._row = self._source.row(index)
        self._selected = self._source.key(index)
        self._settle()
        self._scroll_to_cursor()
        if was_ghost:
            self._refresh_changed()
        else:
            self.refresh_row(before)
            self.refresh_row(index)
        if self._selected is not None and self._selected != key_before:
            self.post_message(self.Selected(self, self._selected))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        key = None if offset is None else self._drawn.get(offset.y, (None, None))[1]
        if key is None:
            return
        event.stop()
        if key != self._selected and not self.select(key):
            return
        if event.chain > 1:
            self.action_open()

    # --- geometry ------------------------------------------------------------------------------------------------

    def _height(self) -> int:
        return self.scrollable_content_region.height

    def _places(self) -> int:
        return self._source.count + self._is_ghost

    def _index_at(self, place: int) -> int | None:
        """The row of the source that is shown in a place; None for the ghost."""
        if not self._is_ghost or place < self._cursor:
            return place
        return None if place == self._cursor else place - 1

    def _place_of(self, index: int) -> int:
        return index + 1 if self._is_ghost and index >= self._cursor else index

    def _key_at(self, place: int) -> str | None:
        if place == self._cursor:
            return self._selected
        index = self._index_at(place)
        return None if index is None or index >= self._source.count else self._source.key(index)

    def _line_of(self, place: int) -> int:
        """The line of the screen, which may lie outside of it."""
        return self._lead + place * self._row_height - self.scroll_offset.y

    def _visible(self) -> tuple[int, int]:
        """The first and the last place of which at least one line is on the screen."""
        top = self.scroll_offset.y - self._lead
        first = max(0, top // self._row_height)
        return first, min(self._places(), -(-(top + self._height()) // self._row_height)) - 1

    def _cursor_is_in_view(self) -> bool:
        line = self._line_of(self._cursor)
        return self._cursor >= 0 and line >= 0 and line + self._row_height <= max(self._height(), self._row_height)

    def _resize(self) -> None:
        height = self._lead + self._places() * self._row_height + self._tail
        size = Size(self.scrollable_content_region.width, height)
        if size != self.virtual_size:
            self.virtual_size = size

    def _settle(self) -> None:
        """No more blank lines above and below: what they were held open for has moved on."""
        lead, self._lead, self._tail = self._lead, 0, 0
        self._resize()
        if lead:
            self._scroll(self.scroll_offset.y - lead)

    def _hold(self, place: int, line: int) -> None:
        """Put a place on a line of the screen, with blank lines where there are no rows to fill it."""
        top = place * self._row_height - line
        self._lead = max(0, -top)
        top = max(0, top)
        rows = self._lead + self._places() * self._row_height
        self._tail = max(0, top + self._height() - rows) if top else 0
        self._resize()
        self._scroll(top)

    def _scroll(self, top: int) -> None:
        self.scroll_to(y=max(0, top), animate=False, force=True)

    def _scroll_to_cursor(self) -> None:
        height = self._height()
        line = self._line_of(self._cursor)
        if self._cursor < 0 or not height:
            return
        if line < 0:
            self._scroll(self.scroll_offset.y + line)
        elif line + self._row_height > height:
            self._scroll(self.scroll_offset.y + line + self._row_height - height)

    def on_mount(self) -> None:
        self._resize()

    def on_resize(self) -> None:
        in_view = self._cursor_is_in_view() or self.painted == self._selected
        self._resize()
        if in_view:
            self._scroll_to_cursor()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = new_value
        if round(old_value) != round(new_value):
            self.new_above = min(self.new_above, self._visible()[0])
            self._refresh_changed()

    # --- drawing -------------------------------------------------------------------------------------------------

    def on_focus(self) -> None:
        self.refresh_row(self._cursor)

    def on_blur(self) -> None:
        self.refresh_row(self._cursor)

    def refresh_row(self, place: int) -> None:
        line = self._line_of(place)
        if place >= 0 and line + self._row_height > 0 and line < self._height():
            self.refresh_lines(line + self.scroll_offset.y, self._row_height)

    def _refresh_changed(self) -> None:
        """Draw again only the lines that would look different: a list that is fed all the time sends few bytes."""
        for y in range(self._height()):
            strip, key = self._line_at(y)
            before = self._drawn.get(y)
            if before is None or before[0] != strip:
                self.refresh_lines(y + self.scroll_offset.y)
            elif before[1] != key:
                self._drawn[y] = strip, key

    def notify_style_update(self) -> None:
        self._drawn.clear()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        strip, key = self._line_at(y)
        self._drawn[y] = strip, key
        line = y + self.scroll_offset.y - self._lead
        if self._cursor >= 0 and line == self._cursor * self._row_height:
            self.painted = key
        if self._missing and not self._will_ask:
            self._will_ask = True
            self.call_later(self._ask)
        return strip

    def _ask(self) -> None:
        """One message for all rows that a frame lacked, and none twice."""
        self._will_ask = False
        lacking, self._missing = self._missing - self._asked, set()
        if lacking:
            self._asked |= lacking
            self.post_message(self.Wanted(self, min(lacking), max(lacking)))

    def _line_at(self, y: int) -> tuple[Strip, str | None]:
        width = self.scrollable_content_region.width
        line = y + self.scroll_offset.y - self._lead
        place, part = divmod(line, self._row_height)
        if not 0 <= place < self._places():
            empty = self.empty if y == 0 and not self._places() else ""
            faint = self.get_component_rich_style("line-list--faint")
            return self._strip([Segment(" " * GUTTER + safe(empty), faint)], width, self.rich_style), None
        index = self._index_at(place)
        row = self._row if index is None else self._source.row(index)
        if row is None:
            self._missing.add(place if index is None else index)
            return self._placeholder(place, width), None
        key = self._selected if index is None else self._source.key(index)
        state = RowState(
            cursor=place == self._cursor,
            ghost=index is None,
            flash=key in self._flashing,
            marked=key in self.marked,
            find=self._find,
        )
        texts = self._render_row(row, max(1, width - GUTTER), state)
        text = texts[part] if part < len(texts) else Text()
        return self._strip([*self._gutter(state, part), *self._segments(text, state)], width, self._style(state)), key

    def _placeholder(self, place: int, width: int) -> Strip:
        state = RowState(cursor=place == self._cursor)
        faint = Segment("...", self.get_component_rich_style("line-list--faint", partial=True))
        return self._strip([*self._gutter(state, 0), faint], width, self._style(state))

    def _gutter(self, state: RowState, part: int) -> list[Segment]:
        cursor = (">" if self.ascii else "▌") if state.cursor else " "
        mark = ("*" if self.ascii else "●") if state.marked and part == 0 else " "
        return [Segment(cursor), Segment(mark, self.get_component_rich_style("line-list--mark", partial=True))]

    def _segments(self, text: Text, state: RowState) -> list[Segment]:
        if state.ghost:  # grey, whatever colours the row had
            text = Text(text.plain)
        # Renderers make their text safe; here it costs next to nothing to be sure.
        return [
            Segment(safe(segment.text), segment.style) for segment in text.render(paper(self.app.theme)) if segment.text
        ]

    def _style(self, state: RowState) -> Style:
        style = self.rich_style
        if state.ghost:
            style += self.get_component_rich_style("line-list--ghost", partial=True)
        if state.cursor:
            style += self._background("line-list--cursor" if self.has_focus else "line-list--cursor-blurred")
        if state.flash:
            style += self._background("line-list--flash")
        return style

    def _background(self, name: str) -> Style:
        """The background of a component, blended with what lies beneath, and its text style; no colour of text."""
        style = self.get_component_rich_style(name)
        return Style(bgcolor=style.bgcolor, bold=style.bold, reverse=style.reverse, underline=style.underline)

    @staticmethod
    def _strip(segments: list[Segment], width: int, style: Style) -> Strip:
        return Strip(segments).adjust_cell_length(width).apply_style(style)
