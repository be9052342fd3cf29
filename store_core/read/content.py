"""Filter messages by content: key, tags, properties, body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from store_core.codec.compression import BodyError, decompress
from store_core.codec.record import Message
from store_core.read.tags import TagFilter


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
