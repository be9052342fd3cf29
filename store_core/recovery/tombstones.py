"""Encode the records that close a hole, to the byte (store behaviour, section 15.1).

A tombstone replaces a lost message that is known: an ordinary record of its topic, queue and queue offset, with a body of
zeros. A filler is a ROLLBACK record, which no broker dispatches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.hosts import host_bytes
from store_core.codec.properties import DELAY, REAL_QID, REAL_TOPIC
from store_core.codec.record import body_crc, encode_record
from store_core.derive.dispatch import INNER_BASE, INNER_NUM, MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from store_core.layout import marks, paths, record, timer
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import LostRows, Rows, entries_of
from store_core.storage.overlay import Patch

_NO_HOST: Final = host_bytes("0.0.0.0:0")
_TIMER_OUT: Final = "TIMER_OUT_MS"
_BROKER_SERVICES: Final = (paths.SCHEDULE_TOPIC, timer.TIMER_TOPIC)
_ANY_TIME_MS: Final = (1 << 63) - 1  # has as many digits as any time
_MOST_AT_ONCE: Final = 1 << 12  # records, to bound the memory of their columns
_NAMED_FILLER_SIZE_BYTES: Final = record.MIN_RECORD_SIZE_BYTES + len(marks.FILLER_TOPIC)
Ints = NDArray[np.int64]
# Everything before a body, both hosts IPv4.
_FRONT: Final = np.dtype(
    [
        ("head", record.HEAD.dtype),
        ("times_and_hosts", f"V{record.middle_at(0) - record.HEAD.size_bytes}"),
        ("middle", record.MIDDLE.dtype),
    ]
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes to be written at an offset of the log: ``parts`` at positions inside the piece, zeros elsewhere."""

    phy_offset: int
    size_bytes: int
    parts: tuple[tuple[int, bytes], ...]
    store_timestamp_ms: int = 0
    tombstone_of: LostRecord | None = None
    is_blank: bool = False

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of [start, end) of the log, which lies inside the piece."""
        patch = Patch(self.phy_offset, self.phy_offset + self.size_bytes, self.parts)
        return patch.read(start, end)


@dataclass(frozen=True, slots=True)
class TombstoneRun:
    """Tombstones with the places and sizes of many lost records, and fillers between them, made when they are read."""

    lost: LostRows
    store_timestamp_ms: int
    property_crc: bool = False

    @property
    def phy_offset(self) -> int:
        return self.lost.phy_offset

    @property
    def size_bytes(self) -> int:
        return self.lost.end_phy_offset - self.lost.phy_offset

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of [start, end) of the log, which lies inside the run."""
        data, rows = np.zeros(end - start, np.uint8), self.lost.around(start, end)
        ends = rows["phy_offset"] + rows["size_bytes"]
        gaps = np.flatnonzero(ends[:-1] < rows["phy_offset"][1:])
        places, sizes = ends[gaps], rows["phy_offset"][gaps + 1] - ends[gaps]
        if self.property_crc:  # the checksum covers each whole record, so none can be copied from a sample
            for piece in (*self._one_by_one(rows), *map(self._filler, places.tolist(), sizes.tolist())):
                _put_piece(data, start, piece)
            return data.tobytes()
        is_plain = (rows["batch_size"] == 1) & (rows["lights"] == 0)
        for piece in self._one_by_one(rows[~is_plain]):
            _put_piece(data, start, piece)
        rows = rows[is_plain]
        for number in np.unique(rows["queue"]).tolist():
            in_queue = rows[rows["queue"] == number]
            key = self.lost.table.queues[number]
            known = LostRecord(key.topic, key.queue_id, 0)
            marked, unmarked = (
                _encode(known, 0, 0, self.store_timestamp_ms, marked=m, property_crc=False) for m in (True, False)
            )
            is_marked = in_queue["size_bytes"] >= len(marked)
            for bare, alike in ((marked, in_queue[is_marked]), (unmarked, in_queue[~is_marked])):
                sample = Piece(0, len(bare), _without_body(bare, 0))
                for at in range(0, len(alike), _MOST_AT_ONCE):
                    part = alike[at : at + _MOST_AT_ONCE]
                    _put_like(data, start, sample, part["phy_offset"], part["size_bytes"], part["queue_offset"])
        for is_small in (False, True):
            between = np.flatnonzero((sizes < _NAMED_FILLER_SIZE_BYTES) == is_small)
            sample = self._filler(0, record.MIN_RECORD_SIZE_BYTES if is_small else _NAMED_FILLER_SIZE_BYTES)
            for at in range(0, len(between), _MOST_AT_ONCE):
                gap = between[at : at + _MOST_AT_ONCE]
                _put_like(data, start, sample, places[gap], sizes[gap], np.zeros(len(gap), np.int64))
        return data.tobytes()

    def _one_by_one(self, rows: Rows) -> Iterator[Piece]:
        for lost in entries_of(self.lost.table, rows):
            at = lost.phy_offset or 0
            yield tombstone(lost, at, lost.size_bytes, self.store_timestamp_ms, property_crc=self.property_crc)

    def _filler(self, at: int, size: int) -> Piece:
        return filler(at, size, self.store_timestamp_ms, property_crc=self.property_crc)


