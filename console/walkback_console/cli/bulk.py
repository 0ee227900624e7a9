"""The same decision about many operations at once, and the batches that come of it.

It is about the places that were named, and about nothing that joins them later. The confirmation wants their number
typed; each is then decided by itself, so that one that has changed meanwhile does not hold up the others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from walkback_console import many_at_once, subjects
from walkback_console.actions import Action, find, why_not
from walkback_console.cli import REFUSED, USAGE, documents
from walkback_console.cli.deciding import only_step, perform, who_of
from walkback_console.cli.finding import find_place
from walkback_console.cli.printing import Column, Printer, as_json, t, word
from walkback_console.cli.session import Explained, NotConfirmed, Session
from walkback_console.deciding import BadAnswer
from walkback_console.plain_words import ago, many
from walkback_console.subjects import Subject
from walkback_store import Committed
from walkback_store.paging import MAX_PAGE

if TYPE_CHECKING:
    from walkback_store import Store
    from walkback_store.log import Row
    from walkback_store.machine.base import Transition

OF_MANY = {"verify": "verify_all", "fail": "fail_all", "retry": "retry_all", "handover": "handover_all"}
"""Which action of the table does to many what another does to one."""


def decide(
    session: Session, action_id: str, places: Sequence[str], answers: Mapping[str, str | None], *, yes: bool
) -> None:
    if action_id not in OF_MANY:
        raise Explained(f"{find(action_id).label}: that is said about one operation at a time. Name one.", USAGE)
    action = find(OF_MANY[action_id])
    with session.open() as store:
        subject = subjects.load_group(store, [_place(store, given, action_id) for given in places])
        who = who_of(session, store)
        if (why := why_not(action, subject, who)) is not None:
            raise Explained(f"{action.label}: {why}. Nothing was changed.", REFUSED)
        rows = _decided_about(action, subject)
        typed = {name: value for name, value in answers.items() if value is not None}
        if not typed.get("reason", "").strip() and action.id != "verify_all":
            raise Explained(f"{action.label} needs --reason: it is stored with each decision.", USAGE)
        if not session.as_json or not yes:
            _announce(action, subject, rows, typed)
        _confirm_number(len(rows), yes=yes)
        typed["confirm"] = f"{len(rows)} {typed.get('reason', '')}".strip()
        try:
            transitions = [] if action.make is None else action.make(subject, typed, who.actor)
        except BadAnswer as error:
            raise Explained(str(error), USAGE) from error
        results = store.commit([who.sign(transition) for transition in transitions])
    _tell(session, action, subject, transitions, results)


def _place(store: Store, given: str, action_id: str) -> tuple[str, str]:
    run_id, step = find_place(store, given)
    return run_id, step or only_step(store, run_id, action_id)


def _decided_about(action: Action, subject: Subject) -> list[Row]:
    rows = many_at_once.undecided(subject)
    return [row for row in rows if row["can_verify"]] if action.id == "verify_all" else rows


def _announce(action: Action, subject: Subject, rows: Sequence[Row], typed: Mapping[str, str]) -> None:
    out = Printer(stderr=True)
    out.line(t(f"{action.label}: {many(len(rows), 'operation')}", "strong"))
    out.facts([("", t(effect)) for effect in action.effects(subject, typed)])
    if len(rows) < len(subject.members):
        left_out = many(len(subject.members) - len(rows), "operation")
        out.facts([("", t(f"{left_out} of those named cannot be decided about this way, and stay as they are."))])


def _confirm_number(number: int, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed("this needs a confirmation, and there is nobody to ask: give --yes.", USAGE)
    if typer.prompt(f"Type {number} to do it", default="", show_default=False, err=True).strip() != str(number):
        raise NotConfirmed("nothing was changed.", REFUSED)


def _tell(
    session: Session, action: Action, subject: Subject, transitions: Sequence[Transition], results: Sequence[Any]
) -> None:
    done, refused = [], []
    for transition, result in zip(transitions, results, strict=True):
        about = {"run": getattr(transition, "run_id", None), "step": getattr(transition, "step", None)}
        if isinstance(result, Committed):
            done.append(about | {"event": result.seq})
        else:
            refused.append(about | {"why": str(result)})
    batch = done[0]["event"] if done and action.id == "retry_all" else None
    back = None if batch is None else f"walkback batch {batch} --stop --reason ..."
    if session.as_json:
        about = {"action": action.id, "done": done, "refused": refused, "batch": batch, "take_back": back}
        as_json(about)
    else:
        out = Printer()
        if batch is not None:
            out.line(t("Done: ", "good"), t(f"batch {batch}. One goes first; the others follow if it succeeds."))
            out.line(t(f"Watch it:  walkback batch {batch}    Stop it:  {back}"))
        else:
            out.line(t("Done: ", "good"), t(f"{action.label}, {many(len(done), 'operation')}."))
        for each in refused:
            out.line(t("Refused: ", "bad"), t(f"{each['run']}#{each['step']}: {each['why']}"))
    if refused:
        raise typer.Exit(REFUSED)


# --- batches -----------------------------------------------------------------------------------------------------


def batch(session: Session, number: int, stop: bool, reason: str, *, yes: bool) -> None:
    with session.open() as store:
        at = store.now()
        found, members = store.batch(number, limit=MAX_PAGE)
        if stop:
            subject = Subject(at=at, batch=found)
            perform(session, store, find("stop_batch"), subject, {"reason": reason, "what": f"batch {number}"}, yes=yes)
            return
        operations = store.operations_of([(m["run_id"], m["step"]) for m in members])
    by_place = {(row["run_id"], row["step"]): row for row in operations}
    listed = [_member(m, by_place.get((m["run_id"], m["step"]))) for m in members]
    if session.as_json:
        as_json(documents.batch(found) | {"ended_why": found["ended_why"], "members": listed})
        return
    out = Printer()
    why = f": {found['ended_why']}" if found["ended_why"] else ""
    out.line(t(f"batch {number}, {found['action']}", "strong"), "  ", word(found["status"]), t(why))
    went = f"{found['released']:,} of {found['total']:,} released"
    out.line(t(f"{went}; by {found['by']}, {ago(found['at'], at)}: {found['reason']}"))
    out.blank()
    columns = (Column("n", 3, True), Column("operation", 30), Column("released", 8), Column("status", 9))
    rows = []
    for m in listed:
        released = "yes" if m["released_at"] else "not yet"
        rows.append([t(m["n"]), t(f"{m['run']}#{m['step']}"), t(released), word(m["status"] or "gone")])
    out.table(columns, rows)


def _member(member: Row, operation: Row | None) -> documents.Document:
    return documents.batch_member(member) | {"status": None if operation is None else operation["status"]}
