"""Build MESSAGE rows in batches of columns, and single rows for messages that columns cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.compression import BodyError, compression_kind, decompress
from store_core.codec.record import transaction_kind
from store_core.codec.text import decode_text
from store_core.findings import Finding
from store_core.kernel import is_native
from store_core.kernel.arrow import ArrowColumns, Texts, Words, arrow_columns
from store_core.kernel.codes import ArrowPart, FrameCode, TextKind
from store_core.kernel.text import RowBatch, TextColumn, between, numbers, same, strings, words
from store_core.layout import record
from store_core.read.message_json import LONG_BODY_BYTES, MessageView
from store_core.scan.frames import FrameTable, Ints

if TYPE_CHECKING:
    from store_core.kernel.text import Places

_FIRST_ROWS: Final = 16
_MOST_ROWS: Final = 4096
_GROWTH: Final = 8
_MOST_BYTES: Final = 2 << 20  # of records, and of bodies that were decompressed
_PARTS: Final = ArrowPart.IDS | ArrowPart.HOSTS | ArrowPart.KEYS | ArrowPart.PROPERTIES | ArrowPart.MARKS
_TRANSACTION_AND_COMPRESSION: Final = record.TRANSACTION_MASK | record.FLAG_COMPRESSED | record.COMPRESSION_MASK


class MessageRows:
    """Builds rows of messages in a view; a tombstone's row has ``tombstone_kind`` as its kind.

    The first batches are small so that a reader gets rows soon.
    """

    def __init__(self, view: MessageView, findings: list[Finding], tombstone_kind: str) -> None:
        self._view, self._findings, self._tombstone_kind = view, findings, tombstone_kind
        self._batch_rows = _FIRST_ROWS

    def of(self, table: FrameTable, rows: Ints) -> Iterator[RowBatch | dict[str, Any]]:
        """Yield rows for these messages of a table, in their order. ``findings`` gets the view's findings."""
        if not is_native():
            yield from self._one_by_one(table, rows)
            return
        ends = np.cumsum(table.size_bytes[rows])
        at = 0
        while at < len(rows):
            end_by_bytes = int(ends.searchsorted((ends[at - 1] if at else 0) + _MOST_BYTES, "right"))
            chunk = rows[at : max(min(at + self._batch_rows, end_by_bytes), at + 1)]
            bodies = _bodies_of(table, chunk, self._view)
            if bodies is not None:
                chunk = chunk[: len(bodies.starts)]
                yield from self._batches(table, chunk, bodies)
                self._batch_rows = min(self._batch_rows * _GROWTH, _MOST_ROWS)
            else:
                chunk = chunk[:1]
                yield from self._one_by_one(table, chunk)
            at += len(chunk)

    def _batches(self, table: FrameTable, rows: Ints, bodies: _Bodies) -> Iterator[RowBatch]:
        """Yield batches of consecutive messages; tombstones are in batches of their own because their rows have one key more."""
        at = table.phy_offset[rows] - table.window_phy_offset
        parts = arrow_columns(table.window, at, table.size_bytes[rows], _PARTS)
        columns = _columns(table, rows, parts) | bodies.columns(self._view)
        assert parts.tombstone is not None
        is_tombstone = np.unpackbits(parts.tombstone, count=len(rows), bitorder="little")
        bounds = [0, *(np.flatnonzero(np.diff(is_tombstone)) + 1).tolist(), len(rows)]
        for first, stop in pairwise(bounds):
            part = {name: column.part(first, stop) for name, column in columns.items()}
            if is_tombstone[first]:
                part = {"kind": same(self._tombstone_kind), **part}
            yield RowBatch(part, stop - first, partial(self._one_by_one, table, rows[first:stop]))

    def _one_by_one(self, table: FrameTable, rows: Ints) -> Iterator[dict[str, Any]]:
        for row in rows.tolist():
            message = table.message(row)
            shown = self._view.as_json(message, self._findings)
            yield {"kind": self._tombstone_kind, **shown} if message.is_tombstone else shown


@dataclass(frozen=True, slots=True)
class _Bodies:
    """The ranges of bodies in a buffer. ``as_base64``: bodies shown as base64 whatever they contain."""

    data: Any
    starts: Ints
    stops: Ints
    as_base64: NDArray[np.bool_]

    def columns(self, view: MessageView) -> dict[str, TextColumn]:
        if view.body == "none":
            return {}
        made = (self.starts, self.stops, self.as_base64)
        body = strings((self.starts, self.stops), self.data)
        return {
            "body": TextColumn(TextKind.BODY, made, body.data),
            "body_encoding": TextColumn(TextKind.ENCODING, made, body.data),
        }


