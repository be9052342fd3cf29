"""A stream over stores without Spark: what a query asks of the source, batch by batch."""

from __future__ import annotations

import json
from pathlib import Path

from store_core.export.source.data_source import StreamReader
from store_core.export.source.offsets import Offset, Offsets, end_of
from store_core.export.source.options import SourceOptions, parse_options
from tests import stores


class Stream:
    """A stream without Spark: batches from offset to offset. What Spark keeps of an offset is its JSON."""

    def __init__(self, root: Path, **options: str | int) -> None:
        self._given: dict[str, str | int] = {"path": f"a={root}", "columns": "phy_offset,crc", "quietMs": 0}
        self.now_s = 0.0
        self.rows: list[tuple[int, str]] = []
        self.batches = 0
        self.restart(**options)
        self.offsets: Offsets = _kept(self.reader.initialOffset())

    def restart(self, **options: str | int) -> None:
        """Forget all but the offset."""
        self._given |= options
        self.options: SourceOptions = parse_options({name: str(value) for name, value in self._given.items()})
        self.reader = StreamReader(self.options)
        for follower in self.reader._followers.values():
            follower._clock = lambda: self.now_s

    def plan(self) -> dict[str, Offset]:
        """The end of the next batch, as Spark keeps it before the batch is read."""
        return _kept(self.reader.latestOffset(self.offsets, self.reader.getDefaultReadLimit()))

    def read(self, end: Offsets) -> None:
        """A batch that was planned: after a restart Spark asks for that first, with its begin anew where there was none before."""
        for part in self.reader.partitions(self.offsets, end):
            for batch in self.reader.read(part):
                self.rows += [tuple(row.values()) for row in batch.to_pylist()]
        self.offsets = end

    def poll(self) -> bool:
        """One trigger; whether it went on, though perhaps over no record."""
        end = self.plan()
        went_on = end != self.offsets
        self.batches += went_on
        if went_on:
            self.read(end)
        return went_on

    def drain(self) -> None:
        while self.poll():
            pass

    @property
    def at(self) -> int:
        return end_of(self.offsets["a"])


def ends_of(offsets: Offsets) -> dict[str, int]:
    """How far a stream is, store by store."""
    return {name: end_of(offset) for name, offset in offsets.items()}


def _kept(offsets: Offsets) -> dict[str, Offset]:
    kept: dict[str, Offset] = json.loads(json.dumps(offsets))
    return kept


def told(name: str) -> list[tuple[int, str]]:
    return [(message["phyOffset"], "ok") for message in stores.truth(name)["messages"]]
