"""Alike troubles as one: looked at together, split by what is found, and decided about class by class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget

from walkback_console import actions
from walkback_console.actions import Action, find
from walkback_console.columns import two_ends
from walkback_console.many_at_once import CLASSES, OPEN, class_of, split, stake_sum
from walkback_console.palette import mark, meaning
from walkback_console.plain_words import ago, many
from walkback_console.safe_text import safe
from walkback_console.screens.base import ConsoleScreen, bindings_for
from walkback_console.subjects import Subject, load_group, load_operation, members_of
from walkback_console.verdicts import contract_of, said, t, target_of
from walkback_console.widgets.frame import Lines
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.sources import ListSource

if TYPE_CHECKING:
    from walkback_console.actions import Action
    from walkback_store import Store

Row = dict[str, Any]
Place = tuple[str, str]
IN_ORDER = (*(name for name in CLASSES if name in OPEN), *(name for name in CLASSES if name not in OPEN))
"""What somebody has to decide about first, so that one tab is enough to choose it."""
LOOKS = {
    "happened": "succeeded",
    "asks for approval": "approval",
    "under way": "running",
    "failed": "failed",
    "settled": "compensated",
}
"""The status whose mark and colour a class has; those that are open look like what they are, unknown."""


def key_of(row: Row) -> str:
    return f"{row['run_id']}#{row['step']}"


class BatchScreen(ConsoleScreen):
    where = actions.BATCH
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_for(actions.BATCH),
        Binding("tab", "next_class(1)", "Next class", show=False, priority=True),
        Binding("shift+tab", "next_class(-1)", "Previous class", show=False, priority=True),
        Binding("space", "mark", "Mark", show=False),
    ]
    DEFAULT_CSS = """
    BatchScreen LineList { height: 1fr; }
    BatchScreen #split { background: $surface; border-bottom: solid $border; }
    """

    def __init__(self, group: Row, at: int) -> None:
        super().__init__()
        self._group = group
        self._group_at = at
        self._places: list[Place] = []
        self._all: Subject | None = None
        self._class: str | None = None

    def body(self) -> Iterator[Widget]:
        yield Lines(id="split", classes="body")
        self.list: LineList[Row] = LineList(
            ListSource[Row]([], key_of),
            self._render_row,
            ascii=self.app.ascii_only,
            empty="reading ...",
            matches=lambda row, text: text.lower() in f"{key_of(row)} {row['description']}".lower(),
        )
        self.list.add_class("body")
        yield self.list

    def on_mount(self) -> None:
        super().on_mount()
        self.list.focus()

    @property
    def ready(self) -> bool:
        return self.is_mounted and (self._all is not None)

    # --- reading -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        self.ask("batch", self._read, self._got)

    def _read(self, store: Store) -> tuple[list[Place], Subject]:
        """The members are those that there were when the screen was opened."""
        places = self._places or members_of(store, self._group, self._group_at)
        return places, load_group(store, places)

    def _got(self, found: tuple[list[Place], Subject]) -> None:
        self._places, subject = found
        before = {} if self._all is None else {key_of(m): m for m in self._all.members}
        changed = [key_of(m) for m in subject.members if before and before.get(key_of(m)) != m]
        self._all = subject
        self._show()
        self.list.flash(changed)
        self.draw_frame()

    def _show(self) -> None:
        if self._all is None:
            return
        order = {name: n for n, name in enumerate(IN_ORDER)}
        rows = [m for m in self._all.members if self._class is None or class_of(m) == self._class]
        if self._class is None:
            rows.sort(key=lambda m: order[class_of(m)])
        self.list.empty = "Nothing is left in this class; tab shows the others."
        self.list.replace(ListSource[Row](rows, key_of))
        self.query_one("#split", Lines).show(*self._split_lines(self._all))

    def _split_lines(self, subject: Subject) -> list[Text]:
        """The whole of it in words: what it is, how it splits, and what a batch of it does."""
        first = subject.members[0] if subject.members else None
        tool = "" if first is None else f"{first['tool']} {first['tool_version']}"
        error = self._group["error_class"] or ""
        head = f"{many(len(subject.members), 'operation')} of {tool}, {stake_sum(subject.members)}"
        lines = [said(t(head, "strong"), t(f"  {error}", "bad"))]
        counts = split(subject.members)
        parts = Text()
        for name in (None, *(name for name in IN_ORDER if name in counts)):
            label = f"all {len(subject.members)}" if name is None else f"{counts[name]} {name}"
            chosen = name == self._class
            style = "strong" if chosen else ("plain" if name is None else meaning(LOOKS.get(name, "unknown")))
            parts.append(Text.assemble((f"[{label}]" if chosen else f" {label} ", style), " "))
        lines.append(parts)
        if first is not None:
            lines.append(contract_of(first, subject.at, ascii_only=self.app.ascii_only))
        batch = subject.batch
        if batch is not None:
            why = f": {batch['ended_why']}" if batch["ended_why"] else ""
            waits = batch["status"] == "open" and not batch["released"]
            went = "the first goes out in 10 s, K stops it" if waits else f"{batch['released']} went out"
            words = f"retry of {batch['total']} is {batch['status']}{why}; {went} ({ago(batch['at'], subject.at)})"
            lines.append(t(words, meaning(batch["status"])))
        return lines

    # --- what is selected ----------------------------------------------------------------------------------------

    def crumbs(self) -> list[str]:
        return [f"{len(self._places) or self._group['n']} alike: {self._group['tool'] or self._group['kind']}"]

    def subject(self) -> Subject | None:
        """The marked ones; else those of the class that is shown. By id, as they were painted."""
        if self._all is None:
            return None
        marked = self.list.marked
        if marked:
            return replace(self._all, members=tuple(m for m in self._all.members if key_of(m) in marked))
        shown = self._class
        return replace(self._all, members=tuple(m for m in self._all.members if shown is None or class_of(m) == shown))

    def action_next_class(self, by: int) -> None:
        if self._all is None:
            return
        counts = split(self._all.members)
        # What was chosen may have become empty: then it goes on from where that was.
        names = [None, *(name for name in IN_ORDER if name in counts or name == self._class)]
        self._class = names[(names.index(self._class) + by) % len(names)]
        self.list.clear_marks()  # what is not shown is not decided about
        self._show()
        self.draw_frame()

    def confirm(self, action: Action, subject: Subject, then: Callable[[], object] | None = None) -> None:
        """What was decided about is no longer marked for the next decision."""

        def decided() -> None:
            self.list.clear_marks()
            if then is not None:
                then()

        super().confirm(action, subject, decided)

    def action_mark(self) -> None:
        self.list.toggle_mark()
        self.list.action_move(1)
        self.draw_keys()

    def on_line_list_opened(self, event: LineList.Opened) -> None:
        row = self.list.selected_row
        if row is not None:
            self.app.open_operation(row["run_id"], row["step"])

    def do_run(self, subject: Subject | None) -> None:
        row = self.list.selected_row
        if row is not None:
            self.app.open_run(row["run_id"], row["step"])

    def do_happened_each(self, subject: Subject | None) -> None:
        """Each with evidence of its own: nobody vouches for forty at once."""
        rows = [] if subject is None else [m for m in subject.members if class_of(m) in OPEN]
        self._happened(rows, 1, len(rows))

    def _happened(self, rows: list[Row], n: int, of: int) -> None:
        if not rows:
            return
        row, rest = rows[0], rows[1:]

        def ask(found: Subject) -> None:
            self.app.say(f"{n} of {of}: {key_of(row)}. Cancel ends it here; what was recorded stays.", "busy")
            self.confirm(find("happened"), found, then=lambda: self._happened(rest, n + 1, of))

        self.ask("happened", lambda store: load_operation(store, row["run_id"], row["step"]), ask)

    def perform(self, action: Action, subject: Subject | None = None) -> None:
        """`u` for a batch of which nothing has gone out yet: it is stopped, which comes to the same."""
        batch = None if self._all is None else self._all.batch
        if action.id == "undo" and batch is not None and batch["status"] == "open":
            super().perform(find("stop_batch"), self._all)
        else:
            super().perform(action, subject)

    def action_search(self) -> None:
        self.type_in("search", self.list.find, changed=self.list.find)

    def keys_shown(self) -> list[tuple[str, str]]:
        last = {"F": 1, "u": 2, "enter": 3}
        found = [pair for pair in super().keys_shown() if pair[1] != "whole run"]
        return [
            ("tab", "class"),
            *sorted(found, key=lambda pair: last.get(pair[0], 0)),
            ("space", "mark"),
            ("esc", "back"),
        ]

    def text_of_all(self) -> str:
        rows = self._all.members if self._all is not None else ()
        return "\n".join(f"{class_of(r)}\t{key_of(r)}\t{target_of(r)}\t{r['stake'] or ''}" for r in rows)

    # --- drawing -------------------------------------------------------------------------------------------------

    def _render_row(self, row: Row, width: int, state: RowState) -> list[Text]:
        name = class_of(row)
        status = LOOKS.get(name, "unknown")
        head = t(
            f"{'gone: ' if state.ghost else ''}{mark(status, ascii_only=self.app.ascii_only)} {name}", meaning(status)
        )
        head.pad_right(max(1, 17 - head.cell_len))
        stake = t(row["stake"] or "", "strong")
        stake.truncate(max(22, width // 4), overflow="ellipsis")  # so that no stake hides what it is for
        stake.pad_right(max(1, 13 - stake.cell_len))
        rest = two_ends(
            safe(row["description"] or row["tool"]), safe(key_of(row)), max(10, width - head.cell_len - stake.cell_len)
        )
        return [said(head, stake, rest)]
