"""Causes for which predictions once differed from real store code under random damage: each case as recorded (tests/data/README.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.queue_recovery import QueueState
from store_core.broker.start import Start, start_broker
from store_core.broker.versions import Version, behaviour_of
from store_core.layout import paths
from store_core.recovery.prediction.predict import ResurrectionSearch, outcome_of_start
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker.outcomes import compare_with_start, file_of
from tests.broker.verdict import Place, whole_messages
from tests.conftest import GoldenStore, StoreCopy
from tests.surgery import Exit, apply_case

RECORDED = [
    (base, by, key)
    for base, releases in stores.MULTIDAMAGE.items()
    for by in (None, *releases)
    for key in stores.outcomes(f"multidamage-{base}", by)
]


@pytest.mark.product(48)
@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case[0]}-by-{case[1]}-{case[2]}")
def test_start_and_losses_are_as_recorded(
    case: tuple[str, str | None, str], store_copy: StoreCopy, golden: GoldenStore, settings_of: Callable[[str], Path]
) -> None:
    """Lost is what is whole in the damaged log and what no entry of a queue brings, read as the real code reads."""
    base, by, key = case
    name, exit_kind = key.split("/")
    exit: Exit = "crash" if exit_kind == "crash" else "clean"
    told = stores.outcomes(f"multidamage-{base}", by)[key]
    root = store_copy(base)
    apply_case(root, stores.cases(f"multidamage-{base}")[name], exit)
    with Store.open(root, load_settings(settings_of(base), root)) as store:
        hunt = ResurrectionSearch(store)
        start = start_broker(store, behaviour_of(Version.parse(told["rocketmq"])), on_table=hunt.look_at)
        with start:
            assert compare_with_start(start, told) == {}
            outcome = outcome_of_start(store, start, hunt)
            if not outcome.starts and not start.ends_cut:
                return
            served = _served(start, told["afterLoad" if start.ends_cut else "afterStart"]["mappedFiles"])
    deleted = [path for path in told["diffAfterLoad"]["deleted"] if path.startswith(paths.COMMITLOG)]
    assert [f"{paths.COMMITLOG}/{name}" for name in sorted(outcome.deleted_commitlog_files)] == deleted
    whole, harmed = whole_messages(root, golden(base), base)
    gone = {place for places in harmed.values() for place in places}
    lost = {place for record, places in whole.items() if record not in served for place in places}
    assert {place for place in _places(outcome.lost) if place not in gone} == lost
    assert outcome.lost_messages == sum(run.messages or 0 for run in outcome.lost)


def _places(runs: tuple[Any, ...]) -> Iterator[Place]:
    for run in runs:
        for number in range(run.first_queue_offset, run.last_queue_offset + 1):
            yield run.topic, run.queue_id, number


def _entries(queue: QueueState) -> list[Any]:
    """What is read of a queue; a batch queue's files one after the other."""
    if not isinstance(queue, BatchQueueState):
        return [*queue.entries(queue.min_position, queue.end)]
    files = ((start, queue.entries(start, start + queue.written_in(start))) for start in queue.starts)
    return [entry for start, found in files for entry in found[queue.reaches(start, found)]]


def _served(start: Start, files: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Log offset and size of what the entries bring; that they are the real ones, their digests have told."""
    written = {paths.parse_long(file["file"]) or 0: file["wrotePosition"] for file in files}
    size = max(written.values(), default=0)
    found = set()
    for queue in start.queues:
        if queue.max_offset <= 0:
            continue
        for entry in _entries(queue):
            at, length = int(entry["phy_offset"]), int(entry["size_bytes"])
            file = file_of(list(written), size, at)
            if file is not None and at % size + length <= written[file]:
                found.add((file + at % size, length))
    return found
