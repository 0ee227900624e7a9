"""The steps of a run, one after the other, of which only the pages that were looked at are in memory."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from walkback_console.columns import columns
from walkback_console.palette import mark, meaning
from walkback_console.run_words import (
    attempts_words,
    kind_of_step,
    notes_of_step,
    step_status,
    took_words,
    what_of_step,
)
from walkback_console.verdicts import said, t
from walkback_console.widgets.line_list import LineList, RowState
from walkback_console.widgets.sources import PagedSource

Row = dict[str, Any]
PAGE = 200
ONE_LINE = 72
"""Columns from which a step is one line."""


def key_of(row: Row) -> str:
    return str(row["step"])


def source_of(count: int) -> PagedSource[Row]:
    return PagedSource(count, PAGE, key=key_of)


class Timeline(LineList[Row]):
    """Step, kind, what, status with its word, duration and attempts. A write says so in letters."""

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(source_of(0), self._draw, row_height=1, ascii=ascii, empty="reading ...", id=id)
        self.at = 0
        """Now, for what is still under way."""
        self.text = ""
        """What the steps were searched for."""

    @property
    def paged(self) -> PagedSource[Row]:
        assert isinstance(self.source, PagedSource)  # noqa: S101 - nothing else is ever put in
        return self.source

    def on_resize(self) -> None:
        self.set_row_height(1 if self.content_width >= ONE_LINE else 2)
        super().on_resize()

    def pages_in_view(self) -> tuple[int, int]:
        """Offset and length of the whole pages that are on the screen."""
        first, last = self._visible()
        offset = max(0, first) // PAGE * PAGE
        return offset, max(PAGE, (max(first, last) // PAGE + 1) * PAGE - offset)

    def _draw(self, row: Row, width: int, state: RowState) -> list[Text]:
        status = step_status(row)
        word = t(f"{mark(status, ascii_only=self.ascii)} {status}", meaning(status))
        step = said("gone: " if state.ghost else "", t(row["step"], "dim"))
        notes = notes_of_step(row)
        what = said(t(f"{notes}: ", "unsure") if notes else "", t(what_of_step(row)))
        if self.text:
            what.highlight_words([self.text], "reverse", case_sensitive=False)
        took, tries = t(took_words(row, self.at)), t(attempts_words(row, ascii_only=self.ascii), "unsure")
        if self._row_height == 1:
            return [columns(width, (step, 6), (kind_of_step(row), 8), (what, 0), (word, 20), (took, 9), (tries, 5))]
        first = columns(width, (step, 6), (kind_of_step(row), 0), (word, 20), (took, 8), (tries, 4))
        return [first, columns(width, (Text(), 6), (what, 0))]
