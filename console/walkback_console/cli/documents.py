"""What `--json` prints: keys that stay as they are whatever becomes of the tables. docs/cli.md lists them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from walkback_console.plain_words import SECOND, iso
from walkback_store.values import encode

if TYPE_CHECKING:
    from walkback_store.log import Event, Row

Document = dict[str, Any]


def value(stored: object) -> Any:
    """A stored value as JSON; what JSON lacks stays tagged, such as {"$": "decimal", "v": "1.50"}."""
    return json.loads(encode(stored))


def run(row: Row) -> Document:
    return {
        "id": row["run_id"],
        "agent": row["agent"],
        "version": row["agent_version"],
        "status": row["status"],
        "why": row["why"],
        "why_detail": row["why_detail"],
        "why_step": row["why_step"],
        "why_since": iso(row["why_since"]),
        "step": row["last_step"],
        "step_count": row["steps"],
        "plan": json.loads(row["plan"]) if row["plan"] else None,
        "waits_for": row["waits_for"],
        "wake_at": iso(row["wake_at"]),
        "worker": row["worker"],
        "owner": row["owner"],
        "tags": json.loads(row["tags"]) if row["tags"] else [],
        "error_class": row["error_class"],
        "cancel_requested": bool(row["cancel_requested"]),
        "pause_requested": bool(row["pause_requested"]),
        "awaiting_operations": row["awaiting_operations"],
        "pending_operations": row["pending_operations"],
        "unknown_operations": row["unknown_operations"],
        "parent": row["parent"],
        "created_at": iso(row["created_at"]),
        "updated_at": iso(row["updated_at"]),
        "finished_at": iso(row["finished_at"]),
        "events": row["head_seq"],
    }


def step(row: Row) -> Document:
    return {
        "step": row["step"],
        "kind": row["kind"],
        "name": row["name"],
        "status": row["status"],
        "before": row["before"],
        "after": row["after"],
        "started_at": iso(row["started_at"]),
        "ended_at": iso(row["ended_at"]),
    }


def operation(row: Row) -> Document:
    """Of a row of the operations table, or the operation's half of a timeline row without its prefix."""
    return {
        "step": row["step"],
        "tool": row["tool"],
        "version": row["tool_version"],
        "effect": row["effect"],
        "status": row["status"],
        "description": row["description"],
        "stake": row["stake"],
        "key": row["key"],
        "key_until": iso(row["key_until"]),
        "can_verify": bool(row["can_verify"]),
        "undone_by": row["compensate"],
        "undoes": row["compensates"],
        "undone_in": row["compensated_by"],
        "refers_to": row["refers_to"],
        "attempts": row["attempts"],
        "evidence": row["evidence"],
        "evidence_at": iso(row["evidence_at"]),
        "duplicate_suspected": bool(row["duplicate_suspected"]),
        "error_class": row["error_class"],
        "error": row["error"],
        "started_at": iso(row["started_at"]),
        "ended_at": iso(row["ended_at"]),
    }


def attempt(row: Row) -> Document:
    return {
        "n": row["n"],
        "status": row["status"],
        "worker": row["worker"],
        "answer": row["answer"],
        "error_class": row["error_class"],
        "error": row["error"],
        "started_at": iso(row["started_at"]),
        "ended_at": iso(row["ended_at"]),
    }


def approval(row: Row) -> Document:
    return {
        "n": row["n"],
        "status": row["status"],
        "rule": row["rule"],
        "role": row["role"],
        "digest": row["digest"],
        "asked_at": iso(row["asked_at"]),
        "expires_at": iso(row["expires_at"]),
        "decided_by": row["decided_by"],
        "decided_at": iso(row["decided_at"]),
        "reason": row["reason"],
    }


def late(found: Event) -> Document:
    """An answer that came after its attempt had been given up."""
    return {
        "attempt": found.data.get("attempt"),
        "answer": found.data.get("answer"),
        "output": value(found.data.get("output")),
        "worker": found.data.get("worker"),
        "at": iso(found.at),
    }


def event(found: Event) -> Document:
    return {
        "run": found.run_id,
        "seq": found.seq,
        "at": iso(found.at),
        "kind": found.kind,
        "actor": found.actor,
        "step": found.step,
        "hash": found.hash.hex(),
        "pruned": found.body is None,
        "data": value(found.data),
    }


def inbox_item(row: Row) -> Document:
    return {
        "kind": row["kind"],
        "why": row["why"],
        "count": row["n"],
        "run": row["run_id"],
        "step": row["step"],
        "agent": row["agent"],
        "agent_version": row["agent_version"],
        "tool": row["tool"],
        "tool_version": row["tool_version"],
        "error_class": row["error_class"],
        "description": row["description"],
        "detail": row["detail"],
        "stake": row["stake"],
        "stake_sum": row["stake_value"],
        "mixed_stakes": bool(row["mixed_stakes"]),
        "owner": row["owner"],
        "since": iso(row["since"]),
        "until": iso(row["until"]),
        "deadline": iso(row["deadline"]),
    }


def freeze(row: Row) -> Document:
    return {
        "number": row["freeze_no"],
        "scope": row["scope"],
        "name": row["name"],
        "by": row["by"],
        "reason": row["reason"],
        "since": iso(row["at"]),
        "until": iso(row["until"]),
        "probe": row["probe"],
    }


def worker(row: Row, held: int) -> Document:
    return {
        "worker": row["worker"],
        "status": row["status"],
        "host": row["host"],
        "pid": row["pid"],
        "agents": row["agents"],
        "held": held,
        "lease": row["lease"] / SECOND,
        "started_at": iso(row["started_at"]),
        "beat_at": iso(row["beat_at"] or None),
        "ended_at": iso(row["ended_at"]),
    }


def batch(row: Row) -> Document:
    return {
        "number": row["batch_no"],
        "action": row["action"],
        "status": row["status"],
        "total": row["total"],
        "released": row["released"],
        "by": row["by"],
        "reason": row["reason"],
        "since": iso(row["at"]),
    }


def decision(row: Row) -> Document:
    """What a person decided and no worker has carried out yet."""
    return {
        "run": row["run_id"],
        "step": row["step"],
        "decision": row["seq"],
        "action": row["action"],
        "what": json.loads(row["what"]) if row["what"] else None,
        "by": row["by"],
        "decided_at": iso(row["decided_at"]),
        "not_before": iso(row["not_before"]),
    }


def role(row: Row) -> Document:
    return {"person": row["person"], "role": row["role"], "by": row["by"], "since": iso(row["at"])}


def batch_member(row: Row) -> Document:
    return {"n": row["n"], "run": row["run_id"], "step": row["step"], "released_at": iso(row["released_at"])}
