"""A server that forks writers: each one writes steps as fast as it can, and says so after every commit.

Imports are paid once, so a kill costs milliseconds. `python -m tests.faults.writer` reads a line of JSON per writer,
[url, run_id], and answers on its standard output, a line at a time:

    writer PID           it lives
    ack SEQ HASH         a commit of its run has returned
    error TEXT           something was raised; the writer waits for its end
    done PID             it is dead and buried; nothing more comes from it
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator

from walkback_store import open_store
from walkback_store.engine import Committed
from walkback_store.leases import boot_id, process_started
from walkback_store.machine.base import Transition
from walkback_store.machine.operations import Call, Intend, Settle
from walkback_store.machine.runs import StartRun
from walkback_store.machine.store_wide import RegisterWorker
from walkback_store.values import encode
from walkback_store.words import Answer, Evidence, OperationStatus


def registration(worker: str, agent: str = "a", lease: int = 600_000_000) -> RegisterWorker:
    """This process, as a worker."""
    return RegisterWorker(
        actor=f"worker:{worker}",
        worker=worker,
        host="here",
        boot_id=boot_id(),
        pid=os.getpid(),
        process_started=process_started(os.getpid()) or "",
        agents={agent: ["1"]},
        lease=lease,
    )


def start(run_id: str, agent: str = "a") -> StartRun:
    return StartRun(actor="operator:me", run_id=run_id, agent=agent, input={"run": run_id}, state=encode({"n": 0}))


def intend(run_id: str, fence: int, i: int, worker: str, state: object = None) -> Intend:
    call = Call(tool="t", args={"i": i}, args_hash=f"{i:064x}", key=f"{run_id}:{i}:t:{i:08x}", can_verify=True)
    encoded = None if state is None else encode(state)
    return Intend(
        actor=f"worker:{worker}", run_id=run_id, fence=fence, step=str(i), call=call, worker=worker, state=encoded
    )


def settle(run_id: str, fence: int, i: int, worker: str, state: object = None) -> Settle:
    return Settle(
        actor=f"worker:{worker}",
        run_id=run_id,
        fence=fence,
        step=str(i),
        outcome=OperationStatus.SUCCEEDED,
        answer=Answer.ACKNOWLEDGED,
        output={"ok": i},
        evidence=Evidence.HAPPENED,
        result={"ok": i},
        state=None if state is None else encode(state),
    )


def steps(run_id: str, fence: int, worker: str) -> Iterator[Transition]:
    """A call after another, for ever, with a state that grows."""
    log: list[str] = []
    state: dict[str, object] = {"log": log}
    i = 0
    while True:
        i += 1
        yield intend(run_id, fence, i, worker, state)
        log.append(f"step {i} " + "x" * 40)
        state["n"] = i
        yield settle(run_id, fence, i, worker, state)


def write(url: str, run_id: str) -> None:
    """Never returns. The run has an agent of its own, so that writers do not claim each other's."""
    worker = agent = f"of-{run_id}"
    with open_store(url) as store:
        store.do(registration(worker, agent))
        _ack(store.do(start(run_id, agent)))
        (claimed,) = store.claim(worker, {agent: ["1"]})
        _ack(claimed)
        for transition in steps(run_id, (claimed.run or {})["fence"], worker):
            _ack(store.do(transition))


def _ack(committed: Committed) -> None:
    os.write(1, f"ack {committed.seq} {committed.hash.hex()}\n".encode())


def _fork(url: str, run_id: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.write(1, f"writer {os.getpid()}\n".encode())
        write(url, run_id)
    except BaseException as error:
        os.write(1, f"error {type(error).__name__}: {error}".replace("\n", " ").encode()[:2000] + b"\n")
        while True:
            signal.pause()
    os._exit(1)


def serve() -> None:
    for line in iter(sys.stdin.readline, ""):
        pid = _fork(*json.loads(line))
        os.waitpid(pid, 0)
        os.write(1, f"done {pid}\n".encode())


if __name__ == "__main__":
    serve()
