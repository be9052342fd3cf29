"""Scan a window, in readable Python: the definition of the compiled kernel, and its test oracle.

Frames are consecutive from the segment's start: records, and one blank at the end (store format, section 2). Where the next frame should start and
none does, a region without frames starts. It ends at the next record whose own offset is its place, or at a blank that ends exactly with the segment.
The bytes between become DAMAGE, ZEROS and STALE rows.

The rows do not depend on where windows are cut. So the last bytes of a window in which a head could start are left to the next window, and so are
zeros at its end that may become a long run.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from store_core.codec.properties import has_bad_batch, has_bad_level, has_parted_value, some_properties
from store_core.codec.tags import index_key_hashes
from store_core.kernel.codes import (
    LONGEST_HEAD_BYTES,
    PROPERTY_NAMES,
    RESYNC_BYTES,
    ZERO_FRAME_BYTES,
    ZERO_RUN_BYTES,
    FrameCode,
    FrameKind,
    PropertyFlag,
    ScanFlag,
    ScanState,
)
from store_core.kernel.columns import Row, WindowColumns, frame_columns, key_columns, property_columns
from store_core.kernel.reference.record import (
    RecordHead,
    Shortage,
    body_crc_holds,
    check_prefix,
    check_record,
    has_plausible_head,
    property_crc_holds,
)
from store_core.layout import record
from store_core.storage.files import open_read_only

_PREFIX: Final = record.PREFIX.struct
_MAGIC: Final = record.PREFIX.field_struct("magic")
_MAGIC_AT: Final = record.PREFIX.offset_of("magic")
_ANY_MAGIC: Final = re.compile(b"|".join(re.escape(_MAGIC.pack(magic)) for magic in record.MAGICS))
_BLANK: Final = _MAGIC.pack(record.MAGIC_BLANK)
_LONG_ZERO_RUN: Final = re.compile(rb"\0{%d,}" % ZERO_RUN_BYTES)
_NOT_ZERO: Final = re.compile(rb"[^\0]")
_MESSAGE: Final = FrameKind.MESSAGE.value
_OK: Final = FrameCode.OK.value

# The kind of a first row that continues the previous window's last row.
_CONTINUED: Final = {
    ScanState.IN_DAMAGE: FrameKind.DAMAGE,
    ScanState.IN_BAD_BLANK: FrameKind.DAMAGE,
    ScanState.IN_ZEROS: FrameKind.ZEROS,
    ScanState.IN_STALE: FrameKind.STALE,
}


def scan_window(
    window: Any, window_phy_offset: int, at: int, segment_end_phy_offset: int, state: int, flags: int
) -> WindowColumns:
    """Cut the part of a segment in ``window`` into frames, from index ``at`` on. See ``kernel.scan_window``."""
    scan = WindowScan(window_phy_offset, at, segment_end_phy_offset, state, flags, len(window))
    scan.go_on(window)
    return scan.columns()


class FileReader:
    """See ``store_core.kernel.file``."""

    def __init__(self, path: Path, _open_flags: int, _noatime: int) -> None:
        self._descriptor: int | None = open_read_only(path)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def read_into(self, window: memoryview, have: int, position: int) -> tuple[int, int]:
        """Fill the window as ``WindowScan.read_on`` does, without the walk."""
        if self._descriptor is None:
            raise ValueError("the file is closed")
        while have < len(window):
            try:
                count = os.preadv(self._descriptor, [window[have:]], position + have)
            except OSError as error:
                return have, error.errno or 0
            if not count:
                break
            have += count
        return have, 0


class WindowScan:
    """A ``scan_window`` for a window that is still being read; frames that start at ``to`` or after it have no rows."""

    def __init__(
        self,
        window_phy_offset: int,
        at: int,
        segment_end_phy_offset: int,
        state: int,
        flags: int,
        size_bytes: int,
        to: int | None = None,
    ) -> None:
        if at < 0 or not 0 <= window_phy_offset <= segment_end_phy_offset or state not in list(ScanState):
            raise ValueError("the window's position, the index in it or the state makes no sense")
        self._begin = at, ScanState(state)
        self._place = window_phy_offset, segment_end_phy_offset, ScanFlag(flags), to
        self._window: Any = b""

    def go_on(self, window: Any) -> None:
        self._window = window

    def read_on(self, file: FileReader, window: memoryview, have: int, position: int) -> tuple[int, int]:
        have, number = file.read_into(window, have, position)
        self.go_on(window[:have])
        return have, number

    def read_through(self, file: FileReader, size_bytes: int, position: int) -> tuple[int, int]:
        return self.read_on(file, memoryview(bytearray(size_bytes)), 0, position)

    def columns(self) -> WindowColumns:
        return self._walk().run(*self._begin)

    def rows(self) -> tuple[list[tuple[Any, ...]], int, int, int, int]:
        walk = self._walk()
        stop = walk.stop(*self._begin)
        topics = [*walk.topic_ids, b""]  # the last one is that of rows with the topic id -1
        rows = [
            (*row[:4], row.own_phy_offset, row.queue_id, row.queue_offset, topics[row.topic_id])
            for row in map(Row._make, walk.rows)
        ]
        return rows, walk.message_count, *stop

    def _walk(self) -> Walk:
        phy_offset, segment_end, flags, to = self._place
        window = bytes(memoryview(self._window)[: segment_end - phy_offset])
        return Walk(window, phy_offset, segment_end, flags, to)


class Stop(NamedTuple):
    """The place where the walk has stopped. With ``need_bytes`` it cannot continue in this window."""

    at: int
    state: ScanState
    need_bytes: int = 0


class Walk:
    """A pass over a window."""

    def __init__(
        self, data: bytes, phy_offset: int, segment_end: int, flags: ScanFlag, to_phy_offset: int | None = None
    ) -> None:
        self.data = data
        # No row starts at or after this index.
        self.end = len(data) if to_phy_offset is None else min(len(data), max(to_phy_offset - phy_offset, 0))
        self.phy_offset = phy_offset
        self.segment_end = segment_end
        self.check_crc = bool(flags & ScanFlag.CHECK_CRC)
        self.check_property_crc = bool(flags & ScanFlag.CHECK_PROPERTY_CRC)
        self.check_numbers = bool(flags & ScanFlag.CHECK_NUMBERS)
        self.parse_properties = not flags & ScanFlag.NO_PROPERTIES
        self.index_keys = bool(flags & ScanFlag.INDEX_KEYS)
        self.index_tags = bool(flags & ScanFlag.INDEX_TAGS)
        self.in_runs = bool(flags & ScanFlag.RUNS)
        self.reaches_end = phy_offset + len(data) == segment_end
        # From this index on a head may be cut by the window's end.
        self.limit = len(data) if self.reaches_end else len(data) - LONGEST_HEAD_BYTES + 1
        self.rows: list[tuple[int, ...]] = []  # in the order of Row; plain tuples, because they are faster to make
        self.keys: list[tuple[int, int]] = []
        self.topic_ids: dict[bytes, int] = {}
        self.message_count = 0
        self.run_row: int | None = None  # number of the last row that is a run of messages

    def stop(self, at: int, state: ScanState) -> Stop:
        """Walk from an index, and return where the walk stopped."""
        stop = Stop(at, state)
        while stop.at < self.end and not stop.need_bytes:
            if stop.state is ScanState.CHAINED:
                stop = self._frame(stop.at)
            else:
                stop = self._region(stop.at, stop.state, FrameCode.RESIDUE)
        at_segment_end = self.phy_offset + stop.at == self.segment_end
        return stop._replace(state=ScanState.CHAINED) if at_segment_end else stop

    def run(self, at: int, state: ScanState) -> WindowColumns:
        stop = self.stop(at, state)
        first = Row(*self.rows[0]) if self.rows else None
        continues = bool(first and first.kind == _CONTINUED.get(state) and first.phy_offset == self.phy_offset + at)
        return self.columns(stop, continues=continues)

    def columns(self, stop: Stop, *, continues: bool) -> WindowColumns:
        """Return the result of a call."""
        return WindowColumns(
            **frame_columns(self.rows),
            **key_columns(self.keys),
            topics=list(self.topic_ids),
            message_count=self.message_count,
            odd_count=sum(row[:2] != (_MESSAGE, _OK) for row in self.rows),
            next_at=stop.at,
            next_state=int(stop.state),
            need_bytes=stop.need_bytes,
            continues=continues,
        )

    # -- where a frame should start ------------------------------------------------------------------------------

    def _frame(self, at: int) -> Stop:
        """Process the frame that should start at ``at``, or the region without frames that does."""
        bytes_left = self._left(at)
        if bytes_left < _PREFIX.size:
            return self._segment_tail(at, bytes_left)
        found = check_record(self.data, at, bytes_left)
        if isinstance(found, RecordHead):
            is_own = found.own_phy_offset == self.phy_offset + at
            if is_own or body_crc_holds(self.data, found):
                return self._message(at, found)
            return self._region(at, ScanState.CHAINED, FrameCode.RECORD_IMPLAUSIBLE)
        if isinstance(found, Shortage):
            return Stop(at, ScanState.CHAINED, found.need_bytes)
        if self._magic(at) == record.MAGIC_BLANK:
            if self._is_exact_blank(at):
                return self._blank(at)
            return self._region(at, ScanState.CHAINED, FrameCode.BLANK_SIZE)
        return self._region(at, ScanState.CHAINED, found)

    def _segment_tail(self, at: int, bytes_left: int) -> Stop:
        """Add the last bytes of a segment, which are too few for a frame."""
        tail = self.data[at:]
        if len(tail) < bytes_left:
            return Stop(at, ScanState.CHAINED, bytes_left)
        if any(tail):
            self._add(FrameKind.DAMAGE, FrameCode.SIZE, at, at + bytes_left)
        else:
            self._add(FrameKind.ZEROS, FrameCode.OK, at, at + bytes_left)
        return Stop(at + bytes_left, ScanState.CHAINED)

    def _blank(self, at: int) -> Stop:
        end = at + self._left(at)
        self._add(FrameKind.BLANK, FrameCode.OK, at, end)
        return Stop(end, ScanState.CHAINED)

    def _message(self, at: int, head: RecordHead) -> Stop:
        if at >= self.end:  # only if the search of an earlier region led here
            return Stop(at + head.size_bytes, ScanState.CHAINED)
        self.message_count += 1
        code = self._message_code(at, head)
        if self.in_runs and code == _OK:
            return self._in_run(at, at + head.size_bytes)
        self._add_record(head, self.phy_offset + at, code)
        return Stop(at + head.size_bytes, ScanState.CHAINED)

    def _add_record(self, head: RecordHead, phy_offset: int, code: int) -> None:
        topic = self.data[head.topic_at : head.topic_at + head.topic_length]
        topic_id = self.topic_ids.setdefault(topic, len(self.topic_ids))
        derived = self._derived(topic, head) if self.parse_properties and head.properties_length else (0, 0, 0)
        self.rows.append((_MESSAGE, code, phy_offset, *head, topic_id, *derived))

    def _in_run(self, at: int, end: int) -> Stop:
        """Add a good message to the row of its good neighbours."""
        if self.run_row is not None and self.run_row == len(self.rows) - 1:
            last = Row(*self.rows[-1])
            self.rows[-1] = last._replace(size_bytes=last.size_bytes + end - at)
        else:
            self.run_row = len(self.rows)
            self.rows.append(Row(_MESSAGE, _OK, self.phy_offset + at, end - at))
        return Stop(end, ScanState.CHAINED)

    def _message_code(self, at: int, head: RecordHead) -> int:
        if self.check_crc and not body_crc_holds(self.data, head):
            return FrameCode.BAD_CRC.value
        if self.check_numbers and self._has_bad_number(head):
            return FrameCode.BAD_NUMBER.value
        if head.own_phy_offset != self.phy_offset + at:
            return FrameCode.OWN_OFFSET.value
        if self.check_property_crc and not property_crc_holds(self.data, at, head):
            return FrameCode.BAD_PROPERTY_CRC.value
        return _OK

    def _has_bad_number(self, head: RecordHead) -> bool:
        topic = self.data[head.topic_at : head.topic_at + head.topic_length]
        properties = self.data[head.properties_at : head.properties_at + head.properties_length]
        return has_bad_level(topic, properties) or has_bad_batch(properties)

    def _derived(self, topic: bytes, head: RecordHead) -> tuple[int, int, int]:
        """Return ``tags_code``, ``delay_level`` and ``property_flags``; add the keys to ``self.keys``."""
        properties = self.data[head.properties_at : head.properties_at + head.properties_length]
        values = some_properties(properties, PROPERTY_NAMES)
        row = len(self.rows)
        if head.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK:
            hashes = index_key_hashes(topic, values, with_keys=self.index_keys, with_tags=self.index_tags)
            self.keys += ((row, key) for key in hashes)
        tags_code, delay_level, flags = property_columns(topic, values)
        if self.check_numbers and has_parted_value(values):
            flags |= PropertyFlag.PARTED_VALUE
        return tags_code, delay_level, flags

    # -- regions without frames ----------------------------------------------------------------------------------

    def _region(self, at: int, state: ScanState, code: FrameCode) -> Stop:
        """Process the range from ``at``, where no frame starts, to the next frame or the last decidable byte.

        ``state`` is the state at ``at``. With CHAINED a frame should have started there, and ``code`` is the reason why none did.
        """
        search_from = at
        while True:
            head = self._next_head(search_from)
            if head is None:
                at, state = self._fill(at, self.limit, state, code, is_settled=self.reaches_end)
                return Stop(at, state, 0 if self.reaches_end else min(RESYNC_BYTES, self._left(at)))
            at, state = self._fill(at, head, state, code, is_settled=True)
            stop = self._try_head(head, state)
            if stop is not None:
                return stop
            search_from = head + 1

    def _next_head(self, search_from: int) -> int | None:
        """Return the next index with an exact blank or the head of a record of this or an earlier place."""
        if search_from >= self.limit:
            return None
        for magic in _ANY_MAGIC.finditer(self.data, search_from + _MAGIC_AT, self.limit - 1 + _PREFIX.size):
            at = magic.start() - _MAGIC_AT
            if magic.group() == _BLANK:
                if self._is_exact_blank(at):
                    return at
            elif has_plausible_head(self.data, at, self.phy_offset + at, self._left(at)):
                return at
        return None

    def _try_head(self, at: int, state: ScanState) -> Stop | None:
        """Process the frame of a plausible head; None if it is none. Unlike chained records such a frame needs a proof.

        A record in its own place is proven by its checksum or by a frame right after it, a stale one by its checksum.
        """
        if self._magic(at) == record.MAGIC_BLANK:
            return self._blank(at)
        found = check_record(self.data, at, self._left(at))
        if isinstance(found, Shortage):
            return Stop(at, state, found.need_bytes)
        if not isinstance(found, RecordHead):
            return None
        is_own = found.own_phy_offset == self.phy_offset + at
        if body_crc_holds(self.data, found):
            if is_own:
                return self._message(at, found)
            end = self._end_of_stale(at, found)
            if isinstance(end, Shortage):
                return Stop(at, state, end.need_bytes)
            self._add(FrameKind.STALE, FrameCode.OK, at, end)
            return Stop(end, ScanState.IN_STALE)
        if not is_own:
            return None
        has_frame_after = self._is_frame_after(at, found.size_bytes)
        if isinstance(has_frame_after, Shortage):
            return Stop(at, state, has_frame_after.need_bytes)
        return self._message(at, found) if has_frame_after else None

    def _end_of_stale(self, at: int, head: RecordHead) -> int | Shortage:
        """Return where a stale record ends: at most at another record in its own place, proven by its checksum.

        The bytes after a stale record's body have no checksum, and the page that it came with may end there.
        """
        end = at + head.size_bytes
        need_bytes = head.size_bytes + LONGEST_HEAD_BYTES
        if need_bytes > record.MAX_RECORD_SIZE_BYTES:
            return end
        if at + need_bytes > len(self.data) and not self.reaches_end:
            return Shortage(need_bytes)
        body_end = head.body_at + head.body_length
        for magic in _ANY_MAGIC.finditer(self.data, body_end + _MAGIC_AT, end - 1 + _PREFIX.size):
            other = magic.start() - _MAGIC_AT
            if not has_plausible_head(self.data, other, self.phy_offset + other, self._left(other)):
                continue
            found = check_record(self.data, other, self._left(other))
            if isinstance(found, Shortage):
                need_bytes = other - at + found.need_bytes
                if need_bytes <= record.MAX_RECORD_SIZE_BYTES:
                    return Shortage(need_bytes)
            elif isinstance(found, RecordHead):
                is_own = found.own_phy_offset == self.phy_offset + other
                if is_own and body_crc_holds(self.data, found):
                    return other
        return end

    def _is_frame_after(self, at: int, size_bytes: int) -> bool | Shortage:
        """Return True if the record at ``at`` ends where a frame plausibly starts, or with the segment."""
        end = at + size_bytes
        bytes_left = self._left(end)
        if bytes_left == 0:
            return True
        need_bytes = size_bytes + _PREFIX.size
        if bytes_left < _PREFIX.size or need_bytes > record.MAX_RECORD_SIZE_BYTES:
            return False
        if end + _PREFIX.size > len(self.data):
            return Shortage(need_bytes)
        size, magic = _PREFIX.unpack_from(self.data, end)
        return (
            size == bytes_left if magic == record.MAGIC_BLANK else check_prefix(size, magic, bytes_left) is FrameCode.OK
        )

    def _fill(self, at: int, end: int, state: ScanState, code: FrameCode, *, is_settled: bool) -> tuple[int, ScanState]:
        """Add ZEROS and DAMAGE rows from ``at`` to ``end``; return where they end and the state there.

        Unless ``end`` is settled (a head or the segment's end), short zeros before it may continue and are left out.
        """
        if state is ScanState.IN_BAD_BLANK or code is FrameCode.BLANK_SIZE:
            if at >= end:
                return at, state
            self._add(FrameKind.DAMAGE, code, at, end)
            return end, ScanState.IN_BAD_BLANK
        while at < end:
            zeros_end = self._zeros_end(at, end)
            if self._are_zeros(at, zeros_end, state):
                self._add(FrameKind.ZEROS, FrameCode.OK, at, zeros_end)
                at, state = zeros_end, ScanState.IN_ZEROS
            elif zeros_end == end and not is_settled:
                break
            else:
                damage_end = self._next_zeros(zeros_end, end, is_settled=is_settled)
                self._add(FrameKind.DAMAGE, code if state is ScanState.CHAINED else FrameCode.RESIDUE, at, damage_end)
                at, state = damage_end, ScanState.IN_DAMAGE
        return at, state

    def _are_zeros(self, at: int, end: int, state: ScanState) -> bool:
        """Return True if the zeros from ``at`` to ``end`` are a row of their own and not part of damage."""
        length = end - at
        if not length:
            return False
        if state is ScanState.IN_ZEROS or self._left(end) == 0:
            return True
        starts_as_frame = state in (ScanState.CHAINED, ScanState.IN_STALE)
        return length >= (ZERO_FRAME_BYTES if starts_as_frame else ZERO_RUN_BYTES)

    def _zeros_end(self, at: int, end: int) -> int:
        """Return where the zeros that start at ``at`` end."""
        other = _NOT_ZERO.search(self.data, at, end)
        return other.start() if other else end

    def _next_zeros(self, at: int, end: int, *, is_settled: bool) -> int:
        """Return where damage that starts at or before ``at`` ends: at zeros that count, or may, or at ``end``."""
        long_run = _LONG_ZERO_RUN.search(self.data, at, end)
        if long_run:
            return long_run.start()
        if is_settled and self._left(end):
            return end
        return at + len(self.data[at:end].rstrip(b"\0"))

    # -- helpers -------------------------------------------------------------------------------------------------

    def _left(self, at: int) -> int:
        """Return the bytes from an index of the window to the segment's end."""
        return self.segment_end - self.phy_offset - at

    def _magic(self, at: int) -> int:
        magic: int = _MAGIC.unpack_from(self.data, at + _MAGIC_AT)[0]
        return magic

    def _is_exact_blank(self, at: int) -> bool:
        return bool(_PREFIX.unpack_from(self.data, at) == (self._left(at), record.MAGIC_BLANK))

    def _add(self, kind: FrameKind, code: FrameCode, at: int, end: int) -> None:
        """Add a row that is no message; extend the last row if that is of the same kind and ends here."""
        if at >= self.end:
            return
        start = self.phy_offset + at
        if self.rows and kind is not FrameKind.BLANK:
            last = Row(*self.rows[-1])
            if last.kind == kind and last.phy_offset + last.size_bytes == start:
                self.rows[-1] = last._replace(size_bytes=last.size_bytes + end - at)
                return
        self.rows.append(Row(kind.value, code.value, start, end - at))
