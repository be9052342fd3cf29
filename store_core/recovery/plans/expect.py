"""Check that the store is still as a plan expects it. The store is only read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from store_core.errors import FailedError, PlanOutOfDateError
from store_core.recovery.plans.content import Built
from store_core.recovery.plans.plan import ABSENT, IN_PLACE, NEW_FILES, RANGES, Op, Plan, Step
from store_core.storage.digest import digest_range
from store_core.storage.writer import Writer

_MAKE_ANEW: Final = "make the plan again"


def is_in_place(steps: Sequence[Step]) -> bool:
    return steps[0].op in IN_PLACE


def assert_expected(plan: Plan, writer: Writer) -> None:
    """Check that every step finds what it expects.

    Raises:
        PlanOutOfDateError: the store has changed since the plan was made.
        FailedError: a path of the plan is not a plain file.
    """
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
    """Yield the differences from what the steps of a path expect."""
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
        yield from _remaining_entries(plan, path, real, writer)
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
    """Return offset and size of the bytes that a step's digest covers, up to the file's present end."""
    length = step.expect_file_size_bytes or 0
    if step.op in RANGES:
        return step.offset or 0, max(0, min(step.end, length) - (step.offset or 0))
    if step.op is Op.SET_LENGTH:
        return step.size_bytes or 0, max(0, length - (step.size_bytes or 0))
    return 0, length


def _remaining_entries(plan: Plan, path: str, real: Path, writer: Writer) -> Iterator[str]:
    if not real.is_dir() or real.is_symlink():
        yield "it is no folder"
        return
    removed = {p for p, steps in plan.by_path.items() if steps[0].op in (Op.REMOVE_FILE, Op.REMOVE_FOLDER)}
    for entry in real.iterdir():
        if writer.places.name(entry) not in removed:
            yield f"{entry.name} would remain in it"


def work_size_bytes(plan: Plan) -> int:
    """Return the total of ``on_progress`` for applying a plan: bytes kept, made and written, as far as known."""
    return sum(expected_range(step)[1] + _made_bytes(step) for step in plan.steps)


def _made_bytes(step: Step) -> int:
    times = (step.op in RANGES) + (step.op in NEW_FILES or isinstance(step.content, Built))
    return times * (step.size_bytes or 0)
