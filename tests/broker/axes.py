"""The product of damages: what a cell is, and the damaged copy it stands for.

A value of an axis says what kind of harm is done; where exactly (which segment, record, queue, how much) is drawn by the cell's
name and a seed, so that one cell is always the same store, and another seed another product.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from store_core.layout import checkpoint, paths, queue, record
from tests import stores
from tests.damage import Damageable
from tests.surgery import Exit, apply_op, set_exit

Entry = tuple[int, int, int]  # log offset, size, tags code

_DAY_MS: Final = 86_400_000
_PAGE_BYTES: Final = 4096
_FILLER: Final = (queue.FILLER_PHY_OFFSET, queue.FILLER_SIZE_BYTES, queue.FILLER_TAGS_CODE)
_BATCH_NUMBER: Final = queue.BATCH_ENTRY.field_struct("queue_offset")
_HIGHEST_NUMBER: Final = (1 << 63) - 1


@dataclass(slots=True)
class Planted:
    """Old things that were put where a start may take them for new: records (place, what it is a copy of), and queue entries."""

    records: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    entries: list[tuple[str, int, int, int, int]] = field(
        default_factory=list
    )  # topic, queue id, place, log offset, size


@dataclass(slots=True)
class Harm:
    """What a harm works on: the copy, the draw, and what it notes."""

    store: Damageable
    random: Random
    planted: Planted

    @property
    def full_segments(self) -> int:
        """How many segments hold records."""
        return -(-self.store.end_phy_offset // self.store.segment_size_bytes)

    def record(self) -> int:
        """Number of a record: the first of a segment, the last of all, or any of a segment drawn first."""
        size = self.store.segment_size_bytes
        messages = self.store.truth["messages"]
        segment = self.random.randrange(self.full_segments)
        within = [n for n, m in enumerate(messages) if m["phyOffset"] // size == segment and m["bodyLength"]]
        return self.random.choice([within[0], within[-1], *self.random.sample(within, 3)])

    def queues(self) -> list[QueueFiles]:
        return sorted(
            (
                QueueFiles(folder)
                for folder in (self.store.root / paths.CONSUMEQUEUE).glob("*/*")
                if any(folder.iterdir())
            ),
            key=lambda q: (q.topic, q.queue_id),
        )


class QueueFiles:
    """A queue's files as one row of entries, to be changed and written back."""

    def __init__(self, folder: Path) -> None:
        self.topic, self.queue_id = folder.parent.name, int(folder.name)
        self._files = sorted(folder.iterdir())
        data = b"".join(file.read_bytes() for file in self._files)
        self._first = int(self._files[0].name) // queue.ENTRY.size_bytes
        self.entries: list[Entry] = [*queue.ENTRY.struct.iter_unpack(data)]

    @property
    def end(self) -> int:
        """Place behind the last entry."""
        return max((n + 1 for n, entry in enumerate(self.entries) if entry[1] > 0), default=0)

    def number(self, place: int) -> int:
        return self._first + place

    def write(self) -> None:
        data = b"".join(queue.ENTRY.struct.pack(*entry) for entry in self.entries)
        size = len(data) // len(self._files)
        for n, file in enumerate(self._files):
            file.write_bytes(data[n * size : (n + 1) * size])

    def unlink_empty(self) -> None:
        """Remove the files that hold nothing, but the first."""
        for file in self._files[1:]:
            if not any(file.read_bytes()):
                file.unlink()


# -- checkpoint -----------------------------------------------------------------------------------------------------


def _no_checkpoint(harm: Harm) -> None:
    """No checkpoint file."""
    (harm.store.root / paths.CHECKPOINT).unlink()


def _checkpoint_ahead(harm: Harm) -> None:
    """All times a day ahead of the last message, as after a clock jump or from another machine; a queue offset beyond the log."""
    last = harm.store.message(-1)["storeTimestamp"] + _DAY_MS
    names = ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms")
    layout = checkpoint.CHECKPOINT
    path = harm.store.root / paths.CHECKPOINT
    values = layout.read(path.read_bytes()) | dict.fromkeys(names, last)
    values["logics_phy_offset"] *= 2
    path.write_bytes(layout.struct.pack(*values.values()).ljust(path.stat().st_size, b"\0"))


