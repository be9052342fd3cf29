"""What is lost, as people read it: runs of messages by queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from store_core.mend.salvage.survey import LostRecord, Region

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
    groups: list[list[LostRecord]] = []
    for record in ordered:
        last = groups[-1][-1] if groups else None
        joins = last is not None and (last.topic, last.queue_id, _end(last)) == (
            record.topic,
            record.queue_id,
            record.queue_offset,
        )
        if joins:
            groups[-1].append(record)
        else:
            groups.append([record])
    runs = [_run(group) for group in groups]
    runs += [LostRun(None, None, None, None, None, region.size_bytes) for region in unknown]
    return runs


def _end(record: LostRecord) -> int:
    return record.queue_offset + record.batch_size


def _run(found: list[LostRecord]) -> LostRun:
    keys = tuple(dict.fromkeys(key for record in found for key in record.keys))[:MOST_KEYS_PER_RUN]
    return LostRun(
        found[0].topic,
        found[0].queue_id,
        found[0].queue_offset,
        _end(found[-1]) - 1,
        sum(record.batch_size for record in found),
        sum(record.size_bytes for record in found),
        keys,
    )
