"""Stored bytes, compressed: states against an earlier state, event bodies against a built-in dictionary.

Whoever can write to the database file can plant bytes in it. So the declared size is read and checked before anything
is allocated, and whatever does not hold is `CorruptData`: reading takes no more memory than the limit allows.
"""

from __future__ import annotations

import functools
import struct
import threading
import zlib
from hashlib import sha256
from typing import Final

import zstandard

from walkback_store.body_dictionary import BODY_DICTIONARY_1
from walkback_store.errors import CorruptData, StoreError
from walkback_store.values import MAX_BYTES

MAX_WINDOW_LOG: Final = 27
"""128 MiB: a state of 64 MiB that refers back to a base of 64 MiB."""

RAW: Final = 0
ZSTD_WITH_DICTIONARY_1: Final = 1
PRUNED: Final = 2
"""The first byte of a stored body."""

SPLICE: Final = b"\x01"
"""The first byte of a state that is its base with one place changed; any other is a zstd frame."""

_LEVEL: Final = 3
_DELTA_LEVEL: Final = 9  # no slower than level 3 on what is mostly a match, and a twentieth smaller
_SMALL_BASE: Final = 16 * 1024
_BODY_LEVEL: Final = 5  # a tenth smaller than level 3, for a microsecond; a higher one saves a hundredth
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DIGEST_BYTES: Final = 32
_LARGE_BASE: Final = 16 * 1024 * 1024
_SPLICE_HEAD: Final = struct.Struct("<cIII")  # the marker, what begins and what ends like the base, CRC-32 of the state
_SPLICE_BYTES: Final = 64
"""How much may be new in a splice. Up to here it is no larger than a zstd frame."""
_SHORT: Final = 256


class BodyPruned(StoreError):
    """The body was removed on purpose; `digest` is the SHA-256 of what it was, and the chain still checks."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        super().__init__(
            f"the body of this event was pruned (its SHA-256 was {digest.hex()}). "
            "The event itself is kept; what it said can only come from a backup."
        )


# --- states ------------------------------------------------------------------------------------------------------


def pack(data: bytes, base: bytes | None = None) -> bytes:
    """A frame; with a base, only about what differs from it. The same base is needed to unpack."""
    if not data:
        return _EMPTY_FRAME
    if not base:
        return _codecs.compressor.compress(data)
    spliced = _splice(data, base)
    if spliced is not None:
        return spliced
    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    # Rounded up, so that a state that grows a little does not need parameters of its own.
    parameters = _delta_parameters(_rounded(len(data)), _rounded(len(base)))
    return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(data)


def unpack(frame: bytes, base: bytes | None = None, *, max_bytes: int = MAX_BYTES) -> bytes:
    """What was packed, or `CorruptData`.

    Frames from `pack` carry a checksum of 32 bits, so a wrong base is noticed. A planted frame need not: zstd then
    decodes against any base at all, silently, to garbage. Callers compare a digest before they believe the result.
    """
    if frame[:1] == SPLICE:
        return _unsplice(frame, base or b"", max_bytes)
    _check_header(frame, max_bytes)
    if not base:
        return _decompress(_codecs.decompressor, frame)
    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return _decompress(zstandard.ZstdDecompressor(dict_data=dictionary), frame)


def _splice(data: bytes, base: bytes) -> bytes | None:
    """The base with one short passage replaced: what most steps do to a state, told without a compressor."""
    shorter = min(len(data), len(base))
    head = _common_prefix(data, base, shorter)
    tail = _common_suffix(data, base, shorter - head)
    if len(data) - head - tail > _SPLICE_BYTES:
        return None
    return _SPLICE_HEAD.pack(SPLICE, head, tail, zlib.crc32(data)) + data[head : len(data) - tail]


def _unsplice(frame: bytes, base: bytes, max_bytes: int) -> bytes:
    if len(frame) < _SPLICE_HEAD.size:
        raise _corrupt("a splice without its head")
    _, head, tail, checksum = _SPLICE_HEAD.unpack_from(frame)
    if head + tail > len(base):
        raise _corrupt(f"it repeats {head + tail} bytes of a base of {len(base)}")
    size = head + tail + len(frame) - _SPLICE_HEAD.size
    if size > max_bytes:
        raise _corrupt(f"the frame declares {size} bytes and the limit is {max_bytes}")
    data = b"".join((base[:head], frame[_SPLICE_HEAD.size :], base[len(base) - tail :]))
    if zlib.crc32(data) != checksum:
        raise _corrupt("the checksum is wrong")
    return data


def _common_prefix(a: bytes, b: bytes, limit: int) -> int:
    """How many bytes both begin with. Halving, as only whole slices are compared quickly; the last few as numbers."""
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit
    while high - low > _SHORT:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    differ = int.from_bytes(a[low:high], "little") ^ int.from_bytes(b[low:high], "little")
    return low + ((differ & -differ).bit_length() - 1) // 8


def _common_suffix(a: bytes, b: bytes, limit: int) -> int:
    a, b = a[len(a) - limit :], b[len(b) - limit :]
    if a == b:
        return limit
    low, high = 0, limit
    while high - low > _SHORT:
        middle = (low + high) // 2
        if a[middle:high] == b[middle:high]:
            high = middle
        else:
            low = middle
    differ = int.from_bytes(a[low:high], "little") ^ int.from_bytes(b[low:high], "little")
    return limit - low - (differ.bit_length() + 7) // 8


def _rounded(size: int) -> int:
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step


@functools.lru_cache(maxsize=256)
def _delta_parameters(size: int, base_size: int) -> zstandard.ZstdCompressionParameters:
    """Parameters with which zstd finds a state in its predecessor, wherever in it and however large.

    zstd indexes only the last `8 << hash_log` bytes of a dictionary, and forgets the dictionary once the window has
    moved past it: with the level's own parameters a state of 5 MB would not match its predecessor at all. Above 16 MiB
    the level's strategy, which packs table entries tightly, indexes no more than that; a greedier one does.
    """
    level = _LEVEL if base_size < _SMALL_BASE else _DELTA_LEVEL
    found = zstandard.ZstdCompressionParameters.from_level(level, source_size=size, dict_size=base_size)
    window_log = max(found.window_log, min((size + base_size - 1).bit_length(), MAX_WINDOW_LOG))
    table_log = (base_size - 1).bit_length() - 3
    strategy = found.strategy
    if base_size > _LARGE_BASE:
        table_log = min(table_log, 23) + 1
        strategy = zstandard.STRATEGY_GREEDY
    return zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=size,
        dict_size=base_size,
        window_log=window_log,
        hash_log=max(found.hash_log, table_log),
        chain_log=max(found.chain_log, table_log),
        strategy=strategy,
        write_content_size=True,
        write_checksum=True,
    )


# --- event bodies ------------------------------------------------------------------------------------------------


def pack_body(body: bytes) -> bytes:
    """A marker and the body, compressed if that makes it smaller."""
    frame = _codecs.body_compressor.compress(body)
    if len(frame) < len(body):
        return b"\x01" + frame[len(_MAGIC) :]  # the marker says as much
    return b"\x00" + body


def unpack_body(stored: bytes, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The body that was packed; `BodyPruned` if only its digest is left."""
    marker = stored[0] if stored else None
    if marker == ZSTD_WITH_DICTIONARY_1:
        frame = _MAGIC + stored[1:]
        _check_header(frame, max_bytes)
        return _decompress(_codecs.body_decompressor, frame)
    if marker == RAW:
        if len(stored) - 1 > max_bytes:
            raise _corrupt(f"{len(stored) - 1} bytes are more than the limit of {max_bytes}")
        return stored[1:]
    if marker == PRUNED:
        raise BodyPruned(_pruned_digest(stored))
    raise _corrupt("an empty body" if marker is None else f"unknown marker {marker}")


