"""A whole queue as columns: what pull gives one by one, by tens of thousands (store format 2.2 and 6.1).

Records are read where queue entries say, neighbours together, and cut all at once. Who reads many queues of one log may
keep its segments mapped (``LogMaps``): their records lie interleaved, and a read call for each costs more than the rest.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.record import Message, decode_record
from store_core.layout import record
from store_core.layout.schema import Field, Layout
from store_core.read.queue import Queue
from store_core.storage.files import open_read_only, unreadable
from store_core.storage.sequence import Segment

GATHERED_SIZE_BYTES: Final = 8 << 20  # so much of the log is read into one table
_NEIGHBOUR_GAP_BYTES: Final = 4096  # what lies between two records is read too if it is no longer than this
Ints = NDArray[Any]

_HOST_MASK: Final = record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6
_I2: Final = record.PROPERTIES_LENGTH.dtype


def _fixed_layout(host_flags: int) -> Layout:
    """Everything in front of the body, hosts as raw bytes, for one combination of host lengths."""
    born = record.host_size_bytes(bool(host_flags & record.FLAG_BORN_HOST_V6))
    store = record.host_size_bytes(bool(host_flags & record.FLAG_STORE_HOST_V6))
    return Layout(
        "record in front of its body",
        (
            *record.HEAD.fields,
            Field("born_host", f"s{born}"),
            *record.STORE_TIME.fields,
            Field("store_host", f"s{store}"),
            *record.MIDDLE.fields,
        ),
    )


_FIXED: Final = {
    flags: _fixed_layout(flags) for flags in (0, record.FLAG_BORN_HOST_V6, record.FLAG_STORE_HOST_V6, _HOST_MASK)
}
_COLUMNS: Final = tuple(f for f in _FIXED[0].fields if not f.name.endswith("_host"))


@dataclass(frozen=True, slots=True, eq=False)
class QueueTable:
    """Entries of a queue in order, one row each, with the records they point to; arrays of one length, times in ms.

    ``good`` rows point to a well-formed record of the entry's size; in the others everything that is the record's is 0.
    ``entry_*`` are the entry's, the rest the record's. ``at`` (the record's first byte) and ``*_at`` are positions in
    ``window``. ``record_queue_offset`` is the
    record's own number.
    """

    window: memoryview
    at: Ints
    good: NDArray[np.bool_]
    queue_offset: Ints
    phy_offset: Ints
    entry_size_bytes: Ints
    entry_tags_code: Ints
    size_bytes: Ints
    magic: Ints
    body_crc: Ints
    queue_id: Ints
    flag: Ints
    record_queue_offset: Ints
    own_phy_offset: Ints
    sys_flag: Ints
    born_timestamp_ms: Ints
    store_timestamp_ms: Ints
    reconsume_times: Ints
    prepared_transaction_offset: Ints
    body_at: Ints
    body_length: Ints
    topic_at: Ints
    topic_length: Ints
    properties_at: Ints
    properties_length: Ints

    def __len__(self) -> int:
        return len(self.good)

    def body(self, row: int) -> bytes:
        """The stored body."""
        return self._part(self.body_at[row], self.body_length[row])

    def topic(self, row: int) -> bytes:
        """The topic, as stored."""
        return self._part(self.topic_at[row], self.topic_length[row])

    def properties(self, row: int) -> bytes:
        """The property string, as stored."""
        return self._part(self.properties_at[row], self.properties_length[row])

    def message(self, row: int) -> Message:
        """A good row's message, for a person to read."""
        return decode_record(self.window, int(self.at[row]), int(self.phy_offset[row]), int(self.size_bytes[row]))

    def _part(self, at: Any, length: Any) -> bytes:
        return bytes(self.window[int(at) : int(at) + int(length)])


class LogMaps:
    """Whole segments of a log, mapped until closed: for reading many queues.

    Mapped pages count as resident, up to the log's size, and a disk that fails under a map ends the process.
    """

    def __init__(self) -> None:
        self._maps: dict[Segment, mmap.mmap | None] = {}

    def of(self, segment: Segment) -> mmap.mmap | None:
        """A segment's bytes; None where its file has vanished or become shorter."""
        if segment not in self._maps:
            self._maps[segment] = _mapped(segment)
        return self._maps[segment]

    def close(self) -> None:
        """Let go of the maps; what tables still use stays until they go."""
        self._maps.clear()


def read_queue(
    queue: Queue, first: int | None = None, end: int | None = None, *, maps: LogMaps | None = None
) -> Iterator[QueueTable]:
    """Entries of [first, end) (the queue's ends where nothing is said) with their records, table by table.

    Raises FailedError where a file cannot be read.
    """
    first = queue.min_offset if first is None else first
    end = queue.max_offset if end is None else end
    segments = queue.log.segments
    starts = np.array([s.phy_offset for s in segments], np.int64)
    ends = np.array([s.end_phy_offset for s in segments], np.int64)
    for start, entries in queue.columns(first, end):
        rows = _Rows(
            np.arange(start, start + len(entries), dtype=np.int64),
            entries["phy_offset"].astype(np.int64),
            entries["size_bytes"].astype(np.int64),
            entries["tags_code"].astype(np.int64),
        )
        number, share = _places(rows, starts, ends)
        differs = number[1:] != number[:-1]
        if maps is None:
            differs |= share[1:] != share[:-1]
        cuts = np.flatnonzero(np.r_[True, differs, True]).tolist()
        for low, high in itertools.pairwise(cuts):
            segment = segments[int(number[low])] if number[low] >= 0 else None
            yield _table(maps, segment, rows.part(slice(low, high)))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Entries in columns."""

    queue_offset: Ints
    phy_offset: Ints
    size_bytes: Ints
    tags_code: Ints

    def __len__(self) -> int:
        return len(self.queue_offset)

    def part(self, rows: slice) -> _Rows:
        return _Rows(self.queue_offset[rows], self.phy_offset[rows], self.size_bytes[rows], self.tags_code[rows])


def _places(rows: _Rows, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Which segment a record lies in (-1: it can lie in none), and which share of ``GATHERED_SIZE_BYTES`` is its own."""
    size = rows.size_bytes
    plausible = (size >= record.MIN_RECORD_SIZE_BYTES) & (size <= record.MAX_RECORD_SIZE_BYTES)
    size = np.where(plausible, size, 0)
    share = np.cumsum(size) // GATHERED_SIZE_BYTES
    if not len(starts):
        return np.full(len(rows), -1, np.int64), share
    number = np.searchsorted(starts, rows.phy_offset, "right") - 1
    inside = (number >= 0) & plausible & (rows.phy_offset <= ends[np.maximum(number, 0)] - size)
    return np.where(inside, number, -1), share


def _table(maps: LogMaps | None, segment: Segment | None, rows: _Rows) -> QueueTable:
    window: mmap.mmap | bytes | None = None
    at = np.zeros(len(rows), np.int64)
    if segment is not None and maps is not None:
        window, at = maps.of(segment), rows.phy_offset - segment.phy_offset
    elif segment is not None:
        window, at = _gathered(segment, rows.phy_offset - segment.phy_offset, rows.size_bytes)
    columns = {f.name: np.zeros(len(rows), np.dtype(f.type)) for f in _COLUMNS}
    parts = {name: np.zeros(len(rows), np.int64) for name in _PARTS}
    good = np.zeros(len(rows), np.bool_)
    if window is not None:
        good = _cut(window, at, rows.size_bytes, columns, parts)
    if not good.all():
        for column in (at, *columns.values(), *parts.values()):
            column[~good] = 0
    columns["record_queue_offset"] = columns.pop("queue_offset")
    return QueueTable(
        memoryview(window if window is not None else b""),
        at,
        good,
        rows.queue_offset,
        rows.phy_offset,
        rows.size_bytes,
        rows.tags_code,
        **columns,
        **parts,
    )


_PARTS: Final = ("body_at", "topic_at", "topic_length", "properties_at", "properties_length")


def _gathered(segment: Segment, at: Ints, size: Ints) -> tuple[bytes | None, Ints]:
    """The records at these places of a segment's file, back to back but for small gaps, and where each one begins."""
    end = at + size
    gap = at[1:] - end[:-1]
    is_first = np.r_[True, (gap < 0) | (gap > _NEIGHBOUR_GAP_BYTES)]
    firsts = np.flatnonzero(is_first)
    starts = at[firsts]
    sizes = end[np.r_[firsts[1:] - 1, len(at) - 1]] - starts
    try:
        descriptor = open_read_only(segment.path)
    except FileNotFoundError:
        return None, at
    except OSError as error:
        raise unreadable(segment.path, error) from error
    try:
        pread = os.pread
        pieces = [pread(descriptor, n, place) for n, place in zip(sizes.tolist(), starts.tolist(), strict=True)]
    except OSError as error:
        raise unreadable(segment.path, error) from error
    finally:
        os.close(descriptor)
    window = b"".join(pieces)
    if len(window) != int(sizes.sum()):  # the file has become shorter under us
        window = b"".join(piece.ljust(n, b"\0") for piece, n in zip(pieces, sizes.tolist(), strict=True))
    run = np.cumsum(is_first) - 1
    return window, (np.cumsum(sizes) - sizes)[run] + at - starts[run]


def _mapped(segment: Segment) -> mmap.mmap | None:
    try:
        descriptor = open_read_only(segment.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(segment.path, error) from error
    try:
        if not 0 < segment.size_bytes <= os.fstat(descriptor).st_size:
            return None
        return mmap.mmap(descriptor, segment.size_bytes, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise unreadable(segment.path, error if isinstance(error, OSError) else OSError(str(error))) from error
    finally:
        os.close(descriptor)


def _cut(
    window: mmap.mmap | bytes, at: Ints, size: Ints, columns: dict[str, Ints], parts: dict[str, Ints]
) -> NDArray[np.bool_]:
    """Fill the columns of the records at these positions; gives which of them are well formed."""
    fixed = _FIXED[0]
    head = _gather(window, at, fixed)
    host_flags = head["sys_flag"] & _HOST_MASK
    good = np.isin(head["magic"], (record.MAGIC_V1, record.MAGIC_V2)) & (head["size_bytes"] == size)
    body_at = at + fixed.size_bytes
    for name, column in columns.items():
        column[:] = head[name]
    if host_flags.any():
        for flags in (record.FLAG_BORN_HOST_V6, record.FLAG_STORE_HOST_V6, _HOST_MASK):
            layout = _FIXED[flags]
            of_kind = host_flags == flags
            good &= ~of_kind | (size >= layout.size_bytes)
            rows = np.flatnonzero(of_kind & good)
            longer = _gather(window, at[rows], layout)
            for name, column in columns.items():
                column[rows] = longer[name]
            body_at[rows] = at[rows] + layout.size_bytes
    np.maximum(columns["body_length"], 0, out=columns["body_length"])
    return _cut_parts(window, at + size, body_at, columns, parts, good)


def _cut_parts(
    window: mmap.mmap | bytes,
    end: Ints,
    body_at: Ints,
    columns: dict[str, Ints],
    parts: dict[str, Ints],
    good: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Topic and properties; every length is checked before it is used as a position."""
    is_v2 = columns["magic"] == record.MAGIC_V2
    length_size = np.where(is_v2, record.TOPIC_LENGTH_V2.size_bytes, record.TOPIC_LENGTH_V1.size_bytes)
    topic_length_at = body_at + columns["body_length"]
    fits = good & (topic_length_at + length_size + _I2.itemsize <= end)
    safe = np.where(fits, topic_length_at, 0)
    topic_length = np.frombuffer(window, np.int8)[safe].astype(np.int64)
    if is_v2.any():
        topic_length = np.where(is_v2, _gather(window, safe, record.TOPIC_LENGTH_V2)["topic_length"], topic_length)
    topic_at = topic_length_at + length_size
    properties_length_at = topic_at + topic_length
    fits &= (topic_length >= 0) & (properties_length_at + _I2.itemsize <= end)
    safe = np.where(fits, properties_length_at, 0)
    stored = _gather(window, safe, record.PROPERTIES_LENGTH)["properties_length"].astype(np.int64)
    properties_length = np.maximum(stored, 0)
    properties_at = properties_length_at + _I2.itemsize
    parts["body_at"][:] = body_at
    parts["topic_at"][:] = topic_at
    parts["topic_length"][:] = topic_length
    parts["properties_at"][:] = properties_at
    parts["properties_length"][:] = properties_length
    whole: NDArray[np.bool_] = fits & (properties_at + properties_length == end)
    return whole


def _gather(window: mmap.mmap | bytes, at: Ints, layout: Layout) -> Any:
    """The layout's fields at each of these positions. A view with a step of one byte makes any position an element."""
    size = layout.size_bytes
    view: NDArray[Any] = np.ndarray((max(len(window) - size + 1, 0),), f"V{size}", window, strides=(1,))
    return view[at].view(layout.dtype)
