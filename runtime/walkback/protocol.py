"""The write-ahead protocol: what is written down before a tool is called, what is looked at after it, and what is
believed. Read this file first.

Everything here is a generator without I/O. It yields a wish (`wishes`) and is sent what came of it; it has no clock, no
randomness and no database. So the same lines run with threads, on an event loop, and in a simulation that stops them at
every yield.

    a write   intent ─▶ call with the key ─▶ verify ─▶ outcome          two durable commits
    a read    start (relaxed) ─▶ call ─▶ result

`call` is the way in: it goes on from wherever the record of a step ends. `recover` is the same for an operation that
was found in flight. Both end in a rest: the operation is settled, or the run has to wait, or a person has to look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from walkback import outcomes
from walkback.errors import LeaseLost
from walkback.evidence import Evidence as Finding
from walkback.outcomes import Standing, Verdict
from walkback.tools import Op, Registry, Tool, Undone
from walkback.wishes import (
    Answered,
    CannotObserve,
    Commit,
    Enter,
    Invoke,
    IsDead,
    Jitter,
    Look,
    Now,
    Observe,
    Protocol,
    Verify,
    Wait,
)
from walkback_store.errors import (
    BreakerOpen,
    Frozen,
    IdentityTaken,
    KeyConflict,
    NoToken,
    PreconditionFailed,
    StaleFence,
    StopRequested,
)
from walkback_store.log import Row
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import (
    AppendLateEvidence,
    AskApproval,
    Call,
    DenyOperation,
    EndAttempt,
    Intend,
    RecordRecovery,
    RecordVerification,
    Refer,
    Settle,
    StartAttempt,
)
from walkback_store.machine.people import ExpireApproval
from walkback_store.machine.store_wide import (
    ClaimIdentity,
    ProbeService,
    ServiceAnswered,
    ServiceFailed,
    TakeToken,
)
from walkback_store.values import fingerprint
from walkback_store.words import Answer, Effect, Evidence, OperationStatus, Why

O = OperationStatus  # noqa: E741
SECOND = 1_000_000
PATIENCE = 5 * SECOND
"""A wait longer than this holds no thread: the run parks and is woken."""
FIRST_LOOK = SECOND // 5
LOOKS = 3
"""So often a verify that cannot tell is asked at once, where no settle time says how long to go on."""
FOREVER = 1 << 62
KEY_CONFLICT, PRECONDITIONS = "key conflict", "preconditions"
"""Rules under which the runtime itself denies a call."""
APPROVAL_EXPIRED = "approval expired"


# --- who, what, and how it can end -------------------------------------------------------------------------------


@dataclass(slots=True)
class Hold:
    """A run in a worker's hands. The fence goes with every write."""

    run_id: str
    worker: str
    row: Row
    """The run as the last commit left it."""
    registry: Registry
    troubled: set[str] = field(default_factory=set)
    """Services that did not answer lately, as far as this worker knows: an answer of theirs is worth recording."""

    @property
    def by(self) -> dict[str, Any]:
        return {"actor": self.actor, "run_id": self.run_id, "fence": self.row["fence"]}

    @property
    def actor(self) -> str:
        return f"worker:{self.worker}"


@dataclass(slots=True, kw_only=True)
class Request:
    """One call, as the agent asks for it."""

    step: str
    tool: Tool
    args: dict[str, object]
    scope: str | None = None
    rule: str | None = None
    """Why a person must agree first; None when nobody has to."""
    undoes: Undone | None = None

    @property
    def args_hash(self) -> str:
        return self.tool.args_hash(self.args)


@dataclass(slots=True, kw_only=True)
class Settled:
    """The operation has an outcome, and it is in the log."""

    step: str
    tool: str
    status: str
    result: object = None
    error_class: str | None = None
    error: str | None = None
    rule: str | None = None
    """Of a call that was denied: what denied it."""
    drift: Sequence[str] = ()


