"""The change feed: hearing that somebody, in whichever process, has committed something.

A feed says that something changed, never what: the subscriber reads the store again. So many commits may become one
word, and one word too many costs a query, while one too few leaves a stale screen. Both feeds have the same shape. A
cheap question that cannot miss a commit is the truth and is asked ten times a second; a notification from the file
system or the server is only a hint to ask it now. Hints get lost (network file systems, exhausted inotify watches,
connection poolers) and come too early, which is why they never decide.
"""

from __future__ import annotations

import functools
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from walkback_store.errors import MissingDriver, Unreachable
from walkback_store.sqlite_library import sqlite3

if TYPE_CHECKING:
    from sqlite3 import Connection as SQLiteConnection  # the chosen library's has the same shape

    from psycopg import Connection as PostgresConnection
    from psycopg.abc import PQGen

__all__ = ["ChangeFeed", "PostgresFeed", "SQLiteFeed", "postgres_feed", "sqlite_feed"]

POLL = 0.1
"""Seconds between two looks when no hint comes: the latency where hints do not work."""

LOST_PATIENCE = 1.0
"""How long `wait` looks for a database it already reported lost before it says so again."""

_log = logging.getLogger(__name__)


def sqlite_feed(path: Path) -> ChangeFeed:
    """A feed of the SQLite store at `path`, which must exist."""
    return SQLiteFeed(path)


def postgres_feed(conninfo: str) -> ChangeFeed:
    """A feed of the PostgreSQL store at `conninfo`, a plain `postgresql://` URL."""
    return PostgresFeed(conninfo)


class ChangeFeed(ABC):
    """Says when something was committed since the last time it said so, or since it was opened.

    One thread waits; any thread may call `wake` and `close`. Opening and waiting raise `Unreachable` when the database
    does not answer, always in the calling thread.
    """

    def __init__(self) -> None:
        self._bell = _Bell()
        self._waiting = threading.Lock()
        self._woken = False
        self._closed = False
        self._lost = False

    def wait(self, timeout: float | None = None) -> bool:
        """True once something was committed, False after `timeout` seconds or a `wake`.

        A database that is lost raises `Unreachable` at once, and then again for every call, about once a second, so
        that a loop around this neither spins nor hangs. The first call that reaches the database again returns True:
        there is no telling what was missed.
        """
        now = time.monotonic()
        deadline = float("inf") if timeout is None else now + timeout
        patience = min(deadline, now + LOST_PATIENCE if self._lost else now)
        if self._closed:
            raise ValueError("this change feed is closed; open another one")
        with self._waiting:
            while not (self._woken or self._closed):
                try:
                    changed = self._look()
                    self._lost = False
                except Unreachable:
                    self._lost = True
                    if time.monotonic() >= patience:
                        raise
                else:
                    if changed:
                        return True
                    if time.monotonic() >= deadline:
                        return False
                self._bell.wait(max(0.0, min(POLL, deadline - time.monotonic())), also=self._hint_source())
            self._woken = False
            return False

    def wake(self) -> None:
        """Make the `wait` under way, or else the next one, return False at once. For shutting down."""
        self._woken = True
        self._bell.ring()

    def close(self) -> None:
        """Give everything back. A `wait` under way returns False first."""
        self._closed = True
        self._bell.ring()
        with self._waiting:
            self._release()
            self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def hinted(self) -> bool:
        """Whether hints are expected. Without them the feed is as reliable, and slower by up to `POLL`."""

    @abstractmethod
    def _look(self) -> bool:
        """Whether anything was committed since the last look that said so. Reconnects when it has to."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of the connection and whatever gives hints. Called more than once."""

    def _hint_source(self) -> int | None:
        """A file descriptor that becomes readable when a hint comes, if hints come that way."""
        return None


