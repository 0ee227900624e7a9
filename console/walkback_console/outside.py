"""Everything a person takes out of the console: the clipboard, a pager, an editor, a file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from walkback_console.safe_text import safe

if TYPE_CHECKING:
    from walkback_store import Store

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def quoted(text: str) -> str:
    return shlex.quote(text)


def shown_address(url: str) -> str:
    """A store as people name it: without its scheme, and never with a password."""
    if url.startswith("sqlite:///"):
        url = url.removeprefix("sqlite:///")
    if "://" not in url:
        try:
            return str(Path(url).absolute().relative_to(Path.cwd()))
        except ValueError:
            return url
    return re.sub(r"//([^:/@]+):[^@/]*@", r"//\1@", url)


def copy(text: str, through_terminal: Callable[[str], object]) -> str:
    """Under tmux the terminal's own way is swallowed, so tmux is asked; the value is shown in any case."""
    if os.environ.get("TMUX") and shutil.which("tmux"):
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"], input=text.encode(), check=False, timeout=2, capture_output=True
        )
        if done.returncode == 0:
            return "copied through tmux"
    through_terminal(text)
    return "copied, if your terminal allows it"


def page(text: str) -> None:
    command = shlex.split(os.environ.get("PAGER") or "less")
    try:
        subprocess.run(command, input=text.encode(), check=False)
    except OSError:
        print(text)
        input("-- Enter goes back --")


def edit(file: str, line: int) -> str | None:
    """Open a line in $EDITOR; what went wrong, if something did."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    if not Path(file).exists():
        return f"{file} is not on this machine; it failed at its line {line}"
    try:
        done = subprocess.run([*command, f"+{line}", file], check=False)
    except OSError as error:
        return f"{command[0]} could not be started: {error}. Set EDITOR; the place is {file}:{line}"
    return None if done.returncode == 0 else f"{command[0]} ended with exit code {done.returncode}"


def save(text: str, name: str) -> str:
    """Into the current folder, never over anything; readable by its owner only, like the store."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", safe(name)).strip("-.")[:80] or "walkback"
    for n in range(1000):
        path = Path(f"{stem}{'' if n == 0 else f'-{n}'}.txt")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            return f"not saved: {error}"
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        return f"saved as {path.absolute()}"
    return f"not saved: there are too many files called {stem}"


def source_of(store: Store, run_id: str) -> tuple[str, int] | None:
    """The file and line where the agent's code failed, as its record has them."""
    run = store.run(run_id)
    for event in reversed(store.events(run_id, before=run["head_seq"] + 1, limit=50)):
        source = event.data.get("source")
        if isinstance(source, dict) and isinstance(source.get("file"), str) and isinstance(source.get("line"), int):
            return source["file"], source["line"]
        frames = _FRAME.findall(str(event.data.get("traceback") or ""))
        own = [(f, int(n)) for f, n in frames if "site-packages" not in f and "/walkback/" not in f]
        if own or frames:
            return own[-1] if own else (frames[-1][0], int(frames[-1][1]))
    return None