@dataclass(slots=True)
class Waiting:
    """Nothing can be done now. The run parks, and holds no thread."""

    waits_for: str
    wake_at: int | None


@dataclass(slots=True)
class Person:
    """A person has to look."""

    why: Why
    detail: str
    step: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Stop:
    """Somebody asked the run to pause or cancel, and this is a boundary."""


Rest: TypeAlias = Settled | Waiting | Person | Stop
Fold: TypeAlias = Callable[[object], bytes] | None
"""The agent's state with a result in it, for `into=`."""


def commit(hold: Hold, *transitions: Transition) -> Protocol[None]:
    done = yield Commit(transitions)
    for committed in done:
        if committed.run is not None and committed.run["run_id"] == hold.run_id:
            hold.row = committed.run


# --- keys --------------------------------------------------------------------------------------------------------


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")


def key_of(run_id: str, step: str, tool: str, args_hash: str) -> str:
    """The same across retries, restarts and handovers; no two operations share one."""
    return ":".join((_escaped(run_id), _escaped(step), _escaped(tool), args_hash[:16]))


def identity_key(tool: str, identity: str, generation: int) -> str:
    """No run's id begins with `@`, so it never meets the key of an operation without an identity."""
    return f"@{_escaped(tool)}:{_escaped(identity)}:{generation}"


def digest_of(request: Request, run_id: str, args: dict[str, object], preconditions: object) -> str:
    """What a person agrees to."""
    tool = request.tool
    said = [tool.name, tool.version, tool.args_hash(args), run_id, request.step, request.rule, preconditions]
    return fingerprint(said)


def micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(min(at, 253_402_300_799 * SECOND) / SECOND, UTC)


# --- the way in --------------------------------------------------------------------------------------------------


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
            seen = yield Observe(tool, _op(hold, request, args, key, 1, now + _timeout(tool), None))
        except CannotObserve as error:
            return (yield from _deny(hold, request, state, PRECONDITIONS, f"its preconditions: {error}"))
    call_ = _contract(request, args, key, now, identity, seen)
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


def _contract(
    request: Request, args: dict[str, object], key: str, now: int, identity: str | None, seen: object
) -> Call:
    tool = request.tool
    write = tool.effect == Effect.WRITE
    stake, stake_value = tool.stake_of(args)
    return Call(
        tool=tool.name,
        tool_version=tool.version,
        effect=Effect(tool.effect),
        service=tool.service,
        args=args,
        args_hash=tool.args_hash(args),
        key=key if write else None,
        key_until=_key_until(tool, now) if write else None,
        identity=identity,
        description=tool.describe_call(args),
        stake=stake,
        stake_value=stake_value,
        can_verify=tool.verify is not None,
        compensate=tool.compensate_name,
        scope=request.scope,
        compensates=None if request.undoes is None else request.undoes.step,
        preconditions=seen,
        expects=tool.expects if tool.verify is not None else None,
    )


def _key_until(tool: Tool, now: int) -> int | None:
    if tool.idempotent is True:
        return FOREVER
    return now + micros(tool.idempotent) if isinstance(tool.idempotent, timedelta) else None


def _timeout(tool: Tool) -> int:
    return int(tool.timeout * SECOND)


def _op(
    hold: Hold,
    request: Request | Flight,
    args: dict[str, object],
    key: str | None,
    attempt: int,
    deadline: int,
    output: object,
    seen: object = None,
) -> Op:
    return Op(
        run_id=hold.run_id,
        step=request.step,
        tool=request.tool.name,
        key=key or "",
        attempt=attempt,
        deadline=moment(deadline),
        args=args,
        timeout=request.tool.timeout,
        output=output,
        found_before=seen,
        undoes=request.undoes,
    )


