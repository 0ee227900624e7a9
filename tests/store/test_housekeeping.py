"""Backups, copies, pruning and statistics, while others write."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import func, select
from sqlalchemy.engine import make_url

from tests.store.driver import (
    ANN,
    BOB,
    MINUTE,
    SECOND,
    Clock,
    Held,
    ask,
    claim,
    finish,
    held,
    intend,
    lose_track,
    open_with_clock,
    park_unknown,
    register,
    start,
    write,
)
from tests.store.opener import own_mounts
from tests.support.people import open_store
from tests.support.postgres import Postgres
from walkback_store import housekeeping, schema
from walkback_store.errors import (
    CannotOpen,
    DiskFull,
    IllegalTransition,
    NoPermission,
    NotAdopted,
    NotFound,
    PreconditionFailed,
    RunPruned,
    StaleFence,
)
from walkback_store.fsck import fsck
from walkback_store.housekeeping import Pruned, adopt, backup, is_adopted, prune, statistics
from walkback_store.machine.operations import AppendLateEvidence
from walkback_store.machine.people import AddNote, Approve, DecideCompensate, RequestCancel, RequestPause
from walkback_store.machine.runs import FailRun, ParkRun, RecordStep
from walkback_store.machine.store_wide import Freeze
from walkback_store.sqlite_library import sqlite3
from walkback_store.store import Store
from walkback_store.values import encode
from walkback_store.words import AUDIT_KINDS, FreezeScope


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "walkback.db"


def fill(store: Store, runs: int, size: int = 100_000) -> None:
    """Bytes that do not compress, so that a copy takes several rounds."""
    noise = random.Random(1)
    for n in range(runs):
        start(store, f"fill-{n}", agent="filler", value=noise.randbytes(size))


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(("-wal", "-shm")))


class Writer:
    """Another process that writes as fast as it can."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.writer"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([url, "written-meanwhile"]) + "\n")
        self._process.stdin.flush()
        self._pid = int(self._process.stdout.readline().split()[1])
        self._news = threading.Condition()
        self.acks = 0
        self.trouble: list[str] = []
        self._ear = threading.Thread(target=self._listen)
        self._ear.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                if line.startswith("ack "):
                    self.acks += 1
                elif line.startswith("error "):
                    self.trouble.append(line)
                self._news.notify_all()

    def until_it_wrote(self, more: int = 1) -> None:
        with self._news:
            wanted = self.acks + more
            assert self._news.wait_for(lambda: self.acks >= wanted or self.trouble, timeout=60)
            assert not self.trouble

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._process.communicate()
        self._ear.join()


@contextmanager
def somebody_writes(url: str) -> Iterator[Writer]:
    writer = Writer(url)
    try:
        writer.until_it_wrote()
        yield writer
    finally:
        writer.stop()


# --- backup ------------------------------------------------------------------------------------------------------


