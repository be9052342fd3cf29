"""Offsets by time in batch queues: a real store builds the queue in small files, and is asked what ours is asked."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.layout.queue import BATCH_ENTRY
from store_core.read.queue import BatchQueue
from store_core.read.time_lookup import Boundary, offset_by_time
from store_core.storage.store import QueueKey, Store
from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.conftest import StoreCopy

_QUEUE: Final = QueueKey("Bcq_inner", 0)
_ENTRIES_A_FILE: Final = 7
_BOUNDARIES: Final[tuple[Boundary | None, ...]] = (None, "lower", "upper")
_RELEASES: Final = [version for version in oracle.VERSIONS if not version.startswith("4.")]


def _properties() -> str:
    text = stores.properties_text("bcq-533")
    return f"{text}mapperFileSizeBatchConsumeQueue={_ENTRIES_A_FILE * BATCH_ENTRY.size_bytes}\n"


def _with_times(root: Path, of: Any) -> list[list[int]]:
    """Gives every entry of the queue another store time: ``of`` its own; the new ones, by the file."""
    times: list[list[int]] = []
    for path in sorted((root / "batchconsumequeue" / _QUEUE.topic / str(_QUEUE.queue_id)).iterdir()):
        data = bytearray(path.read_bytes())
        times.append([])
        for at in range(0, len(data), BATCH_ENTRY.size_bytes):
            fields = list(BATCH_ENTRY.struct.unpack_from(data, at))
            if fields[1] > 0:
                fields[3] = of(fields[3])
                times[-1].append(fields[3])
                BATCH_ENTRY.struct.pack_into(data, at, *fields)
        path.write_bytes(data)
    return times


@pytest.mark.parametrize("version", _RELEASES)
def test_ours_ends_where_the_broker_ends(open_store: OpenStore, store_copy: StoreCopy, version: str) -> None:
    root = store_copy("bcq-533")
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder)
    built = Path(open_store("5.3.3", root, _properties(), start_ms=0)["root"])
    times = _with_times(built, lambda time_ms: time_ms // 64 * 64)
    files = [file for file in times if file]
    assert len(files) > 12
    assert any(a[-1] == b[0] for a, b in itertools.pairwise(files))
    assert any(a[-1] != b[0] for a, b in itertools.pairwise(files))

    known = sorted({time_ms for file in files for time_ms in file})
    moments = [0, *(time_ms + more for time_ms in known for more in (-1, 0, 1)), 1 << 50]
    asked = [(time_ms, boundary) for time_ms in moments for boundary in _BOUNDARIES]
    requests = [oracle.time_lookup(*_QUEUE, time_ms, boundary) for time_ms, boundary in asked]
    told = open_store(version, built, _properties(), requests=requests, start_ms=1000, stop=False)["answers"]
    with Store.open(built) as store:
        queue = BatchQueue(store.batch_queues[_QUEUE], store.log)
        ours = [offset_by_time(queue, *question) for question in asked]
    assert dict(zip(asked, ours, strict=True)) == {
        question: answer["queueOffset"] for question, answer in zip(asked, told, strict=True)
    }


def test_a_queue_begins_in_its_first_file(open_store: OpenStore, store_copy: StoreCopy) -> None:
    root = store_copy("bcq-533")
    for segment in sorted((root / "commitlog").iterdir())[:-1]:
        segment.unlink()
    told = open_store("5.3.3", root, stores.properties_text("bcq-533"), start_ms=0)["afterLoad"]["queues"]
    with Store.open(root) as store:
        for key, files in store.batch_queues.items():
            queue = BatchQueue(files, store.log)
            expired = [e for e in queue.entries(0, queue.max_offset) if e.phy_offset < store.log.min_phy_offset]
            assert len(expired) > len(queue.written_slots()[0])  # more than the first file holds
            [real] = [q for q in told if (q["topic"], q["queueId"]) == key]
            assert (queue.min_offset, queue.max_offset) == (real["min"], real["max"])
            assert queue.min_offset > 0
