"""What another copy of the log (a master's, a slave's, a backup) can give back: the same records lie at the same offsets there.

A copy is trusted where it proves itself only. A record is taken when it is well-formed, says that it lies where it lies,
and its body's and properties' checksums hold; and from a damaged range only when the good records on both sides of
the range are the same, byte for byte, in both stores. Behind the last good record of our log the copy's records are taken as
long as they follow each other without a break: what never arrived here is as much part of the log as what was torn. What lies
before our first byte has expired as a rule, and is taken only where somebody says from where on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from store_core.errors import NotAStoreError, UsageError
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.layout.record import MIN_RECORD_SIZE_BYTES
from store_core.mend.plans.content import Building, Chunk, register_builder
from store_core.mend.salvage.options import LoanRange
from store_core.mend.salvage.survey import LogSurvey, Neighbour, Region
from store_core.read.records import read_record_bytes
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.files import open_read_only
from store_core.storage.overlay import Borrowed, Patch
from store_core.storage.remote_path import path_of, real_path
from store_core.storage.settings import load_settings
from store_core.storage.store import Store

BUILDER: Final = "sibling"
_READ_BYTES: Final = 1 << 20
_SAMPLES: Final = 64
_OPTIONS: Final = ScanOptions(check_property_crc=True)

Span = tuple[int, int]  # [start, end) in the log
Run = tuple[int, int, int]  # start, end, records


@dataclass(frozen=True, slots=True)
class Earlier:
    """Sibling number ``sibling``'s log begins before ours, which begins at ``end_phy_offset``."""

    sibling: int
    phy_offset: int
    end_phy_offset: int


@dataclass(slots=True)
class Found:
    """What siblings can give. ``reached``: one of them has the segment from which on more was asked for."""

    loans: list[LoanRange] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)
    reached: bool = False


