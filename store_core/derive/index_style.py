"""Detect from the existing index files how the broker wrote them, so that a rebuilt index is the same (store format 7.3)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from store_core.codec.record import Message, RecordError, decode_record
from store_core.codec.tags import index_text_hash, index_texts
from store_core.layout import index, record
from store_core.storage.store import Store

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
