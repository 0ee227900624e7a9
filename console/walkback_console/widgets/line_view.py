"""Rows drawn line by line: only those on the screen, and of these only what would look different.

What is under the cursor, and how it gets there, is decided in `line_list`; here it is put on the screen. A place is a
number among what is shown, in which a ghost counts as a row; an index is a number in the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from walkback_console.palette import segments
from walkback_console.safe_text import safe
from walkback_console.widgets.sources import Source

R = TypeVar("R")

GUTTER = 2
"""Columns in front of every row: one for the cursor, one for the mark."""


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


class LineView(ScrollView, Generic[R], can_focus=True):
    """Rows of one height, with a cursor among them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "line-list--cursor",
        "line-list--cursor-blurred",
        "line-list--mark",
        "line-list--ghost",
        "line-list--flash",
        "line-list--faint",
    }

    DEFAULT_CSS = """
    LineView {
        background: $surface;
        color: $text;
        overflow-x: hidden;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
        & > .line-list--cursor { background: $boost; text-style: bold; }
        & > .line-list--cursor-blurred { background: $boost; }
        & > .line-list--mark { color: $warning; text-style: bold; }
        & > .line-list--ghost { color: $text-muted; text-style: italic; }
        & > .line-list--flash { background: $warning 15%; }
        & > .line-list--faint { color: $text-muted; }
    }
    """

    new_above: reactive[int] = reactive(0, repaint=False)
    """How many rows appeared above the first visible one since the operator last saw that place."""

    def __init__(
        self,
        source: Source[R],
        render_row: Render[R],
        *,
        row_height: int,
        ascii: bool,
        empty: str,
        name: str | None,
        id: str | None,
        classes: str | None,
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
        self._find = ""
        self._cursor = 0 if source.count else -1
        """A place."""
        self._selected = source.key(0) if source.count else None
        self._row: R | None = source.row(0) if source.count else None
        self._is_ghost = False
        self._astray = False
        """Somebody has turned the wheel, so that the cursor may be out of view, and is left there."""
        self._lead = 0
        """Blank lines above the first row: they keep the selected row on its line when rows above it are gone."""
        self._tail = 0
        self._flashing: dict[str, int] = {}
        self._drawn: dict[int, tuple[Strip, str | None]] = {}
        """What each line of the screen showed last, and of which row: a click means what was seen, not what is now."""
        self._missing: set[int] = set()
        self._asked: set[int] = set()
        self._will_ask = False

    def _want(self, first: int, last: int) -> None:
        """Rows that are on the screen are not loaded."""
        raise NotImplementedError

    # --- geometry ------------------------------------------------------------------------------------------------

    @property
    def content_width(self) -> int:
        """The columns that a renderer has; 0 before the list is laid out."""
        return max(0, self.scrollable_content_region.width - GUTTER)

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
        if size == self.virtual_size:
            return
        if self.styles.height is not None and self.styles.height.is_auto:
            self.virtual_size = size
            return
        # Set as usual, it would lay out the screen and draw the list whole, for every row that is added at its end.
        self.set_reactive(Widget.virtual_size, size)
        self._refresh_scrollbars()
        self._move_scrollbar()

    def _settle(self) -> None:
        """No more blank lines above and below: what they were held open for has moved on."""
        lead, self._lead, self._tail = self._lead, 0, 0
        self._resize()
        if lead:
            self._scroll(self.scroll_offset.y - lead)
            self._refresh_changed()  # where it cannot scroll as far as that, the rows have moved

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
        self._astray = False
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
        in_view = self._cursor_is_in_view() or not self._astray
        self._resize()
        if in_view:
            self._scroll_to_cursor()

    def on_mouse_scroll_up(self) -> None:
        self._astray = True

    def on_mouse_scroll_down(self) -> None:
        self._astray = True

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        self._move_scrollbar()
        if round(old_value) != round(new_value):
            self.new_above = min(self.new_above, self._visible()[0])
            self._refresh_changed()

    def _move_scrollbar(self) -> None:
        """Only if that shows: it is drawn in eighths of a line, and whole. Among many rows most moves do not."""
        if not self.show_vertical_scrollbar:
            return
        bar, height, length = self.vertical_scrollbar, self._height(), self.virtual_size.height
        eighths = 8 * height
        now = round(self.scroll_y * eighths / max(1, length)), round(height * eighths / max(1, length))
        drawn = max(1, bar.window_virtual_size)
        if now != (round(bar.position * eighths / drawn), round(bar.window_size * eighths / drawn)):
            bar.window_virtual_size, bar.window_size, bar.position = length, height, self.scroll_y

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
        if self._cursor >= 0 and line == (self._cursor + 1) * self._row_height - 1:  # of half a row, its id may lack
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
            self._want(min(lacking), max(lacking))

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
        segments = self._segments(text, state)
        if segments and not state.cursor and not state.marked and not _is_seen_on_blanks(segments[0].style):
            segments[0] = Segment(" " * GUTTER + segments[0].text, segments[0].style)  # one change of colours less
        else:
            segments = [*self._gutter(state, part), *segments]
        return self._strip(segments, width, self._style(state)), key

    def _placeholder(self, place: int, width: int) -> Strip:
        state = RowState(cursor=place == self._cursor)
        faint = Segment("...", self.get_component_rich_style("line-list--faint", partial=True))
        return self._strip([*self._gutter(state, 0), faint], width, self._style(state))

    def _gutter(self, state: RowState, part: int) -> list[Segment]:
        cursor = (">" if self.ascii else "▌") if state.cursor else " "
        if not state.marked or part:
            return [Segment(cursor + " ")]
        mark = "*" if self.ascii else "●"
        return [Segment(cursor), Segment(mark, self.get_component_rich_style("line-list--mark", partial=True))]

    def _segments(self, text: Text, state: RowState) -> list[Segment]:
        if state.ghost:  # grey, whatever colours the row had
            text = Text(text.plain)
        # Renderers make their text safe; here it costs next to nothing to be sure.
        return [Segment(safe(segment.text), segment.style) for segment in segments(text, self.app.theme)]

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
        # Joined where the style is the same: each change of colours costs more bytes than most words.
        return Strip(segments).adjust_cell_length(width).apply_style(style).simplify()


def _is_seen_on_blanks(style: Style | None) -> bool:
    return style is not None and bool(style.bgcolor or style.reverse or style.underline or style.strike)