class _Bell:
    """Ends a wait from any thread, and lets the same wait watch a socket.

    A ring while nobody waits is kept for the next wait, so that none falls between a look and the wait after it.
    """

    def __init__(self) -> None:
        self._ear, self._clapper = socket.socketpair()
        self._ear.setblocking(False)
        self._clapper.setblocking(False)

    def ring(self) -> None:
        # A full buffer is ringing already, and after close nobody listens.
        with suppress(OSError):
            self._clapper.send(b"!")

    def wait(self, seconds: float, also: int | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            if also is not None:
                selector.register(also, selectors.EVENT_READ)
            selector.select(seconds)
        with suppress(BlockingIOError):
            self._ear.recv(4096)

    def close(self) -> None:
        self._ear.close()
        self._clapper.close()


# --- SQLite ------------------------------------------------------------------------------------------------------

Watch = Callable[[Path, threading.Event], Iterable[object]]
"""Yields something whenever the database at this path may have been written to, until the event is set."""

_WATCH_STEP_MS = 20


def file_hints(database: Path, stop: threading.Event) -> Iterable[object]:
    """Watch the directory, because the files in it come and go, and ignore `-shm`, which readers write too.

    Surprise: `watchfiles.watch` does not block until something happens. It sleeps `step` milliseconds at a time and
    yields after the first quiet step, so a hint is one to two steps late and every step costs a wake-up.
    """
    from watchfiles import Change, watch

    chatter = logging.getLogger("watchfiles.main")
    if chatter.level == logging.NOTSET:
        chatter.setLevel(logging.WARNING)  # it reports every change, which is every commit, at INFO

    names = {database.name, f"{database.name}-wal"}

    def is_ours(_: Change, path: str) -> bool:
        return os.path.basename(path) in names

    return watch(
        database.parent,
        watch_filter=is_ours,
        debounce=_WATCH_STEP_MS,
        step=_WATCH_STEP_MS,
        rust_timeout=0,
        stop_event=stop,
        recursive=False,
    )


class SQLiteFeed(ChangeFeed):
    """`PRAGMA data_version` is the truth: it changes when another connection commits, and costs 3 µs to read.

    The connection can only read, so this feed cannot wake itself, and no `-wal` of a database that was replaced under
    it can be removed by it. For the same reason it cannot tidy up as the last one to leave: close the feed before the
    store. The file is never opened by other means than SQLite: closing any descriptor of it would drop every lock that
    this process holds on it.

    A rollback or an ordinary checkpoint is no change; `wal_checkpoint(TRUNCATE)` looks like one.
    """

    def __init__(self, path: Path, *, watch: Watch = file_hints) -> None:
        super().__init__()
        self._path = path
        self._watch = watch
        self._db: SQLiteConnection | None = None
        self._file: tuple[int, int] | None = None
        self._version: int | None = None
        self._watcher: _Watcher | None = None
        try:
            self._look()
        except Unreachable:
            self.close()
            raise

    @property
    def hinted(self) -> bool:
        return self._watcher is not None and self._watcher.alive

    def _look(self) -> bool:
        try:
            found = os.stat(self._path)
            file = (found.st_dev, found.st_ino)
            db = self._db if self._db is not None and file == self._file else self._open(file)
            version = _data_version(db)
        except (OSError, sqlite3.Error) as error:
            self._release()
            raise Unreachable(
                f"cannot read {self._path}: {error}. Runs are not affected by this, but what is shown may be out of "
                "date. Check that the file is there and readable; it is looked for until it is."
            ) from error
        if version is None or version == self._version:
            return False
        self._version = version
        return True

    def _open(self, file: tuple[int, int]) -> SQLiteConnection:
        self._release()
        real = self._path.resolve(strict=True)  # SQLite follows links and keeps -wal beside the real file
        db: SQLiteConnection = sqlite3.connect(
            f"{real.as_uri()}?mode=ro", uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        self._db = db
        self._file = file
        self._watcher = _Watcher(self._watch, real, self._bell)
        return db

    def _release(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        if self._db is not None:
            self._db.close()
            self._db = None
        self._file = None
        self._version = None


def _data_version(db: SQLiteConnection) -> int | None:
    """None while somebody has the whole database locked, as a recovery does; this passes."""
    try:
        # fetchall, because a statement that is not run to its end keeps a read transaction open.
        ((version,),) = db.execute("PRAGMA data_version").fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return None
        raise
    return int(version)


class _Watcher:
    """Runs a `Watch` in a thread and rings for everything it yields, until it is stopped, forgotten, or at exit."""

    def __init__(self, watch: Watch, database: Path, bell: _Bell) -> None:
        stop = threading.Event()
        self._thread = threading.Thread(
            target=_ring_for_hints, args=(watch, database, stop, bell), name="walkback-feed", daemon=True
        )
        self._thread.start()
        self.stop = weakref.finalize(self, _stop_thread, self._thread, stop)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


def _ring_for_hints(watch: Watch, database: Path, stop: threading.Event, bell: _Bell) -> None:
    try:
        for _ in watch(database, stop):
            bell.ring()
    except Exception:
        # Hints are optional and this is nobody's calling thread; whatever is wrong with the database, a look will say.
        _log.debug("no file system hints for %s; polling alone", database, exc_info=True)


def _stop_thread(thread: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    thread.join(timeout=1.0)


# --- PostgreSQL --------------------------------------------------------------------------------------------------

_CONNECT_SECONDS = 4
_ANSWER_SECONDS = 4.0
_STATEMENT_MS = 2000

# ORDER BY and LIMIT, because `WHERE pos > x` on a table without statistics is a scan of all of it.
_NEWEST = """
SELECT max(pos), min(pos), count(*) FROM (SELECT pos FROM events ORDER BY pos DESC LIMIT 2000) AS newest
"""

Newest = tuple[int | None, int | None, int]
T = TypeVar("T")


class PostgresFeed(ChangeFeed):
    """The outline of the newest 2000 events is the truth: whatever is worth hearing of appends an event.

    Positions are handed out before commit, so a transaction can commit below the highest visible position, and
    `max(pos)` alone would miss it. A late event raises the count, or pushes the lowest of the 2000 out. What this
    cannot see is a transaction that stays open while 2000 events of others are committed; the next event shows it.

    A server that stops answering without closing the connection is given up after a few seconds; `wake` waits as long.
    """

    def __init__(self, conninfo: str, *, listen: bool = True) -> None:
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise MissingDriver("PostgreSQL needs psycopg: pip install 'walkback[postgresql]'") from error
        super().__init__()
        self._conninfo = conninfo
        self._listen = listen
        self._db: PostgresConnection[Newest] | None = None
        self._hinted = False
        self._newest: Newest | None = None
        try:
            self._look()
        except Unreachable:
            self.close()
            raise

    @property
    def hinted(self) -> bool:
        return self._hinted

    def _look(self) -> bool:
        import psycopg

        try:
            db = self._db or self._open()
            (newest,) = db.execute(_NEWEST).fetchall()
        except psycopg.Error as error:
            self._release()
            raise Unreachable(
                f"PostgreSQL does not answer the change feed: {error}. What was committed is safe, but what is shown "
                "may be out of date. Check the server; it is tried again until it answers."
            ) from error
        if newest == self._newest:
            return False
        self._newest = newest
        return True

    def _open(self) -> PostgresConnection[Newest]:
        import psycopg

        self._db = db = _impatient_connection().connect(
            self._conninfo,
            autocommit=True,
            application_name="walkback feed",
            connect_timeout=_CONNECT_SECONDS,
            prepare_threshold=None,  # behind a pooler, a prepared statement may be on another connection
        )
        # Not as a connection option: that would replace the options in the URL.
        db.execute("SELECT set_config('statement_timeout', %s, false)", (str(_STATEMENT_MS),))
        # A notification that arrives during a look is read by that look, yet its commit may not be visible to it.
        db.add_notify_handler(lambda _: self._bell.ring())
        if self._listen:
            # A standby refuses to LISTEN.
            with suppress(psycopg.errors.ReadOnlySqlTransaction):
                db.execute("LISTEN walkback")
                self._hinted = True
        return db

    def _hint_source(self) -> int | None:
        return None if self._db is None else self._db.fileno()

    def _release(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._hinted = False
        self._newest = None


@functools.cache
def _impatient_connection() -> type[PostgresConnection[Newest]]:
    """A connection that gives up on a silent server; `statement_timeout` needs the server to be alive.

    Made on demand, because importing psycopg takes 80 ms and most stores are SQLite.
    """
    import psycopg

    class ImpatientConnection(psycopg.Connection[Newest]):
        def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
            return super().wait(within(gen, time.monotonic() + _ANSWER_SECONDS), *args, **options)

    def within(gen: PQGen[T], deadline: float) -> PQGen[T]:
        # psycopg resumes its generators with nothing ready every 0.1 s, for the sake of Ctrl-C.
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    raise psycopg.OperationalError(f"no answer in {_ANSWER_SECONDS:g} seconds")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result

    return ImpatientConnection
