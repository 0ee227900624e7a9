"""Breakers, budgets and business identities: what holds a call up although its own run is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from tests.store import recipes
from tests.store.driver import (
    ANN,
    DIGEST,
    MINUTE,
    SECOND,
    Held,
    ask,
    call,
    claim,
    finish,
    intend,
    open_with_clock,
    start,
    succeed,
    write,
)
from tests.store.recipes import (
    O,
    World,
    check_refused,
    claim_of,
    done_elsewhere,
    let_go,
    no_budget,
    open_breaker,
    owned,
    pays,
    refer,
    service_failed,
    take_token,
    unclaimed,
)
from tests.support.people import open_store
from walkback_store.errors import (
    BreakerOpen,
    Frozen,
    IdentityTaken,
    KeyConflict,
    NotFound,
    NoToken,
    PreconditionFailed,
    Refused,
)
from walkback_store.fsck import fsck
from walkback_store.housekeeping import prune
from walkback_store.machine.operations import AskApproval, BeginCompensation, EndAttempt, Intend, Settle, StartAttempt
from walkback_store.machine.people import DecideCompensate, ExpireApproval, RecordAbsent
from walkback_store.machine.runs import FailRun, NeedOperator, ParkRun, WakeRun
from walkback_store.machine.store_wide import (
    Freeze,
    ProbeService,
    ServiceAnswered,
    ServiceFailed,
    TakeToken,
    Unfreeze,
)
from walkback_store.store import Store
from walkback_store.words import Answer, FreezeScope, Why


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


# --- breakers ----------------------------------------------------------------------------------------------------


def failed(service: str, threshold: int = 3, cooldown: int = MINUTE) -> ServiceFailed:
    return ServiceFailed(actor="system", service=service, reason="503", threshold=threshold, cooldown=cooldown)


def answered(service: str) -> ServiceAnswered:
    return ServiceAnswered(actor="system", service=service)


def probe(service: str, place: str, until: int) -> ProbeService:
    return ProbeService(actor="system", service=service, place=place, until=until)


def breaker(world: World, service: str) -> dict[str, Any]:
    (row,) = world.rows("breakers", service=service)
    return row


def freeze(world: World, service: str) -> dict[str, Any]:
    return world.rows("freezes", scope="service", name=service)[-1]


def test_a_breaker_opens_when_its_service_has_failed_so_often_in_a_row(world: World) -> None:
    service = world.name("bank/")
    h = world.held()
    dispatch = Intend(**h.by, step="1", call=call("1", service=service), worker="w")
    for _ in range(2):
        world.store.do(failed(service))
    world.store.do(answered(service))
    assert (breaker(world, service)["failures"], world.rows("freezes", name=service)) == (0, [])
    for _ in range(3):
        world.store.do(failed(service))
    found = freeze(world, service)
    assert (found["by"], found["reason"], found["until"]) == ("system", "503", world.clock.now + MINUTE)
    assert breaker(world, service) == {
        "service": service, "failures": 3, "trips": 1, "failed_at": world.clock.now, "freeze_no": found["freeze_no"],
    }  # fmt: skip
    error = check_refused(world, dispatch, BreakerOpen, match="frozen by system: 503")
    assert isinstance(error, BreakerOpen)
    assert (error.service, error.freeze_no, error.until, error.probe) == (
        service, found["freeze_no"], found["until"], None,
    )  # fmt: skip
    assert (error.scope, error.name) == ("service", service)
    assert [b["until"] for b in world.store.breakers() if b["service"] == service] == [found["until"]]
    world.store.do(answered(service))
    assert breaker(world, service)["freeze_no"] is None
    assert freeze(world, service)["lifted_by"] == "system"
    assert service not in [b["service"] for b in world.store.breakers()]
    world.store.do(dispatch)


def test_a_failure_of_a_call_made_before_the_breaker_opened_does_not_keep_it_open_for_longer(world: World) -> None:
    service = world.name("bank/")
    world.store.do(failed(service, threshold=1))
    until = freeze(world, service)["until"]
    world.clock.pass_(SECOND)
    world.store.do(failed(service, threshold=1))
    assert (freeze(world, service)["until"], breaker(world, service)["failures"]) == (until, 2)


def test_one_call_at_a_time_probes_an_open_breaker_when_its_time_has_come(world: World) -> None:
    service = world.name("bank/")
    one, other = world.held(), world.held()
    world.store.do(failed(service, threshold=1))
    mine = probe(service, f"{one.run_id}#1", world.clock.now + 2 * MINUTE)
    check_refused(world, mine, PreconditionFailed, match="may not be probed before")
    world.clock.pass_(MINUTE)
    world.store.do(mine)
    late = probe(service, f"{other.run_id}#1", world.clock.now + MINUTE)
    check_refused(world, late, PreconditionFailed, match=f"being probed by {one.run_id}#1")
    error = check_refused(world, Intend(**other.by, step="1", call=call("1", service=service), worker="w"), BreakerOpen)
    assert isinstance(error, BreakerOpen)
    assert (error.probe, error.until) == (f"{one.run_id}#1", mine.until)
    intend(one, "1", service=service)  # and so may its further attempts
    world.store.do(EndAttempt(**one.by, step="1", answer=Answer.AMBIGUOUS))
    world.store.do(StartAttempt(**one.by, step="1", worker="w"))
    world.clock.pass_(MINUTE)
    world.store.do(late)  # nobody heard of the first one again
    assert freeze(world, service)["probe"] == f"{other.run_id}#1"
    intend(other, "1", service=service)
    succeed(one, "1")


def test_a_breaker_stays_open_for_twice_as_long_after_each_probe_that_failed(world: World) -> None:
    service = world.name("bank/")
    world.store.do(failed(service, threshold=1))
    for times in (2, 4, 8, 16, 32, 32):
        world.clock.now = freeze(world, service)["until"]
        world.store.do(probe(service, "r#1", world.clock.now + MINUTE))
        world.store.do(failed(service, threshold=1))
        found = freeze(world, service)
        assert (found["until"], found["probe"]) == (world.clock.now + times * MINUTE, None)
    world.store.do(answered(service))
    assert breaker(world, service)["trips"] == 0
    world.store.do(failed(service, threshold=1))
    assert freeze(world, service)["until"] == world.clock.now + MINUTE


def test_a_person_lifts_the_freeze_of_a_breaker_and_it_counts_anew(world: World) -> None:
    scene = open_breaker(world)
    number = freeze(world, scene.name)["freeze_no"]
    world.store.do(Unfreeze(actor=ANN, freeze_no=number, reason="it is back"))
    row = breaker(world, scene.name)
    assert (row["failures"], row["trips"], row["freeze_no"]) == (0, 0, None)
    world.store.do(service_failed(scene))
    assert breaker(world, scene.name)["freeze_no"] is None
    world.store.do(service_failed(scene, threshold=2))
    assert breaker(world, scene.name)["freeze_no"] == freeze(world, scene.name)["freeze_no"] > number


def test_a_person_freezes_a_service_and_nobody_may_probe_it(world: World) -> None:
    service = world.name("bank/")
    number = world.store.do(Freeze(actor=ANN, scope=FreezeScope.SERVICE, name=service, reason="they are moving")).seq
    h = world.held()
    dispatch = Intend(**h.by, step="1", call=call("1", service=service), worker="w")
    error = check_refused(world, dispatch, BreakerOpen, match="they are moving")
    assert isinstance(error, BreakerOpen)
    assert error.until is None
    check_refused(world, probe(service, f"{h.run_id}#1", world.clock.now), PreconditionFailed, match="not open")
    world.store.do(failed(service, threshold=1))  # there is a freeze already
    world.store.do(answered(service))  # which is not the breaker's to lift
    check_refused(world, dispatch, BreakerOpen)
    world.store.do(Unfreeze(actor=ANN, freeze_no=number, reason="moved"))
    world.store.do(dispatch)


def test_what_a_person_froze_comes_before_what_a_breaker_stops(world: World) -> None:
    scene, tool = open_breaker(world), world.name("tool")
    world.store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name=tool, reason="it sends nonsense"))
    h = world.held()
    error = check_refused(
        world, Intend(**h.by, step="1", call=call("1", tool=tool, service=scene.name), worker="w"), Frozen
    )
    assert not isinstance(error, BreakerOpen)


def test_a_breaker_opened_probed_and_closed_through_one_store_is_so_in_another(store_url: str) -> None:
    one, clock = open_with_clock(store_url)
    with one, open_store(store_url, clock=clock) as two:
        world = World(one, clock)
        h = world.held()
        write(h, "0", service="bank")
        two.do(failed("bank", threshold=1, cooldown=0))
        with pytest.raises(BreakerOpen):
            intend(h, "1", service="bank")
        two.do(probe("bank", f"{h.run_id}#1", clock.now + MINUTE))
        with pytest.raises(BreakerOpen):
            intend(h, "2", service="bank")
        write(h, "1", service="bank")
        one.do(answered("bank"))
        write(h, "2", service="bank")
        assert two.do(answered("bank")).repeated


def test_all_that_happens_to_a_breaker_may_share_a_commit(world: World) -> None:
    service = world.name("bank/")
    h = world.held()
    place = f"{h.run_id}#1"
    results = world.store.commit(
        [
            failed(service, threshold=2),
            failed(service, threshold=2, cooldown=0),
            probe(service, place, world.clock.now),
            probe(service, place, world.clock.now + MINUTE),
            probe(service, place, world.clock.now + MINUTE),
            answered(service),
        ]
    )
    assert [isinstance(r, Refused) for r in results] == [False, False, False, False, True, False]
    assert breaker(world, service)["freeze_no"] is None
    intend(h, "1", service=service)


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"cooldown": -1}, {"service": ""}, {"service": "a\x00b"}])
def test_a_breaker_that_makes_no_sense_is_refused(wrong: dict[str, Any], world: World) -> None:
    said: dict[str, Any] = {"service": "bank", "threshold": 1, "cooldown": 1, **wrong}
    check_refused(world, ServiceFailed(actor="system", reason="503", **said), PreconditionFailed)


# --- budgets -----------------------------------------------------------------------------------------------------


def test_a_budget_is_spent_and_fills_up_again_with_time(world: World) -> None:
    scene = no_budget(world)
    for _ in range(2):
        world.store.do(take_token(scene))
    error = check_refused(world, take_token(scene), NoToken, match="spent for now")
    assert isinstance(error, NoToken)
    assert error.at == world.clock.now + 2 * SECOND
    world.clock.now = error.at - 1
    check_refused(world, take_token(scene), NoToken)
    world.clock.now = error.at
    world.store.do(take_token(scene))
    check_refused(world, take_token(scene), NoToken)
    world.clock.pass_(60 * MINUTE)  # it never holds more than it can
    for _ in range(2):
        world.store.do(take_token(scene))
    check_refused(world, take_token(scene), NoToken)


@pytest.mark.parametrize("per_second", [0.1, 1 / 3, 0.7, 3, 97.3])
def test_there_is_a_token_exactly_when_it_was_said_that_there_would_be(per_second: float, world: World) -> None:
    scene = no_budget(world)
    for _ in range(20):
        world.store.do(take_token(scene, capacity=1, per_second=per_second))
        error = check_refused(world, take_token(scene, capacity=1, per_second=per_second), NoToken)
        assert isinstance(error, NoToken)
        world.clock.now = error.at


def test_a_clock_that_was_set_back_fills_no_budget(world: World) -> None:
    scene = no_budget(world)
    for _ in range(2):
        world.store.do(take_token(scene))
    at = world.clock.now
    world.clock.now -= MINUTE
    error = check_refused(world, take_token(scene), NoToken)
    assert isinstance(error, NoToken)
    assert error.at == at + 2 * SECOND
    world.clock.now = at


def test_two_stores_share_a_budget(store_url: str) -> None:
    with open_store(store_url) as one, open_store(store_url) as two:
        taken = [
            s.commit([TakeToken(actor="system", tool="pay", capacity=3, per_second=0.001)])[0] for s in [one, two] * 2
        ]
        assert [isinstance(t, NoToken) for t in taken] == [False, False, False, True]


@pytest.mark.parametrize(
    ("capacity", "per_second"), [(0.5, 1), (1, 0), (1, -1), (float("inf"), 1), (1, float("nan")), (float("nan"), 1)]
)
def test_a_budget_that_makes_no_sense_is_refused(capacity: float, per_second: float, world: World) -> None:
    check_refused(world, take_token(no_budget(world), capacity, per_second), PreconditionFailed)


# --- identities --------------------------------------------------------------------------------------------------


def settle(h: Held, status: str, identity: str) -> None:
    """Bring the owner's operation there."""
    if status == O.AWAITING_APPROVAL:
        ask(h, "1", **pays(identity))
        return
    if status == O.DENIED:
        ask(h, "1", expires_at=h.store.now() + 1, **pays(identity))
        return
    intend(h, "1", **pays(identity))
    if status == O.UNKNOWN:
        h.store.do(Settle(**h.by, step="1", outcome=O.UNKNOWN, answer=Answer.NONE))
    elif status == O.FAILED:
        h.store.do(Settle(**h.by, step="1", outcome=O.FAILED, answer=Answer.REJECTED))
    elif status in {O.SUCCEEDED, O.COMPENSATED}:
        succeed(h, "1")
    if status == O.COMPENSATED:
        h.store.do(BeginCompensation(**h.by, scope="run", steps=["1"], cause="it failed"))
        write(h, "c1", tool="refund", compensates="1")


