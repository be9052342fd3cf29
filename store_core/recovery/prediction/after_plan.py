"""What a broker makes of a store once a plan is carried out: its start is played through on a shadow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from store_core.broker.checked_ranges import CheckedRanges
from store_core.broker.entry_runs import EntryRuns
from store_core.broker.versions import Version, behaviour_of
from store_core.layout import paths
from store_core.recovery.derived_files import DerivedChanges, Progress
from store_core.recovery.log_edits import EditedLog
from store_core.recovery.prediction.outcome import Outcome
from store_core.recovery.prediction.predict import outcome_of, predict
from store_core.storage.scratch import lay_out_links, scratch_folder
from store_core.storage.store import Store


@contextmanager
def store_after_plan(
    store: Store,
    edited: EditedLog | None,
    changes: Collection[DerivedChanges] = (),
    files: Mapping[str, bytes] | None = None,
    removed: Collection[str] = (),
) -> Iterator[Store]:
    """The store as it will be. ``files`` are small new files; ``edited`` None: the log stays as it is."""
    new = {file.path: file.read for change in changes for file in change.new}
    for name, data in (files or {}).items():
        new[name] = partial(iter, (data,))
    gone = {*removed, *(path for change in changes for path in (*change.removed, *change.removed_folders))}
    left_out = (paths.COMMITLOG,) if edited is not None else ()
    with scratch_folder() as scratch:
        root = lay_out_links(store.root, scratch, new=new, removed=gone, left_out=left_out)
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
    """OUTCOME of the assumed release's start on the store as it will be. ``on_progress`` is told the bytes of the log scanned so far.

    Where the log is not ``is_whole``, releases differ again: as ``predict`` does, it is the worst one's of those possible, or
    that of ``version``, if somebody has named one; it comes with the release that it is of.
    """
    with store_after_plan(store, edited, changes, files, removed) as shadow:
        if is_whole:
            proven = CheckedRanges(runs=EntryRuns(shadow.log.segments))
            return outcome_of(shadow, behaviour_of(assumed), on_progress=on_progress, proven=proven)[0], assumed
        prediction = predict(shadow, version, on_progress=on_progress)
        return prediction.outcome, prediction.assumed
