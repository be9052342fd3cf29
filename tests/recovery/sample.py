"""A small tree with the names of a store, and a plan for it with every kind of step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Building, Built, Chunk, Plan, Zeros, register_builder

LONG_AGO_NS = 1_600_000_000_123_456_789
SEGMENT_SIZE_BYTES = 4096


def toy(building: Building) -> Iterator[Chunk]:
    """Files of a repeated letter, a piece of each in turn, and a last byte put first."""
    letter = str(building.arguments["letter"]).encode()
    size_bytes = int(building.arguments["size_bytes"])
    for path in building.paths:
        yield Chunk(path, b"!", size_bytes - 1)
    for at in range(0, size_bytes - 1, 100):
        for path in building.paths:
            yield Chunk(path, letter * min(100, size_bytes - 1 - at), at)


register_builder("toy", toy)


def toy_bytes(letter: str, size_bytes: int) -> bytes:
    return letter.encode() * (size_bytes - 1) + b"!"


def make_tree(root: Path) -> Path:
    """Files of different bytes, each with a time of its own, some of them with odd modes."""
    files = {
        "lock": b"lock",
        "abort": b"",
        "checkpoint": bytes(range(24)),
        "config/topics.json": b'{"a":1}',
        "config/consumerOffset.json": b"{}",
        "consumequeue/T/0/00000000000000000000": b"T0" * 200,
        "consumequeue/T/1/00000000000000000000": b"T1" * 150,
        "consumequeue/Gone/0/00000000000000000000": b"G" * 100,
        "index/20260101000000000": b"index" * 100,
    }
    for number in range(4):
        name = f"commitlog/{number * SEGMENT_SIZE_BYTES:020d}"
        files[name] = bytes((at * 7 + number) % 251 + 1 for at in range(SEGMENT_SIZE_BYTES))
    for at, (name, data) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(LONG_AGO_NS + at, LONG_AGO_NS + 1000 + at))
    (root / "consumequeue/T/0/00000000000000000000").chmod(0o640)
    (root / "consumequeue/T/1/00000000000000000000").chmod(0o666)
    for at, (folder, _, _) in enumerate(os.walk(root, topdown=False)):
        os.utime(folder, ns=(LONG_AGO_NS - at, LONG_AGO_NS - 1000 - at))
    return root


def make_plan(root: Path) -> Plan:
    """Every kind of step, in place and as a whole, with bytes of all sources."""
    draft = Draft(root)
    log = [f"commitlog/{number * SEGMENT_SIZE_BYTES:020d}" for number in range(4)]
    draft.write_range(log[0], 100, b"filler head", Zeros(300), b"tail", why="filler over damage")
    draft.zero_range(log[0], 3000, SEGMENT_SIZE_BYTES - 3000)
    draft.write_range(log[1], 4000, Zeros(50), b"behind the end" * 20)
    draft.set_length(log[2], 1000)
    draft.zero_range(log[2], 500, 400)
    draft.write_range(log[2], 10, built=Built("toy", {"letter": "r", "size_bytes": 300}, 300))
    draft.remove_file(log[3])
    draft.set_length("checkpoint", 40)
    draft.replace_file("config/topics.json", b'{"b":2}')
    built = Built("toy", {"letter": "q", "size_bytes": 700}, 700)
    draft.write_file("consumequeue/T/0/00000000000000000000", built=built, mtime_ns=LONG_AGO_NS + 7)
    draft.write_file("consumequeue/U/3/00000000000000000000", built=built, mtime_ns=LONG_AGO_NS + 8)
    draft.write_file("consumequeue/T/1/00000000000000000000", b"queue", Zeros(5000), mtime_ns=LONG_AGO_NS + 9)
    draft.remove_file("consumequeue/Gone/0/00000000000000000000")
    draft.remove_folder("consumequeue/Gone/0")
    draft.remove_folder("consumequeue/Gone")
    draft.remove_file("abort")
    draft.depend_on("index/20260101000000000")
    return draft.plan("recover", "keep")


def make_wide_plan(root: Path) -> Plan:
    """Many files that are new, replaced, removed and changed in place, in folders that are there and that are made."""
    draft = Draft(root)
    built = Built("toy", {"letter": "w", "size_bytes": 300}, 300)
    for number in range(4):
        draft.write_range(f"commitlog/{number * SEGMENT_SIZE_BYTES:020d}", 7, b"changed in place")
        draft.write_file(f"consumequeue/Wide/{number}/00000000000000000000", built=built, mtime_ns=LONG_AGO_NS + number)
        draft.write_file(f"consumequeue/T/{number}/00000000000000000000", built=built, mtime_ns=LONG_AGO_NS + number)
    draft.remove_file("consumequeue/Gone/0/00000000000000000000")
    draft.remove_file("abort")
    return draft.plan("recover", "keep")
