"""What the store needs of a database."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Insert,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    insert,
    literal_column,
    select,
    update,
)

from walkback_store.errors import StoreClosed, StoreError, WrongProcess
from walkback_store.schema import freezes, runs, workers

Query = tuple[str, Sequence[Any]]
Fetched = list[tuple[Any, ...]]


class ConnectionLost(Exception):
    """The connection broke. `committing` when COMMIT may have reached the server."""

    def __init__(self, cause: BaseException, committing: bool) -> None:
        super().__init__(str(cause))
        self.committing = committing


class Rejected(Exception):
    """The database refused a statement (a constraint, a value it cannot hold). The transaction is rolled back."""


UNSTORABLE = (OverflowError, UnicodeEncodeError)
"""What a driver raises for a value that it cannot even send."""


class Statements:
    """SQL compiled once from SQLAlchemy's constructs, for the hot path: a prepared text and the order of its values."""

    def __init__(self, engine: Engine) -> None:
        self._dialect = engine.dialect
        self._cache: dict[tuple[object, ...], str] = {}

    def compile(self, statement: Select[Any] | Insert | Update, *order: str) -> str:
        """Its text. `order` names the parameters as the caller will give them, and is checked."""
        compiled = statement.compile(dialect=self._dialect)
        if tuple(compiled.positiontup or ()) != order:
            raise AssertionError(f"values would be given as {order}, not as {compiled.positiontup}: {compiled}")
        return str(compiled)

    def insert(self, table: Table, columns: tuple[str, ...]) -> str:
        """Takes the values of these columns, in the order of the table."""
        key = ("insert", table.name, columns)
        if key not in self._cache:
            self._cache[key] = self.compile(insert(table).values({c: bindparam(c) for c in columns}), *columns)
        return self._cache[key]

    def update(self, table: Table, keys: tuple[str, ...], columns: tuple[str, ...]) -> str:
        """Takes the values of these columns, then those of the key."""
        key = ("update", table.name, columns)
        if key not in self._cache:
            where = and_(*(table.c[k] == bindparam(f"k_{k}") for k in keys))
            statement = update(table).where(where).ordered_values(*((table.c[c], bindparam(c)) for c in columns))
            self._cache[key] = self.compile(statement, *columns, *(f"k_{k}" for k in keys))
        return self._cache[key]

    def by_key(self, table: Table, keys: tuple[str, ...], lock: bool = False) -> str:
        key = ("select", table.name, keys, lock)
        if key not in self._cache:
            query = select(*table.columns).where(and_(*(table.c[k] == bindparam(k) for k in keys)))
            self._cache[key] = self.compile(query.with_for_update() if lock else query, *keys)
        return self._cache[key]

    def by_run_id(self, table: Table, keys: tuple[str, ...]) -> str:
        """A row of a run that is known by its id only; so that it can be read together with the run itself."""
        key = ("select by run id", table.name, keys)
        if key not in self._cache:
            run_no = select(runs.c.run_no).where(runs.c.run_id == bindparam("run_id")).scalar_subquery()
            where = and_(table.c.run_no == run_no, *(table.c[k] == bindparam(k) for k in keys))
            self._cache[key] = self.compile(select(table).where(where), "run_id", *keys)
        return self._cache[key]

    def active_freezes(self) -> str:
        key = ("active freezes",)
        if key not in self._cache:
            self._cache[key] = self.compile(select(freezes).where(freezes.c.lifted_at.is_(None)))
        return self._cache[key]

    def beat(self) -> str:
        """Takes the time, the worker, and the status it must have; answers its new count, or nothing."""
        key = ("beat",)
        if key not in self._cache:
            found = and_(workers.c.worker == bindparam("w"), workers.c.status == bindparam("s"))
            values = {"beat": workers.c.beat + literal_column("1"), "beat_at": bindparam("now")}
            self._cache[key] = self.compile(
                update(workers).where(found).values(values).returning(workers.c.beat), "now", "w", "s"
            )
        return self._cache[key]


class Backend(ABC):
    """One writing connection, held; and an engine for reading."""

    name: str
    engine: Engine
    statements: Statements
    connections: int = 0
    """How many writing connections there have been."""
    locks_rows: bool
    """Whether a row must be locked to be read for writing (otherwise the whole database is)."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._closed = False

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened it. A word on its connections would reach the parent's."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        """Asked before anything is read or written: a closed store stays closed, and a forked one is the parent's."""
        if self._closed:
            raise StoreClosed("this store was closed. Nothing was read or written; open it again.")
        if os.getpid() != self._pid:
            raise WrongProcess(
                f"this store was opened by process {self._pid}, and this is process {os.getpid()}: its connections "
                "cannot be shared. Nothing was read or written; open it again in this process."
            )

    @abstractmethod
    def begin(self, strict: bool) -> None: ...

    @abstractmethod
    def fetch(self, queries: Sequence[Query]) -> list[Fetched]:
        """Answers in order, in one round trip."""

    @abstractmethod
    def commit(self, writes: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        """Run the writes and COMMIT. Raises `Rejected` (rolled back), `ConnectionLost`, or a `StoreError`."""

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def reconnect(self) -> None:
        """Drop the writing connection and open another. Raises `StoreError` when the database does not answer."""

    def alone(self) -> bool:
        """Whether nobody else has written since this was asked last. Asked at the beginning of a transaction."""
        return False

    @abstractmethod
    def clock(self) -> Query | None:
        """Asks for the database's time, in microseconds; None when the caller's clock is the only one."""

    @abstractmethod
    def next_run_no(self) -> int: ...

    @abstractmethod
    def guard_dispatch(self, exclusive: bool) -> Query | None:
        """Freezing waits for dispatches under way, and dispatches for a freeze under way."""

    @abstractmethod
    def home(self, connection: Connection | None = None) -> str:
        """Where this database lives. A copy lives elsewhere. While it is being made, only its maker's connection sees
        all of that."""

    @abstractmethod
    def writer_home(self) -> str:
        """The same, as the writing connection sees it: where an address leads can change between two connections."""

    @abstractmethod
    def translate(self, error: BaseException) -> StoreError | None:
        """Our own error for one of the driver's, if it is one that callers should see."""

    def close(self) -> None:
        """For good; a second time does nothing. In a forked process the connections are left to the parent."""
        self._closed = True
        if not self.forked:
            self._disconnect()

    @abstractmethod
    def _disconnect(self) -> None: ...
