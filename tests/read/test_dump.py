"""Queues as they are dumped while a broker writes to them, or removes what has expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from store_core.findings import Finding
from store_core.layout.queue import ENTRY
from store_core.read.dump import QueueDump, all_queues, behind_the_end
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
        [found] = [each for each in all_queues(opened) if (each.topic, each.queue_id) == (TOPIC, 0)]
        yield found


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
        assert told(behind_the_end(queue)) == []


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
        assert told(behind_the_end(queue)) == []


def test_what_is_hidden_is_told_of_a_queue_that_grows(store: Damageable) -> None:
    append = without(store, 150, 300, 510, 512, 513, 514, 515, 516)
    with dumped(store) as queue:
        assert queue.queue.end_slot == 150
        append(150)
        for place in range(512, COUNT):
            append(place)
        assert told(behind_the_end(queue)) == [("Q008", str(COUNT - 301 - 1), 300)]


def test_what_stays_hidden_is_told(store: Damageable) -> None:
    append = without(store, 500, *range(510, COUNT))
    with dumped(store) as queue:
        assert queue.queue.end_slot == 500
        for place in range(510, COUNT):
            append(place)
        assert told(behind_the_end(queue)) == [("Q008", str(COUNT - 501), 500)]
