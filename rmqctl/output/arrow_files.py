"""Write the answer of a query to standard output with its types: an Arrow stream or a Parquet file."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from store_core.errors import UsageError
from store_core.export.tables.writing import row_groups

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
