"""One transaction's view of the store: rows read under lock, changes gathered, all of it written at once at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import orjson

from walkback_store import schema, snapshots
from walkback_store.backends.base import Backend, Query
from walkback_store.errors import NotAdopted, PreconditionFailed
from walkback_store.frames import pack_body
from walkback_store.log import (
    COLUMNS,
    KEYS,
    TABLES,
    Draft,
    Row,
    chain_hash,
    encode_body,
    fold,
    new_row,
    parse_key,
    storable,
)
from walkback_store.machine.base import OPERATOR, STORE, Load, Transition
from walkback_store.machine.roles import role_loads
from walkback_store.words import OperationStatus, Role

EVENT_COLUMNS = ("run_no", "seq", "at", "kind", "actor", "step", "transition", "hash", "body")
SNAPSHOT_COLUMNS = tuple(c.name for c in schema.snapshots.columns)
STORE_COLUMNS = tuple(c.name for c in schema.store.columns)
TOMBSTONE_COLUMNS = tuple(c.name for c in schema.tombstones.columns)
FREEZE_COLUMNS = COLUMNS["freezes"]

BIRTH = {
    "runs": "run_id", "steps": "first_seq", "operations": "tool", "attempts": "worker", "approvals": "digest",
    "decisions": "action", "signals": "name", "workers": "host", "freezes": "scope", "batches": "total",
    "batch_members": "run_id", "breakers": "failed_at", "buckets": "tokens", "identities": "generation",
    "roles": "role",
}  # fmt: skip
"""The column whose presence in a change says that the row is new, when the row was not looked at."""

COPY = (
    "this store is a copy, or was restored from a backup: it can be read, but nothing runs in it. If the original is "
    "gone, adopt this one; if both ran, effects would happen twice."
)

SAID = 32
"""How much of a snapshot's digest an event repeats: 128 bits, more than anybody can find another state for."""

Place = tuple[str, int, str]


class Entry:
    """One row in this transaction."""

    __slots__ = ("changes", "new", "read", "row")

    def __init__(self, row: Row | None, read: bool) -> None:
        self.row = row
        """As it will be; None when it does not exist, and for one that was changed without being read."""
        self.read = read
        self.new = False
        self.changes: Row = {}


LOCKED = frozenset({"workers", "identities"})
"""Rows of the store's own log that others go by, or change, without its lock: a heartbeat; the owner of an identity."""
KEPT = frozenset({"runs", "operations"})
KEPT_ROWS = 4096


class Known:
    """Rows as this process left them. Worth something only while nobody else has written, which the backend can tell.

    A transaction changes them in place, so they are forgotten when it fails.
    """

    __slots__ = ("freezes", "rows", "run_nos")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.run_nos: dict[str, int] = {}
        self.rows: dict[Place, Row] = {}
        self.freezes: list[Row] | None = None


class Site:
    """Which store the writing connection leads to: asked once for each connection, not for each transaction."""

    __slots__ = ("connection", "epoch", "home")

    def __init__(self) -> None:
        self.connection = 0
        self.home = ""
        self.epoch: int | None = None


