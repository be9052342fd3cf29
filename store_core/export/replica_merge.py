"""Replace damaged ranges of a log with the same ranges of another copy.

Only the damaged range is replaced, so both copies may be damaged elsewhere. A range starts and ends where frames do.
It is exported again from every copy that has its segment. The result of the least damaged copy replaces the damage,
and the rows around it are written again. A record that damage follows at once is replaced too: most of a record has
no checksum, and the damage may have started inside it.
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
from store_core.export.splits.join import Joined
from store_core.export.splits.plan import SegmentPlan, Split, Task, segments_of
from store_core.export.splits.split_task import Piece
from store_core.findings import Finding, finding
from store_core.read.log_copies import Log, parts_outside
from store_core.scan.log import ScanOptions, scan_segment
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.storage.sequence import SegmentSequence
from store_core.storage.settings import Settings
from store_core.storage.store import Store

_KINDS: Final = {UNREADABLE: "unreadable", MISSING: HOLE}
_LOOKED_AT_BYTES: Final = 64 << 10
_LOOK: Final = ScanOptions(window_size_bytes=_LOOKED_AT_BYTES)


def lacks_of(findings: Sequence[Finding], next_phy_offset: int) -> tuple[Told, ...]:
    """Return ranges before the next commit's start that were unreadable or had no file.

    No later commit reads them.
    """
    return tuple(
        Told(found.phy_offset, found.size_bytes or 0, _KINDS[found.code])
        for found in findings
        if found.code in _KINDS and found.phy_offset is not None and found.phy_offset < next_phy_offset
    )


def still_missing(store: Store, last: StoreState | None) -> Iterator[Finding]:
    """Yield findings for ranges that earlier commits lack.

    A hole is reported only if messages are stored there by now: the quarantine table lists the other holes.
    """
    for lacking in last.lacks if last is not None else ():
        if lacking.kind != HOLE:
            code, text = UNREADABLE, "could not be read when they were exported, and are missing there"
        elif _has_messages(store, lacking):
            code = MISSING
            text = "had no file when they were exported; messages are there now, which the export lacks: make it again with --overwrite"
        else:
            continue
        yield finding(
            code, f"{lacking.size_bytes} bytes {text}", phy_offset=lacking.phy_offset, size_bytes=lacking.size_bytes
        )


def _has_messages(store: Store, lacking: Told) -> bool:
    """Return True if the first bytes of one of a range's files hold a message of a broker.

    Fillers and tombstones of rmqctl do not count.
    """
    end = lacking.phy_offset + lacking.size_bytes
    for segment, segment_end in segments_of(store.log, Split(lacking.phy_offset, end, exact=True)):
        at = max(lacking.phy_offset, segment.phy_offset)
        stop = min(at + _LOOKED_AT_BYTES, segment_end, end)
        with suppress(UnreadableError):
            for table in scan_segment(store, segment, _LOOK, at, stop):
                if int(table.messages.sum()) > len({*filler_rows(table), *tombstone_rows(table)}):
                    return True
    return False


_MAX_DAMAGED_RANGES: Final = 64  # of a plan; with more, neighbours are joined

_ABOUT_RECORDS: Final = ("L001", "L007", "L011", "L012")  # the frames around these are undamaged

Redo = Callable[[Task], Piece]
Stretch = tuple[int, int]  # [start, end) in the log


class _Harm(NamedTuple):
    """A range of the log and how many of its bytes are damaged.

    ``is_range``: it starts with bytes that are no frame, so the frame before it may be damaged as well.
    """

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
    """Replace damage in the joined pieces of all plans with the same ranges of other copies.

    ``task`` has the fields that all tasks of the store share. Without copies the pieces are returned unchanged.

    Returns:
        The pieces of each plan, and the ranges that were replaced.
    """
    if not task.settings.copies:
        return list(joined), []
    end = task.wanted.to_phy_offset or max(
        (piece_of_plan.piece.next_phy_offset or 0 for found in joined for piece_of_plan in found), default=0
    )
    healed: list[Stretch] = []
    pieces: list[list[Joined]] = []
    for plan, found in zip(plans, joined, strict=True):
        covered = list(_coverage(plan, found))
        replaced: list[tuple[Stretch, Piece]] = []
        reached = covered[0][0] if covered else 0
        for harm in _by_segment(_coarsened(_damaged(found, covered, end)), log):
            copies = list(_other_copies(harm.start, log, task.settings))
            if healing := _from_copies(harm, reached, copies, task, redo):
                replaced += healing
                reached = harm.end
        healed += [stretch for stretch, _ in replaced]
        pieces.append(_with_replaced(replaced, found, covered, task, redo) if replaced else found)
    return pieces, healed


def _with_replaced(
    healed: Sequence[tuple[Stretch, Piece]],
    joined: Sequence[Joined],
    covered: Sequence[Stretch],
    task: Task,
    redo: Redo,
) -> list[Joined]:
    """Return the pieces with ranges replaced; the remaining parts of a piece are exported once more."""
    found = [(low, Joined(piece)) for (low, _), piece in healed]
    for (start, end), piece_of_range in zip(covered, joined, strict=True):
        rest = list(parts_outside((start, end), [stretch for stretch, _ in healed]))
        if rest == [(start, end)]:
            found.append((start, piece_of_range))
            continue
        for low, high in rest:
            exact = piece_of_range.piece.split.exact or not piece_of_range.head_counts or low > start
            found.append((low, Joined(redo(replace(task, split=Split(low, high, exact))))))
    return [piece_of_range for _, piece_of_range in sorted(found, key=lambda item: item[0])]


def _coverage(plan: SegmentPlan, joined: Sequence[Joined]) -> Iterator[Stretch]:
    """Yield the range that each piece covers, from its first byte that counts to the next piece's."""
    starts = [
        joined_piece.piece.split.start_phy_offset
        if joined_piece.head_counts
        else joined_piece.piece.first_phy_offset or 0
        for joined_piece in joined
    ]
    yield from zip(starts, [*starts, plan.end_phy_offset][1:], strict=True)


