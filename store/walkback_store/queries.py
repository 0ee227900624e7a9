"""What the console asks: runs, one run, events, people. No query loads more than a page.

Where the order of a list and its filter share no index, the list is merged from ranges that do: one for each agent and
status, each already in order. So a page costs what it shows, whatever it is filtered by, and nothing depends on what a
query planner guesses (SQLite keeps no statistics here).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    and_,
    exists,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    union_all,
)

from walkback_store import schema
from walkback_store.errors import NotFound
from walkback_store.frames import BodyPruned, unpack_body
from walkback_store.inbox import Inbox
from walkback_store.log import Event, Row
from walkback_store.machine.base import STORE
from walkback_store.paging import (
    COUNT_LIMIT,
    MAX_PAGE,
    PAGE,
    Count,
    Page,
    above,
    bounded,
    distinct,
    page_size,
    possible,
    sql,
    starts,
)
from walkback_store.reading import Moment
from walkback_store.values import decode
from walkback_store.words import RunStatus

MAX_RANGES = 60
"""A list is merged from at most so many ranges; a filter that would need more is applied row by row."""

FEW = 2_000
"""Of two filters, the one that leaves fewer runs leads; beyond this, neither is worth counting."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs; all that is given must hold. Prefixes are exact: no wildcards, case matters.

    `prefix` is of the run's id, and puts the list in the order of ids; `agent_prefix` is of the agent's name. A search
    box asks twice, and shows what ids it found above what names: one list of both would have no order to page by.
    """

    status: Sequence[str] = ()
    agent: str | None = None
    agent_prefix: str | None = None
    tag: str | None = None
    since: int | None = None
    until: int | None = None
    prefix: str | None = None
    fingerprint: str | None = None


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


class Queries(Inbox):
    """Reading. Rows are plain dicts, named after the columns."""

    # --- runs ----------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Row:
        with self._reading() as moment:
            return self._run(moment, run_id)

    def _run(self, moment: Moment, run_id: str) -> Row:
        r = schema.runs
        rows = moment.rows(select(r).where(r.c.run_id == run_id).limit(1)) if possible(run_id) else []
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
        """A page of runs, newest first (in id order when filtered by prefix). `last` is the page at the far end.

        `after` and `before` are the `older` and `newer` of another page with the same filter. They name a place, not a
        row: what is added or goes elsewhere moves nothing.
        """
        limit = page_size(limit)
        backwards = before is not None or last
        at = before if before is not None else after
        with self._reading() as moment:
            ranges = self._ranges(moment, where)
            rows = moment.rows(_page(ranges, at, backwards, limit + 1)) if ranges else []
            more = len(rows) > limit
            rows = rows[:limit]
            if backwards:
                rows.reverse()
            if not rows:
                return Page([], None, None)
            first, end = (tuple(row[c.name] for c in ranges[0].key) for row in (rows[0], rows[-1]))
            # What lies behind the reader may have changed since, so look: the arrow is there when something is.
            older = more if not backwards else before is not None and _any(moment, ranges, end, backwards=False)
            newer = more if backwards else after is not None and _any(moment, ranges, first, backwards=True)
        return Page(rows, end if older else None, first if newer else None)

    def count_runs(self, where: RunFilter = RunFilter()) -> Count:
        with self._reading() as moment:
            ranges = self._ranges(moment, where)
            return Count.of(_count(moment, ranges, COUNT_LIMIT + 1)) if ranges else Count(0, False)

    def status_counts(self) -> dict[str, Count]:
        """How many runs there are in each status."""
        r = schema.runs
        parts = []
        for status in RunStatus:
            inner = select(literal_column("1")).where(r.c.status == status.value).limit(COUNT_LIMIT + 1).subquery()
            parts.append(select(literal(status.value).label("status"), func.count().label("n")).select_from(inner))
        with self._reading() as moment:
            return {row["status"]: Count.of(row["n"]) for row in moment.rows(union_all(*parts))}

    def _ranges(self, moment: Moment, where: RunFilter) -> list[_Range]:
        """The ranges whose union is exactly the runs asked for; none when there can be no such run."""
        given = (where.agent, where.agent_prefix, where.tag, where.prefix, where.fingerprint, *where.status)
        if not all(possible(text) for text in given if text is not None):
            return []
        r = schema.runs
        statuses = list(dict.fromkeys(where.status))
        agents, by_agent = self._agents(moment, where)
        if agents == []:
            return []
        rest: list[ColumnElement[bool]] = [r.c.status.in_(statuses)] if statuses else []
        rest += by_agent
        if where.fingerprint is not None:
            rest.append(r.c.fingerprint == where.fingerprint)
        tagged = [] if where.tag is None else [_has_tag(where.tag)]
        if where.prefix is not None:
            times = [r.c.created_at >= bounded(where.since)] if where.since is not None else []
            times += [r.c.created_at < bounded(where.until)] if where.until is not None else []
            return [_Range(r, (r.c.run_id,), (*rest, *times, *tagged), (where.prefix,), _end(where.prefix))]

        def by_time(table: FromClause, conditions: Sequence[ColumnElement[bool]]) -> _Range:
            since = None if where.since is None else (bounded(where.since),)
            until = None if where.until is None else (bounded(where.until),)
            return _Range(table, (table.c.created_at, table.c.run_no), tuple(conditions), since, until)

        if where.fingerprint is not None:
            return [by_time(r, [r.c.fingerprint.is_not(None), *rest, *tagged])]
        found = [by_time(r, [*conditions, *tagged]) for conditions in _split(statuses, agents, rest)]
        if where.tag is None:
            return found
        t = schema.run_tags
        of_tag = by_time(t, [t.c.tag == where.tag])
        if rest:
            untagged = [by_time(r, conditions) for conditions in _split(statuses, agents, rest)]
            if _count(moment, untagged, FEW) < _count(moment, [of_tag], FEW):
                return found
            of_tag = by_time(t, [t.c.tag == where.tag, exists().where(r.c.run_no == t.c.run_no, *rest)])
        return [of_tag]

    def _agents(self, moment: Moment, where: RunFilter) -> tuple[list[str] | None, list[ColumnElement[bool]]]:
        """The agents asked for, by name (None: all, or too many to name), and the same as a condition."""
        a = schema.runs.c.agent
        if where.agent_prefix is None:
            return (None, []) if where.agent is None else ([where.agent], [a == where.agent])
        if where.agent is not None:
            return ([where.agent], [a == where.agent]) if where.agent.startswith(where.agent_prefix) else ([], [])
        condition = starts(a, where.agent_prefix)
        names = moment.values(distinct(a, condition, MAX_RANGES + 1))
        return (names if len(names) <= MAX_RANGES else None), [condition]

    # --- one run -------------------------------------------------------------------------------------------------

    def timeline(
        self, run_id: str, *, after: int = 0, before: int | None = None, limit: int = PAGE, effect: str | None = None
    ) -> list[Row]:
        """Steps in order, with their operations. `after` and `before` are `first_seq` of a step."""
        s, o = schema.steps, schema.operations
        operation = [c.label(f"operation_{c.name}") for c in o.columns if c.name not in {"run_no", "step"}]
        with self._reading() as moment:
            run_no = self._run(moment, run_id)["run_no"]
            query = (
                select(s, *operation)
                .outerjoin(o, and_(o.c.run_no == s.c.run_no, o.c.step == s.c.step))
                .where(s.c.run_no == run_no)
                .limit(page_size(limit))
            )
            if effect is not None:
                query = query.where(o.c.effect == effect)
            if before is not None:
                query = query.where(s.c.first_seq < before).order_by(s.c.first_seq.desc())
                return list(reversed(moment.rows(query)))
            return moment.rows(query.where(s.c.first_seq > after).order_by(s.c.first_seq))

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

    # --- workers, freezes, decisions, batches --------------------------------------------------------------------

    def workers(self, *, limit: int = PAGE) -> list[Row]:
        """Those alive first, then the lost, then the stopped; of each the newest first."""
        w = schema.workers
        query = select(w).order_by(w.c.status, w.c.started_at.desc(), w.c.worker).limit(page_size(limit))
        with self._reading() as moment:
            return [row | {"agents": orjson.loads(row["agents"])} for row in moment.rows(query)]

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

    def batch(self, batch_no: int, *, limit: int = PAGE, after: int = 0) -> tuple[Row, list[Row]]:
        """A batch and a page of its members. `after` is the `n` of the last one you have."""
        b, m = schema.batches, schema.batch_members
        with self._reading() as moment:
            rows = moment.rows(select(b).where(b.c.batch_no == batch_no).limit(1))
            if not rows:
                raise NotFound(f"there is no batch {batch_no}.")
            members = select(m).where(m.c.batch_no == batch_no, m.c.n > after).order_by(m.c.n)
            return rows[0], moment.rows(members.limit(page_size(limit)))


# --- lists merged from ranges ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    """A stretch of one index, from `low` up to and without `high`; the rest of the filter is looked at row by row."""

    table: FromClause
    key: tuple[ColumnElement[Any], ...]
    conditions: tuple[ColumnElement[bool], ...]
    low: tuple[Any, ...] | None
    high: tuple[Any, ...] | None

    def where(self, at: tuple[Any, ...] | None = None, rising: bool = True) -> list[ColumnElement[bool]]:
        """One bound at each end and never two: with two, SQLite searches by one and reads its way to the other."""
        first = self.key[0]
        bounds = []
        here = None if at is None else tuple_(*map(literal, at))
        if here is not None and at is not None and rising and (self.low is None or at >= self.low):
            bounds.append(tuple_(*self.key) > here)
        elif self.low is not None:
            bounds.append(first >= self.low[0])
        if here is not None and at is not None and not rising and (self.high is None or at < self.high):
            bounds.append(tuple_(*self.key) < here)
        elif self.high is not None:
            bounds.append(first < self.high[0])
        return [*self.conditions, *bounds]


def _split(
    statuses: Sequence[str], agents: Sequence[str] | None, rest: Sequence[ColumnElement[bool]]
) -> list[list[ColumnElement[bool]]]:
    """The conditions of each range: by agent and status, by status, or of one range over everything."""
    r = schema.runs
    if agents is not None:
        of_each = statuses or [status.value for status in RunStatus]
        if len(agents) * len(of_each) <= MAX_RANGES:
            return [[r.c.agent == agent, r.c.status == status] for agent in agents for status in of_each]
    if statuses:
        return [[r.c.status == status, *rest] for status in statuses]
    return [list(rest)]


def _page(ranges: Sequence[_Range], at: tuple[Any, ...] | None, backwards: bool, limit: int) -> Select[Any]:
    r = schema.runs
    names = [c.name for c in ranges[0].key]
    rising = (names == ["run_id"]) != backwards
    parts = []
    for of in ranges:
        key = [*of.key, *([] if "run_no" in names else [of.table.c.run_no])]
        order = [c.asc() if rising else c.desc() for c in of.key]
        part = select(*key).where(*of.where(at, rising)).order_by(*order).limit(limit)
        parts.append(select(part.subquery()))
    keys = (parts[0] if len(parts) == 1 else union_all(*parts)).subquery("keys")
    order = [keys.c[name].asc() if rising else keys.c[name].desc() for name in names]
    return select(r).join(keys, keys.c.run_no == r.c.run_no).order_by(*order).limit(limit)


def _any(moment: Moment, ranges: Sequence[_Range], at: tuple[Any, ...], *, backwards: bool) -> bool:
    return bool(moment.rows(_page(ranges, at, backwards, 1)))


def _count(moment: Moment, ranges: Sequence[_Range], limit: int) -> int:
    one = literal_column("1", Integer).label("one")
    parts = [select(select(one).select_from(of.table).where(*of.where()).limit(limit).subquery()) for of in ranges]
    found = (parts[0] if len(parts) == 1 else union_all(*parts)).limit(limit).subquery()
    return int(moment.values(select(func.count()).select_from(found))[0])


def _has_tag(tag: str) -> ColumnElement[bool]:
    r, t = schema.runs, schema.run_tags
    return exists().where(t.c.tag == tag, t.c.created_at == r.c.created_at, t.c.run_no == r.c.run_no)


def _end(prefix: str) -> tuple[str] | None:
    end = above(prefix)
    return None if end is None else (end,)


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
