"""Plain records one behind the other, by the kernel's walk over a segment's file; alone, or in a thread that goes ahead.

Of a log that was closed cleanly a start wants to know no more than that its records are some, and its newest segments are
scanned in any case. So they are walked from the first moment on, while the program still loads what it needs for the rest and
looks at the queues: ``reading_ahead``. What the thread finds goes to ``CheckedRanges``; it takes nothing away from a walk that finds
something else there, for such a walk looks for itself from there on.

Imports neither numpy nor what needs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final

from store_core.broker.checked_ranges import CheckedRanges
from store_core.broker.entry_runs import EntryRuns
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.file import open_walk
from store_core.kernel.file import walk as walk_file
from store_core.scan.runs import BLOCK_SIZE_BYTES

if TYPE_CHECKING:
    from store_core.storage.sequence import Segment
    from store_core.storage.store import Store

CALL_SECONDS: Final = 0.05  # so long an interrupt may have to wait
WORTH_BYTES: Final = 16 << 20  # a segment that is walked sooner than a thread is made of it
_STEP_SECONDS: Final = 0.03  # a start that dispatches looks again at what was found in one step
_LOOK_SECONDS: Final = 0.1  # so often a walk that waits can be interrupted


def plain_runs(
    segment: Segment, at: int, to: int, limit: int, *, check_crc: bool, seconds: float | None = None
) -> Generator[int, None, None]:
    """Ends of plain records that follow each other from ``at`` on, each further on than the last; what is not plain ends it.

    No record that begins at ``to`` or behind it is looked at; ``limit`` is the end of what can be read. Nothing comes where
    the file cannot be opened or read: whoever reads it in another way says so.
    """
    start, end = segment.phy_offset, segment.end_phy_offset
    try:
        file = open_walk(segment.path, start, end, limit, block_bytes=BLOCK_SIZE_BYTES, reads_ahead=True)
    except OSError:
        return
    flags = ScanFlag.CHECK_NUMBERS | (ScanFlag.CHECK_CRC if check_crc else ScanFlag(0))
    call_seconds = CALL_SECONDS if seconds is None else seconds
    with closing(file):
        is_plain = True
        while is_plain and at < to:
            begin = at
            found = walk_file(file, at, to, int(ScanState.CHAINED), int(flags), call_seconds)
            for row in found.rows:
                is_plain = row.kind == FrameKind.MESSAGE and row.code == FrameCode.OK and row.phy_offset == at
                if not is_plain:
                    break
                at = row.end_phy_offset
            is_plain = is_plain and at > begin and not found.is_over and found.failure is None
            yield at


class WalkAhead:
    """A thread that walks segments in the order in which they are asked for. Who comes to one first, has it."""

    def __init__(self, first: Segment) -> None:
        self._changed = Condition()
        self._waiting = deque([first])
        self._taken = {first.phy_offset: False}  # whether somebody has begun it
        self._ends: dict[int, list[int]] = {}  # of those that the thread has begun
        self._over: set[int] = set()
        self._is_closed = False
        self._thread = Thread(target=self._run, name="walk ahead", daemon=True)
        self._thread.start()

    def want(self, segments: Sequence[Segment]) -> None:
        """Walk these too, the last one first: whoever needs them all begins with the first."""
        with self._changed:
            for segment in reversed(segments):
                if segment.phy_offset not in self._taken and segment.size_bytes >= WORTH_BYTES:
                    self._taken[segment.phy_offset] = False
                    self._waiting.append(segment)
            self._changed.notify_all()

    def found(self, segment: Segment) -> Iterator[int]:
        """Ends of plain records from the segment's start on, as they are found; nothing, if the thread has not come to it yet.

        Then it leaves that segment to who asks.
        """
        start, seen = segment.phy_offset, 0
        with self._changed:
            if start not in self._ends:
                self._taken[start] = True
                return
        while True:
            with self._changed:
                while seen == len(self._ends[start]) and start not in self._over:
                    self._changed.wait(_LOOK_SECONDS)
                news = self._ends[start][seen:]
            if not news:
                return
            seen += len(news)
            yield from news

    def close(self) -> None:
        """Have the thread end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (segment := self._next()) is not None:
            start, end = segment.phy_offset, segment.end_phy_offset
            runs = plain_runs(segment, start, end, end, check_crc=True, seconds=_STEP_SECONDS)
            try:
                with closing(runs):
                    for at in runs:
                        with self._changed:
                            if at > start:
                                self._ends[start].append(at)
                            self._changed.notify_all()
                            if self._is_closed:
                                break
            finally:
                with self._changed:
                    self._over.add(start)
                    self._changed.notify_all()

    def _next(self) -> Segment | None:
        with self._changed:
            while not self._is_closed:
                while self._waiting:
                    segment = self._waiting.popleft()
                    if not self._taken[segment.phy_offset]:
                        self._taken[segment.phy_offset] = True
                        self._ends[segment.phy_offset] = []
                        return segment
                self._changed.wait()
        return None


@contextmanager
def reading_ahead(store: Store) -> Iterator[CheckedRanges]:
    """What a start on this store is played with: while that is being prepared, threads read what it will look at.

    The log's newest segment where that is sure to be scanned, and not to be dispatched; and the queues. Raises FailedError
    where a folder cannot be listed.
    """
    with ExitStack() as stack:
        runs = EntryRuns(store.log.segments)
        proven = CheckedRanges(runs=runs)
        if _is_scanned_plainly(store):
            proven.ahead = stack.enter_context(closing(WalkAhead(store.log.segments[-1])))
        if sum(queue.size_bytes for queue in store.queues.values()) >= WORTH_BYTES:
            stack.enter_context(closing(runs)).read_ahead(store.queues)
        yield proven


def _is_scanned_plainly(store: Store) -> bool:
    settings, segments = store.settings, store.log.segments
    return (
        not store.aborted
        and settings.flag("checkCRCOnRecover", True)
        and not settings.flag("forceVerifyPropCRC")
        and bool(segments)
        and segments[-1].size_bytes >= WORTH_BYTES
        and store.log.is_plain(segments[-1])
    )
