"""Writers killed with SIGKILL at any moment: the store stays whole, and no acknowledged commit is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import func, select

from tests.support.people import open_store
from tests.support.postgres import Postgres
from walkback_store import schema
from walkback_store.fsck import fsck
from walkback_store.sqlite_library import sqlite3
from walkback_store.store import Store

LONG = os.environ.get("WALKBACK_FAULTS") == "long"
KILLS_PER_SLICE = 154 if LONG else 32
SLICES = {"sqlite": 10, "postgresql": 3}
"""416 kills, or 2,000 when WALKBACK_FAULTS=long."""
KILLS_PER_STORE = 10
"""Then a new store, so that some die while they create it."""

Acks = dict[int, str]


class WriterServer:
    """Forks writers, one at a time, and hears what they say."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.writer"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._writer = 0
        self.acks: Acks = {}

    @property
    def _in(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def start(self, url: str, run_id: str) -> None:
        self.acks = {}
        self._in.write(json.dumps([url, run_id]) + "\n")
        self._in.flush()
        self._writer = int(self._hear("writer"))

    def hear_acks(self, count: int) -> None:
        """Read until the writer has acknowledged so many commits in all."""
        while len(self.acks) < count:
            self._hear("ack")

    def kill(self) -> Acks:
        """Returns everything acknowledged, also what was said between the last word heard and death."""
        os.kill(self._writer, signal.SIGKILL)
        self._hear("done")
        self._writer = 0
        return self.acks

    def _hear(self, wanted: str) -> str:
        for line in self._out:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "ack":
                seq, digest = rest.split(" ")
                self.acks[int(seq)] = digest
            elif word == "error":
                pytest.fail(f"a writer raised {rest}")
            if word == wanted:
                return rest
        pytest.fail("the server of writers ended")

    def close(self) -> None:
        if self._writer:
            os.kill(self._writer, signal.SIGKILL)
        self._in.close()
        self._out.close()
        self._process.wait()


@contextmanager
def writers(count: int) -> Iterator[list[WriterServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(WriterServer())) for _ in range(count)]


def logged(store: Store, run_id: str) -> Acks:
    e, r = schema.events, schema.runs
    query = select(e.c.seq, e.c.hash).join(r, r.c.run_no == e.c.run_no).where(r.c.run_id == run_id)
    with store.backend.engine.connect() as connection:
        return {seq: bytes(digest).hex() for seq, digest in connection.execute(query)}


def run_ids(store: Store) -> set[str]:
    with store.backend.engine.connect() as connection:
        return set(connection.execute(select(schema.runs.c.run_id)).scalars())


def integrity(url: str) -> str:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def check_whole(url: str, acks: dict[str, Acks], *, everything: bool) -> None:
    """What a store must be after a kill, given what was acknowledged for each run."""
    if url.startswith("sqlite"):
        assert integrity(url) == "ok"
    with open_store(url) as store:
        existing = run_ids(store)
        for run_id, acked in acks.items():
            if run_id in existing:
                assert fsck(store, run_id=run_id).problems == []
            in_log = logged(store, run_id)
            lost = {seq: digest for seq, digest in acked.items() if in_log.get(seq) != digest}
            assert not lost, f"acknowledged but not in the log: {lost}"
        if everything:
            assert fsck(store).problems == []


def spin(random_: random.Random) -> None:
    """So that death comes at any point of a transaction, not just after an acknowledgement."""
    until = time.perf_counter() + random_.random() * 0.004
    while time.perf_counter() < until:
        pass


def kill_slice(seed: int, urls: Iterator[str]) -> None:
    random_ = random.Random(seed)
    url = ""
    with writers(1) as (writer,):
        for n in range(KILLS_PER_SLICE):
            if n % KILLS_PER_STORE == 0:
                url = next(urls)
            run_id = f"run-{n}"
            wanted = random_.choice((0, 0, 1, 2, 3, random_.randrange(60)))
            try:
                writer.start(url, run_id)
                writer.hear_acks(wanted)
                spin(random_)
                acked = writer.kill()
                last_of_store = n % KILLS_PER_STORE == KILLS_PER_STORE - 1 or n == KILLS_PER_SLICE - 1
                check_whole(url, {run_id: acked}, everything=last_of_store)
            except BaseException:
                print(f"seed {seed}, kill {n} of run {run_id!r} after {wanted} acknowledgements, in {url}")
                raise


@pytest.mark.parametrize("seed", range(SLICES["sqlite"]))
def test_a_killed_writer_leaves_a_whole_sqlite_store_with_all_it_acknowledged(seed: int, tmp_path: Path) -> None:
    kill_slice(seed, (f"sqlite:///{tmp_path / f'{n}.db'}" for n in range(KILLS_PER_SLICE)))


@pytest.mark.parametrize("seed", range(1000, 1000 + SLICES["postgresql"]))
def test_a_killed_writer_leaves_a_whole_postgresql_store_with_all_it_acknowledged(
    seed: int, postgres: Postgres
) -> None:
    with ExitStack() as stack:
        kill_slice(seed, (stack.enter_context(postgres.fresh_database()) for _ in range(KILLS_PER_SLICE)))


@pytest.mark.parametrize("seed", range(2000, 2003))
def test_writers_at_once_on_one_store_survive_the_death_of_others_and_never_see_busy(seed: int, store_url: str) -> None:
    # A survivor to which any error came, StoreBusy above all, would have said so, and failed the test.
    random_ = random.Random(seed)
    acks: dict[str, Acks] = {}
    print(f"seed {seed}")
    with writers(4) as servers:
        for i, server in enumerate(servers):
            server.start(store_url, f"first-{i}")
        survivors, victims = servers[:2], servers[2:]
        for victim_round in range(3):
            for i, victim in enumerate(victims):
                victim.hear_acks(random_.randrange(30))
                spin(random_)
                name = f"first-{i + 2}" if victim_round == 0 else f"round-{victim_round}-{i}"
                acks[name] = victim.kill()
                victim.start(store_url, f"round-{victim_round + 1}-{i}")
        for survivor in survivors:
            survivor.hear_acks(len(survivor.acks) + 20)
        for i, victim in enumerate(victims):
            acks[f"round-3-{i}"] = victim.kill()
        for i, survivor in enumerate(survivors):
            acks[f"first-{i}"] = survivor.kill()
    check_whole(store_url, acks, everything=True)


def test_the_writers_of_these_tests_do_write(tmp_path: Path) -> None:
    """A guard against tests that pass because nothing happened."""
    url = f"sqlite:///{tmp_path / 'walkback.db'}"
    with writers(1) as (writer,):
        writer.start(url, "r")
        writer.hear_acks(30)
        acked = writer.kill()
    with open_store(url) as store, store.backend.engine.connect() as connection:
        assert max(acked) <= (connection.execute(select(func.max(schema.events.c.seq))).scalar_one() or 0)
