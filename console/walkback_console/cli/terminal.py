"""The terminal as `walkback doctor` sees it: whether it has room, colours and the characters that the console draws."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from walkback_console.cli.findings import LOOK, OK, Finding

WIDTH, HEIGHT = 80, 24
"""What every screen fits in, whole."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """What can be known about it without asking it anything."""

    is_one: bool
    size: tuple[int, int]
    """Columns and lines."""
    encoding: str
    environ: Mapping[str, str] = field(default_factory=dict)


def findings() -> Iterator[Finding]:
    yield from judge(_here())


def _here() -> Terminal:
    is_one, size = False, (0, 0)
    for stream in (sys.stdout, sys.stderr, sys.stdin):  # the output may go to a file while a person looks on
        try:
            if stream.isatty():
                is_one, size = True, tuple(os.get_terminal_size(stream.fileno()))  # type: ignore[assignment]
                break
        except (OSError, ValueError, AttributeError):
            continue
    return Terminal(is_one, size, getattr(sys.stdout, "encoding", None) or "ascii", os.environ)


def judge(terminal: Terminal) -> Iterator[Finding]:
    term = terminal.environ.get("TERM", "")
    if not terminal.is_one:
        yield Finding("terminal", OK, "none here: text and --json work anywhere, the console needs one")
        yield _locale(terminal)
        return
    if term in {"", "dumb", "unknown"}:
        said = f"TERM is {term or 'not set'}: nothing but plain text can be drawn."
        yield Finding("terminal", LOOK, said, "Set TERM to what your terminal is, such as xterm-256color.")
    else:
        yield Finding("terminal", OK, term)
    columns, lines = terminal.size
    if columns < WIDTH or lines < HEIGHT:
        said = f"{columns} x {lines}, and screens need {WIDTH} x {HEIGHT}: what does not fit is said, not shown."
        yield Finding("size", LOOK, said, "Make the window larger, or its letters smaller.")
    else:
        yield Finding("size", OK, f"{columns} x {lines}")
    yield _colours(terminal.environ, term)
    yield _locale(terminal)
    if "TMUX" in terminal.environ:
        yield Finding(
            "clipboard",
            OK,
            "tmux: what is copied goes to its buffer, and on to your clipboard if tmux may set it.",
            "If it does not arrive: tmux set -g set-clipboard on",
        )
    elif "STY" in terminal.environ:
        said = "GNU screen keeps programs from setting the clipboard; what is copied is also shown."
        yield Finding("clipboard", LOOK, said, "Select it with the mouse, or use tmux.")


def _colours(environ: Mapping[str, str], term: str) -> Finding:
    if environ.get("NO_COLOR"):
        return Finding("colours", OK, "off, as NO_COLOR asks; words and signs say everything")
    if environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        return Finding("colours", OK, "16 million")
    if "256color" in term:
        return Finding("colours", OK, "256")
    said = "16 or fewer, as far as TERM says; words and signs say everything."
    return Finding("colours", LOOK, said, "If yours has more: TERM=xterm-256color, or COLORTERM=truecolor.")


def _locale(terminal: Terminal) -> Finding:
    if terminal.encoding.lower().replace("-", "").replace("_", "") == "utf8":
        return Finding("characters", OK, "UTF-8")
    return Finding(
        "characters",
        LOOK,
        f"the locale is {terminal.encoding}, not UTF-8: other letters are shown as their numbers.",
        "Set LANG to a UTF-8 locale, such as C.UTF-8.",
    )
