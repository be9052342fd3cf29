"""Define a plan: ordered steps as data, each with the digest of the bytes it expects to find.

The new bytes of a step are literal pieces and runs of zeros, or the call of a registered builder.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, Final

from store_core.errors import FailedError, PlanOutOfDateError
from store_core.layout.paths import LOCK, OURS
from store_core.storage.digest import WINDOW_SIZE_BYTES, Digest, Hole, digest_of, digest_range
from store_core.storage.writer import Writer

Contents = Mapping[
    str, Callable[[], Iterator[bytes | Hole]]
]  # readers of files that builders have made already, by path
_PLAN_ID_DIGITS: Final = 16
_NO_OFFSET: Final = 1 << 63
ABSENT: Final = -1
_MAKE_ANEW: Final = "make the plan again"


@dataclass(frozen=True, slots=True)
class Zeros:
    """A run of zero bytes, stored in a plan as its length."""

    size_bytes: int

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise ValueError("a run of zeros has no negative size")


Piece = bytes | Zeros


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes as a sequence of pieces: a filler of 4 MiB is its head and a run of zeros."""

    pieces: tuple[Piece, ...]
    _ends: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", tuple(accumulate(map(_size, self.pieces))))

    @property
    def size_bytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def runs(self) -> Iterator[bytes | Hole]:
        """Yield all bytes, a window at most at a time; a run of zeros of any length is one hole."""
        for piece in self.pieces:
            if isinstance(piece, Zeros):
                yield Hole(piece.size_bytes)
            else:
                yield from (piece[at : at + WINDOW_SIZE_BYTES] for at in range(0, len(piece), WINDOW_SIZE_BYTES))

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return the bytes of a range; fewer if the content ends in it."""
        from bisect import bisect_right

        end = min(offset + size_bytes, self.size_bytes)
        parts: list[bytes] = []
        at = bisect_right(self._ends, offset)
        while offset < end:
            piece = self.pieces[at]
            start = self._ends[at] - _size(piece)
            stop = min(end, self._ends[at])
            parts.append(piece[offset - start : stop - start] if isinstance(piece, bytes) else bytes(stop - offset))
            offset, at = stop, at + 1
        return b"".join(parts)

    def zeros_from(self, offset: int) -> int:
        """Return how many bytes of a run of zeros follow ``offset``; 0 at other bytes or after the end."""
        from bisect import bisect_right

        at = bisect_right(self._ends, offset)
        is_run = at < len(self.pieces) and isinstance(self.pieces[at], Zeros)
        return self._ends[at] - offset if is_run else 0

    def digest(self) -> Digest:
        return digest_of(self.runs())


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.size_bytes


@dataclass(frozen=True, slots=True)
class Built:
    """Bytes that a registered builder makes when the plan is applied; steps with the same call are built together.

    ``size_bytes`` and ``crc32c``: expected length and digest, None if unknown; a shorter output is filled up with zeros.
    ``data_bytes``: upper bound of the bytes outside holes; None if unknown.
    """

    builder: str
    arguments: Mapping[str, Any]
    size_bytes: int | None = None
    crc32c: int | None = None
    data_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes for a file that a builder makes: at ``offset``, or, if None, after the previous ones."""

    path: str
    data: bytes | Hole
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Building:
    """The arguments of a builder: the unchanged store, the whole plan, and the paths of the steps to build."""

    root: Path
    plan: Plan
    arguments: Mapping[str, Any]
    paths: Sequence[str]


Builder = Callable[[Building], Iterable[Chunk]]

_BUILDERS: Final[dict[str, Builder]] = {}


def register_builder(name: str, builder: Builder) -> Builder:
    """Register a builder under the name by which plans call it. The name is part of saved plans: never change it.

    A builder only reads, and is called before the first change to the store. It must give the same bytes for the same
    store and arguments, because the next run calls it again after a killed apply. It may mix chunks of several files.
    """
    if _BUILDERS.setdefault(name, builder) is not builder:
        raise ValueError(f"there is a builder {name} already")
    return builder


def builder_named(name: str) -> Builder:
    """Return the builder of this name. Raises FailedError if this version has none."""
    try:
        return _BUILDERS[name]
    except KeyError:
        raise FailedError(
            f"the plan needs a builder that is not known here: {name}", to_do="use the rmqctl that made the plan"
        ) from None


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
