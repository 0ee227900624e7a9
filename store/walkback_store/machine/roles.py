"""What people may do: one role each, in the store's own log, looked at before a person's transition is decided.

Names are not proven here. Who may write to the file or the database could write anything; roles keep honest people from
what is not theirs to decide, and say in the log who was allowed what, and by whom.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from walkback_store.errors import NotAllowed, PreconditionFailed
from walkback_store.log import Draft, Row
from walkback_store.machine.base import (
    NONE,
    OPERATOR,
    STORE,
    Load,
    Transition,
    View,
    check_name,
    is_name,
    require_reason,
)
from walkback_store.words import Kind, Role

PERSON = "operator:"
EVERYONE = "operator:*"
"""In place of a person: everybody who has no role of their own. A new store has no such row, so they are viewers."""


def role_among(actor: str, own: Row | None, everyones: Row | None) -> Role:
    """What somebody is, by their own row and that of everyone."""
    if own is None and actor.startswith(PERSON):
        own = everyones
    return Role.VIEWER if own is None else Role(own["role"])


def role_loads(actor: str) -> Iterable[Load]:
    everyones = ("roles", STORE, EVERYONE)
    return (("roles", STORE, actor), everyones) if is_name(actor) else (everyones,)


def role_of(view: View, actor: str) -> Role:
    own = view.row("roles", STORE, actor) if is_name(actor) else None  # nobody was granted what is no name
    return role_among(actor, own, view.row("roles", STORE, EVERYONE))


def check_role(t: Transition, view: View, needed: Role) -> None:
    """Raise `NotAllowed` unless the person who asks for this has at least the role that it needs."""
    role = role_of(view, t.actor)
    if role.allows(needed) or t.exempt(view):
        return
    admins = ", ".join(view.admins()) or "whoever adopts it"
    raise NotAllowed(
        f"{t.actor} is {role.called} of this store, and {type(t).__name__} needs {needed.called}. Nothing was changed; "
        f"ask an admin ({admins}) for: walkback grant {t.actor} {needed}",
        t.actor,
        role,
        needed,
    )


def claimed(t: Transition, drafts: list[Draft]) -> list[Draft]:
    """The same, and the first says which name the person gave: a claim, which changes neither actor nor role."""
    if t.claim is None or not drafts:
        return drafts
    check_name("a person's name", t.claim)
    if not t.actor.startswith(PERSON):
        raise PreconditionFailed(f"{t.actor} is not a person, and goes by no other name. Nothing was changed.")
    return [replace(drafts[0], data={**drafts[0].data, "as": t.claim}), *drafts[1:]]


def granted(role: Role, by: str, at: int) -> dict[str, Any]:
    return {"role": role.value, "by": by, "at": at}


@dataclass(kw_only=True, slots=True)
class GrantRole(Transition):
    """A person, or `operator:*` for everybody who has no role of their own, may do this much from here on.

    Does nothing when they have that role.
    """

    subject: ClassVar = "role"
    kind: ClassVar = Kind.OPERATOR_ACTION
    sources: ClassVar = (NONE, *Role)
    targets: ClassVar = tuple(Role)
    moves: ClassVar = tuple((before, after) for before in (NONE, *Role) for after in Role if before != after)
    by: ClassVar = OPERATOR
    needs_role: ClassVar = Role.ADMIN
    needs: ClassVar = "a reason; an admin is left"

    person: str
    role: Role
    reason: str

    def loads(self) -> Iterable[Load]:
        return (("roles", STORE, self.person),) if is_name(self.person) else ()

    def decide(self, view: View) -> list[Draft]:
        require_reason(self.reason)
        check_name("a person", self.person)
        if not self.person.startswith(PERSON) or self.person == PERSON:
            raise PreconditionFailed(
                f"{self.person!r} is not a person: say {PERSON}name, or {EVERYONE} for the others."
            )
        role, found = Role(self.role), view.row("roles", STORE, self.person)
        was = None if found is None else found["role"]
        if was == role:
            return []
        if was == Role.ADMIN and view.admins() == [self.person]:
            raise PreconditionFailed(
                f"{self.person} is the last admin. Nothing was changed; make somebody admin first."
            )
        data = {"action": "grant", "person": self.person, "role": role.value, "was": was, "reason": self.reason}
        sets = {"roles": {self.person: granted(role, self.actor, view.now)}}
        return [Draft(Kind.OPERATOR_ACTION, data, sets)]


__all__ = ["EVERYONE", "GrantRole", "check_role", "claimed", "granted", "role_among", "role_loads", "role_of"]