class Work:
    """Implements the state machine's `View` and the fold's `Rows`."""

    def __init__(
        self,
        backend: Backend,
        cache: snapshots.SnapshotCache,
        known: Known,
        clock: Query | None,
        now: int,
        site: Site,
    ) -> None:
        self._known = known
        self._clock = clock
        self._backend = backend
        self._cache = cache
        self._site = site
        self.now = now
        self._runs: dict[str, int | None] = {}
        self._entries: dict[Place, Entry] = {}
        self._store: Row | None = None
        self._store_changed: Row = {}
        self._freezes = known.freezes
        self._events: list[tuple[Any, ...]] = []
        self._snapshots: list[Row] = []
        self._tags: list[tuple[Any, ...]] = []
        self._drafted: list[Row] = []
        self._run_no: int | None = None
        self._given = 0

    # --- reading: the state machine's view ---------------------------------------------------------------------

    def prefetch(self, transitions: Sequence[Transition]) -> None:
        """Everything the transitions said they look at, in one round trip; runs locked in id order."""
        st = self._backend.statements
        wanted: set[str] = set()
        loads: list[Load] = []
        freezes = dispatches = store = False
        for t in transitions:
            freezes, dispatches = freezes or t.freezes, dispatches or t.dispatches
            if (log := t.log) is None:
                store = True
            elif log not in wanted and not self._knows(log):
                wanted.add(log)
            loads.extend(t.loads())
            if t.by == OPERATOR:
                loads.extend(role_loads(t.actor))
        run_ids = sorted(wanted)
        queries: list[Query] = []
        guard = self._backend.guard_dispatch(exclusive=freezes) if freezes or dispatches else None
        if guard:
            queries.append(guard)
        lock = self._backend.locks_rows
        if run_ids:
            by_id = st.by_key(schema.runs, ("run_id",), lock)
            queries.extend((by_id, (run_id,)) for run_id in run_ids)
        wants_freezes = (freezes or dispatches) and self._freezes is None
        if wants_freezes:
            queries.append((self._backend.statements.active_freezes(), ()))
        wants_store = store and self._store is None
        if wants_store:
            queries.append((st.by_key(schema.store, ("id",), lock), (1,)))
        clock, self._clock = self._clock, None
        if clock is not None:
            queries.append(clock)
        places, more = self._to_load(loads)
        answers = self._backend.fetch([*queries, *more])
        rest = answers[bool(guard) :]
        for run_id in run_ids:
            self._got_run(run_id, rest.pop(0))
        if wants_freezes:
            self._freezes = [dict(zip(FREEZE_COLUMNS, row, strict=True)) for row in rest.pop(0)]
        if wants_store:
            self._store = dict(zip(STORE_COLUMNS, rest.pop(0)[0], strict=True))
        if clock is not None:
            self.now = int(rest.pop(0)[0][0])
        for (table, run_id, key), answer in zip(places, rest, strict=True):
            run_no = schema.STORE_LOG if run_id == STORE else self._number(run_id)
            if run_no is not None:
                row = dict(zip(COLUMNS[table], answer[0], strict=True)) if answer else None
                self._entries.setdefault((table, run_no, key), Entry(row, True))

    def read_clock(self) -> None:
        """For plans that look at the time before they know their transitions."""
        clock, self._clock = self._clock, None
        if clock is not None:
            self.now = int(self._backend.fetch([clock])[0][0][0])

    def _knows(self, run_id: str) -> bool:
        """Whether the run's row is at hand, from this transaction or from one before."""
        if run_id in self._runs:
            return True
        run_no = self._known.run_nos.get(run_id)
        if run_no is None:
            return False
        self._runs[run_id] = run_no
        return self._entry(("runs", run_no, "")) is not None

    def _entry(self, place: Place) -> Entry | None:
        entry = self._entries.get(place)
        if entry is None and (row := self._known.rows.get(place)) is not None:
            entry = self._entries[place] = Entry(row, True)
        return entry

    def _to_load(self, loads: Sequence[Load]) -> tuple[list[Load], list[Query]]:
        st = self._backend.statements
        places = []
        queries: list[Query] = []
        for load in dict.fromkeys(loads):
            table, run_id, key = load
            run_no = schema.STORE_LOG if run_id == STORE else self._runs.get(run_id)
            if run_no is not None and self._entry((table, run_no, key)) is not None:
                continue
            places.append(load)
            values = parse_key(table, key)
            if run_no is not None and run_no != schema.STORE_LOG:
                queries.append(self._query(table, run_no, key))
            elif run_id == STORE:
                lock = self._backend.locks_rows and table in LOCKED
                queries.append((st.by_key(TABLES[table], KEYS[table], lock), values))
            else:
                queries.append((st.by_run_id(TABLES[table], KEYS[table]), (run_id, *values)))
        return places, queries

    def _number(self, run_id: str) -> int | None:
        if not self._knows(run_id):  # only looked at: what is written to was locked before anything was decided
            sql = self._backend.statements.by_key(schema.runs, ("run_id",))
            self._got_run(run_id, self._backend.fetch([(sql, (run_id,))])[0])
        return self._runs[run_id]

    def _got_run(self, run_id: str, answer: Sequence[tuple[Any, ...]]) -> None:
        if not answer:
            self._runs[run_id] = None
            return
        row = dict(zip(COLUMNS["runs"], answer[0], strict=True))
        row["head_hash"] = bytes(row["head_hash"])
        self._runs[run_id] = row["run_no"]
        self._entries["runs", row["run_no"], ""] = Entry(row, True)

    def _query(self, table: str, run_no: int, key: str) -> Query:
        t = TABLES[table]
        keys = KEYS[table]
        values = parse_key(table, key)
        if t in schema.PER_RUN:
            return self._backend.statements.by_key(t, ("run_no", *keys)), (run_no, *values)
        return self._backend.statements.by_key(t, keys), values

    @property
    def store(self) -> Row:
        if self._store is None:
            sql = self._backend.statements.by_key(schema.store, ("id",))
            self._store = dict(zip(STORE_COLUMNS, self._backend.fetch([(sql, (1,))])[0][0], strict=True))
        row = self._store
        if "home_mismatch" not in row:
            row["home_mismatch"] = None if row["home"] == self._here().home else COPY
        return row

    @property
    def epoch(self) -> int:
        site = self._here()
        if site.epoch is None:
            if self.store["home_mismatch"]:
                raise NotAdopted(COPY)
            site.epoch = int(self.store["epoch"])
        return site.epoch

    def _here(self) -> Site:
        site = self._site
        if site.connection != self._backend.connections:
            site.home, site.epoch = self._backend.writer_home(), None
            site.connection = self._backend.connections
        return site

    def run(self, run_id: str) -> Row | None:
        run_no = self._number(run_id)
        return None if run_no is None else self._entries["runs", run_no, ""].row

    def row(self, table: str, run_id: str, key: str) -> Row | None:
        run_no = schema.STORE_LOG if run_id == STORE else self._number(run_id)
        if run_no is None:
            return None
        place = (table, run_no, key)
        entry = self._entry(place)
        if entry is None or not entry.read:
            answer = self._backend.fetch([self._query(*place)])[0]
            row = dict(zip(COLUMNS[table], answer[0], strict=True)) if answer else None
            if entry is None:
                entry = self._entries[place] = Entry(row, True)
            elif row is not None:  # changed before it was read: the change is newer
                entry.row, entry.read = {**row, **entry.changes}, True
        return entry.row

    def freezes(self) -> list[Row]:
        if self._freezes is None:
            answer = self._backend.fetch([(self._backend.statements.active_freezes(), ())])[0]
            self._freezes = [dict(zip(FREEZE_COLUMNS, row, strict=True)) for row in answer]
        return self._freezes

    def awaiting(self, run_id: str) -> list[str]:
        run_no, waits = self._number(run_id), OperationStatus.AWAITING_APPROVAL.value
        sql = self._backend.statements.by_key(schema.operations, ("run_no", "status"))
        for values in self._backend.fetch([(sql, (run_no, waits))])[0]:
            row = dict(zip(COLUMNS["operations"], values, strict=True))
            place = ("operations", row["run_no"], row["step"])
            entry = self._entry(place) or self._entries.setdefault(place, Entry(row, True))
            if not entry.read:
                entry.row, entry.read = {**row, **entry.changes}, True
        rows = [
            e.row for (table, no, _), e in self._entries.items() if table == "operations" and no == run_no and e.row
        ]
        return sorted(row["step"] for row in rows if row.get("status") == waits)

    def has_signal(self, run_id: str, name: str) -> bool:
        run_no = self._number(run_id)
        sql = self._backend.statements.by_key(schema.signals, ("run_no", "name"))
        for values in self._backend.fetch([(sql, (run_no, name))])[0]:
            row = dict(zip(COLUMNS["signals"], values, strict=True))
            self._entries.setdefault(("signals", row["run_no"], row["signal_id"]), Entry(row, True))
        rows = [e.row for (table, no, _), e in self._entries.items() if table == "signals" and no == run_no and e.row]
        return any(row["name"] == name and row["consumed_by"] is None for row in rows)

    def decided_in(self, run_id: str, batch: int) -> list[Row]:
        run_no = self._number(run_id)
        sql = self._backend.statements.by_key(schema.decisions, ("run_no", "batch"))
        for values in self._backend.fetch([(sql, (run_no, batch))])[0]:
            row = dict(zip(COLUMNS["decisions"], values, strict=True))
            self._entries.setdefault(("decisions", row["run_no"], str(row["seq"])), Entry(row, True))
        rows = [e.row for (table, no, _), e in self._entries.items() if table == "decisions" and no == run_no and e.row]
        return sorted((row for row in rows if row["batch"] == batch), key=lambda row: int(row["seq"]))

    def admins(self) -> list[str]:
        sql = self._backend.statements.by_key(schema.roles, ("role",))
        for values in self._backend.fetch([(sql, (Role.ADMIN.value,))])[0]:
            row = dict(zip(COLUMNS["roles"], values, strict=True))
            self._entries.setdefault(("roles", schema.STORE_LOG, row["person"]), Entry(row, True))
        rows = [e.row for (table, _, _), e in self._entries.items() if table == "roles" and e.row]
        return sorted(row["person"] for row in rows if row["role"] == Role.ADMIN)

    def tombstone(self, run_id: str) -> Row | None:
        sql = self._backend.statements.by_key(schema.tombstones, ("run_id",))
        answer = self._backend.fetch([(sql, (run_id,))])[0]
        return dict(zip(TOMBSTONE_COLUMNS, answer[0], strict=True)) if answer else None

    def changed_by(self, run_id: str, seq: int) -> str:
        run_no = self._number(run_id)
        sql = self._backend.statements.by_key(schema.events, ("run_no", "seq"))
        answer = self._backend.fetch([(sql, (run_no, seq))])[0]
        if not answer:
            return "by an event that is not stored yet"
        event = dict(zip((c.name for c in schema.events.columns), answer[0], strict=False))
        return f"{event['kind']} by {event['actor']} at {event['at']}"

    def next_run_no(self) -> int:
        if self._run_no is None:  # SQLite does not count what this transaction has yet to write
            self._run_no = max(self._backend.next_run_no(), self._given + 1)
        return self._run_no

    # --- snapshots -----------------------------------------------------------------------------------------------

    def snapshot(self, run: Row, run_id: str, state: bytes) -> tuple[int, str]:
        run_no, last = run["run_no"], run["last_snapshot"]
        digest = sha256(state).digest()
        if last is not None:
            known = self._cache.get(run_no, last)
            found = known.digest if known is not None else self._find(run_no, last)
            if (found if isinstance(found, bytes) else found and bytes(found["digest"])) == digest:
                return last, str(last)  # the event that took it has said what it is
        n = run["snapshots"]
        fork = run.get("fork_of")
        origin = (fork["run_no"], fork["last_snapshot"]) if fork and fork["last_snapshot"] is not None else None
        row = snapshots.make(self._cache, self._find, run_no, n, state, digest, origin)
        self._drafted.append(row)
        self._cache.put(run_no, n, snapshots.Content(digest, row["depth"], state))
        return n, f"{n}:{digest.hex()[:SAID]}"

    def _find(self, run_no: int, n: int) -> Row | None:
        for row in (*self._snapshots, *self._drafted):
            if (row["run_no"], row["n"]) == (run_no, n):
                return row
        sql = self._backend.statements.by_key(schema.snapshots, ("run_no", "n"))
        answer = self._backend.fetch([(sql, (run_no, n))])[0]
        if not answer:
            return None
        row = dict(zip(SNAPSHOT_COLUMNS, answer[0], strict=True))
        return row | {"digest": bytes(row["digest"]), "data": bytes(row["data"])}

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, transition: Transition, drafts: Sequence[Draft]) -> Row:
        """Chain the events of one transition, fold them, and return the head it leaves."""
        run_id = transition.log
        if run_id is None:
            name, run_no = STORE, schema.STORE_LOG
            seq, head = self.store["head_seq"], bytes(self.store["head_hash"])
        else:
            name = run_id
            number = self._number(run_id)
            if number is None:
                run_no = self.next_run_no()
                seq, head = 0, bytes(32)
            else:
                run_no = number
                row = self._entries["runs", run_no, ""].row or {}
                seq, head = row["head_seq"], row["head_hash"]
        prepared = []
        for draft in drafts:  # everything that can be refused is refused before anything changes
            changes = storable(draft.set)
            if "steps" in changes:
                self._check_steps_are_new(run_no, changes["steps"])
            prepared.append((draft, changes, encode_body(draft.data, changes)))
        if self._drafted:
            self._snapshots.extend(self._drafted)
            self._drafted = []
        if run_id is not None and self._runs[run_id] is None:
            self._runs[run_id] = self._given = run_no
            self._run_no = None
        now, actor = self.now, transition.actor
        first: bytes | None = transition.id
        for draft, changes, body in prepared:
            seq += 1
            kind, step = draft.kind.value, draft.step
            head = chain_hash(head, name, seq, now, kind, actor, step, first, sha256(body).digest())
            stored = bytearray(head), bytearray(pack_body(body))
            self._events.append((run_no, seq, now, kind, actor, step, first and bytearray(first), *stored))
            fold(self, run_no, seq, now, head, changes)
            first = None
        if run_no == schema.STORE_LOG:
            changed = {"head_seq": seq, "head_hash": head, **transition.store_columns()}
            self.store.update(changed)
            self._store_changed.update(changed)
            if "epoch" in changed:
                self._site.epoch = None
            for draft in drafts:
                self._refreeze(draft.set.get("freezes", {}))
        return {"seq": seq, "hash": head}

    def _refreeze(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """What is frozen from here on; the database does not know of it yet."""
        for key, columns in changes.items():
            others = [f for f in self.freezes() if str(f["freeze_no"]) != key]
            before = next((f for f in self.freezes() if str(f["freeze_no"]) == key), None)
            row = self._entries["freezes", schema.STORE_LOG, key].row or (before and {**before, **columns})
            self._freezes = others if row is None or columns.get("lifted_at") is not None else [*others, row]

    def _check_steps_are_new(self, run_no: int, steps: Mapping[str, Mapping[str, Any]]) -> None:
        """The database refuses the same step twice, but not when both are written in this one transaction."""
        for step, columns in steps.items():
            if "first_seq" not in columns:
                continue
            entry = self._entries.get(("steps", run_no, step))
            if entry is not None and entry.row is not None:
                raise PreconditionFailed(f"step {step} is recorded already. Nothing was changed.")

    def discard_drafts(self) -> None:
        """A transition was refused after it had drafted a snapshot."""
        for row in self._drafted:
            self._cache.drop(row["run_no"], row["n"])
        self._drafted = []

    def change(self, table: str, run_no: int, key: str, changes: Mapping[str, Any]) -> None:
        place = (table, run_no, key)
        entry = self._entries.get(place) or self._entry(place)
        if entry is None:
            entry = self._entries[place] = Entry(None, BIRTH[table] in changes)
        if entry.row is not None:
            entry.row.update(changes)
        elif entry.read:
            entry.row, entry.new = new_row(table, run_no, key), True
            entry.row.update(changes)
            if table == "runs" and changes.get("tags"):
                self._tags.extend((tag, changes["created_at"], run_no) for tag in orjson.loads(changes["tags"]))
        entry.changes.update(changes)

    @property
    def dirty(self) -> bool:
        return bool(self._events)

    def writes(self) -> list[tuple[str, list[Sequence[Any]]]]:
        """All of it, grouped by statement.

        Bytes go as bytearrays. SQLite's driver binds these at once; for `bytes`, as for whatever is not exactly a
        number or a text, it first looks for an adapter, in vain, which takes ten times as long.
        """
        st = self._backend.statements
        grouped: dict[str, list[Sequence[Any]]] = {}
        grouped[st.insert(schema.events, EVENT_COLUMNS)] = list(self._events)
        for (table, run_no, key), entry in self._entries.items():
            changes = entry.changes
            if not changes:
                continue
            t = TABLES[table]
            if table == "runs":
                changes["head_hash"] = bytearray(changes["head_hash"])
            if entry.new and entry.row is not None:
                # A new row has every column, in the order of the table: it was made from the defaults. The empty ones,
                # which are most, need not be said.
                row = {column: value for column, value in entry.row.items() if value is not None}
                sql, values = st.insert(t, tuple(row)), tuple(row.values())
            else:
                sql = st.update(t, _WHERE[table], tuple(changes))
                values = (*changes.values(), *self._key_values(table, run_no, key))
            grouped.setdefault(sql, []).append(values)
        if self._snapshots:
            sql = st.insert(schema.snapshots, SNAPSHOT_COLUMNS)
            grouped[sql] = [
                [bytearray(v) if type(v := row[c]) is bytes else v for c in SNAPSHOT_COLUMNS] for row in self._snapshots
            ]
        if self._tags:
            grouped[st.insert(schema.run_tags, ("tag", "created_at", "run_no"))] = list(self._tags)
        if self._store_changed:
            sql = st.update(schema.store, ("id",), tuple(self._store_changed))
            grouped[sql] = [(*self._store_changed.values(), 1)]
        return list(grouped.items())

    def remember(self) -> None:
        """It is committed: keep the rows that the next transaction is likely to look at."""
        known = self._known
        if len(known.rows) > KEPT_ROWS:
            known.forget()
        for place, entry in self._entries.items():
            if place[0] in KEPT and entry.row is not None:
                known.rows[place] = entry.row
        known.run_nos.update((run_id, no) for run_id, no in self._runs.items() if no is not None)
        known.freezes = self._freezes

    @staticmethod
    def _key_values(table: str, run_no: int, key: str) -> tuple[Any, ...]:
        if table == "runs":
            return (run_no,)
        values = parse_key(table, key)
        return (run_no, *values) if TABLES[table] in schema.PER_RUN else values


_WHERE = {
    name: ("run_no", *KEYS[name]) if name == "runs" or t in schema.PER_RUN else KEYS[name] for name, t in TABLES.items()
}
