"""A store of our own making, for machines without Maven: the log by ``codec``, what follows from it by ``rmqctl rebuild``."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.commands import rmqctl, run
from store_core.codec.record import encode_blank, encode_record
from store_core.layout import paths
from store_core.layout.record import MIN_BLANK_SIZE_BYTES

if TYPE_CHECKING:
    from benchmarks.make_store import Recipe

_SEGMENT_BYTES: Final = 1 << 30
_BATCH: Final = 100
_BORN_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0, 1))
_STORE_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))


def make(root: Path, recipe: Recipe) -> int:
    """As ``broker.make``, many times slower; gives the number of messages."""
    log = root / paths.COMMITLOG
    log.mkdir(parents=True)
    noise = random.Random(7).randbytes(1 << 20)
    numbers = [0] * (recipe.topics * recipe.queues)
    number = start = 0
    while start < recipe.log_bytes:
        end = min(start + _SEGMENT_BYTES, recipe.log_bytes)
        with (log / paths.segment_name(start)).open("wb") as file:
            at = start
            while True:
                queue = number // _BATCH % len(numbers)
                record = _record(recipe, number, queue, numbers[queue], at, noise)
                if at + len(record) + MIN_BLANK_SIZE_BYTES > end:
                    break
                file.write(record)
                at, number = at + len(record), number + 1
                numbers[queue] += 1
            if end == start + _SEGMENT_BYTES:
                file.write(encode_blank(end - at))
            file.truncate(_SEGMENT_BYTES)
        start = end
    run(rmqctl("rebuild", "all", "-s", root, "--apply", "-o", "json"), accept=(0, 3))
    return number


def _record(recipe: Recipe, number: int, queue: int, queue_offset: int, at: int, noise: bytes) -> bytes:
    place = number * 509 % (len(noise) - recipe.body_bytes)
    properties = {"TAGS": f"tag{number % 10}"}
    if recipe.keys > 0:
        properties |= {"made_by": "benchmark", "UNIQ_KEY": f"U{number:015d}"}
    if recipe.keys > 1:
        properties |= {"KEYS": f"K{number}"}
    now_ms = time.time_ns() // 1_000_000
    return encode_record(
        topic=f"bench_{queue // recipe.queues}",
        body=noise[place : place + recipe.body_bytes],
        properties=properties,
        queue_id=queue % recipe.queues,
        queue_offset=queue_offset,
        phy_offset=at,
        born_timestamp_ms=now_ms,
        born_host=_BORN_HOST,
        store_timestamp_ms=now_ms,
        store_host=_STORE_HOST,
    )
