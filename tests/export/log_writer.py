"""Writes a golden store's log anew as a broker does: into files of zeros made ahead, a piece of a record at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path


class LogWriter:
    """Writes the log of ``golden`` below ``root``."""

    def __init__(self, golden: Path, root: Path, seed: int) -> None:
        self._folder, self._random = root / "commitlog", random.Random(seed)
        self._files = [(path.name, path.read_bytes()) for path in sorted((golden / "commitlog").iterdir())]
        self._folder.mkdir(parents=True)

    def pieces(self, most_bytes: int) -> Iterator[None]:
        """Yields after every piece that has been written."""
        for number, (name, data) in enumerate(self._files):
            for ahead, _ in self._files[number : number + 2]:
                self._make(ahead, len(data))
            with (self._folder / name).open("r+b") as file:
                end = len(data.rstrip(b"\0")) if number + 1 == len(self._files) else len(data)
                while file.tell() < end:
                    file.write(data[file.tell() : min(file.tell() + self._random.randrange(1, most_bytes), end)])
                    file.flush()
                    yield

    def _make(self, name: str, size: int) -> None:
        path = self._folder / name
        if not path.exists():
            with path.open("xb") as file:
                file.truncate(size)
