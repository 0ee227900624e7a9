"""Every key of the screen below, from the table of actions, with why a key does nothing just now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from walkback_console import actions
from walkback_console.actions import why_not
from walkback_console.screens.base import KEY_NAMES, ConsoleScreen, bindings_for
from walkback_console.verdicts import Line, said, t
from walkback_console.widgets.page import Page

MOVING = (
    ("up down", "move; j and k do, too. Page up, page down, home, end."),
    ("/", "filter a list, or search in a timeline or a state; n and N go to the next and previous match"),
    (":", "a command: inbox, runs, open ID, workers, log, theme, quit, or the name of an action. Up is history."),
    ("ctrl+p", "the palette; so does :palette"),
    ("esc q", "back; from the inbox, q leaves"),
)

OWN = {
    actions.RUNS: (
        ("x", "faults only: runs that failed, need a person, were compensated or cancelled; again for all"),
        ("/", "the beginning of an id, or status: agent: tag: since:"),
    ),
    actions.RUN: (
        ("tab", "between the steps and what is known about one"),
        ("1 2 3 4 5", "state, diff, operation, events, layers; s and d are state and diff"),
        (", .", "one step back, one step forward; [ and ], too"),
        ("< >", "to the write before, to the next write"),
        ("g", "go to a step by its number"),
        ("x", "faults only; again for all steps"),
        ("a B", "the state after the step, or before it"),
        ("b", "in the state: which step wrote the selected value"),
    ),
}
"""Keys of one screen that only move or look."""


class HelpScreen(ConsoleScreen):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for(""), Binding("escape,q", "back", "Back", show=False)]
    DEFAULT_CSS = """
    HelpScreen Page { height: 1fr; }
    """

    def __init__(self, about: str) -> None:
        super().__init__()
        self._about = about

    def body(self) -> Iterator[Widget]:
        self.page = Page()
        self.page.add_class("body")
        yield self.page

    def on_mount(self) -> None:
        super().on_mount()
        self.page.show(self._lines())
        self.page.focus()

    def action_back(self) -> None:
        self.app.back()

    def crumbs(self) -> list[str]:
        return [f"Help for the screen {self._about}" if self._about else "Help"]

    def keys_shown(self) -> list[tuple[str, str]]:
        return [("esc", "back")]

    def text_of_all(self) -> str:
        from walkback_console.screens.operation import text_of

        return text_of(self._lines())

    def _lines(self) -> list[Line]:
        from walkback_console.screens.base import ConsoleScreen

        below = [s for s in self.app.screen_stack if isinstance(s, ConsoleScreen) and s is not self]
        subject = below[-1].subject() if below else None
        lines = [Line("moving", keys, t(says)) for keys, says in MOVING]
        lines += [Line("moving", keys, t(says)) for keys, says in OWN.get(self._about, ())]
        for action in actions.on_screen(self._about):
            reason = why_not(action, subject, self.app.who, read_only=self.app.read_only)
            keys = " ".join(KEY_NAMES.get(key, key) for key in action.keys)
            said_so = said((action.label, "strong"), ": ", action.says)
            lines.append(Line("action", keys, said_so))
            if reason is not None:
                lines.append(Line("action", "", t(f"not now: {reason}", "dim")))
        return lines
