"""Commands that decide: each is an action of the one table, done from a command line.

What was looked up is what is acted on: it is shown, confirmed, and refused by the state machine if it has changed
meanwhile. So two people who decide about the same thing never both do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from walkback_console import subjects, verdicts
from walkback_console.actions import Action, Who, checked, find, why_not
from walkback_console.cli import REFUSED, USAGE
from walkback_console.cli.finding import find_place, find_run, shell
from walkback_console.cli.printing import Printer, as_json, t
from walkback_console.cli.session import Explained, Session, confirm
from walkback_console.deciding import BadAnswer, frozen_name, frozen_what
from walkback_console.plain_words import ago, iso
from walkback_console.subjects import Subject
from walkback_console.whoami import operator_of
from walkback_store.errors import NotFound
from walkback_store.words import FreezeScope, WorkerStatus

if TYPE_CHECKING:
    from rich.text import Text

    from walkback_store import Committed, Store

TAKES_BACK = re.compile(r"\bu takes it back\b")
"""How the table says it for a screen, where one key does it."""

OPTION_OF = {"owner": "to"}


def who_of(session: Session, store: Store) -> Who:
    actor = operator_of(store)
    return Who(actor, str(store.role_of(actor)), session.claim)


# --- what is decided about ---------------------------------------------------------------------------------------


def decide(
    session: Session, action_id: str, given: str, answers: Mapping[str, str | None], *, yes: bool, digest: str = ""
) -> None:
    """An action about one operation. The step may be left out when only one can be meant."""
    with session.open() as store:
        run_id, step = find_place(store, given)
        subject = subjects.load_operation(store, run_id, step or only_step(store, run_id, action_id), writes=True)
        if action_id == "approve":
            _check_digest(subject, digest)
            if not session.as_json or not yes:
                _show_approval(subject)
        perform(session, store, find(action_id), subject, answers, yes=yes)


def decide_run(session: Session, action_id: str, given: str, answers: Mapping[str, str | None], *, yes: bool) -> None:
    """An action about a run; a step, if one was named, says what the words are about."""
    with session.open() as store:
        run_id, step = find_place(store, given)
        subject = subjects.load_run(store, run_id) if step is None else _of_step(store, run_id, step)
        perform(session, store, find(action_id), subject, answers, yes=yes)


def compensate(
    session: Session, given: str, scopes: Mapping[str, str | None], answers: Mapping[str, str | None], *, yes: bool
) -> None:
    named = [f"{what} {value}" for what, value in scopes.items() if value is not None]
    if len(named) > 1:
        raise Explained("give one of --step, --after and --transaction, or none for the whole run.", USAGE)
    with session.open() as store:
        run_id, step = (find_run(store, given), None) if named else find_place(store, given)
        scope = named[0] if named else f"step {step}" if step is not None else "run"
        subject = subjects.load_run(store, run_id, writes=True)
        perform(session, store, find("compensate"), subject, {**answers, "scope": scope}, yes=yes)


def freeze(session: Session, action_id: str, words: Sequence[str], reason: str, *, yes: bool) -> None:
    """`tool NAME`, `agent NAME`, `service NAME` or `everything`; to lift one, its number is enough."""
    with session.open() as store:
        subject = Subject(at=store.now(), freezes=tuple(store.freezes()))
        what = " ".join(words)
        if action_id == "unfreeze":
            found = [f for f in subject.freezes if what in (frozen_name(f), str(f["freeze_no"]))]
            if not found:
                known = ", ".join(frozen_name(f) for f in subject.freezes) or "nothing"
                raise Explained(f"{what} is not frozen; {known} is. Nothing was changed.", REFUSED)
            subject, what = replace(subject, freeze=found[0]), frozen_name(found[0])
        else:
            try:
                scope, name = frozen_what(what)
            except BadAnswer as error:
                raise Explained(f"{error} Nothing was changed.", USAGE) from error
            _warn_of_unknown_name(store, scope, name)
        perform(session, store, find(action_id), subject, {"what": what, "reason": reason}, yes=yes)


def _warn_of_unknown_name(store: Store, scope: str, name: str | None) -> None:
    """A freeze of a name with a typing mistake in it stops nothing, and nobody would notice."""
    if scope != FreezeScope.AGENT or name is None:
        return
    known = {agent for worker in store.workers() for agent in worker["agents"]}
    if known and name not in known and not store.runs(_of_agent(name), limit=1).rows:
        said = f"No worker and no run has an agent {name}; they have {', '.join(sorted(known))}."
        Printer(stderr=True).line(t(said, "unsure"))


def _of_agent(name: str) -> Any:
    from walkback_store.queries import RunFilter

    return RunFilter(agent=name)


def _of_step(store: Store, run_id: str, step: str) -> Subject:
    try:
        return subjects.load_operation(store, run_id, step)
    except NotFound:
        store.step(run_id, step)  # it is a step, only not of a call
        return subjects.load_run(store, run_id)


def only_step(store: Store, run_id: str, action_id: str) -> str:
    """The step that is meant when only a run was named: the one unknown, or the one that awaits approval."""
    run = store.run(run_id)
    asks = action_id in {"approve", "refuse"}
    what, column = ("awaits approval", "awaiting_operations") if asks else ("is unknown", "unknown_operations")
    count = run[column]
    if action_id == "dismiss":
        what, count = "may have happened twice", None
    steps = [] if count == 0 else _steps_in_question(store, run_id, action_id)
    if len(steps) == 1:
        return steps[0]
    if not steps:
        hint = _hint(run, action_id)
        raise Explained(f"no operation of {run_id} {what}: it is {run['status']}. Nothing was changed.{hint}", REFUSED)
    listed = ", ".join(f"{run_id}#{step}" for step in steps)
    raise Explained(f"more than one operation of {run_id} {what}: name one of {listed}. Nothing was changed.", USAGE)


def _hint(run: Mapping[str, Any], action_id: str) -> str:
    if action_id == "retry" and run["status"] == "failed":
        return f" To let a failed run try again: walkback resume {shell(run['run_id'])}"
    return f" See walkback show {shell(run['run_id'])}"


def _steps_in_question(store: Store, run_id: str, action_id: str) -> list[str]:
    asks = action_id in {"approve", "refuse"}
    found: list[str] = []
    after = 0
    while rows := store.timeline(run_id, after=after, limit=1000, faults=not asks):
        for row in rows:
            if action_id == "dismiss":
                matches = bool(row["operation_duplicate_suspected"])
            else:
                matches = row["operation_status"] == ("awaiting_approval" if asks else "unknown")
            if matches:
                found.append(row["step"])
        after = rows[-1]["first_seq"]
    return found


def _check_digest(subject: Subject, digest: str) -> None:
    asked = subject.approval["digest"] if subject.approval is not None else ""
    if digest and not asked.startswith(digest):
        raise Explained(
            f"{subject.place} asks about {asked[:12] or 'nothing'}, and you gave {digest}: what is asked is not what "
            f"you saw. Nothing was approved. Look again: walkback show {shell(subject.place)}",
            REFUSED,
        )


def _show_approval(subject: Subject) -> None:
    """All of it: nobody agrees to what was not on the screen."""
    out = Printer(stderr=True)
    out.facts([(line.label, by_command(line.text, subject)) for line in verdicts.approval_lines(subject)], indent=0)
    out.blank()


# --- doing it ----------------------------------------------------------------------------------------------------


def perform(
    session: Session,
    store: Store,
    action: Action,
    subject: Subject,
    given: Mapping[str, str | None],
    *,
    yes: bool,
) -> None:
    who = who_of(session, store)
    typed = {name: value for name, value in given.items() if value is not None}
    about = subject.place or typed.get("what", "")
    make = action.make
    if make is None:
        raise TypeError(f"{action.id} decides nothing")
    if (why := why_not(action, subject, who)) is not None:
        raise Explained(f"{action.label}, {about}: {_said(why, subject)}. Nothing was changed.", REFUSED)
    try:
        _check_options(action, typed)
        answers = typed | checked(action, typed)
        effects = [_said(effect, subject) for effect in action.effects(subject, answers)]
        transitions = make(subject, answers, who.actor)
    except BadAnswer as error:
        raise Explained(str(error), USAGE) from error
    asks = action.danger and not yes
    if asks or not session.as_json:
        out = Printer(stderr=True)
        out.line(t(f"{action.label}: {about}", "strong"))
        out.facts([("", t(effect)) for effect in effects])
    if action.danger:
        confirm("Do it?", yes=yes)
    done = [store.do(who.sign(transition)) for transition in transitions][-1]
    _tell(session, store, action, subject, done, who, typed)


def _check_options(action: Action, typed: Mapping[str, str]) -> None:
    for field in action.fields:
        if field.required and not typed.get(field.name, "").strip():
            hint = f": {field.hint}" if field.hint else ""
            raise Explained(f"{action.label} needs --{OPTION_OF.get(field.name, field.name)}{hint}.", USAGE)


def _said(text: str, subject: Subject) -> str:
    return TAKES_BACK.sub(lambda _: f"`walkback undo {shell(subject.run_id)}` takes it back", text)


def by_command(text: Text, subject: Subject) -> Text:
    """The same line for people who have no keys to press, only commands."""
    return t(_said(text.plain, subject), str(text.style)) if TAKES_BACK.search(text.plain) else text


def _tell(
    session: Session,
    store: Store,
    action: Action,
    subject: Subject,
    done: Committed,
    who: Who,
    typed: Mapping[str, str],
) -> None:
    waits = None
    if subject.run is not None:
        now = subjects.load_run(store, subject.run_id)
        waits = now.decision if now.decision is not None and now.decision["seq"] == done.seq else None
    undone = subject.decision if action.id == "undo" else None
    back = None if waits is None else f"walkback undo {shell(subject.run_id)}"
    status = done.run["status"] if done.run is not None else None
    if session.as_json:
        as_json(
            {
                "action": action.id,
                "run": subject.run_id or None,
                "step": subject.step or (undone or {}).get("step"),
                "what": typed.get("scope") or typed.get("what"),
                "by": who.actor,
                "claim": who.claim,
                "event": done.seq,
                "at": iso(done.at),
                "status": status,
                "not_before": None if waits is None else iso(waits["not_before"]),
                "take_back": back,
            }
        )
        return
    out = Printer()
    about = subject.place or typed.get("what", "")
    out.line(t("Done: ", "good"), t(f"{action.label}, {about}, by {who.actor}, event {done.seq}."))
    if waits is not None:
        due = ago(waits["not_before"], done.at)
        out.line(t(f"It is carried out {due}. To take it back until then:  {back}"))
    elif status is not None:
        out.line(t(f"The run is {status}."))
    if action.danger and status in {"running", "waiting", "compensating"} and not _any_worker(store):
        out.line(t("No worker is alive: nothing moves until one is started with walkback work.", "unsure"))


def _any_worker(store: Store) -> bool:
    return any(worker["status"] == WorkerStatus.ALIVE for worker in store.workers(limit=1))
