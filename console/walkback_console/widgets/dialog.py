"""What is about to be done, in full, and what has to be said about it. Nothing happens by pressing Enter once.

Focus starts on Cancel. Whoever starts to type means the first empty field; Enter goes from field to field, and in the
last one it does what was asked, if all that is needed has been given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from walkback_console.actions import Field
from walkback_console.safe_text import safe
from walkback_console.widgets.frame import Lines
from walkback_console.widgets.safe_input import SafeInput

Answers = dict[str, str]


class Dialog(ModalScreen[Answers | None]):
    """Dismissed with the answers, or with None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("left,right", "other_button", "Other button", show=False),
    ]

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > VerticalScroll {
        width: 76; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $panel;
        border: round $primary;
    }
    Dialog Lines { background: $panel; padding: 0; }
    Dialog .label { margin-top: 0; color: $text-muted; }
    Dialog Input { height: 1; border: none; padding: 0 1; background: $surface; color: $text; margin: 0; }
    Dialog Input:focus { border: none; background: $boost; }
    Dialog Horizontal { height: 1; margin-top: 1; align-horizontal: right; }
    Dialog Button { height: 1; border: none; min-width: 12; margin-left: 2; background: $surface; color: $text;
        text-style: none; }
    Dialog Button:focus { background: $primary; color: $background; text-style: bold; border: none; }
    Dialog #problem { color: $error; }
    """

    def __init__(
        self,
        title: str,
        says: Callable[[Mapping[str, str]], Sequence[str]],
        fields: Sequence[tuple[Field, str]],
        *,
        confirm: str,
        leave: str = "Cancel",
        check: Callable[[Mapping[str, str]], str | None] = lambda _: None,
    ) -> None:
        """`says` and `check` are asked again whenever something is typed; `fields` come with their defaults."""
        super().__init__()
        self._title = title
        self._says = says
        self._fields = list(fields)
        self._confirm = confirm
        self._leave = leave
        self._check = check
        self.ready = False

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Lines(id="title")
            yield Lines(id="says")
            for field, default in self._fields:
                yield Lines(id=f"label-{field.name}", classes="label")
                # No placeholder: it would be taken for something that was typed.
                yield SafeInput(default, id=f"field-{field.name}", select_on_focus=False, compact=True)
            yield Lines(id="problem")
            with Horizontal():
                yield Button(self._leave, id="cancel", compact=True)
                yield Button(self._confirm, id="confirm", compact=True)

    def on_mount(self) -> None:
        self.query_one("#title", Lines).show(Text(safe(self._title), "strong"))
        for field, _ in self._fields:
            need = "" if field.required else ", may be left empty"
            hint = f" ({field.hint}{need})" if field.hint else (" (may be left empty)" if need else "")
            self.query_one(f"#label-{field.name}", Lines).show(Text.assemble(field.label, (hint, "dim")))
        self._say()
        self.set_focus(self.query_one("#cancel", Button))
        self.ready = True

    # --- answers -------------------------------------------------------------------------------------------------

    @property
    def answers(self) -> Answers:
        return {field.name: self._input(field.name).value for field, _ in self._fields}

    def _input(self, name: str) -> Input:
        return self.query_one(f"#field-{name}", Input)

    def _missing(self) -> str | None:
        """The first field that something has to be given in."""
        return next((f.name for f, _ in self._fields if f.required and not self._input(f.name).value.strip()), None)

    def _say(self) -> None:
        self.query_one("#says", Lines).show(*(Text(f"• {safe(line)}") for line in self._says(self.answers)))

    def _problem(self, text: str) -> None:
        self.query_one("#problem", Lines).show(*([Text(safe(text), "bad")] if text else []))

    @on(Input.Changed)
    def _typed(self) -> None:
        self._problem("")
        self._say()

    # --- keys ----------------------------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Typing while a button has the focus means the first field that is empty."""
        if isinstance(self.focused, Input) or not event.is_printable or event.character is None:
            return
        if event.character == " " and self.focused is not None and self.focused.id == "confirm":
            return
        empty = [f.name for f, _ in self._fields if not self._input(f.name).value]
        if empty:
            event.stop()
            event.prevent_default()
            field = self._input(empty[0])
            self.set_focus(field)
            field.insert_text_at_cursor(event.character)

    def on_paste(self, event: events.Paste) -> None:
        """Like typing, all at once."""
        empty = [f.name for f, _ in self._fields if not self._input(f.name).value]
        if not isinstance(self.focused, Input) and empty:
            event.stop()
            field = self._input(empty[0])
            self.set_focus(field)
            field.insert_text_at_cursor(event.text.splitlines()[0] if event.text else "")

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        names = [f.name for f, _ in self._fields]
        later = names[names.index((event.input.id or "").removeprefix("field-")) + 1 :]
        if later:
            self.set_focus(self._input(later[0]))
        else:
            self._submit()

    @on(Button.Pressed, "#confirm")
    def _confirmed(self) -> None:
        self._submit()

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_other_button(self) -> None:
        if isinstance(self.focused, Button):
            self.set_focus(self.query_one("#confirm" if self.focused.id == "cancel" else "#cancel", Button))

    def _submit(self) -> None:
        missing = self._missing()
        if missing is not None:
            label = next(f.label for f, _ in self._fields if f.name == missing)
            self._problem(f"{label}: something has to be given.")
            self.set_focus(self._input(missing))
            return
        problem = self._check(self.answers)
        if problem is not None:
            self._problem(problem)
            return
        self.dismiss(self.answers)
