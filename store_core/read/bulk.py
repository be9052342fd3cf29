"""A whole queue as columns: what pull gives one by one, by tens of thousands (store format 2.2 and 6.1).

Records are cut where queue entries say, from mapped windows of the log: a queue's records lie scattered, and a read call
for each costs more than all the rest. A mapping cannot report a failing disk other than by a signal; the commands that
people use for looking at damaged stores read with pread.
"""

from __future__ import annotations

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

WINDOW_SIZE_BYTES: Final = 32 << 20
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
    ``entry_*`` are the entry's, the rest the record's. ``*_at`` are positions in ``window``. ``record_queue_offset`` is the
    record's own number.
    """

    window: memoryview
    window_phy_offset: int
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
        phy_offset = int(self.phy_offset[row])
        return decode_record(self.window, phy_offset - self.window_phy_offset, phy_offset, int(self.size_bytes[row]))

    def _part(self, at: Any, length: Any) -> bytes:
        return bytes(self.window[int(at) : int(at) + int(length)])


class LogMaps:
    """Whole segments of a log, mapped until closed: for reading many queues, which lie interleaved in the same pages.

    Mapped pages count as resident while they are, up to the log's size.
    """

    def __init__(self) -> None:
        self._maps: dict[Segment, mmap.mmap | None] = {}

    def of(self, segment: Segment) -> mmap.mmap | None:
        if segment not in self._maps:
            self._maps[segment] = _mapped(segment, 0, segment.size_bytes)
        return self._maps[segment]

    def close(self) -> None:
        """Let go of the maps; what tables still use stays until they go."""
        self._maps.clear()


def read_queue(
    queue: Queue, first: int | None = None, end: int | None = None, *, maps: LogMaps | None = None
) -> Iterator[QueueTable]:
    """Entries of [first, end) (the queue's ends where nothing is said) with their records, a table a window of the log.

    Without ``maps`` windows are mapped one by one, and memory does not grow. Raises FailedError where a file cannot be
    opened.
    """
    first = queue.min_offset if first is None else first
    end = queue.max_offset if end is None else end
    segments = queue.log.segments
    starts = np.array([s.phy_offset for s in segments], np.int64)
    ends = np.array([s.end_phy_offset for s in segments], np.int64)
    for start, entries in queue.columns(first, end):
        numbers = np.arange(start, start + len(entries), dtype=np.int64)
        phy_offset = entries["phy_offset"].astype(np.int64)
        size = entries["size_bytes"].astype(np.int64)
        tags_code = entries["tags_code"].astype(np.int64)
        window_size = WINDOW_SIZE_BYTES if maps is None else None
        place = _places(phy_offset, size, starts, ends, window_size)
        cuts = np.flatnonzero(np.diff(place, prepend=-2, append=-2))
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            part = slice(low, high)
            own = numbers[part], phy_offset[part], size[part], tags_code[part]
            number = int(place[low])
            segment = None if number < 0 else segments[int(np.searchsorted(starts, own[1][0], "right")) - 1]
            yield _table(maps, segment, *own)


def _places(phy_offset: Ints, size: Ints, starts: Ints, ends: Ints, window_size: int | None) -> Ints:
    """Which window of the log (segment, if there is no size) a record lies in, as a number; -1 where it can lie in none."""
    if not len(starts):
        return np.full(len(phy_offset), -1, np.int64)
    number = np.searchsorted(starts, phy_offset, "right") - 1
    found = np.maximum(number, 0)
    plausible = (size >= record.MIN_RECORD_SIZE_BYTES) & (size <= record.MAX_RECORD_SIZE_BYTES)
    inside = (number >= 0) & plausible & (phy_offset <= ends[found] - np.where(plausible, size, 0))
    if window_size is None:
        return np.where(inside, found, -1)
    windows = -(-int((ends - starts).max()) // window_size)
    return np.where(inside, found * windows + (phy_offset - starts[found]) // window_size, -1)


def _table(
    maps: LogMaps | None, segment: Segment | None, number: Ints, phy_offset: Ints, size: Ints, tags_code: Ints
) -> QueueTable:
    window, window_phy_offset = None, 0
    if segment is not None and maps is not None:
        window, window_phy_offset = maps.of(segment), segment.phy_offset
    elif segment is not None:
        low, high = int(phy_offset.min()) - segment.phy_offset, int((phy_offset + size).max()) - segment.phy_offset
        start = low - low % mmap.ALLOCATIONGRANULARITY
        window, window_phy_offset = _mapped(segment, start, high), segment.phy_offset + start
    columns = {f.name: np.zeros(len(number), np.dtype(f.type)) for f in _COLUMNS}
    parts = {name: np.zeros(len(number), np.int64) for name in _PARTS}
    good = np.zeros(len(number), np.bool_)
    if window is not None:
        good = _cut(window, phy_offset - window_phy_offset, size, columns, parts)
    for column in (*columns.values(), *parts.values()):
        if not good.all():
            column[~good] = 0
    columns["record_queue_offset"] = columns.pop("queue_offset")
    return QueueTable(
        memoryview(window if window is not None else b""),
        window_phy_offset,
        good,
        number,
        phy_offset,
        size,
        tags_code,
        **columns,
        **parts,
    )


_PARTS: Final = ("body_at", "topic_at", "topic_length", "properties_at", "properties_length")


def _mapped(segment: Segment, start: int, end: int) -> mmap.mmap | None:
    """Bytes [start, end) of a segment's file; None where it has vanished or become shorter."""
    try:
        descriptor = open_read_only(segment.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(segment.path, error) from error
    try:
        if os.fstat(descriptor).st_size < end or end <= start:
            return None
        return mmap.mmap(descriptor, end - start, access=mmap.ACCESS_READ, offset=start)
    except (OSError, ValueError) as error:
        raise unreadable(segment.path, error if isinstance(error, OSError) else OSError(str(error))) from error
    finally:
        os.close(descriptor)


def _cut(
    window: mmap.mmap, at: Ints, size: Ints, columns: dict[str, Ints], parts: dict[str, Ints]
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
    window: mmap.mmap,
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


def _gather(window: mmap.mmap, at: Ints, layout: Layout) -> Any:
    """The layout's fields at each of these positions. A view with a step of one byte makes any position an element."""
    size = layout.size_bytes
    view: NDArray[Any] = np.ndarray((max(len(window) - size + 1, 0),), f"V{size}", window, strides=(1,))
    return view[at].view(layout.dtype)
