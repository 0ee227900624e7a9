"""From what a person typed to the run or step they mean: an id may be shortened to a beginning that is only its own."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from walkback_store.errors import NotFound
from walkback_store.queries import RunFilter

if TYPE_CHECKING:
    from walkback_store import Store

SHOWN_AT_MOST = 5


def find_run(store: Store, given: str) -> str:
    """The id of the one run that begins with what was typed. A pruned run has to be named in full."""
    try:
        return str(store.run(given)["run_id"])
    except NotFound:
        page = store.runs(RunFilter(prefix=given), limit=SHOWN_AT_MOST + 1)
    ids = [row["run_id"] for row in page.rows]
    if len(ids) == 1:
        return str(ids[0])
    if ids:
        listed = ", ".join(ids[:SHOWN_AT_MOST]) + (", ..." if len(ids) > SHOWN_AT_MOST else "")
        raise NotFound(f"{given!r} is the beginning of several runs: {listed}. Give more of it.")
    raise NotFound(f"there is no run {given!r} in this store, and none that begins so. `walkback runs` lists them.")


def known_run(store: Store, given: str) -> str:
    try:
        store.events(given, limit=1)  # a pruned run still has its audit events, but no row
    except NotFound:
        return find_run(store, given)
    return given


def find_place(store: Store, given: str, step: str | None = None) -> tuple[str, str | None]:
    """The run, and the step if one was named: as RUN STEP, or as RUN#STEP.

    An id may have a # of its own. So what is an id as it stands is one, and only else the last # parts run and step.
    """
    if step is not None or "#" not in given:
        return find_run(store, given), step
    try:
        return find_run(store, given), None
    except NotFound as error:
        run, _, named = given.rpartition("#")
        if not run or not named:
            raise
        try:
            return find_run(store, run), named
        except NotFound as of_run:
            raise of_run from error


def place(text: str) -> str:
    """`run#step`, as it is shown elsewhere."""
    return " #".join(text.rsplit("#", 1))


def shell(text: str) -> str:
    return shlex.quote(text)
