"""Read the files of sane queues once, for the starts of all releases and for the count of lost messages.

Imports neither numpy nor modules that need it, so that a thread (``read_ahead``) can read while the program loads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final

from store_core.kernel.entry_runs import EntryRun, read_run
from store_core.layout.queue import ENTRY

if TYPE_CHECKING:
    from store_core.storage.sequence import Segment, SegmentSequence
    from store_core.storage.store import QueueKey

_MOST_PARTS: Final = 1 << 19  # remembered; files beyond these count as unknown
_MOST_FILES: Final = 1 << 14  # remembered; each takes more than half a kilobyte, and is soon read again
_LOOK_SECONDS: Final = 0.1  # how often a waiting caller can be interrupted


class EntryRuns:
    """The runs of queue files, by file. For files that do not change meanwhile; safe for several threads."""

    def __init__(self, log_segments: Sequence[Segment]) -> None:
        self.log_segments = tuple(log_segments)
        self._starts = [segment.phy_offset for segment in log_segments]
        self._ends = [segment.end_phy_offset for segment in log_segments]
        self._changed = Condition()
        self._known: dict[str, EntryRun | None] = {}  # by path, which takes less memory as text
        self._being_read: set[str] = set()
        self._parts = 0
        self._is_closed = False
        self._thread: Thread | None = None

    def of(self, queue: SegmentSequence, start: int) -> EntryRun | None:
        """Return the run of the file that starts at ``start``.

        None if its entries fall, if reads of the queue do not give exactly the bytes of that file, or if it cannot be read: the
        caller then reads it in another way, which reports the error.
        """
        file = queue.find(start)
        if file is None or file.phy_offset != start or not _is_whole(queue, file):
            return None
        path = str(file.path)
        with self._changed:
            while path in self._being_read:
                self._changed.wait(_LOOK_SECONDS)
            if path in self._known:
                return self._known[path]
            self._being_read.add(path)
        return self._read(file)

    @property
    def remembers(self) -> bool:
        """True if there are few enough files to keep their runs in memory."""
        return len(self._known) < _MOST_FILES

    def read_ahead(self, queues: Mapping[QueueKey, SegmentSequence]) -> None:
        """Have a thread read all files of the queues, the last ones first, as the caller starts with the first."""
        files = (
            file
            for key in reversed(list(queues))
            for file in reversed(queues[key].segments)
            if _is_whole(queues[key], file)
        )
        self._thread = Thread(target=self._run, args=(files,), name="entries ahead", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()

    def _run(self, files: Iterator[Segment]) -> None:
        for file in files:
            with self._changed:
                if self._is_closed or not self.remembers:
                    return
                if str(file.path) in self._known or str(file.path) in self._being_read:
                    continue
                self._being_read.add(str(file.path))
            self._read(file)

    def _read(self, file: Segment) -> EntryRun | None:
        run = None
        try:
            run = read_run(file.path, self._starts, self._ends)
        except OSError:
            pass  # the caller's own read reports the error
        finally:
            with self._changed:
                if self.remembers:
                    self._parts += len(run.parts) if run is not None else 0
                    self._known[str(file.path)] = run if self._parts <= _MOST_PARTS else None
                self._being_read.discard(str(file.path))
                self._changed.notify_all()
        return run


def _is_whole(queue: SegmentSequence, file: Segment) -> bool:
    """Return True if a broker maps the file and it can be read on its own."""
    is_usual = file.size_bytes == queue.file_size_bytes and file.size_bytes % ENTRY.size_bytes == 0
    return is_usual and queue.is_plain(file)