@pytest.mark.parametrize("status", ["claimed", O.AWAITING_APPROVAL, O.PENDING, O.UNKNOWN, O.SUCCEEDED])
def test_an_identity_is_its_owners_while_that_may_have_done_it(status: str, world: World) -> None:
    owner, other, identity = world.held(), world.held(), world.name("invoice/")
    world.store.do(claim_of(owner, identity))
    if status != "claimed":
        settle(owner, status, identity)
    error = check_refused(world, claim_of(other, identity), IdentityTaken, match=f"owned by {owner.run_id}#1")
    assert isinstance(error, IdentityTaken)
    assert (error.identity, error.run_id, error.step, error.status, error.generation) == (
        identity, owner.run_id, "1", status, 1,
    )  # fmt: skip
    for step in ("1", "2"):  # as for any other operation, in the same run too
        h = other if step == "1" else owner
        check_refused(world, Intend(**h.by, step=step, call=call(step, **pays(identity)), worker="w"), IdentityTaken)
        asked = AskApproval(**h.by, step=step, call=call(step, **pays(identity)), digest=DIGEST, rule="big")
        check_refused(world, asked, IdentityTaken)
    check_refused(world, claim_of(other, identity, tool="mail"), KeyConflict, match="owned by")


@pytest.mark.parametrize("status", [O.FAILED, O.DENIED, O.COMPENSATED])
def test_an_identity_is_taken_over_when_nothing_of_what_its_owner_did_stands(status: str, world: World) -> None:
    owner, other, identity = world.held(), world.held(), world.name("invoice/")
    world.store.do(claim_of(owner, identity))
    settle(owner, status, identity)
    if status == O.DENIED:
        world.clock.pass_(1)
        world.store.do(ExpireApproval(actor="system", run_id=owner.run_id, step="1"))
    world.store.do(claim_of(other, identity, tool="mail"))  # not even the same call
    row = world.store.identity(identity)
    assert row is not None
    assert (row["generation"], row["run_id"], row["tool"], row["outcome"]) == (2, other.run_id, "mail", None)
    if status == O.DENIED:  # it could be asked about again; but it is another's now
        again = AskApproval(**owner.by, step="1", call=call("1", **pays(identity)), digest=DIGEST, rule="big")
        check_refused(world, again, IdentityTaken, match=other.run_id)


