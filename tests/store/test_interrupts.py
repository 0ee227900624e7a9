"""What one caller does to itself, such as Ctrl-C or a mistake, costs the others nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.store.driver import ANN, claim, held, intend, register, start
from tests.support.people import open_store
from walkback_store.engine import Committed
from walkback_store.errors import CommitUnknown, PreconditionFailed, Refused, StaleFence, StoreBusy
from walkback_store.fsck import fsck
from walkback_store.housekeeping import adopt, backup
from walkback_store.machine.people import AddNote, TakeBack
from walkback_store.machine.runs import ClaimRun, TakeSnapshot
from walkback_store.machine.store_wide import LoseWorker
from walkback_store.sqlite_library import sqlite3
from walkback_store.store import Store
from walkback_store.values import encode


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def note(run_id: str = "r1", words: str = "looked") -> AddNote:
    return AddNote(actor=ANN, run_id=run_id, reason=words)


# --- Ctrl-C ------------------------------------------------------------------------------------------------------

WAITING_FOR_THE_LOCK = """
import signal, sys
from tests.store.test_interrupts import note
from tests.support.people import open_store
with open_store(sys.argv[1]) as store:
    try:
        print("waiting", flush=True)
        store.do(note())
        signal.pause()  # should it have come through before the signal did
    except KeyboardInterrupt:
        store.do(note(words="after"))
    print("done", flush=True)
"""


def test_ctrl_c_while_waiting_for_the_write_lock_leaves_a_store_that_works(tmp_path: Path) -> None:
    path = tmp_path / "walkback.db"
    with open_store(path) as store:
        start(store)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with subprocess.Popen(
            [sys.executable, "-c", WAITING_FOR_THE_LOCK, str(path)],
            stdout=subprocess.PIPE, text=True, env=env, cwd=Path(__file__).parents[2],
        ) as child:  # fmt: skip
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            child.send_signal(signal.SIGINT)
            other.execute("COMMIT")
            said = child.stdout.read().split()
    assert said[-1] == "done"
    with open_store(path) as store:
        assert fsck(store).problems == []
        assert store.events("r1")[-1].data["reason"] == "after"


WAITING_BEHIND_ANOTHER = """
import os, signal, sys, threading
from tests.store.test_interrupts import note
from tests.support.people import open_store

signal.alarm(60)  # rather die than hang
with open_store(sys.argv[1]) as store:
    taken, go = threading.Event(), threading.Event()

    def hold():
        with store.engine._writing:
            taken.set()
            go.wait()

    def interrupt():
        while not store.engine._queue:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    leader = threading.Thread(target=lambda: store.do(note(words="leader")))
    leader.start()
    while store.engine._leader is None or store.engine._queue:
        pass
    threading.Thread(target=interrupt).start()
    try:
        store.do(note(words="mine"))
    except KeyboardInterrupt:
        go.set()
        holder.join()
        leader.join()
        store.do(note(words="after"))
        sys.exit(7)
"""


def test_ctrl_c_while_another_thread_leads_leaves_a_store_that_works(tmp_path: Path) -> None:
    path = tmp_path / "walkback.db"
    with open_store(path) as store:
        start(store)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", WAITING_BEHIND_ANOTHER, str(path)]
    assert subprocess.run(command, env=env, cwd=Path(__file__).parents[2], check=False).returncode == 7
    with open_store(path) as store:
        assert [e.data["reason"] for e in store.events("r1")[1:]] == ["leader", "after"]


def interrupt_in_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The COMMIT after the next reaches the database, and then the thread that waited for it is interrupted."""
    commit, count = store.backend.commit, iter(range(1000))

    def interrupted(writes: Any) -> None:
        commit(writes)
        if next(count) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(store.backend, "commit", interrupted)


