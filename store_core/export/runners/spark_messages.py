"""What the program that talks to Spark and the process that started it say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

JAVA_ENDS_SECONDS: Final = 3  # what it gets to leave its master and to remove its files, once it is asked to end


@dataclass(frozen=True, slots=True)
class Start:
    """Spark's master (None: spark-submit knows it), its settings, a folder for passing files, and the packed environment that
    executors are to work in (None: their own)."""

    master: str | None
    conf: tuple[tuple[str, str], ...]
    scratch: Path
    environment: Path | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of logs that tasks of this run have walked so far; tasks that were tried again count twice."""

    walked_bytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """The pickled pieces of tasks that have been done meanwhile, each with its task's number. None is told twice."""

    pieces: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The pickled pieces in the order of the tasks, or the pickled StoreError that ended the run. ``notes`` are for people."""

    pieces: tuple[bytes, ...] = ()
    error: bytes | None = None
    notes: tuple[str, ...] = ()
