"""Long texts on a narrow screen: folded onto further lines, or cut with a count of what is left out; never with dots.

Everything that comes out of here is safe for a screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final, Literal

from rich.cells import cell_len, chop_cells

from walkback_console.plain_words import many
from walkback_console.safe_text import safe
from walkback_console.trees import brief, text_of

Tag = Literal["same", "old", "new"]
Piece = tuple[Tag, str]

WORDS: Final = 20_000
"""Characters, in two texts together, up to which they are compared word by word."""
_MOST: Final = 1_000_000
_TOKENS: Final = re.compile(r"\n|[^\S\n]+|\w+|[^\w\s]")
_SHORTEST: Final = 8


def fit(value: object, width: int) -> str:
    """A value on one line of at most this width: whole if it fits, else with a count of what is left out."""
    length = max(_SHORTEST, width)
    shown = brief(value, length)
    while cell_len(shown) > width and length > 1:
        length = max(1, length - (cell_len(shown) - width))
        shown = brief(value, length)
    return shown


def fit_text(text: str, width: int) -> str:
    """A key or a name, without quotes."""
    shown = safe(text)
    if cell_len(shown) <= width:
        return shown
    lines = chop_cells(shown, max(_SHORTEST, width - _SHORTEST * 2))
    return f"{lines[0]} +{many(len(shown) - len(lines[0]), 'character')}"


def fold(value: object, width: int, most: int) -> tuple[list[str], int]:
    """A value on at most so many lines, and how many characters are left. A text is broken at its line breaks, too."""
    text = value if isinstance(value, str) and "\n" in value else text_of(value)
    lines: list[str] = []
    at = 0
    while len(lines) < most and at < len(text):
        end = text.find("\n", at, at + width)
        piece = text[at:end] if end >= 0 else text[at : at + width]
        # Marks are wider than what they stand for: what does not fit on this line begins the next.
        shown = len(piece)
        while shown > 1 and cell_len(safe(piece[:shown])) > width:
            shown -= 1
        lines.append(safe(piece[:shown]))
        at += shown
        if end >= 0 and at == end:
            at += 1
    return lines, len(text) - at


def word_diff(old: str, new: str) -> list[Piece] | None:
    """Two texts as one, word by word; None if they are too long for it, or have too little in common to be readable."""
    if len(old) + len(new) > WORDS:
        return None
    a, b = _TOKENS.findall(old), _TOKENS.findall(new)
    if len(a) * len(b) > _MOST:
        return None
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    pieces: list[Piece] = []
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag == "equal":
            pieces.append(("same", "".join(a[a1:a2])))
            continue
        if a1 < a2:
            pieces.append(("old", "".join(a[a1:a2])))
        if b1 < b2:
            pieces.append(("new", "".join(b[b1:b2])))
    kept = sum(len(text) for tag, text in pieces if tag == "same")
    return pieces if kept * 4 >= len(old) + len(new) else None


def fold_pieces(pieces: Iterable[Piece], width: int) -> list[list[Piece]]:
    """Marked words on lines: what was there in [-brackets-], what is there now in {+braces+}; colour is not needed."""
    lines: list[list[Piece]] = [[]]
    room = width
    for tag, text in pieces:
        opening, closing = {"same": ("", ""), "old": ("[-", "-]"), "new": ("{+", "+}")}[tag]
        # A line break is shown inside marked words, where it may be all that changed; elsewhere it is just made.
        for word in [opening, *_TOKENS.findall(text), closing]:
            shown = safe(word) if word != "\n" or tag != "same" else ""
            for part in _parts(shown, room, width):
                if cell_len(part) > room:
                    lines.append([])
                    room = width
                    part = part.lstrip(" ") if tag == "same" else part
                if part:
                    lines[-1].append((tag, part))
                    room -= cell_len(part)
            if word == "\n":
                lines.append([])
                room = width
    return [_joined(line) for line in lines]


def _parts(text: str, room: int, width: int) -> list[str]:
    return [text] if cell_len(text) <= max(room, width) else chop_cells(text, max(1, width))


def _joined(line: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for tag, text in line:
        if joined and joined[-1][0] == tag:
            joined[-1] = (tag, joined[-1][1] + text)
        else:
            joined.append((tag, text))
    return joined
