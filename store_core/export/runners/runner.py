"""What an export asks of whoever does its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Walked = Callable[[int], None]


class Answer(Protocol):
    """What a task gives back: at least how many bytes it has walked. Goes between processes and machines."""

    @property
    def walked_bytes(self) -> int: ...


Told = TypeVar("Told", bound=Answer)
Answered = TypeVar("Answered", bound=Answer, covariant=True)
OnPiece = Callable[[int, Told], None]


class Doable(Protocol[Answered]):
    """A task: all that somebody else needs to do it. Goes between processes and machines."""

    def run(self) -> Answered:
        """Raises StoreError."""
        ...


class Job(Doable[Answered], Protocol):
    """A task that knows how much it is, and whose outcome can be kept."""

    @property
    def size_bytes(self) -> int:
        """Of what it reads, about."""
        ...


class Runner(Protocol):
    """Does tasks side by side."""

    def run(
        self, tasks: Sequence[Doable[Told]], on_walked: Walked, on_piece: OnPiece[Told] | None = None
    ) -> list[Told]:
        """The answers in the order of the tasks; ``on_walked`` is told how many bytes of logs more have been walked.

        ``on_piece(index, piece)`` is told of each task once, as soon as its answer counts, in whatever order they
        are done, in this process and before this returns or raises: who has noted it need not have it done again.
        Raises StoreError.
        """
        ...
