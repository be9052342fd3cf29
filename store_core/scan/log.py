"""Walk over the log: pass windows to the kernel, join ranges that cross windows, add missing segments.

Every segment is walked on its own, because a frame starts at its start. So the result does not depend on which segments
are walked together, nor on where windows are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from store_core.kernel import window_scan
from store_core.kernel.codes import FrameCode, FrameKind, PropertyFlag, ScanFlag, ScanState
from store_core.scan.frames import ROW_COLUMNS, FrameTable, select, stretch
from store_core.scan.pieces import MAY_GO_ON, missing_end
from store_core.scan.pieces import Piece as Piece
from store_core.scan.pieces import nominal_end as nominal_end
from store_core.scan.reread_live import settled
from store_core.scan.tail import stale_from
from store_core.scan.windows import REMOTE_WINDOW_SIZE_BYTES, Span, Windows, walk_windows
from store_core.storage.buffers import Buffers, give_freed_memory_back
from store_core.storage.live import is_locked
from store_core.storage.remote_path import is_remote
from store_core.storage.sequence import Segment
from store_core.storage.store import Store

if TYPE_CHECKING:
    from store_core.kernel import WindowScan

WINDOW_SIZE_BYTES: Final = 4 << 20
Progress = Callable[[int], None]


@dataclass(slots=True)
class _Open:
    """A damage, zeros or stale range that may continue in the next window."""

    kind: int
    code: int
    phy_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The options of a scan; fewer checks are faster."""

    check_crc: bool = True
    check_property_crc: bool = False
    check_numbers: bool = False  # check whether a broker's record check fails at a number in the properties
    index_keys: bool = False
    index_tags: bool = False
    index_tags_from_phy_offset: int = 0  # tags of records before this offset are not indexed
    properties: bool = True
    runs: bool = False  # adjoining good messages become a single row with only offset and size
    window_size_bytes: int = WINDOW_SIZE_BYTES
    # None: tables have their window's bytes. Else tables without a message with one of these properties may lack them.
    bytes_for: PropertyFlag | None = None
    jobs: int = 0  # threads that walk a whole segment while the caller uses earlier tables; the rows are the same

    @property
    def flags(self) -> int:
        flags = ScanFlag.CHECK_CRC if self.check_crc else 0
        flags |= ScanFlag.CHECK_PROPERTY_CRC if self.check_property_crc else 0
        flags |= ScanFlag.CHECK_NUMBERS if self.check_numbers else 0
        flags |= ScanFlag.INDEX_KEYS if self.index_keys or self.index_tags else 0
        flags |= ScanFlag.INDEX_TAGS if self.index_tags else 0
        flags |= ScanFlag.NO_PROPERTIES if not self.properties else 0
        flags |= ScanFlag.RUNS if self.runs else 0
        return int(flags)


def scan_log(
    store: Store,
    *,
    from_phy_offset: int | None = None,
    to_phy_offset: int | None = None,
    check_crc: bool = True,
    index_keys: bool = False,
    options: ScanOptions | None = None,
    on_progress: Progress | None = None,
) -> Iterator[FrameTable]:
    """Yield a table for each window, with every frame whose first byte lies in [from, to), in log order.

    ``from_phy_offset`` may be any offset: the walk resynchronises there unless it is a segment's start. Missing segments
    become HOLE rows. A table is valid until the next one is taken. ``on_progress`` gets the bytes walked so far.

    Raises:
        FailedError: a segment cannot be read.
    """
    options = options or ScanOptions(check_crc=check_crc, index_keys=index_keys)
    tables = log_tables(store, options, from_phy_offset, to_phy_offset, on_progress=on_progress)
    if not options.runs:  # callers that scan in runs use stores to which no broker writes
        alone = replace(options, jobs=0)

        def tables_now(start: int, end: int) -> Iterator[FrameTable]:
            return log_tables(store, alone, start, end, chained=start != from_phy_offset)

        tables = settled(tables, lambda: is_locked(store.root), tables_now)
    yield from tables
    give_freed_memory_back()


def log_tables(
    store: Store,
    options: ScanOptions,
    from_phy_offset: int | None,
    to_phy_offset: int | None,
    *,
    chained: bool = False,
    on_progress: Progress | None = None,
) -> Iterator[FrameTable]:
    """Yield the tables of ``scan_log`` for a log that is not being written.

    ``chained``: a row of the log starts at ``from_phy_offset``.
    """
    log = store.log
    done = 0
    buffers = Buffers()
    end = log.min_phy_offset
    for segment in log.segments:
        if end < segment.phy_offset and _overlaps(end, segment.phy_offset, from_phy_offset, to_phy_offset):
            yield hole_table(end, segment.phy_offset - end)
        end = max(end, nominal_end(log, segment))
        if not _overlaps(segment.phy_offset, end, from_phy_offset, to_phy_offset):
            continue
        for table in _tables(store, segment, options, from_phy_offset, to_phy_offset, chained, buffers):
            yield table
            if on_progress is not None:
                on_progress(done + table.end_phy_offset - max(segment.phy_offset, from_phy_offset or 0))
        done += min(segment.end_phy_offset, to_phy_offset or segment.end_phy_offset) - max(
            segment.phy_offset, from_phy_offset or 0
        )
        if on_progress is not None:
            on_progress(done)


