"""Stored bodies to plain ones and back (store format, section 3.2)."""

from __future__ import annotations

import zlib
from typing import Final, Literal

from store_core.layout import record

Compression = Literal["none", "lz4", "zstd", "zlib", "unknown"]

DEFAULT_LIMIT_BYTES: Final = 256 << 20  # far above any maxMessageSize in use; what inflates further is taken for a bomb
ZLIB_LEVEL: Final = 5
_ZSTD_STEP_BYTES: Final = 256  # at most 64 blocks, 8 MiB of output
_KINDS: Final[dict[int, Compression]] = {
    record.COMPRESSION_ZLIB_OLD: "zlib",
    record.COMPRESSION_LZ4: "lz4",
    record.COMPRESSION_ZSTD: "zstd",
    record.COMPRESSION_ZLIB: "zlib",
}
_FLAGS: Final = {"lz4": record.COMPRESSION_LZ4, "zstd": record.COMPRESSION_ZSTD, "zlib": record.COMPRESSION_ZLIB}


class BodyError(Exception):
    """A stored body cannot be read: the reason, for a finding (L012)."""


def compression_kind(sys_flag: int) -> Compression:
    """How a body is compressed; ``unknown`` for the type numbers that no release defines."""
    if not sys_flag & record.FLAG_COMPRESSED:
        return "none"
    return _KINDS.get(sys_flag & record.COMPRESSION_MASK, "unknown")


def decompress(body: bytes, sys_flag: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The plain body; the stored one where the flag says it is not compressed.

    Never makes more than ``limit_bytes`` (and one step of a decoder) of output. Raises BodyError for data that are torn,
    broken, of an unknown type or too large.
    """
    kind = compression_kind(sys_flag)
    if kind == "none":
        return body
    if kind == "unknown":
        raise BodyError(f"compression type {sys_flag & record.COMPRESSION_MASK:#x} is not defined")
    try:
        return {"zlib": _inflate_zlib, "lz4": _inflate_lz4, "zstd": _inflate_zstd}[kind](body, limit_bytes)
    except BodyError:
        raise
    except Exception as error:  # each library has its own; lz4's is a bare RuntimeError
        raise BodyError(f"{kind}: {error}") from error


def compress(body: bytes, kind: str = "zlib", level: int = ZLIB_LEVEL) -> tuple[bytes, int]:
    """A stored body as a producer makes it, and the sysFlag bits that say so. ``level`` goes to zlib alone."""
    flags = record.FLAG_COMPRESSED | _FLAGS[kind]
    if kind == "zlib":
        return zlib.compress(body, level), flags
    if kind == "lz4":
        import lz4.frame

        return bytes(lz4.frame.compress(body)), flags
    import zstandard

    return bytes(zstandard.ZstdCompressor().compress(body)), flags


def _inflate_zlib(body: bytes, limit_bytes: int) -> bytes:
    decoder = zlib.decompressobj()
    plain = decoder.decompress(body, limit_bytes + 1)
    _check_limit(len(plain), limit_bytes)
    if not decoder.eof:
        raise BodyError("zlib: the data end too early")
    return plain  # Java's reader stops at the stream's end too: what stands behind it is not looked at


def _inflate_lz4(body: bytes, limit_bytes: int) -> bytes:
    import lz4.frame

    parts, size, rest = [], 0, body
    while rest:
        decoder = lz4.frame.LZ4FrameDecompressor()
        part = decoder.decompress(rest, max_length=limit_bytes - size + 1)
        size += len(part)
        _check_limit(size, limit_bytes)
        if not decoder.eof:
            raise BodyError("lz4: the data end too early")
        parts.append(part)
        rest = decoder.unused_data or b""
    if not parts:
        raise BodyError("lz4: no data")
    return b"".join(parts)


def _inflate_zstd(body: bytes, limit_bytes: int) -> bytes:
    import zstandard

    # A decoder object tells a torn frame, a stream reader does not; but it has no bound of its own, hence the small steps.
    decoders = zstandard.ZstdDecompressor()
    decoder = decoders.decompressobj()
    parts, size, at = [], 0, 0
    while at < len(body):
        if decoder.eof:
            decoder = decoders.decompressobj()
        step = body[at : at + _ZSTD_STEP_BYTES]
        part = decoder.decompress(step)
        at += len(step) - len(decoder.unused_data)
        size += len(part)
        _check_limit(size, limit_bytes)
        parts.append(part)
    if not decoder.eof:
        raise BodyError("zstd: the data end too early")
    return b"".join(parts)


def _check_limit(size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise BodyError(f"the plain body is larger than {limit_bytes} bytes")
