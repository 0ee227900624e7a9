"""Opening a store: which address, which database, is it ours, is it current. Nothing is half-made when it fails."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, inspect, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from walkback_store import schema
from walkback_store.backends.base import Backend
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.errors import BadStoreURL, CannotOpen, NotAStore, SchemaTooNew, StoreError
from walkback_store.log import GENESIS

DEFAULT_URL = "walkback.db"
MIGRATION_LOCK = 0x57616C6C


def package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("walkback")
    except PackageNotFoundError:
        return "0"


def choose_url(option: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """`--store`, then `WALKBACK_STORE`, then ./walkback.db."""
    return option or environ.get("WALKBACK_STORE") or DEFAULT_URL


def make_backend(url: str | os.PathLike[str], wait: float) -> Backend:
    address = os.fspath(url)
    if not address.strip():
        raise BadStoreURL(
            "the address of the store is empty. Give a path, sqlite:///path or postgresql://host/database."
        )
    if "://" not in address:
        return SQLiteBackend(Path(address).expanduser().absolute(), wait)
    try:
        parsed = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise BadStoreURL(f"{_masked(address)!r} is not an address: {error}") from error
    kind = parsed.drivername.split("+", 1)[0]
    if kind == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise BadStoreURL("a store must outlive its process: give sqlite:///path, not an in-memory database.")
        return SQLiteBackend(Path(parsed.database).expanduser().absolute(), wait)
    if kind in {"postgresql", "postgres"}:
        from walkback_store.backends.postgres import PostgresBackend

        return PostgresBackend(parsed.set(drivername="postgresql+psycopg"), wait)
    raise BadStoreURL(f"{kind!r} is not a kind of store. Give a path, sqlite:///path or postgresql://host/database.")


def _masked(address: str) -> str:
    scheme, _, rest = address.partition("://")
    return f"{scheme}://…@{rest.rsplit('@', 1)[1]}" if "@" in rest else address


def prepare(backend: Backend, *, create: bool = True) -> None:
    """Create or migrate, unless the store is current. Refuse what is not a store or is from the future."""
    made = False
    if isinstance(backend, SQLiteBackend):
        if not create and not backend.path.exists():
            raise CannotOpen(f"there is no store at {backend.path}.")
        made = backend.create_file()
    try:
        _prepare(backend, create)
    except BaseException as error:
        backend.close()
        if made and isinstance(backend, SQLiteBackend):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{backend.path}{suffix}").unlink(missing_ok=True)
        if isinstance(error, StoreError):
            raise
        driver = getattr(error, "orig", None) or error
        known = backend.translate(driver) if isinstance(driver, BaseException) else None
        if known is not None:
            raise known from error
        raise


def _prepare(backend: Backend, create: bool) -> None:
    with backend.engine.connect() as connection:
        version = _version(connection)
    if version == schema.SCHEMA_VERSION:
        return
    if not create:
        raise NotAStore("there is no Walkback store at this address, and none was to be created.")
    if isinstance(backend, SQLiteBackend):
        backend.open_writer()  # switches WAL on, which cannot be done inside a transaction
    with backend.engine.connect().execution_options(walkback_writes=True) as connection, connection.begin():
        if backend.locks_rows:
            connection.execute(text("SELECT pg_advisory_xact_lock(:k)"), {"k": MIGRATION_LOCK})
        if _version(connection) != schema.SCHEMA_VERSION:  # another process may have been faster
            _migrate(connection)
            _introduce(connection, backend.home())


def _version(connection: Connection) -> str | None:
    """The schema found; None for an empty database. Raises when it is somebody else's, or too new."""
    names = set(inspect(connection).get_table_names())
    if not names:
        return None
    if "alembic_version" not in names or "store" not in names:
        raise NotAStore(
            "this database holds other tables and no Walkback store. It was not changed; use a database of its own."
        )
    version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    if version > schema.SCHEMA_VERSION:
        written_by = connection.execute(text("SELECT written_by FROM store")).scalar_one()
        raise SchemaTooNew(
            f"this store has schema {version}, written by walkback {written_by}; this is walkback {package_version()}, "
            f"which knows schemas up to {schema.SCHEMA_VERSION}. It was not changed. Install walkback {written_by} or "
            "newer."
        )
    return str(version)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _introduce(connection: Connection, home: str) -> None:
    """The one row about the store itself."""
    if connection.execute(select(schema.store.c.id)).first() is not None:
        connection.execute(update(schema.store).values(written_by=package_version()))
        return
    row: dict[str, Any] = {
        "id": 1,
        "store_id": str(uuid.uuid4()),
        "epoch": int(time.time()),
        "home": home,
        "written_by": package_version(),
        "feed_base": 0,
        "created_at": time.time_ns() // 1000,
        "head_seq": 0,
        "head_hash": GENESIS,
    }
    connection.execute(insert(schema.store).values(row))