def test_an_identity_is_taken_over_when_its_owner_ended_before_it_called(world: World) -> None:
    scene = owned(world)
    (run,) = world.rows("runs", run_id=scene.owner[0])
    owner = Held(world.store, scene.owner[0], "w", run["fence"])
    world.store.do(FailRun(**owner.by, error_class="KeyError", message="no"))
    assert scene.h is not None
    world.store.do(claim_of(scene.h, scene.name))
    assert (world.store.identity(scene.name) or {})["generation"] == 2


def test_its_owner_claims_an_identity_again_and_nothing_changes(world: World) -> None:
    h, identity = world.held(), world.name("invoice/")
    world.store.do(claim_of(h, identity))
    before = world.everything_about(None)
    assert world.store.do(claim_of(h, identity)).repeated
    check_refused(world, claim_of(h, identity, tool="mail"), KeyConflict)
    other_args = claim_of(h, identity)
    other_args.args_hash = "f" * 64
    check_refused(world, other_args, KeyConflict)
    assert world.everything_about(None) == before
    write(h, "1", **pays(identity))
    assert world.store.do(claim_of(h, identity)).repeated


def test_of_two_that_claim_at_once_one_gets_it(world: World) -> None:
    one, other, identity = world.held(), world.held(), world.name("invoice/")
    results = world.store.commit([claim_of(one, identity), claim_of(other, identity)])
    assert [isinstance(r, IdentityTaken) for r in results] == [False, True]
    assert (world.store.identity(identity) or {})["run_id"] == one.run_id


