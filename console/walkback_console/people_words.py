"""What a person did, said as people say it: for handovers and logs of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walkback_store.words import Kind

if TYPE_CHECKING:
    from walkback_store.log import Event

_DID = {
    "adopt": "adopted the store",
    "cancel": "asked to cancel",
    "compensate": "decided to undo",
    "dismiss_duplicate": "dismissed a suspected duplicate in",
    "it_did_not_happen": "recorded that it did not happen:",
    "it_happened": "recorded that it happened:",
    "note": "left a note on",
    "own": "took",
    "pause": "asked to pause",
    "resume": "resumed",
    "retry": "decided to try again:",
    "stop_batch": "stopped a batch",
    "take_back": "took back a decision on",
    "verify_again": "asked to verify again:",
}


def did(event: Event) -> str:
    """A verb in the past, to be followed by the run and step."""
    data = event.data
    if event.kind == Kind.APPROVAL_GIVEN:
        return "approved, with other arguments," if data.get("edited_hash") else "approved"
    if event.kind == Kind.APPROVAL_REFUSED:
        return "refused"
    action = str(data.get("action", event.kind))
    if action == "freeze":
        return "froze everything" if data.get("name") is None else f"froze {data.get('scope')} {data['name']}"
    if action == "unfreeze":
        return f"lifted freeze {data.get('freeze_no')}"
    if action == "own":
        owner = data.get("owner")
        if owner is None:
            return "gave up"
        return "took" if str(owner) in (event.actor, event.actor.removeprefix("operator:")) else f"handed to {owner}:"
    if action == "open_batch":
        return f"opened a batch: {data.get('of')} {data.get('total')} operations"
    if action == "grant":
        person = data.get("person")
        return f"made {'everyone else' if person == 'operator:*' else person} {data.get('role')}"
    return _DID.get(action, action.replace("_", " "))


def who(event: Event) -> str:
    """The actor, and beside it the name that was claimed with --as."""
    claim = event.data.get("as")
    return f"{event.actor} (as {claim})" if claim else event.actor
