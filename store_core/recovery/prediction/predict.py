"""Predict what a broker's next start does to a store, for one release or for all that may have written it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from store_core.broker.config_load import DELAY_PROGRESS, read_config
from store_core.broker.detect_version import Evidence, evidence_of
from store_core.broker.dispatch import EarlyDelivery
from store_core.broker.load import reads_config_alike
from store_core.broker.start import Start, start_broker
from store_core.broker.versions import Behaviour, Version, Watched, groups_of
from store_core.layout import paths
from store_core.recovery.prediction.loss_book import LossBook
from store_core.recovery.prediction.outcome import Outcome, QueueSpan
from store_core.recovery.prediction.resurrected_records import ResurrectionSearch
from store_core.recovery.prediction.start_loss import losses, mark_of
from store_core.storage.buffers import give_freed_memory_back
from store_core.storage.store import QueueKey, Store

Progress = Callable[[int], None]
Books = dict[bytes, LossBook]  # by the mark of the start
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
