"""`walkback` alone, and `walkback open`: the console, on a store that is known to be there."""

from __future__ import annotations

import sys

from walkback_console.cli import USAGE
from walkback_console.cli.session import Explained, Session


def open_console(session: Session, place: str | None, *, read_only: bool) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Explained(
            "the console needs a terminal, and this is none. `walkback show` prints the same; --json is for scripts.",
            USAGE,
        )
    with session.open() as store:
        if place is not None:
            from walkback_console.cli.finding import find_place

            find_place(store, place)  # what is not there is said here, and not on a screen that closes again
    from walkback_console.app import options_for, run

    run(options_for(session.url, read_only=read_only, claim=session.claim, place=place))
