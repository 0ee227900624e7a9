"""The store as a whole: workers, freezes, batches, copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.store import recipes
from tests.store.driver import ANN, BOB, MINUTE, SECOND, Held, call, open_with_clock, write
from tests.store.recipes import O, Scene, World, matrix, transitions
from tests.support.people import open_store
from walkback_store.errors import Frozen, IllegalTransition, NotAdopted, NotFound, PreconditionFailed, StaleFence
from walkback_store.fsck import fsck
from walkback_store.housekeeping import adopt, is_adopted, prune
from walkback_store.log import Row
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import CarryOutRetry, EndAttempt, Intend, Settle, StartAttempt
from walkback_store.machine.people import (
    REGRET,
    AddNote,
    DecideRetry,
    RecordAbsent,
    RecordHappened,
    RetryMember,
    TakeBack,
)
from walkback_store.machine.roles import GrantRole
from walkback_store.machine.runs import ClaimRun, FinishRun
from walkback_store.machine.store_wide import (
    Freeze,
    LoseWorker,
    OpenBatch,
    ReleaseMember,
    StopBatch,
    Unfreeze,
)
from walkback_store.words import Answer, Effect, FreezeScope, Role


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with recipes.new_world(request, tmp_path_factory) as made:
        yield made


SUBJECTS = ("worker", "freeze", "breaker", "budget", "identity", "batch", "role", "store")


@pytest.mark.parametrize(("transition", "state"), matrix(*SUBJECTS))
def test_a_transition_is_legal_from_exactly_its_sources(transition: type[Transition], state: str, world: World) -> None:
    recipes.check(world, transition, state)


@pytest.mark.parametrize("transition", transitions(*SUBJECTS))
def test_an_id_that_was_used_for_something_else_is_a_conflict(transition: type[Transition], world: World) -> None:
    recipes.check_conflict(world, transition)


# --- freezes -----------------------------------------------------------------------------------------------------


def freeze(scope: FreezeScope, name: str | None = None) -> Freeze:
    return Freeze(actor=ANN, scope=scope, name=name, reason="it sends nonsense")


def unfreeze(number: int) -> Unfreeze:
    return Unfreeze(actor=BOB, freeze_no=number, reason="mended")


def test_a_freeze_says_who_what_when_and_why_and_so_does_its_end(world: World) -> None:
    name = world.name("tool")
    number = world.store.do(freeze(FreezeScope.TOOL, name)).seq
    event = world.last_event(None)
    assert (event.kind, event.actor) == ("operator_action", ANN)
    assert event.data == {"action": "freeze", "scope": "tool", "name": name, "reason": "it sends nonsense"}
    (row,) = world.rows("freezes", freeze_no=number)
    assert (row["by"], row["at"], row["lifted_at"]) == (ANN, world.clock.now, None)
    world.clock.pass_(SECOND)
    world.store.do(unfreeze(number))
    (row,) = world.rows("freezes", freeze_no=number)
    assert (row["lifted_by"], row["lifted_at"]) == (BOB, world.clock.now)


@pytest.mark.parametrize(
    ("scope", "name"), [(FreezeScope.TOOL, None), (FreezeScope.AGENT, None), (FreezeScope.EVERYTHING, "pay")]
)
def test_a_freeze_names_a_tool_or_an_agent_or_is_of_everything(
    scope: FreezeScope, name: str | None, world: World
) -> None:
    recipes.check_refused(world, freeze(scope, name), PreconditionFailed, match="names a tool or an agent or a service")


def test_a_tool_and_an_agent_of_one_name_are_frozen_one_by_one(world: World) -> None:
    name = world.name("same")
    numbers = [world.store.do(freeze(scope, name)).seq for scope in (FreezeScope.TOOL, FreezeScope.AGENT)]
    for number in numbers:
        world.store.do(unfreeze(number))


def test_the_same_freeze_twice_in_one_commit_is_one(world: World) -> None:
    name = world.name("tool")
    first, second = world.store.commit([freeze(FreezeScope.TOOL, name), freeze(FreezeScope.TOOL, name)])
    assert not isinstance(first, Exception)
    assert isinstance(second, IllegalTransition)
    assert len(world.rows("freezes", name=name)) == 1


def test_a_freeze_is_lifted_by_one_in_the_same_commit(world: World) -> None:
    name = world.name("tool")
    number = world.store.do(freeze(FreezeScope.TOOL, name)).seq
    results = world.store.commit([unfreeze(number), freeze(FreezeScope.TOOL, name), unfreeze(number)])
    assert [isinstance(r, Exception) for r in results] == [False, False, True]
    active = [f["freeze_no"] for f in world.rows("freezes", name=name) if f["lifted_at"] is None]
    assert active == [number + 2]


@pytest.mark.parametrize("others", [0, 1])
def test_freezes_set_together_all_hold_from_then_on(others: int, world: World) -> None:
    """Whatever this store remembers of what is frozen."""
    h = world.held()
    tools = [world.name("tool") for _ in range(2 + others)]
    world.store.commit([freeze(FreezeScope.TOOL, tool) for tool in tools])
    for i, tool in enumerate(tools):
        dispatch = Intend(**h.by, step=str(i), call=call(str(i), tool=tool), worker="w")
        recipes.check_refused(world, dispatch, Frozen)
        (row,) = world.rows("freezes", name=tool)
        world.store.do(unfreeze(row["freeze_no"]))
        world.store.do(dispatch)


def test_a_freeze_set_or_lifted_through_one_store_holds_at_once_in_another(store_url: str) -> None:
    one, clock = open_with_clock(store_url)
    with one, open_store(store_url, clock=clock) as two:
        world = World(one, clock)
        h = world.held()
        other = Held(two, h.run_id, h.worker, h.fence)
        write(h, "1")
        write(other, "2")
        number = two.do(freeze(FreezeScope.EVERYTHING)).seq
        two.do(AddNote(actor=ANN, run_id=h.run_id, reason="frozen"))
        for store, step in ((one, "3"), (two, "4")):
            with pytest.raises(Frozen):
                store.do(Intend(**h.by, step=step, call=call(step), worker="w"))
        one.do(unfreeze(number))
        write(other, "3")
        write(h, "4")


@pytest.mark.parametrize("effect", Effect)
def test_reads_are_frozen_too(effect: Effect, world: World) -> None:
    h = world.held()
    number = world.store.do(freeze(FreezeScope.EVERYTHING)).seq
    dispatch = Intend(**h.by, step="1", call=call("1", effect=effect), worker="w")
    recipes.check_refused(world, dispatch, Frozen)
    world.store.do(unfreeze(number))


# --- workers -----------------------------------------------------------------------------------------------------


def test_a_worker_says_who_it_is_and_what_it_can_run(world: World) -> None:
    name = world.worker()
    (row,) = world.rows("workers", worker=name)
    assert (row["status"], row["host"], row["pid"], row["agents"]) == ("alive", "here", 1, '{"a":["1"]}')
    assert world.last_event(None).data == {"action": "worker_started"}


def test_a_worker_whose_heart_beat_since_it_was_looked_at_is_not_lost(world: World) -> None:
    name = world.worker()
    world.store.beat(name)
    late = LoseWorker(actor="system", worker=name, beat=0, reason="no heartbeat")
    recipes.check_refused(world, late, PreconditionFailed, match="has moved since")
    world.lose(name)
    assert world.last_event(None).data == {"action": "worker_lost", "reason": "no heartbeat"}


# --- batches -----------------------------------------------------------------------------------------------------


def stuck(world: World, n: int) -> list[Scene]:
    return [recipes.parked(recipes.unknown(world)) for _ in range(n)]


def open_batch(world: World, scenes: list[Scene], spacing: int = 0) -> int:
    members = [(s.run_id, "1") for s in scenes]
    opened = OpenBatch(actor=ANN, action="retry", members=members, spacing=spacing, reason="all the same")
    number = world.store.do(opened).seq
    world.clock.pass_(REGRET)
    return number


def release(batch: int) -> ReleaseMember:
    return ReleaseMember(actor="system", batch_no=batch)


def released(world: World, batch: int) -> list[bool]:
    return [m["released_at"] is not None for m in world.rows("batch_members", batch_no=batch)]


def batch_of(world: World, batch: int) -> Row:
    (row,) = world.rows("batches", batch_no=batch)
    return row


def retried(world: World, scene: Scene, outcome: O) -> None:
    """As a worker would, for a member that was released."""
    seq = world.store.do(DecideRetry(**scene.ann(), step="1", reason="try again", regret=0)).seq
    world.clock.pass_(1)
    h = world.take(scene.run_id)
    world.store.do(CarryOutRetry(**h.by, step="1", decision=seq))
    world.store.do(StartAttempt(**h.by, step="1", worker="w"))
    world.store.do(Settle(**h.by, step="1", outcome=outcome, answer=Answer.ACKNOWLEDGED))


def test_a_batch_releases_one_alone_then_the_rest_paced_and_is_done(world: World) -> None:
    scenes = stuck(world, 3)
    batch = open_batch(world, scenes, spacing=10 * SECOND)
    row = batch_of(world, batch)
    assert (row["status"], row["total"], row["released"], row["by"]) == ("open", 3, 0, ANN)
    for n, scene in enumerate(scenes, 1):
        world.store.do(release(batch))
        assert released(world, batch) == [i <= n for i in (1, 2, 3)]
        recipes.check_refused(world, release(batch), PreconditionFailed, match=f"member {n} .* wait for it")
        retried(world, scene, O.SUCCEEDED)
        recipes.check_refused(world, release(batch), PreconditionFailed, match="not due yet")
        world.clock.pass_(10 * SECOND)
    world.store.do(release(batch))
    row = batch_of(world, batch)
    assert (row["status"], row["released"], row["ended_at"]) == ("done", 3, world.clock.now)
    assert world.last_event(None).data["action"] == "batch_done"


@pytest.mark.parametrize("outcome", [O.FAILED, O.UNKNOWN])
def test_a_batch_stops_at_the_first_that_did_not_succeed(outcome: O, world: World) -> None:
    scenes = stuck(world, 2)
    batch = open_batch(world, scenes)
    world.store.do(release(batch))
    retried(world, scenes[0], outcome)
    world.store.do(release(batch))
    row = batch_of(world, batch)
    assert (row["status"], row["ended_why"]) == ("stopped", f"member 1 is {outcome}")
    assert released(world, batch) == [True, False]
    recipes.check_refused(world, release(batch), IllegalTransition)
    assert world.store.run(scenes[1].run_id)["status"] == "needs_operator"


def test_nothing_of_a_batch_is_released_while_it_can_be_taken_back(world: World) -> None:
    (scene,) = stuck(world, 1)
    opened = OpenBatch(actor=ANN, action="retry", members=[(scene.run_id, "1")], reason="all the same")
    batch = world.store.do(opened).seq
    world.clock.pass_(REGRET - 1)
    recipes.check_refused(world, release(batch), PreconditionFailed, match="can still be taken back")
    world.clock.pass_(1)
    world.store.do(release(batch))
    assert released(world, batch) == [True]


def member(scene: Scene, batch: int, actor: str = ANN) -> RetryMember:
    return RetryMember(actor=actor, run_id=scene.run_id, step="1", batch=batch)


def test_only_the_member_whose_turn_it_is_can_be_retried_in_a_batch(world: World) -> None:
    first, second = scenes = stuck(world, 2)
    batch = open_batch(world, scenes)
    own: dict[str, Any] = {"step": "1", "reason": "again", "batch": batch}
    for scene in scenes:
        for t in (member(scene, batch), DecideRetry(**scene.ann(), **own)):
            recipes.check_refused(world, t, PreconditionFailed, match="not the turn")
    world.store.do(release(batch))
    for t in (member(second, batch), DecideRetry(**second.ann(), **own)):
        recipes.check_refused(world, t, PreconditionFailed, match="not the turn")
    recipes.check_refused(world, member(first, 10**9), NotFound, match="no batch")
    recipes.check_refused(world, member(first, batch, BOB), PreconditionFailed, match=f"{ANN}'s, not {BOB}'s")
    world.store.do(member(first, batch))
    event = world.last_event(first.run_id)
    assert (event.actor, event.kind) == (ANN, "operator_action")
    assert event.data == {"action": "retry", "reason": "all the same", "batch": batch}


def test_who_opened_a_batch_need_not_be_anything_any_more_when_its_members_are_retried(world: World) -> None:
    eve = world.name("operator:eve")
    (scene,) = stuck(world, 1)
    world.store.do(GrantRole(actor=ANN, person=eve, role=Role.OPERATOR, reason="on call"))
    opened = OpenBatch(actor=eve, action="retry", members=[(scene.run_id, "1")], reason="all the same")
    batch = world.store.do(opened).seq
    world.store.do(GrantRole(actor=ANN, person=eve, role=Role.VIEWER, reason="off duty"))
    world.clock.pass_(REGRET)
    world.store.do(release(batch))
    world.store.do(member(scene, batch, eve))
    assert world.store.run(scene.run_id)["status"] == "waiting"


def test_nothing_is_retried_in_a_batch_that_was_stopped(world: World) -> None:
    (scene,) = stuck(world, 1)
    batch = open_batch(world, [scene])
    world.store.do(release(batch))
    world.store.do(StopBatch(actor=BOB, batch_no=batch, reason="enough"))
    recipes.check_refused(world, member(scene, batch), PreconditionFailed, match="is stopped")


def test_a_member_whose_retry_is_taken_back_is_not_retried_again_and_stops_the_batch(world: World) -> None:
    scenes = stuck(world, 2)
    batch = open_batch(world, scenes)
    world.store.do(release(batch))
    seq = world.store.do(member(scenes[0], batch)).seq
    world.store.do(TakeBack(**scenes[0].ann(), decision=seq, reason="wait"))
    recipes.check_refused(world, member(scenes[0], batch), PreconditionFailed, match="has retried")
    world.store.do(release(batch))
    row = batch_of(world, batch)
    assert (row["status"], row["ended_why"]) == ("stopped", "the decision about member 1 was taken back")


def test_a_member_that_is_unknown_again_at_the_same_moment_stops_the_batch(world: World) -> None:
    scenes = stuck(world, 2)
    batch = open_batch(world, scenes)
    world.store.do(release(batch))
    seq = world.store.do(member(scenes[0], batch)).seq
    h = world.take(scenes[0].run_id)
    world.store.do(CarryOutRetry(**h.by, step="1", decision=seq))
    world.store.do(StartAttempt(**h.by, step="1", worker="w"))
    world.store.do(Settle(**h.by, step="1", outcome=O.UNKNOWN, answer=Answer.NONE))
    world.store.do(release(batch))
    assert batch_of(world, batch)["ended_why"] == "member 1 is unknown"


def test_a_member_that_is_under_way_is_waited_for(world: World) -> None:
    scenes = stuck(world, 2)
    batch = open_batch(world, scenes)
    world.store.do(release(batch))
    seq = world.store.do(DecideRetry(**scenes[0].ann(), step="1", reason="again", regret=0, batch=batch)).seq
    (decision,) = world.rows("decisions", batch=batch)
    assert decision["seq"] == seq
    h = world.take(scenes[0].run_id)
    world.store.do(CarryOutRetry(**h.by, step="1", decision=seq))
    recipes.check_refused(world, release(batch), PreconditionFailed, match="still pending")
    world.store.do(StartAttempt(**h.by, step="1", worker="w"))
    world.store.do(EndAttempt(**h.by, step="1", answer=Answer.AMBIGUOUS))
    recipes.check_refused(world, release(batch), PreconditionFailed, match="still pending")


def test_a_person_stops_a_batch_and_what_was_not_released_stays_as_it_is(world: World) -> None:
    scenes = stuck(world, 2)
    batch = open_batch(world, scenes)
    world.store.do(release(batch))
    world.store.do(StopBatch(actor=BOB, batch_no=batch, reason="enough"))
    row = batch_of(world, batch)
    assert (row["status"], row["ended_why"], released(world, batch)) == ("stopped", "enough", [True, False])


def test_a_batch_has_members_each_once_and_all_of_them_unknown(world: World) -> None:
    good, gone = stuck(world, 2)
    world.store.do(RecordAbsent(**gone.ann(), step="1", reason="no"))
    for members, match in (
        ([], "at least one"),
        ([(good.run_id, "1"), (good.run_id, "1")], "none of them twice"),
        ([(good.run_id, "1"), (gone.run_id, "1")], "is failed, not unknown"),
        ([(good.run_id, "9")], "not there"),
        ([("no such run", "1")], "not there"),
    ):
        wrong = OpenBatch(actor=ANN, action="retry", members=members, reason="all the same")
        recipes.check_refused(world, wrong, PreconditionFailed, match=match)


def test_a_batch_of_words_takes_each_ones_own_evidence(world: World) -> None:
    scenes = stuck(world, 2)
    batch = open_batch(world, scenes)
    for i, scene in enumerate(scenes):
        world.store.do(release(batch))
        word = RecordHappened(**scene.ann(), step="1", reason="seen", evidence=f"receipt {i}", batch=batch)
        world.store.do(word)
    world.store.do(release(batch))
    assert batch_of(world, batch)["status"] == "done"
    said = [world.last_event(s.run_id).data for s in scenes]
    assert [(d["evidence"], d["batch"]) for d in said] == [("receipt 0", batch), ("receipt 1", batch)]


def test_there_is_no_batch_of_that_number(world: World) -> None:
    recipes.check_refused(world, release(10**9), NotFound)


# --- copies ------------------------------------------------------------------------------------------------------


def test_nothing_runs_in_a_copy_until_someone_adopts_it_and_then_no_fence_given_before_holds(store_url: str) -> None:
    store, clock = open_with_clock(store_url)
    with store:
        world = World(store, clock)
        h = world.held()
        free = world.run()
        recipes.make_copy(store)
        assert not is_adopted(store)
        claim = ClaimRun(actor="worker:w", run_id=free, worker="w")
        recipes.check_refused(world, claim, NotAdopted, match="adopt")
        with pytest.raises(NotAdopted):
            store.claim("w", {"a": ["1"]})
        epoch = adopt(store, ANN, "the original is gone")
        assert is_adopted(store)
        again = world.take(h.run_id)
        assert again.fence >> 32 == epoch > h.fence >> 32
        recipes.check_refused(world, FinishRun(**h.by), StaleFence)
        store.do(FinishRun(**again.by))
        assert fsck(store, deep=True).problems == []


# --- pruning -----------------------------------------------------------------------------------------------------


def test_a_prune_is_noted_once_for_each_run_by_whom_and_with_the_head_it_had(world: World) -> None:
    scenes = [recipes.succeeded(world) for _ in range(2)]
    heads = {s.run_id: world.store.run(s.run_id)["head_seq"] for s in scenes}
    (row,) = world.rows("store")
    world.clock.pass_(MINUTE)
    prune(world.store, world.clock.now, BOB)
    assert prune(world.store, world.clock.now, BOB).runs == 0
    notes = [e for e in world.store.events(None, after=row["head_seq"], limit=1000) if e.data["action"] == "prune"]
    assert {e.actor for e in notes} == {BOB}
    noted = [(e.data["run_id"], e.data["head_seq"]) for e in notes if e.data["run_id"] in heads]
    assert sorted(noted) == sorted(heads.items())
    assert {t["run_id"] for t in world.rows("tombstones")} >= heads.keys()
