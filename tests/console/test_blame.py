"""The step that last wrote a value, found backwards, is the one that reading forwards finds."""

from __future__ import annotations

from typing import Any

import pytest

import walkback as wb
from tests.runtime.shop import opened, work
from walkback_console.blame import blame
from walkback_console.trees import MISSING, Path, children, value_at
from walkback_store.values import encode


@wb.tool(effect="read")
def look(x: int) -> dict[str, int]:
    return {"x": x}


@wb.tool(effect="write", verify=lambda op: wb.happened({}))
def put(x: int, time: int = 0, *, op: wb.Op) -> dict[str, int]:
    return {"x": x}


@wb.agent
def busy(run: wb.Run) -> None:
    run.state["items"] = [0]
    run.state["seen"] = run.call(look, x=1)
    run.call(put, x=1, into="put")
    run.state["flag"] = True
    run.decide("how", lambda: "so")
    run.state["flag"] = 1
    for n in range(6):
        run.call(put, x=n // 2, time=n, into="put")
        run.state["items"] = [*run.state["items"], n]
    run.call(look, x=2)
    del run.state["seen"]
    run.parallel(wb.call(look, x=3), wb.call(look, x=4), into="both")
    run.call(look, x=5)


def every_path(state: object, path: Path = ()) -> list[Path]:
    return [path, *(deeper for part, child in children(state) for deeper in every_path(child, (*path, part)))]


def forwards(states: list[object], steps: list[dict[str, Any]], path: Path, at: int) -> tuple[int, str | None] | None:
    values = [value_at(state, path) for state in states[: at + 1]]
    changed = 0
    for n in range(1, at + 1):
        before, after = values[n - 1], values[n]
        alike = (before is after) if MISSING in (before, after) else encode(before) == encode(after)
        changed = changed if alike else n
    if changed == 0:
        return None if values[0] is MISSING else (0, None)
    writers = [row["step"] for row in steps if row["before"] < changed <= row["after"]]
    return changed, writers[-1] if writers else None


@pytest.fixture
def app(store_url: str) -> Any:
    with opened(store_url, busy) as app:
        app.start("busy", run_id="r")
        work(app)
        assert app.store.run("r")["status"] == "succeeded"
        yield app


def test_it_names_the_step_that_a_forward_reading_names(app: wb.App) -> None:
    last = app.store.run("r")["last_snapshot"]
    states = [app.store.state("r", n) for n in range(last + 1)]
    steps = app.store.timeline("r")
    paths = {path for state in states for path in every_path(state)}
    for at in range(last + 1):
        for path in paths:
            found = blame(app.store, "r", path, at)
            expected = forwards(states, steps, path, at)
            assert (None if found is None else (found.snapshot, found.step)) == expected, (path, at)


def test_it_says_what_was_there_before_and_who_changed_it(app: wb.App) -> None:
    last = app.store.run("r")["last_snapshot"]
    found = blame(app.store, "r", ("flag",), last)
    assert found is not None
    assert (found.old, found.new, found.step, found.kind, found.name) == (True, 1, "3", "decide", "how")
    row = next(row for row in app.store.timeline("r") if row["step"] == "3")
    assert (found.at, found.first_seq) == (row["ended_at"], row["first_seq"])
    gone = blame(app.store, "r", ("seen",), last)
    assert gone is not None
    assert (gone.old, gone.new, gone.tool) == ({"x": 1}, MISSING, "look")
    early = blame(app.store, "r", ("items", 0), last)
    assert early is not None
    assert early.step is None
    assert early.message == "written by the agent itself, before its first step"
    assert blame(app.store, "r", ("never",), last) is None


def test_it_gives_up_when_told_to_and_says_so(app: wb.App) -> None:
    last = app.store.run("r")["last_snapshot"]
    found = blame(app.store, "r", ("items", 0), last, limit=3)
    assert found is not None
    assert found.step is None
    assert found.message == "the same in the 3 snapshots before it; nothing further back was looked at"
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 2

    assert blame(app.store, "r", ("items", 0), last, cancelled=cancelled) is None
    assert len(asked) == 3
