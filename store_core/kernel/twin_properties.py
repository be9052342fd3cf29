"""Property strings, Java's string hash and index keys (store format, sections 4, 6.2 and 7.3)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from functools import lru_cache
from operator import mul
from typing import Final

from store_core.kernel import codes
from store_core.kernel.codes import PARTED_VALUES, PROPERTY_NAMES, SCHEDULE_TOPIC, PropertyFlag
from store_core.layout import index, record

_NAME_VALUE_SEPARATOR: Final = bytes([record.NAME_VALUE_SEPARATOR])
_PROPERTY_SEPARATOR: Final = bytes([record.PROPERTY_SEPARATOR])
_INTEGER: Final = re.compile(rb"[+-]?0*[0-9]{1,10}")
_ANY_INTEGER: Final = re.compile(rb"[+-]?0{0,4000}[0-9]{1,19}")
_INT_MAX: Final = 0x7FFFFFFF
_POWERS_OF_31: Final = [1]  # wrapped to 32 bits; grows with the longest text
# A surrogate in three bytes, or cut short: Java makes one U+FFFD of it, Python one of each byte.
_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_ENCODED_REPLACEMENT: Final = "\ufffd".encode()


def known_properties(properties: bytes, *, drops_parted: bool = False) -> dict[PropertyFlag, bytes]:
    """The values of the properties the kernel knows.

    Name and value are never empty and the first 0x01 parts them, which also drops every segment shorter than three
    characters. Of two of a name the last counts. Both separators are ASCII, so bytes can be split before decoding.
    ``drops_parted``: as releases before 4.9.1, to whom a property with another 0x01 in front of its last letter is none.
    """
    values = {}
    for segment in properties.split(_PROPERTY_SEPARATOR):
        name, _, value = segment.partition(_NAME_VALUE_SEPARATOR)
        if drops_parted:
            value = value.rstrip(_NAME_VALUE_SEPARATOR)
            if _NAME_VALUE_SEPARATOR in value:
                continue
        if value and name in PROPERTY_NAMES:
            values[PROPERTY_NAMES[name]] = value
    return values


def has_parted_value(values: dict[PropertyFlag, bytes]) -> bool:
    """Whether releases before 4.9.1 make something else of values that a queue entry or index keys are made of."""
    return any(_NAME_VALUE_SEPARATOR in values.get(flag, b"") for flag in PARTED_VALUES)


def has_bad_level(topic: bytes, properties: bytes, *, drops_parted: bool = False) -> bool:
    """Whether the level of a delayed message is no number, at which a broker's record check fails (behaviour 3.1)."""
    if topic != SCHEDULE_TOPIC:
        return False
    level = known_properties(properties, drops_parted=drops_parted).get(PropertyFlag.DELAY)
    return level is not None and java_number(level, 32) is None


def has_bad_batch(properties: bytes) -> bool:
    """Whether first number or count of an inner batch is none, at which the record check of 5.x fails (behaviour 3.1)."""
    if codes.INNER_NUM not in properties:
        return False
    base, count = last_value(properties, codes.INNER_BASE), last_value(properties, codes.INNER_NUM)
    if base is None or count is None:
        return False
    return java_number(base[1], 64) is None or java_number(count[1], 16) is None


def last_value(properties: bytes, name: bytes) -> tuple[int, bytes] | None:
    """Where in a property string the value of a property begins, of which the last counts, and the value; None without one."""
    end = len(properties)
    for segment in reversed(properties.split(_PROPERTY_SEPARATOR)):
        found, _, value = segment.partition(_NAME_VALUE_SEPARATOR)
        if found == name and value:
            return end - len(value), value
        end -= len(segment) + 1
    return None


def java_number(text: bytes | str | None, bits: int) -> int | None:
    """The number of so many bits that Java makes of a text; None where it makes none."""
    raw = text.encode() if isinstance(text, str) else text or b""
    number = int(raw) if _ANY_INTEGER.fullmatch(raw) else None
    return number if number is not None and -(1 << bits - 1) <= number < 1 << bits - 1 else None


def decode_java(text: bytes) -> str:
    """UTF-8 to text as Java does it, with U+FFFD for what is malformed."""
    if not text.isascii():
        text = _ENCODED_SURROGATE.sub(_ENCODED_REPLACEMENT, text)
    return text.decode("utf-8", "replace")


def java_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 units, as a signed 32-bit number."""
    units = text.encode() if text.isascii() else array("H", text.encode("utf-16", "surrogatepass"))[1:]
    while len(_POWERS_OF_31) < len(units):
        _POWERS_OF_31.append(_POWERS_OF_31[-1] * 31 & 0xFFFFFFFF)
    value: int = sum(map(mul, reversed(units), _POWERS_OF_31)) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


@lru_cache(maxsize=1024)
def tags_code(tags: bytes) -> int:
    """What a queue entry holds for these tags."""
    return java_hash(decode_java(tags))


def derived_columns(topic: bytes, values: dict[PropertyFlag, bytes]) -> tuple[int, int, int]:
    """The columns ``tags_code``, ``delay_level`` and ``property_flags`` of a record with these properties."""
    code = tags_code(values[PropertyFlag.TAGS]) if PropertyFlag.TAGS in values else 0
    delay = values.get(PropertyFlag.DELAY) if topic == SCHEDULE_TOPIC else None
    return code, delay_level(delay) if delay else 0, sum(values)


def delay_level(value: bytes) -> int:
    """The DELAY property as a level; 0 when it is no positive int."""
    level = int(value) if _INTEGER.fullmatch(value) else 0
    return level if 0 < level <= _INT_MAX else 0


def _index_hash(key: str) -> int:
    """The hash an index file stores: never negative, and 0 for the one value without a positive counterpart."""
    value = abs(java_hash(key))
    return value if value <= _INT_MAX else 0


def key_hashes(topic: bytes, values: dict[PropertyFlag, bytes]) -> Iterator[int]:
    """Index hashes of UNIQ_KEY, then of every key in KEYS (store format 7.3)."""
    prefix = decode_java(topic) + index.KEY_SEPARATOR
    if PropertyFlag.UNIQ_KEY in values:
        yield _index_hash(prefix + decode_java(values[PropertyFlag.UNIQ_KEY]))
    for key in values.get(PropertyFlag.KEYS, b"").split(codes.KEY_SEPARATOR):
        if key:
            yield _index_hash(prefix + decode_java(key))


def tag_hashes(topic: bytes, values: dict[PropertyFlag, bytes]) -> Iterator[int]:
    """The index hash of TAGS that 5.4.0 adds."""
    if PropertyFlag.TAGS in values:
        yield _index_hash(decode_java(topic) + index.TAG_MARK + decode_java(values[PropertyFlag.TAGS]))
