"""Keeping a store healthy: backups, pruning, statistics, and adopting a copy."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Executable,
    Insert,
    Select,
    Update,
    and_,
    delete,
    func,
    insert,
    select,
    text,
    update,
)

from walkback_store import schema
from walkback_store.backends.base import Fetched
from walkback_store.backends.sqlite import PRIVATE, SQLiteBackend, os_error
from walkback_store.errors import CannotOpen, PreconditionFailed, StoreError
from walkback_store.frames import body_digest, pruned_body
from walkback_store.machine.base import Transition
from walkback_store.machine.store_wide import AdoptStore, NotePrune
from walkback_store.opening import next_epoch, remove_database
from walkback_store.people import operator_of, owns
from walkback_store.sqlite_library import sqlite3
from walkback_store.words import AUDIT_KINDS, FINISHED, ApprovalStatus, DecisionStatus
from walkback_store.work import Work

if TYPE_CHECKING:
    from walkback_store.store import Store

BACKUP_PAGES = 512
PRUNE_AT_ONCE = 100
BODIES_AT_ONCE = 100


# --- backup ------------------------------------------------------------------------------------------------------


def backup(store: Store, target: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Path:
    """Copy the store to a new file while others write. Consistent, mode 0600, and complete or not there at all.

    `progress` gets the pages copied and their total; raising from it cancels the backup. The copy knows that it is one:
    nothing runs in it until someone adopts it.
    """
    store.backend.check_usable()
    path = Path(target).expanduser().absolute()
    if not isinstance(store.backend, SQLiteBackend):
        raise PreconditionFailed(
            "a PostgreSQL store is backed up with the server's own tools, such as pg_dump. Nothing was written. What "
            "is restored from that is a copy: it can be read, and must be adopted before anything runs in it."
        )
    what = f"cannot write a backup to {path}"
    partial = path.with_name(f".walkback-{uuid.uuid4().hex[:12]}.partial")
    try:
        if os.path.lexists(path):
            raise FileExistsError
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        partial.chmod(PRIVATE)
        _copy(store.backend, partial, path, progress)
        os.link(partial, path)  # fails rather than overwrite
        _sync_directory(path.parent)
    except FileExistsError as error:
        raise CannotOpen(f"{what}: it exists already. Nothing was overwritten; choose another name.") from error
    except OSError as error:
        raise os_error(what, error) from error
    finally:
        remove_database(partial)
    return path


def _copy(backend: SQLiteBackend, partial: Path, called: Path, progress: Callable[[int, int], None] | None) -> None:
    report = None if progress is None else lambda _, remaining, total: progress(total - remaining, total)
    target = SQLiteBackend(partial, 0.0, called)
    try:
        with contextlib.closing(backend._connect()) as source:
            source.execute("BEGIN")  # one state for the whole copy, so that writers cannot make it start over
            source.execute("SELECT id FROM store").fetchone()
            try:
                with contextlib.closing(target._connect()) as copy:
                    source.backup(copy, pages=BACKUP_PAGES, progress=report)
                    (mode,) = copy.execute("PRAGMA journal_mode=DELETE").fetchone()  # one file, whole in itself
                    if mode != "delete":
                        raise CannotOpen(f"the backup {called} could not be finished. Nothing was created; try again.")
                    copy.execute("UPDATE store SET home = 'backup'")
            except sqlite3.Error as error:
                raise target.translate(error) or error from error
    except sqlite3.Error as error:
        raise backend.translate(error) or error from error


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# --- copies ------------------------------------------------------------------------------------------------------


def adopt(store: Store, actor: str, reason: str) -> int:
    """Let a copy or a restored backup run from here on; no fence given before holds in it. Returns the new epoch."""
    with store._reading(patient=True) as moment:
        (before,) = moment.values(select(schema.store.c.epoch))
        (top,) = moment.values(select(func.coalesce(func.max(schema.events.c.pos), 0)))
    epoch = next_epoch(before)
    owner = actor == operator_of(store) and owns(store)
    home = store.backend.home()
    store.do(AdoptStore(actor=actor, epoch=epoch, home=home, feed_base=top, reason=reason, owner=owner))
    return epoch


def is_adopted(store: Store) -> bool:
    with store._reading(patient=True) as moment:
        return moment.values(select(schema.store.c.home)) == [store.backend.home()]


# --- prune -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pruned:
    """What a prune removed, or would remove."""

    runs: int = 0
    bodies: int = 0
    snapshots: int = 0


def prune(
    store: Store,
    older_than: int,
    actor: str,
    progress: Callable[[int], None] | None = None,
    *,
    dry_run: bool = False,
) -> Pruned:
    """Remove what finished runs carry beyond their audit trail, for those that finished before `older_than`.

    Snapshots, projections and the bodies of observations, decisions and raw tool answers go. Intents, outcomes,
    approvals and people's words stay, and so does every hash: the chain can still be proven. A run that is not
    finished, that has something in it that a person should look at, or that has a fork which is still there, is left
    alone. Each run goes in one transaction, with the event that says so. Of the identities that it owns the outcome is
    kept. `dry_run` changes nothing.

    The file of an SQLite store does not get smaller: the space is used again, and `statistics` says how much there is.
    """
    total = Pruned()
    if dry_run:
        return _would_prune(store, older_than)
    while batch := _prunable(store, older_than):
        for run_id in batch:
            _prune_run(store, run_id, older_than, actor, total)
        if progress is not None:
            progress(total.runs)
    return total


def _settled(older_than: int) -> ColumnElement[bool]:
    """Finished long enough ago, with nothing left in it for a person."""
    r, o, a, d = schema.runs, schema.operations, schema.approvals, schema.decisions
    open_matters = (
        select(o.c.step).where(
            o.c.run_no == r.c.run_no,
            o.c.status.in_(["unknown", "pending", "awaiting_approval"]) | (o.c.duplicate_suspected == 1),
        ),
        select(a.c.step).where(a.c.run_no == r.c.run_no, a.c.status == ApprovalStatus.ASKED),
        select(d.c.seq).where(d.c.run_no == r.c.run_no, d.c.status == DecisionStatus.WAITING),
    )
    finished = and_(r.c.finished_at.is_not(None), r.c.finished_at < older_than, r.c.status.in_(sorted(FINISHED)))
    return and_(finished, *(~matter.exists() for matter in open_matters))


def _forked() -> ColumnElement[bool]:
    """The snapshots of a fork build on its parent's."""
    child = schema.runs.alias("child")
    return select(child.c.run_no).where(child.c.parent == schema.runs.c.run_id).exists()


