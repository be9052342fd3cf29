"""Find the ranges of a log that the system refuses to read, so that the walk can continue after them.

A read fails for a whole window, so the range is searched for. A failing disk takes seconds for each refused read, so steps
grow with the range, and then the gap between the last refused and the first readable byte is halved.
"""

from __future__ import annotations

import errno
from typing import Final

from store_core.errors import UnreadableError
from store_core.kernel.codes import FrameKind, HoleCode
from store_core.kernel.file import FrameRow
from store_core.storage.remote_path import is_remote
from store_core.storage.sequence import Segment, SegmentSequence

# Errors of file systems and disks for unreadable data. Other errors, such as too many open files, have causes in rmqctl.
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
_GROWTH: Final = 8  # a step is an eighth of the range so far
_READ_BYTES: Final = 1 << 20


def refused_stretches(log: SegmentSequence, segment: Segment, error: UnreadableError, stop: int) -> list[FrameRow]:
    """Return the unreadable ranges of a segment from the failed read to about ``stop``, as HOLE rows with a ``HoleCode``.

    Raises ``error`` itself if one of these holds:

    * it is not about the file's data, or is about another file
    * the range can be read now
    * the segment is in an object store, whose client has retried already
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
    """Return the first unreadable offset and the reason; None if all bytes up to ``stop`` can be read."""
    buffer = memoryview(bytearray(_READ_BYTES))
    while at < stop:
        try:
            count = log.read_into(at, buffer[: stop - at])
        except UnreadableError as error:
            segment = log.find(at)
            if segment is None or error.number not in _CODES:
                raise
            return segment.phy_offset + error.at, _CODES[error.number]
        if count == 0:  # the file has been cut since it was listed
            return None
        at += count
    return None


def _end_of_refusals(log: SegmentSequence, segment: Segment, start: int) -> int:
    """Return the first readable block after a refused read; the segment's end if there is none."""
    refused = start - (start - segment.phy_offset) % _STEP_BYTES
    step = _STEP_BYTES
    while (probe := refused + step) < segment.end_phy_offset and not _is_readable(log, probe):
        refused = probe
        step = max(_STEP_BYTES, (refused - start) // _GROWTH // _STEP_BYTES * _STEP_BYTES)
    good = min(probe, segment.end_phy_offset)
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
