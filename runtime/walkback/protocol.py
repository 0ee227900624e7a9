"""The write-ahead protocol: what is written down before a tool is called, what is looked at after it, and what is
believed. Read this file first.

Everything here is a generator without I/O. It yields a wish (`wishes`) and is sent what came of it; it has no clock, no
randomness and no database. So the same lines run with threads, on an event loop, and in a simulation that stops them at
every yield.

    a write   intent ─▶ call with the key ─▶ verify ─▶ outcome          two durable commits
    a read    start (relaxed) ─▶ call ─▶ result

`call` is the way in: it goes on from wherever the record of a step ends, and ends in a rest: the operation is settled,
or the run has to wait, or a person has to look. What happens between the intent and the outcome is in `flight`, what is
believed in `outcomes`, the words for all of it in `terms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from walkback.flight import Flight, fly, probe
from walkback.terms import (
    PATIENCE,
    Fold,
    Hold,
    Person,
    Request,
    Rest,
    Settled,
    Stop,
    Waiting,
    commit,
    contract,
    digest_of,
    identity_key,
    key_of,
    key_until_of,
    micros,
    op_for,
    timeout_of,
    unknown_rest,
)
from walkback.wishes import (
    Answered,
    CannotObserve,
    Commit,
    Enter,
    Look,
    Now,
    Observe,
    Protocol,
)
from walkback_store.errors import (
    BreakerOpen,
    Frozen,
    IdentityTaken,
    IllegalTransition,
    KeyConflict,
    PreconditionFailed,
    StopRequested,
)
from walkback_store.log import Row
from walkback_store.machine.operations import (
    AskApproval,
    Call,
    DenyOperation,
    Intend,
    Refer,
)
from walkback_store.machine.people import ExpireApproval
from walkback_store.machine.store_wide import (
    ClaimIdentity,
)
from walkback_store.words import Answer, Effect, Evidence, OperationStatus, Why

O = OperationStatus  # noqa: E741
KEY_CONFLICT, PRECONDITIONS = "key conflict", "preconditions"
"""Rules under which the runtime itself denies a call."""
APPROVAL_EXPIRED = "approval expired"


# --- the way in ----


def call(hold: Hold, request: Request, state: bytes | None, fold: Fold, known: Known | None = None) -> Protocol[Rest]:
    """One call of the agent's, from wherever its record ends to a rest."""
    if known is None:
        return (yield from _begin(hold, request, state, fold))
    if known.operation["status"] == O.AWAITING_APPROVAL:
        return (yield from _go_on_after_asking(hold, request, fold, known))
    return known.rest()


@dataclass(slots=True)
class Known:
    """What the record has of a step that is a call."""

    operation: Row
    approval: Row | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    """The event that asked for the approval."""
    edited_args: dict[str, object] | None = None
    result: object = None
    rule: str | None = None
    drift: Sequence[str] = ()

    def rest(self) -> Rest:
        row = self.operation
        if row["status"] == O.UNKNOWN:
            return unknown_rest(row["tool"], row["step"], row["error_class"], row["error"], row["evidence"])
        return Settled(
            step=row["step"],
            tool=row["tool"],
            status=row["status"],
            result=self.result,
            error_class=row["error_class"],
            error=row["error"],
            rule=self.rule,
            drift=self.drift,
        )


def _begin(hold: Hold, request: Request, state: bytes | None, fold: Fold) -> Protocol[Rest]:
    tool, args = request.tool, request.args
    identity, key = None, key_of(hold.run_id, request.step, tool.name, request.args_hash)
    if tool.effect == Effect.WRITE and (identity := tool.identity_of(args)) is not None:
        owned = yield from _own(hold, request, identity, state)
        if not isinstance(owned, int):
            return owned
        key = identity_key(tool.name, identity, owned)
    now = yield Now()
    seen: object = None
    if tool.preconditions is not None:
        try:
            seen = yield Observe(tool, op_for(hold, request, args, key, 1, now + timeout_of(tool), None))
        except CannotObserve as error:
            return (yield from _deny(hold, request, state, PRECONDITIONS, f"its preconditions: {error}"))
    call_ = contract(request, args, key, now, identity, seen)
    if request.rule is None:
        return (yield from _dispatch(hold, request, call_, None, state, fold))
    expires_at = None if tool.approval_expires is None else now + micros(tool.approval_expires)
    yield from commit(
        hold,
        AskApproval(
            **hold.by,
            step=request.step,
            call=call_,
            digest=digest_of(request, hold.run_id, args, seen),
            rule=request.rule,
            expires_at=expires_at,
            shown={"description": call_.description, "stake": call_.stake},
            state=state,
        ),
    )
    return Waiting(f"approval:{request.step}", expires_at)


