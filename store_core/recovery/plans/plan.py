"""Define a plan: ordered steps as data, each with the digest of the bytes it expects to find."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final

from store_core.layout.paths import LOCK, OURS
from store_core.recovery.plans.content import Built, Content

_PLAN_ID_DIGITS: Final = 16
_NO_OFFSET: Final = 1 << 63


class Op(StrEnum):
    """The operation of a step on its path."""

    WRITE_RANGE = "write range"  # write bytes at an offset of an existing file
    ZERO_RANGE = "zero range"  # write zeros
    SET_LENGTH = "set length"  # cut the file to size_bytes, or extend it by zeros
    REPLACE_FILE = "replace file"  # replace an existing file by a whole new one
    CREATE_FILE = "create file"  # create a new file and its missing folders
    REMOVE_FILE = "remove file"
    REMOVE_FOLDER = "remove folder"  # remove a folder that earlier steps have emptied


IN_PLACE: Final = frozenset({Op.WRITE_RANGE, Op.ZERO_RANGE, Op.SET_LENGTH})
RANGES: Final = frozenset({Op.WRITE_RANGE, Op.ZERO_RANGE})
NEW_FILES: Final = frozenset({Op.REPLACE_FILE, Op.CREATE_FILE})
WITH_CONTENT: Final = NEW_FILES | {Op.WRITE_RANGE}
WITHOUT_FILE: Final = frozenset({Op.CREATE_FILE, Op.REMOVE_FOLDER})


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a path. Make it with ``Draft``, which sets the expected values.

    * ``offset``, ``size_bytes``: the written range. For SET_LENGTH offset is None and size_bytes the new length; for whole
      files offset is None and size_bytes the new file's length (None: known only once built).
    * ``expect_crc32c``: digest of the present bytes of the range (up to the file's end), of the part that SET_LENGTH cuts
      off, or of the whole file; None if there must be none.
    * ``expect_file_size_bytes``: the present length.
    * ``mtime_ns``: the modification time afterwards; None: a file changed in place keeps its time, a new file gets the
      current time.
    """

    op: Op
    path: str
    offset: int | None = None
    size_bytes: int | None = None
    expect_crc32c: int | None = None
    expect_file_size_bytes: int | None = None
    content: Content | Built | None = None
    mtime_ns: int | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise ValueError(f"{self.op} {self.path}: {problem}")

    @property
    def end(self) -> int:
        """The offset after the range."""
        return (self.offset or 0) + (self.size_bytes or 0)

    def row(self) -> dict[str, Any]:
        """Return the step as commands show it."""
        return {
            "op": str(self.op),
            "path": self.path,
            "offset": self.offset,
            "size_bytes": self.size_bytes,
            "expect_crc32c": self.expect_crc32c,
        }


ABSENT: Final = -1


@dataclass(frozen=True, slots=True)
class Witness:
    """A file that a plan depends on without changing it: it must be the same when the plan is applied.

    A size of ``ABSENT`` means that the file did not exist, and must not exist then.
    """

    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Plan:
    """Steps in order, their purpose, and the state of the store for which they were made.

    A path is changed either in place (ranges that do not overlap, at most one SET_LENGTH) or as a whole
    by one step, so every expected value is of the state before the plan. Raises ValueError otherwise.
    """

    kind: str  # the command: recover, truncate, rebuild, …
    policy: str | None
    store: str  # the root's real path when the plan was made, for the operator
    steps: tuple[Step, ...]
    made_for: tuple[Witness, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.kind.replace("-", "").isalnum():
            raise ValueError("a plan's kind is one word")
        for path, steps in self.by_path.items():
            _assert_compatible(path, steps)

    @cached_property
    def by_path(self) -> Mapping[str, tuple[Step, ...]]:
        """The steps of each path, paths in order of their first step."""
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            found.setdefault(step.path, []).append(step)
        return {path: tuple(steps) for path, steps in found.items()}

    @cached_property
    def id(self) -> str:
        """16 hex digits, equal for equal steps on the same state of the same store."""
        from store_core.recovery.plans.plan_json import identity

        found = hashlib.sha256()
        for text in identity(self):
            found.update(text.encode())
        return found.hexdigest()[:_PLAN_ID_DIGITS]

    def summary(self) -> dict[str, Any]:
        """Return the value of ``plan`` in the documents of writing commands."""
        return {"id": self.id, "policy": self.policy, "steps": [step.row() for step in self.steps]}


def _problem(step: Step) -> str | None:
    """Return the error of a single step; None if it has none."""
    path = PurePosixPath(step.path)
    if not path.parts or ".." in path.parts or str(path) != step.path or "\0" in step.path:
        return "not a plain path"
    if OURS in path.parts or step.path == LOCK:
        return "not a plan's business"
    if any(number is not None and number < 0 for number in (step.offset, step.size_bytes, step.expect_file_size_bytes)):
        return "negative number"
    if step.end >= _NO_OFFSET:
        return "beyond the end of any file"
    if (step.content is not None) != (step.op in WITH_CONTENT):
        return "content missing or out of place"
    if step.op in RANGES and (step.offset is None or not step.size_bytes):
        return "a range needs offset and size"
    if step.op is Op.SET_LENGTH and step.size_bytes is None:
        return "a length is missing"
    if (step.expect_crc32c is None) != (step.op in WITHOUT_FILE):
        return "expected digest missing or out of place"
    if (step.expect_file_size_bytes is None) != (step.op in WITHOUT_FILE):
        return "expected file length missing or out of place"
    if step.content is not None and step.size_bytes != step.content.size_bytes:
        return "size does not fit the content"
    return None


def _assert_compatible(path: str, steps: Sequence[Step]) -> None:
    if len(steps) == 1:
        return
    ops = [step.op for step in steps]
    if not IN_PLACE.issuperset(ops) or ops.count(Op.SET_LENGTH) > 1:
        raise ValueError(f"{path}: changed in place and as a whole, or twice")
    if len({step.expect_file_size_bytes for step in steps}) > 1:
        raise ValueError(f"{path}: steps expect different lengths")
    length = next((step.size_bytes for step in steps if step.op is Op.SET_LENGTH), None)
    end = 0
    for step in sorted((s for s in steps if s.op in RANGES), key=lambda s: s.offset or 0):
        if (step.offset or 0) < end:
            raise ValueError(f"{path}: ranges overlap at {step.offset}")
        end = step.end
    if length is not None and end > length:
        raise ValueError(f"{path}: a range lies beyond the new length")
