"""Check index files on their own: headers, slots and chains (store format, section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.log_map import runs_of
from store_core.check.report import Findings
from store_core.codec.times import format_time
from store_core.kernel.derive import chain_entries
from store_core.layout import index
from store_core.read.index import IndexHeader
from store_core.read.index_sizes import IndexSizes
from store_core.storage.store import Store

Array = NDArray[Any]
CHUNK_ENTRIES: Final = 1 << 15
_SLOT_DTYPE: Final = np.dtype(f">{index.SLOT.fields[0].type}")


@dataclass(frozen=True, slots=True)
class IndexFileView:
    """An index file, read by position.

    ``entries`` is the header's count, limited by the file's capacity and length; ``is_short`` if the length limits
    it.
    """

    path: Path
    name: str
    header: IndexHeader
    entries: int
    sizes: IndexSizes
    is_short: bool = False

    def read(self, store: Store, first: int, count: int) -> Array:
        """Return ``count`` entries (index.ENTRY) from number ``first``; the first of a file is 1.

        They are zeros after the file's end. The caller must not change them.
        """
        size = index.ENTRY.size_bytes
        data = store.cache.read(self.path, index.entry_at(self.sizes.slots, first), count * size)
        if len(data) < count * size:
            data = data[: len(data) - len(data) % size].ljust(count * size, b"\0")
        return np.frombuffer(data, index.ENTRY.dtype)


@dataclass(slots=True)
class FileTimes:
    """Store times of the records of a file's first and last entry, ms, 0 where unknown.

    ``wrong`` counts the entries with another time than their record; ``first_wrong`` is the number of the first of
    them.
    """

    begin_ms: int = 0
    end_ms: int = 0
    wrong: int = 0
    first_wrong: int = 0
    wrong_phy_offset: int = 0


def open_view(store: Store, path: Path, sizes: IndexSizes) -> IndexFileView:
    """Read a file's header, and limit its count to the entries that the file can contain."""
    header = _header(store, path)
    counted = max(min(header.index_count, sizes.entries) - 1, 0)
    stored = (_length(path) - index.entry_at(sizes.slots, 1)) // index.ENTRY.size_bytes
    entries = max(min(counted, stored), 0)
    return IndexFileView(path, store.relative(path), header, entries, sizes, entries < counted)


def _header(store: Store, path: Path) -> IndexHeader:
    data = store.cache.read(path, 0, index.HEADER.size_bytes)
    return IndexHeader(*index.HEADER.struct.unpack(data.ljust(index.HEADER.size_bytes, b"\0")))


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def check_index_file(
    store: Store,
    view: IndexFileView,
    findings: Findings,
    *,
    counts_every_put: bool,
    times: FileTimes,
    before: IndexFileView | None = None,
    live: bool = False,
) -> None:
    """Check chains, and the header against the entries and the ``times`` of their records.

    ``before`` is the previous file, whose end the header of a file without entries repeats. ``live``: a broker may
    have added entries since the file was opened.
    """
    sizes = view.sizes
    table = np.zeros(sizes.slots, np.int32)
    used = 0
    broken = 0
    for first, entries in _chunks(store, view):
        key_hash = entries["key_hash"].astype(np.int64)
        expected, new = chain_entries(table, np.abs(key_hash) % sizes.slots, first)
        used += new
        wrong = (entries["previous"] != expected) | (key_hash < 0)
        for begin, stop in runs_of(wrong, first):
            broken += stop - begin
            findings.say(
                "I003",
                f"entries {begin} to {stop - 1} do not follow the entry before them on their slot",
                file=view.name,
                phy_offset=int(entries["phy_offset"][begin - first]),
            )
    if view.is_short:  # the file's length is a finding of its own
        return
    wrong_slots = _wrong_slots(store, view, table, live=live)
    if wrong_slots:
        findings.say("I003", f"{wrong_slots} slots do not point to the newest entry of their chain", file=view.name)
    header = view.header
    if not 0 <= header.index_count <= sizes.entries:
        findings.say("I007", f"the count is {header.index_count}, there is room for {sizes.entries}", file=view.name)
    faults = _header_faults(store, view, times) if view.entries else _header_faults_of_empty(view, sizes, before)
    used_slots = view.entries if counts_every_put else used
    if header.used_slots != used_slots and not broken:
        faults.append(f"counts {header.used_slots} used slots, there are {used_slots}")
    if faults and not (live and _header(store, view.path) != header):
        findings.say("I007", "the header " + "; ".join(faults), file=view.name)


def _chunks(store: Store, view: IndexFileView) -> Iterator[tuple[int, Array]]:
    for first in range(1, view.entries + 1, CHUNK_ENTRIES):
        yield first, view.read(store, first, min(CHUNK_ENTRIES, view.entries + 1 - first))


def _wrong_slots(store: Store, view: IndexFileView, expected: Array, *, live: bool) -> int:
    """Count slots whose value is not the newest entry of their chain.

    A negative value, or one beyond the header's count, counts as 0. With ``live``, a newer entry is no error.
    """
    wrong = 0
    for at in range(0, len(expected), CHUNK_ENTRIES):
        part = expected[at : at + CHUNK_ENTRIES]
        data = store.cache.read(view.path, index.slot_at(at), len(part) * index.SLOT.size_bytes)
        values = np.zeros(len(part), np.int64)
        whole = len(data) // index.SLOT.size_bytes
        values[:whole] = np.frombuffer(data, _SLOT_DTYPE, whole)
        newest = _header(store, view.path).index_count if live else 0
        is_new = (values > view.entries) & (values <= newest)
        values[(values < 0) | (values > view.header.index_count)] = index.NO_ENTRY
        wrong += int(np.count_nonzero((values != part) & ~is_new))
    return wrong


def _header_faults(store: Store, view: IndexFileView, times: FileTimes) -> list[str]:
    """Return the differences between a header and its first and last entry, or their records."""
    header = view.header
    first, last = view.read(store, 1, 1)[0], view.read(store, view.entries, 1)[0]
    faults = []
    if header.begin_phy_offset != first["phy_offset"]:
        faults.append(f"begins at {header.begin_phy_offset}, its first entry at {int(first['phy_offset'])}")
    if header.end_phy_offset != last["phy_offset"]:
        faults.append(f"ends at {header.end_phy_offset}, its last entry at {int(last['phy_offset'])}")
    if times.begin_ms and header.begin_timestamp_ms != times.begin_ms:
        faults.append(
            f"begins at time {format_time(header.begin_timestamp_ms)}, its first entry's record at {format_time(times.begin_ms)}"
        )
    if times.end_ms and header.end_timestamp_ms != times.end_ms:
        faults.append(
            f"ends at time {format_time(header.end_timestamp_ms)}, its last entry's record at {format_time(times.end_ms)}"
        )
    if header.begin_timestamp_ms > header.end_timestamp_ms and not (times.begin_ms and times.end_ms):
        faults.append("ends before it begins")
    return faults


def _header_faults_of_empty(view: IndexFileView, sizes: IndexSizes, before: IndexFileView | None) -> list[str]:
    """Return an error unless the header of a file without entries is the end of a full previous file."""
    if before is None or before.header.index_count < sizes.entries:
        return []
    end = before.header.end_timestamp_ms, before.header.end_phy_offset
    header = view.header
    is_seeded = (header.begin_timestamp_ms, header.begin_phy_offset) == end
    is_seeded &= (header.end_timestamp_ms, header.end_phy_offset) == end
    return [] if is_seeded else ["of a file without entries is not the end of the file in front"]