def _deny(hold: Hold, request: Request, state: bytes | None, rule: str, reason: str) -> Protocol[Rest]:
    """The runtime itself says no; it is recorded, so that a replay hears the same."""
    now = yield Now()
    call_ = _contract(request, request.args, "", now, None, None)
    call_.key = None
    yield from commit(
        hold, DenyOperation(**hold.by, step=request.step, call=call_, rule=rule, reason=reason, state=state)
    )
    return Settled(step=request.step, tool=request.tool.name, status=O.DENIED, error=reason, rule=rule)


# --- a business identity: one owner at a time --------------------------------------------------------------------


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
            call_ = _contract(request, request.args, "", now, identity, None)
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


# --- approvals: durable waits that hold no thread ----------------------------------------------------------------


def _go_on_after_asking(hold: Hold, request: Request, fold: Fold, known: Known) -> Protocol[Rest]:
    approval = known.approval or {}
    step, now = request.step, (yield Now())
    if approval["expires_at"] is not None and approval["expires_at"] <= now:
        expire = ExpireApproval(actor=hold.actor, run_id=hold.run_id, step=step, n=approval["n"])
        yield from commit(hold, expire)
        detail = yield Look(lambda store: store.operation(hold.run_id, step))
        known.operation, known.rule = detail.operation, APPROVAL_EXPIRED
        return known.rest()
    if approval["status"] == "asked":
        return Waiting(f"approval:{step}", approval["expires_at"])
    if approval["not_before"] is not None and approval["not_before"] > now:
        return Waiting(f"approval:{step}", approval["not_before"])
    args = request.args if known.edited_args is None else known.edited_args
    seen, recorded = None, known.asked.get("preconditions")
    row = known.operation
    if request.tool.preconditions is not None:
        try:
            seen = yield Observe(request.tool, _op(hold, request, args, row["key"], 1, now, None, recorded))
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
    call_ = _contract(request, args, key, now, row["identity"], recorded)
    doubt = bool(row["attempts"]) and row["evidence"] != Evidence.ABSENT
    return (yield from _dispatch(hold, request, call_, digest, None, fold, row["attempts"], doubt))


def _ask_again(hold: Hold, flight: Flight) -> Protocol[Rest]:
    """The approval has run out before this attempt: the same call is put before a person once more."""
    detail = yield Look(lambda store: store.operation(hold.run_id, flight.step))
    approval = detail.approvals[-1]
    again = Request(step=flight.step, tool=flight.tool, args=flight.args, rule=approval["rule"], undoes=flight.undoes)
    now = yield Now()
    call_ = _contract(again, flight.args, flight.key or "", now, detail.operation["identity"], flight.preconditions)
    span = flight.tool.approval_expires
    expires_at = None if span is None else now + micros(span)
    digest = digest_of(again, hold.run_id, flight.args, flight.preconditions)
    ask = AskApproval(
        **hold.by, step=flight.step, call=call_, digest=digest, rule=approval["rule"], expires_at=expires_at
    )
    yield from commit(hold, ask)
    return Waiting(f"approval:{flight.step}", expires_at)


def _changed(step: str, recorded: object, actual: object) -> Person:
    detail = "what the approval was given on has changed since; nothing was called"
    return Person(Why.REVIEW, detail, step, {"recorded": recorded, "actual": str(actual)[:1000]})


# --- dispatch ----------------------------------------------------------------------------------------------------


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
        deadline = now + _timeout(tool)
        if call_.key_until is not None:
            call_.key_until = _key_until(tool, now)
        intent = Intend(
            **hold.by, step=step, call=call_, worker=hold.worker, deadline=deadline, digest=digest, state=state
        )
        try:
            yield from commit(hold, intent)
        except BreakerOpen as breaker:
            rest = yield from _probe(hold, step, breaker, now, deadline)
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
    return (yield from fly(hold, flight, fold))


