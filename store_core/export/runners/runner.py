"""Define the interface of a runner, which does the tasks of an export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Walked = Callable[[int], None]


class Answer(Protocol):
    """The result of a task, with at least the number of bytes walked. Goes between processes and machines."""

    @property
    def walked_bytes(self) -> int: ...


Told = TypeVar("Told", bound=Answer)
Answered = TypeVar("Answered", bound=Answer, covariant=True)
OnPiece = Callable[[int, Told], None]


class Doable(Protocol[Answered]):
    """A task with all data that a worker needs. Goes between processes and machines."""

    def run(self) -> Answered:
        """Do the task. Raises StoreError."""
        ...


class Job(Doable[Answered], Protocol):
    """A task with a known size, whose result can be noted."""

    @property
    def size_bytes(self) -> int:
        """The approximate number of bytes that it reads."""
        ...


class Runner(Protocol):
    """Runs several tasks at the same time."""

    def run(
        self, tasks: Sequence[Doable[Told]], on_walked: Walked, on_piece: OnPiece[Told] | None = None
    ) -> list[Told]:
        """Run the tasks and return the answers in their order. Raises StoreError.

        Args:
            on_walked: is called with the number of bytes of logs walked since its last call.
            on_piece: ``on_piece(index, piece)`` is called once for each task as soon as its answer counts, in any
                order, in this process, and before ``run`` returns or raises. A task that it has noted need not run
                again.
        """
        ...
