"""Segments that stand under each other's names, as a wrong copy leaves them: every record says where it belongs."""

from __future__ import annotations

from typing import NamedTuple

from store_core.mend.salvage.survey import LogSurvey
from store_core.read.records import read_message
from store_core.storage.overlay import Borrowed
from store_core.storage.store import Store


class Move(NamedTuple):
    """The segment at ``phy_offset`` holds what the file at ``from_phy_offset`` has now."""

    phy_offset: int
    from_phy_offset: int


def moves(store: Store) -> list[Move]:
    """Whole segments that would have to change places, so that their first records lie where they say; none is left out or given twice.

    Where the log lies outside the store nothing is moved.
    """
    log, size = store.log, store.log.file_size_bytes
    if not size or store.settings.outside_paths:
        return []
    belongs: dict[int, int] = {}
    for segment in log.segments:
        message = read_message(log, segment.phy_offset) if segment.size_bytes == size else None
        if message is not None and message.own_phy_offset != segment.phy_offset:
            belongs[segment.phy_offset] = message.own_phy_offset
    while True:
        targets = list(belongs.values())
        closed = {s: t for s, t in belongs.items() if t in belongs and s in targets and targets.count(t) == 1}
        if len(closed) == len(belongs):
            return [Move(target, source) for source, target in sorted(closed.items())]
        belongs = closed


def patches_of(store: Store, found: list[Move], end_phy_offset: int | None = None) -> dict[int, Borrowed]:
    """The moves as bytes that are read where they lie now, by their offset in the log; up to the log's end, if that is given."""
    size = store.log.file_size_bytes
    lengths = {m: min(size, end_phy_offset - m.phy_offset) if end_phy_offset is not None else size for m in found}
    return {
        move.phy_offset: Borrowed(0, length, log=store.log, phy_offset=move.from_phy_offset)
        for move, length in lengths.items()
        if length > 0
    }


def is_better(found: list[Move], size_bytes: int, before: LogSurvey, after: LogSurvey) -> bool:
    """Whether the log is whole where segments have changed places, and has more records that lie where they say."""
    spans = [(move.phy_offset, move.phy_offset + size_bytes) for move in found]
    torn = [r for r in after.tail if r.used_bytes]
    return (
        len(after.wrong_own_offsets) < len(before.wrong_own_offsets)
        and after.messages >= before.messages
        and not any(
            low < r.end_phy_offset and r.phy_offset < high for r in (*after.regions, *torn) for low, high in spans
        )
    )
