"""Predict what a broker's next start does to a store, for one release or for all that may have written it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.config_load import DELAY_PROGRESS, read_config
from store_core.broker.detect_version import Evidence, evidence_of
from store_core.broker.dispatch import EarlyDelivery
from store_core.broker.load import reads_config_alike
from store_core.broker.start import Start, start_broker
from store_core.broker.versions import Behaviour, Version, Watched, behaviour_of, groups_of
from store_core.codec.record import RecordError, decode_record
from store_core.codec.text import decode_text
from store_core.layout import paths, record
from store_core.layout.queue import ENTRY
from store_core.recovery.prediction.loss_book import LossBook
from store_core.recovery.prediction.outcome import Outcome, QueueSpan, ResurrectedRecord
from store_core.recovery.prediction.start_loss import losses, mark_of
from store_core.storage.buffers import give_freed_memory_back
from store_core.storage.scratch import lay_out_links, scratch_folder
from store_core.storage.store import QueueKey, Store

if TYPE_CHECKING:
    from store_core.broker.start import Start
    from store_core.recovery.derived_files import DerivedChanges
    from store_core.recovery.log_edits import EditedLog
    from store_core.scan.frames import FrameTable


Progress = Callable[[int], None]
Books = dict[bytes, LossBook]  # by the mark of the start
MOST_GHOSTS: Final = 1000
_CONFIG_READERS: Final = frozenset({"config_reader", "config_members"})


@dataclass(frozen=True, slots=True)
class OtherOutcome:
    """A different outcome, of releases that are possible but not assumed."""

    versions: tuple[Version, ...]
    outcome: Outcome

    def as_json(self) -> dict[str, Any]:
        return {"versions": [str(version) for version in self.versions], "outcome": self.outcome.as_json()}


@dataclass(frozen=True, slots=True)
class Prediction:
    """The ``outcome`` of the ``assumed`` release, and ``others`` that differ from it.

    ``notes``: conditions outside the store that the outcome depends on, and other changes that the start makes.
    """

    outcome: Outcome
    assumed: Version
    evidence: Evidence
    others: tuple[OtherOutcome, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def broker_version(self) -> dict[str, Any]:
        """The ``broker_version`` member of the command line's JSON."""
        return {"assumed": str(self.assumed), **self.evidence.as_json()}

    def as_json(self) -> dict[str, Any]:
        """Return ``broker_version``, ``prediction``, other predictions and notes as JSON members."""
        return {
            "broker_version": self.broker_version,
            "prediction": self.outcome.as_json(),
            "other_predictions": [other.as_json() for other in self.others],
            "notes": list(self.notes),
        }


def predict(store: Store, version: Version | None = None, *, on_progress: Progress | None = None) -> Prediction:
    """Simulate the next start; read the log that the broker would read, and the queue files.

    Without ``version`` (or one in the store's settings) the store's own evidence decides. If it leaves several releases that
    behave differently here, the worst outcome is assumed: a failed start, then most messages lost.

    Args:
        on_progress: gets the bytes of the log scanned so far.

    Raises:
        FailedError: the queues are in RocksDB, or a file cannot be read.
        UsageError: the version is unknown.
    """
    if version is None and store.settings.broker_version:
        version = Version.parse(store.settings.broker_version)
    if version is not None:
        evidence = Evidence((version,), ("given",))
    else:
        evidence = evidence_of(store)
    simulated: list[tuple[tuple[Version, ...], Outcome, list[str]]] = []
    starts: list[tuple[Watched, Outcome, list[str]]] = []
    groups = groups_of(evidence.possible)
    books: Books | None = {} if len(groups) > 1 else None  # a single start has no use for them
    for behaviour, versions in groups:
        start = next((start for start in starts if _takes_same_path(store, start[0], behaviour)), None)
        if start is None:
            watched = Watched(behaviour)
            found = outcome_of(store, watched.behaviour, on_progress=on_progress, books=books)
            start = watched, *found
            starts.append(start)
        simulated.append((versions, *start[1:]))
    worst = max(simulated, key=lambda p: (_badness(p[1]), p[0][-1]))
    same_versions = tuple(v for versions, outcome, _ in simulated if outcome == worst[1] for v in versions)
    others = [OtherOutcome(versions, outcome) for versions, outcome, _ in simulated if outcome != worst[1]]
    return Prediction(worst[1], max(same_versions), evidence, _joined(others), tuple(worst[2]))


def _takes_same_path(store: Store, start: Watched, behaviour: Behaviour) -> bool:
    """Return True if a release has the same values of all fields that a simulated start read, and so takes its path.

    A start reads the config readers for every file, so different ones count only if they read a file differently.
    """
    differing = start.answered_otherwise(behaviour)
    return differing <= _CONFIG_READERS and (not differing or reads_config_alike(store, start.behaviour, behaviour))


