"""Opening a store: which address, which database, is it ours, is it current. Nothing is half-made when it fails."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, inspect, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from walkback_store import schema
from walkback_store.backends.base import Backend
from walkback_store.backends.sqlite import PRIVATE, SQLiteBackend
from walkback_store.errors import BadStoreURL, CannotOpen, NotAStore, SchemaTooNew, StoreError
from walkback_store.frames import pack_body
from walkback_store.log import GENESIS, chain_hash, encode_body
from walkback_store.machine.base import STORE, new_id
from walkback_store.machine.roles import granted
from walkback_store.people import operator_at
from walkback_store.sqlite_library import sqlite3
from walkback_store.words import Kind, Role

DEFAULT_URL = "walkback.db"
MIGRATIONS = Path(__file__).parent / "migrations"
MEMORY = ":memory:"
MAX_PORT = 65535
KINDS = "Nothing was opened; give a path, sqlite:///path or postgresql://host/database."
OURS = frozenset({"store_id", "epoch", "written_by"})
"""Columns by which our `store` is told from somebody else's."""
MIGRATION_LOCK = 0x57616C6C
EPOCH_ORIGIN = 1_704_067_200
"""2024-01-01. An epoch is the upper half of a fence, of 31 bits: counted in seconds from here they last until 2092."""


def package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("walkback")
    except PackageNotFoundError:
        return "0"


