"""One cell's verdict: everything a prediction says, against what the real store code of the release did on a copy of the same store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from store_core.broker.config_load import DELAY_PROGRESS, read_config
from store_core.broker.start import start_broker
from store_core.broker.versions import Version, behaviour_of
from store_core.codec.record import Message, decode_record
from store_core.derive.dispatch import inner_batch_size
from store_core.layout import index, paths
from store_core.layout import queue as queue_layout
from store_core.read.records import read_message
from store_core.recovery.lost_from_queues import queue_entry_at
from store_core.recovery.prediction.outcome import Outcome
from store_core.recovery.prediction.predict import ResurrectionSearch, outcome_of_start
from store_core.storage.settings import load_settings
from store_core.storage.store import QueueKey, Store
from tests import stores
from tests.broker.axes import Planted
from tests.broker.outcomes import Differences, compare_state, deleted_files

Place = tuple[str, int, int]  # topic, queue id, queue offset

STARTS, DOES_NOT_LOAD, NEVER_RETURNS = "starts", "does not load", "never ends its start"

# Delivery times are milliseconds since 1970; what is smaller is a hash of the tags.
_LEAST_TIME_MS: Final = 1_000_000_000_000


def differences(
    root: Path, golden: Path, name: str, planted: Planted | None, told: dict[str, Any], version: str
) -> Differences:
    """What -> (what the real code did, what the prediction says), where they differ.

    ``root``: the damaged store, untouched since; ``golden``: the store ``name`` it was made from; ``told``: as ManyStores answers.
    Without ``planted`` nobody knows which ghosts to expect, and they are not compared.
    """
    config = root.parent / f"{root.name}.conf"
    config.write_text(stores.properties_text(name))
    with Store.open(root, load_settings(config, root)) as store:
        hunt = ResurrectionSearch(store)
        start = start_broker(store, behaviour_of(Version.parse(version)), on_table=hunt.look_at)
        outcome = outcome_of_start(store, start, hunt)
        if "Java heap space" in str(told["load"].get("exception")) and any("heap" in note for note in start.log.notes):
            return {}  # as the prediction says, it hangs on the heap, which many stores share here
        pairs = dict(_told_of_recovery(outcome, told))
        if outcome.starts and ending_of(told) == STARTS:
            real = _Real(root, golden, name, planted, told["afterStart"])
            pairs |= dict(_outcomes(store, outcome, real, told))
            found = compare_state(start, told["afterStart"])
            pairs |= {what: pair for what, pair in found.items() if what.startswith("queue ") or what == "index"}
            pairs["deleted"] = (_deleted(told), deleted_files(start))
        elif start.ends_cut and "afterLoad" in told:
            pairs |= compare_state(start, told["afterLoad"])
            pairs["deleted"] = (_deleted(told), deleted_files(start))
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def ending_of(told: dict[str, Any]) -> str:
    """How the real start ended."""
    if not told["load"]["ok"]:
        return DOES_NOT_LOAD
    state = told["afterStart"]
    return STARTS if state["returned"] and "exception" not in state else NEVER_RETURNS


def _told_of_recovery(outcome: Outcome, told: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Whether it starts, and how it recovers as far as its log tells."""
    never = (
        "start waits",
        "start for dispatch",
        f"{paths.ABORT} is",
        f"{paths.ABORT_BAK} is",
    )  # the last two as start() ends
    waits = any(each in outcome.reason for each in never)
    pair = (ending_of(told), STARTS if outcome.starts else NEVER_RETURNS if waits else DOES_NOT_LOAD)
    why = f": {told['load'].get('exception')}, {told['afterStart'].get('exception')}, {told['scan']['exception']}"
    yield "starts", pair if pair[0] == pair[1] else (pair[0] + why, f"{pair[1]}: {outcome.reason}")
    scan = told["scan"]
    if scan["recovery"] is not None:
        yield "recovery", (scan["recovery"], outcome.recovery)
    if scan["first_file"] is not None:
        yield "first file scanned", (scan["first_file"], outcome.first_file_scanned)


