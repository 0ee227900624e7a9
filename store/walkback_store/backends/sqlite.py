"""SQLite: WAL, one writer at a time by BEGIN IMMEDIATE, `synchronous` chosen before each transaction."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import QueuePool

from walkback_store.backends.base import UNSTORABLE, Backend, Fetched, Query, Rejected, Statements
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
PAGE_SIZE = 2048
"""A commit writes some ten pages and little on each, so smaller ones than SQLite's 4096 save a tenth of the time."""
CHECKPOINT_PAGES = 4000
"""How long the log grows before it is moved into the file: pages that are written again and again move once."""
ROWS_AT_ONCE = 8
"""So many rows or fewer are inserted by one statement, which is a third faster than one after the other."""
PRIVATE = stat.S_IRUSR | stat.S_IWUSR


def os_error(what: str, error: OSError) -> StoreError:
    """Our own error for one of the system's, met while making a file."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return DiskFull(f"{what}: no space is left ({error.strerror}). Nothing was created; free some and try again.")
    if error.errno == errno.EROFS:
        return ReadOnly(f"{what}: the disk is read-only. Nothing was created; choose a place that can be written to.")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return NoPermission(
            f"{what}: {error.strerror}. Nothing was created; ask for access, or choose a place you may write to."
        )
    return CannotOpen(f"{what}: {error.strerror}. Nothing was created; check the path.")


def machine_id() -> str:
    try:
        found = Path("/etc/machine-id").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if found == "uninitialized" else found  # what a system says that is still being set up


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("walkback_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class SQLiteBackend(Backend):
    name = "sqlite"
    locks_rows = False

    def __init__(self, path: Path, wait: float, called: Path | None = None) -> None:
        """`called` is what messages name it: a new store is made under another name first."""
        super().__init__()
        self.path = path
        self._file = str(path)
        self.called = called or path
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
        self._version: int | None = None
        self._inode = 0

    def _connect(self) -> Any:
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",  # never make a file: one that vanished must not come back empty
            uri=True,
            timeout=self._wait,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        for pragma in (
            f"PRAGMA page_size={PAGE_SIZE}",  # heeded while the file is empty
            "PRAGMA synchronous=FULL",
            "PRAGMA temp_store=MEMORY",
            f"PRAGMA cache_size=-{PAGE_CACHE_KIB}",
            f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}",
        ):
            connection.execute(pragma)
        return connection

    def exists(self) -> bool:
        """Whether a file is there. Raises for what can never be a store."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._os_error(error) from error
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a file"
            raise NotAStore(f"{self.called} is {what}, so it is not a store. Nothing was created; give a file's path.")
        return True

    def create_file(self) -> None:
        """Make the file with mode 0600 before SQLite does, whatever the umask. `-wal` and `-shm` follow its mode."""
        if not self.path.parent.is_dir():
            raise CannotOpen(
                f"cannot create {self.called}: the directory {self.path.parent} does not exist. Nothing was created; "
                "make the directory first."
            )
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
            self.path.chmod(PRIVATE)  # an umask may have taken bits that the owner needs
        except OSError as error:
            raise self._os_error(error) from error

    def _os_error(self, error: OSError) -> StoreError:
        return os_error(f"cannot create or open {self.called}", error)

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
            self._inode = self.path.stat().st_ino
            self.connections += 1
        return self._writer

    def begin(self, strict: bool) -> None:
        self.check_usable()
        try:
            if self._writer is not None and os.stat(self._file).st_ino != self._inode:
                self.reconnect()  # another file has taken its place, and this one would be written for nobody
            writer = self.open_writer()
            if strict is not self._strict:
                writer.execute("PRAGMA synchronous=FULL" if strict else "PRAGMA synchronous=NORMAL")
                self._strict = strict
            writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self.translate(error) or error from error
        except OSError as error:
            raise self._cannot_open() from error

    def fetch(self, queries: Sequence[Query]) -> list[Fetched]:
        execute = self._writer.execute
        try:
            return [execute(sql, values).fetchall() for sql, values in queries]
        except UNSTORABLE as error:
            self.rollback()
            raise Rejected(str(error)) from error
        except sqlite3.Error as error:
            self.rollback()
            raise self.translate(error) or error from error

    def commit(self, writes: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        writer = self._writer
        try:
            for sql, rows in writes:
                if len(rows) == 1:
                    writer.execute(sql, rows[0])
                elif len(rows) <= ROWS_AT_ONCE and sql.startswith("INSERT"):
                    values = sql[sql.rindex("(") :]
                    flat = [value for row in rows for value in row]
                    writer.execute(f"{sql}{f', {values}' * (len(rows) - 1)}", flat)
                else:
                    writer.executemany(sql, rows)
            writer.execute("COMMIT")
        except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.DataError, *UNSTORABLE) as error:
            self.rollback()
            raise Rejected(str(error)) from error
        except sqlite3.Error as error:
            self.rollback()
            raise self.translate(error) or error from error

    def rollback(self) -> None:
        if self._writer is not None and not self.forked and self._writer.in_transaction:
            try:
                self._writer.execute("ROLLBACK")
            except sqlite3.Error:
                self.reconnect()

    def reconnect(self) -> None:
        writer, self._writer, self._strict, self._version = self._writer, None, None, None
        if writer is not None:
            writer.close()

    def alone(self) -> bool:
        found = self._writer.execute("PRAGMA data_version").fetchone()[0]  # changes when another connection commits
        before, self._version = self._version, found
        return bool(found == before)

    def clock(self) -> Query | None:
        return None

    def next_run_no(self) -> int:
        row = self._writer.execute("SELECT seq FROM sqlite_sequence WHERE name = 'runs'").fetchone()
        return int(row[0]) + 1 if row else 1

    def guard_dispatch(self, exclusive: bool) -> Query | None:
        return None

    def home(self, connection: Connection | None = None) -> str:
        """This machine and this file: a copy is another inode, whatever it is called.

        Not the device number, which may change when the disk is mounted again. Without a machine id, as in a container,
        the inode alone has to do. Not noticed is a plain copy that was written back over the very file it came from;
        a backup says itself that it is one.
        """
        return f"{machine_id()}:{self.path.stat().st_ino}"

    def writer_home(self) -> str:
        return self.home()

    def translate(self, error: BaseException) -> StoreError | None:
        text, where = str(error), self.called
        if "database is locked" in text or "database table is locked" in text or "database schema is locked" in text:
            return StoreBusy(
                f"another writer held {where} for longer than {self._wait:g} s. Nothing was written; try again, or "
                "wait longer."
            )
        if "readonly database" in text:
            return ReadOnly(
                f"{where} cannot be written (a read-only file or disk). Nothing was written; make the file, its "
                "directory and its disk writable for this user."
            )
        if "disk is full" in text:
            return DiskFull(f"no space left for {where}. Nothing was written; free some space and try again.")
        if "file is not a database" in text:
            return NotAStore(
                f"{where} is not a Walkback store (not an SQLite database). It was not changed; give another path."
            )
        if "malformed" in text:
            return CorruptData(
                f"{where} is damaged ({text}). What it says cannot be trusted: stop the workers, and restore a backup."
            )
        if "unable to open" in text:
            return self._cannot_open()
        if "disk I/O error" in text:
            return Unreachable(
                f"the disk below {where} does not answer ({text}). Nothing was written; see what the system says about "
                "the disk, its quotas and its limits."
            )
        return None

    def _cannot_open(self) -> StoreError:
        """SQLite says no more than that it could not open a file, which may be one beside the database."""
        try:
            read_only = os.statvfs(self.path).f_flag & os.ST_RDONLY
        except FileNotFoundError:
            return CannotOpen(
                f"{self.called} is not there (any more). Nothing was changed; put the file back, or open another store."
            )
        except OSError:
            read_only = 0
        if read_only:
            return ReadOnly(
                f"{self.called} is on a read-only disk, and was last used on one that could be written. Nothing was "
                "changed; copy the file to a disk that can be written, and open the copy."
            )
        return NoPermission(
            f"cannot open {self.called}: the system refused. Nothing was changed; this user needs to read and to write "
            "the file and its directory."
        )

    def _disconnect(self) -> None:
        self.reconnect()
        self.engine.dispose()