def test_those_who_shared_a_commit_with_an_interrupted_thread_learn_the_truth(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(store)
    interrupt_in_commit(store, monkeypatch)
    got: dict[str, object] = {}

    def write(name: str) -> None:
        try:
            got[name] = store.do(note(words=name))
        except BaseException as error:
            got[name] = error

    threads = [threading.Thread(target=write, args=(f"t{i}",)) for i in range(6)]
    with store.engine._writing:  # so that all of them queue up, behind the first
        for thread in threads:
            thread.start()
        while len(store.engine._queue) < len(threads) - 1:
            pass
    for thread in threads:
        thread.join()
    assert sorted(type(g).__name__ for g in got.values()) == ["Committed"] * 5 + ["KeyboardInterrupt"]
    assert sorted(e.data["reason"] for e in store.events("r1")[1:]) == sorted(got)
    store.do(note(words="later"))


# --- mistakes ----------------------------------------------------------------------------------------------------


def test_a_generator_of_transitions_is_as_good_as_a_list(store: Store) -> None:
    start(store)
    results = store.commit(note(words=str(i)) for i in range(3))
    assert [type(r) for r in results] == [Committed] * 3


@pytest.mark.parametrize("bad", [TakeBack(actor=ANN, run_id="r1", decision="x", reason="y"), note(7)])  # type: ignore[arg-type]
def test_a_transition_that_cannot_even_be_looked_up_is_refused_alone(store: Store, bad: Any) -> None:
    start(store)
    first, refused, last = store.commit([note(words="a"), bad, note(words="b")])
    assert isinstance(refused, Refused)
    assert isinstance(first, Committed)
    assert isinstance(last, Committed)


def test_one_by_one_each_gets_its_own_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    start(store)
    bad = TakeBack(actor=ANN, run_id="r1", decision="x", reason="y")  # type: ignore[arg-type]
    begin, calls = store.backend.begin, iter(range(1000))

    def busy_at_the_end(strict: bool) -> None:
        if next(calls) >= 4:  # all together; the first alone; the bad one, and looking for it; now the last
            raise StoreBusy("somebody else writes. Nothing was written.")
        begin(strict)

    monkeypatch.setattr(store.backend, "begin", busy_at_the_end)
    first, refused, last = store.commit([note(words="a"), bad, note(words="b")])
    assert isinstance(first, Committed)
    assert isinstance(refused, PreconditionFailed)
    assert isinstance(last, StoreBusy)
    assert [e.data["reason"] for e in store.events("r1")[1:]] == ["a"]


# --- claims ------------------------------------------------------------------------------------------------------


def test_a_claim_submitted_again_after_a_takeover_gives_nobody_elses_fence(store: Store) -> None:
    register(store, "one")
    register(store, "two")
    start(store)
    mine = ClaimRun(actor="worker:one", run_id="r1", worker="one")
    store.do(mine)
    store.do(LoseWorker(actor="system", worker="one", beat=0, reason="frozen"))
    claim(store, "two")
    with pytest.raises(StaleFence):
        store.do(mine)


def test_a_run_whose_claim_was_never_answered_is_claimed_again_by_the_worker_that_holds_it(store: Store) -> None:
    h = held(store)
    assert store.claim("w", {"a": ["1"]}) == []
    assert store.claim("w", {"a": ["1"]}, holding=["r1"]) == []
    (again,) = store.claim("w", {"a": ["1"]}, holding=[])
    assert again.run is not None
    assert again.run["fence"] > h.fence
    assert again.run["crashes"] == 0
    with pytest.raises(StaleFence):
        intend(h, "1")


def test_an_error_after_a_lost_commit_does_not_say_that_nothing_was_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from walkback_store.backends.base import ConnectionLost

    start(store)
    commit, begin = store.backend.commit, store.backend.begin

    def lost(writes: Any) -> None:
        commit(writes)
        monkeypatch.setattr(store.backend, "begin", busy)
        raise ConnectionLost(OSError("cut"), committing=True)

    def busy(strict: bool) -> None:
        raise StoreBusy("somebody else writes. Nothing was written.")

    monkeypatch.setattr(store.backend, "commit", lost)
    words = note()
    with pytest.raises(CommitUnknown) as raised:
        store.do(words)
    assert raised.value.transition_ids == (words.id,)
    monkeypatch.setattr(store.backend, "begin", begin)
    monkeypatch.setattr(store.backend, "commit", commit)
    assert store.do(words).repeated


# --- what is remembered ------------------------------------------------------------------------------------------


def test_a_file_put_in_place_of_another_is_not_mixed_up_with_what_is_remembered_of_it(tmp_path: Path) -> None:
    path = tmp_path / "walkback.db"
    with open_store(path) as store:
        h = held(store)
        backup(store, tmp_path / "copy.db")
        store.do(TakeSnapshot(**h.by, state=encode({"from": "the original"})))
        os.replace(tmp_path / "copy.db", path)
        for beside in ("-wal", "-shm"):
            Path(f"{path}{beside}").unlink()
        with open_store(path) as copy:
            adopt(copy, ANN, "the original is gone")
            start(copy, "r2")
        start(store, "r3", state=encode({"from": "the copy"}))
    with open_store(path) as copy:
        assert copy.state("r3", 0) == {"from": "the copy"}
        assert fsck(copy, deep=True).problems == []
