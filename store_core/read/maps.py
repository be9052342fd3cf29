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


def map_file(path: Path, size_bytes: int | None = None, *, at_random: bool = False) -> NDArray[np.uint8]:
    """A file's first bytes (None: all of them), in a map that goes with the array; none where it has vanished or is shorter.

    ``at_random``: what lies beside a page is not read with it. Raises FailedError where the file cannot be read.
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
        return np.frombuffer(pages, np.uint8)
    except (OSError, ValueError) as error:
        raise unreadable(path, error if isinstance(error, OSError) else OSError(str(error))) from error
    finally:
        os.close(descriptor)


class LogMaps:
    """Whole segments of a log, mapped when first asked for, until closed."""

    def __init__(self) -> None:
        self._maps: dict[Segment, NDArray[np.uint8]] = {}
        self._near: dict[int, tuple[NDArray[np.uint8], Segment]] = {}  # by the segment's id, as a hash takes long

    def of(self, segment: Segment) -> NDArray[np.uint8]:
        """A segment's bytes; none where its file has vanished or become shorter."""
        near = self._near.get(id(segment))
        if near is not None:
            return near[0]
        if segment not in self._maps:
            self._maps[segment] = map_file(segment.path, segment.size_bytes)
        if len(self._near) >= _MOST_NEAR:
            self._near.clear()
        self._near[id(segment)] = self._maps[segment], segment
        return self._maps[segment]

    def close(self) -> None:
        """Let go of the maps; what tables still use stays until they go."""
        self._maps.clear()
        self._near.clear()
