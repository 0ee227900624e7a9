"""Who acts here: the OS user on SQLite, the database role on PostgreSQL; never an environment variable's word."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from walkback_store.backends.sqlite import SQLiteBackend

if TYPE_CHECKING:
    from walkback_store.store import Store

OWNS_DATABASE = "SELECT pg_get_userbyid(datdba) = session_user FROM pg_database WHERE datname = current_database()"


def operator_of(store: Store) -> str:
    """The actor that a decision taken here is stored under."""
    if isinstance(store.backend, SQLiteBackend):
        return f"operator:{_os_user()}"
    with store.backend.engine.connect() as connection:
        return operator_at(connection)


def operator_at(connection: Connection) -> str:
    if connection.dialect.name == "postgresql":
        # Not current_user: SET ROLE would change that one.
        return f"operator:{connection.exec_driver_sql('SELECT session_user').scalar_one()}"
    return f"operator:{_os_user()}"


def owns(store: Store) -> bool:
    """Whether whoever acts here owns the file, or the database, and could do with it as they like anyway."""
    if isinstance(store.backend, SQLiteBackend):
        return not hasattr(os, "getuid") or os.stat(store.backend.path).st_uid == os.getuid()
    with store.backend.engine.connect() as connection:
        return bool(connection.exec_driver_sql(OWNS_DATABASE).scalar_one())


def _os_user() -> str:
    try:
        import pwd
    except ImportError:  # not a POSIX system
        import getpass

        return getpass.getuser()
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run as a user that nobody named
        return f"uid-{uid}"


__all__ = ["operator_at", "operator_of", "owns"]
