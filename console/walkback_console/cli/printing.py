"""The one way out: text for people through `safe` and Rich without markup, JSON for scripts in pure ASCII."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from walkback_console.palette import ANSI
from walkback_console.safe_text import safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

COLOURS = {
    "running": "cyan", "waiting": "blue", "paused": "blue", "compensating": "yellow", "compensated": "green",
    "needs_operator": "bold yellow", "succeeded": "green", "failed": "red", "cancelled": "bright_black",
    "awaiting_approval": "bold yellow", "pending": "cyan", "unknown": "bold yellow", "denied": "red",
    "ok": "green", "look": "bold yellow", "bad": "bold red",
}  # fmt: skip
"""A hint beside the word, never instead of it."""


def t(text: object, style: str = "") -> Text:
    """Text from the store, or about it, that a terminal and Rich take as nothing but text."""
    from rich.text import Text

    return Text(safe(str(text)), style=style)


def word(status: str) -> Text:
    return t(status, COLOURS.get(status, ""))


def joined(*parts: Text | str) -> Text:
    """One line. A bare `str` is ours; what comes from the store has been through `t`."""
    from rich.text import Text

    return Text.assemble(*parts)


def _console(stderr: bool) -> Console:
    from rich.console import Console
    from rich.theme import Theme

    return Console(highlight=False, markup=False, emoji=False, stderr=stderr, theme=Theme(ANSI))


class Printer:
    """For people. Rich is loaded when the first line is to be made, so that `--json` never waits for it."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._out = _console(stderr)

    def line(self, *parts: Text | str) -> None:
        """Folded at the width of the terminal, never cut."""
        self._out.print(joined(*parts), overflow="fold")

    def paste(self, text: str) -> None:
        """A line that is not folded: it will be copied to somewhere else. May hold text from the store."""
        self._out.print(t(text), soft_wrap=True)

    def facts(self, facts: Sequence[tuple[str, Text]], indent: int = 2) -> None:
        """Names and values below each other."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bright_black", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts:
            table.add_row(Text(" " * indent + name), value)
        self._out.print(table)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
        """Ids are never cut: what does not fit is folded onto the next line."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
        for i, column in enumerate(columns):
            widest = max((row[i].cell_len for row in rows), default=0)
            table.add_column(
                Text(column.name),
                justify="right" if column.right else "left",
                overflow="fold",
                min_width=min(max(widest, len(column.name)), column.keep),
            )
        for row in rows:
            table.add_row(*row)
        self._out.print(table)

    def blank(self) -> None:
        self._out.print()

    def flush(self) -> None:
        self._out.file.flush()


class Column:
    __slots__ = ("keep", "name", "right")

    def __init__(self, name: str, keep: int = 0, right: bool = False) -> None:
        self.name = name
        self.keep = keep
        """So many characters are not folded, however little room there is."""
        self.right = right


def as_json(value: object, *, indent: int | None = 2) -> None:
    """ASCII only, so that nothing in it reaches a terminal raw; DEL is the one control that JSON leaves as it is."""
    text = json.dumps(value, ensure_ascii=True, indent=indent, allow_nan=False)
    sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar on stderr, called with (done, total); None when nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
