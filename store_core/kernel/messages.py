"""Read the messages that a run of queue entries points to; compiled where possible, and without numpy."""

from __future__ import annotations

from typing import Any, Final

from store_core.codec.record import Message, RecordError, decode_record
from store_core.kernel import compiled_kernel
from store_core.kernel.codes import NEIGHBOUR_GAP_BYTES, READ_AT_ONCE_BYTES
from store_core.layout import record
from store_core.layout.queue import ENTRY
from store_core.storage.sequence import SegmentSequence

_compiled: Final = compiled_kernel()
Parts = tuple[int, bytes, bytes, str, bytes]
_TO_UNWRAP: Final = record.FLAG_INNER_BATCH | record.FLAG_NEED_UNWRAP
_LONG: Final = 1 << 63


def messages_of(log: SegmentSequence, entries: bytes) -> list[Message]:
    """Return the messages of queue entries (as stored, one after another), up to the first entry that is not plain.

    An entry is plain if its record is in one file, is well formed, has the entry's size, and is no batch to be unwrapped. Neighbours are read
    together. Bodies' checksums are not verified. Raises FailedError where the log cannot be read.
    """
    add = add_messages if _compiled is None else _compiled.add_messages
    found: list[Parts] = []
    start, size_bytes = add(entries, b"", 0, found)
    while size_bytes:
        count = len(found)
        start, size_bytes = add(entries, log.read(start, size_bytes), start, found)
        if len(found) == count:
            break
    return list(map(Message, found))


def add_messages(entries: bytes, window: Any, window_phy_offset: int, found: list[Parts]) -> tuple[int, int]:
    """Add the messages of the entries after those in ``found``, while they are plain and in the window.

    Returns start and length of the next read; length 0 if all entries are done or the next is not plain.
    """
    places = [
        entry[:2] for entry in ENTRY.struct.iter_unpack(entries[: len(entries) // ENTRY.size_bytes * ENTRY.size_bytes])
    ]
    for number in range(len(found), len(places)):
        phy_offset, size_bytes = places[number]
        if not _is_plausible(phy_offset, size_bytes):
            return 0, 0
        at = phy_offset - window_phy_offset
        if at < 0 or at + size_bytes > len(window):
            return phy_offset, _neighbours_end(places[number:]) - phy_offset
        try:
            message = decode_record(window, at, phy_offset, size_bytes)
        except RecordError:
            return 0, 0
        if message.size_bytes != size_bytes or message.sys_flag & _TO_UNWRAP == _TO_UNWRAP:
            return 0, 0
        found.append((*message,))
    return 0, 0


def _is_plausible(phy_offset: int, size_bytes: int) -> bool:
    return (
        0 <= phy_offset < _LONG - size_bytes
        and record.MIN_RECORD_SIZE_BYTES <= size_bytes <= record.MAX_RECORD_SIZE_BYTES
    )


def _neighbours_end(places: list[tuple[int, int]]) -> int:
    """Return the end of the first of these records, or of the last one that follows it closely."""
    start = places[0][0]
    end = start + places[0][1]
    for phy_offset, size_bytes in places[1:]:
        is_near = 0 <= phy_offset - end <= NEIGHBOUR_GAP_BYTES and phy_offset + size_bytes - start <= READ_AT_ONCE_BYTES
        if not _is_plausible(phy_offset, size_bytes) or not is_near:
            break
        end = phy_offset + size_bytes
    return end
