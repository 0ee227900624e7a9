"""What the console asks. No query loads more than a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    union_all,
)

from walkback_store import schema
from walkback_store.backends.base import Backend
from walkback_store.errors import NotFound
from walkback_store.frames import BodyPruned, unpack_body
from walkback_store.log import Event, Row
from walkback_store.machine.store_wide import STORE
from walkback_store.values import decode
from walkback_store.words import ApprovalStatus, OperationStatus, RunStatus, Why, WorkerStatus

PAGE = 50
MAX_PAGE = 1000
COUNT_LIMIT = 10_000
GROUP_GAP = 15 * 60 * 1_000_000
"""Alike items less than this apart are one row of the inbox."""
SOON = 15 * 60 * 1_000_000
STUCK_AFTER = 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs. `prefix` is of a run id, `agent_prefix` of an agent's name."""

    status: Sequence[str] = ()
    agent: str | None = None
    agent_prefix: str | None = None
    tag: str | None = None
    since: int | None = None
    until: int | None = None
    prefix: str | None = None
    fingerprint: str | None = None


@dataclass(slots=True)
class Page:
    rows: list[Row]
    older: tuple[Any, ...] | None
    """Pass as `after` for the page behind this one; None when there is none."""
    newer: tuple[Any, ...] | None
    """Pass as `before` for the page in front of this one; None when this is the first."""


@dataclass(slots=True)
class Count:
    """Exact up to 10,000."""

    n: int
    more: bool

    def __str__(self) -> str:
        return f"{COUNT_LIMIT:,}+" if self.more else f"{self.n:,}"


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


