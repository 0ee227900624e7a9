"""Commands about states: `state`, what a run knew at a step; `diff`, what became of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from walkback_console.cli import REFUSED, USAGE, documents
from walkback_console.cli.finding import find_place, find_run, shell
from walkback_console.cli.printing import Printer, as_json, joined, t
from walkback_console.cli.session import Explained, Session
from walkback_console.diffs import Change, diff
from walkback_console.plain_words import many
from walkback_console.trees import MISSING, Line, Path, Tree, brief, children, format_path, is_container, parse_path
from walkback_console.trees import value_at as lookup

if TYPE_CHECKING:
    from rich.text import Text

    from walkback_store import Store

WIDE = 40
"""A container with more in it than this stays closed, unless it was asked for."""
LINES_AT_MOST = 400
CHANGES_AT_MOST = 200
BRIEF = 400
"""Characters of a text that are shown; `--json` has all of it."""
PLAIN = frozenset({"bool", "int", "float", "text", "null", "dict", "list"})
"""Kinds that are seen from how the value is written."""
SIGNS = {"added": ("+", "good"), "removed": ("-", "bad"), "changed": ("~", "unsure")}


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of a run, and how it is called."""

    run_id: str
    step: str | None
    """None for the newest state of the run, whatever step that is of."""
    before: bool
    snapshot: int
    value: object

    @property
    def name(self) -> str:
        if self.step is None:
            return f"{self.run_id}, newest state"
        return f"{self.run_id}, {'before' if self.before else 'after'} step {self.step}"

    def document(self) -> dict[str, Any]:
        return {
            "run": self.run_id,
            "step": self.step,
            "when": "newest" if self.step is None else "before" if self.before else "after",
            "snapshot": self.snapshot,
        }


def load(store: Store, run_id: str, step: str | None, *, before: bool = False) -> Moment:
    if step is None:
        n, step_said = store.run(run_id)["last_snapshot"], None
    else:
        row, _ = store.step(run_id, step)
        n, step_said = row["before" if before else "after"], step
    if n is None:
        raise Explained(f"no state of {run_id} was kept there. Steps with a state are in walkback show.", REFUSED)
    return Moment(run_id, step_said, before, n, store.state(run_id, n))


def path_of(given: str | None) -> Path:
    try:
        return () if given is None else parse_path(given)
    except ValueError as error:
        raise Explained(f"{error}.", USAGE) from error


# --- state -------------------------------------------------------------------------------------------------------


def state(session: Session, given: str, step: str | None, before: bool, at: str | None) -> None:
    path = path_of(at)
    with session.open() as store:
        run_id, step = find_place(store, given, step)
        if before and step is None:
            raise Explained("--before needs a STEP: before which one?", USAGE)
        moment = load(store, run_id, step, before=before)
    value = lookup(moment.value, path)
    if value is MISSING:
        raise Explained(_nothing(moment, path), REFUSED)
    if session.as_json:
        as_json(documents.value(value))
        return
    out = Printer()
    where = f"  {format_path(path)}" if path else ""
    out.line(t(moment.name, "strong"), t(where), t(f"  snapshot {moment.snapshot}", "dim"))
    tree = Tree(value, _opened(value))
    closed = None
    for index in range(min(tree.count, LINES_AT_MOST)):
        line = tree.row(index)
        if line is None or (not line.path and line.is_container):
            continue  # the state itself needs no line: its parts stand below
        out.facts([(f"{'  ' * (line.depth - 1)}{line.key}", _value(line, lookup(value, line.path)))])
        if closed is None and line.is_container and not line.is_open:
            closed = line
    if tree.count > LINES_AT_MOST:
        out.line(t(f"and {many(tree.count - LINES_AT_MOST, 'line')} more; --path narrows it, --json has all.", "dim"))
    elif closed is not None:
        inside = shell(format_path((*path, *closed.path)))
        out.line(t(f"What is closed opens with --path, such as --path {inside}; --json has all.", "dim"))


