"""What is known about one operation, in the order in which a person needs it. The screens and `walkback show` say this.

Everything is derived from the record as it was read; nothing here asks the store, and nothing guesses. A `Line` is a
label of ours and a text that has been made safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from walkback_console.actions import Action, Who, find, why_not
from walkback_console.deciding import key_holds, next_of, risk_of_retry
from walkback_console.palette import mark, meaning
from walkback_console.plain_words import FOREVER, SECOND, age, ago, clock, left, many
from walkback_console.safe_text import safe
from walkback_console.subjects import Subject

if TYPE_CHECKING:
    from walkback_store.log import Event, Row

VERDICT, ABOUT, CONTRACT, KNOWN, ATTEMPTS, ARGUMENTS, WRITES = (
    "verdict",
    "about",
    "contract",
    "known",
    "attempts",
    "arguments",
    "writes",
)
CHOICES = "choices"
LAST_ATTEMPTS = 3
COMPACT = 130
"""Characters of all arguments together that are shown one after the other instead of below each other."""
EVIDENCE = {
    "happened": "found there",
    "absent": "not there, and by now it would be",
    "absent_so_far": "not there so far",
    "cannot_tell": "cannot tell",
    "partial": "only a part of it is there",
}


@dataclass(frozen=True, slots=True)
class Line:
    part: str
    label: str
    text: Text


def t(text: object, style: str = "") -> Text:
    return Text(safe(str(text)), style=style)


def said(*parts: str | Text | tuple[str, str]) -> Text:
    """One text. A bare `str` is ours; what comes from the store has been through `t`."""
    return Text.assemble(*parts)


def value_text(value: object) -> str:
    """A stored value as one would type it; not yet safe."""
    from walkback_store.values import encode

    return json.dumps(json.loads(encode(value)), ensure_ascii=False)


# --- an operation ------------------------------------------------------------------------------------------------


def headline(subject: Subject, *, ascii_only: bool = False) -> Text:
    """The verdict: what happened to the world, as far as anyone knows."""
    row = subject.operation or {}
    status = str(row.get("status", ""))
    word = status.upper().replace("_", " ")
    text = said(t(f"{mark(status, ascii_only=ascii_only)} {word}: ", meaning(status)), t(_verdict(subject, row)))
    if row.get("duplicate_suspected"):
        text.append(t(" DUPLICATE SUSPECTED: more than one attempt may have happened.", "bad"))
    return text


def _verdict(subject: Subject, row: Row) -> str:
    status, attempts = row["status"], subject.detail.attempts if subject.detail else []
    if status == "unknown":
        last = attempts[-1]["answer"] if attempts else None
        came = {
            "acknowledged": "it was acknowledged, but the world does not show it",
            "rejected": "the last call was rejected, but an earlier one may have happened",
            "ambiguous": "it ended in an error that proves nothing",
        }.get(last or "", "it was called, and no answer came")
        looked = {
            "absent": "verify did not find it, and by now it would",
            "absent_so_far": "verify has not found it so far",
            "cannot_tell": "verify could not tell",
            "partial": "verify found only a part of it",
        }.get(row["evidence"] or "", "")
        return f"it may have happened, or not: {came}{'; ' if looked else ''}{looked}."
    if status == "awaiting_approval":
        return "nothing was called yet; a person has to agree first."
    if status == "pending":
        return "it is being called now, or waits to be called again."
    if status == "succeeded":
        if row["refers_to"]:
            return f"nothing was called here: it was done by {row['refers_to']}."
        return "it happened." if row["evidence"] != "happened" else "it happened, and was found there."
    if status == "compensated":
        return f"it happened, and was undone by step {row['compensated_by']}."
    if status == "denied":
        return f"it was not called: {row['error'] or 'policy said no'}."
    return "it did not happen." if row["effect"] == "write" else "the read came to nothing."


def what_and_stake(row: Row) -> Text:
    text = t(row["description"] or f"{row['tool']}", "strong")
    return said(text, "   stake ", t(row["stake"], "strong")) if row["stake"] else text


def target_of(row: Row) -> str:
    """`tool → target`, as lists show it."""
    return f"{row['tool']} → {row['description']}" if row["description"] else str(row["tool"])


def position_of(run: Row, step: str | None = None) -> str:
    at = step or run["last_step"]
    if at is None:
        return "no step yet"
    if run["plan"] and (planned := len(json.loads(run["plan"]))):
        here = at == run["last_step"]
        return f"step {at}{',' if here else '; the run is at'} {run['position']} of {planned} planned"
    return f"step {at} of {run['steps']} so far"


def contract_of(row: Row, at: int, *, ascii_only: bool = False) -> Text:
    """Honours a key, can verify, can undo: each with a mark and a word."""
    yes, no = ("+", "-") if ascii_only else ("✓", "✗")
    if key_holds(row, at):
        until = "for ever" if row["key_until"] >= FOREVER else left(row["key_until"], at)
        key = t(f"{yes} honours its key ({until})", "good")
    elif row["key"] is not None and row["key_until"] is not None:
        key = t(f"{no} key forgotten there {ago(row['key_until'], at)}", "unsure")
    else:
        key = t(f"{no} no key is honoured", "unsure")
    verify = t(f"{yes} can verify", "good") if row["can_verify"] else t(f"{no} cannot verify", "unsure")
    if row["compensates"]:
        undo = t(f"undoes step {row['compensates']}")
    elif row["compensate"]:
        undo = t(f"{yes} can undo: {row['compensate']}", "good")
    else:
        undo = t(f"{no} cannot undo", "unsure")
    return said(key, "   ", verify, "   ", undo)


def operation_lines(subject: Subject, *, ascii_only: bool = False) -> list[Line]:
    """All of it but the choices, verdict first."""
    row, run = subject.operation, subject.run
    if row is None or run is None or subject.detail is None:
        return []
    lines = [Line(VERDICT, "", headline(subject, ascii_only=ascii_only))]
    lines += [Line(VERDICT, "", text) for text in regret_lines(subject)]
    lines.append(Line(VERDICT, "", what_and_stake(row)))
    owner = f"owner {run['owner']}" if run["owner"] else "nobody's yet"
    since = f" {age(run['why_since'], subject.at)}" if run["why_since"] else ""
    why = run["why"] if run["why"] and run["why"] != row["status"] else run["status"]
    why = "parked" if why == "needs_operator" else why
    state = f"{run['agent']} {run['agent_version']} · {why}{since}"
    place = f" · {position_of(run, row['step'])} · {owner} · "
    lines.append(Line(ABOUT, "run", said(t(run["run_id"], "strong"), t(place), t(state, "dim"))))
    if run["why_detail"] and run["why"] != "unknown" and run["why_step"] in (None, row["step"]):
        lines.append(Line(ABOUT, "asks", t(f"{run['why']}: {run['why_detail']}", "unsure")))
    lines.append(Line(CONTRACT, "contract", contract_of(row, subject.at, ascii_only=ascii_only)))
    for f in subject.freezes:
        if f["scope"] == "everything" or f["name"] in {row["tool"], run["agent"], row["service"]}:
            what = "everything" if f["name"] is None else f"{f['scope']} {f['name']}"
            lines.append(
                Line(CONTRACT, "frozen", t(f"{what}: {f['reason']} ({f['by']}, {ago(f['at'], subject.at)})", "bad"))
            )
    lines += four_answers(subject)
    lines += list(_attempt_lines(subject))
    lines += argument_lines(subject)
    return lines


def four_answers(subject: Subject) -> list[Line]:
    """Attempted, acknowledged, proven, safe to retry: from the record, each with its age."""
    row, detail, at = subject.operation, subject.detail, subject.at
    if row is None or detail is None or row["effect"] != "write":
        return []
    last = detail.attempts[-1] if detail.attempts else None
    if last is None:
        attempted, acknowledged = t("no: nothing was called"), t("no")
    else:
        times = "once" if row["attempts"] == 1 else f"{row['attempts']} times, last"
        attempted = t(f"yes, {times} by {last['worker']}, {ago(last['started_at'], at)}")
        when = f", {ago(last['ended_at'], at)}" if last["ended_at"] is not None else ""
        answers = {
            "acknowledged": "yes",
            "rejected": f"no: it was rejected for good ({last['error_class']})",
            "ambiguous": f"no: {last['error_class']} proves nothing",
        }
        waits = "not yet: the call is under way" if last["status"] == "running" else "no: no answer came"
        acknowledged = t(answers.get(last["answer"] or "", waits) + when)
    return [
        Line(KNOWN, "attempted?", attempted),
        Line(KNOWN, "acknowledged?", acknowledged),
        Line(KNOWN, "proven?", _proven(row, detail.events, at)),
        Line(KNOWN, "retry safe?", _retry_safe(row, at)),
    ]


def _proven(row: Row, events: list[Event], at: int) -> Text:
    seen = next((e for e in reversed(events) if e.kind == "verification"), None)
    word = next((e for e in reversed(events) if e.kind == "operator_action" and "evidence" in e.data), None)
    if word is not None and row["status"] == "succeeded":
        return t(f"yes, on the word of {word.actor}, {ago(word.at, at)}: {word.data['evidence']}", "good")
    if row["evidence"] is None:
        return t("no: the tool has no verify" if not row["can_verify"] else "no: nobody has looked yet", "unsure")
    style = "good" if row["evidence"] == "happened" else "unsure"
    answer = {"happened": "yes", "absent": "no", "absent_so_far": "not yet"}.get(row["evidence"], "no")
    when = f", {ago(row['evidence_at'], at)}" if row["evidence_at"] is not None else ""
    found = seen.data.get("found") if seen is not None else None
    if isinstance(found, Mapping) and found.keys() == {"detail"}:
        found = found["detail"]
    detail = "" if found is None else f": {found if isinstance(found, str) else value_text(found)}"
    return t(f"{answer}: {EVIDENCE.get(row['evidence'], row['evidence'])}{when}{detail}", style)


def _retry_safe(row: Row, at: int) -> Text:
    if row["status"] in {"succeeded", "compensated"}:
        return t("no: it happened")
    if row["status"] in {"failed", "denied", "awaiting_approval"}:
        return t("yes: it did not happen", "good")
    safe_now = row["evidence"] == "absent" or key_holds(row, at)
    return t(f"{'yes' if safe_now else 'NO'}: {risk_of_retry(row, at, short=True)}", "good" if safe_now else "bad")


def regret_lines(subject: Subject) -> Iterator[Text]:
    """What somebody decided that still waits; or that went out a moment ago, when, and by whom."""
    waits = subject.decision
    if waits is not None:
        wait = waits["not_before"] - subject.at
        when = f"goes out in {-(-wait // SECOND)} s" if wait > 0 else "waits for a worker to carry it out"
        yield t(f"{waits['by']} decided to {waits['action']}: it {when}. u takes it back.", "busy")
        return
    done = [d for d in (subject.detail.decisions if subject.detail else []) if d["status"] == "carried_out"]
    if done and done[-1]["ended_at"] is not None:
        last = done[-1]
        undo = " c undoes it." if (subject.operation or {}).get("status") == "succeeded" else ""
        yield t(
            f"{last['by']} decided to {last['action']}: carried out {ago(last['ended_at'], subject.at)} by "
            f"{last['ended_by']}; it is too late to take it back.{undo}",
            "busy",
        )


def _attempt_lines(subject: Subject) -> Iterator[Line]:
    row, detail = subject.operation, subject.detail
    if row is None or detail is None:
        return
    shown = detail.attempts[-LAST_ATTEMPTS:]
    if row["attempts"] > len(shown):
        yield Line(ATTEMPTS, "attempts", t(f"{row['attempts']} in all; the last {len(shown)}:", "dim"))
    for a in shown:
        answer = {None: "no answer yet", "none": "no answer"}.get(a["answer"], a["answer"])
        error = "".join(f": {word}" for word in (a["error_class"], a["error"]) if word)
        yield Line(
            ATTEMPTS,
            f"attempt {a['n']}",
            t(f"{answer} at {clock(a['started_at'])[:8]}{'' if a['status'] == 'ended' else ', ' + a['status']}{error}"),
        )
    for e in detail.events:
        if e.kind == "late_evidence":
            output = f": {value_text(e.data['output'])}" if e.data.get("output") is not None else ""
            yield Line(
                ATTEMPTS,
                "too late",
                t(
                    f"attempt {e.data.get('attempt')}: {e.data.get('answer')}, {ago(e.at, subject.at)}{output}",
                    "unsure",
                ),
            )
        elif e.kind == "operator_action":
            yield Line(
                ATTEMPTS,
                "people",
                t(f"{e.actor}, {ago(e.at, subject.at)}: {e.data.get('action')}, {e.data.get('reason')}"),
            )
    if row["error"] and not (shown and shown[-1]["error"] == row["error"]):
        yield Line(ATTEMPTS, "error", t(f"{row['error_class'] or 'error'}: {row['error']}", "bad"))


# --- arguments ---------------------------------------------------------------------------------------------------


def arguments_of(subject: Subject) -> Any:
    """As recorded with the intent, or with the question for approval; None when the record has been pruned."""
    events = subject.detail.events if subject.detail is not None else []
    for e in reversed(events):
        if e.kind in {"intent", "approval_asked", "policy_check"} and "args" in e.data:
            return e.data["args"]
    return subject.args


def argument_lines(subject: Subject) -> list[Line]:
    """Complete: every argument on lines of its own, long texts in full, line breaks kept as lines."""
    args = arguments_of(subject)
    if args is None:
        return [Line(ARGUMENTS, "arguments", t("none, or no longer kept", "dim"))]
    if not isinstance(args, Mapping):
        args = {"": args}
    if not args:
        return [Line(ARGUMENTS, "arguments", t("none", "dim"))]
    short = said(*_between([said(t(name, "strong"), " = ", t(value_text(v))) for name, v in args.items()], " · "))
    if (
        not subject.origins
        and short.cell_len <= COMPACT
        and not any(isinstance(v, str) and "\n" in v for v in args.values())
    ):
        return [Line(ARGUMENTS, "arguments", short)]
    lines: list[Line] = []
    for name, value in args.items():
        head = said(t(name, "strong"), " = ") if name else Text()
        first, *rest = value_lines(value)
        origin = subject.origins.get(str(name))
        lines.append(Line(ARGUMENTS, "arguments" if not lines else "", said(head, first)))
        lines += [Line(ARGUMENTS, "", said("  ", more)) for more in rest]
        if origin:
            lines.append(Line(ARGUMENTS, "", t(f"  ↑ these words came from {origin}", "unsure")))
    return lines


def _between(texts: Sequence[Text], separator: str) -> Iterator[Text | str]:
    for n, text in enumerate(texts):
        if n:
            yield separator
        yield text


def value_lines(value: object) -> list[Text]:
    """A stored value in full, on as many lines as it needs."""
    if isinstance(value, str) and "\n" in value:
        parts = value.split("\n")
        return [t(f"text of {many(len(parts), 'line')}:", "dim"), *(said(t("│ ", "dim"), t(part)) for part in parts)]
    if isinstance(value, dict | list) and len(value_text(value)) > 60:
        from walkback_store.values import encode

        pretty = json.dumps(json.loads(encode(value)), ensure_ascii=False, indent=2)
        return [t(part) for part in pretty.split("\n")]
    return [t(value_text(value))]


# --- approvals ---------------------------------------------------------------------------------------------------


def approval_lines(subject: Subject, *, ascii_only: bool = False) -> list[Line]:
    row, run, approval = subject.operation, subject.run, subject.approval
    if row is None or run is None or approval is None:
        return []
    at = subject.at
    lines = [Line(VERDICT, "", headline(subject, ascii_only=ascii_only))]
    if approval["status"] != "asked":
        by = f" by {approval['decided_by']}, {ago(approval['decided_at'], at)}" if approval["decided_by"] else ""
        why = f": {approval['reason']}" if approval["reason"] else ""
        lines.append(Line(VERDICT, "", t(f"This approval is {approval['status']}{by}{why}.", "busy")))
    lines += [Line(VERDICT, "", text) for text in regret_lines(subject)]
    lines.append(Line(VERDICT, "", what_and_stake(row)))
    time_left = "it does not expire" if approval["expires_at"] is None else left(approval["expires_at"], at)
    soon = approval["expires_at"] is not None and approval["expires_at"] - at < 900 * SECOND
    lines.append(Line(ABOUT, "time left", t(time_left, "bad" if soon else "")))
    lines.append(
        Line(ABOUT, "run", said(t(run["run_id"], "strong"), t(f" · {position_of(run, row['step'])} · {run['agent']}")))
    )
    lines.append(Line(ABOUT, "calls", said(t(row["tool"], "strong"), t(f" version {row['tool_version']}"))))
    lines.append(Line(CONTRACT, "contract", contract_of(row, at, ascii_only=ascii_only)))
    role = f", by somebody who is {approval['role']}" if approval["role"] else ""
    lines.append(Line(ABOUT, "why asked", t(f"{approval['rule']} (asked {ago(approval['asked_at'], at)}{role})")))
    lines += argument_lines(subject)
    if not subject.origins:
        lines.append(Line(ARGUMENTS, "from", t("none of these words was found in what the run read before", "dim")))
    lines += write_lines(subject)
    lines.append(Line(ABOUT, "digest", t(approval["digest"], "dim")))
    lines.append(
        Line(ABOUT, "if refused", t(f"{row['tool']} is not called; the agent is told why and goes on from there"))
    )
    return lines


def write_lines(subject: Subject) -> list[Line]:
    """What this run has already done to the world."""
    done = [w for w in subject.writes if w["step"] != subject.step]
    if not done:
        return [Line(WRITES, "already did", t("nothing: this would be the run's first write", "dim"))]
    lines: list[Line] = []
    for w in done:
        stake = f", {w['stake']}" if w["stake"] else ""
        status = said(t(mark(w["status"]), meaning(w["status"])), " ", t(w["status"], meaning(w["status"])))
        lines.append(
            Line(
                WRITES,
                "already did" if not lines else "",
                said(t(f"step {w['step']} "), status, t(f" {target_of(w)}{stake}")),
            )
        )
    return lines


# --- choices -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    action: Action
    why_not: str | None
    then: str
    """What the run does next."""


def choices(subject: Subject, who: Who, *, read_only: bool = False) -> list[Choice]:
    """For an unknown, the safest first: looking, then a word about the past, then what may do it a second time."""
    row = subject.operation or {}
    safe_retry = bool(row) and (row["evidence"] == "absent" or key_holds(row, subject.at))
    order = ["verify", "happened", "fail", "retry"] if not safe_retry else ["verify", "happened", "retry", "fail"]
    if row.get("status") != "unknown":
        order = ["compensate"] if row.get("status") == "succeeded" else []
        if (subject.run or {}).get("status") == "needs_operator":
            order = ["resume", *order, "cancel"]
        order = (["dismiss"] if row.get("duplicate_suspected") else []) + order
    then = {
        "verify": "a worker looks; if it is found, the run goes on",
        "happened": f"with your evidence; {next_of(subject)}",
        "retry": f"in 10 s; {_short_risk(row, subject.at)}",
        "fail": "the agent sees it fail" + ("; transaction undone" if row.get("scope") else " and goes on"),
        "compensate": f"a worker calls {row.get('compensate') or 'its compensation'} in 10 s, then asks what next",
        "resume": "in 10 s the run goes on from where it stopped",
        "cancel": "the run ends; what it did stands",
        "handover": "it stays here, for somebody else, with a note",
        "dismiss": "the suspicion ends; nothing is called",
    }
    listed = [*order, *(["compensate"] if row.get("status") == "unknown" else []), "handover"]
    return [Choice(find(name), why_not(find(name), subject, who, read_only=read_only), then[name]) for name in listed]


def _short_risk(row: Row, at: int) -> str:
    if not row:
        return ""
    if row["evidence"] == "absent":
        return "safe: it is not there"
    return "safe: its key still holds" if key_holds(row, at) else "IF IT DID HAPPEN, IT HAPPENS TWICE"
