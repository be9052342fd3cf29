"""Compares a start played through with what the real store code left behind, field by field."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from store_core.broker.queue_recovery import BatchQueueState, QueueState
from store_core.broker.start import Start, start_broker
from store_core.broker.versions import Version, behaviour_of
from store_core.layout import paths
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores

Differences = dict[str, tuple[Any, Any]]  # what -> (what the real code did, what we say)


def compare_with_recorded(root: Path, config: Path, outcome: dict[str, Any], version: str) -> Differences:
    """A store as found, and the real code's outcome of load and start: everything in which they differ.

    ``starts``, the log's ends and files, every queue with all of its entries, the index files' numbers, files deleted.
    """
    with Store.open(root, load_settings(config, root)) as store:
        start = start_broker(store, behaviour_of(Version.parse(version)))
        started = outcome["load"]["ok"] and outcome["afterStart"]["returned"]
        if started != (not start.refusal):
            return {"starts": (started, start.refusal)}
        if not started:
            return {}
        found = compare_state(start, outcome["afterStart"])
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
    for key in ours.keys() | theirs.keys():
        pairs[f"queue {key}"] = _recorded(theirs.get(key)), _played(ours.get(key), theirs.get(key, {}))
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def _kept_index(start: Start) -> list[str]:
    return [file.name for file in start.loaded.index.files if file.name is not None]


def _recorded(queue: dict[str, Any] | None) -> Any:
    if queue is None or queue["max"] <= 0:  # 4.x opens all delay queues, empty ones too
        return None
    entries = queue.get("entriesSha256") or queue.get("entries")
    return queue["min"], queue["max"], queue["maxPhysic"], entries


def _played(queue: QueueState | None, recorded: dict[str, Any]) -> Any:
    if queue is None or queue.max_offset <= 0:
        return None
    return queue.min_offset, queue.max_offset, queue.end_phy_offset, _entries(queue, recorded)


def _entries(queue: QueueState, recorded: dict[str, Any]) -> Any:
    """Entries in the form they were recorded: the digest of their lines, or as lists."""
    if isinstance(queue, BatchQueueState):
        found = queue.entries(queue.starts[0], queue.end)
        return [
            [int(e[n]) for n in ("queue_offset", "phy_offset", "size_bytes", "tags_code", "batch_size")] for e in found
        ]
    found = queue.entries(queue.min_position, queue.end)
    rows = [[queue.min_offset + place, *entry] for place, entry in enumerate(found.tolist())]
    if "entriesSha256" in recorded:
        lines = "".join(f"[{','.join(map(str, row))}]\n" for row in rows)
        return hashlib.sha256(lines.encode()).hexdigest()
    # With ConsumeQueueExt the recorded tags are resolved and more follows; the rest is the entry.
    return [
        [*row[:3], *there[3:]] if len(there) > 4 else row
        for row, there in zip(rows, recorded.get("entries", rows), strict=False)
    ]


def deleted_files(start: Start) -> list[str]:
    """Files a start leaves deleted; a queue file that is made anew afterwards is not."""
    queues = [
        f"{paths.BATCHCONSUMEQUEUE if isinstance(queue, BatchQueueState) else paths.CONSUMEQUEUE}"
        f"/{queue.key.topic}/{queue.key.queue_id}/{paths.segment_name(position)}"
        for queue in start.queues
        for position in queue.deleted
        if position not in queue.starts
    ]
    log = [f"{paths.COMMITLOG}/{name}" for name in (*start.log.deleted, *start.loaded.deleted_segments)]
    index = [f"{paths.INDEX}/{name}" for name in start.loaded.index.deleted]
    return sorted([*log, *index, *queues, *start.loaded.deleted_queue_files, *start.loaded.deleted_config_files])


def recorded_cases() -> list[tuple[str, str | None, str]]:
    """(base, by, CASE/exit) of every recorded outcome; ``by`` is None for the release that wrote the base."""
    bases = (
        ("load-533", None),
        ("load-533", "5.1.4"),
        ("load-533", "5.4.0"),
        ("load-497", None),
        ("crash-533", None),
        ("crash-533", "5.4.0"),
    )
    return [(base, by, key) for base, by in bases for key in stores.outcomes(base, by)]
