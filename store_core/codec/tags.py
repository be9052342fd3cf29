"""Compute Java's string hash and what follows from it: order of properties, tags codes, index key hashes (store format, sections 4, 6.2, 7.2, 7.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import mul
from struct import unpack
from typing import Final

from store_core.codec.properties import KEYS, TAGS, UNIQ_KEY, split_keys
from store_core.codec.text import decode_text
from store_core.layout import index

_INDEXED: Final = {name.encode() for name in (KEYS, TAGS, UNIQ_KEY)}
_WORD: Final = 1 << 32
_SIGN: Final = 1 << 31
_POWERS: Final = tuple(pow(31, exponent, _WORD) for exponent in range(256))


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, wrapped to a signed 32-bit number."""
    units: Sequence[int] = text.encode() if text.isascii() else _utf16_units(text)
    value = 0
    for start in range(0, len(units), len(_POWERS)):  # mostly one pass: a sum of products is faster than a loop
        part = units[start : start + len(_POWERS)]
        value = value * pow(31, len(part), _WORD) + sum(map(mul, reversed(part), _POWERS))
    value %= _WORD
    return value - _WORD if value & _SIGN else value


def _utf16_units(text: str) -> Sequence[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(raw) // 2}H", raw)


def in_java_order(properties: Mapping[str, str], first_size: int) -> dict[str, str]:
    """Return the entries in the order of a Java hash map that started with ``first_size`` places.

    Equal places keep the order of arrival, which is that of ``properties``.
    """
    places = first_size
    while len(properties) > places * 3 // 4:
        places *= 2

    def place(name: str) -> int:
        value = java_hash(name) % _WORD
        return (value ^ value >> 16) & (places - 1)

    return dict(sorted(properties.items(), key=lambda pair: place(pair[0])))


def tags_code(tags: str | None) -> int:
    """Return the tags code of a queue entry for a ``TAGS`` value: the hash of the whole text, 0 without one."""
    return java_hash(tags) if tags else 0


def index_text_hash(text: str) -> int:
    """Return the index's hash of a whole key text. It is never negative; the smallest integer has no absolute value and gives 0."""
    value = abs(java_hash(text))
    return 0 if value == _SIGN else value


def index_text(topic: str, key: str) -> str:
    """Return the key text under which a topic's key is indexed."""
    return f"{topic}{index.KEY_SEPARATOR}{key}"


def index_key_hash(topic: str, key: str) -> int:
    """Return the index's hash of a key of a topic."""
    return index_text_hash(index_text(topic, key))


def index_texts(
    topic: str, properties: Mapping[str, str], with_tags: bool = False, *, with_keys: bool = True
) -> list[str]:
    """Return the key texts that a broker indexes for a record, in order, with repeats.

    These are ``UNIQ_KEY``, each of ``KEYS``, and with ``with_tags`` (5.4.0) the tag entry. The caller decides whether a record is indexed at all (a
    ROLLBACK is not).
    """
    texts = []
    if with_keys and (unique_key := properties.get(UNIQ_KEY)):
        texts.append(index_text(topic, unique_key))
    if with_keys:
        texts += [index_text(topic, key) for key in split_keys(properties.get(KEYS))]
    if with_tags and (tags := properties.get(TAGS)):
        texts.append(f"{topic}{index.TAG_MARK}{tags}")
    return texts


def index_key_hashes(
    topic: bytes, properties: Mapping[bytes, bytes], *, with_keys: bool = True, with_tags: bool = False
) -> list[int]:
    """Return the hashes of ``index_texts`` for a topic and properties as stored."""
    named = {name.decode(): decode_text(properties[name]) for name in _INDEXED & properties.keys()}
    return [index_text_hash(text) for text in index_texts(decode_text(topic), named, with_tags, with_keys=with_keys)]