def _deleted(told: dict[str, Any]) -> list[str]:
    # What RocksDB does inside its own folder is its own business; no prediction tells of further files for tags.
    return [path for path in told["deleted"] if not path.startswith((paths.ROCKSDBSTORE, paths.CONSUMEQUEUE_EXT))]


def _outcomes(
    store: Store, outcome: Outcome, real: _Real, told: dict[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Every member of OUTCOME that is left."""
    state, deleted = real.state, _deleted(told)
    yield "max phy offset", (state["maxPhyOffset"], outcome.max_phy_offset)
    yield "min phy offset", (state["minPhyOffset"], outcome.min_phy_offset)
    yield "log files", ([file["file"] for file in state["mappedFiles"]], [*outcome.commitlog_files])
    yield "deleted log files", (_below(deleted, paths.COMMITLOG), sorted(outcome.deleted_commitlog_files))
    yield "deleted index files", (_below(deleted, paths.INDEX), sorted(outcome.deleted_index_files))
    before = {path.name: path for path in store.index_files}
    kept = [file for file in state["indexFiles"] if file["file"] in before]
    yield "index files", ([file["file"] for file in kept], [*outcome.index_files])
    grown = [f for f in state["indexFiles"] if f["indexCount"] > _entries_before(store, before.get(f["file"]))]
    yield "index rebuilt", (bool(grown), outcome.index_rebuilt)
    spans = {(t, q): (s.min_offset, s.max_offset) for t, queues in outcome.queues.items() for q, s in queues.items()}
    yield "queue spans", (real.spans(), spans)
    lost, gone = {place for place in _places(outcome) if place not in real.harmed}, real.lost()
    yield "lost messages", (sorted(gone), sorted(lost - (real.claimed(store) - gone)))
    yield "number lost", (sum(run.messages or 0 for run in outcome.lost), outcome.lost_messages)
    found = [(g.kind, g.topic, g.queue_id, g.queue_offset, g.phy_offset, g.size_bytes) for g in outcome.ghosts]
    if real.planted is not None:
        yield "ghosts", (sorted(real.ghosts(real.planted)), sorted(g for g in found if real.tells_of(g[0], *g[4:])))
    early = [(e.queue_id, e.queue_offset, e.phy_offset) for e in outcome.delivered_early]
    yield "delivered early", (real.delivered_early(store), [e for e in early if e not in real.in_further_files()])


def _below(deleted: list[str], folder: str) -> list[str]:
    return [path.removeprefix(f"{folder}/") for path in deleted if path.startswith(f"{folder}/")]


def _entries_before(store: Store, path: Path | None) -> int:
    """An index file's count as it was found; a new file begins with 1."""
    if path is None:
        return 1
    # A header that tells less than the first entry's number is read as that.
    return max(int(index.HEADER.read(store.cache.read(path, 0, index.HEADER.size_bytes))["index_count"]), 1)


def _places(outcome: Outcome) -> Iterator[Place]:
    for run in outcome.lost:
        for number in range(run.first_queue_offset or 0, (run.last_queue_offset or 0) + 1):
            yield run.topic or "", run.queue_id or 0, number


def _segments(root: Path) -> dict[str, bytes]:
    folder = root / paths.COMMITLOG
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} if folder.is_dir() else {}


def whole_messages(
    root: Path, golden: Path, name: str
) -> tuple[dict[tuple[int, int], list[Place]], dict[int, list[Place]]]:
    """The places of the messages that were put into a store: of those still whole in the log at ``root``, by log offset and size; of
    the others, by log offset."""
    truth = stores.truth(name)
    segment_size = int(truth["properties"]["mappedFileSizeCommitLog"])
    found, was = _segments(root), _segments(golden)
    whole: dict[tuple[int, int], list[Place]] = {}
    harmed: dict[int, list[Place]] = {}
    for message in truth["messages"]:
        segment, at = divmod(message["phyOffset"], segment_size)
        file = paths.segment_name(segment * segment_size)
        part = slice(at, at + message["storeSize"])
        places = _of_batch(decode_record(was[file][part], 0, message["phyOffset"]))
        if found.get(file, b"")[part] == was[file][part]:
            whole[message["phyOffset"], message["storeSize"]] = places
        else:
            harmed[message["phyOffset"]] = places
    return whole, harmed


def _of_batch(message: Message) -> list[Place]:
    """The places of a record's messages."""
    first, count = message.queue_offset, inner_batch_size(message.properties)
    return [(message.topic, message.queue_id, number) for number in range(first, first + count)]


class _Real:
    """What the real code's state means in terms of the messages that were put into the store."""

    def __init__(self, root: Path, golden: Path, name: str, planted: Planted | None, state: dict[str, Any]) -> None:
        self.state = state
        self.planted = planted
        # By log offset and size; an inner batch has several places. Whether a harmed one counts hangs on which of its bytes are left.
        self._whole, harmed = whole_messages(root, golden, name)
        self._harmed_at = list(harmed)  # log offsets
        self.harmed = {place for places in harmed.values() for place in places}

    def spans(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in self.state["queues"] if q["max"] > 0}

    def lost(self) -> set[Place]:
        """Messages whole in the log as found that no pull at any offset brings; light queues that list them too do not count."""
        queues = (queue for queue in self.state["queues"] if not queue["topic"].startswith(paths.LMQ_PREFIX))
        served = {(at, size) for queue in queues for at, size in queue["servedSingly"]}
        return {place for record, places in self._whole.items() if record not in served for place in places}

    def claimed(self, store: Store) -> set[Place]:
        """Places that harmed records tell as their own now: of these is known only that they were no messages of their own."""
        found = (read_message(store.log, at) for at in self._harmed_at)
        return {place for each in found if each is not None for place in _of_batch(each)}

    def tells_of(self, kind: str, phy_offset: int, size_bytes: int) -> bool:
        """Whether what a ghost leads to is whole; what comes of an old entry to a harmed record hangs on the bytes that are left."""
        return kind == "record" or (phy_offset, size_bytes) in self._whole

    def ghosts(self, planted: Planted) -> Iterator[tuple[str, str, int, int, int, int]]:
        end = self.state["maxPhyOffset"]
        for at, message in planted.records:
            if at < end:
                place = (message["topic"], message["queueId"], message["queueOffset"])
                yield ("record", *place, at, message["storeSize"])
        entries = {(q["topic"], q["queueId"], *e[:3]) for q in self.state["queues"] for e in q.get("entries", [])}
        served = {(q["topic"], q["queueId"], *s) for q in self.state["queues"] for s in q["servedSingly"]}
        for entry in planted.entries:
            if entry in entries and (*entry[:2], *entry[3:]) in served and self.tells_of("entry", *entry[3:]):
                yield ("entry", *entry)

    def in_further_files(self) -> set[tuple[int, int, int]]:
        """Entries of delayed messages of which another file tells whether they have a delivery time, which nobody reads here."""
        return {
            (queue["queueId"], number, at)
            for queue in self.state["queues"]
            if queue["topic"] == paths.SCHEDULE_TOPIC
            for number, at, _, tags, *_ in queue.get("entries", [])
            if queue_layout.is_ext_address(tags)
        }

    def delivered_early(self, store: Store) -> list[tuple[int, int, int]]:
        """New entries of delayed messages without a delivery time, from where the delay service goes on."""
        progress = read_config(store, DELAY_PROGRESS).value or {}
        done = progress.get("offsetTable", {})
        return [
            (queue["queueId"], number, at)
            for queue in self.state["queues"]
            if queue["topic"] == paths.SCHEDULE_TOPIC
            for number, at, size, tags, *_ in queue.get("entries", [])
            if tags < _LEAST_TIME_MS and not queue_layout.is_ext_address(tags) and size < queue_layout.FILLER_SIZE_BYTES
            if number >= done.get(queue["queueId"] + 1, 0)
            if queue_entry_at(store, QueueKey(queue["topic"], queue["queueId"]), number) != (at, size, tags)
        ]
