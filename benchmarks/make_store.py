"""Makes stores for the contests, with the real store code of a broker, or with ours where there is no Maven (and says so).

    python -m benchmarks.make_store FOLDER --size 1GiB --record 533 --topics 8 --queues 8 --keys 2

Segments of 1 GiB, queue and index files of a broker's default sizes. Message n has the unique key U followed by 15 digits
of n and the user key K and n; batches of 100 go round the queues.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import broker
from rmqctl.options import parse_size

BATCH: Final = 100
GIB: Final = 1 << 30
_AROUND_A_BODY: Final = 175  # head, topic and properties of the messages made here, for numbers of seven digits


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a store is like. ``record_bytes`` is what most records have; ``keys``: 0, 1 (unique key) or 2 (user key, too)."""

    log_bytes: int = GIB
    record_bytes: int = 533
    topics: int = 8
    queues: int = 8  # of each topic
    keys: int = 2

    @property
    def body_bytes(self) -> int:
        return max(self.record_bytes - _AROUND_A_BODY, 1)

    @property
    def name(self) -> str:
        size = f"{self.log_bytes / GIB:g}GiB"
        return f"{size}-{self.record_bytes}B-{self.topics}x{self.queues}-{self.keys}keys"


DEFAULT: Final = Recipe()


@dataclass(frozen=True, slots=True)
class Made:
    """A store that was made: where, how many messages, and by whose code."""

    root: Path
    messages: int
    maker: str
    recipe: Recipe

    @property
    def segments(self) -> list[Path]:
        return sorted((self.root / "commitlog").iterdir())

    @property
    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.segments)

    def topic_of(self, number: int) -> str:
        """The topic of message ``number``."""
        return f"bench_{number // BATCH % (self.recipe.topics * self.recipe.queues) // self.recipe.queues}"


def make_store(root: Path, recipe: Recipe) -> Made:
    """Make a store in a folder that is not there yet, or take the one that an earlier call made there."""
    note = root.with_name(f"{root.name}.made")
    if note.exists():
        count, maker = note.read_text().split(" ", 1)
        return Made(root, int(count), maker, recipe)
    if root.exists():
        shutil.rmtree(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    if broker.is_available():
        maker = f"RocketMQ {broker.RELEASE}"
        messages = broker.make(
            root,
            log_bytes=recipe.log_bytes,
            body_bytes=recipe.body_bytes,
            topics=recipe.topics,
            queues=recipe.queues,
            keys=recipe.keys,
        )
    else:
        from benchmarks import own_store

        maker = "rmqctl's own encoder (no Maven here)"
        messages = own_store.make(root, recipe)
    note.write_text(f"{messages} {maker}")
    return Made(root, messages, maker, recipe)


@contextmanager
def made_store(recipe: Recipe, work: Path | None) -> Iterator[Made]:
    """A store for a contest: below ``work``, where it stays for the next contest, or in a temporary folder."""
    if work is not None:
        yield make_store(work / recipe.name, recipe)
        return
    with tempfile.TemporaryDirectory(prefix="rmqctl-bench-") as folder:
        yield make_store(Path(folder) / recipe.name, recipe)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_store", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder in which the store's own is made")
    parser.add_argument("--size", type=parse_size, default=GIB, help="of the log")
    parser.add_argument("--record", type=int, default=DEFAULT.record_bytes, help="bytes of a record")
    parser.add_argument("--topics", type=int, default=DEFAULT.topics)
    parser.add_argument("--queues", type=int, default=DEFAULT.queues, help="of each topic")
    parser.add_argument("--keys", type=int, default=DEFAULT.keys, choices=(0, 1, 2))
    told = parser.parse_args()
    recipe = Recipe(told.size, told.record, told.topics, told.queues, told.keys)
    made = make_store(told.folder / recipe.name, recipe)
    print(f"{made.root}: {made.messages} messages, {made.log_bytes} bytes of log, made by {made.maker}")


if __name__ == "__main__":
    main()
