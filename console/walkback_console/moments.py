"""A run as of one of its steps: the state before and after it, what it changed, what it did, what was known by then.

Functions here ask the store, in its thread, and decide nothing about how it looks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from walkback_console.diffs import Change, diff
from walkback_console.plain_words import size
from walkback_console.subjects import Subject, load_operation
from walkback_console.trees import MISSING

if TYPE_CHECKING:
    from walkback_store import Store
    from walkback_store.log import Event, Row

BEFORE, AFTER = "before", "after"
TOO_LARGE = 50_000_000
"""Bytes of a state that is not opened here."""
CACHED = 4
CACHED_BYTES = 4_000_000
LOOK_BACK = 2_000
"""Events that are read back from a step for what was known by then."""
STEPS_BACK = 200


@dataclass(frozen=True, slots=True)
class State:
    """`n` is the snapshot; None when there is none, and then `note` says why."""

    value: object = MISSING
    n: int | None = None
    bytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Layers:
    """The five layers, as of a step."""

    run: Row
    row: Row
    at: int
    outputs: tuple[tuple[str, str, Any], ...] = ()
    """Step, what it is called, and what came back; the newest first."""
    decisions: tuple[tuple[str, str, Any, str], ...] = ()
    """Step, name, choice and rationale; the newest first."""
    is_all: bool = True
    """Nothing earlier was left out."""
    subject: Subject | None = None
    failure: Mapping[str, Any] = field(default_factory=dict)
    failed_at: int | None = None


class States:
    """Decoded states that were looked at last; used by the store's thread only."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], State] = OrderedDict()

    def read(self, store: Store, run_id: str, n: int) -> State:
        if (run_id, n) in self._kept:
            self._kept.move_to_end((run_id, n))
            return self._kept[run_id, n]
        length = store.state_size(run_id, n)
        if length > TOO_LARGE:
            command = f"walkback state {run_id} --json shows it"
            return State(n=n, bytes=length, note=f"The state is {size(length)}, too large to open here; {command}.")
        found = State(store.state(run_id, n), n, length)
        if length <= CACHED_BYTES:
            self._kept[run_id, n] = found
            while len(self._kept) > CACHED:
                self._kept.popitem(last=False)
        return found


def snapshot_of(store: Store, run_id: str, row: Row, side: str) -> tuple[int | None, str]:
    """The snapshot on one side of a step, and what has to be said about it."""
    if row[side] is not None:
        return int(row[side]), ""
    if side == AFTER and row["ended_at"] is None and row[BEFORE] is not None:
        return int(row[BEFORE]), "The step has not ended: this is the state before it."
    for earlier in reversed(store.timeline(run_id, before=row["first_seq"] + 1, limit=STEPS_BACK)):
        for name in (AFTER, BEFORE):
            if earlier[name] is not None:
                return int(
                    earlier[name]
                ), f"This step has no state of its own: this is the one of step {earlier['step']}."
    return None, "No state was recorded here."


def read_state(store: Store, states: States, run_id: str, row: Row, side: str) -> State:
    n, note = snapshot_of(store, run_id, row, side)
    if n is None:
        return State(note=note)
    found = states.read(store, run_id, n)
    return State(found.value, found.n, found.bytes, found.note or note)


def read_diff(store: Store, states: States, run_id: str, row: Row) -> tuple[list[Change], str]:
    """What a step changed, and what has to be said about it."""
    if row[BEFORE] is None:
        return [], "This step has no state of its own; its block changes the state as a whole."
    if row[AFTER] is None:
        return [], "The step has not ended, so it has changed nothing yet."
    if row[BEFORE] == row[AFTER]:
        return [], "This step changed nothing in the state."
    before, after = (states.read(store, run_id, int(row[side])) for side in (BEFORE, AFTER))
    if before.note or after.note:
        return [], before.note or after.note
    changes = diff(before.value, after.value)
    return changes, "" if changes else "This step changed nothing in the state."


def read_step(store: Store, run_id: str, row: Row) -> tuple[Subject | None, list[Event]]:
    """A call with all that is known of it; of another step, its events."""
    if row["operation_tool"] is not None:
        subject = load_operation(store, run_id, row["step"])
        return subject, subject.detail.events if subject.detail is not None else []
    found = store.events(run_id, after=row["first_seq"] - 1, limit=50)
    return None, [event for event in found if event.step == row["step"]]


def output_of(events: list[Event]) -> tuple[bool, Any]:
    """What a call returned last, and whether it did."""
    for event in reversed(events):
        if event.kind == "tool_result" and event.data.get("answer") == "acknowledged":
            return True, event.data.get("output")
        if event.kind == "operator_action" and "result" in event.data:
            return True, event.data["result"]
    return False, None


def read_layers(store: Store, run: Row, row: Row, failure: Mapping[str, Any]) -> Layers:
    run_id = run["run_id"]
    following = store.timeline(run_id, after=row["first_seq"], limit=1)
    until = following[0]["first_seq"] - 1 if following else run["head_seq"]
    names = {
        step["step"]: str(step["operation_tool"] or step["name"])
        for step in store.timeline(run_id, before=row["first_seq"] + 1, limit=STEPS_BACK)
    }
    outputs: list[tuple[str, str, Any]] = []
    decisions: list[tuple[str, str, Any, str]] = []
    before = until + 1
    while before > 1 and until - before < LOOK_BACK:
        page = store.events(run_id, before=before, limit=1000)
        if not page:
            break
        for event in reversed(page):
            step = event.step or ""
            if event.kind == "tool_result" and event.data.get("answer") == "acknowledged":
                outputs.append((step, names.get(step, "a call"), event.data.get("output")))
            elif event.kind == "observation":
                outputs.append((step, names.get(step, "observed"), event.data.get("value")))
            elif event.kind == "decision":
                rationale = str(event.data.get("rationale") or "")
                decisions.append((step, names.get(step, "decided"), event.data.get("choice"), rationale))
        before = page[0].seq
    subject, _ = read_step(store, run_id, row)
    failed_here = bool(failure) and run["status_seq"] <= until
    return Layers(
        run=run,
        row=row,
        at=store.now(),
        outputs=tuple(outputs),
        decisions=tuple(decisions),
        is_all=before <= 1,
        subject=subject,
        failure=failure if failed_here else {},
        failed_at=run["finished_at"] if failed_here else None,
    )
