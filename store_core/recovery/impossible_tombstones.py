"""Find tombstones with impossible numbers, for which their neighbours in the log leave no room, and remove them.

Such numbers come from damaged heads, or from queue files or folders under wrong names, as a copy or restore may leave them,
together with damage in the log (tests/recovery/test_unfounded.py). A queue built from them would leave out good messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from store_core.derive.queues import QueueBuilder
from store_core.derive.spool import RowsByQueue
from store_core.layout import paths
from store_core.recovery.damaged_region import ClosedRegion, close_region
from store_core.recovery.lost_record import LostRecord
from store_core.recovery.lost_table import Lost, Source, records_of_rows
from store_core.recovery.tombstones import TombstoneRun, can_be_told
from store_core.storage.store import QueueKey

Ints = NDArray[np.int64]


def without_unfounded(closed_regions: list[ClosedRegion], builder: QueueBuilder, rows: RowsByQueue) -> bool:
    """Close regions again without impossible tombstones and return True if there were any.

    Removed records with a readable head are still reported as lost.
    """
    closed = [closed_region for closed_region in closed_regions if closed_region.pieces]
    starts = np.array([closed_region.phy_offset for closed_region in closed], np.int64)
    ends = np.array([closed_region.end_phy_offset for closed_region in closed], np.int64)
    parts = [
        part
        for key in (builder.queue_keys() if closed else ())
        if not key.topic.startswith(paths.LMQ_PREFIX)
        for part in _unfounded(_numbered(key, builder, rows), starts, ends)
    ]
    if not parts:
        return False
    places = np.sort(np.concatenate(parts))
    for index, closed_region in enumerate(closed_regions):
        low, high = np.searchsorted(places, [closed_region.phy_offset, closed_region.end_phy_offset])
        if closed_region.pieces and low < high:
            closed_regions[index] = _without(closed_region, places[low:high])
    return True


def _numbered(key: QueueKey, builder: QueueBuilder, rows: RowsByQueue) -> Iterator[tuple[Ints, Ints]]:
    """Yield offsets and numbers of a queue's records in log order; -1 if the builder leaves one out."""
    misnumbered = builder.summary(key).misnumbered
    odd = np.array([item.row for item in misnumbered], np.int64)
    placed = np.array([-1 if item.placed_at is None else item.placed_at for item in misnumbered], np.int64)
    first = 0
    for chunk in rows.rows(key):
        numbers = chunk["queue_offset"].astype(np.int64)
        run = np.cumsum(np.r_[0, np.diff(numbers) != 1])
        here = (odd >= first) & (odd < first + len(chunk))
        at, now = odd[here] - first, placed[here]
        numbers[at[now >= 0]] = now[now >= 0]
        numbers[np.isin(run, run[at[now < 0]])] = -1
        yield chunk["phy_offset"].astype(np.int64), numbers
        first += len(chunk)


def _unfounded(chunks: Iterable[tuple[Ints, Ints]], starts: Ints, ends: Ints) -> Iterator[Ints]:
    """Yield offsets of tombstones, which lie in [starts, ends), whose numbers their neighbours rule out."""
    before: int | None = None
    held: list[tuple[Ints, Ints]] = []  # tombstones after it
    for places, numbers in chunks:
        closed_region = np.searchsorted(starts, places, "right") - 1
        is_tombstone = (closed_region >= 0) & (places < ends[closed_region])
        taken = is_tombstone | (numbers >= 0)
        places, numbers, is_tombstone = places[taken], numbers[taken], is_tombstone[taken]
        for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(is_tombstone)) + 1):
            if not len(run):
                continue
            if is_tombstone[run[0]]:
                held.append((places[run], numbers[run]))
                continue
            yield from _ruled_out(held, before, int(numbers[run[0]]))
            before, held = int(numbers[run[-1]]), []
    yield from _ruled_out(held, before, None)


def _ruled_out(held: Sequence[tuple[Ints, Ints]], before: int | None, after: int | None) -> Iterator[Ints]:
    for places, numbers in held:
        fits = numbers >= 0
        if before is None:
            pass  # good messages after them count anyway
        elif after is None:
            fits &= numbers > before
        elif after > before:
            fits &= (numbers > before) & (numbers < after)
        else:  # the topic was deleted and created again in between
            fits &= (numbers > before) | (numbers < after)
        if not fits.all():
            yield places[~fits]


def _without(closed_region: ClosedRegion, places: Ints) -> ClosedRegion:
    known: list[Lost] = []
    reported: list[Lost] = []
    for piece in closed_region.pieces:
        if isinstance(piece, TombstoneRun):
            table = piece.lost.table
            for chunk in piece.lost.chunks():
                is_out = np.isin(chunk["phy_offset"], places)
                reported += records_of_rows(table, chunk[is_out & table.told_by(chunk, Source.HEAD)])
                if not is_out.all():
                    table.add_all(known, chunk[~is_out])
        elif piece.tombstone_of is not None and piece.tombstone_of != closed_region.given_up:
            if piece.phy_offset not in places:
                known.append(piece.tombstone_of)
            elif _has_head(piece.tombstone_of):
                reported.append(piece.tombstone_of)
    still_unplaced: list[Lost] = []
    for lost in closed_region.unplaced:  # tombstones that go now may have taken their room
        has_place = isinstance(lost, LostRecord) and lost.phy_offset is not None and can_be_told(lost)
        (known if has_place else still_unplaced).append(lost)
    new_region = close_region(closed_region.region, known, property_crc=closed_region.property_crc)
    new_region.unplaced += [*still_unplaced, *reported]
    new_region.skipped = closed_region.skipped
    return new_region


def _has_head(lost: LostRecord) -> bool:
    return lost.store_timestamp_ms is not None
