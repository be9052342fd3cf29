"""Summarize the entries of a sane queue file in a single read, for the simulation of a broker's start.

Entries of ordinary queues (store format 6.1). Needs neither numpy nor a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from store_core.kernel.compiled import compiled
from store_core.kernel.file import NOATIME, OPEN_FLAGS
from store_core.layout.record import MAX_RECORD_SIZE_BYTES


class EntryRun(NamedTuple):
    """The plausible entries at a file's start: ``length`` of them, with log offsets that never fall.

    * ``first`` and ``last``: the log offsets of the first and the last entry, -1 without entries.
    * ``last_size_bytes``: the size in the last entry.
    * ``parts``: for each segment of the log with entries of a possible record size, as in ``ChainSums``: number of the segment, sum of hashes
      modulo 2**64, records, highest end.
    """

    length: int
    first: int
    last: int
    last_size_bytes: int
    parts: list[tuple[int, int, int, int]]


def read_run(path: Path, starts: Sequence[int], ends: Sequence[int]) -> EntryRun | None:
    """Read a file up to the first implausible entry; None where log offsets fall. Segments are [start, end) of the log.

    Raises OSError as ``storage.files.open_read_only``.
    """
    if compiled is not None:
        found = compiled.read_run(path, OPEN_FLAGS, NOATIME, starts, ends, MAX_RECORD_SIZE_BYTES)
    else:
        from store_core.kernel.reference.entries import read_run as reference

        found = reference(path, starts, ends, MAX_RECORD_SIZE_BYTES)
    return None if found is None else EntryRun._make(found)
