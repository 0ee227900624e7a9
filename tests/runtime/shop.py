"""A small world for the tests of agents: services that count, and a person at the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import walkback as wb
from tests.support.people import let_everyone
from walkback_store.machine.people import Approve, DecideCompensate, RecordHappened, ResumeRun

ANN = "operator:ann"


class Shop:
    """What tools do is counted here, outside the store."""

    def __init__(self) -> None:
        self.done: list[tuple[str, object]] = []
        self.trouble: list[BaseException] = []
        """Raised by the next calls, one each."""

    def do(self, what: str, value: object = None) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        self.done.append((what, value))

    def count(self, what: str) -> int:
        return sum(1 for found, _ in self.done if found == what)


class Person:
    """What somebody at the console does."""

    def __init__(self, app: wb.App) -> None:
        self.store = app.store

    def approve(self, run_id: str, step: str, **more: Any) -> None:
        approval = self.store.operation(run_id, step).approvals[-1]
        digest = approval["digest"]
        self.store.do(Approve(actor=ANN, run_id=run_id, step=step, n=approval["n"], digest=digest, regret=0, **more))

    def resume(self, run_id: str) -> None:
        self.store.do(ResumeRun(actor=ANN, run_id=run_id, reason="go on", regret=0))

    def happened(self, run_id: str, step: str, result: object) -> None:
        self.store.do(
            RecordHappened(actor=ANN, run_id=run_id, step=step, reason="looked", evidence="the book", result=result)
        )

    def undo(self, run_id: str, scope: str, steps: list[str]) -> None:
        self.store.do(
            DecideCompensate(actor=ANN, run_id=run_id, scope=scope, steps=steps, reason="a mistake", regret=0)
        )


@contextmanager
def opened(url: str, *agents: wb.Agent, **more: Any) -> Iterator[wb.App]:
    with wb.App(url, agents=agents, **more) as app:
        let_everyone(app.store)
        yield app


def work(app: wb.App) -> None:
    app.run_until_idle(wait=2, lease=5)


def why(app: wb.App, run_id: str) -> tuple[str, str]:
    row = app.store.run(run_id)
    assert row["status"] == "needs_operator", row["status"]
    return row["why"], row["why_detail"]


def ops(app: wb.App, run_id: str) -> dict[str, str]:
    return {row["step"]: row["operation_status"] for row in app.store.timeline(run_id) if row["operation_tool"]}


def kinds(app: wb.App, run_id: str, step: str | None = None) -> list[str]:
    return [e.kind for e in app.store.events(run_id, limit=1000) if step is None or e.step == step]


def until_threads_end() -> None:
    """Threads that were left behind have said what they know, and are gone: the store may be closed."""
    for _ in range(400):
        if not any(thread.name.startswith("walkback-") for thread in threading.enumerate()):
            return
        threading.Event().wait(0.05)
    raise AssertionError("threads of runs are still there")


@pytest.fixture
def shop() -> Shop:
    return Shop()
