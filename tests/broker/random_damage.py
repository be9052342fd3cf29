"""Random damage of all kinds on golden stores, one to four kinds at a time, drawn from a seed and the case's number alone.

Weights and values are those under which the reduced cases of ``multidamage-*`` in tests/data were found. Config files are left out: the
store code that the cases are given to does not read them (tests/broker/test_config_load.py has them).
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from store_core.layout import checkpoint, index, paths, queue, record
from store_core.layout.schema import Layout
from tests.damage import Damageable
from tests.surgery import set_exit

# Which stores a release is given.
STORES: Final = {
    "4.9.7": ("load-497", "crash-497", "clean-497", "cqext-497", "lmq-497", "clean-430"),
    "5.1.4": ("clean-514", "load-533", "crash-533", "bcq-533", "ipv6-533"),
    "5.3.3": ("load-533", "crash-533", "clean-533", "bcq-533", "cqext-533", "lmq-533", "ipv6-533", "propcrc-533", "pool-533"),
    "5.4.0": ("crash-540", "clean-540", "load-533", "crash-533", "propcrc-533"),
}  # fmt: skip

_NONE_LEFT: Final = (OSError, IndexError, ValueError, struct.error, AssertionError, KeyError, StopIteration)
_EDGES_4: Final = (
    0, 1, 7, 8, 90, 91, 255, 256, 65535, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDAA320A7, 0xDAA320AB, 0xCBD43194,
)  # fmt: skip
_EDGES_8: Final = (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 32, 1 << 40)
_DAY_MS: Final = 86_400_000
_SECTOR: Final = 512
_HEADS: Final = (
    "size_bytes", "size_bytes", "magic", "magic", "body_crc", "queue_id", "queue_id", "flag", "queue_offset", "queue_offset", "own_phy_offset",
    "own_phy_offset", "sys_flag", "sys_flag", "born_timestamp_ms", "store_timestamp_ms", "reconsume_times", "prepared_transaction_offset",
    "body_length", "body_length",
)  # fmt: skip


@dataclass(slots=True)
class _Draw:
    """What a kind works on: the copy, and where chance takes it."""

    store: Damageable
    random: Random

    @property
    def size(self) -> int:
        return self.store.segment_size_bytes

    def log_files(self) -> list[Path]:
        return sorted(p for p in (self.store.root / paths.COMMITLOG).iterdir() if p.is_file() and p.stat().st_size)

    def used_files(self) -> list[Path]:
        found = [p for p in self.log_files() if p.name.isdecimal() and int(p.name) < self.store.end_phy_offset]
        return found or self.log_files()

    def segment(self) -> Path:
        used = self.used_files()
        return used[-1] if self.random.random() < 0.4 else self.random.choice(used)

    def record(self) -> dict[str, Any]:
        """Half of them near the log's end."""
        count = len(self.store.truth["messages"])
        if self.random.random() < 0.5:
            return self.store.message(max(count - 1 - int(self.random.expovariate(1 / 30)), 0))
        return self.store.message(self.random.randrange(count))

    def number(self) -> int:
        """A record's number in the log."""
        at = self.record()["phyOffset"]
        return next(n for n, m in enumerate(self.store.truth["messages"]) if m["phyOffset"] == at)

    def used_bytes(self, path: Path) -> int:
        start = int(path.name) if path.name.isdecimal() else 0
        return max(min(self.store.end_phy_offset - start, path.stat().st_size), 1)

    def queue_files(self) -> list[Path]:
        trees = [self.store.root / tree for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE)]
        return sorted(p for tree in trees for p in tree.glob("*/*/*") if p.is_file() and p.stat().st_size)

    def index_file(self) -> Path:
        return self.random.choice(sorted(p for p in (self.store.root / paths.INDEX).iterdir() if p.is_file()))

    def value(self, layout: Layout, field: str, old: int) -> bytes:
        """An edge value, the old one a little off, with one bit wrong, or random."""
        width = layout.field(field).size_bytes
        new = self.random.choice(
            (
                self.random.choice(_EDGES_4 if width == 4 else _EDGES_8),
                old + self.random.choice((-1, 1, -8, 8, -100, 100, -4096, 4096)),
                old ^ 1 << self.random.randrange(8 * width),
                self.random.getrandbits(8 * width),
            )
        )
        return (new & (1 << 8 * width) - 1).to_bytes(width, "big")


