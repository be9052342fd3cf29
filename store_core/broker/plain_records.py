"""Find ranges of plain records by the kernel's walk over a segment's file.

Imports neither numpy nor modules that need it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from store_core.kernel.codes import FrameCode, FrameKind, ScanFlag, ScanState
from store_core.kernel.file import open_walk
from store_core.kernel.file import walk as walk_file
from store_core.scan.runs import BLOCK_SIZE_BYTES

if TYPE_CHECKING:
    from store_core.storage.sequence import Segment

CALL_SECONDS: Final = 0.05  # the longest that an interrupt waits


def plain_runs(segment: Segment, at: int, to: int, limit: int, *, check_crc: bool) -> Generator[int, None, None]:
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
    with closing(file):
        is_plain = True
        while is_plain and at < to:
            begin = at
            found = walk_file(file, at, to, int(ScanState.CHAINED), int(flags), CALL_SECONDS)
            for row in found.rows:
                is_plain = row.kind == FrameKind.MESSAGE and row.code == FrameCode.OK and row.phy_offset == at
                if not is_plain:
                    break
                at = row.end_phy_offset
            is_plain = is_plain and at > begin and not found.is_over and found.failure is None
            yield at
