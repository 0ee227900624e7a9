"""Which SQLite library to use: the interpreter's own when it is safe, the `pysqlite3` wheel otherwise.

SQLite before 3.51.3 (3.50.7, 3.44.6) can corrupt a WAL database that several processes write to.
"""

from __future__ import annotations

import sqlite3 as _builtin
from types import ModuleType

Version = tuple[int, int, int]


def is_safe(version: Version) -> bool:
    """Whether this SQLite has the fix for the WAL-reset corruption."""
    if version >= (3, 51, 3):
        return True
    return (3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0)


def _choose() -> ModuleType:
    if is_safe(_builtin.sqlite_version_info[:3]):
        return _builtin
    try:
        import pysqlite3
    except ImportError:
        return _builtin
    return pysqlite3 if pysqlite3.sqlite_version_info > _builtin.sqlite_version_info else _builtin


sqlite3 = _choose()


def describe() -> dict[str, str | bool]:
    """What is in use, for `walkback doctor`."""
    return {
        "module": sqlite3.__name__,
        "version": sqlite3.sqlite_version,
        "safe": is_safe(sqlite3.sqlite_version_info[:3]),
    }
