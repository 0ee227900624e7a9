"""A run and its steps in words: what it is doing, what it waits for, why it stopped, and each step on a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from walkback_console.palette import TIMES, mark, meaning
from walkback_console.plain_words import FOREVER, age, ago, duration, left, many
from walkback_console.subjects import Subject
from walkback_console.verdicts import ABOUT, VERDICT, Line, position_of, regret_lines, said, t

if TYPE_CHECKING:
    from walkback_store import Store
    from walkback_store.log import Row

WHY = {
    "unknown": "an operation may have happened, or not",
    "duplicate_suspected": "something may have happened twice",
    "diverged": "the agent's code no longer fits its record",
    "drift": "an answer has another shape than its tool declares",
    "compensation_failed": "an undo did not work",
    "budget_spent": "it has used up what it may",
    "review": "a person is to look at it",
}
WAITS = {
    "approval": "a person has to agree to step {}",
    "signal": "the signal {}",
    "freeze": "{} is frozen",
    "breaker": "{} does not answer, and is not called",
    "identity": "another run is busy with {}",
}


def failure_of(store: Store, run: Row) -> Mapping[str, Any]:
    """How a run failed, as its last event says it: class, message, step and traceback; nothing if it did not."""
    if run["status"] != "failed":
        return {}
    found = store.events(run["run_id"], after=run["status_seq"] - 1, limit=1)
    return found[0].data if found else {}


def waits_words(run: Row, at: int) -> str:
    what = run["waits_for"]
    if not what:
        due = "" if run["wake_at"] is None else f"for {duration(max(0, run['wake_at'] - at))} more"
        return due or "for a worker"
    kind, _, name = str(what).partition(":")
    words = WAITS.get(kind, str(what)).format(name)
    if run["wake_at"] is None or run["wake_at"] >= FOREVER:
        return words
    return f"{words}; {left(run['wake_at'], at)}"


def status_text(run: Row, *, ascii_only: bool = False) -> Text:
    """Mark and word, and in one word more why, or what for."""
    status = str(run["status"])
    found = t(f"{mark(status, ascii_only=ascii_only)} {status}", meaning(status))
    if run["why"]:
        found.append(t(f" {run['why']}", meaning(run["why"])))
    elif status == "waiting" and run["waits_for"]:
        found.append(t(f" {run['waits_for']}", "dim"))
    elif status == "failed" and run["error_class"]:
        found.append(t(f" {run['error_class']}", "dim"))
    return found


def position_words(run: Row) -> str:
    if run["last_step"] is None:
        return "no step yet"
    if run["plan"]:
        return f"step {run['position']} of {len(json.loads(run['plan']))}"
    return f"step {run['last_step']}"


def verdict_words(run: Row, failure: Mapping[str, Any], at: int) -> str:
    status = run["status"]
    if status == "needs_operator":
        why = WHY.get(run["why"] or "", str(run["why"]))
        at_step = f" (step {run['why_step']})" if run["why_step"] else ""
        since = f", since {age(run['why_since'], at)}" if run["why_since"] else ""
        return f"{why}{at_step}{since}."
    if status == "failed":
        message = failure.get("message")
        said_ = f"{run['error_class'] or 'an error'}{': ' + str(message) if message else ''}"
        at_step = f", after step {failure['step']}" if failure.get("step") else ""
        return f"{said_}{at_step}, {ago(run['finished_at'] or run['updated_at'], at)}."
    if status == "waiting":
        return f"{waits_words(run, at)}."
    if run["finished_at"] is not None:
        return f"{ago(run['finished_at'], at)}, after {duration(run['finished_at'] - run['created_at'])}."
    held = f"held by {run['worker']}" if run["worker"] else "no worker holds it"
    return f"{held}, for {age(run['created_at'], at)} now."


def head_lines(subject: Subject, failure: Mapping[str, Any], *, ascii_only: bool = False) -> list[Line]:
    """What stands above a run: status and why in words, who and where, and what a person decided that waits."""
    run, at = subject.run, subject.at
    if run is None:
        return []
    status = str(run["status"])
    word = status.upper().replace("_", " ")
    if run["why"]:
        word += f", {run['why']}"
    lines = [
        Line(
            VERDICT,
            "",
            said(
                t(f"{mark(status, ascii_only=ascii_only)} {word}: ", meaning(status)),
                t(verdict_words(run, failure, at)),
            ),
        )
    ]
    if run["why_detail"]:
        lines.append(Line(VERDICT, "", t(run["why_detail"])))
    lines += [Line(VERDICT, "", text) for text in regret_lines(subject)]
    for column, words in (("cancel_requested", "cancel"), ("pause_requested", "pause")):
        if run[column]:
            lines.append(
                Line(VERDICT, "", t(f"A {words} was asked for; it takes effect at the next boundary.", "busy"))
            )
    owner = f"owner {run['owner']}" if run["owner"] else "nobody's yet"
    parts = [f"{run['agent']} version {run['agent_version']}", position_of(run), owner]
    parts += [f"tags {', '.join(json.loads(run['tags']))}"] if run["tags"] else []
    parts += [f"fork of {run['parent']} at step {run['fork_step']}"] if run["parent"] else []
    parts += [f"superseded by {run['superseded_by']}"] if run["superseded_by"] else []
    parts += [f"begun {ago(run['created_at'], at)}"]
    lines.append(Line(ABOUT, "", t(" · ".join(parts), "dim")))
    return lines


# --- one step ----------------------------------------------------------------------------------------------------


def step_status(row: Row) -> str:
    """Of a call that of its operation, which says more."""
    return str(row["operation_status"] or row["status"])


def is_write(row: Row) -> bool:
    return bool(row["operation_effect"] == "write")


def kind_of_step(row: Row) -> Text:
    """A write says WRITE, in letters; a compensation what it undoes."""
    if row["operation_tool"] is None:
        return t(row["kind"], "dim")
    if row["operation_compensates"]:
        return t(f"WRITE undoes {row['operation_compensates']}", "write")
    return t("WRITE", "write") if is_write(row) else t(row["operation_effect"], "dim")


def what_of_step(row: Row) -> str:
    """The tool and what it was called for, or the name that the agent gave it; not yet safe."""
    name = str(row["operation_tool"] or row["name"])
    description = str(row["operation_description"] or "")
    if description.startswith(name):
        return description
    return f"{name}: {description}" if description else name


def took_words(row: Row, at: int) -> str:
    if row["ended_at"] is None:
        return f"{age(row['started_at'], at)} so far"
    return duration(row["ended_at"] - row["started_at"])


def attempts_words(row: Row, *, ascii_only: bool = False) -> str:
    n = row["operation_attempts"] or 0
    return f"{'x' if ascii_only else TIMES}{n}" if n > 1 else ""


def notes_of_step(row: Row) -> str:
    """What else has to be known of it, in a few words."""
    found = []
    if row["operation_compensated_by"]:
        undone = row["operation_status"] == "compensated"
        found.append(f"{'undone by' if undone else 'to be undone by'} {row['operation_compensated_by']}")
    if row["operation_refers_to"]:
        found.append(f"done by {row['operation_refers_to']}")
    if row["operation_duplicate_suspected"]:
        found.append("DUPLICATE SUSPECTED")
    return ", ".join(found)


def count_words(n: int, more: bool = False) -> str:
    return f"{n:,}+ runs" if more else many(n, "run")
