"""Stretches of a log that the system refuses to read: found out once a read has failed, and then walked around.

A read fails for a whole window, so the stretch itself has to be looked for. A disk that fails takes seconds for every
refusal: steps grow with the stretch, and what is left between the last refusal and the first byte that is read is halved.
"""

from __future__ import annotations

import errno
from typing import Final

from store_core.errors import UnreadableError
from store_core.kernel.codes import FrameKind, HoleCode
from store_core.kernel.file import FrameRow
from store_core.storage.remote_path import is_remote
from store_core.storage.sequence import Segment, SegmentSequence

# What a file system or a disk says of data that is not to be had, now or ever. Anything else, such as too many open
# files, is about us.
_CODES: Final = {
    errno.EACCES: HoleCode.NO_PERMISSION,
    errno.EPERM: HoleCode.NO_PERMISSION,
    errno.EIO: HoleCode.IO_ERROR,
    errno.EUCLEAN: HoleCode.IO_ERROR,
    errno.EBADMSG: HoleCode.IO_ERROR,
    errno.ENODATA: HoleCode.IO_ERROR,
    errno.EREMOTEIO: HoleCode.IO_ERROR,
}
_STEP_BYTES: Final = 4096  # disks and page caches fail by blocks of this size
_GROWTH: Final = 8  # a step is this part of the stretch so far
_READ_BYTES: Final = 1 << 20


def refused_stretches(log: SegmentSequence, segment: Segment, error: UnreadableError, stop: int) -> list[FrameRow]:
    """What of a segment cannot be read, from where a read was refused to about ``stop``: HOLE rows with a ``HoleCode``, in log order.

    Raises the error itself where it is not about what the file holds, or is about another file, or where nothing is
    refused any more. Object stores are asked again by those who know how; what they refuse in the end is an error.
    """
    stop = min(stop, segment.end_phy_offset)
    found: list[FrameRow] = []
    if error.path == str(segment.path) and error.number in _CODES and not is_remote(segment.path):
        at = segment.phy_offset + error.at
        while at < stop and (refused := _next_refusal(log, at, stop)) is not None:
            start, code = refused
            at = _end_of_refusals(log, segment, start)
            found.append(FrameRow(FrameKind.HOLE, code, start, at - start))
    if not found:
        raise error
    return found


def _next_refusal(log: SegmentSequence, at: int, stop: int) -> tuple[int, HoleCode] | None:
    """The first offset from which no byte is to be had, and why."""
    buffer = memoryview(bytearray(_READ_BYTES))
    while at < stop:
        try:
            count = log.read_into(at, buffer[: stop - at])
        except UnreadableError as error:
            segment = log.find(at)
            if segment is None or error.number not in _CODES:
                raise
            return segment.phy_offset + error.at, _CODES[error.number]
        if count == 0:  # the file has been cut meanwhile
            return None
        at += count
    return None


def _end_of_refusals(log: SegmentSequence, segment: Segment, start: int) -> int:
    """Where bytes can be read again behind a refusal, to the block; the segment's end if nowhere."""
    refused = start - (start - segment.phy_offset) % _STEP_BYTES
    step = _STEP_BYTES
    while (behind := refused + step) < segment.end_phy_offset and not _is_readable(log, behind):
        refused = behind
        step = max(_STEP_BYTES, (refused - start) // _GROWTH // _STEP_BYTES * _STEP_BYTES)
    good = min(behind, segment.end_phy_offset)
    while good - refused > _STEP_BYTES:
        middle = refused + (good - refused) // 2 // _STEP_BYTES * _STEP_BYTES
        if _is_readable(log, middle):
            good = middle
        else:
            refused = middle
    return good


def _is_readable(log: SegmentSequence, at: int) -> bool:
    try:
        log.read_into(at, memoryview(bytearray(_STEP_BYTES)))
    except UnreadableError:
        return False
    return True