def _probe(hold: Hold, step: str, breaker: BreakerOpen, now: int, until: int) -> Protocol[Rest | None]:
    """The breaker of the service is open. Once its time is up, one call may find out whether it answers again."""
    hold.troubled.add(breaker.service)
    waits = f"freeze:{breaker.service}"
    if breaker.until is None or breaker.until > now:
        return Waiting(waits, breaker.until)
    probe = ProbeService(actor=hold.actor, service=breaker.service, place=f"{hold.run_id}#{step}", until=until)
    try:
        yield Commit((probe,))
    except PreconditionFailed:  # another was faster, or it has closed
        return Waiting(waits, now + SECOND)
    return None


# --- in flight ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Flight:
    """An operation between its intent and its outcome."""

    tool: Tool
    step: str
    args: dict[str, object]
    key: str | None
    key_until: int | None
    n: int
    """The last attempt's number, its deadline, and who made it."""
    deadline: int
    worker: str
    started_at: int
    undoes: Undone | None = None
    preconditions: object = None
    answer: Answered | None = None
    """What the last attempt answered; None while that is not known."""
    ended: bool = False
    """The answer is in the log."""
    doubt: bool = False
    """An attempt before the last one may have happened."""
    evidence: Evidence | None = None
    """The evidence that is in the log."""
    looks: int = 0
    ordered: bool = False
    """A person said: it did not happen, try again. That counts for one attempt."""
    due: bool = False
    """The pause before the next attempt is over already."""
    recovering: bool = False
    news: list[Transition] = field(default_factory=list)
    """About the service, to be committed with whatever is committed next."""

    @property
    def final_from(self) -> int | None:
        """From when on *absent* is absent for good."""
        settle = self.tool.settle
        return None if settle is None else self.deadline + micros(settle)

    def key_holds(self, now: int) -> bool:
        return self.key_until is not None and now + _timeout(self.tool) <= self.key_until

    def standing(self, now: int) -> Standing:
        final_from = self.final_from
        return Standing(
            key_holds=self.key_holds(now),
            settles=final_from is not None,
            doubt=self.doubt,
            may_look=self.looks < LOOKS or (final_from is not None and now < final_from),
        )

    def budget_left(self, now: int) -> bool:
        retry = self.tool.retry
        stopped = self.answer is not None and self.answer.stop
        return not stopped and self.n < retry.attempts and now - self.started_at < micros(retry.elapsed)


def fly(hold: Hold, flight: Flight, fold: Fold) -> Protocol[Rest]:
    """Attempt, look, judge; until there is an outcome or nothing to do but wait."""
    try:
        if flight.tool.effect == Effect.READ:
            return (yield from _read(hold, flight, fold))
        return (yield from _write(hold, flight, fold))
    except StaleFence as stale:
        # What was learned is worth keeping, and is all that this worker may still say.
        answer = flight.answer
        if answer is not None and not flight.ended and answer.sent:
            yield from tell_late(hold, flight.tool, flight.step, flight.n, answer)
        raise LeaseLost(str(stale)) from stale


def _write(hold: Hold, flight: Flight, fold: Fold) -> Protocol[Rest]:
    tool = flight.tool
    while True:
        answer = flight.answer
        if answer is None:
            answer = yield from _attempt(hold, flight)
        finding: Finding | None = None
        if tool.verify is not None and _worth_a_look(flight, answer):
            op = _op(hold, flight, flight.args, flight.key, flight.n, flight.deadline, answer.output)
            finding = yield Verify(tool, op)
            flight.looks += 1
        now = yield Now()
        evidence = None if finding is None else outcomes.weigh(Evidence(finding.kind), now, flight.final_from)
        if not answer.sent and not flight.doubt:
            evidence = Evidence.ABSENT
        standing = flight.standing(now)
        verdict = outcomes.judge(answer.kind, evidence, standing)
        if flight.ordered:
            verdict = Verdict.RETRY if evidence is not Evidence.HAPPENED else Verdict.SUCCEEDED
        elif verdict is Verdict.RETRY and not flight.budget_left(now):
            verdict = outcomes.when_spent(answer.kind, evidence)
        if verdict is Verdict.UNKNOWN and (yield from _may_still_be_sent(flight, answer, now)):
            yield from _put_down(hold, flight, answer, evidence, finding)
            return Waiting(f"attempt:{flight.step}", flight.deadline)
        if flight.recovering:
            flight.recovering = False
            flight.news.insert(0, _recovery(hold, flight, answer.kind, evidence, standing, verdict))
        if verdict is Verdict.LOOK_AGAIN:
            yield from _put_down(hold, flight, answer, evidence, finding)
            rest = yield from _until_next_look(flight, now)
        elif verdict is Verdict.RETRY:
            yield from _put_down(hold, flight, answer, evidence, finding)
            rest = yield from _again(hold, flight, evidence, now, fold)
        else:
            return (yield from _settle(hold, flight, answer, evidence, finding, O(verdict.value), fold))
        if rest is not None:
            return rest


