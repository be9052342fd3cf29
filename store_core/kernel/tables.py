"""Queue entries with the records they point to, as columns; compiled where it could be.

A run of entries (``entries``: as stored, one behind the other) is cut into tables: ``plan_table`` says how many rows make the
next one, ``cut_table`` makes it of a segment in memory, ``read_table`` of a segment's file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import is_native
from store_core.kernel.codes import NEIGHBOUR_GAP_BYTES
from store_core.kernel.records import RecordColumns, twin_cut_records
from store_core.layout import record
from store_core.layout.queue import ENTRY
from store_core.storage.files import open_read_only
from store_core.storage.remote_path import RemotePath

Ints = NDArray[np.int64]
_LONG: Final = 1 << 63
_OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK
_NOATIME: Final = getattr(os, "O_NOATIME", 0)


class EntryTable(NamedTuple):
    """One row an entry. ``at``: where the record begins in the window. Arrays of one length."""

    at: Ints
    phy_offset: Ints
    size_bytes: Ints
    tags_code: Ints
    records: RecordColumns


def plan_table(entries: bytes, row: int, starts: Ints, ends: Ints, most_bytes: int) -> tuple[int, int, int]:
    """The segment that the records of the entries from a row on lie in (-1: none), how many rows that are, and how many bytes
    of the log have to be read for them: at most ``most_bytes``, or one record.

    ``starts``, ``ends``: of the segments, in order. Between neighbours what lies between them is read, too.
    """
    if not is_native():
        return twin_plan_table(entries, row, starts, ends, most_bytes)
    from store_core.kernel import _native

    return _native.plan_table(entries, row, starts, ends, most_bytes)


def cut_table(entries: bytes, row: int, rows: int, window: Any, start: int) -> EntryTable:
    """So many entries from a row on, whose records lie in a window (a numpy array) that begins at ``start`` of the log."""
    if not is_native():
        return twin_cut_table(entries, row, rows, window, start)
    from store_core.kernel import _native

    at, phy_offset, size_bytes, tags_code, records = _native.cut_table(entries, row, rows, window, start)
    return EntryTable(at, phy_offset, size_bytes, tags_code, RecordColumns(**records))


def read_table(
    entries: bytes, row: int, rows: int, path: Path, start: int, buffer: NDArray[np.uint8]
) -> tuple[EntryTable, int]:
    """So many entries from a row on, whose records lie in the file of one segment, which begins at ``start`` of the log: these
    are read into the buffer, back to back but for small gaps. Gives how much of the buffer is filled, too.

    Where the file has become shorter under us, nothing is filled. Raises OSError where it cannot be opened or read.
    """
    if isinstance(path, RemotePath) or not is_native():
        return twin_read_table(entries, row, rows, path, start, buffer)
    from store_core.kernel import _native

    found, filled = _native.read_table(entries, row, rows, path, _OPEN_FLAGS, _NOATIME, start, buffer)
    at, phy_offset, size_bytes, tags_code, records = found
    return EntryTable(at, phy_offset, size_bytes, tags_code, RecordColumns(**records)), filled


def twin_plan_table(entries: bytes, row: int, starts: Ints, ends: Ints, most_bytes: int) -> tuple[int, int, int]:
    """As ``plan_table``: the definition, to be read."""
    known, last_ends = starts.tolist(), ends.tolist()
    number, rows, total, end_before = -1, 0, 0, 0
    for phy_offset, size_bytes, _ in _entries(entries, row):
        found = _segment_of(phy_offset, size_bytes, known, last_ends)
        if rows and found != number:
            break
        number = found
        if number >= 0:
            needed = size_bytes + (_gap(phy_offset - end_before) or 0 if rows else 0)
            if rows and total + needed > most_bytes:
                break
            total += needed
            end_before = phy_offset + size_bytes
        rows += 1
    return number, rows, total


def twin_cut_table(entries: bytes, row: int, rows: int, window: Any, start: int) -> EntryTable:
    """As ``cut_table``: the definition, to be read."""
    some = _entries(entries, row, rows)
    return _table(some, [_wrapped(phy_offset - start) for phy_offset, _, _ in some], window.data)


def twin_read_table(
    entries: bytes, row: int, rows: int, path: Path, start: int, buffer: NDArray[np.uint8]
) -> tuple[EntryTable, int]:
    """As ``read_table``: the definition, to be read."""
    some = _entries(entries, row, rows)
    places = [(phy_offset - start, size_bytes) for phy_offset, size_bytes, _ in some]
    firsts = [n for n in range(len(places)) if not n or _gap(places[n][0] - sum(places[n - 1])) is None]
    at: list[int] = []
    begin = filled = 0
    is_short = False
    view = buffer.data
    descriptor = open_read_only(path)
    try:
        for first, behind in pairwise((*firsts, len(places))):
            file_at = places[first][0]
            count = sum(places[behind - 1]) - file_at
            at += [begin + place - file_at for place, _ in places[first:behind]]
            if not is_short:
                found = _read_full(descriptor, view[begin : begin + count], file_at)
                filled, is_short = begin + found, found < count
            begin += count
    finally:
        os.close(descriptor)
    return _table(some, at, view[:filled]), filled


def _read_full(descriptor: int, room: memoryview, at: int) -> int:
    done = 0
    while done < len(room) and (count := os.preadv(descriptor, [room[done:]], at + done)):
        done += count
    return done


def _entries(entries: bytes, row: int, rows: int | None = None) -> list[tuple[int, int, int]]:
    size = ENTRY.size_bytes
    behind = len(entries) // size if rows is None else row + rows
    return list(ENTRY.struct.iter_unpack(entries[row * size : min(behind, len(entries) // size) * size]))


def _segment_of(phy_offset: int, size_bytes: int, starts: list[int], ends: list[int]) -> int:
    """The segment that holds a whole record; -1 if none can."""
    number = bisect_right(starts, phy_offset) - 1
    can_be = record.MIN_RECORD_SIZE_BYTES <= size_bytes <= record.MAX_RECORD_SIZE_BYTES
    return number if number >= 0 and can_be and phy_offset + size_bytes <= ends[number] else -1


def _gap(count: int) -> int | None:
    """What lies between neighbours; None for records that are none."""
    return count if 0 <= count <= NEIGHBOUR_GAP_BYTES else None


def _table(some: list[tuple[int, int, int]], at: list[int], window: memoryview) -> EntryTable:
    phy_offset, size_bytes, tags_code = np.array(some, np.int64).reshape(-1, 3).T.copy()
    records = twin_cut_records(window, zip(at, size_bytes.tolist(), strict=True))
    return EntryTable(np.array(at, np.int64), phy_offset, size_bytes, tags_code, records)


def _wrapped(number: int) -> int:
    """As the processor's own numbers go on."""
    return (number + _LONG) % (2 * _LONG) - _LONG
