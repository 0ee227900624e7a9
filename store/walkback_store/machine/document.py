"""docs/state-machine.md, made from the transitions. `make docs` writes it; a test fails when the two disagree."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from walkback_store.machine.base import NONE, OPERATOR, UNCHANGED, Transition
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.words import Why

INTRO = """# The state machine

Every change to a run, by a worker or by a person, is one of the transitions below. Each opens a transaction, checks the
state it starts from (and, for a worker, the fence it was given with its claim), appends its events and updates the
projections. An illegal one changes nothing and says which state it found and which would have been legal.

Where a person decides, *by* is the role they need: `viewer`, `operator`, `approver` or `admin`, of which each may do
what those before it may. It is checked in the same transaction, before anything else.

`(none)` means that the thing does not exist yet; *unchanged* that the status stays as it is. This page is made from the
code by `make docs`; the code is in `store/walkback_store/machine/`, one class for each row.
"""

SUBJECTS = {
    "run": "Runs",
    "operation": "Operations",
    "approval": "Approvals",
    "decision": "Decisions that wait",
    "freeze": "Freezes",
    "breaker": "Breakers of services",
    "budget": "Budgets of retries",
    "identity": "Business identities",
    "worker": "Workers",
    "batch": "Batches",
    "role": "Roles of people",
    "store": "The store itself",
}

DRAWN = ("run", "operation", "approval", "decision")


def document() -> str:
    parts = [INTRO]
    for subject, title in SUBJECTS.items():
        of_subject = [t for t in TRANSITIONS if t.subject == subject]
        parts.append(f"## {title}\n")
        if subject == "run":
            reasons = ", ".join(f"`{why}`" for why in Why)
            parts.append(f"A run in `needs_operator` always says why, with one of: {reasons}.\n")
        if subject in DRAWN:
            parts.append(_diagram(TRANSITIONS, subject))
        parts.append(_table(of_subject))
    return "\n".join(parts)


def moves_of(t: type[Transition], subject: str) -> Iterable[tuple[str, str]]:
    also = t.also.get(subject, ())
    if t.subject != subject:
        return also
    own = t.moves if t.moves is not None else [(source, target) for source in t.sources for target in t.targets]
    return [*own, *also]


def _diagram(transitions: Sequence[type[Transition]], subject: str) -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    edges: dict[tuple[str, str], list[str]] = {}
    for t in transitions:
        for source, target in moves_of(t, subject):
            if target not in {UNCHANGED, source}:
                start = "[*]" if source == NONE else str(source)
                edges.setdefault((start, str(target)), []).append(t.__name__)
    lines += [f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in edges.items()]
    return "\n".join([*lines, "```", ""])


def _table(transitions: list[type[Transition]]) -> str:
    lines = [
        "| transition | by | from | to | event | needs | what it does |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for t in transitions:
        what = " ".join((t.__doc__ or "").split())
        cells = (
            t.__name__,
            t.needs_role if t.by == OPERATOR else t.by,
            ", ".join(t.sources),
            ", ".join(t.targets),
            f"`{t.kind}`",
            t.needs,
            what,
        )
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document())
