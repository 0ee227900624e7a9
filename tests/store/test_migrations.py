"""A store of an older schema keeps all that is in it, and the migrations make what the code declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, inspect, text

from tests.store.driver import ANN, BOB, DIGEST, Held, ask, finish, intend, open_with_clock, park_unknown, start, write
from tests.store.recipes import World
from walkback_store import open_store, opening, schema
from walkback_store.backends.base import Backend
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.fsck import fsck
from walkback_store.housekeeping import prune
from walkback_store.machine.people import Approve
from walkback_store.machine.roles import EVERYONE
from walkback_store.machine.runs import ParkRun
from walkback_store.machine.store_wide import Freeze, OpenBatch, Unfreeze
from walkback_store.people import operator_of
from walkback_store.words import FreezeScope

Content = dict[str, list[dict[str, Any]]]


def make(url: str, version: str) -> Backend:
    """An empty store as the version with this schema made it."""
    backend = opening.make_backend(url, 5.0)
    if isinstance(backend, SQLiteBackend):
        backend.create_file()
        backend.open_writer()
    with backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        opening._migrate(db, version)
    return backend


def content(db: Connection) -> Content:
    """Every row of every table there is, with the columns that there are."""
    found = MetaData()
    found.reflect(db)
    return {
        t.name: [dict(row) for row in db.execute(t.select().order_by(*t.primary_key.columns)).mappings()]
        for t in found.tables.values()
    }


def lived_in(path: Path) -> tuple[Content, str]:
    """What a store holds in which a bit of everything has happened; and the runs that were pruned from it.

    Its log knows of no roles, as none did before there were any: that everyone may do everything is put there by hand.
    """
    backend = make(f"sqlite:///{path}", "head")
    with backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        opening._introduce(db, backend.home(db))
        db.execute(schema.roles.insert().values(person=EVERYONE, role="admin", by="nobody", at=0))
    backend.close()
    store, clock = open_with_clock(f"sqlite:///{path}")
    with store:
        world = World(store, clock)
        old = world.held(tags=["t"])
        write(old, "1", before={"n": 1}, after={"n": 2})
        finish(old)
        clock.pass_(10)
        prune(store, clock.now, ANN)
        done = world.held(tags=["t"])
        write(done, "1", before={"n": 1}, after={"n": 2})
        finish(done)
        asked = world.held()
        ask(asked, "1", park=True)
        store.do(Approve(actor=ANN, run_id=asked.run_id, step="1", digest=DIGEST))
        unknown = world.held()
        park_unknown(unknown, "1")
        store.do(OpenBatch(actor=ANN, action="retry", members=[(unknown.run_id, "1")], reason="all the same"))
        waiting = world.held()
        store.do(ParkRun(**waiting.by, waits_for="freeze:pay"))
        intend(world.held(), "1", tool="mail")
        lifted = store.do(Freeze(actor=ANN, scope=FreezeScope.AGENT, name="b", reason="it sends nonsense")).seq
        store.do(Unfreeze(actor=BOB, freeze_no=lifted, reason="mended"))
        store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name="pay", reason="it sends nonsense"))
        with store.backend.engine.connect() as db:
            return content(db), old.run_id


def fill(backend: Backend, rows: Content) -> Content:
    """Put these rows, as far as this schema knows their tables and columns, into an empty store."""
    tables = MetaData()
    with backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        tables.reflect(db)
        for t in tables.tables.values():
            if t.name != "alembic_version":
                known = [{c: v for c, v in row.items() if c in t.c} for row in rows[t.name]]
                if known:
                    db.execute(t.insert(), known)
        db.execute(tables.tables["store"].update().values(home=backend.home(db)))
        if backend.locks_rows:
            for table, column in (("events", "pos"), ("runs", "run_no")):
                sequence = f"pg_get_serial_sequence('{table}', '{column}')"
                db.execute(text(f"SELECT setval({sequence}, (SELECT max({column}) FROM {table}))"))
        return content(db)


@pytest.mark.parametrize("version", ["0001", "0002"])
def test_a_store_of_an_older_schema_keeps_all_that_is_in_it(version: str, store_url: str, tmp_path: Path) -> None:
    rows, pruned = lived_in(tmp_path / "lived-in.db")
    backend = make(store_url, version)
    before = fill(backend, rows)
    backend.close()
    assert "roles" not in before
    assert ("identities" not in before) == ("until" not in before["freezes"][0]) == (version == "0001")
    with open_store(store_url) as store:
        with store.backend.engine.connect() as db:
            after = content(db)
        # Whoever migrates it becomes its admin, and an event says so.
        (added,) = [event for event in after["events"] if event["pos"] > before["events"][-1]["pos"]]
        after["events"].remove(added)
        (event,) = store.events(None, after=before["store"][0]["head_seq"])
        assert (event.actor, event.data["action"]) == (operator_of(store), "migrated")
        assert [(row["person"], row["role"]) for row in after["roles"]] == [(operator_of(store), "admin")]
        for name in before.keys() - {"alembic_version", "store"}:
            columns = before[name][0] if before[name] else ()
            assert [{c: row[c] for c in columns} for row in after[name]] == before[name], name
        assert after["alembic_version"] == [{"version_num": schema.SCHEMA_VERSION}]
        assert {row["refers_to"] for row in after["operations"]} == {None}
        assert {(row["until"], row["probe"]) for row in after["freezes"]} == {(None, None)}
        assert after["breakers"] == after["buckets"] == after["identities"] == []
        assert pruned in {row["run_id"] for row in after["tombstones"]}
        report = fsck(store, deep=True)
        assert report.problems == []
        assert report.runs == len(after["runs"]) + 1
        # And it goes on.
        start(store, "new")
        (claimed,) = store.claim("w", {"a": ["1"]})
        assert claimed.run is not None
        write(Held(store, claimed.run["run_id"], "w", claimed.run["fence"]), "77", tool="mail")
        assert fsck(store, deep=True).problems == []


def shape(backend: Backend) -> dict[str, Any]:
    """Columns, keys and indexes, as the database has them."""
    with backend.engine.connect() as db:
        found = inspect(db)
        shape: dict[str, Any] = {}
        for name in schema.metadata.tables:
            columns = {c["name"]: (str(c["type"]), c["nullable"], c["default"]) for c in found.get_columns(name)}
            columns.pop("xid", None)  # made by hand on PostgreSQL
            shape[name] = columns, found.get_pk_constraint(name)["constrained_columns"]
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index'"
        if backend.locks_rows:
            query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
        shape["indexes"] = {row[0]: row[1] for row in db.execute(text(query)) if row[0] != "ix_events_commit_order"}
        return shape


def test_the_migrations_make_the_tables_that_the_code_declares(store_url: str, tmp_path: Path) -> None:
    backend = make(store_url, "head")
    migrated = shape(backend)
    version_key = migrated["indexes"].keys() & {"alembic_version_pkc", "sqlite_autoindex_alembic_version_1"}
    for name in version_key:
        del migrated["indexes"][name]
    if isinstance(backend, SQLiteBackend):
        backend.close()
        backend = opening.make_backend(tmp_path / "declared.db", 5.0)
        assert isinstance(backend, SQLiteBackend)
        backend.create_file()
        backend.open_writer()
    with backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        if backend.locks_rows:
            db.execute(text("DROP SCHEMA public CASCADE"))
            db.execute(text("CREATE SCHEMA public"))
        schema.metadata.create_all(db)
    declared = shape(backend)
    backend.close()
    assert migrated == declared
