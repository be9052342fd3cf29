"""Read the table of compacted topics, which a broker keeps in logs of their own (store format, section 11.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds

from store_core.check.log import UNREADABLE, LogFindings
from store_core.export.rows.schema import Column
from store_core.export.tables.messages import MESSAGE_COLUMNS, Decoding
from store_core.export.tables.table import Batches, StoresTable, Where, refuse_cut
from store_core.findings import Finding, finding
from store_core.scan.frames import FrameTable, Ints
from store_core.scan.log import ScanOptions, scan_segment
from store_core.storage.live import is_live
from store_core.storage.sequence import Segment
from store_core.storage.store import QueueKey, Store

FOLDER: Final = Column(
    "folder", pa.string(), "folder of the queue's compacted log, from the store's root", repeats=True
)
_OWN_OFFSET: Final = "byte offset of the record in its folder's log; that in the commit log is not kept"
# A broker makes the offset message id from the offset in the commit log, which is lost.
COMPACTION_COLUMNS: Final = (
    MESSAGE_COLUMNS[0],
    FOLDER,
    *(
        replace(column, meaning=_OWN_OFFSET) if column.name == "phy_offset" else column
        for column in MESSAGE_COLUMNS[1:]
        if column.name != "offset_msg_id"
    ),
)
# The checksum of the properties includes the offset, so it fits the record in the commit log only.
_OPTIONS: Final = ScanOptions(check_crc=True, properties=False)


class CompactionTable(StoresTable):
    """Records of the compacted logs of some stores, by topic, queue and file. ``on_table`` is called after each
    window.
    """

    columns: Sequence[Column] = COMPACTION_COLUMNS

    def __init__(self, stores: Sequence[tuple[str, Store]], on_table: Callable[[], None] = lambda: None) -> None:
        super().__init__(stores)
        self._on_table = on_table

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            for key, segments in store.compaction_files.items():
                for segment in segments:
                    yield from self.of_file(name, store, key, segment, columns, where)

    def of_file(
        self,
        name: str,
        store: Store,
        key: QueueKey,
        segment: Segment,
        columns: Sequence[str],
        where: Where | None = None,
    ) -> Batches:
        """Yield the records of one file. It is a log of its own: a file that a compaction wrote starts at 0."""
        folder = store.relative(segment.path.parent)
        promise = (ds.field("store") == name) & (ds.field("folder") == folder)
        if where is not None and not where.possible([promise]):
            return
        log = store.log.alone(segment)
        decoding = _Decoding(self, name, columns, where, folder)
        with store.with_log(log) as view:
            findings = LogFindings(log)
            for table in scan_segment(view, segment, _OPTIONS):
                self._on_table()
                refuse_cut(segment, table)
                findings.add(table, store.relative(segment.path))
                if len(rows := table.messages.nonzero()[0]):
                    yield from decoding.decoded(table, rows)
        found = findings.end(live=findings.may_be_torn and is_live(store.root).live)
        self.tell(name, [_as_compaction_finding(log_finding, key) for log_finding in found])


class _Decoding(Decoding):
    """Decodes records as for the log, and adds the folder."""

    def __init__(self, table: StoresTable, name: str, columns: Sequence[str], where: Where | None, folder: str) -> None:
        super().__init__(table, name, columns, where)
        self._folder = folder

    def _columns_of(self, table: FrameTable, rows: Ints, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        others = [name for name in names if name != FOLDER.name] or ["store"]
        for batch in super()._columns_of(table, rows, others):
            folders = pa.repeat(pa.scalar(self._folder), len(batch))
            yield batch.append_column(FOLDER.field, folders).select(list(names))


def _as_compaction_finding(found: Finding, key: QueueKey) -> Finding:
    """Return a finding of a log as one of a compacted topic, which no command repairs."""
    if found.code == UNREADABLE:
        return found
    return finding(
        "Q030",
        found.message,
        file=found.file,
        phy_offset=found.phy_offset,
        size_bytes=found.size_bytes,
        topic=key.topic,
        queue_id=key.queue_id,
        queue_offset=found.queue_offset,
        severity=found.severity,
    )
