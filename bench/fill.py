"""A store with very many runs, written past the state machine: straight into the projections, without any events.

Good for measuring queries and nothing else (`fsck` would report every row). Ages, agents and statuses are mixed over
the whole time; most runs have succeeded, some thousands wait for a person.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

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
TOOLS = ("charge_card", "create_ticket", "issue_refund", "order_stock", "rotate_key", "send_mail", "ship", "transfer")
ERRORS = ("ConnectTimeout", "ReadTimeout", "ConnectionReset", "BadGateway", None)
WHYS = ("unknown",) * 16 + ("diverged", "duplicate_suspected", "compensation_failed", "budget_spent")
PARKED = 5_000
ASKED = 2_000
NO_WORKER = 200
WORKER_LOST = 100
HELD = 500
RARE = 300

RUN_COLUMNS = (
    "run_no", "run_id", "agent", "agent_version", "status", "status_seq", "why", "why_step", "why_since", "worker",
    "fence", "tags", "input_digest", "position", "steps", "last_step", "snapshots", "last_snapshot",
    "created_at", "updated_at", "finished_at", "head_seq", "head_hash",
)  # fmt: skip
OPERATION_COLUMNS = (
    "run_no", "step", "tool", "tool_version", "effect", "status", "touched", "args_hash", "stake", "stake_value",
    "compensate", "attempts", "duplicate_suspected", "error_class", "started_at", "ended_at",
)  # fmt: skip
APPROVAL_COLUMNS = (
    "run_no", "step", "n", "status", "touched", "digest", "rule", "asked_at", "expires_at",
)  # fmt: skip
WORKER_COLUMNS = (
    "worker", "status", "host", "boot_id", "pid", "process_started", "agents", "lease", "started_at", "beat", "beat_at",
)  # fmt: skip
TAG_COLUMNS = ("tag", "created_at", "run_no")

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
        wanted = {
            "parked": PARKED, "asked": ASKED, "no_worker": NO_WORKER, "worker_lost": WORKER_LOST, "held": HELD,
            "rare": RARE,
        }  # fmt: skip
        chosen = iter(pick.sample(range(1, runs + 1), sum(wanted.values())))
        self.special = {next(chosen): kind for kind, n in wanted.items() for _ in range(n)}

    def tags(self, number: int) -> list[str]:
        found = []
        if number % 2:
            found.append("production")
        if number % 100 == 0:
            found.append("nightly")
        if number % 5_000 == 0:
            found.append("incident-42")
        return found

    def run_rows(self) -> Iterator[Values]:
        pick = random.Random(SEED)
        head = bytes(32)
        digest = "0" * 64
        rest = ("succeeded", "failed", "cancelled", "compensated", "paused")
        shares = (0.94, 0.04, 0.01, 0.009, 0.001)
        for number in range(1, self.runs + 1):
            kind = self.special.get(number)
            agent = RARE_AGENT if kind == "rare" else pick.choice(AGENTS)
            created = self.filled.created(number)
            ended: int | None = created + pick.randrange(1, 600) * SECOND
            why = why_step = why_since = worker = None
            if kind is None or kind == "rare":
                (status,) = pick.choices(rest, shares)
                if status == "paused":
                    ended = None
            else:
                ended = None
                status = {"parked": "needs_operator", "asked": "waiting"}.get(kind, "running")
                if kind == "parked":
                    why, why_step, why_since = pick.choice(WHYS), "3", created + 30 * SECOND
                elif kind in {"worker_lost", "held"}:
                    worker = "lost" if kind == "worker_lost" else "alive"
            tags = self.tags(number)
            yield (
                number, run_id(number), agent, "1", status, 9, why, why_step, why_since, worker, 1,
                "[" + ",".join(f'"{tag}"' for tag in tags) + "]" if tags else None,
                digest, 4, 4, "3", 5, 4, created, ended or created + 30 * SECOND, ended, 12, head,
            )  # fmt: skip

    def tag_rows(self) -> list[Values]:
        return sorted(
            (tag, self.filled.created(number), number)
            for number in range(1, self.runs + 1)
            for tag in self.tags(number)
        )

    def operation_rows(self) -> Iterator[Values]:
        pick = random.Random(SEED)
        for number, kind in sorted(self.special.items()):
            if kind not in {"parked", "asked", "held"}:
                continue
            at = self.filled.created(number) + 20 * SECOND
            status = {"parked": "unknown", "asked": "awaiting_approval", "held": "succeeded"}[kind]
            ended = None if kind == "asked" else at + 10 * SECOND
            suspected = int(kind == "held" and pick.random() < 0.1)
            error = pick.choice(ERRORS) if kind == "parked" else None
            compensate = "undo" if pick.random() < 0.5 else None
            yield (
                number, "3", pick.choice(TOOLS), "1", "write", status, 9, "0" * 64, "EUR 12.50", 12.5,
                compensate, int(kind != "asked"), suspected, error, at, ended,
            )  # fmt: skip

    def approval_rows(self) -> Iterator[Values]:
        for number, kind in sorted(self.special.items()):
            if kind == "asked":
                at = self.filled.created(number) + 20 * SECOND
                expires = self.filled.now + number % 86_400 * SECOND
                yield number, "3", 1, "asked", 9, "0" * 64, "over_limit", at, expires

    def worker_rows(self) -> Iterator[Values]:
        for name in ("alive", "lost"):
            yield name, name, "host", "boot", 1, "1", "{}", 5 * SECOND, START, 1, self.filled.now

    def tables(self) -> Iterator[tuple[str, tuple[str, ...], Iterator[Values]]]:
        yield "runs", RUN_COLUMNS, self.run_rows()
        yield "run_tags", TAG_COLUMNS, iter(self.tag_rows())
        yield "operations", OPERATION_COLUMNS, self.operation_rows()
        yield "approvals", APPROVAL_COLUMNS, self.approval_rows()
        yield "workers", WORKER_COLUMNS, self.worker_rows()


def fill_sqlite(path: Path, runs: int) -> Filled:
    """Into a store that was created and closed. Statistics are not gathered: the store does not either."""
    plan = _Plan(runs)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -400000")
        db.execute("BEGIN IMMEDIATE")
        for table, columns, rows in plan.tables():
            marks = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return plan.filled


def fill_postgres(url: str, runs: int) -> Filled:
    plan = _Plan(runs)
    with psycopg.connect(url, autocommit=True) as db:
        for table, columns, rows in plan.tables():
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names)
            with db.cursor().copy(into) as copy:
                for row in rows:
                    copy.write_row(row)
        db.execute("VACUUM ANALYZE")
    return plan.filled
