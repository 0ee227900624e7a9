"""A line to type in that never sends its value to the terminal as it is.

What is in it may come from the store, such as the name of a tool that is about to be frozen, or from a clipboard. The
value stays exact; what is drawn is one visible mark for every character that is not plainly visible itself.
"""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Input

from walkback_console.safe_text import safe

_NOT_VISIBLE = "\ufffd"


def one_mark_each(text: str) -> str:
    """As `safe`, with marks of one character, so that every place in the text stays where the cursor thinks it is."""
    if text.isascii() and text.isprintable():
        return text
    marks = (safe(character) for character in text)
    return "".join(mark if len(mark) == 1 else _NOT_VISIBLE for mark in marks)


class SafeInput(Input):
    @property
    def _value(self) -> Text:
        return Text(one_mark_each(self.value), no_wrap=True, overflow="ignore", end="")
