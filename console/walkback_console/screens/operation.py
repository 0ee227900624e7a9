"""One operation, and one approval: all that is known, in the order of need, and what can be done about it.

Both are the same screen over the same record; which one it is depends on whether the operation asks for approval. An
approval cannot be given before every line of its arguments has been on the screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.widget import Widget

from walkback_console import actions
from walkback_console.actions import Action
from walkback_console.plain_words import many
from walkback_console.screens.base import KEY_NAMES, ConsoleScreen, bindings_for
from walkback_console.subjects import Subject, load_operation
from walkback_console.verdicts import ARGUMENTS, CHOICES, Line, approval_lines, choices, operation_lines, said, t
from walkback_console.widgets.page import Page


def both_bindings() -> list[BindingType]:
    """The keys of both; an action that is not for what is shown says so."""
    known: dict[str, BindingType] = {}
    for where in (actions.OPERATION, actions.APPROVAL):
        for binding in bindings_for(where):
            known.setdefault(str(getattr(binding, "action", binding)), binding)
    return list(known.values())


class OperationScreen(ConsoleScreen):
    BINDINGS: ClassVar[list[BindingType]] = both_bindings()
    DEFAULT_CSS = """
    OperationScreen Page { height: 1fr; }
    """

    def __init__(self, run_id: str, step: str) -> None:
        super().__init__()
        self._run_id = run_id
        self._step = step
        self._subject: Subject | None = None
        self._changed_by = ""

    @property
    def where(self) -> str:  # type: ignore[override]
        row = None if self._subject is None else self._subject.operation
        return actions.APPROVAL if row is not None and row["status"] == "awaiting_approval" else actions.OPERATION

    def body(self) -> Iterator[Widget]:
        self.page = Page(id="page")
        self.page.add_class("body")
        yield self.page

    def on_mount(self) -> None:
        super().on_mount()
        self.page.focus()

    @property
    def ready(self) -> bool:
        return self.is_mounted and self.page.painted

    # --- reading -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        run_id, step = self._run_id, self._step
        self.ask(
            "operation", lambda store: load_operation(store, run_id, step, writes=True), self._got, self._not_there
        )

    def _got(self, subject: Subject) -> None:
        before = self._subject
        self._subject = subject
        if before is not None and before.operation is not None and subject.operation is not None:
            old, new = before.operation["status"], subject.operation["status"]
            if old != new:
                self.app.say(f"It is now {new}; it was {old} when you opened it.", "busy")
        self._draw()
        self.draw_frame()

    def _not_there(self, error: Exception) -> None:
        if self._subject is None:
            self.page.show([Line("title", "", t(error, "bad"))])
        else:
            self.app.failed(error)

    def tick(self) -> None:
        """Ages and countdowns go on; the record is what was read."""
        if self._subject is not None:
            self._draw()

    def _draw(self) -> None:
        if self._subject is not None:
            self.page.show(self._lines(self._subject))

    def _lines(self, subject: Subject) -> list[Line]:
        import dataclasses

        shown = dataclasses.replace(subject, at=max(subject.at, self.app.now()))
        ascii_only = self.app.ascii_only
        if self.where == actions.APPROVAL:
            return approval_lines(shown, ascii_only=ascii_only)
        return [*operation_lines(shown, ascii_only=ascii_only), *self._choice_lines(shown)]

    def _choice_lines(self, subject: Subject) -> list[Line]:
        """Safest first, each with what the run does next; what cannot be done says why."""
        lines: list[Line] = []
        off: list[Text] = []
        for choice in choices(subject, self.app.who, read_only=self.app.read_only):
            key = KEY_NAMES.get(choice.action.keys[0], choice.action.keys[0])
            if choice.why_not is None:
                text = said((choice.action.label, "strong"), ": ", t(choice.then))
                lines.append(Line(CHOICES, f"{'you can' if not lines else '':<12}{key}", text))
            else:
                off.append(said((f"{key} {choice.action.label}: ", "dim"), t(choice.why_not, "dim")))
        lines += [Line(CHOICES, "not now" if n == 0 else "", text) for n, text in enumerate(off)]
        return lines

    # --- doing ---------------------------------------------------------------------------------------------------

    def crumbs(self) -> list[str]:
        row = None if self._subject is None else self._subject.operation
        tool = "" if row is None else f" {row['tool']}"
        return [f"{self._run_id} #{self._step}{tool}"]

    def subject(self) -> Subject | None:
        return self._subject

    def perform(self, action: Action, subject: Subject | None = None) -> None:
        if self.where not in action.on:
            kind = "an approval" if self.where == actions.APPROVAL else "an operation"
            self.refuse(action, f"this is {kind}, which is not about that")
        elif action.id == "approve" and subject is None and not self.page.seen(ARGUMENTS):
            lines = many(self.page.unseen(ARGUMENTS), "more line")
            self.refuse(action, f"{lines} of its arguments have not been shown; space goes on")
        else:
            super().perform(action, subject)

    def keys_shown(self) -> list[tuple[str, str]]:
        found = super().keys_shown()
        asked = self._subject is not None and (self._subject.approval or {}).get("status") == "asked"
        if self.where == actions.APPROVAL and asked and self.is_mounted and not self.page.seen(ARGUMENTS):
            found = [("space", "read on, to approve"), *(pair for pair in found if pair[0] != "a")]
        return [*found, ("esc", "back")]

    def on_page_scrolled(self) -> None:
        self.draw_keys()

    def text_of_all(self) -> str:
        return "" if self._subject is None else text_of(self._lines(self._subject))


def text_of(lines: list[Line]) -> str:
    return "\n".join(f"{line.label:<14}{line.text.plain}" if line.label else line.text.plain for line in lines)


__all__ = ["OperationScreen", "text_of"]
