"""Progress over several walks of one log, as if they were one."""

from __future__ import annotations

from store_core.scan.log import Progress


def behind(told: Progress | None, done_bytes: int) -> Progress | None:
    """What a part of some work tells its progress to, ``done_bytes`` of which are done before it."""
    return None if told is None else lambda more_bytes: told(done_bytes + more_bytes)


class WalkProgress:
    """``on_progress`` is told the bytes of all walks so far, each counted as ``size_bytes`` once the next begins.

    A walk that is repeated tells nothing new until it is further than before. With ``on_total`` only what is really walked counts:
    it is told what all comes to, of which ``planned`` walks are a guess, whenever a walk was short, left out or needed besides.
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
        self._begun = 0
        self._before = 0  # bytes of the walks before
        self._done = 0

    def next(self) -> Progress | None:
        """What the next walk is to tell its progress to."""
        if self._on_total is None:
            self._before = self._begun * self._size_bytes
        else:
            self._before = self._done
        self._begun += 1
        self._report_total()
        before, most = self._before, self._size_bytes  # a walk may look at what a file has behind the log's end
        return None if self._on_progress is None else lambda done_bytes: self._tell(before + min(done_bytes, most))

    def more(self) -> Progress | None:
        """As ``next``, for a walk that nobody planned."""
        if self._on_total is None:
            return None
        self._planned += 1
        return self.next()

    def piece(self, size_bytes: int) -> Progress | None:
        """As ``more``, for work of another size that is no walk over the log."""
        if self._on_total is None:
            return None
        self._before = before = self._done
        self._on_total(before + size_bytes + max(self._planned - self._begun, 0) * self._size_bytes)
        return (
            None if self._on_progress is None else lambda done_bytes: self._tell(before + min(done_bytes, size_bytes))
        )

    def leave_out(self) -> None:
        """The next walk is not needed."""
        if self._on_total is None:
            if (told := self.next()) is not None:
                told(self._size_bytes)
            return
        self._begun += 1
        self._report_total()

    def end(self) -> None:
        """No more will come: what has been walked is all there was."""
        if self._on_total is not None and self._on_progress is not None:
            self._on_total(self._done)
            self._on_progress(self._done)

    def _report_total(self) -> None:
        if self._on_total is not None:
            left = max(self._planned - self._begun, 0)
            self._on_total(self._before + (1 + left) * self._size_bytes)

    def _tell(self, done_bytes: int) -> None:
        if self._on_progress is not None and done_bytes > self._done:
            self._done = done_bytes
            self._on_progress(done_bytes)