def above(prefix: str) -> str | None:
    """The smallest text above every text with this prefix, in byte order; None when there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            following = 0xE000 if last == 0xD7FF else last + 1  # surrogates are not text
            return prefix[:-1] + chr(following)
        prefix = prefix[:-1]
    return None


def _starts(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    end = above(prefix)
    return and_(column >= prefix, column < end) if end is not None else column >= prefix


def page_size(limit: int) -> int:
    return max(1, min(limit, MAX_PAGE))


class Queries:
    """Reading, on connections of its own; never blocked by writers."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def _rows(self, query: Select[Any]) -> list[Row]:
        with self.backend.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    # --- runs ----------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Row:
        rows = self._rows(select(schema.runs).where(schema.runs.c.run_id == run_id))
        if not rows:
            raise NotFound(f"there is no run {run_id!r} in this store.")
        return rows[0]

    def runs(
        self,
        where: RunFilter = RunFilter(),
        *,
        limit: int = PAGE,
        after: tuple[Any, ...] | None = None,
        before: tuple[Any, ...] | None = None,
        last: bool = False,
    ) -> Page:
        """A page of runs, newest first (in id order when filtered by prefix). `last` is the page at the far end."""
        r = schema.runs
        limit = page_size(limit)
        by_id = where.prefix is not None
        key: tuple[ColumnElement[Any], ...] = (r.c.run_id,) if by_id else (r.c.created_at, r.c.run_no)
        query = self._filtered(select(r), where)
        if where.tag is not None and not by_id:
            key = (schema.run_tags.c.created_at, schema.run_tags.c.run_no)
        backwards = before is not None or last
        ascending = by_id != backwards
        at = before if before is not None else after
        if at is not None:
            bound = tuple_(*key) > tuple_(*(literal(v) for v in at))
            below = tuple_(*key) < tuple_(*(literal(v) for v in at))
            query = query.where(bound if ascending else below)
        query = query.order_by(*(c.asc() if ascending else c.desc() for c in key)).limit(limit + 1)
        rows = self._rows(query)
        more = len(rows) > limit
        rows = rows[:limit]
        if backwards:
            rows.reverse()
        if not rows:
            return Page([], None, None)
        names = ("run_id",) if by_id else ("created_at", "run_no")
        first, end = (tuple(row[n] for n in names) for row in (rows[0], rows[-1]))
        has_older = at is not None if before is not None else (False if last else more)
        has_newer = more if backwards else after is not None
        return Page(rows, end if has_older else None, first if has_newer else None)

    def _filtered(self, query: Select[Any], where: RunFilter) -> Select[Any]:
        r = schema.runs
        if where.tag is not None:
            query = query.join(schema.run_tags, schema.run_tags.c.run_no == r.c.run_no)
            query = query.where(schema.run_tags.c.tag == where.tag)
        if where.status:
            query = query.where(
                r.c.status == where.status[0] if len(where.status) == 1 else r.c.status.in_(where.status)
            )
        if where.agent is not None:
            query = query.where(r.c.agent == where.agent)
        if where.agent_prefix is not None:
            query = query.where(r.c.agent.in_(self._agents(where.agent_prefix)))
        if where.since is not None:
            query = query.where(r.c.created_at >= where.since)
        if where.until is not None:
            query = query.where(r.c.created_at < where.until)
        if where.prefix is not None:
            query = query.where(_starts(r.c.run_id, where.prefix))
        if where.fingerprint is not None:
            query = query.where(r.c.fingerprint == where.fingerprint)
        return query

    def _agents(self, prefix: str = "") -> list[str]:
        """The agents there are, found by skipping through the index rather than reading it."""
        names: list[str] = []
        a = schema.runs.c.agent
        with self.backend.engine.connect() as connection:
            at: str | None = None
            while len(names) < MAX_PAGE:
                query = select(func.min(a)).where(_starts(a, prefix))
                found = connection.execute(query if at is None else query.where(a > at)).scalar()
                if found is None:
                    break
                names.append(found)
                at = found
        return names

    def count_runs(self, where: RunFilter = RunFilter()) -> Count:
        inner = self._filtered(select(literal_column("1").label("one")).select_from(schema.runs), where)
        with self.backend.engine.connect() as connection:
            query = select(func.count()).select_from(inner.limit(COUNT_LIMIT + 1).subquery())
            n = int(connection.execute(query).scalar_one())
        return Count(min(n, COUNT_LIMIT), n > COUNT_LIMIT)

    def status_counts(self) -> dict[str, Count]:
        """How many runs there are in each status."""
        r = schema.runs
        parts = []
        for status in RunStatus:
            inner = select(literal_column("1")).where(r.c.status == status.value).limit(COUNT_LIMIT + 1).subquery()
            parts.append(select(literal(status.value).label("status"), func.count().label("n")).select_from(inner))
        with self.backend.engine.connect() as connection:
            rows = connection.execute(union_all(*parts)).all()
        return {status: Count(min(n, COUNT_LIMIT), n > COUNT_LIMIT) for status, n in rows}

    # --- one run -------------------------------------------------------------------------------------------------

    def timeline(
        self, run_id: str, *, after: int = 0, before: int | None = None, limit: int = PAGE, effect: str | None = None
    ) -> list[Row]:
        """Steps in order, with their operations. `after` and `before` are `first_seq` of a step."""
        run = self.run(run_id)
        s, o = schema.steps, schema.operations
        operation = [c.label(f"operation_{c.name}") for c in o.columns if c.name not in {"run_no", "step"}]
        query = (
            select(s, *operation)
            .outerjoin(o, and_(o.c.run_no == s.c.run_no, o.c.step == s.c.step))
            .where(s.c.run_no == run["run_no"])
        )
        if effect is not None:
            query = query.where(o.c.effect == effect)
        if before is not None:
            query = query.where(s.c.first_seq < before).order_by(s.c.first_seq.desc())
            return list(reversed(self._rows(query.limit(page_size(limit)))))
        return self._rows(query.where(s.c.first_seq > after).order_by(s.c.first_seq).limit(page_size(limit)))

    def operation(self, run_id: str, step: str) -> OperationDetail:
        run = self.run(run_id)
        found = {}
        for t in (schema.operations, schema.attempts, schema.approvals, schema.decisions):
            query = select(t).where(t.c.run_no == run["run_no"], t.c.step == step)
            order = [c for c in t.primary_key.columns if c.name not in {"run_no", "step"}]
            newest = query.order_by(*(c.desc() for c in order)) if order else query
            found[t.name] = list(reversed(self._rows(newest.limit(PAGE))))
        if not found["operations"]:
            raise NotFound(f"run {run_id!r} has no operation at step {step}.")
        e = schema.events
        query = select(e).where(e.c.run_no == run["run_no"], e.c.step == step).order_by(e.c.seq.desc()).limit(PAGE)
        events = [self._event(row, run_id) for row in reversed(self._rows(query))]
        return OperationDetail(
            found["operations"][0], run, found["attempts"], found["approvals"], events, found["decisions"]
        )

    def waiting_signals(self, run_id: str, name: str) -> list[Row]:
        s = schema.signals
        query = select(s).where(s.c.run_no == self.run(run_id)["run_no"], s.c.name == name, s.c.consumed_by.is_(None))
        return self._rows(query.order_by(s.c.seq).limit(PAGE))

    # --- events --------------------------------------------------------------------------------------------------

    def events(self, run_id: str | None, *, after: int = 0, limit: int = PAGE) -> list[Event]:
        """Events of a run, or of the store's own log, in order. `after` is the last `seq` you have."""
        if run_id is None:
            run_no, name = schema.STORE_LOG, STORE
        else:
            run_no, name = self._known_run_no(run_id), run_id
        e = schema.events
        query = select(e).where(e.c.run_no == run_no, e.c.seq > after).order_by(e.c.seq).limit(page_size(limit))
        return [self._event(row, name) for row in self._rows(query)]

    def _known_run_no(self, run_id: str) -> int:
        for t in (schema.runs, schema.tombstones):
            rows = self._rows(select(t.c.run_no).where(t.c.run_id == run_id))
            if rows:
                return int(rows[0]["run_no"])
        raise NotFound(f"there is no run {run_id!r} in this store.")

    def events_since(self, cursor: Cursor, limit: int = PAGE) -> tuple[list[Event], Cursor]:
        """Everyone's events in an order in which none appears late. Start with `Cursor()`.

        On PostgreSQL positions are given before commits happen, so the order is by transaction, up to the oldest one
        still under way in the cluster; a long write transaction of anyone's holds this (and nothing else) back.
        """
        e, r, t = schema.events, schema.runs, schema.tombstones
        name = func.coalesce(r.c.run_id, t.c.run_id, STORE).label("run_id")
        base = select(e, name).outerjoin(r, r.c.run_no == e.c.run_no).outerjoin(t, t.c.run_no == e.c.run_no)
        horizon = self.backend.visible_horizon()
        if horizon is None:
            rows = self._rows(base.where(e.c.pos > cursor.pos).order_by(e.c.pos).limit(page_size(limit)))
            return self._since(rows, cursor)
        feed_base = int(self._rows(select(schema.store.c.feed_base))[0]["feed_base"])
        if cursor.pos < feed_base:  # of an earlier epoch: all committed, and transaction numbers mean nothing
            query = base.where(e.c.pos > cursor.pos, e.c.pos <= feed_base).order_by(e.c.pos)
            rows = self._rows(query.limit(page_size(limit)))
            if rows:
                return self._since(rows, cursor)
        xid = literal_column("events.xid", BigInteger)
        query = base.add_columns(xid.label("xid")).where(
            e.c.pos > feed_base,
            xid < horizon,
            tuple_(xid, e.c.pos) > tuple_(literal(cursor.xid), literal(cursor.pos if cursor.xid else 0)),
        )
        return self._since(self._rows(query.order_by(xid, e.c.pos).limit(page_size(limit))), cursor)

    def _since(self, rows: list[Row], cursor: Cursor) -> tuple[list[Event], Cursor]:
        if rows:
            cursor = Cursor(rows[-1].get("xid", 0), rows[-1]["pos"])
        return [self._event(row, row["run_id"]) for row in rows], cursor

    @staticmethod
    def _event(row: Row, run_id: str) -> Event:
        try:
            body: Any = decode(unpack_body(bytes(row["body"])))
        except BodyPruned:
            body = None
        return Event(
            run_id, row["seq"], row["at"], row["kind"], row["actor"], row["step"], bytes(row["hash"]), body, row["pos"]
        )

    # --- the inbox -----------------------------------------------------------------------------------------------

    def inbox(self, now: int, *, limit: int = PAGE, offset: int = 0) -> list[Row]:
        """What needs a person, alike things as one row ×N, in the order in which to look at them.

        Rank: a deadline within 15 minutes; a failed compensation; an unknown that cannot be undone; other unknowns (and
        suspected duplicates); diverged; stuck; approvals; then by stake and age.
        """
        items = self._inbox_items(now).subquery()
        previous = func.lag(items.c.since).over(partition_by=_alike(items), order_by=items.c.since)
        marked = select(items, case((items.c.since - previous <= GROUP_GAP, 0), else_=1).label("starts")).subquery()
        burst = func.sum(marked.c.starts).over(partition_by=_alike(marked), order_by=marked.c.since)
        grouped = select(marked, burst.label("burst")).subquery()
        g = grouped.c
        rank = func.min(g.rank).label("rank")
        stake = func.sum(g.stake_value).label("stake_value")
        query = (
            select(
                g.kind, g.why, g.tool, g.tool_version, g.error_class,
                rank, stake,
                func.count().label("n"),
                func.min(g.since).label("since"),
                func.max(g.since).label("until"),
                func.min(g.deadline).label("deadline"),
                func.min(g.run_id).label("run_id"),
                func.min(g.step).label("step"),
                func.max(g.agent).label("agent"),
                func.max(g.owner).label("owner"),
                func.max(g.detail).label("detail"),
                func.max(g.description).label("description"),
                func.max(g.stake).label("stake"),
                g.burst,
            )
            .group_by(g.kind, g.why, g.tool, g.tool_version, g.error_class, g.burst)
            .order_by(rank, stake.desc().nulls_last(), func.min(g.since), func.min(g.run_id))
            .limit(page_size(limit))
            .offset(offset)
        )  # fmt: skip
        return self._rows(query)

    def inbox_members(self, group: Row, now: int, *, limit: int = PAGE, after: str = "") -> list[Row]:
        """The things behind one row of the inbox, by run id."""
        items = self._inbox_items(now).subquery()
        same = [
            items.c[name].is_(None) if group[name] is None else items.c[name] == group[name]
            for name in ("kind", "why", "tool", "tool_version", "error_class")
        ]
        within = items.c.since.between(group["since"], group["until"])
        query = select(items).where(*same, within, items.c.run_id > after).order_by(items.c.run_id)
        return self._rows(query.limit(page_size(limit)))

    def _inbox_items(self, now: int) -> Select[Any]:
        r, o, a, w = schema.runs, schema.operations, schema.approvals, schema.workers
        none_text, none_int = cast(null(), Text), cast(null(), BigInteger)
        parked = (
            select(
                literal("run").label("kind"),
                r.c.why.label("why"),
                o.c.tool, o.c.tool_version, o.c.error_class,
                case(
                    (r.c.why == Why.COMPENSATION_FAILED, 1),
                    (and_(r.c.why == Why.UNKNOWN, o.c.compensate.is_(None)), 2),
                    (r.c.why.in_([Why.UNKNOWN, Why.DUPLICATE_SUSPECTED]), 3),
                    (r.c.why == Why.DIVERGED, 4),
                    else_=5,
                ).label("rank"),
                r.c.why_since.label("since"),
                none_int.label("deadline"),
                r.c.run_id, r.c.why_step.label("step"), r.c.agent, r.c.owner,
                r.c.why_detail.label("detail"), o.c.description, o.c.stake, o.c.stake_value,
            )
            .outerjoin(o, and_(o.c.run_no == r.c.run_no, o.c.step == r.c.why_step))
            .where(r.c.status == RunStatus.NEEDS_OPERATOR)
        )  # fmt: skip
        suspected = (
            select(
                literal("operation").label("kind"),
                literal(Why.DUPLICATE_SUSPECTED.value).label("why"),
                o.c.tool, o.c.tool_version, o.c.error_class,
                literal(3).label("rank"), func.coalesce(o.c.ended_at, o.c.started_at).label("since"),
                none_int.label("deadline"),
                r.c.run_id, o.c.step, r.c.agent, r.c.owner,
                none_text.label("detail"), o.c.description, o.c.stake, o.c.stake_value,
            )
            .join(r, r.c.run_no == o.c.run_no)
            .where(or_(o.c.status == OperationStatus.UNKNOWN, o.c.duplicate_suspected == 1))
            .where(o.c.duplicate_suspected == 1, r.c.status != RunStatus.NEEDS_OPERATOR)
        )  # fmt: skip
        asked = (
            select(
                literal("approval").label("kind"),
                a.c.rule.label("why"),
                o.c.tool, o.c.tool_version, none_text.label("error_class"),
                case((a.c.expires_at <= now + SOON, 0), else_=6).label("rank"),
                a.c.asked_at.label("since"),
                a.c.expires_at.label("deadline"),
                r.c.run_id, a.c.step, r.c.agent, r.c.owner,
                none_text.label("detail"), o.c.description, o.c.stake, o.c.stake_value,
            )
            .join(o, and_(o.c.run_no == a.c.run_no, o.c.step == a.c.step))
            .join(r, r.c.run_no == a.c.run_no)
            .where(a.c.status == ApprovalStatus.ASKED)
        )  # fmt: skip
        gone = select(w.c.worker).where(w.c.status != WorkerStatus.ALIVE)

        def stuck(why: str, condition: ColumnElement[bool]) -> Select[Any]:
            return select(
                literal("run").label("kind"),
                literal(why).label("why"),
                none_text.label("tool"), none_text.label("tool_version"), none_text.label("error_class"),
                literal(5).label("rank"),
                r.c.updated_at.label("since"),
                none_int.label("deadline"),
                r.c.run_id, r.c.last_step.label("step"), r.c.agent, r.c.owner,
                (r.c.agent + " " + r.c.agent_version).label("detail"),
                none_text.label("description"), none_text.label("stake"), cast(null(), Float).label("stake_value"),
            ).where(condition, r.c.updated_at < now - STUCK_AFTER)  # fmt: skip

        live = r.c.status.in_([RunStatus.RUNNING.value, RunStatus.COMPENSATING.value])
        return select(
            union_all(
                parked,
                suspected,
                asked,
                stuck("worker_lost", and_(live, r.c.worker.in_(gone))),
                stuck("no_worker", and_(live, r.c.worker.is_(None))),
            ).subquery()
        )

    # --- people, workers, freezes --------------------------------------------------------------------------------

    def workers(self, *, limit: int = PAGE) -> list[Row]:
        w = schema.workers
        rows = self._rows(select(w).order_by(w.c.status, w.c.started_at.desc()).limit(page_size(limit)))
        return [row | {"agents": orjson.loads(row["agents"])} for row in rows]

    def freezes(self) -> list[Row]:
        """Those in force."""
        f = schema.freezes
        return self._rows(select(f).where(f.c.lifted_at.is_(None)).order_by(f.c.freeze_no).limit(MAX_PAGE))

    def waiting_decisions(self, *, limit: int = PAGE) -> list[Row]:
        d, r = schema.decisions, schema.runs
        query = select(d, r.c.run_id).join(r, r.c.run_no == d.c.run_no).where(d.c.status == "waiting")
        return self._rows(query.order_by(d.c.not_before).limit(page_size(limit)))

    def batch(self, batch_no: int, *, limit: int = PAGE, after: int = 0) -> tuple[Row, list[Row]]:
        b, m = schema.batches, schema.batch_members
        rows = self._rows(select(b).where(b.c.batch_no == batch_no))
        if not rows:
            raise NotFound(f"there is no batch {batch_no}.")
        query = select(m).where(m.c.batch_no == batch_no, m.c.n > after).order_by(m.c.n).limit(page_size(limit))
        return rows[0], self._rows(query)

    def people_since(self, at: int, *, limit: int = PAGE) -> list[Event]:
        """What operators did, newest first: the stuff of a handover."""
        e, r = schema.events, schema.runs
        query = (
            select(e, func.coalesce(r.c.run_id, STORE).label("run_id"))
            .outerjoin(r, r.c.run_no == e.c.run_no)
            .where(e.c.kind == literal_column("'operator_action'"), e.c.at >= at)
            .order_by(e.c.at.desc(), e.c.pos.desc())
            .limit(page_size(limit))
        )
        return [self._event(row, row["run_id"]) for row in self._rows(query)]


def _alike(t: Any) -> list[ColumnElement[Any]]:
    return [t.c.kind, t.c.why, t.c.tool, t.c.tool_version, t.c.error_class]
