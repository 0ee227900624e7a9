"""A PostgreSQL proxy that loses connections at a chosen moment, above all during COMMIT.

It runs an event loop in a thread of its own and reads just enough of the version 3 protocol to see message borders,
so it can tell a COMMIT from whatever shares a TCP segment with it.

What it does not see: a COMMIT inside a longer simple query ("INSERT ...; COMMIT"), and the implicit commit of a Sync
that ends statements run outside a transaction block.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")
When = Literal["before", "after"]

_SSL_REQUEST = 80877103
_GSS_REQUEST = 80877104
_COMMITS = frozenset({"COMMIT", "COMMIT WORK", "COMMIT TRANSACTION", "END", "END WORK", "END TRANSACTION"})
_SERVER_PATIENCE = 10.0

# asyncio closes sockets and raises these; each means that one side of a connection is gone.
_GONE = (asyncio.IncompleteReadError, OSError)


class Cut:
    """One ordered cut: whether it has happened, and what the server made of the COMMIT."""

    def __init__(self, when: When) -> None:
        self.when = when
        self.committed: bool | None = None
        self._done = threading.Event()

    def wait(self, timeout: float = 10.0) -> bool:
        """True once the connection is cut, the server has finished with it and the client has been told."""
        return self._done.wait(timeout)

    def finish(self) -> None:
        self._done.set()


@dataclass(eq=False)
class _Link:
    """One client's connection, and how far both directions of it have come."""

    client_in: asyncio.StreamReader
    client_out: asyncio.StreamWriter
    server_in: asyncio.StreamReader
    server_out: asyncio.StreamWriter
    commit_statements: set[bytes] = field(default_factory=set)
    commit_portals: set[bytes] = field(default_factory=set)
    # Every Query and every Sync is answered by exactly one ReadyForQuery, errors or not, so these two counters find
    # the answer to a message even when several are in flight. The startup is answered by one too, hence the -1.
    groups_sent: int = 0
    groups_answered: int = -1
    commits_in_group: int = 0
    cut: Cut | None = None
    cut_group: int = 0
    cut_after_commits: int = 0

    def abort(self) -> None:
        self.client_out.transport.abort()
        self.server_out.transport.abort()

    def is_commit(self, kind: bytes, body: bytes) -> bool:
        """Whether this message makes the server commit. Remembers what is prepared and bound on the way."""
        if kind == b"Q":
            return _is_commit_text(body.rstrip(b"\0"))
        if kind == b"P":
            name, text = body.split(b"\0")[:2]
            _mark(self.commit_statements, name, _is_commit_text(text))
        elif kind == b"B":
            portal, name = body.split(b"\0", 2)[:2]
            _mark(self.commit_portals, portal, name in self.commit_statements)
        elif kind == b"E":
            return body.split(b"\0", 1)[0] in self.commit_portals
        return False


def _mark(names: set[bytes], name: bytes, wanted: bool) -> None:
    if wanted:
        names.add(name)
    else:
        names.discard(name)


def _is_commit_text(text: bytes) -> bool:
    return " ".join(text.decode("utf-8", "replace").upper().rstrip("; \n\t").split()) in _COMMITS


