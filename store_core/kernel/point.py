"""What a query by key asks of its key and of single records; compiled where it could be, and without numpy."""

from __future__ import annotations

import os

from store_core.codec import tags
from store_core.kernel import KERNEL_VARIABLE
from store_core.kernel.codes import PropertyFlag
from store_core.kernel.twin_properties import known_properties
from store_core.kernel.twin_record import RecordHead, check_record
from store_core.layout import record

try:
    if os.environ.get(KERNEL_VARIABLE) == "python":
        raise ImportError
    from store_core.kernel import _native as _compiled
except ImportError:
    _compiled = None  # type: ignore[assignment]  # no compiler when this was installed, or not wanted


def index_key_hash(topic: str, key: str) -> int:
    """The hash an index stores for a key of a topic (store format, section 7.3)."""
    if _compiled is not None:
        try:
            return _compiled.index_key_hash(topic, key)
        except UnicodeEncodeError:  # a word of the command line that is no text
            pass
    return tags.index_key_hash(topic, key)


def has_unique_key(data: bytes, topic: str, key: str) -> bool:
    """Whether a record's bytes are a well-formed record of the topic with this unique key that brokers index.

    False may also mean that the topic, the key or what the record holds has to be decoded to tell.
    """
    if _compiled is not None:
        try:
            return _compiled.has_unique_key(data, topic, key)
        except UnicodeEncodeError:
            return False
    head = check_record(data, 0, len(data))
    if not isinstance(head, RecordHead) or head.size_bytes != len(data):
        return False
    if head.sys_flag & record.TRANSACTION_MASK == record.TRANSACTION_ROLLBACK:
        return False
    if data[head.topic_at : head.topic_at + head.topic_length] != topic.encode(errors="surrogatepass"):
        return False
    known = known_properties(data[head.properties_at : head.properties_at + head.properties_length])
    return known.get(PropertyFlag.UNIQ_KEY) == key.encode(errors="surrogatepass")
