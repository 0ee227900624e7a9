"""COMMIT lost on its way to the server, or its answer on the way back: the caller learns the truth, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from sqlalchemy import func, select

from tests.faults.writer import intend, registration, settle, start
from tests.support.people import open_store
from tests.support.proxy import CuttingProxy, When
from walkback_store import schema
from walkback_store.engine import Committed
from walkback_store.errors import CommitUnknown, StoreError, Unreachable
from walkback_store.fsck import fsck
from walkback_store.machine.base import Transition
from walkback_store.machine.people import AddNote
from walkback_store.store import Store

NO_WAIT = 0.3
BOTH: tuple[When, When] = ("before", "after")


@pytest.fixture
def store(pg_proxy: CuttingProxy) -> Iterator[Store]:
    with open_store(pg_proxy.url) as opened:
        yield opened


@pytest.fixture
def impatient(pg_proxy: CuttingProxy) -> Iterator[Store]:
    with open_store(pg_proxy.url, wait=NO_WAIT) as opened:
        yield opened


@pytest.fixture
def truth(pg_url: str) -> Iterator[Store]:
    """The same store, looked at past the proxy."""
    with open_store(pg_url) as opened:
        yield opened


def note(run_id: str, words: str = "look here") -> AddNote:
    """Legal in every state, and as often as one likes: only its id says that it is there already."""
    return AddNote(actor="operator:me", run_id=run_id, reason=words)


def times_in_log(truth: Store, transitions: Sequence[Transition]) -> list[int]:
    e = schema.events
    with truth.backend.engine.connect() as connection:
        return [
            int(connection.execute(select(func.count()).where(e.c.transition == t.id)).scalar_one())
            for t in transitions
        ]


def events_of(truth: Store, run_id: str) -> int:
    e, r = schema.events, schema.runs
    with truth.backend.engine.connect() as connection:
        query = select(func.count()).select_from(e.join(r, r.c.run_no == e.c.run_no)).where(r.c.run_id == run_id)
        return int(connection.execute(query).scalar_one())


def claimed(store: Store, run_id: str = "r") -> int:
    """A run held by worker w; its fence."""
    store.do(registration("w"))
    store.do(start(run_id))
    (committed,) = store.claim("w", {"a": ["1"]})
    return int((committed.run or {})["fence"])


def go_away_at_commit(proxy: CuttingProxy, store: Store, when: When) -> None:
    """The connection that commits next is lost, and there is no other to be had."""
    store.do(start("warm"))  # so that it holds a connection, which survives what follows
    store.backend.engine.dispose()
    proxy.cut_commit(when)
    proxy.refuse(True)


Make = Callable[[Store], Transition]


def a_start(store: Store) -> Transition:
    return start("new")


def an_intent(store: Store) -> Transition:
    return intend("r", claimed(store), 1, "w", {"n": 1})


def a_settlement(store: Store) -> Transition:
    fence = claimed(store)
    store.do(intend("r", fence, 1, "w", {"n": 1}))
    return settle("r", fence, 1, "w", {"n": 2})


def a_note(store: Store) -> Transition:
    store.do(start("r"))
    return note("r")


def a_worker(store: Store) -> Transition:
    return registration("another")


@pytest.mark.parametrize("when", BOTH)
@pytest.mark.parametrize("make", [a_start, an_intent, a_settlement, a_note, a_worker])
def test_a_lost_commit_is_reported_as_committed_and_applied_once(
    make: Make, when: When, pg_proxy: CuttingProxy, store: Store, truth: Store
) -> None:
    transition = make(store)
    cut = pg_proxy.cut_commit(when)
    result = store.do(transition)
    assert cut.wait()
    assert cut.committed is (when == "after")
    assert result.repeated is (when == "after")
    assert times_in_log(truth, [transition]) == [1]
    assert fsck(truth).problems == []


@pytest.mark.parametrize("when", BOTH)
def test_the_result_of_a_lost_commit_names_the_event_that_is_in_the_log(
    when: When, pg_proxy: CuttingProxy, store: Store, truth: Store
) -> None:
    transition = a_settlement(store)
    pg_proxy.cut_commit(when)
    result = store.do(transition)
    e = schema.events
    with truth.backend.engine.connect() as connection:
        first, run_no = connection.execute(select(e.c.seq, e.c.run_no).where(e.c.transition == transition.id)).one()
        named = select(e.c.hash).where(e.c.run_no == run_no, e.c.seq == result.seq)
        digest = bytes(connection.execute(named).scalar_one())
    assert (result.transition, result.hash) == (transition.id, digest)
    assert result.seq >= first


@pytest.mark.parametrize("when", BOTH)
def test_every_transition_of_a_batch_whose_commit_was_lost_is_applied_once(
    when: When, pg_proxy: CuttingProxy, store: Store, truth: Store
) -> None:
    fence = claimed(store)
    store.do(start("other"))
    batch = [intend("r", fence, 1, "w", {"n": 1}), note("r"), note("other"), start("third"), note("nowhere")]
    pg_proxy.cut_commit(when)
    *applied, refused = store.commit(batch)
    assert [type(result) for result in applied] == [Committed] * 4
    assert isinstance(refused, StoreError)
    assert times_in_log(truth, batch) == [1, 1, 1, 1, 0]
    assert fsck(truth).problems == []


@pytest.mark.parametrize("when", BOTH)
def test_a_claim_whose_commit_was_lost_is_returned_exactly_if_it_was_made(
    when: When, pg_proxy: CuttingProxy, store: Store, truth: Store
) -> None:
    store.do(registration("w"))
    store.do(start("r"))
    pg_proxy.cut_commit(when)
    claims = store.claim("w", {"a": ["1"]})
    held_by = truth.run("r")["worker"]
    assert [c.run["run_id"] for c in claims if c.run] == (["r"] if held_by == "w" else [])
    assert (when == "after") <= bool(claims)
    if not claims:
        claims = store.claim("w", {"a": ["1"]})
    assert claims[0].run is not None
    assert claims[0].run["fence"] == truth.run("r")["fence"]
    assert events_of(truth, "r") == 2
    assert fsck(truth).problems == []


def test_connections_lost_between_commits_go_unnoticed(pg_proxy: CuttingProxy, store: Store, truth: Store) -> None:
    transition = an_intent(store)
    pg_proxy.cut_all()
    assert not store.do(transition).repeated
    assert times_in_log(truth, [transition]) == [1]


def test_a_heartbeat_claim_and_query_go_on_after_connections_were_lost(pg_proxy: CuttingProxy, store: Store) -> None:
    store.do(registration("w"))
    store.do(start("r"))
    pg_proxy.cut_all()
    store.beat("w")
    pg_proxy.cut_all()
    assert len(store.claim("w", {"a": ["1"]})) == 1
    pg_proxy.cut_all()
    assert store.run("r")["worker"] == "w"


@pytest.mark.parametrize("when", BOTH)
@pytest.mark.parametrize("make", [a_start, an_intent, a_settlement, a_note, a_worker])
def test_a_server_away_for_longer_than_the_wait_leaves_an_open_question_that_resubmitting_answers(
    make: Make, when: When, pg_proxy: CuttingProxy, impatient: Store, truth: Store
) -> None:
    transition = make(impatient)
    go_away_at_commit(pg_proxy, impatient, when)
    with pytest.raises(CommitUnknown) as raised:
        impatient.do(transition)
    assert raised.value.transition_ids == (transition.id,)
    assert times_in_log(truth, [transition]) == [int(when == "after")]

    pg_proxy.refuse(False)
    assert impatient.do(transition).repeated is (when == "after")
    assert times_in_log(truth, [transition]) == [1]
    assert fsck(truth).problems == []


@pytest.mark.parametrize("when", BOTH)
def test_an_open_question_about_a_batch_carries_every_id_and_is_answered_for_each(
    when: When, pg_proxy: CuttingProxy, impatient: Store, truth: Store
) -> None:
    impatient.do(start("r"))
    batch = [note("r", "one"), start("s"), note("r", "two"), registration("w")]
    go_away_at_commit(pg_proxy, impatient, when)
    with pytest.raises(CommitUnknown) as raised:
        impatient.commit(batch)
    assert raised.value.transition_ids == tuple(t.id for t in batch)

    pg_proxy.refuse(False)
    assert [type(result) for result in impatient.commit(batch)] == [Committed] * 4
    assert times_in_log(truth, batch) == [1, 1, 1, 1]
    assert fsck(truth).problems == []


def test_a_server_that_is_away_before_anything_was_sent_is_unreachable_and_nothing_is_in_question(
    pg_proxy: CuttingProxy, impatient: Store, truth: Store
) -> None:
    impatient.do(start("r"))
    words = note("r")
    pg_proxy.refuse(True)
    pg_proxy.cut_all()
    for _ in range(2):  # with a connection that breaks, then with none at all
        with pytest.raises(Unreachable):
            impatient.do(words)
        with pytest.raises(Unreachable):
            impatient.claim("w", {"a": ["1"]})
        with pytest.raises(Unreachable):
            impatient.beat("w")
    assert times_in_log(truth, [words]) == [0]
    pg_proxy.refuse(False)
    assert not impatient.do(words).repeated


def test_a_server_that_comes_back_within_the_wait_was_never_away(
    pg_proxy: CuttingProxy, store: Store, truth: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    transition = an_intent(store)
    attempts = []
    reconnect = store.backend.reconnect

    def counting() -> None:
        attempts.append(1)
        if len(attempts) == 3:
            pg_proxy.refuse(False)
        reconnect()

    monkeypatch.setattr(store.backend, "reconnect", counting)
    go_away_at_commit(pg_proxy, store, "after")
    assert store.do(transition).repeated
    assert len(attempts) == 3
    assert times_in_log(truth, [transition]) == [1]


def test_a_question_stays_open_when_the_next_attempt_is_lost_before_its_own_commit(
    pg_proxy: CuttingProxy, impatient: Store, truth: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    transition = an_intent(impatient)
    reconnect = impatient.backend.reconnect

    def once_more() -> None:
        reconnect()
        pg_proxy.refuse(True)
        pg_proxy.cut_all()

    monkeypatch.setattr(impatient.backend, "reconnect", once_more)
    pg_proxy.cut_commit("after")
    with pytest.raises(CommitUnknown) as raised:
        impatient.do(transition)
    assert raised.value.transition_ids == (transition.id,)
    assert times_in_log(truth, [transition]) == [1]