def _checkpoint_zero(harm: Harm) -> None:
    """A file of zeros."""
    path = harm.store.root / paths.CHECKPOINT
    path.write_bytes(bytes(path.stat().st_size))


# -- queues ---------------------------------------------------------------------------------------------------------


def _queues_missing(harm: Harm) -> None:
    """No `consumequeue` folder."""
    shutil.rmtree(harm.store.root / paths.CONSUMEQUEUE)


def _queue_missing(harm: Harm) -> None:
    """One queue has no folder."""
    lost = harm.random.choice(harm.queues())
    shutil.rmtree(harm.store.root / paths.CONSUMEQUEUE / lost.topic / str(lost.queue_id))


def _queue_tails_lost(harm: Harm) -> None:
    """One queue's last entries are zeros, or those of all queues from a place of the log on; emptied files stay or are gone."""
    messages = harm.store.truth["messages"]
    share = harm.random.choice((0.01, 0.1, 0.4))
    begin = messages[-max(int(share * len(messages)), 1)]["phyOffset"]
    found = harm.queues()
    is_unlinked = harm.random.random() < 0.5
    for each in [harm.random.choice(found)] if harm.random.random() < 0.4 else found:
        each.entries = [entry if entry[0] < begin else (0, 0, 0) for entry in each.entries]
        each.write()
        if is_unlinked:
            each.unlink_empty()


def _queue_hole(harm: Harm) -> None:
    """Three entries of zeros in the middle of a queue, in any of its files."""
    each = harm.random.choice([q for q in harm.queues() if q.end > 10])
    first = harm.random.randrange(1, each.end - 4)
    each.entries[first : first + 3] = [(0, 0, 0)] * 3
    each.write()


def _with_room(harm: Harm, count: int) -> list[QueueFiles]:
    """One queue or all of them that have room behind their last entry."""
    found = [q for q in harm.queues() if 10 < q.end <= len(q.entries) - count]
    return [harm.random.choice(found)] if harm.random.random() < 0.5 else found


def _queue_ghosts(harm: Harm) -> None:
    """Behind the end of one queue or all: old entries of that queue, or entries that lead into a record, or behind the log's end."""
    kind = harm.random.choice(("old", "old", "into a record", "behind the log"))
    for each in _with_room(harm, 3):
        first = harm.random.randrange(each.end - 4)
        at = each.end
        for place, entry in enumerate(each.entries[first : first + 3], at):
            if kind == "old":
                each.entries[place] = entry
                harm.planted.entries.append((each.topic, each.queue_id, each.number(place), *entry[:2]))
            elif kind == "into a record":
                each.entries[place] = (entry[0] + 40, entry[1], entry[2])
            else:
                each.entries[place] = (harm.store.end_phy_offset + 400 * (place - at), 400, entry[2])
        each.write()


def _queue_filler(harm: Harm) -> None:
    """The last entries of one queue or all are such as brokers pre-fill a file with; they reach to 2 GiB."""
    for each in _with_room(harm, 2):
        for place in range(each.end, each.end + harm.random.choice((1, 2))):
            each.entries[place] = _FILLER
        each.write()


# -- log ------------------------------------------------------------------------------------------------------------


def _torn_tail(harm: Harm) -> None:
    """The end of the last record is zeros."""
    harm.store.tear(tail=harm.random.randrange(1, harm.store.message(-1)["storeSize"]))


def _flipped_body(harm: Harm) -> None:
    """One bit of a body."""
    record = harm.record()
    byte = harm.random.randrange(harm.store.message(record)["bodyLength"])
    harm.store.flip(record, "body", byte, 1 << harm.random.randrange(8))


def _flipped_length(harm: Harm) -> None:
    """The length of a record is one too many or too few, far too large, negative, or the largest number there is."""
    record = harm.record()
    size = harm.store.message(record)["storeSize"]
    harm.store.set_field(
        record, "size_bytes", harm.random.choice((size ^ 1, size ^ 1, size ^ 1 << 16, size - (1 << 31), (1 << 31) - 1))
    )


