"""The broker's own walk over one segment: the records its check accepts one behind the other, and why it ends (3.1, 6.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.broker.record_check import Checked, CheckRules, Verdict, check_at
from store_core.kernel import scan_window
from store_core.kernel.codes import FrameCode, FrameKind, PropertyFlag, ScanFlag, ScanState
from store_core.kernel.columns import frame_columns
from store_core.kernel.twin_properties import key_hashes, known_properties, tag_hashes
from store_core.layout import record
from store_core.scan.frames import ROW_COLUMNS, FrameTable

if TYPE_CHECKING:
    from store_core.storage.sequence import Segment, SegmentSequence

WINDOW_SIZE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class WalkRules:
    """How a walk checks, and whether it also wants the index keys."""

    check: CheckRules
    index_keys: bool = False
    index_tags: bool = False

    @property
    def flags(self) -> int:
        flags = ScanFlag(0)
        if self.check.verify_property_crc:  # this replaces the body's checksum
            flags |= ScanFlag.CHECK_PROPERTY_CRC
        elif self.check.check_crc:
            flags |= ScanFlag.CHECK_CRC
        if self.index_keys:
            flags |= ScanFlag.INDEX_KEYS
        if self.index_tags:
            flags |= ScanFlag.INDEX_TAGS
        return int(flags)


class SegmentWalk:
    """Iterates over tables of accepted records from ``at`` on; afterwards ``end`` and ``stopped`` say where and why it ended.

    ``limit`` is the end of what the broker can read in this segment. A table is valid until the next is asked for.
    """

    def __init__(self, log: SegmentSequence, segment: Segment, rules: WalkRules, at: int, limit: int) -> None:
        self._log = log.holding(segment)
        self._segment = segment
        self._rules = rules
        self._limit = limit
        self.end = at
        self.stopped = Checked(Verdict.FAILED)

    def __iter__(self) -> Iterator[FrameTable]:
        size = WINDOW_SIZE_BYTES
        buffer = memoryview(bytearray(min(size, max(self._limit - self.end, 0))))
        while True:
            count = self._log.read_into(self.end, buffer[: max(self._limit - self.end, 0)]) if len(buffer) else 0
            window = buffer[:count]
            result = scan_window(window, self.end, 0, self._limit, int(ScanState.CHAINED), self._rules.flags)
            accepted = self._accepted(result)
            if accepted:
                table = _head_of(result, window, self.end, accepted)
                self.end = table.end_phy_offset
                yield table
            in_chain = accepted == len(result.kind) and result.next_state == ScanState.CHAINED
            if in_chain and accepted and self.end < self._limit:
                continue
            if in_chain and result.need_bytes > len(window) and self.end + len(window) < self._limit:
                buffer = memoryview(bytearray(min(result.need_bytes, self._limit - self.end)))
                continue
            single = self._check_here()
            if single is None:
                return
            yield single

    def _accepted(self, result: Any) -> int:
        """How many of the window's first rows the broker takes for records one behind the other."""
        if not len(result.kind):
            return 0
        rules = self._rules.check
        good = (result.kind == FrameKind.MESSAGE) & (result.code != FrameCode.BAD_CRC)
        if not rules.reads_v2:
            good &= result.magic == record.MAGIC_V1
        if not rules.reads_v6_hosts:
            good &= (result.sys_flag & (record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6)) == 0
        if rules.verify_property_crc:
            good &= (result.code != FrameCode.BAD_PROPERTY_CRC) & ((result.property_flags & PropertyFlag.CRC32) != 0)
        good &= result.phy_offset == self.end + np.cumsum(result.size_bytes) - result.size_bytes
        return len(good) if good.all() else int(np.argmin(good))

    def _check_here(self) -> FrameTable | None:
        """The exact check where the kernel's rows end; a table of one if the broker sees a record there after all."""
        self.stopped = check_at(self._log.read, self.end, self._limit - self.end, self._rules.check)
        if self.stopped.verdict is not Verdict.RECORD or self.stopped.row is None:
            return None
        table = _one(self.stopped, self._rules)
        self.end += self.stopped.size_bytes
        return table


def _head_of(result: Any, window: memoryview, at: int, count: int) -> FrameTable:
    columns = {name: getattr(result, name)[:count] for name in ROW_COLUMNS}
    keep = result.key_row < count
    return FrameTable(
        window, at, result.topics, **columns, key_row=result.key_row[keep], key_hash=result.key_hash[keep]
    )


def select(table: FrameTable, mask: NDArray[np.bool_]) -> FrameTable:
    """The rows of a mask, with their keys."""
    columns = {name: getattr(table, name)[mask] for name in ROW_COLUMNS}
    keep = mask[table.key_row]
    new_row = np.cumsum(mask) - 1
    return replace(table, **columns, key_row=new_row[table.key_row[keep]], key_hash=table.key_hash[keep])


def _one(checked: Checked, rules: WalkRules) -> FrameTable:
    """A table of one record that is larger than the kernel believes; its window holds only topic and properties."""
    assert checked.row is not None
    window = checked.topic + checked.properties
    row = checked.row._replace(
        body_length=0, topic_at=0, properties_at=len(checked.topic), properties_length=len(checked.properties)
    )
    values = known_properties(checked.properties)
    keys = [*key_hashes(checked.topic, values)] if rules.index_keys else []
    keys += [*tag_hashes(checked.topic, values)] if rules.index_tags else []
    columns: dict[str, Any] = frame_columns([row])
    return FrameTable(
        memoryview(window),
        row.phy_offset,
        [checked.topic],
        **columns,
        key_row=np.zeros(len(keys), np.uint32),
        key_hash=np.array(keys, np.int32),
    )
