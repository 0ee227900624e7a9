"""`walkback doctor`: what the store and the console stand on, and what to do about it."""

from __future__ import annotations

import os
import platform
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from sqlalchemy import text

from walkback_console.cli import FINE, REFUSED, terminal
from walkback_console.cli.findings import BAD, LOOK, OK, Finding
from walkback_console.cli.printing import Column, Printer, as_json, t, word
from walkback_console.cli.session import Session, exit_code_of, now
from walkback_console.plain_words import SECOND, duration, many
from walkback_store import housekeeping, schema, sqlite_library
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.errors import StoreError
from walkback_store.opening import package_version

if TYPE_CHECKING:
    from walkback_store import Store

TOLERATED = 5 * SECOND
"""Clocks this far apart only make ages look odd."""


def doctor(session: Session) -> None:
    findings = [Finding("walkback", OK, f"{package_version()} on Python {platform.python_version()}")]
    code = FINE
    try:
        with session.open() as store:
            findings += _of_store(store)
    except StoreError as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        findings.append(Finding("store", BAD, str(error), notes))
        code = exit_code_of(error) or REFUSED
    findings += terminal.findings()
    if any(f.verdict == BAD for f in findings):
        code = code or REFUSED
    if session.as_json:
        listed = [{"check": f.check, "verdict": f.verdict, "found": f.found, "do": f.do} for f in findings]
        as_json({"fine": all(f.verdict == OK for f in findings), "checks": listed})
    else:
        out = Printer()
        rows = [[t(f.check), word(f.verdict), t(f"{f.found}  {f.do}".rstrip())] for f in findings]
        out.table((Column("check", 14), Column("", 4), Column("found", 40)), rows)
    raise typer.Exit(code)


def _of_store(store: Store) -> Iterator[Finding]:
    backend = store.backend
    if isinstance(backend, SQLiteBackend):
        yield Finding("store", OK, f"SQLite, {backend.path}")
        yield _library()
        yield Finding("schema", OK, f"{schema.SCHEMA_VERSION}, the newest this version knows")
        yield _permissions(backend.path)
        yield _modes(backend.path)
    else:
        yield Finding("store", OK, f"PostgreSQL, {getattr(backend, 'where', '')}")
        yield Finding("schema", OK, f"{schema.SCHEMA_VERSION}, the newest this version knows")
        yield _privileges(store)
    yield _home(store)
    yield _clock(store)


def _library() -> Finding:
    library = sqlite_library.describe()
    found = f"{library['version']} (module {library['module']})"
    if library["safe"]:
        return Finding("SQLite library", OK, found)
    return Finding(
        "SQLite library",
        BAD,
        f"{found} can corrupt a store that several processes write to.",
        "Use a Python whose SQLite is 3.51.3 or newer (3.50.7 and 3.44.6 are safe too), or install the pysqlite3 wheel "
        "for your platform. Until then, let one process at a time use the store.",
    )


def _permissions(path: Path) -> Finding:
    """SQLite writes beside the file too: its log and its index of it are made anew by whoever comes first."""
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    locked = [file.name for file in files if file.exists() and not os.access(file, os.R_OK | os.W_OK)]
    folder = path.resolve().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        locked.append(f"the folder {folder}")
    if not locked:
        return Finding("permissions", OK, "you can read and write it, and its folder")
    owner = path.stat().st_uid
    return Finding(
        "permissions",
        BAD,
        f"you cannot write {', '.join(locked)}: you can look at most, and neither decide nor work.",
        f"Run as the user who owns the store (uid {owner}), or ask them to decide.",
    )


def _privileges(store: Store) -> Finding:
    """Of the role on every table; a role that may only read is how a viewer is kept one."""
    lacking = text(
        "SELECT relname FROM pg_class WHERE relname = ANY(:names) AND relkind = 'r' "
        "AND relnamespace = current_schema()::regnamespace AND NOT (has_table_privilege(oid, 'SELECT') "
        "AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE')) ORDER BY relname"
    )
    with store.backend.engine.connect() as connection:
        found = list(connection.execute(lacking, {"names": sorted(schema.metadata.tables)}).scalars())
        role = connection.execute(text("SELECT session_user")).scalar_one()
    if not found:
        return Finding("permissions", OK, f"the role {role} can read and write its tables")
    return Finding(
        "permissions",
        LOOK,
        f"the role {role} cannot write {many(len(found), 'table')} ({', '.join(found[:3])}): it can look, not decide.",
        f"If it should: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
    )


def _modes(path: Path) -> Finding:
    open_to_others = []
    for suffix in ("", "-wal", "-shm"):
        file = Path(f"{path}{suffix}")
        if file.exists() and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
            open_to_others.append((file, mode))
    if not open_to_others:
        return Finding("file mode", OK, "only its owner can read it")
    found = ", ".join(f"{file.name} has mode {mode:04o}" for file, mode in open_to_others)
    names = shlex.join(str(file) for file, _ in open_to_others)
    return Finding("file mode", LOOK, f"{found}: others can read what agents were told.", f"chmod 600 {names}")


def _home(store: Store) -> Finding:
    if housekeeping.is_adopted(store):
        return Finding("home", OK, "this store lives here")
    return Finding(
        "home",
        LOOK,
        "this is a copy or a restored backup: it can be read, but nothing runs in it.",
        "If the original is gone for good: walkback adopt --reason '...'. If it still runs, leave this one alone.",
    )


def _clock(store: Store) -> Finding:
    here = now()
    if store.backend.name == "postgresql":
        there = store.now()
        apart = abs(there - here)
        if apart <= TOLERATED:
            return Finding("clock", OK, f"{duration(apart)} from the database's")
        return Finding(
            "clock",
            LOOK,
            f"this machine and the database are {duration(apart)} apart; the database's time is what counts.",
            "Ages shown here are off by as much. Check time synchronisation on both.",
        )
    newest = store.runs(limit=1).rows
    ahead = newest[0]["created_at"] - here if newest else 0
    if ahead <= TOLERATED:
        return Finding("clock", OK, "no run starts in the future")
    return Finding(
        "clock",
        LOOK,
        f"the newest run was started {duration(ahead)} in the future: this clock is behind, or was ahead then.",
        "Check time synchronisation. Approvals and waits go by this clock.",
    )
