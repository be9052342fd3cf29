"""Turn frames into the queue entries that a broker's dispatch makes (store behaviour 6.3; store format 6.2, 6.6, 10.7)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_core.codec.lmq_topics import NoLists, no_lists_of
from store_core.codec.properties import java_number, parse_properties, some_properties
from store_core.codec.text import decode_text
from store_core.derive.delay import DelayTable, delay_table
from store_core.errors import UnreadableError
from store_core.findings import Finding, finding
from store_core.kernel.codes import PropertyFlag
from store_core.kernel.derive import ROW, dispatch_rows
from store_core.layout import paths, queue
from store_core.scan.frames import FrameTable
from store_core.storage.config_files import read_config
from store_core.storage.config_text import release_layout
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import QueueKey, Store

MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
INNER_BASE: Final = "INNER_BASE"
INNER_NUM: Final = "INNER_NUM"
_RAW_LISTS: Final = {name.encode(): name for name in (MULTI_DISPATCH, MULTI_QUEUE_OFFSET)}
LIST_SEPARATOR: Final = ","
_RAW_LIST_SEPARATOR: Final = b","
_MOST_LISTS: Final = 1 << 14  # remembered
_SCHEDULE_TOPIC: Final = paths.SCHEDULE_TOPIC.encode()
_MOST_DIGITS: Final = 18  # any number of so many digits fits in 64 bits
_MOST_FINDINGS: Final = 100
# Dispatch reads the bytes only of messages with these properties.
LOOKED_INTO: Final = PropertyFlag.INNER_NUM | PropertyFlag.INNER_MULTI_DISPATCH
_LARGEST_BATCH: Final = (1 << 15) - 1

Rows = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """The rules of dispatch for one store.

    * ``batch_topics``: the topics with batch queues.
    * ``multi_dispatch``: records also get entries in the queues that their own list names. Records of topics that ``no_lists``
      covers get them only where ``light_queues`` already have an entry that points to them.
    * ``lmq``: as ``has_lmq`` returns.
    * ``include_bad_crc``: also records with a wrong body checksum, which dispatch never checks.
    * ``names_all``: also records of topics for which no queue can be made.
    * ``accepted``: all rows are records that a broker's checks accept, and each gets the entries that the broker makes, at the
      record's own offset and for any name or number. Names that are paths count unless ``passes_light_folders``.
    """

    delays: DelayTable = field(default_factory=DelayTable)
    batch_topics: frozenset[str] = frozenset()
    multi_dispatch: bool = False
    no_lists: NoLists = NoLists.SYSTEM
    lmq: bool = True
    light_queues: Mapping[QueueKey, SegmentSequence] = field(default_factory=dict)
    include_bad_crc: bool = False
    names_all: bool = False
    accepted: bool = False
    passes_light_folders: bool = True

    def has_entry(self, key: QueueKey, queue_offset: int, phy_offset: int) -> bool:
        """Return True if the light queue's entry at ``queue_offset`` points to ``phy_offset``; False if it cannot be read."""
        files = self.light_queues.get(key)
        size, data = queue.ENTRY.size_bytes, b""
        if files is not None and queue_offset >= 0:
            with suppress(UnreadableError):
                data = files.read(queue_offset * size, size)
        entry = queue.ENTRY.read(data.ljust(size, b"\0"))
        return entry["phy_offset"] == phy_offset and entry["size_bytes"] not in (0, queue.FILLER_SIZE_BYTES)


class DispatchError(Exception):
    """Raised if a broker's dispatch of the record at ``phy_offset`` throws at each attempt."""

    def __init__(self, phy_offset: int, number: str) -> None:
        super().__init__(
            f"the record at {phy_offset} lists a light queue with {number!r} for a number (NumberFormatException)"
        )
        self.phy_offset = phy_offset


class DispatchColumns(NamedTuple):
    """Entries of one window, in log order: ``key_id`` i32[n] (into ``Dispatcher.keys``) and ``rows`` ROW[n]."""

    key_id: NDArray[Any]
    rows: Rows


def dispatch_rules(store: Store, *, batch_topics: Iterable[str] = (), include_bad_crc: bool = False) -> DispatchRules:
    """Return the rules of a store, from its configuration and files. ``batch_topics``: the batch topics in topics.json.

    Multi-dispatch is as configured; if it is not, it is on if there are %LMQ% queues or no queues at all. The topics whose lists
    count depend on the configured release, else on the family of releases that wrote the config files.
    """
    known_batch = {key.topic for key in store.batch_queues}
    settings = store.settings
    if "enableMultiDispatch" in settings.values:
        multi = settings.flag("enableMultiDispatch")
    else:
        multi = not store.queues or any(key.topic.startswith(paths.LMQ_PREFIX) for key in store.queues)
    no_lists = (
        no_lists_of(settings.broker_version or release_layout(read_config(store.root))) if multi else NoLists.SYSTEM
    )
    return DispatchRules(
        delay_table(store),
        frozenset(known_batch.union(batch_topics)),
        multi,
        no_lists=no_lists,
        lmq=has_lmq(store),
        light_queues=store.queues if multi else {},
        include_bad_crc=include_bad_crc,
    )


