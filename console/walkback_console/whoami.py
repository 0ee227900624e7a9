"""Who the operator is: the OS user on SQLite, the database role on PostgreSQL; never an environment variable's word."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkback_store import Store


def operator_of(store: Store) -> str:
    """The actor that a decision taken here is stored under."""
    if store.backend.name == "postgresql":
        with store.backend.engine.connect() as connection:
            # Not current_user: SET ROLE would change that one.
            return f"operator:{connection.exec_driver_sql('SELECT session_user').scalar_one()}"
    return f"operator:{_os_user()}"


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
