"""One message by an id or an offset (store behaviour 10.1)."""

from __future__ import annotations

from typing import Final

from store_core.codec.message_id import parse_offset_message_id
from store_core.codec.record import Message
from store_core.read.query import KeyQuery, query_key
from store_core.read.records import read_message
from store_core.storage.store import Store

_OFFSET_DIGITS: Final = 19  # of the largest offset; ids are longer


def find_message(store: Store, identifier: str, topic: str | None = None) -> Message | None:
    """The message that ``identifier`` names; the newest of several, None if there is none.

    A decimal number is an offset in the log. With a topic, anything else is first taken for a unique key of it (from the
    index where that can tell, else from the log). 32 or 56 hex digits are an offset message id; as in a broker its host is
    not compared.
    """
    if _is_offset(identifier):
        return read_message(store.log, int(identifier))
    if topic is not None:
        answer = query_key(store, KeyQuery(topic, identifier, "unique", limit=1))
        if answer.messages:
            return answer.messages[-1]
    offset_id = parse_offset_message_id(identifier)
    return None if offset_id is None else read_message(store.log, offset_id.phy_offset)


def is_id(identifier: str) -> bool:
    """Whether a text can name a message without a topic: an offset in the log, or an offset message id."""
    return _is_offset(identifier) or parse_offset_message_id(identifier) is not None


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS
