"""Many harms of all kinds on one store: what the product of damages (tests/broker/axes.py) does one at a time, and more."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from store_core.layout import paths
from tests.broker.axes import AXES, Harm, Planted
from tests.damage import Damageable

_SIZES_BYTES: Final = (16, 100, 600, 4096, 20000)
_HEAD_FIELDS: Final = (
    "size_bytes", "magic", "body_crc", "queue_id", "queue_offset", "own_phy_offset", "sys_flag", "born_timestamp_ms", "store_timestamp_ms",
)  # fmt: skip
# A harm that finds nothing left to be done to is left out.
_NOTHING_THERE: Final = (FileNotFoundError, IndexError, AssertionError, ValueError, struct.error)


def _bits(harm: Harm) -> None:
    """Single bits anywhere in the log."""
    for _ in range(harm.random.choice((1, 3, 10, 40))):
        harm.store.flip_at(harm.random.randrange(harm.store.end_phy_offset), 1 << harm.random.randrange(8))


def _stretch(harm: Harm) -> tuple[int, int]:
    """Some bytes in one segment."""
    length, size = harm.random.choice(_SIZES_BYTES), harm.store.segment_size_bytes
    at = harm.random.randrange(harm.store.end_phy_offset - length)
    return min(at, at // size * size + size - length), length


def _garbage(harm: Harm) -> None:
    """Random bytes over a stretch."""
    at, length = _stretch(harm)
    harm.store.write(at, harm.random.randbytes(length))


def _zeros(harm: Harm) -> None:
    """Zeros over a stretch."""
    harm.store.zero(*_stretch(harm))


def _heads(harm: Harm) -> None:
    """Bits of fixed fields."""
    for _ in range(harm.random.choice((1, 4, 20))):
        field, byte = harm.random.choice(_HEAD_FIELDS), harm.random.choice((0, 1, 2, 3))
        harm.store.flip(harm.record(), field, byte, 1 << harm.random.randrange(8))


def _parts(harm: Harm) -> None:
    """Bits of bodies, topics and properties."""
    for _ in range(harm.random.choice((1, 4, 20))):
        part = harm.random.choice(("body", "topic", "properties"))
        harm.store.flip(harm.record(), part, 0, 1 << harm.random.randrange(8))


def _copied(harm: Harm) -> None:
    """A record written over others, as by a write that went to a wrong place."""
    number = harm.random.randrange(len(harm.store.truth["messages"]))
    harm.store.copy_record(number, to=harm.store.message(harm.record())["phyOffset"])


def _index_gone(harm: Harm) -> None:
    """Some index files are not there."""
    for path in sorted((harm.store.root / paths.INDEX).iterdir()):
        if harm.random.random() < 0.5:
            path.unlink()


def _index_bytes(harm: Harm) -> None:
    """Other bytes here and there in all index files."""
    for path in sorted((harm.store.root / paths.INDEX).iterdir()):
        with path.open("r+b") as file:
            for _ in range(5):
                file.seek(harm.random.randrange(path.stat().st_size))
                file.write(harm.random.randbytes(3))


def _wild_entries(harm: Harm) -> None:
    """Entries of a queue with a bit that is wrong, or another one's place."""
    queue = harm.random.choice(harm.queues())
    for _ in range(harm.random.choice((1, 5, 50))):
        place = harm.random.randrange(max(queue.end, 1))
        at, size, tags = queue.entries[place]
        wrong = (
            (at ^ 1 << harm.random.randrange(20), size, tags),
            (at, size ^ 1 << harm.random.randrange(10), tags),
            (at, size, tags ^ 1 << harm.random.randrange(30)),
            harm.random.choice(queue.entries),
        )
        queue.entries[place] = harm.random.choice(wrong)
    queue.write()


def _foreign_entries(harm: Harm) -> None:
    """Some entries in a row are another queue's."""
    queue, other = harm.random.sample(harm.queues(), 2)
    first, count = harm.random.randrange(min(len(queue.entries), len(other.entries))), harm.random.randrange(1, 30)
    count = min(count, len(queue.entries) - first, len(other.entries) - first)
    queue.entries[first : first + count] = other.entries[first : first + count]
    queue.write()


_MORE: Final[tuple[Callable[[Harm], None], ...]] = (
    _bits, _garbage, _zeros, _heads, _parts, _copied, _index_gone, _index_bytes, _wild_entries, _foreign_entries,
)  # fmt: skip


def _queue_bytes(harm: Harm) -> None:
    """A file of queues of any kind is gone, cut, or has other bytes here and there."""
    folders = (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.CONSUMEQUEUE_EXT)
    files = sorted(path for name in folders for path in (harm.store.root / name).rglob("*") if path.is_file())
    path = harm.random.choice(files)
    match harm.random.choice(("gone", "cut", "zeros", "bytes", "bits")):
        case "gone":
            path.unlink()
        case "cut":
            os.truncate(path, harm.random.randrange(path.stat().st_size))
        case "zeros":
            _overwrite(path, harm.random.randrange(path.stat().st_size), bytes(harm.random.choice(_SIZES_BYTES)))
        case "bytes":
            size = harm.random.choice((1, 4, 60))
            _overwrite(path, harm.random.randrange(path.stat().st_size), harm.random.randbytes(size))
        case _:
            data = path.read_bytes()
            used = len(data.rstrip(b"\0"))
            for _ in range(harm.random.choice((1, 10))):
                at = harm.random.randrange(used)
                _overwrite(path, at, bytes([data[at] ^ 1 << harm.random.randrange(8)]))


def _overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data[: max(path.stat().st_size - at, 0)])


def _values(harm: Harm) -> None:
    """Other letters in values of properties that a broker's store reads."""
    store, random = harm.store, harm.random
    for _ in range(random.choice((1, 3))):
        number = harm.record()
        at = store.field_at(number, "properties")
        text = store.read(at, store.message(number)["phyOffset"] + store.message(number)["storeSize"] - at)
        name = random.choice([name for name in _NAMES if name in text])
        value = text.index(name) + len(name)
        length = len(text[value:].partition(b"\x02")[0])
        store.write(at + value + random.randrange(length + 1), random.choice((b"x", b"9", b"-", b",", b"\x02", b"/")))


_NAMES: Final = tuple(
    name + b"\x01"
    for name in (
        b"INNER_NUM",
        b"INNER_BASE",
        b"INNER_MULTI_DISPATCH",
        b"INNER_MULTI_QUEUE_OFFSET",
        b"DELAY",
        b"KEYS",
        b"TAGS",
    )
)
_FURTHER: Final = (_queue_bytes, _queue_bytes, _values, _values)


@dataclass(frozen=True, slots=True)
class Pile:
    """One to five harms, drawn with a number; ``further``: also those that stores of every kind may have."""

    number: int
    further: bool = False

    def __str__(self) -> str:
        return f"pile {self.number}{' with further harms' if self.further else ''}"

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> None:
        """Do the harms to a copy of a golden store. What they plant is not told."""
        random = Random(f"{seed}/{self}")
        harm = Harm(Damageable(root, truth), random, Planted())
        for axis in ("exit", "checkpoint"):
            random.choice([*AXES[axis].values()])(harm)
        some = [*AXES["log"].values(), *AXES["queues"].values(), *_MORE, *_MORE, *(_FURTHER if self.further else ())]
        for each in random.choices(some, k=random.randrange(1, 6)):
            with suppress(*_NOTHING_THERE):
                each(harm)