def test_an_identity_that_nobody_claimed_holds_nobody_up(world: World) -> None:
    scene = unclaimed(world)
    assert scene.h is not None
    assert world.store.identity(scene.name) is None
    assert world.store.identity("a\x00b") is None
    write(scene.h, "1", **pays(scene.name))
    write(scene.h, "2", args=1, identity="x" * 500)


@pytest.mark.parametrize("identity", ["", "a\nb", "a\x00b", "x" * 201])
def test_an_identity_is_a_name(identity: str, world: World) -> None:
    check_refused(world, claim_of(world.held(), identity), PreconditionFailed, match="cannot be an identity")


def test_a_run_that_is_not_there_owns_nothing(world: World) -> None:
    claim = claim_of(Held(world.store, "no such run", "w", 1), world.name("invoice/"))
    check_refused(world, claim, NotFound)


def at_once(*doings: Callable[[], object]) -> list[object]:
    """What each of them came to, started together on a thread of its own."""
    ready = Barrier(len(doings))

    def do(doing: Callable[[], object]) -> object:
        ready.wait()
        try:
            return doing()
        except Refused as error:
            return error

    with ThreadPoolExecutor(len(doings)) as pool:
        return list(pool.map(do, doings))


def test_of_many_processes_that_claim_at_once_one_gets_it(store_url: str) -> None:
    store, clock = open_with_clock(store_url)
    with store, ExitStack() as stack:
        stores = [stack.enter_context(open_store(store_url, clock=clock)) for _ in range(4)]
        runs = [World(store, clock).held()] + [world_run(store) for _ in stores[1:]]
        for identity in (f"invoice/{i}" for i in range(10)):
            claims = [partial(s.do, claim_of(h, identity)) for s, h in zip(stores, runs, strict=True)]
            results = at_once(*claims)
            assert sorted(isinstance(r, IdentityTaken) for r in results) == [False, True, True, True]
        assert fsck(store).problems == []


