"""Fold the log again, and prove that the projections, the chain and the snapshots agree with it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import ColumnElement, Connection, Table, func, select, text

from walkback_store import schema, snapshots
from walkback_store.errors import CorruptData, NotFound, StoreError
from walkback_store.frames import BodyPruned, unpack, unpack_body
from walkback_store.log import COLUMNS, GENESIS, KEYS, Row, chain_hash, fold, new_row, row_key
from walkback_store.machine.store_wide import STORE
from walkback_store.values import decode
from walkback_store.words import AUDIT_KINDS

if TYPE_CHECKING:
    from walkback_store.store import Store

PAGE = 1000
EVENTS_AT_ONCE = 64
"""Few, because each may carry a tool's answer of many megabytes."""
Place = tuple[str, str]
_UNREADABLE = (StoreError, LookupError, TypeError, ValueError, AttributeError)
"""What a body can raise that chains, but that this package never wrote."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One disagreement: in which log, what, and what was found."""

    run_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.run_id}: {self.what}"


@dataclass(slots=True)
class Report:
    runs: int = 0
    events: int = 0
    snapshots: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.problems


class _Folded:
    """The rows of one log, as its events say they should be."""

    def __init__(self) -> None:
        self.rows: dict[Place, Row] = {}

    def change(self, table: str, run_no: int, key: str, changes: Mapping[str, Any]) -> None:
        row = self.rows.get((table, key))
        if row is None:
            row = self.rows[table, key] = new_row(table, run_no, key)
        row.update(changes)


