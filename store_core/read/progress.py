"""How far consumer groups are (store format 9.4, store behaviour 12.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from store_core.codec.json_dialect import JsonError, loads
from store_core.errors import FailedError
from store_core.findings import Finding, finding
from store_core.layout import paths
from store_core.read.pull import open_queue
from store_core.read.rules import RULES_5, ReadRules
from store_core.storage.files import unreadable
from store_core.storage.store import Store

CONSUMER_OFFSETS: Final = f"{paths.CONFIG}/consumerOffset.json"
LMQ_OFFSETS: Final = f"{paths.CONFIG}/lmqConsumerOffset.json"
_SEPARATOR: Final = "@"
_LONGEST_FILE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Next queue offset a group will consume, for one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Lag:
    """A group's distance from a queue's end in messages; below 0 where it is beyond it. None where there is no queue."""

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
    """All groups' progress, in order of group, topic and queue; findings about the files it was read from."""

    rows: tuple[Progress, ...]
    findings: tuple[Finding, ...] = ()

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None:
        """A group's progress in a queue; None where nothing is known."""
        wanted = (group, topic, queue_id)
        return next((row.offset for row in self.rows if (row.group, row.topic, row.queue_id) == wanted), None)


def read_progress(root: Path) -> ProgressTable:
    """Progress from ``consumerOffset.json`` and ``lmqConsumerOffset.json``, each with its ``.bak``. Missing files are empty.

    Raises FailedError where a file is there and cannot be read.
    """
    findings: list[Finding] = []
    rows = list(_rows(_load(root, CONSUMER_OFFSETS, findings)))
    lmq = _load(root, LMQ_OFFSETS, findings)
    rows += _rows(lmq)
    rows += _lmq_rows(lmq)
    rows.sort(key=lambda row: (row.group, row.topic, row.queue_id))
    return ProgressTable(tuple(rows), tuple(findings))


def _load(root: Path, name: str, findings: list[Finding]) -> Mapping[str, Any]:
    """A config file as a broker loads it: the main file, else its copy; nothing where neither is there."""
    main, copy = _parsed(root / name), _parsed(root / (name + paths.BAK_SUFFIX))
    if isinstance(main, Mapping):
        return main
    if isinstance(copy, Mapping):
        findings.append(finding("P003", "the main file is missing or broken", file=name))
        return copy
    if main is not None or copy is not None:
        findings.append(finding("P004", "neither the file nor its .bak can be read as JSON", file=name))
    return {}


def _parsed(path: Path) -> Any:
    """The parsed file; an empty string where it cannot be parsed, None where it is missing or empty."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    if not data.strip():
        return None
    try:
        value = loads(data)
    except JsonError:
        return ""
    return {} if value is None else value


def _rows(document: Mapping[str, Any]) -> Iterator[Progress]:
    table = document.get("offsetTable")
    for name, offsets in table.items() if isinstance(table, Mapping) else ():
        topic, separator, group = str(name).partition(_SEPARATOR)
        if not separator or not isinstance(offsets, Mapping):
            continue
        for queue_id, offset in offsets.items():
            if isinstance(offset, int) and str(queue_id).lstrip("-").isdecimal():
                yield Progress(group, topic, int(queue_id), offset)


def _lmq_rows(document: Mapping[str, Any]) -> Iterator[Progress]:
    table = document.get("lmqOffsetTable")
    for name, offset in table.items() if isinstance(table, Mapping) else ():
        topic, separator, group = str(name).partition(_SEPARATOR)
        if separator and isinstance(offset, int):
            yield Progress(group, topic, 0, offset)


def lags(store: Store, table: ProgressTable, rules: ReadRules = RULES_5) -> Iterator[Lag]:
    """Every group's lag, queue by queue. Where the queues are in RocksDB nothing can be said about their ends."""
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