def _may_still_be_sent(flight: Flight, answer: Answered, now: int) -> Protocol[bool]:
    """By a worker that was taken for dead and only sleeps. Nobody is asked to decide before that is ruled out."""
    if answer.kind is not Answer.NONE or not answer.sent or now >= flight.deadline:
        return False
    return not (yield IsDead(flight.worker))


def _worth_a_look(flight: Flight, answer: Answered) -> bool:
    """A first attempt that was rejected for good, or never sent, leaves nothing to look for."""
    return flight.doubt or (answer.sent and answer.kind is not Answer.REJECTED)


def _attempt(hold: Hold, flight: Flight) -> Protocol[Answered]:
    op = _op(hold, flight, flight.args, flight.key, flight.n, flight.deadline, None, flight.preconditions)
    n = flight.n
    answer: Answered = yield Invoke(
        flight.tool,
        flight.args,
        op,
        flight.deadline,
        late=lambda answer: tell_late(hold, flight.tool, flight.step, n, answer),
    )
    flight.answer = answer
    flight.news += _about_service(hold, flight.tool, answer)
    return answer


def _about_service(hold: Hold, tool: Tool, answer: Answered) -> list[Transition]:
    if tool.service is None or tool.breaker is None or not answer.sent:
        return []
    if answer.kind in {Answer.ACKNOWLEDGED, Answer.REJECTED}:
        if tool.service not in hold.troubled:
            return []
        hold.troubled.discard(tool.service)
        return [ServiceAnswered(actor=hold.actor, service=tool.service)]
    hold.troubled.add(tool.service)
    return [
        ServiceFailed(
            actor=hold.actor,
            service=tool.service,
            reason=f"{tool.name}: {answer.error_class or 'no answer'}"[:200],
            threshold=tool.breaker.failures,
            cooldown=micros(tool.breaker.cooldown),
        )
    ]


def _put_down(
    hold: Hold, flight: Flight, answer: Answered, evidence: Evidence | None, finding: Finding | None
) -> Protocol[None]:
    """What is known so far, before anything is waited for."""
    by: dict[str, Any] = hold.by | {"step": flight.step}
    transitions: list[Transition] = []
    if not flight.ended:
        transitions.append(_ended(by, answer))
    if evidence is not None and evidence != flight.evidence:
        found = None if finding is None else finding.record()
        transitions.append(RecordVerification(**by, evidence=evidence, found=found))
    transitions += flight.news
    if transitions:
        yield from commit(hold, *transitions)
    flight.ended, flight.news = True, []
    flight.evidence = evidence or flight.evidence


def _ended(by: dict[str, Any], answer: Answered, *, abandoned: bool = False) -> EndAttempt:
    return EndAttempt(
        **by,
        answer=answer.kind,
        output=answer.output,
        error_class=answer.error_class,
        error=answer.error,
        abandoned=abandoned,
        data=_facts(answer),
    )


