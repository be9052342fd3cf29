"""Damage in one copy of a log, taken from another copy: the damaged stretch alone, so that both may be damaged elsewhere.

A stretch begins and ends where frames do. It is exported again from the copies that have its segment too; what the least
damaged one gives takes the place of the damage, and what stands around it is written anew. A record that damage follows
at once is taken from there too: most of a record has no checksum, and the damage may have begun in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from store_core.check.log import MISSING, UNREADABLE
from store_core.errors import UnreadableError
from store_core.export.dest.state import HOLE, StoreState, Told
from store_core.export.log_copies import Log
from store_core.export.splits.join import Joined
from store_core.export.splits.plan import SegmentPlan, Split, Task, segments_of
from store_core.export.splits.split_task import Piece
from store_core.findings import Finding, finding
from store_core.scan.log import ScanOptions, scan_segment
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.storage.sequence import SegmentSequence
from store_core.storage.settings import Settings
from store_core.storage.store import Store

_KINDS: Final = {UNREADABLE: "unreadable", MISSING: HOLE}
_LOOKED_AT_BYTES: Final = 64 << 10
_LOOK: Final = ScanOptions(window_size_bytes=_LOOKED_AT_BYTES, read_ahead=False)


def lacks_of(findings: Sequence[Finding], next_phy_offset: int) -> tuple[Told, ...]:
    """What could not be read, or had no file, in front of where the next commit goes on: none will try again."""
    return tuple(
        Told(found.phy_offset, found.size_bytes or 0, _KINDS[found.code])
        for found in findings
        if found.code in _KINDS and found.phy_offset is not None and found.phy_offset < next_phy_offset
    )


def still_missing(store: Store, last: StoreState | None) -> Iterator[Finding]:
    """Of a hole only if there are messages by now: the quarantine table tells of others."""
    for told in last.lacks if last is not None else ():
        if told.kind != HOLE:
            code, what = UNREADABLE, "could not be read when they were exported, and are missing there"
        elif _has_messages(store, told):
            code = MISSING
            what = "had no file when they were exported; messages are there now, which the export lacks: make it anew, with --overwrite"
        else:
            continue
        yield finding(code, f"{told.size_bytes} bytes {what}", phy_offset=told.phy_offset, size_bytes=told.size_bytes)


def _has_messages(store: Store, told: Told) -> bool:
    """Whether the first bytes of one of a stretch's files hold a message that is no filler of ours."""
    end = told.phy_offset + told.size_bytes
    for segment, segment_end in segments_of(store.log, Split(told.phy_offset, end, exact=True)):
        at = max(told.phy_offset, segment.phy_offset)
        stop = min(at + _LOOKED_AT_BYTES, segment_end, end)
        with suppress(UnreadableError):
            for table in scan_segment(store, segment, _LOOK, at, stop):
                if int(table.messages.sum()) > len({*filler_rows(table), *tombstone_rows(table)}):
                    return True
    return False


_MOST_STRETCHES: Final = 64  # of a plan; with more, neighbours are taken together

_ABOUT_RECORDS: Final = ("L001", "L007", "L011", "L012")  # the frames around these are as good as any

Redo = Callable[[Task], Piece]
Stretch = tuple[int, int]  # [start, end) in the log


class _Harm(NamedTuple):
    """A stretch where so many bytes are not as they were written. ``is_range``: it begins with what is no frame, so the
    frame in front may be harmed as well."""

    start: int
    end: int
    is_range: bool
    size_bytes: int

    @classmethod
    def whole(cls, start: int, end: int, is_range: bool) -> _Harm:
        return cls(start, end, is_range, end - start)


def heal(
    plans: Sequence[SegmentPlan], joined: Sequence[list[Joined]], log: SegmentSequence, task: Task, redo: Redo
) -> tuple[list[list[Joined]], list[Stretch]]:
    """The joined pieces of all plans with damage replaced by what other copies of the log hold there, and where.

    ``task``: what all tasks of the store have in common. Where a store has no copies, all comes back as it is.
    """
    if not task.settings.copies:
        return list(joined), []
    end = task.wanted.to_phy_offset or max(
        (each.piece.next_phy_offset or 0 for found in joined for each in found), default=0
    )
    healed: list[Stretch] = []
    pieces: list[list[Joined]] = []
    for plan, found in zip(plans, joined, strict=True):
        covered = list(_coverage(plan, found))
        whole: list[tuple[Stretch, Piece]] = []
        reached = covered[0][0] if covered else 0
        for harm in _by_segment(_coarsened(_damaged(found, covered, end)), log):
            copies = list(_other_copies(harm.start, log, task.settings))
            if healing := _from_copies(harm, reached, copies, task, redo):
                whole += healing
                reached = harm.end
        healed += [stretch for stretch, _ in whole]
        pieces.append(_put_in(whole, found, covered, task, redo) if whole else found)
    return pieces, healed


def _put_in(
    healed: Sequence[tuple[Stretch, Piece]],
    joined: Sequence[Joined],
    covered: Sequence[Stretch],
    task: Task,
    redo: Redo,
) -> list[Joined]:
    """Pieces with stretches replaced; what is left of a piece is exported once more."""
    found = [(low, Joined(piece)) for (low, _), piece in healed]
    for (start, end), each in zip(covered, joined, strict=True):
        left = list(_without((start, end), [stretch for stretch, _ in healed]))
        if left == [(start, end)]:
            found.append((start, each))
            continue
        for low, high in left:
            exact = each.piece.split.exact or not each.head_counts or low > start
            found.append((low, Joined(redo(replace(task, split=Split(low, high, exact))))))
    return [each for _, each in sorted(found, key=lambda item: item[0])]


