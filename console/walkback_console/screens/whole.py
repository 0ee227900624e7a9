"""One value, or one change, in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from walkback_console import errands
from walkback_console.plain_words import many
from walkback_console.screens.base import ConsoleScreen
from walkback_console.screens.log import LogScreen
from walkback_console.subjects import Subject
from walkback_console.trees import MISSING, text_of
from walkback_console.verdicts import Line, t
from walkback_console.widgets.page import Page

MOST = 200_000
"""Characters that are folded for a screen; the pager shows all."""


class WholeScreen(ConsoleScreen):
    BINDINGS: ClassVar[list[BindingType]] = list(LogScreen.BINDINGS)
    DEFAULT_CSS = """
    WholeScreen Page { height: 1fr; }
    """

    def __init__(self, crumbs: Sequence[str], parts: Sequence[tuple[str, object]]) -> None:
        super().__init__()
        self._crumbs = list(crumbs)
        self._parts = [(name, _text(value)) for name, value in parts if value is not MISSING]

    def body(self) -> Iterator[Widget]:
        lines = []
        for name, text in self._parts:
            for n, part in enumerate(text[:MOST].split("\n")):
                lines.append(Line("value", name if n == 0 else "", t(part)))
            if len(text) > MOST:
                more = f"+{many(len(text) - MOST, 'character')}: P shows all of it in $PAGER, S saves it"
                lines.append(Line("value", "", t(more, "dim")))
        self.page = Page(lines)
        self.page.add_class("body")
        yield self.page

    def on_mount(self) -> None:
        super().on_mount()
        self.page.focus()

    def crumbs(self) -> list[str]:
        return self._crumbs

    def keys_shown(self) -> list[tuple[str, str]]:
        return [("y", "copy"), ("P", "pager"), ("S", "save"), ("esc", "back")]

    def do_copy(self, _: Subject | None) -> None:
        errands.copied(self.app, self._parts[-1][1] if self._parts else "")

    do_copy_command = do_copy

    def text_of_all(self) -> str:
        return "\n".join(text for _, text in self._parts)


def _text(value: object) -> str:
    return value if isinstance(value, str) else text_of(value)
