"""Parquet files of an export: written part by part in a staging folder, described for the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from store_core.check.log import finding_code_inside
from store_core.export.dest.place import Place
from store_core.export.rows import schema
from store_core.kernel.codes import FrameCode, FrameKind

Table = Literal["messages", "quarantine"]

FOLDERS: Final[dict[Table, str]] = {"messages": "data", "quarantine": "quarantine"}
_ROW_GROUP_BYTES: Final = 64 << 20
KIND_NAMES: Final = {
    FrameKind.DAMAGE: "damage",
    FrameKind.ZEROS: "zeros",
    FrameKind.STALE: "stale",
    FrameKind.HOLE: "hole",
}


class Range(NamedTuple):
    """A stretch of the log that is no frame; ``file`` is its segment, relative to the store root."""

    kind: int
    code: int
    phy_offset: int
    size_bytes: int
    file: str

    @property
    def end_phy_offset(self) -> int:
        return self.phy_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A written Parquet file. ``path`` is where it is to stand below the destination, ``staged`` its name until then."""

    table: Table
    store: str
    staged: str
    path: str
    rows: int
    size_bytes: int
    crc32c: int
    first_phy_offset: int | None
    last_phy_offset: int | None

    def as_json(self) -> dict[str, Any]:
        """A member of ``files`` in the manifest and in the command's result."""
        return {
            "path": self.path,
            "table": self.table,
            "store": self.store,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
            "crc32c": f"{self.crc32c:08x}",
            "first_phy_offset": self.first_phy_offset,
            "last_phy_offset": self.last_phy_offset,
        }


class PartWriter:
    """Writes batches of one table into one file at a place, in row groups of some tens of MiB; ``abort`` removes it."""

    def __init__(self, place: Place, table: Table, store: str, file_name: str) -> None:
        """``file_name`` ends the file's path: a name for the store's part of the table that no other part has."""
        self._file, staged, path = place.create(f"{FOLDERS[table]}/{file_name}")
        self._schema = schema.MESSAGES if table == "messages" else schema.QUARANTINE
        try:
            self._writer = pq.ParquetWriter(
                self._file,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=schema.DICTIONARY_PATHS if table == "messages" else True,
            )
        except BaseException:
            self._file.discard()
            raise
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._offsets: list[int] = []
        self._part = Part(table, store, staged, path, 0, 0, 0, None, None)

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows of the table, in log order."""
        if not len(batch):
            return
        at = batch.column("phy_offset")
        first = self._part.first_phy_offset
        self._part = replace(
            self._part,
            rows=self._part.rows + len(batch),
            first_phy_offset=at[0].as_py() if first is None else first,
            last_phy_offset=at[-1].as_py(),
        )
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> Part:
        """Finish the file; tells what it is. Raises FailedError."""
        try:
            self._flush()
            self._writer.close()
            self._file.close()
        except BaseException:
            self.abort()
            raise
        return replace(self._part, size_bytes=self._file.size_bytes, crc32c=self._file.crc32c)

    def abort(self) -> None:
        self._file.drop()
        with suppress(Exception):  # an unfinished writer would finish, and complain, whenever it is collected
            self._writer.close()
        self._writer.is_open = False  # one whose end cannot be written would try again when it is collected
        self._file.discard()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending, self._schema)
            self._writer.write_table(table, row_group_size=len(table))
            self._pending, self._pending_bytes = [], 0


def quarantine_rows(store: str, ranges: Iterable[tuple[Range, str]]) -> pa.RecordBatch:
    """Rows of the quarantine table from ranges, each with its finding's code."""
    rows = [
        {
            "store": store,
            "phy_offset": found.phy_offset,
            "size_bytes": found.size_bytes,
            "kind": KIND_NAMES[FrameKind(found.kind)],
            "reason": FrameCode(found.code).name.lower() if found.kind == FrameKind.DAMAGE else None,
            "finding": finding_code,
        }
        for found, finding_code in ranges
    ]
    return pa.RecordBatch.from_pylist(rows, schema.QUARANTINE)


def inside(ranges: Iterable[Range]) -> list[tuple[Range, str]]:
    """Ranges with good records behind them, with the codes of their findings."""
    return [(found, finding_code_inside(found.kind, found.code)) for found in ranges]


def file_stem(store: str) -> str:
    """A store's name as it may stand in a file name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "_" for c in store).lstrip("._") or "store"
