"""Running the real `walkback` command: in this process, in one of its own, and in a terminal of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from walkback_console.cli import main

STRICT = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "80"}
"""A terminal for which Rich writes no escape sequence of its own."""


@dataclass(slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """`walkback` in this process: quick, and through the same `main` that the entry point calls."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str) -> Done:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(args)
        captured = self._capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, captured.out, captured.err)


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"WALKBACK_STORE", "FORCE_COLOR", "NO_COLOR"}}
    return kept | more


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "walkback_console", *args]


_EACH_IN_TURN = """
import json, sys
from walkback_console.cli import main
for args in json.loads(sys.argv[1]):
    try:
        main(args)
    except SystemExit as ended:
        assert ended.code in (0, 1, 2, None), (args, ended.code)
"""


def in_one_terminal(commands: Sequence[Sequence[str]], **env: str) -> bytes:
    """Everything that these commands, one after the other, send to the terminal they run in."""
    with terminal([sys.executable, "-c", _EACH_IN_TURN, json.dumps(commands)], **env) as screen:
        said = screen.rest()
        assert screen.process.wait() == 0, said.decode(errors="replace")
    return said


class Screen:
    """The other end of a pty."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._seen = b""

    def rest(self) -> bytes:
        while self._more():
            pass
        return self._seen

    def until(self, wanted: bytes) -> bytes:
        """Everything up to and with `wanted`."""
        while wanted not in self._seen:
            assert self._more(), f"{wanted!r} never came, only {self._seen!r}"
        return self._seen

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def _more(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # how Linux says that the last holder of the other end is gone
            return False
        self._seen += data
        return bool(data)


@contextlib.contextmanager
def terminal(args: Sequence[str], **env: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            args,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**env),
            start_new_session=True,
        )
        os.close(theirs)
        try:
            yield Screen(process, ours)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
    finally:
        os.close(ours)