def world_run(store: Store) -> Held:
    start(store, f"run-{store.count_runs().n}")
    return claim(store)


def test_a_claim_and_an_approval_asked_for_again_do_not_both_get_the_identity(store_url: str) -> None:
    store, clock = open_with_clock(store_url)
    with store, open_store(store_url, clock=clock) as another:
        world = World(store, clock)
        for i in range(15):
            owner, other, identity = world.held(), world.held(), f"invoice/{i}"
            store.do(claim_of(owner, identity))
            settle(owner, O.DENIED, identity)
            clock.pass_(1)
            store.do(ExpireApproval(actor="system", run_id=owner.run_id, step="1"))
            again = AskApproval(**owner.by, step="1", call=call("1", **pays(identity)), digest=DIGEST, rule="big")
            results = at_once(partial(store.do, again), partial(another.do, claim_of(other, identity)))
            assert sorted(isinstance(r, IdentityTaken) for r in results) == [False, True]


# --- referring ---------------------------------------------------------------------------------------------------


def test_an_outcome_is_referred_to_and_nothing_is_called(world: World) -> None:
    scene = done_elsewhere(world)
    assert scene.h is not None
    t = refer(scene)
    t.call.compensate, t.state = "refund", b'{"n":1}'
    world.store.do(t)
    row = scene.h.op("1")
    owner = f"{scene.owner[0]}#1"
    assert (row["status"], row["refers_to"], row["identity"], row["compensate"], row["attempts"]) == (
        "succeeded", owner, scene.name, None, 0,
    )  # fmt: skip
    event = world.last_event(scene.run_id)
    assert (event.kind, event.step, row["outcome_seq"]) == ("outcome", "1", event.seq)
    assert (event.data["outcome"], event.data["refers_to"], event.data["result"]) == (
        "succeeded", owner, {"receipt": 7},
    )  # fmt: skip
    assert event.data["args"] == {"pays": scene.name}
    (step,) = world.store.timeline(scene.run_id)
    assert (step["kind"], step["name"], step["status"], step["before"], step["after"]) == (
        "call", "pay", "succeeded", 1, 1,
    )  # fmt: skip
    finish(scene.h)


