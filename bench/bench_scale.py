"""Queries on a store of 1,000,000 runs: a page of runs (first, middle and last; each filter), the inbox, how many runs
there are in each status, and a worker's claim.

Each number is the median of seven, after one that is thrown away. A filter's number is that of its slowest page.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

from bench.fill import AGENTS, PARKED, RARE_AGENT, Filled, fill_postgres, fill_sqlite, run_id
from tests.support.postgres import running_postgres
from walkback_store import open_store
from walkback_store.machine.store_wide import RegisterWorker
from walkback_store.queries import MAX_PAGE, PAGE, RunFilter
from walkback_store.store import Store

RUNS = 1_000_000
ROUNDS = 7
PAGE_BAR = 20.0
OVERVIEW_BAR = 50.0


class Sink(Protocol):
    def add(self, name: str, value: float, unit: str, bar: str | None = None, ok: bool | None = None) -> None: ...


class Subject(NamedTuple):
    name: str
    store: Store
    filled: Filled


def run(report: Sink) -> None:
    for subject in subjects():
        measure_pages(report, subject)
        measure_overview(report, subject)
        measure_claims(report, subject)


def subjects() -> Iterator[Subject]:
    with sqlite_subject() as subject:
        yield subject
    with postgres_subject() as subject:
        yield subject


@contextmanager
def sqlite_subject() -> Iterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="walkback-bench-") as folder:
        path = Path(folder) / "walkback.db"
        open_store(path).close()
        started = time.monotonic()
        filled = fill_sqlite(path, RUNS)
        progress(f"SQLite: {RUNS:,} runs filled in {time.monotonic() - started:.0f} s")
        with open_store(path) as store:
            yield Subject("SQLite", store, filled)


@contextmanager
def postgres_subject() -> Iterator[Subject]:
    with running_postgres() as server, server.fresh_database() as url:
        open_store(url).close()
        started = time.monotonic()
        filled = fill_postgres(url, RUNS)
        progress(f"PostgreSQL: {RUNS:,} runs filled in {time.monotonic() - started:.0f} s")
        with open_store(url) as store:
            yield Subject("PostgreSQL", store, filled)


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def timed(action: Callable[[], object]) -> float:
    """Milliseconds."""
    action()
    took = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        took.append((time.perf_counter() - start) * 1000)
    return median(took)


# --- pages of runs -----------------------------------------------------------------------------------------------


def filters(filled: Filled) -> dict[str, RunFilter]:
    third = filled.runs // 3
    return {
        "a common status": RunFilter(status=["succeeded"]),
        "a rare status": RunFilter(status=["needs_operator"]),
        "two statuses": RunFilter(status=["failed", "cancelled"]),
        "an agent": RunFilter(agent="mail-triage"),
        "a rare agent": RunFilter(agent=RARE_AGENT),
        "an agent prefix": RunFilter(agent_prefix="billing-"),
        "a rare agent prefix": RunFilter(agent_prefix="yearly"),
        "a common tag": RunFilter(tag="production"),
        "a rare tag": RunFilter(tag="incident-42"),
        "time": RunFilter(since=filled.created(third), until=filled.created(2 * third)),
        "an id prefix": RunFilter(prefix="run-a3"),
        "a short id prefix": RunFilter(prefix="run-"),
    }


def combined(filled: Filled) -> dict[str, RunFilter]:
    """Two at once, chosen so that no single index answers both."""
    third = filled.runs // 3
    return {
        "a rare status of an agent": RunFilter(status=["needs_operator"], agent="mail-triage"),
        "a rare status with a common tag": RunFilter(status=["paused"], tag="production"),
        "an agent and a rare tag": RunFilter(agent="mail-triage", tag="incident-42"),
        "a rare agent and a common status": RunFilter(status=["succeeded"], agent=RARE_AGENT),
        "a status and an id prefix": RunFilter(status=["needs_operator"], prefix="run-"),
        "an agent and time": RunFilter(agent="mail-triage", since=filled.created(third)),
    }


def pages(subject: Subject, where: RunFilter) -> dict[str, Callable[[], object]]:
    """`far` is near the end: a query that reads its way to a place, rather than seek it, is slow there."""

    def at(share: float) -> tuple[Any, ...]:
        if where.prefix is not None:
            return (ids[int(len(ids) * share)],)
        number = int(subject.filled.runs * (1 - share))
        return subject.filled.created(number), number

    prefix = where.prefix or "-"
    ids = sorted(i for n in range(1, subject.filled.runs + 1) if (i := run_id(n)).startswith(prefix))
    # Where time is bounded, its middle third is what there is.
    middle, far = at(0.5), at(0.65 if where.until is not None else 0.95)
    return {
        "first": lambda: subject.store.runs(where),
        "middle": lambda: subject.store.runs(where, after=middle),
        "far": lambda: subject.store.runs(where, after=far),
        "back from the middle": lambda: subject.store.runs(where, before=middle),
        "last": lambda: subject.store.runs(where, last=True),
    }


def measure_pages(report: Sink, subject: Subject) -> None:
    of = f"of {subject.filled.runs:,} runs, {subject.name}"
    for which, action in pages(subject, RunFilter()).items():
        took = timed(action)
        report.add(f"{which} page {of}", took, "ms", f"<= {PAGE_BAR:g} ms", took <= PAGE_BAR)
    for name, where in filters(subject.filled).items():
        took = slowest(subject, name, where)
        report.add(f"page {of}, by {name}", took, "ms", f"<= {PAGE_BAR:g} ms", took <= PAGE_BAR)
    for name, where in combined(subject.filled).items():
        report.add(f"page {of}, by {name}", slowest(subject, name, where), "ms")


def slowest(subject: Subject, name: str, where: RunFilter) -> float:
    found = {which: timed(action) for which, action in pages(subject, where).items()}
    if not subject.store.runs(where).rows:
        raise RuntimeError(f"{name}: no run was found, so nothing was measured")
    progress(f"{subject.name}, by {name}: " + ", ".join(f"{which} {took:.1f} ms" for which, took in found.items()))
    return max(found.values())


# --- inbox and counts --------------------------------------------------------------------------------------------


def measure_overview(report: Sink, subject: Subject) -> None:
    at = f"at {subject.filled.runs:,} runs, {subject.name}"
    store, now = subject.store, subject.filled.now
    counted = store.status_counts()["needs_operator"].n
    if counted != PARKED or not store.inbox(now):
        raise RuntimeError(f"{counted} runs wait for a person, {PARKED} were filled in")
    largest = max(store.inbox(now, limit=MAX_PAGE), key=lambda row: int(row["n"]))
    rows = 0
    while page := store.inbox(now, limit=MAX_PAGE, offset=rows):
        rows += len(page)
    progress(f"{subject.name}: {rows:,} rows in the inbox, {largest['n']} items in the largest of them")
    actions: dict[str, Callable[[], object]] = {
        "inbox": lambda: store.inbox(now),
        "inbox counts": lambda: store.inbox_counts(now),
        "members of an inbox row": lambda: store.inbox_members(largest, now),
        "status counts": store.status_counts,
    }
    for name, action in actions.items():
        took = timed(action)
        report.add(f"{name} {at}", took, "ms", f"<= {OVERVIEW_BAR:g} ms", took <= OVERVIEW_BAR)
    report.add(f"inbox, the last page {at}", timed(lambda: store.inbox(now, offset=rows - PAGE)), "ms")
    slow = 0.0
    for name, where in (filters(subject.filled) | combined(subject.filled)).items():
        took = timed(lambda where=where: store.count_runs(where))  # type: ignore[misc]
        progress(f"{subject.name}, count by {name}: {took:.1f} ms")
        slow = max(slow, took)
    report.add(f"slowest count of a filter {at}", slow, "ms")


# --- claims ------------------------------------------------------------------------------------------------------


def measure_claims(report: Sink, subject: Subject) -> None:
    """With the commit that records them. Orphans, due runs and free ones are there, of versions it has and others."""
    store, agents = subject.store, {agent: ["1"] for agent in AGENTS}
    store.do(
        RegisterWorker(
            actor="worker:bench", worker="bench", host="here", boot_id="boot", pid=1, process_started="1",
            agents=agents, lease=60_000_000,
        )
    )  # fmt: skip
    for limit in (1, 20):

        def claim(limit: int = limit) -> None:
            if len(store.claim("bench", agents, limit)) != limit:
                raise RuntimeError("there was nothing to claim, so nothing was measured")

        took = timed(claim)
        name = "claim" if limit == 1 else f"claim of {limit}"
        report.add(
            f"{name} from {subject.filled.runs:,} runs, {subject.name}",
            took,
            "ms",
            f"<= {PAGE_BAR:g} ms",
            took <= PAGE_BAR,
        )
