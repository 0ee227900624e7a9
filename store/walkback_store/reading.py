"""How the store is read: one moment in time, a limit on how long it may take, and errors of our own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Executable
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from walkback_store.backends.base import Backend
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.errors import StoreBusy, StoreError, TooSlow, Unreachable
from walkback_store.log import Row

TIME_LIMIT = 2.0
"""Seconds. A screen that waits longer than this for an answer is a broken one."""

LOOK_EVERY = 50_000
"""SQLite looks at the clock after so many of its own instructions: well under a millisecond."""


class Moment:
    """The store as it was when the first question was asked, however many follow."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, query: Executable, values: Mapping[str, Any] | None = None) -> list[Row]:
        result = self._connection.execute(query, values)
        names = tuple(result.keys())
        return [dict(zip(names, row, strict=True)) for row in result]

    def tuples(self, query: Executable) -> list[tuple[Any, ...]]:
        """As the driver gives them: for many rows, of plain texts, numbers and bytes."""
        result = self._connection.execute(query)
        cursor: Any = result.cursor
        found: list[tuple[Any, ...]] = cursor.fetchall()
        result.close()
        return found

    def values(self, query: Executable, values: Mapping[str, Any] | None = None) -> list[Any]:
        """The first column."""
        return list(self._connection.execute(query, values).scalars())


class Reader:
    """Reads on connections of its own, never blocked by writers, and turns what goes wrong into our own errors."""

    time_limit = TIME_LIMIT

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._file = _identity(backend) if isinstance(backend, SQLiteBackend) else None

    def _rows(self, query: Executable) -> list[Row]:
        """For housekeeping, which takes the time it needs."""
        with self._reading(patient=True) as moment:
            return moment.rows(query)

    @contextmanager
    def _reading(self, *, patient: bool = False) -> Iterator[Moment]:
        self.backend.check_usable()
        driver_error = self.backend.engine.dialect.dbapi.Error  # type: ignore[union-attr]
        limit = None if patient else self.time_limit
        try:
            if isinstance(self.backend, SQLiteBackend):
                self._check_file(self.backend)
                with self.backend.engine.connect() as connection, _limited(connection, limit):
                    yield Moment(connection)
            else:
                with self.backend.engine.connect().execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                ) as connection:
                    if limit is not None:
                        milliseconds = str(max(1, round(limit * 1000)))
                        connection.exec_driver_sql("SELECT set_config('statement_timeout', %s, true)", (milliseconds,))
                    yield Moment(connection)
        except (SQLAlchemyError, driver_error) as error:  # the pool lets the driver's own through
            known = self._own(error)
            if known is None:
                raise
            raise known from error

    def _own(self, error: Exception) -> StoreError | None:
        if isinstance(error, PoolTimeout):
            return StoreBusy("every reading connection of this process is in use. Nothing was read; try again.")
        driver = getattr(error, "orig", None) or error
        if getattr(driver, "sqlstate", None) == "57014" or str(driver) == "interrupted":
            return TooSlow(
                f"the store did not answer this within {self.time_limit:g} s, so it was not asked any further. Runs "
                "are not affected; ask for less (a narrower filter), or try again when there is less to do."
            )
        known = self.backend.translate(driver) if isinstance(driver, BaseException) else None
        if known is None and isinstance(error, DBAPIError) and error.connection_invalidated:
            known = Unreachable(f"the connection was lost while reading ({driver}). Try again in a moment.")
        return known

    def _check_file(self, backend: SQLiteBackend) -> None:
        """A file that was removed or replaced can still be read by whoever has it open: the past, looking alive."""
        try:
            found = _identity(backend)
        except OSError as error:
            raise Unreachable(
                f"{backend.path} is gone: it was moved or removed while in use, or its disk is. Nothing was read; put "
                "it back, or open the store where it is now."
            ) from error
        if found != self._file:
            raise Unreachable(
                f"{backend.path} was replaced by another file while in use. Nothing was read; open the store again."
            )


def _identity(backend: SQLiteBackend) -> tuple[int, int]:
    found = os.stat(backend.path)
    return found.st_dev, found.st_ino


@contextmanager
def _limited(connection: Connection, seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return
    driver: Any = connection.connection.driver_connection
    deadline = time.monotonic() + seconds
    driver.set_progress_handler(lambda: time.monotonic() > deadline, LOOK_EVERY)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)  # back in the pool, the connection may be used for something patient
