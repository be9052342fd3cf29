"""Apply subscription expressions over tags as a broker and then its client do (store behaviour, section 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
