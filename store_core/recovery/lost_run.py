"""What is lost of a queue, as people read it, whether a start would lose it or nobody can read it any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MOST_KEYS_PER_RUN: Final = 10


@dataclass(frozen=True, slots=True)
class LostRun:
    """Messages of one queue with consecutive queue offsets. All but ``size_bytes`` are None where nobody can know.

    ``keys`` are the first few that are known.
    """

    topic: str | None
    queue_id: int | None
    first_queue_offset: int | None
    last_queue_offset: int | None
    messages: int | None
    size_bytes: int
    keys: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """A member of ``lost`` in the command line's contract."""
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "first_queue_offset": self.first_queue_offset,
            "last_queue_offset": self.last_queue_offset,
            "messages": self.messages,
            "bytes": self.size_bytes,
            "keys": list(self.keys),
        }