def _put(data: NDArray[np.uint8], at: int, part: bytes) -> None:
    """Write the bytes of ``part`` that lie inside ``data``."""
    start, end = max(at, 0), min(at + len(part), len(data))
    if start < end:
        data[start:end] = np.frombuffer(part, np.uint8)[start - at : end - at]


def _put_piece(data: NDArray[np.uint8], start: int, piece: Piece) -> None:
    for at, part in piece.parts:
        _put(data, piece.phy_offset + at - start, part)


def _put_like(data: NDArray[np.uint8], start: int, sample: Piece, places: Ints, sizes: Ints, numbers: Ints) -> None:
    """Write records that differ from ``sample``, which has no body, in offset, size, queue offset and body length."""
    front, tail = (part for _, part in sample.parts)
    body_length = sizes - sample.size_bytes
    fronts = np.repeat(np.frombuffer(front, _FRONT), len(places))
    fronts["head"]["size_bytes"] = sizes
    fronts["head"]["queue_offset"] = numbers
    fronts["head"]["own_phy_offset"] = places
    fronts["middle"]["body_length"] = body_length
    lengths, which = np.unique(body_length, return_inverse=True)
    fronts["head"]["body_crc"] = np.array([_crc_of_zeros(length) for length in lengths.tolist()], np.int64)[which]
    _put_all(data, places - start, fronts.view(np.uint8).reshape(len(places), -1))
    tails = np.broadcast_to(np.frombuffer(tail, np.uint8), (len(places), len(tail)))
    _put_all(data, places - start + len(front) + body_length, tails)


def _put_all(data: NDArray[np.uint8], places: Ints, parts: NDArray[np.uint8]) -> None:
    """Write each row of ``parts`` at its place, as ``_put`` does."""
    width = parts.shape[1]
    inside = (places >= 0) & (places + width <= len(data))
    for row in np.flatnonzero(~inside).tolist():
        _put(data, int(places[row]), parts[row].tobytes())
    data[places[inside, None] + np.arange(width)] = parts[inside]


@lru_cache(maxsize=1 << 14)
def _crc_of_zeros(length: int) -> int:
    return body_crc(bytes(length))


def smallest_tombstone_size_bytes(lost: LostRecord, *, marked: bool = True, property_crc: bool = False) -> int:
    """Return the least size of a lost record's tombstone, with or without its mark."""
    if lost.batch_size > 1 or lost.light_queues or lost.topic in _BROKER_SERVICES:
        return len(_encode(lost, 0, 0, _ANY_TIME_MS, marked=marked, property_crc=property_crc))
    return _ordinary_size_bytes(lost.topic, marked, property_crc)


@lru_cache(maxsize=1024)
def _ordinary_size_bytes(topic: str, marked: bool, property_crc: bool) -> int:
    """Return the least size for a topic, cached: lost messages have few topics, and numbers take the same room."""
    return len(_encode(LostRecord(topic, 0, 0), 0, 0, _ANY_TIME_MS, marked=marked, property_crc=property_crc))


def can_be_told(lost: LostRecord) -> bool:
    """Return True if a tombstone can hold the record's topic and numbers; those of damaged heads may fit no field."""
    try:
        smallest_tombstone_size_bytes(lost)
        for name, value in (("queue_id", lost.queue_id), ("queue_offset", lost.queue_offset)):
            record.HEAD.field_struct(name).pack(value)
    except (ValueError, OverflowError, struct.error):
        return False
    return True


