"""Build the loss report of a recovery or a prediction from one walk over the log, queues and config files."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store_core.findings import Finding
from store_core.layout import paths, record
from store_core.read.transactions import check_progress
from store_core.recovery.loss_report.affected import (
    HalfTracker,
    Offsets,
    affected_groups,
    delayed_losses,
    early_deliveries,
    half_messages,
    still_open,
)
from store_core.recovery.loss_report.log_strips import LogMapper, is_bad
from store_core.recovery.loss_report.loss_times import Places, RunTimes, Stretches, places_of
from store_core.recovery.loss_report.model import (
    BrokerStart,
    HalfMessages,
    Kept,
    Loss,
    LossReport,
    LostRange,
    QueueLoss,
    StoreIdentity,
    TimeSpan,
)
from store_core.recovery.losses import losses_predicted
from store_core.recovery.lost_record import LostRun
from store_core.recovery.prediction.predict import Prediction
from store_core.recovery.recover import Recovery
from store_core.scan.frames import FrameTable
from store_core.scan.log import scan_log
from store_core.storage.config_files import ConfigFiles, offset_table, read_config
from store_core.storage.store import Store


def identity_of(store: Store) -> StoreIdentity:
    """Return path, size and a digest over the list of files; files outside the root are listed with full paths."""
    digest, files, size_bytes = hashlib.sha256(), 0, 0
    for name, info in _files_of(store):
        digest.update(os.fsencode(f"{name}\t{info.st_size}\t{info.st_mtime_ns}\n"))
        files += 1
        size_bytes += info.st_size
    return StoreIdentity(str(store.root), files, size_bytes, digest.hexdigest())


def _files_of(store: Store) -> Iterator[tuple[str, os.stat_result]]:
    for root in (store.root, *sorted(store.settings.outside_paths)):
        for folder, folders, names in os.walk(root):
            if folder == str(store.root) and paths.OURS in folders:
                folders.remove(paths.OURS)
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                try:
                    yield store.relative(path), path.lstat()
                except OSError:  # a broker may have removed it since
                    continue


Progress = Callable[[int], None]
_MOST_NOTES: Final = 20


def loss_report(
    store: Store,
    found: Recovery | Prediction,
    *,
    made_timestamp_ms: int,
    on_progress: Progress | None = None,
) -> LossReport:
    """Build the loss report of the store as it is, so before the plan is applied. The store is only read.

    ``found`` is the result of ``recover`` or ``predict`` for this very store. Memory grows with the number of lost runs,
    damaged ranges and segments.

    Raises:
        FailedError: a segment cannot be read.
    """
    recovery = found if isinstance(found, Recovery) else None
    prediction = found.prediction if isinstance(found, Recovery) else found
    walk = _Walk(store, prediction, recovery)
    for table in scan_log(store, on_progress=on_progress):
        walk.add(table)
    return _Report(store, prediction, recovery, walk).made(made_timestamp_ms)


class _Walk:
    """The data that one walk over the log collects."""

    def __init__(self, store: Store, prediction: Prediction, recovery: Recovery | None) -> None:
        outcome = prediction.outcome
        cut = outcome.max_phy_offset if outcome.starts else None
        self.map = LogMapper(store)
        self.stretches = Stretches()
        self.lost_places = Places()
        runs = [outcome.lost] if outcome.thrown_away == outcome.lost else [outcome.lost, outcome.thrown_away]
        self.cut_runs = [RunTimes(lost_runs, lambda table: _from_cut(table, cut)) for lost_runs in runs]
        self.other_runs = [RunTimes(lost_runs, lambda table: ~_from_cut(table, cut)) for lost_runs in runs]
        kept_runs = recovery.lost if recovery is not None else ()
        self.run_places = places_of(store, kept_runs, self.lost_places)
        self.kept_runs = RunTimes(kept_runs, is_bad, neighbours=True, places=self.lost_places)
        self.halves = HalfTracker()
        self.cut_halves = HalfTracker(end_phy_offset=cut)
        self.messages = 0
        self.first_timestamp_ms: int | None = None
        self.last_timestamp_ms: int | None = None

    def add(self, table: FrameTable) -> None:
        self.map.add(table)
        self.stretches.add(table)
        for runs in (*self.cut_runs, *self.other_runs, self.kept_runs):
            runs.add(table)
        self.halves.add(table)
        self.cut_halves.add(table)
        good = np.flatnonzero(table.messages & ~is_bad(table))
        kind = table.sys_flag[good] & record.TRANSACTION_MASK
        self.messages += int(np.count_nonzero((kind == record.TRANSACTION_NONE) | (kind == record.TRANSACTION_COMMIT)))
        if len(good):
            if self.first_timestamp_ms is None:
                self.first_timestamp_ms = int(table.store_timestamp_ms[good[0]])
            self.last_timestamp_ms = int(table.store_timestamp_ms[good[-1]])

    def broker_spans(self) -> Mapping[LostRun, TimeSpan]:
        """Return the times of lost runs, from messages after the cut if there are any.

        Messages before the cut may be of an older generation of the topic, which has the same queue offsets.
        """
        return {run: span for runs in (*self.other_runs, *self.cut_runs) for run, span in runs.own_spans().items()}

    def kept_spans(self) -> Mapping[LostRun, TimeSpan]:
        """Return the times of lost runs: from the records' heads, else from neighbours in the log, else in the queue."""
        spans = self.kept_runs.between_neighbours()
        for run, place in self.run_places.items():
            around = self.stretches.around(place.first_phy_offset, place.last_phy_offset)
            if around.time_from is not None:
                spans[run] = _closed_by(around, spans.get(run, TimeSpan()))
        for run, own in self.kept_runs.own_spans().items():
            spans[run] = own if run.messages == 1 else _span_over((own, spans[run]))
        return spans


