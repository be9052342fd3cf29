"""Detect which releases may have written a store, by the traces they leave in it (store format, section 0)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from store_core.broker.config_load import read_config
from store_core.broker.versions import RELEASES, Version
from store_core.layout import checkpoint, paths, record
from store_core.storage.databases import LIBRARY_OF_55, database_options, library_of, ran_under_55
from store_core.storage.remote_path import is_there

if TYPE_CHECKING:
    from store_core.storage.store import Store

_FIRST, _LAST = RELEASES[0], RELEASES[-1]
_BEFORE_5: Final = Version(4, 9, 8)
_V: Final = Version
_TAIL_RECORDS: Final = 256  # newest records that are read
_TAIL_BYTES: Final = 1 << 20
_SPREAD_MAP: Final = re.compile(rb"\{\s*\n\s*-?\d+\s*:")
_TIGHT_MAP: Final = re.compile(rb"\{-?\d+\s*:")
_LIGHT_TOPIC: Final = b"__LITE_TOPIC" + bytes([record.NAME_VALUE_SEPARATOR])
_REVIVE_TOPIC: Final = b"rmq_sys_REVIVE_LOG_"
_SUSPEND: Final = b'"sp":'  # a member of POP checkpoints
_ORIGIN_GROUP: Final = b"ORIGIN_GROUP" + bytes([record.NAME_VALUE_SEPARATOR])
_MAX_TEXT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """A trace in the store and the ranges of releases that leave it. ``of_last_run``: the last broker run left it."""

    what: str
    ranges: tuple[tuple[Version, Version], ...]
    of_last_run: bool = True

    def allows(self, version: Version) -> bool:
        return any(first <= version <= last for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Releases that may have written the store last, oldest first, and the traces that show it."""

    possible: tuple[Version, ...]
    evidence: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"possible": [str(version) for version in self.possible], "evidence": list(self.evidence)}


def evidence_of(store: Store) -> Evidence:
    """Intersect the releases that the traces allow; traces of the last run prevail over those of older brokers."""
    marks = [*_file_marks(store), *_config_marks(store), *_checkpoint_marks(store), *_record_marks(store)]
    marks.sort(key=lambda mark: not mark.of_last_run)
    possible = RELEASES
    evidence = []
    for mark in marks:
        remaining = tuple(version for version in possible if mark.allows(version))
        if not remaining:
            evidence.append(f"{mark.what} (contradicts the others, not counted)")
            continue
        if remaining != possible:
            possible = remaining
        evidence.append(mark.what)
    return Evidence(possible, tuple(evidence) or ("nothing in the store shows it",))


def _since(what: str, first: Version, *, of_last_run: bool = True) -> Mark:
    return Mark(f"{what}: {first.line if first.patch == 0 else first} or later", ((first, _LAST),), of_last_run)


def _until(what: str, last: Version, text: str) -> Mark:
    return Mark(f"{what}: {text}", ((_FIRST, last),))


# -- files ----------------------------------------------------------------------------------------------------------

# Files and folders with the first release that makes them.
_FILES: Final = (
    (paths.ABORT_BAK, _V(5, 0, 0)),
    (paths.TIMERWHEEL, _V(5, 0, 0)),
    (paths.BATCHCONSUMEQUEUE, _V(5, 0, 0)),
    (paths.TIMERCHECK, _V(5, 0, 0)),
    (f"{paths.CONFIG}/topicQueueMapping.json", _V(5, 0, 0)),
    (f"{paths.CONFIG}/consumerOrderInfo.json", _V(5, 0, 0)),
    ("epochFileCheckpoint", _V(5, 0, 0)),
    (f"{paths.COMPACTION}/position-checkpoint", _V(5, 1, 0)),
    (paths.BROKER_IDENTITY, _V(5, 1, 1)),
    (f"{paths.ROCKSDBSTORE}/{paths.ROCKSDB_MARK}", _V(5, 4, 0)),
    (paths.CONSUMEQUEUE_ROCKSDB, _V(5, 5, 0)),
)
# The RocksDB library that a release opens its databases with.
_LIBRARIES: Final = {(8, 4, 0): (_V(5, 2, 0), _V(5, 4, 0)), LIBRARY_OF_55: (_V(5, 5, 0), _LAST)}
_QUEUE_FILTER: Final = b"compaction_filter_factory=ConsumeQueueCompactionFilterFactory"


def _file_marks(store: Store) -> Iterator[Mark]:
    for name, first in _FILES:
        if is_there(store.root / name):
            yield _since(name, first)
    text = store.cache.read(store.root / paths.ABORT, 0, 32) if (store.root / paths.ABORT).is_file() else b""
    if text.strip().isdigit():
        yield _since("a process id in abort", _V(5, 0, 0))
    if store.queues_in_rocksdb:
        yield _since("queues in RocksDB", _V(5, 2, 0))
    is_whole = (store.root / paths.CONFIG).is_dir()  # not a copy of the log alone
    if is_whole and not is_there(store.root / paths.ROCKSDBSTORE):
        yield _until(f"no {paths.ROCKSDBSTORE}", _V(5, 3, 3), "not 5.4 or later, which make it at every start")
    for name in filter(None, (paths.ROCKSDBSTORE, store.queue_database)):
        yield from _database_marks(store, name)


