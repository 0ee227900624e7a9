"""Real workers that are killed, stopped and robbed of their runs: every effect happens once, or a person is asked.

A ledger that the runtime cannot reach counts what really happened, and is held against what the store says.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.agents import KINDS, Kind
from tests.faults.fleet import fleet, until

LONG = os.environ.get("WALKBACK_FAULTS") == "long"
AT_ONCE = 6
"""So many workers that are about to die, side by side."""


# --- killed at every boundary --------------------------------------------------------------------------------------

GROUPS = {
    "plain": [kind for kind in KINDS if "async" not in kind.name and "compensation" not in kind.name],
    "async": [kind for kind in KINDS if "async" in kind.name and "compensation" not in kind.name],
    "undoing": [kind for kind in KINDS if "compensation" in kind.name],
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_worker_killed_at_any_boundary_leaves_what_another_can_settle(
    group: str, store_url: str, tmp_path: Path
) -> None:
    trials = [(kind, point) for kind in GROUPS[group] for point in kind.points]
    with fleet(store_url, tmp_path) as all_:
        dying: list[tuple[int, Kind, str]] = []

        def bury() -> None:
            pid, kind, point = dying.pop(0)
            until(lambda: pid in all_.server.ended or (all_.help() and False), f"{kind.name}: it dies {point}", 30)
            assert all_.end_of(pid) == -signal.SIGKILL

        for i, (kind, point) in enumerate(trials):
            if len(dying) == AT_ONCE:
                bury()
            version = f"{i}: {point}"
            all_.start(kind, f"t{i}", version)
            dying.append((all_.worker([(kind.name, version)], dies=[point]), kind, str(point)))
        while dying:
            bury()
        all_.worker(concurrency=100)
        all_.rest()
        all_.judge()
