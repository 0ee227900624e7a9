"""What each action of the table comes to: why it cannot be done now, what exactly will happen, and the transitions.

Pure functions of a `Subject` and of what the person typed. The words here are read at 3 in the morning: they say what
the run does next, and what could go wrong.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from walkback_console.plain_words import FOREVER, SECOND, duration, left, many
from walkback_console.subjects import BadScope, Subject, Undo, undo_of

if TYPE_CHECKING:
    from walkback_store.log import Row
    from walkback_store.machine.base import Transition

REGRET = 10 * SECOND
Answers = Mapping[str, str]


class BadAnswer(ValueError):
    """What was typed cannot be used. Nothing was done."""


# --- an operation whose outcome is unknown -----------------------------------------------------------------------


def row_of(subject: Subject) -> Row:
    return subject.operation or {}


def not_unknown(subject: Subject) -> str | None:
    if subject.operation is None or subject.run is None:
        return "no operation is selected"
    if subject.operation["status"] != "unknown":
        return f"its outcome is {subject.operation['status']}, so there is nothing to resolve"
    if subject.decision is not None:
        return f"a decision to {subject.decision['action']} waits already; u takes it back"
    if subject.run["status"] != "needs_operator":
        return f"the run is {subject.run['status']} just now; wait until it asks again"
    return None


def cannot_verify(subject: Subject) -> str | None:
    if (why := not_unknown(subject)) is not None:
        return why
    if not row_of(subject)["can_verify"]:
        return f"{row_of(subject)['tool']} has no verify: only a person can find out what happened"
    return None


def next_of(subject: Subject) -> str:
    """What the run does once this operation is settled."""
    run = subject.run or {}
    others = (run.get("unknown_operations") or 0) - 1
    if others > 0:
        return f"the run waits for {many(others, 'other unknown')} of it"
    return "the run goes on undoing" if run.get("resume_to") == "compensating" else "the run goes on"


def key_holds(row: Row, at: int) -> bool:
    return row["key"] is not None and row["key_until"] is not None and row["key_until"] > at


def risk_of_retry(row: Row, at: int, *, short: bool = False) -> str:
    if row.get("evidence") == "absent":
        return "nothing is there" if short else "verify found nothing, and by now it would: a retry is safe"
    if short:
        return (
            "its key still holds there" if key_holds(row, at) else "no key is honoured, it could happen a second time"
        )
    if key_holds(row, at):
        until = "for ever" if row["key_until"] >= FOREVER else f"({left(row['key_until'], at)})"
        return f"the same key is sent, which the other side remembers {until}: if it did happen, nothing happens twice"
    return "there is no key that the other side remembers: IF IT DID HAPPEN, THIS DOES IT A SECOND TIME"


def verify_effects(subject: Subject, _: Answers) -> list[str]:
    row = row_of(subject)
    return [
        f"A worker asks the world about {row['tool']} again, and changes nothing there.",
        f"Found: it is recorded as succeeded, and {next_of(subject)}. Anything else: it comes back here.",
    ]


def happened_effects(subject: Subject, answers: Answers) -> list[str]:
    row = row_of(subject)
    result = answers.get("result") or "nothing"
    return [
        f"{row['tool']} at step {row['step']} is recorded as succeeded, on your word and your evidence.",
        f"The agent gets this as its result: {result}. Nothing is called; {next_of(subject)}.",
    ]


def retry_effects(subject: Subject, _: Answers) -> list[str]:
    row = row_of(subject)
    return [
        f"In {duration(REGRET)} a worker calls {row['tool']} again with the same arguments. Until then, "
        "u takes it back.",
        f"Is that safe? {risk_of_retry(row, subject.at)}.",
    ]


def fail_effects(subject: Subject, _: Answers) -> list[str]:
    row = row_of(subject)
    if row.get("compensates"):
        return [f"{row['tool']} is recorded as failed, and the run asks what to do about the undoing of it."]
    undo = " Inside a transaction, what was done before it is undone." if row.get("scope") else ""
    return [
        f"{row['tool']} at step {row['step']} is recorded as failed. Nothing is called.",
        f"The agent sees a failure and goes on from there.{undo}",
    ]


def result(text: str) -> object:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text  # words are a result, too


def on_call(subject: Subject, actor: str, **more: Any) -> dict[str, Any]:
    row = row_of(subject)
    return {"actor": actor, "run_id": subject.run_id, "step": row["step"], "seen": row["touched"], **more}


def verify(subject: Subject, _: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import RequestVerify

    return [RequestVerify(**on_call(subject, actor))]


def happened(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import RecordHappened

    said = {"reason": answers["reason"], "evidence": answers["evidence"]}
    return [RecordHappened(**on_call(subject, actor, **said, result=result(answers["result"])))]


def retry(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import DecideRetry

    return [DecideRetry(**on_call(subject, actor, reason=answers["reason"]))]


def fail(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import RecordAbsent

    return [RecordAbsent(**on_call(subject, actor, reason=answers["reason"]))]


def not_suspected(subject: Subject) -> str | None:
    return None if row_of(subject).get("duplicate_suspected") else "no duplicate of it is suspected"


def dismiss(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import DismissDuplicate

    return [DismissDuplicate(**on_call(subject, actor, reason=answers["reason"]))]


# --- approvals ---------------------------------------------------------------------------------------------------


def not_asked(subject: Subject) -> str | None:
    approval = subject.approval
    if approval is None:
        return "no approval was asked for here"
    if approval["status"] != "asked":
        by = f" by {approval['decided_by']}" if approval["decided_by"] else ""
        return f"it is {approval['status']}{by} already"
    if approval["expires_at"] is not None and approval["expires_at"] <= subject.at:
        return "it has expired; the agent is told, and may ask again"
    return None


def waiting_time(subject: Subject) -> int:
    """Ten seconds, or what is left before it expires."""
    approval = subject.approval or {}
    if approval.get("expires_at") is None:
        return REGRET
    return int(max(0, min(REGRET, approval["expires_at"] - subject.at - 5 * SECOND)))


def approve_effects(subject: Subject, _: Answers) -> list[str]:
    row = row_of(subject)
    return [
        f"In {duration(waiting_time(subject))} a worker calls {row['tool']} with exactly these arguments "
        f"(digest {(subject.approval or {}).get('digest', '')[:12]}); until then, u takes it back.",
    ]


def refuse_effects(subject: Subject, _: Answers) -> list[str]:
    return [f"{row_of(subject)['tool']} is not called. The agent is told so, with your reason, and goes on from there."]


def on_approval(subject: Subject, actor: str, **more: Any) -> dict[str, Any]:
    approval = subject.approval or {}
    place = {"run_id": subject.run_id, "step": row_of(subject)["step"], "n": approval["n"]}
    return {"actor": actor, **place, "seen": approval["touched"], **more}


def approve(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import Approve

    digest = (subject.approval or {})["digest"]
    regret = waiting_time(subject)
    return [Approve(**on_approval(subject, actor, digest=digest, reason=answers["reason"], regret=regret))]


def refuse(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import Refuse

    return [Refuse(**on_approval(subject, actor, reason=answers["reason"]))]


# --- runs --------------------------------------------------------------------------------------------------------


def on_run(subject: Subject, actor: str, **more: Any) -> dict[str, Any]:
    run = subject.run or {}
    return {"actor": actor, "run_id": subject.run_id, "seen": run["status_seq"], **more}


def not_in(statuses: Sequence[str], what: str) -> Callable[[Subject], str | None]:
    def disabled(subject: Subject) -> str | None:
        if subject.run is None:
            return "no run is selected"
        if subject.run["status"] in statuses:
            return None
        return f"the run is {subject.run['status']}; only a run that is {', '.join(statuses)} can be {what}"

    return disabled


OPEN = ("running", "waiting", "paused", "needs_operator", "compensating")
UNDOABLE = ("needs_operator", "paused", "succeeded", "failed", "cancelled", "compensated")


def cannot_resume(subject: Subject) -> str | None:
    if (why := not_in(("paused", "needs_operator", "failed"), "resumed")(subject)) is not None:
        return why
    run = subject.run or {}
    if run["unknown_operations"] and run["status"] != "paused":
        return f"it has {many(run['unknown_operations'], 'unknown operation')}; resolve each first"
    return None


def cannot_undo(subject: Subject) -> str | None:
    run, row = subject.run, subject.operation
    if row is not None and (row["effect"] == "read" or row["compensates"] is not None):
        what = "a read changes nothing" if row["effect"] == "read" else "it is an undo itself"
        return f"{what}; t opens the whole run, of which c undoes more"
    if run is not None and (run["unknown_operations"] or run["pending_operations"] or run["awaiting_operations"]):
        if row is not None and row["status"] == "unknown":
            return "what may still happen cannot be undone: say first whether it happened, then undo it"
        return "an operation of the run is not settled yet; what may still happen cannot be undone"
    if (why := not_in(UNDOABLE, "undone")(subject)) is not None:
        return why
    if subject.decision is not None:
        return f"a decision to {subject.decision['action']} waits already; u takes it back"
    return None


def scope_default(subject: Subject) -> str:
    row = subject.operation
    return "run" if row is None else f"step {row['step']}"


def undo(subject: Subject, answers: Answers) -> Undo:
    try:
        found = undo_of(subject, answers.get("scope") or scope_default(subject))
    except BadScope as error:
        raise BadAnswer(str(error)) from error
    if not found.undone:
        stands = ", ".join(f"{row['tool']} at step {row['step']}" for row in found.standing)
        said = f"{stands} has no compensation" if stands else "nothing in that scope has happened and still stands"
        raise BadAnswer(f"there is nothing to undo: {said}. Nothing was done.")
    return found


def undo_effects(subject: Subject, answers: Answers) -> list[str]:
    try:
        found = undo(subject, answers)
    except BadAnswer as error:
        return [str(error)]
    rows = [
        f"step {row['step']}: {row['compensate']} undoes {row['description'] or row['tool']}"
        + (f", {row['stake']}" if row["stake"] else "")
        for row in found.undone
    ]
    stands = [f"step {row['step']}: {row['tool']} has no compensation, and STANDS" for row in found.standing]
    what = many(len(rows), "operation")
    head = f"In {duration(REGRET)} a worker undoes {what}, in this order; until then, u takes it back."
    return [head, *rows, *stands]


def compensate(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import DecideCompensate

    found = undo(subject, answers)
    steps = [row["step"] for row in found.undone]
    return [DecideCompensate(**on_run(subject, actor, reason=answers["reason"], scope=found.scope, steps=steps))]


def undo_flags(typed: str) -> list[str]:
    what, _, rest = typed.partition(" ")
    return [] if what == "run" else [f"--{what}", rest.removeprefix("step").strip()]


def resume_effects(subject: Subject, _: Answers) -> list[str]:
    run = subject.run or {}
    if run["status"] == "paused":
        return [
            "The run goes on from where it was paused." if run["why"] is None else "The run asks again what it asked."
        ]
    doing = "tries its failed step again" if run["status"] == "failed" else "goes on from where it stopped"
    return [f"In {duration(REGRET)} a worker takes the run and {doing}; until then, u takes it back."]


def resume(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import ResumeRun

    return [ResumeRun(**on_run(subject, actor, reason=answers["reason"] or "resumed"))]


def cancel_effects(subject: Subject, _: Answers) -> list[str]:
    run = subject.run or {}
    when = "now" if run.get("worker") is None else "at the next boundary, so that no operation is cut in half"
    return [f"The run ends as cancelled, {when}. What it did stands; its open approvals are withdrawn."]


def pause_effects(subject: Subject, _: Answers) -> list[str]:
    return ["The run stops at the next boundary and stays there until it is resumed. Nothing is cut in half."]


def cancel(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import RequestCancel

    return [RequestCancel(**on_run(subject, actor, reason=answers["reason"]))]


def pause(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import RequestPause

    return [RequestPause(**on_run(subject, actor, reason=answers["reason"]))]


def no_run(subject: Subject) -> str | None:
    return "no run is selected" if subject.run is None else None


def no_error(subject: Subject) -> str | None:
    return None if (subject.run or {}).get("fingerprint") else "it has no error to compare with others"


def note(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import AddNote

    return [AddNote(actor=actor, run_id=subject.run_id, step=subject.step, reason=answers["reason"])]


def own(subject: Subject, _: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import AddNote

    name = actor.removeprefix("operator:")
    return [AddNote(actor=actor, run_id=subject.run_id, step=subject.step, reason="takes it", owner=name)]


def hand_over(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import AddNote

    to = answers["owner"]
    return [AddNote(actor=actor, run_id=subject.run_id, step=subject.step, reason=answers["reason"], owner=to)]


# --- what waits, and what is frozen ------------------------------------------------------------------------------


def nothing_waits(subject: Subject) -> str | None:
    return "nothing that was decided about it waits any more" if subject.decision is None else None


def take_back_effects(subject: Subject, _: Answers) -> list[str]:
    decision = subject.decision or {}
    return [f"The decision to {decision.get('action')} is taken back. The run stands where it stood before."]


def take_back(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import TakeBack

    decision = (subject.decision or {})["seq"]
    reason = answers.get("reason") or "taken back"
    return [TakeBack(actor=actor, run_id=subject.run_id, decision=decision, reason=reason)]


def freeze_default(subject: Subject) -> str:
    if subject.tool is not None:
        return f"tool {subject.tool}"
    return "" if subject.agent is None else f"agent {subject.agent}"


def frozen_what(typed: str) -> tuple[str, str | None]:
    """`tool NAME`, `agent NAME`, `service NAME` or `everything`, taken apart."""
    scope, _, name = typed.strip().partition(" ")
    if scope == "everything" and not name.strip():
        return scope, None
    if scope in {"tool", "agent", "service"} and name.strip():
        return scope, name.strip()
    raise BadAnswer(f"{typed!r} cannot be frozen: give `tool NAME`, `agent NAME`, `service NAME` or `everything`.")


def freeze_effects(subject: Subject, answers: Answers) -> list[str]:
    scope, name = frozen_what(answers.get("what") or freeze_default(subject) or "everything")
    what = {"tool": f"No call of {name}", "agent": f"No call by runs of {name}", "service": f"No call to {name}"}
    return [
        f"{what.get(scope, 'No call of any tool')} is made from now on, until the freeze is lifted. Runs that come to "
        "one wait; calls under way end as they would."
    ]


def freeze(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.store_wide import Freeze
    from walkback_store.words import FreezeScope

    scope, name = frozen_what(answers["what"])
    return [Freeze(actor=actor, scope=FreezeScope(scope), name=name, reason=answers["reason"])]


def freeze_of(subject: Subject, typed: str = "") -> Row | None:
    """The freeze meant: the one typed, the one selected, or the one that holds up what is selected."""
    if typed:
        scope, name = frozen_what(typed)
        return next((f for f in subject.freezes if (f["scope"], f["name"]) == (scope, name)), None)
    if subject.freeze is not None:
        return subject.freeze
    service = None if subject.operation is None else subject.operation["service"]
    for f in subject.freezes:
        names = {"tool": subject.tool, "agent": subject.agent, "service": service}
        if f["scope"] == "everything" or f["name"] == names[f["scope"]]:
            return f
    return None


def frozen_name(f: Row) -> str:
    return "everything" if f["name"] is None else f"{f['scope']} {f['name']}"


def nothing_frozen(subject: Subject) -> str | None:
    return "nothing that concerns it is frozen" if freeze_of(subject) is None else None


def unfreeze_default(subject: Subject) -> str:
    found = freeze_of(subject)
    return "" if found is None else frozen_name(found)


def unfreeze_effects(subject: Subject, answers: Answers) -> list[str]:
    found = freeze_of(subject, answers.get("what", ""))
    name = answers.get("what") if found is None else frozen_name(found)
    return [f"Calls of {name} are made again at once. Runs that waited for it go on by themselves."]


def unfreeze(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.store_wide import Unfreeze

    found = freeze_of(subject, answers["what"])
    if found is None:
        raise BadAnswer(f"{answers['what']} is not frozen. Nothing was done.")
    return [Unfreeze(actor=actor, freeze_no=found["freeze_no"], reason=answers["reason"])]


# --- commands ----------------------------------------------------------------------------------------------------


def says(*words: str, reason: bool = True, flags: Mapping[str, str] | None = None) -> Callable[[Subject, Answers], str]:
    """A command about a place; `flags` names the answers that are options of it."""

    def command(subject: Subject, answers: Answers) -> str:
        return line(
            *words, subject.place, *given(answers, {**(flags or {}), **({"reason": "reason"} if reason else {})})
        )

    return command


def about_run(*words: str) -> Callable[[Subject, Answers], str]:
    return lambda subject, answers: line(*words, subject.run_id, *given(answers, {"reason": "reason"}))


def given(answers: Answers, flags: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for name, flag in flags.items():
        if answers.get(name):
            found += [f"--{flag}", answers[name]]
    return found


def line(*words: str) -> str:
    return shlex.join(("walkback", *words))


def undo_command(subject: Subject, answers: Answers) -> str:
    typed = answers.get("scope") or scope_default(subject)
    return line("compensate", subject.run_id, *undo_flags(typed), *given(answers, {"reason": "reason"}))


def freeze_command(word: str, default: Callable[[Subject], str]) -> Callable[[Subject, Answers], str]:
    def command(subject: Subject, answers: Answers) -> str:
        return line(
            word, *(answers.get("what") or default(subject)).split(" ", 1), *given(answers, {"reason": "reason"})
        )

    return command
