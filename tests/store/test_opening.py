"""Opening a store: what is made, what is refused and in which words, and that nothing half-made is ever left."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import func, inspect, select, text, update
from sqlalchemy.engine import make_url

from tests.store.driver import ANN, held, intend, succeed
from tests.store.opener import own_mounts
from tests.support.postgres import Postgres
from tests.support.proxy import CuttingProxy
from walkback_store import errors, open_store, opening, schema
from walkback_store.backends.sqlite import SQLiteBackend
from walkback_store.errors import (
    BadStoreURL,
    CannotOpen,
    DiskFull,
    MissingDriver,
    NoPermission,
    NotAStore,
    ReadOnly,
    SchemaTooNew,
    StoreBusy,
    StoreError,
    Unreachable,
)
from walkback_store.fsck import fsck
from walkback_store.machine.people import AddNote
from walkback_store.machine.runs import StartRun
from walkback_store.people import operator_of
from walkback_store.sqlite_library import sqlite3
from walkback_store.store import Store

SECRET = "hunter2-do-not-print"
SOON = 0.2
"""Seconds to wait for a lock that will not be given back."""


# --- helpers -----------------------------------------------------------------------------------------------------


class Opener:
    """A process that is about to open a store."""

    def __init__(self, order: dict[str, Any], wrapper: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "tests.store.opener", json.dumps(order)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_ready(self) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "ready\n", self._process.communicate()[1]

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        out, err = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


def opened_elsewhere(order: dict[str, Any], wrapper: Sequence[str] = ()) -> dict[str, Any]:
    opener = Opener(order, wrapper)
    opener.until_ready()
    opener.go()
    return opener.answer()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="walkback-open-", dir="/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        for inner in path.iterdir():
            if inner.is_dir():
                inner.chmod(0o700)
        shutil.rmtree(path)


def give_away(path: Path) -> None:
    """To the user without rights that `opener` becomes; for a test run without rights, that is who it is already."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)


def everything_in(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}


def tables_of(url: str) -> dict[str, list[Any]]:
    """All tables of a PostgreSQL database, with all their rows."""
    with psycopg.connect(url) as db:
        names = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
        return {
            name: db.execute(sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(name))).fetchall()
            for (name,) in names
        }


def check_message(error: BaseException) -> None:
    """What happened, what it means, what to do next; and no secret."""
    message = str(error)
    assert any(word in message for word in ("Nothing was", "was not changed", "does not answer")), message
    assert message.count(".") + message.count(";") + message.count("?") >= 2, f"no advice: {message}"
    assert SECRET not in message


def refused(kind: type[StoreError], url: str | Path, **options: Any) -> StoreError:
    with pytest.raises(StoreError) as raised:
        open_store(url, **options).close()
    assert type(raised.value) is kind, repr(raised.value)
    check_message(raised.value)
    return raised.value


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "walkback.db"


# --- which address -----------------------------------------------------------------------------------------------


def test_the_option_comes_before_the_environment_and_that_before_the_default() -> None:
    environ = {"WALKBACK_STORE": "from-environment.db"}
    assert opening.choose_url("from-option.db", environ) == "from-option.db"
    assert opening.choose_url(None, environ) == "from-environment.db"
    assert opening.choose_url(None, {"WALKBACK_STORE": ""}) == "walkback.db"
    assert opening.choose_url(None, {}) == "walkback.db"


def test_without_any_address_the_store_is_walkback_db_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WALKBACK_STORE", raising=False)
    open_store().close()
    assert [p.name for p in tmp_path.iterdir()] == ["walkback.db"]


def test_the_environment_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WALKBACK_STORE", str(tmp_path / "other.db"))
    open_store().close()
    assert [p.name for p in tmp_path.iterdir()] == ["other.db"]


