"""Arrow record batches as rows that JSON, CSV and tables can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from rmqctl.times import format_time

_MICROSECONDS: Final = 1000


def rows_of(batches: Iterable[pa.RecordBatch], zone: tzinfo = UTC) -> Iterator[dict[str, Any]]:
    """A row at a time: times in ISO 8601, numbers as numbers (none for what is not a number), bytes as they are."""
    for batch in batches:
        names = batch.schema.names
        for values in zip(*(_values(column, zone) for column in batch.columns), strict=True):
            yield dict(zip(names, values, strict=True))


def _values(column: pa.Array, zone: tzinfo) -> list[Any]:
    """The values of a column; a time that no calendar holds stays a number."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        in_zone = None if kind.tz is None else zone
        numbers = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()).to_pylist()
        return [None if number is None else _time_text(number, in_zone) for number in numbers]
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind):
        values: list[Any] = column.to_pylist()
        return values
    maps_as_pydicts = "lossy" if pa.types.is_map(kind) else None
    return [_plain(value, zone) for value in column.to_pylist(maps_as_pydicts=maps_as_pydicts)]


def _time_text(microseconds: int, zone: tzinfo | None) -> str:
    """``zone`` is None for a time of no zone, which DuckDB calls TIMESTAMP."""
    milliseconds, rest = divmod(microseconds, _MICROSECONDS)
    text = format_time(milliseconds, UTC if zone is None else zone)
    if rest and text.count(".") == 1:
        text = text.replace(text[(dot := text.index(".")) : dot + 4], f"{text[dot : dot + 4]}{rest:03d}")
    return text.removesuffix("Z") if zone is None else text


def _plain(value: Any, zone: tzinfo) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
        case datetime():
            microseconds = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
            whole = (microseconds.days * 86400 + microseconds.seconds) * 1_000_000 + microseconds.microseconds
            return _time_text(whole, zone if value.tzinfo else None)
        case dict():
            return {key: _plain(member, zone) for key, member in value.items()}
        case list():
            return [_plain(member, zone) for member in value]
        case pa.MonthDayNano():
            return _interval_text(value)
        case None | bool() | int() | str() | bytes():
            return value
    return str(value)  # dates and times of the day


def _interval_text(value: pa.MonthDayNano) -> str:
    """As DuckDB writes it: ``1 month 2 days 03:04:05.006``; what is 0 is left out."""
    seconds, rest = divmod(abs(value.nanoseconds), 1_000_000_000)
    sign = "-" if value.nanoseconds < 0 else ""
    clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    clock += f".{rest:09d}".rstrip("0") if rest else ""
    counts = [(value.months, "month"), (value.days, "day")]
    parts = [f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in counts if count]
    return " ".join([*parts, clock] if value.nanoseconds or not parts else parts)
