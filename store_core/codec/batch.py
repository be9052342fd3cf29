"""Split the body of an inner batch into the items that the client wrote (store format, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store_core.codec.compression import BodyError
from store_core.layout import record

_MOST_ITEMS: Final = (1 << 15) - 1  # INNER_NUM and the queue entry count them in two bytes
_HEAD = record.BATCH_ITEM_HEAD
_PROPERTIES_LENGTH = record.BATCH_ITEM_PROPERTIES_LENGTH


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A message of a batch: the user's flag, the plain body, the property string."""

    flag: int
    body: bytes
    raw_properties: bytes


def split_inner_batch(body: bytes) -> list[BatchItem]:
    """Return the items of a decompressed batch body, in order. Raises BodyError where a length does not fit, or for too many.

    An item has no checksum and no message id of its own. The size field before it is ignored, as by clients.
    """
    items: list[BatchItem] = []
    at = 0
    while at < len(body):
        if len(items) == _MOST_ITEMS:
            raise BodyError(f"a batch of more than {_MOST_ITEMS} items")
        if len(body) - at < _HEAD.size_bytes:
            raise BodyError(f"batch item {len(items)}: its head is torn")
        head = _HEAD.read(body, at)
        body_at = at + _HEAD.size_bytes
        length_at = body_at + head["body_length"]
        properties_at = length_at + _PROPERTIES_LENGTH.size_bytes
        if head["body_length"] < 0 or properties_at > len(body):
            raise BodyError(f"batch item {len(items)}: its body does not fit")
        (properties_length,) = _PROPERTIES_LENGTH.struct.unpack_from(body, length_at)
        at = properties_at + properties_length
        if properties_length < 0 or at > len(body):
            raise BodyError(f"batch item {len(items)}: its properties do not fit")
        items.append(BatchItem(head["flag"], body[body_at:length_at], body[properties_at:at]))
    return items
