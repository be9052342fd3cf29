"""Read the table of ranges of the log that are no records, as an export's quarantine has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from store_core.export.dest.parts import Range, inside, quarantine_rows
from store_core.export.rows.schema import QUARANTINE_COLUMNS, Column
from store_core.export.tables.table import Batches, StoresTable, Where, wanted_rows
from store_core.kernel.codes import FrameKind
from store_core.read.log_files import unread_log
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.live import is_live
from store_core.storage.store import Store

_OPTIONS = ScanOptions(properties=False)
_ROWS_AT_ONCE = 10_000


class QuarantineTable(StoresTable):
    """Ranges of the logs of some stores, in log order. Damage at a log's end is its torn tail, unless a broker is
    writing.
    """

    columns: Sequence[Column] = QUARANTINE_COLUMNS

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            self.tell(name, list(unread_log(store)))
            for rows in _ranges_with_codes(store):
                yield wanted_rows(quarantine_rows(name, rows), columns, where)


def _ranges_with_codes(store: Store) -> Iterator[list[tuple[Range, str]]]:
    """Yield ranges, each with its finding's code, some at a time."""
    rows: list[tuple[Range, str]] = []
    held: list[Range] = []
    for table in scan_log(store, options=_OPTIONS):
        if table.is_good:
            if len(table):
                rows, held = [*rows, *inside(held)], []
            continue
        for found in _frames(store, table):
            if found.kind == FrameKind.MESSAGE:
                rows, held = [*rows, *inside(held)] if held else rows, []
            elif found.kind != FrameKind.BLANK:
                held.append(found)
        if len(rows) >= _ROWS_AT_ONCE:
            yield rows
            rows = []
    leftovers = inside(found for found in held if found.kind in (FrameKind.STALE, FrameKind.HOLE))
    torn = [(found, "L004") for found in held if found.kind == FrameKind.DAMAGE]
    if torn and is_live(store.root).live:
        torn = []
    yield [*rows, *sorted([*leftovers, *torn], key=lambda row: row[0].phy_offset)]


def _frames(store: Store, table: FrameTable) -> Iterator[Range]:
    segment = store.log.find(table.window_phy_offset)
    file = store.relative(segment.path) if segment is not None else ""
    columns = (table.kind.tolist(), table.code.tolist(), table.phy_offset.tolist(), table.size_bytes.tolist())
    for kind, code, at, size in zip(*columns, strict=True):
        yield Range(kind, code, at, size, file)
