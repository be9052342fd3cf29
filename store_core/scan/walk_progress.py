"""Report the progress of several walks over a log as that of a single walk."""

from __future__ import annotations

from store_core.scan.log import Progress


def behind(on_progress: Progress | None, done_bytes: int) -> Progress | None:
    """Return the progress callback for a part of a work, of which ``done_bytes`` are done before that part."""
    return None if on_progress is None else lambda more_bytes: on_progress(done_bytes + more_bytes)


class WalkProgress:
    """Adds up the progress of several walks.

    ``on_progress`` gets the bytes of all walks so far; each walk counts as ``size_bytes`` once the next starts. A repeated
    walk reports nothing until it is further than before. With ``on_total`` only walked bytes count: it gets the expected
    total, first for ``planned`` walks, and again whenever a walk is short, left out or added.
    """

    def __init__(
        self,
        on_progress: Progress | None,
        size_bytes: int,
        *,
        planned: int = 0,
        on_total: Progress | None = None,
    ) -> None:
        self._on_progress = on_progress
        self._on_total = on_total
        self._size_bytes = size_bytes
        self._planned = planned
        self._started = 0
        self._before = 0  # bytes of earlier walks
        self._done = 0

    def next(self) -> Progress | None:
        """Return the progress callback of the next walk."""
        if self._on_total is None:
            self._before = self._started * self._size_bytes
        else:
            self._before = self._done
        self._started += 1
        self._report_total()
        before, limit = self._before, self._size_bytes  # a walk may read bytes after the log's end
        return None if self._on_progress is None else lambda done_bytes: self._report(before + min(done_bytes, limit))

    def more(self) -> Progress | None:
        """Return the progress callback of an additional walk that is not among the planned ones."""
        if self._on_total is None:
            return None
        self._planned += 1
        return self.next()

    def piece(self, size_bytes: int) -> Progress | None:
        """Return the progress callback of additional work of ``size_bytes``, which is no walk over the log."""
        if self._on_total is None:
            return None
        self._before = before = self._done
        self._on_total(before + size_bytes + max(self._planned - self._started, 0) * self._size_bytes)
        return (
            None if self._on_progress is None else lambda done_bytes: self._report(before + min(done_bytes, size_bytes))
        )

    def leave_out(self) -> None:
        """Skip the next walk, which is not needed."""
        if self._on_total is None:
            if (on_progress := self.next()) is not None:
                on_progress(self._size_bytes)
            return
        self._started += 1
        self._report_total()

    def end(self) -> None:
        """Report the bytes walked so far as the total: no more walks will come."""
        if self._on_total is not None and self._on_progress is not None:
            self._on_total(self._done)
            self._on_progress(self._done)

    def _report_total(self) -> None:
        if self._on_total is not None:
            walks_left = max(self._planned - self._started, 0)
            self._on_total(self._before + (1 + walks_left) * self._size_bytes)

    def _report(self, done_bytes: int) -> None:
        if self._on_progress is not None and done_bytes > self._done:
            self._done = done_bytes
            self._on_progress(done_bytes)
