"""Files mapped into memory: for who asks a store much.

Mapped pages count as resident, and a disk that fails under a map ends the process: commands read, and do not map.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from store_core.storage.files import open_read_only, unreadable
from store_core.storage.sequence import Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_NEAR: Final = 4096
_RANDOM: Final = getattr(mmap, "MADV_RANDOM", None)
_POPULATE_READ: Final = 22  # Linux's MADV_POPULATE_READ, which Python does not name
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
_PART_BYTES: Final = 2 << 20


def map_file(
    path: Path, size_bytes: int | None = None, *, at_random: bool = False, at_once: bool = False
) -> NDArray[np.uint8]:
    """A file's first bytes (None: all of them), in a map that goes with the array; none where it has vanished or is shorter.

    ``at_random``: what lies beside a page is not read with it. ``at_once``: what the system holds in memory is there from
    the beginning, where it would be mapped a few pages a fault. Raises FailedError where the file cannot be read.
    """
    import numpy as np

    nothing = np.empty(0, np.uint8)
    try:
        descriptor = open_read_only(path)
    except FileNotFoundError:
        return nothing
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        found = os.fstat(descriptor).st_size
        size_bytes = found if size_bytes is None else size_bytes
        if not 0 < size_bytes <= found:
            return nothing
        pages = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)
        if at_random and _RANDOM is not None:
            pages.madvise(_RANDOM)
        if at_once:
            _map_what_is_held(pages, descriptor)
        return np.frombuffer(pages, np.uint8)
    except (OSError, ValueError) as error:
        raise unreadable(path, error if isinstance(error, OSError) else OSError(str(error))) from error
    finally:
        os.close(descriptor)


def _map_what_is_held(pages: mmap.mmap, descriptor: int) -> None:
    """Have the system map the parts of a file that it holds in memory; what it would have to read is left alone.

    A first look at a page costs more than a whole query by key (measured: 4 to 10 us for 64 KiB), and a log has many.
    """
    if _NOWAIT is None:
        return
    for start in range(0, len(pages), _PART_BYTES):
        count = min(_PART_BYTES, len(pages) - start)
        try:
            if all(os.preadv(descriptor, [bytearray(1)], at, _NOWAIT) for at in (start, start + count - 1)):
                pages.madvise(_POPULATE_READ, start, count)
        except OSError:  # not held, or an older system, or another one
            continue


class LogMaps:
    """Whole segments of a log, mapped when first asked for, until closed. ``at_once`` as in ``map_file``."""

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self._maps: dict[Segment, NDArray[np.uint8]] = {}
        self._near: dict[int, tuple[NDArray[np.uint8], Segment]] = {}  # by the segment's id, as a hash takes long

    def of(self, segment: Segment) -> NDArray[np.uint8]:
        """A segment's bytes; none where its file has vanished or become shorter."""
        near = self._near.get(id(segment))
        if near is not None:
            return near[0]
        if segment not in self._maps:
            self._maps[segment] = map_file(segment.path, segment.size_bytes, at_once=self._at_once)
        if len(self._near) >= _MOST_NEAR:
            self._near.clear()
        self._near[id(segment)] = self._maps[segment], segment
        return self._maps[segment]

    def close(self) -> None:
        """Let go of the maps; what tables still use stays until they go."""
        self._maps.clear()
        self._near.clear()
