"""Build index files byte for byte as a broker does (store format 7; store behaviour 9.1)."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.record import Message, RecordError, decode_record
from store_core.codec.tags import index_text_hash, index_texts
from store_core.kernel.codes import FrameCode
from store_core.kernel.derive import chain_entries, index_entries
from store_core.layout import index, record
from store_core.layout.paths import INDEX_NAME_DIGITS
from store_core.scan.frames import FrameTable
from store_core.storage.buffers import new_pages
from store_core.storage.spool import Spool
from store_core.storage.store import Store
from store_core.storage.writer import SPARSE_BLOCK_BYTES

_SAMPLES: Final = 256
_PROOF_RECORDS: Final = 3


@dataclass(frozen=True, slots=True)
class IndexStyle:
    """The way a broker writes index files.

    ``tags``: it also indexes the tags (5.4.0) of records from ``tags_from_phy_offset`` on, where the broker was upgraded to that
    release. ``counts_every_put``: the header's used slots count entries (4.3.0).
    """

    tags: bool = False
    tags_from_phy_offset: int = 0
    counts_every_put: bool = False


def has_index(store: Store) -> bool:
    """Return True if the store should have an index: it has index files, or its properties file does not turn the index off."""
    return bool(store.index_files) or store.settings.flag("messageIndexEnable", True)


def index_names(store: Store) -> dict[int, str]:
    """Return the names of the existing index files by the offset of their first record, for the builder to keep."""
    names = {}
    for path in store.index_files:
        data = store.cache.read(path, 0, index.HEADER.size_bytes)
        if len(data) == index.HEADER.size_bytes:
            names[int(index.HEADER.read(data)["begin_phy_offset"])] = path.name
    return names


def index_style(store: Store, slots: int, entries: int) -> IndexStyle:
    """Detect the style from the newest entries, of several files if the newest has few; a later release's default without any."""
    tags, counts_every_put, seen = False, None, 0
    for path in reversed(store.index_files):
        data = store.cache.read(path, 0, index.HEADER.size_bytes)
        if len(data) < index.HEADER.size_bytes:
            continue
        last = min(index.HEADER.read(data)["index_count"], entries) - 1
        if last < 1:
            continue
        if seen < _SAMPLES:
            tags = tags or _has_tags(store, path, slots, last)
        if counts_every_put is None:
            counts_every_put = _counts_every_put(store, path, data, slots, last)
        seen += last
        if counts_every_put is not None and (tags or seen >= _SAMPLES):
            break
    start = _first_indexed_tag(store, slots, entries) if tags else 0
    return IndexStyle(tags, start, bool(counts_every_put))


