"""Predict a broker's start on a store after a plan, by a simulated start on a shadow of links."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

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