def _facts(answer: Answered) -> dict[str, Any]:
    """What a later reader needs beside the answer itself."""
    facts = dict(answer.data)
    if answer.stop:
        facts["stop"] = True
    if not answer.sent:
        facts["sent"] = False
    if answer.problems:
        facts["drift"] = list(answer.problems)
    return facts


def _until_next_look(flight: Flight, now: int) -> Protocol[Rest | None]:
    at = now + min(FIRST_LOOK << min(flight.looks, 20), PATIENCE)
    final_from = flight.final_from
    if final_from is not None and now < final_from:
        at = min(at, final_from)
        if final_from - now > PATIENCE and flight.looks > LOOKS:
            return Waiting(f"verify:{flight.step}", min(final_from, now + 4 * PATIENCE))
    yield Wait(at)
    return None


def _again(hold: Hold, flight: Flight, evidence: Evidence | None, now: int, fold: Fold) -> Protocol[Rest | None]:
    """Another attempt, when its time has come. None: the loop goes on."""
    tool, answer = flight.tool, flight.answer
    at = now
    if not flight.due and not flight.ordered:
        jitter = yield Jitter()
        at = now + micros(tool.retry.delay(flight.n, jitter))
    silent = answer is not None and answer.kind is Answer.NONE and answer.sent and tool.effect == Effect.WRITE
    if silent and not (yield IsDead(flight.worker)):
        at = max(at, flight.final_from or flight.deadline)  # one live attempt: the first may still be on its way
    if at - now > PATIENCE:
        return Waiting(f"retry:{flight.step}", at)
    if at > now:
        yield Wait(at)
    now = yield Now()
    proven = evidence is Evidence.ABSENT or flight.ordered
    if not proven and not flight.key_holds(now):
        return None  # the key has run out meanwhile: judge again
    if flight.preconditions is not None and tool.preconditions is not None:
        rest = yield from _check_fresh(hold, flight, proven, fold)
        if rest is not None:
            return rest
    if not flight.ordered:
        try:
            yield Commit(
                (
                    TakeToken(
                        actor=hold.actor,
                        tool=tool.name,
                        capacity=tool.retry.tokens,
                        per_second=tool.retry.tokens_per_second,
                    ),
                )
            )
        except NoToken as none:
            flight.due = True
            if none.at - now > PATIENCE:
                return Waiting(f"retry:{flight.step}", none.at)
            yield Wait(none.at)
            return None
    return (yield from _start_attempt(hold, flight, proven))


def _start_attempt(hold: Hold, flight: Flight, proven: bool) -> Protocol[Rest | None]:
    tool, step = flight.tool, flight.step
    if tool.concurrency is not None:
        yield Enter(tool)
    while True:
        now = yield Now()
        deadline = now + _timeout(tool)
        try:
            yield from commit(hold, StartAttempt(**hold.by, step=step, worker=hold.worker, deadline=deadline))
        except BreakerOpen as breaker:
            rest = yield from _probe(hold, step, breaker, now, deadline)
            if rest is not None:
                return rest
            continue
        except Frozen:
            return Waiting(f"freeze:{tool.name}", None)
        except PreconditionFailed:
            return (yield from _ask_again(hold, flight))
        break
    flight.n += 1
    flight.deadline, flight.worker = deadline, hold.worker
    flight.doubt = not proven
    flight.answer, flight.ended, flight.ordered, flight.due, flight.looks = None, False, False, False, 0
    return None


def _check_fresh(hold: Hold, flight: Flight, proven: bool, fold: Fold) -> Protocol[Rest | None]:
    """Nothing is tried again on the strength of an observation that does not hold any more."""
    op = _op(hold, flight, flight.args, flight.key, flight.n, flight.deadline, None, flight.preconditions)
    try:
        seen = yield Observe(flight.tool, op)
    except CannotObserve as unseen:
        seen = f"cannot be read: {unseen}"
    if seen == flight.preconditions:
        return None
    error = f"its preconditions have changed: {flight.preconditions!r} was recorded, now {seen!r}"[:1000]
    outcome = O.FAILED if proven else O.UNKNOWN
    answer = Answered(Answer.NONE, error_class="PreconditionsChanged", error=error)
    return (yield from _settle(hold, flight, answer, None, None, outcome, fold))


