"""Hostile text on every screen: the terminal gets only what the console itself says, and people see what is there.

The store has a control sequence, a clipboard write, a turned reading direction, hidden characters and markup in every
text that an agent, a tool or a person can put in. A real pty is driven over every screen; every byte that comes out of
it has to be a character one can see or one of the few sequences that the console needs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.hostile import ALIKE, MARKUP, RUNS, fill_hostile
from tests.console.pty_screen import PtyScreen
from tests.console.terminal import command
from walkback_console.palette import TIMES

ALLOWED = re.compile(
    r"\x1b\[(?:[0-9]+;[0-9]+)?H"  # to a place
    r"|\x1b\[(?:(?:[0-479]|[34]8;2;[0-9]{1,3};[0-9]{1,3};[0-9]{1,3})(?:;|(?=m)))*m"  # how it looks, in full colours
    r"|\x1b\[\?(?:1049|25|7|1000|1003|1004|1006|1015|2004|2026|2048)[hl]"  # modes of a full-screen program
    r"|\x1b\[\?(?:2026|2048)\$p"  # whether the terminal knows some of them
    r"|\x1b\[[<>=][0-9;]*u"  # the kitty keyboard
    r"|\x1b\]22;(?:default|pointer|text)\x07"  # the shape of the mouse pointer
)
"""All that Textual sends. What hostile text would send is not among it: no clearing, no palette colour, no title."""

GROUP = f"{TIMES}{len(ALIKE)}"
SIZE = {"cols": 140, "rows": 60}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("hostile") / "walkback.db")
    fill_hostile(url)
    return url


@pytest.fixture
def screen(hostile: str, tmp_path: Path) -> Iterator[PtyScreen]:
    """The console, and in the end the claim that all of its bytes were its own."""
    args = command("--store", hostile)
    with PtyScreen(
        args, cols=SIZE["cols"], rows=SIZE["rows"], env={"COLORTERM": "truecolor"}, home=tmp_path, cwd=tmp_path
    ) as found:
        found.wait_for("need you")
        found.wait_for(lambda s: "description:" in s.text)
        found.settle()
        yield found
        found.settle()
        assert found.process.poll() is None, found.text
        assert foreign(found.raw.decode()) == []


def foreign(said: str) -> list[str]:
    """Every character that is neither visible nor part of a sequence that the console sends, with where it was."""
    text = ALLOWED.sub("", said)
    return [
        f"{c!r} after {text[max(0, n - 60) : n]!r}, before {text[n + 1 : n + 20]!r}"
        for n, c in enumerate(text)
        if c not in "\r\n" and (unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} or c == "\ufe0f")
    ]


def seen(place: str, text: str) -> bool:
    """Its hostile text as marks; or as JSON escapes it, where values are shown."""
    return f"{place}:␛[2J␛[31m" in text or rf"{place}:\u001b[2J\u001b[31m" in text


def shows(screen: PtyScreen, *places: str) -> str:
    """Until the hostile text of each place is on the screen, as marks; lines that are folded are looked at as one."""

    def visible(screen: PtyScreen) -> bool:
        text = "".join(screen.text.split())
        return all(seen(place.replace(" ", ""), text) for place in places)

    return screen.wait_for(visible)


def go(screen: PtyScreen, typed: str) -> None:
    screen.press(":")
    screen.wait_for("leave")
    screen.type(f"{typed}\r")
    screen.wait_gone("enter done")


def open_row(screen: PtyScreen, kind: str) -> None:
    """The row of the inbox of that kind, opened."""
    screen.press("home")
    for _ in range(20):
        screen.settle()
        if any(line.startswith("▌") and kind in line for line in screen.display):
            break
        screen.press("down")
    screen.press("enter")


def all_of(screen: PtyScreen) -> str:
    """A whole page of text, read by scrolling through it."""
    screen.press("home")
    found = [screen.settle()]
    while True:
        screen.press("pgdn")
        shown = screen.settle()
        if shown.splitlines()[3:-1] == found[-1].splitlines()[3:-1]:
            return "".join("".join(found).split())
        found.append(shown)


def test_the_check_itself_finds_what_it_is_for() -> None:
    assert foreign("\x1b[38;2;1;2;3mok\x1b[0m\x1b[3;4H\r\n") == []
    for bad in ("\x1b[2J", "\x1b[31m", "\x1b]52;c;ZXZpbA==\x07", "\x1b]0;t\x1b\\", "\x9b2J", "\x90q\x9c", "\x85"):
        assert foreign(f"a{bad}b"), bad
    for bad in ("\u202e", "\u2066", "\u200f", "\u200b", "\u2060", "\ufeff", "\u00ad", "\t", "\x08", "\x7f", "\u2028"):
        assert foreign(f"a{bad}b"), bad


def test_inbox(screen: PtyScreen) -> None:
    shows(screen, "tool", "description", "stake")
    assert MARKUP in screen.text
    screen.press("down", "down", "down", "down", "up")
    screen.settle()
    screen.press("/")
    screen.type(MARKUP)
    screen.wait_for(MARKUP)
    screen.press("enter")
    screen.wait_for("filter")


def test_operation(screen: PtyScreen) -> None:
    go(screen, f"open {RUNS['unknown']}#2")
    screen.wait_for("UNKNOWN")
    text = all_of(screen)
    for place in ("description", "stake", "tool", "agent", "error", "argument", "value", "owner", "found"):
        assert seen(place, text), place
    screen.press("home")
    screen.settle()
    at = next(n for n, line in enumerate(screen.display) if "[@click=app.bell]m" in line)
    screen.click(screen.display[at].index("]m") + 1, at)  # no bell rings, which the end of every test looks for
    screen.settle()


def test_operation_confirmed(screen: PtyScreen) -> None:
    go(screen, f"open {RUNS['unknown']}#2")
    screen.wait_for("UNKNOWN")
    for key in ("h", "f", "r", "p", "X", "w", "O"):
        screen.press(key)
        screen.wait_for("Cancel")
        screen.settle()
        screen.type(MARKUP)
        screen.settle()
        screen.press("esc")
        screen.wait_gone(" Cancel ")


def test_approval(screen: PtyScreen) -> None:
    go(screen, f"open {RUNS['asks']}#1")
    screen.wait_for("refuse")
    text = all_of(screen)
    for place in ("description", "stake", "argument", "value"):
        assert seen(place, text), place
    screen.press("a")
    screen.wait_for("Cancel")
    shows(screen, "description")
    screen.press("esc")
    screen.wait_gone("Cancel")
    screen.press("d")
    screen.wait_for("Cancel")
    screen.press("esc")


def test_batch(screen: PtyScreen) -> None:
    open_row(screen, GROUP)
    screen.wait_for("3 alike")
    shows(screen, "tool", "description", "alike error class")
    screen.press("tab", "space", "space")
    for key in ("f", "r", "O"):
        screen.press(key)
        screen.wait_for("Cancel")
        shows(screen, "description")
        screen.press("esc")
        screen.wait_gone(" Cancel ")


def test_freeze(screen: PtyScreen) -> None:
    screen.press("F")
    screen.wait_for("Cancel")
    shows(screen, "tool")
    screen.press("esc")
    screen.wait_gone("Cancel")
    screen.press("U")
    screen.wait_for("Cancel")
    screen.press("esc")


def test_help_and_palette_and_command_line(screen: PtyScreen) -> None:
    screen.press("?")
    screen.wait_for("Help for the screen")
    all_of(screen)
    screen.press("esc")
    screen.wait_gone("Help for the screen")
    go(screen, MARKUP)
    screen.wait_for("is no command")
    go(screen, f"open {MARKUP}")
    screen.settle()
    screen.press("ctrl+p")
    screen.wait_for("Search for commands")
    screen.type(MARKUP)
    screen.settle()
    screen.press("esc")


def test_runs(screen: PtyScreen) -> None:
    go(screen, "runs")
    screen.wait_for("Runs")
    shows(screen, "agent")
    screen.press("down", "down", "down")
    shows(screen, "agent")
    screen.press("/")
    screen.type(MARKUP)
    screen.settle()
    screen.press("enter")
    screen.settle()


def test_workers(screen: PtyScreen) -> None:
    go(screen, "workers")
    screen.wait_for("Workers")
    shows(screen, "tool", "reason")
    for _ in range(6):
        screen.press("down")
        screen.settle()
    shows(screen, "host")


def test_log(screen: PtyScreen) -> None:
    go(screen, f"open {RUNS['waits']}")
    screen.settle()
    go(screen, f"open {RUNS['unknown']}#2")
    screen.wait_for("UNKNOWN")
    screen.press("o")
    screen.wait_for("recorded")
    go(screen, "log")
    screen.wait_for("Log")
    screen.wait_for("walkback own")
    assert MARKUP in "".join(screen.text.splitlines())


def test_run_with_all_its_tabs(screen: PtyScreen) -> None:
    go(screen, f"open {RUNS['unknown']}")
    screen.wait_for("UNKNOWN")
    shows(screen, "agent", "tool")
    screen.press("end")
    screen.settle()
    screen.press("1")
    screen.wait_for(r"state key:\u001b[2")
    for n, places in enumerate(([], [], ["argument", "error"], [], []), 1):
        screen.press(str(n))
        screen.settle()
        shows(screen, *places)
        screen.press("tab")
        for key in ("down", "down", "enter", "right", "right", "pgdn", "end", "home"):
            screen.press(key)
            screen.settle()
        screen.press("tab")
    screen.press("1", "tab", "b")
    screen.settle()
    screen.press("/")
    screen.type(MARKUP)
    screen.settle()
    screen.press("enter")
    screen.settle()


def test_a_failed_run(screen: PtyScreen) -> None:
    go(screen, f"open {RUNS['failed']}")
    screen.wait_for("FAILED")
    shows(screen, "message")
    screen.press("m")
    screen.wait_for("Runs")
    screen.settle()
