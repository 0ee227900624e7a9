"""Deciding about many operations at once: what each class of them is, and what a decision about all of it comes to.

The confirmation says how many there are, what is at stake and whom it is about, and wants the number typed. The members
are the ones that were shown, by id; what joins the group later is not among them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from walkback_console.deciding import Answers, BadAnswer, risk_of_retry
from walkback_console.plain_words import SECOND, many
from walkback_console.subjects import Subject

if TYPE_CHECKING:
    from walkback_store.log import Row
    from walkback_store.machine.base import Transition

SPACING = SECOND
"""Between two retries of a batch."""
TARGETS_SHOWN = 4

CLASSES = (
    "happened", "absent", "absent so far", "cannot tell", "in part", "not looked at", "asks for approval", "under way",
    "failed", "settled",
)  # fmt: skip
OPEN = frozenset({"absent", "absent so far", "cannot tell", "in part", "not looked at"})
"""Classes that a person can still decide about."""


def class_of(row: Row) -> str:
    """What is known about one member, in words that split a group."""
    if row["status"] == "unknown":
        if row["run_status"] != "needs_operator":
            return "under way"
        return {
            "absent": "absent",
            "absent_so_far": "absent so far",
            "cannot_tell": "cannot tell",
            "partial": "in part",
        }.get(row["evidence"] or "", "not looked at")
    if row["status"] == "succeeded":
        return "happened"
    if row["status"] == "awaiting_approval":
        return "asks for approval"
    if row["status"] == "pending":
        return "under way"
    return "failed" if row["status"] in {"failed", "denied"} else "settled"


def split(rows: Sequence[Row]) -> dict[str, int]:
    """How many there are of each class; those of which there are none are left out."""
    found = dict.fromkeys(CLASSES, 0)
    for row in rows:
        found[class_of(row)] += 1
    return {name: n for name, n in found.items() if n}


def stake_sum(rows: Sequence[Row]) -> str:
    """What is at stake in all, if it can be added up."""
    stakes = [row for row in rows if row["stake"]]
    units = {"".join(c for c in row["stake"] if c not in "0123456789.,+- ") for row in stakes}
    if not stakes:
        return "no stake is declared"
    if len(units) > 1 or any(row["stake_value"] is None for row in stakes):
        return f"{many(len(stakes), 'stake')} in several units"
    unit = units.pop()
    total = f"{sum(row['stake_value'] for row in stakes):,.2f}".removesuffix(".00")
    return f"{unit}{total}" if stakes[0]["stake"].startswith(unit) else f"{total} {unit}"


def summary(rows: Sequence[Row]) -> list[str]:
    """N, the sum at stake, and whom it is about."""
    targets = list(dict.fromkeys(str(row["description"] or row["tool"]) for row in rows))
    shown = "; ".join(targets[:TARGETS_SHOWN])
    more = f"; and {many(len(targets) - TARGETS_SHOWN, 'other')}" if len(targets) > TARGETS_SHOWN else ""
    return [
        f"{many(len(rows), 'operation')}, {stake_sum(rows)} at stake.",
        f"{many(len(targets), 'distinct target')}: {shown}{more}.",
    ]


# --- the actions -------------------------------------------------------------------------------------------------


def undecided(subject: Subject) -> list[Row]:
    return [row for row in subject.members if class_of(row) in OPEN]


def none_open(subject: Subject) -> str | None:
    return None if undecided(subject) else "nothing that is shown waits for a decision"


def none_verifiable(subject: Subject) -> str | None:
    if (why := none_open(subject)) is not None:
        return why
    return None if any(row["can_verify"] for row in undecided(subject)) else "its tool has no verify"


def _typed(answers: Answers, rows: Sequence[Row], *, reason: bool = True) -> str:
    """The reason, if the number typed before it is right."""
    number, _, why = answers.get("confirm", "").strip().partition(" ")
    if number != str(len(rows)):
        raise BadAnswer(f"this is about {len(rows)}: type {len(rows)} first, to show that you know. Nothing was done.")
    if reason and not why.strip():
        raise BadAnswer(f"type {len(rows)} and then why; it is stored with each decision. Nothing was done.")
    return why.strip()


def _each(rows: Sequence[Row], actor: str) -> list[dict[str, Any]]:
    return [{"actor": actor, "run_id": r["run_id"], "step": r["step"], "seen": r["touched"]} for r in rows]


def verify_effects(subject: Subject, _: Answers) -> list[str]:
    rows = [row for row in undecided(subject) if row["can_verify"]]
    return [
        *summary(rows),
        "Workers ask the world about each. What is found is recorded as succeeded, and its run goes on.",
        "The rest comes back here, split by what was found.",
    ]


def verify(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import RequestVerify

    rows = [row for row in undecided(subject) if row["can_verify"]]
    _typed(answers, rows, reason=False)
    return [RequestVerify(**each) for each in _each(rows, actor)]


def fail_effects(subject: Subject, _: Answers) -> list[str]:
    return [
        *summary(undecided(subject)),
        "Each is recorded as not having happened; nothing is called.",
        "Each agent sees a failure, and undoes its transaction if it is in one.",
    ]


def fail(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import RecordAbsent

    rows = undecided(subject)
    reason = _typed(answers, rows)
    return [RecordAbsent(**each, reason=reason) for each in _each(rows, actor)]


def retry_effects(subject: Subject, _: Answers) -> list[str]:
    rows = undecided(subject)
    risks = list(dict.fromkeys(risk_of_retry(row, subject.at) for row in rows))
    return [
        *summary(rows),
        "In 10 s a worker retries ONE. If that succeeds the others follow, a second apart; the first that does not "
        "succeed stops the batch, and the rest stays as it is.",
        *(f"Is that safe? {risk}." for risk in risks),
    ]


def retry(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.store_wide import OpenBatch

    rows = undecided(subject)
    reason = _typed(answers, rows)
    places = [(row["run_id"], row["step"]) for row in rows]
    return [OpenBatch(actor=actor, action="retry", members=places, spacing=SPACING, reason=reason)]


def hand_over_effects(subject: Subject, answers: Answers) -> list[str]:
    return [
        *summary(undecided(subject)),
        "Their runs belong to the one named, with your note. They stay where they are.",
    ]


def hand_over(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.people import AddNote

    rows = undecided(subject)
    reason = _typed(answers, rows)
    runs = dict.fromkeys(row["run_id"] for row in rows)
    return [AddNote(actor=actor, run_id=run, reason=reason, owner=answers["owner"]) for run in runs]


def no_batch(subject: Subject) -> str | None:
    return None if subject.batch is not None and subject.batch["status"] == "open" else "no batch of it is under way"


def stop_effects(subject: Subject, _: Answers) -> list[str]:
    batch = subject.batch or {}
    left = batch.get("total", 0) - batch.get("released", 0)
    return [
        f"{many(left, 'member')} of the batch {'is' if left == 1 else 'are'} not retried. What went out stays as it is."
    ]


def stop(subject: Subject, answers: Answers, actor: str) -> list[Transition]:
    from walkback_store.machine.store_wide import StopBatch

    batch = subject.batch or {}
    return [StopBatch(actor=actor, batch_no=batch["batch_no"], reason=answers["reason"])]


def command(*words: str, reason: bool = True) -> Any:
    """The same for a script: the places, one after the other."""

    def line(subject: Subject, answers: Answers) -> str:
        places = [f"{row['run_id']}#{row['step']}" for row in undecided(subject)]
        why = answers.get("confirm", "").partition(" ")[2]
        owner = ["--to", answers["owner"]] if answers.get("owner") else []
        return shlex.join(["walkback", *words, *places, *owner, *(["--reason", why] if reason and why else [])])

    return line


def stop_command(subject: Subject, answers: Answers) -> str:
    number = str((subject.batch or {}).get("batch_no", ""))
    why = answers.get("reason", "")
    return shlex.join(["walkback", "batch", number, "--stop", *(["--reason", why] if why else [])])
