"""What an action does that changes nothing in the store: it takes something out of the console, or goes elsewhere.

Screens look here for what they do not do themselves; `ERRANDS` is by the id of the action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from walkback_console import outside
from walkback_console.safe_text import safe
from walkback_console.subjects import Subject

if TYPE_CHECKING:
    from walkback_console.app import Walkback
    from walkback_store import Store


def safe_lines(text: str) -> str:
    """Each line made safe by itself, so that they stay lines."""
    return "\n".join(safe(line) for line in text.split("\n"))


def copy(app: Walkback, subject: Subject | None) -> None:
    copied(app, subject.place if subject is not None else "")


def copy_command(app: Walkback, subject: Subject | None) -> None:
    copied(app, "" if subject is None else f"walkback show {outside.quoted(subject.place)}")


def copied(app: Walkback, text: str) -> None:
    if not text:
        app.say("copy: nothing is selected.", "unsure")
        return
    how = outside.copy(text, app.copy_to_clipboard)
    app.say(f"{how}: {text}", "good")


def pager(app: Walkback, _: Subject | None) -> None:
    if (screen := app.top) is not None:
        with app.suspend():
            outside.page(safe_lines(screen.text_of_all()))
        app.refresh()


def save(app: Walkback, subject: Subject | None) -> None:
    if (screen := app.top) is not None:
        name = (subject.place if subject is not None else "") or screen.where
        app.say(outside.save(safe_lines(screen.text_of_all()), name), "good")


def similar(app: Walkback, subject: Subject | None) -> None:
    if subject is not None and subject.run is not None:
        app.open_runs("", subject.run["fingerprint"])


def last_good(app: Walkback, subject: Subject | None) -> None:
    if subject is None or subject.run is None:
        return
    run = subject.run

    def newest(store: Store) -> str | None:
        from walkback_store.queries import RunFilter

        rows = store.runs(RunFilter(status=["succeeded"], agent=run["agent"]), limit=2).rows
        return next((str(row["run_id"]) for row in rows if row["run_id"] != run["run_id"]), None)

    def go(found: str | None) -> None:
        if found is None:
            app.say(f"no other run of {run['agent']} has succeeded.", "unsure")
        else:
            app.open_run(found)

    app.thread.ask("last good", newest, go)


def source(app: Walkback, subject: Subject | None) -> None:
    if subject is None or subject.run is None:
        return
    run_id = subject.run_id

    def edit(place: tuple[str, int] | None) -> None:
        if place is None:
            app.say("the record does not say which line of code failed.", "unsure")
            return
        with app.suspend():
            problem = outside.edit(*place)
        app.refresh()
        app.say(problem or f"opened {place[0]}:{place[1]}", "unsure" if problem else "good")

    app.thread.ask("source", lambda store: outside.source_of(store, run_id), edit)


ERRANDS: dict[str, Callable[[Walkback, Subject | None], object]] = {
    "copy": copy,
    "copy_command": copy_command,
    "pager": pager,
    "save": save,
    "similar": similar,
    "last_good": last_good,
    "source": source,
}
