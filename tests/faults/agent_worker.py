"""A server that forks real workers: each one serves an app of `tests.faults.agents`, and may be told where to die.

Imports are paid once, so a worker costs milliseconds. `python -m tests.faults.agent_worker` reads a line of JSON per
worker (`Order`), and says on its standard output, a line at a time:

    worker PID           it lives
    ended PID CODE       it is dead and buried; CODE is its exit status, or minus the signal that ended it
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults import agents
from walkback.testing import Faults

LEASE = 1.0
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Order:
    """One worker, as a test wants it."""

    url: str
    ledger: str
    errors: str
    """Where its words go."""
    agents: list[tuple[str, str]]
    """Kinds and versions."""
    crashes: list[dict[str, str]] = field(default_factory=list)
    """What is given to `Faults.crash`."""
    concurrency: int = 20
    lease: float = LEASE
    grace: float = 30.0
    latency: float = 0.0

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def serve_app(order: Order) -> None:
    agents.world = agents.World(Path(order.ledger), order.latency)
    faults = Faults()
    for crash in order.crashes:
        faults.crash(crash.pop("point"), **crash)
    with agents.make_app(order.url, order.agents, faults) as app:
        app.serve(concurrency=order.concurrency, lease=order.lease, grace=order.grace)


def _fork(order: Order) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody outlives the test
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        errors = os.open(order.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for to, of in ((0, nothing), (1, nothing), (2, errors)):
            os.dup2(of, to)
        serve_app(order)
        code = 0
    except BaseException:
        os.write(2, f"a worker ended with an error\n{traceback.format_exc()}".encode())
    os._exit(code)


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _bury() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say("ended", pid, os.waitstatus_to_exitcode(status))


def serve() -> None:
    wakes, woken = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    rest = b""
    while True:
        ready, _, _ = select.select([0, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            _bury()
        if 0 in ready:
            read = os.read(0, 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                _say("worker", _fork(Order(**json.loads(line))))


if __name__ == "__main__":
    serve()
