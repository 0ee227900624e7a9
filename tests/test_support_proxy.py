"""The cutting proxy keeps its promise to the other tests: the client loses a COMMIT, and we know how it ended."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.support.proxy import CuttingProxy, When

LOST = psycopg.OperationalError


@pytest.fixture
def truth(pg_url: str) -> Iterator[psycopg.Connection]:
    """A connection that does not go through the proxy."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE effect (note text)")
        yield connection


def effects(truth: psycopg.Connection) -> list[str]:
    return [note for (note,) in truth.execute("SELECT note FROM effect ORDER BY note")]


def insert(connection: psycopg.Connection, note: str) -> None:
    connection.execute("INSERT INTO effect VALUES (%s)", (note,))


def lose(connection: psycopg.Connection) -> None:
    with suppress(LOST):
        connection.close()


@pytest.mark.parametrize(("when", "expected"), [("before", []), ("after", ["one"])])
def test_a_plain_commit_is_lost_before_or_after_it_happened(
    pg_proxy: CuttingProxy, truth: psycopg.Connection, when: When, expected: list[str]
) -> None:
    connection = psycopg.connect(pg_proxy.url)
    insert(connection, "one")
    cut = pg_proxy.cut_commit(when)
    with pytest.raises(LOST):
        connection.commit()
    lose(connection)
    assert cut.wait()
    assert cut.committed is bool(expected)
    assert effects(truth) == expected


@pytest.mark.parametrize(("when", "expected"), [("before", []), ("after", ["one", "two"])])
def test_a_pipelined_commit_is_lost_before_or_after_it_happened(
    pg_proxy: CuttingProxy, truth: psycopg.Connection, when: When, expected: list[str]
) -> None:
    connection = psycopg.connect(pg_proxy.url)
    cut = pg_proxy.cut_commit(when)

    def work() -> None:
        with connection.pipeline():
            insert(connection, "one")
            insert(connection, "two")
            connection.commit()

    with pytest.raises(LOST):
        work()
    lose(connection)
    assert cut.wait()
    assert cut.committed is bool(expected)
    assert effects(truth) == expected


@pytest.mark.parametrize(("when", "expected"), [("before", ["first"]), ("after", ["first", "second"])])
def test_only_the_next_commit_is_cut(
    pg_proxy: CuttingProxy, truth: psycopg.Connection, when: When, expected: list[str]
) -> None:
    connection = psycopg.connect(pg_proxy.url)
    insert(connection, "first")
    connection.commit()
    insert(connection, "second")
    pg_proxy.cut_commit(when)
    with pytest.raises(LOST):
        connection.commit()
    lose(connection)
    with psycopg.connect(pg_proxy.url) as again:
        insert(again, "third")
    assert effects(truth) == sorted([*expected, "third"])


@pytest.mark.parametrize(("when", "expected"), [("before", []), ("after", ["one"])])
def test_a_prepared_commit_is_recognised(
    pg_proxy: CuttingProxy, truth: psycopg.Connection, when: When, expected: list[str]
) -> None:
    connection = psycopg.connect(pg_proxy.url, autocommit=True)
    connection.execute("BEGIN")
    insert(connection, "one")
    cut = pg_proxy.cut_commit(when)
    with pytest.raises(LOST):
        connection.execute("COMMIT", prepare=True)
    lose(connection)
    assert cut.wait()
    assert effects(truth) == expected


def query(text: str) -> bytes:
    body = text.encode() + b"\0"
    return b"Q" + struct.pack("!I", len(body) + 4) + body


def everything_until_closed(raw: socket.socket) -> bytes:
    received = b""
    while chunk := raw.recv(65536):
        received += chunk
    return received


@pytest.mark.parametrize(("when", "expected"), [("before", []), ("after", ["one"])])
def test_what_shares_a_segment_with_the_commit_reaches_the_server(
    pg_proxy: CuttingProxy, truth: psycopg.Connection, when: When, expected: list[str]
) -> None:
    target = psycopg.conninfo.conninfo_to_dict(pg_proxy.url)
    parameters = f"user\0{target['user']}\0database\0{target['dbname']}\0\0".encode()
    startup = struct.pack("!II", len(parameters) + 8, 196608) + parameters
    cut = pg_proxy.cut_commit(when)
    with socket.create_connection((str(target["host"]), int(target["port"] or 0)), timeout=10) as raw:
        raw.sendall(
            startup + query("BEGIN") + query("INSERT INTO effect VALUES ('one')") + query("COMMIT") + query("SELECT 1")
        )
        answers = everything_until_closed(raw)
    assert cut.wait()
    assert b"INSERT 0 1\0" in answers
    assert b"COMMIT\0" not in answers
    assert b"SELECT 1\0" not in answers
    assert effects(truth) == expected


def test_a_cut_before_commit_frees_the_locks(pg_proxy: CuttingProxy, truth: psycopg.Connection) -> None:
    insert(truth, "shared")
    connection = psycopg.connect(pg_proxy.url)
    connection.execute("UPDATE effect SET note = 'mine'")
    pg_proxy.cut_commit("before")
    with pytest.raises(LOST):
        connection.commit()
    lose(connection)
    truth.execute("SET lock_timeout = '100ms'")
    truth.execute("UPDATE effect SET note = 'yours'")
    assert effects(truth) == ["yours"]


def test_a_commit_that_the_server_refuses_is_reported_as_not_committed(
    pg_proxy: CuttingProxy, truth: psycopg.Connection
) -> None:
    truth.execute("CREATE TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    connection = psycopg.connect(pg_proxy.url)
    connection.execute("INSERT INTO once VALUES (1), (1)")
    cut = pg_proxy.cut_commit("after")
    with pytest.raises(LOST):
        connection.commit()
    lose(connection)
    assert cut.wait()
    assert cut.committed is False
    assert truth.execute("SELECT count(*) FROM once").fetchone() == (0,)


def test_cutting_all_ends_open_connections_and_lets_new_ones_in(
    pg_proxy: CuttingProxy, truth: psycopg.Connection
) -> None:
    connection = psycopg.connect(pg_proxy.url)
    insert(connection, "lost")
    pg_proxy.cut_all()
    with pytest.raises(LOST):
        connection.execute("SELECT 1")
    lose(connection)
    with psycopg.connect(pg_proxy.url) as again:
        insert(again, "kept")
    assert effects(truth) == ["kept"]


def test_refusing_turns_new_connections_away_and_keeps_open_ones(
    pg_proxy: CuttingProxy, truth: psycopg.Connection
) -> None:
    with psycopg.connect(pg_proxy.url) as connection:
        pg_proxy.refuse(True)
        with pytest.raises(LOST, match="refused"):
            psycopg.connect(pg_proxy.url, connect_timeout=5)
        insert(connection, "still here")
    pg_proxy.refuse(False)
    with psycopg.connect(pg_proxy.url) as again:
        insert(again, "welcome back")
    assert effects(truth) == ["still here", "welcome back"]


def test_a_stalled_connection_waits_and_then_goes_on(pg_proxy: CuttingProxy, truth: psycopg.Connection) -> None:
    pg_proxy.stall()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(pg_proxy.url, connect_timeout=2)
    pg_proxy.stall(False)
    with psycopg.connect(pg_proxy.url) as connection:
        insert(connection, "on time")
    assert effects(truth) == ["on time"]


def test_large_messages_pass_unchanged(pg_proxy: CuttingProxy) -> None:
    payload = bytes(range(256)) * 20_000
    with psycopg.connect(pg_proxy.url) as connection:
        row = connection.execute("SELECT %b::bytea", (payload,)).fetchone()
    assert row == (payload,)