def test_only_what_its_owner_has_done_is_referred_to(world: World) -> None:
    check_refused(world, refer(owned(world)), PreconditionFailed, match="is claimed, and has no outcome")
    check_refused(world, refer(let_go(world)), PreconditionFailed, match="is failed, and has no outcome")
    scene = done_elsewhere(world)
    wrong = refer(scene)
    wrong.owner = (scene.run_id, "1")
    check_refused(world, wrong, PreconditionFailed, match=f"owned by {scene.owner[0]}#1, not by {scene.run_id}#1")
    wrong = refer(scene)
    wrong.call.args_hash = "f" * 64
    check_refused(world, wrong, KeyConflict)
    wrong = refer(scene)
    wrong.identity = "nobody's"
    check_refused(world, wrong, PreconditionFailed, match="owned by nobody")


def test_what_an_operation_only_refers_to_is_not_undone_by_it(world: World) -> None:
    scene = done_elsewhere(world)
    assert scene.h is not None
    world.store.do(refer(scene))
    owner = f"{scene.owner[0]}#1"
    begin = BeginCompensation(**scene.by, scope="run", steps=["1"], cause="it failed")
    check_refused(world, begin, PreconditionFailed, match=owner)
    begin.steps = []
    world.store.do(begin)
    undo = Intend(**scene.by, step="c1", call=call("c1", tool="refund", compensates="1"), worker="w")
    check_refused(world, undo, PreconditionFailed, match=owner)
    world.store.do(NeedOperator(**scene.by, why=Why.REVIEW, detail="please look"))
    decide = DecideCompensate(**scene.ann(), scope="run", steps=["1"], reason="undo it")
    check_refused(world, decide, PreconditionFailed, match=owner)
    decide.steps = []
    world.store.do(decide)


def test_what_became_of_an_identity_is_known_after_its_owner_is_pruned(store_url: str) -> None:
    store, clock = open_with_clock(store_url)
    with store:
        world = World(store, clock)
        names = {status: f"invoice/{status}" for status in (O.SUCCEEDED, O.FAILED)}
        for status, identity in names.items():
            owner = world.held()
            store.do(claim_of(owner, identity))
            settle(owner, status, identity)
            finish(owner)
        never = world.held()
        store.do(claim_of(never, "never called"))
        finish(never)
        retaken = world.held()
        store.do(claim_of(retaken, "taken over"))
        settle(retaken, O.FAILED, "taken over")
        finish(retaken)
        h = world.held()
        store.do(claim_of(h, "taken over", "9"))
        clock.pass_(MINUTE)
        assert prune(store, clock.now, ANN).runs == 4
        rows = {i["identity"]: i["outcome"] for i in world.rows("identities")}
        assert rows == {
            "invoice/succeeded": "succeeded", "invoice/failed": "failed", "never called": None, "taken over": None,
        }  # fmt: skip
        with pytest.raises(IdentityTaken) as taken:
            store.do(claim_of(h, names[O.SUCCEEDED]))
        assert (taken.value.status, taken.value.generation) == ("succeeded", 1)
        scene = recipes.Scene(world, h, name=names[O.SUCCEEDED], owner=(taken.value.run_id, "1"))
        store.do(refer(scene))
        store.do(claim_of(h, names[O.FAILED], "2"))
        store.do(claim_of(h, "never called", "3"))
        assert (store.identity(names[O.FAILED]) or {})["outcome"] is None
        assert (store.identity("never called") or {})["generation"] == 2
        assert fsck(store, deep=True).problems == []


# --- runs that are held up ---------------------------------------------------------------------------------------


def wake(run_id: str) -> WakeRun:
    return WakeRun(actor="system", run_id=run_id)


def waiting_for(store: Any, waits_for: str) -> list[str]:
    return [row["run_id"] for row in store.held_up() if row["waits_for"] == waits_for]


