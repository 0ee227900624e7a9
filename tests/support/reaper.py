"""Stops a PostgreSQL server and removes its directory once the process that wanted it is done or gone.

Run as a child of the test process, on the standard library alone. It waits for a line, or the end, of its standard
input: a pipe ends however its writer ends, so Ctrl-C, a crash and kill -9 leave no server behind either.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_FAST, _IMMEDIATE, _KILL = signal.SIGINT, signal.SIGQUIT, signal.SIGKILL


def _postmaster(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _stop(data: Path) -> None:
    for sign, patience in ((_FAST, 10.0), (_IMMEDIATE, 5.0), (_KILL, 5.0)):
        pid = _postmaster(data)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, sign)
        give_up = time.monotonic() + patience
        # A dead server may stay a zombie where nobody collects it, so its pid file counts too.
        while _alive(pid) and _postmaster(data) == pid and time.monotonic() < give_up:
            time.sleep(0.01)
        if not _alive(pid):
            return


def main(root: Path) -> None:
    sys.stdin.readline()
    _stop(root / "data")
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
