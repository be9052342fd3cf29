"""Define the interface of a destination: a folder, a bucket or a table of a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.state import Commit, ExportState
from store_core.export.dest.tables import State
from store_core.export.dest.task_destination import Place


class Destination(Protocol):
    """A context manager for the place of an export; inside it, no other export should write there.

    Tasks write parts at ``place``. The parts belong to no result before ``publish``, which makes all of them visible
    at once with the export's state. Notes survive the process, so that a rerun can skip finished work.

    Entering raises UsageError where foreign files are stored, StoreInUseError where another export is writing. All
    methods raise FailedError where the destination refuses.
    """

    address: str
    path: Path | None  # the folder, where it is a local one
    never_empty: bool  # whether a table needs a file even without rows
    is_untold: bool  # set by ``begin``: no report has shown the findings of the last commit
    is_published: bool  # the result is visible, though the cleanup may be unfinished
    untidy: str  # why files that belong to no result could not be removed

    @property
    def place(self) -> Place: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    @property
    def last(self) -> ExportState | None:
        """The state that the last commit left, which this export continues; None where it starts from nothing."""
        ...

    def gone(self) -> list[str]:
        """Return files of earlier commits that are gone or have another length, as far as the destination's manifest
        lists them.
        """
        ...

    def begin(self, plan: str) -> bool:
        """Announce the plan by its fingerprint. Notes of other plans may be used too, by their keys.

        Returns True if an interrupted process has already published this plan: ``publish`` then only cleans up.
        Raises UsageError where a finished export must not be changed.
        """
        ...

    def noted(self) -> dict[str, bytes]:
        """Return all notes by key."""
        ...

    def holds(self, part: WrittenFile) -> bool:
        """Return True if a part is stored with its full length and checksum."""
        ...

    def keep(self, notes: Mapping[str, Sequence[WrittenFile]]) -> None:
        """Keep only these notes, with their parts; all others may be removed."""
        ...

    def note(self, key: str, data: bytes, parts: Sequence[WrittenFile]) -> None:
        """Note a finished piece of work; durable when this returns."""
        ...

    @property
    def notes_kept(self) -> int:
        """The number of finished pieces of work that a rerun would find."""
        ...

    def finish(self) -> None:
        """End without publishing: the notes may be removed."""
        ...

    def publish(self, parts: Sequence[WrittenFile], commit: Commit, state: State) -> None:
        """Make the parts visible, all or none, with the export's state."""
        ...