def _database_marks(store: Store, folder: str) -> Iterator[Mark]:
    options = database_options(store.root / folder)
    library = library_of(options)
    if library in _LIBRARIES:
        first, last = _LIBRARIES[library]
        written = ".".join(map(str, library))
        text = f"{first.line} or later" if last is _LAST else f"{first.line} to {last.line}"
        yield Mark(f"RocksDB {written} in {folder}: {text}", ((first, last),))
    if library is not None and folder == store.queue_database:
        if _QUEUE_FILTER in options:
            yield _until(f"filter of queue entries in {folder}", _V(5, 5, 0), "before 5.5.1")
        elif b"compaction_filter_factory=" in options:
            yield _since(f"no filter of queue entries in {folder}", _V(5, 5, 1))


# -- config files (9.1 to 9.6) --------------------------------------------------------------------------------------


def _config_marks(store: Store) -> Iterator[Mark]:
    topics = read_config(store, "topics.json").value
    version = topics.get("dataVersion") if isinstance(topics, dict) else None
    if isinstance(version, dict):
        if "stateVersion" in version:
            yield _since("stateVersion in topics.json", _V(5, 0, 0))
        else:
            yield _until("no stateVersion in topics.json", _BEFORE_5, "before 5.0")
    progress = read_config(store, "consumerOffset.json").value
    if isinstance(progress, dict) and progress.get("offsetTable"):
        if "dataVersion" in progress:
            yield _since("dataVersion in consumerOffset.json", _V(5, 0, 0))
        else:
            yield _until("no dataVersion in consumerOffset.json", _BEFORE_5, "before 5.0")
    if isinstance(progress, dict) and "pullOffsetTable" in progress:
        yield Mark("pullOffsetTable in consumerOffset.json: 5.5.0 alone", ((_V(5, 5, 0), _V(5, 5, 0)),))
    elif isinstance(progress, dict) and not store.aborted and ran_under_55(store.root):
        others = ((_FIRST, _V(5, 4, 0)), (_V(5, 5, 1), _LAST))
        yield Mark("no pullOffsetTable in consumerOffset.json: not 5.5.0", others)
    yield from _marks_of_55(store, topics)
    for name in ("consumerOffset.json", "delayOffset.json"):
        path = store.root / paths.CONFIG / name
        text = store.cache.read(path, 0, _MAX_TEXT_BYTES) if path.is_file() else b""
        if _SPREAD_MAP.search(text):
            yield _since(f"layout of {name}", _V(5, 4, 0))
            return
        if _TIGHT_MAP.search(text):
            yield _until(f"layout of {name}", _V(5, 3, 3), "before 5.4")
            return


def _marks_of_55(store: Store, topics: Any) -> Iterator[Mark]:
    order = read_config(store, "consumerOrderInfo.json").value
    if isinstance(order, dict) and "orderInfoCount" in order:
        yield _since("orderInfoCount in consumerOrderInfo.json", _V(5, 5, 0))
    attributes = [
        *_members(topics, "topicConfigTable", "attributes"),
        *_members(read_config(store, "subscriptionGroup.json").value, "subscriptionGroupTable", "attributes"),
    ]
    if any(
        found.get("message.type") == "LITE" or any(name.startswith("lite.") for name in found) for found in attributes
    ):
        yield _since("light topics in the configuration", _V(5, 5, 0), of_last_run=False)
    by_topic = _members(read_config(store, "consumerFilter.json").value, "filterDataByTopic", "groupFilterData")
    filters = [found for of_topic in by_topic for found in of_topic.values() if isinstance(found, dict)]
    filters = [found for found in filters if found.get("expressionType") == "SQL92"]
    if filters and not any(found.get("bloomFilterData") for found in filters):
        yield _since("SQL92 filters without bloomFilterData", _V(5, 5, 1))


def _members(value: Any, table: str, name: str) -> list[dict[str, Any]]:
    """Return the objects called ``name`` in the entries of a config file's table."""
    entries = value.get(table) if isinstance(value, dict) else None
    found = (
        [entry.get(name) for entry in entries.values() if isinstance(entry, dict)] if isinstance(entries, dict) else []
    )
    return [each for each in found if isinstance(each, dict)]


# -- checkpoint (8) -------------------------------------------------------------------------------------------------


