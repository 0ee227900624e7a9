"""One run: its steps on the left, and what is known about the selected one on the right. Narrow, one at a time.

Everything on the right is as of one focus: the step under the cursor. Moving in time only asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from walkback_console import actions, errands
from walkback_console.plain_words import many
from walkback_console.run_words import failure_of, head_lines, step_status, took_words, what_of_step
from walkback_console.screens.base import ConsoleScreen, Typing, bindings_for
from walkback_console.screens.run_detail import Details
from walkback_console.screens.whole import WholeScreen
from walkback_console.subjects import Subject, load_run
from walkback_console.trees import format_path
from walkback_console.widgets.detail import DIFF, OPERATION, STATE, TABS, Detail, Tabs
from walkback_console.widgets.diff_view import DiffView
from walkback_console.widgets.frame import Lines
from walkback_console.widgets.line_list import LineList
from walkback_console.widgets.state_view import StateView
from walkback_console.widgets.timeline import PAGE, Timeline, source_of

if TYPE_CHECKING:
    from walkback_console.actions import Action
    from walkback_store import Store

Row = dict[str, Any]
WIDE = 118
"""Columns from which both panes are side by side."""
OF_STEP = frozenset({"compensate", "dismiss", "copy", "copy_command", "freeze", "unfreeze", "note"})
"""Actions that are about the selected step, if it is a call; the others are about the run."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A page or two of the timeline, and how long it is."""

    count: int
    offset: int
    rows: list[Row]
    index: int | None = None
    """Where the cursor is to go; None if it stays."""
    place: int | None = None
    """Where the step under the cursor is now."""


@dataclass(frozen=True, slots=True)
class Which:
    """What of the timeline is shown."""

    faults: bool = False
    text: str = ""

    def wanted(self) -> dict[str, Any]:
        return {"faults": self.faults, "text": self.text or None}


