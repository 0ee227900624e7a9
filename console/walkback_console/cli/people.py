"""Commands about people: `roles`, who may do what here; `grant`, who may from now on."""

from __future__ import annotations

from walkback_console.cli import documents
from walkback_console.cli.deciding import who_of
from walkback_console.cli.printing import Column, Printer, as_json, t
from walkback_console.cli.session import Session, confirm
from walkback_console.plain_words import ago
from walkback_store.machine.roles import EVERYONE, PERSON, GrantRole
from walkback_store.words import Role

MAY = {
    Role.VIEWER: "look",
    Role.OPERATOR: "decide about unknowns, runs and freezes",
    Role.APPROVER: "approve and refuse as well",
    Role.ADMIN: "say who may do what, adopt and prune as well",
}


def roles(session: Session) -> None:
    with session.open() as store:
        at = store.now()
        who = who_of(session, store)
        found = store.roles()
    if session.as_json:
        as_json({"you": {"person": who.actor, "role": who.role}, "roles": [documents.role(row) for row in found]})
        return
    out = Printer()
    out.line(t(f"You are {who.actor}, {who.role}: you may {MAY[Role(who.role)]}.", "strong"))
    out.blank()
    columns = (Column("person", 16), Column("role", 8), Column("may", 24), Column("by", 12), Column("since", 8))
    rows = [
        [t(_name(row["person"])), t(row["role"]), t(MAY[Role(row["role"])]), t(row["by"]), t(ago(row["at"], at))]
        for row in found
    ]
    out.table(columns, rows)
    if not any(row["person"] == EVERYONE for row in found):
        out.line(t("Everybody else may look. `walkback grant everyone operator` would let them decide.", "dim"))


def grant(session: Session, given: str, role: str, reason: str, *, yes: bool) -> None:
    person = _person(given)
    with session.open() as store:
        who = who_of(session, store)
        was = next((row["role"] for row in store.roles() if row["person"] == person), None)
        out = Printer(stderr=True)
        if not session.as_json or not yes:
            said = (
                f"{_name(person)} will be {role}, who may {MAY[Role(role)]}; until now: {was or 'no role of its own'}."
            )
            out.line(t(said))
        confirm("Do it?", yes=yes)
        change = GrantRole(actor=who.actor, person=person, role=Role(role), reason=reason)
        done = store.do(who.sign(change))
    if session.as_json:
        about = {"person": person, "role": role, "was": was, "by": who.actor, "claim": who.claim}
        as_json({**about, "changed": not done.repeated, "event": None if done.repeated else done.seq})
        return
    if done.repeated:
        Printer().line(t(f"{_name(person)} was {role} already. Nothing was changed."))
    else:
        Printer().line(t("Done: ", "good"), t(f"{_name(person)} is {role}, by {who.actor}, event {done.seq}."))


def _person(given: str) -> str:
    if given in {"everyone", "*"}:
        return EVERYONE
    return given if given.startswith(PERSON) else f"{PERSON}{given}"


def _name(person: str) -> str:
    return "everyone else" if person == EVERYONE else person
