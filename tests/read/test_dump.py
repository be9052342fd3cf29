"""Queues as they are dumped while a broker writes to them, or removes what has expired."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from store_core.findings import Finding
from store_core.kernel.text import one_by_one
from store_core.layout.queue import ENTRY
from store_core.read.dump import QueueDump, after_end, all_queues, dump_entries
from store_core.read.queue import BatchQueue
from store_core.storage.store import Store
from tests.damage import Damageable

STORE: Final = "load-533"
TOPIC: Final = "Calm_audit"
COUNT: Final = 517  # entries of its queue 0, 200 a file
Written = Callable[[int], None]


@pytest.fixture
def store(damageable: Callable[..., Damageable]) -> Damageable:
    return damageable(STORE)


@contextmanager
def dumped(store: Damageable) -> Iterator[QueueDump]:
    with Store.open(store.root) as opened:
        yield queue_of(opened)


def queue_of(store: Store) -> QueueDump:
    [found] = [each for each in all_queues(store) if (each.topic, each.queue_id) == (TOPIC, 0)]
    return found


def without(store: Damageable, *places: int) -> Written:
    """Zero entries of the queue; what is returned writes one as it was."""
    kept = {}
    for place in places:
        path, at = store.queue_file(TOPIC, 0, place)
        kept[place] = ENTRY.struct.unpack_from(path.read_bytes(), at)
        store.set_entry(TOPIC, 0, place)
    return lambda place: void(store.set_entry(TOPIC, 0, place, kept[place]))


def void(_: object) -> None:
    return None


def told(found: Iterator[Finding]) -> list[tuple[str, str, int | None]]:
    return [(each.code, each.message.split()[0], each.queue_offset) for each in found]


def test_what_a_broker_appends_meanwhile_is_not_hidden(store: Damageable) -> None:
    append = without(store, *range(390, COUNT))
    with dumped(store) as queue:
        assert queue.queue.end_slot == 390
        for place in range(390, 450):
            append(place)
        assert told(after_end(queue)) == []


def test_what_is_appended_while_the_end_is_looked_at_is_not_hidden(
    store: Damageable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read finds the entries that the one before it did not find, and one more."""
    append = without(store, *range(390, COUNT))
    appended = iter(range(390, COUNT))
    with dumped(store) as queue:
        files = queue.queue.files
        assert queue.queue.end_slot == 390
        real = type(files).read

        def read(self: object, *args: int) -> bytes:
            for _ in range(3):
                append(next(appended))
            return real(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(type(files), "read", read)
        assert told(after_end(queue)) == []


def test_what_is_hidden_is_told_of_a_queue_that_grows(store: Damageable) -> None:
    append = without(store, 150, 300, 510, 512, 513, 514, 515, 516)
    with dumped(store) as queue:
        assert queue.queue.end_slot == 150
        append(150)
        for place in range(512, COUNT):
            append(place)
        assert told(after_end(queue)) == [("Q008", str(COUNT - 301 - 1), 300)]


def test_what_stays_hidden_is_told(store: Damageable) -> None:
    append = without(store, 500, *range(510, COUNT))
    with dumped(store) as queue:
        assert queue.queue.end_slot == 500
        for place in range(510, COUNT):
            append(place)
        assert told(after_end(queue)) == [("Q008", str(COUNT - 501), 500)]


def rows_of(store: Damageable, damage: Callable[[], object], after: int = 150) -> tuple[list[int], list[Finding]]:
    """The queue offsets that are dumped, while something happens behind a row; and the findings."""
    findings: list[Finding] = []
    offsets = []
    with Store.open(store.root) as opened:
        for row in one_by_one(dump_entries(queue_of(opened), first=None, end=None, resolve=False, findings=findings)):
            offsets.append(row["queue_offset"])
            if len(offsets) == after:
                damage()
                opened.cache.close()  # files that are open stay readable
    return offsets, findings


def expire(store: Damageable, *places: int) -> None:
    """Remove the files of these places of the queue."""
    for place in places:
        store.queue_file(TOPIC, 0, place)[0].unlink()


def test_what_is_removed_while_it_is_read_is_told(store: Damageable) -> None:
    offsets, findings = rows_of(store, lambda: expire(store, 0, 200))
    assert offsets == [*range(200), *range(400, COUNT)]
    [found] = findings
    assert (found.code, found.severity, found.queue_offset) == ("Q020", "warning", 200)
    assert (found.file, found.size_bytes) == (f"consumequeue/{TOPIC}/0", 200 * ENTRY.size_bytes)
    assert found.message == "200 entries went away while the queue was read"


def test_a_file_that_goes_with_older_ones_left_is_missing(store: Damageable) -> None:
    offsets, findings = rows_of(store, lambda: expire(store, 200))
    assert offsets == [*range(200), *range(400, COUNT)]
    assert [(found.code, found.queue_offset) for found in findings] == [("Q012", 200)]


def test_a_part_in_front_of_what_goes_is_whole(store: Damageable) -> None:
    findings: list[Finding] = []
    with dumped(store) as queue:
        rows = dump_entries(queue, first=450, end=500, resolve=True, findings=findings)
        first = next(rows)["queue_offset"]
        expire(store, 0, 200)
        assert [first, *(row["queue_offset"] for row in rows)] == list(range(450, 500))
    assert findings == []


@pytest.mark.parametrize("end", [None, 90])
def test_batches_that_are_removed_while_they_are_read(damageable: Callable[..., Damageable], end: int | None) -> None:
    store = damageable("bcq-533")
    findings: list[Finding] = []
    with Store.open(store.root) as opened:
        queue = next(each for each in all_queues(opened) if isinstance(each.queue, BatchQueue))
        first = queue.queue.files.segments[0]
        first.path.unlink()
        rows = list(one_by_one(dump_entries(queue, first=None, end=end, resolve=False, findings=findings)))
    [found] = findings
    assert (found.code, found.size_bytes) == ("Q020", first.size_bytes)
    assert len(rows) == (20 if end is None else 0)


def test_a_log_that_goes_while_a_queue_is_resolved_has_expired(store: Damageable) -> None:
    findings: list[Finding] = []
    with dumped(store) as queue:
        queue.queue.log  # noqa: B018
        store.segments[0].unlink()
        rows = list(dump_entries(queue, first=None, end=None, resolve=True, findings=findings))
    assert any(row["record"] is None for row in rows)
    assert findings == []


def test_a_segment_that_comes_while_a_queue_is_resolved_is_read(store: Damageable) -> None:
    findings: list[Finding] = []
    newest = [path for path in store.segments if int(path.name) < store.end_phy_offset][-1]
    aside = newest.rename(store.root / "aside")
    with dumped(store) as queue:
        assert queue.queue.log.max_phy_offset <= int(newest.name)
        aside.rename(newest)
        rows = list(dump_entries(queue, first=None, end=None, resolve=True, findings=findings))
    assert rows[-1]["phy_offset"] > int(newest.name)
    assert all(row["record"] is not None for row in rows)
    assert findings == []


def test_an_entry_among_others_that_leads_in_front_of_the_log_has_not_expired(
    damageable: Callable[..., Damageable],
) -> None:
    found = damageable("load-533")
    begin = int(found.segments[1].name)
    found.segments[0].unlink()
    wrong = next(
        message
        for message in found.truth["messages"][100:]
        if message["topic"] == "Calm_audit" and message["phyOffset"] > 3 * begin
    )
    found.set_entry("Calm_audit", wrong["queueId"], wrong["queueOffset"], (100, wrong["storeSize"], 7))
    findings: list[Finding] = []
    with Store.open(found.root) as store:
        for dumped in all_queues(store):
            list(dump_entries(dumped, first=None, end=None, resolve=True, findings=findings))
    assert [(told.code, told.queue_offset) for told in findings] == [("Q001", wrong["queueOffset"])]


def unlinked(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 1000)


@pytest.mark.parametrize(("harm", "code", "first_lost"), [(unlinked, "Q012", 200), (cut, "Q007", 250)])
def test_a_file_that_is_missing_between_others(
    harm: Callable[[Path], None], code: str, first_lost: int, store: Damageable
) -> None:
    harm(store.queue_file(TOPIC, 0, 200)[0])
    with dumped(store) as queue:
        findings: list[Finding] = []

        def told(first: int | None, end: int | None) -> list[int]:
            findings.clear()
            rows = dump_entries(queue, first=first, end=end, resolve=False, findings=findings)
            return [row["queue_offset"] for row in one_by_one(rows)]

        assert told(None, None) == [*range(first_lost), *range(400, COUNT)]
        size = (400 - first_lost) * ENTRY.size_bytes
        assert [(found.code, found.severity, found.size_bytes) for found in findings] == [(code, "error", size)]
        for first, end in ((0, 260), (300, 410), (399, 400)):
            told(first, end)
            assert [found.code for found in findings] == [code]
        for first, end in ((0, 200), (400, 500)):
            assert len(told(first, end)) == end - first
            assert findings == []