def _deny(hold: Hold, request: Request, state: bytes | None, rule: str, reason: str) -> Protocol[Rest]:
    """The runtime itself says no; it is recorded, so that a replay hears the same."""
    now = yield Now()
    call_ = contract(request, request.args, "", now, None, None)
    call_.key = None
    yield from commit(
        hold, DenyOperation(**hold.by, step=request.step, call=call_, rule=rule, reason=reason, state=state)
    )
    return Settled(step=request.step, tool=request.tool.name, status=O.DENIED, error=reason, rule=rule)


# --- a business identity: one owner at a time ----


def _own(hold: Hold, request: Request, identity: str, state: bytes | None) -> Protocol[int | Rest]:
    """The generation under which this operation owns the identity; or a rest, when another owns it."""
    while True:
        claim = ClaimIdentity(
            actor=hold.actor,
            identity=identity,
            run_id=hold.run_id,
            step=request.step,
            tool=request.tool.name,
            args_hash=request.args_hash,
        )
        try:
            yield Commit((claim,))
        except KeyConflict as conflict:
            return (yield from _deny(hold, request, state, KEY_CONFLICT, str(conflict)))
        except IdentityTaken as taken:
            if taken.status != O.SUCCEEDED:
                return Waiting(f"identity:{identity}", None)
            owner = (taken.run_id, taken.step)
            result = yield Look(lambda store, owner=owner: outcome_of(store, *owner))  # type: ignore[misc]
            now = yield Now()
            call_ = contract(request, request.args, "", now, identity, None)
            call_.key = call_.key_until = call_.compensate = None
            refer = Refer(
                **hold.by, step=request.step, call=call_, identity=identity, owner=owner, result=result, state=state
            )
            try:
                yield from commit(hold, refer)
            except PreconditionFailed:  # undone meanwhile: it is free again
                continue
            return Settled(step=request.step, tool=request.tool.name, status=O.SUCCEEDED, result=result)
        else:
            row = yield Look(lambda store: store.identity(identity))
            if (row["run_id"], row["step"]) == (hold.run_id, request.step):  # it may have been taken over since
                return int(row["generation"])


def outcome_of(store: Any, run_id: str, step: str) -> object:
    """The result of an operation of any run, from its events: a pruned run still has those."""
    result: object = None
    after = 0
    while events := store.events(run_id, after=after):
        after = events[-1].seq
        for event in events:
            if event.step != step:
                continue
            data = event.data
            if event.kind == "tool_result" and data.get("answer") == Answer.ACKNOWLEDGED:
                result = data.get("output")
            elif event.kind in {"outcome", "operator_action"} and "result" in data:
                result = data["result"]
    return result


# --- approvals: durable waits that hold no thread ----


