"""The store as its clients hold it: transitions in, rows out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from sqlalchemy import and_, or_, select

from walkback_store import feed as feeds
from walkback_store import opening, schema, snapshots
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.engine import Committed, Engine
from walkback_store.errors import NotFound, StaleFence, StoreError
from walkback_store.leases import LeaseObserver
from walkback_store.log import COLUMNS, Row
from walkback_store.machine.base import Transition
from walkback_store.machine.runs import ClaimRun
from walkback_store.machine.store_wide import LoseWorker
from walkback_store.queries import Queries
from walkback_store.values import decode
from walkback_store.words import LIVE, RunStatus, WorkerStatus
from walkback_store.work import SNAPSHOT_COLUMNS, Work

DEFAULT_WAIT = 10.0
"""Seconds a writer waits for others, and for a database that went away."""


def open_store(
    url: str | os.PathLike[str] | None = None,
    *,
    create: bool = True,
    wait: float = DEFAULT_WAIT,
    clock: Callable[[], int] | None = None,
) -> Store:
    """Open a store, creating and migrating it on first use.

    >>> store = open_store("walkback.db")                       # doctest: +SKIP
    >>> store = open_store("postgresql://localhost/walkback")   # doctest: +SKIP

    `clock` (microseconds since 1970) replaces the database's time on PostgreSQL and this machine's on SQLite.
    """
    backend = opening.make_backend(opening.choose_url(os.fspath(url) if url is not None else None), wait)
    opening.prepare(backend, create=create)
    return Store(Engine(backend, clock, wait))


class Store(Queries):
    """Thread-safe. Close it, or use it as a context manager."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.backend)
        self.engine = engine
        self._observer = LeaseObserver()

    # --- changing ------------------------------------------------------------------------------------------------

    def do(self, transition: Transition) -> Committed:
        """Commit one transition, or raise why not."""
        result = self.engine.commit([transition])[0]
        if isinstance(result, StoreError):
            raise result
        return result

    def commit(self, transitions: Sequence[Transition]) -> list[Committed | StoreError]:
        """Commit many in one transaction; each is applied or refused by itself."""
        return self.engine.commit(transitions)

    # --- workers -------------------------------------------------------------------------------------------------

    def beat(self, worker: str) -> None:
        """Say that a worker is alive. Raises `StaleFence` when it has been declared lost."""
        self.engine.again(lambda: self._beat(worker))

    def _beat(self, worker: str) -> None:
        engine = self.engine
        with engine._writing:
            engine.backend.begin(strict=False)
            work = engine._work()
            work.read_clock()
            values = (work.now, worker, WorkerStatus.ALIVE.value)
            if not engine.backend.fetch([(engine.backend.statements.beat(), values)])[0]:
                engine.backend.rollback()
                raise StaleFence(f"worker {worker!r} was declared lost or never registered; stop, and register anew.")
            engine.backend.commit([])

    def lose_dead_workers(self, actor: str = "system") -> list[str]:
        """Declare workers lost whose lease ran out, or whose process is known to be dead. Returns their names."""
        alive = self._rows(select(schema.workers).where(schema.workers.c.status == WorkerStatus.ALIVE))
        lost = []
        for row, why in self._observer.judge(alive, self.now(), database_clock=self.backend.locks_rows):
            result = self.engine.commit([LoseWorker(actor=actor, worker=row["worker"], beat=row["beat"], reason=why)])[
                0
            ]
            if isinstance(result, Committed):
                lost.append(row["worker"])
        return lost

    def now(self) -> int:
        """The time by which everything here is dated: the server's on PostgreSQL, this machine's on SQLite."""
        if self.engine._clock is not None or not self.backend.locks_rows:
            return self.engine._now()
        clock = self.backend.clock()
        with self.backend.engine.connect() as connection:
            return int(connection.exec_driver_sql(clock[0] if clock else "").scalar_one())

    def claim(self, worker: str, agents: Mapping[str, Sequence[str]], limit: int = 1) -> list[Committed]:
        """Claim runs this worker can run: unheld, due, or held by a worker that is gone."""
        r, w = schema.runs, schema.workers
        gone = select(w.c.worker).where(w.c.status != WorkerStatus.ALIVE)
        versions = or_(*(and_(r.c.agent == a, r.c.agent_version.in_(list(v))) for a, v in agents.items()))
        if not agents:
            return []

        def candidates(work: Work) -> list[Transition]:
            due = and_(r.c.status == RunStatus.WAITING, r.c.wake_at.is_not(None), r.c.wake_at <= work.now)
            free = and_(r.c.status.in_(sorted(LIVE)), r.c.worker.is_(None))
            orphaned = and_(r.c.status.in_(sorted(LIVE)), r.c.worker.in_(gone))
            found: list[tuple[Any, ...]] = []
            for kind in (orphaned, due, free):
                query = select(r.c.run_id, r.c.worker).where(kind, versions).order_by(r.c.run_no).limit(limit)
                if self.backend.locks_rows:
                    query = query.with_for_update(skip_locked=True, of=r)
                compiled = query.compile(
                    dialect=self.backend.engine.dialect, compile_kwargs={"render_postcompile": True}
                )
                values = [compiled.params[name] for name in compiled.positiontup or ()]
                found += self.backend_fetch(str(compiled), values)
            actor = f"worker:{worker}"
            return [ClaimRun(actor=actor, run_id=run_id, worker=worker) for run_id, _ in found[:limit]]

        results = self.engine.plan_and_commit(candidates)
        refused = next((r for r in results if isinstance(r, StoreError)), None)
        claimed = [r for r in results if isinstance(r, Committed)]
        if refused is not None and not claimed:
            raise refused
        return claimed

    def backend_fetch(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self.backend.fetch([(sql, values)])[0]

    # --- snapshots -----------------------------------------------------------------------------------------------

    def state_bytes(self, run_id: str, n: int) -> bytes:
        """The encoded state of snapshot `n`, whole and checked."""
        with self.backend.engine.connect() as connection:
            s = schema.snapshots
            run_no = self._run_no(connection, run_id)
            chain = snapshots.chain_of(n)
            rows = connection.execute(select(s).where(s.c.run_no == run_no, s.c.n.in_(chain))).all()
            known = {(run_no, row.n): _snapshot(row) for row in rows}

            def find(run: int, at: int) -> Row | None:
                if (run, at) not in known:
                    row = connection.execute(select(s).where(s.c.run_no == run, s.c.n == at)).first()
                    if row is None:
                        return None
                    known[run, at] = _snapshot(row)
                return known[run, at]

            return snapshots.read(find, run_no, n).data

    def state(self, run_id: str, n: int) -> object:
        return decode(self.state_bytes(run_id, n))

    def _run_no(self, connection: Any, run_id: str) -> int:
        run_no = connection.execute(select(schema.runs.c.run_no).where(schema.runs.c.run_id == run_id)).scalar()
        if run_no is None:
            raise NotFound(f"there is no run {run_id!r} in this store.")
        return int(run_no)

    # --- the rest ------------------------------------------------------------------------------------------------

    def feed(self) -> feeds.ChangeFeed:
        """Hear of commits by anyone. Close it before the store."""
        if isinstance(self.backend, SQLiteBackend):
            return feeds.sqlite_feed(self.backend.path)
        url = self.backend.engine.url.set(drivername="postgresql")
        return feeds.postgres_feed(url.render_as_string(hide_password=False))

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _snapshot(row: Any) -> Row:
    values = dict(zip(SNAPSHOT_COLUMNS, row, strict=True))
    return values | {"digest": bytes(values["digest"]), "data": bytes(values["data"])}


__all__ = ["COLUMNS", "Store", "open_store"]
