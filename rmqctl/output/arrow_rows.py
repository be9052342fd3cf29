"""Convert Arrow record batches to rows that JSON, CSV and tables can show."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, tzinfo
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmqctl.times import format_time
from store_core.errors import UsageError
from store_core.export.tables.table import row_groups
from store_core.kernel.codes import TextKind
from store_core.kernel.text import RowBatch, TextColumn, between, numbers, ready, strings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from rmqctl.options import ColumnFormat
    from store_core.export.query.duck import Answer


def write_answer(answer: Answer, file: IO[bytes], form: ColumnFormat) -> None:
    """Write the rows as they come. Raises UsageError for a type that Parquet lacks, and any error of reading the rows.

    The output before an error is no whole file: a Parquet file then lacks its end.
    """
    _WRITERS[form](answer, file)


def _write_stream(answer: Answer, file: IO[bytes]) -> None:
    with pa.ipc.new_stream(pa.PythonFile(file, "w"), answer.schema) as writer:
        for batch in answer.batches:
            writer.write_batch(batch)
            file.flush()


def _write_parquet(answer: Answer, file: IO[bytes]) -> None:
    sink = _Droppable(file)
    writer = _parquet_writer(sink, answer)
    try:
        for group in row_groups(answer.batches, answer.schema):
            writer.write_table(group, row_group_size=len(group))
    except BaseException:
        sink.is_dropped = True  # pyarrow writes the end of the file even after an error
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


_WRITERS: Final[dict[ColumnFormat, Callable[[Answer, IO[bytes]], None]]] = {
    "arrow": _write_stream,
    "parquet": _write_parquet,
}


class _Droppable(io.RawIOBase):
    """A file that, once ``is_dropped`` is set, silently discards what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.is_dropped = False

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        return len(memoryview(data)) if self.is_dropped else self._file.write(data)


def _parquet_writer(sink: io.RawIOBase, answer: Answer) -> Any:
    for field, kind in zip(answer.schema, answer.types, strict=True):
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowNotImplementedError as error:
            raise UsageError(
                f"Parquet has no type for column {field.name}, {kind}",
                to_do=f'cast it to another type, such as "{field.name}"::VARCHAR, or take -o arrow',
            ) from error
    return pq.ParquetWriter(pa.PythonFile(sink, "w"), answer.schema, compression="zstd", compression_level=1)


_DAY_ZERO: Final = date(1970, 1, 1).toordinal()
_FIRST_ROWS: Final = 16
_GROWTH: Final = 8
_MOST_BYTES: Final = 2 << 20  # of a batch whose text is made in one piece
_TIME_KINDS: Final = {  # keys: counts nanoseconds, has no zone
    (False, False): TextKind.MICROSECONDS,
    (True, False): TextKind.NANOSECONDS,
    (False, True): TextKind.ZONELESS_MICROSECONDS,
    (True, True): TextKind.ZONELESS_NANOSECONDS,
}


@dataclass(frozen=True, slots=True)
class _NoNumber:
    """Infinity or NaN, which JSON writes as null."""

    value: float

    def __str__(self) -> str:
        return str(self.value)

    def as_json(self) -> None:
        return None


def rows_of(batches: Iterable[pa.RecordBatch], zone: tzinfo = UTC) -> Iterator[RowBatch]:
    """Yield rows in batches: times in ISO 8601, numbers as numbers, bytes as they are. The first are small, so that a reader need not wait."""
    row_limit = _FIRST_ROWS
    for batch in batches:
        columns = {name: _column(array, zone) for name, array in zip(batch.schema.names, batch.columns, strict=True)}
        step = max(batch.num_rows * _MOST_BYTES // max(batch.nbytes, 1), 1)
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, min(step, row_limit))
            cut = {name: column.part(first, first + part.num_rows) for name, column in columns.items()}
            yield RowBatch(cut, part.num_rows, partial(_rows, part, zone))
            first += part.num_rows
            row_limit = min(row_limit * _GROWTH, _MOST_BYTES)


