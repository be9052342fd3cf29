"""Answer the parts of a query by key: the key's hash, an index file's entries, a record's keys; without numpy."""

from __future__ import annotations

from typing import Any, Final, Protocol

from store_core.codec import tags
from store_core.codec.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY, some_properties
from store_core.kernel import compiled_kernel
from store_core.layout import index, record

_compiled: Final = compiled_kernel()
_KEY_SEPARATOR: Final = KEY_SEPARATOR.encode()
_KEYS: Final = KEYS.encode()
_UNIQ_KEY: Final = UNIQ_KEY.encode()
_HEADER_SIZE: Final = index.HEADER.size_bytes
_SLOT_SIZE: Final = index.SLOT.size_bytes
_ENTRY_SIZE: Final = index.ENTRY.size_bytes


class Sliceable(Protocol):
    """A file's bytes, in parts."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


def index_key_hash(topic: str, key: str) -> int:
    """Return the index's hash of a key of a topic (store format, section 7.3)."""
    if _compiled is not None:
        try:
            hashed: int = _compiled.index_key_hash(topic, key)
            return hashed
        except UnicodeEncodeError:  # a command-line argument that is no text
            pass
    return tags.index_key_hash(topic, key)


def carries_key(data: bytes, topic: str, key: str, kind: str) -> bool:
    """Return True if these bytes are a well-formed record of the topic with this key that brokers index.

    ``kind``: the unique key (``unique``), one of the user's (``key``), or either (``any``). False may also mean that topic, key or record must be
    decoded to decide.
    """
    if _compiled is not None:
        try:
            carries: bool = _compiled.carries_key(data, topic, key, kind)
            return carries
        except UnicodeEncodeError:
            return False
    from store_core.kernel.reference.record import RecordHead, check_record

    head = check_record(data, 0, len(data))
    if not key or not isinstance(head, RecordHead) or head.size_bytes != len(data):
        return False
    if head.sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_ROLLBACK:
        return False
    if data[head.topic_at : head.topic_at + head.topic_length] != topic.encode(errors="surrogatepass"):
        return False
    raw = data[head.properties_at : head.properties_at + head.properties_length]
    known = some_properties(raw, (_KEYS, _UNIQ_KEY))
    wanted = key.encode(errors="surrogatepass")
    if kind != "key" and known.get(_UNIQ_KEY) == wanted:
        return True
    return kind != "unique" and wanted in known.get(_KEYS, b"").split(_KEY_SEPARATOR)


def index_offsets(
    file: Sliceable, slots: int, key_hash: int, begin_ms: int, end_ms: int, limit: int
) -> tuple[int, list[int]]:
    """Return a broker's answer from an index file of ``slots`` slots (store behaviour 9.2): the file's start time in ms, and offsets.

    The offsets are those of entries with this hash in a time range, newest first. Times are the file's start plus whole seconds. The search ends at
    ``limit`` offsets, at a negative time, at a time before the range (as in a broker, though older entries may be in it), and at a broken link.
    """
    if len(file) < _HEADER_SIZE:
        return 0, []
    file_begin_ms, file_end_ms, _, _, _, count = index.HEADER.struct.unpack(file[:_HEADER_SIZE])
    slot_at = index.slot_at(key_hash % slots)
    found: list[int] = []
    if begin_ms > file_end_ms or end_ms < file_begin_ms or count <= 1 or slot_at + _SLOT_SIZE > len(file):
        return file_begin_ms, found
    (number,) = index.SLOT.struct.unpack(file[slot_at : slot_at + _SLOT_SIZE])
    if number > count:
        return file_begin_ms, found
    while number > 0 and len(found) < limit:
        at = index.entry_at(slots, number)
        if at + _ENTRY_SIZE > len(file):
            break
        found_hash, phy_offset, seconds, previous = index.ENTRY.struct.unpack(file[at : at + _ENTRY_SIZE])
        if seconds < 0:
            break
        time_ms = file_begin_ms + seconds * 1000
        if found_hash == key_hash and begin_ms <= time_ms <= end_ms:
            found.append(phy_offset)
        if time_ms < begin_ms or previous >= number:
            break
        number = previous
    return file_begin_ms, found
