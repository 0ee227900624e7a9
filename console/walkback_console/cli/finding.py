"""From what a person typed to the run or step they mean: an id may be shortened to a beginning that is only its own."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from walkback_console import finding
from walkback_console.finding import find_run
from walkback_store.errors import NotFound

if TYPE_CHECKING:
    from walkback_store import Store


def known_run(store: Store, given: str) -> str:
    try:
        store.events(given, limit=1)  # a pruned run still has its audit events, but no row
    except NotFound:
        return find_run(store, given)
    return given


def find_place(store: Store, given: str, step: str | None = None) -> tuple[str, str | None]:
    """The run, and the step if one was named: as RUN STEP, or as RUN#STEP."""
    if step is not None:
        return find_run(store, given), step
    run_id, named, _ = finding.find_place(store, given)
    return run_id, named


def place(text: str) -> str:
    """`run#step`, as it is shown elsewhere."""
    return " #".join(text.rsplit("#", 1))


def shell(text: str) -> str:
    return shlex.quote(text)


__all__ = ["find_place", "find_run", "known_run", "place", "shell"]
