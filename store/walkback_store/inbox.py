"""What needs a person: alike things as one row, in the order in which to look at them.

An item is one trouble: an operation whose outcome is unknown, a run parked for another reason, a suspected duplicate,
an approval that is asked for, a run that nobody works on. What somebody has decided about is no item while the decision
waits: the run waits with it, and nobody has to do anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    FromClause,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    tuple_,
    union_all,
)

from walkback_store import schema
from walkback_store.log import Row
from walkback_store.paging import COUNT_LIMIT, MAX_PAGE, PAGE, Count, Page, distinct, page_size, sql, usually
from walkback_store.reading import Moment, Reader
from walkback_store.words import Why

MINUTE = 60 * 1_000_000
GROUP_GAP = 15 * MINUTE
"""Alike items this close to each other are one row."""
SOON = 15 * MINUTE
"""A deadline nearer than this comes first."""
STUCK_AFTER = MINUTE
"""A run that no worker can take is stuck after this long."""
OVERDUE_AFTER = 15 * MINUTE
"""A run that some worker could take, and none has, is stuck after this long: they are too busy, or they hang."""
MAX_STUCK = 20
"""So many agent versions and workers are looked at for runs that nobody works on."""

APPROVAL, STUCK = "approval", "stuck"
KINDS = (*(why.value for why in Why), STUCK, APPROVAL)
"""The kinds of row: why a run needs an operator, and two that are no run's status."""

ALIKE = ("kind", "why", "target", "tool", "tool_version", "error_class")
"""What items of one row have in common, beside being close in time."""

PARKED = sql("runs.status = 'needs_operator'")
FREE = and_(sql("runs.worker IS NULL"), usually(sql("runs.status IN ('running', 'compensating')")))
ASLEEP = and_(usually(sql("runs.status = 'waiting'")), sql("runs.wake_at IS NOT NULL"))
HELD = sql("runs.worker IS NOT NULL")
UNKNOWN = sql("operations.status = 'unknown'")
SUSPECTED = sql("operations.duplicate_suspected = 1")
ASKED = sql("approvals.status = 'asked'")
ALIVE = sql("workers.status = 'alive'")

