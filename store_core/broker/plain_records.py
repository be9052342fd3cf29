"""Find ranges of plain records by the kernel's walk over a segment's file, and read the queues ahead of a start.

Imports neither numpy nor modules that need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from store_core.broker.checked_ranges import CheckedRanges
from store_core.broker.entry_runs import EntryRuns
from store_core.errors import UnreadableError
from store_core.kernel import row_scan, window_rows
from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.scan.runs import WINDOW_SIZE_BYTES
from store_core.scan.windows import Span, Windows, walk_windows

if TYPE_CHECKING:
    from store_core.kernel import WindowScan
    from store_core.storage.sequence import Segment, SegmentSequence
    from store_core.storage.store import Store

WORTH_BYTES: Final = 16 << 20  # fewer bytes of queues are read before a thread pays off


def plain_runs(
    log: SegmentSequence, segment: Segment, at: int, to: int, limit: int, *, check_crc: bool
) -> Iterator[int]:
    """Yield rising ends of adjacent plain records from ``at`` on, up to the first frame that is not plain.

    Only records that start before ``to`` are read; ``limit`` is the end of the readable bytes. The walk ends where the file
    cannot be opened or read: the caller then reads it in another way, which reports the error.
    """
    flags = ScanFlag.CHECK_NUMBERS | (ScanFlag.CHECK_CRC if check_crc else ScanFlag(0))

    def open_scan(at: int, state: int, size_bytes: int) -> WindowScan:
        return row_scan(at, limit, state, flags, size_bytes, to, reads_file=True)

    try:
        windows = Windows(log, segment, WINDOW_SIZE_BYTES, kept=False)
    except UnreadableError:
        return
    with closing(windows):
        span = Span(at, ScanState.CHAINED, to, limit, WINDOW_SIZE_BYTES)
        for walked in walk_windows(log, segment, windows, span, open_scan, window_rows) if windows.reads_file else ():
            for row in walked.found.rows if walked.found is not None else ():
                if row.kind != FrameKind.MESSAGE or row.code != FrameCode.OK or row.phy_offset != at:
                    break
                at = row.end_phy_offset
            yield at
            if at < walked.end_phy_offset or walked.error is not None:
                return


@contextmanager
def reading_ahead(store: Store) -> Iterator[CheckedRanges]:
    """Yield the checked ranges for starts on this store, while a thread reads the queues that a start will read.

    Raises:
        FailedError: a folder cannot be listed.
    """
    with closing(EntryRuns(store.log.segments)) as runs:
        if sum(queue.size_bytes for queue in store.queues.values()) >= WORTH_BYTES:
            runs.read_ahead(store.queues)
        yield CheckedRanges(runs=runs)