class RunScreen(ConsoleScreen):
    where = actions.RUN
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_for(actions.RUN),
        Binding("tab,shift+tab", "other_pane", "Other pane", show=False, priority=True),
        *(Binding(str(n), f"tab('{name}')", name, show=False) for n, name in enumerate(TABS, 1)),
        Binding("s", f"tab('{STATE}')", "State", show=False),
        Binding("d", f"tab('{DIFF}')", "Diff", show=False),
        Binding("a", "side('after')", "After", show=False),
        Binding("B", "side('before')", "Before", show=False),
        Binding("b", "blame", "Who wrote it", show=False),
        Binding("x", "faults", "Faults only", show=False),
        Binding("g", "go_to", "Go to a step", show=False),
        Binding("comma,left_square_bracket", "step(-1)", "Step back", show=False),
        Binding("full_stop,right_square_bracket", "step(1)", "Step forward", show=False),
        Binding("less_than_sign", "write(-1)", "Write before", show=False),
        Binding("greater_than_sign", "write(1)", "Write after", show=False),
    ]
    DEFAULT_CSS = """
    RunScreen #head { max-height: 7; border-bottom: solid $border; background: $surface; }
    RunScreen #panes { height: 1fr; }
    RunScreen Timeline { width: 1fr; height: 1fr; }
    RunScreen Detail { width: 1fr; }
    RunScreen.-wide Timeline { width: 45%; }
    RunScreen.-wide Detail { width: 55%; border-left: solid $border; }
    """

    def __init__(self, run_id: str, step: str | None = None) -> None:
        super().__init__()
        self._run_id = run_id
        self._first_step = step
        self._which = Which()
        self._shown: tuple[int, Which] | None = None
        """Up to which event, and what of it, is on the screen."""
        self._subject: Subject | None = None
        self._failure: Mapping[str, Any] = {}
        self._wide = False
        self._on_detail = False
        """Where there is no room for both, the right one is shown."""

    def body(self) -> Iterator[Widget]:
        self.list = Timeline(ascii=self.app.ascii_only, id="timeline")
        self.detail = Detail(ascii=self.app.ascii_only)
        self.details = Details(self, self.detail, self._run_id)
        yield Lines(id="head", classes="body")
        yield Horizontal(self.list, self.detail, id="panes", classes="body")

    def on_mount(self) -> None:
        super().on_mount()
        self.list.focus()

    def on_resize(self, event: Any) -> None:
        super().on_resize(event)
        self._wide = event.size.width >= WIDE
        self.set_class(self._wide, "-wide")
        self._arrange()

    def first_focus(self) -> Widget:
        return self.list

    def on_unmount(self) -> None:
        self.details.stop()

    # --- reading -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        which, shown, selected = self._which, self._shown, self.list.selected
        offset, length = self.list.pages_in_view()
        run_id, first_step = self._run_id, self._first_step

        def read(store: Store) -> tuple[Subject, Mapping[str, Any], Which, Steps | None]:
            subject = load_run(store, run_id)
            run = subject.run or {}
            failure = failure_of(store, run)
            if shown == (run["head_seq"], which):
                return subject, failure, which, None
            count = store.count_steps(run_id, **which.wanted())
            if shown is not None and shown[1] == which:
                rows = store.timeline(run_id, offset=offset, limit=length, **which.wanted())
                place = None if selected is None else store.step_offset(run_id, selected, **which.wanted())
                return subject, failure, which, Steps(count, offset, rows, place=place)
            index = None
            for step in (selected, first_step, run["why_step"], failure.get("step")):
                if step is not None and index is None:
                    index = store.step_offset(run_id, step, **which.wanted())
            index = max(0, count - 1) if index is None else index
            start = max(0, index - PAGE // 2) // PAGE * PAGE
            rows = store.timeline(run_id, offset=start, limit=2 * PAGE, **which.wanted())
            return subject, failure, which, Steps(count, start, rows, index=index)

        self.ask("run", read, self._got, self._not_there)

    def _got(self, found: tuple[Subject, Mapping[str, Any], Which, Steps | None]) -> None:
        self._subject, self._failure, which, steps = found
        if which != self._which:
            return
        self.list.at = self._subject.at
        if steps is not None:
            self._show(steps, first=self._shown is None or self._shown[1] != which)
            self._shown = ((self._subject.run or {})["head_seq"], which)
            self.details.load(again=True)
        self._draw_head()
        self.draw_frame()

    def _show(self, steps: Steps, *, first: bool) -> None:
        old = self.list.paged
        source = source_of(steps.count)
        source.put(steps.offset, steps.rows)
        selected = self.list.selected
        if selected is not None and steps.place is not None:
            source.located[selected] = steps.place
        before = {row["step"]: old.row(i) for row in steps.rows if (i := old.index_of(row["step"])) is not None}
        self.list.text = self._which.text
        self.list.empty = "No step matches." if self._which != Which() else "No step yet."
        self.list.replace(source, hold=not first)
        if steps.index is not None and steps.count:
            self.list.select_index(steps.index)
        if not first:
            self.list.flash(step for step, row in before.items() if row is not None and row != _by_step(steps, step))

    def _not_there(self, error: Exception) -> None:
        if self._subject is None:
            self.list.empty = str(error)
            self.list.refresh()
        self.app.failed(error)

    def on_line_list_wanted(self, message: LineList.Wanted) -> None:
        if message.control is not self.list:
            self.details.wanted(message)
            return
        source, which = self.list.paged, self._which
        span = source.missing(message.first, message.last)
        if span is None:
            return
        offset, length = span

        def got(rows: list[Row]) -> None:
            if self.list.paged is source:
                source.put(offset, rows)
                self.list.loaded()

        self.ask(
            "steps",
            lambda store: store.timeline(self._run_id, offset=offset, limit=length, **which.wanted()),
            got,
        )

    def tick(self) -> None:
        self._draw_head()

    def _draw_head(self) -> None:
        if self._subject is not None:
            shown = replace(self._subject, at=max(self._subject.at, self.app.now()))
            lines = head_lines(shown, self._failure, ascii_only=self.app.ascii_only)
            self.query_one("#head", Lines).show(*(line.text for line in lines))

    # --- panes and tabs ------------------------------------------------------------------------------------------

    @property
    def detail_is_shown(self) -> bool:
        return self._wide or self._on_detail

    def _arrange(self) -> None:
        """At once, so that what is shown can be given the focus."""
        self.list.display = self._wide or not self._on_detail
        self.detail.display = self.detail_is_shown

    @property
    def in_detail(self) -> bool:
        """The keys go to the right one."""
        return self.focused is not None and self.detail in self.focused.ancestors

    def action_other_pane(self) -> None:
        typing = self.query_one(Typing)
        if typing.has_focus:
            typing.action_cursor_right()
        elif self.in_detail or (self._on_detail and not self._wide):
            self.to_timeline()
        else:
            self.to_detail()

    def to_timeline(self) -> None:
        self._on_detail = False
        self._arrange()
        self.set_focus(self.list)
        self.draw_frame()

    def to_detail(self) -> None:
        self._on_detail = True
        self._arrange()
        self.set_focus(self.detail.focus_of_tab)
        self.details.load()
        self.draw_frame()

    def action_tab(self, tab: str) -> None:
        self.detail.activate(tab)
        self.to_detail()

    def on_tabs_picked(self, message: Tabs.Picked) -> None:
        self.action_tab(message.tab)

    def action_side(self, side: str) -> None:
        self.details.side = side
        self.action_tab(STATE)

    # --- moving in time ------------------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        self.list.action_move(by)

    def on_line_list_selected(self, message: LineList.Selected) -> None:
        if message.control is self.list:
            self.details.load()
            self.draw_frame()
        else:
            self.details.selected(message)

    def on_line_list_opened(self, message: LineList.Opened) -> None:
        row = self.list.selected_row
        if message.control is not self.list or row is None:
            return
        if row["operation_tool"] is not None:
            self.app.open_operation(self._run_id, row["step"])
        else:
            self.action_tab(OPERATION)

    def on_line_list_gone(self) -> None:
        self.app.say("that step is not shown any more. Nothing was done.", "unsure")

    def action_write(self, direction: int) -> None:
        """To the next write, or the one before."""
        row = self.list.selected_row
        if row is None:
            return
        here = row["first_seq"]

        def read(store: Store) -> str | None:
            if direction > 0:
                found = store.timeline(self._run_id, effect="write", limit=1, after=here)
            else:
                found = store.timeline(self._run_id, effect="write", limit=1, before=here)
            return str(found[0]["step"]) if found else None

        def go(step: str | None) -> None:
            if step is None:
                self.app.say(f"no write {'after' if direction > 0 else 'before'} this step.", "dim")
            else:
                self.go_to(step)

        self.ask("write", read, go)

    def action_go_to(self) -> None:
        self.type_in("go to step", lambda typed: self.go_to(typed.strip()) if typed.strip() else None)

    def go_to(self, step: str, then: Callable[[], object] | None = None) -> None:
        """Put the cursor on a step, whatever is filtered."""
        which = self._which

        def go(places: tuple[int | None, int | None]) -> None:
            shown, all_ = places
            if shown is None and all_ is None:
                self.app.say(f"this run has no step {step}.", "unsure")
                return
            if shown is None:  # it is filtered out: then nothing is
                self._refilter(Which(), step)
            else:
                self.list.select_index(shown)
            if then is not None:
                then()

        def read(store: Store) -> tuple[int | None, int | None]:
            shown = store.step_offset(self._run_id, step, **which.wanted())
            return shown, shown if shown is not None else store.step_offset(self._run_id, step)

        self.ask("go to", read, go)

    # --- finding -------------------------------------------------------------------------------------------------

    def _refilter(self, which: Which, step: str | None = None) -> None:
        if which == self._which and step is None:
            return
        self._which = which
        self._first_step = step or self.list.selected or self._first_step
        if step is not None:
            self.list.replace(source_of(0), hold=False)  # the cursor belongs to the step, not to where it was
        self.load()
        self.draw_frame()

    def action_faults(self) -> None:
        self._refilter(replace(self._which, faults=not self._which.faults))

    def action_search(self) -> None:
        if self.in_detail and self.detail.active in {STATE, DIFF}:
            of = "keys, paths and values" if self.detail.active == STATE else "changes"
            self.type_in(f"search in {of}", self.details.find, changed=self.details.find)
            return
        self.to_timeline()
        self.type_in(
            "search: a name, a tool, what it is for, an error",
            self._searched,
            value=self._which.text,
            changed=self._searched,
        )

    def _searched(self, text: str) -> None:
        self._refilter(replace(self._which, text=text.strip()))

    def on_typing_left(self) -> None:
        if self._typing_changed == self._searched:
            self._searched("")
        elif self._typing_changed == self.details.find:
            self.details.find("")
        super().on_typing_left()

    def action_find_next(self, direction: int) -> None:
        if self.in_detail and self.detail.active in {STATE, DIFF}:
            self.details.find_next(direction)
        else:
            self.list.action_move(direction)

    def action_blame(self) -> None:
        self.details.blame()

    # --- doing ---------------------------------------------------------------------------------------------------

    def subject(self) -> Subject | None:
        return self._subject

    def _subject_of_step(self) -> Subject | None:
        row = self.list.selected_row
        if row is None or row["operation_tool"] is None:
            return self._subject
        found = self.details.subject
        if found is not None and found.step == row["step"]:
            return found
        at = 0 if self._subject is None else self._subject.at
        return Subject(at=at, missing="the step is still being read; press the key again")

    def perform(self, action: Action, subject: Subject | None = None) -> None:
        if subject is None and action.id in OF_STEP:
            subject = self._subject_of_step()
        super().perform(action, subject)

    def do_copy(self, subject: Subject | None) -> None:
        if self.in_detail and self.detail.active == STATE and self.detail.state.selected_path:
            self.detail.state.action_copy_value()
        else:
            errands.copy(self.app, subject)

    def on_state_view_copied(self, message: StateView.Copied) -> None:
        self.details.copied(f"{message.what} of {self.detail.state.selected}", message.text)

    def on_state_view_whole(self, message: StateView.Whole) -> None:
        crumbs = [*self.crumbs(), format_path(message.path)]
        self.app.push_screen(WholeScreen(crumbs, [("", message.value)]))

    def on_diff_view_whole(self, message: DiffView.Whole) -> None:
        crumbs = [*self.crumbs(), format_path(message.path)]
        self.app.push_screen(WholeScreen(crumbs, [("was", message.change.old), ("is", message.change.new)]))

    def do_back(self, _: Subject | None) -> None:
        """Out of what was filtered or looked into first, then out of the run."""
        if self.in_detail:
            self.to_timeline()
        elif self._which != Which():
            self._refilter(Which())
        else:
            self.app.back()

    def crumbs(self) -> list[str]:
        found = [f"Run {self._run_id}"]
        row = self.list.selected_row if self.is_mounted else None
        if self._which.faults:
            found.append("faults only")
        if self._which.text:
            found.append(f"steps with {self._which.text!r}")
        if self._which != Which() and self._shown is not None:
            found.append(many(self.list.source.count, "step"))
        if row is not None:
            found.append(f"step {row['step']}")
        return found

    def keys_shown(self) -> list[tuple[str, str]]:
        rest = [pair for pair in super().keys_shown() if pair[0] != "enter"]
        if self.in_detail:
            here = {STATE: [("b", "who wrote it"), ("/", "search"), ("a B", "after, before")], DIFF: [("b", "blame")]}
            own = [*here.get(self.detail.active, []), (", .", "step"), ("1-5", "tabs"), ("tab", "timeline")]
            return [*own, *rest, ("esc", "back")]
        faults = "all" if self._which.faults else "faults"
        own = [("enter", "open"), ("s", "state"), ("d", "diff"), ("tab", "details"), ("/", "search"), ("x", faults)]
        return [*own, *rest, ("< >", "writes"), ("esc", "back")]

    def text_of_all(self) -> str:
        """What is on the right, if the keys go there; else the steps that are in memory."""
        if self.in_detail:
            return self.details.text_of_all()
        source = self.list.paged
        rows = [source.row(n) for n in range(source.count)] if source.count < 50 * PAGE else []
        lines = [line.text.plain for line in head_lines(self._subject, self._failure)] if self._subject else []
        for row in rows:
            if row is not None:
                status, took = step_status(row), took_words(row, self.list.at)
                effect = "WRITE" if row["operation_effect"] == "write" else row["kind"]
                lines.append(f"{row['step']:<6}{effect:<8}{what_of_step(row)}  {status}  {took}")
        return "\n".join(lines)


def _by_step(steps: Steps, step: str) -> Row | None:
    return next((row for row in steps.rows if row["step"] == step), None)
