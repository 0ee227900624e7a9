"""Frames come back exactly, deltas are small, and planted frames are refused before they take memory."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import subprocess
import sys
import threading
import tracemalloc
import zlib
from hashlib import sha256

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from walkback_store.body_dictionary import BODY_DICTIONARY_1
from walkback_store.errors import CorruptData
from walkback_store.frames import BodyPruned, body_digest, pack, pack_body, pruned_body, unpack, unpack_body
from walkback_store.values import encode

MAGIC = b"\x28\xb5\x2f\xfd"
TEN_GB = 10 * 1024**3


def declares(size: int) -> bytes:
    """A frame in one segment that declares `size` bytes, and holds one empty block."""
    return MAGIC + b"\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


def state(size: int) -> bytes:
    dice = random.Random(size)
    rows = [
        {"id": dice.randrange(10**9), "name": f"{dice.getrandbits(64):016x}", "price": dice.random()}
        for _ in range(size // 70)
    ]
    return json.dumps(rows).encode()


# --- states ------------------------------------------------------------------------------------------------------


@given(st.binary(), st.none() | st.binary())
def test_a_frame_comes_back_exactly(data: bytes, base: bytes | None) -> None:
    assert unpack(pack(data, base), base) == data


@given(st.binary(min_size=50, max_size=2000), st.integers(0, 49), st.binary(max_size=20))
def test_a_delta_comes_back_exactly(base: bytes, at: int, inserted: bytes) -> None:
    data = base[:at] + inserted + base[at:]
    assert unpack(pack(data, base), base) == data


@pytest.mark.parametrize("size", [1_000, 100_000, 1_500_000, 5_000_000, 15_000_000, 20_000_000])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_a_small_change_in_a_state_of_any_size_is_a_small_delta(size: int, where: float) -> None:
    base = state(size)
    at = int(len(base) * where)
    data = base[:at] + b'"changed"' + base[at:]
    frame = pack(data, base)
    assert unpack(frame, base) == data
    assert len(frame) < 100 + size // 5_000


def test_the_largest_state_finds_its_predecessor() -> None:
    base = (state(4_000_000) + random.Random(1).randbytes(12 * 1024 * 1024)) * 4
    base = base[: 64 * 1024 * 1024 - 7]
    data = b"changed" + base
    frame = pack(data, base)
    assert unpack(frame, base) == data
    assert len(frame) < len(base) // 10


def test_every_frame_declares_its_size() -> None:
    for base in (None, b"base" * 100):
        assert zstandard.frame_content_size(pack(b"data" * 100, base)) == 400


def test_the_limit_is_the_callers() -> None:
    frame = pack(b"x" * 1000)
    assert unpack(frame, max_bytes=1000) == b"x" * 1000
    with pytest.raises(CorruptData, match="declares 1000 bytes and the limit is 999"):
        unpack(frame, max_bytes=999)


GOOD = pack(b"some state, some state" * 10)
BASE = state(5_000)
DELTA = pack(BASE[:3000] + b"new" + BASE[3000:], BASE)
LONG_DELTA = pack(BASE[:3000] + state(300) + BASE[3000:], BASE)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "do not start like zstd"),
        (b"\x28\xb5", "do not start like zstd"),
        (MAGIC, "not enough data"),
        (pickle.dumps({"a": 1}), "do not start like zstd"),
        (b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc", "do not start like zstd"),
        (declares(TEN_GB), "declares 10737418240 bytes"),
        (declares(2**63), "declares 9223372036854775808 bytes"),
        (declares(2**64 - 2), "not a stored frame"),
        (declares(10), "not a stored frame"),
        (declares(0), "declares no content"),
        (declares(0) + b"x" * 1000, "declares no content"),
        (pack(b"") + b"x", "declares no content"),
        (MAGIC + b"\x80\xf8\x0a\x00\x00\x00\x01\x00\x00", "too much memory"),
        (MAGIC + b"\x80\x90\x0a\x00\x00\x00\x01\x00\x00", "window"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100), "does not say how large"),
        (GOOD + b"x", "unused data"),
        (GOOD + GOOD, "unused data"),
        (GOOD + b"\x00" * 10_000_000, "unused data"),
        (DELTA, "not a stored frame"),
        (LONG_DELTA, "not a stored frame"),
    ],
)
def test_planted_frames_are_corrupt_data(frame: bytes, reason: str) -> None:
    with pytest.raises(CorruptData, match=reason):
        unpack(frame)


@pytest.mark.parametrize("frame", [GOOD, DELTA, LONG_DELTA])
def test_a_truncated_frame_is_corrupt_data_wherever_it_ends(frame: bytes) -> None:
    for length in range(len(frame)):
        with pytest.raises(CorruptData):
            unpack(frame[:length], BASE)


@pytest.mark.parametrize("delta", [DELTA, LONG_DELTA])
def test_a_flipped_bit_is_corrupt_data(delta: bytes) -> None:
    expected = unpack(delta, BASE)
    refused = 0
    for position in range(len(delta) * 8):
        damaged = bytearray(delta)
        damaged[position // 8] ^= 1 << position % 8
        try:
            assert unpack(bytes(damaged), BASE) == expected
        except CorruptData:
            refused += 1
    assert refused > len(delta) * 8 * 0.9


@pytest.mark.parametrize("delta", [DELTA, LONG_DELTA])
def test_a_wrong_base_is_corrupt_data(delta: bytes) -> None:
    for base in (None, b"", BASE[:-1], BASE + b"x", state(6_000)):
        with pytest.raises(CorruptData):
            unpack(delta, base)


@given(
    st.binary(max_size=2000),
    st.integers(0, 2000),
    st.integers(0, 300),
    st.binary(max_size=300),
    st.sampled_from([1, 7, 400]),
)
def test_a_passage_replaced_anywhere_comes_back_exactly(
    piece: bytes, at: int, removed: int, inserted: bytes, times: int
) -> None:
    """Repeated, so that the same bytes are found on both sides of the change."""
    base = piece * times
    data = base[:at] + inserted + base[at + removed :]
    frame = pack(data, base)
    assert unpack(frame, base) == data
    if base and data and len(inserted) <= 64:
        assert len(frame) <= 13 + len(inserted)


def splice(head: int, tail: int, middle: bytes, content: bytes) -> bytes:
    return b"\x01" + b"".join(n.to_bytes(4, "little") for n in (head, tail, zlib.crc32(content))) + middle


def test_a_planted_splice_takes_no_more_than_its_base_has_nor_than_the_limit() -> None:
    assert unpack(splice(2, 3, b"-", b"ab-cde"), b"abcde") == b"ab-cde"
    for frame, base in (
        (splice(3, 3, b"", b"abcde"), b"abcde"),
        (splice(2**32 - 1, 0, b"", b""), b"abcde"),
        (splice(0, 1, b"", b""), None),
        (splice(2, 3, b"-", b"abcde"), b"abcde"),
        (splice(2, 3, b"-", b"ab-cde")[:12], b"abcde"),
        (b"\x01", b"abcde"),
    ):
        with pytest.raises(CorruptData):
            unpack(frame, base)
    with pytest.raises(CorruptData, match="declares 1000 bytes and the limit is 999"):
        unpack(splice(500, 499, b"-", b""), b"x" * 1000, max_bytes=999)


@given(st.binary(), st.none() | st.just(BASE))
@settings(max_examples=500)
def test_any_bytes_after_the_magic_are_content_or_corrupt_data(tail: bytes, base: bytes | None) -> None:
    with contextlib.suppress(CorruptData):
        assert len(unpack(MAGIC + tail, base, max_bytes=10_000)) <= 10_000


def test_a_huge_declaration_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        for frame in (declares(TEN_GB), declares(65 * 1024 * 1024), GOOD + b"x"):
            with pytest.raises(CorruptData):
                unpack(frame)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_bombs_are_refused_in_little_memory() -> None:
    code = """
