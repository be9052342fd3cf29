"""Decide how far a stream may read a live log, so that it reads each record once.

A broker appends, so data that newer data follows is complete. These are settled:

* everything before a segment that has data;
* in the segment at work, a record after which the next record's head is stored;
* the newest record, once its checksum is right and its bytes have been the same for a while (its properties have no
  checksum).

In the segment at work, bytes that are no record are the tail, and the stream waits there even if whole records
follow: a broker that has cut its log leaves old records after the tail and overwrites them later. The stream
continues only if a queue has an entry for one of those records. Once the segment is full and the next one has data,
damage in it is passed as everywhere.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from store_core.errors import FailedError, UsageError
from store_core.export.source.data_loss import BRING_BACK, MISSING, Named, data_lost
from store_core.export.source.frame_bounds import (
    boundary_from,
    chain,
    ends_a_frame,
    first_frame,
    is_whole,
)
from store_core.export.source.offsets import Last, Span
from store_core.export.source.options import EARLIEST, LATEST, Start
from store_core.export.splits.chain import (
    NEAR_BYTES,
    chained_end,
    has_known_message,
    is_in_its_queue,
    is_led_to,
    last_message,
)
from store_core.export.splits.tail import last_begun, still_holds
from store_core.layout.record import HEAD, MAGIC_V1, MAGIC_V2, PREFIX
from store_core.read.records import read_store_timestamp_ms
from store_core.scan.frames import Ints
from store_core.scan.log import nominal_end
from store_core.storage.sequence import Gap, Segment, SegmentSequence
from store_core.storage.store import Store

_STEP_BYTES: Final = 16 << 20  # one step of the walk at the tail
_LOOK_BEHIND_EVERY_S: Final = 60.0
_LOOKS_AT_THE_END: Final = 3  # damage and the newest record after it each need a quiet time


@dataclass(slots=True)
class _Newest:
    """The newest record, and since when its bytes are the same."""

    phy_offset: int
    digest: int
    since_s: float


@dataclass(slots=True)
class _Stuck:
    """A place where the chain ends: since when, the last search after it, and where the chain continues."""

    since_s: float
    looked_s: float | None = None
    goes_on_at: int | None = None


class Follower:
    """Follows the log of one store; between calls it keeps only the state of the tail.

    ``passes_holes``: read on after missing segments, as where data may be lost or the reader reports holes.
    """

    def __init__(
        self,
        named: Named,
        *,
        quiet_ms: int,
        fail_on_data_loss: bool = True,
        passes_holes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._named, self._quiet_s, self._clock = named, quiet_ms / 1000, clock
        self._fail, self._passes_holes = fail_on_data_loss, passes_holes or not fail_on_data_loss
        self._newest: _Newest | None = None
        self._stuck_places: dict[int, _Stuck] = {}  # by offset
        self._last_before_offset: dict[int, Last | None] = {}  # by an offset that does not contain it
        self._last_in_span: dict[Span, Last | None] = {}  # for the newest batch
        self._messages_led_to: set[Last] = set()  # messages on the chain without a queue entry
        self._is_checked = False
        self._empty_at: int | None = None  # the stream's offset when the log was empty
        self.waits = False  # the last answer may change after a quiet time without any write

    def first(self, starting: Start) -> int:
        """Return where a stream without a checkpoint starts: a frame's start or the log's end.

        Raises StoreError, also for an offset before the log's start if data loss is to fail.
        """
        with self._open() as store:
            if starting == EARLIEST:
                return store.log.min_phy_offset
            if starting == LATEST:
                return self._reach(store, last_begun(store.log), None)
            at = max(int(starting), log_start := store.log.min_phy_offset)
            if at != int(starting) and self._fail:
                raise FailedError(
                    f"the stream is to start at {starting}, and the log of {self._named.name} begins at {log_start}",
                    path=str(self._named.settings.root),
                    to_do='give option("startingOffset", "earliest"), or failOnDataLoss false to start where the log does',
                )
            log, at_work = store.log, last_begun(store.log)
            if not log.segments:
                return at
            # The broker will still write to the segment at work and to the files made ahead.
            segment = log.find(min(at, at_work))
            if segment is None or segment.phy_offset == at:
                return at
            found = boundary_from(store, segment, segment.phy_offset, at)
            if found is None and segment.phy_offset == at_work:
                end = self._reach(store, at_work, None)
                raise UsageError(
                    f"the stream is to start at {starting}, and the log of {self._named.name} ends at {end}",
                    path=str(self._named.settings.root),
                    to_do='give option("startingOffset", "latest"), or an offset that is there',
                )
            return nominal_end(log, segment) if found is None else found

    def reach(self, start: int, most_bytes: int | None = None, last: Last | None = None) -> Span:
        """Return the next batch after ``start``: at least one record if there is any, and about ``most_bytes`` at
        most.

        It starts elsewhere only where data was lost and may be. ``last``: the last message before ``start``, as the
        checkpoint has it.

        Raises:
            FailedError: data between two batches is lost, and that is to fail.
            StoreError: the store cannot be read.
        """
        span, is_sure = self._look(start, most_bytes, last)
        if not is_sure:
            time.sleep(self._quiet_s)  # a listing taken while files come and go may lack an existing one
            span, is_sure = self._look(start, most_bytes, last)
            if not is_sure and not self._passes_holes:
                raise data_lost(self._named, span.begin, MISSING, BRING_BACK)
        return span

    def _look(self, start: int, most_bytes: int | None, last: Last | None) -> tuple[Span, bool]:
        """Return a batch, and True if nothing is missing that a second look may find."""
        with self._open() as store:
            begin = self._checked(store, start, last)
            end = max(begin, self._reach(store, begin, None if most_bytes is None else begin + most_bytes))
            if begin != start or last is None:
                known = self._last_before_offset.get(begin) or self._last_before(store, begin, 0)
                self._last_before_offset = {begin: known}
            if begin < end:
                self._last_in_span = {Span(begin, end): self._last_before(store, end, begin)}
            self._stuck_places = {at: stuck for at, stuck in self._stuck_places.items() if at >= begin}
            gap = self._gap(store.log, begin)
            is_stopped = gap is not None and (begin == end or gap.phy_offset < end)
            return Span(begin, end), begin == start and not is_stopped

    def last_in(self, span: Span, before: Last | None) -> Last | None:
        """Return the last message before a batch's end, by which the log is recognised later.

        ``before``: the last message before its start. None without one in the segment.
        """
        before = self._last_before_offset.get(span.begin) if before is None else before
        if span.begin == span.end:
            return before
        if span not in self._last_in_span:  # else ``reach`` has found it
            with self._open() as store:
                self._last_in_span = {span: self._last_before(store, span.end, span.begin)}
        return self._last_in_span[span] or before

    def check(self, span: Span, *lasts: Last | None) -> None:
        """Check that the log is still the one of which a batch was made.

        Raises FailedError if it is not and data loss is to fail, StoreError if the store cannot be read.
        """
        with self._open() as store:
            for at, last in zip(span, lasts or (None, None), strict=True):
                self._known_again(store, at, last)

    def end_now(self) -> int:
        """Return the present end of the log, after giving its last record time to prove that it stays the same."""
        end = self.first(LATEST)
        for _ in range(_LOOKS_AT_THE_END):
            if not self.waits:
                break
            time.sleep(self._quiet_s)
            end = self.first(LATEST)
        return end

    def _open(self) -> Store:
        return Store.open(self._named.settings.root, self._named.settings)

    # -- data that is lost ---------------------------------------------------------------------------------------

    def _checked(self, store: Store, start: int, last: Last | None) -> int:
        """Return ``start``, or where to continue instead of it.

        The first call checks that a frame ends there. Later calls only check that the last message before it is still
        stored; without a known message, or if it has expired, they repeat the first check.
        """
        last = self._last_before_offset.get(start) if last is None else last
        if self._empty_at is not None and store.log.segments:
            is_same = self._holds(store, last) if last is not None else self._proven(store, start) == start
            if start == self._empty_at and not is_same:
                return store.log.min_phy_offset  # another log
            self._empty_at = None
        if not self._is_checked or not _is_known(store.log, last):
            self._is_checked = True
            return self._known_again(store, start, last)
        return start if self._holds(store, last) else self._after_cut(store, self._proven(store, start))

    def _known_again(self, store: Store, start: int, last: Last | None) -> int:
        found = self._proven(store, start)
        is_cut = found == start and _is_known(store.log, last) and not self._holds(store, last)
        return self._after_cut(store, start) if is_cut else found

    def _after_cut(self, store: Store, start: int) -> int:
        """Return where to continue after a cut: records after the tail are part of the log no more."""
        self._lost("the log has been cut before it", start)
        at_work = store.log.find(last_begun(store.log))
        if at_work is None or start <= at_work.phy_offset:
            return start
        return min(start, self._end_of_frames(store, at_work))

    def _holds(self, store: Store, last: Last | None) -> bool:
        """Return True if a message is still stored and part of the log, even if damaged or repaired since."""
        if last is None or not _is_known(store.log, last):
            return False
        if not still_holds(store.log, last.proof) and _record_at(store.log, last.phy_offset) != (
            last.size_bytes,
            last.store_timestamp_ms,
        ):
            return False
        if is_in_its_queue(store, last.proof):
            self._messages_led_to.discard(last)  # if its entry goes later, the log was cut
            return True
        if last not in self._messages_led_to:
            if not is_led_to(store, last.phy_offset):
                return False
            self._messages_led_to.add(last)
        return True

    def _last_before(self, store: Store, end: int, begin: int) -> Last | None:
        """Return the last message before an offset, if it is in the same segment; frames start at ``begin``."""
        segment = store.log.find(end - 1)
        if segment is None:
            return None
        found = last_message(store, segment, max(segment.phy_offset, end - NEAR_BYTES), end)
        has_entry = found is not None and is_in_its_queue(store, found)  # else it may be inside another message's body
        if not has_entry:
            found = last_message(store, segment, max(segment.phy_offset, begin), end)
        if found is None:
            return None
        last = Last(*found, read_store_timestamp_ms(store.log, found.phy_offset) or 0)
        self._messages_led_to = self._messages_led_to if has_entry else {last}
        return last

    def _proven(self, store: Store, start: int) -> int:
        """Return ``start`` if a frame ends there and all before it is stored, else where to continue."""
        log = store.log
        if start < log.min_phy_offset:
            self._lost(f"the log begins at {log.min_phy_offset}; what lay between is gone", start)
            return log.min_phy_offset
        if not log.segments:
            if start:
                self._lost("the log is empty", start)
            self._empty_at = start  # this proves no cut: the disk may be unmounted
            return start
        at_work = log.find(last_begun(log)) or log.segments[-1]
        if start >= (end := nominal_end(log, at_work)):
            # Nothing is stored there yet, so everything before it must be: a blank may lead to its segment's end.
            if start > end or not ends_a_frame(store, at_work, start):
                self._lost("the log ends before it: it was cut, or is another one", start)
                return min(start, self._end_of_frames(store, at_work))
            return start
        segment = at_work if start == at_work.end_phy_offset else log.find(start)
        if segment is None:
            if start < at_work.end_phy_offset:
                return start
            self._lost("the log ends before it: it was cut, or is another one", start)
            return self._end_of_frames(store, at_work)
        if start > segment.phy_offset:
            found = chained_end(store, segment, segment.phy_offset, start)
            if found is not None and found != start:
                self._lost("no record starts there any more: the log was cut and written over", start)
                return found
            if found is None and not ends_a_frame(store, segment, start):
                self._lost("no record ends there any more: the log was cut", start)
                if segment.phy_offset == at_work.phy_offset:
                    return min(start, self._end_of_frames(store, segment))
        return start

    def _end_of_frames(self, store: Store, segment: Segment) -> int:
        """Return the end of the last whole record in the segment at work."""
        at = segment.phy_offset
        for frames in self._frames(store, segment, at, at_once=True):
            if frames is None:
                continue
            starts, ends, is_blank = frames
            at = int(ends[-1])
            if not is_blank and not is_whole(store, segment, int(starts[-1])):
                at = int(starts[-1])
        return at

    def _lost(self, what: str, start: int) -> None:
        if self._fail:
            raise data_lost(self._named, start, what)

    # -- how far ---------------------------------------------------------------------------------------------------

    def _reach(self, store: Store, start: int, until: int | None) -> int:
        log, at = store.log, start
        begun, gap = last_begun(log), self._gap(log, start)
        self.waits = False
        for segment in log.segments:
            end = nominal_end(log, segment)
            if gap is not None and not self._passes_holes:
                if segment.phy_offset > gap.phy_offset:
                    return at
                end = min(end, gap.phy_offset)
            if end <= at:
                continue
            if segment.phy_offset > max(at, begun):
                return at  # a file made ahead, after a missing one
            at = max(at, segment.phy_offset)
            if until is not None and at > until and at > start:
                return at
            is_whole = end == nominal_end(log, segment)
            if segment.phy_offset < begun and is_whole and (until is None or end <= until):
                at = end
                continue
            if segment.phy_offset >= begun:
                found = self._tail(store, segment, at, until)
            else:
                wanted = end if until is None else max(at, min(until, end))
                border = boundary_from(store, segment, at, wanted, at_most=True)
                found = (end if is_whole else at) if border is None else border
            return at if until is not None and found > until and at > start else found
        return at

    def _gap(self, log: SegmentSequence, start: int) -> Gap | None:
        """Return the first gap after an offset: a missing file, or a missing end of one, before stored data."""
        begun = last_begun(log)
        return next(
            (gap for gap in log.gaps() if gap.phy_offset + gap.size_bytes > start and gap.phy_offset < begun), None
        )

    def _tail(self, store: Store, segment: Segment, start: int, until: int | None) -> int:
        """Return how far the segment at work is settled."""
        at = settled = start
        newest: tuple[int, int] | None = None  # offset and size of a record that nothing follows yet
        for frames in self._frames(store, segment, start):
            if frames is None:  # the chain ended at ``at``, and continues after damage
                settled, newest = at, None
                continue
            starts, ends, is_blank = frames
            at = int(ends[-1])
            before, settled = settled, at if is_blank else int(starts[-1])
            newest = None if is_blank else (settled, at - settled)
            if until is not None and settled > until:
                borders = [border for border in (before, *starts.tolist(), settled) if border > start]
                return int(max((border for border in borders if border <= until), default=borders[0]))
        if newest is None or (until is not None and at > until and settled > start):
            return settled
        return at if self._is_followed(store, at) or self._is_quiet(store, segment, *newest) else settled

    def _frames(
        self, store: Store, segment: Segment, at: int, *, at_once: bool = False
    ) -> Iterator[tuple[Ints, Ints, bool] | None]:
        """Yield starts and ends of consecutive frames, a step at a time, and whether the last one is a blank.

        Yields None where the bytes between are certain to be damage. Ends at the tail; ``at_once``: without waiting
        for what may be the tail.
        """
        end = nominal_end(store.log, segment)
        has_gone_on = at_once
        while at < end:
            is_begun = any(store.log.read(at, PREFIX.size_bytes))
            stop = min(at + _STEP_BYTES, end) if is_begun else at
            starts, ends, is_blank, is_broken = chain(store, segment, at, stop)
            if len(starts):
                at = int(ends[-1])
                yield starts, ends, is_blank
            if is_broken or not len(starts):
                next_frame = self._known_after(store, segment, at, at_once=has_gone_on)
                if next_frame is None:
                    return
                has_gone_on = True
                yield None
                at = next_frame

    def _is_followed(self, store: Store, at: int) -> bool:
        """Return True if at least the head of the next record is stored at the newest record's end."""
        raw = store.log.read(at, HEAD.size_bytes)
        if len(raw) < HEAD.size_bytes:
            return False
        head = HEAD.read(raw)
        return head["magic"] in (MAGIC_V1, MAGIC_V2) and head["own_phy_offset"] == at

    def _is_quiet(self, store: Store, segment: Segment, at: int, size_bytes: int) -> bool:
        if not is_whole(store, segment, at):
            return False
        digest = zlib.crc32(store.log.read(at, size_bytes))
        now = self._clock()
        if self._newest is None or (self._newest.phy_offset, self._newest.digest) != (at, digest):
            self._newest = _Newest(at, digest, now)
        quiet = now - self._newest.since_s >= self._quiet_s
        self.waits |= not quiet
        return quiet

    def _known_after(self, store: Store, segment: Segment, at: int, *, at_once: bool) -> int | None:
        """Return the start of the first frame after ``at``, if a queue has an entry for a record there.

        ``at_once``: the log is known to continue after such a place at a lower offset, so no wait is needed.
        """
        now = self._clock()
        stuck = self._stuck_places.setdefault(at, _Stuck(now))
        if stuck.looked_s is not None and now - stuck.looked_s < _LOOK_BEHIND_EVERY_S:
            return stuck.goes_on_at
        if not at_once and now - stuck.since_s < self._quiet_s:
            self.waits = True
            return None
        stuck.looked_s, stuck.goes_on_at = now, None
        if not has_known_message(store, segment, at):
            return None
        # The first look may have met a half-written record, which is whole once newer ones follow.
        stuck.goes_on_at = first_frame(store, segment, at)
        return stuck.goes_on_at


def _is_known(log: SegmentSequence, last: Last | None) -> bool:
    """Return True if there is a message to compare and its segment exists."""
    return last is not None and log.find(last.phy_offset) is not None


def _record_at(log: SegmentSequence, phy_offset: int) -> tuple[int, int | None]:
    """Return length and store time of the record at an offset."""
    data = log.read(phy_offset, PREFIX.size_bytes)
    size = PREFIX.read(data)["size_bytes"] if len(data) == PREFIX.size_bytes else 0
    return size, read_store_timestamp_ms(log, phy_offset)
