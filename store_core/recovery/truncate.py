"""Plan to cut the log at a record, with its queues, index, checkpoint and progress (command truncate)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from store_core.broker.load import batch_topics_of
from store_core.check.log_begin import log_begin
from store_core.derive.checkpoint import rebuilt_checkpoint
from store_core.errors import FailedError, UsageError
from store_core.layout import paths
from store_core.layout.checkpoint import FILE_SIZE_BYTES
from store_core.read.checkpoint import read_checkpoint
from store_core.read.log_files import refuse_missing_log
from store_core.recovery.damage_scan import LogSurvey, survey_log
from store_core.recovery.derived_files import Derivation, DerivedChanges, contents_of
from store_core.recovery.guards import refuse_foreign_store
from store_core.recovery.keep_steps import (
    add_derived,
    chunks_of,
    outside_roots,
    settings_arguments,
    store_of,
)
from store_core.recovery.log_edits import EditedLog, edited_log
from store_core.recovery.losses import Losses, Planned
from store_core.recovery.lost_config import lowered_progress
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Building, Built, Chunk, register_builder
from store_core.recovery.prediction.predict import predict, store_after_plan
from store_core.recovery.prediction.start_loss import losses_of_range
from store_core.scan.log import Progress, scan_log
from store_core.scan.walk_progress import WalkProgress
from store_core.storage.config_files import read_config
from store_core.storage.databases import runs_under_55
from store_core.storage.scratch import scratch_folder
from store_core.storage.store import Store

WALKS: Final = 2  # walks over the kept log: survey with derived files, predicted start
_BUILDER: Final = "truncate"


@dataclass(slots=True)
class _Cut:
    edited: EditedLog
    survey: LogSurvey
    derivation: Derivation
    queue_changes: DerivedChanges
    index_changes: DerivedChanges


def truncate(
    store: Store, phy_offset: int, *, keep: ExitStack | None = None, on_progress: Progress | None = None
) -> Planned:
    """Plan the cut at ``phy_offset``, which must be the start of a record, or the log's end.

    Args:
        keep: the built files can be read until this stack is closed.
        on_progress: gets the bytes walked so far in all WALKS.

    Raises:
        UsageError: the offset is no record boundary; the error names the nearest one below.
        FailedError: the log is damaged before the offset.
    """
    refuse_foreign_store(store)
    refuse_missing_log(store)
    assert_boundary(store, phy_offset)
    walks = WalkProgress(on_progress, phy_offset - store.log.min_phy_offset)
    with ExitStack() as own:
        cut = (own if keep is None else keep).enter_context(_cut(store, phy_offset, walks))
        draft = Draft(store.root, writable_roots=outside_roots(store))
        cut.edited.add_to(draft)
        built = Built(_BUILDER, {**settings_arguments(store.settings), "phy_offset": phy_offset})
        changes = (cut.queue_changes, cut.index_changes)
        for change in changes:
            add_derived(draft, change, built)
        files = {
            **_checkpoint(store, cut),
            **lowered_progress(store, cut.derivation.queue_ends(), read_config(store.root)),
        }
        for name, data in files.items():
            draft.write_file(name, data, why="nothing after the cut is promised")
        draft.depend_on_the_rest(*store.settings.outside_paths)
        with store_after_plan(store, cut.edited, changes, files) as shadow:
            after = predict(shadow, on_progress=walks.next()).outcome
        book = losses_of_range(store, phy_offset)
        readable = book.readable.messages
        losses = Losses(
            unreadable_messages=book.messages - readable, given_up_messages=readable, before_begin=log_begin(store)
        )
        plan, findings = draft.plan("truncate"), tuple(cut.derivation.findings)
        return Planned(plan, after, findings, book.runs(), contents_of(*changes), losses)


def assert_boundary(store: Store, phy_offset: int) -> None:
    """Raise UsageError if ``phy_offset`` is not the start or end of a record or of a file."""
    log = store.log
    segment = log.find(phy_offset)
    if segment is None:
        if log.find(phy_offset - 1) is not None:  # a file ends there, and the next one is missing
            return
        raise UsageError(
            f"{phy_offset} lies outside the log, which is {log.min_phy_offset} to {log.max_phy_offset}",
            to_do="name an offset inside",
        )
    below = segment.phy_offset
    for table in scan_log(store, from_phy_offset=segment.phy_offset, to_phy_offset=phy_offset + 1, check_crc=False):
        starts = table.phy_offset[table.messages]
        ends = (table.phy_offset + table.size_bytes)[table.messages]
        boundaries = np.union1d(starts, ends)
        if phy_offset in boundaries:
            return
        inside = boundaries[boundaries <= phy_offset]
        below = int(inside[-1]) if len(inside) else below
    if phy_offset == segment.phy_offset:
        return
    raise UsageError(f"no record starts at {phy_offset}", to_do=f"the nearest boundary below is {below}")


@contextmanager
def _cut(store: Store, phy_offset: int, walks: WalkProgress) -> Iterator[_Cut]:
    edited = edited_log(store, [], phy_offset, cut=True)
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        view = stack.enter_context(store.with_log(edited.log))
        derivation = stack.enter_context(
            Derivation(store, view, scratch, batch_topics=batch_topics_of(store), walks=False)
        )
        survey = survey_log(view, (derivation.add,), options=derivation.options, on_progress=walks.next())
        if survey.regions:
            first = survey.regions[0]
            raise FailedError(
                "the log is damaged before the cut",
                path=str(store.root),
                phy_offset=first.phy_offset,
                to_do=f"run `rmqctl recover` first, or cut at {first.phy_offset}",
            )
        derivation.finish()
        yield _Cut(edited, survey, derivation, derivation.queue_changes(), derivation.index_changes())


def _checkpoint(store: Store, cut: _Cut) -> dict[str, bytes]:
    """Return a new checkpoint if the present one is ahead of the cut log or damaged."""
    present, last = read_checkpoint(store.root), cut.survey.last_store_timestamp_ms
    full = cut.derivation.index_timestamp_ms(present.index_msg_timestamp_ms)
    ahead = (
        max(present.physic_msg_timestamp_ms, present.logics_msg_timestamp_ms) > last
        or present.index_msg_timestamp_ms > full
    )
    ahead |= max(present.confirm_phy_offset, present.logics_phy_offset) > cut.survey.last_phy_offset
    if not ahead and not present.findings:
        return {}
    existing = store.cache.read(store.root / paths.CHECKPOINT, 0, FILE_SIZE_BYTES) if not present.findings else b""
    data = rebuilt_checkpoint(
        existing,
        last_store_timestamp_ms=last,
        last_phy_offset=cut.survey.last_phy_offset,
        index_end_timestamp_ms=full,
        with_queue_offset=runs_under_55(store),
    )
    return {paths.CHECKPOINT: data}


def _build(building: Building) -> Iterator[Chunk]:
    arguments: Mapping[str, Any] = building.arguments
    with store_of(building) as store, _cut(store, arguments["phy_offset"], WalkProgress(None, 0)) as cut:
        yield from chunks_of([*cut.queue_changes.new, *cut.index_changes.new], set(building.paths))


register_builder(_BUILDER, _build)
