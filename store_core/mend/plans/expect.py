"""Is the store still as a plan expects it, and is there room to carry it out? Reads only."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from store_core.errors import FailedError, PlanOutOfDateError
from store_core.mend.plans.content import Built, Content
from store_core.mend.plans.plan import ABSENT, IN_PLACE, NEW_FILES, RANGES, Op, Plan, Step
from store_core.mend.plans.plan_json import plan_to_bytes
from store_core.storage.digest import digest_range
from store_core.storage.writer import Writer

_SLACK_BYTES: Final = 1 << 20  # journal lines, folders
_BLOCK_SIZE_BYTES: Final = 512  # of st_blocks
_MAKE_ANEW: Final = "make the plan anew"


def is_in_place(steps: Sequence[Step]) -> bool:
    return steps[0].op in IN_PLACE


def assert_expected(plan: Plan, writer: Writer) -> None:
    """Raise PlanOutOfDateError unless every step finds what it expects, FailedError for what is no plain file."""
    for witness in plan.made_for:
        if witness.size_bytes == ABSENT:
            if not os.path.lexists(writer.root / witness.path):
                continue
            raise PlanOutOfDateError("it has come since the plan was made", path=witness.path, to_do=_MAKE_ANEW)
        with suppress(FileNotFoundError):
            info = os.stat(writer.root / witness.path)
            if (info.st_size, info.st_mtime_ns) == (witness.size_bytes, witness.mtime_ns):
                continue
        raise PlanOutOfDateError("the store has changed since the plan was made", path=witness.path, to_do=_MAKE_ANEW)
    for path, steps in plan.by_path.items():
        for problem in _unexpected(plan, path, steps, writer):
            raise PlanOutOfDateError(
                f"the store has changed since the plan was made: {problem}", path=path, to_do=_MAKE_ANEW
            )


def _unexpected(plan: Plan, path: str, steps: Sequence[Step], writer: Writer) -> Iterator[str]:
    """What differs from what the steps of one path expect."""
    real = writer.path(path)
    try:
        info = os.stat(real, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        if steps[0].op is not Op.CREATE_FILE:
            yield "it is missing"
        return
    if steps[0].op is Op.CREATE_FILE:
        yield "there is a file already"
    elif steps[0].op is Op.REMOVE_FOLDER:
        yield from _not_empty_then(plan, path, real, writer)
    elif not stat.S_ISREG(info.st_mode):
        raise FailedError("not a plain file", path=path, to_do="put the file itself there, no link or folder")
    elif info.st_size != steps[0].expect_file_size_bytes:
        yield "its length differs"
    else:
        yield from (f"bytes at {start} differ" for step in steps for start in _differing(step, real))


def _differing(step: Step, real: Path) -> Iterator[int]:
    start, size_bytes = expected_range(step)
    if step.expect_crc32c is not None and digest_range(real, start, size_bytes).crc32c != step.expect_crc32c:
        yield start


def expected_range(step: Step) -> tuple[int, int]:
    """Offset and size of the bytes that a step's digest speaks of, as far as the file reaches now."""
    length = step.expect_file_size_bytes or 0
    if step.op in RANGES:
        return step.offset or 0, max(0, min(step.end, length) - (step.offset or 0))
    if step.op is Op.SET_LENGTH:
        return step.size_bytes or 0, max(0, length - (step.size_bytes or 0))
    return 0, 0 if step.op is Op.SET_MTIME else length


def _not_empty_then(plan: Plan, path: str, real: Path, writer: Writer) -> Iterator[str]:
    if not real.is_dir() or real.is_symlink():
        yield "it is no folder"
        return
    gone = {p for p, steps in plan.by_path.items() if steps[0].op in (Op.REMOVE_FILE, Op.REMOVE_FOLDER)}
    for entry in real.iterdir():
        if writer.places.name(entry) not in gone:
            yield f"{entry.name} would remain in it"


def work_size_bytes(plan: Plan) -> int:
    """What ``on_progress`` counts up to while a plan is applied: bytes kept, made and written (as far as sizes are known)."""
    return sum(expected_range(step)[1] + _made_bytes(step) for step in plan.steps)


def _made_bytes(step: Step) -> int:
    times = (step.op in RANGES) + (step.op in NEW_FILES or isinstance(step.content, Built))
    return times * (step.size_bytes or 0)


def assert_room(plan: Plan, writer: Writer) -> None:
    """Raise FailedError where a file system lacks the room for what is kept, made and grown."""
    needed: Counter[int] = Counter()
    places: dict[int, Path] = {}

    def need(path: Path, size_bytes: int) -> None:
        while not path.exists():
            path = path.parent
        device = path.stat().st_dev
        places[device] = path
        needed[device] += size_bytes

    need(writer.root, _SLACK_BYTES + 2 * len(plan_to_bytes(plan)))
    for path, steps in plan.by_path.items():
        real, area = writer.path(path), writer.places.area_for(path)
        need(area, sum(_staged_bytes(step) for step in steps))
        if is_in_place(steps):
            need(area, min(sum(expected_range(step)[1] for step in steps), _allocated_bytes(real)))
            need(real, _growth_bytes(real, steps))
        elif _device(area) != _device(real.parent):  # no links and no renames there: both are copies
            need(area, min(steps[0].expect_file_size_bytes or 0, _allocated_bytes(real)))
            need(real, sum(_staged_bytes(step) for step in steps))
    for device, size_bytes in needed.items():
        free = writer.ops.free_bytes(places[device])
        if free < size_bytes:
            raise FailedError(
                f"the disk would be full: {size_bytes} bytes are needed and {free} are free; nothing was changed",
                path=str(places[device]),
                to_do="make room there and run the command again",
            )


def _device(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


def _staged_bytes(step: Step) -> int:
    if isinstance(step.content, Built):
        return step.content.size_bytes or 0
    return _literal_bytes(step) if step.op in NEW_FILES else 0


def _literal_bytes(step: Step) -> int:
    """Bytes a step writes that are not runs of zeros."""
    if isinstance(step.content, Content):
        return sum(len(piece) for piece in step.content.pieces if isinstance(piece, bytes))
    return step.size_bytes or 0 if step.op is Op.WRITE_RANGE else 0


def _growth_bytes(real: Path, steps: Sequence[Step]) -> int:
    """New bytes that a change in place may need: where the file was sparse, and behind its end."""
    end = max([real.stat().st_size, *(step.end for step in steps if step.op in RANGES)])
    return min(sum(map(_literal_bytes, steps)), max(0, end - _allocated_bytes(real)))


def _allocated_bytes(real: Path) -> int:
    """What a file takes up: less than its length where it is sparse, and its copy is no less sparse."""
    return real.stat().st_blocks * _BLOCK_SIZE_BYTES if real.exists() else 0
