"""Splits that are done stay done: each is noted at the destination as soon as it counts, and a rerun takes it from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from store_core.export.dest.destination import Destination
from store_core.export.dest.parquet import WrittenFile
from store_core.export.runners.runner import Answer, Doable, Job, Runner
from store_core.export.splits.notes import note_of, piece_of, plan_fingerprint


class Outcome(Answer, Protocol):
    """A piece of work that can be noted. ``is_final``: whether the same task would come to the same again."""

    @property
    def parts(self) -> Sequence[WrittenFile]: ...

    @property
    def is_final(self) -> bool: ...


Done = TypeVar("Done", bound=Outcome)


class Walked:
    """Adds up what has been walked; ``on_plan`` as for ``export_stores``."""

    def __init__(self, on_plan: Callable[[int], Callable[[int], None]] | None) -> None:
        self.size_bytes = 0
        self._before_bytes = 0
        self._on_plan = on_plan
        self._on_progress: Callable[[int], None] | None = None

    def begin(self, left_bytes: int) -> None:
        """What has been walked so far was walked by others; so many bytes are left."""
        self._before_bytes = self.size_bytes
        if self._on_plan is not None:
            self._on_progress = self._on_plan(left_bytes)

    def __call__(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._on_progress is not None:
            self._on_progress(self.size_bytes - self._before_bytes)


class Work(Generic[Done]):
    """Does the tasks of a plan, by key, with a runner: those that are noted are taken as they are.

    ``kind``: of their outcomes. ``on_walked`` is told the bytes of logs walked by each task, those taken too.
    """

    def __init__(
        self, destination: Destination, runner: Runner, on_walked: Walked, kind: type[Done], beside: Iterable[str] = ()
    ) -> None:
        """``beside``: fingerprints of what the result depends on besides the tasks."""
        self._destination = destination
        self._runner = runner
        self._on_walked = on_walked
        self._kind = kind
        self._beside = tuple(beside)
        self.plan = ""
        self.taken = 0  # tasks that were done before

    def do(self, tasks: Mapping[str, Job[Done]]) -> dict[str, Done]:
        """The pieces of all tasks by their keys. Raises StoreError."""
        self.plan = plan_fingerprint([*tasks, *self._beside])
        self._destination.begin(self.plan)
        pieces = self._taken(tasks)
        self.taken = len(pieces)
        left = [key for key in tasks if key not in pieces]
        self._on_walked.begin(sum(tasks[key].size_bytes for key in left))

        def note(index: int, piece: Done) -> None:
            if piece.is_final:
                self._destination.note(left[index], note_of(piece), piece.parts)

        done = self._runner.run([tasks[key] for key in left], self._on_walked, note)
        return pieces | dict(zip(left, done, strict=True))

    def redo(self, task: Doable[Done]) -> Done:
        """One more task, which the proof that pieces join asks for; never noted, since it depends on its neighbours."""
        [piece] = self._runner.run([task], self._on_walked)
        return piece

    def _taken(self, tasks: Mapping[str, Job[Done]]) -> dict[str, Done]:
        """Pieces that are noted and whose files are there, every byte of them."""
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
