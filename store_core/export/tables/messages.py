"""Read the table of messages: a walk of the log for each reference, decoded only as far as needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from store_core.check.log import LogFindings
from store_core.check.verify import log_range, whole_log
from store_core.export.rows import schema
from store_core.export.rows.batches import message_batches
from store_core.export.rows.schema import Column
from store_core.export.tables.table import Batches, StoresTable, Where, refuse_cut
from store_core.kernel.text import are_text
from store_core.read.log import CLOCK_SLACK_MS, confirmed_store_timestamp_ms
from store_core.read.log_copies import differences
from store_core.read.log_files import unread_log
from store_core.scan.frames import FrameTable, Ints
from store_core.scan.log import Piece, ScanOptions, hole_table, log_tables, nominal_end, scan_segment
from store_core.scan.reread_live import settled
from store_core.storage.live import is_live, is_locked
from store_core.storage.store import Store

# Only in queries: a reader of an export has functions of its own for that.
TEXT: Final = Column("text", pa.string(), "the body as text; null where it is not UTF-8, or as stored", nullable=True)
_AFTER_BODY: Final = [column.name for column in schema.MESSAGE_COLUMNS].index("body") + 1
MESSAGE_COLUMNS: Final = (*schema.MESSAGE_COLUMNS[:_AFTER_BODY], TEXT, *schema.MESSAGE_COLUMNS[_AFTER_BODY:])
_FOR_TEXT: Final = ("body", "body_decoded")
_OPTIONS: Final = ScanOptions(check_crc=True, check_property_crc=True, properties=False)
_LATEST_MS: Final = 1 << 50  # some thousand years ahead, which no real clock shows
_RANGES: Final = 256  # of a segment, to find the part that a condition on offsets allows
_LEAST_RANGE_BYTES: Final = 64 << 10


class MessagesTable(StoresTable):
    """Every record of the logs of some stores, each with its name, in log order (docs/tables.md).

    Conditions on offsets, stores and store times leave out segments; a condition on any column is evaluated before the other columns are decoded. The
    walked part of the log is checked, and faults are ``findings``. ``on_progress`` gets the bytes walked so far, by all readings of the table.
    """

    columns: Sequence[Column] = MESSAGE_COLUMNS

    def __init__(self, stores: Sequence[tuple[str, Store]], on_progress: Callable[[int], None] | None = None) -> None:
        super().__init__(stores)
        self._on_progress = on_progress
        self._walked_bytes = 0

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            self.tell(name, list(unread_log(store)))
            yield from _Reading(self, name, store, columns, where).batches()

    def _report_walked(self, size_bytes: int) -> None:
        self._walked_bytes += size_bytes
        if self._on_progress is not None:
            self._on_progress(self._walked_bytes)


class Decoding:
    """The decoding of a store's messages to the wanted columns, for rows that a condition allows."""

    def __init__(self, table: StoresTable, name: str, columns: Sequence[str], where: Where | None) -> None:
        """Keep the arguments. ``table`` gets the findings about bodies."""
        self._table, self._name = table, name
        self._columns, self._where = list(columns), where

    def decoded(self, table: FrameTable, rows: Ints) -> Iterator[pa.RecordBatch]:
        if self._where is not None:
            masks = [self._where.mask(batch) for batch in self._columns_of(table, rows, self._where.columns)]
            rows = rows[np.concatenate(masks)]
        yield from self._columns_of(table, rows, self._columns)

    def _columns_of(self, table: FrameTable, rows: Ints, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wants_text = TEXT.name in names
        decoded = [*dict.fromkeys([n for n in names if n != TEXT.name] + list(_FOR_TEXT))] if wants_text else names
        for batch in message_batches(table, rows, self._name, decoded):
            self._table.tell(self._name, batch.findings)
            yield _with_text(batch.rows, names) if wants_text else batch.rows


class _Reading(Decoding):
    """A store's part of a reading of the table."""

    _table: MessagesTable

    def __init__(
        self, table: MessagesTable, name: str, store: Store, columns: Sequence[str], where: Where | None
    ) -> None:
        super().__init__(table, name, columns, where)
        self._store = store
        self._findings = LogFindings(store.log)

    def batches(self) -> Iterator[pa.RecordBatch]:
        pieces = _pieces(self._name, self._store, self._where)
        reached_end = False
        try:
            for group in _joined_pieces(self._store, pieces):
                reread = partial(self._reread, group)
                for table in settled(self._walked(group), lambda: is_locked(self._store.root), reread):
                    self._findings.add(table, _file_of(self._store, group, table))
                    rows = np.flatnonzero(table.messages)
                    if len(rows):
                        yield from self.decoded(table, rows)
            reached_end = True
        finally:
            if not reached_end:
                self._findings.put_back()  # the walk stopped early, so damage held back may or may not be the tail
            log = self._store.log
            log_continues = not pieces or pieces[-1].to_phy_offset < nominal_end(log, log.segments[-1])
            live = self._findings.may_be_torn and is_live(self._store.root).live
            self._table.tell(self._name, self._findings.end(live=live, log_goes_on=log_continues))
            for piece in pieces:
                self._table.tell(self._name, differences(self._store, piece.from_phy_offset, piece.to_phy_offset))

    def _walked(self, pieces: Sequence[Piece]) -> Iterator[FrameTable]:
        for previous, piece in zip([None, *pieces], pieces, strict=False):
            if (gap := _gap(self._store, previous, piece)) is not None:
                yield hole_table(*gap)
            stop = None if piece.to_phy_offset >= nominal_end(self._store.log, piece.segment) else piece.to_phy_offset
            at = piece.from_phy_offset
            for table in scan_segment(self._store, piece.segment, _OPTIONS, at, stop, chained=piece.chained):
                yield table
                self._table._report_walked(table.end_phy_offset - at)
                at = table.end_phy_offset
                refuse_cut(piece.segment, table)

    def _reread(self, pieces: Sequence[Piece], start: int, end: int) -> Iterator[FrameTable]:
        chained = all(piece.chained or piece.from_phy_offset != start for piece in pieces)
        return log_tables(self._store, _OPTIONS, start, end, chained=chained)


def _with_text(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    return rows.append_column(TEXT.field, _texts(rows.column("body"), rows.column("body_decoded"))).select(list(names))


def _texts(bodies: pa.BinaryArray, decoded: pa.BooleanArray) -> pa.StringArray:
    """Return bodies as texts, null for one that is no text or could not be decompressed. Nothing is copied."""
    _, offsets, data = bodies.buffers()
    bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    valid = pc.and_(pa.array(are_text(bounds, data or b"")), decoded)
    return pa.Array.from_buffers(pa.string(), len(bodies), [valid.buffers()[1], pa.py_buffer(bounds), data])


def _pieces(name: str, store: Store, where: Where | None) -> list[Piece]:
    """Return the parts of the log that may have rows for a condition, in log order."""
    whole = whole_log(store)
    if where is None:
        return whole

    def numbers(times: Sequence[Any]) -> list[int]:
        bounds = ((piece.from_phy_offset, piece.to_phy_offset) for piece in whole)
        return where.possible([_promise(name, *ends, time) for ends, time in zip(bounds, times, strict=True)])

    if "store_time" in where.columns:  # a record without a time (L019) counts as 1970, wherever it is
        wanted = {*numbers(_time_promises(store, whole)), *numbers([_NO_TIME] * len(whole))}
    else:
        wanted = set(numbers([None] * len(whole)))
    possible = [whole[number] for number in sorted(wanted)]
    if "phy_offset" not in where.columns:
        return possible
    edges = {0, len(possible) - 1}
    return [
        narrowed
        for number, piece in enumerate(possible)
        for narrowed in (_narrowed(name, store, piece, where) if number in edges else [piece])
    ]


def _narrowed(name: str, store: Store, piece: Piece, where: Where) -> list[Piece]:
    """Return a piece without the parts at its start and end that a condition on offsets excludes."""
    length = piece.to_phy_offset - piece.from_phy_offset
    step = max(-(-length // _RANGES), _LEAST_RANGE_BYTES)
    starts = range(piece.from_phy_offset, piece.to_phy_offset, step)
    possible = where.possible([_promise(name, at, min(at + step, piece.to_phy_offset), None) for at in starts])
    if not possible:
        return []
    return log_range(store, starts[possible[0]], min(starts[possible[-1]] + step, piece.to_phy_offset))


def _promise(name: str, from_phy_offset: int, to_phy_offset: int, time: Any) -> Any:
    """Return an expression that is true for every record of a range of the log."""
    at = ds.field("phy_offset")
    promise = (ds.field("store") == name) & (at >= from_phy_offset) & (at < to_phy_offset)
    return promise if time is None else promise & time


def _time_promises(store: Store, pieces: Sequence[Piece]) -> list[Any]:
    """Return for each segment an expression that is true for its records' store times.

    They are between its first and the next segment's first.
    """
    firsts = [_plausible(confirmed_store_timestamp_ms(store.log, piece.segment.phy_offset)) for piece in pieces]
    lasts = [*firsts[1:], None]
    known = [time for time in firsts if time is not None]
    if any(later < earlier - CLOCK_SLACK_MS for earlier, later in pairwise(known)):
        return [None] * len(pieces)  # a clock was set back by more, so times prove nothing
    return [_between(first, last) for first, last in zip(firsts, lasts, strict=True)]


def _plausible(timestamp_ms: int | None) -> int | None:
    return timestamp_ms if timestamp_ms is not None and 0 < timestamp_ms < _LATEST_MS else None


def _between(first_ms: int | None, last_ms: int | None) -> Any:
    at = ds.field("store_time")
    promise = None
    if first_ms is not None:
        promise = (at >= _moment(first_ms - CLOCK_SLACK_MS)) | at.is_null()
    if last_ms is not None:
        until = (at <= _moment(last_ms + CLOCK_SLACK_MS)) | at.is_null()
        promise = until if promise is None else promise & until
    return promise


def _moment(timestamp_ms: int) -> pa.Scalar:
    return pa.scalar(timestamp_ms * 1000, schema.TIME)


_NO_TIME: Final = ds.field("store_time") < _moment(365 * 86_400_000)


def _joined_pieces(store: Store, pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """Yield the pieces in groups that are consecutive in the log."""
    first = 0
    for number, (before, piece) in enumerate(pairwise(pieces), 1):
        if before.to_phy_offset != piece.from_phy_offset and _gap(store, before, piece) is None:
            yield pieces[first:number]
            first = number
    if pieces:
        yield pieces[first:]


def _file_of(store: Store, pieces: Sequence[Piece], table: FrameTable) -> str:
    """Return the file of a table's rows; empty where there is none."""
    at = table.phy_offset[0] if len(table) else 0
    number = bisect_right(pieces, at, key=lambda piece: piece.from_phy_offset) - 1
    is_inside = number >= 0 and at < pieces[number].to_phy_offset
    return store.relative(pieces[number].segment.path) if is_inside else ""


def _gap(store: Store, before: Piece | None, piece: Piece) -> tuple[int, int] | None:
    """Return start and length of missing bytes between two pieces that would otherwise join; None without a gap."""
    if before is None or store.log.following(before.segment) != piece.segment:
        return None
    end, start = nominal_end(store.log, before.segment), piece.segment.phy_offset
    joins = before.to_phy_offset == end and piece.from_phy_offset == start
    return (end, start - end) if joins and end < start else None