def test_a_backup_is_one_consistent_state_while_another_process_writes(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    seen: list[tuple[int, int]] = []
    with open_store(path) as store:
        fill(store, 40)
        with somebody_writes(str(path)) as writer:

            def progress(done: int, total: int) -> None:
                seen.append((done, total))
                if len(seen) < 4:
                    writer.until_it_wrote(5)

            before = store.run("written-meanwhile")["head_seq"]
            assert backup(store, copy, progress) == copy
            writer.until_it_wrote()
            after = store.run("written-meanwhile")["head_seq"]
    assert len(seen) >= 2, "copied in one go: nothing could be written meanwhile"
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len({total for _, total in seen}) == 1, "the copy started over, or followed the writer"
    assert seen[-1][0] == seen[-1][1]
    with open_store(copy) as restored:
        adopt(restored, ANN, "the original is gone")
        assert fsck(restored, deep=True).clean
        assert before <= restored.run("written-meanwhile")["head_seq"] < after
        assert restored.count_runs().n == 41


def test_a_backup_is_a_single_file_for_its_owner_alone_whatever_the_umask(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    before = os.umask(0)
    try:
        with open_store(path) as store:
            start(store)
            copy = backup(store, folder / "copy.db")
    finally:
        os.umask(before)
    assert [p.name for p in folder.iterdir()] == ["copy.db"]
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("there", ["file", "folder", "broken link"])
def test_a_backup_never_overwrites(path: Path, tmp_path: Path, there: str) -> None:
    target = tmp_path / "there"
    if there == "file":
        target.write_text("precious")
    elif there == "folder":
        target.mkdir()
    else:
        target.symlink_to(tmp_path / "nowhere")
    with open_store(path) as store, pytest.raises(CannotOpen, match="Nothing was overwritten"):
        backup(store, target)
    assert files(tmp_path) == ["there", "walkback.db"]
    if there == "file":
        assert target.read_text() == "precious"


def test_a_file_that_appears_during_a_backup_is_not_overwritten(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    with open_store(path) as store, pytest.raises(CannotOpen, match="Nothing was overwritten"):
        backup(store, target, lambda *_: [target.write_text("faster")].clear())
    assert target.read_text() == "faster"
    assert files(tmp_path) == ["copy.db", "walkback.db"]


def test_a_cancelled_backup_leaves_nothing(path: Path, tmp_path: Path) -> None:
    def cancel(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with open_store(path) as store:
        fill(store, 30)
        with pytest.raises(KeyboardInterrupt):
            backup(store, tmp_path / "copy.db", cancel)
        assert files(tmp_path) == ["walkback.db"]
        start(store, "afterwards")
        backup(store, tmp_path / "copy.db")
    with open_store(tmp_path / "copy.db") as copy:
        assert copy.run("afterwards")["status"] == "running"


NO_SPACE = """
import os, resource, signal, subprocess, sys
from tests.support.people import open_store
from walkback_store.errors import StoreError
from walkback_store.housekeeping import backup
path, folder, means = sys.argv[1:]
with open_store(path) as store:
    if means == "disk":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000000", "tmpfs", folder], check=True)
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    try:
        backup(store, folder + "/copy.db")
    except StoreError as error:
        print(type(error).__name__, error)
    print(os.listdir(folder))
"""


@pytest.mark.parametrize("means", ["disk", "limit"])
def test_a_backup_without_space_leaves_nothing_and_says_where_it_is_missing(
    path: Path, tmp_path: Path, means: str
) -> None:
    """A disk that is too small; a limit on the size of files, which SQLite takes for a broken disk, also stands in for
    it where nobody may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    with open_store(path) as store:
        fill(store, 30)
    wrapper = own_mounts() if means == "disk" else None
    command = [*(wrapper or ()), sys.executable, "-c", NO_SPACE, str(path), str(folder), "disk" if wrapper else "limit"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.startswith("DiskFull" if wrapper else "Unreachable"), found
    assert f"{folder}/copy.db" in found
    assert found.endswith("\n[]\n")


def test_a_backup_to_where_nothing_can_be_written_is_a_clear_error(path: Path, tmp_path: Path) -> None:
    with open_store(path) as store:
        with pytest.raises(CannotOpen, match="No such file or directory"):
            backup(store, tmp_path / "no" / "copy.db")
        with pytest.raises((NoPermission, CannotOpen, DiskFull), match="cannot write a backup to /proc/"):
            backup(store, "/proc/copy.db")


def test_a_postgresql_store_is_backed_up_by_its_server(pg_url: str, tmp_path: Path) -> None:
    with open_store(pg_url) as store, pytest.raises(PreconditionFailed, match="pg_dump"):
        backup(store, tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []


# --- copies ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["backup", "plain copy", "template"])
def original_and_copy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store, Held]]:
    """A store in which w holds r1 and r2 is free, and a copy of it made meanwhile; both open."""
    if request.param == "template":
        postgres: Postgres = request.getfixturevalue("postgres")
        url, other = request.getfixturevalue("pg_url"), f"copy_{uuid.uuid4().hex[:8]}"
    else:
        url, other = str(tmp_path / "walkback.db"), str(tmp_path / "copy.db")
    with open_store(url) as store:
        h = held(store)
        write(h, "1", before={"n": 1}, after={"n": 2})
        start(store, "r2")
        if request.param == "backup":
            backup(store, other)
    if request.param == "plain copy":
        shutil.copyfile(url, other)
    elif request.param == "template":
        names = sql.Identifier(other), sql.Identifier(str(make_url(url).database))
        with psycopg.connect(postgres.url(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
        other = postgres.url(other)
    try:
        with open_store(url) as store, open_store(other) as copy:
            yield store, copy, Held(store, h.run_id, h.worker, h.fence)
    finally:
        if request.param == "template":
            with psycopg.connect(postgres.url(), autocommit=True) as admin:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(names[0]))


def test_a_copy_can_be_read_and_spoken_to_but_nothing_can_be_claimed(
    original_and_copy: tuple[Store, Store, Held],
) -> None:
    """Words cause no effect until somebody claims the run, so they are taken: the way to stop a copy is to say so."""
    original, copy, h = original_and_copy
    assert is_adopted(original)
    assert not is_adopted(copy)
    assert copy.run("r1")["fence"] == h.fence
    assert copy.state("r1", 2) == {"n": 2}
    assert [e.hash for e in copy.events("r1")] == [e.hash for e in original.events("r1")]
    assert fsck(copy, deep=True).clean
    copy.do(AddNote(actor=ANN, run_id="r2", reason="seen in the copy"))
    copy.do(RequestPause(actor=ANN, run_id="r1", reason="not here"))
    copy.do(Freeze(actor=ANN, scope=FreezeScope.EVERYTHING, reason="a copy"))
    register(copy, "w2")
    start(copy, "r3")
    for _ in range(2):
        with pytest.raises(NotAdopted, match="adopt"):
            claim(copy, "w2")
    assert copy.run("r2")["worker"] is None
    assert claim(original).run_id == "r2"
    assert fsck(copy).clean


def test_a_fence_from_before_is_worth_nothing_in_a_copy(original_and_copy: tuple[Store, Store, Held]) -> None:
    _, copy, h = original_and_copy
    theirs = Held(copy, h.run_id, h.worker, h.fence)
    with pytest.raises(NotAdopted):
        intend(theirs, "2")
    adopt(copy, ANN, "the original is gone")
    with pytest.raises(StaleFence):
        intend(theirs, "2")
    intend(h, "2")
    assert fsck(copy, deep=True).clean


def test_a_worker_that_reconnects_to_a_restored_database_does_nothing(postgres: Postgres, pg_url: str) -> None:
    with open_store(pg_url) as store:
        h = held(store)
        name = str(make_url(pg_url).database)
        here, restored = sql.Identifier(name), sql.Identifier(f"{name}_restored")
        with psycopg.connect(postgres.url(), autocommit=True) as admin:
            store.backend.engine.dispose()
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(restored, here))
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(here))
            admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(restored, here))
        with pytest.raises(NotAdopted):
            intend(h, "1")


def test_a_dump_restored_in_place_is_a_copy_also_for_a_worker_that_stayed(
    postgres: Postgres, pg_url: str, tmp_path: Path
) -> None:
    def run(program: str, *arguments: str) -> None:
        subprocess.run([postgres.programs / program, "--dbname", pg_url, *arguments], check=True)

    dump = str(tmp_path / "walkback.dump")
    with open_store(pg_url) as stayed, open_store(pg_url) as stayed_for_claims:
        h = held(stayed)
        start(stayed, "r2")
        register(stayed_for_claims, "w2")
        assert is_adopted(stayed)
        run("pg_dump", "--format=custom", "--file", dump)
        intend(h, "1")  # its effect is made, and the dump knows nothing of it
        run("pg_restore", "--clean", dump)
        with pytest.raises(NotAdopted):
            intend(h, "1")
        with pytest.raises(NotAdopted):
            claim(stayed_for_claims, "w2")
        with open_store(pg_url) as restored:
            assert not is_adopted(restored)
            theirs = Held(restored, h.run_id, h.worker, h.fence)
            with pytest.raises(NotAdopted):
                intend(theirs, "1")
            with pytest.raises(NotAdopted):
                claim(restored, "w2")
            adopt(restored, ANN, "the disk was lost")
            for old in (h, theirs):
                with pytest.raises(StaleFence):
                    intend(old, "1")
            taken = claim(restored, "w2")
            assert taken.run_id == "r2"
            intend(taken, "1")
            assert fsck(restored, deep=True).clean
        assert is_adopted(stayed)


def test_fences_fit_into_the_database_long_after_2038(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_2090 = 3_786_912_000.0
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: in_2090)
        store = open_store(store_url)
    with store:
        intend(held(store), "1")
        assert fsck(store).clean


def test_a_worker_whose_file_was_replaced_by_a_copy_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "walkback.db"
    with open_store(path) as store:
        h = held(store)
        backup(store, tmp_path / "copy.db")
        os.replace(tmp_path / "copy.db", path)
        for beside in ("-wal", "-shm"):
            Path(f"{path}{beside}").unlink()
        with pytest.raises(NotAdopted):
            intend(h, "1")


def test_a_commit_to_a_file_that_was_removed_is_not_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "walkback.db"
    with open_store(path) as store:
        start(store, "r1")
        path.unlink()
        with pytest.raises(CannotOpen, match="not there"):
            start(store, "r2")
        assert not path.exists()


def test_adopting_gives_a_new_epoch_and_higher_fences(original_and_copy: tuple[Store, Store, Held]) -> None:
    original, copy, _ = original_and_copy
    register(copy, "w2")
    before = copy._rows(select(schema.store))[0]
    epoch = adopt(copy, ANN, "the original burnt down")
    after = copy._rows(select(schema.store))[0]
    assert is_adopted(copy)
    assert epoch == after["epoch"] > before["epoch"]
    assert after["store_id"] == before["store_id"]
    taken = claim(copy, "w2")
    assert taken.run_id == "r2"
    assert taken.fence >> 32 == epoch
    assert taken.fence > claim(original).fence
    (adopted,) = [e for e in copy.events(None) if e.data.get("action") == "adopt"]
    assert (adopted.actor, adopted.data["reason"]) == (ANN, "the original burnt down")
    assert (adopted.data["was"], adopted.data["epoch"]) == (before["epoch"], epoch)
    assert fsck(copy, deep=True).clean
    assert is_adopted(original)


def test_only_a_copy_can_be_adopted_and_only_once_and_with_a_reason(
    original_and_copy: tuple[Store, Store, Held],
) -> None:
    original, copy, _ = original_and_copy
    with pytest.raises(IllegalTransition):
        adopt(original, ANN, "why not")
    with pytest.raises(PreconditionFailed, match="reason"):
        adopt(copy, ANN, "  ")
    adopt(copy, ANN, "the original is gone")
    with pytest.raises(IllegalTransition):
        adopt(copy, BOB, "me too")


def test_an_adopted_copy_stays_adopted_and_a_copy_of_it_is_a_copy_again(path: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    with open_store(path) as store:
        start(store)
        backup(store, first)
    with open_store(first) as copy:
        one = adopt(copy, ANN, "the original is gone")
    with open_store(first) as copy:
        assert is_adopted(copy)
        backup(copy, second)
    with open_store(second) as copy_of_copy:
        assert not is_adopted(copy_of_copy)
        assert adopt(copy_of_copy, ANN, "that one too") > one


def test_a_backup_put_back_over_the_very_file_it_came_from_is_a_copy(path: Path, tmp_path: Path) -> None:
    with open_store(path) as store:
        start(store)
        copy = backup(store, tmp_path / "copy.db")
    inode = path.stat().st_ino
    shutil.copyfile(copy, path)
    assert path.stat().st_ino == inode
    with open_store(path) as store:
        assert not is_adopted(store)


# --- prune -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store_and_clock(store_url: str) -> Iterator[tuple[Store, Clock]]:
    store, clock = open_with_clock(store_url)
    with store:
        register(store)
        yield store, clock


def finished(store: Store, run_id: str, **more: object) -> Held:
    """A run with a bit of everything, that succeeded."""
    start(store, run_id, tags=["t"], **more)  # type: ignore[arg-type]
    h = claim(store)
    assert h.run_id == run_id
    store.do(
        RecordStep(
            **h.by, step="1", step_kind="observe", name="look", data={"saw": random.Random(run_id).randbytes(500)}
        )
    )
    store.do(RecordStep(**h.by, step="2", step_kind="decide", name="think", data={"why": "because"}))
    write(h, "3", before={"n": run_id}, after={"n": run_id, "paid": True})
    store.do(AddNote(actor=ANN, run_id=run_id, reason="looks right"))
    finish(h)
    return h


def rows_of(store: Store, run_no: int) -> dict[str, int]:
    found = {}
    for t in (schema.runs, *schema.PER_RUN, schema.snapshots, schema.run_tags):
        query = select(func.count().label("n")).select_from(t).where(t.c.run_no == run_no)
        found[t.name] = store._rows(query)[0]["n"]
    return found


def test_prune_leaves_the_audit_trail_and_a_chain_that_can_be_proven(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    h = finished(store, "old")
    run = h.run
    before = store.events("old", limit=100)
    clock.pass_(MINUTE)
    assert fsck(store, deep=True).clean
    gone = prune(store, clock.now, ANN)
    removable = [e for e in before if e.kind not in AUDIT_KINDS]
    assert gone == Pruned(runs=1, bodies=len(removable), snapshots=run["snapshots"])
    assert gone.bodies >= 2
    assert set(rows_of(store, run["run_no"]).values()) == {0}
    after = store.events("old", limit=100)
    assert [e.hash for e in after] == [e.hash for e in before]
    for was, now in zip(before, after, strict=True):
        assert now.body == (was.body if was.kind in AUDIT_KINDS else None), was.kind
    assert {"intent", "outcome", "operator_action", "run_started", "run_finished"} <= {e.kind for e in after if e.body}
    assert fsck(store, deep=True).clean
    assert fsck(store, "old").clean
    (noted,) = [e for e in store.events(None, limit=100) if e.data.get("action") == "prune"]
    assert (noted.actor, noted.data["run_id"], noted.data["head_seq"]) == (ANN, "old", run["head_seq"])


def test_the_id_of_a_pruned_run_is_never_used_again(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    finished(store, "old")
    clock.pass_(MINUTE)
    prune(store, clock.now, ANN)
    with pytest.raises(RunPruned, match="choose another"):
        start(store, "old")
    with pytest.raises(NotFound):
        store.run("old")
    with pytest.raises(NotFound):
        store.state("old", 0)
    with pytest.raises(NotFound, match="pruned"):
        store.do(AddNote(actor=ANN, run_id="old", reason="too late"))
    assert fsck(store).clean


def test_a_run_number_is_never_used_again_either(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    number = finished(store, "old").run["run_no"]
    clock.pass_(MINUTE)
    prune(store, clock.now, ANN)
    start(store, "new")
    assert store.run("new")["run_no"] > number
    assert fsck(store, deep=True).clean


def test_every_way_to_finish_can_be_pruned(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    finished(store, "succeeded")
    start(store, "failed")
    store.do(FailRun(**claim(store).by, error_class="Oops", message="no"))
    start(store, "cancelled")
    store.do(RequestCancel(actor=ANN, run_id="cancelled", reason="not needed"))
    clock.pass_(MINUTE)
    assert prune(store, clock.now, ANN).runs == 3
    assert fsck(store, deep=True).clean


def test_prune_looks_at_when_a_run_finished(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    finished(store, "old")
    clock.pass_(SECOND)
    limit = clock.now
    finished(store, "young")
    assert prune(store, limit, ANN).runs == 1
    assert store.run("young")["status"] == "succeeded"
    with pytest.raises(NotFound):
        store.run("old")


def test_prune_never_touches_what_is_not_done_with(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    start(store, "held")
    intend(claim(store), "1")
    start(store, "waiting")
    store.do(ParkRun(**claim(store).by, waits_for="signal:go"))
    start(store, "asks")
    ask(claim(store), "1", park=True)
    start(store, "approved")
    ask(claim(store), "1", park=True)
    store.do(Approve(actor=ANN, run_id="approved", step="1", digest="d" * 64, reason="fine"))
    start(store, "unknown")
    park_unknown(claim(store), "1")
    start(store, "lost track")
    lose_track(claim(store), "1")
    start(store, "paused")
    store.do(RequestPause(actor=ANN, run_id="paused", reason="wait"))
    finished(store, "duplicate")
    store.do(
        AppendLateEvidence(
            actor="worker:gone", run_id="duplicate", step="3", data={"saw": "two"}, duplicate_suspected=True
        )
    )
    finished(store, "to be undone")
    undo = DecideCompensate(actor=ANN, run_id="to be undone", reason="wrong", scope="run", steps=["3"])
    store.do(undo)
    finished(store, "parent")
    start(store, "fork", parent="parent", fork_step="3", fork_kind="what-if")
    start(store, "free")
    clock.pass_(1000 * MINUTE)
    before = {row["run_id"]: row for row in store.runs(limit=100).rows}
    assert len(before) == 12
    events = {run_id: store.events(run_id, limit=100) for run_id in before}
    assert prune(store, clock.now, ANN, dry_run=True) == Pruned()
    assert prune(store, clock.now, ANN) == Pruned()
    assert {row["run_id"]: row for row in store.runs(limit=100).rows} == before
    assert {run_id: store.events(run_id, limit=100) for run_id in before} == events
    assert fsck(store, deep=True).clean


def test_a_fork_goes_before_its_parent(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    finished(store, "grandparent")
    finished(store, "parent", parent="grandparent")
    finished(store, "child", parent="parent")
    finished(store, "kept parent")
    start(store, "still runs", parent="kept parent", state=encode({"n": "kept parent", "paid": True, "more": 1}))
    clock.pass_(MINUTE)
    wanted = prune(store, clock.now, ANN, dry_run=True)
    assert wanted.runs == 3
    assert store.run("child")["status"] == "succeeded"
    assert prune(store, clock.now, ANN) == wanted
    assert {row["run_id"] for row in store.runs().rows} == {"kept parent", "still runs"}
    assert store.state("still runs", 0) == {"n": "kept parent", "paid": True, "more": 1}
    assert fsck(store, deep=True).clean


def test_a_dry_run_changes_nothing_and_says_what_would_go(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    for n in range(3):
        finished(store, f"old-{n}")
    clock.pass_(MINUTE)
    before = (statistics(store), store.events(None, limit=100))
    wanted = prune(store, clock.now, ANN, dry_run=True)
    after = (statistics(store), store.events(None, limit=100))
    assert after == before
    assert wanted.runs == 3
    assert prune(store, clock.now, ANN) == wanted


def test_prune_reports_progress_and_can_be_stopped_between_two_batches(
    store_and_clock: tuple[Store, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = store_and_clock
    monkeypatch.setattr(housekeeping, "PRUNE_AT_ONCE", 2)
    monkeypatch.setattr(housekeeping, "BODIES_AT_ONCE", 1)  # many pages
    for n in range(7):
        finished(store, f"old-{n}")
    clock.pass_(MINUTE)
    seen: list[int] = []

    def stop(n: int) -> None:
        seen.append(n)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(store, clock.now, ANN, stop)
    assert store.count_runs().n == 3
    assert fsck(store, deep=True).clean
    assert prune(store, clock.now, ANN, seen.append).runs == 3
    assert seen == [2, 4, 2, 3]
    assert store.count_runs().n == 0
    assert fsck(store, deep=True).clean


def test_a_prune_that_dies_half_way_through_a_run_leaves_that_run_whole(store_url: str) -> None:
    """The process is killed while the run is taken apart, inside the transaction that also notes it."""
    script = """
import os, signal, sys
from tests.support.people import open_store
from walkback_store import housekeeping
with open_store(sys.argv[1]) as store:
    taken = housekeeping.pruned_body
    def die(digest):
        os.kill(os.getpid(), signal.SIGKILL)
    housekeeping.pruned_body = die
    housekeeping.prune(store, 2**62, "operator:ann")
"""
    with open_store(store_url) as store:
        register(store)
        finished(store, "old")
        events, run = store.events("old", limit=100), store.run("old")
        found = subprocess.run([sys.executable, "-c", script, store_url], capture_output=True, check=False)
        assert found.returncode == -signal.SIGKILL, found.stderr
        assert (store.events("old", limit=100), store.run("old")) == (events, run)
        assert [e for e in store.events(None) if e.data.get("action") == "prune"] == []
        assert fsck(store, deep=True).clean
        assert prune(store, 2**62, ANN).runs == 1
        assert fsck(store, deep=True).clean


def test_a_run_that_moved_on_before_its_turn_is_left_alone(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    finished(store, "old")
    clock.pass_(MINUTE)
    (chosen,) = housekeeping._prunable(store, clock.now)
    store.do(DecideCompensate(actor=ANN, run_id="old", reason="wrong", scope="run", steps=["3"]))
    total = Pruned()
    housekeeping._prune_run(store, chosen, clock.now, ANN, total)
    assert total == Pruned()
    assert store.run("old")["status"] == "waiting"
    assert [e for e in store.events(None) if e.data.get("action") == "prune"] == []
    assert fsck(store, deep=True).clean


def test_two_may_prune_at_once_and_each_run_goes_once(store_url: str) -> None:
    with open_store(store_url) as store, open_store(store_url) as other:
        register(store)
        for n in range(12):
            finished(store, f"old-{n}")
        totals: list[Pruned] = []
        threads = [threading.Thread(target=lambda s=s: totals.append(prune(s, 2**62, ANN))) for s in (store, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(t.runs for t in totals) == 12
        noted = [e.data["run_id"] for e in store.events(None, limit=1000) if e.data.get("action") == "prune"]
        assert sorted(noted) == sorted(f"old-{n}" for n in range(12))
        assert fsck(store, deep=True).clean


def test_prune_and_statistics_work_while_another_process_writes(store_url: str) -> None:
    with open_store(store_url) as store:
        register(store)
        for n in range(10):
            finished(store, f"old-{n}")
        with somebody_writes(store_url) as writer:
            seen: list[int] = []
            first = statistics(store)["events_rows"]
            assert prune(store, 2**62, ANN, seen.append).runs == 10
            writer.until_it_wrote(5)
            assert statistics(store)["events_rows"] > first
            writer.until_it_wrote(5)
        assert store.run("written-meanwhile")["status"] == "running"
        assert fsck(store, deep=True).clean


# --- statistics --------------------------------------------------------------------------------------------------


def test_statistics_count_what_is_there(store_and_clock: tuple[Store, Clock]) -> None:
    store, clock = store_and_clock
    finished(store, "one")
    h = finished(store, "two")
    found = statistics(store)
    assert found["runs_rows"] == 2
    assert found["events_rows"] == 2 * h.run["head_seq"] + len(store.events(None))
    assert found["snapshots_rows"] == 2 * h.run["snapshots"]
    assert found["snapshot_bytes_unpacked"] == sum(
        len(store.state_bytes(run, n)) for run in ("one", "two") for n in range(h.run["snapshots"])
    )
    assert found["snapshot_bytes"] > 0
    assert 0 < found["event_body_bytes"] < found["total_bytes"]
    clock.pass_(MINUTE)
    prune(store, clock.now, ANN)
    after = statistics(store)
    assert (after["runs_rows"], after["tombstones_rows"], after["snapshots_rows"]) == (0, 2, 0)
    assert after["event_body_bytes"] < found["event_body_bytes"]


def test_statistics_say_how_much_of_the_file_is_free_for_use_again(path: Path) -> None:
    with open_store(path) as store:
        register(store)
        start(store)
        h = claim(store)
        noise = random.Random(2).randbytes(1_000_000)
        store.do(RecordStep(**h.by, step="1", name="big", data={"noise": noise}, state=encode({"noise": noise})))
        finish(h)
        before = statistics(store)
        prune(store, 2**62, ANN)
        after = statistics(store)
        assert after["free_bytes"] > before["free_bytes"] + 1_000_000
        start(store, "next")
        store.do(RecordStep(**claim(store).by, step="1", name="big", data={"noise": noise}))
        assert statistics(store)["free_bytes"] < after["free_bytes"]
