"""The entries of one queue file in a single reading: what a broker's start, and who follows it, ask of a queue that is sane.

Entries of ordinary queues (store format 6.1). Neither numpy nor a window is involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from store_core.kernel.compiled import compiled
from store_core.kernel.file import NOATIME, OPEN_FLAGS
from store_core.layout.record import MAX_RECORD_SIZE_BYTES


class EntryRun(NamedTuple):
    """The entries in front of a file that can be: ``length`` of them, none of which points in front of the one before.

    ``first`` and ``last`` are the log offsets of the first and the last one, -1 where there is none, and ``last_size_bytes`` the
    size in the last one. ``parts``: for the segments of the log that entries with a size that a record can have point
    into, as ``ChainSums``: number of the segment, sum of hashes modulo 2**64, records, highest end.
    """

    length: int
    first: int
    last: int
    last_size_bytes: int
    parts: list[tuple[int, int, int, int]]


def read_run(path: Path, starts: Sequence[int], ends: Sequence[int]) -> EntryRun | None:
    """Read a file up to the first entry that can not be; None where entries fall. Segments are [start, end) of the log.

    Raises OSError as ``storage.files.open_read_only``.
    """
    if compiled is not None:
        found = compiled.read_run(path, OPEN_FLAGS, NOATIME, starts, ends, MAX_RECORD_SIZE_BYTES)
    else:
        from store_core.kernel.reference.entries import read_run as reference

        found = reference(path, starts, ends, MAX_RECORD_SIZE_BYTES)
    return None if found is None else EntryRun._make(found)