def test_a_run_that_waits_for_a_freeze_is_woken_when_nothing_stops_its_tool(world: World) -> None:
    tool, agent = world.name("tool"), world.name("agent")
    h = world.held(agent=agent)
    freezes = [
        world.store.do(Freeze(actor=ANN, scope=scope, name=name, reason="it sends nonsense")).seq
        for scope, name in ((FreezeScope.TOOL, tool), (FreezeScope.AGENT, agent))
    ]
    world.store.do(ParkRun(**h.by, waits_for=f"freeze:{tool}", wake_at=world.clock.now + MINUTE))
    assert waiting_for(world.store, f"freeze:{tool}") == [h.run_id]
    for number in freezes:
        check_refused(world, wake(h.run_id), PreconditionFailed, match="goes on waiting")
        world.store.do(Unfreeze(actor=ANN, freeze_no=number, reason="mended"))
    world.store.do(wake(h.run_id))
    assert (h.run["status"], h.run["waits_for"], h.run["wake_at"]) == ("running", None, None)
    event = world.last_event(h.run_id)
    assert (event.kind, event.data) == ("wait", {"woken": f"freeze:{tool}"})
    assert waiting_for(world.store, f"freeze:{tool}") == []


def test_a_run_that_undoes_goes_on_undoing_when_it_is_woken(world: World) -> None:
    scene = recipes.compensating(world)
    world.store.do(ParkRun(**scene.by, waits_for="freeze:refund"))
    world.store.do(wake(scene.run_id))
    assert scene.h is not None
    assert scene.h.run["status"] == "compensating"


@pytest.mark.parametrize("status", ["claimed", O.AWAITING_APPROVAL, O.PENDING, O.UNKNOWN])
def test_a_run_that_waits_for_an_identity_is_woken_when_its_owners_outcome_is_known(status: str, world: World) -> None:
    owner, other, identity = world.held(), world.held(), world.name("invoice/")
    world.store.do(claim_of(owner, identity))
    world.store.do(ParkRun(**other.by, waits_for=f"identity:{identity}"))
    assert waiting_for(world.store, f"identity:{identity}") == [other.run_id]
    if status != "claimed":
        settle(owner, status, identity)
    check_refused(world, wake(other.run_id), PreconditionFailed, match=f"is {status}")
    if status == O.PENDING:
        succeed(owner, "1")
    elif status == O.UNKNOWN:
        world.store.do(NeedOperator(**owner.by, why=Why.UNKNOWN, detail="look", step="1"))
        world.store.do(RecordAbsent(actor=ANN, run_id=owner.run_id, step="1", reason="not there"))
    elif status == "claimed":
        finish(owner)
    else:
        return
    world.store.do(wake(other.run_id))
    assert other.run["status"] == "running"


def test_a_run_that_waits_for_what_nobody_owns_or_for_itself_is_woken(world: World) -> None:
    for claims in (False, True):
        h, identity = world.held(), world.name("invoice/")
        if claims:
            world.store.do(claim_of(h, identity))
        world.store.do(ParkRun(**h.by, waits_for=f"identity:{identity}"))
        world.store.do(wake(h.run_id))


@pytest.mark.parametrize("waits_for", ["signal:go", "time", "freezer", "identity"])
def test_a_run_that_waits_for_something_else_is_not_woken(waits_for: str, world: World) -> None:
    h = world.held()
    world.store.do(ParkRun(**h.by, waits_for=waits_for))
    check_refused(world, wake(h.run_id), PreconditionFailed, match="which nobody can see")
    assert h.run_id not in [row["run_id"] for row in world.store.held_up()]


def test_runs_that_are_held_up_are_listed_a_page_at_a_time(world: World) -> None:
    tool = world.name("tool")
    held = [world.held() for _ in range(3)]
    for h in held:
        world.store.do(ParkRun(**h.by, waits_for=f"freeze:{tool}"))
    every = world.store.held_up()
    assert every[-1] == {
        "run_id": held[-1].run_id, "agent": "a", "agent_version": "1", "waits_for": f"freeze:{tool}",
    }  # fmt: skip
    paged, after = [], None
    while page := world.store.held_up(2, after=after):
        paged += page
        after = page[-1]["run_id"]
    assert paged == every