class CuttingProxy:
    """Stands between a client and the server behind `upstream`, a `postgresql://` URL. Use it as a context manager.

    with CuttingProxy(pg_url) as proxy:
        connection = psycopg.connect(proxy.url)
        cut = proxy.cut_commit(when="after")
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = conninfo_to_dict(upstream)
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._armed: Cut | None = None
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._flow = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting-proxy", daemon=True)

    # --- what a test says ----------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The upstream's database and user, by way of this proxy."""
        user = quote(str(self._upstream.get("user") or "postgres"), safe="")
        database = quote(str(self._upstream.get("dbname") or "postgres"), safe="")
        return f"postgresql://{user}@127.0.0.1:{self._port}/{database}"

    def cut_commit(self, when: When) -> Cut:
        """Lose the connection that commits next, on whichever it is.

        `before`: the COMMIT does not reach the server, everything ahead of it does; the server rolls back.
        `after`: the COMMIT reaches the server and is answered, the answer does not reach the client.
        Either way the client is told only after the server has ended its session, so its locks are free by then.
        """
        return self._ask(lambda: self._arm(Cut(when)))

    def cut_all(self) -> None:
        """Lose every open connection, now and on both sides."""
        self._ask(self._abort_links)

    def refuse(self, refusing: bool) -> None:
        """Turn new connections away as if nothing listened, or stop doing so. Open connections go on."""
        self._run(self._close_listener() if refusing else self._listen())

    def stall(self, stalling: bool = True) -> None:
        """Hold every message back, as a network that drops packets does, or let them flow again."""
        self._ask(self._flow.clear if stalling else self._flow.set)

    @property
    def connections(self) -> int:
        return self._ask(lambda: len(self._links))

    def __enter__(self) -> Self:
        self._thread.start()
        self._ask(self._flow.set)
        self._run(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- between the threads -------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    def _ask(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        return self._run(answer())

    # --- everything below runs in the loop -----------------------------------------------------------------------

    def _arm(self, cut: Cut) -> Cut:
        self._armed = cut
        return cut

    def _abort_links(self) -> None:
        for link in self._links:
            link.abort()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._listener.sockets[0].getsockname()[1]

    async def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _shut_down(self) -> None:
        await self._close_listener()
        self._abort_links()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets in the loop's next round

    def _accept(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(client_in, client_out))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        try:
            startup = await self._negotiate(client_in, client_out)
            server_in, server_out = await self._connect()
        except _GONE:
            client_out.transport.abort()
            return
        link = _Link(client_in, client_out, server_in, server_out)
        self._links.add(link)
        pumps = [self._loop.create_task(self._to_server(link)), self._loop.create_task(self._to_client(link))]
        try:
            server_out.write(startup)
            # The client's direction may end first, with the server's still to be drained; never the other way round.
            await pumps[1]
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._links.discard(link)
            link.abort()
            if link.cut is not None:
                link.cut.finish()

    async def _negotiate(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> bytes:
        """The client's first real packet: a startup message, or a request to cancel a query elsewhere."""
        while True:
            head = await client_in.readexactly(8)
            length, code = struct.unpack("!II", head)
            if code not in (_SSL_REQUEST, _GSS_REQUEST):
                return head + await client_in.readexactly(length - 8)
            client_out.write(b"N")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = str(self._upstream.get("host") or "127.0.0.1")
        port = int(self._upstream.get("port") or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _to_server(self, link: _Link) -> None:
        with suppress(*_GONE):
            while True:
                kind, message = await _read_message(link.client_in)
                await self._flow.wait()
                commits = link.is_commit(kind, message[5:])
                if commits:
                    link.commits_in_group += 1
                    if self._armed is not None:
                        link.cut, self._armed = self._armed, None
                        link.cut_group = link.groups_sent + 1
                        link.cut_after_commits = link.commits_in_group
                        if link.cut.when == "before":
                            link.cut.committed = False
                            break
                link.server_out.write(message)
                await link.server_out.drain()
                if kind in (b"Q", b"S"):
                    link.groups_sent += 1
                    link.commits_in_group = 0
                    if link.cut is not None:
                        return  # the answer ends this link; nothing the client says now counts
        with suppress(OSError):
            link.server_out.write_eof()

    async def _to_client(self, link: _Link) -> None:
        commits_seen = 0
        with suppress(*_GONE):
            while True:
                kind, message = await _read_message(link.server_in)
                await self._flow.wait()
                in_cut_group = link.cut is not None and link.groups_answered + 1 == link.cut_group
                if kind == b"C" and message[5:] == b"COMMIT\0":
                    commits_seen += 1
                if link.cut is not None and link.cut.when == "after" and in_cut_group:
                    if kind == b"C" and commits_seen == link.cut_after_commits:
                        link.cut.committed = True
                        break
                    if kind in (b"E", b"Z"):
                        link.cut.committed = False
                        break
                if kind == b"Z":
                    link.groups_answered += 1
                    commits_seen = 0
                link.client_out.write(message)
                await link.client_out.drain()
        if link.cut is not None:
            await self._let_server_finish(link)
        with suppress(OSError):
            await _close(link.client_out)

    async def _let_server_finish(self, link: _Link) -> None:
        """Say goodbye to the server and read on until it has closed its side."""
        with suppress(*_GONE, TimeoutError):
            link.server_out.write_eof()
            async with asyncio.timeout(_SERVER_PATIENCE):
                while await link.server_in.read(65536):
                    pass


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()
