"""A process that opens a store under hard conditions, and says in JSON what came of it.

`python -m tests.store.opener ORDER`, a JSON object: `url`, and whichever conditions are wanted (see `_conditions`). It
says `ready` on a line, waits for one, then opens the store and does what `do` says. Only errors of our own are
reported; any other ends it with a traceback.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import select

from walkback_store import open_store, schema
from walkback_store.errors import StoreError
from walkback_store.machine.runs import StartRun

NOBODY = 65534


@cache
def own_mounts() -> tuple[str, ...] | None:
    """A command that gives a process mounts of its own; None where the system allows nobody to have them."""
    for command in (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")):
        with tempfile.TemporaryDirectory() as folder:
            mount = [*command, "mount", "-t", "tmpfs", "tmpfs", folder]
            if shutil.which("unshare") and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
                return command
    return None


def _warm_up() -> None:
    """Use everything once: the code may lie where somebody without rights cannot read it."""
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "first.db") as store:
        store.do(StartRun(actor="operator:me", run_id="first", agent="a"))


def _conditions(order: dict[str, Any]) -> None:
    for name in order.get("without", []):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails from here on
    if "umask" in order:
        os.umask(order["umask"])
    if "disk" in order:  # a disk of its own, of that many bytes; in a mount namespace that the caller made
        _mount("-t", "tmpfs", "-o", f"size={order['disk']},mode=0755", "tmpfs", order["at"])
    if "read_only_with" in order:
        open_store(order["read_only_with"]).close()
        _mount("-o", "remount,ro", order["at"])
    if "file_limit" in order:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], order["file_limit"]))
    if order.get("nobody") and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _open(order: dict[str, Any]) -> dict[str, Any]:
    try:
        with open_store(order["url"], create=order.get("create", True), wait=order.get("wait", 10.0)) as store:
            if order.get("do") == "write":
                store.do(StartRun(actor="operator:me", run_id=f"of-{os.getpid()}", agent="a"))
            beside = {p.name: p.stat().st_mode & 0o777 for p in Path(order["at"]).iterdir()} if "at" in order else {}
            return {
                "error": None,
                "store_id": store._rows(select(schema.store.c.store_id))[0]["store_id"],
                "modes": beside,
            }
    except StoreError as error:
        return {"error": type(error).__name__, "message": str(error)}


def main() -> None:
    order = json.loads(sys.argv[1])
    _warm_up()
    _conditions(order)
    print("ready", flush=True)
    sys.stdin.readline()
    answer = _open(order)
    if "at" in order:
        answer["left"] = sorted(os.listdir(order["at"]))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
