"""What was done here, newest first, as the commands that do the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget

from walkback_console import actions, errands
from walkback_console.plain_words import clock
from walkback_console.screens.base import ConsoleScreen, bindings_for
from walkback_console.subjects import Subject
from walkback_console.verdicts import said, t
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.sources import ListSource

Entry = tuple[int, int, str, str]
"""Its number, when, the command, and what came of it."""
GENERAL = frozenset({"back", "copy", "copy_command", "pager", "save"})
"""What of the table makes sense here: nothing is changed from a log."""


class LogScreen(ConsoleScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_for(""),
        *(
            Binding(",".join(action.keys), f"do('{action.id}')", action.label, show=False)
            for action in actions.TABLE
            if action.id in GENERAL
        ),
    ]
    DEFAULT_CSS = """
    LogScreen LineList { height: 1fr; }
    """

    def body(self) -> Iterator[Widget]:
        self.list: LineList[Entry] = LineList(
            ListSource[Entry]([], lambda entry: str(entry[0])),
            self._render_row,
            row_height=2,
            matches=lambda entry, text: text.lower() in f"{entry[2]} {entry[3]}".lower(),
            ascii=self.app.ascii_only,
            empty="Nothing was done here yet. What you do is listed as commands.",
        )
        self.list.add_class("body")
        yield self.list

    def on_mount(self) -> None:
        super().on_mount()
        self.list.focus()

    def load(self) -> None:
        self.list.replace(ListSource[Entry](self._entries(), lambda entry: str(entry[0])))

    def _entries(self) -> list[Entry]:
        return [(n, *entry) for n, entry in reversed(list(enumerate(self.app.log_of_commands)))]

    def crumbs(self) -> list[str]:
        return ["Log"]

    def keys_shown(self) -> list[tuple[str, str]]:
        return [("y", "copy the command"), ("/", "search"), ("S", "save"), ("esc", "back")]

    def do_copy(self, _: Subject | None) -> None:
        entry = self.list.selected_row
        errands.copied(self.app, "" if entry is None else entry[2])

    do_copy_command = do_copy

    def action_search(self) -> None:
        self.type_in("search", self.list.find, changed=self.list.find)

    def text_of_all(self) -> str:
        return "\n".join(f"{clock(at)} {command}  # {outcome}" for _, at, command, outcome in self._entries())

    def _render_row(self, entry: Entry, width: int, state: RowState) -> list[Text]:
        _, at, command, outcome = entry
        style = "good" if outcome == "done" else "bad"
        first = said(t(f"{clock(at)} ", "dim"), t(command, "strong"))
        if first.cell_len <= width:
            return [first, said("             ", t(outcome, style))]
        head, rest = first.divide([width])[:2]
        return [head, said("  ", rest, "  ", t(outcome, style))]
