"""SQLite: WAL, one writer at a time by BEGIN IMMEDIATE, `synchronous` chosen before each transaction."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import QueuePool

from walkback_store.backends.base import Backend, Fetched, Query, Rejected, Statements
from walkback_store.errors import (
    CannotOpen,
    CorruptData,
    DiskFull,
    NoPermission,
    NotAStore,
    ReadOnly,
    StoreBusy,
    StoreError,
    Unreachable,
)
from walkback_store.sqlite_library import sqlite3

PAGE_CACHE_KIB = 16 * 1024


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("walkback_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class SQLiteBackend(Backend):
    name = "sqlite"
    locks_rows = False

    def __init__(self, path: Path, wait: float) -> None:
        self.path = path
        self._wait = wait
        self._strict: bool | None = None
        self.engine = create_engine(
            "sqlite://",
            module=sqlite3,
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=4,
            max_overflow=4,
        )
        # The driver's own transaction control is off (isolation_level None), so SQLAlchemy's begin is ours to send.
        event.listen(self.engine, "begin", _begin)
        self.statements = Statements(self.engine)
        self._writer: Any = None

    def _connect(self) -> Any:
        connection = sqlite3.connect(
            self.path, timeout=self._wait, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        for pragma in (
            "PRAGMA synchronous=FULL",
            "PRAGMA temp_store=MEMORY",
            f"PRAGMA cache_size=-{PAGE_CACHE_KIB}",
        ):
            connection.execute(pragma)
        return connection

    def create_file(self) -> bool:
        """Make the file with mode 0600 before SQLite does; whether it is new."""
        if self.path.is_dir():
            raise NotAStore(f"{self.path} is a directory, not a store. Nothing was created.")
        if not self.path.parent.is_dir():
            raise CannotOpen(f"the directory {self.path.parent} does not exist. Nothing was created; make it first.")
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))
        except FileExistsError:
            return False
        except PermissionError as error:
            raise NoPermission(
                f"cannot create {self.path}: {error.strerror}. Nothing was created; choose a place you may write to."
            ) from error
        except OSError as error:
            raise self._os_error(error) from error
        return True

    def _os_error(self, error: OSError) -> StoreError:
        import errno

        if error.errno == errno.ENOSPC:
            return DiskFull(f"no space left for {self.path}. Nothing was created; free some space and try again.")
        if error.errno == errno.EROFS:
            return ReadOnly(f"{self.path.parent} is on a read-only disk. Nothing was created.")
        return CannotOpen(f"cannot create {self.path}: {error.strerror}. Nothing was created.")

    def open_writer(self) -> Any:
        """The writing connection, with WAL switched on. Foreign files are recognised before anything is changed."""
        if self._writer is None:
            connection = self._connect()
            try:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.DatabaseError:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def begin(self, strict: bool) -> None:
        try:
            writer = self.open_writer()
            if strict is not self._strict:
                writer.execute("PRAGMA synchronous=FULL" if strict else "PRAGMA synchronous=NORMAL")
                self._strict = strict
            writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self.translate(error) or error from error

    def fetch(self, queries: Sequence[Query]) -> list[Fetched]:
        execute = self._writer.execute
        try:
            return [execute(sql, values).fetchall() for sql, values in queries]
        except sqlite3.Error as error:
            self.rollback()
            raise self.translate(error) or error from error

    def commit(self, writes: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        writer = self._writer
        try:
            for sql, rows in writes:
                if len(rows) == 1:
                    writer.execute(sql, rows[0])
                else:
                    writer.executemany(sql, rows)
            writer.execute("COMMIT")
        except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.DataError, OverflowError) as error:
            self.rollback()
            raise Rejected(str(error)) from error
        except sqlite3.Error as error:
            self.rollback()
            raise self.translate(error) or error from error

    def rollback(self) -> None:
        if self._writer is not None and self._writer.in_transaction:
            try:
                self._writer.execute("ROLLBACK")
            except sqlite3.Error:
                self.reconnect()

    def reconnect(self) -> None:
        writer, self._writer, self._strict = self._writer, None, None
        if writer is not None:
            writer.close()

    def clock(self) -> Query | None:
        return None

    def next_run_no(self) -> int:
        row = self._writer.execute("SELECT seq FROM sqlite_sequence WHERE name = 'runs'").fetchone()
        return int(row[0]) + 1 if row else 1

    def guard_dispatch(self, exclusive: bool) -> Query | None:
        return None

    def home(self) -> str:
        """The file itself: a copy is another inode, whatever it is called."""
        found = self.path.stat()
        return f"{found.st_dev}:{found.st_ino}"

    def visible_horizon(self) -> int | None:
        return None

    def translate(self, error: BaseException) -> StoreError | None:
        text = str(error)
        if "database is locked" in text or "database table is locked" in text:
            return StoreBusy(
                f"another writer held {self.path} for longer than {self._wait:g} s. Nothing was written; try again, or "
                "wait longer."
            )
        if "readonly database" in text:
            return ReadOnly(f"{self.path} cannot be written (a read-only file or disk). Nothing was written.")
        if "disk is full" in text:
            return DiskFull(f"no space left for {self.path}. Nothing was written; free some space and try again.")
        if "file is not a database" in text:
            return NotAStore(f"{self.path} is not a Walkback store (not an SQLite database). It was not changed.")
        if "malformed" in text:
            return CorruptData(f"{self.path} is damaged ({text}). Stop the workers, and restore a backup.")
        if "unable to open" in text:
            return NoPermission(f"cannot open {self.path}: the system refused, or its directory is gone.")
        if "disk I/O error" in text:
            return Unreachable(f"the disk below {self.path} does not answer ({text}). Nothing was written.")
        return None

    def close(self) -> None:
        self.reconnect()
        self.engine.dispose()