def _prunable(store: Store, older_than: int) -> list[str]:
    r = schema.runs
    query = select(r.c.run_id).where(_settled(older_than), ~_forked()).order_by(r.c.finished_at).limit(PRUNE_AT_ONCE)
    return [row["run_id"] for row in store._rows(query)]


def _would_prune(store: Store, older_than: int) -> Pruned:
    """As `prune` goes about it: a fork goes first, then its parent, so whatever has a fork that stays, stays."""
    r, e, s = schema.runs, schema.events, schema.snapshots
    settled = select(r.c.run_no).where(_settled(older_than))
    stays = select(r.c.parent).where(r.c.parent.is_not(None), r.c.run_no.not_in(settled)).cte("stays", recursive=True)
    above = r.alias("above")
    stays = stays.union(select(above.c.parent).where(above.c.run_id == stays.c.parent, above.c.parent.is_not(None)))
    goes = settled.where(r.c.run_id.not_in(select(stays.c.parent))).scalar_subquery()
    runs = select(func.count()).select_from(r).where(r.c.run_no.in_(goes))
    bodies = select(func.count()).select_from(e).where(e.c.run_no.in_(goes), e.c.kind.not_in(sorted(AUDIT_KINDS)))
    snapshots = select(func.count()).select_from(s).where(s.c.run_no.in_(goes))
    with store._reading(patient=True) as moment:
        return Pruned(*(moment.values(query)[0] for query in (runs, bodies, snapshots)))