def pruned_body(digest: bytes) -> bytes:
    """What is stored in place of a body that was removed."""
    if len(digest) != _DIGEST_BYTES:
        raise ValueError(f"a SHA-256 digest has {_DIGEST_BYTES} bytes, this one has {len(digest)}")
    return b"\x02" + digest


def body_digest(stored: bytes, *, max_bytes: int = MAX_BYTES) -> bytes:
    """SHA-256 of the original body, whether it is still there or not."""
    if stored[:1] == b"\x02":
        return _pruned_digest(stored)
    return sha256(unpack_body(stored, max_bytes=max_bytes)).digest()


def _pruned_digest(stored: bytes) -> bytes:
    if len(stored) != 1 + _DIGEST_BYTES:
        raise _corrupt(f"a pruned body has a digest of {_DIGEST_BYTES} bytes, this one has {len(stored) - 1}")
    return stored[1:]


# --- reading zstd ------------------------------------------------------------------------------------------------


def _corrupt(reason: str) -> CorruptData:
    return CorruptData(f"these bytes are not a stored frame: {reason}. Nothing was made of them.")


def _check_header(frame: bytes, max_bytes: int) -> None:
    """Everything that can be refused before memory is taken for the content."""
    if frame[:4] != _MAGIC:
        raise _corrupt("they do not start like zstd")
    try:
        header = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise _corrupt(str(error)) from error
    if header.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        raise _corrupt("the frame does not say how large its content is")
    if header.content_size > max_bytes:
        raise _corrupt(f"the frame declares {header.content_size} bytes and the limit is {max_bytes}")
    if header.window_size > max(1 << MAX_WINDOW_LOG, max_bytes):
        raise _corrupt(f"the frame asks for a window of {header.window_size} bytes")
    # The library answers b"" to such a header without looking at what follows it.
    if header.content_size == 0 and frame != _EMPTY_FRAME:
        raise _corrupt("the frame declares no content but is not the empty frame")


def _decompress(decompressor: zstandard.ZstdDecompressor, frame: bytes) -> bytes:
    try:
        return decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _corrupt(str(error)) from error


class _Codecs(threading.local):
    """Made once per thread, because making them is slow and zstandard's objects must not be shared by threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=True)
        self.decompressor = zstandard.ZstdDecompressor()
        dictionary = zstandard.ZstdCompressionDict(BODY_DICTIONARY_1, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        dictionary.precompute_compress(level=_BODY_LEVEL)
        self.body_compressor = zstandard.ZstdCompressor(
            level=_BODY_LEVEL, dict_data=dictionary, write_content_size=True
        )
        self.body_decompressor = zstandard.ZstdDecompressor(dict_data=dictionary)


_codecs: Final = _Codecs()
_EMPTY_FRAME: Final = _codecs.compressor.compress(b"")
