"""Writes stores of many queues or many segments in seconds, without a JVM: columns instead of a call a message.

    python -m benchmarks.wide_store FOLDER --topics 6250 --queues 8 --log 128MiB
    python -m benchmarks.wide_store FOLDER --topics 8 --log 300MiB --segment 1MiB --no-queues --crashed

All records have one size, and message n lies in queue n modulo the queues, so that neighbours in the log are never neighbours in
a queue. Queue files are as long as a broker's and as sparse. There is one group, which has read all queues but their last message.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rmqctl.options import parse_size
from store_core.codec.record import encode_blank, encode_record
from store_core.codec.tags import java_hash
from store_core.layout import checkpoint, paths, queue, record

_MIB: Final = 1 << 20
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_TAG: Final = "tag"
_TOPIC_DIGITS: Final = 5
_KEY_DIGITS: Final = 12
_GROUP: Final = "wide_group"
_AN_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class WideRecipe:
    """What a store is like: its queues, its log, and whether there are queue files and an ``abort``."""

    topics: int
    queues: int = 8  # of each topic
    log_bytes: int = 128 * _MIB
    segment_bytes: int = 128 * _MIB
    queue_file_bytes: int = queue.DEFAULT_FILE_SIZE_BYTES
    record_bytes: int = 432
    with_queues: bool = True
    crashed: bool = False

    @property
    def settings(self) -> str:
        """The broker's properties that go with the store."""
        sizes = {"CommitLog": self.segment_bytes, "ConsumeQueue": self.queue_file_bytes}
        return "".join(f"mappedFileSize{name}={size}\n" for name, size in sizes.items())