def _go_on_after_asking(hold: Hold, request: Request, fold: Fold, known: Known) -> Protocol[Rest]:
    approval = known.approval or {}
    step, now = request.step, (yield Now())
    if approval["expires_at"] is not None and approval["expires_at"] <= now:
        expire = ExpireApproval(actor=hold.actor, run_id=hold.run_id, step=step, n=approval["n"])
        try:
            yield from commit(hold, expire)
        except (IllegalTransition, PreconditionFailed):  # somebody decided at the last moment
            return Waiting(f"approval:{step}", now + PATIENCE)
        detail = yield Look(lambda store: store.operation(hold.run_id, step))
        known.operation, known.rule = detail.operation, APPROVAL_EXPIRED
        return known.rest()
    if approval["status"] == "asked":
        return Waiting(f"approval:{step}", approval["expires_at"])
    if approval["not_before"] is not None and approval["not_before"] > now:
        return Waiting(f"approval:{step}", approval["not_before"])
    args = dict(known.asked["args"]) if known.edited_args is None else known.edited_args
    if known.edited_args is not None and request.tool.identity_of(args) != known.operation["identity"]:
        detail = "the edited arguments are about something else than what was asked; take the approval back"
        return Person(Why.REVIEW, detail, step, {"identity": known.operation["identity"]})
    seen, recorded = None, known.asked.get("preconditions")
    row = known.operation
    if request.tool.preconditions is not None:
        try:
            seen = yield Observe(request.tool, op_for(hold, request, args, row["key"], 1, now, None, recorded))
        except CannotObserve as error:
            return Waiting(f"approval:{step}", now + PATIENCE) if row["attempts"] else _changed(step, recorded, error)
        if seen != recorded:
            return _changed(step, recorded, seen)
    digest = digest_of(request, hold.run_id, args, recorded)
    if digest != (approval["edited_digest"] or approval["digest"]):
        detail = "what was agreed to is not what would be called now; nothing was called"
        return Person(Why.REVIEW, detail, step, {"agreed": approval["digest"], "actual": digest})
    key = row["key"]
    if known.edited_args is not None and row["identity"] is None:
        key = key_of(hold.run_id, step, request.tool.name, request.tool.args_hash(args))
    call_ = contract(request, args, key, now, row["identity"], recorded)
    if row["attempts"]:
        call_.key_until = row["key_until"]  # the other side counts from the first attempt
    doubt = bool(row["attempts"]) and row["evidence"] != Evidence.ABSENT
    return (yield from _dispatch(hold, request, call_, digest, None, fold, row["attempts"], doubt))


def _changed(step: str, recorded: object, actual: object) -> Person:
    detail = "what the approval was given on has changed since; nothing was called"
    return Person(Why.REVIEW, detail, step, {"recorded": recorded, "actual": str(actual)[:1000]})


# --- dispatch ----


def _dispatch(
    hold: Hold,
    request: Request,
    call_: Call,
    digest: str | None,
    state: bytes | None,
    fold: Fold,
    attempts: int = 0,
    doubt: bool = False,
) -> Protocol[Rest]:
    """The write-ahead record, and then the call. Nothing is called before the commit has returned.

    `attempts` were made before an approval had to be asked for again; `doubt`, when one of them may have happened.
    """
    tool, step = request.tool, request.step
    if tool.concurrency is not None:
        yield Enter(tool)
    while True:
        now = yield Now()
        deadline = now + timeout_of(tool)
        if call_.key_until is not None and not attempts:
            call_.key_until = key_until_of(tool, now)
        intent = Intend(
            **hold.by, step=step, call=call_, worker=hold.worker, deadline=deadline, digest=digest, state=state
        )
        try:
            yield from commit(hold, intent)
        except BreakerOpen as breaker:
            rest = yield from probe(hold, step, breaker, now, deadline)
            if rest is not None:
                return rest
            continue
        except Frozen:
            return Waiting(f"freeze:{tool.name}", None)
        except StopRequested:
            return Stop()
        except PreconditionFailed as refused:
            if digest is None:
                raise
            return Person(Why.REVIEW, str(refused), step)
        break
    flight = Flight(
        tool=tool,
        step=step,
        args=dict(call_.args),  # type: ignore[call-overload]
        key=call_.key,
        key_until=call_.key_until,
        n=attempts + 1,
        deadline=deadline,
        started_at=now,
        doubt=doubt,
        worker=hold.worker,
        undoes=request.undoes,
        preconditions=call_.preconditions,
    )
    if doubt and not flight.key_holds(now):  # while a person was asked, the other side has forgotten the key
        words = "the other side no longer knows its key, and an earlier attempt may have happened; it was not made"
        flight.answer = Answered(Answer.NONE, error_class="KeyRunOut", error=words, sent=False)
    return (yield from fly(hold, flight, fold))
