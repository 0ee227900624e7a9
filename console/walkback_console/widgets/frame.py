"""What is on every screen: where you are and how old it is above, what you can press below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from walkback_console.palette import paper, segments


class Lines(Widget):
    """A few lines of text that are as high as they need to be."""

    DEFAULT_CSS = """
    Lines { height: auto; width: 1fr; background: $panel; color: $text; padding: 0 1; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None, lines: Sequence[Text] = ()) -> None:
        super().__init__(id=id, classes=classes)
        self._texts = list(lines)
        self._folded: list[Text] = []
        self._of: tuple[int, str] = (0, "")

    def show(self, *texts: Text) -> None:
        if list(texts) == self._texts:
            return
        height = len(self._fold(self.content_size.width or 80))
        self._texts = list(texts)
        self._of = (0, "")
        changed = len(self._fold(self.content_size.width or 80)) != height
        self.refresh(layout=changed)

    def _fold(self, width: int) -> list[Text]:
        if self._of != (width, self.app.theme):
            console = paper(self.app.theme)
            self._folded = [part for text in self._texts for part in text.wrap(console, max(1, width), overflow="fold")]
            self._of = (width, self.app.theme)
        return self._folded

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._fold(width))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        style = self.rich_style
        lines = self._fold(width)
        if not 0 <= y < len(lines):
            return Strip.blank(width, style)
        return Strip(segments(lines[y], self.app.theme)).adjust_cell_length(width).apply_style(style)


def keys_line(pairs: Sequence[tuple[str, str]], width: int, *, last: tuple[str, str] = ("?", "help")) -> Text:
    """As many keys as fit, and always the one for help."""
    end = Text.assemble((last[0], "key"), " ", last[1])
    text = Text()
    for key, label in pairs:
        one = Text.assemble((key, "key"), " ", label, "  ")
        if text.cell_len + one.cell_len + end.cell_len > width:
            break
        text.append(one)
    text.append(end)
    return text
