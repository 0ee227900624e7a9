"""The harness itself: what it says a terminal shows is what a terminal would show."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.console.pty_screen import PATIENCE, PtyScreen, Screen

APP = [sys.executable, "-m", "tests.console.table_app"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[PtyScreen]:
    with PtyScreen(APP, home=tmp_path, cwd=ROOT) as screen:
        screen.wait_for("Quit")
        screen.settle()
        yield screen


def says(text: str, tmp_path: Path) -> list[str]:
    """The lines of a terminal after a command has sent it this text."""
    with PtyScreen(["printf", "%s", text], cols=20, rows=4, home=tmp_path, frames=False) as screen:
        assert screen.exit_code() == 0
        return screen.display


# --- a Textual app ------------------------------------------------------------------------------------------------


def test_keys_reach_the_app_and_are_counted_apart_from_typed_text(screen: PtyScreen) -> None:
    assert screen.keys_pressed == 0
    screen.press("down", "enter")
    screen.wait_for("chosen: 寿司を注文する")
    screen.press("o")
    screen.wait_for("▔▔▔")
    screen.settle()
    screen.type("it's in billing, 請求書")
    screen.press("enter")
    screen.wait_for("typed: it's in billing, 請求書")
    assert screen.keys_pressed == 4


def test_escape_followed_at_once_by_another_key_is_both(screen: PtyScreen) -> None:
    screen.press("esc")
    screen.wait_for("escaped")
    screen.press("f1")
    screen.wait_for("helped")
    screen.press("esc", "down", "enter")
    screen.wait_for("chosen: 寿司")


def test_a_table_with_wide_characters_keeps_its_columns(screen: PtyScreen) -> None:
    from rich.cells import cell_len

    lines = screen.display
    assert len(lines) == 24
    places = {
        cell_len(line[: line.index(word)])
        for line in lines
        for word in ("unknown", "asked", "stuck", "failed")
        if word in line
    }
    assert len(places) == 1, screen.text


def test_a_click_is_a_click(screen: PtyScreen) -> None:
    line = next(n for n, text in enumerate(screen.display) if "naïve" in text)
    screen.click(3, line)
    screen.click(3, line)
    screen.wait_for("chosen: naïve café")


def test_the_app_hears_of_a_new_size_and_paints_it(screen: PtyScreen) -> None:
    screen.resize(100, 30)
    screen.wait_for("size: 100x30")
    assert (len(screen.display), {len(line) for line in screen.display if line.isascii()}) == (30, {100})
    screen.resize(40, 12)
    screen.wait_for("size: 40x12")
    assert len(screen.display) == 12


def test_attributes_say_how_the_text_looks(screen: PtyScreen) -> None:
    first = screen.attributes(0)[0]
    assert first.text.startswith("size: 80x24")
    assert (first.column, first.fg, first.marks) == (0, "ff005f", frozenset({"bold"}))


def test_it_ends_when_it_wants_to_and_the_screen_from_before_comes_back(screen: PtyScreen) -> None:
    screen.press("q")
    assert screen.exit_code() == 7
    assert screen.text.strip() == "goodbye"
    assert b"charge the card" in screen.raw


def test_what_never_comes_is_an_error_that_shows_the_screen(screen: PtyScreen) -> None:
    with pytest.raises(AssertionError, match=r"'Approved' never came within 0\.3 s") as raised:
        screen.wait_for("Approved", timeout=0.3)
    assert "charge the card" in str(raised.value)
    with pytest.raises(AssertionError, match="'unknown' never went away"):
        screen.wait_gone("unknown", timeout=0.3)
    with pytest.raises(AssertionError, match=r"it did not end within 0\.1 s"):
        screen.exit_code(0.1)
    with pytest.raises(ValueError, match="there is no key 'entr'"):
        screen.press("entr")


def test_frames_are_kept_together_and_counted(screen: PtyScreen) -> None:
    had = screen.frames
    assert had >= 1
    screen.press("down")
    screen.wait_for(lambda s: s.frames > had)


def test_a_terminal_that_knows_nothing_of_frames_will_do(tmp_path: Path) -> None:
    with PtyScreen(APP, home=tmp_path, cwd=ROOT, frames=False) as screen:
        screen.wait_for("charge the card")
        screen.settle()
        assert b"\x1b[?2026h" not in screen.raw
        screen.press("enter")
        screen.wait_for("chosen: charge the card")


def test_the_environment_is_clean_unless_something_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "WALKBACK_STORE"):
        monkeypatch.setenv(name, "1")
    show = [sys.executable, "-c", "import os; print(sorted(os.environ)); print(os.environ['HOME'])"]
    with PtyScreen(show, cols=200, home=tmp_path) as screen:
        assert screen.exit_code() == 0
        assert not any(name in screen.text for name in ("COLOR", "COLUMNS", "WALKBACK_STORE"))
        assert str(tmp_path) in screen.text
    with PtyScreen(show, cols=200, home=tmp_path, env={"NO_COLOR": "1"}) as screen:
        screen.wait_for("NO_COLOR")


def test_closing_kills_whatever_the_command_started(tmp_path: Path) -> None:
    child = (
        "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print('child', c.pid, flush=True); c.wait()"
    )
    with PtyScreen([sys.executable, "-c", child], home=tmp_path) as screen:
        pid = int(screen.wait_for("child").split()[1])
    until = time.monotonic() + PATIENCE
    while (process := alive(pid)) is not None:
        assert time.monotonic() < until, process
        time.sleep(0.01)


def alive(pid: int) -> psutil.Process | None:
    """Unless it is gone, or dead and not yet collected."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def test_a_command_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    with PtyScreen([sys.executable, "-c", "print('so long')"], home=tmp_path) as screen:
        screen.wait_for("so long")
        with pytest.raises(AssertionError, match="and the command has ended"):
            screen.wait_for("more")


