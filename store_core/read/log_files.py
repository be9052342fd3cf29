"""Whether the log is where the configuration says: no file at all, or one of several folders that is not there (store format 1.2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from store_core.errors import FailedError
from store_core.findings import Finding, finding
from store_core.layout import paths
from store_core.storage.store import Store


def missing_log(store: Store) -> Iterator[Finding]:
    """S007 where there is no log file; else S010 for each log folder that is not there.

    A broker makes a folder with the first segment that goes there, and they take turns: a log that is younger than
    that is told, and nothing is wrong with it.
    """
    if not store.log.segments:
        yield finding("S007", "there is no log file", file=paths.COMMITLOG)
        return
    for folder in _missing_folders(store):
        if _is_young(store):
            what = "the log folder is not there: no segment of this log had to go there yet"
            yield finding("S010", what, file=store.relative(folder), severity="info")
        else:
            yield finding(
                "S010", "the log folder is not there, nor are the segments in it", file=store.relative(folder)
            )


def refuse_partial_log(store: Store) -> None:
    """Raise FailedError where one of the log's folders is not there, and with it the segments in it."""
    lacking = [found.file for found in missing_log(store) if found.code == "S010" and found.severity != "info"]
    if lacking:
        raise FailedError(
            "a log folder is not there: what is left is not the whole log",
            path=", ".join(map(str, lacking)),
            to_do="mount its disk; if nothing is to be in it, make the folder or take it out of the configuration",
        )


def _missing_folders(store: Store) -> list[Path]:
    return [folder for folder in store.settings.commitlog_paths if not folder.exists()]


def _is_young(store: Store) -> bool:
    log = store.log
    return log.min_phy_offset == 0 and len(log.segments) < len(store.settings.commitlog_paths)
