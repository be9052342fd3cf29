"""Show the progress of long work: a bar on a terminal, else with ``-v`` a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from rmqctl.output.cells import human_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

StepAside = Callable[[], None]


class OnProgress(Protocol):
    """A callback for the bytes done so far, and for a corrected total."""

    def __call__(self, done_bytes: int, /) -> None: ...
    def expect(self, total_bytes: int, /) -> None: ...


_BAR_AFTER_SECONDS: Final = 0.4  # shorter work shows no bar and never loads Rich
_LINE_EVERY_SECONDS: Final = 3.0


@contextmanager
def progress(
    label: str, total_bytes: int, *, wanted: bool, verbose: bool, color: bool = True
) -> Iterator[tuple[OnProgress, StepAside]]:
    """Yield ``on_progress(done_bytes)``, and a function to call before a result is written to the same terminal.

    All output goes to stderr.
    """
    if wanted and sys.stderr.isatty():
        bar = _Bar(label, total_bytes, color)
        try:
            yield bar, bar.step_aside
        finally:
            bar.step_aside()
    elif wanted and verbose:
        yield _Lines(label, total_bytes), _nothing
    else:
        yield _Silence(), _nothing


def _nothing() -> None:
    pass


class _Silence:
    def __call__(self, done_bytes: int, /) -> None:
        pass

    def expect(self, total_bytes: int, /) -> None:
        pass


class Course:
    """One bar over several pieces of work, one after the other.

    ``ahead_bytes``: size of a later piece that is known from the start. A new piece starts at the bytes done so far; the
    undone rest of the piece before it no longer counts.
    """

    def __init__(self, bar: OnProgress, step_aside: StepAside, ahead_bytes: int = 0) -> None:
        self._bar = bar
        self.step_aside = step_aside
        self._ahead = ahead_bytes
        self._before = self._done = 0

    def begin(self, total_bytes: int, *, known: bool) -> None:
        """Start the next piece; ``known`` if it is the one that ``ahead_bytes`` counts."""
        self._before = self._done
        if known:
            self._ahead = 0
        self.expect(total_bytes)

    def __call__(self, done_bytes: int, /) -> None:
        self._done = self._before + done_bytes
        self._bar(self._done)

    def expect(self, total_bytes: int, /) -> None:
        self._bar.expect(self._before + total_bytes + self._ahead)


class _Bar:
    """A Rich bar that appears after a while without results, and goes for results and at the end."""

    def __init__(self, label: str, total_bytes: int, color: bool) -> None:
        self._label = label
        self._total_bytes = total_bytes
        self._color = color
        self._show_at = time.monotonic() + _BAR_AFTER_SECONDS
        self._bar: tuple[Progress, TaskID] | None = None
        self._is_shown = False

    def __call__(self, done_bytes: int) -> None:
        if not self._is_shown:
            if time.monotonic() < self._show_at:
                return
            self._bar = self._bar or self._new_bar(done_bytes)
            self._bar[0].start()
            self._is_shown = True
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=done_bytes)

    def expect(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, total=total_bytes)

    def step_aside(self) -> None:
        """Leave the terminal to results; the bar returns after a while without any."""
        if self._is_shown and self._bar is not None:
            self._bar[0].stop()
            self._is_shown = False
        self._show_at = time.monotonic() + _BAR_AFTER_SECONDS

    def _new_bar(self, done_bytes: int) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
        from rich.text import Text

        class Rate(ProgressColumn):
            """The rate in powers of 1024, like every other size here; Rich's own uses powers of 1000."""

            def render(self, task: Task) -> Text:
                rate = task.finished_speed or task.speed
                return Text(f"{human_size(rate)}/s" if rate else "")

        bar = Progress(
            "{task.description}",
            BarColumn(),
            "{task.percentage:>3.0f}%",
            DownloadColumn(binary_units=True),
            Rate(),
            TimeRemainingColumn(),
            console=Console(stderr=True, no_color=not self._color or None),
            transient=True,
            redirect_stdout=False,
        )
        return bar, bar.add_task(self._label, total=self._total_bytes, completed=done_bytes)


class _Lines:
    """Progress as one line every few seconds."""

    def __init__(self, label: str, total_bytes: int) -> None:
        self._label = label
        self._total_bytes = total_bytes
        self._started = self._said = time.monotonic()

    def __call__(self, done_bytes: int) -> None:
        now = time.monotonic()
        if now - self._said < _LINE_EVERY_SECONDS:
            return
        self._said = now
        print(self._line(done_bytes, now - self._started), file=sys.stderr, flush=True)

    def expect(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes

    def _line(self, done_bytes: int, seconds: float) -> str:
        rate = done_bytes / seconds if seconds > 0 else 0.0
        text = f"{self._label}: {human_size(done_bytes)}"
        if self._total_bytes:
            text += f" of {human_size(self._total_bytes)} ({100 * done_bytes / self._total_bytes:.0f}%)"
        text += f", {human_size(rate)}/s"
        if rate and self._total_bytes:
            text += f", {max(0.0, self._total_bytes - done_bytes) / rate:.0f} s left"
        return text
