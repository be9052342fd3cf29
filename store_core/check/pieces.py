"""Choose the parts of the log for a verification: all of it, a range, or a random share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store_core.errors import UsageError
from store_core.kernel.codes import FrameKind, ScanFlag
from store_core.layout import record
from store_core.scan.runs import RunOptions, Runs, scan_runs
from store_core.scan.windows import Piece, nominal_end
from store_core.storage.sequence import Segment
from store_core.storage.store import Store

_SAMPLE_SIZE_BYTES: Final = 16 << 20  # much longer than a record, so the cut records at its edges matter little
_LEAST_SAMPLE_SIZE_BYTES: Final = 64 << 10
_LEAST_SAMPLES: Final = 64  # windows of a log, if all were chosen
_FRAMES: Final = (FrameKind.MESSAGE, FrameKind.BLANK)
# In a piece that starts inside a record, the record's rest looks like damage.
_LONGEST_REST_BYTES: Final = record.DEFAULT_MAX_MESSAGE_SIZE_BYTES + record.RECORD_OVERHEAD_LIMIT_BYTES


def whole_log(store: Store) -> list[Piece]:
    """Return a piece for each segment."""
    return [Piece(segment, segment.phy_offset, nominal_end(store.log, segment), True) for segment in store.log.segments]


def log_range(store: Store, from_phy_offset: int | None, to_phy_offset: int | None) -> list[Piece]:
    """Return pieces with the frames whose first byte lies in [from, to).

    A walk from its segment's start finds the first frame. Raises UsageError for a range outside the log.
    """
    pieces = []
    is_inside = not store.log.segments
    for whole in whole_log(store):
        start = max(whole.from_phy_offset, from_phy_offset or 0)
        stop = whole.to_phy_offset if to_phy_offset is None else min(whole.to_phy_offset, to_phy_offset)
        if start >= stop:
            continue
        is_inside = True
        if start > whole.from_phy_offset:
            start, chained = _first_frame(store, whole.segment, start)
            pieces += [Piece(whole.segment, start, stop, chained)] if start < stop else []
        else:
            pieces.append(whole._replace(to_phy_offset=stop))
    if not is_inside:
        log = store.log
        span = f"from {log.min_phy_offset} to {nominal_end(log, log.segments[-1])}"
        raise UsageError("the range is outside the log", to_do=f"the log reaches {span}")
    return pieces


def _first_frame(store: Store, segment: Segment, phy_offset: int) -> tuple[int, bool]:
    """Return the start of the first frame at or after an offset, and whether another frame ends there."""
    end, chained = phy_offset, False
    walk = Piece(segment, segment.phy_offset, phy_offset, True)
    for runs in scan_runs(store, walk, RunOptions(flags=ScanFlag(0))):
        end, chained = runs.end_phy_offset, runs.rows[-1].kind in _FRAMES
    return (max(end, phy_offset), True) if chained else (phy_offset, False)


def random_pieces(store: Store, share: float, seed: int | None = None) -> list[Piece]:
    """Return random windows of the log, together about ``share`` (above 0, at most 1) of it and at least one.

    Neighbours are joined. ``seed`` makes the choice repeatable. Raises UsageError for a share out of range.
    """
    from random import Random  # a check of the whole log does not need it

    if not 0 < share <= 1:
        raise UsageError(f"a share of {share:.3%} is no sample", to_do="give more than 0% and at most 100%")
    size = min(max(store.log.size_bytes // _LEAST_SAMPLES, _LEAST_SAMPLE_SIZE_BYTES), _SAMPLE_SIZE_BYTES)
    windows = [
        Piece(whole.segment, start, min(start + size, whole.to_phy_offset), start == whole.from_phy_offset)
        for whole in whole_log(store)
        for start in range(whole.from_phy_offset, whole.to_phy_offset, size)
    ]
    count = min(len(windows), max(1, round(share * len(windows))))
    chosen = sorted(Random(seed).sample(range(len(windows)), count))
    pieces: list[Piece] = []
    for window in (windows[number] for number in chosen):
        last = pieces[-1] if pieces else None
        if last is not None and last.segment is window.segment and last.to_phy_offset == window.from_phy_offset:
            pieces[-1] = last._replace(to_phy_offset=window.to_phy_offset)
        else:
            pieces.append(window)
    return pieces


def without_rest(piece: Piece, parts: Iterator[Runs]) -> Iterator[Runs]:
    """Yield the rows of a piece without the bytes before its first frame, where they may be a record's rest."""
    held: list[Runs] = []
    for runs in parts:
        first = next((number for number, row in enumerate(runs.rows) if row.kind in _FRAMES), None)
        if first is None:
            held.append(runs)
            continue
        if runs.rows[first].phy_offset - piece.from_phy_offset > _LONGEST_REST_BYTES:
            yield from held
        elif first:
            runs = Runs(runs.rows[first:], runs.message_count)
        yield runs
        yield from parts
        return
    if held and (
        held[-1].end_phy_offset - piece.from_phy_offset > _LONGEST_REST_BYTES
        or all(row.kind == FrameKind.ZEROS for runs in held for row in runs.rows)
    ):
        yield from held
