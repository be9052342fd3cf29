"""Read the rows of a split on an executor, as Arrow batches of the export's own tables."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store_core.errors import FailedError
from store_core.export.dest.parts import Range, inside, quarantine_rows
from store_core.export.dest.state import Proof
from store_core.export.rows import schema
from store_core.export.rows.batches import message_batches
from store_core.export.source.options import Mode
from store_core.export.source.walk import SourceSplit, tables_of
from store_core.export.splits.chain import HEADS
from store_core.export.splits.plan import Split, segments_of
from store_core.export.splits.tail import refuse_another_log
from store_core.export.tables.table import refuse_cut
from store_core.kernel import is_native
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.read.log import LogFilter, has_message_after
from store_core.scan.log import nominal_end, scan_segment
from store_core.storage.sequence import Segment
from store_core.storage.settings import Settings
from store_core.storage.store import Store

_ROWS_AT_ONCE: Final = 10_000
_CHECKED_COLUMNS: Final = ("phy_offset", "crc", "body_decoded")


@dataclass(frozen=True, slots=True)
class Reading:
    """The data that an executor needs to read one split; goes between machines.

    * ``start_phy_offset``, ``end_phy_offset``: the bounds of the whole query, not of this split; None for the end of
      a log that no broker writes.
    * ``tail_told``: damage at that end belongs to the quarantine as the log's torn tail, since no broker is writing
      it.
    * ``goes_on``: records are known to follow that end.
    * ``may_be_gone``: segments that have expired since the planning are skipped.
    * ``landmarks``: records by which the log is recognised.
    """

    store: str
    settings: Settings
    split: SourceSplit
    wanted: LogFilter
    mode: Mode = "PERMISSIVE"
    columns: tuple[str, ...] | None = None
    start_phy_offset: int = 0
    end_phy_offset: int | None = None
    tail_told: bool = False
    goes_on: bool = False
    may_be_gone: bool = False
    landmarks: tuple[Proof, ...] = ()


def read_messages(reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages that start in the split, in log order. Raises StoreError.

    A bad checksum or a body that cannot be decompressed is marked (PERMISSIVE), left out (DROPMALFORMED) or an error
    (FAILFAST). With FAILFAST, bytes between two records that are no record are an error too.
    """
    _warn_if_slow()
    columns = reading.columns or tuple(schema.MESSAGES.names)
    decoded = columns if reading.mode == "PERMISSIVE" else (*columns, *(set(_CHECKED_COLUMNS) - set(columns)))
    with _opened(reading) as store:
        if reading.mode == "FAILFAST":
            _refuse_damage(store, reading)
        may_be_short = reading.may_be_gone or not reading.goes_on
        for table in tables_of(store, reading.split, may_be_gone=reading.may_be_gone, may_be_short=may_be_short):
            for batch in message_batches(table, np.flatnonzero(reading.wanted.rows(table)), reading.store, decoded):
                rows = batch.rows if reading.mode == "PERMISSIVE" else _good_rows(batch.rows, reading)
                if len(rows):
                    yield rows.select(list(columns))


@contextmanager
def _opened(reading: Reading) -> Iterator[Store]:
    with Store.open(reading.settings.root, reading.settings) as store:
        refuse_another_log(store, reading.landmarks)
        yield store


def _warn_if_slow() -> None:
    """Warn in the executor's log if the compiled kernel is missing."""
    if not is_native():
        warnings.warn("no compiled kernel here: its Python twin does the work, many times slower", stacklevel=2)


def _refuse_damage(store: Store, reading: Reading) -> None:
    """Raise FailedError where a message follows damage, a hole or zeros, in the split or after it."""
    damage: int | None = None
    for is_message, found in _ranges(store, reading):
        if is_message and damage is not None:
            break
        if found is not None and damage is None and not (reading.may_be_gone and found.kind == FrameKind.HOLE):
            damage = found.phy_offset
    else:
        if damage is None or not (reading.goes_on or _is_followed(store, reading)):
            return
    raise _failed_fast("the log is damaged", reading, damage)


def _good_rows(rows: pa.RecordBatch, reading: Reading) -> pa.RecordBatch:
    good = pc.and_(pc.equal(rows.column("crc"), "ok"), rows.column("body_decoded"))
    if pc.all(good).as_py():
        return rows
    if reading.mode == "FAILFAST":
        first = rows.column("phy_offset")[pc.index(good, False).as_py()].as_py()
        raise _failed_fast("a message's body does not match its checksum or cannot be decompressed", reading, first)
    return rows.filter(good)


