"""Describe runs of lost messages, for reports of losses in the log and of losses by a broker's start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MOST_KEYS_PER_RUN: Final = 10


@dataclass(frozen=True, slots=True)
class LostRun:
    """Messages of one queue with consecutive queue offsets. All but ``size_bytes`` are None if unknown.

    ``keys`` are the first few known ones.
    """

    topic: str | None
    queue_id: int | None
    first_queue_offset: int | None
    last_queue_offset: int | None
    messages: int | None
    size_bytes: int
    keys: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return a member of ``lost`` in the command line's contract."""
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "first_queue_offset": self.first_queue_offset,
            "last_queue_offset": self.last_queue_offset,
            "messages": self.messages,
            "bytes": self.size_bytes,
            "keys": list(self.keys),
        }
