"""Walk one segment as the broker does: the adjacent records that its check accepts, and why the walk ends (3.1, 6.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from store_core.broker.record_check import Checked, CheckRules, Verdict, check_at
from store_core.codec.properties import some_properties
from store_core.codec.tags import index_key_hashes
from store_core.errors import UnreadableError
from store_core.kernel import row_scan, window_rows, window_scan
from store_core.kernel.codes import PROPERTY_NAMES, FrameCode, FrameKind, PropertyFlag, ScanFlag, ScanState
from store_core.kernel.columns import Row, frame_columns, property_columns
from store_core.layout import record
from store_core.scan.frames import ROW_COLUMNS, FrameTable
from store_core.scan.runs import WINDOW_SIZE_BYTES
from store_core.scan.windows import Span, Windows, walk_windows

if TYPE_CHECKING:
    from store_core.kernel import WindowScan
    from store_core.storage.sequence import Segment, SegmentSequence


def plain_runs(
    log: SegmentSequence, segment: Segment, at: int, to: int, limit: int, *, check_crc: bool
) -> Iterator[int]:
    """Yield rising ends of adjacent plain records from ``at`` on, up to the first frame that is not plain.

    Only records that start before ``to`` are read; ``limit`` is the end of the readable bytes. The walk ends where the file
    cannot be opened or read: the caller then reads it in another way, which reports the error.
    """
    flags = ScanFlag.CHECK_NUMBERS | (ScanFlag.CHECK_CRC if check_crc else ScanFlag(0))

    def open_scan(at: int, state: int, size_bytes: int) -> WindowScan:
        return row_scan(at, limit, state, flags, size_bytes, to, reads_file=True)

    try:
        windows = Windows(log, segment, WINDOW_SIZE_BYTES, kept=False)
    except UnreadableError:
        return
    with closing(windows):
        span = Span(at, ScanState.CHAINED, to, limit, WINDOW_SIZE_BYTES)
        for walked in walk_windows(log, segment, windows, span, open_scan, window_rows) if windows.reads_file else ():
            for row in walked.found.rows if walked.found is not None else ():
                if row.kind != FrameKind.MESSAGE or row.code != FrameCode.OK or row.phy_offset != at:
                    break
                at = row.end_phy_offset
            yield at
            if at < walked.end_phy_offset or walked.error is not None:
                return


@dataclass(frozen=True, slots=True)
class WalkRules:
    """The checks of a walk, and whether its tables get index keys."""

    check: CheckRules
    index_keys: bool = False
    index_tags: bool = False

    @property
    def flags(self) -> int:
        flags = ScanFlag.CHECK_NUMBERS
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
    """Iterates over tables of accepted records from ``at`` on; afterwards ``end`` and ``stopped`` are where and why it ended.

    A table is valid until the next one is taken.

    Args:
        limit: the end of the broker's readable bytes in this segment.
        plain_to: the caller needs no single records before this offset; plain ones come as one row with only place and length.
    """

    def __init__(
        self,
        log: SegmentSequence,
        segment: Segment,
        rules: WalkRules,
        at: int,
        limit: int,
        *,
        plain_to: int = 0,
    ) -> None:
        self._log = log.holding(segment)
        self._segment = segment
        self._rules = rules
        self._limit = limit
        self._plain_to = min(plain_to, limit) if not rules.check.verify_property_crc else 0
        self.end = at
        self.stopped = Checked(Verdict.FAILED)

    def __iter__(self) -> Iterator[FrameTable]:
        if self._has_plain_part:
            yield from self._plain_part()
        size = max(min(WINDOW_SIZE_BYTES, self._limit - self.end), 1)
        with closing(Windows(self._log, self._segment, size)) as windows:
            yield from self._walk(windows, size)

    @property
    def _has_plain_part(self) -> bool:
        """True if it pays that the kernel reads the file itself, up to the first frame that is not plain."""
        return (
            self.end >= 0
            and self._log.is_plain(self._segment)
            and self._in_runs(min(self.end + WINDOW_SIZE_BYTES, self._limit))
        )

    def _plain_part(self) -> Iterator[FrameTable]:
        check_crc = bool(self._rules.flags & ScanFlag.CHECK_CRC)
        for at in plain_runs(self._log, self._segment, self.end, self._plain_to, self._limit, check_crc=check_crc):
            if at > self.end:
                table = plain_row(self.end, at - self.end)
                self.end = at
                yield table

    def _walk(self, windows: Windows, usual: int) -> Iterator[FrameTable]:
        wanted = usual
        while True:
            if self.end < 0:  # a file whose name has a minus sign: the kernel takes no negative offset
                single = self._check_here()
                if single is None:
                    return
                yield single
                continue
            size = min(wanted, max(self._limit - self.end, 0))
            flags = self._rules.flags | (ScanFlag.RUNS if self._in_runs(self.end + size) else 0)
            scan = window_scan(self.end, 0, self._limit, int(ScanState.CHAINED), flags, size)
            window, _, error = windows.walk(scan, self.end, size)
            if error is not None:
                raise error
            result = scan.columns()
            accepted = self._accepted(result)
            wanted = usual
            if accepted:
                table = _head_of(result, window, self.end, accepted)
                self.end = table.end_phy_offset
                yield self._as_read(table)
            in_chain = accepted == len(result.kind) and result.next_state == ScanState.CHAINED
            if in_chain and accepted and self.end < self._limit:
                continue
            if in_chain and result.need_bytes > len(window) and self.end + len(window) < self._limit:
                wanted = min(result.need_bytes, self._limit - self.end)
                continue
            single = self._check_here()
            if single is None:
                return
            yield single

    def _in_runs(self, window_end: int) -> bool:
        """Return True if neither the caller nor this release's checks need the single records of a window."""
        check = self._rules.check
        return window_end <= self._plain_to and check.reads_v2 and check.reads_v6_hosts

    def _accepted(self, result: Any) -> int:
        """Return how many of the window's first rows the broker accepts as adjacent records."""
        if not len(result.kind):
            return 0
        rules = self._rules.check
        if not result.odd_count and rules.reads_v2 and rules.reads_v6_hosts and not rules.verify_property_crc:
            return len(result.kind)
        good = (result.kind == FrameKind.MESSAGE) & (result.code != FrameCode.BAD_CRC)
        good &= result.code != FrameCode.BAD_NUMBER  # some releases accept it: the exact check decides
        if not rules.reads_v2:
            good &= result.magic == record.MAGIC_V1
        if not rules.reads_v6_hosts:
            good &= (result.sys_flag & (record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6)) == 0
        if rules.verify_property_crc:
            good &= (result.code != FrameCode.BAD_PROPERTY_CRC) & ((result.property_flags & PropertyFlag.CRC32) != 0)
        good &= result.phy_offset == self.end + np.cumsum(result.size_bytes) - result.size_bytes
        return len(good) if good.all() else int(np.argmin(good))

    def _as_read(self, table: FrameTable) -> FrameTable:
        """Return the table with the columns that this release makes of properties that releases read in two ways."""
        if not self._rules.check.drops_parted_values or not table.any_has(PropertyFlag.PARTED_VALUE):
            return table
        rows = np.flatnonzero(table.with_property(PropertyFlag.PARTED_VALUE))
        columns = {name: getattr(table, name).copy() for name in ("tags_code", "delay_level", "property_flags")}
        others = ~np.isin(table.key_row, rows)
        key_row, key_hash = [table.key_row[others]], [table.key_hash[others]]
        for row in rows.tolist():
            topic, properties = table.topic(row), table.properties(row)
            values = some_properties(properties, PROPERTY_NAMES, drops_parted=True)
            derived = property_columns(topic, values)
            columns["tags_code"][row], columns["delay_level"][row] = derived[:2]
            columns["property_flags"][row] = derived[2] | PropertyFlag.PARTED_VALUE
            keys = _index_keys(topic, values, int(table.sys_flag[row]), self._rules)
            key_row.append(np.full(len(keys), row, np.uint32))
            key_hash.append(keys)
        joined_row, joined_hash = np.concatenate(key_row), np.concatenate(key_hash)
        order = np.argsort(joined_row, kind="stable")
        return replace(table, **columns, key_row=joined_row[order], key_hash=joined_hash[order])

    def _check_here(self) -> FrameTable | None:
        """Check exactly where the kernel's rows end; return a table of one row if the broker accepts a record there."""
        self.stopped = check_at(self._log.read, self.end, self._limit - self.end, self._rules.check)
        if self.stopped.verdict is not Verdict.RECORD or self.stopped.row is None:
            return None
        table = _single_row_table(self.stopped, self._rules)
        self.end += self.stopped.size_bytes
        return table