def test_path_relative_path_and_sqlite_url_are_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a store, 100 % odd?#.db"
    (tmp_path / "link.db").symlink_to(path)
    ids = set()
    for url in (path, str(path), path.name, "link.db"):
        with open_store(url) as store:
            ids.add(store._rows(select(schema.store.c.store_id))[0]["store_id"])
    for plain in ("plain.db", "sqlite:///plain.db", f"sqlite:///{tmp_path}/plain.db"):
        with open_store(plain) as store:
            assert isinstance(store.backend, SQLiteBackend)
            assert store.backend.path == tmp_path / "plain.db"
    assert len(ids) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, "link.db", "plain.db"]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_urls_are_accepted_under_their_usual_names(pg_url: str, scheme: str) -> None:
    with open_store(pg_url.replace("postgresql", scheme, 1)) as store:
        assert store.backend.name == "postgresql"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "   ",
        "a\0b.db",
        ":memory:",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite://two-slashes.db",
        "sqlite:///store.db?mode=ro",
        "mysql://localhost/walkback",
        "http://localhost/walkback.db",
        "://nothing",
        f"postgresql://me:{SECRET}@localhost:port/walkback",
        f"postgresql://me:{SECRET}@localhost:99999999999/walkback",
        f"postgresql://me@localhost/walkback?password={SECRET}&no_such_option=1",
    ],
)
def test_an_address_that_is_none_is_refused_and_nothing_is_made(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WALKBACK_STORE", "must-not-be-used.db")
    assert SECRET not in str(refused(BadStoreURL, url))
    assert list(tmp_path.iterdir()) == []


def test_a_loop_of_links_is_no_address(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(BadStoreURL, tmp_path / "a")


def test_postgresql_without_its_driver_says_what_to_install() -> None:
    found = opened_elsewhere({"url": "postgresql://localhost/walkback", "without": ["psycopg"]})
    assert found["error"] == MissingDriver.__name__
    assert "pip install 'walkback[postgresql]'" in found["message"]


def test_sqlite_needs_no_postgresql_driver(sqlite_path: Path) -> None:
    assert opened_elsewhere({"url": str(sqlite_path), "without": ["psycopg"]})["error"] is None


# --- creating ----------------------------------------------------------------------------------------------------


def test_first_use_creates_and_migrates(store_url: str) -> None:
    with open_store(store_url) as store:
        with store.backend.engine.connect() as connection:
            names = set(inspect(connection).get_table_names())
            version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        assert names == {"alembic_version", *schema.metadata.tables}
        assert version == schema.SCHEMA_VERSION
        store.do(StartRun(actor=ANN, run_id="r", agent="a"))
        assert fsck(store).clean


def test_opening_again_changes_nothing(store_url: str, tmp_path: Path) -> None:
    def contents() -> object:
        return everything_in(tmp_path) if store_url.startswith("sqlite") else tables_of(store_url)

    with open_store(store_url) as store:
        store.do(StartRun(actor=ANN, run_id="r", agent="a"))
    before = contents()
    for create in (True, False):
        with open_store(store_url, create=create) as store:
            assert store.run("r")["status"] == "running"
    assert contents() == before


def test_many_processes_may_open_a_new_store_at_once(store_url: str, tmp_path: Path) -> None:
    openers = [Opener({"url": store_url, "do": "write"}) for _ in range(6)]
    for opener in openers:
        opener.until_ready()
    for opener in openers:
        opener.go()
    found = [opener.answer() for opener in openers]
    assert [f["error"] for f in found] == [None] * len(openers), found
    assert len({f["store_id"] for f in found}) == 1
    with open_store(store_url, create=False) as store:
        assert store._rows(select(func.count().label("n")).select_from(schema.store)) == [{"n": 1}]
        assert store.count_runs().n == len(openers)
        assert fsck(store).clean
    left = {p.name for p in tmp_path.iterdir()}
    assert left <= {"walkback.db"}


def test_whoever_loses_the_race_uses_the_store_that_won(sqlite_path: Path) -> None:
    """Between finding nothing and giving its own new store the name, somebody else was faster."""
    backend = opening.make_backend(sqlite_path, 1.0)
    assert isinstance(backend, SQLiteBackend)
    assert not backend.exists()
    with open_store(sqlite_path) as winner:
        winner.do(StartRun(actor=ANN, run_id="r", agent="a"))
        opening._create(backend)
        opening._prepare(backend, create=True)
        backend.close()
        assert winner.run("r")["run_id"] == "r"
    with open_store(sqlite_path) as store:
        assert store.count_runs().n == 1
    assert [p.name for p in sqlite_path.parent.iterdir()] == ["walkback.db"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_only_the_owner_can_read_the_files_whatever_the_umask(folder: Path, umask: int) -> None:
    order = {"url": str(folder / "walkback.db"), "at": str(folder), "umask": umask, "do": "write"}
    found = opened_elsewhere(order)
    assert found["error"] is None
    assert found["modes"] == {"walkback.db": 0o600, "walkback.db-wal": 0o600, "walkback.db-shm": 0o600}


def test_an_empty_file_becomes_a_store_of_its_owner_alone(sqlite_path: Path) -> None:
    sqlite_path.touch(mode=0o644)
    open_store(sqlite_path).close()
    assert sqlite_path.stat().st_mode & 0o777 == 0o600
    with open_store(sqlite_path, create=False) as store:
        assert fsck(store).clean


def test_create_false_never_makes_a_file(sqlite_path: Path, pg_url: str) -> None:
    assert "there is no store" in str(refused(CannotOpen, sqlite_path, create=False))
    assert list(sqlite_path.parent.iterdir()) == []
    sqlite_path.touch()
    refused(NotAStore, sqlite_path, create=False)
    assert everything_in(sqlite_path.parent) == {"walkback.db": b""}
    refused(NotAStore, pg_url, create=False)
    assert tables_of(pg_url) == {}


# --- migrating ---------------------------------------------------------------------------------------------------

ANOTHER = """
from alembic import op
revision, down_revision, branch_labels, depends_on = "9999", "{before}", None, None

def upgrade():
    op.execute("CREATE TABLE half (n INTEGER)")
    op.execute("INSERT INTO half VALUES (1)")
    {then}
"""


@pytest.fixture
def another_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretend that this code knows one schema more."""

    def pretend(then: str) -> None:
        migrations = tmp_path / "migrations of 100 %"
        shutil.copytree(opening.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
        (migrations / "versions" / "v9999.py").write_text(ANOTHER.format(then=then, before=schema.SCHEMA_VERSION))
        monkeypatch.setattr(opening, "MIGRATIONS", migrations)
        monkeypatch.setattr(schema, "SCHEMA_VERSION", "9999")

    return pretend


def test_an_older_store_is_migrated_when_it_is_opened(store_url: str, another_schema: Callable[[str], None]) -> None:
    with open_store(store_url) as store:
        store.do(StartRun(actor=ANN, run_id="r", agent="a"))
        store_id = store._rows(select(schema.store.c.store_id))
    another_schema("pass")
    with open_store(store_url, create=False) as store:
        assert store._rows(select(text("n")).select_from(text("half"))) == [{"n": 1}]
        assert store._rows(select(schema.store.c.store_id)) == store_id
        assert store.run("r")["status"] == "running"
        assert fsck(store).clean


def test_a_migration_that_fails_half_way_leaves_the_store_as_it_was(
    store_url: str, tmp_path: Path, another_schema: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(store_url) as store:
        store.do(StartRun(actor=ANN, run_id="r", agent="a"))
    with monkeypatch.context() as patch:
        patch.setattr(opening, "MIGRATIONS", opening.MIGRATIONS)
        patch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION)
        another_schema("op.execute('INSERT INTO no_such_table VALUES (1)')")
        assert "no_such_table" in str(refused(CannotOpen, store_url))
    with open_store(store_url) as store:
        with store.backend.engine.connect() as connection:
            assert "half" not in inspect(connection).get_table_names()
        assert store.run("r")["status"] == "running"
        assert fsck(store).clean


def test_a_first_migration_that_fails_half_way_leaves_nothing(
    store_url: str, tmp_path: Path, another_schema: Callable[[str], None]
) -> None:
    another_schema("op.execute('INSERT INTO no_such_table VALUES (1)')")
    refused(CannotOpen, store_url)
    if store_url.startswith("sqlite"):
        assert [p.name for p in tmp_path.iterdir()] == ["migrations of 100 %"]
    else:
        assert tables_of(store_url) == {}


def test_a_newer_schema_is_refused_and_the_version_to_install_is_named(store_url: str, tmp_path: Path) -> None:
    with (
        open_store(store_url) as store,
        store.backend.engine.connect().execution_options(walkback_writes=True) as db,
        db.begin(),
    ):
        db.execute(text("UPDATE alembic_version SET version_num = '0099'"))
        db.execute(update(schema.store).values(written_by="7.2.1"))

    def contents() -> object:
        return everything_in(tmp_path) if store_url.startswith("sqlite") else tables_of(store_url)

    before = contents()
    for create in (True, False):
        error = refused(SchemaTooNew, store_url, create=create)
        assert "Install walkback 7.2.1 or newer" in str(error)
    assert contents() == before


# --- what is not a store -----------------------------------------------------------------------------------------


def foreign_sqlite(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


FOREIGN = {
    "other tables": "CREATE TABLE users (name TEXT); INSERT INTO users VALUES ('ann')",
    "only a view": "CREATE VIEW one AS SELECT 1 AS n",
    "a shop with migrations": "CREATE TABLE alembic_version (version_num TEXT); CREATE TABLE store (town TEXT); "
    "INSERT INTO alembic_version VALUES ('ae1027a6acf'); INSERT INTO store VALUES ('Ulm')",
    "a shop without a version": "CREATE TABLE alembic_version (version_num TEXT); CREATE TABLE store (town TEXT)",
}


@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_sqlite_database_is_refused_and_not_changed(sqlite_path: Path, script: str) -> None:
    foreign_sqlite(sqlite_path, script)
    before = everything_in(sqlite_path.parent)
    refused(NotAStore, sqlite_path)
    assert everything_in(sqlite_path.parent) == before


@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_postgresql_database_is_refused_and_not_changed(pg_url: str, script: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as db:
        for statement in script.split(";"):
            db.execute(statement.encode())
    before = tables_of(pg_url)
    refused(NotAStore, pg_url)
    assert tables_of(pg_url) == before


@pytest.mark.parametrize(
    "content", [b"hello\n", b"x" * 100_000, b"SQLite format 3\0" + bytes(84)], ids=["text", "long", "a bare header"]
)
def test_a_file_that_is_no_database_is_refused_and_not_changed(sqlite_path: Path, content: bytes) -> None:
    sqlite_path.write_bytes(content)
    with pytest.raises((NotAStore, errors.CorruptData)) as raised:
        open_store(sqlite_path).close()
    assert str(sqlite_path) in str(raised.value)
    assert everything_in(sqlite_path.parent) == {"walkback.db": content}


def test_a_directory_is_not_a_store(tmp_path: Path) -> None:
    assert "is a directory" in str(refused(NotAStore, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_named_pipe_is_not_a_store_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(NotAStore, tmp_path / "pipe")


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    assert "make the directory first" in str(refused(CannotOpen, tmp_path / "no" / "walkback.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_taken_for_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(CannotOpen, tmp_path / "file" / "walkback.db")
    refused(CannotOpen, tmp_path / ("n" * 300))


# --- no permission, read-only ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o700, 0o555], ids=["a closed folder", "a folder that cannot be written"])
def test_no_permission_to_the_folder(folder: Path, mode: int) -> None:
    closed = folder / "closed"
    closed.mkdir()
    closed.chmod(mode if os.geteuid() == 0 else mode & 0o077)
    found = opened_elsewhere({"url": str(closed / "walkback.db"), "nobody": True})
    assert found["error"] == NoPermission.__name__, found
    assert "Permission denied" in found["message"]
    assert "Nothing was created" in found["message"]
    closed.chmod(0o700)
    assert list(closed.iterdir()) == []


def test_no_permission_to_the_file(folder: Path) -> None:
    path = folder / "walkback.db"
    open_store(path).close()
    before = path.read_bytes()
    path.chmod(0o000)
    found = opened_elsewhere({"url": str(path), "nobody": True})
    assert found["error"] == NoPermission.__name__, found
    path.chmod(0o600)
    assert path.read_bytes() == before


def test_a_read_only_file_can_be_read_and_writing_says_why_not(folder: Path) -> None:
    path = folder / "walkback.db"
    open_store(path).close()
    path.chmod(0o444)
    for given in (folder, path):
        give_away(given)
    before = path.read_bytes()
    assert opened_elsewhere({"url": str(path), "nobody": True})["error"] is None
    found = opened_elsewhere({"url": str(path), "nobody": True, "do": "write"})
    assert found["error"] == ReadOnly.__name__, found
    assert "Nothing was written" in found["message"]
    assert path.read_bytes() == before


def test_a_read_only_disk_is_a_clear_error(folder: Path) -> None:
    """Where nobody may mount anything, a folder that cannot be written stands in for the disk."""
    path = folder / "walkback.db"
    wrapper = own_mounts()
    if wrapper is not None:
        disk = {"at": str(folder), "disk": 4_000_000, "read_only_with": str(path)}
        for url in (path, folder / "new.db"):
            found = opened_elsewhere(disk | {"url": str(url)}, wrapper)
            assert (found["error"], found["left"]) == (ReadOnly.__name__, ["walkback.db"]), found
            assert "read-only disk" in found["message"] or "the disk is read-only" in found["message"]
    else:
        open_store(path).close()
        folder.chmod(0o555)
        found = opened_elsewhere({"url": str(path), "nobody": True})
        assert found["error"] == NoPermission.__name__, found
        folder.chmod(0o755)
    assert "Nothing was c" in found["message"]


def test_a_postgresql_database_that_is_read_only_can_be_read_and_says_why_it_cannot_be_written(
    postgres: Postgres, pg_url: str
) -> None:
    set_read_only(postgres, pg_url, True)
    refused(ReadOnly, pg_url)
    assert tables_of(pg_url) == {}
    set_read_only(postgres, pg_url, False)
    open_store(pg_url).close()
    set_read_only(postgres, pg_url, True)
    with open_store(pg_url) as store:
        assert store.count_runs().n == 0
        with pytest.raises(ReadOnly) as raised:
            store.do(StartRun(actor=ANN, run_id="r", agent="a"))
        check_message(raised.value)
        assert store.count_runs().n == 0


def set_read_only(postgres: Postgres, url: str, on: bool) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        name = sql.Identifier(str(make_url(url).database))
        value = sql.Literal("on" if on else "off")
        admin.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(name, value))


# --- disk full ---------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_while_a_store_is_made_leaves_a_whole_one_or_nothing(folder: Path) -> None:
    """Where nobody may mount anything, a limit on the size of files stands in; SQLite takes that for a broken disk."""
    order: dict[str, Any] = {"url": str(folder / "walkback.db"), "at": str(folder)}
    wrapper = own_mounts()
    made = {}
    for kib in (4, 60, 100, 140, 180, 220, 260, 300, 340, 4000):
        limit = {"disk" if wrapper else "file_limit": kib * 1024}
        opener = Opener(order | limit, wrapper or ())
        opener.until_ready()
        opener.go()
        found = opener.answer()
        made[kib] = found["error"] is None
        assert found["left"] == (["walkback.db"] if made[kib] else []), (kib, found)
        if not made[kib]:
            assert found["error"] == (DiskFull if wrapper else Unreachable).__name__, (kib, found)
            assert "Nothing was" in found["message"]
        for path in folder.iterdir():  # there only if the disk was no disk of its own
            path.unlink()
    assert (made[4], made[60], made[4000]) == (False, False, True)
    assert sorted(made.values()) == list(made.values())


def test_a_disk_that_does_not_take_a_write_is_no_answer(folder: Path) -> None:
    found = opened_elsewhere({"url": str(folder / "walkback.db"), "at": str(folder), "file_limit": 40_000})
    assert found["error"] == Unreachable.__name__, found
    assert found["left"] == []


def test_a_full_disk_rolls_a_transition_back_whole_and_it_goes_through_later(sqlite_path: Path) -> None:
    with open_store(sqlite_path) as store:
        h = held(store)
        intend(h, "1", state={"n": 1})
        head, events = h.run["head_seq"], store.events("r1", limit=100)
        note = AddNote(actor=operator_of(store), run_id="r1", reason="".join(uuid.uuid4().hex for _ in range(5_000)))
        with no_space_left(store):
            with pytest.raises(DiskFull) as raised:
                store.do(note)
            check_message(raised.value)
            assert h.run["head_seq"] == head
            assert store.events("r1", limit=100) == events
        assert store.do(note).seq == head + 1
        succeed(h, "1", state={"n": 2})
        assert store.state("r1", h.run["last_snapshot"]) == {"n": 2}
        assert fsck(store, deep=True).clean


@contextmanager
def no_space_left(store: Store) -> Iterator[None]:
    """SQLite's own limit, which gives the very error of a full disk."""
    assert isinstance(store.backend, SQLiteBackend)
    writer = store.backend.open_writer()
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={pages + 2}")
    try:
        yield
    finally:
        writer.execute("PRAGMA max_page_count=4294967294")


# --- busy --------------------------------------------------------------------------------------------------------


def test_a_store_that_another_writer_holds_is_busy_after_the_wait_and_nothing_is_written(sqlite_path: Path) -> None:
    with open_store(sqlite_path, wait=SOON) as store, closing(sqlite3.connect(sqlite_path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        run = StartRun(actor=ANN, run_id="r", agent="a")
        with pytest.raises(StoreBusy) as raised:
            store.do(run)
        check_message(raised.value)
        assert store.count_runs().n == 0
        with open_store(sqlite_path, wait=SOON) as reader:  # opening and reading wait for nobody
            assert reader.count_runs().n == 0
        db.execute("ROLLBACK")
        assert store.do(run).seq == 1


def test_a_run_that_another_writer_holds_is_busy_after_the_wait_and_nothing_is_written(pg_url: str) -> None:
    with open_store(pg_url, wait=SOON) as store, psycopg.connect(pg_url) as db:
        store.do(StartRun(actor=ANN, run_id="r", agent="a"))
        db.execute("SELECT 1 FROM runs WHERE run_id = 'r' FOR UPDATE")
        note = AddNote(actor=operator_of(store), run_id="r", reason="hello")
        with pytest.raises(StoreBusy) as raised:
            store.do(note)
        check_message(raised.value)
        assert store.run("r")["head_seq"] == 1
        db.rollback()
        assert store.do(note).seq == 2


def test_making_a_store_that_another_holds_locked_is_busy_after_the_wait(sqlite_path: Path, pg_url: str) -> None:
    sqlite_path.touch()
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        refused(StoreBusy, sqlite_path, wait=SOON)
    with psycopg.connect(pg_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [opening.MIGRATION_LOCK])
        refused(StoreBusy, pg_url, wait=SOON)
    for url in (str(sqlite_path), pg_url):
        open_store(url).close()


# --- a server that says no, or nothing ---------------------------------------------------------------------------


@contextmanager
def role(postgres: Postgres, *, password: bool = False) -> Iterator[str]:
    """A role that can log in, and nothing else."""
    name = f"role_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal("the right one"))
        )
        rules = Path(str(admin.execute("SHOW hba_file").fetchone()[0]))  # type: ignore[index]
        before = rules.read_text()
        if password:
            rules.write_text(f"local all {name} scram-sha-256\n{before}")
            admin.execute("SELECT pg_reload_conf()")
            wait_until(lambda: not _lets_in(postgres, name))
        try:
            yield name
        finally:
            rules.write_text(before)
            admin.execute("SELECT pg_reload_conf()")
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def _lets_in(postgres: Postgres, name: str) -> bool:
    try:
        psycopg.connect(postgres.url().replace("postgres@", f"{name}@", 1)).close()
    except psycopg.OperationalError:
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(2000):
        if condition():
            return
        never.wait(0.005)
    raise AssertionError("it did not happen")


def as_user(url: str, user: str, password: str | None = SECRET) -> str:
    return make_url(url).set(username=user, password=password).render_as_string(hide_password=False)


def test_a_wrong_password_is_refused_and_never_shown(postgres: Postgres, pg_url: str) -> None:
    with role(postgres, password=True) as name:
        error = refused(NoPermission, as_user(pg_url, name))
        assert name in str(error)
        refused(NoPermission, as_user(pg_url, name, None) + f"&password={SECRET}")
        refused(NoPermission, as_user(pg_url, name, None))
    assert tables_of(pg_url) == {}


def test_an_unknown_role_is_refused(pg_url: str) -> None:
    refused(NoPermission, as_user(pg_url, "nobody_of_that_name"))


def test_a_role_that_may_not_create_tables_is_refused_and_nothing_is_made(postgres: Postgres, pg_url: str) -> None:
    with role(postgres) as name:
        refused(NoPermission, as_user(pg_url, name))
    assert tables_of(pg_url) == {}


def test_a_role_that_may_not_connect_is_refused(postgres: Postgres, pg_url: str) -> None:
    with role(postgres) as name, psycopg.connect(postgres.url(), autocommit=True) as admin:
        database = sql.Identifier(str(make_url(pg_url).database))
        admin.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(database))
        refused(NoPermission, as_user(pg_url, name))


def test_a_role_with_no_more_than_its_own_schema_can_use_a_store(postgres: Postgres, pg_url: str) -> None:
    """No superuser is needed, not even to tell a copy from the original."""
    with role(postgres) as name:
        with psycopg.connect(pg_url, autocommit=True) as admin:
            admin.execute(sql.SQL("GRANT CREATE, USAGE ON SCHEMA public TO {}").format(sql.Identifier(name)))
        with open_store(as_user(pg_url, name)) as store:
            store.do(StartRun(actor=ANN, run_id="r", agent="a"))
            assert fsck(store).clean
        with psycopg.connect(pg_url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))


def test_a_database_that_does_not_exist_is_not_created(postgres: Postgres) -> None:
    error = refused(CannotOpen, as_user(postgres.url("no_such_database"), "postgres"))
    assert "create the database first" in str(error)


def test_a_server_that_does_not_listen_is_unreachable() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and so nobody else's; but not listening
        port = nobody.getsockname()[1]
        refused(Unreachable, f"postgresql://me:{SECRET}@127.0.0.1:{port}/walkback", wait=SOON)
    refused(Unreachable, f"postgresql://me:{SECRET}@/walkback?host=/nonexistent", wait=SOON)


def test_a_server_that_goes_away_is_unreachable_and_comes_back(pg_proxy: CuttingProxy) -> None:
    with open_store(pg_proxy.url, wait=SOON) as store:
        pg_proxy.refuse(True)
        pg_proxy.cut_all()
        run = StartRun(actor=ANN, run_id="r", agent="a")
        with pytest.raises(Unreachable) as raised:
            store.do(run)
        assert "does not answer" in str(raised.value)
        refused(Unreachable, pg_proxy.url, wait=SOON)
        pg_proxy.refuse(False)
        assert store.do(run).seq == 1


# --- in mid-life -------------------------------------------------------------------------------------------------


def test_a_file_that_vanishes_does_not_come_back_empty(sqlite_path: Path) -> None:
    with open_store(sqlite_path) as store:
        store.do(StartRun(actor=ANN, run_id="r", agent="a"))
    backend = opening.make_backend(sqlite_path, SOON)
    sqlite_path.unlink()
    with pytest.raises(CannotOpen) as raised:
        backend.begin(strict=True)
    check_message(raised.value)
    assert list(sqlite_path.parent.iterdir()) == []
    backend.close()


def test_a_damaged_file_is_reported_when_it_is_opened_or_written(sqlite_path: Path) -> None:
    with open_store(sqlite_path) as store:
        for n in range(50):
            store.do(StartRun(actor=ANN, run_id=f"r{n}", agent="a", input="x" * 500))
    whole = sqlite_path.read_bytes()
    sqlite_path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(errors.CorruptData, match="restore a backup"), open_store(sqlite_path) as store:
        store.do(StartRun(actor=ANN, run_id="new", agent="a"))


def test_a_store_keeps_its_home_when_it_is_renamed_and_not_when_it_is_copied(sqlite_path: Path) -> None:
    open_store(sqlite_path).close()
    moved, copied = sqlite_path.with_name("moved.db"), sqlite_path.with_name("copied.db")
    sqlite_path.rename(moved)
    shutil.copy(moved, copied)
    homes = []
    for path in (moved, copied):
        with open_store(path) as store:
            homes.append((store.backend.home(), store._rows(select(schema.store.c.home))[0]["home"]))
    assert homes[0][0] == homes[0][1]
    assert homes[1][0] != homes[1][1]


def test_every_error_about_opening_is_one_of_ours() -> None:
    """The classes that the tests above have met; a new one needs a test there."""
    met = {BadStoreURL, MissingDriver, NoPermission, NotAStore, SchemaTooNew}
    assert set(CannotOpen.__subclasses__()) == met
