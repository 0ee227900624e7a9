"""Which runs a worker takes next: those a dead worker left behind, those whose time has come, those nobody holds.

Fair between agents, oldest first within one, and as quick with a million runs as with ten: every question is one short
stretch of an index that holds nothing but runs to be claimed, of one agent version.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, Text, bindparam, select

from walkback_store import schema
from walkback_store.backends.base import Backend, Query
from walkback_store.paging import MAX_PAGE, distinct, sql, usually

FREE = (sql("runs.worker IS NULL"), usually(sql("runs.status IN ('running', 'compensating')")))
HELD = (sql("runs.worker IS NOT NULL"), usually(sql("runs.status IN ('running', 'compensating')")))
MAX_GONE = 20
"""So many of the workers that are gone are looked at in one turn."""

_r, _w = schema.runs, schema.workers


class _Place(NamedTuple):
    """A stretch of an index in which there may be runs to claim."""

    kind: str
    agent: str
    version: str
    worker: str = ""


def find(backend: Backend, agents: Mapping[str, Sequence[str]], now: int, limit: int, *, turn: int = 0) -> list[str]:
    """Ids of up to `limit` runs, locked where the database locks rows; to be claimed in the transaction under way.

    `turn` says which agent comes first. Count it up from call to call, or a worker that asks for one run at a time
    serves the first agent only.
    """
    pairs = [(agent, version) for agent, versions in agents.items() for version in dict.fromkeys(versions)]
    if limit < 1 or not pairs:
        return []
    ask = _Asker(backend, now)
    gone = deque(ask.gone())
    gone.rotate(-turn)
    places = [_Place("orphaned", *pair, worker) for worker in list(gone)[:MAX_GONE] for pair in pairs]
    places += [_Place(kind, *pair) for pair in pairs for kind in ("due", "free")]
    # An orphan may have a call in the air, so it goes first; of the others, whichever could be taken for longest.
    queues: dict[str, list[_Found]] = {agent: [] for agent, _ in pairs}
    for place, rows in zip(places, ask.runs([(place, limit) for place in places]), strict=True):
        queues[place.agent] += [_Found(place.kind != "orphaned", since, run_id, place) for run_id, since in rows]
    chosen = _in_turn([deque(sorted(queue)) for queue in queues.values()], turn, limit)
    if not backend.locks_rows:
        return [found.run_id for found in chosen]
    # Others look at the same moment. Take as many from each place as were chosen there, of those nobody took by then.
    wanted = Counter(found.place for found in chosen)
    return [run_id for rows in ask.runs(list(wanted.items()), lock=True) for run_id, _ in rows]


def forgotten(backend: Backend, worker: str, holding: Collection[str], limit: int) -> list[str]:
    """Runs that this worker holds and does not know of."""
    rows = backend.fetch([_Asker(backend, 0)._compiled("held", _HELD_BY, {"worker": worker})])[0]
    return [run_id for (run_id,) in rows if run_id not in holding][:limit]


class _Found(NamedTuple):
    """Sorts by who goes first."""

    can_wait: bool
    since: int
    run_id: str
    place: _Place


def _in_turn(queues: list[deque[_Found]], turn: int, limit: int) -> list[_Found]:
    waiting = deque(queues)
    waiting.rotate(-turn)
    chosen: list[_Found] = []
    while waiting and len(chosen) < limit:
        queue = waiting.popleft()
        if queue:
            chosen.append(queue.popleft())
            waiting.append(queue)
    return chosen


def _gone() -> Select[Any]:
    """Workers that hold runs and are not alive, also one that was never registered."""
    holders = distinct(_r.c.worker, sql("runs.worker IS NOT NULL"), MAX_PAGE).subquery("holders")
    alive = select(_w.c.worker).where(_w.c.worker == holders.c.value, _w.c.status == "alive").exists()
    return select(holders.c.value).where(~alive).order_by(holders.c.value).limit(MAX_PAGE)


def _query(kind: str) -> Select[Any]:
    of_version = (_r.c.agent == bindparam("agent", type_=Text), _r.c.agent_version == bindparam("version", type_=Text))
    conditions: tuple[ColumnElement[Any], ...]
    if kind == "orphaned":  # a worker holds few runs, of an agent there may be very many
        conditions = (*HELD, _r.c.worker == bindparam("worker", type_=Text), *map(usually, of_version))
    elif kind == "due":
        conditions = (_r.c.wake_at <= bindparam("now", type_=BigInteger), *of_version)
    else:
        conditions = (*FREE, *of_version)
    since = _r.c.wake_at if kind == "due" else _r.c.updated_at
    order = _r.c.wake_at if kind == "due" else _r.c.run_no
    return select(_r.c.run_id, since).where(*conditions).order_by(order).limit(bindparam("limit", type_=Integer))


_GONE = _gone()
_HELD_BY = select(_r.c.run_id).where(*HELD, _r.c.worker == bindparam("worker", type_=Text)).limit(MAX_PAGE)
_QUERIES = {kind: _query(kind) for kind in ("orphaned", "due", "free")}


class _Asker:
    """Puts questions to the writing connection, many in one round trip."""

    def __init__(self, backend: Backend, now: int) -> None:
        self._backend = backend
        self._now = now

    def gone(self) -> list[str]:
        return [worker for (worker,) in self._backend.fetch([self._compiled("gone", _GONE, {})])[0]]

    def runs(self, wanted: Sequence[tuple[_Place, int]], lock: bool = False) -> list[list[tuple[Any, ...]]]:
        queries = []
        for place, limit in wanted:
            query = _QUERIES[place.kind]
            if lock:
                query = query.with_for_update(skip_locked=True, of=_r)
            values = {**place._asdict(), "now": self._now, "limit": limit}
            queries.append(self._compiled(f"{place.kind} {lock}", query, values))
        return self._backend.fetch(queries)

    def _compiled(self, name: str, query: Select[Any], values: Mapping[str, Any]) -> Query:
        known = _compiled.setdefault(self._backend.name, {})
        if name not in known:
            compiled = query.compile(dialect=self._backend.engine.dialect)
            known[name] = str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params)
        text, order, constants = known[name]
        return text, [values[n] if n in values else constants[n] for n in order]


_compiled: dict[str, dict[str, tuple[str, tuple[str, ...], dict[str, Any]]]] = {}
