"""Compares a start played through with what the real store code left behind, field by field."""

from __future__ import annotations

import hashlib
from ctypes import c_int64
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.queue_recovery import QueueState
from store_core.broker.start import Start, start_broker
from store_core.broker.versions import Version, behaviour_of
from store_core.layout import paths
from store_core.layout.queue import is_ext_address
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores

_MOST_ROWS: Final = 100_000  # as far as the recorded outcomes tell entries
_PLAIN, BATCH_COLUMNS = 4, 5  # columns of an ordinary entry, and of a batch's
Differences = dict[str, tuple[Any, Any]]  # what -> (what the real code did, what we say)


def compare_with_recorded(root: Path, config: Path, outcome: dict[str, Any], version: str) -> Differences:
    """A store as found, and the real code's outcome of load and start: everything in which they differ.

    ``starts``, the log's ends and files, every queue with all of its entries, the index files' numbers, files deleted.
    """
    with Store.open(root, load_settings(config, root)) as store:
        return compare_with_start(start_broker(store, behaviour_of(Version.parse(version))), outcome)


def compare_with_start(start: Start, outcome: dict[str, Any]) -> Differences:
    """As ``compare_with_recorded``, of a start that was played through."""
    started = outcome["load"]["ok"] and outcome["afterStart"]["returned"]
    if started != (not start.refusal):
        return {"starts": (started, start.refusal)}
    if not started and not start.ends_cut:
        return {}
    found = compare_state(start, outcome["afterStart" if started else "afterLoad"])
    # What RocksDB does inside its own folder is its own business.
    gone = [path for path in outcome["diffAfterLoad"]["deleted"] if not path.startswith(paths.ROCKSDBSTORE)]
    deleted = (sorted(gone), deleted_files(start))
    if deleted[0] != deleted[1]:
        found["deleted"] = deleted
    return found


def compare_state(start: Start, state: dict[str, Any]) -> Differences:
    """A start played through, and the state the real code was in, as ``afterLoad`` and ``afterStart`` hold it."""
    pairs: Differences = {
        "max": (state["maxPhyOffset"], start.log.max_phy_offset),
        "min": (state["minPhyOffset"], start.log.min_phy_offset),
        "files": ([f["file"] for f in state["mappedFiles"]], [segment.name for segment in start.log.segments]),
        "index": (
            [(f["indexCount"], f["endPhyOffset"], f["endTimestamp"]) for f in state["indexFiles"]],
            [(f.next_entry, f.end_phy_offset, f.end_timestamp_ms) for f in start.loaded.index.files],
        ),
        "index names": (
            [f["file"] for f in state["indexFiles"]][: len(_kept_index(start))],
            _kept_index(start),
        ),
    }
    ours = {tuple(queue.key): queue for queue in start.queues}
    theirs = {(queue["topic"], queue["queueId"]): queue for queue in state["queues"]}
    is_5x = start.behaviour.batch_queues
    for key in ours.keys() | theirs.keys():
        pairs[f"queue {key}"] = _recorded(theirs.get(key)), _played(ours.get(key), theirs.get(key, {}), is_5x=is_5x)
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def _kept_index(start: Start) -> list[str]:
    return [file.name for file in start.loaded.index.files if file.name is not None]


def _recorded(queue: dict[str, Any] | None) -> Any:
    if queue is None or queue["max"] <= 0:  # 4.x opens all delay queues, empty ones too
        return None
    # Where the oracle could not read on, it tells no entries.
    digest = _digest(_without_tags(queue["entries"])) if "entries" in queue else queue.get("entriesSha256")
    return queue["min"], queue["max"], queue["maxPhysic"], digest


def _played(queue: QueueState | None, recorded: dict[str, Any], *, is_5x: bool) -> Any:
    if queue is None or queue.max_offset <= 0:
        return None
    rows = _rows(queue, is_5x=is_5x)
    if "entries" in recorded:
        rows = _without_tags(rows, recorded["entries"])
    is_told = not recorded or "entries" in recorded or "entriesSha256" in recorded
    return queue.min_offset, queue.max_offset, queue.end_phy_offset, _digest(rows) if is_told else None


def _rows(queue: QueueState, *, is_5x: bool) -> list[list[int]]:
    """Entries as the real code's are told."""
    if isinstance(queue, BatchQueueState):
        return _rows_of_batches(queue)
    steps = {behind - start for start, behind in pairwise(queue.starts)}
    if (queue.starts and queue.starts[0] % queue.file_size_bytes) or steps - {queue.file_size_bytes}:
        return _rows_by_buffers(queue, tells_numbers=is_5x)
    found = queue.entries(queue.min_position, queue.end)
    return [[queue.min_offset + place, *entry] for place, entry in enumerate(found.tolist())]