def _settle(
    hold: Hold,
    flight: Flight,
    answer: Answered,
    evidence: Evidence | None,
    finding: Finding | None,
    outcome: OperationStatus,
    fold: Fold,
) -> Protocol[Rest]:
    """The outcome, with the answer and the evidence it rests on, in one commit."""
    acknowledged = answer.kind is Answer.ACKNOWLEDGED
    result = answer.output if acknowledged else None if finding is None else finding.found
    succeeded = outcome is O.SUCCEEDED
    error_class, error = answer.error_class, answer.error
    if not succeeded and error_class is None:
        error_class, error = _why_not(evidence, finding)
    settle = Settle(
        **hold.by,
        step=flight.step,
        outcome=outcome,
        result=result if succeeded and (not acknowledged or flight.ended) else None,
        answer=None if flight.ended else answer.kind,
        output=None if flight.ended else answer.output,
        evidence=evidence,
        found=None if finding is None else finding.record(),
        error_class=None if succeeded else error_class,
        error=None if succeeded else error,
        data=_facts(answer),
        state=fold(result) if fold is not None and succeeded else None,
    )
    before, after = _around(flight.news)
    yield from commit(hold, *before, settle, *after)
    flight.ended, flight.news = True, []
    if outcome is O.UNKNOWN:
        return unknown_rest(flight.tool.name, flight.step, error_class, error, evidence)
    return Settled(
        step=flight.step,
        tool=flight.tool.name,
        status=outcome,
        result=result,
        error_class=error_class,
        error=error,
        drift=answer.problems,
    )


def _around(news: list[Transition]) -> tuple[list[Transition], list[Transition]]:
    """The answers to the four questions come before the outcome, word about the service after it."""
    return [t for t in news if isinstance(t, RecordRecovery)], [t for t in news if not isinstance(t, RecordRecovery)]


def _why_not(evidence: Evidence | None, finding: Finding | None) -> tuple[str, str]:
    if evidence is Evidence.PARTIAL and finding is not None:
        return "PartialSuccess", f"done: {finding.done!r}; missing: {finding.missing!r}"[:1000]
    if evidence is Evidence.CANNOT_TELL and finding is not None:
        return "NoAnswer", f"no answer, and verify cannot tell: {finding.detail}"[:1000]
    if evidence in {Evidence.ABSENT, Evidence.ABSENT_SO_FAR}:
        return "NotFound", "it was acknowledged, or may have been made, and verify does not find it"
    return "NoAnswer", "no answer came, and nobody can look"


def unknown_rest(tool: str, step: str, error_class: str | None, error: str | None, evidence: str | None) -> Person:
    detail = f"nobody can say whether {tool} happened: {error_class}: {error}"
    return Person(Why.UNKNOWN, detail, step, {"evidence": evidence})


def _recovery(
    hold: Hold,
    flight: Flight,
    answer: Answer,
    evidence: Evidence | None,
    standing: Standing,
    verdict: Verdict,
) -> RecordRecovery:
    said = outcomes.four_answers(
        attempt=flight.n, worker=flight.worker, answer=answer, evidence=evidence, standing=standing, verdict=verdict
    )
    return RecordRecovery(
        **hold.by,
        step=flight.step,
        attempted=said.attempted,
        acknowledged=said.acknowledged,
        proven=said.proven,
        retry_safe=said.retry_safe,
        verdict=said.verdict,
    )


