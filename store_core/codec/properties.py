"""Parse and format the property string of a record (store format, section 4)."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Final

from store_core.codec.text import decode_text
from store_core.layout import paths, record

_NAME_END: Final = chr(record.NAME_VALUE_SEPARATOR)
_PROPERTY_END: Final = chr(record.PROPERTY_SEPARATOR)
_RAW_NAME_END: Final = _NAME_END.encode()
_RAW_PROPERTY_END: Final = _PROPERTY_END.encode()
_INTEGER: Final = re.compile(rb"[+-]?0{0,4000}[0-9]{1,19}")

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
INNER_BASE: Final = b"INNER_BASE"
INNER_NUM: Final = b"INNER_NUM"
# Properties used in queue entries and the index; releases differ in how they read such a value with a 0x01 in it.
_INDEXED: Final = tuple(name.encode() for name in (KEYS, UNIQ_KEY, TAGS, DELAY))
_SCHEDULE_TOPIC: Final = paths.SCHEDULE_TOPIC.encode()


def parse_properties(raw: bytes) -> dict[str, str]:
    """Return a dict of names and values, as a 5.x broker or client reads the string; raises nothing.

    The last segment may lack its separator, the first 0x01 of a segment ends the name, a segment without a name or
    without a value is dropped, and the last of several equal names wins.
    """
    properties = {}
    for segment in decode_text(raw).split(_PROPERTY_END):
        name, _, value = segment.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties


def some_properties(raw: bytes, names: Container[bytes], *, drops_parted: bool = False) -> dict[bytes, bytes]:
    """Return the properties with some names as ``parse_properties`` reads them, but as stored bytes.

    ``drops_parted``: as releases before 4.9.1, which ignore a property with another 0x01 before its last letter.
    """
    found = {}
    for segment in raw.split(_RAW_PROPERTY_END):
        name, _, value = segment.partition(_RAW_NAME_END)
        if drops_parted:
            value = value.rstrip(_RAW_NAME_END)
            if _RAW_NAME_END in value:
                continue
        if value and name in names:
            found[name] = value
    return found


def last_value(raw: bytes, name: bytes) -> tuple[int, bytes] | None:
    """Return the start of a property's value in the string, and the value; None without one. The last counts."""
    end = len(raw)
    for segment in reversed(raw.split(_RAW_PROPERTY_END)):
        found, _, value = segment.partition(_RAW_NAME_END)
        if found == name and value:
            return end - len(value), value
        end -= len(segment) + 1
    return None


def has_parted_value(properties: Mapping[bytes, bytes]) -> bool:
    """Return True if releases before 4.9.1 read another value of a property used in queue entries or the index."""
    return any(_RAW_NAME_END in properties.get(name, b"") for name in _INDEXED)


def java_number(text: bytes | str | None, bits: int) -> int | None:
    """Return the number of ``bits`` bits that Java parses from a text; None where it fails."""
    raw = text.encode() if isinstance(text, str) else text or b""
    number = int(raw) if _INTEGER.fullmatch(raw) else None
    return number if number is not None and -(1 << bits - 1) <= number < 1 << bits - 1 else None


def has_bad_level(topic: bytes, raw: bytes, *, drops_parted: bool = False) -> bool:
    """Return True if a delayed message's level is no number, so that a broker's record check fails (behaviour 3.1)."""
    if topic != _SCHEDULE_TOPIC:
        return False
    level = some_properties(raw, _INDEXED, drops_parted=drops_parted).get(DELAY.encode())
    return level is not None and java_number(level, 32) is None


def has_bad_batch(raw: bytes) -> bool:
    """Return True if an inner batch's base or count is no number; the check of 5.x then fails (behaviour 3.1)."""
    if INNER_NUM not in raw:
        return False
    found = some_properties(raw, (INNER_BASE, INNER_NUM))
    return len(found) == 2 and (java_number(found[INNER_BASE], 64) is None or java_number(found[INNER_NUM], 16) is None)


def format_properties(properties: Mapping[str, str], final_separator: bool) -> bytes:
    """Return the property string of a mapping, in its order.

    ``final_separator``: the last pair is terminated too (up to 4.9.0 and from 5.2.0 on). Nothing is escaped: raises ValueError where a name or value
    holds a separator that would change how the string is read.
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
    """Return the user keys of a ``KEYS`` value, which single spaces separate; empty ones are left out."""
    return [key for key in keys.split(KEY_SEPARATOR) if key] if keys else []
