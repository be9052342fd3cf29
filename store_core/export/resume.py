"""Keep finished splits: each is noted at the destination as soon as it counts, and a rerun reads the notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from store_core.export.dest.destination import Destination
from store_core.export.dest.parquet import WrittenFile
from store_core.export.runners.runner import Answer, Doable, Job, Runner
from store_core.export.splits.notes import note_of, piece_of, plan_fingerprint


class Outcome(Answer, Protocol):
    """The result of a task that can be noted. ``is_final``: a repeated task would give the same result."""

    @property
    def parts(self) -> Sequence[WrittenFile]: ...

    @property
    def is_final(self) -> bool: ...


Done = TypeVar("Done", bound=Outcome)


class Walked:
    """Counts the bytes that tasks have walked; ``on_plan`` is the argument of ``export_stores``."""

    def __init__(self, on_plan: Callable[[int], Callable[[int], None]] | None) -> None:
        self.size_bytes = 0
        self._before_bytes = 0
        self._on_plan = on_plan
        self._on_progress: Callable[[int], None] | None = None

    def begin(self, left_bytes: int) -> None:
        """Start the progress report: ``left_bytes`` are still to walk. Bytes counted before were walked by an earlier
        run.
        """
        self._before_bytes = self.size_bytes
        if self._on_plan is not None:
            self._on_progress = self._on_plan(left_bytes)

    def __call__(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._on_progress is not None:
            self._on_progress(self.size_bytes - self._before_bytes)


class Work(Generic[Done]):
    """Does the tasks of a plan, by key, with a runner, and reuses the noted results of an earlier run.

    ``kind`` is the class of the results. ``on_walked`` is called with the bytes of logs that each task has walked,
    reused tasks included.
    """

    def __init__(
        self, destination: Destination, runner: Runner, on_walked: Walked, kind: type[Done], beside: Iterable[str] = ()
    ) -> None:
        """``beside``: fingerprints of inputs other than the tasks."""
        self._destination = destination
        self._runner = runner
        self._on_walked = on_walked
        self._kind = kind
        self._beside = tuple(beside)
        self.plan = ""
        self.taken = 0  # tasks that an earlier run has done

    def do(self, tasks: Mapping[str, Job[Done]]) -> dict[str, Done]:
        """Return the results of all tasks by their keys. Raises StoreError."""
        self.plan = plan_fingerprint([*tasks, *self._beside])
        self._destination.begin(self.plan)
        pieces = self._taken(tasks)
        self.taken = len(pieces)
        open_keys = [key for key in tasks if key not in pieces]
        self._on_walked.begin(sum(tasks[key].size_bytes for key in open_keys))

        def note(index: int, piece: Done) -> None:
            if piece.is_final:
                self._destination.note(open_keys[index], note_of(piece), piece.parts)

        done = self._runner.run([tasks[key] for key in open_keys], self._on_walked, note)
        return pieces | dict(zip(open_keys, done, strict=True))

    def redo(self, task: Doable[Done]) -> Done:
        """Run one more task, which the proof that pieces join needs. It is never noted, since it depends on its
        neighbours.
        """
        [piece] = self._runner.run([task], self._on_walked)
        return piece

    def _taken(self, tasks: Mapping[str, Job[Done]]) -> dict[str, Done]:
        """Return noted pieces whose files are all there with their full length."""
        found: dict[str, Done] = {}
        parts: dict[str, Sequence[WrittenFile]] = {}
        for key, note in self._destination.noted().items():
            piece = piece_of(note, self._kind) if key in tasks else None
            if piece is not None and all(self._destination.holds(part) for part in piece.parts):
                found[key], parts[key] = piece, piece.parts
        self._destination.keep(parts)
        for piece in found.values():
            self._on_walked(piece.walked_bytes)
        return found
