"""A small outside world for console tests: a folder with what really happened, and switches for what is broken.

Outside the store and out of the runtime's reach, so that effects can be counted. Each effect is one line, appended in
one write; a key is honoured as a payment provider would, under a lock that every process shares.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = "WALKBACK_INCIDENT_WORLD"
"""The environment variable that names the folder."""


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    # --- switches -------------------------------------------------------------------------------------------------

    @property
    def switches(self) -> dict[str, bool]:
        try:
            found: dict[str, bool] = json.loads((self.folder / "switches.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def switch(self, **on: bool) -> None:
        """`search_down`, `payments_time_out`, `mail_hangs`, `tickets_time_out`, `new_price_list`."""
        new = self.folder / "switches.new"
        new.write_text(json.dumps(self.switches | on))
        new.replace(self.folder / "switches.json")

    def is_on(self, name: str) -> bool:
        return self.switches.get(name, False)

    # --- effects --------------------------------------------------------------------------------------------------

    def do(self, what: str, key: str | None, **about: Any) -> dict[str, Any]:
        """Have an effect. With a key that is known already there is none, and the first one is the answer."""
        with self._locked():
            known = self.find(key) if key is not None else None
            if known is not None:
                return known
            effect = {"what": what, "key": key, "id": f"{what}-{len(self.effects()) + 1}", **about}
            with (self.folder / "effects.jsonl").open("a") as file:
                file.write(json.dumps(effect) + "\n")
            return effect

    def effects(self, what: str | None = None) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "effects.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [effect for line in lines if what in (None, (effect := json.loads(line))["what"])]

    def find(self, key: str) -> dict[str, Any] | None:
        return next((effect for effect in self.effects() if effect["key"] == key), None)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_here: Path | None = None


def move_to(folder: Path) -> World:
    """The world of this process from now on; of other processes, the environment says it."""
    global _here
    _here = folder
    return World(folder)


def world() -> World:
    folder = _here or os.environ.get(FOLDER)
    if folder is None:
        raise RuntimeError(f"which world? {FOLDER} names no folder")
    return World(Path(folder))
