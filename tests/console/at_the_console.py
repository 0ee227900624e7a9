"""A person at the console: opened in a pty on a real store, a dialog filled in, and what is waited for."""

from __future__ import annotations

from pathlib import Path

from tests.console.pty_screen import PtyScreen
from tests.console.terminal import command

READY = "need you"
"""The counts above the inbox have been read."""


def console(url: str, home: Path, *args: str, cols: int = 80, rows: int = 24, ready: str | None = READY) -> PtyScreen:
    """Cold, and waited for until the inbox and its preview are there; no key has been pressed."""
    home.mkdir(exist_ok=True)
    screen = PtyScreen(command("--store", url, *args), cols=cols, rows=rows, home=home)
    try:
        if ready is not None:
            see(screen, ready)
            see(screen, "safest next")
            screen.settle()
    except BaseException:
        screen.close()
        raise
    return screen


def answer(screen: PtyScreen, title: str, *typed: str) -> None:
    """Once the dialog is there, type into the fields that are empty, Enter after each; the last one does it."""
    see(screen, title, "Cancel")
    for text in typed:
        screen.settle()
        screen.type(text)
        screen.press("enter")


def see(screen: PtyScreen, *words: str) -> str:
    """Wait until all of these are on the screen, however they are folded; the screen's words."""
    try:
        screen.wait_for(lambda s: all(word in text_of(s) for word in words))
    except AssertionError as error:
        raise AssertionError(f"never all on the screen: {words}\n{error}") from None
    return text_of(screen)


def text_of(screen: PtyScreen) -> str:
    """The words on the screen, with its lines joined and without the lines around a dialog."""
    return " ".join(word for word in screen.text.split() if word.strip("│╭╮╰╯─"))


def go(screen: PtyScreen, place: str) -> None:
    """To an operation, by its name."""
    screen.settle()
    screen.press(":")
    screen.type(f"open {place}")
    screen.press("enter")
    run_id, _, step = place.partition("#")
    see(screen, f"{run_id} #{step}", "contract")
    screen.settle()


def decide(screen: PtyScreen, key: str, label: str, place: str, *typed: str, first: str | None = None) -> None:
    """A key, the dialog that it opens, and the word that it is recorded. `first` replaces what the first field has."""
    screen.press(key)
    if typed:
        see(screen, f"{label}: {place}", "Cancel")
        if first is not None:
            screen.press(*["shift+tab"] * (1 + len(typed)), "ctrl+u")
            screen.type(first)
            screen.press("enter")
        answer(screen, f"{label}: {place}", *typed)
    # What a quick worker makes of it takes the place of the first word.
    screen.wait_for(lambda s: any(said in text_of(s) for said in (f"{label}: recorded for {place}", "It is now ")))
