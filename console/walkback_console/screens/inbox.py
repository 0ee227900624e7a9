"""The inbox: what needs a person, most urgent first, and what is known of the one under the cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget

from walkback_console import actions, filters
from walkback_console.columns import columns, two_ends
from walkback_console.palette import TIMES, mark, meaning
from walkback_console.plain_words import FOREVER, age, left, many
from walkback_console.safe_text import safe
from walkback_console.screens.base import ConsoleScreen, bindings_for
from walkback_console.subjects import Subject, load_operation, load_run
from walkback_console.verdicts import Line, choices, contract_of, regret_lines, said, t, target_of
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.page import Page
from walkback_console.widgets.sources import ListSource

if TYPE_CHECKING:
    from walkback_console.actions import Action
    from walkback_store import Store

Row = dict[str, Any]
MOST = 500
WIDE = 160
"""Columns from which a row is one line."""


def key_of(row: Row) -> str:
    """What stays the same while the list is read again: the one operation, or what the items of a group have alike."""
    return f"{row['run_id']}#{row['step']}|{row['kind']}" if row["n"] == 1 else f"group|{row['alike']}|{row['burst']}"


def with_bursts(rows: Sequence[Row]) -> list[Row]:
    """Groups that are alike and apart in time are told apart by their order."""
    seen: dict[str, int] = {}
    found = []
    for row in sorted(rows, key=lambda r: r["since"]):
        burst = seen[row["alike"]] = seen.get(row["alike"], -1) + 1
        found.append((row, burst))
    bursts = {id(row): burst for row, burst in found}
    return [row | {"burst": bursts[id(row)]} for row in rows]


class InboxScreen(ConsoleScreen):
    where = actions.INBOX
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stay", "Stay", show=False),
        *bindings_for(actions.INBOX),
    ]
    DEFAULT_CSS = """
    InboxScreen LineList { height: 1fr; }
    InboxScreen Page { height: 8; border-top: solid $border; background: $surface; }
    InboxScreen.-tall Page { height: 12; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Row] = []
        self._filter = filters.Filter()
        self._subject: Subject | None = None
        self.first: tuple[int, list[Row]] | None = None
        """What was read before there was a screen."""
        self._read_at = 0
        self._loaded = False
        self._wide = False
        self._no_subject = False
        """The preview of the selected row could not be read."""

    def body(self) -> Iterator[Widget]:
        yield self._make_list()
        yield Page(id="preview").add_class("body")

    def _make_list(self) -> LineList[Row]:
        self.list: LineList[Row] = LineList(
            ListSource[Row]([], key_of),
            self._render_row,
            row_height=2,
            matches=lambda row, text: filters.parse(text).matches(row, self._read_at),
            ascii=self.app.ascii_only,
            empty="reading ...",
        )
        self.list.add_class("body")
        return self.list

    def on_mount(self) -> None:
        super().on_mount()
        self.list.focus()

    def on_resize(self, event: Any) -> None:
        super().on_resize(event)
        self.set_class(event.size.height >= 34, "-tall")
        self._wide = event.size.width >= WIDE
        self.list.set_row_height(1 if self._wide else 2)

    # --- reading -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        if self.first is not None:
            first, self.first = self.first, None
            self._got(first)
            return
        self.ask("inbox", self.read, self._got)
        self._load_preview()

    def read(self, store: Store) -> tuple[int, list[Row]]:
        now = store.now()
        return now, with_bursts(store.inbox(now, limit=MOST))

    def _got(self, found: tuple[int, list[Row]]) -> None:
        self._read_at, rows = found
        before = {key_of(row): row for row in self._rows}
        self._rows = rows
        changed = [key_of(row) for row in rows if before.get(key_of(row)) != row] if self._loaded else []
        self._show(hold=True)
        self.list.flash(changed)
        self._loaded = True
        self._load_preview()
        self.draw_frame()

    def _show(self, *, hold: bool) -> None:
        shown = [row for row in self._rows if self._filter.matches(row, self._read_at)]
        self.list.empty = (
            "Nothing needs a person."
            if not self._rows
            else f"Nothing here matches {self._filter.typed!r}; / changes it."
        )
        self.list.replace(ListSource[Row](shown, key_of), hold=hold)

    def _load_preview(self) -> None:
        row, key = self.list.selected_row, self.list.selected
        if row is None or key is None:
            self._subject = None
            self.query_one(Page).show([Line("title", "", t(self._nothing(), "dim"))] if self._loaded else [])
            return
        run_id, step, kind = row["run_id"], row["step"], row["kind"]

        def read(store: Store) -> Subject:
            if step is None or (kind == "stuck" and row["tool"] is None):
                return load_run(store, run_id)
            return load_operation(store, run_id, step)

        self.ask("preview", read, lambda found: self._got_preview(key, found), lambda e: self._no_preview(key, e))

    def _nothing(self) -> str:
        return ":runs lists every run; new trouble appears here by itself."

    def _got_preview(self, key: str, subject: Subject) -> None:
        if key != self.list.selected:
            return
        row = self.list.selected_row
        self._subject = subject
        if row is not None:
            self.query_one(Page).show(preview(row, subject, self.app.who, self.app.read_only, self.app.ascii_only))
        self.draw_keys()

    def _no_preview(self, key: str, error: Exception) -> None:
        if key == self.list.selected:
            self._subject, self._no_subject = None, True
            self.query_one(Page).show([Line("title", "", t(error, "bad"))])

    @property
    def ready(self) -> bool:
        return self._loaded and (self._subject is not None or self.list.selected_row is None or self._no_subject)

    # --- what is selected ----------------------------------------------------------------------------------------

    def crumbs(self) -> list[str]:
        found = [f"filter {self._filter.typed}"] if self._filter.typed else []
        new = self.list.new_above if self.is_mounted else 0
        arrow = "^" if self.app.ascii_only else "↑"
        return [*found, *([f"{new} new {arrow}"] if new else [])]

    def subject(self) -> Subject | None:
        row = self.list.selected_row
        if row is None or self._subject is None:
            return None
        if self.list.selected_is_ghost:
            return Subject(at=self._subject.at, missing="it is gone from the inbox; look at the next row")
        shown = (self._subject.run_id, self._subject.step) == (row["run_id"], row["step"])
        if not shown and not (self._subject.step is None and self._subject.run_id == row["run_id"]):
            return Subject(at=self._subject.at, missing="it is still being read; press the key again")
        if row["n"] > 1:
            why = f"this row stands for {row['n']}; enter opens them"
            return Subject(at=self._subject.at, missing=why, tool=self._subject.tool, agent=self._subject.agent)
        return self._subject

    def perform(self, action: Action, subject: Subject | None = None) -> None:
        row = self.list.selected_row
        if subject is not None or row is None or action.id in {"back", "undo"}:
            super().perform(action, subject)
        elif action.id in {"freeze", "unfreeze"} and self.list.selected_is_ghost:  # no row has to be there for it
            super().perform(action, Subject(at=self._read_at, freezes=self.app.overview.freezes))
        elif action.id in {"freeze", "unfreeze"}:  # of its tool, whatever else the row stands for
            self.list.act(lambda _: super(InboxScreen, self).perform(action, self._store_subject(row)))
        else:
            self.list.act(lambda _: super(InboxScreen, self).perform(action))

    def _store_subject(self, row: Row) -> Subject:
        return Subject(at=self._read_at, tool=row["tool"], agent=row["agent"], freezes=self.app.overview.freezes)

    def on_line_list_selected(self) -> None:
        self._subject, self._no_subject = None, False
        self._load_preview()
        self.draw_keys()

    def on_line_list_gone(self) -> None:
        self.app.say("that row is gone: somebody or something has dealt with it. Nothing was done.", "unsure")

    def on_line_list_unseen(self) -> None:
        self.app.say("that row was not on the screen; it is now. Nothing was done.", "unsure")

    def on_line_list_opened(self) -> None:
        row = self.list.selected_row
        if row is None:
            return
        if row["kind"] == "stuck" and row["n"] > 1:  # what they have alike is who would take them
            self.app.open_runs(f"agent:{row['agent']}")
            return
        if row["n"] > 1:
            from walkback_console.screens.batch import BatchScreen

            self.app.push_screen(BatchScreen(row, self._read_at))
        elif row["step"] is not None and row["tool"] is not None:
            self.app.open_operation(row["run_id"], row["step"])
        else:
            self.app.open_run(row["run_id"], row["step"])

    def action_stay(self) -> None:
        """One esc too many does not leave the console; it ends a filter, if there is one."""
        if self._filter.typed:
            self._filtered("")
        else:
            self.app.say("this is the inbox; q leaves the console.", "dim")

    # --- filter --------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        self.type_in(
            "filter: words, or status: agent: tag: since: owner: tool:",
            self._filtered,
            value=self._filter.typed,
            changed=self._filtered,
            suggestions=[f"{name}:" for name in filters.NAMES],
        )

    def _filtered(self, typed: str) -> None:
        try:
            self._filter = filters.parse(typed)
        except filters.BadFilter as error:
            self.app.say(str(error), "unsure")
            return
        self._show(hold=False)
        self._load_preview()
        self.draw_frame()

    def keys_shown(self) -> list[tuple[str, str]]:
        found = super().keys_shown()
        return [*found, ("/", "filter"), (":", "command"), ("q", "quit")]

    def text_of_all(self) -> str:
        width = max(self.size.width, 80)
        return "\n".join(
            line.plain for row in self._rows for line in self._render_row(row, width, RowState())
        )  # fmt: skip

    # --- drawing -------------------------------------------------------------------------------------------------

    def _render_row(self, row: Row, width: int, state: RowState) -> list[Text]:
        at = self._read_at
        kind = str(row["kind"])
        gone = "gone: " if state.ghost else ""
        head = t(f"{gone}{mark(kind, ascii_only=self.app.ascii_only)} {kind}", meaning(kind))
        due = (row["deadline"] or FOREVER) < FOREVER
        when = left(row["deadline"], at) if due else age(row["since"], at)
        soon = due and row["deadline"] - at < 15 * 60 * 1_000_000
        time = t(when, "bad" if soon else "")
        times = ("x" if self.app.ascii_only else TIMES) + f"{row['n']:,}"
        what = target_of(row) if row["tool"] else str(row["detail"] or row["agent"])
        place = row["run_id"] + (f" #{row['step']}" if row["step"] is not None else "")
        place = place if row["n"] == 1 else f"{place} and {many(row['n'] - 1, 'other')}"
        stake = stake_of(row)
        owner = row["owner"] or ("-" if self._wide else "nobody's yet")
        if self._wide:
            return [
                columns(
                    width,
                    (head, 24),
                    (time, 17),
                    (t(times), 5),
                    (t(what), 0),
                    (t(stake, "strong"), 20),
                    (t(owner), 12),
                    (t(place, "dim"), 31),
                )
            ]
        first = columns(width, (head, 24), (time, 17), (t(times), 6), (t(stake, "strong"), 0), (t(owner, "dim"), 14))
        second = two_ends(f"  {safe(what)}", safe(place), width)
        return [first, second]


