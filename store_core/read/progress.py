"""Report the progress and lag of consumer groups (store format 9.4, store behaviour 12.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from store_core.errors import FailedError
from store_core.findings import Finding
from store_core.read.pull import open_queue
from store_core.read.rules import RULES_5, ReadRules
from store_core.storage.config_files import offset_table, read_config
from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class Progress:
    """The next queue offset that a group will consume in a queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Lag:
    """A group's distance from a queue's end in messages; negative after the end, None where there is no queue."""

    group: str
    topic: str
    queue_id: int
    offset: int
    min_offset: int | None
    max_offset: int | None
    lag: int | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ProgressTable:
    """All groups' progress in order of group, topic and queue, and findings about the files."""

    rows: tuple[Progress, ...]
    findings: tuple[Finding, ...] = ()

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's progress in a queue; None where it has none."""
        wanted = (group, topic, queue_id)
        return next((row.offset for row in self.rows if (row.group, row.topic, row.queue_id) == wanted), None)

    def only(self, groups: frozenset[str], topics: frozenset[str]) -> ProgressTable:
        """Return the rows of these groups and topics; an empty set means all."""
        rows = (r for r in self.rows if (not groups or r.group in groups) and (not topics or r.topic in topics))
        return ProgressTable(tuple(rows), self.findings)


def read_progress(root: Path) -> ProgressTable:
    """Return the progress as a broker loads it from its JSON files and their copies. Missing files are empty; damage is a finding."""
    config = read_config(root)
    rows = [Progress(*key, offset) for key, offset in sorted(offset_table(config).items())]
    return ProgressTable(tuple(rows), config.progress.findings)


def lags(store: Store, table: ProgressTable, rules: ReadRules = RULES_5) -> Iterator[Lag]:
    """Yield every group's lag, queue by queue. Where the queues are in RocksDB their ends and the lag are None."""
    ends: dict[tuple[str, int], tuple[int, int] | None] = {}
    for row in table.rows:
        key = row.topic, row.queue_id
        if key not in ends:
            ends[key] = _ends(store, *key, rules)
        known = ends[key]
        if known is None:
            yield Lag(row.group, row.topic, row.queue_id, row.offset, None, None, None)
        else:
            yield Lag(row.group, row.topic, row.queue_id, row.offset, *known, known[1] - row.offset)


def _ends(store: Store, topic: str, queue_id: int, rules: ReadRules) -> tuple[int, int] | None:
    try:
        queue = open_queue(store, topic, queue_id, rules)
    except FailedError:
        return None
    return None if queue is None else (queue.min_offset, queue.max_offset)
