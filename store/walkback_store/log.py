"""One event: its canonical bytes, its place in the hash chain, and what it does to the projections.

An event's body says two things: `data`, the facts, and `set`, the columns it changed, by table and row. Folding a log
is therefore the same few lines for the live store and for `fsck`, and a projection can hold nothing that no event said.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

import orjson
from sqlalchemy import Table
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from walkback_store import schema
from walkback_store.errors import CorruptData
from walkback_store.values import encode
from walkback_store.words import Kind

GENESIS = bytes(32)
"""What the first event of every log builds on."""

Row = dict[str, Any]
Changes = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(slots=True)
class Draft:
    """An event that the state machine wants appended."""

    kind: Kind
    data: Mapping[str, Any]
    set: Changes
    step: str | None = None


@dataclass(slots=True)
class Event:
    """An event as stored."""

    run_id: str
    seq: int
    at: int
    kind: str
    actor: str
    step: str | None
    hash: bytes
    body: Mapping[str, Any] | None
    """None when pruned."""
    pos: int = 0

    @property
    def data(self) -> Mapping[str, Any]:
        return self.body["data"] if self.body else {}


def chain_hash(
    previous: bytes,
    run_id: str,
    seq: int,
    at: int,
    kind: str,
    actor: str,
    step: str | None,
    transition: bytes | None,
    digest: bytes,
) -> bytes:
    """The hash of an event over the one before it, its header and the digest of its body.

    The digest, not the body: so a pruned body leaves the chain provable.
    """
    header = orjson.dumps([run_id, seq, at, kind, actor, step, None if transition is None else transition.hex()])
    return sha256(previous + digest + header).digest()


# --- folding -----------------------------------------------------------------------------------------------------

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        schema.runs,
        schema.steps,
        schema.operations,
        schema.attempts,
        schema.approvals,
        schema.decisions,
        schema.signals,
        schema.workers,
        schema.freezes,
        schema.batches,
        schema.batch_members,
        schema.breakers,
        schema.buckets,
        schema.identities,
        schema.roles,
    )
}
COLUMNS: dict[str, tuple[str, ...]] = {name: tuple(c.name for c in t.columns) for name, t in TABLES.items()}
_COLUMN_SETS = {name: frozenset(columns) for name, columns in COLUMNS.items()}
_PER_RUN = frozenset(t.name for t in schema.PER_RUN)
_TOUCHED = frozenset({"operations", "approvals"})
_INTEGER_KEYS: frozenset[tuple[str, str]] = frozenset(
    {("attempts", "n"), ("approvals", "n"), ("decisions", "seq")}
    | {("freezes", "freeze_no"), ("batches", "batch_no"), ("batch_members", "batch_no"), ("batch_members", "n")}
)
KEYS: dict[str, tuple[str, ...]] = {
    name: tuple(c.name for c in t.primary_key.columns if not (name in _PER_RUN and c.name == "run_no"))
    for name, t in TABLES.items()
}
"""The columns that name a row inside its log; `run_no` is the log itself."""
KEYS["runs"] = ()

DEFAULTS: dict[str, Row] = {
    name: {c.name: (c.default.arg if isinstance(c.default, ScalarElementColumnDefault) else None) for c in t.columns}
    for name, t in TABLES.items()
}


def row_key(table: str, *parts: object) -> str:
    """The name of a row inside an event's `set`, such as `6/1` for the first attempt of step 6."""
    return "/".join(str(part) for part in parts)


@functools.lru_cache(maxsize=4096)
def parse_key(table: str, key: str) -> tuple[Any, ...]:
    names = KEYS[table]
    if not names:
        return ()
    if len(names) == 1 and (table, names[0]) not in _INTEGER_KEYS:
        return (key,)
    parts = [key] if len(names) == 1 else key.rsplit("/", len(names) - 1)
    if len(parts) != len(names):
        raise CorruptData(f"an event names a row of {table} as {key!r}, which is not a key of that table")
    return tuple(int(p) if (table, n) in _INTEGER_KEYS else p for n, p in zip(names, parts, strict=True))


class Rows(Protocol):
    """Where folded rows live: the unit of work when writing, plain dicts in fsck."""

    def change(self, table: str, run_no: int, key: str, changes: Mapping[str, Any]) -> None: ...


def fold(rows: Rows, run_no: int, seq: int, at: int, head_hash: bytes, changes: Changes) -> None:
    """Apply one event to the projections."""
    for table, keyed in changes.items():
        known = _COLUMN_SETS.get(table)
        if known is None:
            raise CorruptData(f"an event changes {table!r}, which is not a projection")
        touches = table in _TOUCHED
        for key, columns in keyed.items():
            if not known.issuperset(columns):
                raise CorruptData(f"an event sets unknown columns of {table}: {sorted(set(columns) - known)}")
            if touches:
                rows.change(table, run_no, key, {**columns, "touched": seq})
            elif table != "runs":
                rows.change(table, run_no, key, columns)
    if run_no != schema.STORE_LOG:
        of_run = dict(changes["runs"].get("", {})) if "runs" in changes else {}
        if "status" in of_run:
            of_run["status_seq"] = seq
        of_run["updated_at"] = at
        of_run["head_seq"] = seq
        of_run["head_hash"] = head_hash
        rows.change("runs", run_no, "", of_run)


def new_row(table: str, run_no: int, key: str) -> Row:
    row = DEFAULTS[table].copy()
    if table == "runs" or table in _PER_RUN:
        row["run_no"] = run_no
    for name, value in zip(KEYS[table], parse_key(table, key), strict=True):
        row[name] = value
    return row


def encode_body(data: Mapping[str, Any], changes: Changes) -> bytes:
    """The canonical bytes of an event's body; what cannot be stored is refused with its path."""
    facts = encode(data)
    try:
        columns = orjson.dumps(changes, option=orjson.OPT_SORT_KEYS) if _is_simple(changes) else encode(changes)
    except TypeError:
        columns = encode(changes)
    return b'{"data":%b,"set":%b}' % (facts, columns)


def _is_simple(changes: Changes) -> bool:
    """Whether orjson alone writes it right, or raises: it has no number that JSON lacks, and no row called `$`."""
    for keyed in changes.values():
        if "$" in keyed:
            return False
        for columns in keyed.values():
            if float in map(type, columns.values()):
                return False
    return True


def storable(changes: Changes) -> Changes:
    """The same changes in plain values: an enum as its text, and no NUL, which PostgreSQL refuses in text. The exact
    bytes are in the event's data."""
    changed: dict[str, dict[str, Mapping[str, Any]]] = {}
    for table, keyed in changes.items():
        for key, columns in keyed.items():
            for value in columns.values():
                kind = type(value)
                if kind is int or value is None or (kind is str and "\x00" not in value):
                    continue
                if kind is str or isinstance(value, str):
                    changed.setdefault(table, {**keyed})[key] = {c: _plain(v) for c, v in columns.items()}
                    break
    return {**changes, **changed} if changed else changes


def _plain(value: Any) -> Any:
    return str.__str__(value).replace("\x00", "\u2400") if isinstance(value, str) else value
