"""The table: what an answer and a piece of evidence together say about a write, and what may be done next.

Pure. Every cell is here, and docs/guarantees.md prints the same table from it. An answer is what the other side said to
an attempt; evidence is what reading the world again showed. Where a cell depends on more than the two, it says on what:
whether a retry is protected by the key, whether *absent* can become final, whether an earlier attempt is still in
doubt, and whether looking once more is worth anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from walkback_store.words import Answer, Evidence


class Verdict(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RETRY = "retry"
    """Another attempt is safe: nothing happened for good, or the other side will recognise the key."""
    LOOK_AGAIN = "look again"
    """It is too early to say: read the world again later."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What else matters about an operation at this moment."""

    key_holds: bool
    """A further attempt would arrive while the other side still knows the key."""
    settles: bool
    """The tool says after which time *absent* is final."""
    doubt: bool
    """An attempt before this one may have happened after all."""
    may_look: bool
    """Reading the world again may still show something new."""


Rule = Callable[[Standing], Verdict]


@dataclass(frozen=True, slots=True)
class Cell:
    words: str
    decide: Rule


def _always(verdict: Verdict) -> Cell:
    return Cell(verdict.value, lambda _: verdict)


def _keyed_or_unknown(s: Standing) -> Verdict:
    return Verdict.RETRY if s.key_holds else Verdict.UNKNOWN


def _acknowledged_absent_so_far(s: Standing) -> Verdict:
    return Verdict.LOOK_AGAIN if s.settles or s.may_look else _keyed_or_unknown(s)


def _absent_so_far(s: Standing) -> Verdict:
    if s.key_holds:
        return Verdict.RETRY
    return Verdict.LOOK_AGAIN if s.settles else Verdict.UNKNOWN


def _cannot_tell(s: Standing) -> Verdict:
    if s.key_holds:
        return Verdict.RETRY
    return Verdict.LOOK_AGAIN if s.may_look else Verdict.UNKNOWN


def _look_or(verdict: Verdict) -> Rule:
    return lambda s: Verdict.LOOK_AGAIN if s.may_look else verdict


def _if_in_doubt(then: Rule) -> Rule:
    return lambda s: then(s) if s.doubt else Verdict.FAILED


SUCCEEDED, FAILED, UNKNOWN = _always(Verdict.SUCCEEDED), _always(Verdict.FAILED), _always(Verdict.UNKNOWN)
_NO_ANSWER = {
    Evidence.HAPPENED: SUCCEEDED,
    Evidence.ABSENT: Cell("retry within the budget, then failed", lambda _: Verdict.RETRY),
    Evidence.ABSENT_SO_FAR: Cell("key holds: retry; can settle: look again; else unknown", _absent_so_far),
    Evidence.CANNOT_TELL: Cell("key holds: retry; else look again, then unknown", _cannot_tell),
    Evidence.PARTIAL: UNKNOWN,
    None: Cell("key holds: retry; else unknown", _keyed_or_unknown),
}

TABLE: dict[tuple[Answer, Evidence | None], Cell] = {
    (Answer.ACKNOWLEDGED, Evidence.HAPPENED): SUCCEEDED,
    (Answer.ACKNOWLEDGED, Evidence.ABSENT): Cell("key holds: retry; else unknown", _keyed_or_unknown),
    (Answer.ACKNOWLEDGED, Evidence.ABSENT_SO_FAR): Cell(
        "look again; then key holds: retry; else unknown", _acknowledged_absent_so_far
    ),
    (Answer.ACKNOWLEDGED, Evidence.CANNOT_TELL): Cell(
        "look again, then succeeded on its word", _look_or(Verdict.SUCCEEDED)
    ),
    (Answer.ACKNOWLEDGED, Evidence.PARTIAL): UNKNOWN,
    (Answer.ACKNOWLEDGED, None): SUCCEEDED,
    (Answer.REJECTED, Evidence.HAPPENED): SUCCEEDED,
    (Answer.REJECTED, Evidence.ABSENT): FAILED,
    (Answer.REJECTED, Evidence.ABSENT_SO_FAR): Cell(
        "failed; look again (or unknown) if an earlier attempt is in doubt",
        _if_in_doubt(lambda s: Verdict.LOOK_AGAIN if s.settles else Verdict.UNKNOWN),
    ),
    (Answer.REJECTED, Evidence.CANNOT_TELL): Cell(
        "failed; look again, then unknown, if an earlier attempt is in doubt", _if_in_doubt(_look_or(Verdict.UNKNOWN))
    ),
    (Answer.REJECTED, Evidence.PARTIAL): UNKNOWN,
    (Answer.REJECTED, None): Cell(
        "failed; unknown if an earlier attempt is in doubt", _if_in_doubt(lambda _: Verdict.UNKNOWN)
    ),
    **{(Answer.AMBIGUOUS, evidence): cell for evidence, cell in _NO_ANSWER.items()},
    **{(Answer.NONE, evidence): cell for evidence, cell in _NO_ANSWER.items()},
}


def judge(answer: Answer, evidence: Evidence | None, standing: Standing) -> Verdict:
    """What is known about a write, and what may be done. `evidence` is None where nobody can look."""
    return TABLE[answer, evidence].decide(standing)


def when_spent(answer: Answer, evidence: Evidence | None) -> Verdict:
    """The verdict in place of a retry that the budget does not allow: failed only where nothing happened for good."""
    proven = evidence is Evidence.ABSENT and answer is not Answer.ACKNOWLEDGED
    return Verdict.FAILED if proven else Verdict.UNKNOWN


def weigh(found: Evidence, now: int, final_from: int | None) -> Evidence:
    """*Absent* is final only from a moment that the tool has declared; before it, and without one, it is so far."""
    if found is Evidence.ABSENT and (final_from is None or now < final_from):
        return Evidence.ABSENT_SO_FAR
    return found


@dataclass(frozen=True, slots=True)
class FourAnswers:
    """The four questions of recovery, answered from the record and from the world, never by a model."""

    attempted: str
    acknowledged: str
    proven: str
    retry_safe: str
    verdict: str


def four_answers(
    *, attempt: int, worker: str, answer: Answer, evidence: Evidence | None, standing: Standing, verdict: Verdict
) -> FourAnswers:
    said = {
        Answer.ACKNOWLEDGED: "yes",
        Answer.REJECTED: "no: it was rejected for good",
        Answer.AMBIGUOUS: "no: it ended with an error that proves nothing",
        Answer.NONE: "no: no answer was recorded",
    }
    shown = {
        Evidence.HAPPENED: "yes: verify found it",
        Evidence.ABSENT: "no: verify did not find it, and by now it would",
        Evidence.ABSENT_SO_FAR: "not yet: verify did not find it so far",
        Evidence.CANNOT_TELL: "cannot tell: verify had no answer",
        Evidence.PARTIAL: "in part: verify found some of it",
        None: "no: the tool has no verify",
    }
    if evidence is Evidence.ABSENT and answer is not Answer.ACKNOWLEDGED:
        safe = "yes: nothing happened"
    elif standing.key_holds:
        safe = "yes: the other side still knows the key"
    else:
        safe = "no: a second effect could not be ruled out"
    return FourAnswers(
        attempted=f"yes: attempt {attempt} by {worker}",
        acknowledged=said[answer],
        proven=shown[evidence],
        retry_safe=safe,
        verdict=verdict.value,
    )
