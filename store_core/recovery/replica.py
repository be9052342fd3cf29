"""Find ranges that the log lacks in another copy of it: a master's, a slave's or a backup's.

The same records are at the same offsets in each copy. A copy is trusted only up to the last record that both logs have, or
wholly if they never part (``read.log_copies``). A record is taken if it is well-formed, is at its own offset, and its body and property checksums hold. After this log's last good
record everything that the copy has is taken: records that never arrived are as much part of the log as torn ones. Records
before this log's first byte have expired as a rule, and are taken only if the operator names the offset to start from.
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

from store_core.codec.properties import TAGS
from store_core.codec.record import Message, body_crc_ok
from store_core.codec.tags import tags_code
from store_core.errors import NotAStoreError, UsageError
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.read.log_copies import Comparison, Log, Span, common_history, is_torn, parts_outside, same_message
from store_core.recovery.damage_scan import LogSurvey, Region
from store_core.recovery.keep_options import LoanRange
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.plans.plan import Building, Chunk, register_builder
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, scan_log
from store_core.scan.tombstone_rows import filler_rows, tombstone_rows
from store_core.storage.files import open_read_only
from store_core.storage.overlay import Borrowed, Patch
from store_core.storage.remote_path import path_of, real_path
from store_core.storage.settings import load_settings
from store_core.storage.store import QueueKey, Store

BUILDER: Final = "sibling"
_READ_BYTES: Final = 1 << 20
_END_BYTES: Final = 16  # of a record, which damage after it may reach
_OPTIONS: Final = ScanOptions(check_property_crc=True)

Run = tuple[int, int, int]  # start, end, records


@dataclass(frozen=True, slots=True)
class Earlier:
    """The earlier records of sibling number ``sibling``: this store's log begins at ``end_phy_offset``."""

    sibling: int
    phy_offset: int
    end_phy_offset: int


@dataclass(slots=True)
class Found:
    """Ranges that siblings have. ``reached``: a sibling has the segment that holds the requested first offset."""

    loans: list[LoanRange] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)
    reached: bool = False


class Siblings:
    """Other copies, open for reading until the context ends. Raises NotAStoreError, and UsageError for the store itself."""

    def __init__(self, store: Store, roots: Iterable[Path], configs: Iterable[Path] = ()) -> None:
        """Open the stores at ``roots``; ``configs`` are the broker configuration files of the first roots."""
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
        """Return loans as patches by log offset that read the siblings' files."""
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

    def find(
        self, store: Store, survey: LogSurvey, from_phy_offset: int | None = None, ours: Iterable[Region] = ()
    ) -> Found:
        """Return the ranges that siblings can give; of several siblings with a record the first gives it.

        Args:
            from_phy_offset: also take what is before this store's first byte, from the segment that holds this offset on.
            ours: regions with tombstones and fillers.

        Raises:
            UsageError: a sibling is no copy of this store, or none has the segment of ``from_phy_offset``.
        """
        found = Found()
        begins = store.log.min_phy_offset
        spans: list[list[Span]] = []
        for number, (root, sibling) in enumerate(zip(self.roots, self.stores, strict=True)):
            history = common_history(Log(store, survey.end_phy_offset), Log(sibling))
            if survey.messages:
                _assert_related(history, root)
            wanted = list(_wanted(_Pair(store, sibling, history), survey, ours))
            first = sibling.log.find(from_phy_offset) if from_phy_offset is not None else None
            if sibling.log.min_phy_offset < begins and history.same:
                found.earlier.append(Earlier(number, sibling.log.min_phy_offset, begins))
                if first is not None:
                    found.reached = True
                    wanted.insert(0, (first.phy_offset, begins))
            spans.append(wanted)
        for whole in (True, False):  # a torn record is better than none
            for number, (sibling, wanted) in enumerate(zip(self.stores, spans, strict=True)):
                given = _given(found.loans)
                parts = [part for span in wanted for part in parts_outside(span, given)]
                runs = chain.from_iterable(_records_in(sibling, *part, whole=whole) for part in parts)
                joined = _joined(store.log.file_size_bytes, runs)
                found.loans += [LoanRange(number, start, end - start, count) for start, end, count in joined if count]
        if from_phy_offset is not None and from_phy_offset < begins and not found.reached:
            reach = min((earlier.phy_offset for earlier in found.earlier), default=None)
            alternative = "" if reach is None else f", or an offset from {reach} on"
            raise UsageError(
                f"no sibling has the segment that holds {from_phy_offset}", to_do=f"name another copy{alternative}"
            )
        found.loans.sort(key=lambda loan: loan.phy_offset)
        return found


