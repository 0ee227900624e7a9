"""What is known about one step, in tabs: state, diff, operation, events and layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from walkback_console.columns import columns
from walkback_console.plain_words import clock
from walkback_console.verdicts import t
from walkback_console.widgets.diff_view import DiffView
from walkback_console.widgets.frame import Lines
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.page import Page
from walkback_console.widgets.sources import PagedSource
from walkback_console.widgets.state_view import StateView

STATE, DIFF, OPERATION, EVENTS, LAYERS = TABS = ("state", "diff", "operation", "events", "layers")
PAGE = 200
Row = dict[str, Any]


class Tabs(Lines):
    """Their names, with their keys; the one that is open stands in brackets."""

    class Picked(Message):
        def __init__(self, tab: str) -> None:
            super().__init__()
            self.tab = tab

    def __init__(self) -> None:
        super().__init__(id="tabs")
        self._spans: list[tuple[int, int, str]] = []

    def draw(self, active: str, about: Text) -> None:
        line = Text()
        self._spans = []
        for n, name in enumerate(TABS, 1):
            start = line.cell_len
            if name == active:
                line.append(f"[{n} {name}]", "key")
            else:
                line.append(f" {n} {name} ", "dim")
            self._spans.append((start, line.cell_len, name))
        self.show(line, about)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or offset.y != 0:
            return
        for start, end, name in self._spans:
            if start <= offset.x < end:
                event.stop()
                self.post_message(self.Picked(name))


class StateTree(StateView, inherit_bindings=False):
    """Without the letters that mean something on the whole screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LineList.BINDINGS,
        Binding("right", "unfold", "Open", show=False),
        Binding("left", "fold", "Close", show=False),
        Binding("space", "toggle", "Open or close", show=False),
    ]


def event_key(row: Row) -> str:
    return str(row["seq"])


class EventList(LineList[Row]):
    """Events by their number, which has no gaps: so any place of a long run is a jump away."""

    def __init__(self, *, ascii: bool = False) -> None:
        source: PagedSource[Row] = PagedSource(0, PAGE, key=event_key)
        super().__init__(source, self._draw, ascii=ascii, empty="No events.", id="event-list")

    @property
    def paged(self) -> PagedSource[Row]:
        assert isinstance(self.source, PagedSource)  # noqa: S101 - nothing else is ever put in
        return self.source

    def _draw(self, row: Row, width: int, state: RowState) -> list[Text]:
        step = f"#{row['step']}" if row["step"] else ""
        return [
            columns(
                width,
                (t(f"{row['seq']:,}", "dim"), 6),
                (t(clock(row["at"]), "dim"), 13),
                (t(row["kind"], "strong"), 13),
                (t(step), 5),
                (t(row["facts"]), 0),
            )
        ]


class Detail(Vertical):
    DEFAULT_CSS = """
    Detail { height: 1fr; }
    Detail > .pane { height: 1fr; }
    Detail #events EventList { height: 1fr; }
    Detail #events Page { height: 40%; border-top: solid $border; }
    """

    def __init__(self, *, ascii: bool = False) -> None:
        super().__init__(id="detail")
        self._ascii = ascii
        self.active = OPERATION
        self.tabs = Tabs()
        self.state = StateTree(ascii=ascii, empty="reading ...", id=STATE, classes="pane")
        self.diff = DiffView(ascii=ascii, empty="reading ...", id=DIFF, classes="pane")
        self.operation_page = Page(id=OPERATION).add_class("pane")
        self.events = EventList(ascii=ascii)
        self.event_page = Page(id="event")
        self.layers_page = Page(id=LAYERS).add_class("pane")

    def compose(self) -> Iterator[Widget]:
        yield self.tabs
        yield self.state
        yield self.diff
        yield self.operation_page
        yield Vertical(self.events, self.event_page, id=EVENTS, classes="pane")
        yield self.layers_page

    def on_mount(self) -> None:
        self.activate(self.active)

    def activate(self, tab: str) -> None:
        """At once, not with the next look at the style sheet: what is shown may be given the focus."""
        self.active = tab
        for pane in self.query(".pane"):
            pane.display = pane.id == tab

    @property
    def focus_of_tab(self) -> Widget:
        """What takes the keys in the tab that is open."""
        found: dict[str, Widget] = {
            STATE: self.state,
            DIFF: self.diff,
            OPERATION: self.operation_page,
            EVENTS: self.events,
            LAYERS: self.layers_page,
        }  # fmt: skip
        return found[self.active]
