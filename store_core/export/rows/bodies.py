"""Inflate compressed bodies one by one, as the libraries require."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_core.codec.compression import BodyError, decompress
from store_core.codec.text import decode_text
from store_core.findings import Finding, finding
from store_core.scan.frames import FrameTable, Ints

DECODED_LIMIT_BYTES: Final = 16 << 20  # plain bodies in one batch
# A body that inflates further is returned as stored: a column of bodies exists about four times while it is written, and a
# task may use 512 MB.
LARGEST_BODY_BYTES: Final = 64 << 20
BODY_COLUMNS: Final = frozenset({"body", "body_decoded"})  # only these need decompressed bodies


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of some consecutive rows; ``compressed`` is a mask over them.

    ``plain`` has the decompressed body of each compressed row, None where that fails, which ``findings`` report. It
    is empty if no body is wanted.
    """

    places: slice
    compressed: NDArray[np.bool_]
    plain: tuple[bytes | None, ...] = ()
    findings: tuple[Finding, ...] = ()

    def body(self, stored: pa.BinaryArray) -> pa.BinaryArray:
        """Return the bodies, decompressed where possible, else as stored."""
        if not self.plain:
            return stored
        plain = _array_of([body for body in self.plain if body is not None])
        return plain if len(plain) == len(stored) else pc.replace_with_mask(stored, pa.array(self._replaced()), plain)

    def decoded(self) -> pa.BooleanArray:
        """Return False for each body that could not be decompressed, else True."""
        as_sent = ~self.compressed
        return pa.array(as_sent | self._replaced() if self.plain else as_sent)

    def stored_body(self, stored: pa.BinaryArray) -> pa.BinaryArray:
        """Return the bodies as stored where they are compressed, else null."""
        if not self.compressed.any():
            return pa.nulls(len(stored), pa.binary())
        if self.compressed.all():
            return stored
        return pc.if_else(pa.array(self.compressed), stored, pa.scalar(None, pa.binary()))

    def _replaced(self) -> NDArray[np.bool_]:
        replaced = np.zeros(len(self.compressed), np.bool_)
        replaced[self.compressed] = [_is_read(body) for body in self.plain]
        return replaced


def inflated(table: FrameTable, rows: Ints, compressed: NDArray[np.bool_]) -> Iterator[Bodies]:
    """Yield the rows in portions that inflate to little more than ``DECODED_LIMIT_BYTES``; ``compressed`` is a mask
    over them.
    """
    start, size_bytes = 0, 0
    plain: list[bytes | None] = []
    findings: list[Finding] = []
    if not compressed.any():
        yield Bodies(slice(0, len(rows)), compressed)
        return
    for place in np.flatnonzero(compressed).tolist():
        body, found = _plain_body(table, int(rows[place]))
        plain.append(body)
        findings += found
        size_bytes += len(body or b"")
        if size_bytes > DECODED_LIMIT_BYTES:
            places = slice(start, place + 1)
            yield Bodies(places, compressed[places], tuple(plain), tuple(findings))
            start, size_bytes, plain, findings = place + 1, 0, [], []
    if start < len(rows):
        places = slice(start, len(rows))
        yield Bodies(places, compressed[places], tuple(plain), tuple(findings))


def _array_of(bodies: Sequence[bytes]) -> pa.BinaryArray:
    """Build an array with one copy of the bodies; Arrow's own way needs twice the memory for a moment."""
    offsets = np.zeros(len(bodies) + 1, np.int32)
    np.cumsum([len(body) for body in bodies], out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(bodies), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(bodies))]
    )


def _is_read(body: bytes | None) -> bool:
    return body is not None


def _plain_body(table: FrameTable, row: int) -> tuple[bytes | None, list[Finding]]:
    try:
        return decompress(table.body(row), int(table.sys_flag[row]), LARGEST_BODY_BYTES), []
    except BodyError as error:
        l012 = finding(
            "L012",
            f"the body is given as stored: {error}",
            phy_offset=int(table.phy_offset[row]),
            size_bytes=int(table.size_bytes[row]),
            topic=decode_text(table.topic(row)),
            queue_id=int(table.queue_id[row]),
            queue_offset=int(table.queue_offset[row]),
        )
        return None, [l012]