class Siblings:
    """Other copies, open for reading as long as the context lasts. Raises NotAStoreError, UsageError for the store itself."""

    def __init__(self, store: Store, roots: Iterable[Path], configs: Iterable[Path] = ()) -> None:
        """``configs``: the properties files of the first of them."""
        self.roots = tuple(roots)
        self._configs = tuple(islice(chain(configs, repeat(None)), len(self.roots)))
        self._stack = ExitStack()
        self.stores: list[Store] = []
        for root, config in zip(self.roots, self._configs, strict=True):
            if real_path(root) == real_path(store.root):
                raise UsageError("the store is no sibling of itself", path=str(root), to_do="name another copy")
            self.stores.append(self._stack.enter_context(_open(root.absolute(), config)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def patches(self, loans: Iterable[LoanRange]) -> dict[int, Patch]:
        """Loans as bytes that are read where they lie, by their offset in the log."""
        return {
            loan.phy_offset: Borrowed(
                0,
                loan.size_bytes,
                log=self.stores[loan.sibling].log,
                phy_offset=loan.phy_offset,
                origin=str(self.stores[loan.sibling].root),
                config=str(self._configs[loan.sibling] or ""),
            )
            for loan in loans
        }

    def find(self, store: Store, survey: LogSurvey, from_phy_offset: int | None = None) -> Found:
        """What they can give, the first that has a record gives it.

        ``from_phy_offset``: what lies before this store's first byte is taken too, from the segment that holds it on. Raises
        UsageError for one that is no copy of this store, and where nobody has that segment.
        """
        found = Found()
        begins = store.log.min_phy_offset
        for number, (root, sibling) in enumerate(zip(self.roots, self.stores, strict=True)):
            comparison = _Comparison(store, sibling, survey)
            comparison.assert_related(root)
            runs = self._runs(sibling, comparison, survey, found.loans)
            first = sibling.log.find(from_phy_offset) if from_phy_offset is not None else None
            if sibling.log.min_phy_offset < begins and comparison.same_begin():
                found.earlier.append(Earlier(number, sibling.log.min_phy_offset, begins))
                if first is not None:
                    found.reached = True
                    runs = chain(self._runs_before(sibling, first.phy_offset, begins, found.loans), runs)
            joined = _joined(store.log.file_size_bytes, runs)
            found.loans += [LoanRange(number, start, end - start, count) for start, end, count in joined]
        if from_phy_offset is not None and from_phy_offset < begins and not found.reached:
            reach = min((each.phy_offset for each in found.earlier), default=None)
            more = "" if reach is None else f", or an offset from {reach} on"
            raise UsageError(
                f"no sibling has the segment that holds {from_phy_offset}", to_do=f"name another copy{more}"
            )
        found.loans.sort(key=lambda loan: loan.phy_offset)
        return found

    def _runs_before(self, sibling: Store, start: int, end: int, taken: list[LoanRange]) -> Iterator[Run]:
        """Whole records before our first byte, apart from those that another copy gives."""
        for low, high in _without((start, end), _given(taken)):
            yield from _records_in(sibling, low, high)

    def _runs(
        self, sibling: Store, comparison: _Comparison, survey: LogSurvey, taken: list[LoanRange]
    ) -> Iterator[Run]:
        """Whole records of one copy, apart from those that another one gives."""
        given = _given(taken)
        for region in survey.regions:
            start = comparison.start_between_same(region)
            for low, high in _without((start, region.end_phy_offset), given) if start is not None else ():
                yield from _records_in(sibling, low, high)
        start = comparison.same_end()
        if start is not None:
            given_end = max((loan.phy_offset + loan.size_bytes for loan in taken), default=start)
            yield from _records_behind(sibling, survey.last_phy_offset, start, max(start, given_end))


@dataclass(slots=True)
class _Comparison:
    """Our store and a copy, compared at places where ours is good."""

    store: Store
    sibling: Store
    survey: LogSurvey
    compared: int = 0
    same: int = 0
    _known: dict[Span, bool | None] = field(default_factory=dict)

    def is_same(self, phy_offset: int, size_bytes: int) -> bool:
        """Whether both hold the same bytes there."""
        place = (phy_offset, size_bytes)
        if place not in self._known:
            theirs = self.sibling.log.read(phy_offset, size_bytes)
            self._known[place] = None
            if len(theirs) == size_bytes:
                self._known[place] = theirs == self.store.log.read(phy_offset, size_bytes)
                self.compared += 1
                self.same += bool(self._known[place])
        return bool(self._known[place])

    def start_between_same(self, region: Region) -> int | None:
        """Where to begin to take a region's records; None unless the good records on both its sides are the same.

        At the log's begin there is one side only. A record in front that was torn where the region begins is taken too.
        """
        before, behind = _place(region.before), self._behind(region)
        if before is None and behind is None:
            return None
        if behind is not None and not self.is_same(*behind):
            return None
        if before is None or self.is_same(*before):
            return region.phy_offset
        return before[0] if sum(before) == region.phy_offset and self.is_torn(*before) else None

    def same_end(self) -> int | None:
        """Where to begin to take what lies behind our last record: its end, or its start where it was torn; None if it differs."""
        start, end = self.survey.last_phy_offset, self.survey.end_phy_offset
        if not self.survey.messages:
            return None
        if self.is_same(start, end - start):
            return end
        return start if self.is_torn(start, end - start) else None

    def same_begin(self) -> bool:
        """Whether both hold the same first good record of ours, so that what the copy has before it belongs there."""
        begin = self.store.log.min_phy_offset
        first = next((region for region in self.survey.regions if region.phy_offset == begin), None)
        if first is not None:
            behind = self._behind(first)
            return behind is not None and self.is_same(*behind)
        data = read_record_bytes(self.store.log, begin)
        return data is not None and self.is_same(begin, len(data))

    def is_torn(self, phy_offset: int, size_bytes: int) -> bool:
        """Whether our record is the copy's up to somewhere behind its body's begin, and zeros from there on.

        A lost page that begins in a record's topic or properties leaves such a record, which no checksum tells.
        """
        ours, theirs = self.store.log.read(phy_offset, size_bytes), self.sibling.log.read(phy_offset, size_bytes)
        whole = len(ours.rstrip(b"\0"))
        torn = len(theirs) == size_bytes > whole and whole >= MIN_RECORD_SIZE_BYTES and theirs.startswith(ours[:whole])
        self.same += torn
        return torn

    def _behind(self, region: Region) -> Span | None:
        """Where the first good record behind a region lies, and its size; other regions may come before it."""
        by_start = {other.phy_offset: other for other in self.survey.regions}
        following: Region | None = region
        while following is not None:
            if following.after is not None:
                return _place(following.after)
            at = following.segment_end_phy_offset if following.blank_follows else following.end_phy_offset
            following = by_start.get(at)
        data = read_record_bytes(self.store.log, at)
        return (at, len(data)) if data is not None else None

    def assert_related(self, root: Path) -> None:
        """Compare at the regions, at the log's end, and at the segments' first records."""
        self.same_end()
        for region in self.survey.regions[:_SAMPLES]:
            self.start_between_same(region)
        for segment in self.store.log.segments[:: max(len(self.store.log.segments) // _SAMPLES, 1)]:
            if (data := read_record_bytes(self.store.log, segment.phy_offset)) is not None:
                self.is_same(segment.phy_offset, len(data))
        if not self.compared:
            raise UsageError(
                "the sibling's log has no offset in common with this store's",
                path=str(root),
                to_do="name a copy of this store",
            )
        if not self.same:
            raise UsageError(
                f"not a copy of this store: of {self.compared} good records compared none is the same there",
                path=str(root),
                to_do="name a master's, a slave's or a backup's copy of this store",
            )


def _place(neighbour: Neighbour | None) -> Span | None:
    return (neighbour.phy_offset, neighbour.size_bytes) if neighbour is not None else None


def _given(taken: list[LoanRange]) -> list[Span]:
    return sorted((loan.phy_offset, loan.phy_offset + loan.size_bytes) for loan in taken)


def _without(span: Span, given: list[Span]) -> list[Span]:
    """A span without ranges (in order) that somebody gave already."""
    left, start = [], span[0]
    for low, high in given:
        if high <= start or low >= span[1]:
            continue
        if low > start:
            left.append((start, low))
        start = high
    return [*left, (start, span[1])] if start < span[1] else left


def _good(table: FrameTable) -> Any:
    return table.messages & table.of_code(FrameCode.OK)


def _records_in(sibling: Store, start: int, end: int) -> Iterator[Run]:
    """Records that check out, and blanks, that lie wholly in a span; those that join come as one."""
    for table in scan_log(sibling, from_phy_offset=start, to_phy_offset=end, options=_OPTIONS):
        good, ends = _good(table), table.phy_offset + table.size_bytes
        blank = table.of_kind(FrameKind.BLANK) & table.of_code(FrameCode.OK)
        rows = np.flatnonzero((good | blank) & (table.phy_offset >= start) & (ends <= end))
        yield from _runs_of(table.phy_offset[rows], ends[rows], good[rows])


def _records_behind(sibling: Store, last: int, start: int, from_phy_offset: int) -> Iterator[Run]:
    """Records that follow each other from ``start`` on, over blanks, without a break; those before another offset are not
    given. ``last``: where our last record begins."""
    at = start
    for table in scan_log(sibling, from_phy_offset=last, options=_OPTIONS):
        good, ends = _good(table), table.phy_offset + table.size_bytes
        rows = np.flatnonzero(ends > at)
        if not len(rows):
            continue
        joins = table.phy_offset[rows] == np.r_[at, ends[rows[:-1]]]
        joins &= good[rows] | (table.kind[rows] == FrameKind.BLANK)
        chain = rows if joins.all() else rows[: int(np.argmin(joins))]
        mine = chain[ends[chain] > from_phy_offset]
        yield from _runs_of(table.phy_offset[mine], ends[mine], good[mine])
        if len(chain) < len(rows):
            return
        at = int(ends[chain[-1]])


def _runs_of(starts: Any, ends: Any, is_record: Any) -> Iterator[Run]:
    """Frames that join as one."""
    first = 0
    for stop in np.flatnonzero(np.r_[ends[:-1] != starts[1:], True]).tolist() if len(starts) else ():
        yield int(starts[first]), int(ends[stop]), int(np.count_nonzero(is_record[first : stop + 1]))
        first = stop + 1


def _joined(segment_size_bytes: int, runs: Iterable[Run]) -> Iterator[Run]:
    """Runs that join as one, as far as a segment goes."""
    held: Run | None = None
    for start, end, count in runs:
        if held is not None and held[1] == start and start % segment_size_bytes:
            held = held[0], end, held[2] + count
            continue
        if held is not None:
            yield held
        held = start, end, count
    if held is not None:
        yield held


def _open(root: Path, config: Path | None) -> Store:
    try:
        return Store.open(root, load_settings(config, root))
    except NotAStoreError as error:
        to_do = "name the root of a copy of this store with --sibling"
        raise NotAStoreError(f"the sibling is no store: {error.what}", path=error.path, to_do=to_do) from error


def _build(building: Building) -> Iterator[Chunk]:
    """One file, or one range of one: bytes of a sibling or of another file, and bytes told, each at its place; zeros elsewhere."""
    (path,) = building.paths
    for at, root, phy_offset, size_bytes, *config in building.arguments["parts"]:
        # Plans of earlier releases name the store itself by "".
        with _open(path_of(root or building.root), Path(config[0]) if config else None) as sibling:
            for done in range(0, size_bytes, _READ_BYTES):  # what is missing shows in the digest
                wanted = min(_READ_BYTES, size_bytes - done)
                yield Chunk(path, sibling.log.read(phy_offset + done, wanted), at + done)
    for at, name, position, size_bytes in building.arguments.get("files", ()):
        with open(open_read_only(building.root / name), "rb") as file:
            file.seek(position)
            for done in range(0, size_bytes, _READ_BYTES):
                yield Chunk(path, file.read(min(_READ_BYTES, size_bytes - done)), at + done)
    for at, text in building.arguments["bytes"]:
        yield Chunk(path, bytes.fromhex(text), at)


register_builder(BUILDER, _build)
