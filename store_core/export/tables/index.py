"""Read the table of index entries, in the order in which each file was written (store format, section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from store_core.export.rows.schema import TIME, Column
from store_core.export.tables.table import Batches, StoresTable, Where, needed, only, schema_of, times, wanted_rows
from store_core.read.index import Index, IndexFile
from store_core.read.types import index_faults

INDEX_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("file", pa.string(), "name of the index file", repeats=True),
    Column("slot", pa.int32(), "the slot whose chain the entry hangs on"),
    Column("entry", pa.int32(), "number of the entry in its file, from 1"),
    Column("key_hash", pa.int32(), "hash of topic#key"),
    Column("phy_offset", pa.int64(), "byte offset of the record in the log"),
    Column("store_time", TIME, "the file's start and whole seconds; null for a number that is no time", nullable=True),
    Column("previous", pa.int32(), "number of the next older entry on the slot; 0 or less: none"),
)
_SCHEMA: Final = schema_of(INDEX_COLUMNS)
_MILLISECONDS: Final = 1000


class IndexTable(StoresTable):
    """Entries of all index files of some stores. Only an entry's record shows its topic and key."""

    columns: Sequence[Column] = INDEX_COLUMNS

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            with Index(store) as index:
                self.tell(name, [*index.findings, *index_faults(store, index.sizes)])
                for file in index.files:
                    yield from self.of_file(name, file, columns, where)

    def of_file(self, store: str, file: IndexFile, columns: Sequence[str], where: Where | None = None) -> Batches:
        """Yield the entries of one file; none where the condition excludes the whole file."""
        promise = (ds.field("store") == store) & (ds.field("file") == file.path.name)
        if where is not None and not where.possible([promise]):
            return
        names = needed(columns, where)
        for first, entries in file.columns():
            rows = self._rows(store, file, first, entries)
            yield wanted_rows(rows.select(only(INDEX_COLUMNS, names).names), columns, where)

    def _rows(self, store: str, file: IndexFile, first: int, entries: NDArray[np.void]) -> pa.RecordBatch:
        hashes = entries["key_hash"].astype(np.int32)
        stored_ms = file.header.begin_timestamp_ms + entries["seconds"].astype(np.int64) * _MILLISECONDS
        made = {
            "store": pa.repeat(pa.scalar(store), len(entries)),
            "file": pa.repeat(pa.scalar(file.path.name), len(entries)),
            "slot": pa.array(hashes % np.int32(file.sizes.slots)),
            "entry": pa.array(np.arange(first, first + len(entries), dtype=np.int32)),
            "key_hash": pa.array(hashes),
            "phy_offset": pa.array(entries["phy_offset"].astype(np.int64)),
            "store_time": times(stored_ms),
            "previous": pa.array(entries["previous"].astype(np.int32)),
        }
        return pa.RecordBatch.from_arrays([made[name] for name in _SCHEMA.names], schema=_SCHEMA)