def _zeroed_page(harm: Harm) -> None:
    """4 KiB of zeros, on a page boundary."""
    size = harm.store.segment_size_bytes
    start = harm.random.randrange(harm.full_segments) * size
    filled = min(harm.store.end_phy_offset - start, size)
    harm.store.zero(start + harm.random.randrange(-(-filled // _PAGE_BYTES)) * _PAGE_BYTES, _PAGE_BYTES)


def _missing_middle_file(harm: Harm) -> None:
    """A segment between the first and the last is not there."""
    harm.store.lose(segment=harm.random.randrange(1, harm.full_segments - 1))


def _empty_last_file(harm: Harm) -> None:
    """The last segment has a length of 0, or there is one more such behind it."""
    if harm.random.random() < 0.5:
        harm.store.cut(-1, 0)
    else:
        start = int(harm.store.segments[-1].name) + harm.store.segment_size_bytes
        (harm.store.root / paths.COMMITLOG / paths.segment_name(start)).touch()


def _short_last_file(harm: Harm) -> None:
    """The last segment is cut, at a page or beside one."""
    pages = harm.store.segment_size_bytes // _PAGE_BYTES
    harm.store.cut(-1, harm.random.randrange(1, pages) * _PAGE_BYTES - harm.random.choice((0, 0, 1, 77)))


def _stale_tail(harm: Harm) -> None:
    """One to five old records right behind the last one, as an older use of the file leaves them."""
    messages = harm.store.truth["messages"]
    at = harm.store.end_phy_offset
    first = harm.random.randrange(len(messages) // 2)
    for number in range(first, first + harm.random.randrange(1, 6)):
        if at % harm.store.segment_size_bytes + messages[number]["storeSize"] > harm.store.segment_size_bytes:
            break
        harm.planted.records.append((harm.store.copy_record(number, to=at), messages[number]))
        at += messages[number]["storeSize"]


def _nothing(_: Harm) -> None:
    """Left as it is."""


def _clean(harm: Harm) -> None:
    """No `abort` file."""
    set_exit(harm.store.root, "clean")


def _crash(harm: Harm) -> None:
    """`abort` is there."""
    set_exit(harm.store.root, "crash")


AXES: Final[dict[str, dict[str, Callable[[Harm], None]]]] = {
    "exit": {"clean": _clean, "crash": _crash},
    "checkpoint": {"sane": _nothing, "missing": _no_checkpoint, "ahead": _checkpoint_ahead, "zero": _checkpoint_zero},
    "queues": {
        "whole": _nothing,
        "missing": _queues_missing,
        "one missing": _queue_missing,
        "tail lost": _queue_tails_lost,
        "hole": _queue_hole,
        "ghosts": _queue_ghosts,
        "filler at the end": _queue_filler,
    },
    "log": {
        "whole": _nothing,
        "torn tail": _torn_tail,
        "flipped body": _flipped_body,
        "flipped length": _flipped_length,
        "zeroed page": _zeroed_page,
        "missing middle file": _missing_middle_file,
        "empty last file": _empty_last_file,
        "short last file": _short_last_file,
        "stale tail": _stale_tail,
    },
}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One combination: a value of each axis, in the order of AXES."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"{axis} {value}" for axis, value in zip(AXES, self.values, strict=True))

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> Planted:
        """Do the harm to a copy of a golden store; gives what was planted in it."""
        harm = Harm(Damageable(root, truth), Random(f"{seed}/{self}"), Planted())
        for axis, value in zip(AXES, self.values, strict=True):
            AXES[axis][value](harm)
        return harm.planted


@dataclass(frozen=True, slots=True)
class Surgery:
    """Recorded surgery cases combined, for what the axes do not reach."""

    base: str
    names: tuple[str, ...]
    exit: Exit

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> None:
        for name in self.names:
            for op in stores.cases(self.base)[name]["ops"]:
                apply_op(root, op)
        set_exit(root, self.exit)


@dataclass(frozen=True, slots=True)
class Properties:
    """A record in the middle of the log, or the first one of a topic, with other properties of the same length.

    ``by``: its properties' length counts so many bytes less than there are. ``without_derived``: neither queues nor index.
    """

    text: bytes
    exit: Exit
    topic: str = ""
    by: int = 0
    without_derived: bool = False

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> None:
        store, messages = Damageable(root, truth), truth["messages"]
        text = self.text + b"filler" + bytes([record.NAME_VALUE_SEPARATOR])
        for number in range(0 if self.topic else len(messages) // 2, len(messages)):
            at = store.field_at(number, "properties")
            size = messages[number]["phyOffset"] + messages[number]["storeSize"] - at
            if self.topic in ("", messages[number]["topic"]) and size > len(text):
                break
        else:
            raise ValueError(f"no record has room for {text!r}")
        store.write(at, text.ljust(size, b"x"))
        store.write(at - record.PROPERTIES_LENGTH.size_bytes, record.PROPERTIES_LENGTH.struct.pack(size - self.by))
        if self.without_derived:
            shutil.rmtree(root / paths.CONSUMEQUEUE)
            shutil.rmtree(root / paths.INDEX)
        set_exit(root, self.exit)


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """Some entries of batch queues tell other numbers for their first messages: drawn ones, their neighbours', or each other's."""

    entries: int
    number: int

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> None:
        random = Random(f"{seed}/{self}")
        whole = {
            path: path.read_bytes() for path in sorted((root / paths.BATCHCONSUMEQUEUE).rglob("*")) if path.is_file()
        }
        for _ in range(self.entries):
            path, data = random.choice([*whole.items()])
            places = _batch_numbers(data)
            chosen = random.choice((random.choice(places), places[0], places[-1]))
            told, other = (_BATCH_NUMBER.unpack_from(data, at)[0] for at in (chosen, random.choice(places)))
            wrong = [told ^ 1 << random.randrange(8), max(told - 1, 0), told + 1, other, 0, _HIGHEST_NUMBER]
            if chosen != places[-1]:  # else there is no end to pulling
                wrong.append(told ^ 1 << random.randrange(63))
            _write_batch_number(path, chosen, random.choice(wrong))
        set_exit(root, random.choice(("clean", "crash")))


@dataclass(frozen=True, slots=True)
class HighestBatchNumber:
    """An entry of the first batch queue, the newest or the oldest, tells the highest number there is: behind it they wrap."""

    is_newest: bool
    exit: str

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> None:
        files = sorted(sorted((root / paths.BATCHCONSUMEQUEUE).glob("*/*"))[0].iterdir())
        path = files[-1 if self.is_newest else 0]
        places = _batch_numbers(path.read_bytes())
        _write_batch_number(path, places[-1 if self.is_newest else 0], _HIGHEST_NUMBER)
        set_exit(root, self.exit)


def _batch_numbers(data: bytes) -> list[int]:
    """Where the entries of a batch queue's file tell their first numbers; an entry's last bytes are zeros."""
    used = -(-len(data.rstrip(b"\0")) // queue.BATCH_ENTRY.size_bytes)
    return [place * queue.BATCH_ENTRY.size_bytes + queue.BATCH_ENTRY.offset_of("queue_offset") for place in range(used)]


def _write_batch_number(path: Path, at: int, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(_BATCH_NUMBER.pack(number))


@dataclass(frozen=True, slots=True)
class ExtUnits:
    """Some bytes or bits in units of the further files for tags are others, more often in the newest units and in lengths."""

    units: int
    number: int

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> None:
        random = Random(f"{seed}/{self}")
        size, length = queue.EXT_UNIT.field_struct("size_bytes"), queue.EXT_UNIT.offset_of("bitmap_length")
        files = sorted(path for path in (root / paths.CONSUMEQUEUE_EXT).glob("*/*/*") if any(path.read_bytes()))
        for _ in range(self.units):
            path = random.choice(files)
            data, places = bytearray(path.read_bytes()), [0]
            last = len(data) - queue.EXT_UNIT.size_bytes
            while places[-1] < (behind := places[-1] + size.unpack_from(data, places[-1])[0]) < last:
                places.append(behind)
            at = random.choice((random.choice(places), *places[-3:]))
            at += random.choice((0, 1, length, length, length + 1, random.randrange(queue.EXT_UNIT.size_bytes)))
            data[at] = random.choice((data[at] ^ 1 << random.randrange(8), random.randrange(256)))
            path.write_bytes(data)
        set_exit(root, random.choice(("clean", "crash")))


def product() -> Iterator[Cell]:
    """Every cell."""
    return (Cell(values) for values in itertools.product(*AXES.values()))