def _rows(batch: pa.RecordBatch, zone: tzinfo) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    for values in zip(*(_values(column, zone) for column in batch.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def _column(array: pa.Array, zone: tzinfo) -> TextColumn:
    """Return a column for the kernel; value by value if the kernel does not know its type."""
    kind = array.type
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return numbers(array.fill_null(0 if pa.types.is_integer(kind) else False).to_numpy(zero_copy_only=False), valid)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return TextColumn(TextKind.FLOAT, (array.fill_null(0).to_numpy(zero_copy_only=False),), (), valid)
    if pa.types.is_timestamp(kind) and (kind.tz is None or zone is UTC):
        unit, is_ns = ("ns", True) if kind.unit == "ns" else ("us", False)
        units = array.cast(pa.timestamp(unit, kind.tz), safe=False).cast(pa.int64()).fill_null(0)
        return TextColumn(_TIME_KINDS[is_ns, kind.tz is None], (units.to_numpy(zero_copy_only=False),), (), valid)
    if _is_text(kind):
        places, data = _places(array)
        return strings(places, data, valid, TextKind.BYTES if pa.types.is_binary(kind) else TextKind.STRING)
    if pa.types.is_list(kind) and _is_text(kind.value_type) and not array.values.null_count:
        return _items(TextKind.LIST, array, [array.values], valid)
    if pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type) and not array.items.null_count:
        return _items(TextKind.MAP, array, [array.keys, array.items], valid)
    return ready(_values(array, zone))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _items(kind: TextKind, array: pa.Array, parts: Sequence[pa.Array], valid: Any) -> TextColumn:
    placed = [_places(part) for part in parts]
    bounds = between(array.offsets.to_numpy(zero_copy_only=False).astype(np.int64))
    items = tuple(place for places, _ in placed for place in places)
    return TextColumn(kind, (*bounds, *items), tuple(np.frombuffer(data, np.uint8) for _, data in placed), valid)


def _places(array: pa.Array) -> tuple[Any, Any]:
    """Return the place of each text in a buffer, and the buffer."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return between(np.zeros(len(array) + 1, np.int32)), b""
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return between(bounds.astype(np.int64)), b"" if data is None else data


def _values(column: pa.Array, zone: tzinfo) -> list[Any]:
    """Return the values of a column. A date or time outside the calendar stays a number, which Arrow's own conversion cannot do."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        in_zone = None if kind.tz is None else zone
        numbers = _numbers(column, "ns" if kind.unit == "ns" else "us")
        return [None if number is None else _time_text(number, kind.unit == "ns", in_zone) for number in numbers]
    if pa.types.is_date(kind):
        return [
            None if days is None else _date_text(days) for days in column.cast(pa.date32()).cast(pa.int32()).to_pylist()
        ]
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode(), zone)
    if pa.types.is_map(kind):
        entries = list(zip(_values(column.keys, zone), _values(column.items, zone), strict=True))
        return [None if part is None else dict(part) for part in _parts(column, column.offsets.to_pylist(), entries)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _parts(column, column.offsets.to_pylist(), _values(column.values, zone))
    if pa.types.is_fixed_size_list(kind):
        first, size = column.offset, kind.list_size
        bounds = [number * size for number in range(first, first + len(column) + 1)]
        return _parts(column, bounds, _values(column.values, zone))
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        members = [_values(member, zone) for member in column.flatten()]
        rows = zip(*members, strict=True) if members else iter([()] * len(column))
        return [
            dict(zip(names, row, strict=True)) if valid else None
            for valid, row in zip(_is_valid(column), rows, strict=True)
        ]
    return [_plain(value) for value in column.to_pylist()]


def _numbers(column: pa.Array, unit: str) -> list[int | None]:
    numbers: list[int | None] = column.cast(pa.timestamp(unit, column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return numbers


def _is_valid(column: pa.Array) -> list[bool]:
    valid: list[bool] = column.is_valid().to_pylist()
    return valid


def _parts(column: pa.Array, bounds: list[int], values: list[Any]) -> list[list[Any] | None]:
    """Return the lists of a column; ``values`` are the elements of all lists, one list after another."""
    return [
        values[start:end] if valid else None
        for valid, (start, end) in zip(_is_valid(column), pairwise(bounds), strict=True)
    ]


def _date_text(days: int) -> str:
    try:
        return date.fromordinal(days + _DAY_ZERO).isoformat()
    except (ValueError, OverflowError):
        return str(days)


def _time_text(number: int, in_nanoseconds: bool, zone: tzinfo | None) -> str:
    """Return a time in ISO 8601. ``zone`` is None for a time without one, DuckDB's TIMESTAMP."""
    milliseconds, rest = divmod(number, 1_000_000 if in_nanoseconds else 1000)
    text = format_time(milliseconds, UTC if zone is None else zone)
    if rest and text.count(".") == 1:
        end = text.index(".") + 4
        text = f"{text[:end]}{rest:0{6 if in_nanoseconds else 3}d}{text[end:]}"
    return text.removesuffix("Z") if zone is None else text


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            if value.as_tuple().exponent == 0:
                return int(value)
            return near if Decimal(repr(near := float(value))) == value else str(value)  # digits that no double holds
        case pa.MonthDayNano():
            return _interval_text(value)
        case float():
            return value if math.isfinite(value) else _NoNumber(value)
        case None | bool() | int() | str() | bytes():
            return value
    return str(value)  # times of the day


def _interval_text(value: pa.MonthDayNano) -> str:
    """Return an interval as DuckDB writes it: ``1 month 2 days 03:04:05.006``, without parts that are 0."""
    seconds, rest = divmod(abs(value.nanoseconds), 1_000_000_000)
    sign = "-" if value.nanoseconds < 0 else ""
    clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    clock += f".{rest:09d}".rstrip("0") if rest else ""
    counts = [(value.months, "month"), (value.days, "day")]
    parts = [f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in counts if count]
    return " ".join([*parts, clock] if value.nanoseconds or not parts else parts)
