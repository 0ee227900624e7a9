"""PostgreSQL: rows locked in run-id order, statements pipelined, so that a transition costs two round trips."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from walkback_store import schema
from walkback_store.backends.base import UNSTORABLE, Backend, ConnectionLost, Fetched, Query, Rejected, Statements
from walkback_store.errors import (
    BadStoreURL,
    CannotOpen,
    DiskFull,
    MissingDriver,
    NoPermission,
    ReadOnly,
    StoreBusy,
    StoreError,
    Unreachable,
)

NOTIFY_EVERY = 0.05
"""NOTIFY takes a lock that all notifying commits share, so it is sent beside the commits, and not for each of them."""

STORE_TABLE = "SELECT coalesce(to_regclass('store')::oid, 0)"
HOME = (
    "SELECT s.system_identifier || ':' || d.oid || ':' || c.timeline_id || ':' "
    "|| coalesce(to_regclass('store')::oid, 0) "
    "FROM pg_control_system() s, pg_control_checkpoint() c, pg_database d WHERE d.datname = current_database()"
)

DISPATCH_LOCK = 0x57616C6B
"""Advisory lock: shared by dispatches, exclusive for a freeze."""


schema.complete_for_postgresql()


def shown(url: URL) -> str:
    """The address for messages: a password may be in the user's part, and in the options too."""
    safe = {name: value for name, value in url.query.items() if name in {"host", "port", "user", "dbname"}}
    return url.set(drivername="postgresql", query=safe).render_as_string(hide_password=True)


