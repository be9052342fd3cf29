"""Decide which record at the end of a live log is whole, and recognise a log later.

A broker copies a record into a mapped file, so its end may be written after its start. Two kinds of record are
settled:

* a record after which the next header is stored, since brokers write one record after the other;
* the newest record, if its checksum is right, no byte that is never zero is still zero, and it stays the same for a
  while.

Bytes read before a record was settled may be half of it: they count only if the log still holds the same when read
again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from store_core.errors import FailedError, UnreadableError
from store_core.export.dest.state import NEWEST_BEGINS, Proof
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout import record
from store_core.scan.frames import FrameTable, Ints
from store_core.storage.digest import crc32c
from store_core.storage.remote_path import is_remote
from store_core.storage.sequence import Segment, SegmentSequence
from store_core.storage.store import Store

QUIET_SECONDS: Final = 0.05
_LOOKS: Final = 2


def is_settled(log: SegmentSequence, table: FrameTable, row: int) -> bool:
    """Return True if a message, the last one of its table, can no longer change. May take ``QUIET_SECONDS`` a few
    times.
    """
    at, size = int(table.phy_offset[row]), int(table.size_bytes[row])
    if _starts_a_frame(log.read(at + size, record.PREFIX.size_bytes)):
        return True
    if table.code[row] == FrameCode.BAD_CRC or 0 in table.topic(row) or 0 in table.properties(row):
        return False
    data = _bytes_at(table, at, size)
    for _ in range(_LOOKS):
        time.sleep(QUIET_SECONDS)
        if log.read(at, size) != data:
            return False
    return True


def as_read(table: FrameTable, first: int, stop: int) -> Proof:
    """Return a proof of the bytes that were read of consecutive rows, as far as the table's window reaches."""
    start = int(table.phy_offset[first])
    end = int(table.phy_offset[stop - 1] + table.size_bytes[stop - 1])
    size = max(min(end, table.window_phy_offset + len(table.window)) - start, 0)
    return Proof(start, size, crc32c(_bytes_at(table, start, size)))


def last_begun(log: SegmentSequence) -> int:
    """Return the start of the segment at work: the last one with any data. Brokers make files ahead, full of zeros."""
    for segment in reversed(log.segments):
        if any(log.read(segment.phy_offset, record.PREFIX.size_bytes)):
            return segment.phy_offset
    return log.min_phy_offset


def is_followed(log: SegmentSequence, segment: Segment) -> bool:
    """Return True if records follow a segment: then no broker writes to it any more."""
    return _starts_a_frame(log.read(segment.end_phy_offset, record.PREFIX.size_bytes))


def proof_of(table: FrameTable, frames: Ints, before: tuple[Proof, ...]) -> tuple[Proof, ...]:
    """Return the last message among rows of messages and blanks, and a blank after it.

    ``before`` is the result of earlier rows.
    """
    messages = frames[table.kind[frames] == FrameKind.MESSAGE]
    found = before
    if len(messages):
        at, size = int(table.phy_offset[messages[-1]]), int(table.size_bytes[messages[-1]])
        found = (Proof(at, size, crc32c(_bytes_at(table, at, size))),)
    if table.kind[frames[-1]] == FrameKind.BLANK:
        at = int(table.phy_offset[frames[-1]])
        size = record.PREFIX.size_bytes
        found = (*found[:1], Proof(at, size, crc32c(_bytes_at(table, at, size))))
    return found


def still_holds(log: SegmentSequence, proof: Proof) -> bool:
    """Return True if a log has the same bytes at the same place."""
    data = log.read(proof.phy_offset, proof.size_bytes)
    return len(data) == proof.size_bytes and crc32c(data) == proof.crc32c


def begins_of(log: SegmentSequence, start: int, end: int) -> tuple[Proof, ...]:
    """Return the first records of the oldest and the newest segments that start in [start, end)."""
    inside = [segment.phy_offset for segment in log.segments if start <= segment.phy_offset < end]
    found: list[Proof] = []
    for at in dict.fromkeys([*inside[:1], *inside[-NEWEST_BEGINS:]]):
        raw = log.read(at, record.PREFIX.size_bytes)
        if (
            _starts_a_frame(raw)
            and record.PREFIX.size_bytes
            < (size := record.PREFIX.read(raw)["size_bytes"])
            <= record.MAX_RECORD_SIZE_BYTES
        ):
            found.append(Proof(at, size, crc32c(log.read(at, size))))
    return tuple(found)


def landmarks_of(store: Store) -> tuple[Proof, ...]:
    """Return the first records of some segments, by which other machines recognise this log.

    Only records that another frame follows count. A log in an object store needs none: its address is the same for
    all machines.
    """
    if not is_remote(store.root):
        with suppress(UnreadableError):
            log = store.log.apart()
            found = begins_of(log, log.min_phy_offset, log.max_phy_offset)
            return tuple(proof for proof in found if _starts_a_frame(log.read(*_next_prefix(proof))))
    return ()


def refuse_another_log(store: Store, landmarks: Sequence[Proof]) -> None:
    """Raise FailedError where a log is missing or lacks a landmark: the task would read a wrong log, or none.

    A landmark that has expired meanwhile is no reason.
    """
    if landmarks and not store.log.segments:
        raise unseen(store.root, landmarks[0].phy_offset)
    log = store.log.apart()  # an open file would hide that it was removed
    for landmark in landmarks:
        with suppress(UnreadableError):
            if log.find(landmark.phy_offset) is not None and not still_holds(log, landmark):
                raise FailedError(
                    "the log is not the one that was planned: this machine has another store here, or it was changed meanwhile",
                    path=str(store.root),
                    phy_offset=landmark.phy_offset,
                    to_do="see that all machines have the same store at this path, and run the command again",
                )


def unseen(path: Path, phy_offset: int) -> FailedError:
    """Return the error for a task that did not see a file which this machine has."""
    return FailedError(
        "a task did not see a file of the log, or not all of it",
        path=str(path),
        phy_offset=phy_offset,
        to_do="see that every machine that does tasks has the whole store at this path, and run the command again",
    )


def _next_prefix(proof: Proof) -> tuple[int, int]:
    """Return offset and size of the prefix of the frame after a record."""
    return proof.phy_offset + proof.size_bytes, record.PREFIX.size_bytes


def is_copy_of(log: SegmentSequence, proofs: Sequence[Proof], begins: Sequence[Proof]) -> bool:
    """Return True if a log has the last exported record of another log, or a first record of its segments.

    Only copies of the exported log have them.
    """
    has_first_record = any(proof.phy_offset >= log.min_phy_offset and still_holds(log, proof) for proof in begins)
    return has_first_record or _holds_last_exported(log, proofs)


def _holds_last_exported(log: SegmentSequence, proofs: Sequence[Proof]) -> bool:
    return any(proof.size_bytes > record.PREFIX.size_bytes for proof in proofs) and all(
        proof.phy_offset >= log.min_phy_offset and still_holds(log, proof) for proof in proofs
    )


def _starts_a_frame(prefix: bytes) -> bool:
    if len(prefix) < record.PREFIX.size_bytes:
        return False
    fields = record.PREFIX.read(prefix)
    return fields["size_bytes"] > 0 and fields["magic"] in record.MAGICS


def _bytes_at(table: FrameTable, phy_offset: int, size_bytes: int) -> bytes:
    at = phy_offset - table.window_phy_offset
    return bytes(table.window[at : at + size_bytes])
