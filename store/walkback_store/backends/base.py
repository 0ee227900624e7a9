"""What the store needs of a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, Insert, Select, Table, Update, and_, bindparam, insert, select, update

from walkback_store.errors import StoreError
from walkback_store.schema import runs

Query = tuple[str, Sequence[Any]]
Fetched = list[tuple[Any, ...]]


class ConnectionLost(Exception):
    """The connection broke. `committing` when COMMIT may have reached the server."""

    def __init__(self, cause: BaseException, committing: bool) -> None:
        super().__init__(str(cause))
        self.committing = committing


class Rejected(Exception):
    """The database refused a statement (a constraint, a value it cannot hold). The transaction is rolled back."""


class Statements:
    """SQL compiled once from SQLAlchemy's constructs, for the hot path: a prepared text and the order of its values."""

    def __init__(self, engine: Engine) -> None:
        self._dialect = engine.dialect
        self._cache: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}

    def compile(self, statement: Select[Any] | Insert | Update) -> tuple[str, tuple[str, ...]]:
        compiled = statement.compile(dialect=self._dialect)
        return str(compiled), tuple(compiled.positiontup or ())

    def insert(self, table: Table, columns: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        key = ("insert", table.name, *columns)
        if key not in self._cache:
            self._cache[key] = self.compile(insert(table).values({c: bindparam(c) for c in columns}))
        return self._cache[key]

    def update(self, table: Table, keys: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Values are named after their columns; those of the key begin with `k_`."""
        key = ("update", table.name, *columns)
        if key not in self._cache:
            where = and_(*(table.c[k] == bindparam(f"k_{k}") for k in keys))
            self._cache[key] = self.compile(update(table).where(where).values({c: bindparam(c) for c in columns}))
        return self._cache[key]

    def by_key(self, table: Table, keys: tuple[str, ...], lock: bool = False) -> str:
        key = ("select", table.name, *keys, str(lock))
        if key not in self._cache:
            query = select(*table.columns).where(and_(*(table.c[k] == bindparam(k) for k in keys)))
            self._cache[key] = self.compile(query.with_for_update() if lock else query)
        return self._cache[key][0]

    def by_run_id(self, table: Table, keys: tuple[str, ...]) -> str:
        """A row of a run that is known by its id only; so that it can be read together with the run itself."""
        key = ("select by run id", table.name, *keys)
        if key not in self._cache:
            run_no = select(runs.c.run_no).where(runs.c.run_id == bindparam("run_id")).scalar_subquery()
            where = and_(table.c.run_no == run_no, *(table.c[k] == bindparam(k) for k in keys))
            self._cache[key] = self.compile(select(table).where(where))
        return self._cache[key][0]


class Backend(ABC):
    """One writing connection, held; and an engine for reading."""

    name: str
    engine: Engine
    statements: Statements
    locks_rows: bool
    """Whether a row must be locked to be read for writing (otherwise the whole database is)."""

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

    @abstractmethod
    def clock(self) -> Query | None:
        """Asks for the database's time, in microseconds; None when the caller's clock is the only one."""

    @abstractmethod
    def next_run_no(self) -> int: ...

    @abstractmethod
    def guard_dispatch(self, exclusive: bool) -> Query | None:
        """Freezing waits for dispatches under way, and dispatches for a freeze under way."""

    @abstractmethod
    def home(self) -> str:
        """Where this database lives. A copy lives elsewhere."""

    @abstractmethod
    def visible_horizon(self) -> int | None: ...

    @abstractmethod
    def translate(self, error: BaseException) -> StoreError | None:
        """Our own error for one of the driver's, if it is one that callers should see."""

    @abstractmethod
    def close(self) -> None: ...
