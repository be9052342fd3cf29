"""Convert a window's messages to Arrow record batches. The values are those of ``codec.record.Message``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_core.export.rows import schema
from store_core.export.rows.bodies import BODY_COLUMNS, Bodies, inflated
from store_core.export.rows.columns import Cut, array_of, parts_of
from store_core.export.rows.kinds import topic_kind
from store_core.findings import Finding
from store_core.kernel.arrow import ArrowColumns, arrow_columns
from store_core.kernel.codes import ArrowPart
from store_core.layout import record
from store_core.scan.frames import FrameTable, Ints

__all__ = ["Batch", "message_batches", "topic_kind"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some messages as columns, with a finding (L012) for each body that cannot be decompressed."""

    rows: pa.RecordBatch
    findings: tuple[Finding, ...] = ()


def message_batches(table: FrameTable, rows: Ints, store: str, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Yield the messages with these ascending row numbers as batches of ``schema.MESSAGES``, in order.

    ``columns`` are the wanted names, at least one, in the wanted order; other columns are not decoded. Without
    ``body`` and ``body_decoded`` no body is decompressed, so no finding reports one. The batches own their bytes.
    There is one batch, unless the bodies inflate to more than ``bodies.DECODED_LIMIT_BYTES``. Raises KeyError for an
    unknown column.
    """
    if not len(rows):
        return
    wanted = _wanted(None if columns is None else tuple(columns))
    compressed = (table.sys_flag[in_a_row(rows)] & record.FLAG_COMPRESSED) != 0
    wants_bodies = not BODY_COLUMNS.isdisjoint(wanted.fields.names)
    for bodies in inflated(table, rows, compressed) if wants_bodies else [Bodies(slice(0, len(rows)), compressed)]:
        yield Batch(_batch(table, rows[bodies.places], store, bodies, wanted), bodies.findings)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Columns of the messages, and the ArrowParts that they are made of."""

    fields: pa.Schema
    parts: int


@cache
def _wanted(columns: tuple[str, ...] | None) -> _Wanted:
    names = schema.MESSAGES.names if columns is None else columns
    return _Wanted(pa.schema([schema.MESSAGES.field(name) for name in names]), parts_of(names))


def _batch(table: FrameTable, rows: Ints, store: str, bodies: Bodies, wanted: _Wanted) -> pa.RecordBatch:
    which = in_a_row(rows)
    parts = _cut_out(table, which, wanted.parts) if wanted.parts else ArrowColumns()
    cut = Cut(lambda name: getattr(table, name)[which], tuple(table.topics), len(rows), store, parts, bodies)
    return pa.RecordBatch.from_arrays([array_of(name, cut) for name in wanted.fields.names], schema=wanted.fields)


def _cut_out(table: FrameTable, which: slice | Ints, parts: int) -> ArrowColumns:
    return arrow_columns(
        table.window, table.phy_offset[which] - table.window_phy_offset, table.size_bytes[which], parts
    )


def tombstones(table: FrameTable, rows: Ints) -> NDArray[np.bool_]:
    """Return a mask of the tombstones among a table's messages; row numbers ascending, at least one."""
    marks = _cut_out(table, in_a_row(rows), ArrowPart.MARKS).tombstone
    assert marks is not None
    return np.unpackbits(marks, count=len(rows), bitorder="little").view(np.bool_)


def in_a_row(rows: Ints) -> slice | Ints:
    """Return consecutive row numbers as a slice, which avoids copies; others unchanged."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else np.asarray(rows)
