"""What the runtime asks: all that a run has done, to go on from there; and what holds runs up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, or_, select

from walkback_store import schema
from walkback_store.frames import BodyPruned, unpack_body
from walkback_store.log import Row
from walkback_store.paging import MAX_PAGE, PAGE, page_size, possible, sql
from walkback_store.reading import Moment
from walkback_store.run_lists import RunLists
from walkback_store.values import decode
from walkback_store.words import DecisionStatus, Kind, OperationStatus

KINDS = (
    Kind.RUN_STARTED, Kind.PLAN, Kind.STEP, Kind.OBSERVATION, Kind.DECISION, Kind.WAIT, Kind.SIGNAL,
    Kind.APPROVAL_ASKED, Kind.APPROVAL_GIVEN, Kind.INTENT, Kind.ATTEMPT, Kind.TOOL_RESULT, Kind.OUTCOME,
    Kind.OPERATOR_ACTION,
    Kind.NEEDS_OPERATOR, Kind.RECOVERY, Kind.COMPENSATION, Kind.LATE_EVIDENCE, Kind.POLICY_CHECK,
)  # fmt: skip
"""The events that a run is taken up from."""

UNSETTLED = (OperationStatus.AWAITING_APPROVAL, OperationStatus.PENDING, OperationStatus.UNKNOWN)


class LazyEvent:
    """An event whose body is unpacked when it is first looked at: of a long run, few are."""

    __slots__ = ("_body", "_data", "actor", "at", "kind", "seq", "step")

    def __init__(self, seq: int, at: int, kind: str, actor: str, step: str | None, body: bytes) -> None:
        self.seq = seq
        self.at = at
        self.kind = kind
        self.actor = actor
        self.step = step
        self._body: bytes | None = body
        self._data: Mapping[str, Any] = {}

    @property
    def data(self) -> Mapping[str, Any]:
        """Empty when the body was pruned."""
        if self._body is not None:
            try:
                body: Any = decode(unpack_body(self._body))
                self._data = body["data"]
            except BodyPruned:
                pass
            self._body = None
        return self._data

    def __repr__(self) -> str:
        return f"LazyEvent({self.seq}, {self.kind!r}, step={self.step!r})"


@dataclass(slots=True)
class History:
    """All that a run has done and is to do, as of one moment."""

    run: Row
    steps: list[Row]
    """All of them, in order, with the columns of their operations as `operation_*`."""
    attempts: dict[str, list[Row]]
    """By step, of the operations that are not settled."""
    approvals: dict[str, list[Row]]
    """By step."""
    decisions: list[Row]
    """People's, that wait to be carried out."""
    signals: list[Row]
    """That no step has taken, in the order in which they came."""
    events: dict[str | None, list[LazyEvent]]
    """By step, in order; None for those of no step."""


class Histories(RunLists):
    def history(self, run_id: str) -> History:
        """Everything at once, however much it is: whoever takes a run up needs all of it, and has the time."""
        s, o, a, p = schema.steps, schema.operations, schema.attempts, schema.approvals
        d, g = schema.decisions, schema.signals
        operation = [c.label(f"operation_{c.name}") for c in o.columns if c.name not in {"run_no", "step"}]
        with self._reading(patient=True) as moment:
            run = self._run(moment, run_id)
            no = run["run_no"]
            of_step = and_(o.c.run_no == s.c.run_no, o.c.step == s.c.step)
            steps = select(s, *operation).outerjoin(o, of_step).where(s.c.run_no == no).order_by(s.c.first_seq)
            unsettled = select(o.c.step).where(o.c.run_no == no, o.c.status.in_(UNSETTLED))
            attempts = select(a).where(a.c.run_no == no, a.c.step.in_(unsettled)).order_by(a.c.step, a.c.n)
            waiting = select(d).where(d.c.run_no == no, d.c.status == DecisionStatus.WAITING).order_by(d.c.seq)
            signals = select(g).where(g.c.run_no == no, g.c.consumed_by.is_(None)).order_by(g.c.seq)
            return History(
                run,
                _dicts(moment, steps),
                _by_step(_dicts(moment, attempts)),
                _by_step(_dicts(moment, select(p).where(p.c.run_no == no).order_by(p.c.step, p.c.n))),
                _dicts(moment, waiting),
                _dicts(moment, signals),
                _events(moment, no),
            )

    # --- what holds runs up --------------------------------------------------------------------------------------

    def held_up(self, limit: int = PAGE, *, after: str | None = None) -> list[Row]:
        """Runs that wait for a freeze to be lifted or for the owner of an identity, the oldest first.

        `after` is the `run_id` of the last one you have.
        """
        r = schema.runs
        query = select(r.c.run_id, r.c.agent, r.c.agent_version, r.c.waits_for).where(sql(f"({schema.HELD_UP})"))
        if after is not None:
            query = query.where(r.c.run_no > select(r.c.run_no).where(r.c.run_id == after).scalar_subquery())
        with self._reading() as moment:
            return moment.rows(query.order_by(r.c.run_no).limit(page_size(limit)))

    def worker(self, worker: str) -> Row | None:
        w = schema.workers
        with self._reading() as moment:
            return next(iter(moment.rows(select(w).where(w.c.worker == worker).limit(1))), None)

    def next_wake(self, agents: Mapping[str, Iterable[str]]) -> int | None:
        """When the next waiting run of these agent versions is due; None when none has a time."""
        r = schema.runs
        found: list[int] = []
        with self._reading() as moment:
            for agent, versions in agents.items():
                for version in versions:
                    query = select(r.c.wake_at).where(
                        r.c.agent == agent, r.c.agent_version == version, r.c.wake_at.is_not(None)
                    )
                    found += moment.values(query.order_by(r.c.wake_at).limit(1))
        return min(found, default=None)

    def identity(self, identity: str) -> Row | None:
        """Who owns a business identity, and in which generation; None when nobody has claimed it."""
        i = schema.identities
        with self._reading() as moment:
            found = moment.rows(select(i).where(i.c.identity == identity).limit(1)) if possible(identity) else []
        return found[0] if found else None

    def breakers(self) -> list[Row]:
        """Services that failed since they last answered; of those that are open, until when, and who probes."""
        b, f = schema.breakers, schema.freezes
        query = select(b, f.c.until, f.c.probe).outerjoin(f, f.c.freeze_no == b.c.freeze_no)
        query = query.where(or_(b.c.failures > 0, b.c.freeze_no.is_not(None))).order_by(b.c.service).limit(MAX_PAGE)
        with self._reading() as moment:
            return moment.rows(query)


def _dicts(moment: Moment, query: Select[Any]) -> list[Row]:
    names = [c.name for c in query.selected_columns]
    return [dict(zip(names, row, strict=True)) for row in moment.tuples(query)]


def _by_step(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["step"], []).append(row)
    return found


def _events(moment: Moment, run_no: int) -> dict[str | None, list[LazyEvent]]:
    e = schema.events
    query = select(e.c.seq, e.c.at, e.c.kind, e.c.actor, e.c.step, e.c.body)
    query = query.where(e.c.run_no == run_no, e.c.kind.in_(KINDS)).order_by(e.c.seq)
    found: dict[str | None, list[LazyEvent]] = {}
    for row in moment.tuples(query):
        event = LazyEvent(*row)
        of_step = found.get(event.step)
        if of_step is None:
            found[event.step] = [event]
        else:
            of_step.append(event)
    return found


__all__ = ["Histories", "History", "LazyEvent"]