_AMOUNT = "0123456789.,+- "
_TEXT, _INT, _NUMBER = cast(null(), Text), cast(null(), BigInteger), cast(null(), Float)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where items come from, and what is known of them before any is looked at closely."""

    kinds: tuple[str, ...]
    columns: dict[str, ColumnElement[Any]]
    table: FromClause
    where: tuple[ColumnElement[bool], ...]
    limited: bool = False
    """Whether there may be so many of them that a count of them stops somewhere."""

    def items(self, *names: str) -> Select[Any]:
        query = select(*(self.columns[name].label(name) for name in names or self.columns))
        query = query.select_from(self.table).where(*self.where)
        return select(query.limit(COUNT_LIMIT + 1).subquery()) if self.limited else query


class Inbox(Reader):
    def inbox(self, now: int, *, limit: int = PAGE, offset: int = 0) -> list[Row]:
        """A page of rows, in this order: a deadline within 15 minutes; a failed compensation; an unknown that cannot be
        undone; other unknowns and suspected duplicates; diverged; stuck (and drift, budget spent, review); approvals;
        then the higher stake, then the older.

        One row holds `n` items of the same kind, tool, version and error class, each within 15 minutes of the next. So
        an outage is one row however long it lasts: it has one cause and wants one answer. Windows of fixed length would
        cut it somewhere, and somewhere else as soon as its oldest item is dealt with. What is stuck is one row for each
        agent version, or worker, whenever it began.

        `run_id`, `step` and all that describes them are those of the oldest item. `stake_value` is the sum; where
        `mixed_stakes` is 1 the items are in several currencies, and it is no amount of anything. `deadline` is the
        nearest one: when an approval expires, or until when the other side knows the key of an unknown.
        """
        with self._reading() as moment:
            items = union_all(*(source.items() for source in _sources(moment, now))).subquery("items")
            return moment.rows(_described(_grouped(items, page_size(limit), max(0, offset))))

    def inbox_members(self, group: Row, now: int, *, limit: int = PAGE, after: tuple[Any, ...] | None = None) -> Page:
        """The items behind one row of the inbox, oldest first. `after` is the `older` of the page before."""
        limit = page_size(limit)
        kind = group["kind"]
        with self._reading() as moment:
            sources = [source for source in _sources(moment, now) if kind in source.kinds]
            if not sources:
                return Page([], None, None)
            items = union_all(*(source.items() for source in sources)).subquery("items")
            # An approval's `why` is its rule, by which approvals are not told apart.
            names = [name for name in ALIKE if (name, kind) != ("why", APPROVAL)]
            same = [items.c[name].is_not_distinct_from(group[name]) for name in names]
            query = select(items).where(*same, items.c.since.between(group["since"], group["until"]))
            key = (items.c.since, items.c.run_no, func.coalesce(items.c.step, ""))
            if after is not None:
                query = query.where(tuple_(*key) > tuple_(*map(literal, after)))
            page = query.order_by(*key).limit(limit + 1).subquery("page")
            described = _described(page).order_by(page.c.since, page.c.run_no, func.coalesce(page.c.step, ""))
            rows = moment.rows(described.limit(limit + 1))
        more, rows = len(rows) > limit, rows[:limit]
        end = (rows[-1]["since"], rows[-1]["run_no"], rows[-1]["step"] or "") if more else None
        return Page(rows, end, None)

    def inbox_counts(self, now: int) -> dict[str, Count]:
        """How many items there are of each kind; kinds of which there are none are left out."""
        with self._reading() as moment:
            parts = []
            for source in _sources(moment, now):
                some = source.items("kind").limit(len(source.kinds) * COUNT_LIMIT + 1).subquery()
                parts.append(select(some.c.kind, func.count().label("n")).group_by(some.c.kind))
            found = dict.fromkeys(KINDS, 0)
            for row in moment.rows(union_all(*parts)):
                found[row["kind"]] += row["n"]
        return {kind: Count.of(n) for kind, n in found.items() if n}


# --- rows from items ---------------------------------------------------------------------------------------------


def _grouped(items: FromClause, limit: int, offset: int) -> FromClause:
    """Bursts of alike items, with no more of each than it takes to find and order them."""
    order = (items.c.since, items.c.run_no, items.c.step)
    alike = [items.c[name] for name in ALIKE]
    previous = func.lag(items.c.since).over(partition_by=alike, order_by=order)
    goes_on = and_(previous.is_not(None), or_(items.c.kind == STUCK, items.c.since - previous <= GROUP_GAP))
    marked = select(items, case((goes_on, 0), else_=1).label("begins")).subquery("marked")
    m = marked.c
    alike = [m[name] for name in ALIKE]
    burst = func.sum(m.begins).over(partition_by=alike, order_by=(m.since, m.run_no, m.step))
    numbered = select(marked, burst.label("burst")).subquery("numbered")
    g = numbered.c
    oldest = g.begins == 1  # of exactly one item in each burst
    rank, stake = func.min(g.rank), func.sum(g.stake_value)
    run_no, step = func.max(case((oldest, g.run_no))), func.max(case((oldest, g.step)))
    return (
        select(
            *(g[name] for name in ALIKE),
            rank.label("rank"),
            func.count().label("n"),
            func.min(g.since).label("since"),
            func.max(g.since).label("until"),
            func.min(g.deadline).label("deadline"),
            stake.label("stake_value"),
            case((func.min(g.unit) != func.max(g.unit), 1), else_=0).label("mixed_stakes"),
            run_no.label("run_no"),
            step.label("step"),
        )
        .group_by(*(g[name] for name in ALIKE), g.burst)
        .order_by(rank, stake.desc().nulls_last(), func.min(g.since), run_no, step, g.kind)
        .limit(limit)
        .offset(offset)
        .subquery("page")
    )


def _described(page: FromClause) -> Select[Any]:
    """A page of items or of rows, with what a person wants to read."""
    r, o, a = schema.runs, schema.operations, schema.approvals
    p = page.c
    own = [column for column in p if column.name not in {"why", "unit"}]
    query = (
        select(
            *own,
            func.coalesce(p.why, a.c.rule).label("why"),
            r.c.run_id,
            r.c.agent,
            r.c.agent_version,
            r.c.owner,
            func.coalesce(p.target, case((p.step == r.c.why_step, r.c.why_detail)), o.c.error).label("detail"),
            o.c.description,
            o.c.stake,
        )
        .join(r, r.c.run_no == p.run_no)
        .outerjoin(o, and_(o.c.run_no == p.run_no, o.c.step == p.step))
        .outerjoin(a, and_(p.kind == APPROVAL, a.c.run_no == p.run_no, a.c.step == p.step, ASKED))
    )
    if "n" not in p:
        return query
    order = (p.rank, p.stake_value.desc().nulls_last(), p.since, p.run_no, p.step, p.kind)
    return query.order_by(*order).limit(MAX_PAGE)


# --- items -------------------------------------------------------------------------------------------------------


def _sources(moment: Moment, now: int) -> list[_Source]:
    return [_parked(), _unknown(now), _suspected(), _asked(now), _lapsed(now), *_stuck(moment, now)]


def _columns(
    kind: ColumnElement[Any],
    rank: ColumnElement[Any],
    since: ColumnElement[Any],
    step: ColumnElement[Any],
    run_no: ColumnElement[Any],
    *,
    why: ColumnElement[Any] | None = None,
    target: ColumnElement[Any] = _TEXT,
    deadline: ColumnElement[Any] = _INT,
    with_call: bool = True,
    error_class: ColumnElement[Any] | None = None,
) -> dict[str, ColumnElement[Any]]:
    o = schema.operations
    return {
        "kind": kind,
        "why": kind if why is None else why,
        "target": target,
        "tool": o.c.tool if with_call else _TEXT,
        "tool_version": o.c.tool_version if with_call else _TEXT,
        "error_class": (o.c.error_class if with_call else _TEXT) if error_class is None else error_class,
        "rank": rank,
        "since": since,
        "deadline": deadline,
        "stake_value": o.c.stake_value if with_call else _NUMBER,
        "unit": func.trim(o.c.stake, _AMOUNT) if with_call else _TEXT,
        "run_no": run_no,
        "step": step,
    }


def _about_unknowns() -> ColumnElement[bool]:
    """The run is parked because of its unknown operations, and each of those is an item of its own."""
    r = schema.runs
    return and_(r.c.why == Why.UNKNOWN.value, r.c.unknown_operations > 0)


def _parked() -> _Source:
    """Runs that need an operator for another reason than an unknown."""
    r, o = schema.runs, schema.operations
    rank = case(
        (r.c.why == Why.COMPENSATION_FAILED.value, 1),
        (and_(r.c.why == Why.UNKNOWN.value, o.c.compensate.is_(None)), 2),
        (r.c.why.in_([Why.UNKNOWN.value, Why.DUPLICATE_SUSPECTED.value]), 3),
        (r.c.why == Why.DIVERGED.value, 4),
        else_=5,
    )
    return _Source(
        tuple(why.value for why in Why),
        _columns(r.c.why, rank, r.c.why_since, r.c.why_step, r.c.run_no),
        r.outerjoin(o, and_(o.c.run_no == r.c.run_no, o.c.step == r.c.why_step)),
        (PARKED, not_(_about_unknowns())),
    )


def _unknown(now: int) -> _Source:
    """Operations whose outcome is unknown, all of them, in runs that are parked. (A run that goes on, or waits for a
    decision to be carried out, does not want anything of anyone.)"""
    r, o = schema.runs, schema.operations
    deadline = case((o.c.key_until > now, o.c.key_until))
    rank = case((and_(o.c.key_until > now, o.c.key_until <= now + SOON), 0), (o.c.compensate.is_(None), 2), else_=3)
    covered = and_(not_(_about_unknowns()), r.c.why_step.is_not_distinct_from(o.c.step))
    return _Source(
        (Why.UNKNOWN.value,),
        _columns(literal(Why.UNKNOWN.value), rank, _ended(), o.c.step, o.c.run_no, deadline=deadline),
        o.join(r, r.c.run_no == o.c.run_no),
        (UNKNOWN, PARKED, not_(covered)),
    )


def _suspected() -> _Source:
    """Suspected duplicates that no other item is about, whatever became of the run since."""
    r, o = schema.runs, schema.operations
    as_unknown = and_(PARKED, UNKNOWN)
    as_parked = and_(PARKED, not_(_about_unknowns()), r.c.why_step.is_not_distinct_from(o.c.step))
    decided = and_(r.c.status == "waiting", func.coalesce(r.c.waits_for, "").startswith("decision:", autoescape=True))
    kind = literal(Why.DUPLICATE_SUSPECTED.value)
    return _Source(
        (Why.DUPLICATE_SUSPECTED.value,),
        _columns(kind, literal(3), _ended(), o.c.step, o.c.run_no),
        o.join(r, r.c.run_no == o.c.run_no),
        (SUSPECTED, not_(or_(as_unknown, as_parked, decided))),
    )


def _ended() -> ColumnElement[Any]:
    o = schema.operations
    return func.coalesce(o.c.ended_at, o.c.started_at)


def _asked(now: int) -> _Source:
    """Approvals that can still be given, whatever the run does meanwhile."""
    o, a = schema.operations, schema.approvals
    rank = case((a.c.expires_at <= now + SOON, 0), else_=6)
    columns = _columns(
        literal(APPROVAL),
        rank,
        a.c.asked_at,
        a.c.step,
        a.c.run_no,
        why=_TEXT,
        deadline=a.c.expires_at,
        error_class=_TEXT,
    )
    return _Source(
        (APPROVAL,),
        columns,
        a.join(o, and_(o.c.run_no == a.c.run_no, o.c.step == a.c.step)),
        (ASKED, or_(a.c.expires_at.is_(None), a.c.expires_at > now)),
    )


def _lapsed(now: int) -> _Source:
    """Approvals whose time is up and that nobody has expired, in runs that nothing else will wake."""
    r, o, a = schema.runs, schema.operations, schema.approvals
    columns = _columns(
        literal(STUCK),
        literal(5),
        a.c.expires_at,
        a.c.step,
        a.c.run_no,
        why=literal("approval_lapsed"),
        error_class=_TEXT,
    )
    return _Source(
        (STUCK,),
        columns,
        a.join(o, and_(o.c.run_no == a.c.run_no, o.c.step == a.c.step)).join(r, r.c.run_no == a.c.run_no),
        (ASKED, a.c.expires_at <= now - STUCK_AFTER, usually(r.c.status == "waiting"), r.c.wake_at.is_(None)),
    )


# --- runs that nobody works on -----------------------------------------------------------------------------------


def _stuck(moment: Moment, now: int) -> Iterator[_Source]:
    """Usually none. Which agent versions have a worker is in JSON, so it is looked up first, and asked for by name."""
    r, w = schema.runs, schema.workers
    workers = {row["worker"]: row["agents"] for row in moment.rows(select(w).where(ALIVE).limit(MAX_PAGE))}
    served = {
        (agent, v) for text in workers.values() for agent, versions in orjson.loads(text).items() for v in versions
    }
    gone = [name for name in moment.values(distinct(r.c.worker, HELD, MAX_PAGE)) if name not in workers]
    if gone:
        yield _worker_lost(gone[:MAX_STUCK], now)
    for of, since in ((FREE, r.c.updated_at), (ASLEEP, r.c.wake_at)):
        unserved, waiting = [], []
        for row in moment.rows(_heads(of, since)):
            pair = (row["agent"], row["agent_version"])
            if pair not in served:
                unserved.append(pair)
            elif row["since"] <= now - OVERDUE_AFTER:  # what a worker would take next
                waiting.append(pair)
        for agent, version in unserved[:MAX_STUCK]:
            yield _nobody("no_worker", of, agent, version, since, now - STUCK_AFTER)
        for agent, version in waiting[:MAX_STUCK]:
            yield _nobody("overdue", of, agent, version, since, now - OVERDUE_AFTER)


def _heads(of: ColumnElement[bool], since: Column[Any]) -> Select[Any]:
    """For each agent version of which runs wait for a worker, the run that is next; by skipping through the index."""
    r = schema.runs
    next_one = schema.runs.alias("next_one")
    place = r.c.run_no if of is FREE else r.c.wake_at
    first = select(r.c.agent, r.c.agent_version, since.label("since")).where(of, r.c.agent >= "")
    first = first.order_by(r.c.agent, r.c.agent_version, place).limit(1)
    heads = select(first.subquery()).cte("heads", recursive=True)
    version = and_(r.c.agent == heads.c.agent, r.c.agent_version > heads.c.agent_version)
    found = [
        select(r.c.run_no).where(of, beyond).order_by(*order, place).limit(1).correlate(heads).scalar_subquery()
        for beyond, order in (
            (version, (r.c.agent_version,)),
            (r.c.agent > heads.c.agent, (r.c.agent, r.c.agent_version)),
        )
    ]
    following = select(next_one.c.agent, next_one.c.agent_version, next_one.c[since.name])
    following = following.select_from(heads.join(next_one, next_one.c.run_no == func.coalesce(*found)))
    heads = heads.union_all(following)
    return select(heads.c.agent, heads.c.agent_version, heads.c.since).limit(MAX_PAGE)


def _worker_lost(gone: Sequence[str], now: int) -> _Source:
    r, w = schema.runs, schema.workers
    since = func.coalesce(w.c.ended_at, r.c.updated_at)
    columns = _columns(
        literal(STUCK), literal(5), since, r.c.last_step, r.c.run_no,
        why=literal("worker_lost"), target=r.c.worker, with_call=False,
    )  # fmt: skip
    where = (HELD, r.c.worker.in_(gone), since <= now - STUCK_AFTER)
    return _Source((STUCK,), columns, r.outerjoin(w, w.c.worker == r.c.worker), where, limited=True)


def _nobody(
    why: str, of: ColumnElement[bool], agent: str, version: str, since: ColumnElement[Any], until: int
) -> _Source:
    r = schema.runs
    columns = _columns(
        literal(STUCK), literal(5), since, r.c.last_step, r.c.run_no,
        why=literal(why), target=r.c.agent + " " + r.c.agent_version, with_call=False,
    )  # fmt: skip
    where = (of, r.c.agent == agent, r.c.agent_version == version, since <= until)
    return _Source((STUCK,), columns, r, where, limited=True)
