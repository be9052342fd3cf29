"""Hold the new bytes of a plan's step: literal pieces and runs of zeros, or the call of a registered builder."""

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
Contents = Mapping[
    str, Callable[[], Iterator[bytes | Hole]]
]  # readers of files that builders have made already, by path

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
