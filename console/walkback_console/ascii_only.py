"""For terminals that draw nothing but ASCII: the last stop of every line before it is sent.

Screens choose their marks themselves. What is left are dots between words, arrows, borders, scroll bars and whatever
the toolkit draws; each becomes one ASCII character of the same width, so that nothing moves. Stored text is left as it
is, unless the terminal's encoding has no such character: then it is a question mark.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from walkback_console.palette import CRUMB, TIMES

OURS = str.maketrans(
    {
        "·": "-", "→": ">", CRUMB: ">", "…": "~", "•": "*", TIMES: "x", "─": "-", "│": "|", "━": "-", "┃": "|",
        "╭": "+", "╮": "+", "╰": "+", "╯": "+", "┌": "+", "┐": "+", "└": "+", "┘": "+", "▌": ">", "▐": "|", "▎": "|",
        "▔": "-", "▁": "_", "▂": "_", "▃": "_", "▄": "_", "▅": "_", "▆": "_", "▇": "_", "█": "#", "▏": "|", "▕": "|",
        "▸": ">", "▾": "v", "▊": "|", "▀": "-", "🔎": "??", "●": "*", "○": "o", "✓": "+", "✗": "x", "\ufffd": "?",
    }
)  # fmt: skip


class OnlyASCII(LineFilter):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(self.plain(text), style, control) for text, style, control in segments]

    def plain(self, text: str) -> str:
        if text.isascii():
            return text
        text = text.translate(OURS)
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            text = "".join(c if c.isascii() else "?" * cell_len(c) for c in text)
        return text
