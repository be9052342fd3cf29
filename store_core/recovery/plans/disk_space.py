"""Check that there is room for a change, and for taking it back. The store is only read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.recovery.plans.content import Built, Content
from store_core.recovery.plans.expect import expected_range, is_in_place
from store_core.recovery.plans.plan import NEW_FILES, RANGES, Op, Plan, Step
from store_core.recovery.plans.plan_json import plan_blocks
from store_core.storage.writer import Writer

_SLACK_BYTES: Final = 1 << 20  # journal lines, folders
_BLOCK_SIZE_BYTES: Final = 512  # unit of st_blocks
_ALLOCATION_BYTES: Final = 4096  # the least that file systems allocate to a file with data


class Room:
    """Sums of the bytes that a change needs and frees, by file system."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._needed: Counter[Path] = Counter()

    def need(self, path: Path, size_bytes: int) -> None:
        """Add bytes needed on the file system of ``path``, which may not exist yet; negative for bytes that become free."""
        self._needed[path] += size_bytes

    def refuse_full(self) -> None:
        """Raise FailedError if a file system has fewer free bytes than needed."""
        needed: Counter[int] = Counter()
        places: dict[int, Path] = {}
        for path, size_bytes in self._needed.items():
            place = _existing(path)
            device = place.stat().st_dev
            places[device] = place
            needed[device] += size_bytes
        for device, size_bytes in needed.items():
            free = self._writer.ops.free_bytes(places[device])
            if free < size_bytes:
                raise FailedError(
                    f"the disk would be full: {size_bytes} bytes are needed and {free} are free; nothing was changed",
                    path=str(places[device]),
                    to_do="make room there and run the command again",
                )


def assert_room(plan: Plan, writer: Writer) -> None:
    """Raise FailedError if a file system lacks the room for kept bytes, new files and grown files."""
    room = Room(writer)
    device = cache(device_of)
    room.need(writer.root, _SLACK_BYTES + 2 * sum(map(len, plan_blocks(plan))))
    for path, steps in plan.by_path.items():
        real, area = writer.path(path), writer.places.area_for(path)
        room.need(area, sum(_staged_bytes(step) for step in steps))
        if is_in_place(steps):
            room.need(area, min(sum(expected_range(step)[1] for step in steps), allocated_bytes(real)))
            room.need(real, _growth_bytes(real, steps))
        elif device(area) != device(real.parent):  # kept and new files are copied between file systems
            room.need(area, min(steps[0].expect_file_size_bytes or 0, allocated_bytes(real)))
            room.need(real, sum(_staged_bytes(step) for step in steps))
    room.refuse_full()


def device_of(path: Path) -> int:
    """Return the device number of the file system of a path, which may not exist yet."""
    return _existing(path).stat().st_dev


def _existing(path: Path) -> Path:
    """Return a path, or its nearest parent that exists."""
    while not path.exists():
        path = path.parent
    return path


def _staged_bytes(step: Step) -> int:
    if isinstance(step.content, Built):
        return _allocated_for(step.content)
    return _literal_bytes(step) if step.op in NEW_FILES else 0


def _allocated_for(built: Built) -> int:
    """Return the bytes that a built file takes up; blocks of zeros stay holes, as in a broker's files."""
    size_bytes = built.size_bytes or 0
    if built.data_bytes is None or built.data_bytes < 0:
        return size_bytes
    return min(size_bytes, -(-built.data_bytes // _ALLOCATION_BYTES) * _ALLOCATION_BYTES)


def _literal_bytes(step: Step) -> int:
    """Count the bytes that a step writes, except runs of zeros."""
    if isinstance(step.content, Content):
        return sum(len(piece) for piece in step.content.pieces if isinstance(piece, bytes))
    return step.size_bytes or 0 if step.op is Op.WRITE_RANGE else 0


def _growth_bytes(real: Path, steps: Sequence[Step]) -> int:
    """Return the most bytes that a change in place can allocate, in holes of the file and after its end."""
    end = max([real.stat().st_size, *(step.end for step in steps if step.op in RANGES)])
    return min(sum(map(_literal_bytes, steps)), max(0, end - allocated_bytes(real)))


def allocated_bytes(real: Path) -> int:
    """Return the bytes that a file takes up: fewer than its length if it is sparse, as its copy is."""
    return real.stat().st_blocks * _BLOCK_SIZE_BYTES if real.exists() else 0
