"""Filter messages by content: key, tags, properties, body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from store_core.codec.compression import BodyError, decompress
from store_core.codec.record import Message
from store_core.codec.tags import java_hash

EVERYTHING: Final = "*"
_OR: Final = "||"
_WORD_MASK: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A subscription expression such as ``A || B``. The broker compares the low 32 bits of the tags code, the client the text."""

    tags: frozenset[str]
    hashes: frozenset[int]

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter | None:
        """Return the filter of an expression; None if every message passes."""
        text = (expression or EVERYTHING).strip()
        if text in ("", EVERYTHING):
            return None
        tags = frozenset(tag for part in text.split(_OR) if (tag := part.strip()))
        return cls(tags, frozenset(java_hash(tag) & _WORD_MASK for tag in tags))

    def may_match(self, tags_code: int) -> bool:
        """Return the broker's test of a queue entry."""
        return tags_code & _WORD_MASK in self.hashes

    def matches(self, tags: str | None) -> bool:
        """Return the client's test of a message."""
        return tags in self.tags


@dataclass(frozen=True, slots=True)
class ContentFilter:
    """Conditions on a message's content; None and an empty mapping are no condition.

    A message passes if all of these hold:

    * ``key`` is its unique key or one of its keys;
    * it has the tags and all the properties;
    * its plain body has a match of the pattern.
    """

    key: str | None = None
    tags: TagFilter | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    body: re.Pattern[bytes] | None = None

    def __bool__(self) -> bool:
        return self != ContentFilter()

    def matches(self, message: Message) -> bool:
        """Return True if a message passes. The body of a record that cannot be decompressed is searched as stored."""
        if self.key is not None and self.key != message.unique_key and self.key not in message.keys:
            return False
        if self.tags is not None and not self.tags.matches(message.tags):
            return False
        if any(message.properties.get(name) != value for name, value in self.properties.items()):
            return False
        return self.body is None or self.body.search(_plain(message)) is not None


def _plain(message: Message) -> bytes:
    try:
        return decompress(message.body, message.sys_flag)
    except BodyError:
        return message.body