def _coverage(plan: SegmentPlan, joined: Sequence[Joined]) -> Iterator[Stretch]:
    """What each piece answers for, from its first byte that counts to the next piece's."""
    starts = [
        each.piece.split.start_phy_offset if each.head_counts else each.piece.first_phy_offset or 0 for each in joined
    ]
    yield from zip(starts, [*starts, plan.end_phy_offset][1:], strict=True)


def _damaged(joined: Sequence[Joined], covered: Sequence[Stretch], log_end: int) -> list[_Harm]:
    """All harm in order, without what lies behind the log's last frame."""
    found: list[_Harm] = []
    for each, (start, end) in zip(joined, covered, strict=True):
        for harm in _harm(each):
            low, high = max(harm.start, start), min(harm.end, end, log_end)
            if low < high:
                found.append(_Harm.whole(low, high, harm.is_range))
    return sorted(found)


def _harm(each: Joined) -> Iterator[_Harm]:
    piece = each.piece
    counts_head = each.head_counts and piece.split.exact  # else it is a run-up, or the rest of the piece in front
    for found in [*(piece.head if counts_head else ()), *piece.tail]:
        yield _Harm.whole(found.phy_offset, found.end_phy_offset, True)
    listed = [*piece.found.listed, *piece.bodies]
    for told in listed:
        if told.severity != "info" and told.phy_offset is not None and told.size_bytes:
            yield _Harm.whole(told.phy_offset, told.phy_offset + told.size_bytes, told.code not in _ABOUT_RECORDS)
    if len(listed) < sum(piece.found.counts.values()) + len(piece.bodies) + piece.bodies_beyond:
        yield _Harm.whole(piece.split.start_phy_offset, piece.next_phy_offset or piece.split.stop_phy_offset, True)


def _coarsened(harms: Sequence[_Harm]) -> list[_Harm]:
    """What touches as one, and at most so many."""
    found: list[_Harm] = []
    for harm in harms:
        if found and harm.start <= found[-1].end:
            found[-1] = _Harm.whole(found[-1].start, max(harm.end, found[-1].end), found[-1].is_range)
        else:
            found.append(harm)
    while len(found) > _MOST_STRETCHES:
        nearest = min(range(1, len(found)), key=lambda i: found[i].start - found[i - 1].end)
        one, two = found[nearest - 1 : nearest + 1]
        found[nearest - 1 : nearest + 1] = [one._replace(end=two.end, size_bytes=one.size_bytes + two.size_bytes)]
    return found


def _by_segment(harms: Sequence[_Harm], log: SegmentSequence) -> list[_Harm]:
    """The same, cut where segments begin: a copy may have one and lack the next."""
    found: list[_Harm] = []
    for harm in harms:
        starts = [segment.phy_offset for segment in log.segments if harm.start < segment.phy_offset < harm.end]
        for low, high in pairwise([harm.start, *starts, harm.end]):
            found.append(_Harm(low, high, harm.is_range, min(high - low, harm.size_bytes)))
    return found


def _from_copies(
    harm: _Harm, not_before: int, copies: Sequence[Settings], task: Task, redo: Redo
) -> list[tuple[Stretch, Piece]]:
    """A stretch as the least harmed of the other copies has it, if that is better, and what is harmed there as those that are
    left have it, in order. It may begin a record earlier."""
    best: tuple[Stretch, Piece, Settings] | None = None
    left: list[_Harm] = []
    least_bytes = harm.size_bytes
    for settings in copies:
        low = _record_in_front(settings, harm.start, not_before) if harm.is_range else harm.start
        piece = redo(replace(task, settings=settings, split=Split(low, harm.end, exact=True)))
        harms = _coarsened(sorted(_harm(Joined(piece))))
        harmed_bytes = sum(each.size_bytes for each in harms)
        if harmed_bytes < least_bytes and (piece.next_phy_offset or 0) <= harm.end:
            best, least_bytes, left = ((low, harm.end), piece, settings), harmed_bytes, harms
        if not least_bytes:
            break
    if best is None:
        return []
    stretch, piece, chosen = best
    others = [settings for settings in copies if settings is not chosen]
    inner: list[tuple[Stretch, Piece]] = []
    for each in left if others else ():
        low, high = max(each.start, stretch[0]), min(each.end, stretch[1])
        if low < high:
            reached = inner[-1][0][1] if inner else stretch[0]
            inner += _from_copies(_Harm.whole(low, high, each.is_range), reached, others, task, redo)
    if not inner:
        return [(stretch, piece)]
    rest = _without(stretch, [healed for healed, _ in inner])
    outer = [(part, redo(replace(task, settings=chosen, split=Split(*part, exact=True)))) for part in rest]
    return sorted([*outer, *inner], key=lambda healed: healed[0])


def _record_in_front(settings: Settings, phy_offset: int, not_before: int) -> int:
    """Where a copy's record begins that ends at an offset; the offset itself where it cannot be told."""
    with Store(settings) as store:
        segment = store.log.find(phy_offset)
        at = Log(store).frame_up_to(phy_offset)
    first = max(not_before, segment.phy_offset if segment is not None else phy_offset)
    return at if at is not None and at >= first else phy_offset


def _other_copies(phy_offset: int, log: SegmentSequence, settings: Settings) -> Iterator[Settings]:
    """Settings with which an offset's segment is read from another copy that has it."""
    segment = log.find(phy_offset)
    for stray in log.strays if segment is not None else ():
        if segment is not None and stray.duplicate_of == segment.path:
            yield replace(settings, choices={**settings.choices, segment.phy_offset: stray.path.parent})


def _without(whole: Stretch, holes: Sequence[Stretch]) -> Iterator[Stretch]:
    at, end = whole
    for low, high in holes:
        if low < end and high > at:
            if at < low:
                yield at, low
            at = max(at, high)
    if at < end:
        yield at, end