import resource
from walkback_store.errors import CorruptData
from walkback_store.frames import pack, unpack, unpack_body
import zstandard
MAGIC = b"\\x28\\xb5\\x2f\\xfd"
block = lambda last, size: (last | 2 | size << 3).to_bytes(3, "little") + b"x"  # RLE: one byte, repeated
bomb = b"".join(block(0, 128 * 1024) for _ in range(10_000)) + block(1, 1)
frames = [
    MAGIC + b"\\xe0" + (10 * 1024**3).to_bytes(8, "little") + bomb,  # says 10 GB and holds more than 1
    MAGIC + b"\\xe0" + (1000).to_bytes(8, "little") + bomb,  # says 1000 bytes
    MAGIC + b"\\xa0" + (60 * 1024**2).to_bytes(4, "little") + bomb,  # says just below the limit
    MAGIC + b"\\x80\\x58" + (1000).to_bytes(4, "little") + bomb,  # with a window
    MAGIC + b"\\x80\\x58" + bytes(4) + bomb,  # says nothing is in it
    MAGIC + b"\\x00\\x58" + bomb,  # does not say
]
resource.setrlimit(resource.RLIMIT_AS, (300 * 1024**2,) * 2)
for frame in frames:
    for read in (unpack, lambda frame: unpack(frame, b"base" * 1000), lambda frame: unpack_body(b"\\x01" + frame)):
        try:
            read(frame)
        except CorruptData:
            print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["refused"] * 18, done.stderr


