"""What a shell is offered when TAB is pressed: ids of runs in the store. Quick, and never an error.

A shell splices what it is offered into the command line, and some expand it first. So an id that would mean something
to a shell is not offered at all; typed by hand, and quoted, it works as any other.
"""

from __future__ import annotations

import contextlib
import re
import threading

import typer

AT_MOST = 50
PATIENCE = 1.0
"""Seconds. Whoever presses TAB would rather type on than wait longer."""

_INERT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:@%+/=-]*")


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids that begin so, newest first; none when the store does not answer at once."""
    found: list[str] = []
    asking = threading.Thread(target=_ask, args=(_store_of(ctx), incomplete, found), daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return [run_id for run_id in list(found) if _INERT.fullmatch(run_id)]


def _store_of(ctx: typer.Context) -> str | None:
    parent = ctx.parent.params if ctx.parent is not None else {}
    return ctx.params.get("store") or parent.get("store")


def _ask(url: str | None, incomplete: str, found: list[str]) -> None:
    with contextlib.suppress(Exception):  # a shell has no place for an error: there is nothing to offer
        from walkback_store import open_store
        from walkback_store.opening import choose_url
        from walkback_store.queries import RunFilter

        with open_store(choose_url(url), create=False, wait=PATIENCE) as store:
            store.time_limit = PATIENCE
            where = RunFilter(prefix=incomplete) if incomplete else RunFilter()
            found += [row["run_id"] for row in store.runs(where, limit=AT_MOST).rows]
