"""What the console asks about one run, about events and about people. No query loads more than a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    select,
    tuple_,
)

from walkback_store import schema
from walkback_store.errors import NotFound
from walkback_store.frames import BodyPruned, unpack_body
from walkback_store.history import Histories
from walkback_store.inbox import Inbox
from walkback_store.log import Event, Row
from walkback_store.machine.base import STORE
from walkback_store.machine.roles import EVERYONE, role_among
from walkback_store.paging import (
    COUNT_LIMIT,
    MAX_PAGE,
    PAGE,
    Count,
    Page,
    above,
    bounded,
    page_size,
    possible,
    sql,
)
from walkback_store.reading import Moment
from walkback_store.run_lists import RunFilter
from walkback_store.timelines import Timelines
from walkback_store.values import decode
from walkback_store.words import BatchStatus, Role


@dataclass(slots=True)
class Cursor:
    """A place in the order of commits."""

    xid: int = 0
    pos: int = 0


@dataclass(slots=True)
class OperationDetail:
    operation: Row
    run: Row
    attempts: list[Row]
    approvals: list[Row]
    events: list[Event]
    """The newest page of events of this step: intent, answers, evidence, recovery, people's words."""
    decisions: list[Row] = field(default_factory=list)


class Queries(Timelines, Histories, Inbox):
    """Reading. Rows are plain dicts, named after the columns."""

    # --- one run -------------------------------------------------------------------------------------------------

    def operation(self, run_id: str, step: str) -> OperationDetail:
        """All that is known about one tool call, as of one moment: the newest page of each, oldest first."""
        with self._reading() as moment:
            run = self._run(moment, run_id)
            found: dict[str, list[Row]] = {}
            for t in (schema.operations, schema.attempts, schema.approvals, schema.decisions, schema.events):
                query = select(t).where(t.c.run_no == run["run_no"], t.c.step == step).limit(PAGE)
                order = [c for c in t.columns if c.name in {"n", "seq"}]
                newest = moment.rows(query.order_by(*(c.desc() for c in order))) if possible(step) else []
                found[t.name] = list(reversed(newest))
            if not found["operations"]:
                raise NotFound(f"run {run_id!r} has no operation at step {step}.")
        return OperationDetail(
            found["operations"][0],
            run,
            found["attempts"],
            found["approvals"],
            [_event(row, run_id) for row in found["events"]],
            found["decisions"],
        )

    def step(self, run_id: str, step: str) -> tuple[Row, Row]:
        """One step and its run, as of one moment, with the snapshots around it.

        A step that left the state as it was has no snapshot of its own after it: the state then is that of the next
        boundary, which is where the next step begins, or the newest there is.
        """
        s = schema.steps
        with self._reading() as moment:
            run = self._run(moment, run_id)
            of_run = select(s).where(s.c.run_no == run["run_no"])
            found = moment.rows(of_run.where(s.c.step == step).limit(1)) if possible(step) else []
            if not found:
                raise NotFound(f"run {run_id!r} has no step {step!r}. `walkback show` lists its steps.")
            row = found[0]
            if row["after"] is None:
                later = of_run.where(s.c.first_seq > row["first_seq"]).order_by(s.c.first_seq).limit(1)
                row["after"] = next((r["before"] for r in moment.rows(later)), run["last_snapshot"])
            return row, run

    def waiting_signals(self, run_id: str, name: str) -> list[Row]:
        s = schema.signals
        with self._reading() as moment:
            run_no = self._run(moment, run_id)["run_no"]
            if not possible(name):
                return []
            query = select(s).where(s.c.run_no == run_no, s.c.name == name, s.c.consumed_by.is_(None))
            return moment.rows(query.order_by(s.c.seq).limit(PAGE))

    # --- events --------------------------------------------------------------------------------------------------

    def events(
        self, run_id: str | None, *, after: int = 0, before: int | None = None, limit: int = PAGE
    ) -> list[Event]:
        """Events of a run (pruned or not), or of the store's own log, in order.

        `after` is the last `seq` you have. With `before`, the page that ends just before that `seq`.
        """
        e = schema.events
        with self._reading() as moment:
            run_no, name = (schema.STORE_LOG, STORE) if run_id is None else (self._run_no_of(moment, run_id), run_id)
            query = select(e).where(e.c.run_no == run_no, e.c.seq > after).limit(page_size(limit))
            if before is not None:
                rows = list(reversed(moment.rows(query.where(e.c.seq < before).order_by(e.c.seq.desc()))))
            else:
                rows = moment.rows(query.order_by(e.c.seq))
        return [_event(row, name) for row in rows]

    def _run_no_of(self, moment: Moment, run_id: str) -> int:
        for t in (schema.runs, schema.tombstones) if possible(run_id) else ():
            found = moment.values(select(t.c.run_no).where(t.c.run_id == run_id).limit(1))
            if found:
                return int(found[0])
        raise NotFound(f"there is no run {run_id!r} in this store.")

    def events_since(self, cursor: Cursor, limit: int = PAGE) -> tuple[list[Event], Cursor]:
        """Everyone's events in an order in which none appears late. Start with `Cursor()`.

        On PostgreSQL positions are given before commits happen, so the order is by transaction, up to the oldest one
        still under way in the cluster; a long write transaction of anyone's holds this (and nothing else) back.
        """
        e = schema.events
        query = _named(select(e)).limit(page_size(limit))
        with self._reading() as moment:
            if not self.backend.locks_rows:
                rows = moment.rows(query.where(e.c.pos > cursor.pos).order_by(e.c.pos))
                return _since(rows, cursor)
            base = int(moment.values(select(schema.store.c.feed_base).limit(1))[0])
            if cursor.pos < base:  # of an earlier epoch: all committed, and transaction numbers mean nothing
                rows = moment.rows(query.where(e.c.pos > cursor.pos, e.c.pos <= base).order_by(e.c.pos))
                if rows:
                    return _since(rows, cursor)
            xid = literal_column("events.xid", BigInteger)
            # Of the very moment that is read: whoever is below it has ended, and what they committed is seen.
            horizon = literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint", BigInteger)
            seen = (cursor.xid, cursor.pos if cursor.xid else 0)
            query = query.add_columns(xid.label("xid")).where(
                e.c.pos > base, xid < horizon, tuple_(xid, e.c.pos) > tuple_(*map(literal, seen))
            )
            return _since(moment.rows(query.order_by(xid, e.c.pos)), cursor)

    def people_since(self, at: int, *, limit: int = PAGE, before: tuple[int, int] | None = None) -> list[Event]:
        """What people did and decided, newest first: the stuff of a handover.

        `before` is (`at`, `pos`) of the oldest event you have.
        """
        e = schema.events
        people = sql("events.kind IN ('operator_action', 'approval_given', 'approval_refused')")
        query = _named(select(e)).where(people, e.c.at >= bounded(at))
        if before is not None:
            query = query.where(tuple_(e.c.at, e.c.pos) < tuple_(*map(literal, before)))
        with self._reading() as moment:
            rows = moment.rows(query.order_by(e.c.at.desc(), e.c.pos.desc()).limit(page_size(limit)))
        return [_event(row, row["run_id"]) for row in rows]

    # --- people --------------------------------------------------------------------------------------------------

    def role_of(self, actor: str) -> Role:
        """What somebody may do here."""
        names = [EVERYONE, actor] if possible(actor) else [EVERYONE]
        with self._reading() as moment:
            rows = moment.rows(select(schema.roles).where(schema.roles.c.person.in_(names)).limit(2))
        found = {row["person"]: row for row in rows}
        return role_among(actor, found.get(actor), found.get(EVERYONE))

    def roles(self) -> list[Row]:
        """Who has a role of their own, and the one that everybody else has (`operator:*`), if they have one."""
        with self._reading() as moment:
            return moment.rows(select(schema.roles).order_by(schema.roles.c.person).limit(MAX_PAGE))

    # --- workers, freezes, decisions, batches --------------------------------------------------------------------

    def workers(self, *, limit: int = PAGE) -> list[Row]:
        """Those alive first, then the lost, then the stopped; of each the newest first."""
        w = schema.workers
        query = select(w).order_by(w.c.status, w.c.started_at.desc(), w.c.worker).limit(page_size(limit))
        with self._reading() as moment:
            return [row | {"agents": orjson.loads(row["agents"])} for row in moment.rows(query)]

    def holding(self) -> dict[str, int]:
        """How many runs each worker holds; workers that hold none are not in it."""
        r = schema.runs
        held = select(r.c.worker, func.count().label("n")).where(sql("runs.worker IS NOT NULL")).group_by(r.c.worker)
        with self._reading() as moment:
            return {row["worker"]: row["n"] for row in moment.rows(held.order_by(r.c.worker).limit(MAX_PAGE))}

    def freezes(self) -> list[Row]:
        """Those in force."""
        f = schema.freezes
        with self._reading() as moment:
            return moment.rows(select(f).where(f.c.lifted_at.is_(None)).order_by(f.c.freeze_no).limit(MAX_PAGE))

    def waiting_decisions(self, *, limit: int = PAGE) -> list[Row]:
        """What people decided and can still take back, or what no worker has carried out yet; the most urgent first."""
        d, r = schema.decisions, schema.runs
        waiting = sql("decisions.status = 'waiting'")
        query = select(d, r.c.run_id).join(r, r.c.run_no == d.c.run_no).where(waiting)
        query = query.order_by(d.c.not_before, d.c.run_no, d.c.seq).limit(page_size(limit))
        with self._reading() as moment:
            return moment.rows(query)

    def batches(self, *, limit: int = PAGE) -> list[Row]:
        """Those that are open first; of each the newest first."""
        b = schema.batches
        closed = case((b.c.status == BatchStatus.OPEN.value, 0), else_=1)
        with self._reading() as moment:
            return moment.rows(select(b).order_by(closed, b.c.batch_no.desc()).limit(page_size(limit)))

    def open_batches(self, *, limit: int = PAGE) -> list[Row]:
        """The oldest of those that are open, with the member that was released last, if one was (`run_id`, `step`)."""
        b, m = schema.batches, schema.batch_members
        member = and_(m.c.batch_no == b.c.batch_no, m.c.n == b.c.released)
        query = select(b, m.c.run_id, m.c.step, m.c.released_at).outerjoin(m, member)
        query = query.where(b.c.status == BatchStatus.OPEN.value).order_by(b.c.batch_no).limit(page_size(limit))
        with self._reading() as moment:
            return moment.rows(query)

    def batch(self, batch_no: int, *, limit: int = PAGE, after: int = 0) -> tuple[Row, list[Row]]:
        """A batch and a page of its members. `after` is the `n` of the last one you have."""
        b, m = schema.batches, schema.batch_members
        with self._reading() as moment:
            rows = moment.rows(select(b).where(b.c.batch_no == batch_no).limit(1))
            if not rows:
                raise NotFound(f"there is no batch {batch_no}.")
            members = select(m).where(m.c.batch_no == batch_no, m.c.n > after).order_by(m.c.n)
            return rows[0], moment.rows(members.limit(page_size(limit)))