def _from_cut(table: FrameTable, cut: int | None) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = table.phy_offset >= (cut or 0)
    return mask


@dataclass(frozen=True, slots=True)
class _Report:
    store: Store
    prediction: Prediction
    recovery: Recovery | None
    walk: _Walk

    def made(self, made_timestamp_ms: int) -> LossReport:
        config = read_config(self.store.root)
        broker, kept = self._broker(config), self._kept(config)
        outcome = self.prediction.outcome
        strips = self.walk.map.strips(
            self.walk.lost_places.merged(),
            outcome.max_phy_offset if outcome.starts else None,
            outcome.deleted_commitlog_files,
        )
        return LossReport(
            made_timestamp_ms,
            identity_of(self.store),
            self.prediction.broker_version,
            "crash" if self.store.aborted else "clean",
            self.walk.messages,
            self.walk.first_timestamp_ms,
            self.walk.last_timestamp_ms,
            broker,
            kept,
            self.recovery.losses if self.recovery is not None else losses_predicted(self.store, outcome),
            tuple(strips),
            _count_by_code(self.recovery.findings if self.recovery else ()),
            (*self.prediction.notes, *(self.recovery.notes if self.recovery else ()))[:_MOST_NOTES],
        )

    def _broker(self, config: ConfigFiles) -> BrokerStart:
        outcome = self.prediction.outcome
        loss = thrown_away = None
        if outcome.starts:
            loss = self._broker_loss(outcome.lost_messages, outcome.lost, config)
            thrown_away = self._broker_loss(outcome.thrown_away_messages, outcome.thrown_away, config)
        return BrokerStart(
            outcome.starts,
            outcome.reason,
            outcome.recovery,
            outcome.first_file_scanned,
            outcome.min_phy_offset,
            outcome.max_phy_offset,
            outcome.deleted_commitlog_files,
            outcome.deleted_index_files,
            len(outcome.ghosts),
            loss,
            thrown_away,
        )

    def _broker_loss(self, messages: int, runs: Iterable[LostRun], config: ConfigFiles) -> Loss:
        outcome = self.prediction.outcome
        queues = _queue_losses(runs, self.walk.broker_spans())
        return Loss(
            messages,
            queues,
            0,
            0,
            affected_groups(queues, _offsets(config), outcome.queues),
            self._halves(queues, config, is_cut=True),
            delayed_losses(queues, config),
            early_deliveries(outcome.delivered_early),
        )

    def _kept(self, config: ConfigFiles) -> Kept | None:
        recovery = self.recovery
        if recovery is None:
            return None
        queues = _queue_losses(recovery.lost, self.walk.kept_spans())
        unknown = [run for run in recovery.lost if run.messages is None]
        lost_messages = sum(queue.messages for queue in queues)
        is_cut = recovery.plan.policy == "broker"
        loss = Loss(
            lost_messages,
            queues,
            len(unknown),
            sum(run.size_bytes for run in unknown),
            affected_groups(queues, _offsets(config), recovery.after.queues),
            self._halves(queues, config, is_cut=is_cut),
            delayed_losses(queues, config),
            given_up_messages=sum(run.messages or 0 for run in recovery.given_up),
        )
        return Kept(
            recovery.plan.policy or "keep",
            recovery.plan.id,
            len(recovery.plan.steps),
            recovery.after.max_phy_offset,
            recovery.kept_messages,
            recovery.after.starts,
            recovery.after.lost_messages,
            loss,
        )

    def _halves(self, queues: Sequence[QueueLoss], config: ConfigFiles, *, is_cut: bool) -> HalfMessages:
        progress = check_progress(_offsets(config))
        undecided = self.walk.halves.undecided(self.store.log)
        open_now = still_open(undecided, progress)
        passed = frozenset(undecided) - open_now
        if is_cut:
            undecided = self.walk.cut_halves.undecided(self.store.log)
        return half_messages(
            undecided,
            open_now,
            passed,
            progress,
            lost_messages=_of_topic(queues, paths.HALF_TOPIC),
            lost_operations=_of_topic(queues, paths.OP_TOPIC),
        )


