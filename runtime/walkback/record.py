"""What the store has of a run, as a replay needs it: which step was what, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from walkback.flight import Flight
from walkback.protocol import APPROVAL_EXPIRED, Known
from walkback.tools import Registry, Undone
from walkback.wishes import Answered
from walkback_store.history import History, LazyEvent
from walkback_store.log import Row
from walkback_store.words import Answer, Effect, Evidence, OperationStatus

O = OperationStatus  # noqa: E741
_PREFIX = "operation_"
UNDOING = "c"
"""Steps that undo others are named after them: `c7` undoes step 7."""


class Record:
    """One run's history, read once when a worker takes it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.run = history.run
        self._steps = {row["step"]: row for row in history.steps}
        self._operations: dict[str, Row] = {}
        mine = [row for row in history.steps if not row["step"].startswith(UNDOING)]
        self.last = mine[-1]["step"] if mine else None
        """The last step of the agent's that is in the log."""
        self.tops = {row["step"].partition(".")[0] for row in mine}
        self.reached = max(map(int, self.tops), default=0)
        """The number of the last step of the agent's."""

    def step(self, step: str) -> Row | None:
        return self._steps.get(step)

    def operation(self, step: str) -> Row | None:
        """The row of `operations`, or None when the step is no call."""
        row = self._steps.get(step)
        if row is None or row[f"{_PREFIX}tool"] is None:
            return None
        found = self._operations.get(step)
        if found is None:
            cut = len(_PREFIX)
            found = {name[cut:]: value for name, value in row.items() if name.startswith(_PREFIX)}
            found["step"] = step
            self._operations[step] = found
        return found

    def operations(self) -> Iterator[Row]:
        for step in self._steps:
            if (row := self.operation(step)) is not None:
                yield row

    def events(self, step: str | None, *kinds: str) -> list[LazyEvent]:
        return [e for e in self.history.events.get(step, ()) if e.kind in kinds]

    def input(self) -> dict[str, Any]:
        (started, *_) = self.events(None, "run_started")
        return dict(started.data["input"] or {})

    def branches(self, block: str) -> list[str]:
        """The steps of a parallel block."""
        return [step for step in self._steps if step.startswith(f"{block}.")]

    def described(self, step: str) -> object:
        row = self._steps.get(step)
        if row is not None:
            return {"kind": row["kind"], "name": row["name"]}
        return {"branches": [{"step": s, "name": self._steps[s]["name"]} for s in self.branches(step)]}

    def facts(self, step: str) -> dict[str, Any]:
        """What a step that is no call recorded."""
        return dict(self.events(step, "step", "observation", "decision")[0].data)

    def payload(self, step: str) -> object:
        """Of the signal that a step took."""
        seq = self.events(step, "signal")[0].data["signal_seq"]
        return next(e.data["payload"] for e in self.events(None, "signal") if e.seq == seq)

    # --- calls ---------------------------------------------------------------------------------------------------

    def known(self, step: str) -> Known | None:
        row = self.operation(step)
        if row is None:
            return None
        approvals = self.history.approvals.get(step, [])
        approval = approvals[-1] if approvals else None
        known = Known(row, approval)
        if row["status"] in {O.SUCCEEDED, O.COMPENSATED}:
            known.result, known.drift = self.result(step)
        elif row["status"] == O.DENIED:
            known.rule = self._denied_by(step, approval)
        elif row["status"] == O.AWAITING_APPROVAL:
            known.asked = dict(self.events(step, "approval_asked")[-1].data)
            if approval is not None and approval["edited_hash"] is not None:
                known.edited_args = dict(self.events(step, "approval_given")[-1].data["edited_args"])
        return known

    def result(self, step: str) -> tuple[object, list[str]]:
        """What a call that succeeded gave, and where that is not what the tool declares."""
        result: object = None
        drift: list[str] = []
        for event in self.events(step, "tool_result", "outcome", "operator_action"):
            data = event.data
            if event.kind == "tool_result":
                drift = list(data.get("drift", ()))
                if data.get("answer") == Answer.ACKNOWLEDGED:
                    result = data.get("output")
            elif "result" in data:
                result = data["result"]
        return result, drift

    def requested_args(self, step: str) -> object:
        """What the agent asked for. A person may have agreed to something else, which is what was called."""
        for event in self.events(step, "approval_asked", "intent", "policy_check", "outcome"):
            if "args" in event.data:
                return event.data["args"]
        return None

    def _denied_by(self, step: str, approval: Row | None) -> str | None:
        if approval is not None:
            return APPROVAL_EXPIRED if approval["status"] == "expired" else "approval refused"
        for event in self.events(step, "policy_check"):
            return str(event.data.get("rule"))
        return None

    def reviewed(self, step: str, why: str) -> bool:
        """Whether a person was asked about this, and the run goes on all the same."""
        return any(e.data.get("why") == why for e in self.events(step, "needs_operator"))

    # --- in flight -----------------------------------------------------------------------------------------------

    def flight(self, row: Row, registry: Registry, now: int) -> Flight | None:
        """An operation without an outcome, as the record has it; None when this worker lacks the tool."""
        step = row["step"]
        tool = registry.find(row["tool"], row["tool_version"])
        attempts = self.history.attempts.get(step, [])
        if tool is None or not attempts:
            return None
        last = attempts[-1]
        intent = self.events(step, "intent")[-1]
        flight = Flight(
            tool=tool,
            step=step,
            args=dict(intent.data["args"]),
            key=row["key"],
            key_until=row["key_until"],
            n=row["attempts"],
            deadline=last["deadline"] if last["deadline"] is not None else last["started_at"],
            worker=last["worker"],
            started_at=self._budget_from(row, last),
            undoes=self.undone(row["compensates"]) if row["compensates"] is not None else None,
            preconditions=intent.data.get("preconditions"),
            evidence=None if row["evidence"] is None else Evidence(row["evidence"]),
            doubt=row["attempts"] > 1 and row["evidence"] != Evidence.ABSENT,
        )
        results = self.events(step, "tool_result")
        if last["status"] != "running" and results:
            data = results[-1].data
            flight.answer = Answered(
                Answer(last["answer"]),
                data.get("output"),
                last["error_class"],
                last["error"],
                sent=data.get("sent", True),
                stop=data.get("stop", False),
                problems=tuple(data.get("drift", ())),
            )
            asked = any(e.seq > results[-1].seq for e in self.events(step, "recovery"))
            flight.recovering = last["status"] == "abandoned" and row["effect"] == Effect.WRITE and not asked
        began = max(e.seq for e in self.events(step, "intent", "attempt", "tool_result"))
        flight.ordered = any(e.seq > began and "decision" in e.data for e in self.events(step, "recovery"))
        waits = [e for e in self.events(None, "wait") if e.seq > began]
        flight.due = bool(
            waits and waits[-1].data.get("waits_for") == f"retry:{step}" and (waits[-1].data.get("wake_at") or 0) <= now
        )
        return flight

    def _budget_from(self, row: Row, last: Row) -> int:
        """The time for which nobody worked on a run, or a person had it, is not taken from an operation's budget."""
        resumed = max((e.at for e in self.events(None, "recovery")), default=0)
        began = last["ended_at"] if last["status"] == "abandoned" else row["started_at"]
        return max(int(began), resumed)

    def undone(self, step: str) -> Undone:
        row = self.operation(step) or {}
        result, _ = self.result(step)
        args = self.requested_args(step)
        for event in self.events(step, "intent"):
            args = event.data["args"]
        return Undone(step=step, tool=row["tool"], args=dict(args or {}), result=result)  # type: ignore[call-overload]

    # --- compensation --------------------------------------------------------------------------------------------

    def undoings(self) -> list[dict[str, Any]]:
        """Compensations that were begun, oldest first: scope, steps, cause, then."""
        return [dict(e.data) | {"seq": e.seq} for e in self.events(None, "compensation") if "steps" in e.data]

    def undoing(self) -> list[str]:
        """The steps that the compensation under way is to undo."""
        return list(orjson.loads(self.run["undoing"] or "[]"))