def _write(path: Path, at: int, data: bytes) -> None:
    """Overwrite what is there; no file grows."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data[: max(size - at, 0)])


def _read(path: Path, at: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(size)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _flip(path: Path, at: int, bit: int) -> None:
    _write(path, at, bytes([_read(path, at, 1)[0] ^ 1 << bit]))


def _swap(one: tuple[Path, int], other: tuple[Path, int], size: int) -> None:
    data, others = _read(*one, size), _read(*other, size)
    _write(*one, others)
    _write(*other, data)


def log_bits(d: _Draw) -> None:
    path = d.segment()
    for _ in range(d.random.choice((1, 1, 2, 5, 20))):
        _flip(path, d.random.randrange(min(d.used_bytes(path) + 8, path.stat().st_size)), d.random.randrange(8))


def log_head(d: _Draw) -> None:
    field, number = d.random.choice(_HEADS), d.number()
    at = d.store.field_at(number, field)
    layout = next(each for each in (record.HEAD, record.STORE_TIME, record.MIDDLE) if field in each.names)
    old = int.from_bytes(d.store.read(at, layout.field(field).size_bytes), "big")
    d.store.write(at, d.value(layout, field, old))


def log_tailpart(d: _Draw) -> None:
    number = d.number()
    topic, rest = d.store.field_at(number, "topic"), d.store.field_at(number, "properties")
    end = d.store.message(number)["phyOffset"] + d.store.message(number)["storeSize"]
    at = d.random.choice((topic - 1, d.random.randrange(topic, rest - 2), rest - 1, d.random.randrange(rest - 2, end)))
    d.store.write(at, bytes([d.random.choice((0, 1, 2, 127, 255, d.random.randrange(256)))]))


def log_zero(d: _Draw) -> None:
    path, size = d.segment(), d.random.choice((512, 4096, 8192, 16384))
    at = d.random.randrange(d.used_bytes(path))
    _write(path, at - at % _SECTOR if d.random.random() < 0.8 else at, bytes(size))


def log_block(d: _Draw) -> None:
    size, target = d.random.choice((512, 4096, 8192)), d.segment()
    others = d.log_files() if d.random.random() < 0.7 else [*d.queue_files(), d.index_file()]
    source = d.random.choice([p for p in others if p != target])
    at = d.random.randrange(d.used_bytes(target)) // size * size
    _write(target, at, _read(source, d.random.randrange(source.stat().st_size) // size * size, size))


def log_swap(d: _Draw) -> None:
    size, paths_ = d.random.choice((512, 4096)), [d.segment(), d.segment()]
    one, other = ((p, d.random.randrange(d.used_bytes(p)) // size * size) for p in paths_)
    _swap(one, other, size)


def log_record_copy(d: _Draw) -> None:
    d.store.copy_record(d.number(), to=d.record()["phyOffset"])


def log_truncate(d: _Draw) -> None:
    path = d.segment()
    size = path.stat().st_size
    page = d.random.randrange(size) // 4096 * 4096
    os.truncate(path, d.random.choice((0, size // 2, d.random.randrange(size), page, size - 4096, size - 1)))


def log_extend(d: _Draw) -> None:
    more = d.random.choice((1, 8, 512, 4096, d.size, d.random.randrange(1, d.size)))
    _append(d.segment(), bytes(more) if d.random.random() < 0.5 else d.random.randbytes(more))


def log_remove(d: _Draw) -> None:
    files = d.used_files()
    d.random.choice((files[0], files[-1], d.random.choice(files))).unlink()


def log_rename(d: _Draw) -> None:
    path = d.segment()
    at, last = int(path.name), int(d.log_files()[-1].name)
    name = d.random.choice(
        (
            paths.segment_name(at + 1),
            paths.segment_name(last + d.size),
            str(at),
            f"{path.name}.bak",
            f"{path.name}~",
            paths.segment_name(at + d.size // 2),
            f"x{path.name}",
            paths.segment_name(max(at - d.size, 0)),
        )
    )
    path.rename(path.with_name(name))


def log_copy(d: _Draw) -> None:
    path = d.segment()
    at, last = int(path.name), int(d.log_files()[-1].name)
    names = (at + d.size, at + 2 * d.size, None, last + 7, int(d.segment().name))
    to = d.random.choice(names)
    target = path.with_name(f"{path.name}.bak" if to is None else paths.segment_name(to))
    if target != path:
        shutil.copyfile(path, target)


def log_stray(d: _Draw) -> None:
    folder = d.store.root / paths.COMMITLOG
    match d.random.randrange(3):
        case 0:
            (folder / d.random.choice(("lost+found", "00000000000000000001"))).mkdir()
        case 1:
            (folder / ".nfs0001").write_bytes(bytes(d.random.choice((0, 40))))
        case _:
            name = d.random.choice(("backup", "zzz", "00000000000000000007", "99999999999999999999"))
            (folder / name).write_bytes(bytes(d.size))


def log_tail_garbage(d: _Draw) -> None:
    end = d.store.end_phy_offset
    room = d.size - end % d.size
    match d.random.randrange(3):
        case 0:
            d.store.write(end, d.random.randbytes(d.random.randrange(1, 5001))[:room])
        case 1:
            old = d.store.message(d.random.randrange(len(d.store.truth["messages"])))
            d.store.write(end, d.store.read(old["phyOffset"], old["storeSize"])[:room])
        case _:
            path = d.segment()
            data = _read(path, d.random.randrange(max(d.used_bytes(path) - 4096, 1)), 4096)
            at = end + -end % _SECTOR
            d.store.write(at, data[: d.size - at % d.size])


def log_torn(d: _Draw) -> None:
    end, all_of_them = d.store.end_phy_offset, d.random.random() < 0.4
    for sector in range((end - d.random.randrange(12000)) // _SECTOR, end // _SECTOR + 1):
        if all_of_them or d.random.random() < 0.5:
            d.store.write(sector * _SECTOR, bytes(_SECTOR))


def log_blank(d: _Draw) -> None:
    path = d.random.choice(d.used_files()[:-1])
    start = int(path.name)
    at = max(
        m["phyOffset"] + m["storeSize"] - start for m in d.store.truth["messages"] if m["phyOffset"] < start + d.size
    )
    if d.random.random() < 0.7:
        _write(path, at + d.random.randrange(8), d.random.randbytes(1))
    else:
        _write(path, at, bytes(8))


def _width(path: Path) -> int:
    return queue.BATCH_ENTRY.size_bytes if paths.BATCHCONSUMEQUEUE in path.parts else queue.ENTRY.size_bytes


def _used(path: Path) -> int:
    return max(len(path.read_bytes().rstrip(b"\0")), 1)


def cq_bits(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    for _ in range(d.random.choice((1, 3, 10))):
        _flip(path, d.random.randrange(_used(path)), d.random.randrange(8))


def cq_zero(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    size = d.random.choice((20, 60, 100, 512, 0))
    _write(path, d.random.randrange(_used(path)) // 20 * 20 if size else 0, bytes(size or path.stat().st_size))


def cq_swap(d: _Draw) -> None:
    size = d.random.choice((20, 500, 512))
    one, other = ((p, d.random.randrange(_used(p)) // size * size) for p in d.random.choices(d.queue_files(), k=2))
    _swap(one, other, size)


def cq_other(d: _Draw) -> None:
    source, target = d.random.choices(d.queue_files(), k=2)
    width = _width(target)
    at, to = (d.random.randrange(_used(p)) // width * width for p in (source, target))
    _write(target, to, _read(source, at, d.random.choice((1, 2, 5, 30)) * width))


def cq_field(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    width, count = _width(path), -(-_used(path) // _width(path))
    place = count - 1 - d.random.randrange(4) if d.random.random() < 0.5 else d.random.randrange(count)
    layout = queue.BATCH_ENTRY if width == queue.BATCH_ENTRY.size_bytes else queue.ENTRY
    field = d.random.choice(("phy_offset", "size_bytes", "tags_code"))
    size = layout.field(field).size_bytes
    at = max(place, 0) * width + layout.offset_of(field)
    old = int.from_bytes(_read(path, at, size), "big")
    edges = _EDGES_4 if size == 4 else _EDGES_8
    new = d.random.choice((d.random.choice(edges), d.store.end_phy_offset, old + 1000, d.random.getrandbits(8 * size)))
    _write(path, at, (new & (1 << 8 * size) - 1).to_bytes(size, "big"))


def cq_tail_garbage(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    used = -(-_used(path) // _width(path)) * _width(path)
    _write(path, used, d.random.randbytes(d.random.choice((1, 20, 90, 512))))


def cq_truncate(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    size = path.stat().st_size
    os.truncate(path, d.random.choice((0, d.random.randrange(size), d.random.randrange(size) // 20 * 20, size // 2)))


def cq_extend(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    _append(path, bytes(d.random.choice((1, 20, 4096, path.stat().st_size))))


def cq_remove(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    gone = d.random.choice((path, path.parent, path.parents[1], path.parents[2]))
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)


def cq_rename(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    at, size = int(path.name), path.stat().st_size
    names = (*(paths.segment_name(at + more) for more in (size, 20, 5 * size)), f"{path.name}.bak")
    path.rename(path.with_name(d.random.choice(names)))


def cq_copy(d: _Draw) -> None:
    path = d.random.choice(d.queue_files())
    match d.random.randrange(4):
        case 0:
            shutil.copyfile(path, path.with_name(paths.segment_name(int(path.name) + path.stat().st_size)))
        case 1:
            shutil.copytree(path.parent, path.parents[1] / d.random.choice(("7", "99", "old")))
        case 2:
            shutil.copytree(path.parents[1], path.parents[2] / "Copied_topic")
        case _:
            (path.parent / "folder").mkdir()


def index_bits(d: _Draw) -> None:
    path = d.index_file()
    for _ in range(d.random.choice((1, 5, 30))):
        end = index.HEADER.size_bytes if d.random.random() < 0.4 else path.stat().st_size
        _flip(path, d.random.randrange(end), d.random.randrange(8))


def index_head(d: _Draw) -> None:
    path = d.index_file()
    field = d.random.choice(index.HEADER.names)
    at, size = index.HEADER.offset_of(field), index.HEADER.field(field).size_bytes
    old = int.from_bytes(_read(path, at, size), "big")
    news = (
        d.random.choice(_EDGES_4 if size == 4 else _EDGES_8),
        old + 1,
        old - 1,
        old + _DAY_MS,
        d.store.end_phy_offset,
    )
    new = d.random.choice((*news, d.random.getrandbits(8 * size)))
    _write(path, at, (new & (1 << 8 * size) - 1).to_bytes(size, "big"))


def index_zero(d: _Draw) -> None:
    path = d.index_file()
    size = d.random.choice((40, 512, 4096))
    _write(path, d.random.randrange(path.stat().st_size) // size * size, bytes(size))


def index_file(d: _Draw) -> None:
    path = d.index_file()
    match d.random.randrange(8):
        case 0:
            os.truncate(path, d.random.randrange(path.stat().st_size))
        case 1:
            path.unlink()
        case 2:
            path.rename(path.with_name(d.random.choice(("x", "20300101000000000", f"{path.name}.bak"))))
        case 3:
            _append(path, bytes(d.random.choice((1, 4096))))
        case 4:
            shutil.copyfile(path, path.with_name(d.random.choice(("copy", "20200101000000000", "20300101000000000"))))
        case 5:
            (path.parent / d.random.choice(("folder", "20250101000000000"))).mkdir()
        case 6:
            shutil.rmtree(path.parent)
        case _:
            path.write_bytes(d.index_file().read_bytes())


def checkpoint_(d: _Draw) -> None:
    path, kind = d.store.root / paths.CHECKPOINT, d.random.randrange(10)
    if kind < 6:
        last = d.store.message(-1)["storeTimestamp"]
        some = d.store.message(d.random.randrange(len(d.store.truth["messages"])))["storeTimestamp"]
        times = (0, 1, -1, last + 1, last - 1, last - d.random.randrange(30_000), last + _DAY_MS, some)
        new = d.random.choice((*times, d.random.getrandbits(63), -d.random.getrandbits(40), 1 << 62))
        names = ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms")
        for name in names if d.random.random() < 0.4 else (d.random.choice(names),):
            _write(path, checkpoint.CHECKPOINT.offset_of(name), struct.pack(">q", new))
    elif kind == 6:
        os.truncate(path, d.random.choice((0, 8, 16, 23, 24, 40, 4095, 8192)))
    elif kind == 7:
        path.unlink()
    else:
        fill = d.random.choice((b"\0", b"\xff", None))
        path.write_bytes(fill * path.stat().st_size if fill else d.random.randbytes(path.stat().st_size))


def other(d: _Draw) -> None:
    root = d.store.root
    match d.random.randrange(4):
        case 0:
            path = next(p for p in (root / paths.TIMERLOG, root / paths.TIMERCHECK) if p.exists())
            path = next(iter(sorted(path.iterdir()))) if path.is_dir() else path
            _write(path, d.random.randrange(max(path.stat().st_size, 1)), d.random.randbytes(20))
        case 1:
            (root / paths.LOCK).unlink()
        case 2:
            (root / paths.ABORT).unlink(missing_ok=True)
            (root / paths.ABORT).mkdir()
        case _:
            (root / "stray").write_bytes(b"stray")


_Kind = Callable[[_Draw], None]
KINDS: Final[dict[_Kind, float]] = {
    log_bits: 6, log_head: 9, log_tailpart: 4, log_zero: 7, log_block: 5, log_swap: 4, log_record_copy: 3, log_truncate: 3, log_extend: 1.5,
    log_remove: 2.5, log_rename: 1.5, log_copy: 2, log_stray: 0.7, log_tail_garbage: 3, log_torn: 4, log_blank: 2, cq_bits: 4, cq_zero: 4,
    cq_swap: 2, cq_other: 3, cq_field: 4, cq_tail_garbage: 2, cq_truncate: 2, cq_extend: 0.7, cq_remove: 4, cq_rename: 1, cq_copy: 1.5,
    index_bits: 2, index_head: 3, index_zero: 1.5, index_file: 3, checkpoint_: 8, other: 1.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RandomDamage:
    """Case ``number`` of a seed; ``kinds_done`` tells which kinds."""

    number: int

    def __str__(self) -> str:
        return f"random damage {self.number}"

    def apply(self, root: Path, truth: dict[str, Any], seed: int) -> None:
        """Damage a copy of a golden store; a kind that does not apply is drawn anew."""
        self.kinds_done(root, truth, seed)

    def kinds_done(self, root: Path, truth: dict[str, Any], seed: int) -> list[str]:
        """As ``apply``; return the names of the kinds."""
        random = Random(f"{seed}/{self.number}")
        draw = _Draw(Damageable(root, truth), random)
        set_exit(root, "crash" if random.random() < 0.5 else "clean")
        wanted = random.choices((1, 2, 3, 4), (2, 3, 3, 2))[0]
        done: list[str] = []
        for _ in range(50):
            if len(done) == wanted:
                break
            (kind,) = random.choices([*KINDS], [*KINDS.values()])
            with suppress(*_NONE_LEFT):
                kind(draw)
                done.append(kind.__name__)
        return done


def draws(version: str, count: int, seed: int) -> dict[str, list[RandomDamage]]:
    """So many cases for a release, by the store that each is done to."""
    found: dict[str, list[RandomDamage]] = {}
    for number in range(count):
        base = Random(f"{seed}/{version}/{number}").choice(STORES[version])
        found.setdefault(base, []).append(RandomDamage(number))
    return found