class PostgresBackend(Backend):
    name = "postgresql"
    locks_rows = True

    def __init__(self, url: URL, wait: float) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingDriver(
                "PostgreSQL needs the psycopg driver, which is not installed. Nothing was opened; install it with: "
                "pip install 'walkback[postgresql]'"
            ) from error
        super().__init__()
        self._psycopg = psycopg
        self._wait = wait
        self.where = shown(url)
        self.engine = create_engine(
            url,
            paramstyle="format",
            pool_size=4,
            max_overflow=4,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": max(2, round(wait)),
                "application_name": "walkback",
                # A network that goes silent closes no connection: give up on one that does not answer at all.
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 10_000,
            },
        )
        event.listen(self.engine, "connect", self._on_connect)
        self.statements = Statements(self.engine)
        self._held: Any = None
        self._writer: Any = None
        self._notified = 0.0
        self._table: int | None = None

    def _on_connect(self, connection: Any, _record: Any) -> None:
        connection.prepare_threshold = 2
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{round(self._wait * 1000)}ms"])
            cursor.execute("SET idle_in_transaction_session_timeout = '60s'")
            # A server or role may have it off by default; what is strict must not depend on that.
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    def open_writer(self) -> Any:
        if self._writer is None:
            try:
                self._held = self.engine.raw_connection()
            except (SQLAlchemyError, self._psycopg.Error) as error:  # the pool lets the driver's own through
                driver = error if isinstance(error, self._psycopg.Error) else error.__cause__ or error
                raise self.translate(driver) or error from error
            writer = self._held.driver_connection
            writer.autocommit = True
            self._writer = writer
            self._table = None
            self.connections += 1
        return self._writer

    def begin(self, strict: bool) -> None:
        self.check_usable()
        try:
            self.open_writer()
        except Unreachable as error:
            raise ConnectionLost(error, committing=False) from error
        # Sent with the first fetch: BEGIN alone is not worth a round trip.
        self._opening = ["BEGIN"] if strict else ["BEGIN", "SET LOCAL synchronous_commit = off"]

    def fetch(self, queries: Sequence[Query]) -> list[Fetched]:
        opening, self._opening = self._opening, []
        try:
            with self._writer.pipeline():
                for sql in opening:
                    self._writer.execute(sql)
                table = self._writer.execute(STORE_TABLE) if opening else None
                cursors = [self._writer.execute(sql, values) for sql, values in queries]
            if table is not None:
                self._check_table(table.fetchone()[0])
            return [cursor.fetchall() for cursor in cursors]
        except (self._psycopg.Error, *UNSTORABLE) as error:
            raise self._failed(error, committing=False) from error

    def _check_table(self, found: int) -> None:
        """A dump can be restored below a connection that stays: whoever has it must look again where it leads."""
        before, self._table = self._table, found
        if before not in {None, found}:
            self.reconnect_later()
            raise ConnectionLost(RuntimeError("the tables were replaced"), committing=False)

    def commit(self, writes: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        writer = self._writer
        try:
            with writer.pipeline():
                for sql in self._opening:
                    writer.execute(sql)
                for sql, rows in writes:
                    for row in rows:
                        writer.execute(sql, row)
                writer.execute("COMMIT")
        except (self._psycopg.Error, *UNSTORABLE) as error:
            raise self._failed(error, committing=True) from error
        finally:
            self._opening = []
        self._notify()

    def _notify(self) -> None:
        now = time.monotonic()
        if now - self._notified >= NOTIFY_EVERY:
            self._notified = now
            try:
                self._writer.execute("NOTIFY walkback")
            except self._psycopg.Error:
                self.reconnect_later()  # a hint: whoever listens polls as well

    def _failed(self, error: Any, committing: bool) -> Exception:
        if self._writer is None or self._writer.closed or self._writer.broken:
            return ConnectionLost(error, committing)
        # The driver takes statements for prepared that stood in line behind the one that failed, and never were: a new
        # connection has no such memory. The server has rolled back, and let go of its locks, when it said no.
        self.reconnect_later()
        known = self.translate(error)
        if known is not None:
            return known
        if getattr(error, "sqlstate", None) in {"40P01", "40001"}:
            return ConnectionLost(error, False)  # rolled back whole by the server: try again
        if not isinstance(error, self._psycopg.Error) or isinstance(
            error, self._psycopg.DataError | self._psycopg.IntegrityError
        ):
            return Rejected(str(error))
        return Unreachable(f"{self.where} did not carry this out: {error}. Nothing was written; try again.")

    def rollback(self) -> None:
        if self._writer is None or self.forked:
            return
        try:
            self._writer.execute("ROLLBACK")
        except self._psycopg.Error:
            self.reconnect_later()

    def reconnect_later(self) -> None:
        held, self._held, self._writer = self._held, None, None
        if held is not None:
            held.invalidate()

    def reconnect(self) -> None:
        self.reconnect_later()
        self.open_writer()

    def clock(self) -> Query | None:
        return "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", ()

    def next_run_no(self) -> int:
        return self._number("SELECT nextval(pg_get_serial_sequence('runs', 'run_no'))")

    def _number(self, sql: str) -> int:
        try:
            return int(self._writer.execute(sql).fetchone()[0])
        except self._psycopg.Error as error:
            raise self._failed(error, committing=False) from error

    def guard_dispatch(self, exclusive: bool) -> Query | None:
        function = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
        return f"SELECT {function}(%s)", [DISPATCH_LOCK]

    def home(self, connection: Connection | None = None) -> str:
        """Cluster, database, timeline and the `store` table's own number.

        A copied database, a point-in-time restore and a dump restored anywhere, even in place, differ in one of them.
        """
        if connection is not None:
            return str(connection.exec_driver_sql(HOME).scalar_one())
        with self.engine.connect() as another:
            return self.home(another)

    def writer_home(self) -> str:
        return str(self.fetch([(HOME, ())])[0][0][0])

    def translate(self, error: BaseException) -> StoreError | None:
        state = getattr(error, "sqlstate", None) or ""
        text = str(error).strip()
        first = text.splitlines()[0].rstrip(".") if text else type(error).__name__
        if state == "55P03":
            return StoreBusy(
                f"a lock in {self.where} was held for longer than {self._wait:g} s. Nothing was written; try again, or "
                "wait longer."
            )
        if state == "53100":
            return DiskFull(f"the server of {self.where} has no space left. Nothing was written; free some there.")
        if state == "25006":
            return ReadOnly(
                f"{self.where} is read-only (a standby, or a read-only role or database). Nothing was written; use the "
                "primary, and a role that may write."
            )
        if state in {"28P01", "28000", "42501"} or "authentication failed" in text or 'role "' in text:
            return self._refused(first)
        if state == "3D000" or ('database "' in text and "does not exist" in text):
            return CannotOpen(f"{self.where}: {first}. Nothing was changed; create the database first (createdb).")
        if 'permission denied for database "' in text or "no password supplied" in text or "pg_hba.conf" in text:
            return self._refused(first)
        if (
            isinstance(error, self._psycopg.ProgrammingError) and not state and "invalid" in text
        ):  # an option in the URL
            return BadStoreURL(f"{self.where} is not an address: {first}. Nothing was opened; correct the address.")
        if isinstance(error, self._psycopg.OperationalError) and not state:
            return Unreachable(f"{self.where} does not answer: {first}. Is the server running, and the address right?")
        if state.startswith("57P"):
            return Unreachable(f"{self.where} is shutting down or starting: {first}. Try again in a moment.")
        return None

    def _refused(self, why: str) -> NoPermission:
        return NoPermission(
            f"{self.where} refused: {why}. Nothing was written; check user and password, and what the role may do."
        )

    def _disconnect(self) -> None:
        held, self._held, self._writer = self._held, None, None
        if held is not None:
            held.close()
        self.engine.dispose()
