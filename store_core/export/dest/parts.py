"""Write the Parquet files of an export and describe them for the manifest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from store_core.check.log import finding_code_inside
from store_core.export.dest.parquet import ParquetFile, WrittenFile
from store_core.export.dest.task_destination import Place
from store_core.export.rows import schema
from store_core.kernel.codes import FrameCode, FrameKind, HoleCode

Table = Literal["messages", "quarantine"]
Partition = tuple[str, str | None] | None  # name of a column or a unit of time, and the value

FOLDERS: Final[dict[Table, str]] = {"messages": "data", "quarantine": "quarantine"}
# All folders that an export may fill, those of ``tables_export`` too: an overwrite empties them.
RESULT_FOLDERS: Final = (*FOLDERS.values(), "queues", "index", "stats", "topics", "groups")
ROW_GROUP_SIZE_BYTES: Final = 16 << 20
# Row groups are small, so a filter of this size suits most of them.
_BLOOM: Final = {"ndv": 20_000, "fpp": 0.05}
_MESSAGE_OPTIONS: Final[dict[str, Any]] = {
    "store_schema": False,  # it would give readers this writer's dictionary types
    "write_page_index": True,
    "bloom_filter_options": dict.fromkeys(schema.BLOOM_PATHS, _BLOOM),
}
_MICROSECONDS: Final = 1000  # a millisecond
_DIGEST_DIGITS: Final = 12
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
# The characters that Hive and Spark escape in the names of partition folders, and those that no file name may have.
_ESCAPED: Final = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{}\\[\\]^]")
_KIND_NAMES: Final = {
    FrameKind.DAMAGE: "damage",
    FrameKind.ZEROS: "zeros",
    FrameKind.STALE: "stale",
    FrameKind.HOLE: "hole",
}


class Range(NamedTuple):
    """A range of the log that is no frame; ``file`` is its segment, relative to the store root."""

    kind: int
    code: int
    phy_offset: int
    size_bytes: int
    file: str

    @property
    def end_phy_offset(self) -> int:
        return self.phy_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class Part(WrittenFile):
    """A written file of messages or of the quarantine."""

    table: Table
    first_phy_offset: int | None
    last_phy_offset: int | None
    partition: Partition = None  # name and value, also in the path
    topics: tuple[str, str] | None = None  # the first and the last one by name
    store_times_ms: tuple[int, int] | None = None  # the oldest and the newest

    def as_json(self) -> dict[str, Any]:
        return WrittenFile.as_json(self) | {
            "first_phy_offset": self.first_phy_offset,
            "last_phy_offset": self.last_phy_offset,
            "topics": self.topics,
            "store_times_ms": self.store_times_ms,
            "partition": self.partition,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Part:
        """Return a part from ``as_json``, already at its final path."""
        found = dict(told) | {"staged": told["path"], "crc32c": int(told["crc32c"], 16)}
        for name in ("topics", "store_times_ms", "partition"):
            found[name] = tuple(told[name]) if told[name] else None
        return cls(**{field.name: found[field.name] for field in fields(cls)})


class PartWriter:
    """Writes batches of one table into one file, in row groups of about ``ROW_GROUP_SIZE_BYTES``; ``abort`` removes
    it.
    """

    def __init__(
        self,
        place: Place,
        table: Table,
        store: str,
        file_name: str,
        partition: Partition = None,
        *,
        whole: bool = False,
        sorted_by: Sequence[str] = ("phy_offset",),
    ) -> None:
        """Create the file.

        Args:
            file_name: the file's name below the partition's folder, unique in the store's part of the table.
            whole: keep a column that the path names; otherwise it is left out of the file, as readers of such folders
                expect.
            sorted_by: the sort order of the rows of each group.
        """
        self._schema = schema_of(table, None if whole else partition)
        options = message_options(self._schema) if table == "messages" else {}
        places = [self._schema.get_field_index(name) for name in sorted_by if name in self._schema.names]
        options["sorting_columns"] = [pq.SortingColumn(place) for place in places]
        self._file = ParquetFile(place, f"{FOLDERS[table]}/{folder_of(partition)}{file_name}", self._schema, **options)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._part = Part(table, store, self._file.staged, self._file.path, 0, 0, 0, None, None, partition)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows of the table, in log order."""
        if not len(batch):
            return
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= ROW_GROUP_SIZE_BYTES:
            self._flush()

    def write_group(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows of the table, in any order, as a row group."""
        self._pending = list(batches)
        self._flush()

    def _count(self, batches: Sequence[pa.RecordBatch]) -> None:
        part = self._part
        first, last = _wider(None, [batch.column("phy_offset") for batch in batches])
        self._part = replace(
            part,
            rows=part.rows + sum(map(len, batches)),
            first_phy_offset=first if part.first_phy_offset is None else min(part.first_phy_offset, first),
            last_phy_offset=last if part.last_phy_offset is None else max(part.last_phy_offset, last),
        )
        if part.table == "messages":
            self._part = replace(
                self._part,
                topics=_wider(part.topics, [batch.column("topic").dictionary for batch in batches]),
                store_times_ms=_wider(
                    part.store_times_ms, [_milliseconds(batch.column("store_time")) for batch in batches]
                ),
            )

    def close(self) -> Part:
        """Finish the file and return its description. Raises FailedError."""
        try:
            self._flush()
        except BaseException:
            self.abort()
            raise
        self._file.close()
        return replace(self._part, size_bytes=self._file.size_bytes, crc32c=self._file.crc32c)

    def abort(self) -> None:
        self._file.abort()

    def _flush(self) -> None:
        if self._pending:
            self._count(self._pending)
            names = self._schema.names
            rows = pa.Table.from_batches([batch.select(names) for batch in self._pending], self._schema)
            self._file.write_group(rows.unify_dictionaries())  # the writer takes one dictionary a row group
            self._pending, self._pending_bytes = [], 0


def _milliseconds(times: pa.TimestampArray) -> pa.Int64Array:
    """Return the smallest and the largest of times in microseconds, in milliseconds."""
    bounds = pc.min_max(times.view(pa.int64()))
    return pc.divide(pa.array([bounds["min"].as_py(), bounds["max"].as_py()], pa.int64()), _MICROSECONDS)


def _wider(bounds: Any, values: Sequence[pa.Array]) -> Any:
    """Extend bounds by values; None without any."""
    found = pc.min_max(pa.chunked_array(values))
    smallest, largest = found["min"].as_py(), found["max"].as_py()
    if smallest is None:
        return bounds
    return (smallest, largest) if bounds is None else (min(bounds[0], smallest), max(bounds[1], largest))


def schema_of(table: Table, partition: Partition = None) -> pa.Schema:
    """Return the columns of a table's files in a partition."""
    whole = schema.WRITTEN if table == "messages" else schema.QUARANTINE
    named = partition[0] if partition is not None else ""
    return whole.remove(whole.get_field_index(named)) if named in whole.names else whole


def folder_of(partition: Partition) -> str:
    """Return a partition's folder below its table's, with a slash at its end."""
    return f"{partition[0]}={escaped(partition[1])}/" if partition is not None else ""


def escaped(value: str | None) -> str:
    """Return a value as part of the name of a partition's folder."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value) if value else _NO_VALUE


def message_options(columns: pa.Schema) -> dict[str, Any]:
    """Return options of the Parquet writer, which refuses columns that a file does not have."""
    names = set(columns.names)
    options = {
        "use_dictionary": [path for path in schema.DICTIONARY_PATHS if path.split(".")[0] in names],
        "write_statistics": [path for path in schema.STATISTICS_PATHS if path in names],
    }
    return {**options, **_MESSAGE_OPTIONS}


def quarantine_rows(store: str, ranges: Iterable[tuple[Range, str]]) -> pa.RecordBatch:
    """Return rows of the quarantine table from ranges, each with its finding's code."""
    rows = [
        {
            "store": store,
            "phy_offset": found.phy_offset,
            "size_bytes": found.size_bytes,
            "kind": kind_name(found),
            "reason": _reason(found),
            "finding": finding_code,
        }
        for found, finding_code in ranges
    ]
    return pa.RecordBatch.from_pylist(rows, schema.QUARANTINE)


def kind_name(found: Range) -> str:
    """Return the kind of a range in the quarantine table."""
    is_refused = found.kind == FrameKind.HOLE and found.code != HoleCode.NO_FILE
    return "unreadable" if is_refused else _KIND_NAMES[FrameKind(found.kind)]


def _reason(found: Range) -> str | None:
    if found.kind == FrameKind.DAMAGE:
        return FrameCode(found.code).name.lower()
    return HoleCode(found.code).name.lower() if kind_name(found) == "unreadable" else None


def inside(ranges: Iterable[Range]) -> list[tuple[Range, str]]:
    """Return ranges that good records follow, with the codes of their findings."""
    return [(found, finding_code_inside(found.kind, found.code)) for found in ranges]


def file_stem(store: str) -> str:
    """Return a store's name as part of a file name, no two alike: other characters require a digest."""
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "_" for c in store).lstrip("._")
    if stem == store:
        return stem
    digest = hashlib.sha256(store.encode(errors="surrogateescape")).hexdigest()[:_DIGEST_DIGITS]
    return f"{stem or 'store'}-{digest}"
