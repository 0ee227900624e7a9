"""The console: one store, one person, a stack of screens. `run` opens it.

The app holds what all screens share (who you are, what the store was last heard to say, what was decided a moment ago)
and is the one place where a deed is handed to the store.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from walkback_console import outside, overview, palette
from walkback_console.actions import TABLE, VIEWER, Action, Who, checked, command_for, find
from walkback_console.deciding import Answers, BadAnswer
from walkback_console.one_key import OneKeyAtATime
from walkback_console.overview import Overview
from walkback_console.plain_words import SECOND
from walkback_console.safe_text import safe
from walkback_console.store_thread import Answer, Heard, StoreThread
from walkback_console.subjects import Subject, load_run

if TYPE_CHECKING:
    from textual.filter import LineFilter

    from walkback_console.screens.base import ConsoleScreen
    from walkback_console.screens.inbox import InboxScreen
    from walkback_store import Store

RELOAD_EVERY = 0.25
"""Seconds: how often a screen is read again at most, however much is committed."""
SETTLED = 15.0
"""Seconds after which everything is read again even if nothing was committed: deadlines come nearer by themselves."""
SETTLING = 0.1
"""Seconds that the first screen has to itself; then the threads start, which have things of their own to load."""
LOST_AFTER = 2.0
"""Seconds of silence after which the store counts as lost. It is heard every second; three must not go by unsaid."""
WATCH_EVERY = 0.5
NOTICE_FOR = 20.0


@dataclass(frozen=True, slots=True)
class Options:
    """How the console was opened."""

    url: str
    where: str
    """As a person would say which store it is."""
    open_store: Callable[[], Store]
    store: Store | None = None
    """Open already."""
    read_only: bool = False
    claim: str | None = None
    place: str | None = None
    """A run, or `run#step`, to start with."""
    environment: str = ""
    ascii_only: bool = False
    theme: str = palette.DARK


class FromStore(Message):
    """Something that a thread has to say."""

    def __init__(self, said: Answer | Heard) -> None:
        super().__init__()
        self.said = said


class Walkback(OneKeyAtATime):
    TITLE = "Walkback"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", show=False, priority=True),
        Binding("ctrl+p", "command_palette", "Palette", show=False, priority=True),
    ]
    CSS = """
    * { scrollbar-background: $surface; scrollbar-color: $border; scrollbar-size-vertical: 1; }
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        for theme in palette.themes():
            self.register_theme(theme)
        self.theme = options.theme
        self.options = options
        self.read_only = options.read_only
        self.ascii_only = options.ascii_only
        self._ascii = ascii_filters(options)
        self.who = Who("operator:?", VIEWER, options.claim)
        self.overview = Overview()
        self.command_history: list[str] = []
        self.log_of_commands: list[tuple[int, str, str]] = []
        """When, the command that does the same, and what came of it."""
        self.thread = StoreThread(self._open_store, lambda said: self.post_message(FromStore(said)))
        self._heard_at: float | None = None
        self._lost: str | None = None
        self._left = False
        self._notice: tuple[Text, float] | None = None
        self._reload_at = 0.0
        self._reload_planned = False
        self._offset = 0
        """Microseconds by which the store's clock is ahead of this machine's."""

    # --- starting and ending -------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        from walkback_console.screens.inbox import InboxScreen

        inbox = InboxScreen()
        if self._read_first(inbox):
            self.set_timer(SETTLING, self.thread.start)
        else:
            self.thread.ask("who", self._ask_who, self._got_who)
            self.thread.ask("overview", overview.load, self._got_overview)
            self.thread.start()
        self.push_screen(inbox)
        self.set_interval(1.0, self._tick)
        self.set_interval(WATCH_EVERY, self._watch)
        self.set_timer(1.0, gc.enable)  # see walkback_console.cli.opening
        if self.options.place is not None:
            self.open_place(self.options.place)

    def _open_store(self) -> Store:
        return self.options.open_store()

    def _read_first(self, inbox: InboxScreen) -> bool:
        """A store that is open already is read before anything is painted: the first screen has everything on it."""
        store = self.options.store
        if store is None or self.options.place is not None:
            return False
        from walkback_store.errors import StoreError

        try:
            self.who, self._offset = self._ask_who(store)
            self.overview = overview.load(store)
            inbox.first = inbox.read(store)
        except StoreError:
            return False  # the threads find out what is wrong, and whether it passes
        self._heard_at = self._reload_at = time.monotonic()
        return True

    def _ask_who(self, store: Store) -> tuple[Who, int]:
        from walkback_console.whoami import operator_of

        actor = operator_of(store)
        role = str(store.role_of(actor))
        return Who(actor, role, self.options.claim), store.now() - time.time_ns() // 1000

    def _got_who(self, found: tuple[Who, int]) -> None:
        self.who, self._offset = found
        self.redraw()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    def now(self) -> int:
        """By the clock that dates the store."""
        return time.time_ns() // 1000 + self._offset

    def leave(self) -> None:
        self._left = True
        self.thread.stop()
        self.exit()

    async def action_quit(self) -> None:
        self.leave()

    # --- what the threads say ------------------------------------------------------------------------------------

    def on_from_store(self, message: FromStore) -> None:
        said = message.said
        if self._ending():
            return  # the screens that it is for are being taken down
        if isinstance(said, Heard):
            self._on_heard(said)
        elif said.error is None:
            if said.current():
                said.give(said.value)
        elif said.current():
            (said.fail or self.failed)(said.error)

    def _on_heard(self, heard: Heard) -> None:
        if heard.lost is not None:
            self._lost = heard.lost
            self.redraw()
            return
        back = self._lost is not None
        first = self._heard_at is None
        self._lost, self._heard_at = None, time.monotonic()
        if back and not first:
            self.say("The store answers again; what you see is current.", "good")
        if heard.changed or back or first or time.monotonic() - self._reload_at > SETTLED:
            self.reload()

    def reload(self) -> None:
        """Read what is shown again: now, or as soon as the last time is a moment ago."""
        wait = self._reload_at + RELOAD_EVERY - time.monotonic()
        if wait > 0:
            if not self._reload_planned:
                self._reload_planned = True
                self.set_timer(wait, self._reload)
            return
        self._reload()

    def _reload(self) -> None:
        self._reload_planned = False
        self._reload_at = time.monotonic()
        self.thread.ask("overview", overview.load, self._got_overview)
        if (screen := self.top) is not None:
            screen.load()

    def _got_overview(self, found: Overview) -> None:
        self.overview = found
        self._heard_at = time.monotonic()
        self.redraw()

    def failed(self, error: Exception) -> None:
        """A question could not be answered: what is shown stays, and gets older."""
        from walkback_store.errors import Refused, StoreError, Unreachable

        if isinstance(error, Unreachable):
            self._lost = str(error)
        elif isinstance(error, Refused | StoreError):
            self.say(str(error), "bad")
        else:
            raise error
        self.redraw()

    def _watch(self) -> None:
        """A store may also go silent, without as much as an error."""
        if self._lost is None and self._heard_at is not None and time.monotonic() - self._heard_at > LOST_AFTER:
            self._lost = "it has not answered for some seconds."
            self.redraw()

    def _ending(self) -> bool:
        top = self.top
        return self._left or (top is not None and top.is_mounted and not top.children)

    def _tick(self) -> None:
        if self._ending():
            return
        if (screen := self.top) is not None:
            screen.tick()
        self.redraw()

    # --- the frame -----------------------------------------------------------------------------------------------

    @property
    def top(self) -> ConsoleScreen | None:
        """The uppermost screen that is one of ours, even below a dialog."""
        from walkback_console.screens.base import ConsoleScreen

        return next((s for s in reversed(self.screen_stack) if isinstance(s, ConsoleScreen)), None)

    def usable(self) -> bool:
        return bool(getattr(self.screen, "ready", self.screen.is_mounted))

    def dropped(self, count: int) -> None:
        self.say(f"the screen was not ready: {count} keys that were pressed meanwhile did nothing.", "unsure")

    def redraw(self) -> None:
        if (screen := self.top) is not None:
            screen.draw_frame()

    def read_age(self) -> int | None:
        return None if self._heard_at is None else int((time.monotonic() - self._heard_at) * SECOND)

    def heading(self, crumbs: list[str], width: int) -> list[Text]:
        options = self.options
        lines = [
            overview.first_line(options.where, options.environment, self.who, self.read_age(), self.now(), width),
            overview.second_line(self.overview, kinds=not crumbs or self._at_inbox),
        ]
        mode = [("READ-ONLY ", "unsure")] if self.read_only else []
        trail = f" {palette.CRUMB} ".join(["Inbox", *(safe(crumb) for crumb in crumbs)])
        return [
            *lines,
            Text.assemble(*mode, (trail if not self.ascii_only else trail.replace(palette.CRUMB, ">"), "key")),
        ]

    @property
    def _at_inbox(self) -> bool:
        return len(self.screen_stack) <= 2

    def banners(self) -> list[Text]:
        found = []
        if self._lost is not None:
            old = "nothing was read yet" if self._heard_at is None else f"what you see is {self._old()} s old"
            why = safe(" ".join(self._lost.split()))  # a driver's words come on several lines
            found.append(Text.assemble((f"THE STORE DOES NOT ANSWER; {old}. Trying again.", "bad"), f" {why}"))
        decided = overview.decision_line(self.overview.decisions, self.who.actor, self.now())
        if decided is not None and not self.read_only:
            found.append(decided)
        return found

    def _old(self) -> int:
        return (self.read_age() or 0) // SECOND

    def notices(self) -> list[Text]:
        if self._notice is not None and time.monotonic() - self._notice[1] > NOTICE_FOR:
            self._notice = None
        return [] if self._notice is None else [self._notice[0]]

    def say(self, text: str, style: str = "plain") -> None:
        self._notice = (Text(safe(text), style), time.monotonic())
        self.redraw()

    # --- doing ---------------------------------------------------------------------------------------------------

    def carry_out(self, action: Action, subject: Subject, answers: Answers) -> None:
        try:
            whole = checked(action, answers)
            made = [] if action.make is None else action.make(subject, whole, self.who.actor)
        except BadAnswer as error:
            self.say(str(error), "bad")
            return
        transitions = [self.who.sign(t) for t in made]
        command = command_for(action, subject, whole) or action.id
        place = subject.place

        def done(results: list[Any]) -> None:
            problems = [r for r in results if isinstance(r, Exception)]
            if problems:
                self._note_down(command, f"refused: {problems[0]}")
                self.say(f"{action.label}: REFUSED. {problems[0]}", "bad")
            else:
                self._note_down(command, "done")
                waits = action.id in {"retry", "approve", "compensate"} or (
                    action.id == "resume" and (subject.run or {}).get("status") != "paused"
                )
                then = " It goes out in 10 s; u takes it back." if waits else ""
                self.say(f"{action.label}: recorded for {place or 'the store'}.{then}", "good")
            self.reload()

        def failed(error: Exception) -> None:
            self._note_down(command, f"failed: {error}")
            self.say(f"{action.label}: IT IS NOT KNOWN TO BE RECORDED. {error}", "bad")
            self.reload()

        self.thread.do(lambda store: store.commit(transitions), done, failed)

    def _note_down(self, command: str, outcome: str) -> None:
        self.log_of_commands.append((self.now(), command, outcome))

    def take_back_last(self, screen: ConsoleScreen) -> None:
        """`u` where nothing is selected that waits: the last thing this person decided.

        Asked of the store: what was decided a moment ago is not in what was read before it.
        """

        def read(store: Store) -> Subject | None:
            mine = [d for d in store.waiting_decisions(limit=1000) if d["by"] == self.who.actor]
            if not mine:
                return None
            last = max(mine, key=lambda d: d["decided_at"])
            found = load_run(store, last["run_id"])
            return Subject(at=found.at, run=found.run, decision=last, freezes=found.freezes)

        def take_back(subject: Subject | None) -> None:
            if subject is None:
                self.say("take back: nothing that you decided waits any more.", "unsure")
            else:
                screen.perform(find("undo"), subject)

        self.thread.ask("take back", read, take_back)

    # --- going places --------------------------------------------------------------------------------------------

    def pop_screen(self) -> AwaitComplete:
        """What the screen has asked for would find it gone; the one below asks again for what it shows."""
        self.thread.forget_all(but=("who", "overview"))
        return super().pop_screen()

    def back(self) -> None:
        if len(self.screen_stack) > 2:
            self.pop_screen()
        else:
            self.leave()

    def open_operation(self, run_id: str, step: str) -> None:
        from walkback_console.screens.operation import OperationScreen

        self.push_screen(OperationScreen(run_id, step))

    def open_run(self, run_id: str, step: str | None = None) -> None:
        from walkback_console.screens.run import RunScreen

        self.push_screen(RunScreen(run_id, step))

    def open_runs(self, typed: str = "", fingerprint: str | None = None) -> None:
        from walkback_console.screens.runs import RunsScreen

        self.push_screen(RunsScreen(typed, fingerprint))

    def open_place(self, place: str) -> None:
        """A run's id, the beginning of one, or either with `#step`."""
        from walkback_console.finding import find_place

        def go(found: tuple[str, str | None, bool]) -> None:
            run_id, step, is_call = found
            if step is not None and is_call:
                self.open_operation(run_id, step)
            else:
                self.open_run(run_id, step)

        self.thread.ask("open", lambda store: find_place(store, place), go)

    def action_help(self) -> None:
        from walkback_console.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.top.where if self.top is not None else ""))

    # --- the command line ----------------------------------------------------------------------------------------

    def command_words(self) -> list[str]:
        return ["inbox", "runs", "open ", "workers", "help", "log", "theme", "quit", *(a.id for a in TABLE)]

    def command(self, typed: str) -> None:
        word, _, rest = typed.strip().lstrip(":").partition(" ")
        rest = rest.strip()
        simple: dict[str, Callable[[], object]] = {
            "": lambda: None,
            "inbox": self._to_inbox,
            "runs": lambda: self.open_runs(rest),
            "workers": self._open_workers,
            "help": self.action_help,
            "log": self._open_log,
            "theme": self._other_theme,
            "palette": self.action_command_palette,
            "quit": self.leave,
            "q": self.leave,
        }
        if word in simple:
            simple[word]()
        elif word in {"open", "run", "show"} and rest:
            self.open_place(rest)
        elif (screen := self.top) is not None and any(action.id == word for action in TABLE):
            screen.perform(find(word))
        else:
            known = ", ".join(w.strip() for w in self.command_words()[:8])
            self.say(f"{word!r} is no command. There are {known}, and the name of every action.", "unsure")

    def _to_inbox(self) -> None:
        while len(self.screen_stack) > 2:
            self.pop_screen()

    def _open_workers(self) -> None:
        from walkback_console.screens.workers import WorkersScreen

        self.push_screen(WorkersScreen())

    def _open_log(self) -> None:
        from walkback_console.screens.log import LogScreen

        self.push_screen(LogScreen())

    def _other_theme(self) -> None:
        self.theme = palette.LIGHT if self.theme == palette.DARK else palette.DARK
        self.redraw()

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        """The palette: where one can go, and what can be done here."""
        from textual.app import SystemCommand

        yield SystemCommand("Inbox", "What needs a person", self._to_inbox)
        yield SystemCommand("Runs", "All runs, newest first", self.open_runs)
        yield SystemCommand("Workers, breakers and freezes", "Who works, and what is held up", self._open_workers)
        yield SystemCommand("Log", "What was done here, as commands", self._open_log)
        yield SystemCommand("Help", "Every key of this screen", self.action_help)
        yield SystemCommand("Light or dark", "The other theme", self._other_theme)
        yield SystemCommand("Quit", "Leave the console", self.leave)
        top = self.top
        if top is not None:
            from walkback_console.actions import on_screen, why_not

            for action in on_screen(top.where):
                if why_not(action, top.subject(), self.who, read_only=self.read_only) is None and action.id != "open":
                    yield SystemCommand(action.label.capitalize(), action.says, lambda a=action: top.perform(a))


def ascii_filters(options: Options) -> list[LineFilter]:
    if not options.ascii_only:
        return []
    from walkback_console.ascii_only import OnlyASCII

    return [OnlyASCII(sys.stdout.encoding or "ascii")]


def options_for(
    url: str,
    *,
    store: Store | None = None,
    read_only: bool = False,
    claim: str | None = None,
    place: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Options:
    """What the address, the command line and the environment come to; `store` is given when it is open already."""

    def open_() -> Store:
        if store is not None:
            return store
        from walkback_store import open_store

        return open_store(url, create=False, wait=3.0)

    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    return Options(
        url=url,
        where=outside.shown_address(url),
        open_store=open_,
        store=store,
        read_only=read_only,
        claim=claim,
        place=place,
        environment=environ.get("WALKBACK_ENV", ""),
        ascii_only="utf" not in encoding or bool(environ.get("WALKBACK_ASCII")),
        theme=palette.LIGHT if environ.get("WALKBACK_THEME") == "light" else palette.DARK,
    )


def run(options: Options) -> None:
    """Until the person leaves. Threads that still wait for a store are left behind with the process."""
    Walkback(options).run()
