"""The property string of a record (store format, section 4)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from store_core.codec.text import decode_text
from store_core.layout import record

_NAME_END: Final = chr(record.NAME_VALUE_SEPARATOR)
_PROPERTY_END: Final = chr(record.PROPERTY_SEPARATOR)
_RAW_NAME_END: Final = _NAME_END.encode()
_RAW_PROPERTY_END: Final = _PROPERTY_END.encode()

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
FIRST_HALF_NUMBER: Final = "TRAN_PREPARED_QUEUE_OFFSET"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
KEY_SEPARATOR: Final = " "


def parse_properties(raw: bytes) -> dict[str, str]:
    """Name to value, as a 5.x broker or client reads the string; raises nothing.

    The last segment may lack its separator, the first 0x01 of a segment ends the name, a segment without a name or
    without a value is dropped, and the last of several equal names wins.
    """
    properties = {}
    for segment in decode_text(raw).split(_PROPERTY_END):
        name, _, value = segment.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties


def some_properties(raw: bytes, names: Container[bytes]) -> dict[bytes, bytes]:
    """As ``parse_properties``, those of some names alone, as stored."""
    found = {}
    for segment in raw.split(_RAW_PROPERTY_END):
        name, _, value = segment.partition(_RAW_NAME_END)
        if value and name in names:
            found[name] = value
    return found


def format_properties(properties: Mapping[str, str], final_separator: bool) -> bytes:
    """The property string of a mapping, in its order.

    ``final_separator``: whether the last pair is terminated too (up to 4.9.0 and from 5.2.0 on). Nothing is escaped:
    ValueError where a name or value holds a separator that would change how the string is read.
    """
    pairs = []
    for name, value in properties.items():
        if _NAME_END in name or _PROPERTY_END in name or _PROPERTY_END in value:
            raise ValueError(f"property {name!r} holds a separator character")
        pairs.append(f"{name}{_NAME_END}{value}")
    text = _PROPERTY_END.join(pairs)
    if final_separator and pairs:
        text += _PROPERTY_END
    return text.encode()


def split_keys(keys: str | None) -> list[str]:
    """The user keys of a ``KEYS`` value: what stands between single spaces, empty ones left out."""
    return [key for key in keys.split(KEY_SEPARATOR) if key] if keys else []
