"""Undoing: each operation's registered compensation, in the reverse order of outcomes, as an operation of its own.

Scope, operations and cause are committed before the first of them is undone; whoever takes the run over goes on from
there. Nothing is undone while something in scope is pending or unknown: what may still happen cannot be undone.
"""

from __future__ import annotations

from collections.abc import Iterable

from walkback import parking
from walkback.errors import Parked
from walkback.protocol import call as perform
from walkback.record import UNDOING, Record
from walkback.terms import Hold, Person, Request, approval_rule, commit
from walkback.wishes import Look, Protocol
from walkback_store.log import Row
from walkback_store.machine.operations import BeginCompensation, EndCompensation
from walkback_store.machine.runs import NeedOperator
from walkback_store.words import Effect, OperationStatus, RunStatus, Why

O = OperationStatus  # noqa: E741
RUNNING, COMPENSATED, REVIEW = "running", "compensated", "review"
"""What becomes of the run afterwards: it goes on, it is over, or a person says which."""


def load(hold: Hold) -> Protocol[Record]:
    history = yield Look(lambda store: store.history(hold.run_id))
    return Record(history)


def undoable(rows: Iterable[Row]) -> list[Row]:
    """What stands and is this run's own to undo, the latest outcome first."""
    standing = [
        row
        for row in rows
        if row["status"] == O.SUCCEEDED
        and row["effect"] == Effect.WRITE
        and row["compensates"] is None
        and row["refers_to"] is None
    ]
    return sorted(standing, key=lambda row: row["outcome_seq"] or 0, reverse=True)


def doubtful(rows: Iterable[Row]) -> list[Row]:
    """What may still happen, or may have happened: it cannot be undone before it is settled."""
    return [row for row in rows if row["status"] in {O.PENDING, O.UNKNOWN, O.AWAITING_APPROVAL}]


def in_scope(rows: Iterable[Row], scope: str) -> list[Row]:
    return [row for row in rows if row["scope"] == scope or (row["scope"] or "").startswith(f"{scope}/")]


def begin(hold: Hold, scope: str, within: list[Row], cause: str) -> Protocol[list[Row]]:
    """Write down what is to be undone of the operations `within`, and undo it; afterwards the run goes on."""
    for row in doubtful(within):
        detail = f"{row['tool']} at step {row['step']} is {row['status']}: {scope} is undone when that is settled"
        yield from parking.ask(hold, Person(Why.UNKNOWN, detail, row["step"]), None)
    rows = undoable(within)
    if not rows:
        return rows
    steps = [row["step"] for row in rows if row["compensate"] is not None]
    begin_ = BeginCompensation(**hold.by, scope=scope, steps=steps, cause=cause, then=RUNNING)
    yield from commit(hold, begin_)
    yield from carry_on(hold)
    return rows


def begin_as_decided(hold: Hold, scope: str, steps: list[str], cause: str, then: str, decision: int) -> Protocol[None]:
    """The same, at a person's word; `steps` are exactly those that they saw."""
    yield from commit(
        hold, BeginCompensation(**hold.by, scope=scope, steps=steps, cause=cause, then=then, decision=decision)
    )
    yield from carry_on(hold)


def carry_on(hold: Hold) -> Protocol[None]:
    """Undo what the record says is left to undo, to the end."""
    record = yield from load(hold)
    begun = record.undoings()[-1]
    rows = [row for row in (record.operation(step) for step in record.undoing()) if row is not None]
    for row in undoable(rows):
        step = row["step"]
        if row["compensate"] is None:
            continue
        request = _request(hold, record, row)
        if isinstance(request, Person):
            yield from _give_up(hold, request.detail, step)
            continue
        rest = yield from perform(hold, request, None, None, record.known(request.step))
        (settled,) = yield from parking.rest(hold, [rest], None)
        if settled.status != O.SUCCEEDED:
            detail = (
                f"{settled.tool} did not undo step {step}: {settled.error_class or settled.status}: {settled.error}"
            )
            yield from _give_up(hold, detail, settled.step)
    yield from _ask_about_the_rest(hold, record, begun)
    yield from _end(hold, begun)


def _request(hold: Hold, record: Record, row: Row) -> Request | Person:
    undone = hold.registry.find(row["tool"], row["tool_version"])
    tool = hold.registry.find(row["compensate"])
    if tool is None:
        return Person(Why.COMPENSATION_FAILED, f"{row['compensate']}, which undoes {row['tool']}, is not in this app")
    what = record.undone(row["step"])
    args = hold.registry.undo_args(tool, undone or tool, dict(what.args), what.result)
    return Request(
        step=_step_for(record, row),
        tool=tool,
        args=tool.validate(args),
        rule=approval_rule(tool) if tool.needs_approval(args) else None,
        undoes=what,
    )


def _step_for(record: Record, row: Row) -> str:
    """`c7` undoes step 7; when that failed or was denied, a further try is `c7~2`."""
    name, n = f"{UNDOING}{row['step']}", 1
    while (tried := record.operation(name)) is not None and tried["status"] in {O.FAILED, O.DENIED}:
        n += 1
        name = f"{UNDOING}{row['step']}~{n}"
    return name


def _give_up(hold: Hold, detail: str, step: str) -> Protocol[None]:
    end = EndCompensation(**hold.by, outcome=RunStatus.NEEDS_OPERATOR, detail=detail, step=step)
    yield from commit(hold, end)
    raise Parked(f"run {hold.run_id!r} needs an operator: {detail}")


def _ask_about_the_rest(hold: Hold, record: Record, begun: dict[str, object]) -> Protocol[None]:
    """What has no compensation stands, and a person is told so; once."""
    scope = str(begun["scope"])
    rows = undoable(record.operations())
    left = [row for row in rows if row["compensate"] is None and _covers(scope, row)]
    told = any(e.data.get("scope") == scope for e in record.events(None, "needs_operator"))
    if not left or told:
        return
    names = ", ".join(f"{row['tool']} at step {row['step']}" for row in left)
    yield from commit(
        hold,
        NeedOperator(
            **hold.by,
            why=Why.REVIEW,
            detail=f"the rest of {scope} is undone, but {names} has no compensation and stands",
            data={"scope": scope, "standing": [row["step"] for row in left]},
        ),
    )
    raise Parked(f"run {hold.run_id!r} asks for review: {names} stands")


def _covers(scope: str, row: Row) -> bool:
    what, _, rest = scope.partition(":")
    if what == "run":
        return True
    if what == "operation":
        return bool(row["step"] == rest)
    if what == "after":
        return position(row["step"]) > position(rest)
    return bool(in_scope([row], rest if what == "transaction" else scope))


def position(step: str) -> tuple[int, ...]:
    return tuple(int(part) for part in step.lstrip(UNDOING).split("~")[0].split(".") if part.isdigit())


def _end(hold: Hold, begun: dict[str, object]) -> Protocol[None]:
    then = begun.get("then", RUNNING)
    outcome = RunStatus.COMPENSATED if then == COMPENSATED else RunStatus.RUNNING
    yield from commit(hold, EndCompensation(**hold.by, outcome=outcome, detail=str(begun["cause"])))
    if then == COMPENSATED:
        raise Parked(f"run {hold.run_id!r} is compensated")
    if then == REVIEW:
        detail = f"{begun['scope']} was undone ({begun['cause']}); resume the run to go on without it, or cancel it"
        yield from parking.ask(hold, Person(Why.REVIEW, detail), None)


__all__ = ["COMPENSATED", "REVIEW", "RUNNING", "begin", "begin_as_decided", "carry_on", "in_scope", "load", "undoable"]
