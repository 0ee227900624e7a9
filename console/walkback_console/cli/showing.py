"""`walkback show`: a run, with each of its calls that is not settled; or one step of it, in full."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from walkback_console import subjects, verdicts
from walkback_console.actions import Action, command_for
from walkback_console.cli import documents
from walkback_console.cli.deciding import by_command, who_of
from walkback_console.cli.finding import find_place, place, shell
from walkback_console.cli.printing import Column, Printer, as_json, joined, t, word
from walkback_console.cli.reading import facts_of, lines, position, show_freezes
from walkback_console.cli.session import Session, now
from walkback_console.plain_words import FOREVER, ago, clock, duration, left, many, utc
from walkback_console.subjects import Subject, call_of
from walkback_store.errors import NotFound
from walkback_store.paging import MAX_PAGE, PAGE
from walkback_store.words import FINISHED

if TYPE_CHECKING:
    from rich.text import Text

    from walkback_store import Store
    from walkback_store.log import Event, Row

VALUE_AT_MOST = 200

EVIDENCE = {
    "happened": "found there",
    "absent": "not there",
    "absent_so_far": "not there so far",
    "cannot_tell": "cannot tell",
    "partial": "partly there",
}
UNSETTLED = frozenset({"awaiting_approval", "pending", "unknown"})
QUESTIONS = (
    ("attempted?", "attempted"),
    ("acknowledged?", "acknowledged"),
    ("proven?", "proven"),
    ("retry safe?", "retry_safe"),
    ("verdict", "verdict"),
)


# --- show --------------------------------------------------------------------------------------------------------


def show(session: Session, given: str, step: str | None, every: bool) -> None:
    with session.open() as store:
        run_id, step = find_place(store, given, step)
        if step is not None:
            return show_step(session, store, run_id, step)
        at = now()
        run = store.run(run_id)
        rows = list(_every_step(store, run["run_id"])) if every else _newest_steps(store, run)
        calls = [call_of(row) for row in rows if row["operation_tool"] is not None]
        unsettled = [store.operation(run["run_id"], call["step"]) for call in calls if _needs_a_look(call)]
        freezes = [f for f in store.freezes() if _applies(f, run, calls)]
    if session.as_json:
        as_json(
            documents.run(run)
            | {
                "steps": [documents.step(row) for row in rows],
                "operations": [documents.operation(call) for call in calls],
                "unsettled": [
                    {
                        "step": found.operation["step"],
                        "attempts": [documents.attempt(a) for a in found.attempts],
                        "approvals": [documents.approval(a) for a in found.approvals],
                        "recovery": documents.value(_recovery(found.events)),
                        "late": [documents.late(e) for e in _late(found.events)],
                    }
                    for found in unsettled
                ],
            }
        )
        return
    out = Printer()
    out.line(t(run["run_id"], "bold"), "  ", word(run["status"]), t(f": {run['why']}" if run["why"] else ""))
    show_freezes(out, freezes, at)
    out.facts(_about(run, at))
    if rows:
        out.blank()
        if len(rows) < run["steps"]:
            out.line(t(f"{many(run['steps'] - len(rows), 'earlier step')}; --all shows them.", "bright_black"))
        columns = (
            Column("step", 4),
            Column("what", 30),
            Column("status", 17),
            Column("took", 6),
            Column("tries", 5, True),
        )
        out.table(columns, [_step_row(row) for row in rows])
    for found in unsettled:
        out.blank()
        _show_operation(out, found, at)
    out.blank()
    out.line(t(f"Every event:  walkback events {shell(run['run_id'])}", "bright_black"))


def _newest_steps(store: Store, run: Row) -> list[Row]:
    return store.timeline(run["run_id"], before=run["head_seq"] + 1, limit=PAGE)


def _every_step(store: Store, run_id: str) -> Iterator[Row]:
    after = 0
    while rows := store.timeline(run_id, after=after, limit=MAX_PAGE):
        yield from rows
        after = rows[-1]["first_seq"]


def _needs_a_look(call: Row) -> bool:
    return call["status"] in UNSETTLED or bool(call["duplicate_suspected"])


def _applies(freeze: Row, run: Row, calls: Sequence[Row]) -> bool:
    if freeze["scope"] == "agent":
        return bool(freeze["name"] == run["agent"])
    waits = run["waits_for"] in {f"freeze:{freeze['name']}", f"breaker:{freeze['name']}"}
    if freeze["scope"] == "service":
        return waits or any(call["service"] == freeze["name"] for call in calls)
    return freeze["scope"] == "everything" or waits or any(call["tool"] == freeze["name"] for call in calls)


def _recovery(events: Sequence[Event]) -> Any:
    """The four answers given last, if they were asked for."""
    answers = [e.data for e in events if e.kind == "recovery" and "attempted" in e.data]
    return dict(answers[-1]) if answers else None


def _late(events: Sequence[Event]) -> list[Event]:
    return [e for e in events if e.kind == "late_evidence"]


def _verified(events: Sequence[Event]) -> Event | None:
    """What verify said last."""
    return next((e for e in reversed(events) if e.kind == "verification"), None)


def _about(run: Row, at: int) -> list[tuple[str, Text]]:
    facts = [("agent", joined(t(run["agent"]), " ", t(run["agent_version"]))), ("step", t(position(run)))]
    if run["why_detail"]:
        facts.append(("why", t(run["why_detail"])))
    if run["waits_for"]:
        due = f", until {utc(run['wake_at'])}" if run["wake_at"] is not None else ""
        facts.append(("waits for", t(f"{run['waits_for']}{due}")))
    if run["error_class"]:
        facts.append(("error", t(run["error_class"], "red")))
    for column in ("cancel_requested", "pause_requested"):
        if run[column]:
            facts.append((column.removesuffix("_requested"), t("requested; takes effect at the next boundary")))
    if run["worker"]:
        facts.append(("held by", t(run["worker"])))
    facts.append(("owner", t(run["owner"] or "nobody")))
    if run["tags"]:
        facts.append(("tags", t(", ".join(json.loads(run["tags"])))))
    if run["parent"]:
        facts.append(("fork of", t(f"{run['parent']}, step {run['fork_step']}")))
    facts.append(("started", t(f"{utc(run['created_at'])}, {ago(run['created_at'], at)}")))
    if run["finished_at"] is not None and run["status"] in FINISHED:
        took = duration(run["finished_at"] - run["created_at"])
        facts.append(("finished", t(f"{utc(run['finished_at'])}, after {took}")))
    return facts


def _step_row(row: Row) -> list[Text]:
    took = "" if row["ended_at"] is None else duration(row["ended_at"] - row["started_at"])
    if row["operation_tool"] is None:
        return [t(row["step"]), joined(t(row["kind"]), " ", t(row["name"])), word(row["status"]), t(took), t("")]
    effect = row["operation_effect"]
    kind = t("WRITE" if effect == "write" else effect, "bold" if effect == "write" else "")
    what = [joined(kind, " ", t(row["name"]))]
    if row["operation_compensates"]:
        what[0].append(t(f", undoes step {row['operation_compensates']}"))
    if row["operation_description"]:
        what.append(t(row["operation_description"], "bright_black"))
    if row["operation_refers_to"]:
        what.append(t(f"not called: done by {place(row['operation_refers_to'])}", "bright_black"))
    status = [word(row["operation_status"])]
    if row["operation_compensated_by"]:
        undone = row["operation_status"] == "compensated"
        said = f"{'by' if undone else 'to be undone by'} step {row['operation_compensated_by']}"
        status.append(t(said, "bright_black"))
    elif row["operation_evidence"]:
        status.append(t(EVIDENCE.get(row["operation_evidence"], row["operation_evidence"]), "bright_black"))
    if row["operation_duplicate_suspected"]:
        status.append(t("duplicate suspected", "bold yellow"))
    return [t(row["step"]), lines(what), lines(status), t(took), t(row["operation_attempts"] or "")]


def _show_operation(out: Printer, found: Any, at: int) -> None:
    call = found.operation
    out.line(t(f"step {call['step']}: {call['tool']}", "bold"), "  ", word(call["status"]))
    facts = []
    if call["description"]:
        facts.append(("what", t(call["description"])))
    if call["stake"]:
        facts.append(("stake", t(call["stake"], "bold")))
    if call["compensates"]:
        facts.append(("undoes", t(f"step {call['compensates']}")))
    if call["service"]:
        facts.append(("service", t(call["service"])))
    if call["identity"]:
        facts.append(("identity", t(call["identity"])))
    facts.append(("contract", t(_contract(call, at))))
    for approval in found.approvals:
        facts.append((f"approval {approval['n']}", t(_approval(approval, at))))
    for attempt in found.attempts:
        facts.append((f"attempt {attempt['n']}", t(_attempt(attempt))))
    for late in _late(found.events):
        facts.append(("too late", t(_too_late(late), "yellow")))
    if (verified := _verified(found.events)) is not None:
        facts.append(("verify", t(_verification(verified))))
    answers = _recovery(found.events) or {}
    for question, key in QUESTIONS:
        if key in answers:
            facts.append((question, t(answers[key])))
    if answers and answers["verdict"] != call["status"] and call["ended_at"] is not None:
        facts.append(("in the end", word(call["status"])))
    if call["duplicate_suspected"]:
        failed = call["status"] in {"failed", "denied"}
        why = f"it counts as {call['status']}, and it happened" if failed else "more than one attempt may have happened"
        facts.append(("duplicate?", t(f"suspected: {why}", "bold yellow")))
    if call["error_class"] or call["error"]:
        facts.append(("error", t(": ".join(filter(None, (call["error_class"], call["error"]))), "red")))
    out.facts(facts)


def _contract(call: Row, at: int) -> str:
    if call["key"] is None:
        key = "no key"
    elif call["key_until"] is None:
        key = f"key {call['key']}, which the other side need not remember"
    elif call["key_until"] >= FOREVER:
        key = f"key {call['key']}, remembered there for ever"
    else:
        key = f"key {call['key']}, remembered there until {utc(call['key_until'])} ({left(call['key_until'], at)})"
    undo = f"; undone by {call['compensate']}" if call["compensate"] else "; cannot be undone"
    verify = "can verify" if call["can_verify"] else "cannot verify"
    return f"{key}; {verify}{'' if call['compensates'] else undo}"


def _approval(approval: Row, at: int) -> str:
    said = f"asked {ago(approval['asked_at'], at)} under the rule: {approval['rule']}"
    if approval["status"] == "asked" and approval["expires_at"] is not None:
        said += f", {left(approval['expires_at'], at)}"
    if approval["decided_by"]:
        said += f", decided by {approval['decided_by']}"
    return said if approval["status"] == "asked" else f"{approval['status']}; {said}"


def _attempt(attempt: Row) -> str:
    answer = {None: "no answer yet", "none": "no answer"}.get(attempt["answer"], attempt["answer"])
    return f"{attempt['status']}, {answer}; by {attempt['worker']} at {clock(attempt['started_at'])}"


def _too_late(event: Event) -> str:
    attempt, answer = event.data.get("attempt", "?"), event.data.get("answer", "answered")
    said = f"attempt {attempt}: {answer} at {clock(event.at)}, after it had been given up"
    output = event.data.get("output")
    return said if output is None else f"{said}: {_short(output)}"


def _verification(event: Event) -> str:
    evidence = str(event.data.get("evidence"))
    found = event.data.get("found")
    if isinstance(found, dict) and found.keys() == {"detail"}:
        found = found["detail"]
    said = f"{EVIDENCE.get(evidence, evidence)} at {clock(event.at)}"
    return said if found is None else f"{said}: {_short(found)}"


def _short(stored: object) -> str:
    said = stored if isinstance(stored, str) else json.dumps(documents.value(stored), ensure_ascii=False)
    return said if len(said) <= VALUE_AT_MOST else f"{said[:VALUE_AT_MOST]} ..."


# --- one step ----------------------------------------------------------------------------------------------------


def show_step(session: Session, store: Store, run_id: str, step: str) -> None:
    try:
        subject = subjects.load_operation(store, run_id, step, writes=True)
    except NotFound:
        _show_other_step(session, store, run_id, step)  # it is a step, only not of a call
        return
    asks = subject.approval is not None and (subject.operation or {})["status"] == "awaiting_approval"
    shown = verdicts.approval_lines(subject) if asks else verdicts.operation_lines(subject)
    choices = _choices(session, store, subject, asks)
    if session.as_json:
        as_json(_call_document(subject, choices))
        return
    out = Printer()
    out.facts([(line.label, by_command(line.text, subject)) for line in shown], indent=0)
    if choices:
        out.blank()
        out.line(t("What you can do", "strong"))
        out.facts([(f"{n}", _choice(choice)) for n, choice in enumerate(choices, 1)])


Offered = dict[str, str | None]


def _choices(session: Session, store: Store, subject: Subject, asks: bool) -> list[Offered]:
    who = who_of(session, store)
    if asks:
        from walkback_console.actions import find, why_not

        then = {"approve": "a worker calls it in 10 s", "refuse": "it is not called; the agent is told why"}
        return [
            _offered(find(name), why_not(find(name), subject, who), then[name], subject)
            for name in ("approve", "refuse")
        ]
    return [_offered(c.action, c.why_not, c.then, subject) for c in verdicts.choices(subject, who)]


def _offered(action: Action, why_not: str | None, then: str, subject: Subject) -> Offered:
    needed = {field.name: "..." for field in action.fields if field.required and field.name != "scope"}
    return {
        "action": action.id,
        "label": action.label,
        "then": then,
        "why_not": why_not,
        "command": command_for(action, subject, needed),
    }


def _choice(choice: Offered) -> Text:
    if choice["why_not"] is not None:
        return t(f"{choice['label']}: not now, {choice['why_not']}", "dim")
    said = [joined(t(choice["label"], "strong"), t(f": {choice['then']}"))]
    return lines([*said, t(choice["command"], "dim")]) if choice["command"] else said[0]


def _call_document(subject: Subject, choices: Sequence[Offered]) -> documents.Document:
    detail, run, row = subject.detail, subject.run or {}, subject.operation or {}
    events = [] if detail is None else detail.events
    waits = None if subject.decision is None else documents.decision({"run_id": run["run_id"], **subject.decision})
    answers = {line.label.rstrip("?").replace(" ", "_"): line.text.plain for line in verdicts.four_answers(subject)}
    return {
        "run": documents.run(run),
        "operation": documents.operation(row),
        "verdict": verdicts.headline(subject).plain,
        "answers": answers,
        "arguments": documents.value(verdicts.arguments_of(subject)),
        "origins": dict(subject.origins),
        "attempts": [documents.attempt(a) for a in (detail.attempts if detail else ())],
        "approvals": [documents.approval(a) for a in (detail.approvals if detail else ())],
        "recovery": documents.value(_recovery(events)),
        "late": [documents.late(e) for e in _late(events)],
        "waiting": waits,
        "choices": list(choices),
    }


def _show_other_step(session: Session, store: Store, run_id: str, step: str) -> None:
    row, run = store.step(run_id, step)
    events = [e for e in store.events(run_id, after=row["first_seq"] - 1, limit=PAGE) if e.step == step]
    if session.as_json:
        document = {"step": documents.step(row), "events": [documents.event(e) for e in events]}
        as_json({"run": documents.run(run), **document})
        return
    out = Printer()
    out.line(t(f"{run_id} #{step}", "strong"), "  ", t(f"{row['kind']} {row['name']}"), "  ", word(row["status"]))
    for event in events:
        out.facts([(event.kind, t(facts_of(event) or "-"))])
    out.line(t(f"Its state:  walkback state {shell(run_id)} {shell(step)}", "dim"))
