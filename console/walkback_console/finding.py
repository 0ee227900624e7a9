"""Finding what a person means by the beginning of an id."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkback_store import Store

SHOWN_AT_MOST = 5


def find_run(store: Store, given: str) -> str:
    """The id of the one run that begins with what was typed. A pruned run has to be named in full."""
    from walkback_store.errors import NotFound
    from walkback_store.queries import RunFilter

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


def find_place(store: Store, given: str) -> tuple[str, str | None, bool]:
    """The run, the step if one was named, and whether that step is a call. A `#` may be part of a run's id, too."""
    from walkback_store.errors import NotFound

    try:
        return find_run(store, given), None, False
    except NotFound:
        name, hash_, step = given.rpartition("#")
        if not hash_ or not name:
            raise
    run_id = find_run(store, name.rstrip())
    try:
        store.operation(run_id, step)
    except NotFound:
        if store.step_offset(run_id, step) is None:
            raise NotFound(f"run {run_id!r} has no step {step!r}.") from None
        return run_id, step, False
    return run_id, step, True