def _failed_fast(what: str, reading: Reading, phy_offset: int) -> FailedError:
    root = str(reading.settings.root)
    return FailedError(
        what,
        path=root,
        phy_offset=phy_offset,
        where=f"{root}, phy_offset {phy_offset}",
        to_do="read with mode PERMISSIVE, which marks what is bad",
    )


def read_ranges(reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield rows of the quarantine for a split of whole segments. Raises StoreError."""
    with _opened(reading) as store:
        rows: list[tuple[Range, str]] = []
        held: list[Range] = []
        for is_message, found in _ranges(store, reading):
            if is_message:
                rows += inside(held)
                held = []
            elif found is not None:
                held.append(found)
            if len(rows) > _ROWS_AT_ONCE:
                yield _quarantine_of(reading, rows)
                rows = []
        if held:
            rows += (
                inside(held)
                if reading.goes_on or _is_followed(store, reading)
                else _tail(held, is_torn=reading.tail_told)
            )
        if rows:
            yield _quarantine_of(reading, rows)


def _quarantine_of(reading: Reading, rows: list[tuple[Range, str]]) -> pa.RecordBatch:
    batch = quarantine_rows(reading.store, rows)
    return batch if reading.columns is None else batch.select(list(reading.columns))


def _tail(held: Sequence[Range], *, is_torn: bool) -> list[tuple[Range, str]]:
    """Return the ranges at the log's end that count: stale records, missing files, and damage if ``is_torn``."""
    rows = inside(found for found in held if found.kind in (FrameKind.STALE, FrameKind.HOLE))
    torn = [(found, "L004") for found in held if found.kind == FrameKind.DAMAGE] if is_torn else []
    return sorted([*rows, *torn], key=lambda row: row[0].phy_offset)


def _ranges(store: Store, reading: Reading) -> Iterator[tuple[bool, Range | None]]:
    """Yield messages (True, None) and ranges in log order, cut to the query's bounds.

    A hole belongs to the split of the segment before it, if that is read.
    """
    log, split = store.log, reading.split
    is_first = not any(
        nominal_end(log, segment) > reading.start_phy_offset and segment.phy_offset < split.start_phy_offset
        for segment in log.segments
    )
    for segment, end in segments_of(log, Split(split.start_phy_offset, split.stop_phy_offset, exact=True)):
        if is_first:
            yield from _hole(reading.start_phy_offset, segment.phy_offset, reading)
            is_first = False
        yield from _ranges_in(store, segment, min(end, split.stop_phy_offset), reading)
        following = log.following(segment)
        if following is not None:
            yield from _hole(end, following.phy_offset, reading)
    if is_first:  # no segment exists
        yield from _hole(split.start_phy_offset, split.stop_phy_offset, reading)


def _ranges_in(store: Store, segment: Segment, stop: int, reading: Reading) -> Iterator[tuple[bool, Range | None]]:
    certain = max(segment.phy_offset, reading.split.certain_phy_offset)
    for table in scan_segment(store, segment, HEADS, certain, stop, chained=True):
        if not reading.may_be_gone:
            refuse_cut(segment, table)
        for kind, code, at, size in zip(
            table.kind.tolist(), table.code.tolist(), table.phy_offset.tolist(), table.size_bytes.tolist(), strict=True
        ):
            start, end = max(at, reading.start_phy_offset), min(at + size, stop)
            if kind == FrameKind.MESSAGE:
                yield True, None
            elif kind != FrameKind.BLANK and start < end:
                yield False, Range(kind, code, start, end - start, store.relative(segment.path))


def _hole(start: int, end: int, reading: Reading) -> Iterator[tuple[bool, Range | None]]:
    start = max(start, reading.start_phy_offset)
    end = end if reading.end_phy_offset is None else min(end, reading.end_phy_offset)
    if start < end:
        yield False, Range(FrameKind.HOLE, FrameCode.OK, start, end - start, "")


def _is_followed(store: Store, reading: Reading) -> bool:
    """Return True if any message follows the split in the log, wanted or not."""
    return has_message_after(store, reading.split.stop_phy_offset)
