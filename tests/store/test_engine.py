"""Commits: shared by those who come together, true for each of them, and as durable as the strictest asks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.store.driver import ANN, BOB, Held, claim, intend, open_with_clock, register, start
from tests.support.people import open_store
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.engine import Committed
from walkback_store.errors import (
    IllegalTransition,
    NotFound,
    PreconditionFailed,
    StaleFence,
    StoreError,
    TransitionConflict,
    ValueRefused,
)
from walkback_store.fsck import fsck
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import Call, Intend, Settle
from walkback_store.machine.people import AddNote, TakeBack
from walkback_store.machine.runs import (
    DeclarePlan,
    FinishRun,
    NeedOperator,
    ParkRun,
    RecordStep,
    SendSignal,
    StartRun,
)
from walkback_store.store import Store
from walkback_store.values import encode
from walkback_store.words import Answer, Effect, OperationStatus, Why

ROOT = Path(__file__).parents[2]
TOO_LARGE = 2**63
"""An event can say it, but no column holds it: the database itself refuses the row."""


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def note(run_id: str, words: str = "looked at it", actor: str = ANN) -> AddNote:
    return AddNote(actor=actor, run_id=run_id, reason=words)


def many_held(store: Store, n: int) -> list[Held]:
    register(store)
    for i in range(n):
        start(store, f"r{i}")
    return [claim(store) for _ in range(n)]


def notes_of(store: Store, run_id: str) -> list[str]:
    return [e.data["reason"] for e in store.events(run_id, limit=1000) if e.data.get("action") == "note"]


def commits(store: Store) -> int:
    return store.engine.strict_commits + store.engine.relaxed_commits


def in_one_commit(store: Store, jobs: list[Callable[[], Any]]) -> list[Any]:
    """Run the jobs on threads of their own; all but the first have queued up before the first may write."""
    barrier = threading.Barrier(len(jobs))

    def job(do: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return do()
        except StoreError as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        with store.engine._writing:
            running = [pool.submit(job, do) for do in jobs]
            deadline = time.monotonic() + 30
            while len(store.engine._queue) < len(jobs) - 1:
                assert time.monotonic() < deadline, "the others never queued up"
                threading.Event().wait(0.001)
        return [r.result() for r in running]


# --- group commit ------------------------------------------------------------------------------------------------


def test_threads_that_come_together_share_a_commit(store: Store) -> None:
    for i in range(16):
        start(store, f"r{i}")
    before = commits(store)
    results = in_one_commit(store, [lambda i=i: store.do(note(f"r{i}")) for i in range(16)])  # type: ignore[misc]
    assert all(isinstance(r, Committed) and not r.repeated for r in results)
    assert commits(store) - before <= 2  # one for all who queued up while the store was busy, and for who came late
    assert [notes_of(store, f"r{i}") for i in range(16)] == [["looked at it"]] * 16
    assert fsck(store, deep=True).problems == []


def test_threads_without_any_arrangement_all_get_their_own_truth(store: Store) -> None:
    threads, each = 8, 10
    for i in range(threads):
        start(store, f"r{i}")
    barrier = threading.Barrier(threads)

    def write(i: int) -> list[int]:
        barrier.wait()
        return [store.do(note(f"r{i}", f"{n}")).seq for n in range(each)]

    before = commits(store)
    with ThreadPoolExecutor(threads) as pool:
        seqs = list(pool.map(write, range(threads)))
    assert seqs == [list(range(2, each + 2))] * threads
    assert commits(store) - before <= threads * each
    assert [notes_of(store, f"r{i}") for i in range(threads)] == [[str(n) for n in range(each)]] * threads


def test_threads_that_write_to_one_run_are_put_in_a_row(store: Store) -> None:
    start(store, "r")
    results = in_one_commit(store, [lambda i=i: store.do(note("r", str(i))) for i in range(12)])  # type: ignore[misc]
    assert sorted(r.seq for r in results) == list(range(2, 14))
    assert sorted(notes_of(store, "r"), key=int) == [str(i) for i in range(12)]
    assert fsck(store).problems == []


def test_a_refused_transition_costs_the_others_who_share_its_commit_nothing(store: Store) -> None:
    runs = many_held(store, 4)
    stale = FinishRun(**(runs[0].by | {"fence": runs[0].fence - 1}))
    missing = note("no such run")
    jobs: list[Transition] = [note("r0"), stale, note("r1"), missing, FinishRun(**runs[2].by), note("r3", " ")]
    before = commits(store)
    results = in_one_commit(store, [lambda t=t: store.do(t) for t in jobs])  # type: ignore[misc]
    assert [type(r) for r in results[:3]] == [Committed, StaleFence, Committed]
    assert isinstance(results[4], Committed)
    assert isinstance(results[5], PreconditionFailed)
    assert commits(store) - before <= 2
    assert store.run("r2")["status"] == "succeeded"
    assert store.run("r0")["status"] == "running"
    assert fsck(store, deep=True).problems == []


def test_results_come_in_the_order_given_whatever_the_order_of_runs(store: Store) -> None:
    ids = ["m", "z", "a", "q", "b"]
    results = store.commit([StartRun(actor=ANN, run_id=i, agent="a", state=encode({"of": i})) for i in ids])
    assert [r.run["run_id"] for r in results if isinstance(r, Committed) and r.run] == ids
    assert {i: store.state(i, 0) for i in ids} == {i: {"of": i} for i in ids}


def test_runs_started_together_are_one_commit(store: Store) -> None:
    before = commits(store)
    store.commit([StartRun(actor=ANN, run_id=f"r{i}", agent="a", state=encode({"i": i})) for i in range(20)])
    assert commits(store) - before == 1
    assert fsck(store, deep=True).problems == []


def test_transitions_of_one_run_are_applied_in_the_order_given_each_on_what_the_one_before_left(store: Store) -> None:
    (h,) = many_held(store, 1)
    call = Call(tool="pay", args_hash="0" * 64)
    results = store.commit(
        [
            note("r0", "first"),
            Intend(**h.by, step="1", call=call, worker=h.worker, state=encode({"n": 1})),
            FinishRun(**h.by),  # not while step 1 is pending
            Settle(**h.by, step="1", outcome=OperationStatus.FAILED, answer=Answer.REJECTED, state=encode({"n": 2})),
            FinishRun(**h.by, state=encode({"n": 3})),
            Settle(**h.by, step="1", outcome=OperationStatus.FAILED, answer=Answer.REJECTED),  # finished by then
            note("r0", "last"),
        ]
    )
    assert [type(r).__name__ for r in results] == [
        *("Committed", "Committed", "PreconditionFailed", "Committed", "Committed", "IllegalTransition", "Committed")
    ]
    seqs = [r.seq for r in results if isinstance(r, Committed)]
    assert seqs == sorted(seqs)
    assert [store.state("r0", n) for n in range(4)] == [{"step": 0}, {"n": 1}, {"n": 2}, {"n": 3}]
    assert fsck(store, deep=True).problems == []


def test_a_run_can_be_started_claimed_and_worked_on_in_one_commit(store: Store) -> None:
    register(store)
    results = store.commit(
        [StartRun(actor=ANN, run_id="r", agent="a"), note("r"), StartRun(actor=ANN, run_id="r", agent="b")]
    )
    assert [type(r).__name__ for r in results] == ["Committed", "Committed", "RunExists"]
    assert fsck(store).problems == []


def test_nothing_to_do_is_no_commit(store: Store) -> None:
    start(store, "r")
    before = commits(store)
    again = start(store, "r")
    assert again.repeated
    assert store.commit([]) == []
    assert commits(store) == before


# --- what the database itself rejects -----------------------------------------------------------------------------


def test_what_the_database_rejects_is_refused_alone_and_its_neighbours_are_applied(store: Store) -> None:
    runs = many_held(store, 3)
    results = store.commit(
        [
            note("r0"),
            ParkRun(**runs[1].by, waits_for="time", wake_at=TOO_LARGE),
            RecordStep(**runs[2].by, step="1", name="look", state=encode({"n": 1})),
            note("r1", "still there"),
        ]
    )
    assert [type(r).__name__ for r in results] == ["Committed", "PreconditionFailed", "Committed", "Committed"]
    assert "rejected" in str(results[1])
    assert store.run("r1")["status"] == "running"
    assert store.state("r2", 1) == {"n": 1}
    assert fsck(store, deep=True).problems == []


def test_the_store_goes_on_after_the_database_rejected_something(store: Store) -> None:
    (h,) = many_held(store, 1)
    with pytest.raises(PreconditionFailed):
        store.do(ParkRun(**h.by, waits_for="time", wake_at=TOO_LARGE, state=encode({"never": 1})))
    store.do(RecordStep(**h.by, step="1", name="look", state=encode({"n": 1})))
    assert store.state("r0", 1) == {"n": 1}
    assert fsck(store, deep=True).problems == []


@pytest.mark.parametrize("name", ["nul\x00", "lone \ud800 surrogate"])
def test_a_name_that_the_database_cannot_look_up_is_refused_alone(name: str, store: Store) -> None:
    (h,) = many_held(store, 1)
    results = store.commit(
        [
            note("r0"),
            note(name),
            StartRun(actor=ANN, run_id=name, agent="a"),
            SendSignal(actor=ANN, run_id="r0", signal_id="s", name=name),
            RecordStep(**h.by, step="1", name=name),
            note("r0", "after"),
        ]
    )
    assert [isinstance(r, StoreError) for r in results[:3]] == [False, True, True]
    assert notes_of(store, "r0") == ["looked at it", "after"]
    assert fsck(store, deep=True).problems == []


def test_a_number_that_the_database_cannot_look_up_is_refused_alone(store: Store) -> None:
    (h,) = many_held(store, 1)
    park = NeedOperator(**h.by, why=Why.REVIEW, detail="look")
    wrong = TakeBack(actor=ANN, run_id="r0", decision=10**30, reason="wait")
    results = store.commit([note("r0"), wrong, park, note("r0", "after")])
    assert [isinstance(r, StoreError) for r in results] == [False, True, False, False]


def test_what_is_rejected_leaves_nothing_behind_that_could_refuse_others_later(store: Store) -> None:
    """A driver that prepares statements must not believe in one that was in line behind the rejected one."""
    for _ in range(3):
        with pytest.raises(NotFound):
            store.do(note("no such run"))
    register(store)
    for i in range(2):
        start(store, f"r{i}")
    h = claim(store)
    with pytest.raises(PreconditionFailed):
        store.do(ParkRun(**h.by, waits_for="time", wake_at=TOO_LARGE, state=encode({"never": 1})))
    for i in range(2, 6):
        start(store, f"r{i}")
        store.do(RecordStep(**h.by, step=str(i), name="look", state=encode({"i": i})))
    assert fsck(store, deep=True).problems == []


def test_a_value_that_cannot_be_stored_is_refused_with_its_path_and_its_neighbours_are_applied(store: Store) -> None:
    (h,) = many_held(store, 1)
    results = store.commit(
        [
            note("r0", "before"),
            RecordStep(**h.by, step="1", name="x", data={"cart": [1, {"price": float("nan")}]}),
            note("r0", "after"),
        ]
    )
    refused = results[1]
    assert isinstance(refused, ValueRefused)
    assert refused.path.endswith("cart[1].price")
    assert notes_of(store, "r0") == ["before", "after"]
    assert fsck(store).problems == []


# --- the same id twice -------------------------------------------------------------------------------------------


def test_the_same_transition_twice_in_one_commit_is_applied_once(store: Store) -> None:
    start(store, "r")
    start(store, "s")
    twice = note("r")
    first, second, other = store.commit([twice, twice, note("s")])
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert isinstance(other, Committed)
    assert (first.repeated, second.repeated) == (False, True)
    assert first.seq == second.seq
    assert first.hash == second.hash
    assert notes_of(store, "r") == ["looked at it"]


def test_the_same_transition_from_many_threads_is_applied_once(store: Store) -> None:
    start(store, "r")
    same = note("r")
    results = in_one_commit(store, [lambda: store.do(same) for _ in range(8)])
    assert sorted(r.repeated for r in results) == [False] + [True] * 7
    assert len({r.seq for r in results}) == 1
    assert notes_of(store, "r") == ["looked at it"]


def test_the_same_id_for_another_run_or_by_another_actor_is_a_conflict(store: Store) -> None:
    start(store, "r")
    start(store, "s")
    first = note("r")
    store.do(first)
    for other in (note("s"), note("r", actor=BOB)):
        other.id = first.id
        with pytest.raises(TransitionConflict, match=ANN):
            store.do(other)
    assert notes_of(store, "r") == ["looked at it"]
    assert notes_of(store, "s") == []


# --- how durable -------------------------------------------------------------------------------------------------


def transitions_by_class(h: Held) -> dict[str, list[Transition]]:
    """Groups of transitions, by the durability that a commit of them must have."""

    def read(step: str) -> Intend:
        call = Call(tool="look", effect=Effect.READ, args_hash="0" * 64)
        return Intend(**h.by, step=step, call=call, worker=h.worker)

    def done(step: str) -> Settle:
        return Settle(**h.by, step=step, outcome=OperationStatus.SUCCEEDED, answer=Answer.ACKNOWLEDGED)

    write = Call(tool="pay", args_hash="0" * 64)
    return {
        "a plan": [DeclarePlan(**h.by, steps=["one"])],
        "the start of a read": [read("1")],
        "the outcome of a read": [done("1")],
        "an intent to write": [Intend(**h.by, step="2", call=write, worker=h.worker)],
        "an outcome": [done("2")],
        "an observation": [RecordStep(**h.by, step="3", name="look")],
        "an operator's word": [note(h.run_id)],
        "two relaxed ones": [RecordStep(**h.by, step="4", name="look"), read("5")],
        "a strict one among relaxed ones": [DeclarePlan(**h.by, steps=["two"]), note(h.run_id), read("6")],
    }


RELAXED = {"a plan", "the start of a read", "an observation", "two relaxed ones"}


def test_on_sqlite_the_class_is_chosen_before_the_transaction_and_one_strict_member_makes_all_strict(
    tmp_path: Path,
) -> None:
    seen: list[int] = []
    opened: list[SQLiteBackend] = []

    def now() -> int:  # the store asks for the time after BEGIN
        if opened:
            assert opened[0]._writer.in_transaction
            seen.append(opened[0]._writer.execute("PRAGMA synchronous").fetchone()[0])
        return time.time_ns() // 1000

    with open_store(tmp_path / "walkback.db", clock=now) as store:
        (h,) = many_held(store, 1)
        assert isinstance(store.backend, SQLiteBackend)
        opened.append(store.backend)
        found = {}
        for name, transitions in transitions_by_class(h).items():
            seen.clear()
            strict, relaxed = store.engine.strict_commits, store.engine.relaxed_commits
            assert not [r for r in store.commit(transitions) if isinstance(r, StoreError)]
            counted = (store.engine.strict_commits - strict, store.engine.relaxed_commits - relaxed)
            assert counted == ((0, 1) if name in RELAXED else (1, 0)), name
            assert len(set(seen)) == 1
            found[name] = {1: "NORMAL", 2: "FULL"}[seen[0]]
        opened.clear()
    assert found == {name: "NORMAL" if name in RELAXED else "FULL" for name in found}


def test_on_postgresql_only_a_commit_of_relaxed_ones_does_not_wait_for_the_disk(pg_url: str) -> None:
    with open_store(pg_url) as store:
        (h,) = many_held(store, 1)
        with store.backend.engine.begin() as db:  # what the server itself is told, transaction by transaction
            db.execute(text("CREATE TABLE told (setting TEXT)"))
            db.execute(
                text(
                    "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN INSERT INTO told VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$"
                )
            )
            db.execute(text("CREATE TRIGGER tell AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION tell()"))
        found = {}
        for name, transitions in transitions_by_class(h).items():
            assert not [r for r in store.commit(transitions) if isinstance(r, StoreError)]
            with store.backend.engine.begin() as db:
                (found[name],) = db.execute(text("SELECT DISTINCT setting FROM told")).scalars()
                db.execute(text("DELETE FROM told"))
        assert found == {name: "off" if name in RELAXED else "on" for name in found}


# --- several writers at once -------------------------------------------------------------------------------------

WRITER = """
import sys
from tests.store.test_engine import write_notes
write_notes(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def write_notes(url: str, run_id: str, n: int) -> None:
    """One writing process: says that it is ready, waits for the word, writes, and says what came of it."""
    with open_store(url, wait=60) as store:
        start(store, run_id)
        print("ready", flush=True)
        sys.stdin.readline()
        for i in range(n):
            store.do(note(run_id, str(i)))
            store.do(note("shared", f"{run_id} {i}"))
    print("done", flush=True)


def test_two_connections_and_several_processes_write_at_once_and_nobody_is_told_to_come_back(store_url: str) -> None:
    processes, each = 3, 40
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with open_store(store_url, wait=60) as one, open_store(store_url, wait=60) as two:
        start(one, "shared")
        others = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, store_url, f"p{i}", str(each)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
                cwd=ROOT,
            )
            for i in range(processes)
        ]
        try:
            for other in others:
                assert other.stdout is not None
                assert other.stdout.readline() == "ready\n"
            for other in others:
                assert other.stdin is not None
                other.stdin.write("go\n")
                other.stdin.flush()

            def write(which: tuple[str, Store]) -> None:
                run_id, store = which
                start(store, run_id)
                for i in range(each):
                    store.do(note(run_id, str(i)))
                    store.do(note("shared", f"{run_id} {i}"))

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(write, [("one", one), ("two", two)]))
            ends = [other.communicate(timeout=120)[0] for other in others]
        finally:
            for other in others:
                if other.poll() is None:
                    other.kill()
                other.wait()
        assert ends == ["done\n"] * processes
        writers = [*(f"p{i}" for i in range(processes)), "one", "two"]
        for run_id in writers:
            assert notes_of(one, run_id) == [str(i) for i in range(each)]
        shared = notes_of(one, "shared")
        assert len(shared) == len(writers) * each
        for run_id in writers:
            assert [words for words in shared if words.startswith(f"{run_id} ")] == [
                f"{run_id} {i}" for i in range(each)
            ]
        assert fsck(one, deep=True).problems == []


def test_two_stores_of_one_process_see_what_the_other_did_and_refuse_accordingly(store_url: str) -> None:
    one, clock = open_with_clock(store_url)
    with one, open_store(store_url, clock=clock) as two:
        register(one)
        start(one, "r")
        h = claim(one)
        elsewhere = Held(two, h.run_id, h.worker, h.fence)
        intend(h, "1", state={"n": 1})
        two.do(
            Settle(
                **elsewhere.by, step="1", outcome=OperationStatus.FAILED, answer=Answer.REJECTED, state=encode({"n": 2})
            )
        )
        intend(h, "2", state={"n": 3})
        with pytest.raises(IllegalTransition):
            intend(elsewhere, "2")
        assert [two.state("r", n) for n in range(4)] == [{"step": 0}, {"n": 1}, {"n": 2}, {"n": 3}]
        assert fsck(two, deep=True).problems == []
