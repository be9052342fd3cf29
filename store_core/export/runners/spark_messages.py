"""Define the messages between the program that talks to Spark and its parent process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

JAVA_ENDS_SECONDS: Final = 3  # Java's time to leave its master and remove its files at the end


@dataclass(frozen=True, slots=True)
class Start:
    """Spark's master (None: spark-submit has it), its settings, a scratch folder, and the executors' environment.

    ``environment`` is a packed archive; None for the executors' own.
    """

    master: str | None
    conf: tuple[tuple[str, str], ...]
    scratch: Path
    environment: Path | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of logs that tasks of this run have walked so far; repeated tasks count twice."""

    walked_bytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """The pickled pieces of tasks that finished since the last message, each with its task's number."""

    pieces: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The pickled pieces in the order of the tasks, or the pickled StoreError of the run. ``notes`` are for the
    operator.
    """

    pieces: tuple[bytes, ...] = ()
    error: bytes | None = None
    notes: tuple[str, ...] = ()
