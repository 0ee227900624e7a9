"""The colours and marks of Walkback, dark and light: one list of meanings that screens and commands draw from.

A colour is a hint beside a word and never carries a meaning alone. A text names what it means ("bad", "unsure") and
not how it looks; `paper` turns meanings into colours for the theme in use. Every meaning has a contrast of at least 4.5
against every background it can stand on, and stays apart from the others for people who see red and green alike: what
is good is blue-green, what is bad is orange-red, what is unsure is yellow.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text
    from textual.theme import Theme

DARK, LIGHT = "walkback-dark", "walkback-light"

MEANINGS: dict[str, dict[str, str]] = {
    DARK: {
        "plain": "#e4e6eb",
        "strong": "bold #ffffff",
        "dim": "#a3a9b8",
        "good": "#5fd7c4",
        "bad": "bold #ff8f78",
        "unsure": "bold #ffd166",
        "busy": "#8fc1ff",
        "key": "bold #b9a7ff",
        "write": "bold #ffb38a",
        "mark": "bold #b9a7ff",
    },
    LIGHT: {
        "plain": "#1d2129",
        "strong": "bold #000000",
        "dim": "#535a69",
        "good": "#00594c",
        "bad": "bold #840020",
        "unsure": "bold #805500",
        "busy": "#0b4a8f",
        "key": "bold #54329e",
        "write": "bold #8a3300",
        "mark": "bold #54329e",
    },
}
BACKGROUNDS: dict[str, dict[str, str]] = {
    DARK: {"background": "#14161c", "surface": "#1b1e26", "panel": "#242833", "cursor": "#2f3a55", "flash": "#3b3a1e"},
    LIGHT: {"background": "#ffffff", "surface": "#f6f7f9", "panel": "#e9ecf1", "cursor": "#cfdcf5", "flash": "#f8efc4"},
}

CRUMB, TIMES = "\u203a", "\u00d7"

STATUS = {
    "running": ("busy", "▶", ">"), "waiting": ("dim", "◷", "~"), "paused": ("dim", "‖", "="),
    "needs_operator": ("unsure", "!", "!"), "compensating": ("busy", "↶", "<"), "compensated": ("good", "↩", "u"),
    "succeeded": ("good", "✓", "+"), "failed": ("bad", "✗", "x"), "cancelled": ("dim", "∅", "0"),
    "awaiting_approval": ("unsure", "◆", "a"), "pending": ("busy", "…", "."), "unknown": ("unsure", "?", "?"),
    "denied": ("bad", "⊘", "-"), "duplicate_suspected": ("unsure", "‼", "d"), "diverged": ("bad", "≠", "#"),
    "drift": ("unsure", "≈", "%"), "compensation_failed": ("bad", "✗", "x"), "budget_spent": ("unsure", "$", "$"),
    "review": ("unsure", "!", "!"), "stuck": ("unsure", "■", "s"), "approval": ("unsure", "◆", "a"),
    "alive": ("good", "●", "*"), "lost": ("bad", "✗", "x"), "silent": ("bad", "◌", "?"), "stopped": ("dim", "○", "o"),
    "asked": ("unsure", "◆", "a"), "given": ("good", "✓", "+"), "refused": ("bad", "⊘", "-"),
    "expired": ("dim", "∅", "0"), "consumed": ("good", "✓", "+"), "open": ("busy", "▶", ">"),
    "done": ("good", "✓", "+"),
    "ok": ("good", "✓", "+"), "look": ("unsure", "!", "!"), "bad": ("bad", "✗", "x"),
}  # fmt: skip
"""For each word: its meaning, its mark, and its mark where only ASCII can be drawn."""


def meaning(word: str) -> str:
    return STATUS.get(word, ("plain", "", ""))[0]


def mark(word: str, *, ascii_only: bool = False) -> str:
    found = STATUS.get(word, ("plain", "·", "."))
    return found[2] if ascii_only else found[1]


def themes() -> list[Theme]:
    return [_theme(name) for name in (DARK, LIGHT)]


def _theme(name: str) -> Theme:
    from textual.theme import Theme

    meanings, back = MEANINGS[name], BACKGROUNDS[name]

    def colour(word: str) -> str:
        return meanings[word].split()[-1]

    return Theme(
        name=name,
        primary=colour("key"),
        secondary=colour("busy"),
        accent=colour("key"),
        warning=colour("unsure"),
        error=colour("bad"),
        success=colour("good"),
        foreground=colour("plain"),
        background=back["background"],
        surface=back["surface"],
        panel=back["panel"],
        dark=name == DARK,
        variables={
            "boost": back["cursor"],
            "button-focus-text-style": "bold",
            "flash": back["flash"],
            "dim": colour("dim"),
            "text": colour("plain"),
            "text-muted": colour("dim"),
            "border": colour("dim"),
            "border-blurred": colour("dim"),
            "input-cursor-background": colour("plain"),
            "input-selection-background": back["cursor"],
            "block-cursor-background": colour("key"),
            "block-cursor-foreground": back["background"],
        },
    )


@functools.cache
def paper(theme: str) -> Console:
    """A Rich console on which nothing is ever printed: it knows what the meanings look like in a theme."""
    from rich.console import Console
    from rich.theme import Theme

    styles = MEANINGS.get(theme, MEANINGS[DARK])
    return Console(width=80, theme=Theme(styles), color_system="truecolor", markup=False, highlight=False, emoji=False)


def segments(text: Text, theme: str) -> list[Segment]:
    """A line of text in the colours of a theme. Rich leaves the style of a text without spans to whoever prints it."""
    from rich.segment import Segment

    console = paper(theme)
    base = console.get_style(text.style) if text.style else None
    return [Segment(s.text, s.style or base) for s in text.render(console, end="") if s.text]


ANSI = {
    "plain": "default", "strong": "bold", "dim": "bright_black", "good": "green", "bad": "bold red",
    "unsure": "bold yellow", "busy": "cyan", "key": "bold", "write": "bold", "mark": "bold",
}  # fmt: skip
"""The same meanings for commands, which leave the colours themselves to the terminal."""
