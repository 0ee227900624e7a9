"""One list for everything long: a cursor that stays on an id, over rows of which only the visible ones are drawn.

Rows come and go while people look at them. So what is selected is an id, never a number: when the rows are replaced,
the selected one stays on its line of the screen and the others move around it. If it is gone, it stays as a ghost until
the cursor leaves it. An action works on an id that has been painted under the cursor, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from walkback_console.widgets.line_view import GUTTER, LineView, Render, RowState
from walkback_console.widgets.sources import Source

__all__ = ["GUTTER", "LineList", "Matches", "Render", "RowState"]

R = TypeVar("R")

FLASH_SECONDS = 1.0
_NEIGHBOURS = 200
"""How far from a row that is gone a neighbour is looked for, to say where its place is."""
_FRAMES = 5
"""How many frames an action waits for its row to be painted before it is given up."""

Matches = Callable[[R, str], bool]


class LineList(LineView[R]):
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
        super().__init__(
            source, render_row, row_height=row_height, ascii=ascii, empty=empty, name=name, id=id, classes=classes
        )
        self._matches = matches
        self._acts_waiting = 0

    def _want(self, first: int, last: int) -> None:
        self.post_message(self.Wanted(self, first, last))

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
