"""Progress over several walks of one log, as if they were one."""

from __future__ import annotations

from store_core.scan.log import Progress


class Walks:
    """``on_progress`` is told the bytes of all walks so far, each counted as ``size_bytes`` once the next begins.

    A walk that is repeated tells nothing new until it is further than before.
    """

    def __init__(self, on_progress: Progress | None, size_bytes: int) -> None:
        self._on_progress = on_progress
        self._size_bytes = size_bytes
        self._begun = 0
        self._done = 0

    def next(self) -> Progress | None:
        """What the next walk is to tell its progress to."""
        before = self._begun * self._size_bytes
        self._begun += 1
        return None if self._on_progress is None else lambda done_bytes: self._tell(before + done_bytes)

    def _tell(self, done_bytes: int) -> None:
        if self._on_progress is not None and done_bytes > self._done:
            self._done = done_bytes
            self._on_progress(done_bytes)