def _assert_related(history: Comparison, root: Path) -> None:
    """Raise UsageError for a log that is no copy."""
    if not history.compared:
        raise UsageError(
            "the sibling's log has no offset in common with this store's",
            path=str(root),
            to_do="name a copy of this store",
        )
    if not history.same:
        raise UsageError(
            f"not a copy of this store: of {history.compared} good records compared none is the same there",
            path=str(root),
            to_do="name a master's, a slave's or a backup's copy of this store",
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    """A store and a copy of its log, with their common history."""

    store: Store
    sibling: Store
    history: Comparison

    def is_one_log_up_to(self, end_phy_offset: int) -> bool:
        """Return True if both logs are one before an offset: it is before a common record, or they never part."""
        history = self.history
        return bool(history.same) and (end_phy_offset <= history.last_same or history.parted_at is None)

    def reaches_into(self, phy_offset: int, size_bytes: int, damage_phy_offset: int) -> bool:
        """Return True if damage at an offset took the end of the record before it, which the copy has whole.

        No checksum covers that end.
        """
        if phy_offset + size_bytes != damage_phy_offset:
            return False
        data, sibling_data = (store.log.read(phy_offset, size_bytes) for store in (self.store, self.sibling))
        both = same_message(data, sibling_data, phy_offset)
        if both is None:
            return is_torn(data, sibling_data)
        message, other = both
        if data == sibling_data or not body_crc_ok(other):
            return False
        entry = queue_entry_at(self.store, QueueKey(message.topic, message.queue_id), message.queue_offset)
        codes = _tags_code(message), _tags_code(other)
        if entry is not None and entry[:2] == (phy_offset, size_bytes) and codes[0] != codes[1] and entry[2] in codes:
            return entry[2] == codes[1]
        return data[-_END_BYTES:] != sibling_data[-_END_BYTES:] and not sibling_data.endswith(b"\0")


def _tags_code(message: Message) -> int:
    return tags_code(message.properties.get(TAGS))


def _wanted(pair: _Pair, survey: LogSurvey, ours: Iterable[Region]) -> Iterator[Span]:
    """Yield the ranges to read from a copy: damaged regions, tombstones and fillers, and everything after the end."""
    for region in (*survey.regions, *ours):
        if pair.is_one_log_up_to(region.end_phy_offset):
            before, start = region.before, region.phy_offset
            if before is not None and pair.reaches_into(before.phy_offset, before.size_bytes, start):
                start = before.phy_offset
            yield start, region.end_phy_offset
    last, end = survey.last_phy_offset, survey.end_phy_offset
    if survey.messages and pair.is_one_log_up_to(max(end, pair.sibling.log.max_phy_offset)):
        start = last if pair.reaches_into(last, end - last, end) else end
        yield start, max(pair.sibling.log.max_phy_offset, start)


def _given(taken: list[LoanRange]) -> list[Span]:
    return sorted((loan.phy_offset, loan.phy_offset + loan.size_bytes) for loan in taken)


def _good(table: FrameTable, *, whole: bool) -> Any:
    """Return a mask of the sound records that rmqctl did not write.

    ``whole``: without records whose properties may be torn, which no checksum shows.
    """
    good = table.messages & table.of_code(FrameCode.OK)
    good[[*filler_rows(table), *tombstone_rows(table)]] = False
    if whole:
        ends = table.phy_offset + table.size_bytes - table.window_phy_offset
        rows = np.flatnonzero(good & (table.properties_length > 0) & (ends <= len(table.window)))
        good[rows[np.frombuffer(table.window, np.uint8)[ends[rows] - 1] == 0]] = False
    return good


def _records_in(sibling: Store, start: int, end: int, *, whole: bool) -> Iterator[Run]:
    """Yield runs of adjacent sound records and blanks that lie wholly in a span."""
    for table in scan_log(sibling, from_phy_offset=start, to_phy_offset=end, options=_OPTIONS):
        good, ends = _good(table, whole=whole), table.phy_offset + table.size_bytes
        blank = table.of_kind(FrameKind.BLANK) & table.of_code(FrameCode.OK)
        rows = np.flatnonzero((good | blank) & (table.phy_offset >= start) & (ends <= end))
        yield from _runs_of(table.phy_offset[rows], ends[rows], good[rows])


def _runs_of(starts: Any, ends: Any, is_record: Any) -> Iterator[Run]:
    """Yield adjacent frames as runs."""
    first = 0
    for stop in np.flatnonzero(np.r_[ends[:-1] != starts[1:], True]).tolist() if len(starts) else ():
        yield int(starts[first]), int(ends[stop]), int(np.count_nonzero(is_record[first : stop + 1]))
        first = stop + 1


def _joined(segment_size_bytes: int, runs: Iterable[Run]) -> Iterator[Run]:
    """Yield runs with adjacent ones of a segment joined."""
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
    """Yield the bytes of a file or range from siblings, other files and the plan; the rest is zeros."""
    (path,) = building.paths
    for at, root, phy_offset, size_bytes, *config in building.arguments["parts"]:
        # Plans of earlier releases name the store itself by "".
        with _open(path_of(root or building.root), Path(config[0]) if config else None) as sibling:
            for done in range(0, size_bytes, _READ_BYTES):  # the digest shows missing bytes
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