def _prune_run(store: Store, run_id: str, older_than: int, actor: str, total: Pruned) -> None:
    """Planned inside the transaction that notes it: the run is locked, looked at once more, and taken apart."""
    done = Pruned()

    def take_apart(_: Work) -> list[Transition]:
        nonlocal done
        done = Pruned()  # a second attempt, after a lost connection, starts over
        r, s = schema.runs, schema.snapshots
        locked = _ask(store, select(r.c.run_no).where(r.c.run_id == run_id).with_for_update())
        names = ("run_id", "run_no", "agent", "status", "finished_at", "head_seq", "head_hash")
        query = select(*(r.c[name] for name in names)).where(r.c.run_id == run_id, _settled(older_than), ~_forked())
        found = _ask(store, query) if locked else []
        if not found:
            return []  # somebody did something to it meanwhile, or pruned it
        run = dict(zip(names, found[0], strict=True))
        run_no = run["run_no"]
        i, o = schema.identities, schema.operations
        owned = select(i.c.identity, o.c.step, o.c.status).join(o, and_(o.c.run_no == run_no, o.c.step == i.c.step))
        outcomes = {name: (step, status) for name, step, status in _ask(store, owned.where(i.c.run_id == run_id))}
        done.bodies = _prune_bodies(store, run_no)
        done.snapshots = len(_ask(store, delete(s).where(s.c.run_no == run_no).returning(s.c.n)))
        for t in (*schema.PER_RUN, schema.run_tags, schema.runs):
            _ask(store, delete(t).where(t.c.run_no == run_no).returning(t.c.run_no))
        store.engine._known.forget()  # these rows were changed behind its back
        tombstone = run | {"pruned_at": time.time_ns() // 1000}
        _ask(store, insert(schema.tombstones).values(tombstone).returning(schema.tombstones.c.run_no))
        done.runs = 1
        about = {"head_seq": run["head_seq"], "finished_at": run["finished_at"], "outcomes": outcomes}
        return [NotePrune(actor=actor, pruned=run_id, **about)]

    for result in store.engine.plan_and_commit(take_apart):
        if isinstance(result, StoreError):
            raise result
        total.runs += done.runs
        total.bodies += done.bodies
        total.snapshots += done.snapshots


def _prune_bodies(store: Store, run_no: int) -> int:
    """A page at a time: the bodies of one run may not fit into memory."""
    e = schema.events
    removed, after = 0, 0
    while True:
        query = select(e.c.pos, e.c.body).where(e.c.run_no == run_no, e.c.pos > after)
        query = query.where(e.c.kind.not_in(sorted(AUDIT_KINDS))).order_by(e.c.pos).limit(BODIES_AT_ONCE)
        rows = _ask(store, query)
        digests = [(pos, pruned_body(body_digest(bytes(body)))) for pos, body in rows]
        del rows
        _ask(store, *(update(e).where(e.c.pos == pos).values(body=d).returning(e.c.pos) for pos, d in digests))
        removed += len(digests)
        if len(digests) < BODIES_AT_ONCE:
            return removed
        after = digests[-1][0]


def _ask(store: Store, *statements: Select[Any] | Insert | Update | Delete) -> Fetched:
    """Inside the writing transaction, in one round trip: the rows of all answers. Each statement must return rows."""
    queries = []
    for statement in statements:
        compiled = statement.compile(dialect=store.backend.engine.dialect, compile_kwargs={"render_postcompile": True})
        queries.append((str(compiled), [compiled.params[name] for name in compiled.positiontup or ()]))
    return [row for answer in store.backend.fetch(queries) for row in answer]


# --- statistics --------------------------------------------------------------------------------------------------


def statistics(store: Store) -> dict[str, int]:
    """Rows per table, and bytes where they can be told: in all, free for use again, and by what they hold.

    Every table is counted from end to end, in one consistent state. That takes seconds for a store of some gigabytes
    and holds nobody up; it is for a person who asks, not for a screen that refreshes.
    """
    found: dict[str, int] = {}
    backend, e, s = store.backend, schema.events, schema.snapshots
    with store._reading(patient=True) as moment:

        def number(query: Executable) -> int:
            return int(moment.values(query)[0] or 0)

        for t in schema.metadata.sorted_tables:
            found[f"{t.name}_rows"] = number(select(func.count()).select_from(t))
        found["snapshot_bytes"] = number(select(func.sum(func.length(s.c.data))))
        found["snapshot_bytes_unpacked"] = number(select(func.sum(s.c.size)))
        found["event_body_bytes"] = number(select(func.sum(func.length(e.c.body))))
        if isinstance(backend, SQLiteBackend):
            files = [Path(f"{backend.path}{suffix}") for suffix in ("", "-wal")]
            found["total_bytes"] = sum(file.stat().st_size for file in files if file.exists())
            found["free_bytes"] = number(text("PRAGMA freelist_count")) * number(text("PRAGMA page_size"))
        else:
            found["total_bytes"] = number(text("SELECT pg_database_size(current_database())"))
            found["free_bytes"] = 0  # the server's own business
    return found
