"""New bytes of a plan's step: literal pieces and runs of zeros, or a recipe for a registered builder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from store_core.errors import FailedError
from store_core.storage.digest import WINDOW_SIZE_BYTES, Digest, Hole, digest_of

if TYPE_CHECKING:
    from store_core.recovery.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Zeros:
    """A run of zero bytes that needs no room in a plan."""

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
        """All bytes, a window at most at a time; a run of zeros comes as one, however long it is."""
        for piece in self.pieces:
            if isinstance(piece, Zeros):
                yield Hole(piece.size_bytes)
            else:
                yield from (piece[at : at + WINDOW_SIZE_BYTES] for at in range(0, len(piece), WINDOW_SIZE_BYTES))

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of a range; fewer where the content ends."""
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
        """How many bytes from there a run of zeros has, at most; none where other bytes are, or the content has ended."""
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
    """Bytes that a registered builder makes when the plan is applied; all steps with the same call are built in one go.

    ``size_bytes`` and ``crc32c``, where known, are what must come out; a shorter output is filled up with zeros.
    ``data_bytes``: at most so many of ``size_bytes`` lie in no hole; None if unknown.
    """

    builder: str
    arguments: Mapping[str, Any]
    size_bytes: int | None = None
    crc32c: int | None = None
    data_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes for one of the files a builder makes, behind those before, or at ``offset``."""

    path: str
    data: bytes | Hole
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Building:
    """What a builder gets: the store as it still is, the whole plan, and the paths of the steps it must make."""

    root: Path
    plan: Plan
    arguments: Mapping[str, Any]
    paths: Sequence[str]


Builder = Callable[[Building], Iterable[Chunk]]
Contents = Mapping[
    str, Callable[[], Iterator[bytes | Hole]]
]  # what builders would make, by path, where it is at hand already

_BUILDERS: Final[dict[str, Builder]] = {}


def register_builder(name: str, builder: Builder) -> Builder:
    """Make a builder known under the name that plans call it by. The name is part of saved plans: never change it.

    A builder is called before anything of the plan is changed, and only reads. It must give the same bytes for the same
    store and arguments, for a killed apply may call it again. Chunks of several files may come in any order.
    """
    if _BUILDERS.setdefault(name, builder) is not builder:
        raise ValueError(f"there is a builder {name} already")
    return builder


def builder_named(name: str) -> Builder:
    """Raises FailedError where this version has no such builder."""
    try:
        return _BUILDERS[name]
    except KeyError:
        raise FailedError(
            f"the plan needs a builder that is not known here: {name}", to_do="use the rmqctl that made the plan"
        ) from None