def outcome_of(
    store: Store,
    behaviour: Behaviour,
    *,
    on_progress: Progress | None = None,
    books: Books | None = None,
) -> tuple[Outcome, list[str]]:
    """Return the outcome for releases with this behaviour, and notes as in ``Prediction``.

    ``books``: the losses of earlier simulated starts on this store; those of this start are added.
    """
    hunt = ResurrectionSearch(store)
    with start_broker(store, behaviour, on_table=hunt.look_at, on_progress=on_progress) as start:
        outcome = outcome_of_start(store, start, hunt, on_progress=on_progress, books=books)
    give_freed_memory_back()  # a start that dispatches leaves much of it
    deleted = [f"a broker deletes {name}, which it cannot read" for name in start.loaded.deleted_config_files]
    return outcome, [*deleted, *start.log.notes]


def outcome_of_start(
    store: Store,
    start: Start,
    hunt: ResurrectionSearch,
    *,
    on_progress: Progress | None = None,
    books: Books | None = None,
) -> Outcome:
    """Return the outcome of a start whose tables ``hunt`` has seen; ``books`` as for ``outcome_of``."""
    recovery = "abnormal" if store.aborted else "normal"
    if start.refusal and not start.ends_cut:
        return Outcome(False, start.refusal, recovery=recovery, first_file_scanned=start.log.first_file_scanned)
    mark = mark_of(start) if books is not None else None
    book = books.get(mark) if books is not None and mark is not None else None
    if book is None:
        book = losses(store, start, on_progress=on_progress)
        if books is not None and mark is not None:
            books[mark] = book
    index = start.loaded.index
    return Outcome(
        starts=not start.refusal,
        reason=start.refusal,
        queue_error=start.dispatcher.failed if start.dispatcher is not None else "",
        recovery=recovery,
        first_file_scanned=start.log.first_file_scanned,
        max_phy_offset=start.log.max_phy_offset,
        min_phy_offset=start.log.min_phy_offset,
        commitlog_files=tuple(segment.name for segment in start.log.segments),
        deleted_commitlog_files=(*start.log.deleted, *start.loaded.deleted_segments),
        index_files=tuple(file.name for file in index.files if file.name is not None),
        deleted_index_files=tuple(index.deleted),
        index_rebuilt=index.entries_added > 0,
        queues=_spans(start),
        lost_messages=book.messages,
        lost=(lost := book.runs()),
        thrown_away_messages=book.readable.messages,
        thrown_away=lost if book.readable is book else book.readable.runs(),
        delivered_early=_delivered_early(store, start),
        ghosts=hunt.found(start),
    )


def _spans(start: Start) -> dict[str, dict[int, QueueSpan]]:
    """Return the queues by topic and queue id, without empty ones."""
    spans: dict[str, dict[int, QueueSpan]] = {}
    for queue in start.queues:
        if queue.max_offset > 0:
            spans.setdefault(queue.key.topic, {})[queue.key.queue_id] = QueueSpan(queue.min_offset, queue.max_offset)
    return spans


def _delivered_early(store: Store, start: Start) -> tuple[EarlyDelivery, ...]:
    """Return the delayed messages without a delivery time that the delay service has not passed yet (12.3)."""
    early = start.dispatcher.early if start.dispatcher else []
    progress = read_config(store, DELAY_PROGRESS, start.behaviour).value if early else None
    table = progress.get("offsetTable") if isinstance(progress, dict) else None
    done = table if isinstance(table, dict) else {}

    def next_offset(queue_id: int) -> int:
        number = done.get(queue_id + 1, done.get(str(queue_id + 1), 0))
        return number if isinstance(number, int) else 0

    ends = {queue.key: queue.max_offset for queue in start.queues} if early else {}  # some entries were cut off again
    return tuple(
        message
        for message in early
        if next_offset(message.queue_id)
        <= message.queue_offset
        < ends.get(QueueKey(paths.SCHEDULE_TOPIC, message.queue_id), 0)
    )


def _badness(outcome: Outcome) -> tuple[bool, bool, int, int, int]:
    return (
        not outcome.starts,
        bool(outcome.queue_error),
        outcome.lost_messages,
        len(outcome.delivered_early),
        len(outcome.ghosts),
    )


def _joined(others: list[OtherOutcome]) -> tuple[OtherOutcome, ...]:
    """Join the releases with equal outcomes."""
    joined: list[OtherOutcome] = []
    for other in others:
        for place, known in enumerate(joined):
            if known.outcome == other.outcome:
                joined[place] = OtherOutcome((*known.versions, *other.versions), known.outcome)
                break
        else:
            joined.append(other)
    return tuple(joined)


# -- after a plan ---------------------------------------------------------------------------------------------------


