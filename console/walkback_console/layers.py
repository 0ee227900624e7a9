"""The five layers of a run's state in words: where it is, what came back, what was decided, retries, failures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from walkback_console.moments import Layers, output_of
from walkback_console.palette import mark, meaning
from walkback_console.plain_words import age, ago, clock, left, many, utc
from walkback_console.run_words import step_status, took_words, what_of_step
from walkback_console.verdicts import Line, arguments_of, operation_lines, said, t, value_lines, value_text

if TYPE_CHECKING:
    from walkback_console.subjects import Subject
    from walkback_store.log import Event, Row

LISTED = 20
SHORT, LONG = 6, 1_000
"""Lines of a value; the short one is for steps that one does not look at."""
LABEL = 14


def layer_lines(layers: Layers, *, ascii_only: bool = False) -> list[Line]:
    return [
        *_titled("1 task position", _position(layers, ascii_only)),
        *_titled("2 tool outputs, verbatim, newest first", _outputs(layers)),
        *_titled("3 decisions and why, newest first", _decisions(layers)),
        *_titled("4 retries", _retries(layers)),
        *_titled("5 failures", _failures(layers)),
    ]


def _titled(title: str, lines: Iterator[Line]) -> Iterator[Line]:
    yield Line("title", "", t(title.upper(), "strong"))
    yield from lines
    yield Line("title", "", Text())


def _position(layers: Layers, ascii_only: bool) -> Iterator[Line]:
    row, run = layers.row, layers.run
    top = row["step"].lstrip("c").split(".")[0].split("~")[0]
    at = int(top) if top.isdigit() else int(run["position"])
    ended = row["ended_at"] is not None
    plan = json.loads(run["plan"]) if run["plan"] else []
    yield Line("about", "step", t(f"{row['step']}: {what_of_step(row)}, {step_status(row)}"))
    if not plan:
        yield Line("about", "plan", t("the agent declared none", "dim"))
    for n, name in enumerate(plan, 1):
        done = n < at or (n == at and ended)
        word, status = ("done", "succeeded") if done else ("current", "running") if n == at else ("to do", "waiting")
        sign = t(f"{mark(status, ascii_only=ascii_only)} {word:<8}", meaning(status))
        yield Line("about", "plan" if n == 1 else "", said(sign, t(f"{n} {name}", "strong" if n == at else "")))


def _outputs(layers: Layers) -> Iterator[Line]:
    yield from _listed([(step, name, value_lines(value)) for step, name, value in layers.outputs], layers)


def _decisions(layers: Layers) -> Iterator[Line]:
    found = []
    for step, name, choice, rationale in layers.decisions:
        why = [t(f"because: {rationale}")] if rationale else [t("no rationale was given", "dim")]
        found.append((step, name, [*value_lines(choice), *why]))
    yield from _listed(found, layers)


def _listed(entries: Sequence[tuple[str, str, list[Text]]], layers: Layers) -> Iterator[Line]:
    if not entries:
        yield Line("about", "", t("none", "dim"))
    for step, name, lines in entries[:LISTED]:
        shown = lines[: LONG if step == layers.row["step"] else SHORT]
        yield Line("about", f"step {step}", t(name, "strong"))
        for line in shown:
            yield Line("about", "", line)
        if len(shown) < len(lines):
            yield Line(
                "about", "", t(f"+{many(len(lines) - len(shown), 'line')}: go to step {step} to see them", "dim")
            )
    if len(entries) > LISTED or not layers.is_all:
        yield Line("about", "", t("earlier ones: step back with ,", "dim"))


def _retries(layers: Layers) -> Iterator[Line]:
    subject, run = layers.subject, layers.run
    call = None if subject is None else subject.operation
    if subject is None or call is None or subject.detail is None:
        yield Line("about", "", t("this step calls nothing", "dim"))
        return
    yield Line("about", "attempts", t(f"{many(call['attempts'], 'attempt')} so far"))
    for a in subject.detail.attempts:
        answer = {None: "no answer yet", "none": "no answer"}.get(a["answer"], a["answer"])
        error = f": {a['error_class']}: {a['error']}" if a["error_class"] else ""
        yield Line("about", f"attempt {a['n']}", t(f"{clock(a['started_at'])} {a['status']}, {answer}{error}"))
    if run["status"] == "waiting" and run["wake_at"] is not None and run["last_step"] == call["step"]:
        yield Line("about", "next try", t(f"{utc(run['wake_at'])}, {left(run['wake_at'], layers.at)}"))


def _failures(layers: Layers) -> Iterator[Line]:
    found = False
    subject = layers.subject
    if subject is not None and subject.detail is not None and subject.operation is not None:
        for event in subject.detail.events:
            if event.kind == "tool_result" and event.data.get("error_class"):
                found = True
                yield from _failure_of_call(subject, event)
    if layers.failure:
        found = True
        data = layers.failure
        at = layers.failed_at or layers.at
        yield Line(
            "about", "run failed", t(f"{utc(at)}, {ago(at, layers.at)}, at step {data.get('step') or '-'}", "bad")
        )
        yield Line("about", "exception", t(f"{data.get('error_class')}: {data.get('message') or ''}", "bad"))
        for name in ("tool", "input", "output"):
            if data.get(name) is not None:
                yield Line("about", name, t(value_text(data[name])))
        yield from _traceback(data.get("traceback"))
    if not found:
        yield Line("about", "", t("none up to here", "dim"))


def _failure_of_call(subject: Subject, event: Event) -> Iterator[Line]:
    call: Row = subject.operation or {}
    yield Line("about", "when", t(f"{utc(event.at)}, attempt {event.data.get('n')}"))
    yield Line("about", "tool", t(f"{call['tool']} version {call['tool_version']}, step {call['step']}"))
    args = arguments_of(subject)
    yield Line("about", "input", t("no longer kept" if args is None else value_text(args)))
    yield Line("about", "output", t(value_text(event.data.get("output"))))
    yield Line("about", "exception", t(f"{event.data['error_class']}: {event.data.get('error') or ''}", "bad"))
    yield from _traceback(event.data.get("traceback"))


def _traceback(text: Any) -> Iterator[Line]:
    for n, part in enumerate(str(text).rstrip().split("\n") if text else ()):
        yield Line("about", "traceback" if n == 0 else "", t(part))


# --- one step ----------------------------------------------------------------------------------------------------


def step_lines(row: Row, subject: Subject | None, events: Sequence[Event], at: int, *, ascii_only: bool) -> list[Line]:
    """A call as its own screen shows it, and what it returned; of any other step, its record verbatim."""
    if subject is not None:
        lines = operation_lines(subject, ascii_only=ascii_only)
        returned, output = output_of(list(events))
        if returned:
            first, *rest = value_lines(output)
            lines.append(Line("output", "returned", first))
            lines += [Line("output", "", line) for line in rest[:LONG]]
            if len(rest) > LONG:
                more = f"+{many(len(rest) - LONG, 'line')}; walkback events {subject.run_id} --json has them"
                lines.append(Line("output", "", t(more, "dim")))
        return lines
    status = step_status(row)
    head = said(
        t(f"{mark(status, ascii_only=ascii_only)} {status.upper()}: ", meaning(status)),
        t(f"{row['kind']} {row['name']}", "strong"),
        t(f", {ago(row['started_at'], at)}, took {took_words(row, at)}"),
    )
    lines = [Line("verdict", "", head)]
    for event in events:
        lines += event_lines(event, at, with_head=False)
    return lines


LABELS = {"choice": "chosen", "rationale": "because"}


def event_lines(event: Event, at: int, *, with_head: bool = True) -> list[Line]:
    """All that one event says."""
    lines = []
    if with_head:
        step = f" #{event.step}" if event.step else ""
        head = f"{event.seq:,} {event.kind}{step} by {event.actor}, {utc(event.at)} ({age(event.at, at)} ago)"
        lines.append(Line("title", "", t(head, "strong")))
    if event.body is None:
        return [*lines, Line("about", "", t("pruned: only its hash is left", "dim"))]
    for name, value in event.data.items():
        if value is None or value in ("", [], {}):
            continue
        if name == "snapshot" and isinstance(value, str):
            value = value.partition(":")[0]  # its digest is for machines
        texts = [t(part) for part in value.split("\n")] if isinstance(value, str) else value_lines(value)
        label = LABELS.get(name, name)
        first = texts[0] if len(label) < LABEL else said(t(f"{label}: "), texts[0])
        lines.append(Line("about", label if len(label) < LABEL else "", first))
        lines += [Line("about", "", text) for text in texts[1:]]
    return lines


def facts_of(event: Event) -> str:
    """The same on one line; not yet safe."""
    if event.body is None:
        return "(pruned: only its hash is left)"
    parts = []
    for name, value in event.data.items():
        if value is None or value in ("", [], {}) or name in {"snapshot", "traceback"}:
            continue
        parts.append(f"{name}: {value if isinstance(value, str) else value_text(value)}")
    return ", ".join(parts)
