"""Decompress stored bodies and compress plain ones (store format, section 3.2)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Final, Literal

from store_core.layout import record

Compression = Literal["none", "lz4", "zstd", "zlib", "unknown"]

DEFAULT_LIMIT_BYTES: Final = 256 << 20  # far above any maxMessageSize in use; a larger body counts as a bomb
ZLIB_LEVEL: Final = 5
_FED_BYTES: Final = 1 << 14  # of stored data at once, because a decoder copies its unused input
_STEP_BYTES: Final = 1 << 18  # of plain data at once
_ZSTD_STEP_BYTES: Final = 128  # at most 32 blocks, 4 MiB of output
_KINDS: Final[dict[int, Compression]] = {
    record.COMPRESSION_ZLIB_OLD: "zlib",
    record.COMPRESSION_LZ4: "lz4",
    record.COMPRESSION_ZSTD: "zstd",
    record.COMPRESSION_ZLIB: "zlib",
}
_FLAGS: Final = {"lz4": record.COMPRESSION_LZ4, "zstd": record.COMPRESSION_ZSTD, "zlib": record.COMPRESSION_ZLIB}


class BodyError(Exception):
    """A stored body cannot be read; the text is the reason, for a finding (L012)."""


def compression_kind(sys_flag: int) -> Compression:
    """Return how a body is compressed; ``unknown`` for type numbers that no release defines."""
    if not sys_flag & record.FLAG_COMPRESSED:
        return "none"
    return _KINDS.get(sys_flag & record.COMPRESSION_MASK, "unknown")


def decompress(body: bytes, sys_flag: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """Return the plain body; the stored one if it is not compressed by its flag.

    Never makes more than ``limit_bytes`` (and one step of a decoder) of output. Raises BodyError for data that are torn, broken, of an unknown type
    or too large.
    """
    if compression_kind(sys_flag) == "none":
        return body
    plain = BytesIO()  # gives its buffer away without a copy
    for piece in inflated(body, sys_flag, limit_bytes):
        plain.write(piece)
    return plain.getvalue()


def inflated(body: bytes, sys_flag: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[bytes | memoryview]:
    """Yield the plain body in pieces of at most a quarter of a MiB, without keeping any. Raises BodyError as ``decompress``."""
    kind = compression_kind(sys_flag)
    if kind == "unknown":
        raise BodyError(f"compression type {sys_flag & record.COMPRESSION_MASK:#x} is not defined")
    size = 0
    try:
        for piece in _INFLATERS[kind](body):
            size += len(piece)
            if size > limit_bytes:
                raise BodyError(f"the plain body is larger than {limit_bytes} bytes")
            yield piece
    except BodyError:
        raise
    except Exception as error:  # each library raises its own class; lz4 a bare RuntimeError
        raise BodyError(f"{kind}: {error}") from error


def compress(body: bytes, kind: str = "zlib", level: int = ZLIB_LEVEL) -> tuple[bytes, int]:
    """Return a stored body as a producer makes it, and its sysFlag bits. Only zlib uses ``level``."""
    flags = record.FLAG_COMPRESSED | _FLAGS[kind]
    if kind == "zlib":
        return zlib.compress(body, level), flags
    if kind == "lz4":
        import lz4.frame

        return bytes(lz4.frame.compress(body)), flags
    import zstandard

    return bytes(zstandard.ZstdCompressor().compress(body)), flags


def _pieces(body: bytes, size_bytes: int) -> Iterator[memoryview]:
    view = memoryview(body)
    return (view[at : at + size_bytes] for at in range(0, len(view), size_bytes))


def _plain_pieces(body: bytes) -> Iterator[memoryview]:
    return _pieces(body, _STEP_BYTES)


def _inflate_zlib(body: bytes) -> Iterator[bytes]:
    decoder = zlib.decompressobj()
    for step in _pieces(body, _FED_BYTES):
        rest: bytes | memoryview = step
        while rest and not decoder.eof:
            yield decoder.decompress(rest, _STEP_BYTES)
            rest = decoder.unconsumed_tail
        if decoder.eof:
            return  # Java's reader too ignores bytes after the stream's end
    while piece := decoder.decompress(b"", _STEP_BYTES):
        yield piece
    if not decoder.eof:
        raise BodyError("zlib: the data end too early")


def _inflate_lz4(body: bytes) -> Iterator[bytes]:
    import lz4.frame

    decoder = None
    for step in _pieces(body, _FED_BYTES):
        rest = bytes(step)
        while rest:
            if decoder is None or decoder.eof:
                decoder = lz4.frame.LZ4FrameDecompressor()
            yield decoder.decompress(rest, _STEP_BYTES)
            while not decoder.eof and not decoder.needs_input:
                yield decoder.decompress(b"", _STEP_BYTES)
            rest = (decoder.unused_data or b"") if decoder.eof else b""
    if decoder is None:
        raise BodyError("lz4: no data")
    if not decoder.eof:
        raise BodyError("lz4: the data end too early")


def _inflate_zstd(body: bytes) -> Iterator[memoryview]:
    import zstandard

    # A decoder object detects a torn frame, a stream reader does not. It has no output limit, hence the small steps.
    decoders = zstandard.ZstdDecompressor()
    decoder = decoders.decompressobj()
    at = 0
    while at < len(body):
        if decoder.eof:
            decoder = decoders.decompressobj()
        step = body[at : at + _ZSTD_STEP_BYTES]
        plain = decoder.decompress(step)
        at += len(step) - len(decoder.unused_data)
        yield from _pieces(plain, _STEP_BYTES)
    if not decoder.eof:
        raise BodyError("zstd: the data end too early")


_INFLATERS: Final[dict[Compression, Callable[[bytes], Iterator[bytes | memoryview]]]] = {
    "none": _plain_pieces,
    "zlib": _inflate_zlib,
    "lz4": _inflate_lz4,
    "zstd": _inflate_zstd,
}
