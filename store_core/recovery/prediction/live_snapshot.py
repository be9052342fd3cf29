"""Show a live store as a crash at one moment would leave it, while a broker continues to write.

A simulated start reads log and queues one after the other, and messages that arrive in between would seem lost. So the
ends of the queues are read first, then the end of the log, and later bytes are read as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from store_core.check.live_check import first_phy_offset_now, store_now
from store_core.errors import FailedError
from store_core.kernel.codes import FrameKind
from store_core.layout import index, paths
from store_core.layout.queue import BATCH_ENTRY, ENTRY
from store_core.read.queue import end_of_entries
from store_core.read.records import read_message
from store_core.scan.log import ScanOptions, scan_log
from store_core.storage.overlay import OverlayCache, Patch, read_through, zeros_after
from store_core.storage.remote_path import is_there
from store_core.storage.sequence import SegmentSequence
from store_core.storage.store import Store

Played = TypeVar("Played")

_MOST_MOMENTS: Final = 3


class _Snapshot(Store):
    """A store whose parts are listed already, and read through one cache."""

    _LISTED: Final = ("queues", "batch_queues", "ext_queues", "_index_entries", "index_files")

    def with_log(self, log: SegmentSequence) -> Store:
        view = _Snapshot(self.settings)
        view.cache = self.cache.apart()
        view.__dict__.update({name: self.__dict__[name] for name in self._LISTED}, log=log)
        return view


@contextmanager
def live_snapshot(store: Store) -> Iterator[Store]:
    """Yield a store, to which another process writes, as it is now. Raises FailedError if it cannot be read."""
    with store_now(store) as now, _Snapshot(store.settings) as view:
        shown, sizes = _small_parts(now)
        beneath: dict[Path, Patch] = {}
        for tree, entry in ((now.queues, ENTRY), (now.batch_queues, BATCH_ENTRY)):
            for files in tree.values():
                beneath |= zeros_after(files, _used_end(files, entry.size_bytes))
        beneath |= zeros_after(now.log, _log_end(now))
        sizes |= {path: patch.end for path, patch in beneath.items()}
        view.cache = OverlayCache(shown, sizes, beneath)
        for name in ("queues", "batch_queues", "ext_queues"):
            listed = getattr(now, name)
            view.__dict__[name] = {key: read_through(files, view.cache) for key, files in listed.items()}
        view.__dict__.update(
            log=read_through(now.log, view.cache),
            index_files=now.index_files,
            _index_entries=now.__dict__["_index_entries"],
        )
        yield view


def _small_parts(store: Store) -> tuple[dict[Path, list[Patch]], dict[Path, int]]:
    """Return the present bytes and the sizes of the checkpoint and of the index files' headers, which count the entries."""
    shown: dict[Path, list[Patch]] = {}
    sizes: dict[Path, int] = {}
    checkpoint = store.root / paths.CHECKPOINT
    for path in (checkpoint, *store.index_files):
        size = path.stat().st_size if is_there(path) and path.is_file() else 0
        wanted_bytes = size if path == checkpoint else index.HEADER.size_bytes
        if data := store.cache.read(path, 0, min(size, wanted_bytes)) if size else b"":
            shown[path], sizes[path] = [Patch(0, len(data), ((0, data),))], size
    return shown, sizes


@contextmanager
def predict_live(
    store: Store, play: Callable[[Store, ExitStack], Played], loses: Callable[[Played], bool]
) -> Iterator[tuple[Store, Played]]:
    """Yield a snapshot of a live store and the result of ``play`` on it.

    ``play`` puts what it opens on the stack. It is called again with a later snapshot if the broker has deleted files of
    this one meanwhile, and ``play`` fails or ``loses`` is true of its result.
    """
    for attempts_left in reversed(range(_MOST_MOMENTS)):
        with live_snapshot(store) as view, ExitStack() as stack:
            try:
                played = play(view, stack)
            except FailedError:
                if not attempts_left or not _has_expired_since(view):
                    raise
                continue
            if not attempts_left or not loses(played) or not _has_expired_since(view):
                yield view, played
                return
            del played


def _has_expired_since(view: Store) -> bool:
    """Return True if files of the log, of queues or of the index have been deleted since the snapshot."""
    if first_phy_offset_now(view) > view.log.min_phy_offset:
        return True
    queues = chain(view.queues.values(), view.batch_queues.values(), view.ext_queues.values())
    oldest = (files.segments[0].path for files in queues if files.segments)
    return not all(map(is_there, chain(view.index_files, oldest)))


def _used_end(files: SegmentSequence, unit_bytes: int) -> int:
    """Return the end of the last unit that is not zero, complete or not. ``unit_bytes``: size of a unit."""
    for segment in reversed(files.segments):
        used = files.used_end(segment.phy_offset)
        if used > segment.phy_offset:
            return min(-(-used // unit_bytes) * unit_bytes, segment.end_phy_offset)
    return files.min_phy_offset


def _log_end(store: Store) -> int:
    """Return the end of the log's last record, or of the bytes at its end that are no record."""
    used = _used_end(store.log, 1)
    begin = _last_dispatched(store)
    options = ScanOptions(check_crc=False, properties=False)
    for table in scan_log(store, from_phy_offset=begin, options=options):
        ends = table.phy_offset + table.size_bytes
        is_frame = table.messages | table.of_kind(FrameKind.BLANK)
        holds = is_frame & (table.phy_offset < used) & (ends > used)
        if holds.any():
            return int(ends[np.flatnonzero(holds)[0]])
        if len(table) and int(table.phy_offset[-1]) >= used:
            break
    return used


def _last_dispatched(store: Store) -> int | None:
    """Return the offset of the newest record that a queue's last entry points to; None without one."""
    newest: list[int] = []
    for files in store.queues.values():
        end = end_of_entries(files, ENTRY)
        data = files.read(end - ENTRY.size_bytes, ENTRY.size_bytes)
        newest += [ENTRY.read(data)["phy_offset"]] if end and len(data) == ENTRY.size_bytes else []
    return next((at for at in sorted(newest, reverse=True) if read_message(store.log, at) is not None), None)