def _damaged(joined: Sequence[Joined], covered: Sequence[Stretch], log_end: int) -> list[_Harm]:
    """Return all damaged ranges in order, without those after the log's last frame."""
    found: list[_Harm] = []
    for joined_piece, (start, end) in zip(joined, covered, strict=True):
        for harm in _harm(joined_piece):
            low, high = max(harm.start, start), min(harm.end, end, log_end)
            if low < high:
                found.append(_Harm.whole(low, high, harm.is_range))
    return sorted(found)


def _harm(joined: Joined) -> Iterator[_Harm]:
    piece = joined.piece
    counts_head = joined.head_counts and piece.split.exact  # else its head belongs to the piece before
    for found in [*(piece.head if counts_head else ()), *piece.tail]:
        yield _Harm.whole(found.phy_offset, found.end_phy_offset, True)
    listed = [*piece.found.listed, *piece.bodies]
    for reported in listed:
        if reported.severity != "info" and reported.phy_offset is not None and reported.size_bytes:
            yield _Harm.whole(
                reported.phy_offset, reported.phy_offset + reported.size_bytes, reported.code not in _ABOUT_RECORDS
            )
    if len(listed) < sum(piece.found.counts.values()) + len(piece.bodies) + piece.bodies_beyond:
        yield _Harm.whole(piece.split.start_phy_offset, piece.next_phy_offset or piece.split.stop_phy_offset, True)


def _coarsened(harms: Sequence[_Harm]) -> list[_Harm]:
    """Join ranges that touch, then the nearest neighbours until at most ``_MAX_DAMAGED_RANGES`` are left."""
    found: list[_Harm] = []
    for harm in harms:
        if found and harm.start <= found[-1].end:
            found[-1] = _Harm.whole(found[-1].start, max(harm.end, found[-1].end), found[-1].is_range)
        else:
            found.append(harm)
    while len(found) > _MAX_DAMAGED_RANGES:
        nearest = min(range(1, len(found)), key=lambda i: found[i].start - found[i - 1].end)
        first, second = found[nearest - 1 : nearest + 1]
        found[nearest - 1 : nearest + 1] = [
            first._replace(end=second.end, size_bytes=first.size_bytes + second.size_bytes)
        ]
    return found


def _by_segment(harms: Sequence[_Harm], log: SegmentSequence) -> list[_Harm]:
    """Cut the ranges where segments start: a copy may have one segment and lack the next."""
    found: list[_Harm] = []
    for harm in harms:
        starts = [segment.phy_offset for segment in log.segments if harm.start < segment.phy_offset < harm.end]
        for low, high in pairwise([harm.start, *starts, harm.end]):
            found.append(_Harm(low, high, harm.is_range, min(high - low, harm.size_bytes)))
    return found


def _from_copies(
    harm: _Harm, not_before: int, copies: Sequence[Settings], task: Task, redo: Redo
) -> list[tuple[Stretch, Piece]]:
    """Return the range as the least damaged of the other copies has it, or nothing if none is better.

    Damage in that copy is replaced from the remaining copies. The results are in log order, and the first may start a
    record earlier.
    """
    best: tuple[Stretch, Piece, Settings] | None = None
    remaining: list[_Harm] = []
    least_bytes = harm.size_bytes
    for settings in copies:
        low = _start_of_record_before(settings, harm.start, not_before) if harm.is_range else harm.start
        piece = redo(replace(task, settings=settings, split=Split(low, harm.end, exact=True)))
        harms = _coarsened(sorted(_harm(Joined(piece))))
        harmed_bytes = sum(inner_harm.size_bytes for inner_harm in harms)
        if harmed_bytes < least_bytes and (piece.next_phy_offset or 0) <= harm.end:
            best, least_bytes, remaining = ((low, harm.end), piece, settings), harmed_bytes, harms
        if not least_bytes:
            break
    if best is None:
        return []
    stretch, piece, chosen = best
    others = [settings for settings in copies if settings is not chosen]
    inner: list[tuple[Stretch, Piece]] = []
    for inner_harm in remaining if others else ():
        low, high = max(inner_harm.start, stretch[0]), min(inner_harm.end, stretch[1])
        if low < high:
            reached = inner[-1][0][1] if inner else stretch[0]
            inner += _from_copies(_Harm.whole(low, high, inner_harm.is_range), reached, others, task, redo)
    if not inner:
        return [(stretch, piece)]
    rest = parts_outside(stretch, [healed for healed, _ in inner])
    outer = [(part, redo(replace(task, settings=chosen, split=Split(*part, exact=True)))) for part in rest]
    return sorted([*outer, *inner], key=lambda healed: healed[0])


def _start_of_record_before(settings: Settings, phy_offset: int, not_before: int) -> int:
    """Return the start of the copy's record that ends at an offset; the offset itself without one."""
    with Store(settings) as store:
        segment = store.log.find(phy_offset)
        at = Log(store).frame_up_to(phy_offset)
    first = max(not_before, segment.phy_offset if segment is not None else phy_offset)
    return at if at is not None and at >= first else phy_offset


def _other_copies(phy_offset: int, log: SegmentSequence, settings: Settings) -> Iterator[Settings]:
    """Yield settings that read an offset's segment from another copy that has it."""
    segment = log.find(phy_offset)
    for stray in log.strays if segment is not None else ():
        if segment is not None and stray.duplicate_of == segment.path:
            yield replace(settings, choices={**settings.choices, segment.phy_offset: stray.path.parent})