# --- events ------------------------------------------------------------------------------------------------------


def _named(query: Select[Any]) -> Select[Any]:
    """Events with the id of their run, also when that was pruned."""
    e, r, t = schema.events, schema.runs, schema.tombstones
    name = func.coalesce(r.c.run_id, t.c.run_id, literal(STORE)).label("run_id")
    query = query.add_columns(name).select_from(e)
    return query.outerjoin(r, r.c.run_no == e.c.run_no).outerjoin(t, t.c.run_no == e.c.run_no)


def _since(rows: list[Row], cursor: Cursor) -> tuple[list[Event], Cursor]:
    if rows:
        cursor = Cursor(rows[-1].get("xid", 0), rows[-1]["pos"])
    return [_event(row, row["run_id"]) for row in rows], cursor


def _event(row: Row, run_id: str) -> Event:
    try:
        body: Any = decode(unpack_body(bytes(row["body"])))
    except BodyPruned:
        body = None
    return Event(
        run_id, row["seq"], row["at"], row["kind"], row["actor"], row["step"], bytes(row["hash"]), body, row["pos"]
    )


__all__ = [
    "COUNT_LIMIT",
    "MAX_PAGE",
    "PAGE",
    "Count",
    "Cursor",
    "OperationDetail",
    "Page",
    "Queries",
    "RunFilter",
    "above",
]
