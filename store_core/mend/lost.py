"""What is lost, as people read it: runs of messages by queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from store_core.mend.survey import LostRecord, Region

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


def lost_runs(records: Iterable[LostRecord], unknown: Iterable[Region] = ()) -> list[LostRun]:
    """Group lost records by queue and consecutive numbers, and add a run of nothing known for each other region."""
    ordered = sorted(set(records), key=lambda r: (r.topic, r.queue_id, r.queue_offset, r.phy_offset or 0))
    runs = []
    # Consecutive numbers differ from their place in the list by the same amount.
    for _, group in groupby(enumerate(ordered), lambda p: (p[1].topic, p[1].queue_id, p[1].queue_offset - p[0])):
        found = [record for _, record in group]
        keys = tuple(dict.fromkeys(key for record in found for key in record.keys))[:MOST_KEYS_PER_RUN]
        runs.append(
            LostRun(
                found[0].topic,
                found[0].queue_id,
                found[0].queue_offset,
                found[-1].queue_offset,
                len(found),
                sum(record.size_bytes for record in found),
                keys,
            )
        )
    runs += [LostRun(None, None, None, None, None, region.size_bytes) for region in unknown]
    return runs
