"""What an export asks of whoever does its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from store_core.export.splits.piece import Piece
from store_core.export.splits.plan import Task

Walked = Callable[[int], None]


class Runner(Protocol):
    """Does tasks side by side."""

    def run(self, tasks: Sequence[Task], on_walked: Walked) -> list[Piece]:
        """The pieces in the order of the tasks; ``on_walked`` is told how many bytes of logs more have been walked.

        Raises StoreError.
        """
        ...