def _offsets(config: ConfigFiles) -> Offsets:
    return offset_table(config)


def _of_topic(queues: Iterable[QueueLoss], topic: str) -> int:
    return sum(queue.messages for queue in queues if queue.topic == topic)


def _queue_losses(runs: Iterable[LostRun], spans: Mapping[LostRun, TimeSpan]) -> tuple[QueueLoss, ...]:
    by_queue: dict[tuple[str, int], list[LostRange]] = {}
    for run in runs:
        if run.topic is None or run.queue_id is None or run.first_queue_offset is None or run.last_queue_offset is None:
            continue
        lost = LostRange(
            run.first_queue_offset,
            run.last_queue_offset,
            run.messages or 0,
            run.size_bytes,
            spans.get(run, TimeSpan()),
            run.keys,
        )
        by_queue.setdefault((run.topic, run.queue_id), []).append(lost)
    return tuple(
        QueueLoss(topic, queue_id, tuple(ranges), _span_over([lost.span for lost in ranges]))
        for (topic, queue_id), found in sorted(by_queue.items())
        for ranges in (sorted(found, key=lambda lost: lost.first_queue_offset),)
    )


def _span_over(spans: Sequence[TimeSpan]) -> TimeSpan:
    """Return the span over all spans; an end is open if it is open in one of them.

    Its times are the records' own if those of all spans are.
    """
    firsts = [span.first_timestamp_ms for span in spans]
    lasts = [span.last_timestamp_ms for span in spans]
    first = min((t for t in firsts if t is not None), default=None) if None not in firsts else None
    last = max((t for t in lasts if t is not None), default=None) if None not in lasts else None
    if first is None and last is None:
        return TimeSpan()
    own = all(span.time_from == "records" for span in spans)
    return TimeSpan(first, last, "records" if own else "neighbours")


def _closed_by(span: TimeSpan, other: TimeSpan) -> TimeSpan:
    """Return ``span``, with open ends taken from ``other``."""
    first = other.first_timestamp_ms if span.first_timestamp_ms is None else span.first_timestamp_ms
    last = other.last_timestamp_ms if span.last_timestamp_ms is None else span.last_timestamp_ms
    return TimeSpan(first, last, span.time_from)


def _count_by_code(findings: Iterable[Finding]) -> dict[str, int]:
    return dict(sorted(Counter(f.code for f in findings if f.severity != "info").items()))
