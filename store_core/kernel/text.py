"""Write rows of columns as JSON, CSV or TSV in the compiled kernel, and decide which bytes are text.

Where the kernel was not built, callers write the same rows one by one, and the decision is made in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from store_core.kernel import is_native
from store_core.kernel.codes import TextKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[Any]
    Places = tuple[Ints, Ints]  # start and end of each text in its data

_ITEM_NUMBERS: Final = 2  # of lists and maps; later numbers belong to items, not to rows


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column. Its kind decides the content of ``numbers`` and ``data``, which the functions below make.

    ``values``: of READY and SAME. ``valid``: a mask over the rows, False where the value is null; None where none is.
    """

    kind: TextKind
    numbers: tuple[Ints, ...] = ()
    data: tuple[Ints, ...] = ()
    valid: NDArray[np.bool_] | None = None
    values: Sequence[Any] = ()

    def part(self, first: int, stop: int) -> TextColumn:
        """Return the rows [first, stop)."""
        rows = slice(first, stop)
        items = self.numbers[_ITEM_NUMBERS:] if self.kind in (TextKind.LIST, TextKind.MAP) else ()
        numbers = tuple(array[rows] for array in self.numbers[: len(self.numbers) - len(items)])
        valid = None if self.valid is None else self.valid[rows]
        values = self.values if self.kind is TextKind.SAME else self.values[rows]
        return TextColumn(self.kind, numbers + items, self.data, valid, values)


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of a result with the same keys: as ``columns`` by key, or one by one from ``rows()``."""

    columns: Mapping[str, TextColumn]
    count: int
    rows: Callable[[], Iterator[Mapping[str, Any]]]


def same(value: Any) -> TextColumn:
    """Return a column with one value in all rows."""
    return TextColumn(TextKind.SAME, values=(value,))


def ready(values: Sequence[Any]) -> TextColumn:
    """Return a column of values of any kind; writing it is slow."""
    return TextColumn(TextKind.READY, values=values)


def numbers(values: Ints, valid: NDArray[np.bool_] | None = None) -> TextColumn:
    """Return a column of integers of any width, or of truth values."""
    kind = {"u": TextKind.UINT, "b": TextKind.BOOL}.get(values.dtype.kind, TextKind.INT)
    return TextColumn(kind, (values,), (), valid)


def strings(
    places: Places, data: Any, valid: NDArray[np.bool_] | None = None, kind: TextKind = TextKind.STRING
) -> TextColumn:
    """Return a column of strings at places in ``data``."""
    return TextColumn(kind, places, (_bytes(data),), valid)


def words(indexes: Ints, texts: Iterable[str]) -> TextColumn:
    """Return a column of few different strings: each row has the one at its index."""
    import numpy as np

    raw = [text.encode() for text in texts]
    starts, stops = between(np.cumsum([0, *map(len, raw)]))
    return strings((starts[indexes], stops[indexes]), b"".join(raw))


def between(bounds: Ints) -> Places:
    """Return places of consecutive texts with these bounds."""
    return bounds[:-1], bounds[1:]


def are_text(bounds: Ints, data: Any) -> NDArray[np.bool_]:
    """Return which of the consecutive texts in ``data`` are UTF-8; ``bounds``: in 32 bits, one more than texts."""
    if is_native():
        from store_core.kernel import _native

        return _native.are_text(bounds, _bytes(data))
    import numpy as np

    raw = memoryview(data)
    return np.array([_is_text(raw[start:stop]) for start, stop in pairwise(bounds.tolist())], np.bool_)


def _is_text(raw: memoryview) -> bool:
    try:
        str(raw, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def as_written(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows, and batches if ``rows_text`` is available; else the rows of each batch."""
    for row in rows:
        if isinstance(row, RowBatch) and not is_native():
            yield from row.rows()
        else:
            yield row


def one_by_one(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows, and the rows of batches."""
    for row in rows:
        if isinstance(row, RowBatch):
            yield from row.rows()
        else:
            yield row


def rows_text(
    columns: Sequence[tuple[bytes, TextColumn]],
    count: int,
    encode: Callable[[Any], bytes],
    *,
    delimiter: bytes = b"",
    tail: bytes = b"\n",
) -> memoryview:
    """Return ``count`` rows as text. Each column has a text before its values; ``tail`` ends each row.

    ``delimiter``: of CSV and TSV; none for JSON. ``encode`` converts values of SAME and READY to text of that format, not quoted.
    """
    from store_core.kernel import _native

    described = [_described(lead, column, encode) for lead, column in columns]
    return _native.rows_text(described, count, ord(delimiter or b"\0"), tail).data


def _described(lead: bytes, column: TextColumn, encode: Callable[[Any], bytes]) -> tuple[Any, ...]:
    import numpy as np

    numbers_, data = column.numbers, column.data
    if column.kind is TextKind.SAME:
        data = (_bytes(encode(column.values[0])),)
    elif column.kind is TextKind.READY:
        texts = [encode(value) for value in column.values]
        numbers_, data = between(np.cumsum([0, *map(len, texts)])), (_bytes(b"".join(texts)),)
    valid = None if column.valid is None else np.ascontiguousarray(column.valid).view(np.uint8)
    return lead, int(column.kind), [_as_int64(array) for array in numbers_], list(data), valid


def _as_int64(values: Ints) -> NDArray[np.int64]:
    """Return the numbers in 64 bits; floats and unsigned numbers keep their bits."""
    import numpy as np

    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, np.float64).view(np.int64)
    if values.dtype.kind == "u":
        return np.ascontiguousarray(values, np.uint64).view(np.int64)
    return np.ascontiguousarray(values, np.int64)


def _bytes(data: Any) -> NDArray[np.uint8]:
    import numpy as np

    if isinstance(data, np.ndarray):
        return data
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
