"""Fold the log again, and prove that the projections, the chain and the snapshots agree with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection, func, literal_column, select, text

from walkback_store import schema, snapshots
from walkback_store.errors import CorruptData, NotFound, StoreError
from walkback_store.frames import BodyPruned, body_digest, unpack_body
from walkback_store.log import COLUMNS, GENESIS, TABLES, Row, chain_hash, fold, new_row, row_key
from walkback_store.machine.store_wide import STORE
from walkback_store.values import decode

if TYPE_CHECKING:
    from walkback_store.store import Store

PAGE = 1000
Place = tuple[str, str]


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
    """Check the whole store, or one run. `deep` also unpacks every snapshot. Reads one consistent state throughout."""
    report = Report()
    with store.backend.engine.connect() as connection:
        if store.backend.locks_rows:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        check = _Check(connection, report, deep)
        if run_id is not None:
            check.one(run_id)
            return report
        check.log(schema.STORE_LOG, STORE, check.store_head())
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

    def _problem(self, run_id: str, what: str) -> None:
        self._report.problems.append(Problem(run_id, what))

    def one(self, run_id: str) -> None:
        for t, pruned in ((schema.runs, 0), (schema.tombstones, 1)):
            query = select(t.c.run_no, t.c.run_id, t.c.head_seq, t.c.head_hash).where(t.c.run_id == run_id)
            row = self._db.execute(query).mappings().first()
            if row is not None:
                self.log(row["run_no"], run_id, {**row, "pruned": pruned})
                self._report.runs = 1
                return
        raise NotFound(f"there is no run {run_id!r} in this store.")

    def store_head(self) -> Row:
        s = schema.store
        row = self._db.execute(select(s.c.head_seq, s.c.head_hash)).mappings().one()
        return {**row, "pruned": 0}

    def heads(self) -> Iterator[Row]:
        """Every run there is or was, in pages, so that a million of them fit."""
        for t, pruned in ((schema.runs, 0), (schema.tombstones, 1)):
            at = -1
            while True:
                query = select(t.c.run_no, t.c.run_id, t.c.head_seq, t.c.head_hash).where(t.c.run_no > at)
                rows = self._db.execute(query.order_by(t.c.run_no).limit(PAGE)).mappings().all()
                for row in rows:
                    yield {**row, "pruned": pruned}
                if len(rows) < PAGE:
                    break
                at = rows[-1]["run_no"]

    def log(self, run_no: int, run_id: str, head: Row) -> None:
        folded = _Folded()
        seq, previous = 0, GENESIS
        for event in self._events(run_no):
            seq += 1
            if event["seq"] != seq:
                self._problem(run_id, f"event {seq} is missing (the next one stored is {event['seq']})")
                return
            try:
                found = self._chained(previous, run_id, event)
                if found != bytes(event["hash"]):
                    self._problem(run_id, f"event {seq} was edited: it does not match its hash")
                    return
                self._fold(folded, run_no, run_id, event)
            except CorruptData as error:
                self._problem(run_id, f"event {seq} cannot be read: {error}")
                return
            previous = found
            self._report.events += 1
        if (seq, previous) != (head["head_seq"], bytes(head["head_hash"])):
            self._problem(
                run_id, f"the log ends at event {seq}, but its head says {head['head_seq']}: events are missing"
            )
        elif not head["pruned"]:
            self._compare(run_no, run_id, folded)

    def _events(self, run_no: int) -> Iterator[Row]:
        e = schema.events
        after = -(2**62)
        while True:
            query = select(e).where(e.c.run_no == run_no, e.c.seq > after).order_by(e.c.seq).limit(PAGE)
            rows = self._db.execute(query).mappings().all()
            yield from (dict(row) for row in rows)
            if len(rows) < PAGE:
                return
            after = rows[-1]["seq"]

    @staticmethod
    def _chained(previous: bytes, run_id: str, event: Row) -> bytes:
        digest = body_digest(bytes(event["body"]))
        return chain_hash(
            previous, run_id, event["seq"], event["at"], event["kind"], event["actor"], event["step"], digest
        )

    def _fold(self, folded: _Folded, run_no: int, run_id: str, event: Row) -> None:
        try:
            body: Any = decode(unpack_body(bytes(event["body"])))
        except BodyPruned:
            return
        fold(folded, run_no, event["seq"], event["at"], bytes(event["hash"]), body["set"])
        said = body["data"].get("snapshot") if isinstance(body["data"], dict) else None
        if isinstance(said, str):
            self._snapshot(run_no, run_id, event["seq"], said)

    def _snapshot(self, run_no: int, run_id: str, seq: int, said: str) -> None:
        n, _, digest = said.partition(":")
        s = schema.snapshots
        found = self._db.execute(select(s.c.digest).where(s.c.run_no == run_no, s.c.n == int(n))).scalar()
        if found is None:
            if self._db.execute(select(schema.tombstones.c.run_no).where(schema.tombstones.c.run_no == run_no)).first():
                return
            self._problem(run_id, f"snapshot {n}, named by event {seq}, is missing")
            return
        self._report.snapshots += 1
        if bytes(found).hex() != digest:
            self._problem(run_id, f"snapshot {n} is not the one that event {seq} recorded")
        elif self._deep:
            try:
                snapshots.read(self._find, run_no, int(n))
            except StoreError as error:
                self._problem(run_id, f"snapshot {n} cannot be read: {error}")

    def _find(self, run_no: int, n: int) -> Row | None:
        s = schema.snapshots
        row = self._db.execute(select(s).where(s.c.run_no == run_no, s.c.n == n)).mappings().first()
        return None if row is None else {**row, "digest": bytes(row["digest"]), "data": bytes(row["data"])}

    def _compare(self, run_no: int, run_id: str, folded: _Folded) -> None:
        tables = schema.STORE_WIDE if run_no == schema.STORE_LOG else (schema.runs, *schema.PER_RUN)
        left = dict(folded.rows)
        for t in tables:
            query = select(t) if run_no == schema.STORE_LOG else select(t).where(t.c.run_no == run_no)
            for found in self._db.execute(query).mappings():
                key = row_key(t.name, *(found[k] for k in _keys(t.name)))
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
        if run_no != schema.STORE_LOG:
            self._tags(run_no, run_id, left, folded)

    def _tags(self, run_no: int, run_id: str, left: dict[Place, Row], folded: _Folded) -> None:
        run = folded.rows.get(("runs", ""))
        wanted = set(orjson.loads(run["tags"])) if run is not None and run["tags"] else set()
        t = schema.run_tags
        found = set(self._db.execute(select(t.c.tag).where(t.c.run_no == run_no)).scalars())
        if found != wanted:
            self._problem(run_id, f"its tags are {sorted(found)}, but the log says {sorted(wanted)}")

    def strays(self) -> None:
        """Rows of runs that are neither in `runs` nor pruned, and holes in the numbering of all events."""
        known = select(schema.runs.c.run_no).union_all(select(schema.tombstones.c.run_no))
        e = schema.events
        query = select(e.c.run_no).where(e.c.run_no != schema.STORE_LOG, e.c.run_no.not_in(known)).distinct()
        for run_no in self._db.execute(query.limit(PAGE)).scalars():
            self._problem(f"run number {run_no}", "has events, but its run is missing")
        for t in (*schema.PER_RUN, schema.snapshots, schema.run_tags):
            stray = select(t.c.run_no).where(t.c.run_no.not_in(known)).distinct().limit(PAGE)
            for run_no in self._db.execute(stray).scalars():
                self._problem(f"run number {run_no}", f"has rows in {t.name}, but its run is missing")
        if self._db.dialect.name == "sqlite":  # positions have no gaps there: a rollback takes its numbers back
            n, top = self._db.execute(select(func.count(), func.max(e.c.pos)).select_from(e)).one()
            query = select(literal_column("seq")).select_from(text("sqlite_sequence")).where(text("name = 'events'"))
            given = self._db.execute(query).scalar()
            if n != (given or 0) or (top or 0) != (given or 0):
                self._problem("the log", f"{given} events were written, but {n} are stored: some were deleted")


def _keys(table: str) -> tuple[str, ...]:
    from walkback_store.log import KEYS

    return KEYS[table]


__all__ = ["TABLES", "Problem", "Report", "fsck"]
