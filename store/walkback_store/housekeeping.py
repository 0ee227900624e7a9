"""Keeping a store healthy: backups, pruning, statistics, and adopting a copy."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select, text, update

from walkback_store import schema
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.errors import CannotOpen, NoPermission, PreconditionFailed, StoreError
from walkback_store.frames import body_digest, pruned_body
from walkback_store.log import Row
from walkback_store.machine.store_wide import AdoptStore, NotePrune
from walkback_store.sqlite_library import sqlite3
from walkback_store.words import AUDIT_KINDS, FINISHED

if TYPE_CHECKING:
    from walkback_store.store import Store

BACKUP_PAGES = 512
PRUNE_AT_ONCE = 100


# --- backup ------------------------------------------------------------------------------------------------------


def backup(store: Store, target: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Path:
    """Copy the store to a new file while others write. Consistent, mode 0600, and complete or not there at all.

    The copy knows that it is one: nothing runs in it until someone adopts it.
    """
    path = Path(target).expanduser().absolute()
    if not isinstance(store.backend, SQLiteBackend):
        raise PreconditionFailed("a PostgreSQL store is backed up with pg_dump or a base backup; see docs/store.md.")
    partial = path.with_name(f".{path.name}.partial")
    if path.exists():
        raise CannotOpen(f"{path} exists already. Nothing was overwritten; choose another name.")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))
    except OSError as error:
        raise NoPermission(f"cannot write a backup to {path}: {error.strerror}. Nothing was written.") from error
    try:
        _copy(store.backend, partial, progress)
        os.link(partial, path)  # fails rather than overwrite
    except FileExistsError as error:
        raise CannotOpen(f"{path} appeared meanwhile. Nothing was overwritten; choose another name.") from error
    except sqlite3.Error as error:
        raise store.backend.translate(error) or error from error
    finally:
        partial.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return path


def _copy(backend: SQLiteBackend, partial: Path, progress: Callable[[int, int], None] | None) -> None:
    source, copy = backend._connect(), sqlite3.connect(partial)
    with contextlib.closing(source), contextlib.closing(copy):
        report = None if progress is None else lambda _, remaining, total: progress(total - remaining, total)
        source.execute("BEGIN")  # one state for the whole copy, so that writers cannot make it start over
        source.execute("SELECT id FROM store").fetchone()
        source.backup(copy, pages=BACKUP_PAGES, progress=report)
        copy.execute("PRAGMA synchronous=FULL")
        copy.execute("PRAGMA journal_mode=DELETE")
        copy.execute("UPDATE store SET home = 'backup'")
        copy.commit()


def adopt(store: Store, actor: str, reason: str) -> int:
    """Let a copy or a restored backup run from here on. Every fence given before is worth nothing. Returns the epoch."""
    with store.backend.engine.connect() as connection:
        row = connection.execute(select(schema.store.c.epoch)).one()
        top = connection.execute(select(func.max(schema.events.c.pos))).scalar() or 0
    epoch = max(int(time.time()), row.epoch + 1)
    store.do(AdoptStore(actor=actor, epoch=epoch, home=store.engine.home, feed_base=top, reason=reason))
    return epoch


def is_adopted(store: Store) -> bool:
    with store.backend.engine.connect() as connection:
        return connection.execute(select(schema.store.c.home)).scalar_one() == store.engine.home


# --- prune -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pruned:
    runs: int = 0
    bodies: int = 0
    snapshots: int = 0


def prune(store: Store, older_than: int, actor: str, progress: Callable[[int], None] | None = None) -> Pruned:
    """Remove what finished runs carry beyond their audit trail, for those that finished before `older_than`.

    Snapshots, projections and the bodies of observations, decisions and raw tool answers go. Intents, outcomes,
    approvals and people's words stay, and so does every hash: the chain can still be proven. A run that is not
    finished, has an operation that someone should look at, or has a fork that is still there, is left alone.
    """
    total = Pruned()
    while batch := _prunable(store, older_than):
        for run in batch:
            _prune_run(store, run, actor, total)
        if progress is not None:
            progress(total.runs)
    return total


def _prunable(store: Store, older_than: int) -> list[Row]:
    r, o = schema.runs, schema.operations
    child = r.alias("child")
    open_matter = (
        select(o.c.step)
        .where(o.c.run_no == r.c.run_no)
        .where((o.c.status == "unknown") | (o.c.duplicate_suspected == 1) | (o.c.status == "pending"))
    )
    query = (
        select(r)
        .where(r.c.finished_at.is_not(None), r.c.finished_at < older_than, r.c.status.in_(sorted(FINISHED)))
        .where(~open_matter.exists(), ~select(child.c.run_no).where(child.c.parent == r.c.run_id).exists())
        .order_by(r.c.finished_at)
        .limit(PRUNE_AT_ONCE)
    )
    return store._rows(query)


def _prune_run(store: Store, run: Row, actor: str, total: Pruned) -> None:
    run_no = run["run_no"]
    store.do(NotePrune(actor=actor, pruned=run["run_id"], head_seq=run["head_seq"], finished_at=run["finished_at"]))
    engine = store.backend.engine
    with store.engine._writing, engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        r, e, s = schema.runs, schema.events, schema.snapshots
        locked = db.execute(select(r).where(r.c.run_no == run_no).with_for_update()).mappings().first()
        if locked is None or locked["head_seq"] != run["head_seq"]:
            return  # somebody did something to it meanwhile, or pruned it: the next prune looks again
        kept = sorted(AUDIT_KINDS)
        rows = db.execute(select(e.c.pos, e.c.body).where(e.c.run_no == run_no, e.c.kind.not_in(kept))).all()
        for pos, body in rows:
            db.execute(update(e).where(e.c.pos == pos).values(body=pruned_body(body_digest(bytes(body)))))
        total.bodies += len(rows)
        total.snapshots += db.execute(delete(s).where(s.c.run_no == run_no)).rowcount
        for t in (*schema.PER_RUN, schema.run_tags, schema.runs):
            db.execute(delete(t).where(t.c.run_no == run_no))
        names = ("run_id", "run_no", "agent", "status", "finished_at", "head_seq", "head_hash")
        tombstone = {name: locked[name] for name in names} | {"pruned_at": time.time_ns() // 1000}
        db.execute(insert(schema.tombstones).values(tombstone))
    total.runs += 1


# --- statistics --------------------------------------------------------------------------------------------------


def statistics(store: Store) -> dict[str, int]:
    """Rows per table, and bytes where they can be told."""
    found: dict[str, int] = {}
    with store.backend.engine.connect() as connection:
        for t in schema.metadata.sorted_tables:
            found[f"{t.name}_rows"] = int(connection.execute(select(func.count()).select_from(t)).scalar_one())
        s = schema.snapshots
        packed, size = connection.execute(select(func.sum(func.length(s.c.data)), func.sum(s.c.size))).one()
        found["snapshot_bytes"] = int(packed or 0)
        found["snapshot_bytes_unpacked"] = int(size or 0)
        found["event_body_bytes"] = int(
            connection.execute(select(func.sum(func.length(schema.events.c.body)))).scalar() or 0
        )
        if isinstance(store.backend, SQLiteBackend):
            found["total_bytes"] = sum(
                Path(f"{store.backend.path}{suffix}").stat().st_size
                for suffix in ("", "-wal")
                if Path(f"{store.backend.path}{suffix}").exists()
            )
        else:
            found["total_bytes"] = int(
                connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
            )
    return found


__all__ = ["Pruned", "StoreError", "adopt", "backup", "is_adopted", "prune", "statistics"]