def _counts_every_put(store: Store, path: Path, header: bytes, slots: int, last: int) -> bool | None:
    """Return True if the header counts an entry as a used slot although it shares its slot with another entry.

    None if no entry shares a slot yet, or if a broker has written to the file since its header was read.
    """
    if index.HEADER.read(header)["used_slots"] != last:
        return False
    if last > slots:
        return True
    size = index.ENTRY.size_bytes
    first = max(last - _SAMPLES, 1)
    data = store.cache.read(path, index.entry_at(slots, first), (last + 1 - first) * size)
    follows = any(entry[3] > 0 for entry in index.ENTRY.struct.iter_unpack(data[: len(data) // size * size]))
    return True if follows and store.cache.read(path, 0, index.HEADER.size_bytes) == header else None


def _has_tags(store: Store, path: Path, slots: int, last: int) -> bool:
    """Return True if one of the newest entries is of its record's tag and of none of its keys."""
    first = max(last - _SAMPLES, 1)
    return any(has for _, has in _tagged_records(store, path, slots, first, last + 1 - first))


def _tagged_records(store: Store, path: Path, slots: int, first: int, count: int) -> Iterator[tuple[int, bool]]:
    """Yield (offset, True if the tag is indexed) of each record with a tag that these entries point to, in their order."""
    size = index.ENTRY.size_bytes
    data = store.cache.read(path, index.entry_at(slots, first), count * size)
    entries = index.ENTRY.struct.iter_unpack(data[: len(data) // size * size])
    for phy_offset, group in groupby(entries, key=lambda entry: entry[1]):
        message = _message(store, phy_offset)
        if message is None or not message.tags:  # damaged or expired: other records decide
            continue
        keys = {index_text_hash(t) for t in index_texts(message.topic, message.properties)}
        with_tags = {index_text_hash(t) for t in index_texts(message.topic, message.properties, with_tags=True)}
        if not with_tags <= keys:
            yield phy_offset, any(key_hash in with_tags - keys for key_hash, *_ in group)


def _message(store: Store, phy_offset: int) -> Message | None:
    head = store.log.read(phy_offset, record.PREFIX.size_bytes)
    if len(head) < record.PREFIX.size_bytes:
        return None
    record_size, magic = record.PREFIX.struct.unpack(head)
    if magic not in (record.MAGIC_V1, record.MAGIC_V2) or not 0 < record_size <= record.MAX_RECORD_SIZE_BYTES:
        return None
    try:
        return decode_record(store.log.read(phy_offset, record_size), 0, phy_offset, record_size)
    except RecordError:
        return None


def _first_indexed_tag(store: Store, slots: int, entries: int) -> int:
    """Return the start of the first record whose tag is indexed; 0 if the tags of all records in the log are."""
    files = [(path, last) for path in store.index_files if (last := _last_entry(store, path, entries)) > 0]
    number = bisect_left(files, 1, key=lambda file: _has_tags_around(store, slots, file[0], file[1], file[1]))
    if number == len(files):
        return 0
    path, last = files[number]
    place = bisect_left(range(1, last + 1), 1, key=lambda entry: _has_tags_around(store, slots, path, last, entry)) + 1
    first = max(place - _SAMPLES, 1)
    around = [(path, first, min(2 * _SAMPLES, last + 1 - first))]
    if number and first == 1:
        before, its_last = files[number - 1]
        around.insert(0, (before, max(its_last - _SAMPLES, 1), min(_SAMPLES, its_last)))
    found = [record for file, at, count in around for record in _tagged_records(store, file, slots, at, count)]
    start = next((at for at, has in found if has), 0)
    # Records without an indexed tag in the middle are damage, and so may be one or two at the start.
    without = [at for at, has in found if not has and at < start]
    return start if len(without) >= _PROOF_RECORDS else 0


def _has_tags_around(store: Store, slots: int, path: Path, last: int, entry: int) -> int:
    """Return 1 if tags are indexed around an entry, else 0."""
    first = max(entry - _SAMPLES // 2, 1)
    return int(any(has for _, has in _tagged_records(store, path, slots, first, min(_SAMPLES, last + 1 - first))))


def _last_entry(store: Store, path: Path, entries: int) -> int:
    data = store.cache.read(path, 0, index.HEADER.size_bytes)
    return min(index.HEADER.read(data)["index_count"], entries) - 1 if len(data) == index.HEADER.size_bytes else 0


_CHUNK_SIZE_BYTES: Final = 1 << 20
_SLOTS_AT_ONCE: Final = 1 << 18
_ENTRIES_AT_ONCE: Final = 1 << 16
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class IndexHeaderState:
    """The header of an index file: at first all zero, or after a full file that file's end."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    used_slots: int = 0
    index_count: int = 0

    def pack(self) -> bytes:
        return index.HEADER.struct.pack(*(getattr(self, name) for name in index.HEADER.names))


@dataclass(frozen=True, slots=True)
class IndexFileResult:
    """A planned index file. ``mtime_ms``: store time of its last record. ``read`` yields the content by the chunk.

    ``data_bytes``: an upper bound of the bytes outside holes, as a file of 420 MB with a few keys is nearly empty.
    """

    name: str
    size_bytes: int
    header: IndexHeaderState
    mtime_ms: int
    is_full: bool
    read: Callable[[], Iterator[bytes]]
    data_bytes: int


@dataclass(frozen=True, slots=True)
class IndexStart:
    """An existing file whose first ``entries`` entries are kept, as they are for records before the log's first byte.

    ``header`` is the file's own; ``read(first, count)`` returns index.ENTRY[count] from number ``first`` (the lowest is 1).
    """

    header: IndexHeaderState
    entries: int
    read: Callable[[int, int], Array]


def index_file_name(timestamp_ms: int) -> str:
    """Return the name that a broker gives a file made at this time: local time, to the millisecond."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(timestamp_ms // 1000)) + f"{timestamp_ms % 1000:03d}"


def is_index_file_name(name: str) -> bool:
    """Return True if a broker can give this name."""
    return len(name) == INDEX_NAME_DIGITS and name.isascii() and name.isdecimal()


def _empty_slots(count: int) -> Array:
    """Return an empty slot table, in pages of its own, as malloc would keep some of its 20 MB."""
    return np.frombuffer(new_pages(max(count, 1) * index.SLOT.size_bytes), np.int32, count)


class IndexBuilder:
    """Builds the index as the sink of a scan with ``index_keys`` (and ``index_tags``, if 5.4.0 wrote the index).

    Give every table to ``add``, in log order, then call ``finish``. One slot table (4 bytes a slot) is in memory, all else goes
    to a scratch file in ``folder``.

    Args:
        names: file names to use, in order, or by the offset of a file's first record; other files get their names from the
            store time of the first record.
        start: the existing entries after which the first file continues.
    """

    def __init__(
        self,
        folder: Path,
        slots: int,
        entries: int,
        names: Sequence[str] | Mapping[int, str] = (),
        *,
        counts_every_put: bool = False,
        start: IndexStart | None = None,
    ) -> None:
        self._spool = Spool(folder)
        self._slot_count = slots
        self._entry_places = entries
        self.file_size_bytes = index.file_size_bytes(slots, entries)
        self._names = names
        self._counts_every_put = counts_every_put
        self._done: list[IndexFileResult] = []
        self._open = False
        self._made_ms = 0
        self._base = 0  # start of the open file in the scratch file
        self._header = IndexHeaderState()
        self._slots: Array = np.zeros(0, np.int32)
        if start is not None:
            self._continue_from(start)

    def close(self) -> None:
        """Release the scratch file, and the memory of an unfinished index."""
        self._spool.close()
        self._slots = np.zeros(0, np.int32)

    @property
    def end_phy_offset(self) -> int:
        """The start of the last indexed record."""
        return self._header.end_phy_offset

    def add(self, table: FrameTable, include_bad_crc: bool = False) -> None:
        """Index the messages of a table."""
        rows, key_row, key_hash = np.arange(len(table)), table.key_row, table.key_hash
        if not table.is_good:
            dispatched = table.messages if include_bad_crc else table.messages & ~table.of_code(FrameCode.BAD_CRC)
            rows, keep = rows[dispatched], dispatched[key_row]
            key_row, key_hash = key_row[keep], key_hash[keep]
        if not len(rows):
            return
        at = 0
        # A broker makes the next file at any dispatched record, with keys or without, once the open file is full.
        first, last = int(rows[0]), int(rows[-1])
        self._roll(int(table.phy_offset[first]), int(table.store_timestamp_ms[first]))
        while at < len(key_hash):
            if self._is_full:
                self._roll(int(table.phy_offset[key_row[at]]), int(table.store_timestamp_ms[key_row[at]]))
            at += self._put(table, key_row[at:], key_hash[at:])
        if self._is_full and (not len(key_row) or key_row[-1] != last):
            self._roll(int(table.phy_offset[last]), self._store_time_after(table, rows, key_row))

    def finish(self) -> list[IndexFileResult]:
        """Return the files in order. They can be read until the builder is closed."""
        if self._open:
            self._seal()
        self._slots = np.zeros(0, np.int32)  # 20 MB of a broker's defaults
        self._open = False
        return self._done

    @property
    def _is_full(self) -> bool:
        return self._header.index_count >= self._entry_places

    @staticmethod
    def _store_time_after(table: FrameTable, rows: Array, key_row: Array) -> int:
        """Return the store time of the first dispatched record after the last one with keys: it makes the new file."""
        place = np.searchsorted(rows, key_row[-1], side="right") if len(key_row) else 0
        return int(table.store_timestamp_ms[rows[place]])

    def _roll(self, phy_offset: int, store_timestamp_ms: int) -> None:
        """Open a file if none is open or the open one is full."""
        if self._open and not self._is_full:
            return
        before = IndexHeaderState()
        if self._open:
            before = self._header
            self._seal()
        number = len(self._done)
        self._made_ms = store_timestamp_ms
        self._base = number * self.file_size_bytes
        self._header = IndexHeaderState(
            before.end_timestamp_ms, before.end_timestamp_ms, before.end_phy_offset, before.end_phy_offset
        )
        self._slots = _empty_slots(self._slot_count)
        self._open = True

    def _continue_from(self, start: IndexStart) -> None:
        """Open the first file with the kept entries, chained to their slots again."""
        self._slots = _empty_slots(self._slot_count)
        self._open = True
        self._made_ms = start.header.begin_timestamp_ms
        used, last = 0, None
        for first in range(1, start.entries + 1, _ENTRIES_AT_ONCE):
            part = start.read(first, min(_ENTRIES_AT_ONCE, start.entries + 1 - first))
            slot = part["key_hash"].astype(np.int64) % self._slot_count
            part["previous"], new_slots = chain_entries(self._slots, slot, first)
            used += len(part) if self._counts_every_put else new_slots
            self._spool.write(index.entry_at(self._slot_count, first), part.tobytes())
            last = part[-1]
        header = replace(start.header, used_slots=used, index_count=start.entries + 1)
        if last is not None and start.header.index_count != start.entries + 1:
            # The header is that of later entries; an entry has its time only in whole seconds.
            end_ms = start.header.begin_timestamp_ms + int(last["seconds"]) * 1000
            header = replace(header, end_timestamp_ms=end_ms, end_phy_offset=int(last["phy_offset"]))
        self._header = header

    def _name(self) -> str:
        """Return the open file's name: the given one, else from its first record's time; always after the previous name."""
        number = len(self._done)
        if isinstance(self._names, Mapping):
            given = self._names.get(self._header.begin_phy_offset)
        else:
            given = self._names[number] if number < len(self._names) else None
        name = given if given and is_index_file_name(given) else index_file_name(self._made_ms)
        if self._done and int(name) <= int(self._done[-1].name):
            name = str(int(self._done[-1].name) + 1)
        return name

    def _put(self, table: FrameTable, key_row: Array, key_hash: Array) -> int:
        """Add as many keys as the file has room for; return how many."""
        header = self._header
        first = max(header.index_count, 1)
        # The first entry's seconds count from the time that the header started with; then its own time is the start.
        count = 1 if first == 1 else min(len(key_hash), self._entry_places - first)
        if self._entry_places <= first:  # a file without room for one entry
            raise ValueError("an index file must have room for an entry")
        key_row, key_hash = key_row[:count], key_hash[:count]
        begin = header.begin_timestamp_ms
        phy_offset, stored = table.phy_offset, table.store_timestamp_ms
        entries, new_slots = index_entries(self._slots, key_row, key_hash, phy_offset, stored, first, begin)
        self._spool.write(self._base + index.entry_at(self._slot_count, first), entries.data)
        self._header = replace(
            header,
            begin_timestamp_ms=int(stored[key_row[0]]) if first == 1 else begin,
            end_timestamp_ms=int(stored[key_row[-1]]),
            begin_phy_offset=int(phy_offset[key_row[0]]) if first == 1 else header.begin_phy_offset,
            end_phy_offset=int(phy_offset[key_row[-1]]),
            used_slots=header.used_slots + (count if self._counts_every_put else new_slots),
            index_count=first + count,
        )
        return count

    def _seal(self) -> None:
        """Complete the open file: write its slots and header to the scratch file."""
        header, base = self._header, self._base
        for at in range(0, self._slot_count, _SLOTS_AT_ONCE):
            part = self._slots[at : at + _SLOTS_AT_ONCE].astype(f">{index.SLOT.fields[0].type}")
            self._spool.write(base + index.slot_at(at), part.tobytes())
        self._spool.write(base, header.pack())
        full = self._is_full
        self._done.append(
            IndexFileResult(
                self._name(),
                self.file_size_bytes,
                header,
                header.end_timestamp_ms,
                full,
                lambda: self._content(base),
                self._data_bytes(),
            )
        )

    def _data_bytes(self) -> int:
        """Return an upper bound of the open file's bytes outside holes: blocks with a used slot, and entries."""
        per_block = SPARSE_BLOCK_BYTES // index.SLOT.size_bytes
        second = (SPARSE_BLOCK_BYTES - index.slot_at(0)) // index.SLOT.size_bytes  # the first slot of the second block
        starts = [0, *range(second, self._slot_count, per_block)]
        slots = np.count_nonzero(np.add.reduceat(self._slots != 0, starts)) + 1  # the header's
        entries = self._header.index_count * index.ENTRY.size_bytes // SPARSE_BLOCK_BYTES + 2
        return min(int(slots + entries) * SPARSE_BLOCK_BYTES, self.file_size_bytes)

    def _content(self, base: int) -> Iterator[bytes]:
        for at in range(0, self.file_size_bytes, _CHUNK_SIZE_BYTES):
            size = min(_CHUNK_SIZE_BYTES, self.file_size_bytes - at)
            data = self._spool.read(base + at, size)
            yield data + bytes(size - len(data))
