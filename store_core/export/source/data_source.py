"""Register the source ``spark.read.format("rocketmq-store")``.

Spark looks this module up in every session of an environment where it is installed, so the import needs PySpark and
nothing else. Filters are never pushed: PySpark 4.3 leaks the filters of one query into the next one on the same
DataFrame. Offsets, times and topics are options instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

    from store_core.export.source.offsets import Offset, Offsets
    from store_core.export.source.options import SourceOptions
    from store_core.export.source.reading import Reading
    from store_core.export.source.stream_progress import Follower

FORMAT: Final = "rocketmq-store"


class StoreSource(DataSource):
    """Stores as a table or a stream, of messages or of quarantined ranges; docs/pipeline.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> Any:
        """Return the columns as Spark's types. Raises UsageError for an option that makes no sense."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(arrow_schema(_options(self)))

    def reader(self, schema: Any) -> DataSourceReader:
        self._refuse_other(schema)
        return BatchReader(_options(self))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        self._refuse_other(schema)
        return StreamReader(_options(self))

    def _refuse_other(self, schema: Any) -> None:
        from store_core.errors import UsageError

        if schema.simpleString() != self.schema().simpleString():
            raise UsageError(
                "the source has a schema of its own", to_do='leave out schema(), and give option("columns", …)'
            )


@dataclass
class Part(InputPartition):
    """The work of one task; None for an empty read, since Spark needs at least one partition."""

    reading: Reading | None
    table: str = "messages"

    def batches(self) -> Iterator[pa.RecordBatch]:
        from store_core.export.rows.memory import settle
        from store_core.export.source.reading import read_messages, read_ranges

        settle()
        if self.reading is not None:
            yield from (read_messages if self.table == "messages" else read_ranges)(self.reading)


class BatchReader(DataSourceReader):
    """Plans on the driver from directory listings and reads on executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        from store_core.export.source.planning import batch_readings

        options = self._options
        return [Part(reading, options.table) for reading in batch_readings(options)] or [Part(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return partition.batches()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Its offsets are physical offsets of the log by store, at a frame's start or the log's end: see
    ``offsets``.

    Stores are opened with the first question and not in the constructor, where PySpark 4.3 garbles errors.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: dict[str, int] | None = None
        self._is_checked = False

    @cached_property
    def _followers(self) -> dict[str, Follower]:
        from store_core.export.source.planning import followers

        return followers(self._options)

    def initialOffset(self) -> dict[str, Offset]:
        from store_core.export.source.offsets import first_offset
        from store_core.export.source.planning import starts_of

        starts = starts_of(self._options, self._followers)
        return {name: first_offset(follower.first(starts[name])) for name, follower in self._followers.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        max_bytes = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> dict[str, Offset]:
        """Return the end of the next batch; the stores with data to read share ``maxBytesPerTrigger``."""
        from store_core.export.source.planning import next_offsets

        self._check(start, start)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return next_offsets(self._followers, start, max_bytes, self._target)

    def _check(self, start: Offsets, end: Offsets) -> None:
        """Check options and checkpoint once, before anything is read.

        After an interrupted batch, Spark asks for its rows before it asks for any offset.
        """
        from store_core.export.source.offsets import refuse_malformed
        from store_core.export.source.planning import (
            refuse_changed,
            refuse_copies,
            refuse_partial_logs,
            refuse_renamed,
            report_changes,
        )

        if not self._is_checked:
            refuse_malformed(dict(start) | dict(end))
            refuse_renamed(dict(start) | dict(end), self._followers)
            refuse_partial_logs(self._options)
            refuse_copies(self._options)
            refuse_changed(self._options, self._followers, start, end)
            report_changes(self._options)
            self._is_checked = True

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the present end of each log the target; the newest record gets time to prove that it is whole."""
        self._target = {name: follower.end_now() for name, follower in self._followers.items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        from store_core.export.source.planning import stream_readings

        self._check(start, end)
        return [Part(reading, self._options.table) for reading in stream_readings(self._options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return partition.batches()


def arrow_schema(options: SourceOptions) -> pa.Schema:
    """Return the requested columns. Raises UsageError for an unknown one."""
    import pyarrow as pa

    from store_core.errors import UsageError
    from store_core.export.rows import schema

    whole = schema.MESSAGES if options.table == "messages" else schema.QUARANTINE
    missing = [name for name in options.columns or () if name not in whole.names]
    if missing:
        raise UsageError(f"there is no column {missing[0]!r}", to_do=f"there are {', '.join(whole.names)}")
    return pa.schema([whole.field(name) for name in options.columns or whole.names])


def _options(source: DataSource) -> SourceOptions:
    from store_core.export.source.options import parse_options

    given: Mapping[str, str] = source.options
    return parse_options(given)
