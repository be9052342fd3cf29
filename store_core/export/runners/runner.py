"""What an export asks of whoever does its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from store_core.export.splits.piece import Piece
from store_core.export.splits.plan import Task

Walked = Callable[[int], None]
OnPiece = Callable[[int, Piece], None]


class Runner(Protocol):
    """Does tasks side by side."""

    def run(self, tasks: Sequence[Task], on_walked: Walked, on_piece: OnPiece | None = None) -> list[Piece]:
        """The pieces in the order of the tasks; ``on_walked`` is told how many bytes of logs more have been walked.

        ``on_piece(index, piece)`` is told of each task once, as soon as its piece counts, in whatever order they
        are done, in this process and before this returns or raises: who has noted it need not have it done again.
        Raises StoreError.
        """
        ...
