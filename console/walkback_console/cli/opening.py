"""`walkback` alone, and `walkback open`: the console, on a store that is known to be there."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from walkback_console.cli import USAGE
from walkback_console.cli.session import Explained, Session

WITH_VALUE = {"--store": "store", "--as": "claim"}


def only_console(args: Sequence[str]) -> dict[str, str] | None:
    """What was given, if nothing but the console can be meant; None is for the whole command to make sense of.

    Opening the console is what somebody waits for at night, and reading the definition of every other command takes a
    tenth of that time.
    """
    found: dict[str, str] = {}
    left = list(args)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name == "--read-only" and not equals:
            found["read_only"] = "yes"
        elif name in WITH_VALUE and (equals or left):
            value = value if equals else left.pop(0)
            if value.startswith("-"):
                return None
            found[WITH_VALUE[name]] = value
        else:
            return None
    return found


def is_terminal() -> bool:
    """Also standard error: that is where Textual draws."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def open_console(session: Session, place: str | None, *, read_only: bool) -> None:
    if not is_terminal():
        raise Explained(
            "the console needs a terminal, and this is none. `walkback show` prints the same; --json is for scripts.",
            USAGE,
        )
    gc.disable()  # until the first screen is there: nothing that is loaded for it is garbage
    with session.open() as store:
        if place is not None:
            from walkback_console.finding import find_place

            find_place(store, place)  # what is not there is said here, and not on a screen that closes again
        from walkback_console.app import options_for, run

        run(options_for(session.url, store=store, read_only=read_only, claim=session.claim, place=place))