def _opened(value: object) -> frozenset[Path]:
    """What is open at first: the thing itself, and small containers, the outer ones before the inner."""
    opened: set[Path] = {()}
    waiting: deque[tuple[Path, object]] = deque([((), value)])
    lines = 1
    while waiting and lines < LINES_AT_MOST:
        path, inside = waiting.popleft()
        parts = list(children(inside))
        if path and (len(parts) > WIDE or lines + len(parts) > LINES_AT_MOST):
            continue
        opened.add(path)
        lines += len(parts)
        waiting.extend(((*path, key), part) for key, part in parts if is_container(part))
    return frozenset(opened)


def _value(line: Line, value: object) -> Text:
    kind = "" if line.kind in PLAIN else f" {line.kind}"
    if line.is_open:
        return t(line.value + kind, "dim")
    return joined(t(brief(value, BRIEF)), t(kind, "dim"))


def _nothing(moment: Moment, path: Path) -> str:
    """Where the path leaves what is there, and what there is instead."""
    known = next(n for n in range(len(path), -1, -1) if lookup(moment.value, path[:n]) is not MISSING)
    there = lookup(moment.value, path[:known])
    keys = [format_path((key,)) for key, _ in list(children(there))[:10]]
    has = f"{format_path(path[:known])} has {', '.join(keys) or 'nothing in it'}"
    if is_container(there) and len(list(children(there))) > len(keys):
        has += ", ..."
    return f"{moment.name}: there is no {format_path(path)}; {has}."


# --- diff --------------------------------------------------------------------------------------------------------


def show_diff(
    session: Session, given: str, step: str | None, other: str | None, with_run: str | None, at: str | None
) -> None:
    path = path_of(at)
    with session.open() as store:
        run_id, named = find_place(store, given)
        if named is not None:  # RUN#STEP [STEP2]
            if other is not None:
                raise Explained("two steps are compared, not three: RUN#STEP STEP2, or RUN STEP STEP2.", USAGE)
            step, other = named, step
        first, second = _moments(store, run_id, step, other, with_run)
    changes = diff(lookup(first.value, path), lookup(second.value, path))
    changes = [Change((*path, *c.path), c.kind, c.old, c.new) for c in changes]
    if session.as_json:
        listed = [
            {"path": format_path(c.path), "kind": c.kind, "old": _json(c.old), "new": _json(c.new)} for c in changes
        ]
        as_json({"from": first.document(), "to": second.document(), "changes": listed})
        return
    out = Printer()
    out.line(t(first.name, "strong"), "  to  ", t(second.name, "strong"))
    out.line(t(many(len(changes), "change") if changes else "Nothing changed."))
    for change in changes[:CHANGES_AT_MOST]:
        sign, style = SIGNS[change.kind]
        out.facts([(sign, joined(t(format_path(change.path), style), "  ", t(_change(change))))], indent=1)
    if len(changes) > CHANGES_AT_MOST:
        left_out = many(len(changes) - CHANGES_AT_MOST, "change")
        out.line(t(f"and {left_out} more; --path narrows it, --json has all.", "dim"))


def _moments(
    store: Store, run_id: str, step: str | None, other: str | None, with_run: str | None
) -> tuple[Moment, Moment]:
    if with_run is not None:
        return load(store, run_id, step), load(store, find_run(store, with_run), other or step)
    if other is not None:
        return load(store, run_id, step), load(store, run_id, other)
    if step is None:
        step = store.run(run_id)["last_step"]
        if step is None:
            raise Explained(f"{run_id} has made no step yet, so nothing has changed.", REFUSED)
    return load(store, run_id, step, before=True), load(store, run_id, step)


def _change(change: Change) -> str:
    """Texts in `brief` are safe; `t` leaves them as they are."""
    if change.kind == "added":
        return brief(change.new, BRIEF)
    if change.kind == "removed":
        return brief(change.old, BRIEF)
    return f"{brief(change.old, BRIEF)} -> {brief(change.new, BRIEF)}"


def _json(value: object) -> Any:
    return None if value is MISSING else documents.value(value)