# --- sequences ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign",
    [
        "\x1b[>25u", "\x1b[<u", "\x1b[=1;2u", "\x1b[>4;2m", "\x1b[?2026$p", "\x1b[?2048$p", "\x1b[2 q",
        "\x1bP+q544e\x1b\\", "\x1b_Gi=31;AAAA\x1b\\", "\x1b^private\x1b\\", "\x1bXstring\x1b\\",
        "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x1b\\", "\x1b[?1004h", "\x1b[?2004h", "\x1b[?1006;1000h",
    ],
)  # fmt: skip
def test_what_is_not_for_the_screen_leaves_no_trace_on_it(foreign: str, tmp_path: Path) -> None:
    assert says(f"ab{foreign}cd", tmp_path)[0].rstrip() == "abcd"


def test_a_sequence_or_a_character_may_come_in_pieces(tmp_path: Path) -> None:
    slow = (
        "import sys, time\n"
        "for byte in 'a\\x1b[>25u寿\\x1b]52;c;ZXZpbA==\\x1b\\\\🚀\\x1b[31mz'.encode():\n"
        "    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush()\n"
        "    time.sleep(0.002)\n"
    )
    with PtyScreen([sys.executable, "-c", slow], home=tmp_path) as screen:
        screen.wait_for(lambda s: "z" in s.text)
        assert screen.text.strip() == "a寿🚀z"
        assert screen.attributes(0)[1].fg == "red"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("寿司x", "寿司x"),
        ("🚀x", "🚀x"),
        ("e\u0301x", "éx"),
        ("⚠\ufe0f then more", "⚠ then more"),
        ("👩\u200d🚀 and more", "👩🚀 and more"),
        ("a\u200bb", "ab"),
        ("寿司\rx", "x 司"),
        ("寿司\r\x1b[Cx", " x司"),
        ("abcd\r\x1b[C寿", "a寿d"),
    ],
)
def test_wide_and_joined_characters_neither_lose_text_nor_move_it(text: str, line: str, tmp_path: Path) -> None:
    assert says(text, tmp_path)[0].rstrip() == line


def test_every_line_is_as_wide_as_the_screen() -> None:
    from rich.cells import cell_len

    screen = Screen(10, 2)
    screen.draw("abcdefgh")
    screen.draw("寿")
    assert [cell_len(line) for line in screen.display] == [10, 10]
