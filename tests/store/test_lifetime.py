"""A store that was closed, and one that came along into a forked process: neither can be used by mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.driver import ANN, claim, held, register, start
from tests.support.people import open_store
from walkback_store.errors import StoreClosed
from walkback_store.fsck import fsck
from walkback_store.housekeeping import adopt, backup, is_adopted, statistics
from walkback_store.machine.people import AddNote
from walkback_store.store import Store

USES: dict[str, Callable[[Store], object]] = {
    "do": lambda s: s.do(AddNote(actor=ANN, run_id="r1", reason="a word")),
    "commit": lambda s: s.commit([AddNote(actor=ANN, run_id="r1", reason="a word")]),
    "claim": claim,
    "beat": lambda s: s.beat("w"),
    "run": lambda s: s.run("r1"),
    "state": lambda s: s.state("r1", 0),
    "lose_dead_workers": lambda s: s.lose_dead_workers(),
    "fsck": fsck,
    "statistics": statistics,
    "is_adopted": is_adopted,
    "adopt": lambda s: adopt(s, ANN, "why not"),
    "backup": lambda s: backup(s, "never-made.db"),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_store_stays_closed(use: str, store_url: str) -> None:
    store = open_store(store_url)
    held(store)
    before = store.backend.connections
    store.close()
    store.close()
    with pytest.raises(StoreClosed, match="open it again"):
        USES[use](store)
    assert store.backend.connections == before
    assert store.backend.engine.pool.checkedin() == 0, "connected again"  # type: ignore[attr-defined]
    with open_store(store_url) as again:
        USES["do"](again)


FORK = """
import json, os, sys
from tests.store.driver import held
from tests.store.test_lifetime import USES
from tests.support.people import open_store
from walkback_store.errors import StoreError
from walkback_store.fsck import fsck

store = open_store(sys.argv[1])
held(store)
store.runs()
ear, mouth = os.pipe()
child = os.fork()
if child == 0:
    said = {}
    for name, use in USES.items():
        try:
            use(store)
            said[name] = "nothing"
        except StoreError as error:
            said[name] = f"{type(error).__name__}: {error}"
    store.close()
    with open_store(sys.argv[1]) as own:
        USES["do"](own)
    os.write(mouth, json.dumps(said).encode())
    os._exit(0)
os.close(mouth)
with open(ear) as answer:
    said = answer.read()
_, status = os.waitpid(child, 0)
connections = store.backend.connections
for _ in range(5):
    USES["do"](store)
    USES["run"](store)
    USES["beat"](store)
result = {
    "said": json.loads(said), "status": status, "opened_by": os.getpid(), "notes": store.run("r1")["head_seq"],
    "problems": len(fsck(store).problems), "connected_again": store.backend.connections - connections,
}
store.close()
print(json.dumps(result))
"""


def test_a_forked_process_is_told_to_open_the_store_itself_and_its_parent_goes_on(store_url: str) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", FORK, store_url]
    done = subprocess.run(
        command, check=True, env=env, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, timeout=120
    )
    result = json.loads(done.stdout)
    assert result["status"] == 0
    for use, error in result["said"].items():
        assert error.startswith(f"WrongProcess: this store was opened by process {result['opened_by']}"), (use, error)
    assert result["problems"] == 0
    assert result["connected_again"] == 0, "the child has closed its parent's connection"
    with open_store(store_url) as store:
        notes = [e for e in store.events("r1") if e.data.get("reason") == "a word"]
        assert len(notes) == 6, "one of the child's own store, five of the parent's"
        register(store, "next")
        start(store, "r2")


FORK_WHILE_WRITING = """
import os, signal, sys, threading
from tests.store.driver import held
from tests.store.test_lifetime import USES
from tests.support.people import open_store
from walkback_store.errors import WrongProcess

store = open_store(sys.argv[1])
held(store)
taken, done = threading.Event(), threading.Event()

def write():
    with store.engine._writing:
        taken.set()
        done.wait()

writer = threading.Thread(target=write)
writer.start()
taken.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)  # rather die than hang
    told = 0
    for use in USES.values():
        try:
            use(store)
        except WrongProcess:
            told += 1
    store.close()
    os._exit(0 if told == len(USES) else 1)
_, status = os.waitpid(child, 0)
done.set()
writer.join()
USES["do"](store)
store.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_process_forked_while_a_thread_writes_does_not_hang(store_url: str) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", FORK_WHILE_WRITING, store_url]
    assert subprocess.run(command, check=False, env=env, cwd=Path(__file__).parents[2], timeout=120).returncode == 0
