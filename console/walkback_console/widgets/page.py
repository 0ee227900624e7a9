"""A page of text with labels, scrolled by lines, that remembers which of its lines have been on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from walkback_console.palette import paper, segments
from walkback_console.safe_text import safe
from walkback_console.verdicts import CHOICES, Line

LABEL = 14
"""Columns of a label; what does not fit beside it goes on below, behind it."""


class Page(ScrollView, can_focus=True):
    """Lines are folded at the width there is and never cut. `seen` is asked before something may be approved."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_lines(-1)", "Up", show=False),
        Binding("down,j", "scroll_lines(1)", "Down", show=False),
        Binding("pageup", "scroll_page(-1)", "Page up", show=False),
        Binding("pagedown,space", "scroll_page(1)", "Page down", show=False),
        Binding("home", "scroll_ends(-1)", "Top", show=False),
        Binding("end", "scroll_ends(1)", "End", show=False),
    ]

    DEFAULT_CSS = """
    Page {
        background: $surface; color: $text; overflow-x: hidden; padding: 0 1;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    """

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = list(lines)
        self._folded: list[tuple[str, Text, Text]] = []
        """Part, label and text of every line of the page as it is folded now."""
        self._width = 0
        self._seen: set[int] = set()
        self.painted = False
        """Whether what is shown now has been on the screen."""

    # --- what is shown -------------------------------------------------------------------------------------------

    def show(self, lines: Sequence[Line]) -> None:
        """Other lines, with the scroll position left alone. What was seen counts only while the words are the same."""
        if list(lines) == self.lines and self._width:
            return
        before = [(part, label.plain, text.plain) for part, label, text in self._folded]
        self.lines = list(lines)
        self._fold()
        after = [(part, label.plain, text.plain) for part, label, text in self._folded]
        self._seen = {n for n in self._seen if n < len(after) and n < len(before) and after[n] == before[n]}
        self.painted = self.painted and bool(before)
        self.refresh()

    def seen(self, part: str) -> bool:
        """Whether every line of a part has been on the screen."""
        return all(n in self._seen for n, (of, _, _) in enumerate(self._folded) if of == part)

    def unseen(self, part: str) -> int:
        return sum(n not in self._seen for n, (of, _, _) in enumerate(self._folded) if of == part)

    @property
    def below(self) -> int:
        """How many lines there are below the last one that is visible."""
        return max(0, len(self._folded) - self.scroll_offset.y - self._height())

    # --- moving --------------------------------------------------------------------------------------------------

    def action_scroll_lines(self, by: int) -> None:
        self._scroll(self.scroll_offset.y + by)

    def action_scroll_page(self, by: int) -> None:
        self._scroll(self.scroll_offset.y + by * max(1, self._height() - 1))

    def action_scroll_ends(self, to: int) -> None:
        self._scroll(0 if to < 0 else len(self._folded))

    def _scroll(self, y: int) -> None:
        self.scroll_to(y=max(0, y), animate=False, force=True)

    def _height(self) -> int:
        return self.scrollable_content_region.height

    # --- drawing -------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self._fold()

    def on_resize(self) -> None:
        if self.scrollable_content_region.width != self._width:
            self._seen.clear()
            self._fold()
            self.refresh()

    def _fold(self) -> None:
        self._width = self.scrollable_content_region.width
        if not self._width:
            return
        console = paper(self.app.theme)
        indent = LABEL if any(line.label for line in self.lines) else 0
        self._folded = []
        for line in self.lines:
            own = indent if line.part != "verdict" and line.part != "title" else 0
            parts = line.text.wrap(console, max(10, self._width - own), overflow="fold", tab_size=1) or [Text()]
            for n, part in enumerate(parts):
                part.rstrip()
                label = Text.assemble((safe(line.label if n == 0 else ""), "dim")) if own else Text()
                if line.part == CHOICES:
                    label.stylize("key", own - 2)  # the key to press stands at its end
                label.pad_right(max(0, own - label.cell_len))
                self._folded.append((line.part, label, part))
        self.virtual_size = Size(self._width, len(self._folded))

    def render_line(self, y: int) -> Strip:
        n = y + self.scroll_offset.y
        style = self.rich_style
        width = self.scrollable_content_region.width
        if not 0 <= n < len(self._folded):
            return Strip.blank(width, style)
        self._seen.add(n)
        self.painted = True
        _, label, text = self._folded[n]
        parts = [*segments(label, self.app.theme), *segments(text, self.app.theme)]
        return Strip(parts).adjust_cell_length(width).apply_style(style)