def _tombstone_properties(lost: LostRecord, timestamp: int, *, marked: bool) -> dict[str, str]:
    properties = {marks.TOMBSTONE_PROPERTY: marks.TOMBSTONE_VALUE} if marked else {}
    if lost.light_queues:
        names, numbers = zip(*lost.light_queues, strict=True)
        properties |= {MULTI_DISPATCH: ",".join(names), MULTI_QUEUE_OFFSET: ",".join(map(str, numbers))}
    if lost.batch_size > 1:
        properties |= {INNER_BASE: str(lost.queue_offset), INNER_NUM: str(lost.batch_size)}
    # The broker's schedule and timer services append what they read again, and without a real topic they retry for ever.
    if lost.topic == paths.SCHEDULE_TOPIC:
        properties |= {DELAY: str(lost.queue_id + 1)}
    if lost.topic == timer.TIMER_TOPIC:
        properties |= {_TIMER_OUT: str(timestamp)}
    if lost.topic in _BROKER_SERVICES:
        properties |= {REAL_TOPIC: marks.TOMBSTONE_TOPIC, REAL_QID: "0"}
    return properties


def _encode(lost: LostRecord, at: int, body_length: int, timestamp: int, *, marked: bool, property_crc: bool) -> bytes:
    return encode_record(
        topic=lost.topic,
        body=bytes(body_length),
        properties=_tombstone_properties(lost, timestamp, marked=marked),
        queue_id=lost.queue_id,
        queue_offset=lost.queue_offset,
        phy_offset=at,
        born_timestamp_ms=timestamp,
        born_host=_NO_HOST,
        store_timestamp_ms=timestamp,
        store_host=_NO_HOST,
        property_crc=property_crc,
    )


def tombstone(lost: LostRecord, at: int, size: int, timestamp: int, *, property_crc: bool = False) -> Piece:
    """Return the tombstone of a lost record, with its mark if there is room for it."""
    least = len(_encode(lost, 0, 0, timestamp, marked=True, property_crc=property_crc))
    if marked := size >= least:
        body_length = size - least
    else:
        body_length = size - len(_encode(lost, 0, 0, timestamp, marked=False, property_crc=property_crc))
    data = _encode(lost, at, body_length, timestamp, marked=marked, property_crc=property_crc)
    return Piece(at, size, _without_body(data, body_length), timestamp, tombstone_of=lost)


def min_size_bytes(*, property_crc: bool) -> int:
    """Return the least size of a record."""
    return record.MIN_RECORD_SIZE_BYTES + (record.PROPERTY_CRC.size_bytes if property_crc else 0)


def fillers(start: int, end: int, timestamp: int, *, property_crc: bool) -> Iterator[Piece]:
    """Yield fillers for [start, end) of the log, which has room for at least one."""
    while start < end:
        size = end - start
        if size > marks.MAX_FILLER_SIZE_BYTES:
            size = marks.MAX_FILLER_SIZE_BYTES
            size -= max(min_size_bytes(property_crc=property_crc) - (end - start - size), 0)
        yield filler(start, size, timestamp, property_crc=property_crc)
        start += size


def filler(start: int, size: int, timestamp: int, *, property_crc: bool = False) -> Piece:
    """Return a filler, with the topic of fillers if there is room for it."""
    room = size - min_size_bytes(property_crc=property_crc)
    topic = marks.FILLER_TOPIC if room >= len(marks.FILLER_TOPIC) else ""
    body_length = room - len(topic)
    data = encode_record(
        topic=topic,
        body=bytes(body_length),
        properties={},
        queue_id=0,
        queue_offset=0,
        phy_offset=start,
        born_timestamp_ms=timestamp,
        born_host=_NO_HOST,
        store_timestamp_ms=timestamp,
        store_host=_NO_HOST,
        sys_flag=record.TRANSACTION_ROLLBACK,
        property_crc=property_crc,
    )
    return Piece(start, size, _without_body(data, body_length), timestamp)


def _without_body(data: bytes, body_length: int) -> tuple[tuple[int, bytes], ...]:
    """Return the bytes before and after the body of zeros, with their positions."""
    body_at = record.body_at(0)
    return ((0, data[:body_at]), (body_at + body_length, data[body_at + body_length :]))
