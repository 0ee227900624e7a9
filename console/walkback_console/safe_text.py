"""Stored text made inert: agents and tools write it, and a terminal obeys what it is sent.

Everything a person is shown goes through `safe`. What could move the cursor, set the clipboard, turn the reading
direction round or hide between two letters becomes a mark one can see. The store keeps the exact bytes, and `--json`
gives them escaped.
"""

from __future__ import annotations

from unicodedata import category

_INERT = frozenset({"Zs", "Co", "Cn"})
"""Not printable to Python, and harmless: spaces of other widths, private use, and whatever Unicode adds next year."""

_INVISIBLE = frozenset(
    {"\u034f", "\u115f", "\u1160", "\u17b4", "\u17b5", "\u180b", "\u180c", "\u180d", "\u180f", "\u3164", "\uffa0"}
    | {chr(c) for c in range(0xFE00, 0xFE0E)}  # the two after these choose between text and emoji: people use them
)
"""Printable to Python, but nothing is drawn for them. The variation selectors above U+E0100 are in `_is_unsafe`."""


def safe(text: str) -> str:
    """The same text on one line, with every character that is not plainly visible shown as a mark.

    C0 controls become their Unicode pictures (ESC is ␛, a newline ␊); the others their number, such as <U+202E>.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_mark(c) if _is_unsafe(c) else c for c in text)


def _is_unsafe(character: str) -> bool:
    if character.isprintable():
        return character in _INVISIBLE or "\U000e0100" <= character <= "\U000e01ef"
    return category(character) not in _INERT


def _mark(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"