def fsck(
    store: Store,
    run_id: str | None = None,
    *,
    deep: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check the whole store, or one run. `deep` also unpacks every snapshot. Reads one consistent state throughout.

    Found are: an event that was edited, removed, added or moved; a projection, tag, tombstone or snapshot that is not
    what the log says; rows of a run that is not there; a run that was made to look pruned.

    Not found is what was rewritten as a whole by someone who may write to the database: the last events of a log
    removed, and the head, the projections and (on SQLite) `sqlite_sequence` set back to match; a run removed with every
    row it has; a chain computed anew. The hashes are no secret, so no store can prove its own end. That takes an anchor
    elsewhere: keep the `seq` and `hash` of a commit, and see that the event is still there with that hash. PostgreSQL
    numbers events with gaps, so a removed end shows there only by the head and the rows it left behind; on SQLite the
    count shows it too. Not history, and so not proven: heartbeats, when a run was pruned, where the store lives.

    One run alone is judged by its own log. Whether it was pruned rightly is in the store's log, which only a check of
    the whole store reads.
    """
    report = Report()
    store.backend.check_usable()
    with store.backend.engine.connect() as connection:
        if store.backend.locks_rows:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        check = _Check(connection, report, deep)
        if run_id is not None:
            check.one(run_id)
            return report
        check.store_log()
        for head in check.heads():
            check.log(head["run_no"], head["run_id"], head)
            report.runs += 1
            if progress is not None:
                progress(report.runs)
        check.strays()
    return report


class _Check:
    def __init__(self, connection: Connection, report: Report, deep: bool) -> None:
        self._db = connection
        self._report = report
        self._deep = deep
        self._cache = snapshots.SnapshotCache()
        self._pruned: array[int] | None = None
        """Which runs the store's log says were pruned, as sorted digests; None when it was not read."""
        self._epoch: int | None = None

    def _problem(self, run_id: str, what: str) -> None:
        self._report.problems.append(Problem(run_id, what))

    # --- logs ----------------------------------------------------------------------------------------------------

    def one(self, run_id: str) -> None:
        for t, pruned in ((schema.runs, False), (schema.tombstones, True)):
            row = self._db.execute(select(t).where(t.c.run_id == run_id)).mappings().first()
            if row is not None:
                self.log(row["run_no"], run_id, {**row, "pruned": pruned})
                self._report.runs = 1
                return
        raise NotFound(f"there is no run {run_id!r} in this store.")

    def store_log(self) -> None:
        self._pruned = array("Q")
        head = self._db.execute(select(schema.store)).mappings().one()
        self.log(schema.STORE_LOG, STORE, {**head, "pruned": False})
        self._pruned = array("Q", sorted(self._pruned))
        if self._epoch is not None and head["epoch"] != self._epoch:
            self._problem(STORE, f"its epoch is {head['epoch']}, but it was adopted with {self._epoch}")

    def heads(self) -> Iterator[Row]:
        """Every run there is or was, in pages, so that a million of them fit."""
        for t, pruned in ((schema.runs, False), (schema.tombstones, True)):
            at = -(2**62)
            while True:
                query = select(t).where(t.c.run_no > at).order_by(t.c.run_no).limit(PAGE)
                rows = self._db.execute(query).mappings().all()
                for row in rows:
                    yield {**row, "pruned": pruned}
                if len(rows) < PAGE:
                    break
                at = rows[-1]["run_no"]

    def log(self, run_no: int, run_id: str, head: Row) -> None:
        folded = _Folded()
        seq, previous, pos = 0, GENESIS, 0
        for event in self._events(run_no):
            seq += 1
            if event["seq"] != seq:
                self._problem(run_id, f"event {seq} is missing (the next one stored is {event['seq']})")
                return
            try:
                body = self._body(run_id, event, head["pruned"])
                found = self._chained(previous, run_id, event, body)
            except StoreError as error:
                self._problem(run_id, f"event {seq} cannot be read: {error}")
                return
            if found != bytes(event["hash"]):
                self._problem(run_id, f"event {seq} was edited: it does not match its hash")
                return
            if event["pos"] <= pos:
                self._problem(run_id, f"event {seq} was moved: it stands before the one it builds on")
                return
            try:
                if isinstance(body, bytes):
                    self._fold(folded, run_no, run_id, event, decode(body), head["pruned"])
            except _UNREADABLE as error:
                self._problem(run_id, f"event {seq} says what no version of this store would: {error!r}")
                return
            previous, pos = found, event["pos"]
            self._report.events += 1
        if seq != head["head_seq"]:
            self._problem(run_id, f"the log ends at event {seq}, but its head says {head['head_seq']}")
        elif previous != bytes(head["head_hash"]):
            self._problem(run_id, f"the log ends at event {seq} with another hash than its head says")
        elif head["pruned"]:
            self._compare_tombstone(run_no, run_id, head, folded)
        else:
            self._compare(run_no, run_id, folded)

    def _events(self, run_no: int) -> Iterator[Row]:
        e = schema.events
        after = -(2**62)
        while True:
            query = select(e).where(e.c.run_no == run_no, e.c.seq > after).order_by(e.c.seq).limit(EVENTS_AT_ONCE)
            rows = self._db.execute(query).mappings().all()
            yield from (dict(row) for row in rows)
            if len(rows) < EVENTS_AT_ONCE:
                return
            after = rows[-1]["seq"]

    def _body(self, run_id: str, event: Row, pruned: bool) -> bytes | BodyPruned:
        """The body; or the digest that a pruned run has in place of one that `prune` may remove."""
        try:
            return unpack_body(bytes(event["body"]))
        except BodyPruned as only_digest:
            if not pruned or event["kind"] in AUDIT_KINDS:
                raise CorruptData("its body was removed, and not by a prune.") from only_digest
            return only_digest

    @staticmethod
    def _chained(previous: bytes, run_id: str, event: Row, body: bytes | BodyPruned) -> bytes:
        digest = sha256(body).digest() if isinstance(body, bytes) else body.digest
        transition = None if event["transition"] is None else bytes(event["transition"])
        header = (event["seq"], event["at"], event["kind"], event["actor"], event["step"], transition)
        return chain_hash(previous, run_id, *header, digest)

    def _fold(self, folded: _Folded, run_no: int, run_id: str, event: Row, body: Any, pruned: bool) -> None:
        changes, data = body["set"], body["data"]
        fold(folded, run_no, event["seq"], event["at"], bytes(event["hash"]), changes)
        if run_no == schema.STORE_LOG:
            self._store_event(data)
        elif not pruned and changes.get("runs", {}).get("", {}).get("last_snapshot") is not None:
            self._snapshot(run_no, run_id, event["seq"], data["snapshot"])

    def _store_event(self, data: Mapping[str, Any]) -> None:
        if data["action"] == "prune" and self._pruned is not None:
            self._pruned.append(_short(data["run_id"], data["head_seq"]))
        elif data["action"] == "adopt":
            self._epoch = data["epoch"]

    # --- snapshots -----------------------------------------------------------------------------------------------

    def _snapshot(self, run_no: int, run_id: str, seq: int, said: str) -> None:
        n, _, digest = said.partition(":")
        s = schema.snapshots
        if not self._deep:
            found = self._db.execute(select(s.c.digest).where(s.c.run_no == run_no, s.c.n == int(n))).scalar()
        else:
            row = self._find(run_no, int(n))
            found = None if row is None else row["digest"]
        if found is None:
            self._problem(run_id, f"snapshot {n}, named by event {seq}, is missing")
            return
        self._report.snapshots += 1
        if not bytes(found).hex().startswith(digest):  # only the event that took it says more than its number
            self._problem(run_id, f"snapshot {n} is not the one that event {seq} recorded")
        elif self._deep:
            try:
                self._read(run_no, int(n))
            except StoreError as error:
                self._problem(run_id, f"snapshot {n} cannot be read: {error}")

    def _read(self, run_no: int, n: int) -> None:
        """As `snapshots.read`, with the bases that were just read at hand, and each row's depth checked too."""
        hops: list[Row] = []
        at: tuple[int, int] | None = (run_no, n)
        content: snapshots.Content | None = None
        while at is not None and (content := self._cache.get(*at)) is None:
            row = self._find(*at)
            if row is None:
                raise NotFound(f"snapshot {at[1]} of run number {at[0]}, which it builds on, is not there.")
            hops.append(row)
            if len(hops) > snapshots.MAX_DEPTH + 1:
                raise CorruptData("its chain is damaged: it has too many hops.")
            at = None if row["base_n"] is None else (row["base_run"], row["base_n"])
        for row in reversed(hops):
            depth = 0 if content is None else content.depth + 1
            data = unpack(row["data"], None if content is None else content.data)
            found = (len(data), sha256(data).digest(), depth, content is None)
            if found != (row["size"], row["digest"], row["depth"], row["base_run"] is None):
                raise CorruptData(f"snapshot {row['n']} does not match its size, digest, depth or base.")
            content = snapshots.Content(row["digest"], depth, data)
            self._cache.put(row["run_no"], row["n"], content)

    def _find(self, run_no: int, n: int) -> Row | None:
        s = schema.snapshots
        row = self._db.execute(select(s).where(s.c.run_no == run_no, s.c.n == n)).mappings().first()
        return None if row is None else {**row, "digest": bytes(row["digest"]), "data": bytes(row["data"])}

    # --- projections ---------------------------------------------------------------------------------------------

    def _compare(self, run_no: int, run_id: str, folded: _Folded) -> None:
        tables = schema.STORE_WIDE if run_no == schema.STORE_LOG else (schema.runs, *schema.PER_RUN)
        left = dict(folded.rows)
        for t in tables:
            for found in self._rows(t, run_no):
                key = row_key(t.name, *(found[k] for k in KEYS[t.name]))
                wanted = left.pop((t.name, key), None)
                name = f"{t.name} {key}".strip()
                if wanted is None:
                    self._problem(run_id, f"{name}: no event made this row")
                    continue
                for column in COLUMNS[t.name]:
                    if (t.name, column) in schema.NOT_FOLDED:
                        continue
                    value = bytes(found[column]) if isinstance(found[column], memoryview) else found[column]
                    if value != wanted[column]:
                        self._problem(run_id, f"{name}: {column} is {value!r}, but the log says {wanted[column]!r}")
        for table, key in left:
            self._problem(run_id, f"{table} {key}: the log says it exists, but the row is missing")
        if run_no != schema.STORE_LOG and ("runs", "") in folded.rows:
            self._compare_beside(run_no, run_id, folded.rows["runs", ""])

    def _rows(self, t: Table, run_no: int) -> Iterator[Row]:
        query = select(t) if run_no == schema.STORE_LOG else select(t).where(t.c.run_no == run_no)
        yield from (dict(row) for row in self._db.execute(query).mappings())

    def _compare_beside(self, run_no: int, run_id: str, run: Row) -> None:
        """What is kept beside the projections: tags to search by, and snapshots."""
        t, s = schema.run_tags, schema.snapshots
        try:
            wanted = {(str(tag), run["created_at"]) for tag in orjson.loads(run["tags"] or "[]")}
        except (ValueError, TypeError) as error:
            self._problem(run_id, f"its tags are not a list: {error}")
            return
        found = {(row.tag, row.created_at) for row in self._db.execute(select(t).where(t.c.run_no == run_no))}
        if found != wanted:
            self._problem(run_id, f"its tags are {sorted(found)}, but the log says {sorted(wanted)}")
        n = self._db.execute(select(func.count()).select_from(s).where(s.c.run_no == run_no)).scalar_one()
        if n > run["snapshots"]:
            self._problem(run_id, f"it has {n} snapshots, but its log names {run['snapshots']}")

    def _compare_tombstone(self, run_no: int, run_id: str, tombstone: Row, folded: _Folded) -> None:
        run = folded.rows.get(("runs", ""), {})
        for column in ("agent", "status", "finished_at"):
            if tombstone[column] != run.get(column):
                self._problem(
                    run_id, f"its tombstone says {column} {tombstone[column]!r}, but the log {run.get(column)!r}"
                )
        if self._pruned is not None:
            wanted = _short(run_id, tombstone["head_seq"])
            at = bisect_left(self._pruned, wanted)
            if at == len(self._pruned) or self._pruned[at] != wanted:
                self._problem(run_id, "it has a tombstone, but the store's log does not say that it was pruned")
        for t in (*schema.PER_RUN, schema.snapshots, schema.run_tags):
            if self._db.execute(select(t.c.run_no).where(t.c.run_no == run_no).limit(1)).first() is not None:
                self._problem(run_id, f"it was pruned, but has rows in {t.name}")

    def strays(self) -> None:
        """Rows of runs that are neither in `runs` nor pruned, and holes in the numbering of all events and runs."""
        known = select(schema.runs.c.run_no).union_all(select(schema.tombstones.c.run_no))
        e, m = schema.events, schema.batch_members
        tombstones = self._db.execute(select(func.count()).select_from(schema.tombstones)).scalar_one()
        if self._pruned is not None and len(self._pruned) > tombstones:
            self._problem(STORE, f"{len(self._pruned)} runs were pruned, but {tombstones} tombstones are stored")
        query = select(e.c.run_no).where(e.c.run_no != schema.STORE_LOG, e.c.run_no.not_in(known)).distinct()
        for run_no in self._db.execute(query.limit(PAGE)).scalars():
            self._problem(f"run number {run_no}", "has events, but its run is missing")
        for t in (*schema.PER_RUN, schema.snapshots, schema.run_tags):
            stray = select(t.c.run_no).where(t.c.run_no.not_in(known)).distinct().limit(PAGE)
            for run_no in self._db.execute(stray).scalars():
                self._problem(f"run number {run_no}", f"has rows in {t.name}, but its run is missing")
        ids = select(schema.runs.c.run_id).union_all(select(schema.tombstones.c.run_id))
        for t, what in ((m, "a batch names it"), (schema.identities, "an identity is owned by it")):
            stray = select(t.c.run_id).where(t.c.run_id.not_in(ids)).distinct().limit(PAGE)
            for run_id in self._db.execute(stray).scalars():
                self._problem(run_id, f"{what}, but there is no such run")
        if self._db.dialect.name == "sqlite":  # numbers have no gaps there: a rollback takes them back
            every = known.subquery()
            self._gaps("events", e.c.pos)
            self._gaps("runs", every.c.run_no)

    def _gaps(self, table: str, number: ColumnElement[int]) -> None:
        n, top = self._db.execute(select(func.count(), func.max(number))).one()
        query = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
        written = self._db.execute(query, {"name": table}).scalar() or 0
        if n != written or (top or 0) != written:
            self._problem("the log", f"{written} {table} were written, but {n} are stored: some were deleted")


def _short(run_id: str, head_seq: int) -> int:
    """Eight bytes for a run as it was pruned, so that a million of them fit."""
    return int.from_bytes(sha256(f"{head_seq}:{run_id}".encode()).digest()[:8], "big")


__all__ = ["Problem", "Report", "fsck"]