def _rows_by_buffers(queue: QueueState, *, tells_numbers: bool) -> list[list[int]]:
    """Entries as somebody meets them who is given the rest of a file from the place that a number leads to.

    5.x tells an entry's number by its place in the file and where that begins, 4.x counts on.
    """
    rows: list[list[int]] = []
    size, width = queue.file_size_bytes, queue.entry_size_bytes
    number = queue.min_offset
    while number < queue.max_offset:
        file = file_of(queue.starts, size, number * width)
        at = number * width % size
        if file is None or at >= queue.written_in(file):
            rows.append([number, -1, -1, -1])
            number += 1
            continue
        before = number
        number = (file + at) // width if tells_numbers else number
        for entry in queue.in_file(file, file + at, file + queue.written_in(file)).tolist():
            rows.append([number, *entry])
            number += 1
            if number >= queue.max_offset:
                break
        if number < before:
            break
    return rows


def file_of(starts: list[int], size: int, at: int) -> int | None:
    """The file that real code reads for an offset: the one by its number, if it is over the offset; else the first one that is."""
    if not starts or not starts[0] <= at < starts[-1] + size:
        return None
    number = int(at / size) - int(starts[0] / size)
    in_turn = starts[number : number + 1] if number >= 0 else []
    return next((start for start in (*in_turn, *starts) if start <= at < start + size), None)


def _rows_of_batches(queue: BatchQueueState) -> list[list[int]]:
    """Entries as somebody meets them who goes on behind each of them, looks for the number there at a file's end, and leaves out
    numbers that are not found."""
    names = ("queue_offset", "phy_offset", "size_bytes", "tags_code", "batch_size")
    files = []
    for start in queue.starts:
        found = queue.entries(start, start + queue.written_in(start))
        files += [[[int(entry[name]) for name in names] for entry in found]] if len(found) else []
    rows: list[list[int]] = []
    number = max(queue.min_offset, 0)
    while number < queue.max_offset and len(rows) < _MOST_ROWS:
        before = number
        for row in _from(files, number):
            rows.append(row)
            number = c_int64(row[0] + max(row[-1], 1)).value
            if number >= queue.max_offset:
                break
        if number < before:
            break
        if number == before:
            rows.append([number, -1, -1, -1])
            number += 1
    return rows


def _from(files: list[list[list[int]]], number: int) -> list[list[int]]:
    """The entries of a file from the one on that a broker's search for a number ends at: the newest file, or else the one with the
    highest first number of those that are not higher."""
    fitting = [file for file in files if file[0][0] <= number]
    if not fitting:
        return []
    file = files[-1] if files[-1] in fitting else max(reversed(fitting), key=lambda file: file[0][0])
    left, right = 0, len(file) - 1
    while left <= right:
        middle = (left + right) // 2
        if file[middle][0] == number:
            return file[middle:]
        if file[middle][0] > number:
            right = middle - 1
        elif middle > left:
            left = middle
        else:
            follows = middle + 1 < len(file) and file[middle + 1][0] <= number
            return file[middle + follows :]
    return []


def _without_tags(rows: list[list[int]], told: list[list[int]] | None = None) -> list[list[int]]:
    """Rows without tags where ``told``, or else they themselves, lead to further files for them, which are not compared."""
    told = rows if told is None else told
    is_ext = [len(there) > BATCH_COLUMNS or (len(there) == _PLAIN and is_ext_address(there[3])) for there in told]
    is_ext += [False] * (len(rows) - len(told))
    return [row[:3] if ext else row for row, ext in zip(rows, is_ext, strict=False)]


def _digest(rows: list[list[int]]) -> str:
    return hashlib.sha256("".join(f"[{','.join(map(str, row))}]\n" for row in rows).encode()).hexdigest()


def deleted_files(start: Start) -> list[str]:
    """Files a start leaves deleted; a queue file that is made anew afterwards is not."""
    deleted, there = set(start.loaded.deleted_queue_files), set()
    for queue in start.queues:
        tree = paths.BATCHCONSUMEQUEUE if isinstance(queue, BatchQueueState) else paths.CONSUMEQUEUE
        folder = f"{tree}/{queue.key.topic}/{queue.key.queue_id}"
        deleted.update(f"{folder}/{paths.segment_name(name)}" for name in queue.deleted)
        there.update(f"{folder}/{paths.segment_name(queue.name_of(position))}" for position in queue.starts)
    log = [f"{paths.COMMITLOG}/{name}" for name in (*start.log.deleted, *start.loaded.deleted_segments)]
    index = [f"{paths.INDEX}/{name}" for name in start.loaded.index.deleted]
    return sorted([*log, *index, *(deleted - there), *start.loaded.deleted_config_files])


def recorded_cases() -> list[tuple[str, str | None, str]]:
    """(base, by, CASE/exit) of every recorded outcome; ``by`` is None for the release that wrote the base."""
    bases = (
        ("load-533", None),
        ("load-533", "5.1.4"),
        ("load-533", "5.4.0"),
        ("load-497", None),
        ("crash-533", None),
        ("crash-533", "5.4.0"),
        ("load-533", "5.5.1"),
        ("load-551", None),
        ("load-551-aged", None),
        ("load-551-aged", "5.5.0"),
        ("crash-551-aged", None),
    )
    return [(base, by, key) for base, by in bases for key in stores.outcomes(base, by)]