def _checkpoint_marks(store: Store) -> Iterator[Mark]:
    layout = checkpoint.CHECKPOINT
    if not (store.root / paths.CHECKPOINT).is_file():
        return
    data = store.cache.read(store.root / paths.CHECKPOINT, 0, layout.size_bytes)
    values = layout.read(data.ljust(layout.size_bytes, b"\0"))
    if values["logics_phy_offset"] > 0:
        yield _since("a queue offset in the checkpoint", _V(5, 5, 0), of_last_run=False)
    if values["physic_msg_timestamp_ms"] and not values["logics_msg_timestamp_ms"] and store.queues:
        yield _since("no queue time in the checkpoint", _V(5, 5, 0))
    if values["confirm_phy_offset"]:
        yield _since("a confirm offset in the checkpoint", _V(5, 1, 1))
    elif values["master_flushed_offset"]:
        yield _since("a master flushed offset in the checkpoint", _V(5, 0, 0))


# -- records (2.1, 2.6, 3, 4) ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _TailFacts:
    records: int = 0
    with_properties: int = 0
    terminated: int = 0
    v2: bool = False
    v6: bool = False
    property_crc: bool = False
    compression_type: bool = False
    origin_group: bool = False
    light_topic: bool = False
    suspending_pop: bool = False


# Fields of _TailFacts, their words, and the first release that leaves such a record.
_RECORD_TRACES: Final = (
    ("v2", "V2 records", _V(5, 1, 0)),
    ("v6", "IPv6 hosts", _V(4, 6, 0)),
    ("property_crc", "property checksums", _V(5, 2, 0)),
    ("compression_type", "compression types in sysFlag", _V(4, 9, 4)),
    ("origin_group", "ORIGIN_GROUP properties", _V(5, 4, 0)),
    ("light_topic", "__LITE_TOPIC properties", _V(5, 5, 0)),
    ("suspending_pop", "POP checkpoints with sp", _V(5, 5, 0)),
)


def _record_marks(store: Store) -> Iterator[Mark]:
    facts = _tail_facts(store)
    for name, what, first in _RECORD_TRACES:
        if getattr(facts, name):
            yield _since(what, first, of_last_run=False)
    if facts.with_properties and 2 * facts.terminated >= facts.with_properties:
        yield Mark(
            "property strings end with a separator: up to 4.9.0, or 5.2 or later",
            ((_FIRST, _V(4, 9, 0)), (_V(5, 2, 0), _LAST)),
            of_last_run=False,
        )
    elif facts.with_properties:
        yield Mark(
            "property strings end without a separator: 4.9.1 to 5.1.4",
            ((_V(4, 9, 1), _V(5, 1, 4)),),
            of_last_run=False,
        )


def _tail_facts(store: Store) -> _TailFacts:
    """Return the traces in the newest records of the last two segments with bytes."""
    facts = _TailFacts()
    segments = [s for s in store.log.segments if store.log.read(s.phy_offset, 1)]
    for segment in reversed(segments[-2:]):
        _look_at_segment(store, segment.phy_offset, segment.end_phy_offset, facts)
        if facts.records >= _TAIL_RECORDS:
            break
    return facts


def _look_at_segment(store: Store, start: int, end: int, facts: _TailFacts) -> None:
    from store_core.kernel import scan_window
    from store_core.kernel.codes import FrameKind, ScanState

    at = _newest_part(store, start, end)
    window = store.log.read(at, min(_TAIL_BYTES, end - at))
    state = ScanState.CHAINED if at == start else ScanState.IN_DAMAGE
    result = scan_window(window, at, 0, end, int(state), 0)
    for row in range(len(result.kind) - 1, -1, -1):
        if result.kind[row] != FrameKind.MESSAGE or facts.records >= _TAIL_RECORDS:
            continue
        facts.records += 1
        facts.v2 |= int(result.magic[row]) == record.MAGIC_V2
        flags = int(result.sys_flag[row])
        facts.v6 |= bool(flags & (record.FLAG_BORN_HOST_V6 | record.FLAG_STORE_HOST_V6))
        facts.compression_type |= bool(flags & record.COMPRESSION_MASK)
        topic_at, body_at = int(result.topic_at[row]), int(result.body_at[row])
        if window[topic_at : topic_at + len(_REVIVE_TOPIC)] == _REVIVE_TOPIC:
            body = window[body_at : body_at + int(result.body_length[row])]
            facts.suspending_pop |= _SUSPEND in body
        place = int(result.properties_at[row])
        properties = window[place : place + int(result.properties_length[row])]
        if properties:
            facts.with_properties += 1
            facts.terminated += properties[-1] == record.PROPERTY_SEPARATOR
            facts.property_crc |= record.PROPERTY_CRC_NAME in properties
            facts.origin_group |= _ORIGIN_GROUP in properties
            facts.light_topic |= _LIGHT_TOPIC in properties


def _newest_part(store: Store, start: int, end: int) -> int:
    """Return the start of a segment's last written window, by binary search: bytes never written are zero."""
    low, high = start, end
    while high - low > _TAIL_BYTES // 2:
        middle = (low + high) // 2
        if any(store.log.read(middle, 4 * record.MIN_RECORD_SIZE_BYTES)):
            low = middle
        else:
            high = middle
    return max(start, high - _TAIL_BYTES)
