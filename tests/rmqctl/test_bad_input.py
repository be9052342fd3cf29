"""Whatever the folder holds: a clear error or findings, never a traceback, never a hang, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from rmqctl.app import main
from store_core.layout import index, paths, queue
from tests import stores
from tests.conftest import differences
from tests.damage import Damageable

DamageableOf = Callable[..., Damageable]
_DEADLINE_SECONDS: Final = 30
TOPIC: Final = "Calm_audit"
COMMANDS: Final = (
    "info", "lag", "config", "checkpoint", "log", "log --all --max 5", f"dump-cq {TOPIC} 0", f"dump-cq {TOPIC} 0 --resolve",
    "dump-index", f"pull {TOPIC} 0", f"pull {TOPIC} 0 --time 0", "get 0", "get 131072", f"query-key {TOPIC} k",
    f"query-key {TOPIC} k --source scan", "trace k", "verify-crc", "check", "recover", "recover --predict", "recover --policy broker",
    "truncate 0", "truncate 131072", "rebuild all", "checkpoint --rebuild", "checkpoint --set confirm_phy_offset=0",
    "undo", "undo --list",
)  # fmt: skip
NO_STORE: Final = ("missing", "file", "empty", "foreign")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"not a folder")


def replace_by_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def replace_by_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def queue_file(store: Damageable) -> Path:
    return sorted((store.root / paths.CONSUMEQUEUE / TOPIC / "0").iterdir())[0]


def index_file(store: Damageable) -> Path:
    return sorted((store.root / paths.INDEX).iterdir())[0]


def folders(store: Damageable) -> list[Path]:
    """Folders of the store in which nothing but its own files belongs."""
    queues = store.root / paths.CONSUMEQUEUE
    return [store.root / paths.COMMITLOG, store.root / paths.INDEX, queues, queues / TOPIC, queues / TOPIC / "0"]


def add_folders(*added: Path) -> int:
    for folder in added:
        folder.mkdir()
    return len(added)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def rename_raw(path: Path, name: bytes) -> None:
    os.rename(os.fsencode(path), os.path.join(os.fsencode(path.parent), name))


def not_utf8(store: Damageable) -> None:
    """A topic that is no UTF-8, in a record, in the tail's record, and as a folder's name."""
    for number in (700, -1):
        store.flip(number, "topic", mask=0x80)
    rename_raw(store.root / paths.CONSUMEQUEUE / TOPIC, b"Calm\xff\xfe")


def wild_queue(store: Damageable) -> None:
    entries = [
        (-5, 100, 0),
        (1 << 62, 100, 0),
        (0, -1, 0),
        (0, (1 << 31) - 1, 0),
        (7, 91, -(1 << 63)),
        (131000, 500, 1),
    ]
    overwrite(queue_file(store), 0, b"".join(queue.ENTRY.struct.pack(*entry) for entry in entries))


def wild_index(store: Damageable) -> None:
    header = dict.fromkeys(index.HEADER.names, (1 << 31) - 1)
    overwrite(index_file(store), 0, index.HEADER.struct.pack(*header.values()))
    overwrite(index_file(store), index.slot_at(0), b"\x7f\xff\xff\xff" * 500)


BAD: Final[dict[str, Callable[[Damageable], object]]] = {
    "commitlog is a file": lambda s: replace_by_file(s.root / paths.COMMITLOG),
    "consumequeue is a file": lambda s: replace_by_file(s.root / paths.CONSUMEQUEUE),
    "a queue's topic is a file": lambda s: replace_by_file(s.root / paths.CONSUMEQUEUE / TOPIC),
    "index is a file": lambda s: replace_by_file(s.root / paths.INDEX),
    "config is a file": lambda s: replace_by_file(s.root / paths.CONFIG),
    "checkpoint is a folder": lambda s: replace_by_folder(s.root / paths.CHECKPOINT),
    "abort is a folder": lambda s: add_folders(s.root / paths.ABORT),
    "a segment is a folder": lambda s: replace_by_folder(s.segments[3]),
    "the last segment is a folder": lambda s: replace_by_folder(s.segments[-1]),
    "a queue file is a folder": lambda s: replace_by_folder(queue_file(s)),
    "an index file is a folder": lambda s: replace_by_folder(index_file(s)),
    "topics.json is a folder": lambda s: replace_by_folder(s.root / paths.CONFIG / "topics.json"),
    "a segment leads nowhere": lambda s: replace_by_dangling_link(s.segments[3]),
    "a segment leads to itself": lambda s: replace_by_loop(s.segments[-1]),
    "a queue file leads nowhere": lambda s: replace_by_dangling_link(queue_file(s)),
    "an index file leads nowhere": lambda s: replace_by_dangling_link(index_file(s)),
    "the checkpoint leads nowhere": lambda s: replace_by_dangling_link(s.root / paths.CHECKPOINT),
    "an empty segment": lambda s: s.cut(3, 0),
    "an empty first segment": lambda s: s.cut(0, 0),
    "segments of odd lengths": lambda s: [s.cut(n, 10_000 + 7 * n) for n in (1, 3, -1)],
    "one short segment alone": lambda s: [s.cut(0, 5000), *(s.lose(-1) for _ in range(7))],
    "an empty segment alone": lambda s: [s.cut(0, 0), *(s.lose(-1) for _ in range(7))],
    "a hole": lambda s: s.lose(3),
    "no log": lambda s: shutil.rmtree(s.root / paths.COMMITLOG),
    "no segment": lambda s: [s.lose(-1) for _ in range(8)],
    "foreign files": lambda s: [folder.joinpath("readme.txt").write_text("hello") for folder in folders(s)],
    "foreign folders": lambda s: add_folders(*(folder / "old" for folder in folders(s))),
    "names that are no numbers that fit": lambda s: [
        (s.root / paths.COMMITLOG / ("9" * 20)).write_bytes(b"x" * 100),
        add_folders(s.root / paths.CONSUMEQUEUE / TOPIC / ("9" * 20)),
    ],
    "topics that are no UTF-8": not_utf8,
    "sizes that lie": lambda s: [s.set_field(n, "size_bytes", v) for n, v in ((300, (1 << 31) - 1), (600, -1), (900, 91), (1200, 0))],
    "body lengths that lie": lambda s: [s.set_field(n, "body_length", v) for n, v in ((300, (1 << 31) - 1), (600, -1), (-1, 1 << 20))],
    "offsets and times that lie": lambda s: [
        s.set_field(300, "queue_offset", (1 << 63) - 1), s.set_field(600, "queue_offset", -(1 << 63)), s.set_field(900, "queue_id", -7),
        s.set_field(901, "queue_id", (1 << 31) - 1), s.set_field(902, "store_timestamp_ms", -(1 << 63)),
        s.set_field(903, "store_timestamp_ms", (1 << 63) - 1), s.set_field(904, "born_timestamp_ms", (1 << 63) - 1),
    ],
    "queue entries that lie": wild_queue,
    "an index that lies": wild_index,
    "a short index": lambda s: index_file(s).write_bytes(b"\0" * 39),
    "config files that are no JSON": lambda s: [p.write_bytes(b"{\xff\x00[") for p in (s.root / paths.CONFIG).iterdir() if p.is_file()],
    "a checkpoint of wild numbers": lambda s: (s.root / paths.CHECKPOINT).write_bytes(b"\x80" + b"\xff" * 39),
}  # fmt: skip


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.product(11)
@pytest.mark.parametrize("bad", BAD)
def test_every_command_ends_well(
    bad: str, damageable: DamageableOf, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RMQCTL_STORE", raising=False)
    store = damageable("load-533")
    BAD[bad](store)
    before = stores.snapshot(store.root)
    wrong = []
    for words in COMMANDS:
        with deadline(_DEADLINE_SECONDS):
            code = main([*words.split(), "-s", str(store.root), "-o", "json"])
        out, err = capfd.readouterr()
        try:
            document = json.loads(out)
        except ValueError:
            wrong.append((words, code, out[-200:], err[-200:]))
            continue
        if code not in (0, 1, 2, 3, 10) or document.get("error", {}).get("code") == "internal" or "Traceback" in err:
            wrong.append((words, code, document.get("error"), err[-300:]))
    assert wrong == []
    assert differences(before, stores.snapshot(store.root)) == []


@pytest.mark.parametrize("what", NO_STORE)
def test_what_is_no_store_is_said_to_be_none(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    if what == "file":
        root.write_text("x")
    elif what != "missing":
        root.mkdir()
        if what == "foreign":
            (root / "notes.txt").write_text("x")
    for words in COMMANDS:
        with deadline(_DEADLINE_SECONDS):
            code = main([*words.split(), "-s", str(root), "-o", "json"])
        out, err = capfd.readouterr()
        assert (words, code, json.loads(out)["error"]["code"]) == (words, 10, "not_a_store")
        assert err.startswith("error: ")
        assert str(root) in err
    assert what in ("missing", "file") or sorted(p.name for p in root.iterdir()) == ["notes.txt"] * (what == "foreign")
