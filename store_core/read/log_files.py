"""Report parts of the log that are not read: missing folders, and other things under a segment's name (store format 1.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.findings import Finding, finding
from store_core.layout import paths
from store_core.storage.remote_path import RemotePath, names_of
from store_core.storage.sequence import Stray
from store_core.storage.store import Store

_NO_LOG: Final = "S007"
_LOG_IN_PART: Final = "S010"
_OF_THE_STORE: Final = "S"
_TRUE_WITHOUT_LOG: Final = ("S001", "S002", "S004")
LINK_TO_NOWHERE: Final = "a link that leads nowhere"


def missing_log(store: Store) -> Iterator[Finding]:
    """Yield S007 where there is no log file, unless the store never had a message; else S010 for each missing log folder.

    A broker makes a missing folder when it starts.
    """
    if not store.log.segments:
        if not is_new(store):
            yield finding("S007", "there is no log file", file=paths.COMMITLOG)
        return
    for folder in _missing_folders(store):
        yield finding("S010", "the log folder is not there, nor are the segments in it", file=store.relative(folder))


def advised(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in an order and with advice that fit a missing log.

    * No log at all (S007): only findings that do not depend on the log stay, without advice.
    * A log folder is missing (S010): all findings stay, but only those about the store keep their advice, since the disk must be mounted first.
    """
    found = list(findings)
    missing = [item for item in found if item.code == _NO_LOG]
    if missing:
        return [*missing, *(replace(item, advice="") for item in found if item.code in _TRUE_WITHOUT_LOG)]
    partial = [item for item in found if item.code == _LOG_IN_PART]
    if not partial:
        return found
    others = (item for item in found if item.code != _LOG_IN_PART)
    return [*partial, *(item if item.code[0] == _OF_THE_STORE else replace(item, advice="") for item in others)]


def is_new(store: Store) -> bool:
    """Return True if the store never had a message, as after a broker that ended before its first one.

    Such a store has a checkpoint of zeros, empty folders for the log, no index, no queue and no progress. If the log is lost, the checkpoint or the
    index prove it, even after a start without the log.
    """
    from store_core.read.checkpoint import Checkpoint, read_checkpoint  # a store with a log needs none of this
    from store_core.storage.config_files import offset_table, read_config

    if store.log.segments or _missing_folders(store) or any(map(names_of, store.settings.commitlog_paths)):
        return False
    if store.queues or store.batch_queues or store.queues_in_rocksdb or store.index_files:
        return False
    config = read_config(store.root)
    return read_checkpoint(store.root) == Checkpoint() and not config.findings and not offset_table(config)


def unread_log(store: Store) -> Iterator[Finding]:
    """Yield the findings of ``missing_log``, and L010 or L018 for other things with a segment's name."""
    yield from missing_log(store)
    for stray in store.log.strays:
        if paths.parse_segment_name(stray.path.name) is None or (
            stray.duplicate_of is not None and store.settings.copies
        ):
            continue
        code = "L010" if stray.duplicate_of is None else "L018"
        yield finding(
            code,
            f"not read: {describe_stray(store, stray)}",
            file=store.relative(stray.path),
            size_bytes=stray.size_bytes,
        )


def describe_stray(store: Store, stray: Stray) -> str:
    """Return a phrase that describes a stray of a log or of a queue."""
    path = stray.path
    if stray.duplicate_of is not None:
        return f"the same segment as {store.relative(stray.duplicate_of)}"
    if stray.is_folder:
        return "a folder"
    if isinstance(path, RemotePath) or path.is_file() or paths.parse_segment_name(path.name) is None:
        return "no segment's name"
    return LINK_TO_NOWHERE if path.is_symlink() and not path.exists() else "a pipe or a device"


def refuse_missing_log(store: Store) -> None:
    """Raise FailedError where there is no log file, but queues or index files exist."""
    if not store.log.segments and (store.queues or store.batch_queues or store.index_files):
        raise FailedError(
            "there is no log file, while queues or index files stand",
            path=", ".join(str(path) for path in store.settings.commitlog_paths),
            to_do="check that the log's disk is mounted",
        )


def refuse_partial_log(store: Store) -> None:
    """Raise FailedError where one of the log's folders is not there, or a segment is a link that leads nowhere."""
    if not store.log.segments:
        return
    if folders := _missing_folders(store):
        raise FailedError(
            "a log folder is not there: what is left is not the whole log",
            path=", ".join(map(store.relative, folders)),
            to_do="mount its disk; if nothing is to be in it, make the folder or take it out of the configuration",
        )
    links = [
        store.relative(stray.path) for stray in store.log.strays if describe_stray(store, stray) == LINK_TO_NOWHERE
    ]
    if links:
        raise FailedError(
            f"a segment is {LINK_TO_NOWHERE}: what is left is not the whole log",
            path=", ".join(links),
            to_do="mount the disk that it leads to, or remove it",
        )


def _missing_folders(store: Store) -> list[Path]:
    return [folder for folder in store.settings.commitlog_paths if not folder.is_dir()]