def is_folder_name(topic: str) -> bool:
    """Return True if a topic can be the name of a folder; a damaged topic may contain any bytes."""
    return topic not in ("", ".", "..") and "/" not in topic and not paths.no_queue_reason(topic)


class Dispatcher:
    """Turns frame tables, given in log order, into queue entries. ``keys`` grows as queues appear; a key id is an index in it."""

    def __init__(self, rules: DispatchRules) -> None:
        self.rules = rules
        self.keys: list[QueueKey] = []
        self.assumed_levels: set[int] = set()
        self.bad_lists = array("q")  # offsets of records at whose list of light queues dispatch fails
        self.without_queue = array(
            "q"
        )  # offsets of records at which a broker fails to make a queue, and gives up on all
        self._unnamed: set[bytes] = set()  # topics for which no queue can be made
        self._ids: dict[QueueKey, int] = {}
        self._raw_ids: dict[tuple[bytes, int], int] = {}
        self._lists: dict[tuple[bytes, int], tuple[int, ...]] = {}  # ids of queues by the list with their names

    def columns(self, table: FrameTable, *, knows_delays: bool = True) -> DispatchColumns:
        """Return the entries of a table's messages in log order, a record's entries in light queues after its own.

        Without ``knows_delays`` entries of delayed messages keep their tags' hash (behaviour 1.1).

        Raises:
            DispatchError: the records are ``accepted``, and a broker cannot read a list of light queues.
        """
        is_accepted = self.rules.accepted
        good = np.zeros(len(table), np.uint8)
        picked, numbers, pairs, entries = dispatch_rows(
            good if is_accepted else table.kind,
            good if is_accepted else table.code,
            table.sys_flag,
            table.topic_id,
            table.queue_id,
            table.queue_offset,
            table.own_phy_offset if is_accepted else table.phy_offset,
            table.tags_code,
            table.store_timestamp_ms,
            table.size_bytes,
            self.rules.include_bad_crc,
        )
        rows: Rows = entries.view(ROW)
        ids = self._raw_key_ids(table.topics, pairs)
        key_id = np.array(ids, np.int32).take(numbers)
        if self._unnamed:
            self._note_without_queue(table, picked)
        if ids and min(ids) < 0:
            placeable = key_id >= 0
            picked, key_id, rows = picked[placeable], key_id[placeable], rows[placeable]
        if not len(picked):
            return DispatchColumns(key_id, rows)
        if knows_delays:
            self._delay(table, picked, key_id, rows)
        if self.rules.batch_topics:
            self._batch(table, picked, key_id, rows)
        return self._multi(table, picked, DispatchColumns(key_id, rows))

    def _note_without_queue(self, table: FrameTable, rows: NDArray[Any]) -> None:
        bad = [number for number, topic in enumerate(table.topics) if topic in self._unnamed]
        unqueued = rows[np.isin(table.topic_id[rows], bad)] if bad else rows[:0]
        self.without_queue.extend(table.phy_offset[unqueued].tolist())

    def findings(self) -> list[Finding]:
        """Return the findings about what dispatch assumed."""
        found = []
        if self.assumed_levels:
            levels = ", ".join(map(str, sorted(self.assumed_levels)))
            found.append(finding("S006", f"the delay of level {levels} is the default's", topic=paths.SCHEDULE_TOPIC))
        return found

    def record_findings(self) -> list[Finding]:
        """Return the findings about records at which a broker's dispatch fails."""
        found = []
        for code, text, offsets in (
            ("L023", "a list of light queues gives one of them no number", self.bad_lists),
            ("L029", "a topic for which no broker can make a queue", self.without_queue),
        ):
            found += [finding(code, text, phy_offset=at) for at in offsets[:_MOST_FINDINGS]]
            if len(offsets) > _MOST_FINDINGS:
                found.append(finding(code, f"and {len(offsets) - _MOST_FINDINGS} more"))
        return found

    def key_id(self, key: QueueKey) -> int:
        """Return the id of a queue, a new one if the queue is new."""
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = len(self.keys)
            self.keys.append(key)
        return known

    def _raw_key_ids(self, topics: Sequence[bytes], pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Return the id of each topic's queue, -1 if no folder can have its name."""
        ids = []
        for topic_id, queue_id in pairs:
            queue = topics[topic_id], queue_id
            known = self._raw_ids.get(queue)
            if known is None:
                key = QueueKey(decode_text(queue[0]), queue_id)
                is_unnamed = bool(paths.no_queue_reason(key.topic))
                if is_unnamed:
                    self._unnamed.add(queue[0])
                has_name = self.rules.names_all if is_unnamed else is_folder_name(key.topic)
                is_queue = self.rules.accepted or (has_name and queue_id >= 0)
                known = self.key_id(key) if is_queue else -1
                self._raw_ids[queue] = known
            ids.append(known)
        return ids

    def _listed(self, raw_properties: bytes, queue_id: int, phy_offset: int) -> Iterable[tuple[int, int]]:
        """Return ``light_queues`` of a record of a queue with ``queue_id``, with ids of queues: -1 for a name that makes none."""
        raw_lists = some_properties(raw_properties, _RAW_LISTS)
        names, numbers = (raw_lists.get(name, b"") for name in _RAW_LISTS)
        parts = numbers.split(_RAW_LIST_SEPARATOR)
        if not all(part.isdigit() and len(part) <= _MOST_DIGITS for part in parts):
            lists = {name: decode_text(raw_lists[raw]) for raw, name in _RAW_LISTS.items() if raw in raw_lists}
            if self.rules.accepted:
                return self._accepted_list(lists, queue_id, phy_offset)
            if bad_numbers(lists):
                self.bad_lists.append(phy_offset)
            return [(self._light_id(name, queue_id), number) for name, number in light_queues(lists)]
        known = self._lists.get((names, queue_id))
        if known is None:
            if len(self._lists) == _MOST_LISTS:
                self._lists.clear()
            text = decode_text(names)
            split = [] if is_java_blank(text) else java_split(text)
            known = self._lists[names, queue_id] = tuple(self._light_id(name, queue_id) for name in split)
        return zip(known, map(int, parts), strict=True) if len(known) == len(parts) else ()

    def _entered(self, raw_properties: bytes, queue_id: int, phy_offset: int) -> Iterable[tuple[int, int]]:
        """Return the light queues of a record that already have an entry for it, for topics whose lists do not count."""
        found = []
        for name, number in light_queues(parse_properties(raw_properties)):
            key = light_key(name, queue_id, lmq=self.rules.lmq)
            if self.rules.has_entry(key, number, phy_offset):
                found.append((self.key_id(key), number))
        return found

    def _accepted_list(self, lists: Mapping[str, str], queue_id: int, phy_offset: int) -> Iterable[tuple[int, int]]:
        """Return the light queues of a record as a broker reads their numbers, which may be negative or unreadable."""
        found = []
        for name, text in _listed_pairs(lists):
            light_id, number = self._light_id(name, queue_id), java_number(text, 64)
            if light_id >= 0 and number is None:
                raise DispatchError(phy_offset, text)
            found.append((light_id, number or 0))
        return found

    def _light_id(self, name: str, queue_id: int) -> int:
        rules = self.rules
        is_passed = "/" in name and rules.passes_light_folders if rules.accepted else not is_folder_name(name)
        return -1 if is_passed else self.key_id(light_key(name, queue_id, lmq=rules.lmq))

    def _keys_mask(self, key_id: NDArray[Any], topics: frozenset[str]) -> NDArray[np.bool_]:
        wanted = [number for number in np.unique(key_id) if self.keys[number].topic in topics]
        return np.isin(key_id, wanted)

    def _delay(self, table: FrameTable, picked: NDArray[Any], key_id: NDArray[Any], rows: Rows) -> None:
        """Set the delivery time of delayed messages instead of the tag's hash."""
        if _SCHEDULE_TOPIC not in table.topics or not table.delay_level.any():
            return
        levels = table.delay_level[picked]
        delayed = (levels > 0) & self._keys_mask(key_id, frozenset((paths.SCHEDULE_TOPIC,)))
        for level in np.unique(levels[delayed]).tolist():
            mask = delayed & (levels == level)
            rows["tags_code"][mask] = rows["store_timestamp_ms"][mask] + self.rules.delays.delay_ms(level)
            if self.rules.delays.assumes(level):
                self.assumed_levels.add(level)

    def _batch(self, table: FrameTable, picked: NDArray[Any], key_id: NDArray[Any], rows: Rows) -> None:
        """Set first queue offset and count of inner batches from their properties; they are few, so a loop."""
        inner = table.with_property(PropertyFlag.INNER_NUM)[picked]
        for number in np.flatnonzero(inner & self._keys_mask(key_id, self.rules.batch_topics)):
            properties = parse_properties(table.properties(int(picked[number])))
            texts = properties.get(INNER_BASE), properties.get(INNER_NUM)
            if self.rules.accepted:
                base, count = java_number(texts[0], 64), java_number(texts[1], 16)
            else:
                base, count = map(_number, texts)
                count = count if count is not None and 0 < count <= _LARGEST_BATCH else None
            if base is not None and count is not None:
                rows["queue_offset"][number], rows["batch_size"][number] = base, count

    def _multi(self, table: FrameTable, picked: NDArray[Any], own: DispatchColumns) -> DispatchColumns:
        """Add the entries in light queues; records with lists are few, so a loop."""
        if not self.rules.multi_dispatch or not table.any_has(PropertyFlag.INNER_MULTI_DISPATCH):
            return own
        with_lists = np.flatnonzero(table.with_property(PropertyFlag.INNER_MULTI_DISPATCH)[picked])
        ids: list[int] = []
        offsets: list[int] = []
        sources: list[int] = []
        unlisted = [self.rules.no_lists.covers(decode_text(topic)) for topic in table.topics]
        rows = picked[with_lists]
        columns = (table.topic_id[rows], table.queue_id[rows], own.rows["phy_offset"][with_lists])
        lists = zip(with_lists.tolist(), rows.tolist(), *(column.tolist() for column in columns), strict=True)
        for number, row, topic, queue_id, at in lists:
            listed = self._entered if unlisted[topic] else self._listed
            for key_id, queue_offset in listed(table.properties(row), queue_id, at):
                if key_id >= 0:
                    ids.append(key_id)
                    offsets.append(queue_offset)
                    sources.append(number)
        extra = own.rows[sources]
        extra["queue_offset"] = offsets
        if not self.rules.accepted:
            extra["tags_code"] = table.tags_code[picked][sources]
        extra["batch_size"] = 1
        order = np.argsort(np.r_[np.arange(len(own.rows)), np.array(sources, np.int64)], kind="stable")
        key_id, rows = np.r_[own.key_id, np.array(ids, np.int32)], np.r_[own.rows, extra]
        return DispatchColumns(key_id[order], rows[order])


def light_queues(properties: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return the queues that a record's own list names, with its number in each; none if the lists do not match (10.7)."""
    pairs = _listed_pairs(properties)
    found = tuple((name, number) for name, text in pairs if (number := _number(text)) is not None)
    return found if len(found) == len(pairs) else ()


def has_lmq(store: Store) -> bool:
    """Return ``enableLmq`` if it or ``enableMultiDispatch`` is configured; else True unless a light queue has an id other than 0."""
    settings = store.settings
    if "enableLmq" in settings.values or "enableMultiDispatch" in settings.values:
        return settings.flag("enableLmq")
    return not any(key.topic.startswith(paths.LMQ_PREFIX) and key.queue_id for key in store.queues)


def light_key(name: str, queue_id: int, *, lmq: bool) -> QueueKey:
    """Return the queue of a name in the list of a record with ``queue_id`` (10.7); ``lmq`` as ``has_lmq`` returns."""
    return QueueKey(name, 0 if lmq and name.startswith(paths.LMQ_PREFIX) else queue_id)


def bad_numbers(properties: Mapping[str, str]) -> list[int]:
    """Return the indexes of the numbers in a list of light queues at which a broker's dispatch fails (store behaviour 4.11)."""
    pairs = enumerate(_listed_pairs(properties))
    return [place for place, (name, text) in pairs if "/" not in name and java_number(text, 64) is None]


def _listed_pairs(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names and numbers of a list of light queues as texts; none if a broker passes over the list."""
    texts = properties.get(MULTI_DISPATCH, ""), properties.get(MULTI_QUEUE_OFFSET, "")
    names, numbers = map(java_split, texts)
    if len(names) != len(numbers) or any(map(is_java_blank, texts)):
        return []
    return list(zip(names, numbers, strict=True))


def inner_batch_size(properties: Mapping[str, str]) -> int:
    """Return how many messages an inner batch declares; 1 for any other record (6.6)."""
    count = _number(properties.get(INNER_NUM))
    has_base = _number(properties.get(INNER_BASE)) is not None
    return count if has_base and count is not None and 0 < count <= _LARGEST_BATCH else 1


def is_java_blank(text: str) -> bool:
    """Return True if a broker takes the text for an absent list of light queues."""
    return not text or text.isspace()


def java_split(text: str) -> list[str]:
    """Split at commas as Java does, without the empty parts at the end."""
    parts = text.split(LIST_SEPARATOR)
    while parts and not parts[-1]:
        parts.pop()
    return parts


def _number(text: str | None) -> int | None:
    return java_number(text, 64) if text is not None and text.isascii() and text.isdecimal() else None