@contextmanager
def store_after_plan(
    store: Store,
    edited: EditedLog | None,
    changes: Collection[DerivedChanges] = (),
    files: Mapping[str, bytes] | None = None,
    removed: Collection[str] = (),
) -> Iterator[Store]:
    """Yield the planned store. ``files`` are small new files; ``edited`` None: the log stays as it is."""
    new = {file.path: file.read for change in changes for file in change.new}
    for name, data in (files or {}).items():
        new[name] = partial(iter, (data,))
    removed_paths = {*removed, *(path for change in changes for path in (*change.removed, *change.removed_folders))}
    left_out = (paths.COMMITLOG,) if edited is not None else ()
    with scratch_folder() as scratch:
        root = lay_out_links(store.root, scratch, new=new, removed=removed_paths, left_out=left_out)
        with Store(replace(store.settings, root=root)) as shadow:
            shadow.__dict__["log"] = store.log if edited is None else edited.log
            yield shadow


def start_after(
    store: Store,
    assumed: Version,
    edited: EditedLog | None,
    changes: Collection[DerivedChanges] = (),
    files: Mapping[str, bytes] | None = None,
    removed: Collection[str] = (),
    *,
    is_whole: bool = True,
    version: Version | None = None,
    on_progress: Progress | None = None,
) -> tuple[Outcome, Version]:
    """Return the outcome of a start on the planned store, with its release: the assumed one if the log ``is_whole``.

    If it is not whole, releases differ again: as in ``predict``, the outcome is that of ``version`` if given, else the worst of
    the possible releases. ``on_progress`` gets the bytes of the log scanned so far.
    """
    with store_after_plan(store, edited, changes, files, removed) as shadow:
        if is_whole:
            return outcome_of(shadow, behaviour_of(assumed), on_progress=on_progress)[0], assumed
        prediction = predict(shadow, version, on_progress=on_progress)
        return prediction.outcome, prediction.assumed


# -- old records and entries that a start takes for new ones (3.6) ---------------------------------------------------


@dataclass(slots=True)
class ResurrectionSearch:
    """Collects resurrected records from all tables that a recovery accepts, at most ``MOST_GHOSTS`` of each kind."""

    store: Store
    _records: list[ResurrectedRecord] = field(default_factory=list)

    def look_at(self, table: FrameTable) -> None:
        """Add records whose own offset is lower than their position, and which have no queue entry."""
        for row in np.flatnonzero(table.own_phy_offset < table.phy_offset):
            if len(self._records) >= MOST_GHOSTS:
                return
            ghost = ResurrectedRecord(
                "record",
                decode_text(table.topic(int(row))),
                int(table.queue_id[row]),
                int(table.queue_offset[row]),
                int(table.phy_offset[row]),
                int(table.size_bytes[row]),
            )
            if not self._has_entry(ghost):
                self._records.append(ghost)

    def _has_entry(self, ghost: ResurrectedRecord) -> bool:
        queue = self.store.queue(ghost.topic, ghost.queue_id)
        data = queue.read(ghost.queue_offset * ENTRY.size_bytes, ENTRY.size_bytes) if queue is not None else b""
        return len(data) == ENTRY.size_bytes and ENTRY.read(data)["phy_offset"] == ghost.phy_offset

    def found(self, start: Start) -> tuple[ResurrectedRecord, ...]:
        """Return the resurrected records that the start keeps, then the resurrected entries."""
        kept = [ghost for ghost in self._records if ghost.phy_offset < start.log.max_phy_offset]
        return (*kept, *self._entries(start)[:MOST_GHOSTS])

    def _entries(self, start: Start) -> list[ResurrectedRecord]:
        """Return entries that point to a lower offset than their predecessor, to a record with a lower queue offset."""
        ghosts = []
        for queue in start.queues:
            if isinstance(queue, BatchQueueState) or queue.key.topic.startswith(paths.LMQ_PREFIX):
                continue
            for number in queue.falling:
                if not queue.min_offset <= number < queue.max_offset:
                    continue
                at = number * queue.entry_size_bytes
                entry = queue.entries(at, at + queue.entry_size_bytes)[0]
                ghost = ResurrectedRecord(
                    "entry", *queue.key, number, int(entry["phy_offset"]), int(entry["size_bytes"])
                )
                if ghost.phy_offset < start.log.max_phy_offset and self._points_back(ghost):
                    ghosts.append(ghost)
        return ghosts

    def _points_back(self, ghost: ResurrectedRecord) -> bool:
        if not record.MIN_RECORD_SIZE_BYTES <= ghost.size_bytes <= record.MAX_RECORD_SIZE_BYTES:
            return False
        data = self.store.log.read(ghost.phy_offset, ghost.size_bytes)
        try:
            message = decode_record(data, 0, ghost.phy_offset)
        except RecordError:
            return False
        place = (message.topic, message.queue_id)
        return place == (ghost.topic, ghost.queue_id) and message.queue_offset < ghost.queue_offset
