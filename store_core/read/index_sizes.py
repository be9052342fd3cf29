"""Prove how many slots and entry places index files have, from their content (store format 7).

Neither number is stored. The length of a file is 40 + 4 s + 20 e, so in every candidate the entries start at the same place modulo 20. The last byte
that is not zero is in the newest entry, and the header has that entry's number: one candidate remains. It is proven by entries that are in the chain
of the slot of their hash, and whose records have a key of that hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from store_core.codec.tags import index_text_hash, index_texts
from store_core.errors import UnreadableError
from store_core.findings import Finding, finding
from store_core.layout import index as layout
from store_core.layout import paths
from store_core.read.records import read_message
from store_core.storage.store import Store

_HEADER_SIZE: Final = layout.HEADER.size_bytes
_SLOT_SIZE: Final = layout.SLOT.size_bytes
_ENTRY_SIZE: Final = layout.ENTRY.size_bytes
_NO_ENTRY: Final = bytes(_ENTRY_SIZE)
_FIRST_ENTRY: Final = 1
_FIRST_SAMPLES: Final = 4  # an index file's oldest entries, whose chains are long and whose records may have expired
_LAST_SAMPLES: Final = 24
_LONGEST_WALK: Final = 64  # links of a chain; an older entry proves nothing
_FEWEST_ENTRIES: Final = 2  # entry places; the first is never used
_CHUNK_SIZE_BYTES: Final = _ENTRY_SIZE << 15
_MOST_RUNS: Final = 16  # of entries, from the end: damage may leave holes in them
_MOST_SEARCHED_FILES: Final = 8  # of one length in which the start of the entries is searched


@dataclass(frozen=True, slots=True, order=True)
class IndexSizes:
    """The number of slots and of entry places of an index file; place 0, which is never used, is included."""

    slots: int
    entries: int

    def __str__(self) -> str:
        return f"{self.slots} slots and {self.entries} entries"


@dataclass(frozen=True, slots=True)
class ProvenSizes:
    """The sizes of a store's index files, None where they are not known.

    ``findings`` report unknown sizes and files that contradict the configuration.
    """

    sizes: IndexSizes | None
    findings: tuple[Finding, ...] = ()


def index_sizes(store: Store) -> ProvenSizes:
    """Return the sizes of a store's index files: the configured sizes, else the sizes that the files prove.

    Without files there is nothing to prove, and no finding. A configuration wins over a proof, with a finding (I012). Files
    that prove nothing, or different sizes, are a finding (S005), unless all of them are empty.
    """
    slots, entries = store.settings.index_slots, store.settings.index_entries
    proofs = _proofs(store)
    if slots and entries:
        configured = IndexSizes(slots, entries)
        return ProvenSizes(configured, tuple(_contradictions(store, configured, proofs)))
    if slots or entries:
        lengths = {length for _, length in _files(store)}
        possible = {sizes for length in lengths for sizes in _half_known(length, slots, entries)}
        if len(possible) == 1:
            (sizes,) = possible
            return ProvenSizes(sizes, tuple(_contradictions(store, sizes, proofs)))
    if len(set(proofs.values())) == 1:
        sizes = next(iter(proofs.values()))
        named = IndexSizes(slots or sizes.slots, entries or sizes.entries)
        return ProvenSizes(sizes, tuple(_contradictions(store, named, proofs)))
    if proofs:
        text = "; ".join(f"{path.name} proves {sizes}" for path, sizes in sorted(proofs.items()))
        return ProvenSizes(None, (finding("S005", f"index files contradict each other: {text}", file=paths.INDEX),))
    if all(_IndexBytes(store, path, length).is_empty() for path, length in _files(store)):
        return ProvenSizes(None)
    text = "nothing in the index files proves how many slots and entries they have: they are not read, and stay as they are"
    return ProvenSizes(None, (finding("S005", text, file=paths.INDEX),))


def _contradictions(store: Store, sizes: IndexSizes, proofs: dict[Path, IndexSizes]) -> Iterator[Finding]:
    for path, proven in sorted(proofs.items()):
        if proven != sizes:
            text = f"the configuration names {sizes}, the file proves {proven}"
            yield finding("I012", text, file=store.relative(path))


def _files(store: Store) -> list[tuple[Path, int]]:
    """Return existing index files with their lengths in bytes, newest first."""
    found = []
    for path in reversed(store.index_files):
        with suppress(OSError):
            found.append((path, path.stat().st_size))
    return found


def _half_known(length: int, slots: int | None, entries: int | None) -> Iterator[IndexSizes]:
    """Yield the sizes of a file of this length if the configuration names only slots or only entries."""
    room = length - _HEADER_SIZE - (slots or 0) * _SLOT_SIZE - (entries or 0) * _ENTRY_SIZE
    count, rest = divmod(room, _ENTRY_SIZE if slots else _SLOT_SIZE)
    if count > 0 and not rest:
        yield IndexSizes(slots or count, entries or count)


def _proofs(store: Store) -> dict[Path, IndexSizes]:
    """Return for each length of files the newest file that proves its sizes, with the sizes."""
    by_length: dict[int, list[_IndexBytes]] = {}
    for path, length in _files(store):
        by_length.setdefault(length, []).append(_IndexBytes(store, path, length))
    proofs: dict[Path, IndexSizes] = {}
    for files in by_length.values():
        likely = ((file, file.likely()) for file in files)
        searched = ((file, file.searched()) for file in files[:_MOST_SEARCHED_FILES])
        for file, candidates in chain(likely, searched):
            with suppress(UnreadableError):  # a file that cannot be read proves nothing; another file may
                if proven := next((sizes for sizes, last in candidates if file.proves(sizes, last)), None):
                    proofs[file.path] = proven
                    break
    return proofs


class _IndexBytes:
    """An index file of unknown sizes. ``entries_at`` of a candidate is the position of its entry 0."""

    def __init__(self, store: Store, path: Path, length: int) -> None:
        self.path = path
        self._store = store
        self._length = length
        self._room = length - _HEADER_SIZE  # of slots and entries

    def is_empty(self) -> bool:
        """Return True if the header counts no entry and nothing follows it."""
        try:
            return self._header()["index_count"] <= _FIRST_ENTRY and self._data_end(self._length) <= _HEADER_SIZE
        except UnreadableError:
            return False

    def likely(self) -> Iterator[tuple[IndexSizes, int]]:
        """Yield the candidates that the header's count allows, each with the number of the newest entry."""
        count = self._header()["index_count"]
        if count <= _FIRST_ENTRY or self._room % _SLOT_SIZE:
            return
        default = layout.SLOT.size_bytes + layout.SLOTS_TO_ENTRIES * layout.ENTRY.size_bytes
        places = [_HEADER_SIZE + self._room // default * _SLOT_SIZE] if self._room % default == 0 else []
        places.append(self._length - count * _ENTRY_SIZE)  # the file is full
        for entries_at in places:
            yield from self._candidate(entries_at, count - 1)
        last_entry_at = self._block_end(self._data_end(self._length)) - _ENTRY_SIZE
        yield from self._candidate(last_entry_at - (count - 1) * _ENTRY_SIZE, count - 1)

    def searched(self) -> Iterator[tuple[IndexSizes, int]]:
        """Yield candidates without the header: entry 0 is never used, so zeros come before the entries."""
        if self._room % _SLOT_SIZE:
            return
        end = self._data_end(self._length)
        entries_end = self._block_end(end)
        for _ in range(_MOST_RUNS):
            entries_at = self._last_empty_place(self._block_end(end))
            if entries_at is None:
                return
            yield from self._candidate(entries_at, (entries_end - entries_at) // _ENTRY_SIZE - 1)
            end = self._data_end(entries_at)

    def proves(self, sizes: IndexSizes, last: int) -> bool:
        """Return True if sampled entries up to number ``last`` are in their slots' chains and their records have their keys.

        A single entry proves sizes only if every check that is possible agrees; of several entries a third may be damaged.
        """
        agree = disagree = found_records = 0
        first = min(last, _FIRST_SAMPLES)
        for number in {*range(1, first + 1), *range(max(first, last - _LAST_SAMPLES) + 1, last + 1)}:
            key_hash, phy_offset, _, _ = self._entry(sizes, number)
            in_chain = key_hash >= 0 and self._is_in_chain(sizes, number, key_hash)
            has_key = self._has_key(phy_offset, key_hash) if in_chain else None
            agree += in_chain is True and has_key is not False
            disagree += in_chain is False or has_key is False
            found_records += has_key is True
        if not found_records and not self._header_fits(sizes, last):
            return False
        return agree >= max(2 * disagree, min(last, 2))

    def _candidate(self, entries_at: int, last: int) -> Iterator[tuple[IndexSizes, int]]:
        slots, odd = divmod(entries_at - _HEADER_SIZE, _SLOT_SIZE)
        entries, rest = divmod(self._room - slots * _SLOT_SIZE, _ENTRY_SIZE)
        if odd or rest or slots < 1 or entries < _FEWEST_ENTRIES or not _FIRST_ENTRY <= last < entries:
            return
        # A file that was cut short has entries up to its end, and a higher count.
        if last < entries - 1 or self._header()["index_count"] == entries:
            yield IndexSizes(slots, entries), last

    def _header(self) -> dict[str, int]:
        data = self._store.cache.read(self.path, 0, _HEADER_SIZE)
        return layout.HEADER.read(data.ljust(_HEADER_SIZE, b"\0"))

    def _header_fits(self, sizes: IndexSizes, last: int) -> bool:
        header = self._header()
        ends = self._entry(sizes, _FIRST_ENTRY)[1], self._entry(sizes, last)[1]
        return (header["begin_phy_offset"], header["end_phy_offset"]) == ends

    def _entry(self, sizes: IndexSizes, number: int) -> tuple[int, int, int, int]:
        """Return (key hash, phy_offset, seconds, previous); a hash of -1 for an empty place."""
        data = self._store.cache.read(self.path, layout.entry_at(sizes.slots, number), _ENTRY_SIZE)
        if len(data) < _ENTRY_SIZE or data == _NO_ENTRY:
            return -1, 0, 0, 0
        found: tuple[int, int, int, int] = layout.ENTRY.struct.unpack(data)
        return found

    def _is_in_chain(self, sizes: IndexSizes, number: int, key_hash: int) -> bool | None:
        """Return True if the chain of the hash's slot reaches the entry; None where the chain is too long to decide."""
        slot = key_hash % sizes.slots
        data = self._store.cache.read(self.path, layout.slot_at(slot), _SLOT_SIZE)
        at = int(layout.SLOT.struct.unpack(data)[0]) if len(data) == _SLOT_SIZE else layout.NO_ENTRY
        for _ in range(_LONGEST_WALK):
            if at == number:
                return True
            if not number < at < sizes.entries:
                return False
            found, _, _, previous = self._entry(sizes, at)
            if found < 0 or found % sizes.slots != slot or previous >= at:
                return False
            at = previous
        return None

    def _has_key(self, phy_offset: int, key_hash: int) -> bool | None:
        """Return True if the record at an offset has a key of this hash; None where no record can be read."""
        message = read_message(self._store.log, phy_offset) if phy_offset >= 0 else None
        if message is None:
            return None
        texts = index_texts(message.topic, message.properties, with_tags=True)
        return any(index_text_hash(text) == key_hash for text in texts)

    def _block_end(self, position: int) -> int:
        """Return the first end of an entry place at or after a position; it is the same for all candidates."""
        phase = (_HEADER_SIZE + self._room) % _ENTRY_SIZE
        return position + (phase - position) % _ENTRY_SIZE

    def _data_end(self, end: int) -> int:
        """Return the position after the last non-zero byte before ``end``; 0 without one. Holes are not read."""
        while end > 0:
            low, high = 0, end  # there is data at or after low, and none at or after high
            while low < high:
                middle = (low + high) // 2
                at = self._store.cache.next_data(self.path, middle)
                low, high = (low, middle) if at is None or at >= end else (max(at, middle) + 1, high)
            start = max(high - _CHUNK_SIZE_BYTES, 0)
            data = self._store.cache.read(self.path, start, high - start).rstrip(b"\0")
            if data:
                return start + len(data)
            end = start
        return 0

    def _last_empty_place(self, end: int) -> int | None:
        """Return the position of the last empty entry place before ``end``, which is the end of a place; None without one."""
        lowest = self._block_end(_HEADER_SIZE)
        while end > lowest:
            start = max(end - _CHUNK_SIZE_BYTES, lowest)
            data = self._store.cache.read(self.path, start, end - start)
            stop = len(data)
            while (found := data.rfind(_NO_ENTRY, 0, stop)) >= 0:
                place = found - found % _ENTRY_SIZE
                if data[place : place + _ENTRY_SIZE] == _NO_ENTRY:
                    return start + place
                stop = found + _ENTRY_SIZE - 1
            end = start
        return None
