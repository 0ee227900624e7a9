"""What is held up and who works: freezes and open breakers first, then batches under way, then workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.widget import Widget

from walkback_console import actions, errands
from walkback_console.actions import find
from walkback_console.columns import columns
from walkback_console.deciding import frozen_name
from walkback_console.palette import mark, meaning
from walkback_console.plain_words import DAY, ago, duration, is_silent, left, many
from walkback_console.screens.base import ConsoleScreen, bindings_for
from walkback_console.subjects import Subject
from walkback_console.verdicts import Line, said, t
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.page import Page
from walkback_console.widgets.sources import ListSource

if TYPE_CHECKING:
    from walkback_console.actions import Action
    from walkback_store import Store

Row = dict[str, Any]
FREEZE, BREAKER, BATCH, WORKER = "freeze", "breaker", "batch", "worker"


def key_of(row: Row) -> str:
    return f"{row['is']} {row['id']}"


def read(store: Store) -> tuple[int, list[Row]]:
    """Of workers, those that are alive, hold runs, or were lost within a day; the others are history."""
    now = store.now()
    freezes = store.freezes()
    by_number = {f["freeze_no"]: f for f in freezes}
    rows = [f | {"is": FREEZE, "id": f["freeze_no"]} for f in freezes if f["until"] is None]
    rows += [b | {"is": BREAKER, "id": b["service"], "freeze": by_number.get(b["freeze_no"])} for b in store.breakers()]
    rows += [b | {"is": BATCH, "id": b["batch_no"]} for b in store.batches() if b["status"] == "open"]
    holds = store.holding()
    for w in store.workers(limit=1000):
        held = holds.get(w["worker"], 0)
        if w["status"] == "alive" or held or (w["status"] == "lost" and (w["ended_at"] or 0) > now - DAY):
            rows.append(w | {"is": WORKER, "id": w["worker"], "held": held})
    return now, rows


class WorkersScreen(ConsoleScreen):
    where = actions.WORKERS
    BINDINGS: ClassVar[list[BindingType]] = bindings_for(actions.WORKERS)
    DEFAULT_CSS = """
    WorkersScreen LineList { height: 1fr; }
    WorkersScreen Page { height: 6; border-top: solid $border; }
    WorkersScreen.-tall Page { height: 12; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Row] = []
        self._read_at = 0

    def body(self) -> Iterator[Widget]:
        self.list: LineList[Row] = LineList(
            ListSource[Row]([], key_of),
            self._render_row,
            row_height=2,
            matches=lambda row, text: text.lower() in " ".join(line.plain for line in self._texts(row)).lower(),
            ascii=self.app.ascii_only,
            empty="reading ...",
        )
        self.list.add_class("body")
        yield self.list
        yield Page(id="preview").add_class("body")

    def on_mount(self) -> None:
        super().on_mount()
        self.list.focus()

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        self.set_class(event.size.height >= 34, "-tall")

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.is_mounted and self._read_at > 0

    def load(self) -> None:
        self.ask("workers", read, self._got)

    def _got(self, found: tuple[int, list[Row]]) -> None:
        self._read_at, self._rows = found
        self.list.empty = "No worker is alive, and nothing is held up. `walkback work MODULE:APP` starts a worker."
        self.list.replace(ListSource[Row](self._rows, key_of))
        self._draw_preview()
        self.draw_frame()

    def _draw_preview(self) -> None:
        """All of what does not fit on the two lines of a row."""
        row = self.list.selected_row
        self.query_one(Page).show([] if row is None else [Line("title", "", text) for text in self._texts(row)])

    def tick(self) -> None:
        if self._rows:  # ages go on
            self._read_at = max(self._read_at, self.app.now())
            self.list.replace(ListSource[Row](self._rows, key_of))
            self._draw_preview()

    # --- what is selected ----------------------------------------------------------------------------------------

    def crumbs(self) -> list[str]:
        return ["Workers"]

    def subject(self) -> Subject | None:
        row = self.list.selected_row
        freezes = self.app.overview.freezes
        if row is None:
            return Subject(at=self._read_at, freezes=freezes)
        if self.list.selected_is_ghost:
            return Subject(at=self._read_at, missing="it is gone; look at the next row")
        freeze = row if row["is"] == FREEZE else row.get("freeze")
        known = tuple(r for r in self._rows if r["is"] == FREEZE)
        known += tuple(r["freeze"] for r in self._rows if r.get("freeze") is not None)
        return Subject(
            at=self._read_at, freeze=freeze, freezes=known or freezes, batch=row if row["is"] == BATCH else None
        )

    def perform(self, action: Action, subject: Subject | None = None) -> None:
        if subject is not None or self.list.selected is None or action.id in {"back", "undo", "freeze"}:
            super().perform(action, subject)
        else:
            self.list.act(lambda _: super(WorkersScreen, self).perform(action))

    def on_line_list_opened(self) -> None:
        """Enter does what there is to do about a row."""
        row = self.list.selected_row or {}
        if row.get("is") == FREEZE or row.get("freeze") is not None:
            self.perform(find("unfreeze"))
        elif row.get("is") == BATCH:
            self.perform(find("stop_batch"))

    def on_line_list_selected(self) -> None:
        self._draw_preview()
        self.draw_keys()

    def on_line_list_gone(self) -> None:
        self.app.say("that row is gone. Nothing was done.", "unsure")

    def on_line_list_unseen(self) -> None:
        self.app.say("that row was not on the screen; it is now. Nothing was done.", "unsure")

    def do_copy(self, _: Subject | None) -> None:
        row = self.list.selected_row
        errands.copied(
            self.app, "" if row is None else str(row["name"] if row["is"] == FREEZE and row["name"] else row["id"])
        )

    def action_search(self) -> None:
        self.type_in("search", self.list.find, changed=self.list.find)

    def keys_shown(self) -> list[tuple[str, str]]:
        row = self.list.selected_row or {}
        held = row.get("is") == FREEZE or row.get("freeze") is not None
        held = held and not self.list.selected_is_ghost
        rest = [pair for pair in super().keys_shown() if pair[0] != "enter"]
        return [*([("U", "unfreeze")] if held else []), *rest, ("/", "search"), ("esc", "back")]

    def text_of_all(self) -> str:
        return "\n".join(line.plain for row in self._rows for line in self._texts(row))

    # --- drawing -------------------------------------------------------------------------------------------------

    def _render_row(self, row: Row, width: int, state: RowState) -> list[Text]:
        first, second = self._texts(row)
        head = said("gone: " if state.ghost else "", t(str(row["is"]).upper(), "dim"))
        return [columns(width, (head, 9), (first, 0)), columns(width, (Text(), 9), (second, 0))]

    def _texts(self, row: Row) -> list[Text]:
        at = self._read_at
        if row["is"] == FREEZE:
            frozen = t(f"{'#' if self.app.ascii_only else '■'} FROZEN: {frozen_name(row)}", "bad")
            return [frozen, t(f"by {row['by']}, {ago(row['at'], at)}: {row['reason']}")]
        if row["is"] == BREAKER:
            return self._breaker(row, at)
        if row["is"] == BATCH:
            done = f"{row['released']:,} of {row['total']:,} released"
            head = said(
                t(f"{mark('open', ascii_only=self.app.ascii_only)} {row['action']}: ", "busy"), t(done, "strong")
            )
            return [head, t(f"by {row['by']}, {ago(row['at'], at)}: {row['reason']}")]
        status = "silent" if is_silent(row, at) else str(row["status"])
        beat = ago(row["beat_at"], at) if row["beat_at"] else "not yet"
        first = said(
            t(f"{mark(status, ascii_only=self.app.ascii_only)} {status}  ", meaning(status)),
            t(row["worker"], "strong"),
            t(f"  holds {many(row['held'], 'run')}, last beat {beat}, lease {duration(row['lease'])}"),
        )
        agents = ", ".join(f"{name} {'/'.join(versions)}" for name, versions in sorted(row["agents"].items()))
        return [first, t(f"{row['host']} pid {row['pid']}, agents: {agents or 'none'}", "dim")]

    def _breaker(self, row: Row, at: int) -> list[Text]:
        failed = f"failed {many(row['failures'], 'time')}, the last {ago(row['failed_at'], at)}"
        if row["freeze"] is None:
            return [t(f"~ closed: service {row['service']}", "unsure"), t(f"it is called; {failed}")]
        who = f"{row['probe']} tries it now" if row["probe"] else f"tried again: {left(row['until'], at)}"
        return [t(f"x OPEN: service {row['service']}", "bad"), t(f"{failed}; {who}: {row['freeze']['reason']}")]