def _tables(
    store: Store,
    segment: Segment,
    options: ScanOptions,
    from_phy_offset: int | None,
    to_phy_offset: int | None,
    chained: bool,
    buffers: Buffers,
) -> Iterator[FrameTable]:
    if options.jobs > 0 and from_phy_offset is None and to_phy_offset is None and not is_remote(segment.path):
        from store_core.scan.parallel import walk_side_by_side

        return walk_side_by_side(store, segment, options)
    return scan_segment(store, segment, options, from_phy_offset, to_phy_offset, chained=chained, buffers=buffers)


def scan_segment(
    store: Store,
    segment: Segment,
    options: ScanOptions,
    from_phy_offset: int | None = None,
    to_phy_offset: int | None = None,
    *,
    chained: bool = False,
    windows: Windows | None = None,
    buffers: Buffers | None = None,
) -> Iterator[FrameTable]:
    """Yield the tables of one segment, as ``scan_log`` does. The missing end of a short file becomes a HOLE row.

    Bytes after the segment's nominal end are not read. ``chained``: a frame ends at ``from_phy_offset``, so the next frame
    starts there and is not searched for. ``windows``, ``buffers``: the caller's own, for repeated use.
    """
    end = nominal_end(store.log, segment)
    at = max(segment.phy_offset, from_phy_offset or 0)
    state = ScanState.CHAINED if chained or at == segment.phy_offset else ScanState.IN_DAMAGE
    stop = end if to_phy_offset is None else min(end, to_phy_offset)
    is_usual = options.window_size_bytes == WINDOW_SIZE_BYTES
    wanted = REMOTE_WINDOW_SIZE_BYTES if is_remote(segment.path) and is_usual else options.window_size_bytes
    span = Span(at, state, stop, end, max(min(wanted, end - segment.phy_offset), 1))
    with ExitStack() as stack:
        if windows is None:
            own = Windows(store.log, segment, span.window_size_bytes, buffers=buffers, ahead_to=span.read_end)
            windows = stack.enter_context(closing(own))
        at = yield from _walk(store, segment, options, windows, span, to_phy_offset)
    if at < stop:
        for kind, code, start, size in missing_end(store.log, segment, at, stop):
            yield range_table(_Open(kind, code, start, size))


def _walk(
    store: Store, segment: Segment, options: ScanOptions, windows: Windows, span: Span, to_phy_offset: int | None
) -> Generator[FrameTable, None, int]:
    """Yield the tables of a segment, with stale ranges joined across windows. Return the offset where the walk ended."""
    tables = _tables_by_window(store, segment, options, windows, span, to_phy_offset)
    held: _Open | None = None
    while True:
        try:
            table = next(tables)
        except StopIteration as stop:
            if held is not None:
                yield range_table(held)
            ended: int = stop.value
            return ended
        if held is None and table.is_good:
            yield table
            continue
        if held is not None:
            if table.kind[0] == FrameKind.STALE and held.phy_offset + held.size_bytes == table.phy_offset[0]:
                table.phy_offset[0] = held.phy_offset
                table.size_bytes[0] += held.size_bytes
            else:
                yield range_table(held)
            held = None
        if table.kind[-1] == FrameKind.STALE:
            held = _Open(FrameKind.STALE, FrameCode.OK, int(table.phy_offset[-1]), int(table.size_bytes[-1]))
            table = select(table, np.arange(len(table)) < len(table) - 1)
        if len(table):
            yield table


def _tables_by_window(
    store: Store, segment: Segment, options: ScanOptions, windows: Windows, span: Span, to_phy_offset: int | None
) -> Generator[FrameTable, None, int]:
    """Yield the tables of a segment, window by window. Return the offset where the walk ended."""
    at = span.at
    open_range: _Open | None = None

    def open_scan(at: int, state: int, size_bytes: int) -> WindowScan:
        # A run must not hide where the range ends.
        in_runs = to_phy_offset is None or at + size_bytes <= to_phy_offset
        flags = options.flags if in_runs else options.flags & ~ScanFlag.RUNS
        return window_scan(at, 0, span.segment_end, state, flags, size_bytes)

    for walked in walk_windows(store.log, segment, windows, span, open_scan, lambda scan: scan.columns()):
        if walked.error is not None:
            raise walked.error
        begin, at, result = walked.phy_offset, walked.end_phy_offset, walked.found
        if result is None:
            open_range, closed = _extend(open_range, begin, at)
            if closed is not None:
                yield range_table(closed)
            continue
        last = at >= span.segment_end
        table, open_range = _with_open_range(result, walked.window, begin, open_range, last=last)
        table = _cut(without_stale(store, table), to_phy_offset)
        if options.index_tags and begin < options.index_tags_from_phy_offset:
            table = _without_tag_keys(table, options.index_tags_from_phy_offset)
        if len(table):
            yield table
    if open_range is not None and open_range.phy_offset < span.stop:
        yield range_table(open_range)
    return at


