"""Commands that look: inbox, runs, show, events. None of them changes anything, or creates a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from walkback_console.cli import documents
from walkback_console.cli.finding import find_run, known_run, place, shell
from walkback_console.cli.printing import Column, Printer, as_json, joined, t, word
from walkback_console.cli.session import Session, now
from walkback_console.plain_words import FOREVER, age, ago, clock, duration, left, many, moment, utc
from walkback_store.errors import PreconditionFailed
from walkback_store.inbox import APPROVAL
from walkback_store.machine.base import STORE
from walkback_store.paging import MAX_PAGE, PAGE
from walkback_store.queries import RunFilter
from walkback_store.words import FINISHED

if TYPE_CHECKING:
    from rich.text import Text

    from walkback_store import Store
    from walkback_store.log import Event, Row
    from walkback_store.paging import Count

FACTS_AT_MOST = 600
"""Characters of an event's facts that are shown; `--json` has the rest."""

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


# --- inbox -------------------------------------------------------------------------------------------------------


def inbox(session: Session, limit: int) -> None:
    with session.open() as store:
        at = now()
        rows = store.inbox(at, limit=limit)
        counts = store.inbox_counts(at)
        freezes = store.freezes()
    if session.as_json:
        as_json(
            {
                "items": [documents.inbox_item(r) for r in rows],
                "counts": {kind: count.n for kind, count in counts.items()},
                "freezes": [documents.freeze(f) for f in freezes],
            }
        )
        return
    out = Printer()
    out.line(t(_total(list(counts.values())), "bold"))
    show_freezes(out, freezes, at)
    if not rows:
        return
    out.blank()
    columns = (Column("why", 19), Column("since", 11), Column("n", 5, right=True), Column("what", 39))
    out.table(columns, [_inbox_row(row, at) for row in rows])
    if len(rows) == limit:
        out.line(t(f"Only the first {limit} rows; --limit shows more.", "bright_black"))
    out.blank()
    out.line("Look closer:  ", t(f"walkback show {shell(rows[0]['run_id'])}"))


def _total(counts: Sequence[Count]) -> str:
    total, more = sum(count.n for count in counts), any(count.more for count in counts)
    if not total:
        return "Nothing needs a person."
    return "1 thing needs a person." if (total, more) == (1, False) else f"{total:,}{'+' * more} things need a person."


def _inbox_row(row: Row, at: int) -> list[Text]:
    """What and how much, by which tool and why there, and on a line of its own the run, to be copied."""
    head = t(row["description"] or row["tool"] or row["detail"] or row["agent"])
    stake = row["stake"] if row["n"] == 1 else f"the oldest {row['stake']}"
    what = [joined(head, ", ", t(stake, "bold")) if row["stake"] else head]
    more = [row["tool"]] if row["tool"] and row["description"] else []
    if row["kind"] == APPROVAL:
        more.append(f"rule: {row['why']}")
    elif row["why"] != row["kind"]:
        more.append(row["why"])
    more += [row["error_class"]] if row["error_class"] else []
    more += [f"owner: {row['owner']}"] if row["owner"] else []
    if more:
        what.append(t(", ".join(more), "bright_black"))
    what.append(t(row["run_id"]) if row["step"] is None else joined(t(row["run_id"]), " #", t(row["step"])))
    if row["n"] > 1:
        what.append(t(f"and {many(row['n'] - 1, 'other')}"))
    when = left(row["deadline"], at) if (row["deadline"] or FOREVER) < FOREVER else age(row["since"], at)
    return [t(row["kind"], "bold yellow"), t(when), t(f"{row['n']:,}"), _lines(what)]


def _lines(parts: Sequence[Text]) -> Text:
    from rich.text import Text

    return Text("\n").join(parts)


def show_freezes(out: Printer, freezes: Sequence[Row], at: int) -> None:
    """On every list until lifted: nothing else explains why nothing happens."""
    for f in freezes:
        what = "everything" if f["name"] is None else f"{f['scope']} {f['name']}"
        if f["until"] is None:
            head, by = "FROZEN ", f"({f['by']}, {ago(f['at'], at)})"
        else:  # nobody froze it: it failed too often, and it will be tried again
            head, by = "BREAKER OPEN ", f"({ago(f['at'], at)}); {_next_try(f, at)}"
        out.line(t(head, "bold red"), t(what, "bold"), t(f": {f['reason']} {by}"))


def _next_try(breaker: Row, at: int) -> str:
    if breaker["probe"] is not None:
        return f"{place(breaker['probe'])} is trying it now"
    return f"tried again {ago(breaker['until'], at)}" if breaker["until"] > at else "the next call tries it again"


# --- runs --------------------------------------------------------------------------------------------------------