def _head_of(result: Any, window: memoryview, at: int, count: int) -> FrameTable:
    columns = {name: getattr(result, name)[:count] for name in ROW_COLUMNS}
    is_whole = count == len(result.kind)
    in_run = columns["topic_id"] < 0
    if in_run.any():  # records in a run lie at their own offset
        columns["own_phy_offset"] = np.where(in_run, columns["phy_offset"], columns["own_phy_offset"])
    keep = slice(None) if is_whole else result.key_row < count
    keys = {"key_row": result.key_row[keep], "key_hash": result.key_hash[keep]}
    return FrameTable(window, at, result.topics, **columns, **keys, odd_count=result.odd_count if is_whole else None)


def plain_row(phy_offset: int, size_bytes: int) -> FrameTable:
    """Return a table of one row for adjacent plain records."""
    row = Row(FrameKind.MESSAGE, FrameCode.OK, phy_offset, size_bytes, own_phy_offset=phy_offset)
    columns: dict[str, Any] = frame_columns([row])
    none = np.zeros(0, np.int32)
    return FrameTable(memoryview(b""), phy_offset, [], **columns, key_row=none.astype(np.uint32), key_hash=none)


def is_plain_row(table: FrameTable) -> bool:
    """Return True if a table is one row of plain records with only place and length."""
    return len(table) == 1 and table.topic_id[0] < 0


def _single_row_table(checked: Checked, rules: WalkRules) -> FrameTable:
    """Return a table of one record that only the exact check accepts; its window has only topic and properties."""
    assert checked.row is not None
    window = checked.topic + checked.properties
    row = checked.row._replace(
        body_length=0, topic_at=0, properties_at=len(checked.topic), properties_length=len(checked.properties)
    )
    values = some_properties(checked.properties, PROPERTY_NAMES, drops_parted=rules.check.drops_parted_values)
    keys = _index_keys(checked.topic, values, row.sys_flag, rules)
    columns: dict[str, Any] = frame_columns([row])
    return FrameTable(
        memoryview(window),
        row.phy_offset,
        [checked.topic],
        **columns,
        key_row=np.zeros(len(keys), np.uint32),
        key_hash=keys,
    )


def _index_keys(topic: bytes, values: dict[bytes, bytes], sys_flag: int, rules: WalkRules) -> NDArray[np.int32]:
    """Return the hashes of the index keys that a walk needs of a record with these properties."""
    if sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_ROLLBACK:
        return np.zeros(0, np.int32)
    return np.array(index_key_hashes(topic, values, with_keys=rules.index_keys, with_tags=rules.index_tags), np.int32)
