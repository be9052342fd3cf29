"""Subscription expressions over tags, as a broker and then its client apply them (store behaviour, section 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store_core.codec.tags import java_hash

EVERYTHING: Final = "*"
_OR: Final = "||"
_WORD_MASK: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class TagFilter:
    """``A || B``, or everything. The broker compares the low 32 bits of the tags code, the client the text."""

    tags: frozenset[str]
    hashes: frozenset[int]

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter | None:
        """The filter of an expression; None where it lets everything pass."""
        text = (expression or EVERYTHING).strip()
        if text in ("", EVERYTHING):
            return None
        tags = frozenset(tag for part in text.split(_OR) if (tag := part.strip()))
        return cls(tags, frozenset(java_hash(tag) & _WORD_MASK for tag in tags))

    def may_match(self, tags_code: int) -> bool:
        """The broker's test, on the queue entry alone."""
        return tags_code & _WORD_MASK in self.hashes

    def matches(self, tags: str | None) -> bool:
        """The client's test, on the message."""
        return tags in self.tags