def runs(
    session: Session,
    prefix: str | None,
    status: Sequence[str],
    agent: str | None,
    tag: str | None,
    since: int | None,
    limit: int,
    after: str | None,
) -> None:
    at = now()
    where = RunFilter(
        status=status, agent=agent, tag=tag, since=None if since is None else at - since, prefix=prefix
    )  # fmt: skip
    place = None if after is None else parse_place(after, by_id=prefix is not None)
    with session.open() as store:
        page = store.runs(where, limit=limit, after=place)
        count = store.count_runs(where)
        freezes = store.freezes()
    older = None if page.older is None else ":".join(str(part) for part in page.older)
    if session.as_json:
        document = {"runs": [documents.run(r) for r in page.rows], "count": count.n, "more": count.more, "older": older}
        as_json(document)
        return
    out = Printer()
    out.line(t("1 run" if str(count) == "1" else f"{count} runs", "bold"))
    show_freezes(out, freezes, at)
    if not page.rows:
        return
    out.blank()
    columns = (Column("run", 36), Column("agent", 8), Column("status", 14), Column("step", 4), Column("started", 8))
    out.table(columns, [_run_row(row, at) for row in page.rows])
    if older is not None:
        out.blank()
        out.line(t(f"Older ones: the same command with --after {shell(older)}", "bright_black"))


def _run_row(row: Row, at: int) -> list[Text]:
    status = [word(row["status"])]
    if row["why"]:
        status.append(t(row["why"], "bright_black"))
    elif row["waits_for"]:
        status.append(t(row["waits_for"], "bright_black"))
    return [t(row["run_id"]), t(row["agent"]), _lines(status), t(_position(row)), t(ago(row["created_at"], at))]


def _position(row: Row) -> str:
    if row["last_step"] is None:
        return "-"
    return f"{row['position']} of {len(json.loads(row['plan']))}" if row["plan"] else str(row["last_step"])


def parse_place(text: str, *, by_id: bool) -> tuple[Any, ...]:
    if by_id:
        return (text,)
    try:
        created_at, run_no = (int(part) for part in text.split(":"))
    except ValueError as error:
        raise PreconditionFailed(
            f"{text!r} is not a place in the list; give the `older` of the page before."
        ) from error
    return created_at, run_no


# --- show --------------------------------------------------------------------------------------------------------


def show(session: Session, given: str, every: bool) -> None:
    with session.open() as store:
        at = now()
        run = store.run(find_run(store, given))
        rows = list(_every_step(store, run["run_id"])) if every else _newest_steps(store, run)
        calls = [_call_of(row) for row in rows if row["operation_tool"] is not None]
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


def _call_of(row: Row) -> Row:
    prefix = "operation_"
    return {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)} | {"step": row["step"]}


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
    facts = [("agent", joined(t(run["agent"]), " ", t(run["agent_version"]))), ("step", t(_position(run)))]
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
    return [t(row["step"]), _lines(what), _lines(status), t(took), t(row["operation_attempts"] or "")]


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


# --- events ------------------------------------------------------------------------------------------------------


def events(session: Session, given: str, after: int, follow: bool) -> None:
    with session.open() as store:
        run_id = None if given == STORE else known_run(store, given)
        writer = _JsonLines() if session.as_json else _Lines()
        if not follow:
            _drain(store, run_id, after, writer)
            return
        with store.feed() as feed:
            while True:
                after = _drain(store, run_id, after, writer)
                feed.wait()


def _drain(store: Store, run_id: str | None, after: int, writer: _Lines | _JsonLines) -> int:
    while page := store.events(run_id, after=after, limit=MAX_PAGE):
        for event in page:
            writer.write(event)
        after = page[-1].seq
    writer.flush()
    return after


class _JsonLines:
    def write(self, event: Event) -> None:
        as_json(documents.event(event), indent=None)

    def flush(self) -> None:
        pass


class _Lines:
    """A line a head, facts below it. The day is said when it changes, so that the time of day is enough."""

    def __init__(self) -> None:
        self._out = Printer()
        self._day = ""

    def write(self, event: Event) -> None:
        day = f"{moment(event.at):%Y-%m-%d}"
        if day != self._day:
            self._out.line(t(f"{day} UTC", "bright_black"))
            self._day = day
        at_step = t(f" #{event.step}" if event.step else "")
        self._out.line(
            t(f"{event.seq:>5}  {clock(event.at)}  "), t(event.kind, "bold"), at_step, t(f"  {event.actor}", "cyan")
        )  # fmt: skip
        said = facts_of(event)
        if said:
            self._out.facts([(" " * 5, t(said, "bright_black"))])

    def flush(self) -> None:
        self._out.flush()


def facts_of(event: Event) -> str:
    if event.body is None:
        return "(pruned: only its hash is left)"
    data = {k: v for k, v in documents.value(event.data).items() if v not in (None, {}, [], "")}
    if isinstance(data.get("snapshot"), str):
        data["snapshot"] = data["snapshot"].partition(":")[0]  # its digest is for machines
    said = ", ".join(f"{k}: {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}" for k, v in data.items())
    if len(said) <= FACTS_AT_MOST:
        return said
    return f"{said[:FACTS_AT_MOST]} ... ({len(said):,} characters; --json shows all of them)"