def stake_of(row: Row) -> str:
    if row["n"] == 1 or row["stake"] is None:
        return row["stake"] or ""
    if row["mixed_stakes"] or row["stake_value"] is None:
        return f"{row['stake']} and more"
    unit = "".join(c for c in row["stake"] if c not in "0123456789.,+- ")
    total = f"{row['stake_value']:,.2f}".removesuffix(".00")
    return f"{unit}{total}" if row["stake"].startswith(unit) else f"{total} {unit}"


STUCK = {
    "no_worker": "no worker has this version; start one: walkback work MODULE:APP",
    "overdue": "workers that could take it have not for 15 minutes: are they busy, or do they hang? :workers",
    "worker_lost": "its worker is gone; any other that has this version takes it over: walkback work MODULE:APP",
    "approval_lapsed": "its approval has expired; a worker has to tell the agent: walkback work MODULE:APP",
}


def preview(row: Row, subject: Subject, who: Any, read_only: bool, ascii_only: bool) -> list[Line]:
    """The whole of what the row says, the last error, the contract, and the safest next action."""
    call, run = subject.operation, subject.run or {}
    waiting = regret_lines(subject) if subject.decision is not None else ()  # what went out is told by the screen of it
    lines = [Line("title", "", text) for text in waiting]
    what = target_of(row) if row["tool"] else str(row["detail"] or row["agent"])
    stake = said("  ", t(stake_of(row), "strong")) if row["stake"] else Text()
    lines.append(Line("title", "", said(t(what, "strong"), stake)))
    place = row["run_id"] + (f" #{row['step']}" if row["step"] is not None else "")
    place = place if row["n"] == 1 else f"{place} and {many(row['n'] - 1, 'other')}"
    if row["kind"] == "approval":
        lines.append(Line("about", "rule", t(row["why"])))
    if row["kind"] == "stuck":
        lines.append(Line("about", "why", t(f"{row['why']}: {row['detail'] or row['agent']}")))
    error = call["error"] if call is not None and row["kind"] != "stuck" else None
    detail = (": ".join(filter(None, (call["error_class"], error))) if error and call else "") or row["detail"] or ""
    if detail and row["kind"] != "stuck":
        lines.append(Line("about", "last error" if error else "why", t(detail, "bad" if error else "")))
    if call is not None:
        lines.append(Line("about", "contract", contract_of(call, subject.at, ascii_only=ascii_only)))
    lines.append(Line("about", "safest next", _safest(row, subject, who, read_only)))
    # Last, for the row says it, too: with long words the end does not fit on a small screen.
    lines.append(
        Line("about", "run", said(t(place), t(f" · {run.get('agent', '')} {run.get('agent_version', '')}", "dim")))
    )
    return lines


def _safest(row: Row, subject: Subject, who: Any, read_only: bool) -> Text:
    kind = row["kind"]
    if kind == "stuck":
        return t(STUCK.get(row["why"], "enter to look closer"))
    if kind == "approval" and row["n"] > 1:
        return said(("enter", "key"), f" lists all {row['n']:,}; each is read, and approved or refused, by itself")
    if row["n"] > 1:
        return said(("enter", "key"), f" to see all {row['n']:,}, verify them together and split them by what is found")
    if kind == "approval":
        return said(("enter", "key"), " to read all of it; it is approved or refused there")
    if subject.operation is not None and subject.operation["status"] == "unknown":
        for choice in choices(subject, who, read_only=read_only):
            if choice.why_not is None:
                return said((choice.action.keys[0], "key"), f" {choice.action.label}: ", t(choice.then))
    hints = {
        "diverged": "the agent's code no longer fits its record: enter shows where; put the old code back, or cancel",
        "drift": "the answer has another shape: enter shows which fields; then R resumes, or X cancels",
        "compensation_failed": "enter shows which undo failed; mend its cause, then R tries it again",
        "duplicate_suspected": "look in the other system; D ends the suspicion, c undoes it",
    }
    return t(hints.get(kind, "enter to look closer"))
