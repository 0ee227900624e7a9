"""An operation between its intent and its outcome: attempt, look, judge; again, or settled, or left to a person.

`fly` goes on from an attempt that has begun, `recover` from one that was found in the record without an end, and
`look_again` when a person asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from walkback import outcomes
from walkback.errors import LeaseLost
from walkback.evidence import Evidence as Finding
from walkback.outcomes import Standing, Verdict
from walkback.terms import (
    PATIENCE,
    SECOND,
    Fold,
    Hold,
    Request,
    Rest,
    Settled,
    Waiting,
    commit,
    contract,
    digest_of,
    micros,
    op_for,
    timeout_of,
    unknown_rest,
)
from walkback.tools import Tool, Undone
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
    NoToken,
    PreconditionFailed,
    StaleFence,
)
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import (
    AppendLateEvidence,
    AskApproval,
    EndAttempt,
    RecordRecovery,
    RecordVerification,
    Settle,
    StartAttempt,
)
from walkback_store.machine.store_wide import (
    ProbeService,
    ServiceAnswered,
    ServiceFailed,
    TakeToken,
)
from walkback_store.words import Answer, Effect, Evidence, OperationStatus

O = OperationStatus  # noqa: E741
FIRST_LOOK = SECOND // 5
LOOKS = 3
"""So often a verify that cannot tell is asked at once, where no settle time says how long to go on."""


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
        return self.key_until is not None and now + timeout_of(self.tool) <= self.key_until

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
            op = op_for(hold, flight, flight.args, flight.key, flight.n, flight.deadline, answer.output)
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
        if flight.recovering and verdict is not Verdict.LOOK_AGAIN:  # the four answers are given once, at the end
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
    op = op_for(hold, flight, flight.args, flight.key, flight.n, flight.deadline, None, flight.preconditions)
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


# --- again ----


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
        deadline = now + timeout_of(tool)
        try:
            yield from commit(hold, StartAttempt(**hold.by, step=step, worker=hold.worker, deadline=deadline))
        except BreakerOpen as breaker:
            rest = yield from probe(hold, step, breaker, now, deadline)
            if rest is not None:
                return rest
            continue
        except Frozen:
            return Waiting(f"freeze:{tool.name}", None)
        except PreconditionFailed as refused:
            return (yield from _ask_again(hold, flight, refused))
        break
    flight.n += 1
    flight.deadline, flight.worker = deadline, hold.worker
    flight.doubt = not proven
    flight.answer, flight.ended, flight.ordered, flight.due, flight.looks = None, False, False, False, 0
    return None


def probe(hold: Hold, step: str, breaker: BreakerOpen, now: int, until: int) -> Protocol[Rest | None]:
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


def _ask_again(hold: Hold, flight: Flight, refused: PreconditionFailed) -> Protocol[Rest]:
    """The approval has run out before this attempt: the same call is put before a person once more."""
    detail = yield Look(lambda store: store.operation(hold.run_id, flight.step))
    if not detail.approvals:
        raise refused
    approval = detail.approvals[-1]
    again = Request(step=flight.step, tool=flight.tool, args=flight.args, rule=approval["rule"], undoes=flight.undoes)
    now = yield Now()
    call_ = contract(again, flight.args, flight.key or "", now, detail.operation["identity"], flight.preconditions)
    span = flight.tool.approval_expires
    expires_at = None if span is None else now + micros(span)
    digest = digest_of(again, hold.run_id, flight.args, flight.preconditions)
    ask = AskApproval(
        **hold.by, step=flight.step, call=call_, digest=digest, rule=approval["rule"], expires_at=expires_at
    )
    yield from commit(hold, ask)
    return Waiting(f"approval:{flight.step}", expires_at)


def _check_fresh(hold: Hold, flight: Flight, proven: bool, fold: Fold) -> Protocol[Rest | None]:
    """Nothing is tried again on the strength of an observation that does not hold any more."""
    op = op_for(hold, flight, flight.args, flight.key, flight.n, flight.deadline, None, flight.preconditions)
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


# --- the outcome ----


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
    if not succeeded:
        error_class, error = _why_not(answer, evidence, finding)
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


def _why_not(answer: Answered, evidence: Evidence | None, finding: Finding | None) -> tuple[str, str]:
    """For people: what the attempt said, and what looking for it showed."""
    said, shown = answer.error, ""
    if evidence is Evidence.PARTIAL and finding is not None:
        shown = f"only a part of it is there: done {finding.done!r}, missing {finding.missing!r}"
    elif evidence is Evidence.CANNOT_TELL and finding is not None:
        shown = f"verify cannot tell: {finding.detail}"
    elif evidence in {Evidence.ABSENT, Evidence.ABSENT_SO_FAR}:
        shown = "verify does not find it"
    if answer.kind is Answer.ACKNOWLEDGED:
        said = "it was acknowledged"
    kind = "PartialSuccess" if evidence is Evidence.PARTIAL else answer.error_class or "NotFound"
    return kind, "; ".join(filter(None, (said, shown)))[:1000] or "no answer came, and nobody can look"


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


# --- reads ----


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


# --- what was found in flight ----


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
    op = op_for(hold, flight, flight.args, flight.key, flight.n, flight.deadline, None)
    finding: Finding = yield Verify(tool, op)
    now = yield Now()
    evidence = outcomes.weigh(Evidence(finding.kind), now, flight.final_from)
    outcome = O.SUCCEEDED if evidence is Evidence.HAPPENED else O.UNKNOWN
    flight.ended = True
    answer = flight.answer or Answered(Answer.NONE, error_class="NoAnswer")
    if outcome is O.SUCCEEDED and answer.output is None:
        answer = Answered(Answer.NONE)  # the result is what was found
    return (yield from _settle(hold, flight, answer, evidence, finding, outcome, None))
