"""Find ranges of plain records by the kernel's walk over a segment's file, in the caller or ahead in a thread.

After a clean stop a start only checks that the records of the newest segments are valid, and it scans these in any case. So
``reading_ahead`` walks them in a thread while the program still loads modules and reads the queues. The results go to
``CheckedRanges``. A walk that finds another end than the thread continues from there on its own.

Imports neither numpy nor modules that need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final

from store_core.broker.checked_ranges import CheckedRanges
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.file import open_walk
from store_core.kernel.file import walk as walk_file
from store_core.scan.runs import BLOCK_SIZE_BYTES

if TYPE_CHECKING:
    from store_core.storage.sequence import Segment
    from store_core.storage.store import Store

CALL_SECONDS: Final = 0.05  # the longest that an interrupt waits
WORTH_BYTES: Final = 16 << 20  # smaller segments are walked before a thread pays off
_STEP_SECONDS: Final = 0.03  # short, as a start that dispatches reads again what one step found
_LOOK_SECONDS: Final = 0.1  # how often a waiting walk can be interrupted


def plain_runs(
    segment: Segment, at: int, to: int, limit: int, *, check_crc: bool, seconds: float | None = None
) -> Generator[int, None, None]:
    """Yield rising ends of adjacent plain records from ``at`` on, up to the first frame that is not plain.

    Only records that start before ``to`` are read; ``limit`` is the end of the readable bytes. Nothing is yielded if the file
    cannot be opened or read: the caller then reads it in another way, which reports the error.
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
    """A thread that walks segments in the order of requests; a segment belongs to the thread or caller that takes it first."""

    def __init__(self, first: Segment) -> None:
        self._changed = Condition()
        self._waiting = deque([first])
        self._taken = {first.phy_offset: False}  # True once a thread or caller has it
        self._ends: dict[int, list[int]] = {}  # of the segments that the thread has taken
        self._over: set[int] = set()
        self._is_closed = False
        self._thread = Thread(target=self._run, name="walk ahead", daemon=True)
        self._thread.start()

    def want(self, segments: Sequence[Segment]) -> None:
        """Walk these segments too, the last one first, as a caller that needs them all starts with the first."""
        with self._changed:
            for segment in reversed(segments):
                if segment.phy_offset not in self._taken and segment.size_bytes >= WORTH_BYTES:
                    self._taken[segment.phy_offset] = False
                    self._waiting.append(segment)
            self._changed.notify_all()

    def found(self, segment: Segment) -> Iterator[int]:
        """Yield ends of plain records from the segment's start on, as the thread finds them.

        Yields nothing if the thread has not started the segment, which it then leaves to the caller.
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
        """End the thread."""
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
    """Yield the checked ranges for starts on this store.

    Meanwhile a thread walks the log's newest segment if a start is sure to scan it without dispatching it.

    Raises:
        FailedError: a folder cannot be listed.
    """
    if not _is_scanned_plainly(store):
        yield CheckedRanges()
        return
    with closing(WalkAhead(store.log.segments[-1])) as ahead:
        yield CheckedRanges(ahead)


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