def tell_late(hold: Hold, tool: Tool, step: str, n: int, answer: Answered) -> Protocol[None]:
    """Late evidence: the one unfenced word. It changes nothing, except to say that there may be two effects."""
    detail = yield Look(lambda store: store.operation(hold.run_id, step))
    row = detail.operation
    later = [a for a in detail.attempts if a["n"] > n]
    protected = row["key_until"] is not None and all(a["started_at"] <= row["key_until"] for a in later)
    twice = bool(later) and not protected
    suspected = (
        tool.effect == Effect.WRITE
        and answer.kind is Answer.ACKNOWLEDGED
        and (twice or row["status"] in {O.FAILED, O.DENIED})
    )
    data = {"attempt": n, "answer": answer.kind, "output": answer.output, "worker": hold.worker}
    if answer.error_class is not None:
        data |= {"error_class": answer.error_class, "error": answer.error}
    late = AppendLateEvidence(actor=hold.actor, run_id=hold.run_id, step=step, data=data, duplicate_suspected=suspected)
    yield Commit((late,))


# --- reads -------------------------------------------------------------------------------------------------------


def _read(hold: Hold, flight: Flight, fold: Fold) -> Protocol[Rest]:
    """A read may be made again whenever it did not answer, so it is never unknown."""
    while True:
        answer = flight.answer or (yield from _attempt(hold, flight))
        now = yield Now()
        if answer.kind is Answer.ACKNOWLEDGED:
            return (yield from _settle(hold, flight, answer, None, None, O.SUCCEEDED, fold))
        if answer.kind is Answer.REJECTED or not flight.budget_left(now):
            if answer.error_class is None:
                answer.error_class, answer.error = "NoAnswer", f"no answer within {flight.tool.timeout:g} s"
            return (yield from _settle(hold, flight, answer, None, None, O.FAILED, fold))
        yield from _put_down(hold, flight, answer, None, None)
        rest = yield from _again(hold, flight, Evidence.ABSENT, now, fold)
        if rest is not None:
            return rest


# --- recovery ----------------------------------------------------------------------------------------------------


def recover(hold: Hold, flight: Flight, fold: Fold) -> Protocol[Rest]:
    """An operation found in flight is settled before any code of the agent's runs again.

    With the recorded key, arguments and version. `flight.answer` is what the record has of the last attempt; where it
    has nothing, the attempt is given up first, and its process must be gone or its time over.
    """
    if flight.answer is None:
        flight.answer = Answered(Answer.NONE, error_class="NoAnswer", error=f"{flight.worker} gave no answer")
        by = hold.by | {"step": flight.step}
        try:
            yield from commit(hold, _ended(by, flight.answer, abandoned=True))
        except PreconditionFailed:  # it may still be under way
            return Waiting(f"attempt:{flight.step}", flight.deadline)
        except StaleFence as stale:
            raise LeaseLost(str(stale)) from stale
        flight.recovering = flight.tool.effect == Effect.WRITE
        flight.started_at = yield Now()  # the time for which nobody worked on it is not taken from its budget
    flight.ended = True
    return (yield from fly(hold, flight, fold))


def look_again(hold: Hold, flight: Flight) -> Protocol[Rest]:
    """A person asked to verify an unknown once more. Only what is found settles it; absent is for them to judge."""
    tool = flight.tool
    op = _op(hold, flight, flight.args, flight.key, flight.n, flight.deadline, None)
    finding: Finding = yield Verify(tool, op)
    now = yield Now()
    evidence = outcomes.weigh(Evidence(finding.kind), now, flight.final_from)
    outcome = O.SUCCEEDED if evidence is Evidence.HAPPENED else O.UNKNOWN
    flight.ended = True
    answer = flight.answer or Answered(Answer.NONE)
    if outcome is O.UNKNOWN:
        answer = Answered(answer.kind, None, *_why_not(evidence, finding))
    elif answer.kind is Answer.ACKNOWLEDGED and answer.output is None:
        answer = Answered(Answer.NONE)
    return (yield from _settle(hold, flight, answer, evidence, finding, outcome, None))
