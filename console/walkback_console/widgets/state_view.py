"""A state as a tree that is opened where one looks, and searched as a whole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import ClassVar, cast

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message

from walkback_console import trees
from walkback_console.folding import fit, fit_text
from walkback_console.trees import MISSING, Line, Path, Tree, children, format_path, parse_path, value_at
from walkback_console.widgets.line_list import LineList, RowState

MATCHES = 10_000


class StateView(LineList[Line]):
    """Enter opens and closes a container, and shows any other value whole. The cursor is on a path, not on a line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "unfold", "Open", show=False),
        Binding("left,h", "fold", "Close", show=False),
        Binding("space", "toggle_open", "Open or close", show=False),
    ]

    class Whole(Message):
        """Somebody wants to read a value in full."""

        def __init__(self, view: StateView, path: Path, value: object) -> None:
            super().__init__()
            self.view = view
            self.path = path
            self.value = value

        @property
        def control(self) -> StateView:
            return self.view

    class Copied(Message):
        """A path or a value is to be copied, exactly as it is stored: it may hold anything."""

        def __init__(self, view: StateView, what: str, text: str) -> None:
            super().__init__()
            self.view = view
            self.what = what
            self.text = text

        @property
        def control(self) -> StateView:
            return self.view

    def __init__(
        self,
        state: object = MISSING,
        *,
        ascii: bool = False,
        empty: str = "No state was recorded here.",
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(
            Tree(state),
            self._draw,
            ascii=ascii,
            empty=empty,
            name=name,
            id=id,
            classes=classes,
        )
        self._matching: list[Path] = []

    # --- what is shown -------------------------------------------------------------------------------------------

    @property
    def tree_of_state(self) -> Tree:
        return cast(Tree, self.source)

    @property
    def state(self) -> object:
        return self.tree_of_state.state

    def show(self, state: object, *, hold: bool = True) -> None:
        """Another state, such as the one a step later. What was open stays open, and the cursor stays on its path."""
        self._matching = []
        self.replace(Tree(state, self.tree_of_state.opened), hold=hold)
        if self._find:
            self._matching = self._search(self._find)

    @property
    def selected_path(self) -> Path | None:
        return None if self.selected is None else parse_path(self.selected)

    @property
    def selected_value(self) -> object:
        """MISSING if nothing is there in this state."""
        path = self.selected_path
        return MISSING if path is None else value_at(self.state, path)

    def reveal(self, path: Path) -> bool:
        """Open all that a path goes through, and put the cursor on it; False if nothing is there."""
        if value_at(self.state, path) is MISSING:
            return False
        self.replace(self.tree_of_state.reveal(path))
        return self.select(format_path(path))

    # --- opening and closing -------------------------------------------------------------------------------------

    def action_open(self) -> None:
        """Enter."""
        line = self.selected_row
        if line is not None and line.is_container and not self.selected_is_ghost:
            self.action_toggle_open()
        else:
            self.act(lambda key: self.post_message(self.Whole(self, parse_path(key), self.selected_value)))

    def action_toggle_open(self) -> None:
        line = self.selected_row
        if line is not None and line.is_container:
            self._set_open(line.path, not line.is_open)

    def action_unfold(self) -> None:
        """Open; a container that is open already is gone into."""
        line = self.selected_row
        if line is None or not line.is_container:
            return
        if line.is_open:
            self.action_move(1)
        else:
            self._set_open(line.path, True)

    def action_fold(self) -> None:
        """Close; from what is closed, or cannot be, go up to what it lies in."""
        line = self.selected_row
        if line is None:
            return
        if line.is_open:
            self._set_open(line.path, False)
        elif line.path:
            self.select(format_path(line.path[:-1]))

    def _set_open(self, path: Path, is_open: bool) -> None:
        if not self.selected_is_ghost:
            self.replace(self.tree_of_state.with_open(path, is_open))

    # --- copying -------------------------------------------------------------------------------------------------

    def action_copy_path(self) -> None:
        if self.selected is not None:
            self.post_message(self.Copied(self, "path", self.selected))

    def action_copy_value(self) -> None:
        value = self.selected_value
        if value is not MISSING:
            self.post_message(self.Copied(self, "value", value if isinstance(value, str) else trees.text_of(value)))

    # --- searching -----------------------------------------------------------------------------------------------

    @property
    def matching(self) -> list[Path]:
        """What the search found, in the whole state, up to `MATCHES`."""
        return self._matching

    def find(self, text: str) -> bool:
        self._find = text
        self._matching = self._search(text) if text else []
        found = self._go(1, include_cursor=True)
        self._refresh_changed()
        return found

    def find_next(self, direction: int = 1) -> bool:
        return self._go(direction, include_cursor=False)

    def _search(self, text: str) -> list[Path]:
        return [] if self.state is MISSING else list(islice(trees.find(self.state, text), MATCHES))

    def _go(self, direction: int, *, include_cursor: bool) -> bool:
        if not self._matching:
            return False
        here = self._order(self.selected_path or ())
        if direction > 0:
            at = (bisect_left if include_cursor else bisect_right)(self._matching, here, key=self._order)
        else:
            at = bisect_left(self._matching, here, key=self._order) - 1
        return self.reveal(self._matching[at % len(self._matching)])

    def _order(self, path: Path) -> tuple[int, ...]:
        """Sorts paths as they stand in the tree."""
        order: list[int] = []
        value = self.state
        for part in path:
            if isinstance(part, int):
                order.append(part)
            else:
                order.append(next((n for n, (key, _) in enumerate(children(value)) if key == part), -1))
            value = value_at(value, (part,))
        return tuple(order)

    # --- drawing -------------------------------------------------------------------------------------------------

    def _draw(self, line: Line, width: int, state: RowState) -> list[Text]:
        text = Text("gone: " if state.ghost else "")
        text.append(self._indent(line, width))
        text.append(self._handle(line))
        text.append(fit_text(line.key, max(16, width // 2)), "strong")
        kind = line.kind if line.is_container or line.size is None else f"{line.kind} {line.size:,}"
        room = width - text.cell_len - cell_len(kind) - 3
        value = MISSING if state.ghost else value_at(self.state, line.path)
        text.append(" ")
        text.append(line.value if value is MISSING or room < 1 else fit(value, room))
        text.append(" ")
        text.append(kind, "dim")
        if state.find:
            text.highlight_words([state.find], "reverse", case_sensitive=False)
        return [text]

    @staticmethod
    def _indent(line: Line, width: int) -> str:
        """Two columns a level, until that would leave no room; from there on, the level as a number."""
        columns = line.depth * 2
        return " " * columns if columns <= width // 3 else f"{line.depth}> ".rjust(width // 3)

    def _handle(self, line: Line) -> str:
        if not line.is_container:
            return "  "
        if self.ascii:
            return "- " if line.is_open else "+ "
        return "▾ " if line.is_open else "▸ "
