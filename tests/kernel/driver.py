"""Drives a kernel over a segment window by window, as the scan does, and compares what kernels return.

Where the compiled kernel was not built (no cargo), the twin alone is held against the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np

from store_core.kernel.codes import FrameKind, ScanFlag, ScanState
from store_core.kernel.columns import Row, WindowColumns
from store_core.kernel.reference import scan as twin
from store_core.layout import record

Scan = Callable[[Any, int, int, int, int, int], WindowColumns]
KERNELS: Final[dict[str, Scan]] = {"twin": twin.scan_window}
try:
    from store_core.kernel import native
except ImportError:
    pass
else:
    KERNELS["native"] = native.scan_window
FASTEST: Final = list(KERNELS.values())[-1]
ALL: Final = (
    ScanFlag.CHECK_CRC
    | ScanFlag.INDEX_KEYS
    | ScanFlag.CHECK_PROPERTY_CRC
    | ScanFlag.INDEX_TAGS
    | ScanFlag.CHECK_NUMBERS
)
_PLACES: Final = ("body_at", "topic_at", "properties_at")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment in memory."""

    phy_offset: int
    data: bytes

    @property
    def end_phy_offset(self) -> int:
        return self.phy_offset + len(self.data)

    def changed(self, at: int, data: bytes) -> Segment:
        """A copy with other bytes from index ``at`` on, of the same length."""
        return Segment(self.phy_offset, (self.data[:at] + data + self.data[at + len(data) :])[: len(self.data)])


def segments(root: Path) -> list[Segment]:
    """The log of a store; files with foreign names are left out."""
    paths = sorted(path for path in (root / "commitlog").iterdir() if path.is_file() and path.name.isdigit())
    return [Segment(int(path.name), path.read_bytes()) for path in paths]


@dataclass(frozen=True, slots=True)
class Frame:
    """One merged row; ``row`` has absolute places and no topic id."""

    row: Row
    topic: bytes | None

    @property
    def kind(self) -> int:
        return self.row.kind

    @property
    def phy_offset(self) -> int:
        return self.row.phy_offset

    @property
    def end(self) -> int:
        return self.row.phy_offset + self.row.size_bytes


@dataclass(frozen=True, slots=True)
class Scanned:
    """A whole segment: frames that lie back to back, and (frame number, key hash) pairs."""

    frames: list[Frame]
    keys: list[tuple[int, int]]

    def shape(self) -> list[tuple[int, int, int, int]]:
        """Kind, code, start and size of each frame."""
        return [(f.row.kind, f.row.code, f.row.phy_offset, f.row.size_bytes) for f in self.frames]

    def messages(self) -> dict[int, Row]:
        return {f.phy_offset: f.row for f in self.frames if f.kind == FrameKind.MESSAGE}


def both(*call: Any) -> WindowColumns:
    """What the kernels return for a call, which is the same."""
    first, *others = (kernel(*call) for kernel in KERNELS.values())
    for other in others:
        assert_same(first, other)
    return first


def assert_same(mine: WindowColumns, other: WindowColumns) -> None:
    for field in fields(WindowColumns):
        a, b = getattr(mine, field.name), getattr(other, field.name)
        assert type(a) is type(b), field.name
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            assert a.tolist() == b.tolist(), field.name
        else:
            assert a == b, field.name


def scan(
    segment: Segment, kernel: Scan = both, *, flags: int = ALL, window_bytes: int | Sequence[int] = 1 << 40
) -> Scanned:
    """A segment through windows of ``window_bytes``, each in turn; larger where the kernel needs it.

    Checks on the way that every call gets on, that nothing is asked for that is not there, and that the frames cover
    the segment.
    """
    frames: list[Frame] = []
    keys: list[tuple[int, int]] = []
    at, state, need_bytes = 0, int(ScanState.CHAINED), 0
    sizes: Iterable[int] = (
        repeat(window_bytes) if isinstance(window_bytes, int) else chain(window_bytes, repeat(1 << 16))
    )
    for size in sizes:
        if at >= len(segment.data):
            break
        start = segment.phy_offset + at
        window = segment.data[at : at + max(size, need_bytes)]
        columns = kernel(window, start, 0, segment.end_phy_offset, state, flags)
        assert columns.need_bytes <= record.MAX_RECORD_SIZE_BYTES
        assert columns.need_bytes <= len(segment.data) - at - columns.next_at
        assert columns.next_at or columns.need_bytes > len(window)
        merge(frames, keys, columns, start)
        at, state, need_bytes = at + columns.next_at, columns.next_state, columns.need_bytes
    assert at == len(segment.data)
    assert state == ScanState.CHAINED
    ends = [segment.phy_offset, *(frame.end for frame in frames)]
    assert [frame.phy_offset for frame in frames] == ends[:-1]
    assert ends[-1] == segment.end_phy_offset
    return Scanned(frames, keys)


def merge(frames: list[Frame], keys: list[tuple[int, int]], columns: WindowColumns, window_phy_offset: int) -> None:
    """Take a window's frames in, the first one into the last of the previous window where it goes on with that."""
    rows = [Row(*values) for values in zip(*(getattr(columns, name).tolist() for name in Row._fields), strict=True)]
    before = len(frames)
    if columns.continues:
        last, first = frames[-1], rows.pop(0)
        assert last.kind == first.kind
        frames[-1] = Frame(last.row._replace(size_bytes=last.row.size_bytes + first.size_bytes), None)
        before -= 1
    for row in rows:
        if row.kind != FrameKind.MESSAGE:
            frames.append(Frame(row, None))
            continue
        places = {name: getattr(row, name) + window_phy_offset for name in _PLACES}
        frames.append(Frame(row._replace(topic_id=-1, **places), columns.topics[row.topic_id]))
    keys += [(before + row, key) for row, key in zip(columns.key_row.tolist(), columns.key_hash.tolist(), strict=True)]