def write_store(root: Path, recipe: WideRecipe) -> int:
    """Write the store into a folder that is not there yet; return the number of messages."""
    log = root / paths.COMMITLOG
    log.mkdir(parents=True)
    began_ms = time.time_ns() // 1_000_000 - _AN_HOUR_MS
    wide = recipe.topics * recipe.queues
    template = np.frombuffer(_record(recipe), np.uint8)
    most = (recipe.segment_bytes - record.MIN_BLANK_SIZE_BYTES) // len(template)
    segments = -(-recipe.log_bytes // recipe.segment_bytes)
    for number in range(segments):
        rows = _rows(template, recipe, np.arange(number * most, (number + 1) * most), began_ms)
        with (log / paths.segment_name(number * recipe.segment_bytes)).open("wb") as file:
            file.write(rows.tobytes())
            if number < segments - 1:
                file.write(encode_blank(recipe.segment_bytes - file.tell()))
            file.truncate(recipe.segment_bytes)
    messages = segments * most
    if recipe.with_queues:
        for number in range(min(wide, messages)):
            _write_queue(root, recipe, np.arange(number, messages, wide), most, len(template))
    _write_rest(root, recipe, messages, began_ms)
    return messages


def _record(recipe: WideRecipe) -> bytes:
    """Return a record of the recipe's size, in which the numbers are 0."""
    properties = {"UNIQ_KEY": "0" * _KEY_DIGITS, "TAGS": _TAG}

    def of(body: bytes) -> bytes:
        return encode_record(
            topic=_topic(0),
            body=body,
            properties=properties,
            queue_id=0,
            queue_offset=0,
            phy_offset=0,
            born_timestamp_ms=0,
            born_host=_HOST,
            store_timestamp_ms=0,
            store_host=_HOST,
        )

    return of(b"x" * (recipe.record_bytes - len(of(b""))))


def _topic(number: int) -> str:
    return f"wide_{number:0{_TOPIC_DIGITS}d}"


def _rows(template: Any, recipe: WideRecipe, numbers: Any, began_ms: int) -> Any:
    """Return the messages with these numbers, a row each, as they lie in one segment."""
    rows = np.tile(template, (len(numbers), 1))
    wide = recipe.topics * recipe.queues
    queues = numbers % wide
    times = began_ms + numbers // 100
    start = numbers[0] // len(numbers) * recipe.segment_bytes
    head, raw = record.HEAD, template.tobytes()
    for name, values in (
        ("queue_id", queues % recipe.queues),
        ("queue_offset", numbers // wide),
        ("own_phy_offset", start + (numbers - numbers[0]) * len(template)),
        ("born_timestamp_ms", times),
    ):
        _put(rows, head.offset_of(name), values, head.field(name).type)
    _put(rows, record.store_time_at(0), times, "i8")
    _put_digits(rows, raw.rindex(_topic(0).encode()) + len(_topic(0)), queues // recipe.queues, _TOPIC_DIGITS)
    _put_digits(rows, raw.rindex(b"0" * _KEY_DIGITS) + _KEY_DIGITS, numbers, _KEY_DIGITS)
    return rows


def _put(rows: Any, at: int, values: Any, kind: str) -> None:
    big = np.ascontiguousarray(values.astype(f">{kind}"))
    rows[:, at : at + big.itemsize] = big.view(np.uint8).reshape(len(rows), -1)


def _put_digits(rows: Any, end: int, values: Any, digits: int) -> None:
    for place in range(digits):
        rows[:, end - 1 - place] = ord("0") + values // 10**place % 10


def _write_queue(root: Path, recipe: WideRecipe, numbers: Any, a_segment: int, size_bytes: int) -> None:
    number = int(numbers[0])
    folder = root / paths.CONSUMEQUEUE / _topic(number // recipe.queues) / str(number % recipe.queues)
    folder.mkdir(parents=True)
    entries = np.zeros(len(numbers), queue.ENTRY.dtype)
    entries["phy_offset"] = numbers // a_segment * recipe.segment_bytes + numbers % a_segment * size_bytes
    entries["size_bytes"] = size_bytes
    entries["tags_code"] = java_hash(_TAG)
    raw = entries.tobytes()
    for start in range(0, len(raw), recipe.queue_file_bytes):
        with (folder / paths.segment_name(start)).open("wb") as file:
            file.write(raw[start : start + recipe.queue_file_bytes])
            file.truncate(recipe.queue_file_bytes)


def _write_rest(root: Path, recipe: WideRecipe, messages: int, began_ms: int) -> None:
    newest_ms = began_ms + messages // 100
    page = checkpoint.CHECKPOINT.struct.pack(newest_ms, newest_ms, 0, *[0] * 3)
    (root / paths.CHECKPOINT).write_bytes(page.ljust(checkpoint.FILE_SIZE_BYTES, b"\0"))
    if recipe.crashed:
        (root / paths.ABORT).touch()
    each = messages // (recipe.topics * recipe.queues)
    write_config(root, [_topic(number) for number in range(recipe.topics)], recipe.queues, max(each - 1, 0))


def write_config(root: Path, topics: list[str], queues: int, progress: int) -> None:
    """Write the topics, and a group that has read so many messages of each queue, as brokers write them."""
    (root / "config").mkdir(exist_ok=True)
    version = {"counter": len(topics), "stateVersion": 0, "timestamp": 1_795_227_514_915}
    table = {
        topic: {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        for topic in topics
    }
    text = json.dumps({"dataVersion": version, "topicConfigTable": table}, indent="\t", separators=(",", ":"))
    (root / paths.TOPICS_JSON).write_text(text)
    offsets = ",".join(f"{queue_id}:{progress}" for queue_id in range(queues))
    rows = ",\n\t\t".join(f'"{topic}@{_GROUP}":{{{offsets}\n\t\t}}' for topic in topics)
    (root / paths.CONSUMER_OFFSET_JSON).write_text(f'{{\n\t"offsetTable":{{\n\t\t{rows}\n\t}}\n}}')


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_store", description=__doc__)
    parser.add_argument("root", type=Path, help="the store's folder, which is made")
    parser.add_argument("--topics", type=int, required=True)
    parser.add_argument("--queues", type=int, default=8, help="of each topic")
    parser.add_argument("--log", type=parse_size, default=128 * _MIB, help="bytes of log")
    parser.add_argument("--segment", type=parse_size, default=128 * _MIB, help="bytes of a segment")
    parser.add_argument("--queue-file", type=int, default=queue.DEFAULT_FILE_SIZE_BYTES, help="bytes of a queue file")
    parser.add_argument("--no-queues", action="store_true", help="no queue files")
    parser.add_argument("--crashed", action="store_true", help="with `abort`")
    said = parser.parse_args()
    recipe = WideRecipe(
        said.topics,
        said.queues,
        said.log,
        said.segment,
        said.queue_file,
        with_queues=not said.no_queues,
        crashed=said.crashed,
    )
    messages = write_store(said.root, recipe)
    print(f"{said.root}: {messages} messages in {said.topics * said.queues} queues\n{recipe.settings}", end="")


if __name__ == "__main__":
    main()
