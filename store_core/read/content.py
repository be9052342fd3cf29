"""Which messages pass by what they say: key, tags, properties, body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from store_core.codec.compression import BodyError, decompress
from store_core.codec.record import Message
from store_core.read.tags import TagFilter


@dataclass(frozen=True, slots=True)
class ContentFilter:
    """A message passes that has the key (of its keys, or unique), the tags and all properties, and whose plain body holds
    a match of the pattern. None and an empty mapping ask for nothing."""

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
