"""Lists of runs: filtered, counted, and read a page at a time in both directions.

Where the order of a list and its filter share no index, the list is merged from ranges that do: one for each agent and
status, each already in order. So a page costs what it shows, whatever it is filtered by, and nothing depends on what a
query planner guesses (SQLite keeps no statistics here).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Select,
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
from walkback_store.log import Row
from walkback_store.paging import (
    COUNT_LIMIT,
    PAGE,
    Count,
    Page,
    above,
    bounded,
    distinct,
    page_size,
    possible,
    starts,
)
from walkback_store.reading import Moment, Reader
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


class RunLists(Reader):
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
        names = moment.values(distinct(a, None, MAX_RANGES + 1, where.agent_prefix))
        return (names if len(names) <= MAX_RANGES else None), [starts(a, where.agent_prefix)]


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
