"""What the index files that stand tell about the broker that wrote them, so that a rebuilt index is the same (store format 7.3)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.codec.record import RecordError, decode_record
from store_core.codec.tags import index_text_hash, index_texts
from store_core.layout import index, record
from store_core.storage.store import Store

_SAMPLES: Final = 256


@dataclass(frozen=True, slots=True)
class IndexStyle:
    """``tags``: tags are indexed too (5.4.0). ``counts_every_put``: the header's used slots count entries (4.3.0)."""

    tags: bool = False
    counts_every_put: bool = False


def index_names(store: Store) -> dict[int, str]:
    """Names of the index files that stand, by the offset of their first record, for the builder to keep."""
    names = {}
    for path in store.index_files:
        data = store.cache.read(path, 0, index.HEADER.size_bytes)
        if len(data) == index.HEADER.size_bytes:
            names[int(index.HEADER.read(data)["begin_phy_offset"])] = path.name
    return names


def index_style(store: Store, slots: int, entries: int) -> IndexStyle:
    """Told by the newest entries; a later release's default without any. A young file may leave it to the one before."""
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
            counts_every_put = _counts_every_put(store, path, slots, last)
        seen += last
        if counts_every_put is not None and (tags or seen >= _SAMPLES):
            break
    return IndexStyle(tags, bool(counts_every_put))


def _counts_every_put(store: Store, path: Path, slots: int, last: int) -> bool | None:
    """Whether used slots are as many as entries although an entry follows another on its slot; None where none does yet."""
    header = index.HEADER.read(store.cache.read(path, 0, index.HEADER.size_bytes))
    if header["used_slots"] != last:
        return False
    if last > slots:
        return True
    size = index.ENTRY.size_bytes
    first = max(last - _SAMPLES, 1)
    data = store.cache.read(path, index.entry_at(slots, first), (last + 1 - first) * size)
    follows = any(entry[3] > 0 for entry in index.ENTRY.struct.iter_unpack(data[: len(data) // size * size]))
    return True if follows else None


def _has_tags(store: Store, path: Path, slots: int, last: int) -> bool:
    """Whether one of the newest entries is a tag of its record and none of its keys."""
    size = index.ENTRY.size_bytes
    first = max(last - _SAMPLES, 1)
    data = store.cache.read(path, index.entry_at(slots, first), (last + 1 - first) * size)
    for key_hash, phy_offset, _, _ in index.ENTRY.struct.iter_unpack(data[: len(data) // size * size]):
        head = store.log.read(phy_offset, record.PREFIX.size_bytes)
        if len(head) < record.PREFIX.size_bytes:
            continue
        record_size, magic = record.PREFIX.struct.unpack(head)
        if magic not in (record.MAGIC_V1, record.MAGIC_V2) or not 0 < record_size <= record.MAX_RECORD_SIZE_BYTES:
            continue
        try:
            message = decode_record(store.log.read(phy_offset, record_size), 0, phy_offset, record_size)
        except RecordError:  # damaged: another entry will tell
            continue
        keys = {index_text_hash(t) for t in index_texts(message.topic, message.properties)}
        with_tags = {index_text_hash(t) for t in index_texts(message.topic, message.properties, with_tags=True)}
        if key_hash in with_tags - keys:
            return True
    return False
