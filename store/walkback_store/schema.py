"""The tables. Times are integers: microseconds since 1970, UTC. Small JSON is canonical text.

`events` is the truth. Every other table is a projection of it, or a cache beside it (`snapshots`, worker heartbeats).
Rows of a run are keyed by `run_no`, a small integer that never leaves the store; the outside world says `run_id`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

SCHEMA_VERSION = "0003"
"""The newest migration this code knows."""

STORE_LOG = 0
"""`run_no` of the store's own log: freezes, workers, batches, budgets, identities, roles, adoption, pruning."""

HELD_UP = "(waits_for >= 'freeze:' AND waits_for < 'freeze;') OR (waits_for >= 'identity:' AND waits_for < 'identity;')"
"""Runs that wait for something that is not theirs: for a freeze to be lifted, or for an identity's owner."""

metadata = MetaData()

# Byte order, so that prefix ranges and keyset pages use the index on PostgreSQL whatever the database's locale.
Name = Text().with_variant(Text(collation="C"), "postgresql")
Serial = BigInteger().with_variant(Integer(), "sqlite")  # SQLite only counts up by itself for INTEGER PRIMARY KEY


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index of some rows only. What PostgreSQL is told about it is added by `complete_for_postgresql`: to name its
    options here would load its dialect, and opening a store on SQLite would wait for that.
    """
    return Index(name, *columns, unique=unique, sqlite_where=text(where), info={"where": where})


def complete_for_postgresql() -> None:
    for table in metadata.tables.values():
        for index in table.indexes:
            if "where" in index.info:
                index.dialect_options["postgresql"]["where"] = text(index.info["where"])


def _flag(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=text("0"), default=0)


store = Table(
    "store",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("store_id", Name, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("home", Name, nullable=False),  # where it lives; elsewhere, it is a copy
    Column("written_by", Name, nullable=False),  # the walkback version whose migration ran last
    Column("feed_base", BigInteger, nullable=False),  # events up to here were committed in an earlier epoch
    Column("created_at", BigInteger, nullable=False),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_hash", LargeBinary, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("pos", Serial, primary_key=True, autoincrement=True),
    Column("run_no", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", Name, nullable=False),
    Column("actor", Name, nullable=False),
    Column("step", Name),
    Column("transition", LargeBinary),  # on the first event of a transition only
    Column("hash", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("run_no", "seq", name="uq_events_run_seq"),
    _partial(
        "uq_events_transition",
        "transition",
        unique=True,
        where="transition IS NOT NULL",
    ),
    _partial(
        "ix_events_people",
        "at",
        where="kind IN ('operator_action', 'approval_given', 'approval_refused')",
    ),
    sqlite_autoincrement=True,
)

runs = Table(
    "runs",
    metadata,
    Column("run_no", Serial, primary_key=True, autoincrement=True),
    Column("run_id", Name, nullable=False, unique=True),
    Column("agent", Name, nullable=False),
    Column("agent_version", Name, nullable=False),
    Column("status", Name, nullable=False),
    Column("status_seq", BigInteger, nullable=False),  # the event that last changed the status
    Column("why", Name),
    Column("why_detail", Name),
    Column("why_step", Name),
    Column("why_since", BigInteger),
    Column("resume_to", Name),  # what a paused run, or a decision taken back, returns to
    _flag("cancel_requested"),
    _flag("pause_requested"),
    Column("worker", Name),
    Column("fence", BigInteger, nullable=False, default=0),
    _flag("crashes"),
    Column("wake_at", BigInteger),
    Column("waits_for", Name),
    Column("decision", BigInteger),  # a person's, that a worker has yet to carry out
    Column("undoing", Name),  # the steps that a compensation under way is to undo
    Column("plan", Name),
    Column("tags", Name),
    Column("input_digest", Name, nullable=False),
    Column("position", Integer, nullable=False, default=0),
    Column("steps", Integer, nullable=False, default=0),
    Column("last_step", Name),
    Column("snapshots", Integer, nullable=False, default=0),
    Column("last_snapshot", Integer),
    _flag("awaiting_operations"),
    _flag("pending_operations"),
    _flag("unknown_operations"),
    Column("owner", Name),
    Column("error_class", Name),
    Column("fingerprint", Name),
    Column("parent", Name),
    Column("fork_step", Name),
    Column("fork_kind", Name),
    Column("superseded_by", Name),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_hash", LargeBinary, nullable=False),
    Index("ix_runs_created", "created_at", "run_no"),
    Index("ix_runs_status", "status", "created_at", "run_no"),
    Index("ix_runs_agent", "agent", "status", "created_at", "run_no"),
    _partial("ix_runs_worker", "worker", where="worker IS NOT NULL"),
    _partial(
        "ix_runs_claimable",
        "agent",
        "agent_version",
        "run_no",
        where="worker IS NULL AND status IN ('running', 'compensating')",
    ),
    _partial(
        "ix_runs_wake",
        "agent",
        "agent_version",
        "wake_at",
        # Only a waiting run has one, so queries need not say that it waits. (The more PostgreSQL is told, the fewer
        # runs it expects, until it reads them all and sorts them.)
        where="wake_at IS NOT NULL",
    ),
    _partial(
        "ix_runs_finished",
        "finished_at",
        where="finished_at IS NOT NULL",
    ),
    _partial(
        "ix_runs_fingerprint",
        "fingerprint",
        "created_at",
        "run_no",
        where="fingerprint IS NOT NULL",
    ),
    _partial("ix_runs_parent", "parent", where="parent IS NOT NULL"),
    _partial("ix_runs_held_up", "run_no", where=HELD_UP),
    sqlite_autoincrement=True,
)

run_tags = Table(
    "run_tags",
    metadata,
    Column("tag", Name, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("run_no", BigInteger, nullable=False),
    PrimaryKeyConstraint("tag", "created_at", "run_no"),
    Index("ix_run_tags_run", "run_no"),
    sqlite_with_rowid=False,
)

steps = Table(
    "steps",
    metadata,
    Column("run_no", BigInteger, nullable=False),
    Column("step", Name, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("kind", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("status", Name, nullable=False),
    Column("before", Integer),
    Column("after", Integer),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    PrimaryKeyConstraint("run_no", "step"),
    Index("ix_steps_order", "run_no", "first_seq"),
    sqlite_with_rowid=False,
)

operations = Table(
    "operations",
    metadata,
    Column("run_no", BigInteger, nullable=False),
    Column("step", Name, nullable=False),
    Column("tool", Name, nullable=False),
    Column("tool_version", Name, nullable=False),
    Column("effect", Name, nullable=False),
    Column("service", Name),
    Column("status", Name, nullable=False),
    Column("touched", BigInteger, nullable=False, default=0),  # the event that last changed this row
    Column("key", Name),
    Column("key_until", BigInteger),
    Column("args_hash", Name, nullable=False),
    Column("identity", Name),
    Column("description", Name),
    Column("stake", Name),
    Column("stake_value", Float),
    _flag("can_verify"),
    Column("compensate", Name),  # the tool that undoes this one
    Column("scope", Name),
    Column("compensates", Name),  # the step this operation undoes
    Column("compensated_by", Name),
    _flag("attempts"),
    _flag("attempting"),
    Column("intent_seq", BigInteger),
    Column("outcome_seq", BigInteger),
    Column("evidence", Name),
    Column("evidence_at", BigInteger),
    _flag("duplicate_suspected"),
    _flag("verify_requested"),
    Column("error_class", Name),
    Column("error", Name),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("refers_to", Name),  # "run_id#step" of the operation whose outcome this is; nothing was called here
    PrimaryKeyConstraint("run_no", "step"),
    # On SQLite the inbox is read from this index alone, which halves its time. PostgreSQL's has no texts: they may be
    # long, and an entry that does not fit is refused together with the row.
    Index(
        "ix_operations_attention",
        *("status", "tool", "tool_version", "error_class", "compensate", "key_until", "stake", "stake_value"),
        *("duplicate_suspected", "started_at", "ended_at"),
        sqlite_where=text("status = 'unknown' OR duplicate_suspected = 1"),
    ).ddl_if(dialect="sqlite"),
    Index(
        "ix_operations_attention", "status", "ended_at", info={"where": "status = 'unknown' OR duplicate_suspected = 1"}
    ).ddl_if(dialect="postgresql"),
    sqlite_with_rowid=False,
)

attempts = Table(
    "attempts",
    metadata,
    Column("run_no", BigInteger, nullable=False),
    Column("step", Name, nullable=False),
    Column("n", Integer, nullable=False),
    Column("status", Name, nullable=False),  # running, ended or abandoned
    Column("worker", Name, nullable=False),
    Column("deadline", BigInteger),
    Column("answer", Name),
    Column("error_class", Name),
    Column("error", Name),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    PrimaryKeyConstraint("run_no", "step", "n"),
    sqlite_with_rowid=False,
)

approvals = Table(
    "approvals",
    metadata,
    Column("run_no", BigInteger, nullable=False),
    Column("step", Name, nullable=False),
    Column("n", Integer, nullable=False),
    Column("status", Name, nullable=False),
    Column("touched", BigInteger, nullable=False, default=0),
    Column("digest", Name, nullable=False),
    Column("rule", Name, nullable=False),
    Column("role", Name),
    Column("asked_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("not_before", BigInteger),
    Column("decided_by", Name),
    Column("decided_at", BigInteger),
    Column("reason", Name),
    Column("edited_hash", Name),
    Column("edited_digest", Name),  # of what was agreed to, when that is not what was asked
    PrimaryKeyConstraint("run_no", "step", "n"),
    _partial(
        "ix_approvals_asked",
        "asked_at",
        where="status = 'asked'",
    ),
    sqlite_with_rowid=False,
)

decisions = Table(
    "decisions",
    metadata,
    Column("run_no", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # the event that recorded it
    Column("step", Name),
    Column("action", Name, nullable=False),
    Column("what", Name),  # of a compensation: its scope and steps
    Column("status", Name, nullable=False),
    Column("by", Name, nullable=False),
    Column("batch", BigInteger),
    Column("not_before", BigInteger, nullable=False),
    Column("decided_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("ended_by", Name),
    PrimaryKeyConstraint("run_no", "seq"),
    _partial(
        "ix_decisions_waiting",
        "not_before",
        where="status = 'waiting'",
    ),
    sqlite_with_rowid=False,
)

signals = Table(
    "signals",
    metadata,
    Column("run_no", BigInteger, nullable=False),
    Column("signal_id", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("consumed_by", Name),
    Column("received_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("run_no", "signal_id"),
    sqlite_with_rowid=False,
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("run_no", BigInteger, nullable=False),
    Column("n", Integer, nullable=False),
    Column("base_run", BigInteger),
    Column("base_n", Integer),
    Column("depth", Integer, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_no", "n"),
    sqlite_with_rowid=False,  # one tree to write instead of two
)

workers = Table(
    "workers",
    metadata,
    Column("worker", Name, primary_key=True),
    Column("status", Name, nullable=False),
    Column("host", Name, nullable=False),
    Column("boot_id", Name, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_started", Name, nullable=False),
    Column("agents", Name, nullable=False),  # {"name": ["versions"]}
    Column("lease", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("beat", BigInteger, nullable=False, default=0),  # liveness, not history: not folded
    Column("beat_at", BigInteger, nullable=False, default=0),
    _partial("ix_workers_alive", "worker", where="status = 'alive'"),
)

freezes = Table(
    "freezes",
    metadata,
    Column("freeze_no", BigInteger, primary_key=True, autoincrement=False),
    Column("scope", Name, nullable=False),
    Column("name", Name),
    Column("by", Name, nullable=False),
    Column("reason", Name, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("lifted_at", BigInteger),
    Column("lifted_by", Name),
    Column("until", BigInteger),  # a breaker's: from then on, one call may probe; a person's has none
    Column("probe", Name),  # "run_id#step" of the call that may pass
    _partial(
        "ix_freezes_active",
        "freeze_no",
        where="lifted_at IS NULL",
    ),
)

batches = Table(
    "batches",
    metadata,
    Column("batch_no", BigInteger, primary_key=True, autoincrement=False),
    Column("action", Name, nullable=False),
    Column("status", Name, nullable=False),
    Column("total", Integer, nullable=False),
    Column("released", Integer, nullable=False, default=0),
    Column("spacing", BigInteger, nullable=False, default=0),
    Column("by", Name, nullable=False),
    Column("reason", Name, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("ended_why", Name),
)

batch_members = Table(
    "batch_members",
    metadata,
    Column("batch_no", BigInteger, nullable=False),
    Column("n", Integer, nullable=False),
    Column("run_id", Name, nullable=False),
    Column("step", Name, nullable=False),
    Column("released_at", BigInteger),
    PrimaryKeyConstraint("batch_no", "n"),
    sqlite_with_rowid=False,
)

breakers = Table(
    "breakers",
    metadata,
    Column("service", Name, primary_key=True),
    Column("failures", Integer, nullable=False, server_default=text("0"), default=0),  # since it last answered
    Column("trips", Integer, nullable=False, server_default=text("0"), default=0),  # since it last closed
    Column("failed_at", BigInteger),
    Column("freeze_no", BigInteger),  # while it is open
)

buckets = Table(
    "buckets",
    metadata,
    Column("tool", Name, primary_key=True),
    Column("tokens", Float, nullable=False),
    Column("at", BigInteger, nullable=False),  # when there were that many
)

identities = Table(
    "identities",
    metadata,
    Column("identity", Name, primary_key=True),
    Column("generation", Integer, nullable=False),  # how many operations have owned it
    Column("run_id", Name, nullable=False),
    Column("step", Name, nullable=False),
    Column("tool", Name, nullable=False),
    Column("args_hash", Name, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("outcome", Name),  # of the owner's operation, once that is pruned
    Index("ix_identities_run", "run_id"),
)

roles = Table(
    "roles",
    metadata,
    Column("person", Name, primary_key=True),  # as an actor: "operator:ann"; "operator:*" is everybody else
    Column("role", Name, nullable=False),
    Column("by", Name, nullable=False),
    Column("at", BigInteger, nullable=False),
)

tombstones = Table(
    "tombstones",
    metadata,
    Column("run_id", Name, primary_key=True),
    Column("run_no", BigInteger, nullable=False, unique=True),
    Column("agent", Name, nullable=False),
    Column("status", Name, nullable=False),
    Column("finished_at", BigInteger),
    Column("pruned_at", BigInteger, nullable=False),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_hash", LargeBinary, nullable=False),
)

PER_RUN = (steps, operations, attempts, approvals, decisions, signals)
"""Projections keyed by run, beside `runs` itself."""

STORE_WIDE = (workers, freezes, batches, batch_members, breakers, buckets, identities, roles)
"""Projections of the store's own log."""

NOT_FOLDED = frozenset({("workers", "beat"), ("workers", "beat_at")})
"""Columns that carry liveness rather than history; `fsck` leaves them out."""
