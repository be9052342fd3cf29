"""Recover config files that a broker could not load, and progress that is lost or too high (store behaviour 1.1, 12).

* The ``.bak`` becomes the file if a broker would read it.
* A file that is not in the store is taken from a sibling: a slave gets these files from its master every ten seconds.
* A list of topics that is found nowhere is made from the log and the queues; the progress of the delay service from the
  log: a delivered message is in it a second time, with its own topic and queue and unchanged properties. A level continues
  at the first message without such a copy at a higher offset.
* Consumers' progress has no other source, so it is not recovered. Progress after the end of its queue is lowered.
* A store without any config file is a copy of log and queues, and gets none.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store_core.codec.json_dialect import dumps
from store_core.codec.properties import DELAY, REAL_QID, REAL_TOPIC, UNIQ_KEY, parse_properties
from store_core.derive.topics import completed_topics, missing_topics
from store_core.kernel.codes import SCHEDULE_TOPIC, PropertyFlag
from store_core.layout import marks, paths, timer
from store_core.recovery.loss_report.log_strips import is_bad
from store_core.scan.frames import FrameTable
from store_core.scan.log import Progress, scan_log
from store_core.storage.config_files import ConfigFile, ConfigFiles, offset_table, read_config
from store_core.storage.config_text import release_layout, render_consumer_offsets, render_delay_offsets
from store_core.storage.store import QueueKey, Store

_DIGEST_SIZE_BYTES: Final = 8
_PART_ROWS: Final = 1 << 17
_MAX_NEW_ROWS: Final = 1 << 19  # messages and copies between two removals of delivered ones
_DELIVERED: Final = (1 << 16) - 1  # marks a delivered copy in the column of levels
_SLAVES_HAVE: Final = ("topics", "consumer_offsets", "delay_offsets", "subscription_groups")


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """The progress of a delay level, which continues at ``queue_offset``.

    ``again``: messages at higher queue offsets that were delivered, and are delivered a second time.
    ``last_timestamp_ms``: store time of the last message of this level or of its copies.
    """

    queue_offset: int
    delivered: int
    again: int
    last_timestamp_ms: int


@dataclass(slots=True)
class _Level:
    delivered: int = 0
    last_timestamp_ms: int = 0
    last_delivered: int = -1


@dataclass(slots=True)
class DelayTracker:
    """Pairs delayed messages with their delivered copies, over all tables of a walk.

    Digest, level and queue offset of each waiting message are held in columns, in log order; when the columns are long,
    pairs are removed. Only rows of delayed messages are looped over.
    """

    _levels: list[int] = field(default_factory=list)
    _known: dict[int, _Level] = field(default_factory=dict)
    _digests: array[int] = field(default_factory=lambda: array("Q"))
    _places: array[int] = field(default_factory=lambda: array("H"))  # index in _levels; _DELIVERED for a copy
    _numbers: array[int] = field(default_factory=lambda: array("q"))
    _max_rows: int = _MAX_NEW_ROWS

    def add(self, table: FrameTable) -> None:
        delayed = table.messages & table.with_property(PropertyFlag.DELAY)
        if delayed.any():
            for row in np.flatnonzero(delayed & ~is_bad(table)).tolist():
                self._row(table, row)
            if len(self._digests) > self._max_rows:
                self._strike()
                self._max_rows = len(self._digests) + _MAX_NEW_ROWS

    def _row(self, table: FrameTable, row: int) -> None:
        properties = parse_properties(table.properties(row))
        if marks.TOMBSTONE_PROPERTY in properties:
            return  # no consumer waits for a tombstone
        sent_to = (properties.get(REAL_TOPIC), properties.get(REAL_QID))
        topic, queue_id = table.topic(row), int(table.queue_id[row])
        if topic == SCHEDULE_TOPIC and None not in sent_to:
            level = queue_id + 1
            if level not in self._known:
                if len(self._levels) == _DELIVERED:
                    return  # no broker has so many levels
                self._known[level] = _Level()
                self._levels.append(level)
            known = self._known[level]
            known.last_timestamp_ms = max(known.last_timestamp_ms, int(table.store_timestamp_ms[row]))
            self._came(_digest(table, row, properties), self._levels.index(level), int(table.queue_offset[row]))
        elif sent_to == (topic.decode("utf-8", "replace"), str(queue_id)):
            self._came(_digest(table, row, properties), _DELIVERED, int(table.store_timestamp_ms[row]))

    def _came(self, digest: int, place: int, number: int) -> None:
        self._digests.append(digest)
        self._places.append(place)
        self._numbers.append(number)

    def _strike(self) -> None:
        """Remove delivered messages and all copies; a copy whose message is not waiting has no use.

        Digests are paired, and columns are copied, in parts, so that memory holds little more than the waiting messages.
        """
        digests, low_bytes = np.frombuffer(self._digests, np.uint64), np.frombuffer(self._digests, np.uint8)[::8]
        places, numbers = np.frombuffer(self._places, np.uint16), np.frombuffer(self._numbers, np.int64)
        removed = places == _DELIVERED
        parts = min(len(digests) // _PART_ROWS + 1, 256)
        for part in range(parts):
            rows = np.flatnonzero(low_bytes % parts == part)
            for waiting, copies in _pairs(rows, digests[rows], places):
                removed[waiting] = True
                for place in np.unique(places[waiting]).tolist():
                    of_level = places[waiting] == place
                    known = self._known[self._levels[place]]
                    known.delivered += int(of_level.sum())
                    known.last_delivered = max(known.last_delivered, int(numbers[waiting][of_level].max()))
                    known.last_timestamp_ms = max(known.last_timestamp_ms, int(numbers[copies][of_level].max()))
        del digests, low_bytes, places, numbers  # so that each column is freed as soon as it is copied
        self._digests = _without(self._digests, removed)
        self._places = _without(self._places, removed)
        self._numbers = _without(self._numbers, removed)

    def progress(self, ends: Mapping[int, int]) -> dict[int, DelayLevel]:
        """Return the progress of each level that has messages in the log. ``ends``: end offsets of their queues, by level."""
        self._strike()
        places, numbers = np.frombuffer(self._places, np.uint16), np.frombuffer(self._numbers, np.int64)
        found = {}
        for place, level in sorted(enumerate(self._levels), key=lambda item: item[1]):
            known, waiting = self._known[level], numbers[places == place]
            waiting.sort()
            at = int(waiting[0]) if len(waiting) else ends.get(level, known.last_delivered + 1)
            found[level] = DelayLevel(at, known.delivered, _again(known, at, waiting), known.last_timestamp_ms)
        return found


def _without(column: array[int], removed: NDArray[np.bool_]) -> array[int]:
    kept, rows = array(column.typecode), np.frombuffer(column, column.typecode)
    for start in range(0, len(rows), _PART_ROWS):
        kept.frombytes(rows[start : start + _PART_ROWS][~removed[start : start + _PART_ROWS]].tobytes())
    return kept


def _pairs(
    rows: NDArray[np.int64], digests: NDArray[np.uint64], places: NDArray[np.uint16]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the rows of delivered messages and the rows of their copies, among ``rows`` with these digests."""
    if not len(rows):
        return
    order = np.argsort(digests, kind="stable")
    rows, digests = rows[order], digests[order]
    same = digests[1:] == digests[:-1]
    first, last = np.r_[True, ~same], np.r_[~same, True]
    copy = places[rows] == _DELIVERED
    # Nearly all messages either wait, or have one copy at a higher offset.
    pairs = np.flatnonzero(first[:-1] & same & last[1:] & ~copy[:-1] & copy[1:])
    if len(pairs):
        yield rows[pairs], rows[pairs + 1]
    for start in np.setdiff1d(np.flatnonzero(first & ~last), pairs).tolist():
        yield _pairs_of_digest(rows[start : start + int(np.argmax(last[start:])) + 1], places)


