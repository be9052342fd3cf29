"""Define the outcome of a broker's start: OUTCOME of the command line's contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store_core.broker.dispatch import EarlyDelivery
from store_core.recovery.lost_record import LostRun


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """The queue offsets [min_offset, max_offset) that consumers reach."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class ResurrectedRecord:
    """An old record of the log, or entry of a queue, that a start takes for new. ``kind``: ``record`` or ``entry``."""

    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    size_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "phy_offset": self.phy_offset,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The store after a broker has started and its dispatch has caught up, before any expiry.

    * ``starts`` is False if loading fails or the start never returns; ``reason`` then says why. Nothing is lost then, except
      if an index file is refused: log and queues are recovered and cut before that, so all fields are as after a start.
    * ``queue_error``: the reason for which the broker starts, but refuses every message and adds no queue entry until its
      next start: it met a message whose queue it cannot make.
    * ``index_files``: the old ones that survive; ``index_rebuilt``: entries are added to the index. File lists hold names.
    * ``lost_messages``: messages in the log before the start that no consumer gets afterwards, because the log is cut before
      them, or because they have no entry in their queue between its min and max. ``lost`` are the same in runs.
    * ``thrown_away``: those of them that are readable before the start.

    A message is a record of transaction type none or commit, as ``scan_log`` reads it: also after damage, and also with a
    damaged body if its head is whole. Not counted are stale records, topics that were deleted (no configuration and no queue
    folder), and older generations of a topic that was created again.
    """

    starts: bool
    reason: str = ""
    queue_error: str = ""
    recovery: str = "normal"
    first_file_scanned: str | None = None
    max_phy_offset: int | None = None
    min_phy_offset: int | None = None
    commitlog_files: tuple[str, ...] = ()
    deleted_commitlog_files: tuple[str, ...] = ()
    index_files: tuple[str, ...] = ()
    deleted_index_files: tuple[str, ...] = ()
    index_rebuilt: bool = False
    queues: Mapping[str, Mapping[int, QueueSpan]] = field(default_factory=dict)
    lost_messages: int = 0
    lost: tuple[LostRun, ...] = ()
    thrown_away_messages: int = 0
    thrown_away: tuple[LostRun, ...] = ()
    delivered_early: tuple[EarlyDelivery, ...] = ()
    ghosts: tuple[ResurrectedRecord, ...] = ()

    @property
    def is_loss(self) -> bool:
        """True if a broker does not start, or refuses messages, or messages are lost."""
        return not self.starts or bool(self.queue_error) or bool(self.lost_messages)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form of OUTCOME."""
        return {
            "starts": self.starts,
            "reason": self.reason or None,
            "queue_error": self.queue_error or None,
            "recovery": self.recovery,
            "first_file_scanned": self.first_file_scanned,
            "max_phy_offset": self.max_phy_offset,
            "min_phy_offset": self.min_phy_offset,
            "commitlog_files": list(self.commitlog_files),
            "deleted_commitlog_files": list(self.deleted_commitlog_files),
            "index_files": list(self.index_files),
            "deleted_index_files": list(self.deleted_index_files),
            "index_rebuilt": self.index_rebuilt,
            "queues": {
                topic: {
                    str(queue_id): {"min_offset": span.min_offset, "max_offset": span.max_offset}
                    for queue_id, span in spans.items()
                }
                for topic, spans in self.queues.items()
            },
            "lost_messages": self.lost_messages,
            "lost": [run.as_json() for run in self.lost],
            "delivered_early": [
                {
                    "topic": early.topic,
                    "queue_id": early.queue_id,
                    "queue_offset": early.queue_offset,
                    "phy_offset": early.phy_offset,
                    "delay_level": early.delay_level,
                }
                for early in self.delivered_early
            ],
            "ghosts": [ghost.as_json() for ghost in self.ghosts],
        }
