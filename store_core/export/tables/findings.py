"""Check whole stores when the table of findings is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from store_core.check.store import check_store
from store_core.export.rows.schema import Column
from store_core.export.tables.table import Batches, StoresTable, Where, schema_of, wanted_rows
from store_core.findings import Finding
from store_core.read.log_copies import apart, differences
from store_core.storage.live import is_live
from store_core.storage.remote_path import path_of
from store_core.storage.store import Store

FINDING_COLUMNS: Final = (
    Column("store", pa.string(), "name of the store", repeats=True),
    Column("code", pa.string(), "code of the finding (rmqctl explain CODE)", repeats=True),
    Column("severity", pa.string(), "info, warning or error", repeats=True),
    Column("file", pa.string(), "file, from the store's root; null if of none", nullable=True),
    Column("phy_offset", pa.int64(), "byte offset in the log, or null", nullable=True),
    Column("size_bytes", pa.int64(), "length, bytes, or null", nullable=True),
    Column("topic", pa.string(), "topic, or null", nullable=True),
    Column("queue_id", pa.int32(), "queue number, or null", nullable=True),
    Column("queue_offset", pa.int64(), "entry number in the queue, or null", nullable=True),
    Column("message", pa.string(), "what was found"),
    Column("advice", pa.string(), "what to do about it"),
)


class FindingsTable(StoresTable):
    """Findings of a check of each store; the check runs once, at the first read.

    If a log is read from several copies, each copy is checked separately, and files have full names.
    """

    columns: Sequence[Column] = FINDING_COLUMNS

    def __init__(
        self, stores: Sequence[tuple[str, Store]], on_progress: Callable[[int], None] = lambda walked_bytes: None
    ) -> None:
        super().__init__(stores)
        self._on_progress = on_progress
        self._known: dict[str, list[Finding]] = {}

    def batches(self, columns: Sequence[str], where: Where | None = None) -> Batches:
        for name, store in self._stores:
            if name not in self._known:
                self._known[name] = self._checked(store)
                self.tell(name, self._known[name])
            rows = [{"store": name, **found.as_json()} for found in self._known[name]]
            yield wanted_rows(pa.RecordBatch.from_pylist(rows, schema_of(FINDING_COLUMNS)), columns, where)

    def _checked(self, store: Store) -> list[Finding]:
        if not store.settings.copies:
            return self._check(store)
        found = [
            in_full(store.root, store_finding) for store_finding in differences(store, 0, store.log.max_phy_offset)
        ]
        for settings in apart(store.settings):
            with Store.open(settings.root, settings) as copy:
                found += [in_full(settings.root, store_finding) for store_finding in self._check(copy)]
        return found

    def _check(self, store: Store) -> list[Finding]:
        return check_store(store, live=is_live(store.root).live, on_progress=self._on_progress).findings


def in_full(root: Path, found: Finding) -> Finding:
    """Return a finding with the full name of its file, for commands on several stores."""
    if found.file is None or path_of(found.file).is_absolute():
        return found
    return replace(found, file=str(root / found.file))
