"""One message by an id or an offset (store behaviour 10.1)."""

from __future__ import annotations

from string import hexdigits
from typing import Final

from store_core.codec.message_id import parse_offset_message_id
from store_core.codec.record import Message
from store_core.layout.message_id import OFFSET_ID_V4_SIZE_BYTES, OFFSET_ID_V6_SIZE_BYTES
from store_core.read.query import KeyQuery, query_key
from store_core.read.records import read_message
from store_core.storage.store import Store

_OFFSET_DIGITS: Final = 19  # of the largest offset
_ID_DIGITS: Final = (2 * OFFSET_ID_V4_SIZE_BYTES, 2 * OFFSET_ID_V6_SIZE_BYTES)


def find_message(store: Store, identifier: str, topic: str | None = None) -> Message | None:
    """The message that ``identifier`` names; the newest of several, None if there is none.

    A decimal number is an offset in the log, with zeros in front too, as in a segment's name. With a topic, anything longer
    than an offset or of other characters is first taken for a unique key of it (from the index where that can tell, else
    from the log). 32 or 56 hex digits are an offset message id; as in a broker its host is not compared.
    """
    if topic is not None and not (_is_decimal(identifier) and len(identifier) <= _OFFSET_DIGITS):
        answer = query_key(store, KeyQuery(topic, identifier, "unique", limit=1))
        if answer.messages:
            return answer.messages[-1]
    if _is_offset(identifier):
        offset = identifier.lstrip("0") or "0"
        return read_message(store.log, int(offset)) if len(offset) <= _OFFSET_DIGITS else None
    offset_id = parse_offset_message_id(identifier)
    return None if offset_id is None else read_message(store.log, offset_id.phy_offset)


def is_id(identifier: str) -> bool:
    """Whether a text has the form of what names a message without a topic: an offset, or an offset message id."""
    return _is_offset(identifier) or (len(identifier) in _ID_DIGITS and all(digit in hexdigits for digit in identifier))


def _is_offset(text: str) -> bool:
    return _is_decimal(text) and len(text) not in _ID_DIGITS


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit()