def _overlaps(start: int, end: int, from_: int | None, to: int | None) -> bool:
    return (from_ is None or end > from_) and (to is None or start < to)


def _extend(open_range: _Open | None, at: int, end: int) -> tuple[_Open, _Open | None]:
    if open_range is not None and open_range.kind == FrameKind.ZEROS:
        open_range.size_bytes = end - open_range.phy_offset
        return open_range, None
    return _Open(FrameKind.ZEROS, FrameCode.OK, at, end - at), open_range


def _with_open_range(
    result: Any, window: memoryview, at: int, open_range: _Open | None, *, last: bool
) -> tuple[FrameTable, _Open | None]:
    """Return the window's table, after the open range of the window before, and its own last open range, held back."""
    columns = {name: getattr(result, name) for name in ROW_COLUMNS}
    keys = {"key_row": result.key_row, "key_hash": result.key_hash}
    if open_range is not None:
        if result.continues and len(columns["kind"]) and columns["kind"][0] == open_range.kind:
            columns["phy_offset"][0] = open_range.phy_offset
            columns["size_bytes"][0] += at - open_range.phy_offset
            columns["code"][0] = open_range.code
        else:
            columns = {
                name: np.concatenate([_row(open_range, name, column.dtype), column]) for name, column in columns.items()
            }
            keys["key_row"] = keys["key_row"] + 1
    held: _Open | None = None
    kinds = columns["kind"]
    if not last and len(kinds) and int(kinds[-1]) in MAY_GO_ON:
        held = _Open(
            int(kinds[-1]), int(columns["code"][-1]), int(columns["phy_offset"][-1]), int(columns["size_bytes"][-1])
        )
        columns = {name: column[:-1] for name, column in columns.items()}
    odd = result.odd_count if open_range is None and held is None else None
    counts = {"message_count": result.message_count, "odd_count": odd}
    return FrameTable(window, at, result.topics, **columns, **keys, **counts), held


def _row(open_range: _Open, name: str, dtype: np.dtype[Any]) -> Any:
    value = {"topic_id": -1}.get(name, getattr(open_range, name, 0))
    return np.array([value], dtype)


def range_table(open_range: _Open) -> FrameTable:
    """Return a table with a single row that is no message."""
    empty = np.zeros(0, np.int64)
    columns = {name: _row(open_range, name, np.dtype(np.int64)) for name in ROW_COLUMNS}
    return FrameTable(memoryview(b""), open_range.phy_offset, (), **columns, key_row=empty, key_hash=empty)


def hole_table(phy_offset: int, size_bytes: int) -> FrameTable:
    """Return the table of a missing range of the log."""
    return range_table(_Open(FrameKind.HOLE, FrameCode.OK, phy_offset, size_bytes))


def _cut(table: FrameTable, to_phy_offset: int | None) -> FrameTable:
    if to_phy_offset is None or not len(table) or table.phy_offset[-1] < to_phy_offset:
        return table
    return stretch(table, 0, int(np.searchsorted(table.phy_offset, to_phy_offset)))


def _without_tag_keys(table: FrameTable, to_phy_offset: int) -> FrameTable:
    """Return the table without tag keys of records before an offset: the last key of each record with tags."""
    tagged = (table.phy_offset < to_phy_offset) & (table.property_flags & PropertyFlag.TAGS != 0)
    is_last = np.ones(len(table.key_row), bool)
    is_last[:-1] = table.key_row[1:] != table.key_row[:-1]
    keep = ~(is_last & tagged[table.key_row])
    return replace(table, key_row=table.key_row[keep], key_hash=table.key_hash[keep])


def without_stale(store: Store, table: FrameTable) -> FrameTable:
    """Return the table with records after the end of the log as STALE rows. That end is only searched for if needed."""
    if table.is_good or not (elsewhere := table.of_code(FrameCode.OWN_OFFSET)).any():
        return table
    suspicious = elsewhere & (table.own_phy_offset < table.phy_offset) & table.messages
    if not suspicious.any():
        return table
    start = stale_from(store)
    if start is None:
        return table
    stale = suspicious & (table.phy_offset >= start)
    if not stale.any():
        return table
    table = replace(table, message_count=table.message_count - int(np.count_nonzero(stale)), odd_count=None)
    for name in ROW_COLUMNS:
        if name not in ("phy_offset", "size_bytes"):
            getattr(table, name)[stale] = {"kind": FrameKind.STALE, "topic_id": -1}.get(name, 0)
    keep = ~stale[table.key_row]
    table = replace(table, key_row=table.key_row[keep], key_hash=table.key_hash[keep])
    runs = stale & np.r_[False, stale[:-1]]  # every stale row that follows a stale row
    first = np.maximum.accumulate(np.where(runs, 0, np.arange(len(runs))))
    np.add.at(table.size_bytes, first[runs], table.size_bytes[runs].copy())
    return select(table, ~runs)
