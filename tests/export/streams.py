"""A stream over stores without Spark: what a query asks of the source, batch by batch."""

from __future__ import annotations

from pathlib import Path

from store_core.export.source.options import SourceOptions, parse_options
from store_core.export.source.planning import (
    followers,
    shared_out,
    starts_of,
    stream_readings,
)
from store_core.export.source.reading import read_messages, read_ranges
from tests import stores


class Stream:
    """A stream over one store without Spark: batches from offset to offset; ``restart`` forgets all but the offset."""

    def __init__(self, root: Path, **options: str | int) -> None:
        given = {"path": f"a={root}", "columns": "phy_offset,crc", "quietMs": 0}
        self.options: SourceOptions = parse_options({k: str(v) for k, v in (given | options).items()})
        self.now_s = 0.0
        self.rows: list[tuple[int, str]] = []
        self.batches = 0
        self.restart()
        starts = starts_of(self.options, self.followers)
        self.offsets = {name: follower.first(starts[name]) for name, follower in self.followers.items()}

    def restart(self) -> None:
        self.followers = followers(self.options)
        for follower in self.followers.values():
            follower._clock = lambda: self.now_s

    def poll(self) -> bool:
        """One trigger; whether it went on, though perhaps over no record."""
        most = self.options.max_bytes_per_trigger
        end = shared_out(self.followers, self.offsets, most, None)
        read = read_messages if self.options.table == "messages" else read_ranges
        for reading in stream_readings(self.options, self.offsets, end):
            for batch in read(reading):
                self.rows += [tuple(row.values()) for row in batch.to_pylist()]
        went_on = end != self.offsets
        self.batches += went_on
        self.offsets = end
        return went_on

    def drain(self) -> None:
        while self.poll():
            pass

    @property
    def at(self) -> int:
        return self.offsets["a"]


def told(name: str) -> list[tuple[int, str]]:
    return [(message["phyOffset"], "ok") for message in stores.truth(name)["messages"]]
