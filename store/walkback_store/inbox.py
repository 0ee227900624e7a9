"""What needs a person: alike things as one row, in the order in which to look at them.

An item is one trouble: an operation whose outcome is unknown, a run parked for another reason, a suspected duplicate,
an approval that is asked for, a run that nobody works on. What somebody has decided about is no item while the decision
waits: the run waits with it, and nobody has to do anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
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
MAX_STUCK = 50
"""So many agent versions, and workers, are looked at for runs that nobody works on."""

APPROVAL, STUCK = "approval", "stuck"
KINDS = (*(why.value for why in Why), STUCK, APPROVAL)
"""The kinds of row: why a run needs an operator, and two that are no status of a run."""

PARKED = sql("runs.status = 'needs_operator'")
FREE = and_(sql("runs.worker IS NULL"), usually(sql("runs.status IN ('running', 'compensating')")))
ASLEEP = sql("runs.wake_at IS NOT NULL")  # only a waiting run has a time
HELD = sql("runs.worker IS NOT NULL")
UNKNOWN = sql("operations.status = 'unknown'")
SUSPECTED = sql("operations.duplicate_suspected = 1")
ASKED = sql("approvals.status = 'asked'")
ALIVE = sql("workers.status = 'alive'")

NOW: ColumnElement[int] = bindparam("now", type_=BigInteger)
"""The queries here are put together once, and asked with other values each time."""

_AMOUNT = "0123456789.,+- "
_TEXT, _INT, _NUMBER = cast(null(), Text), cast(null(), BigInteger), cast(null(), Float)
_r, _o, _a, _w = schema.runs, schema.operations, schema.approvals, schema.workers


class Inbox(Reader):
    def inbox(self, now: int, *, limit: int = PAGE, offset: int = 0) -> list[Row]:
        """A page of rows, in this order: a deadline within 15 minutes; a failed compensation; an unknown that cannot be
        undone; other unknowns and suspected duplicates; diverged; stuck (and drift, budget spent, review); approvals;
        then the higher stake, then the older.

        One row holds `n` items of the same kind, tool, version and error class, each within 15 minutes of the next. So
        an outage is one row however long it lasts: it has one cause and wants one answer. Windows of fixed length would
        cut it somewhere, and somewhere else as soon as its oldest item is dealt with. Items whose deadline is near are
        a row of their own; what is stuck is one row for each agent version or worker, whenever it began.

        `run_id`, `step` and all that describes them are those of the oldest item. `stake_value` is the sum; where
        `mixed_stakes` is 1 the items are in several currencies, and it is no amount of anything. `deadline` is the
        nearest one: when an approval expires, or until when the other side knows the key of an unknown.
        """
        limit, offset = page_size(limit), max(0, offset)
        with self._reading() as moment:
            given = _nobody_works_on(moment, now) | {"now": now, "limit": limit, "offset": offset}
            rows = moment.rows(_FIRST, given)
            if len(rows) < limit:  # approvals come last, so they are not looked at while there is enough before them
                before = offset + len(rows) if rows else int(moment.values(_HOW_MANY_FIRST, given)[0])
                given |= {"limit": limit - len(rows), "offset": max(0, offset - before)}
                rows += moment.rows(_LAST, given)
        return rows

    def inbox_members(self, group: Row, now: int, *, limit: int = PAGE, after: tuple[Any, ...] | None = None) -> Page:
        """The items behind one row of the inbox, oldest first. `after` is the `older` of the page before."""
        limit = page_size(limit)
        items = union_all(*(source.items() for source in SOURCES if group["kind"] in source.kinds)).subquery("items")
        i = items.c
        query = select(items).where(i.alike == group["alike"], i.since.between(group["since"], group["until"]))
        key = (i.since, i.run_no, func.coalesce(i.step, ""))
        if after is not None:
            query = query.where(tuple_(*key) > tuple_(*map(literal, after)))
        page = query.order_by(*key).limit(limit + 1).subquery("page")
        described = _described(page).order_by(page.c.since, page.c.run_no, func.coalesce(page.c.step, ""))
        with self._reading() as moment:
            given = _nobody_works_on(moment, now) | {"now": now}
            rows = moment.rows(described.limit(limit + 1), given)
        more, rows = len(rows) > limit, rows[:limit]
        return Page(rows, (rows[-1]["since"], rows[-1]["run_no"], rows[-1]["step"] or "") if more else None, None)

    def inbox_counts(self, now: int) -> dict[str, Count]:
        """How many items there are of each kind; kinds of which there are none are left out."""
        found = dict.fromkeys(KINDS, 0)
        with self._reading() as moment:
            for row in moment.rows(_COUNTS, _nobody_works_on(moment, now) | {"now": now}):
                found[row["kind"]] += row["n"]
        return {kind: Count.of(n) for kind, n in found.items() if n}


# --- items -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Source:
    """Where items come from, with no more of each item than it takes to group and order them."""

    kinds: tuple[str, ...]
    columns: dict[str, ColumnElement[Any]]
    table: FromClause
    where: tuple[ColumnElement[bool], ...]
    limited: bool = False
    """There may be very many, so they are counted up to a limit only."""

    def items(self, *names: str) -> Select[Any]:
        query = select(*(self.columns[name].label(name) for name in names or self.columns))
        query = query.select_from(self.table).where(*self.where)
        return select(query.limit(COUNT_LIMIT + 1).subquery()) if self.limited else query


def _item(
    kind: ColumnElement[Any],
    rank: ColumnElement[Any],
    since: ColumnElement[Any],
    run_no: ColumnElement[Any],
    step: ColumnElement[Any],
    alike: Sequence[ColumnElement[Any]],
    *,
    why: ColumnElement[Any] | None = None,
    deadline: ColumnElement[Any] = _INT,
    stake: bool = True,
) -> dict[str, ColumnElement[Any]]:
    """`alike` is one text, to be compared at once; names with the separator in them might at worst share a row."""
    text = cast(rank, Text) + "\x1f" + kind
    for part in alike:
        text = text + "\x1f" + func.coalesce(part, "")
    return {
        "alike": text,
        "kind": kind,
        "why": kind if why is None else why,
        "rank": rank,
        "since": since,
        "deadline": deadline,
        "stake_value": _o.c.stake_value if stake else _NUMBER,
        "unit": func.trim(_o.c.stake, _AMOUNT) if stake else _TEXT,
        "run_no": run_no,
        "step": step,
    }


_CALL = (_o.c.tool, _o.c.tool_version)
_FAILED_CALL = (*_CALL, _o.c.error_class)
_ENDED = func.coalesce(_o.c.ended_at, _o.c.started_at)
_SAYS_UNKNOWN = and_(_r.c.why == Why.UNKNOWN.value, _r.c.unknown_operations > 0)
"""The run is parked because of its unknown operations, and each of those is an item of its own."""
_SAYS_THIS = and_(not_(_SAYS_UNKNOWN), _r.c.why_step.is_not_distinct_from(_o.c.step))
"""The run is parked because of this operation, for another reason, and is itself the item."""


def _parked() -> _Source:
    """Runs that need an operator for another reason than an unknown."""
    rank = case(
        (_r.c.why == Why.COMPENSATION_FAILED.value, 1),
        (and_(_r.c.why == Why.UNKNOWN.value, _o.c.compensate.is_(None)), 2),
        (_r.c.why.in_([Why.UNKNOWN.value, Why.DUPLICATE_SUSPECTED.value]), 3),
        (_r.c.why == Why.DIVERGED.value, 4),
        else_=5,
    )
    return _Source(
        tuple(why.value for why in Why),
        _item(_r.c.why, rank, _r.c.why_since, _r.c.run_no, _r.c.why_step, _FAILED_CALL),
        _r.outerjoin(_o, and_(_o.c.run_no == _r.c.run_no, _o.c.step == _r.c.why_step)),
        (PARKED, not_(_SAYS_UNKNOWN)),
    )


def _unknown() -> _Source:
    """Every operation whose outcome is unknown, in runs that are parked. A run that goes on, or that waits until a
    decision is carried out, wants nothing of anyone."""
    until = _o.c.key_until
    rank = case((and_(until > NOW, until <= NOW + SOON), 0), (_o.c.compensate.is_(None), 2), else_=3)
    kind = literal(Why.UNKNOWN.value)
    return _Source(
        (Why.UNKNOWN.value,),
        _item(kind, rank, _ENDED, _o.c.run_no, _o.c.step, _FAILED_CALL, deadline=case((until > NOW, until))),
        _o.join(_r, _r.c.run_no == _o.c.run_no),
        (UNKNOWN, usually(PARKED), not_(_SAYS_THIS)),
    )


def _suspected() -> _Source:
    """Suspected duplicates that no other item is about, whatever became of the run since."""
    decided = and_(_r.c.status == "waiting", func.coalesce(_r.c.waits_for, "").startswith("decision:"))
    kind = literal(Why.DUPLICATE_SUSPECTED.value)
    return _Source(
        (Why.DUPLICATE_SUSPECTED.value,),
        _item(kind, literal(3), _ENDED, _o.c.run_no, _o.c.step, _FAILED_CALL),
        _o.join(_r, _r.c.run_no == _o.c.run_no),
        (SUSPECTED, not_(or_(and_(PARKED, or_(UNKNOWN, _SAYS_THIS)), decided))),
    )


def _asked(rank: int, time_left: ColumnElement[bool]) -> _Source:
    """Approvals that can still be given, whatever the run does meanwhile."""
    columns = _item(
        literal(APPROVAL), literal(rank), _a.c.asked_at, _a.c.run_no, _a.c.step, _CALL,
        why=_TEXT, deadline=_a.c.expires_at,
    )  # fmt: skip
    of = _a.join(_o, and_(_o.c.run_no == _a.c.run_no, _o.c.step == _a.c.step))
    return _Source((APPROVAL,), columns, of, (ASKED, time_left))


def _lapsed() -> _Source:
    """Approvals whose time is up and that nobody has expired, in runs that nothing will wake."""
    why = literal("approval_lapsed")
    return _Source(
        (STUCK,),
        _item(literal(STUCK), literal(5), _a.c.expires_at, _a.c.run_no, _a.c.step, (why, *_CALL), why=why),
        _a.join(_o, and_(_o.c.run_no == _a.c.run_no, _o.c.step == _a.c.step)).join(_r, _r.c.run_no == _a.c.run_no),
        (ASKED, _a.c.expires_at <= NOW - STUCK_AFTER, usually(_r.c.status == "waiting"), _r.c.wake_at.is_(None)),
    )


# --- runs that nobody works on -----------------------------------------------------------------------------------


def _worker_lost() -> _Source:
    since = func.coalesce(_w.c.ended_at, _r.c.updated_at)
    why = literal("worker_lost")
    return _Source(
        (STUCK,),
        _item(literal(STUCK), literal(5), since, _r.c.run_no, _r.c.last_step, (why, _r.c.worker), why=why, stake=False),
        _r.outerjoin(_w, _w.c.worker == _r.c.worker),
        (HELD, _r.c.worker.in_(bindparam("gone", expanding=True)), since <= NOW - STUCK_AFTER),
        limited=True,
    )


def _not_taken(why: str, which: str, after: int) -> _Source:
    waiting, since = _WAITING[which]
    of = (literal(why), _r.c.agent, _r.c.agent_version)
    pairs: ColumnElement[Any] = bindparam(f"{why}_{which}", expanding=True)
    return _Source(
        (STUCK,),
        _item(literal(STUCK), literal(5), since, _r.c.run_no, _r.c.last_step, of, why=literal(why), stake=False),
        _r,
        (waiting, tuple_(_r.c.agent, _r.c.agent_version).in_(pairs), since <= NOW - after),
        limited=True,
    )


_WAITING = {"free": (FREE, _r.c.updated_at), "asleep": (ASLEEP, _r.c.wake_at)}
"""Runs that a worker may take, at once or at some time, and since when."""


def _heads(which: str) -> Select[Any]:
    """For each agent version of which runs wait for a worker, the run that is next; by skipping through the index."""
    waiting, since = _WAITING[which]
    place = _r.c.run_no if which == "free" else _r.c.wake_at
    next_one = schema.runs.alias("next_one")
    first = select(_r.c.agent, _r.c.agent_version, since.label("since")).where(waiting, _r.c.agent >= "")
    first = first.order_by(_r.c.agent, _r.c.agent_version, place).limit(1)
    heads = select(first.subquery()).cte("heads", recursive=True)
    beyond = (
        (and_(_r.c.agent == heads.c.agent, _r.c.agent_version > heads.c.agent_version), (_r.c.agent_version,)),
        (_r.c.agent > heads.c.agent, (_r.c.agent, _r.c.agent_version)),
    )
    found = [
        select(_r.c.run_no).where(waiting, there).order_by(*order, place).limit(1).correlate(heads).scalar_subquery()
        for there, order in beyond
    ]
    following = select(next_one.c.agent, next_one.c.agent_version, next_one.c[since.name])
    following = following.select_from(heads.join(next_one, next_one.c.run_no == func.coalesce(*found)))
    heads = heads.union_all(following)
    return select(heads.c.agent, heads.c.agent_version, heads.c.since).limit(MAX_PAGE)


_HEADS = {which: _heads(which) for which in _WAITING}
_HOLDERS = distinct(_r.c.worker, HELD, MAX_PAGE)
_LIVING = select(_w.c.worker, _w.c.agents).where(ALIVE).limit(MAX_PAGE)


def _nobody_works_on(moment: Moment, now: int) -> dict[str, Any]:
    """The workers that are gone and hold runs, and the agent versions whose runs nobody takes.

    Which versions a worker has is in JSON. That is read here, where it is little, and not for each run.
    """
    alive = {row["worker"]: orjson.loads(row["agents"]) for row in moment.rows(_LIVING)}
    served = {(agent, version) for agents in alive.values() for agent in agents for version in agents[agent]}
    gone = [name for name in moment.values(_HOLDERS) if name not in alive]
    found: dict[str, Any] = {"gone": gone[:MAX_STUCK]}
    for which, heads in _HEADS.items():
        unserved, overdue = [], []
        for row in moment.rows(heads):
            pair = (row["agent"], row["agent_version"])
            if pair not in served:
                unserved.append(pair)
            elif row["since"] <= now - OVERDUE_AFTER:  # of the one that would be taken next
                overdue.append(pair)
        found |= {f"no_worker_{which}": unserved[:MAX_STUCK], f"overdue_{which}": overdue[:MAX_STUCK]}
    return found


# --- rows from items ---------------------------------------------------------------------------------------------


def _bursts(sources: Sequence[_Source]) -> FromClause:
    """The items, each with the number of its burst; `begins` is 1 for the oldest of a burst."""
    items = union_all(*(source.items() for source in sources)).subquery("items")
    i = items.c
    previous = func.lag(i.since).over(partition_by=i.alike, order_by=(i.since, i.run_no, i.step))
    goes_on = and_(previous.is_not(None), or_(i.kind == STUCK, i.since - previous <= GROUP_GAP))
    marked = select(items, case((goes_on, 0), else_=1).label("begins")).subquery("marked")
    m = marked.c
    burst = func.sum(m.begins).over(order_by=(m.alike, m.since, m.run_no, m.step), rows=(None, 0))
    return select(marked, burst.label("burst")).subquery("bursts")


def _grouped(sources: Sequence[_Source]) -> FromClause:
    g = _bursts(sources).c
    rank, stake, since = func.min(g.rank), func.sum(g.stake_value), func.min(g.since)
    run_no, step = func.max(case((g.begins == 1, g.run_no))), func.max(case((g.begins == 1, g.step)))
    alike = func.min(g.alike)
    return (
        select(
            alike.label("alike"),
            func.min(g.kind).label("kind"),
            func.min(g.why).label("why"),
            rank.label("rank"),
            func.count().label("n"),
            since.label("since"),
            func.max(g.since).label("until"),
            func.min(g.deadline).label("deadline"),
            stake.label("stake_value"),
            case((func.min(g.unit) != func.max(g.unit), 1), else_=0).label("mixed_stakes"),
            run_no.label("run_no"),
            step.label("step"),
        )
        .group_by(g.burst)
        .order_by(rank, stake.desc().nulls_last(), since, run_no, step, alike)
        .limit(bindparam("limit", type_=Integer))
        .offset(bindparam("offset", type_=Integer))
        .subquery("page")
    )


def _rows(sources: Sequence[_Source]) -> Select[Any]:
    page = _grouped(sources)
    p = page.c
    order = (p.rank, p.stake_value.desc().nulls_last(), p.since, p.run_no, p.step, p.alike)
    return _described(page).order_by(*order).limit(MAX_PAGE)


def _described(page: FromClause) -> Select[Any]:
    """A page of items or of rows, with what a person wants to read of each."""
    p = page.c
    version = _r.c.agent + " " + _r.c.agent_version
    stuck = case((p.why.in_(["no_worker", "overdue"]), version), (p.why == "worker_lost", _r.c.worker))
    of_run = p.step.is_not_distinct_from(_r.c.why_step)
    has_call = or_(p.kind != STUCK, p.why == "approval_lapsed")
    return (
        select(
            *(column for column in p if column.name not in {"why", "unit"}),
            func.coalesce(p.why, _a.c.rule).label("why"),
            _o.c.tool,
            _o.c.tool_version,
            case((p.kind.not_in([STUCK, APPROVAL]), _o.c.error_class)).label("error_class"),
            _o.c.description,
            _o.c.stake,
            func.coalesce(stuck, case((of_run, _r.c.why_detail)), _o.c.error).label("detail"),
            _r.c.run_id,
            _r.c.agent,
            _r.c.agent_version,
            _r.c.owner,
            _r.c.tags,
        )
        .join(_r, _r.c.run_no == p.run_no)
        .outerjoin(_o, and_(has_call, _o.c.run_no == p.run_no, _o.c.step == p.step))
        .outerjoin(_a, and_(p.kind == APPROVAL, _a.c.run_no == p.run_no, _a.c.step == p.step, ASKED))
    )


def _counted(source: _Source) -> Select[Any]:
    some = source.items("kind").limit(len(source.kinds) * COUNT_LIMIT + 1).subquery()
    return select(some.c.kind, func.count().label("n")).group_by(some.c.kind)


_until = _a.c.expires_at
_FIRST_SOURCES = (
    _parked(),
    _unknown(),
    _suspected(),
    _asked(0, and_(_until > NOW, _until <= NOW + SOON)),
    _lapsed(),
    _worker_lost(),
    *(_not_taken("no_worker", which, STUCK_AFTER) for which in _WAITING),
    *(_not_taken("overdue", which, OVERDUE_AFTER) for which in _WAITING),
)
_LAST_SOURCES = (_asked(6, or_(_until.is_(None), _until > NOW + SOON)),)
SOURCES = (*_FIRST_SOURCES, *_LAST_SOURCES)

_FIRST, _LAST = _rows(_FIRST_SOURCES), _rows(_LAST_SOURCES)
_HOW_MANY_FIRST = select(func.count()).select_from(
    select(_bursts(_FIRST_SOURCES).c.burst).distinct().limit(bindparam("offset", type_=Integer)).subquery()
)
_COUNTS = union_all(*(_counted(source) for source in SOURCES))