def choose_url(option: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """`--store`, then `WALKBACK_STORE`, then ./walkback.db. An empty option is kept, to be refused: it is a mistake."""
    if option is not None:
        return option
    return environ.get("WALKBACK_STORE") or DEFAULT_URL


def make_backend(url: str | os.PathLike[str], wait: float) -> Backend:
    """The database behind an address. Looks at nothing but the address."""
    address = os.fspath(url)
    if not address.strip() or "\0" in address:
        raise BadStoreURL(f"the address of the store is empty, or is none. {KINDS}")
    if "://" not in address:
        return SQLiteBackend(_path(address), wait)
    try:
        parsed = make_url(address)
    except (ArgumentError, ValueError) as error:  # not quoted: it may hold the password
        raise BadStoreURL(f"{_masked(address)!r} cannot be read as an address. {KINDS}") from error
    kind = parsed.drivername.split("+", 1)[0]
    if kind == "sqlite":
        if parsed.host:
            raise BadStoreURL(
                f"{_masked(address)!r} names a host, and SQLite has none. Nothing was opened; put three slashes before "
                "a relative path, and four before an absolute one."
            )
        if parsed.query:
            raise BadStoreURL(
                f"a store takes no options after the path: {address!r}. Nothing was opened; leave them out."
            )
        return SQLiteBackend(_path(parsed.database or MEMORY), wait)
    if kind in {"postgresql", "postgres"}:
        from walkback_store.backends.postgres import PostgresBackend

        if parsed.port is not None and not 0 < parsed.port <= MAX_PORT:
            raise BadStoreURL(f"{_masked(address)!r} has no possible port. {KINDS}")
        return PostgresBackend(parsed.set(drivername="postgresql+psycopg"), wait)
    raise BadStoreURL(f"{kind!r} is not a kind of store. {KINDS}")


def _path(text: str) -> Path:
    """The file itself, symbolic links followed, as SQLite keeps `-wal` beside it."""
    if text == MEMORY:
        raise BadStoreURL(f"a store must outlive its process, so it cannot be kept in memory. {KINDS}")
    try:
        return Path(text).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of links, or no such home directory
        raise BadStoreURL(f"{text!r} is not a path: {error}. {KINDS}") from error


def _masked(address: str) -> str:
    scheme, _, rest = address.partition("://")
    rest = rest.split("?", 1)[0]
    return f"{scheme}://…@{rest.rsplit('@', 1)[1]}" if "@" in rest else f"{scheme}://{rest}"


# --- creating and migrating --------------------------------------------------------------------------------------


def prepare(backend: Backend, *, create: bool = True) -> None:
    """Create or migrate, unless the store is current. Refuse what is not a store or is from the future."""
    try:
        if isinstance(backend, SQLiteBackend) and not backend.exists():
            if not create:
                raise CannotOpen(f"there is no store at {backend.path}. Nothing was created; check the path.")
            _create(backend)
        _prepare(backend, create)
        backend.home()  # if that cannot be told, then neither can a copy from its original
    except BaseException as error:
        backend.close()
        ours = _translated(backend, error)
        if ours is not None:
            raise ours from error
        raise


def _translated(backend: Backend, error: BaseException) -> StoreError | None:
    """Our own error for whatever a driver raised; None for what is no driver's."""
    if isinstance(error, OSError) and isinstance(backend, SQLiteBackend):
        return backend._os_error(error)
    if not isinstance(error, SQLAlchemyError | sqlite3.Error) and type(error).__module__.split(".")[0] != "psycopg":
        return None
    driver = getattr(error, "orig", None) or error
    what = str(driver).strip().partition("\n")[0].rstrip(".")
    return backend.translate(driver) or CannotOpen(f"cannot open the store: {what}. Nothing was created or changed.")


def _create(backend: SQLiteBackend) -> None:
    """Make a whole store under another name, then give it its own: so nobody ever finds half of one.

    Several processes may do this at once. One of them is first; the others throw theirs away and use that.
    """
    new = SQLiteBackend(backend.path.with_name(f".walkback-{uuid.uuid4().hex[:12]}.new"), backend._wait, backend.path)
    try:
        new.create_file()
        _prepare(new, create=True)
        new.engine.dispose()  # nobody but the writer is left, so that a checkpoint waits for nobody
        # Closing would move everything from -wal into the file too, but say nothing when the disk is full.
        if new.open_writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() != (0, 0, 0):
            raise CannotOpen(f"{backend.path} could not be written to its end. Nothing was created; try again.")
        new.close()
        with contextlib.suppress(FileExistsError):
            os.link(new.path, backend.path)
        directory = os.open(backend.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        new.close()
        remove_database(new.path)


def remove_database(path: Path) -> None:
    """An SQLite file that nobody else has open, with the files SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _prepare(backend: Backend, create: bool) -> None:
    with backend.engine.connect() as connection:
        version = _version(connection)
    if version == schema.SCHEMA_VERSION:
        return
    if version is None and not create:
        raise NotAStore("there is no Walkback store at this address, and none was to be created. It was not changed.")
    if isinstance(backend, SQLiteBackend):
        if version is None:
            backend.path.chmod(PRIVATE)  # an empty file of somebody's becomes a store
        backend.open_writer()  # switches WAL on, which cannot be done inside a transaction
    with backend.engine.connect().execution_options(walkback_writes=True) as connection, connection.begin():
        if backend.locks_rows:
            connection.execute(text("SELECT pg_advisory_xact_lock(:k)"), {"k": MIGRATION_LOCK})
        if _version(connection) != schema.SCHEMA_VERSION:  # another process may have been faster
            _migrate(connection)
            _introduce(connection, backend.home(connection))
            _make_admin(connection)


def _version(connection: Connection) -> str | None:
    """The schema found; None for an empty database. Raises when it is somebody else's, or too new."""
    found = inspect(connection)
    names = {*found.get_table_names(), *found.get_view_names()}
    if not names:
        return None
    if not ({"alembic_version", "store"} <= names and {c["name"] for c in found.get_columns("store")} >= OURS):
        raise NotAStore(
            "this database holds other tables and no Walkback store. It was not changed; use a database of its own."
        )
    version = connection.execute(text("SELECT max(version_num) FROM alembic_version")).scalar()
    if version is None:
        raise NotAStore("this store does not say which schema it has. It was not changed; restore a backup.")
    if version > schema.SCHEMA_VERSION:
        written_by = connection.execute(text("SELECT written_by FROM store")).scalar()
        raise SchemaTooNew(
            f"this store has schema {version}, written by walkback {written_by}; this is walkback {package_version()}, "
            f"which knows schemas up to {schema.SCHEMA_VERSION}. It was not changed. Install walkback {written_by} or "
            "newer."
        )
    return str(version)


def _migrate(connection: Connection, to: str = "head") -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def next_epoch(before: int = 0) -> int:
    """Greater than the one before, and than any given out earlier for another copy of the same store."""
    return max(int(time.time()) - EPOCH_ORIGIN, before + 1)


def _introduce(connection: Connection, home: str) -> None:
    """The one row about the store itself."""
    if connection.execute(select(schema.store.c.id)).first() is not None:
        connection.execute(update(schema.store).values(written_by=package_version()))
        return
    row: dict[str, Any] = {
        "id": 1,
        "store_id": str(uuid.uuid4()),
        "epoch": next_epoch(),
        "home": home,
        "written_by": package_version(),
        "feed_base": 0,
        "created_at": time.time_ns() // 1000,
        "head_seq": 0,
        "head_hash": GENESIS,
    }
    connection.execute(insert(schema.store).values(row))


def _make_admin(connection: Connection) -> None:
    """Whoever made a store, or brought it to the schema that has roles, may do everything in it.

    An event says so, as one says everything, though no transition was asked for: before this, nobody could ask.
    """
    s, e = schema.store, schema.events
    head = connection.execute(select(s.c.head_seq, s.c.head_hash).with_for_update()).one()
    if connection.execute(select(schema.roles.c.person).limit(1)).first() is not None:
        return
    person, now, seq = operator_at(connection), time.time_ns() // 1000, head.head_seq + 1
    row = granted(Role.ADMIN, person, now)
    data = {"action": "created" if seq == 1 else "migrated", "schema": schema.SCHEMA_VERSION, "admin": person}
    body = encode_body(data, {"roles": {person: row}})
    transition, kind = new_id(), Kind.STORE.value
    digest = sha256(body).digest()
    chained = chain_hash(bytes(head.head_hash), STORE, seq, now, kind, person, None, transition, digest)
    event = {
        "run_no": schema.STORE_LOG, "seq": seq, "at": now, "kind": kind, "actor": person, "step": None,
        "transition": transition, "hash": chained, "body": pack_body(body),
    }  # fmt: skip
    connection.execute(insert(e).values(event))
    connection.execute(insert(schema.roles).values(person=person, **row))
    connection.execute(update(s).values(head_seq=seq, head_hash=chained))