# --- event bodies ------------------------------------------------------------------------------------------------

OPERATION = "ticket-81:14:send_email:9b02e1f7"
AT = 1795012345678901
BODIES = {
    "tool_result": {
        "data": {"answer": "acknowledged", "n": 1, "output": {"message": "m-55121", "queued": True}},
        "set": {"attempts": {f"{OPERATION}/1": {"answer": "acknowledged", "ended_at": AT, "status": "ended"}}},
    },
    "outcome": {
        "data": {"result": {"message": "m-55121"}, "snapshot": "Yk3dQ0r1mZ7uXw5vT2sLh8aPqN4eJcB6fGiKoRyUEVI"},
        "set": {
            "operations": {OPERATION: {"ended_at": AT, "outcome_seq": 34, "status": "succeeded"}},
            "attempts": {f"{OPERATION}/1": {"answer": "acknowledged", "ended_at": AT, "status": "ended"}},
            "runs": {"last_snapshot": 78, "updated_at": AT},
            "steps": {"14": {"after": 78, "ended_at": AT, "status": "succeeded"}},
        },
    },
    "needs_operator": {
        "data": {"why": "duplicate_suspected"},
        "set": {"runs": {"status": "needs_operator", "why": "duplicate_suspected", "why_since": AT, "why_step": "14"}},
    },
}


@given(st.binary() | st.sampled_from([encode(body) for body in BODIES.values()]))
def test_a_body_comes_back_exactly_and_its_digest_is_known(body: bytes) -> None:
    stored = pack_body(body)
    assert unpack_body(stored) == body
    assert body_digest(stored) == sha256(body).digest()
    assert len(stored) <= len(body) + 1


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_become_less_than_half(kind: str) -> None:
    body = encode(BODIES[kind])
    stored = pack_body(body)
    assert stored[0] == 1
    assert len(stored) < len(body) * 0.5


def test_a_body_that_does_not_compress_stays_raw() -> None:
    noise = random.Random(1).randbytes(300)
    assert pack_body(noise) == b"\x00" + noise
    assert pack_body(b"") == b"\x00"
    assert pack_body(b"{}") == b"\x00{}"


def test_the_dictionary_is_the_one_that_stored_bodies_were_written_with() -> None:
    """If this fails, put the old text back: no body in any existing store can be read without it."""
    assert sha256(BODY_DICTIONARY_1).hexdigest() == "1d6a87170965b53b0387c5ff870763fb0d02d6b5479496f5255116ed5ad9ae79"
    stored = bytes.fromhex(
        "01209add0100c86475706c6963737573703530353637383930313134227d7d7d0a004085678ac90102159048300d4d85"
        "386c983df8051c121427d4416140d54681"
    )
    assert unpack_body(stored) == encode(BODIES["needs_operator"])


def test_a_pruned_body_gives_its_digest_and_nothing_else() -> None:
    digest = sha256(b"what it was").digest()
    stored = pruned_body(digest)
    assert stored == b"\x02" + digest
    assert body_digest(stored) == digest
    with pytest.raises(BodyPruned) as pruned:
        unpack_body(stored)
    assert pruned.value.digest == digest


@pytest.mark.parametrize("digest", [b"", b"x" * 31, b"x" * 33])
def test_a_pruned_body_has_a_digest_of_32_bytes(digest: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        pruned_body(digest)
    for read in (unpack_body, body_digest):
        with pytest.raises(CorruptData):
            read(b"\x02" + digest)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x03abc",
        b"\xff",
        b"\x01",
        b"\x01abc",
        b"\x01" + MAGIC,
        b"\x01" + declares(TEN_GB),
        b"\x01" + GOOD + b"x",
        pickle.dumps({"a": 1}),
        b"\x01" + pickle.dumps({"a": 1}),
        pack_body(encode(BODIES["outcome"])) + b"x",
        pack_body(encode(BODIES["outcome"]))[:-1],
    ],
)
def test_planted_bodies_are_corrupt_data(stored: bytes) -> None:
    for read in (unpack_body, body_digest):
        with pytest.raises(CorruptData):
            read(stored)


def test_bodies_over_the_limit_are_corrupt_data() -> None:
    for body in (b"x" * 1001, random.Random(1).randbytes(1001)):
        assert unpack_body(pack_body(body), max_bytes=1001) == body
        with pytest.raises(CorruptData, match="limit"):
            unpack_body(pack_body(body), max_bytes=1000)


def test_threads_do_not_share_a_compressor() -> None:
    """Sharing one crashes the process or mixes up the bytes; each thread here packs different bodies."""
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            body = encode({"data": {"n": turn, "thread": number, "text": "x" * turn}, "set": {}})
            if unpack_body(pack_body(body)) != body or unpack(pack(body)) != body:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
