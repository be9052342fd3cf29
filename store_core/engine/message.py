"""Define a message as a producer sends it to a broker, and the broker's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from store_core.engine.record import Stored


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message of a producer.

    * ``body`` is stored unchanged, and ``sys_flag`` names its compression; None is no body at all.
    * ``queue_id`` None: a random queue, as with brokers.
    * Keys, tags and delay level are properties.
    * ``born_host`` is ``a.b.c.d:port`` or ``[v6]:port``; a born time of None is now.
    """

    topic: str
    body: bytes | None
    queue_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int | None = None
    born_host: str = "127.0.0.1:0"
    reconsume_times: int = 0


class PutStatus(StrEnum):
    """A broker's status words. Only a PUT_OK or FLUSH_DISK_TIMEOUT message is in the log."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # in the log, and not known to be on the disk
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"


@dataclass(frozen=True, slots=True)
class PutResult:
    """A broker's answer. Of a message that is not in the log ``stored`` is None and ``reason`` is set.

    ``stored`` is the record's real place: a delayed message is in a queue of the delay topic, a half message in one of the half topic.
    """

    status: PutStatus
    topic: str
    queue_id: int | None
    stored: Stored | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the document of the put command; places are null for a message that is not stored."""
        stored = self.stored
        return {
            "status": str(self.status),
            "offset_msg_id": stored.offset_msg_id if stored else None,
            "topic": stored.topic if stored else self.topic,
            "queue_id": stored.queue_id if stored else self.queue_id,
            "queue_offset": stored.queue_offset if stored else None,
            "phy_offset": stored.phy_offset if stored else None,
            "size_bytes": stored.size_bytes if stored else None,
            "store_timestamp_ms": stored.store_timestamp_ms if stored else None,
            "reason": self.reason or None,
        }
