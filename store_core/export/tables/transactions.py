"""Read the table of transactions: half messages, the state of each, and the records that decided it (store format
10.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from store_core.check.log import LogFindings
from store_core.codec.properties import PRODUCER_GROUP, REAL_QID, REAL_TOPIC
from store_core.export.rows.schema import TIME, Column
from store_core.export.tables.table import Batches, StoresTable, Where, microseconds, schema_of, wanted_rows
from store_core.layout import paths
from store_core.read.log_files import unread_log
from store_core.read.records import read_message
from store_core.read.transactions import Transaction, TransactionTracker, check_progress
from store_core.scan.frames import FrameTable
from store_core.scan.log import scan_log
from store_core.storage.config_files import offset_table, read_config
from store_core.storage.live import is_live
from store_core.storage.store import Store

TRANSACTION_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("state", pa.string(), "committed, rolled_back, given_up, pending or unknown", repeats=True),
    Column("checks", pa.int32(), "how often the broker has asked the producer (TRANSACTION_CHECK_TIMES)"),
    Column("real_topic", pa.string(), "topic that a commit puts it in; null where no record says it", nullable=True),
    Column("real_queue_id", pa.int32(), "queue that a commit puts it in; null likewise", nullable=True),
    Column("producer_group", pa.string(), "group of the producer that is asked; null likewise", nullable=True),
    Column("unique_key", pa.string(), "property UNIQ_KEY; null without one", nullable=True),
    Column("keys", pa.list_(pa.string()), "the keys in property KEYS; empty without any"),
    Column("queue_id", pa.int32(), f"queue number of the half message in {paths.HALF_TOPIC}"),
    Column("queue_offset", pa.int64(), "entry number of the half message there"),
    Column("phy_offset", pa.int64(), "byte offset of the half message in the log, the first one of a transaction"),
    Column("store_time", TIME, "when the half message came; null for a number that is no time", nullable=True),
    Column("half_messages", pa.int32(), "1, and one more for each copy that the broker made when it asked"),
    Column("last_phy_offset", pa.int64(), "byte offset of the newest copy, or of the half message itself"),
    Column("last_queue_offset", pa.int64(), "its entry number"),
    Column(
        "commit_phy_offset", pa.int64(), "byte offset of the message that the commit made; else null", nullable=True
    ),
    Column("op_phy_offset", pa.int64(), "byte offset of the op record; null without one", nullable=True),
    Column(
        "given_up_phy_offset",
        pa.int64(),
        f"byte offset of the message in {paths.TRANSACTION_CHECK_TOPIC}; null without one",
        nullable=True,
    ),
    Column("end_time", TIME, "when the first of these three was stored; null without any", nullable=True),
)
_BATCH_ROWS: Final = 8192
_QUEUE_ID_DIGITS: Final = 9


class TransactionsTable(StoresTable):
    """Transactions of some stores, in the order in which they ended, then the pending ones of each store.

    A read walks the whole log, and reports damage as findings.
    """

    columns: Sequence[Column] = TRANSACTION_COLUMNS

    def __init__(
        self, stores: Sequence[tuple[str, Store]], on_progress: Callable[[int], None] = lambda walked_bytes: None
    ) -> None:
        super().__init__(stores)
        self._on_progress = on_progress

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            self.tell(name, list(unread_log(store)))
            config = read_config(store.root)
            self.tell(name, config.progress.findings)
            progress = check_progress(offset_table(config))
            for found in _in_batches(self._transactions(name, store)):
                rows = [_row(name, store, transaction, progress) for transaction in found]
                yield wanted_rows(pa.RecordBatch.from_pylist(rows, schema_of(TRANSACTION_COLUMNS)), columns, where)

    def _transactions(self, name: str, store: Store) -> Iterator[Transaction]:
        tracker, findings = TransactionTracker(), LogFindings(store.log)
        reached_end = False
        try:
            for table in scan_log(store, on_progress=self._on_progress):
                findings.add(table, _file_of(store, table))
                tracker.add(table)
                yield from tracker.ended()
            reached_end = True
            yield from tracker.rest()
        finally:
            if not reached_end:
                findings.put_back()  # the query stopped early, so held damage may be inside the log or its tail
            self.tell(name, findings.end(live=findings.may_be_torn and is_live(store.root).live))


def _file_of(store: Store, table: FrameTable) -> str:
    segment = store.log.find(table.window_phy_offset)
    return store.relative(segment.path) if segment is not None else ""


def _in_batches(found: Iterable[Transaction]) -> Iterator[list[Transaction]]:
    batch: list[Transaction] = []
    for transaction in found:
        batch.append(transaction)
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    yield batch


def _row(name: str, store: Store, found: Transaction, progress: Mapping[int, int]) -> dict[str, Any]:
    half = read_message(store.log, found.last_phy_offset)
    properties = half.properties if half is not None else {}
    queue_id = properties.get(REAL_QID, "")
    is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _QUEUE_ID_DIGITS
    return {
        "store": name,
        "state": found.state(progress.get(found.queue_id, 0)),
        "checks": min(found.checks, paths.LARGEST_QUEUE_ID),
        "real_topic": properties.get(REAL_TOPIC),
        "real_queue_id": int(queue_id) if is_number else None,
        "producer_group": properties.get(PRODUCER_GROUP),
        "unique_key": half.unique_key if half is not None else None,
        "keys": list(half.keys) if half is not None else [],
        "queue_id": found.queue_id,
        "queue_offset": found.queue_offset,
        "phy_offset": found.phy_offset,
        "store_time": microseconds(found.store_timestamp_ms),
        "half_messages": found.half_messages,
        "last_phy_offset": found.last_phy_offset,
        "last_queue_offset": found.last_queue_offset,
        "commit_phy_offset": found.commit_phy_offset,
        "op_phy_offset": found.op_phy_offset,
        "given_up_phy_offset": found.given_up_phy_offset,
        "end_time": microseconds(found.end_timestamp_ms),
    }
