"""What holds a call up although its run is ready: freezes, open breakers, a business identity owned elsewhere."""

from __future__ import annotations

from walkback_store.errors import BreakerOpen, Frozen, IdentityTaken
from walkback_store.log import Row
from walkback_store.machine.base import STORE, View, is_name
from walkback_store.words import FINISHED, FreezeScope, OperationStatus

O = OperationStatus  # noqa: E741

FREEZE, IDENTITY = "freeze:", "identity:"
"""What a run says that it waits for; followed by the tool or service, or by the identity."""

CLAIMED = "claimed"
"""In place of a status: the owner of an identity has not called yet, and may still."""
GONE = "gone"
"""In place of a status: the owner of an identity has not called, and never will."""

UNDECIDED = frozenset({CLAIMED, O.AWAITING_APPROVAL, O.PENDING, O.UNKNOWN})
"""It may still happen, or may have happened: nobody else may call, and it is worth waiting for."""


def place_of(run_id: str, step: str) -> str:
    return f"{run_id}#{step}"


def check_freezes(view: View, tool: str, agent: str, service: str | None = None, place: str | None = None) -> None:
    """Raise `Frozen` if a call of this tool must not be made; `BreakerOpen` if that is only because of its service."""
    breaker = None
    for freeze in view.freezes():
        scope, name = freeze["scope"], freeze["name"]
        if scope == FreezeScope.SERVICE:
            if service is not None and name == service:
                breaker = freeze
        elif (
            scope == FreezeScope.EVERYTHING
            or (scope == FreezeScope.TOOL and name == tool)
            or (scope == FreezeScope.AGENT and name == agent)
        ):
            what = "everything" if scope == FreezeScope.EVERYTHING else f"{scope} {name!r}"
            raise Frozen(
                f"{what} is frozen by {freeze['by']}: {freeze['reason']}. {tool!r} was not called; the run waits until "
                "the freeze is lifted.",
                scope,
                name,
            )
    if breaker is not None and (breaker["probe"] is None or breaker["probe"] != place):
        raise BreakerOpen(
            f"service {breaker['name']!r} is frozen by {breaker['by']}: {breaker['reason']}. {tool!r} was not called; "
            "the run waits until the service answers again, or the freeze is lifted.",
            breaker["name"],
            breaker["freeze_no"],
            breaker["until"],
            breaker["probe"],
        )


def owner_status(view: View, identity: Row) -> str:
    """What is known of the operation that owns an identity: its status, `CLAIMED` or `GONE`."""
    operation = view.row("operations", identity["run_id"], identity["step"])
    if operation is not None:
        return str(operation["status"])
    if identity["outcome"] is not None:
        return str(identity["outcome"])
    run = view.run(identity["run_id"])
    return GONE if run is None or run["status"] in FINISHED else CLAIMED


def taken(identity: Row, status: str) -> IdentityTaken:
    owner = place_of(identity["run_id"], identity["step"])
    return IdentityTaken(
        f"{identity['identity']!r} is owned by {owner}, which is {status}. Nothing was called; wait for its outcome, "
        "or use it.",
        identity["identity"],
        identity["run_id"],
        identity["step"],
        status,
        identity["generation"],
    )


def check_identity(view: View, identity: str | None, run_id: str, step: str) -> None:
    """Raise `IdentityTaken` if somebody else owns it. One that nobody has claimed holds nobody up."""
    row = None if identity is None or not is_name(identity) else view.row("identities", STORE, identity)
    if row is not None and (row["run_id"], row["step"]) != (run_id, step):
        raise taken(row, owner_status(view, row))
