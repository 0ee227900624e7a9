"""What fills the right side of a run: it asks for one step and one tab, and shows what comes if it still counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from walkback_console import outside
from walkback_console.blame import Blame, blame
from walkback_console.diffs import Change
from walkback_console.layers import event_lines, facts_of, layer_lines, step_lines
from walkback_console.moments import AFTER, State, States, read_diff, read_layers, read_state, read_step
from walkback_console.plain_words import clock, many, size
from walkback_console.run_words import failure_of
from walkback_console.screens.operation import text_of
from walkback_console.subjects import Subject
from walkback_console.trees import MISSING, Path, brief, format_path
from walkback_console.trees import text_of as value_in_full
from walkback_console.verdicts import Line, t
from walkback_console.widgets.detail import DIFF, EVENTS, LAYERS, OPERATION, PAGE, STATE, Detail, event_key
from walkback_console.widgets.line_list import LineList
from walkback_console.widgets.sources import PagedSource

if TYPE_CHECKING:
    from walkback_console.screens.run import RunScreen
    from walkback_store import Store
    from walkback_store.log import Event

Row = dict[str, Any]
Focus = tuple[str, str, str]
"""Step, tab and side."""
FACTS = 400
NOTICE = 60


class Details:
    """The screen's right hand. All of it is of the step under the cursor of the timeline."""

    def __init__(self, screen: RunScreen, detail: Detail, run_id: str) -> None:
        self._screen = screen
        self._detail = detail
        self._run_id = run_id
        self._states = States()
        self.side = AFTER
        self.subject: Subject | None = None
        """The selected step's operation, if it is a call."""
        self._shown: Focus | None = None
        self._state = State()
        self._find = ""
        self._to_find = False
        self._blame_next = False
        self._path: Path | None = None
        """Where the cursor of the diff is to go when it is there."""
        self._blames = 0
        self._about = Text()

    @property
    def focus(self) -> Focus | None:
        row = self._screen.list.selected_row
        return None if row is None else (row["step"], self._detail.active, self.side)

    def stop(self) -> None:
        """Nobody waits for an answer any more."""
        self._blames += 1

    # --- reading -------------------------------------------------------------------------------------------------

    def load(self, *, again: bool = False) -> None:
        focus, row = self.focus, self._screen.list.selected_row
        if focus is None or row is None:
            self._draw_tabs()
            return
        if focus == self._shown and not again:
            self._draw_tabs()
            return
        tab = focus[1] if self._screen.detail_is_shown else None

        def read(store: Store) -> tuple[Subject | None, Any]:
            subject, events = read_step(store, self._run_id, row)
            return subject, None if tab is None else self._read_tab(store, row, tab, subject, events)

        def got(found: tuple[Subject | None, Any]) -> None:
            if self.focus == focus:
                self.subject = found[0]
                if found[1] is not None:
                    new = self._shown != focus
                    self._shown = focus
                    self._show(row, found[1], new=new)
                self._screen.draw_keys()

        self._draw_tabs()
        self._screen.ask("detail", read, got)

    def _read_tab(self, store: Store, row: Row, tab: str, subject: Subject | None, events: list[Event]) -> Any:
        ascii_only = self._screen.app.ascii_only
        if tab == STATE:
            return read_state(store, self._states, self._run_id, row, self.side)
        if tab == DIFF:
            return read_diff(store, self._states, self._run_id, row)
        if tab == OPERATION:
            return step_lines(row, subject, events, store.now(), ascii_only=ascii_only)
        run = store.run(self._run_id)
        if tab == LAYERS:
            return layer_lines(read_layers(store, run, row, failure_of(store, run)), ascii_only=ascii_only)
        offset = max(0, row["first_seq"] - 1) // PAGE * PAGE
        return run["head_seq"], row["first_seq"], offset, _brief(store.events(self._run_id, after=offset, limit=PAGE))

    # --- showing -------------------------------------------------------------------------------------------------

    def _show(self, row: Row, found: Any, *, new: bool) -> None:
        detail, tab = self._detail, self._detail.active
        if tab == STATE:
            self._show_state(row, found)
        elif tab == DIFF:
            self._show_diff(*found)
        elif tab == EVENTS:
            self._show_events(*found, new=new)
        else:
            page = detail.operation_page if tab == OPERATION else detail.layers_page
            page.show(found)
            if new:
                page.scroll_home(animate=False)
            self._about = Text()
        self._draw_tabs()

    def _draw_tabs(self) -> None:
        row = self._screen.list.selected_row
        step = "no step" if row is None else f"step {row['step']}"
        if self._detail.active == STATE:
            step = f"{self.side} {step}"
        current = self._shown == self.focus
        about = self._about if current else t("reading ...", "dim")
        self._detail.tabs.draw(self._detail.active, Text.assemble(t(step, "strong"), "  ", about))

    def _show_state(self, row: Row, state: State) -> None:
        view = self._detail.state
        first = self._state.n is None
        self._state = state
        view.empty = state.note or "No state was recorded here."
        view.show(state.value, hold=not first)
        length = "" if state.n is None else size(state.bytes)
        self._about = t(f"{length}{'. ' + state.note if state.note else ''}", "dim")
        if self._to_find and self._find:
            self.find(self._find)
        if self._blame_next:
            self._blame_next = False
            self.blame()

    def _show_diff(self, changes: list[Change], note: str) -> None:
        view = self._detail.diff
        view.empty = note
        view.show(changes)
        self._about = t(note or many(len(changes), "change"), "dim")
        path, self._path = self._path, None
        if path is not None:
            self._screen.call_after_refresh(self._select_change, path)

    def _select_change(self, path: Path) -> None:
        """The change of a path, or of what it lies in."""
        source = self._detail.diff.source
        for n in range(source.count):
            line = source.row(n)
            if line is not None and line.is_head and path[: len(line.change.path)] == line.change.path:
                self._detail.diff.select(line.key)
                return

    def _show_events(self, head: int, first_seq: int, offset: int, rows: list[Row], *, new: bool) -> None:
        events = self._detail.events
        source: PagedSource[Row] = PagedSource(head, PAGE, key=event_key)
        source.put(offset, rows)
        if events.selected is not None and not new:
            source.located[events.selected] = int(events.selected) - 1
        events.replace(source, hold=not new)
        if new:
            events.select_index(first_seq - 1)
        self._about = t(f"{many(head, 'event')} in all, those of the step first", "dim")
        self._load_event()

    def wanted(self, message: LineList.Wanted) -> None:
        if message.control is not self._detail.events:
            return
        source = self._detail.events.paged
        span = source.missing(message.first, message.last)
        if span is None:
            return
        offset, length = span

        def got(rows: list[Row]) -> None:
            if self._detail.events.paged is source:
                source.put(offset, rows)
                self._detail.events.loaded()

        self._screen.ask("events", lambda store: _brief(store.events(self._run_id, after=offset, limit=length)), got)

    def selected(self, message: LineList.Selected) -> None:
        if message.control is self._detail.events:
            self._load_event()

    def _load_event(self) -> None:
        key = self._detail.events.selected
        if key is None:
            return

        def read(store: Store) -> list[Line]:
            found = store.events(self._run_id, after=int(key) - 1, limit=1)
            return event_lines(found[0], store.now()) if found else []

        def got(lines: list[Line]) -> None:
            if self._detail.events.selected == key:
                self._detail.event_page.show(lines)

        self._screen.ask("event", read, got)

    # --- finding -------------------------------------------------------------------------------------------------

    def find(self, text: str) -> None:
        """In the state or in the diff; again when the state is there, if it is still being read."""
        self._find = text
        self._to_find = self._shown != self.focus
        view: LineList[Any] = self._detail.state if self._detail.active == STATE else self._detail.diff
        if not view.find(text) and text and not self._to_find:
            self._screen.app.say(f"{text!r} is not in this {self._detail.active}.", "unsure")

    def find_next(self, direction: int) -> None:
        view: LineList[Any] = self._detail.state if self._detail.active == STATE else self._detail.diff
        view.find_next(direction)

    def blame(self) -> None:
        """Who gave the selected path the value it has here."""
        app = self._screen.app
        if self._detail.active not in {STATE, DIFF} or not self._screen.detail_is_shown:
            app.say("who wrote it: open the state (s), select a value, then press b.", "unsure")
            return
        if self._shown != self.focus:
            self._blame_next = self._detail.active == STATE
            return
        row = self._screen.list.selected_row or {}
        if self._detail.active == STATE:
            path, n = self._detail.state.selected_path, self._state.n
        else:
            path, n = self._detail.diff.selected_path, row.get("after")
        if path is None or n is None:
            app.say("who wrote it: no value is selected.", "unsure")
            return
        self._blames += 1
        mine = self._blames
        app.say(f"looking for who wrote {format_path(path)} ...", "dim")
        self._screen.ask(
            "blame",
            lambda store: blame(store, self._run_id, path, n, cancelled=lambda: mine != self._blames),
            lambda found: self._got_blame(path, found) if mine == self._blames else None,
        )

    def _got_blame(self, path: Path, found: Blame | None) -> None:
        app, name = self._screen.app, format_path(path)
        if found is None:
            app.say(f"{name}: nothing was ever there.", "unsure")
            return
        value = "nothing" if found.new is MISSING else brief(found.new, NOTICE)
        if found.step is None:
            app.say(f"{name} = {value}: {found.message}.", "unsure")
            return
        was = "" if found.old is MISSING else f"; it was {brief(found.old, NOTICE)}"
        when = "" if found.at is None else f", {clock(found.at)} UTC"
        more = f" ({found.message})" if found.message else ""
        what = f"{found.kind} {found.tool or found.name}"
        said = f"{name} = {value} was written by step {found.step}, {what}{when}{was}.{more}"
        self._path = path

        def there() -> None:
            self._detail.activate(DIFF)
            self._screen.to_detail()
            app.say(said, "good")

        self._screen.go_to(found.step, there)

    # --- out of the console --------------------------------------------------------------------------------------

    def copied(self, what: str, text: str) -> None:
        app = self._screen.app
        how = outside.copy(text, app.copy_to_clipboard)
        app.say(f"{how}, the {what}: {brief(text, NOTICE)}", "good")

    def text_of_all(self) -> str:
        tab, detail = self._detail.active, self._detail
        if tab == STATE:
            return "" if self._state.value is MISSING else _pretty(self._state.value)
        if tab == DIFF:
            lines = []
            for change in detail.diff.changes:
                values = [value_in_full(v) for v in (change.old, change.new) if v is not MISSING]
                lines.append(f"{change.kind} {format_path(change.path)}  {' -> '.join(values)}")
            return "\n".join(lines)
        pages = {OPERATION: detail.operation_page, LAYERS: detail.layers_page, EVENTS: detail.event_page}
        return text_of(pages[tab].lines)


def _brief(events: list[Event]) -> list[Row]:
    """What a line of the list needs; an event may hold megabytes."""
    return [
        {"seq": e.seq, "at": e.at, "kind": e.kind, "step": e.step, "actor": e.actor, "facts": facts_of(e)[:FACTS]}
        for e in events
    ]


def _pretty(state: object) -> str:
    import json

    from walkback_store.values import encode

    return json.dumps(json.loads(encode(state)), ensure_ascii=False, indent=2)
