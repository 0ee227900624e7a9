"""All runs, newest first, of which only some hundreds around the cursor are in memory, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from walkback_console import actions, filters
from walkback_console.columns import columns, two_ends
from walkback_console.plain_words import age
from walkback_console.run_words import count_words, failure_of, head_lines, position_words, status_text
from walkback_console.safe_text import safe
from walkback_console.screens.base import ConsoleScreen, bindings_for
from walkback_console.subjects import Subject, load_run
from walkback_console.verdicts import Line, said, t
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.page import Page
from walkback_console.widgets.sources import ListSource

if TYPE_CHECKING:
    from walkback_console.actions import Action
    from walkback_store import Store
    from walkback_store.paging import Count
    from walkback_store.queries import RunFilter

Row = dict[str, Any]
Place = tuple[Any, ...]
PAGE = 200
KEPT = 800
"""Rows in memory at most; what is furthest from the cursor goes first."""
NEAR = 60
"""Rows from an end of what is loaded at which more is asked for."""
WIDE = 118
FAULTS = ("failed", "needs_operator", "compensated", "cancelled")


def key_of(row: Row) -> str:
    return str(row["run_id"])


@dataclass(frozen=True, slots=True)
class Window:
    """Some rows of the list that lie next to each other."""

    rows: Sequence[Row] = ()
    start: Place | None = None
    """The place just before the first of them; None if it is the first of all."""
    ends: bool = False
    """The last of them is the last of all."""


def read_window(store: Store, where: RunFilter, start: Place | None, limit: int) -> Window:
    page = store.runs(where, limit=limit, after=start)
    if not page.rows and start is not None:  # all that was behind that place is gone, or filtered out
        page, start = store.runs(where, limit=limit), None
    return Window(page.rows, start, page.older is None)


def read_more(store: Store, where: RunFilter, window: Window, direction: int) -> Window:
    """The same with a page more at one end."""
    by_id = where.prefix is not None
    if direction > 0:
        page = store.runs(where, limit=PAGE, after=place_of(window.rows[-1], by_id))
        return Window([*window.rows, *page.rows], window.start, page.older is None)
    # One more than is shown: it is the place before the first.
    page = store.runs(where, limit=PAGE + 1, before=place_of(window.rows[0], by_id))
    rows, start = without_first(page.rows, PAGE, by_id)
    return Window([*rows, *window.rows], start, window.ends)


def read_last(store: Store, where: RunFilter) -> Window:
    rows, start = without_first(store.runs(where, limit=PAGE + 1, last=True).rows, PAGE, where.prefix is not None)
    return Window(rows, start, True)


def without_first(rows: Sequence[Row], most: int, by_id: bool) -> tuple[Sequence[Row], Place | None]:
    return (rows, None) if len(rows) <= most else (rows[1:], place_of(rows[0], by_id))


def place_of(row: Row, by_id: bool) -> Place:
    return (row["run_id"],) if by_id else (row["created_at"], row["run_no"])


def trimmed(window: Window, at: int, by_id: bool) -> Window:
    """Without what is far from row number `at`."""
    if len(window.rows) <= KEPT:
        return window
    first = max(0, min(at - KEPT // 2, len(window.rows) - KEPT))
    start = window.start if not first else place_of(window.rows[first - 1], by_id)
    last = first + KEPT
    return Window(window.rows[first:last], start, window.ends and last >= len(window.rows))


class RunList(LineList[Row]):
    """Says when the end of what is loaded comes near; its first and last rows are those of the store."""

    class Near(Message):
        """Direction: -1 for what comes before, 1 for what comes after."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    class Far(Message):
        """To the very first, or the very last."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    def action_first(self) -> None:
        self.post_message(self.Far(-1))

    def action_last(self) -> None:
        self.post_message(self.Far(1))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        first, last = self._visible()
        if new_value < old_value and first < NEAR:
            self.post_message(self.Near(-1))
        elif new_value > old_value and last > self.source.count - NEAR:
            self.post_message(self.Near(1))

    @property
    def first_visible(self) -> int:
        return self._visible()[0]


class RunsScreen(ConsoleScreen):
    where = actions.RUNS
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_for(actions.RUNS),
        Binding("x", "faults", "Faults only", show=False),
    ]
    DEFAULT_CSS = """
    RunsScreen LineList { height: 1fr; }
    RunsScreen Page { height: 6; border-top: solid $border; background: $surface; }
    RunsScreen.-tall Page { height: 8; }
    """

    def __init__(self, typed: str = "", fingerprint: str | None = None) -> None:
        super().__init__()
        self._filter = filters.Filter()
        self._given = typed
        self._fingerprint = fingerprint
        self._faults = False
        self._window = Window()
        self._count: Count | None = None
        self._new = 0
        self._seen = 0
        """When the newest run began that has been at the top of the screen."""
        self._subject: Subject | None = None
        self._failure: Any = {}
        self._read_at = 0
        self._loaded = False
        self._wide = False
        self._growing = False

    def body(self) -> Iterator[Widget]:
        self.list = RunList(
            ListSource[Row]([], key_of),
            self._render_row,
            row_height=2,
            matches=lambda row, text: text.lower() in f"{row['run_id']} {row['agent']}".lower(),
            ascii=self.app.ascii_only,
            empty="reading ...",
        )
        self.list.add_class("body")
        yield self.list
        yield Page(id="preview").add_class("body")

    def on_mount(self) -> None:
        try:
            self._filter = filters.parse(self._given)
        except filters.BadFilter as error:
            self.app.say(str(error), "unsure")
        super().on_mount()
        self.list.focus()

    def on_resize(self, event: Any) -> None:
        super().on_resize(event)
        self.set_class(event.size.height >= 34, "-tall")
        self._wide = event.size.width >= WIDE
        self.list.set_row_height(1 if self._wide else 2)

    # --- reading -------------------------------------------------------------------------------------------------

    def _query(self, now: int) -> RunFilter:
        found = self._filter.of_runs(now)
        if self._faults:
            status = [s for s in FAULTS if s in found.status] if found.status else FAULTS
            found = replace(found, status=status or ("none of them",))
        return replace(found, fingerprint=self._fingerprint)

    def load(self) -> None:
        window, seen, at_top = self._window, self._seen, self._at_top()
        limit = min(1000, max(PAGE, len(window.rows) + PAGE // 2))

        def read(store: Store) -> tuple[int, Window, int]:
            now = store.now()
            where = self._query(now)
            found = read_window(store, where, window.start, limit)
            new = 0
            if seen and not at_top and where.prefix is None:
                new = store.count_runs(replace(where, since=max(where.since or 0, seen + 1))).n
            return now, found, new

        self.ask("runs", read, self._got)
        self.ask("runs count", lambda store: store.count_runs(self._query(store.now())), self._got_count)

    def _at_top(self) -> bool:
        return self._window.start is None and (not self.is_mounted or self.list.first_visible == 0)

    def _got(self, found: tuple[int, Window, int]) -> None:
        self._read_at, window, self._new = found
        before = {key_of(row): row["head_seq"] for row in self._window.rows}
        self._show(window, hold=self._loaded)
        if before:
            self.list.flash(
                key_of(r) for r in window.rows if key_of(r) in before and before[key_of(r)] != r["head_seq"]
            )
        self._loaded = True
        self._load_preview()
        self.draw_frame()

    def _show(self, window: Window, *, hold: bool) -> None:
        selected = self.list.selected
        rows = {key_of(row): n for n, row in enumerate(window.rows)}
        by_id = self._query(0).prefix is not None
        self._window = trimmed(window, rows.get(selected or "", 0), by_id)
        self.list.empty = "No run matches; / changes the filter." if self._is_filtered() else "There are no runs yet."
        self.list.replace(ListSource[Row](self._window.rows, key_of), hold=hold)
        self._note_top()

    def _note_top(self) -> None:
        """What is at the top of the screen has been seen."""
        if self._at_top() and self._window.rows:
            self._seen = max(self._seen, *(row["created_at"] for row in self._window.rows[:1]))
            self._new = 0

    def _got_count(self, count: Count) -> None:
        self._count = count
        self.draw_frame()

    def on_run_list_near(self, message: RunList.Near) -> None:
        self._note_top()
        window, direction = self._window, message.direction
        if self._growing or not window.rows or (window.ends if direction > 0 else window.start is None):
            return
        self._growing = True

        def got(found: Window) -> None:
            self._growing = False
            if self._window is window:  # else it was read again meanwhile, and what is near is looked at anew
                self._keep_in_view(found, direction)
                self._show(found, hold=True)

        def failed(error: Exception) -> None:
            self._growing = False
            self.app.failed(error)

        self.ask("more runs", lambda store: read_more(store, self._query(store.now()), window, direction),
                            got, failed)  # fmt: skip

    def _keep_in_view(self, window: Window, direction: int) -> None:
        """A cursor that was left behind by the wheel comes along before its row is dropped."""
        index = self.list.selected_index
        if len(window.rows) > KEPT and index is not None and abs(index - self.list.first_visible) > KEPT // 2:
            self.list.select_index(self.list.first_visible + (0 if direction < 0 else 1))

    def on_run_list_far(self, message: RunList.Far) -> None:
        direction = message.direction
        if direction < 0 and self._window.start is None:
            self.list.select_index(0)
            self._note_top()
            self.draw_frame()
            return
        if direction > 0 and self._window.ends:
            self.list.select_index(len(self._window.rows) - 1)
            return

        def read(store: Store) -> Window:
            where = self._query(store.now())
            return read_last(store, where) if direction > 0 else read_window(store, where, None, PAGE)

        def got(found: Window) -> None:
            self.app.thread.forget("runs")
            self._window = found
            self.list.replace(ListSource[Row](found.rows, key_of), hold=False)
            self.list.select_index(0 if direction < 0 else len(found.rows) - 1)
            self._note_top()
            self.draw_frame()

        self.ask("far runs", read, got)

    # --- the selected one ----------------------------------------------------------------------------------------

    def _load_preview(self) -> None:
        key = self.list.selected
        if key is None:
            self._subject = None
            self.query_one(Page).show([])
            return

        def read(store: Store) -> tuple[Subject, Any]:
            subject = load_run(store, key)
            return subject, failure_of(store, subject.run or {})

        def got(found: tuple[Subject, Any]) -> None:
            if key == self.list.selected:
                self._subject, self._failure = found
                self._draw_preview()
                self.draw_keys()

        def failed(error: Exception) -> None:
            if key == self.list.selected:
                self._subject = None
                self.query_one(Page).show([Line("title", "", t(error, "bad"))])

        self.ask("run preview", read, got, failed)

    def _draw_preview(self) -> None:
        if self._subject is not None:
            shown = replace(self._subject, at=max(self._subject.at, self.app.now()))
            head = Line("title", "", said(t(shown.run_id, "strong")))
            self.query_one(Page).show([head, *head_lines(shown, self._failure, ascii_only=self.app.ascii_only)])

    def tick(self) -> None:
        self._draw_preview()

    def subject(self) -> Subject | None:
        key = self.list.selected
        if key is None:
            return None
        if self.list.selected_is_ghost:
            return Subject(at=self._read_at, missing="it is gone from this list; look at the next row")
        if self._subject is None or self._subject.run_id != key:
            return Subject(at=self._read_at, missing="it is still being read; press the key again")
        return self._subject

    def perform(self, action: Action, subject: Subject | None = None) -> None:
        if subject is not None or self.list.selected is None or action.id in {"back", "undo"}:
            super().perform(action, subject)
        else:
            self.list.act(lambda _: super(RunsScreen, self).perform(action))

    def on_line_list_selected(self) -> None:
        self._subject = None
        self._note_top()
        self._load_preview()
        index = self.list.selected_index or 0
        if index < NEAR:
            self.list.post_message(RunList.Near(-1))
        if index > len(self._window.rows) - NEAR:
            self.list.post_message(RunList.Near(1))
        self.draw_frame()

    def on_line_list_gone(self) -> None:
        self.app.say("that run is no longer in this list. Nothing was done.", "unsure")

    def on_line_list_unseen(self) -> None:
        self.app.say("that row was not on the screen; it is now. Nothing was done.", "unsure")

    def on_line_list_opened(self, message: LineList.Opened) -> None:
        self.app.open_run(message.key)

    # --- filter --------------------------------------------------------------------------------------------------

    def _is_filtered(self) -> bool:
        return bool(self._filter.typed or self._faults or self._fingerprint)

    def action_faults(self) -> None:
        self._faults = not self._faults
        self._from_the_top()

    def action_search(self) -> None:
        self.type_in(
            "filter: the beginning of an id, or status: agent: tag: since:",
            self._filtered,
            value=self._filter.typed,
            changed=self._filtered,
            suggestions=[f"{name}:" for name in ("status", "agent", "tag", "since")],
        )

    def _filtered(self, typed: str) -> None:
        try:
            found = filters.parse(typed)
        except filters.BadFilter as error:
            self.app.say(str(error), "unsure")
            return
        if found.owner is not None or found.tool is not None or len(found.words) > 1:
            self.app.say("runs are found by one beginning of an id, status:, agent:, tag: and since:", "unsure")
        if found != self._filter or found.typed != self._filter.typed:
            self._filter = found
            self._from_the_top()

    def _from_the_top(self) -> None:
        self._window, self._loaded, self._count, self._seen, self._new = Window(), False, None, 0, 0
        self.load()
        self.draw_frame()

    def crumbs(self) -> list[str]:
        found = ["Runs"]
        found += ["with the same error"] if self._fingerprint else []
        found += [f"filter {self._filter.typed}"] if self._filter.typed else []
        found += ["faults only"] if self._faults else []
        found += [count_words(self._count.n, self._count.more)] if self._count is not None else []
        arrow = "^" if self.app.ascii_only else "↑"
        return [*found, *([f"{self._new:,} new {arrow}"] if self._new else [])]

    def keys_shown(self) -> list[tuple[str, str]]:
        faults = "all runs" if self._faults else "faults only"
        return [("enter", "open"), ("/", "filter"), ("x", faults), *super().keys_shown()[1:], ("esc", "back")]

    def text_of_all(self) -> str:
        width = max(self.size.width, 80)
        return "\n".join(
            line.plain for row in self._window.rows for line in self._render_row(row, width, RowState())
        )  # fmt: skip

    # --- drawing -------------------------------------------------------------------------------------------------

    def _render_row(self, row: Row, width: int, state: RowState) -> list[Text]:
        status = said("gone: " if state.ghost else "", status_text(row, ascii_only=self.app.ascii_only))
        when = t(age(row["created_at"], max(self._read_at, row["created_at"])))
        step, owner = t(position_words(row)), row["owner"] or ""
        run_id = t(row["run_id"], "strong")
        if self._wide:
            return [
                columns(
                    width, (status, 36), (t(row["agent"]), 0), (step, 15), (when, 11), (t(owner or "-"), 10),
                    (run_id, 30),
                )
            ]  # fmt: skip
        first = columns(width, (status, 0), (step, 15), (when, 11), (t(owner or "nobody's", "dim"), 13))
        return [first, two_ends(f"  {safe(row['agent'])}", safe(row["run_id"]), width)]
