"""The store as its clients hold it: transitions in, rows out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType

from sqlalchemy import or_, select, text

from walkback_store import claiming, opening, schema, snapshots
from walkback_store import feed as feeds
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.engine import Committed, Engine
from walkback_store.errors import NotFound, StaleFence, StoreError
from walkback_store.leases import LeaseObserver
from walkback_store.log import Row
from walkback_store.machine.base import Transition
from walkback_store.queries import Queries
from walkback_store.values import decode
from walkback_store.words import WorkerStatus
from walkback_store.work import Work

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
        self._turns = itertools.count()

    # --- changing ------------------------------------------------------------------------------------------------

    def do(self, transition: Transition) -> Committed:
        """Commit one transition, or raise why not."""
        result = self.engine.commit([transition])[0]
        if isinstance(result, StoreError):
            raise result
        return result

    def commit(self, transitions: Iterable[Transition]) -> list[Committed | StoreError]:
        """Commit many in one transaction; each is applied or refused by itself."""
        return self.engine.commit(transitions)

    # --- workers -------------------------------------------------------------------------------------------------

    def beat(self, worker: str) -> None:
        """Say that a worker is alive. Raises `StaleFence` when it has been declared lost."""
        self.engine.again(lambda: self._beat(worker))

    def _beat(self, worker: str) -> None:
        engine = self.engine
        with engine._writing:
            try:
                engine.backend.begin(strict=False)
                work = engine._work()
                work.read_clock()
                values = (work.now, worker, WorkerStatus.ALIVE.value)
                if not engine.backend.fetch([(engine.backend.statements.beat(), values)])[0]:
                    raise StaleFence(f"worker {worker!r} was declared lost or never registered; register anew.")
                engine.backend.commit([])
            except BaseException:
                engine.backend.rollback()
                raise

    def lose_dead_workers(self, actor: str = "system") -> list[str]:
        """Declare workers lost whose lease ran out, or whose process is known to be dead. Returns their names."""
        alive = self._rows(select(schema.workers).where(schema.workers.c.status == WorkerStatus.ALIVE))
        lost = []
        for row, why in self._observer.judge(alive, self.now(), database_clock=self.backend.locks_rows):
            from walkback_store.machine.store_wide import LoseWorker

            lose = LoseWorker(actor=actor, worker=row["worker"], beat=row["beat"], reason=why)
            if isinstance(self.engine.commit([lose])[0], Committed):
                lost.append(row["worker"])
        return lost

    def now(self) -> int:
        """The time by which everything here is dated: the server's on PostgreSQL, this machine's on SQLite."""
        clock = self.backend.clock()
        if self.engine._clock is not None or clock is None:
            return self.engine._now()
        with self._reading() as moment:
            return int(moment.values(text(clock[0]))[0])

    def claim(
        self,
        worker: str,
        agents: Mapping[str, Sequence[str]],
        limit: int = 1,
        *,
        holding: Collection[str] | None = None,
    ) -> list[Committed]:
        """Claim runs this worker can run: unheld, due, or held by a worker that is gone. Fair between agents.

        `holding` names the runs that the worker knows it holds. Those it holds without knowing it, because the answer
        to an earlier claim was lost (`CommitUnknown`), then come first, with a new fence.
        """

        from walkback_store.machine.runs import ClaimRun

        def candidates(work: Work) -> list[Transition]:
            found = [] if holding is None else claiming.forgotten(self.backend, worker, holding, limit)
            found += claiming.find(self.backend, agents, work.now, limit - len(found), turn=next(self._turns))
            return [ClaimRun(actor=f"worker:{worker}", run_id=run_id, worker=worker) for run_id in found]

        results = self.engine.plan_and_commit(candidates)
        claimed = [r for r in results if isinstance(r, Committed)]
        refused = next((r for r in results if isinstance(r, StoreError)), None)
        if refused is not None and not claimed:
            raise refused
        return claimed

    # --- snapshots -----------------------------------------------------------------------------------------------

    def state_bytes(self, run_id: str, n: int) -> bytes:
        """The encoded state of snapshot `n`, whole and checked."""
        return next(self.states_bytes(run_id, n, n))

    def states_bytes(self, run_id: str, first: int, last: int) -> Iterator[bytes]:
        """The encoded states of snapshots `first` to `last`, in order: mostly one hop each instead of dozens.

        Read from the database at once, as they are stored, and unpacked one by one: only two are in memory.
        """
        s = schema.snapshots
        with self._reading() as moment:
            run_no = next(iter(moment.values(select(schema.runs.c.run_no).where(schema.runs.c.run_id == run_id))), None)
            if run_no is None:
                raise NotFound(f"there is no run {run_id!r} in this store.")
            wanted = or_(s.c.n.in_(snapshots.chain_of(first)), s.c.n.between(first, last))
            chain = moment.rows(select(s).where(s.c.run_no == run_no, wanted))
            known = {(run_no, row["n"]): row for row in chain}

            def find(run: int, at: int) -> Row | None:
                if (run, at) not in known:  # in the run that this one was forked from
                    known.update(
                        ((run, at), row) for row in moment.rows(select(s).where(s.c.run_no == run, s.c.n == at))
                    )
                row = known.get((run, at))
                return None if row is None else row | {"digest": bytes(row["digest"]), "data": bytes(row["data"])}

            content = snapshots.read(find, run_no, first)
            rows = [find(run_no, n) for n in range(first + 1, last + 1)]
        return self._unpacked(run_id, content.data, first, rows)

    def _unpacked(self, run_id: str, data: bytes, first: int, rows: list[Row | None]) -> Iterator[bytes]:
        yield data
        for n, row in enumerate(rows, first + 1):
            following = None if row is None else snapshots.following(row, data)
            # Every 32nd is stored against one further back.
            data = self.state_bytes(run_id, n) if following is None else following
            yield data

    def state_size(self, run_id: str, n: int) -> int:
        """How many bytes `state_bytes` would return, without reading them."""
        s, r = schema.snapshots, schema.runs
        with self._reading() as moment:
            of_run = select(r.c.run_no).where(r.c.run_id == run_id).scalar_subquery()
            found = moment.values(select(s.c.size).where(s.c.run_no == of_run, s.c.n == n).limit(1))
            if not found:
                raise NotFound(f"run {run_id!r} has no snapshot {n} (pruned, or never taken).")
            return int(found[0])

    def state(self, run_id: str, n: int) -> object:
        return decode(self.state_bytes(run_id, n))

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


__all__ = ["Store", "open_store"]
