"""What changed between two states: one place after the other, each with its word, its path, what was and what is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.text import Text
from textual.message import Message

from walkback_console.diffs import Change
from walkback_console.folding import Piece, Tag, fold, fold_pieces, word_diff
from walkback_console.plain_words import many
from walkback_console.safe_text import safe
from walkback_console.trees import MISSING, Path, format_path, size_of, text_of
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.sources import ListSource

GLYPHS: Final = {"added": "+", "removed": "-", "changed": "~"}
MEANINGS: Final = {"added": "good", "removed": "bad", "changed": "unsure"}
"""In the palette's words."""
LINES: Final = 40
"""Of one value; a longer one is opened with enter."""
_COLOURS: Final[dict[Tag, str]] = {"same": "", "old": "bad", "new": "good"}
_INDENT: Final = 4
_WORD: Final = 10
"""Columns that glyph and word take in front of a path."""
_NARROW: Final = 20


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a change, folded to a width. The first carries glyph, word and path."""

    change: Change
    number: int
    pieces: tuple[Piece, ...]
    is_head: bool

    @property
    def key(self) -> str:
        return f"{self.change.kind} {format_path(self.change.path)} {self.number}"


class DiffView(LineList[DiffLine]):
    """The changes only. The cursor goes line by line, as a value may have more of them than the screen."""

    DEFAULT_CSS = """
    DiffView { overflow-y: scroll; }
    """

    class Whole(Message):
        """Somebody wants to read a change in full."""

        def __init__(self, view: DiffView, change: Change) -> None:
            super().__init__()
            self.view = view
            self.change = change

        @property
        def path(self) -> Path:
            return self.change.path

        @property
        def control(self) -> DiffView:
            return self.view

    def __init__(
        self,
        changes: list[Change] | None = None,
        *,
        ascii: bool = False,
        empty: str = "Nothing changed.",
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(
            _source([]),
            self._draw,
            matches=_matches,
            ascii=ascii,
            empty=empty,
            name=name,
            id=id,
            classes=classes,
        )
        self._changes = changes or []
        self._folded_to = 0

    @property
    def changes(self) -> list[Change]:
        return self._changes

    def show(self, changes: list[Change], *, hold: bool = False) -> None:
        self._changes = changes
        self._folded_to = 0
        self._fold(hold)

    @property
    def selected_change(self) -> Change | None:
        return None if self.selected_row is None else self.selected_row.change

    @property
    def selected_path(self) -> Path | None:
        change = self.selected_change
        return None if change is None else change.path

    def action_open(self) -> None:
        change = self.selected_change
        if change is not None:
            self.act(lambda key: self.post_message(self.Whole(self, change)))

    def on_resize(self) -> None:
        self._fold(hold=True)

    def _fold(self, hold: bool) -> None:
        width = self.content_width
        if width < 1 or width == self._folded_to:
            return
        self._folded_to = width
        arrow = "->" if self.ascii else "→"
        lines = [line for change in self._changes for line in lines_of(change, width, arrow)]
        self.replace(_source(lines), hold=hold and bool(self.selected))

    def _draw(self, line: DiffLine, width: int, state: RowState) -> list[Text]:
        text = Text("gone: " if state.ghost else "")
        if line.is_head:
            kind = line.change.kind
            text.append(f"{GLYPHS[kind]} {kind}".ljust(_WORD), MEANINGS[kind])
        for tag, shown in line.pieces:
            text.append(shown, _COLOURS[tag])
        if state.find:
            text.highlight_words([state.find], "reverse", case_sensitive=False)
        return [text]


def _source(lines: list[DiffLine]) -> ListSource[DiffLine]:
    return ListSource(lines, key=lambda line: line.key)


def lines_of(change: Change, width: int, arrow: str = "→") -> Iterator[DiffLine]:
    """A change on one line if it fits, else on as many as its values need, up to `LINES` each."""
    for number, (is_head, pieces) in enumerate(_laid_out(change, width, arrow)):
        yield DiffLine(change, number, tuple(pieces), is_head)


def _laid_out(change: Change, width: int, arrow: str) -> Iterator[tuple[bool, list[Piece]]]:
    path = safe(format_path(change.path))
    room = max(_NARROW, width - _WORD)
    values = _on_one_line(change, arrow, room)
    if values is not None and cell_len(path) + 2 + sum(cell_len(text) for _, text in values) <= room:
        yield True, [("same", f"{path}  "), *values]
        return
    first, *rest = chop_cells(path, room)
    yield True, [("same", first)]
    for part in rest:
        yield False, [("same", " " * _WORD + part)]
    for pieces in _values(change, max(_NARROW, width - _INDENT)):
        yield False, [("same", " " * _INDENT), *pieces]


def _on_one_line(change: Change, arrow: str, room: int) -> list[Piece] | None:
    """None if there is no use in trying: a long value takes long to write out."""
    if any((size_of(value) or 0) > room for value in (change.old, change.new)):
        return None
    pieces: list[Piece] = []
    if change.old is not MISSING:
        pieces.append(("old", safe(text_of(change.old))))
    if change.kind == "changed":
        pieces.append(("same", f" {arrow} "))
    if change.new is not MISSING:
        pieces.append(("new", safe(text_of(change.new))))
    return pieces


def _values(change: Change, width: int) -> Iterator[list[Piece]]:
    if isinstance(change.old, str) and isinstance(change.new, str):
        words = word_diff(change.old, change.new)
        if words is not None:
            yield from _first(fold_pieces(words, width), "line")
            return
    for tag, mark, value in _SIDES:
        shown = change.old if value == "old" else change.new
        if shown is MISSING:
            continue
        lines, left = fold(shown, width - len(mark), LINES)
        for line in lines:
            yield [(tag, mark + line)]
        if left:
            yield [("same", f"+{many(left, 'character')}: enter opens it whole")]


def _first(lines: list[list[Piece]], unit: str) -> Iterator[list[Piece]]:
    yield from lines[:LINES]
    if len(lines) > LINES:
        yield [("same", f"+{many(len(lines) - LINES, unit)}: enter opens it whole")]


_SIDES: Final[tuple[tuple[Tag, str, str], ...]] = (("old", "- ", "old"), ("new", "+ ", "new"))


def _matches(line: DiffLine, text: str) -> bool:
    wanted = text.casefold()
    return any(wanted in shown.casefold() for _, shown in line.pieces)
