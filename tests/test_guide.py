"""Every block of docs/guide.md is run, in order, and what its comments claim is checked.

Blocks that begin with a file's name are written to that file. Of the others each line that is an expression is
evaluated, and compared with the claim in the comment behind it, if there is one. `$` lines are run in a shell, and what
is printed below them has to be in their output.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import walkback as wb
from walkback_console.cli.commands import app as command
from walkback_store import open_store
from walkback_store.fsck import fsck

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "guide.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
KILLED = -9


def files() -> dict[str, str]:
    return {found[1]: text for kind, text in BLOCKS if kind == "python" and (found := FILE.match(text))}


@contextlib.contextmanager
def service(text: str) -> Iterator[tuple[str, ModuleType]]:
    """The service of the guide itself, on a port of its own."""
    module = ModuleType("service")
    exec(compile(text, "service.py", "exec"), module.__dict__)
    server = ThreadingHTTPServer(("127.0.0.1", 0), module.Service)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", module
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Reader:
    """Somebody who follows the guide."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "guide"}
        self.claims = 0
        self.failed: list[str] = []

    def read(self, text: str) -> None:
        lines = text.splitlines()
        for node in ast.parse(text).body:
            code = ast.get_source_segment(text, node) or ""
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.decorator_list:
                first = node.decorator_list[0].lineno - 1
                code = "\n".join(lines[first : node.end_lineno])
            if not isinstance(node, ast.Expr):
                exec(compile(code, "guide.md", "exec"), self.names)
                continue
            found = eval(compile(code, "guide.md", "eval"), self.names)
            claim = lines[(node.end_lineno or 1) - 1][node.end_col_offset :].strip().removeprefix("#").strip()
            if claim:
                self.check(code, found, claim)

    def check(self, code: str, found: object, claim: str) -> None:
        """A claim is a value, perhaps followed by `:` or `,` and words; or words that say more than the value."""
        if code.startswith(("app.start(", "close_order(")):
            return
        if claim.startswith("what the agent returned: {"):
            shown = eval(claim.partition(": ")[2].replace("...", "None"), {})
            assert isinstance(found, dict)
            said, found = (
                {k: v for k, v in shown.items() if v is not None},
                {k: found.get(k) for k in shown if k != "id"},
            )
        else:
            value = re.match(r'\d+|"[^"]*"|\[[^]]*\]|\{[^}]*\}', claim)
            assert value, f"no value in the claim {claim!r}"
            said = ast.literal_eval(value[0])
        self.claims += 1
        if found != said:
            self.failed.append(f"{code}: the guide says {said!r}, and it is {found!r}")

    def type(self, text: str) -> None:
        """Run the `$` lines of a block; what is printed below each must be in its output."""
        for part in re.findall(r"^\$ (.*\n(?:(?!\$ ).*\n?)*)", text, re.MULTILINE):
            line, *expected = part.splitlines()
            output = self.run(line)
            for words in filter(None, map(str.strip, expected)):
                if " ".join(words.split()) not in " ".join(output.split()):
                    self.failed.append(f"$ {line}: {words!r} is not in\n{output}")

    def run(self, line: str) -> str:
        program, *args = shlex.split(line)
        if program == "walkback":
            if args[0] == "work":  # it goes on until it is stopped; tests/console has tests of it
                assert args[1:] == ["myagents:app", "--concurrency", "20"]
                return ""
            assert args[0] in {c.name or getattr(c.callback, "__name__", "") for c in command.registered_commands}
            args = ["-m", "walkback_console", *args]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([".", *(p for p in sys.path if p)]), "COLUMNS": "120"}
        done = subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env, check=False)
        wanted = KILLED if args[0] == "kill.py" else 0
        if done.returncode != wanted:
            self.failed.append(f"$ {line}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def leave(self) -> None:
        """Nothing is left open."""
        for app in [value for value in self.names.values() if isinstance(value, wb.App)]:
            app.close()
        self.names["myagents"].app.close()
        self.names.clear()
        for thread in threading.enumerate():
            if thread.name == "walkback-loop":
                thread.join(5)
        gc.collect()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("billing", "myagents"):
        sys.modules.pop(name, None)


def test_the_guide_does_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    with service(files()["service.py"]) as (url, world):
        monkeypatch.setenv("BILLING", url)
        for kind, text in BLOCKS:
            if kind == "python" and (name := FILE.match(text)):
                (folder / name[1]).write_text(text)
            elif kind == "python":
                reader.read(text)
            else:
                reader.type(text)
        made = world.made
    reader.leave()
    assert reader.failed == []
    assert reader.claims >= 34, "the guide claims less than it did"
    orders = [invoice["order"] for invoice in made["invoices"]]
    assert orders.count("1") == 2, "the ordinary script was run twice"
    rest = [order for order in orders if order != "1"]
    assert sorted(rest) == sorted({*rest}), "an effect that the guide says happened once"
    with open_store(folder / "walkback.db", create=False) as store:
        assert fsck(store, deep=True).problems == []