def _pairs_of_digest(
    rows: NDArray[np.int64], places: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair rows of one digest, in log order: each copy with the first message that still waits."""
    waiting: list[int] = []
    pairs: list[tuple[int, int]] = []
    for row in rows.tolist():
        if places[row] != _DELIVERED:
            waiting.append(row)
        elif waiting:
            pairs.append((waiting.pop(0), row))
    rows_of_pairs = np.array(pairs, np.int64).reshape(-1, 2)
    return rows_of_pairs[:, 0], rows_of_pairs[:, 1]


def _again(level: _Level, queue_offset: int, waiting: NDArray[np.int64]) -> int:
    """Return how many delivered messages follow ``queue_offset``. ``waiting``: sorted queue offsets of waiting messages."""
    within = waiting[: int(np.searchsorted(waiting, level.last_delivered, "right"))]
    passed = int(np.count_nonzero(within[1:] != within[:-1])) + 1 if len(within) else 0
    return max(level.last_delivered + 1 - queue_offset - passed, 0)


def _digest(table: FrameTable, row: int, properties: Mapping[str, str]) -> int:
    """Return a digest of the fields that a delayed message shares with its delivered copy, and with no other message."""
    shared: Iterable[object] = (
        properties.get(UNIQ_KEY),
        properties.get(REAL_TOPIC),
        properties.get(REAL_QID),
        properties.get(DELAY),
        table.born_timestamp_ms[row],
        table.reconsume_times[row],
        table.body_crc[row],
        table.body_length[row],
    )
    text = "\0".join(map(str, shared)).encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=_DIGEST_SIZE_BYTES).digest(), "big")


def delay_levels_from_log(
    view: Store, ends: Mapping[QueueKey, int], on_progress: Progress | None = None
) -> dict[int, DelayLevel]:
    """Return the progress of each delay level. ``ends``: end offsets of the log's queues.

    Raises:
        FailedError: the log cannot be read.
    """
    tracker = DelayTracker()
    for table in scan_log(view, on_progress=on_progress):
        tracker.add(table)
    return tracker.progress({key.queue_id + 1: end for key, end in ends.items() if key.topic == paths.SCHEDULE_TOPIC})


@dataclass(frozen=True, slots=True)
class Written:
    """A config file's new text, and its source."""

    data: bytes
    why: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The config files after the plan. ``written``: those that change, by their path in the store.

    ``delays``: the delay service's progress by level, found in the log if its file was lost.
    """

    files: ConfigFiles
    written: dict[str, Written] = field(default_factory=dict)
    delays: Mapping[int, DelayLevel] = field(default_factory=dict)


def recovered_configuration(
    store: Store,
    siblings: Iterable[Store],
    keys: Iterable[QueueKey],
    delays_of: Callable[[], Mapping[int, DelayLevel]] = dict,
) -> Configuration:
    """Return the config files after the plan.

    ``keys``: the queues of the log's messages. ``delays_of`` finds the delay service's progress in the log.
    """
    keys = list(keys)
    files = read_config(store.root)
    layout = release_layout(files)
    found = {name: (file, why) for name, file, why in _copies(files, siblings) if not files.in_rocksdb}
    written = {file.name: Written(dumps(file.tree, layout=layout).encode(), why) for file, why in found.values()}
    copies: dict[str, Any] = {name: replace(file, source="main", findings=()) for name, (file, _) in found.items()}
    files = replace(files, **copies)
    delays: Mapping[int, DelayLevel] = {}
    if files.has_lost(files.delay_offsets) and any(key.topic == paths.SCHEDULE_TOPIC for key in keys):
        delays = delays_of()
    if delays:
        offsets = {level: delay.queue_offset for level, delay in delays.items()}
        text = render_delay_offsets(offsets, layout, max(delay.last_timestamp_ms for delay in delays.values()))
        written[files.delay_offsets.name] = Written(text.encode(), "delivered is what stands in the log a second time")
    if files.has_lost(files.topics):
        batch_topics = {key.topic for key in store.batch_queues}
        missing = missing_topics(sorted({*store.queues, *store.batch_queues, *keys}), ())
        document = completed_topics({}, missing, with_attributes=layout != "4", batch_topics=batch_topics)
        data = dumps(document, layout=layout).encode()
        written[files.topics.name] = Written(data, "the topics that the log and the queues know")
    return Configuration(files, written, delays)


def _copies(files: ConfigFiles, siblings: Iterable[Store]) -> Iterator[tuple[str, ConfigFile, str]]:
    """Yield the files that replace lost ones: the name of the field of ConfigFiles, the file, and the reason."""
    sibling_configs = [read_config(sibling.root) for sibling in siblings]
    for name in (config_field.name for config_field in fields(files)):
        file = getattr(files, name)
        if not isinstance(file, ConfigFile) or file.source == "main" or file.too_large:
            continue
        if file.source == "bak":
            yield name, file, "its .bak, which a broker would read"
        elif name in _SLAVES_HAVE:
            candidates = [
                sibling_file for other in sibling_configs if (sibling_file := getattr(other, name)).source != "none"
            ]
            yield from ((name, sibling_file, "as the sibling has it") for sibling_file in candidates[:1])


def lowered_progress(store: Store, ends: Mapping[QueueKey, int], config: ConfigFiles) -> dict[str, bytes]:
    """Return progress files with progress after a queue's new end set to that end, by their path in the store.

    Otherwise a group would not get the messages to which a broker gives the lost messages' queue offsets. Progress in
    queues that ``ends`` does not contain is kept.
    """
    lowered = {
        (group, topic, queue_id): ends[QueueKey(topic, queue_id)]
        for (group, topic, queue_id), offset in offset_table(config).items()
        if offset > ends.get(QueueKey(topic, queue_id), offset)
    }
    files = {config.progress.name: render_consumer_offsets(config, lowered).encode()} if lowered else {}
    return {**files, **_delay_progress(config, ends), **_timer_check(store, ends)}


def _delay_progress(config: ConfigFiles, ends: Mapping[QueueKey, int]) -> dict[str, bytes]:
    """Return the file of the delay service's progress, if a level's changes."""
    file = config.delay_offsets
    offsets = {
        level: min(offset, ends.get(QueueKey(paths.SCHEDULE_TOPIC, level - 1), 0))
        for level, offset in config.delay_levels.items()
    }
    if offsets == config.delay_levels:
        return {}
    document = {**file.tree, "offsetTable": offsets}
    return {file.name: dumps(document, layout=release_layout(config)).encode()}


def _timer_check(store: Store, ends: Mapping[QueueKey, int]) -> dict[str, bytes]:
    """Return the file of the timer's progress in its topic, if that changes."""
    data = store.cache.read(store.root / paths.TIMERCHECK, 0, timer.CHECK_FILE_SIZE_BYTES)
    if len(data) < timer.CHECK.size_bytes:
        return {}
    fields = timer.CHECK.read(data)
    end = ends.get(QueueKey(timer.TIMER_TOPIC, 0), 0)
    if fields["last_timer_queue_offset"] <= end and fields["master_timer_queue_offset"] <= end:
        return {}
    for name in ("last_timer_queue_offset", "master_timer_queue_offset"):
        fields[name] = min(fields[name], end)
    return {paths.TIMERCHECK: timer.CHECK.struct.pack(*fields.values()) + data[timer.CHECK.size_bytes :]}
