"""What people may do: checked where it is decided, in the transaction, whoever asks and through whatever door."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.store import recipes
from tests.store.driver import ANN, BOB, DIGEST, Held, ask, call, held, intend, start, succeed
from tests.store.recipes import World
from tests.support.people import open_store as open_for_everyone
from walkback_store import open_store
from walkback_store.engine import Committed
from walkback_store.errors import IllegalTransition, NotAllowed, PreconditionFailed
from walkback_store.fsck import fsck
from walkback_store.housekeeping import adopt, is_adopted, prune
from walkback_store.machine.base import OPERATOR, Transition
from walkback_store.machine.operations import AskApproval
from walkback_store.machine.people import AddNote, Approve, ExpireApproval, Refuse
from walkback_store.machine.roles import EVERYONE, GrantRole
from walkback_store.machine.runs import FinishRun
from walkback_store.machine.store_wide import AdoptStore, Freeze, NotePrune
from walkback_store.machine.transitions import TRANSITIONS
from walkback_store.people import operator_of
from walkback_store.store import Store
from walkback_store.words import FreezeScope, Kind, Role

EVE = "operator:eve"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened
        assert fsck(opened).problems == []


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


def grant(store: Store, person: str, role: Role, by: str | None = None) -> Committed:
    return store.do(GrantRole(actor=by or operator_of(store), person=person, role=role, reason="the rota says so"))


# --- who has which -----------------------------------------------------------------------------------------------


def test_each_role_may_do_what_those_before_it_may() -> None:
    order = [Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.ADMIN]
    assert list(Role) == order
    for i, role in enumerate(order):
        assert [role.allows(needed) for needed in order] == [n <= i for n in range(len(order))]


def test_whoever_made_a_store_is_its_admin_and_nobody_else_is_anything(store: Store) -> None:
    me = operator_of(store)
    (row,) = store.roles()
    assert (row["person"], row["role"], row["by"]) == (me, "admin", me)
    assert store.role_of(me) is Role.ADMIN
    assert {store.role_of(name) for name in (ANN, EVERYONE, "worker:w", "system", "", "\x00")} == {Role.VIEWER}
    (event,) = store.events(None)
    assert (event.kind, event.actor, event.data["action"]) == (Kind.STORE, me, "created")


def test_who_opens_a_store_that_is_there_changes_nothing(store_url: str) -> None:
    for _ in range(2):
        with open_store(store_url) as store:
            assert len(store.events(None)) == len(store.roles()) == 1


def test_a_role_holds_from_when_it_is_granted_until_another_is(store: Store) -> None:
    start(store, "r")
    note = AddNote(actor=ANN, run_id="r", reason="called them")
    with pytest.raises(NotAllowed):
        store.do(note)
    grant(store, ANN, Role.OPERATOR)
    assert not store.do(note).repeated
    grant(store, ANN, Role.VIEWER)
    assert store.do(note).repeated  # what is in the log is in the log
    with pytest.raises(NotAllowed):
        store.do(AddNote(actor=ANN, run_id="r", reason="and again"))
    assert [event.data["was"] for event in store.events(None, after=1)] == [None, "operator"]
    assert [(row["person"], row["role"]) for row in store.roles() if row["person"] == ANN] == [(ANN, "viewer")]


def test_everybody_without_a_role_of_their_own_has_that_of_everyone(store: Store) -> None:
    grant(store, BOB, Role.VIEWER)
    grant(store, EVERYONE, Role.APPROVER)
    assert (store.role_of(ANN), store.role_of(BOB)) == (Role.APPROVER, Role.VIEWER)
    assert store.role_of("worker:w") is Role.VIEWER  # no person
    start(store, "r")
    store.do(AddNote(actor=ANN, run_id="r", reason="called them"))
    for actor in (BOB, "worker:w", "system", "operator", "\x00", "x" * 300):
        with pytest.raises(NotAllowed):
            store.do(AddNote(actor=actor, run_id="r", reason="me too"))


def test_a_role_granted_is_a_change_only_when_it_is_another(store: Store) -> None:
    grant(store, ANN, Role.OPERATOR)
    before = store.events(None)
    assert grant(store, ANN, Role.OPERATOR).repeated
    assert store.events(None) == before


def test_an_admin_is_always_left(store: Store) -> None:
    me = operator_of(store)
    for role in (Role.VIEWER, Role.OPERATOR, Role.APPROVER):
        with pytest.raises(PreconditionFailed, match="the last admin"):
            grant(store, me, role)
    grant(store, ANN, Role.ADMIN)
    together = [GrantRole(actor=me, person=person, role=Role.VIEWER, reason="both") for person in (ANN, me)]
    first, second = store.commit(together)
    assert isinstance(first, Committed)
    assert isinstance(second, PreconditionFailed)  # it sees what the one before it did in the same commit
    grant(store, ANN, Role.ADMIN)
    grant(store, me, Role.OPERATOR, by=ANN)
    with pytest.raises(NotAllowed):
        grant(store, me, Role.ADMIN, by=me)


@pytest.mark.parametrize("person", ["", "ann", "worker:w", "operator:", "operator:a\nb", "operator:" + "x" * 200])
def test_only_people_get_roles(store: Store, person: str) -> None:
    with pytest.raises(PreconditionFailed):
        grant(store, person, Role.OPERATOR)


def test_a_role_is_one_of_the_four(store: Store) -> None:
    nonsense: Any = "root"
    with pytest.raises(PreconditionFailed):
        grant(store, ANN, nonsense)


# --- what needs which --------------------------------------------------------------------------------------------

BY_PEOPLE = [t for t in TRANSITIONS if t.by == OPERATOR]
OTHER_THAN_OPERATOR = {
    Approve: Role.APPROVER, Refuse: Role.APPROVER,
    GrantRole: Role.ADMIN, AdoptStore: Role.ADMIN, NotePrune: Role.ADMIN,
}  # fmt: skip


def test_which_transitions_need_more_than_an_operator() -> None:
    for t in BY_PEOPLE:
        assert t.needs_role is OTHER_THAN_OPERATOR.get(t, Role.OPERATOR), t


@pytest.mark.parametrize("transition", [pytest.param(t, id=t.__name__) for t in BY_PEOPLE if t is not NotePrune])
def test_a_person_needs_the_role_and_no_more(transition: type[Transition], world: World) -> None:
    _, made = recipes.legal_scene(world, transition)
    needed = transition.needs_role
    lower = list(Role)[list(Role).index(needed) - 1]
    less, enough = world.name("operator:less"), world.name("operator:enough")
    for person, role in ((less, lower), (enough, needed)):
        world.store.do(GrantRole(actor=ANN, person=person, role=role, reason="for this test"))
    made.actor = less
    error = recipes.check_refused(world, made, NotAllowed)
    assert isinstance(error, NotAllowed)
    assert (error.person, error.role, error.needed) == (less, lower, needed)
    assert f"walkback grant {less} {needed}" in str(error)
    assert EVERYONE in str(error)  # is admin here, and so can grant it
    made.actor = enough
    assert not world.store.do(made).repeated


def test_one_persons_refusal_costs_the_others_in_the_commit_nothing(store: Store) -> None:
    start(store, "r")
    notes = [AddNote(actor=actor, run_id="r", reason="hello") for actor in (ANN, operator_of(store), BOB)]
    results = store.commit(notes)
    assert [type(result) for result in results] == [NotAllowed, Committed, NotAllowed]


def test_only_admins_prune(store: Store) -> None:
    h = held(store)
    store.do(FinishRun(**h.by, output=None))
    grant(store, ANN, Role.APPROVER)
    with pytest.raises(NotAllowed):
        prune(store, 2**62, ANN)
    assert store.run(h.run_id)["status"] == "succeeded"
    assert prune(store, 2**62, operator_of(store)).runs == 1


def asked_of(h: Held, step: str, role: str | None) -> None:
    of: dict[str, Any] = {"step": step, "call": call(step), "digest": DIGEST, "rule": "big payments", "role": role}
    h.store.do(AskApproval(**h.by, **of))


@pytest.mark.parametrize("transition", [Approve, Refuse])
def test_an_approval_is_decided_by_somebody_with_the_role_that_it_asked_for(
    store: Store, transition: type[Transition]
) -> None:
    h = held(store)
    grant(store, ANN, Role.APPROVER)
    more = {"digest": DIGEST} if transition is Approve else {}
    wanted: Sequence[tuple[str | None, bool]] = (
        ("admin", False), ("approver", True), ("viewer", True), ("treasurer", True), (None, True)
    )  # fmt: skip
    for n, (role, enough) in enumerate(wanted):
        asked_of(h, str(n), role)
        decision: Any = transition
        made = decision(actor=ANN, run_id=h.run_id, step=str(n), reason="seen it", **more)
        if enough:
            store.do(made)
        else:
            with pytest.raises(NotAllowed, match="needs an admin"):
                store.do(made)
            store.do(decision(actor=operator_of(store), run_id=h.run_id, step=str(n), reason="seen it", **more))


def test_that_time_is_up_needs_nobodys_role(store: Store) -> None:
    h = held(store)
    ask(h, "1", expires_at=1)
    store.do(ExpireApproval(actor="system", run_id=h.run_id, step="1"))


def test_what_workers_do_asks_for_no_roles(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fetch = store.backend.fetch

    def listen(queries: Any) -> Any:
        asked.extend(sql for sql, _ in queries)
        return fetch(queries)

    monkeypatch.setattr(store.backend, "fetch", listen)
    h = held(store)
    intend(h, "1")
    succeed(h, "1")
    assert asked
    assert not [sql for sql in asked if "roles" in sql]
    store.do(AddNote(actor=operator_of(store), run_id=h.run_id, reason="hello"))
    assert len([sql for sql in asked if "roles" in sql]) == 2


# --- names that people give --------------------------------------------------------------------------------------


def test_a_name_that_a_person_gives_is_recorded_beside_who_they_are(store: Store) -> None:
    me = operator_of(store)
    start(store, "r")
    note = AddNote(actor=me, run_id="r", reason="called them", claim="Ann, night shift")
    store.do(note)
    store.do(AddNote(actor=me, run_id="r", reason="again"))
    named, plain = store.events("r", after=1)
    assert (named.actor, named.data["as"]) == (me, "Ann, night shift")
    assert "as" not in plain.data
    assert store.do(note).repeated
    (told, *_) = store.people_since(0)[1:]
    assert told.data["as"] == "Ann, night shift"


def test_a_name_gives_no_role(store: Store) -> None:
    start(store, "r")
    with pytest.raises(NotAllowed):
        store.do(AddNote(actor=ANN, run_id="r", reason="hello", claim=operator_of(store)))


@pytest.mark.parametrize("claim", ["", "two\nlines", "\x1b[2J", "x" * 201])
def test_a_name_that_cannot_be_shown_is_refused(store: Store, claim: str) -> None:
    start(store, "r")
    with pytest.raises(PreconditionFailed, match="cannot be a person's name"):
        store.do(AddNote(actor=operator_of(store), run_id="r", reason="hello", claim=claim))


def test_only_people_go_by_another_name(store: Store) -> None:
    h = held(store)
    with pytest.raises(PreconditionFailed, match="not a person"):
        store.do(FinishRun(**h.by, output=None, claim="Ann"))
    assert store.run(h.run_id)["status"] == "running"


# --- copies ------------------------------------------------------------------------------------------------------


def adoption(store: Store, actor: str, *, owner: bool = False) -> AdoptStore:
    home = store.backend.home()
    return AdoptStore(actor=actor, epoch=2**30, home=home, feed_base=0, reason="the original is gone", owner=owner)


def test_in_a_copy_its_owner_may_adopt_and_is_admin_from_then_on(store: Store) -> None:
    grant(store, ANN, Role.APPROVER)
    recipes.make_copy(store)
    with pytest.raises(NotAllowed, match="AdoptStore needs an admin"):
        store.do(adoption(store, ANN))
    store.do(adoption(store, EVE, owner=True))
    assert store.role_of(EVE) is Role.ADMIN
    assert is_adopted(store)
    grant(store, ANN, Role.ADMIN, by=EVE)


def test_the_owner_of_what_is_no_copy_gets_nothing_by_adopting_it(store: Store) -> None:
    with pytest.raises(IllegalTransition):
        store.do(adoption(store, EVE, owner=True))
    assert store.role_of(EVE) is Role.VIEWER


def test_a_file_copied_from_other_people_can_be_adopted_by_whoever_has_it(tmp_path: Path) -> None:
    original, copy = tmp_path / "walkback.db", tmp_path / "copy.db"
    with open_store(original) as store:
        me = operator_of(store)
        grant(store, ANN, Role.ADMIN)
        grant(store, me, Role.VIEWER)
    shutil.copy(original, copy)
    with open_store(copy) as store:
        assert store.role_of(me) is Role.VIEWER
        with pytest.raises(NotAllowed):
            adopt(store, BOB, "somebody else's word")
        adopt(store, me, "the original is gone")
        assert store.role_of(me) is Role.ADMIN
        assert fsck(store).problems == []


def test_an_admin_who_adopts_stays_what_they_are(store: Store) -> None:
    recipes.make_copy(store)
    before = store.roles()
    adopt(store, operator_of(store), "the original is gone")
    assert store.roles() == before


def test_tests_about_something_else_let_everyone_do_everything(store_url: str) -> None:
    with open_for_everyone(store_url) as store:
        store.do(Freeze(actor=BOB, scope=FreezeScope.TOOL, name="pay", reason="off"))
