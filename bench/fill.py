"""A store with very many runs, written past the state machine: straight into the projections, without any events.

Good for measuring queries and nothing else (`fsck` would report every row). Ages, agents and statuses are mixed over
the whole time, and most runs have succeeded. What waits for a person looks like the aftermath of some outages: bursts
of the same tool and error within minutes, and single cases scattered over months.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from sqlalchemy import Table, column, insert, table
from sqlalchemy.dialects import sqlite

from walkback_store import schema
from walkback_store.sqlite_library import sqlite3

SEED = 7
SECOND = 1_000_000
SPACING = 10 * SECOND
START = 1_700_000_000 * SECOND
AGENTS = (
    "billing-dunning",
    "billing-reconcile",
    "crm-enrich",
    "deploy-canary",
    "mail-triage",
    "refund-desk",
    "refund-review",
    "report-weekly",
    "stock-order",
    "support-first-line",
)
RARE_AGENT = "yearly-audit"
UNSERVED = "3"
"""A version of an agent that no worker has."""
TOOLS = ("charge_card", "create_ticket", "issue_refund", "order_stock", "rotate_key", "send_mail", "ship", "transfer")
ERRORS = ("ConnectTimeout", "ReadTimeout", "ConnectionReset", "BadGateway", None)
WHYS = ("unknown",) * 16 + ("diverged", "drift", "compensation_failed", "budget_spent")
PARKED = 5_000
IN_BURSTS = 3_000
BURST = 60
ASKED = 2_000
COUNTS = {"asked": ASKED, "no_worker": 200, "worker_lost": 100, "held": 500, "free": 300, "asleep": 20_000, "rare": 300}
OPERATIONS_OF = 10
"""Every so many runs have an operation, so that what the inbox looks for is not all there is."""

Values = tuple[Any, ...]


class Filled(NamedTuple):
    runs: int
    now: int

    def created(self, run_no: int) -> int:
        return START + run_no * SPACING


def run_id(number: int) -> str:
    return f"run-{number * 2_654_435_761 % 2**32:08x}"  # an odd factor: no two are the same


class _Plan:
    """Which runs are special, and all rows that follow from it."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.filled = Filled(runs, START + (runs + 100) * SPACING)
        pick = random.Random(SEED)
        self.special: dict[int, str] = {}
        self.trouble: dict[int, tuple[str, str, str | None]] = {}
        """Of a parked run: why, tool, error."""
        for _ in range(IN_BURSTS // BURST):
            first, outage = pick.randrange(1, runs - 4 * BURST), ("unknown", pick.choice(TOOLS), pick.choice(ERRORS))
            for number in range(first, first + 2 * BURST, 2):
                self._park(number, outage)
        while len(self.special) < PARKED:
            self._park(pick.randrange(1, runs + 1), (pick.choice(WHYS), pick.choice(TOOLS), pick.choice(ERRORS)))
        for kind, wanted in COUNTS.items():
            for _ in range(wanted):
                while (number := pick.randrange(1, runs + 1)) in self.special:
                    pass
                self.special[number] = kind

    def _park(self, number: int, trouble: tuple[str, str, str | None]) -> None:
        self.special[number] = "parked"
        self.trouble[number] = trouble

    def tags(self, number: int) -> list[str]:
        found = []
        if number % 2:
            found.append("production")
        if number % 100 == 0:
            found.append("nightly")
        if number % 5_000 == 0:
            found.append("incident-42")
        return found

    def several(self, number: int) -> int:
        """How many operations of a parked run are unknown: now and then, a whole parallel block."""
        if self.trouble[number][0] != "unknown":
            return 0
        return 3 if number % 20 == 0 else 1

    def rows_of_runs(self) -> Iterator[Values]:
        pick = random.Random(SEED)
        head = bytes(32)
        digest = "0" * 64
        rest = ("succeeded", "failed", "cancelled", "compensated", "paused")
        shares = (0.94, 0.04, 0.01, 0.009, 0.001)
        statuses = {"parked": "needs_operator", "asked": "waiting", "asleep": "waiting"}
        workers = {"worker_lost": "lost", "held": "alive-1"}
        for number in range(1, self.runs + 1):
            kind = self.special.get(number)
            agent = RARE_AGENT if kind == "rare" else pick.choice(AGENTS)
            version = UNSERVED if kind == "no_worker" else "1"
            created = self.filled.created(number)
            ended: int | None = created + pick.randrange(1, 600) * SECOND
            touched = created + 30 * SECOND
            why = why_step = why_since = wake = waits = None
            unknown = 0
            if kind is None or kind == "rare":
                (status,) = pick.choices(rest, shares)
                if status == "paused":
                    ended = None
            else:
                ended = None
                status = statuses.get(kind, "running")
                if kind == "parked":
                    why, why_step, why_since = self.trouble[number][0], "3", touched
                    unknown = self.several(number)
                elif kind == "asleep":
                    wake, waits = self.filled.now + number % 9_000 * SECOND, "time"
                elif kind == "asked":
                    waits = "approval:3"
                elif kind == "free":
                    touched = self.filled.now - number % 60 * SECOND
            tags = self.tags(number)
            yield (
                number, run_id(number), agent, version, status, 9, why, why_step, why_since, workers.get(kind or ""), 1,
                wake, waits, "[" + ",".join(f'"{tag}"' for tag in tags) + "]" if tags else None,
                digest, 4, 4, "3", 5, 4, unknown, created, ended or touched, ended, 12, head,
            )  # fmt: skip

    def rows_of_tags(self) -> list[Values]:
        return sorted(
            (tag, self.filled.created(number), number)
            for number in range(1, self.runs + 1)
            for tag in self.tags(number)
        )

    def rows_of_operations(self) -> Iterator[Values]:
        pick = random.Random(SEED)
        for number in range(1, self.runs + 1):
            kind = self.special.get(number)
            if kind not in {"parked", "asked", "held"} and number % OPERATIONS_OF:
                continue
            at = self.filled.created(number) + 20 * SECOND
            tool, error, count = pick.choice(TOOLS), None, 1
            status = {"parked": "unknown", "asked": "awaiting_approval"}.get(kind or "", "succeeded")
            if kind == "parked":
                _, tool, error = self.trouble[number]
                count = self.several(number)
                if not count:
                    status, count = "succeeded", 1
            ended = None if kind == "asked" else at + 10 * SECOND
            suspected = int(kind == "held" and pick.random() < 0.1)
            compensate = "undo" if len(tool) % 2 else None
            for branch in range(count):
                cents = pick.randrange(100, 100_000)
                yield (
                    number, "3" if not branch else f"3.{branch}", tool, "1", "write", status, 9, "0" * 64,
                    f"{tool} for {number}", f"EUR {cents / 100:.2f}", cents / 100,
                    compensate, int(kind != "asked"), suspected, error, at, ended,
                )  # fmt: skip

    def rows_of_approvals(self) -> Iterator[Values]:
        for number, kind in sorted(self.special.items()):
            if kind == "asked":
                at = self.filled.created(number) + 20 * SECOND
                expires = self.filled.now + number % 86_400 * SECOND
                yield number, "3", 1, "asked", 9, "0" * 64, "over_limit", at, expires

    def rows_of_workers(self) -> Iterator[Values]:
        agents = "{" + ",".join(f'"{agent}":["1"]' for agent in (*AGENTS, RARE_AGENT)) + "}"
        beat = (1, self.filled.now)
        yield "lost", "lost", "host", "boot", 1, "1", agents, 5 * SECOND, START, START + SECOND, *beat
        for n in range(5):
            yield f"alive-{n}", "alive", "host", "boot", 1, "1", agents, 5 * SECOND, START, None, *beat
        for n in range(2_000):
            yield f"old-{n}", "stopped", "host", "boot", 1, "1", agents, 5 * SECOND, START, START + SECOND, *beat

    def tables(self) -> Iterator[tuple[Table, tuple[str, ...], Iterator[Values]]]:
        yield schema.runs, (
            "run_no", "run_id", "agent", "agent_version", "status", "status_seq", "why", "why_step", "why_since",
            "worker", "fence", "wake_at", "waits_for", "tags", "input_digest", "position", "steps", "last_step",
            "snapshots", "last_snapshot", "unknown_operations", "created_at", "updated_at",
            "finished_at", "head_seq", "head_hash",
        ), self.rows_of_runs()  # fmt: skip
        yield schema.run_tags, ("tag", "created_at", "run_no"), iter(self.rows_of_tags())
        yield schema.operations, (
            "run_no", "step", "tool", "tool_version", "effect", "status", "touched", "args_hash", "description",
            "stake", "stake_value", "compensate", "attempts", "duplicate_suspected", "error_class", "started_at",
            "ended_at",
        ), self.rows_of_operations()  # fmt: skip
        yield schema.approvals, (
            "run_no", "step", "n", "status", "touched", "digest", "rule", "asked_at", "expires_at",
        ), self.rows_of_approvals()  # fmt: skip
        yield schema.workers, (
            "worker", "status", "host", "boot_id", "pid", "process_started", "agents", "lease", "started_at",
            "ended_at", "beat", "beat_at",
        ), self.rows_of_workers()  # fmt: skip


def fill_sqlite(path: Path, runs: int) -> Filled:
    """Into a store that was created and closed. Statistics are not gathered: the store does not either."""
    plan = _Plan(runs)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -400000")
        db.execute("BEGIN IMMEDIATE")
        for of, columns, rows in plan.tables():
            # Not the store's own table: its defaults would add columns.
            bare = table(of.name, *map(column, columns))
            db.executemany(str(insert(bare).compile(dialect=sqlite.dialect())), rows)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return plan.filled


def fill_postgres(url: str, runs: int) -> Filled:
    plan = _Plan(runs)
    with psycopg.connect(url, autocommit=True) as db:
        for of, columns, rows in plan.tables():
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(of.name), names)
            with db.cursor().copy(into) as copy:
                for row in rows:
                    copy.write_row(row)
        db.execute("VACUUM ANALYZE")
    return plan.filled
