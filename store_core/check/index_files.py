"""Index files on their own: headers, slots and chains (store format, section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.check.report import Findings
from store_core.check.runs import runs_of
from store_core.kernel.derive import chain_entries
from store_core.layout import index
from store_core.read.index import IndexHeader, IndexSizes
from store_core.storage.store import Store

Array = NDArray[Any]
CHUNK_ENTRIES: Final = 1 << 15
_SLOT_DTYPE: Final = np.dtype(f">{index.SLOT.fields[0].type}")


@dataclass(frozen=True, slots=True)
class IndexFileView:
    """One file, read by position.

    ``entries`` is how many it holds: the header's count, as far as there is room and the file reaches; ``is_short`` where
    it does not reach.
    """

    path: Path
    name: str
    header: IndexHeader
    entries: int
    slots: int
    is_short: bool = False

    def read(self, store: Store, first: int, count: int) -> Array:
        """Entries from number ``first`` (1 is the first) on, index.ENTRY[count]; zeros behind the file's end."""
        found = np.zeros(count, index.ENTRY.dtype)
        size = index.ENTRY.size_bytes
        data = store.cache.read(self.path, index.entry_at(self.slots, first), count * size)
        whole = len(data) // size
        found[:whole] = np.frombuffer(data, index.ENTRY.dtype, whole)
        return found


def open_view(store: Store, path: Path, sizes: IndexSizes) -> IndexFileView:
    """A file's header, taken as far as it can be believed."""
    data = store.cache.read(path, 0, index.HEADER.size_bytes)
    header = IndexHeader(*index.HEADER.struct.unpack(data.ljust(index.HEADER.size_bytes, b"\0")))
    counted = max(min(header.index_count, sizes.entries) - 1, 0)
    there = (_length(path) - index.entry_at(sizes.slots, 1)) // index.ENTRY.size_bytes
    entries = max(min(counted, there), 0)
    return IndexFileView(path, store.relative(path), header, entries, sizes.slots, entries < counted)


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def check_index_file(
    store: Store, view: IndexFileView, sizes: IndexSizes, findings: Findings, *, counts_every_put: bool
) -> None:
    """Chains as the builder hangs them, and the header against the entries."""
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
                f"entries {begin} to {stop - 1} do not follow the entry in front of them on their slot",
                file=view.name,
                phy_offset=int(entries["phy_offset"][begin - first]),
            )
    if view.is_short:  # the length says it all
        return
    wrong_slots = _wrong_slots(store, view, table)
    if wrong_slots:
        findings.say("I003", f"{wrong_slots} slots do not point to the newest entry of their chain", file=view.name)
    _check_header(store, view, sizes, findings, view.entries if counts_every_put else used, bool(broken))


def _chunks(store: Store, view: IndexFileView) -> Iterator[tuple[int, Array]]:
    for first in range(1, view.entries + 1, CHUNK_ENTRIES):
        yield first, view.read(store, first, min(CHUNK_ENTRIES, view.entries + 1 - first))


def _wrong_slots(store: Store, view: IndexFileView, expected: Array) -> int:
    """Slots whose value is not the newest entry that belongs there; values that count as none are as good as 0."""
    wrong = 0
    for at in range(0, len(expected), CHUNK_ENTRIES):
        part = expected[at : at + CHUNK_ENTRIES]
        data = store.cache.read(view.path, index.slot_at(at), len(part) * index.SLOT.size_bytes)
        values = np.zeros(len(part), np.int64)
        whole = len(data) // index.SLOT.size_bytes
        values[:whole] = np.frombuffer(data, _SLOT_DTYPE, whole)
        values[(values < 0) | (values > view.header.index_count)] = index.NO_ENTRY
        wrong += int(np.count_nonzero(values != part))
    return wrong


def _check_header(
    store: Store, view: IndexFileView, sizes: IndexSizes, findings: Findings, used_slots: int, chains_broken: bool
) -> None:
    header = view.header
    if not 0 <= header.index_count <= sizes.entries:
        findings.say("I007", f"the count is {header.index_count}, there is room for {sizes.entries}", file=view.name)
    if not view.entries:
        return
    first, last = view.read(store, 1, 1)[0], view.read(store, view.entries, 1)[0]
    told = []
    if header.begin_phy_offset != first["phy_offset"]:
        told.append(f"begins at {header.begin_phy_offset}, its first entry at {int(first['phy_offset'])}")
    if header.end_phy_offset != last["phy_offset"]:
        told.append(f"ends at {header.end_phy_offset}, its last entry at {int(last['phy_offset'])}")
    if header.begin_timestamp_ms > header.end_timestamp_ms:
        told.append("ends before it begins")
    if header.used_slots != used_slots and not chains_broken:
        told.append(f"counts {header.used_slots} used slots, there are {used_slots}")
    if told:
        findings.say("I007", "the header " + "; ".join(told), file=view.name)