def _bodies_of(table: FrameTable, rows: Ints, view: MessageView) -> _Bodies | None:
    """Return the bodies of the first of these messages, up to one that is long or unreadable; None if the first is."""
    starts = table.body_at[rows].astype(np.int64)
    lengths = table.body_length[rows].astype(np.int64)
    compressed = (table.sys_flag[rows] & record.FLAG_COMPRESSED) != 0
    count = len(rows)
    if view.body != "none" and (long := np.flatnonzero(lengths > LONG_BODY_BYTES)).size:
        count = int(long[0])
    data: Any = table.window
    if view.body == "plain" and (places := np.flatnonzero(compressed[:count])).size:
        plain, count = _decompressed(table, rows, places.tolist(), count)
        data = b"".join([table.window, *plain])
        places = places[: len(plain)]
        lengths[places] = [len(body) for body in plain]
        starts[places] = len(table.window) + np.cumsum([0, *lengths[places]])[:-1]
    if not count:
        return None
    forced = compressed if view.body == "raw" else np.zeros(len(rows), np.bool_)
    return _Bodies(data, starts[:count], (starts + lengths)[:count], forced[:count])


def _decompressed(table: FrameTable, rows: Ints, places: list[int], count: int) -> tuple[list[bytes], int]:
    """Return the plain bodies of messages at some places of a list, and the number of rows they complete."""
    plain: list[bytes] = []
    size_bytes = 0
    for place in places:
        row = int(rows[place])
        try:
            body = decompress(table.body(row), int(table.sys_flag[row]), LONG_BODY_BYTES)
        except BodyError:
            return plain, place
        if len(body) > LONG_BODY_BYTES or (size_bytes and size_bytes + len(body) > _MOST_BYTES):
            return plain, place
        plain.append(body)
        size_bytes += len(body)
    return plain, count


def _columns(table: FrameTable, rows: Ints, parts: ArrowColumns) -> dict[str, TextColumn]:
    """Return all columns of a MESSAGE but the body, in their order."""

    def stored(name: str) -> TextColumn:
        return numbers(getattr(table, name)[rows])

    flags, index = np.unique(table.sys_flag[rows] & _TRANSACTION_AND_COMPRESSION, return_inverse=True)
    known = flags.tolist()
    return {
        "topic": words(table.topic_id[rows], [decode_text(bytes(topic)) for topic in table.topics]),
        "queue_id": stored("queue_id"),
        "queue_offset": stored("queue_offset"),
        "phy_offset": stored("phy_offset"),
        "size_bytes": stored("size_bytes"),
        "offset_msg_id": _texts(parts.offset_msg_id),
        "unique_key": _texts(parts.unique_key),
        "tags": _texts(parts.tags),
        "keys": _items(TextKind.LIST, parts.key_bounds, parts.keys),
        "flag": stored("flag"),
        "sys_flag": stored("sys_flag"),
        "transaction": words(index, map(transaction_kind, known)),
        "compression": words(index, map(compression_kind, known)),
        "born_timestamp_ms": stored("born_timestamp_ms"),
        "born_host": _texts(parts.born_host),
        "store_timestamp_ms": stored("store_timestamp_ms"),
        "store_host": _texts(parts.store_host),
        "reconsume_times": stored("reconsume_times"),
        "prepared_transaction_offset": stored("prepared_transaction_offset"),
        "body_crc": stored("body_crc"),
        "crc": words((table.code[rows] == int(FrameCode.BAD_CRC)).astype(np.int64), ("ok", "bad")),
        "body_size_bytes": stored("body_length"),
        "properties": _items(TextKind.MAP, parts.pair_bounds, parts.names, parts.values),
    }


def _texts(texts: Texts | Words | None) -> TextColumn:
    places, data = _places(texts)
    valid = texts.valid if isinstance(texts, Texts) else None
    mask = None if valid is None else np.unpackbits(valid, count=len(places[0]), bitorder="little").astype(np.bool_)
    return strings(places, data, mask)


def _items(kind: TextKind, bounds: Ints | None, *parts: Texts | Words | None) -> TextColumn:
    assert bounds is not None
    placed = [_places(part) for part in parts]
    items = tuple(bounds_array for places, _ in placed for bounds_array in places)
    return TextColumn(kind, (*between(bounds), *items), tuple(data for _, data in placed))


def _places(texts: Texts | Words | None) -> tuple[Places, Ints]:
    assert isinstance(texts, Texts)  # only collectors return words
    return between(texts.offsets), texts.data
