"""Return queue entries as rows, as stored, and compare them with the log on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from store_core.codec.record import Message
from store_core.codec.tags import tags_code
from store_core.errors import UnreadableError
from store_core.findings import Finding, finding
from store_core.kernel.text import RowBatch, numbers, same
from store_core.layout import paths
from store_core.layout.queue import ENTRY, EXT_MAX_ADDRESS, is_ext_address
from store_core.read.entries import BatchEntry, Entry, ExtUnit, has_expired, is_dead, is_filler
from store_core.read.pull import require_queue_files
from store_core.read.queue import BatchQueue, Queue, end_of_run, layout_of
from store_core.read.records import read_message
from store_core.read.types import missing_entries
from store_core.storage.live_start import Begin
from store_core.storage.remote_path import is_remote, is_there
from store_core.storage.store import Store

MOST_FINDINGS: Final = 1000
_LOOK_AHEAD_BYTES: Final = 64 << 10
_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
_MULTI_SEPARATOR: Final = ","


@dataclass(frozen=True, slots=True)
class QueueDump:
    """A queue to dump."""

    topic: str
    queue_id: int
    queue: Queue | BatchQueue


def all_queues(store: Store, topic: str | None = None) -> Sequence[QueueDump]:
    """Return every queue of a store, or of a topic, ordinary ones first. Raises FailedError where they are in RocksDB."""
    require_queue_files(store)
    return _Queues(store, topic)


class _Queues(Sequence[QueueDump]):
    """The queues of a store, each opened on access."""

    def __init__(self, store: Store, topic: str | None) -> None:
        self._store = store
        self._keys = [
            (key, is_batch)
            for is_batch, queues in enumerate((store.queues, store.batch_queues))
            for key in queues
            if topic in (None, key.topic)
        ]

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, at: int) -> QueueDump: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[QueueDump]: ...
    def __getitem__(self, at: int | slice) -> QueueDump | Sequence[QueueDump]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        (key, is_batch), store = self._keys[at], self._store
        if is_batch:
            return QueueDump(*key, BatchQueue(store.batch_queues[key], store.log))
        return QueueDump(*key, Queue(store.queues[key], store.log, ext=store.ext_queues.get(key)))


def fields_of(dumped: Sequence[QueueDump], *, resolve: bool) -> tuple[str, ...]:
    """Return all keys that rows of these queues may have."""
    batches = any(isinstance(dump.queue, BatchQueue) for dump in dumped)
    fields = ("topic", "queue_id", *(BatchEntry if batches else Entry)._fields)
    if any(isinstance(dump.queue, Queue) and dump.queue.ext is not None for dump in dumped):
        fields += ("ext",)
    return (*fields, "record") if resolve else fields


def dump_entries(
    dumped: QueueDump, *, first: int | None, end: int | None, resolve: bool, findings: list[Finding]
) -> Iterator[dict[str, Any] | RowBatch]:
    """Yield rows for the entries of [first, end), by default all entries of the queue; in batches where rows need neither the log nor ext units.

    With ``resolve`` each row has ``record``, the fields of the log's record (None: no record, or it has expired). ``findings`` gets at most
    ``MOST_FINDINGS`` of these:

    * entries that disagree with their record;
    * entries after the queue's end, if ``end`` is None;
    * files that are missing or short, or vanish during the dump;
    * addresses without a good ext unit.
    """
    queue = dumped.queue
    hidden = after_end(dumped) if end is None else ()
    _add_all(findings, missing_entries(queue.files, dumped.topic, dumped.queue_id, *_bytes_of(queue, first, end)))
    rows = _Rows(dumped, resolve, findings)
    for entries in _runs(dumped, first, end, findings):
        if isinstance(entries, _Chunk) and not resolve and not entries.has_ext_address:
            yield entries.batch(dumped)
        else:
            yield from map(rows.row, entries)
    with suppress(UnreadableError):  # entries after the queue's end are extra: an error there must not fail the dump
        for found in hidden:
            _add(findings, found)


class _Chunk:
    """Consecutive entries of an ordinary queue, as stored."""

    def __init__(self, queue_offset: int, data: bytes) -> None:
        self._queue_offset = queue_offset
        self._entries = np.frombuffer(data, ENTRY.dtype)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return (Entry(number, *fields) for number, fields in enumerate(self._entries.tolist(), self._queue_offset))

    @property
    def has_ext_address(self) -> bool:
        return bool((self._entries["tags_code"] <= EXT_MAX_ADDRESS).any())

    def batch(self, dumped: QueueDump) -> RowBatch:
        """Return the rows of entries without ext units and records."""
        offsets = np.arange(self._queue_offset, self._queue_offset + len(self))
        stored = {name: numbers(self._entries[name]) for name in ENTRY.names}
        columns = {"topic": same(dumped.topic), "queue_id": same(dumped.queue_id), "queue_offset": numbers(offsets)}
        return RowBatch(columns | stored, len(self), lambda: (_row(dumped, entry) for entry in self))


class _Rows:
    """Makes rows of single entries and collects findings about them."""

    def __init__(self, dumped: QueueDump, resolve: bool, findings: list[Finding]) -> None:
        self._dumped, self._resolve, self._findings = dumped, resolve, findings
        self._log = dumped.queue.log
        self._log_begin = Begin(self._log)
        self._newest = -1  # phy_offset of the newest record found: no expired record is after an existing one

    def row(self, entry: Entry | BatchEntry) -> dict[str, Any]:
        row, unit, queue = _row(self._dumped, entry), None, self._dumped.queue
        if isinstance(queue, Queue) and is_ext_address(entry.tags_code):
            unit = queue.ext_of(entry.tags_code)
            row["ext"] = None if unit is None else _ext_row(unit)
            if unit is None and not has_expired(entry, self._log_begin):
                _add(self._findings, _about("Q016", "no good unit at the address", self._dumped, entry))
        if self._resolve:
            row["record"] = self._resolved(entry, unit)
        return row

    def _resolved(self, entry: Entry | BatchEntry, unit: ExtUnit | None) -> dict[str, Any] | None:
        if (
            entry.phy_offset >= self._log.max_phy_offset
            and self._log is self._dumped.queue.log
            and not is_filler(entry)
        ):
            self._log = self._log.relisted()  # a broker makes a segment before it writes entries that point there
        message = None if is_filler(entry) else read_message(self._log, entry.phy_offset, entry.size_bytes)
        self._newest = entry.phy_offset if message is not None else self._newest
        is_gone = message is None and entry.phy_offset > self._newest and has_expired(entry, self._log_begin)
        for found in () if is_gone else _disagreements(self._dumped, entry, unit, message):
            _add(self._findings, found)
        return None if message is None else _record_row(message)


def _row(dumped: QueueDump, entry: Entry | BatchEntry) -> dict[str, Any]:
    return {"topic": dumped.topic, "queue_id": dumped.queue_id, **entry._asdict()}


def _runs(
    dumped: QueueDump, first: int | None, end: int | None, findings: list[Finding]
) -> Iterator[_Chunk | list[BatchEntry]]:
    """Yield the entries of [first, end) in order; add a finding for entries whose files vanished since they were listed."""
    queue, step = dumped.queue, layout_of(dumped.queue).size_bytes
    at = queue.files.min_phy_offset // step
    last = queue.max_offset if end is None else end
    placed: Iterator[tuple[int, _Chunk | list[BatchEntry]]]
    if isinstance(queue, Queue):
        at = max(at, first or 0)
        placed = ((place, _Chunk(place, data)) for place, data in queue.chunks(at, last))
    else:
        at = at if first is None else queue.slot_of(first)
        placed = ((place, [entry]) for place, entry in queue.placed(at, last))
    for place, entries in placed:
        if place > at:
            _add_all(findings, _removed(dumped, range(at, place)))
        yield entries
        at = place + len(entries)
    if end is None:
        stop = queue.files.max_phy_offset // step  # the queue's end cannot be read from files that are gone
    else:
        stop = end if isinstance(queue, Queue) else queue.slot_of(end)
    _add_all(findings, _removed(dumped, range(at, stop)))


def _bytes_of(queue: Queue | BatchQueue, first: int | None, end: int | None) -> tuple[int, int | None]:
    """Return the byte range of a queue that a range of entries covers."""
    step = layout_of(queue).size_bytes
    place_of = queue.slot_of if isinstance(queue, BatchQueue) else int
    return (place_of(first) * step if first is not None else 0), (place_of(end) * step if end is not None else None)


def _removed(dumped: QueueDump, places: range) -> Iterator[Finding]:
    """Yield a finding for each range of ``places`` whose files were listed and are gone by now."""
    files, entry = dumped.queue.files, layout_of(dumped.queue)
    step = entry.size_bytes
    gone: list[range] = []
    for segment in files.segments:
        start, stop = max(segment.phy_offset // step, places.start), min(segment.end_phy_offset // step, places.stop)
        if start < stop and not is_there(segment.path):
            start = gone.pop().start if gone and gone[-1].stop == start else start
            gone.append(range(start, stop))
    files_start = Begin(files)
    for places_gone in gone:
        is_front = files_start.has_passed(places_gone.stop * step)
        if is_front or places_gone.start < dumped.queue.end_slot:
            yield finding(
                "Q020" if is_front else "Q012",
                f"{len(places_gone)} entries went away while the queue was read",
                file="/".join(files.segments[0].path.parts[-4:-1]),
                size_bytes=len(places_gone) * step,
                topic=dumped.topic,
                queue_id=dumped.queue_id,
                queue_offset=places_gone.start if isinstance(dumped.queue, Queue) else None,
            )


def after_end(dumped: QueueDump) -> Iterator[Finding]:
    """Yield Q008 if good entries follow the entry of size 0 that ends the queue. Raises UnreadableError.

    In an object store only the next 64 KiB are searched: files are made ahead and would be downloaded whole. A broker may append meanwhile, so only
    entries after a place that still has no entry afterwards count.
    """
    entry = layout_of(dumped.queue)
    good = list(_good_after(dumped))
    if not any(mask.any() for _, mask in good):
        return
    end = end_of_run(dumped.queue.files.relisted(), entry, dumped.queue.end_slot * entry.size_bytes) // entry.size_bytes
    hidden = sum(int(mask[max(end - first, 0) :].sum()) for first, mask in good)
    if hidden:
        yield finding(
            "Q008",
            f"{hidden} entries after one of size 0, which is a queue's end, are left out",
            topic=dumped.topic,
            queue_id=dumped.queue_id,
            queue_offset=end if isinstance(dumped.queue, Queue) else None,
        )


def _good_after(dumped: QueueDump) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield the first place after the queue's end, and a mask of the places with an entry, for each file."""
    files, entry = dumped.queue.files, layout_of(dumped.queue)
    at = dumped.queue.end_slot * entry.size_bytes
    for segment in files.segments:
        start = max(segment.phy_offset, at)
        stop = start + _LOOK_AHEAD_BYTES if is_remote(segment.path) else files.used_end(segment.phy_offset)
        if start < stop:
            data = files.read(start, -(-(stop - start) // entry.size_bytes) * entry.size_bytes)
            rows = np.frombuffer(data, entry.dtype, len(data) // entry.size_bytes)
            yield start // entry.size_bytes, rows["size_bytes"] > 0


def _ext_row(unit: ExtUnit) -> dict[str, Any]:
    return {"tags_code": unit.tags_code, "store_timestamp_ms": unit.store_timestamp_ms, "bitmap": unit.bitmap.hex()}


def _record_row(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "size_bytes": message.size_bytes,
        "tags_code": tags_code(message.tags),
        "store_timestamp_ms": message.store_timestamp_ms,
        "unique_key": message.unique_key,
    }


def _disagreements(
    dumped: QueueDump, entry: Entry | BatchEntry, unit: ExtUnit | None, message: Message | None
) -> Iterator[Finding]:
    if is_filler(entry):
        return
    if is_dead(entry, dumped.queue.log.file_size_bytes):
        yield _about("Q014", "the entry skips a lost message", dumped, entry)
        return
    if message is None:
        yield _about("Q001", "no record starts where the entry points to", dumped, entry)
        return
    if message.size_bytes != entry.size_bytes:
        text = f"the entry says {entry.size_bytes} bytes, the record has {message.size_bytes}"
        yield _about("Q003", text, dumped, entry)
    if dumped.topic in message.properties.get(_MULTI_DISPATCH, "").split(_MULTI_SEPARATOR):
        return  # in a light queue the record has the topic and queue offset of its own queue
    if (message.topic, message.queue_id) != (dumped.topic, dumped.queue_id):
        text = f"the record belongs to queue {message.queue_id} of {message.topic}"
        yield _about("Q002", text, dumped, entry)
        return
    if message.queue_offset != entry.queue_offset:
        yield _about("Q004", f"the record's queue offset is {message.queue_offset}", dumped, entry)
    code = entry.tags_code if unit is None else unit.tags_code
    # Delay queues store delivery times as tags codes, which cannot be compared without the delay levels.
    if dumped.topic != paths.SCHEDULE_TOPIC and not is_ext_address(code) and code != tags_code(message.tags):
        yield _about("Q005", f"the record's tags code is {tags_code(message.tags)}", dumped, entry)


def _about(code: str, text: str, dumped: QueueDump, entry: Entry | BatchEntry) -> Finding:
    return finding(
        code,
        text,
        phy_offset=entry.phy_offset,
        size_bytes=entry.size_bytes,
        topic=dumped.topic,
        queue_id=dumped.queue_id,
        queue_offset=entry.queue_offset,
    )


def _add_all(findings: list[Finding], found: Iterable[Finding]) -> None:
    for one_finding in found:
        _add(findings, one_finding)


def _add(findings: list[Finding], found: Finding) -> None:
    if len(findings) < MOST_FINDINGS:
        findings.append(found)
