"""What an export asks of the place it goes to, whatever that is: a folder, a bucket, a table of a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.state import Commit, ExportState
from store_core.export.dest.tables import State
from store_core.export.dest.task_destination import Place


class Destination(Protocol):
    """A context manager: while it is entered, no other export writes there as far as the place can tell.

    Parts are written at ``place`` by tasks, and belong to nothing before ``publish``, which makes all of them visible at
    once, with the state of the export. What is noted survives the process, so that a rerun need not do it again.
    Entering raises UsageError where something foreign stands there, StoreInUseError where another export is at work; all
    methods raise FailedError where the place refuses.
    """

    address: str
    path: Path | None  # the folder, where it is a local one
    never_empty: bool  # whether a table needs a file even without rows
    is_untold: bool  # from ``begin`` on: whether nobody has told what the last commit met
    is_published: bool  # whether the result stands, though not all may be done that comes behind
    untidy: str  # why what belongs to no result any more could not be removed

    @property
    def place(self) -> Place: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    @property
    def last(self) -> ExportState | None:
        """The state that the last commit left, on which this export goes on; None where it starts from nothing."""
        ...

    def gone(self) -> list[str]:
        """Files of earlier commits that somebody has removed or changed, as far as lengths tell and the manifest is ours."""
        ...

    def begin(self, plan: str) -> bool:
        """Say by its fingerprint what is to be done. Notes of other plans may be used too, by their keys.

        True if just this has been published already, by a process that came no further: ``publish`` then only clears up.
        Raises UsageError where a finished export stands that is not to be touched.
        """
        ...

    def noted(self) -> dict[str, bytes]:
        """All notes by key."""
        ...

    def holds(self, part: WrittenFile) -> bool:
        """Whether a part is there, every byte of it."""
        ...

    def keep(self, notes: Mapping[str, Sequence[WrittenFile]]) -> None:
        """Only these notes are right, with their parts; all others may go."""
        ...

    def note(self, key: str, data: bytes, parts: Sequence[WrittenFile]) -> None:
        """Note a finished piece of work; durable when this returns."""
        ...

    @property
    def notes_kept(self) -> int:
        """How many pieces of work a rerun would find done."""
        ...

    def finish(self) -> None:
        """There is nothing to publish: what was noted may go."""
        ...

    def publish(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        """Make the parts visible, all or none, with what the export has come to."""
        ...
