"""What all screens share: the frame, the keys from the table of actions, a line to type in, and how a deed is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input

from walkback_console import actions
from walkback_console.actions import Action, checked, find, why_not
from walkback_console.deciding import BadAnswer
from walkback_console.errands import ERRANDS
from walkback_console.plain_words import many
from walkback_console.subjects import Subject, with_writes
from walkback_console.widgets.frame import Lines, keys_line
from walkback_console.widgets.safe_input import SafeInput

if TYPE_CHECKING:
    from walkback_console.app import Walkback
    from walkback_store import Store

KEY_NAMES = {"escape": "esc", "question_mark": "?", "slash": "/", "colon": ":"}
SMALLEST = (60, 16)


def bindings_for(where: str) -> list[BindingType]:
    """The keys of a screen, from the table."""
    found: list[BindingType] = [
        Binding(",".join(action.keys), f"do('{action.id}')", action.label, show=False)
        for action in actions.on_screen(where)
        if action.id != "open"  # the list posts a message of its own
    ]
    return [
        *found,
        Binding("question_mark,f1", "app.help", "Help", show=False),
        Binding("colon", "command_line", "Command", show=False),
        Binding("slash", "search", "Search", show=False),
        Binding("n", "find_next(1)", "Next match", show=False),
        Binding("N", "find_next(-1)", "Previous match", show=False),
    ]


class Typing(SafeInput):
    """The line at the bottom: for a command or for something to look for. Enter and Esc give the focus back."""

    DEFAULT_CSS = """
    Typing { dock: bottom; height: 1; border: none; padding: 0 1; background: $boost; color: $text; display: none; }
    Typing:focus { border: none; background: $boost; }
    """

    class Left(Message):
        """Esc was pressed."""

    def __init__(self) -> None:
        super().__init__(compact=True)
        self.history: list[str] = []
        self._at = 0

    def open(self, prompt: str, value: str, history: list[str], suggestions: Sequence[str]) -> None:
        self.prompt = prompt
        self.history = history
        self._at = len(history)
        self.suggester = SuggestFromList(suggestions, case_sensitive=False) if suggestions else None
        self.value = value
        self.cursor_position = len(value)
        self.display = True
        self.screen.set_focus(self)  # at once: what is typed next is for this line

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            self.post_message(self.Left())
        elif event.key in {"up", "down"} and self.history:
            event.stop()
            self._at = max(0, min(len(self.history), self._at + (-1 if event.key == "up" else 1)))
            self.value = self.history[self._at] if self._at < len(self.history) else ""
            self.cursor_position = len(self.value)
        elif event.key == "tab":
            event.stop()
            event.prevent_default()
            self.action_cursor_right()


class ConsoleScreen(Screen[None]):
    """`where` is its name in the table of actions."""

    where: ClassVar[str] = ""
    app: Walkback

    DEFAULT_CSS = """
    ConsoleScreen { layout: vertical; background: $surface; }
    ConsoleScreen #top { height: auto; }
    ConsoleScreen #banner { background: $error 20%; }
    ConsoleScreen #notice { background: $panel; }
    ConsoleScreen #keys { height: 1; }
    ConsoleScreen #small { display: none; height: 1fr; }
    ConsoleScreen.-tiny #small { display: block; }
    ConsoleScreen.-tiny > .body { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._typing_done: Callable[[str], object] | None = None
        self._typing_changed: Callable[[str], object] | None = None
        self._back_to: Widget | None = None

    def compose(self) -> ComposeResult:
        yield Lines(id="top")
        yield Lines(id="banner")
        yield Lines(id="small")
        yield from self.body()
        yield Lines(id="notice")
        yield Typing()
        yield Lines(id="keys")

    # --- what each screen says -----------------------------------------------------------------------------------

    def body(self) -> Iterator[Widget]:
        raise NotImplementedError

    def crumbs(self) -> list[str]:
        """Where this is, from the inbox on; not yet safe."""
        return []

    def subject(self) -> Subject | None:
        """What an action would be about: what is on the screen, as it was read."""
        return None

    @property
    def ready(self) -> bool:
        """Whether it shows what a key would be about. Keys wait for it, for a while."""
        return self.is_mounted

    def load(self) -> None:
        """Ask the store for what is shown; called when something changed, and never by a timer of its own."""

    def ask(
        self,
        name: str,
        question: Callable[[Store], Any],
        give: Callable[[Any], object],
        fail: Callable[[Exception], object] | None = None,
    ) -> None:
        """Ask the store. An answer that comes when this screen has been left is for nobody."""

        def here(answer: Any, to: Callable[[Any], object]) -> None:
            if self in self.app.screen_stack:
                to(answer)

        self.app.thread.ask(name, question, lambda found: here(found, give), lambda e: here(e, fail or self.app.failed))

    def tick(self) -> None:
        """A second has passed."""

    def text_of_all(self) -> str:
        """For the pager and for a file; not yet safe."""
        return ""

    # --- the frame -----------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.draw_frame()
        self.load()

    def on_screen_resume(self) -> None:
        self.draw_frame()
        self.load()

    def on_resize(self, event: events.Resize) -> None:
        tiny = event.size.width < SMALLEST[0] or event.size.height < SMALLEST[1]
        self.set_class(tiny, "-tiny")
        if tiny:
            wants = f"Walkback needs {SMALLEST[0]} columns and {SMALLEST[1]} lines; here are {event.size.width} and "
            self.query_one("#small", Lines).show(
                Text(f"{wants}{event.size.height}. Nothing is lost: make the window larger, or press q.", "unsure")
            )
        self.draw_frame()

    def draw_frame(self) -> None:
        if not self.is_mounted or not self.children:  # not there yet, or being taken down
            return
        self.query_one("#top", Lines).show(*self.app.heading(self.crumbs(), self.size.width - 2))
        self.query_one("#banner", Lines).show(*self.app.banners())
        self.query_one("#notice", Lines).show(*self.app.notices())
        self.draw_keys()

    def draw_keys(self) -> None:
        if self._typing_done is not None:
            return  # what to type stands there, and it stays until that is done
        self.query_one("#keys", Lines).show(keys_line(self.keys_shown(), self.size.width - 2))

    def keys_shown(self) -> list[tuple[str, str]]:
        """The actions that can be done now; what cannot says why when its key is pressed."""
        subject = self.subject()
        found = []
        for action in actions.on_screen(self.where):
            if action.hidden or why_not(action, subject, self.app.who, read_only=self.app.read_only) is not None:
                continue
            key = action.keys[0]
            found.append((KEY_NAMES.get(key, key), action.label))
        return found

    # --- doing ---------------------------------------------------------------------------------------------------

    def action_do(self, action_id: str) -> None:
        self.perform(find(action_id))

    def perform(self, action: Action, subject: Subject | None = None) -> None:
        """Do it to what is on the screen, after all that has to be asked."""
        subject = self.subject() if subject is None else subject
        if action.id == "undo" and (subject is None or subject.decision is None):
            self.app.take_back_last(self)
            return
        reason = why_not(action, subject, self.app.who, read_only=self.app.read_only)
        if reason is not None:
            self.refuse(action, reason)
        elif action.make is None:
            own = getattr(self, f"do_{action.id}", None)
            if own is not None:
                own(subject)
            elif action.id in ERRANDS:
                ERRANDS[action.id](self.app, subject)
        elif subject is not None and action.id == "compensate" and not subject.writes:
            self.app.thread.ask(
                "writes",
                lambda store: with_writes(store, subject),
                lambda found: self.confirm(action, found),
                self.app.failed,
            )
        elif subject is not None:
            self.confirm(action, subject)

    def refuse(self, action: Action, reason: str) -> None:
        self.app.forget_keys()
        self.app.say(f"{action.label}: not now; {reason}.", "unsure")

    def confirm(self, action: Action, subject: Subject, then: Callable[[], object] | None = None) -> None:
        if not action.danger and not action.fields:
            self.app.carry_out(action, subject, {})
            return
        from walkback_console.widgets.dialog import Dialog

        def says(answers: Mapping[str, str]) -> Sequence[str]:
            try:
                return action.effects(subject, answers)
            except BadAnswer as error:
                return [str(error)]

        def check(answers: Mapping[str, str]) -> str | None:
            try:
                if action.make is not None:
                    action.make(subject, checked(action, answers), self.app.who.actor)
            except BadAnswer as error:
                return str(error)
            return None

        def answered(answers: dict[str, str] | None) -> None:
            if answers is None:
                self.app.say(f"{action.label}: cancelled, nothing was done.", "dim")
            else:
                self.app.carry_out(action, subject, answers)
                if then is not None:
                    then()

        about = subject.place or (many(len(subject.members), "operation") if subject.members else subject.tool)
        about = about or "the store"
        fields = [(field, field.default(subject)) for field in action.fields]
        title = f"{action.label}: {about}"
        confirm = action.button or action.label.capitalize()
        leave = "Keep it" if confirm.startswith("Cancel") else "Cancel"
        self.app.push_screen(Dialog(title, says, fields, confirm=confirm, leave=leave, check=check), answered)

    # --- typing --------------------------------------------------------------------------------------------------

    def type_in(
        self,
        prompt: str,
        done: Callable[[str], object],
        *,
        value: str = "",
        changed: Callable[[str], object] | None = None,
        history: list[str] | None = None,
        suggestions: Sequence[str] = (),
    ) -> None:
        self._typing_done, self._typing_changed = done, changed
        self._back_to = self.focused
        self.query_one(Typing).open(prompt, value, [] if history is None else history, suggestions)
        self.query_one("#keys", Lines).show(
            Text.assemble((prompt, "dim"), "  ", ("enter", "key"), " done  ", ("esc", "key"), " leave")
        )

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._typing_changed is not None:
            self._typing_changed(event.value)

    @on(Input.Submitted)
    def _typed_in(self, event: Input.Submitted) -> None:
        event.stop()
        done, line = self._typing_done, self.query_one(Typing)
        if event.value and (not line.history or line.history[-1] != event.value):
            line.history.append(event.value)
        self._leave_typing()
        if done is not None:
            done(event.value)

    def on_typing_left(self) -> None:
        self._leave_typing()

    def _leave_typing(self) -> None:
        self._typing_done = self._typing_changed = None
        self.query_one(Typing).display = False
        self.set_focus(self._back_to or self.first_focus())
        self.draw_keys()

    def first_focus(self) -> Widget:
        return next(iter(self.query("*.body").results(Widget)), self)

    def action_command_line(self) -> None:
        self.type_in(
            "command", self.app.command, history=self.app.command_history, suggestions=self.app.command_words()
        )

    def action_search(self) -> None:
        self.app.say("there is nothing to search on this screen.", "dim")

    def action_find_next(self, direction: int) -> None:
        found: Any = getattr(self, "list", None)
        if found is not None:
            found.find_next(direction)

    # --- the same on every screen --------------------------------------------------------------------------------

    def do_back(self, _: Subject | None) -> None:
        self.app.back()

    def do_run(self, subject: Subject | None) -> None:
        if subject is not None and subject.run_id:
            self.app.open_run(subject.run_id, subject.step)
